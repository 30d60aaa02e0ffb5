/*
 * See pattern.h. A class is a small number, a set of classes a bit mask; the scanner is the pattern
 * with its backtracking worked out by hand.
 */
#include "cli/pattern.h"

#include <string.h>

#include "cli/unicode_class.h"

enum { RANGES = sizeof(unicode_class_range) / sizeof(unicode_class_range[0]) };

#define SET(name) (1u << WASTE_CLASS_##name)
#define HAN (SET(HAN_LETTER) | SET(HAN_NUMBER) | SET(HAN_OTHER))
#define UPPERISH (SET(UPPER) | SET(BOTH) | SET(MARK))
#define LOWERISH (SET(LOWER) | SET(BOTH) | SET(MARK))
#define EITHER (UPPERISH & LOWERISH)
#define NUMBER (SET(NUMBER) | SET(HAN_NUMBER))
#define SPACE (SET(SPACE) | SET(NEWLINE))
/* [^\r\n\p{L}\p{N}] of what can begin a piece here: Han has been taken before it is asked */
#define PREFIX (SET(OTHER) | SET(MARK) | SET(SPACE))
/* [^\s\p{L}\p{N}] */
#define SYMBOL (SET(OTHER) | SET(MARK) | SET(HAN_OTHER))

static enum waste_class class_in_ranges(uint32_t code_point)
{
    size_t low = 0, high = RANGES; /* the range is in [low, high) */

    while (high - low > 1) {
        size_t middle = (low + high) / 2;

        if (unicode_class_range[middle] >> 4 <= code_point)
            low = middle;
        else
            high = middle;
    }
    return (enum waste_class)(unicode_class_range[low] & 15);
}

void waste_classes_init(struct waste_classes *c)
{
    for (size_t i = 0; i < RANGES; i++) {
        size_t from = unicode_class_range[i] >> 4;
        size_t to = i + 1 < RANGES ? unicode_class_range[i + 1] >> 4 : WASTE_CLASS_FLAT;

        if (from >= WASTE_CLASS_FLAT)
            break;
        if (to > WASTE_CLASS_FLAT)
            to = WASTE_CLASS_FLAT;
        memset(c->flat + from, (int)(unicode_class_range[i] & 15), to - from);
    }
}

enum waste_class waste_class_of(const struct waste_classes *c, uint32_t code_point)
{
    return code_point < WASTE_CLASS_FLAT ? c->flat[code_point] : class_in_ranges(code_point);
}

unsigned waste_utf8_decode(const char *text, size_t bytes, uint32_t *code_point)
{
    const uint8_t *s = (const uint8_t *)text;
    uint32_t c;

    if (bytes == 0)
        return 0;
    if (s[0] < 0x80) {
        *code_point = s[0];
        return 1;
    }
    if (s[0] < 0xe0) {
        if (s[0] < 0xc2 || bytes < 2 || (s[1] & 0xc0) != 0x80)
            return 0;
        *code_point = (s[0] & 0x1fu) << 6 | (s[1] & 0x3fu);
        return 2;
    }
    if (s[0] < 0xf0) {
        if (bytes < 3 || (s[1] & 0xc0) != 0x80 || (s[2] & 0xc0) != 0x80)
            return 0;
        c = (s[0] & 0xfu) << 12 | (s[1] & 0x3fu) << 6 | (s[2] & 0x3fu);
        if (c < 0x800 || (c >= 0xd800 && c < 0xe000))
            return 0;
        *code_point = c;
        return 3;
    }
    if (s[0] > 0xf4 || bytes < 4 || (s[1] & 0xc0) != 0x80 || (s[2] & 0xc0) != 0x80 ||
        (s[3] & 0xc0) != 0x80)
        return 0;
    c = (s[0] & 7u) << 18 | (s[1] & 0x3fu) << 12 | (s[2] & 0x3fu) << 6 | (s[3] & 0x3fu);
    if (c < 0x10000 || c > 0x10ffff)
        return 0;
    *code_point = c;
    return 4;
}

struct scan {
    const struct waste_classes *classes;
    const char *text;
    size_t bytes;
};

/* The set of the one character at `at`, and its length. */
static inline unsigned set_at(const struct scan *s, size_t at, size_t *length)
{
    uint32_t code_point;

    if (at < s->bytes && (uint8_t)s->text[at] < 0x80) {
        *length = 1;
        return 1u << s->classes->flat[(uint8_t)s->text[at]];
    }
    *length = waste_utf8_decode(s->text + at, s->bytes - at, &code_point);
    return *length == 0 ? SET(END) : 1u << waste_class_of(s->classes, code_point);
}

/* The end of the run of characters of `set` from `at`. */
static inline size_t run(const struct scan *s, size_t at, unsigned set)
{
    size_t length;

    while (set_at(s, at, &length) & set)
        at += length;
    return at;
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d)? */
static size_t contraction(const struct scan *s, size_t at)
{
    const char *t = s->text + at;
    size_t left = s->bytes - at;

    if (left < 2 || t[0] != '\'')
        return at;
    switch (t[1] | 0x20) {
    case 's':
    case 't':
    case 'm':
    case 'd':
        return at + 2;
    case 'r':
    case 'v':
        return left > 2 && (t[2] | 0x20) == 'e' ? at + 3 : at;
    case 'l':
        return left > 2 && (t[2] | 0x20) == 'l' ? at + 3 : at;
    default:
        /* U+017F, the long s, is an s to a match that ignores case */
        return left > 2 && memcmp(t + 1, "\xc5\xbf", 2) == 0 ? at + 3 : at;
    }
}

/*
 * [U]*[W]+ from `at`, or `at` if it does not match. U and W share marks and caseless letters: where
 * no lower-case letter follows the run of U, the last of those it holds is given back to W.
 */
static size_t word(const struct scan *s, size_t at)
{
    size_t length, given_back = at;
    unsigned set;

    for (; (set = set_at(s, at, &length)) & UPPERISH; at += length)
        if (set & EITHER)
            given_back = at + length;
    return set & LOWERISH ? run(s, at, LOWERISH) : given_back;
}

/* The second and third alternative, with and without the character before the word. */
static size_t word_piece(const struct scan *s, unsigned first, size_t first_length)
{
    size_t prefix = first & PREFIX ? first_length : 0, end;

    if ((end = word(s, prefix)) > prefix)
        return contraction(s, end);
    if (prefix > 0 && (end = word(s, 0)) > 0)
        return contraction(s, end);
    if ((end = run(s, prefix, UPPERISH)) > prefix)
        return contraction(s, end);
    return 0; /* without its prefix nothing is left that U could match but what word() took */
}

/* The last three alternatives. */
static size_t space_piece(const struct scan *s)
{
    size_t at = 0, length = 0, after_newline = 0, last = 0;
    unsigned set;

    for (; (set = set_at(s, at, &length)) & SPACE; at += length) {
        last = at;
        if (set & SET(NEWLINE))
            after_newline = at + length;
    }
    if (after_newline > 0)
        return after_newline;
    /* what follows takes one space with it, if that leaves any */
    return set & SET(END) || last == 0 ? at : last;
}

size_t waste_pattern_next(const struct waste_classes *c, const char *text, size_t bytes)
{
    const struct scan s = {c, text, bytes};
    size_t length, end;
    unsigned first = set_at(&s, 0, &length);

    if (first & SET(END))
        return 0;
    if (first & HAN)
        return run(&s, length, HAN);
    if ((end = word_piece(&s, first, length)) > 0)
        return end;
    if (first & NUMBER) {
        for (int digits = 1; digits < 3; digits++) {
            size_t more;

            if (!(set_at(&s, length, &more) & NUMBER))
                break;
            length += more;
        }
        return length;
    }
    end = run(&s, text[0] == ' ' ? 1 : 0, SYMBOL);
    if (end > (text[0] == ' ' ? 1u : 0u))
        return run(&s, end, SET(NEWLINE));
    return space_piece(&s);
}

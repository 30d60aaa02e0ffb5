/*
 * Kimi's pre-tokenisation pattern as a scanner. The pattern, alternatives tried in this order:
 *
 *     [\p{Han}]+
 *     [^\r\n\p{L}\p{N}]?[U]*[W]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?
 *     [^\r\n\p{L}\p{N}]?[U]+[W]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?
 *     \p{N}{1,3}
 *      ?[^\s\p{L}\p{N}]+[\r\n]*
 *     \s*[\r\n]+
 *     \s+(?!\S)
 *     \s+
 *
 * U = \p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M} without Han, W = \p{Ll}\p{Lm}\p{Lo}\p{M} without Han.
 *
 * Why not a regex library: the classes must be those of the tokenizer the model was trained with,
 * on all of Unicode. pcre2 follows whatever Unicode its version knows (10.42: 14.0; today's
 * tiktoken: 16.0), its \s holds U+180E, which is no white space any more, and its \p{Han} means the
 * script extensions. Here one table of Unicode 16 classes every character (compared with tiktoken's
 * own answers for all 1,112,064), a piece is found in one pass without a match limit, and several
 * times faster. tests/unit/test_tokenizer.c compares the scanner with the pattern run by pcre2
 * wherever the two know the same characters.
 */
#ifndef WASTE_CLI_PATTERN_H
#define WASTE_CLI_PATTERN_H

#include <stddef.h>
#include <stdint.h>

/* Characters the pattern treats alike. */
enum waste_class {
    WASTE_CLASS_OTHER,
    WASTE_CLASS_MARK,       /* \p{M} */
    WASTE_CLASS_UPPER,      /* \p{Lu} \p{Lt} */
    WASTE_CLASS_LOWER,      /* \p{Ll} */
    WASTE_CLASS_BOTH,       /* \p{Lm} \p{Lo} */
    WASTE_CLASS_NUMBER,     /* \p{N} */
    WASTE_CLASS_SPACE,      /* \s but those of the next line */
    WASTE_CLASS_NEWLINE,    /* \r \n */
    WASTE_CLASS_HAN_LETTER, /* the rest: \p{Han}, by what else it is */
    WASTE_CLASS_HAN_NUMBER,
    WASTE_CLASS_HAN_OTHER,
    WASTE_CLASS_END, /* end of the text, or a byte that is part of no character */
};

enum { WASTE_CLASS_FLAT = 0x20000 }; /* code points the flat table holds */

struct waste_classes {
    uint8_t flat[WASTE_CLASS_FLAT];
};

void waste_classes_init(struct waste_classes *c);
enum waste_class waste_class_of(const struct waste_classes *c, uint32_t code_point);

/*
 * The character at text[0 .. bytes): its length, and *code_point. 0 if it is none (a byte that
 * begins no character, an overlong form, a surrogate, beyond U+10FFFF, cut off, or bytes == 0).
 */
unsigned waste_utf8_decode(const char *text, size_t bytes, uint32_t *code_point);

/*
 * Length of the piece at the start of text[0 .. bytes), as if the text ended before the first byte
 * that is part of no character; 0 if that is the very first, or bytes is 0.
 */
size_t waste_pattern_next(const struct waste_classes *c, const char *text, size_t bytes);

#endif

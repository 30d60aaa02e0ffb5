/*
 * The tokenizer against the real tiktoken (data/tokenizer_demo.jsonl), the pattern against another
 * regex engine's pieces (data/pattern.jsonl) and against pcre2, merging against the definition.
 *
 * With WASTE_TOKENIZER_DATA naming a directory with big.tiktoken and cases.jsonl, all of those too.
 */
#include "cm.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <errno.h>
#include <jansson.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli/pattern.h"
#include "cli/tokenizer.h"

static struct waste_tokenizer *demo;
static struct waste_classes classes;

static uint64_t random_state = 1;

static uint32_t random_below(uint32_t n)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((random_state >> 33) % n);
}

static struct waste_ids encode(const struct waste_tokenizer *t, const char *text, size_t bytes)
{
    struct waste_ids ids = {0};

    assert_int_equal(waste_tokenizer_encode(t, text, bytes, &ids), 0);
    return ids;
}

static void assert_decodes_to(const struct waste_tokenizer *t, const struct waste_ids *ids,
                              const char *text, size_t bytes)
{
    size_t at = 0;

    for (size_t i = 0; i < ids->count; i++) {
        size_t length = 0;
        const char *data = waste_tokenizer_bytes(t, ids->id[i], &length);

        assert_non_null(data);
        assert_true(length <= bytes - at);
        assert_memory_equal(data, text + at, length);
        at += length;
    }
    assert_int_equal(at, bytes);
}

/* Every line of a file of cases; returns how many there were. */
static size_t each_case(const char *path, void (*check)(const json_t *line))
{
    FILE *f = fopen(path, "r");
    char *text = NULL;
    size_t room = 0, lines = 0;
    ssize_t bytes;

    assert_non_null(f);
    while ((bytes = getline(&text, &room, f)) > 0) {
        json_t *line = json_loadb(text, (size_t)bytes, JSON_ALLOW_NUL, NULL);

        assert_non_null(line);
        check(line);
        json_decref(line);
        lines++;
    }
    free(text);
    fclose(f);
    return lines;
}

static void check_ids(const struct waste_tokenizer *t, const json_t *line, const char *key)
{
    const json_t *text = json_object_get(line, "text"), *want = json_object_get(line, key);
    struct waste_ids ids = encode(t, json_string_value(text), json_string_length(text));
    bool same = ids.count == json_array_size(want);

    for (size_t i = 0; same && i < ids.count; i++)
        same = ids.id[i] == json_integer_value(json_array_get(want, i));
    if (!same)
        fail_msg("other ids: %s", json_string_value(text));
    assert_decodes_to(t, &ids, json_string_value(text), json_string_length(text));
    waste_ids_finish(&ids);
}

static void check_demo(const json_t *line)
{
    check_ids(demo, line, "ids");
}

static void encodes_as_tiktoken_does(void **state)
{
    assert_true(each_case(WASTE_TEST_DATA "/tokenizer_demo.jsonl", check_demo) > 300);
}

static struct waste_tokenizer *big;

static void check_both(const json_t *line)
{
    check_ids(big, line, "big");
    check_ids(demo, line, "demo");
}

static void encodes_as_tiktoken_does_with_a_big_vocabulary(void **state)
{
    const char *dir = getenv("WASTE_TOKENIZER_DATA");
    struct waste_error err;
    char ranks[512], cases[512];

    if (dir == NULL) {
        print_message("skipped: WASTE_TOKENIZER_DATA is not set\n");
        skip();
    }
    snprintf(ranks, sizeof(ranks), "%s/big.tiktoken", dir);
    snprintf(cases, sizeof(cases), "%s/cases.jsonl", dir);
    if (waste_tokenizer_open_files(ranks, NULL, 0, &big, &err) < 0)
        fail_msg("%s", err.text);
    assert_true(each_case(cases, check_both) > 2000);
    waste_tokenizer_destroy(big);
}

static void check_pieces(const json_t *line)
{
    const json_t *text = json_object_get(line, "text"), *pieces = json_object_get(line, "pieces");
    const char *at = json_string_value(text);
    size_t left = json_string_length(text);

    for (size_t i = 0; i < json_array_size(pieces); i++) {
        size_t got = waste_pattern_next(&classes, at, left);

        if (got != (size_t)json_integer_value(json_array_get(pieces, i)))
            fail_msg("piece %zu is of %zu bytes: %s", i, got, json_string_value(text));
        at += got;
        left -= got;
    }
    assert_int_equal(left, 0);
}

static void splits_as_another_regex_engine_does(void **state)
{
    assert_int_equal(each_case(WASTE_TEST_DATA "/pattern.jsonl", check_pieces), 600);
}

/* ---- pcre2 ---- */

/* sc: is needed: without it, pcre2 means the script extensions */
#define NO_HAN "(?!\\p{sc:Han})"
#define UPPERISH "(?:" NO_HAN "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}])"
#define LOWERISH "(?:" NO_HAN "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}])"
#define PREFIX "[^\\r\\n\\p{L}\\p{N}]?"
#define SUFFIX "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
static const char pattern_text[] =
    "\\p{sc:Han}+|" PREFIX UPPERISH "*" LOWERISH "+" SUFFIX "|" PREFIX UPPERISH "+" LOWERISH
    "*" SUFFIX "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
    "\\s+(?!\\S)|\\s+";

static pcre2_code *compile(const char *pattern)
{
    int error;
    PCRE2_SIZE at;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &at, NULL);

    assert_non_null(code);
    return code;
}

static pcre2_match_data *match_data;

/* Length of the match at the start of text, or 0. */
static size_t match(const pcre2_code *code, const char *text, size_t bytes)
{
    int got = pcre2_match(code, (PCRE2_SPTR)text, bytes, 0, PCRE2_NO_UTF_CHECK, match_data, NULL);

    return got >= 0 ? pcre2_get_ovector_pointer(match_data)[1] : 0;
}

static size_t put_utf8(char *out, uint32_t c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 63));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 63));
        out[2] = (char)(0x80 | (c & 63));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 63));
    out[2] = (char)(0x80 | (c >> 6 & 63));
    out[3] = (char)(0x80 | (c & 63));
    return 4;
}

static const char *const class_pattern[WASTE_CLASS_END] = {
    [WASTE_CLASS_OTHER] = NO_HAN "[^\\s\\p{L}\\p{M}\\p{N}]",
    [WASTE_CLASS_MARK] = NO_HAN "\\p{M}",
    [WASTE_CLASS_UPPER] = NO_HAN "[\\p{Lu}\\p{Lt}]",
    [WASTE_CLASS_LOWER] = NO_HAN "\\p{Ll}",
    [WASTE_CLASS_BOTH] = NO_HAN "[\\p{Lm}\\p{Lo}]",
    [WASTE_CLASS_NUMBER] = NO_HAN "\\p{N}",
    [WASTE_CLASS_SPACE] = "[^\\S\\r\\n]",
    [WASTE_CLASS_NEWLINE] = "[\\r\\n]",
    [WASTE_CLASS_HAN_LETTER] = "(?=\\p{sc:Han})\\p{L}",
    [WASTE_CLASS_HAN_NUMBER] = "(?=\\p{sc:Han})\\p{N}",
    [WASTE_CLASS_HAN_OTHER] = "(?=\\p{sc:Han})[^\\p{L}\\p{N}]",
};

/*
 * Where pcre2 and the table know the same Unicode they agree on every character, but for U+180E.
 * `agree` gets a 1 for each on which they do.
 */
static void compare_classes(uint8_t *agree)
{
    pcre2_code *of[WASTE_CLASS_END], *unassigned = compile("\\p{Cn}");
    char version[64];
    uint32_t assigned_differ = 0;

    for (int i = 0; i < WASTE_CLASS_END; i++)
        of[i] = compile(class_pattern[i]);
    for (uint32_t c = 0; c < 0x110000; c++) {
        char text[4];
        size_t bytes = put_utf8(text, c);

        if (c >= 0xd800 && c < 0xe000)
            continue;
        agree[c] = match(of[waste_class_of(&classes, c)], text, bytes) == bytes;
        if (!agree[c] && c != 0x180e && match(unassigned, text, bytes) == 0)
            assigned_differ++;
    }
    pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version);
    print_message("pcre2 has Unicode %s: %u of its characters are classed otherwise\n", version,
                  assigned_differ);
    if (atoi(version) <= 16)
        assert_int_equal(assigned_differ, 0);
    for (int i = 0; i < WASTE_CLASS_END; i++)
        pcre2_code_free(of[i]);
    pcre2_code_free(unassigned);
}

static uint32_t random_character(const uint8_t *agree)
{
    static const uint32_t base[] = {0,       0x80,    0x300,   0x370,  0x5d0,  0x900,
                                    0x1680,  0x2000,  0x2160,  0x2e80, 0x3000, 0x3040,
                                    0x4e00,  0xa640,  0xac00,  0xf900, 0xff00, 0x10400,
                                    0x16ff0, 0x1d400, 0x1f300, 0x20000};
    static const char often[] = "'sStTrReEvVmMlLdD  \r\n0123!.";
    uint32_t c;

    if (random_below(3) == 0)
        return (uint8_t)often[random_below(sizeof(often) - 1)];
    do
        c = base[random_below(sizeof(base) / sizeof(base[0]))] + random_below(128);
    while (!agree[c]);
    return random_below(40) == 0 ? 0x17f : c;
}

static void splits_as_pcre2_does(void **state)
{
    uint8_t *agree = calloc(0x110000, 1);
    pcre2_code *code = compile(pattern_text);

    match_data = pcre2_match_data_create(1, NULL);
    assert_non_null(agree);
    assert_non_null(match_data);
    compare_classes(agree);
    for (int i = 0; i < 20000; i++) {
        char text[160];
        size_t bytes = 0;

        for (uint32_t n = 1 + random_below(30); n > 0; n--)
            bytes += put_utf8(text + bytes, random_character(agree));
        for (size_t at = 0, got; at < bytes; at += got) {
            got = waste_pattern_next(&classes, text + at, bytes - at);
            if (got != match(code, text + at, bytes - at))
                fail_msg("string %d, at byte %zu: %zu, not %zu: %.*s", i, at, got,
                         match(code, text + at, bytes - at), (int)bytes, text);
        }
    }
    pcre2_match_data_free(match_data);
    pcre2_code_free(code);
    free(agree);
}

/* ---- bytes that are no text ---- */

static void bytes_of_no_character_become_their_own_tokens(void **state)
{
    static const struct {
        const char *text;
        size_t pieces; /* tokens: every byte of these has only its own */
    } cases[] = {
        {"\xff", 1},
        {"\x80\x80", 2},
        {"\xc3", 1},
        {"\xe4\xb8", 2},
        {"\xf0\x9f\x91", 3},
        {"\xc0\xaf", 2},         /* overlong */
        {"\xed\xa0\x80", 3},     /* surrogate */
        {"\xf4\x90\x80\x80", 4}, /* beyond U+10FFFF */
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct waste_ids ids = encode(demo, cases[i].text, strlen(cases[i].text));

        assert_int_equal(ids.count, cases[i].pieces);
        assert_decodes_to(demo, &ids, cases[i].text, strlen(cases[i].text));
        waste_ids_finish(&ids);
    }
}

static void a_bad_byte_splits_the_text_and_nothing_else(void **state)
{
    struct waste_ids ids = encode(demo, "the capital\xff of", 15);
    struct waste_ids left = encode(demo, "the capital", 11), right = encode(demo, " of", 3);

    assert_int_equal(ids.count, left.count + 1 + right.count);
    assert_memory_equal(ids.id, left.id, left.count * sizeof(*ids.id));
    assert_memory_equal(ids.id + left.count + 1, right.id, right.count * sizeof(*ids.id));
    waste_ids_finish(&ids);
    waste_ids_finish(&left);
    waste_ids_finish(&right);
}

static void random_bytes_come_back(void **state)
{
    for (int i = 0; i < 5000; i++) {
        static const char some[] = "\xe4\xb8\xad\xf0\x9f\x91\xa9 '\n19aA";
        char text[64];
        size_t bytes = random_below(sizeof(text));
        struct waste_ids ids;

        for (size_t k = 0; k < bytes; k++)
            text[k] = random_below(2) ? some[random_below(sizeof(some))] : (char)random_below(256);
        ids = encode(demo, text, bytes);
        assert_decodes_to(demo, &ids, text, bytes);
        waste_ids_finish(&ids);
    }
}

/* ---- merging ---- */

static uint32_t id_of(const char *data, size_t bytes)
{
    for (uint32_t id = 0; id < waste_tokenizer_ranks(demo); id++) {
        size_t length = 0;
        const char *token = waste_tokenizer_bytes(demo, id, &length);

        if (length == bytes && memcmp(token, data, bytes) == 0)
            return id;
    }
    return UINT32_MAX;
}

/* The definition, as slow as it is plain. Returns the number of ids. */
static size_t merge_slowly(const char *piece, size_t bytes, uint32_t *ids)
{
    size_t start[256], parts = bytes;

    for (size_t i = 0; i <= bytes; i++)
        start[i] = i;
    for (;;) {
        uint32_t lowest = UINT32_MAX;
        size_t best = 0;

        for (size_t i = 0; i + 1 < parts; i++) {
            uint32_t rank = id_of(piece + start[i], start[i + 2] - start[i]);

            if (rank < lowest) {
                lowest = rank;
                best = i;
            }
        }
        if (lowest == UINT32_MAX)
            break;
        memmove(start + best + 1, start + best + 2, (parts - best - 1) * sizeof(start[0]));
        parts--;
    }
    for (size_t i = 0; i < parts; i++)
        ids[i] = id_of(piece + start[i], start[i + 1] - start[i]);
    return parts;
}

static void merges_by_rank_then_leftmost_whatever_the_length(void **state)
{
    for (int i = 0; i < 24; i++) {
        size_t bytes = i < 12 ? 1 + random_below(64) : 60 + random_below(100);
        uint32_t letters = 1 + random_below(8), want[256];
        char text[256];
        size_t count;
        struct waste_ids ids;

        for (size_t k = 0; k < bytes; k++)
            text[k] = "etaonihs"[random_below(letters)];
        assert_int_equal(waste_pattern_next(&classes, text, bytes), bytes);
        count = merge_slowly(text, bytes, want);
        ids = encode(demo, text, bytes);
        assert_int_equal(ids.count, count);
        assert_memory_equal(ids.id, want, count * sizeof(*want));
        waste_ids_finish(&ids);
    }
}

static void a_megabyte_of_anything_is_quick(void **state)
{
    static const char *const unit[] = {
        "a", " ", "1", "\n", "!", "漢字", "👩‍👩‍👧‍👦", "e\u0301", "\xff", "ªA"};

    for (size_t i = 0; i < sizeof(unit) / sizeof(unit[0]); i++) {
        size_t length = strlen(unit[i]), bytes = (1u << 20) / length * length;
        char *text = malloc(bytes);
        struct timespec from, to;
        struct waste_ids ids;

        assert_non_null(text);
        for (size_t at = 0; at < bytes; at += length)
            memcpy(text + at, unit[i], length);
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
        ids = encode(demo, text, bytes);
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
        assert_decodes_to(demo, &ids, text, bytes);
        /* 0.2 s at most when measured alone; sanitizers and a busy machine get room */
        assert_true(to.tv_sec - from.tv_sec < 10);
        waste_ids_finish(&ids);
        free(text);
    }
}

/* ---- special tokens ---- */

static void plain_text_never_becomes_a_special_token(void **state)
{
    static const char text[] =
        "<|open|>message<|sep|>[BOS][EOS]<|end_of_msg|><|close|><|media_pad|>";
    struct waste_ids ids = encode(demo, text, strlen(text));

    for (size_t i = 0; i < ids.count; i++)
        assert_false(waste_tokenizer_is_special(demo, ids.id[i]));
    assert_decodes_to(demo, &ids, text, strlen(text));
    waste_ids_finish(&ids);
}

static void markup_becomes_special_tokens(void **state)
{
    static const uint32_t want[] = {1283, 265, 279, 61, 34, 294, 34, 1285};
    static const char text[] = "<|open|>message role=\"user\"<|sep|>";
    struct waste_ids ids = {0};

    assert_int_equal(waste_tokenizer_encode_markup(demo, text, strlen(text), &ids), 0);
    assert_int_equal(ids.count, 8);
    assert_memory_equal(ids.id, want, sizeof(want));
    waste_ids_finish(&ids);
    assert_int_equal(waste_tokenizer_special(demo, "<|open|>"), 1283);
    assert_int_equal(waste_tokenizer_special(demo, "<|open"), -1);
    assert_int_equal(waste_tokenizer_special(demo, "<|open|>x"), -1);
    assert_true(waste_tokenizer_is_special(demo, 1290));
    assert_false(waste_tokenizer_is_special(demo, 1291));
    assert_false(waste_tokenizer_is_special(demo, 1279));
}

/* ---- hostile files ---- */

static char temp_dir[64];

static void write_file(const char *name, const char *data, size_t bytes)
{
    char path[128];
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s", temp_dir, name);
    f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    fclose(f);
}

/* A ranks file of all bytes, then `more`. */
static size_t base_ranks(char *out, const char *more)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t at = 0;

    for (int b = 0; b < 256; b++)
        at += (size_t)sprintf(out + at, "%c%c== %d\n", digits[b >> 2], digits[(b & 3) << 4], b);
    return at + (size_t)sprintf(out + at, "%s", more);
}

static int open_temp(struct waste_tokenizer **t, struct waste_error *err)
{
    *t = NULL;
    memset(err, 0, sizeof(*err));
    return waste_tokenizer_open(temp_dir, 1000, t, err);
}

static void assert_refused(const char *part)
{
    struct waste_tokenizer *t;
    struct waste_error err;

    assert_int_equal(open_temp(&t, &err), -EINVAL);
    assert_null(t);
    if (strstr(err.text, part) == NULL)
        fail_msg("said \"%s\", not \"%s\"", err.text, part);
    assert_null(strchr(err.text, '\n'));
}

static void refuses_bad_ranks(void **state)
{
    static const struct {
        const char *more, *part;
    } cases[] = {
        {"YWE= 255\n", "rank 255 a second time"},
        {"YWE= 257\n", "rank 257, but the file has 257 lines"},
        {"YWE= 99999999999999999999\n", "line 257: not"},
        {"YWE= -1\n", "line 257: not"},
        {"YWE=\n", "line 257: not"},
        {"YWE= \n", "line 257: not"},
        {"\n", "line 257: not"},
        {"YWE= 25x\n", "line 257: not"},
        {" 256\n", "rank 256: empty token"},
        {"Y*E= 256\n", "rank 256: bad base64"},
        {"YWE 256\n", "rank 256: bad base64"},
        {"YWF= 256\n", "rank 256: bad base64"}, /* spare bits */
        {"YQ=a 256\n", "rank 256: bad base64"},
        {"==== 256\n", "rank 256: bad base64"},
        {"YQ== 256\n", "rank 256: the token of rank 97 again"},
        {"YWE= 256\nYWE= 257\n", "rank 257: the token of rank 256 again"},
    };
    static char text[16384];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        write_file("tokenizer.model", text, base_ranks(text, cases[i].more));
        assert_refused(cases[i].part);
    }
    write_file("tokenizer.model", "", 0);
    assert_refused("0 tokens");
    write_file("tokenizer.model", "YQ== 0\n", 7);
    assert_refused("no token for byte 0x00");
    write_file("tokenizer.model", "\0\0\0\0", 4);
    assert_refused("line 1: not");
    memset(text, 'Y', 8192);
    strcpy(text + 8192, " 0\n");
    write_file("tokenizer.model", text, 8195);
    assert_refused("8192 base64 characters");
}

static void refuses_more_ranks_than_the_model_has(void **state)
{
    char *text = malloc(1 << 20);
    size_t at = base_ranks(text, "");
    struct waste_tokenizer *t;
    struct waste_error err;

    write_file("tokenizer.model", text, at);
    assert_int_equal(waste_tokenizer_open(temp_dir, 255, &t, &err), -EINVAL);
    assert_non_null(strstr(err.text, "256 tokens (1 to 255)"));
    free(text);
}

static void takes_lines_in_any_order_and_without_a_last_newline(void **state)
{
    static char text[16384], turned[16400];
    struct waste_tokenizer *t;
    struct waste_error err;
    struct waste_ids ids;
    size_t bytes = base_ranks(text, "YWE= 256");

    write_file("tokenizer.model", text, bytes);
    write_file("specials.json", "[]", 2);
    assert_int_equal(open_temp(&t, &err), 0);
    ids = encode(t, "aaa", 3);
    assert_int_equal(ids.count, 2);
    assert_int_equal(ids.id[0], 256);
    assert_int_equal(ids.id[1], 97);
    waste_ids_finish(&ids);
    waste_tokenizer_destroy(t);
    /* the first line last */
    snprintf(turned, sizeof(turned), "%s\nAA== 0\n", text + strlen("AA== 0\n"));
    write_file("tokenizer.model", turned, strlen(turned));
    assert_int_equal(open_temp(&t, &err), 0);
    assert_int_equal(waste_tokenizer_ranks(t), 257);
    waste_tokenizer_destroy(t);
}

static void refuses_bad_specials(void **state)
{
    static const struct {
        const char *json, *part;
    } cases[] = {
        {"", "specials.json: line"},
        {"{}", "not an array"},
        {"[1]", "entry 0: not"},
        {"[{\"id\": 256}]", "entry 0: not"},
        {"[{\"id\": \"256\", \"text\": \"x\"}]", "entry 0: not"},
        {"[{\"id\": 256.5, \"text\": \"x\"}]", "entry 0: not"},
        {"[{\"id\": 255, \"text\": \"x\"}]", "entry 0: id 255 (256 to 999)"},
        {"[{\"id\": -1, \"text\": \"x\"}]", "entry 0: id -1"},
        {"[{\"id\": 1000, \"text\": \"x\"}]", "entry 0: id 1000"},
        {"[{\"id\": 9223372036854775807, \"text\": \"x\"}]", "entry 0: id 9223372036854775807"},
        {"[{\"id\": 99999999999999999999, \"text\": \"x\"}]", "specials.json: line 1"},
        {"[{\"id\": 256, \"text\": \"\"}]", "entry 0: text of 0 bytes"},
        {"[{\"id\": 256, \"text\": \"a\\u0000b\"}]", "specials.json: line 1"},
        {"[{\"id\": 256, \"text\": \"\xff\"}]", "specials.json: line 1"},
        {"[{\"id\": 256, \"id\": 257, \"text\": \"x\"}]", "specials.json: line 1"},
        {"[{\"id\": 256, \"text\": \"x\"}, {\"id\": 256, \"text\": \"y\"}]", "id 256 twice"},
        {"[{\"id\": 256, \"text\": \"x\"}, {\"id\": 257, \"text\": \"x\"}]", "text \"x\" twice"},
        {"[{\"id\": 256, \"text\": \"x\"}", "specials.json: line 1"},
        {"[[[[[[[[[[", "specials.json: line 1"},
    };
    static char text[16384];

    write_file("tokenizer.model", text, base_ranks(text, ""));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        write_file("specials.json", cases[i].json, strlen(cases[i].json));
        assert_refused(cases[i].part);
    }
}

static void the_longest_special_token_wins(void **state)
{
    static const char json[] = "[{\"id\": 257, \"text\": \"<a>\"}, {\"id\": 256, \"text\": "
                               "\"<a><b>\"}, {\"id\": 998, \"text\": \"<\"}]";
    static char text[16384];
    struct waste_tokenizer *t;
    struct waste_error err;
    struct waste_ids ids = {0};

    write_file("tokenizer.model", text, base_ranks(text, ""));
    write_file("specials.json", json, strlen(json));
    assert_int_equal(open_temp(&t, &err), 0);
    assert_int_equal(waste_tokenizer_encode_markup(t, "<a><b><a>x<", 11, &ids), 0);
    assert_int_equal(ids.count, 4);
    assert_int_equal(ids.id[0], 256);
    assert_int_equal(ids.id[1], 257);
    assert_int_equal(ids.id[2], 'x');
    assert_int_equal(ids.id[3], 998);
    waste_ids_finish(&ids);
    waste_tokenizer_destroy(t);
}

/* Special texts that begin with each other, against trying all of them. */
static void special_tokens_are_found_as_if_all_were_tried(void **state)
{
    static char ranks[16384], json[65536];
    char special[200][8];
    size_t count = 0, at = 1;
    struct waste_tokenizer *t;
    struct waste_error err;

    json[0] = '[';
    for (int i = 0; i < 200; i++) {
        uint32_t length = 1 + random_below(6);
        bool again = false;

        for (uint32_t k = 0; k < length; k++)
            special[count][k] = "xyz"[random_below(3)];
        special[count][length] = '\0';
        for (size_t k = 0; k < count; k++)
            again |= strcmp(special[k], special[count]) == 0;
        if (again)
            continue;
        at += (size_t)sprintf(json + at, "%s{\"id\": %zu, \"text\": \"%s\"}", count > 0 ? "," : "",
                              256 + count, special[count]);
        count++;
    }
    strcpy(json + at, "]");
    write_file("tokenizer.model", ranks, base_ranks(ranks, ""));
    write_file("specials.json", json, strlen(json));
    assert_int_equal(open_temp(&t, &err), 0);
    for (int i = 0; i < 2000; i++) {
        char text[16];
        uint32_t length = 1 + random_below(14), want = UINT32_MAX;
        struct waste_ids ids = {0};

        for (uint32_t k = 0; k < length; k++)
            text[k] = "xyz"[random_below(3)];
        text[length] = '\0';
        for (size_t k = 0; k < count; k++)
            if (strncmp(text, special[k], strlen(special[k])) == 0 &&
                (want == UINT32_MAX || strlen(special[k]) > strlen(special[want])))
                want = (uint32_t)k;
        assert_int_equal(waste_tokenizer_encode_markup(t, text, length, &ids), 0);
        assert_int_equal(ids.id[0], want == UINT32_MAX ? (uint32_t)text[0] : 256 + want);
        waste_ids_finish(&ids);
    }
    waste_tokenizer_destroy(t);
}

/* Whatever a damaged file does, it is refused or works: no crash, no leak, under sanitizers too. */
static void damaged_files_are_refused_or_harmless(void **state)
{
    static char ranks[16384], damaged[16384];
    static const char json[] = "[{\"id\": 259, \"text\": \"<a>\"}, {\"id\": 258, \"text\": \"b\"}]";
    size_t bytes = base_ranks(ranks, "YWE= 256\nYWFh 257\n");

    for (int i = 0; i < 600; i++) {
        struct waste_tokenizer *t;
        struct waste_error err;
        bool which = random_below(2);
        size_t n = which ? bytes : sizeof(json) - 1;

        memcpy(damaged, which ? ranks : json, n);
        for (uint32_t k = 1 + random_below(3); k > 0; k--)
            damaged[random_below((uint32_t)n)] =
                (char)(random_below(2) ? random_below(256)
                                       : (uint8_t) "0 =\n\"[{}"[random_below(8)]);
        write_file("tokenizer.model", which ? damaged : ranks, which ? n : bytes);
        write_file("specials.json", which ? json : damaged, which ? sizeof(json) - 1 : n);
        if (open_temp(&t, &err) == 0) {
            struct waste_ids ids = encode(t, "aaaa <a> b", 10);

            assert_decodes_to(t, &ids, "aaaa <a> b", 10);
            waste_ids_finish(&ids);
            waste_tokenizer_destroy(t);
        } else {
            assert_true(strlen(err.text) > 0);
        }
    }
}

static void names_a_missing_file(void **state)
{
    char path[128];
    struct waste_tokenizer *t;
    struct waste_error err;

    snprintf(path, sizeof(path), "%s/tokenizer.model", temp_dir);
    unlink(path);
    assert_int_equal(waste_tokenizer_open(temp_dir, 0, &t, &err), -ENOENT);
    assert_non_null(strstr(err.text, "tokenizer.model"));
}

static int set_up(void **state)
{
    struct waste_error err;

    waste_classes_init(&classes);
    strcpy(temp_dir, "/tmp/waste-test-XXXXXX");
    if (mkdtemp(temp_dir) == NULL || waste_tokenizer_open(WASTE_DEMO_MODEL, 0, &demo, &err) < 0)
        return -1;
    return 0;
}

static int tear_down(void **state)
{
    char path[128];

    snprintf(path, sizeof(path), "%s/tokenizer.model", temp_dir);
    unlink(path);
    snprintf(path, sizeof(path), "%s/specials.json", temp_dir);
    unlink(path);
    rmdir(temp_dir);
    waste_tokenizer_destroy(demo);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(encodes_as_tiktoken_does),
        cmocka_unit_test(encodes_as_tiktoken_does_with_a_big_vocabulary),
        cmocka_unit_test(splits_as_another_regex_engine_does),
        cmocka_unit_test(splits_as_pcre2_does),
        cmocka_unit_test(bytes_of_no_character_become_their_own_tokens),
        cmocka_unit_test(a_bad_byte_splits_the_text_and_nothing_else),
        cmocka_unit_test(random_bytes_come_back),
        cmocka_unit_test(merges_by_rank_then_leftmost_whatever_the_length),
        cmocka_unit_test(a_megabyte_of_anything_is_quick),
        cmocka_unit_test(plain_text_never_becomes_a_special_token),
        cmocka_unit_test(markup_becomes_special_tokens),
        cmocka_unit_test(refuses_bad_ranks),
        cmocka_unit_test(refuses_more_ranks_than_the_model_has),
        cmocka_unit_test(takes_lines_in_any_order_and_without_a_last_newline),
        cmocka_unit_test(refuses_bad_specials),
        cmocka_unit_test(the_longest_special_token_wins),
        cmocka_unit_test(special_tokens_are_found_as_if_all_were_tried),
        cmocka_unit_test(damaged_files_are_refused_or_harmless),
        cmocka_unit_test(names_a_missing_file),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}

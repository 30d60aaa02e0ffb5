#include "cli/cmd_tokenize.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/detokenizer.h"
#include "cli/ids_text.h"
#include "cli/tokenizer.h"

/* One line to stderr, and the exit code to return. */
static int fail(int code, const char *text)
{
    fprintf(stderr, "waste-run: %s\n", text);
    return code;
}

static int out_of_memory(void)
{
    return fail(1, "out of memory");
}

/* Written out at the end, so that an error of stdout is not lost. */
static int finish_stdout(int code)
{
    bool failed = fflush(stdout) != 0 || ferror(stdout);

    return failed && code == 0 ? fail(1, "stdout: write failed") : code;
}

static int open_tokenizer(const struct waste_tokenize_options *o, struct waste_tokenizer **out)
{
    struct waste_error err;
    const char *slash;
    char specials[PATH_MAX];
    int ret;

    if ((o->model != NULL) == (o->tokenizer != NULL))
        return fail(2, "give a model or --tokenizer RANKS");
    if (o->model != NULL) {
        ret = waste_tokenizer_open(o->model, 0, out, &err);
    } else {
        slash = strrchr(o->tokenizer, '/');
        snprintf(specials, sizeof(specials), "%.*sspecials.json",
                 slash != NULL ? (int)(slash + 1 - o->tokenizer) : 0, o->tokenizer);
        ret = waste_tokenizer_open_files(
            o->tokenizer, access(specials, F_OK) == 0 ? specials : NULL, 0, out, &err);
    }
    return ret < 0 ? fail(2, err.text) : 0;
}

/* All of stdin, or the argument. */
static int read_input(const char *input, struct waste_text *out)
{
    char block[65536];
    size_t got;

    if (input != NULL && strcmp(input, "-") != 0)
        return waste_text_add(out, input, strlen(input)) < 0 ? out_of_memory() : 0;
    do {
        got = fread(block, 1, sizeof(block), stdin);
        if (waste_text_add(out, block, got) < 0)
            return out_of_memory();
    } while (got > 0);
    return ferror(stdin) ? fail(1, "stdin: read failed") : 0;
}

static int encode(const struct waste_tokenize_options *o, const struct waste_tokenizer *t,
                  const char *text, size_t bytes, struct waste_ids *out)
{
    int ret = o->markup ? waste_tokenizer_encode_markup(t, text, bytes, out)
                        : waste_tokenizer_encode(t, text, bytes, out);

    return ret < 0 ? out_of_memory() : 0;
}

static void print_ids(const struct waste_ids *ids, const char *before, const char *between,
                      const char *after)
{
    fputs(before, stdout);
    for (size_t i = 0; i < ids->count; i++)
        printf("%s%u", i > 0 ? between : "", ids->id[i]);
    fputs(after, stdout);
}

/* Calls `line` for every line of stdin, without its newline; stops at the first that fails. */
static int each_line(const struct waste_tokenize_options *o, const struct waste_tokenizer *t,
                     int (*line)(const struct waste_tokenize_options *o,
                                 const struct waste_tokenizer *t, const json_t *value,
                                 size_t number))
{
    FILE *in = stdin;
    char *text = NULL;
    size_t room = 0, number = 0;
    ssize_t bytes;
    int code = 0;

    if (o->input != NULL && strcmp(o->input, "-") != 0)
        in = fmemopen((void *)(uintptr_t)o->input, strlen(o->input), "r");
    if (in == NULL)
        return out_of_memory();
    while (code == 0 && (bytes = getline(&text, &room, in)) > 0) {
        json_error_t why;
        json_t *value;

        number++;
        if (strspn(text, " \t\r\n") == (size_t)bytes)
            continue;
        value = json_loadb(text, (size_t)bytes, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
        if (value == NULL) {
            fprintf(stderr, "waste-run: line %zu: %s\n", number, why.text);
            code = 1;
        } else {
            code = line(o, t, value, number);
        }
        json_decref(value);
    }
    if (code == 0 && ferror(in))
        code = fail(1, "stdin: read failed");
    if (in != stdin)
        fclose(in);
    free(text);
    return code;
}

static int tokenize_line(const struct waste_tokenize_options *o, const struct waste_tokenizer *t,
                         const json_t *value, size_t number)
{
    struct waste_ids ids = {0};
    int code;

    if (!json_is_string(value)) {
        fprintf(stderr, "waste-run: line %zu: not a JSON string\n", number);
        return 1;
    }
    code = encode(o, t, json_string_value(value), json_string_length(value), &ids);
    if (code == 0)
        print_ids(&ids, "[", ", ", "]\n");
    waste_ids_finish(&ids);
    return code;
}

int waste_cmd_tokenize(const struct waste_tokenize_options *o)
{
    struct waste_tokenizer *t = NULL;
    struct waste_text text = {0};
    struct waste_ids ids = {0};
    int code = open_tokenizer(o, &t);

    if (code == 0 && o->jsonl) {
        code = each_line(o, t, tokenize_line);
    } else if (code == 0) {
        code = read_input(o->input, &text);
        if (code == 0)
            code = encode(o, t, text.data, text.bytes, &ids);
        if (code == 0 && o->json)
            printf("{\"tokens\": %zu, ", ids.count);
        if (code == 0)
            print_ids(&ids, o->json ? "\"ids\": [" : "", o->json ? ", " : ",",
                      o->json ? "]}\n" : "\n");
    }
    waste_ids_finish(&ids);
    waste_text_finish(&text);
    waste_tokenizer_destroy(t);
    return finish_stdout(code);
}

static int parse_ids(const struct waste_text *text, struct waste_ids *out)
{
    struct waste_error err;
    int rc = waste_ids_parse(text->data, text->bytes, out, &err);

    return rc == 0 ? 0 : fail(rc == -ENOMEM ? 1 : 2, err.text);
}

/* Every id must be one the tokenizer knows: a typo is no text. */
static int known(const struct waste_tokenizer *t, const struct waste_ids *ids)
{
    size_t bytes;

    for (size_t i = 0; i < ids->count; i++)
        if (waste_tokenizer_bytes(t, ids->id[i], &bytes) == NULL) {
            fprintf(stderr, "waste-run: token id %u: not in this tokenizer\n", ids->id[i]);
            return 1;
        }
    return 0;
}

static int print_json_text(const struct waste_tokenizer *t, const struct waste_ids *ids,
                           size_t flags, const char *before, const char *after)
{
    struct waste_text text = {0};
    json_t *string = NULL;
    int code = 1;

    if (waste_detokenize(t, WASTE_DETOK_SPECIALS, ids->id, ids->count, &text) == 0)
        string = json_stringn(text.data != NULL ? text.data : "", text.bytes);
    if (string != NULL) {
        fputs(before, stdout);
        code = json_dumpf(string, stdout, JSON_ENCODE_ANY | flags) < 0 ? 1 : 0;
        fputs(after, stdout);
    } else {
        code = out_of_memory();
    }
    json_decref(string);
    waste_text_finish(&text);
    return code;
}

static int detokenize_line(const struct waste_tokenize_options *o, const struct waste_tokenizer *t,
                           const json_t *value, size_t number)
{
    struct waste_ids ids = {0};
    const json_t *item;
    size_t i;
    int code = 0;

    if (!json_is_array(value)) {
        fprintf(stderr, "waste-run: line %zu: not a JSON array\n", number);
        return 1;
    }
    json_array_foreach(value, i, item)
    {
        if (!json_is_integer(item) || json_integer_value(item) < 0 ||
            json_integer_value(item) > UINT32_MAX) {
            fprintf(stderr, "waste-run: line %zu: entry %zu is no token id\n", number, i);
            code = 1;
            break;
        }
        if (waste_ids_add(&ids, (uint32_t)json_integer_value(item)) < 0) {
            code = out_of_memory();
            break;
        }
    }
    if (code == 0)
        code = known(t, &ids);
    if (code == 0)
        /* U+2028 and the like must not be taken for the end of a line: ASCII */
        code = print_json_text(t, &ids, JSON_ENSURE_ASCII, "", "\n");
    waste_ids_finish(&ids);
    return code;
}

static void print_bytes(const struct waste_tokenizer *t, const struct waste_ids *ids)
{
    for (size_t i = 0; i < ids->count; i++) {
        size_t bytes = 0;
        const char *data = waste_tokenizer_bytes(t, ids->id[i], &bytes);

        fwrite(data, 1, bytes, stdout);
    }
    if (isatty(STDOUT_FILENO))
        putchar('\n');
}

int waste_cmd_detokenize(const struct waste_tokenize_options *o)
{
    struct waste_tokenizer *t = NULL;
    struct waste_text text = {0};
    struct waste_ids ids = {0};
    int code = open_tokenizer(o, &t);

    if (code == 0 && o->jsonl) {
        code = each_line(o, t, detokenize_line);
    } else if (code == 0) {
        code = read_input(o->input, &text);
        if (code == 0)
            code = parse_ids(&text, &ids);
        if (code == 0)
            code = known(t, &ids);
        if (code == 0 && o->json)
            code = print_json_text(t, &ids, 0, "{\"text\": ", "}\n");
        else if (code == 0)
            print_bytes(t, &ids);
    }
    waste_ids_finish(&ids);
    waste_text_finish(&text);
    waste_tokenizer_destroy(t);
    return finish_stdout(code);
}

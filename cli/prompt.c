#include "cli/prompt.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_MAX = 64 << 20 }; /* of a text from a file or stdin */

int waste_prompt_read(const char *path, struct waste_text *out)
{
    bool is_stdin = strcmp(path, "-") == 0;
    FILE *f = is_stdin ? stdin : fopen(path, "rbe");
    char block[1 << 16];
    size_t n;
    int rc = 0;

    if (f == NULL)
        return waste_fail(waste_exit_of_path(errno), "cannot read %s: %s", path, strerror(errno));
    do {
        n = fread(block, 1, sizeof(block), f);
        if (waste_text_add(out, block, n) != 0)
            rc = waste_fail(1, "out of memory");
        else if (out->bytes > TEXT_MAX)
            rc = waste_fail(2, "%s: more than %d bytes", is_stdin ? "stdin" : path, TEXT_MAX);
    } while (rc == 0 && n > 0);
    if (rc == 0 && ferror(f))
        rc = waste_fail(waste_exit_of_path(errno), "cannot read %s: %s", is_stdin ? "stdin" : path,
                        strerror(errno));
    if (!is_stdin)
        fclose(f);
    return rc;
}

int waste_prompt_text(const struct waste_args *args, struct waste_text *out)
{
    const char *given = args->line.positional_count > 1 ? args->line.positional[1] : NULL;
    int rc = 0;

    if (given == NULL || strcmp(given, "-") == 0)
        rc = waste_prompt_read("-", out);
    else if (waste_text_add(out, given, strlen(given)) != 0)
        rc = waste_fail(1, "out of memory");
    /* the newline that ends a file or an echo is not part of a question */
    if (rc == 0 && !args->raw && out->bytes > 0 && out->data[out->bytes - 1] == '\n')
        out->data[--out->bytes] = '\0';
    return rc == 0 && out->bytes == 0 ? waste_fail(2, "the prompt is empty") : rc;
}

/* Where the messages of a first turn end. */
static int mark(const struct waste_engine *e, const struct waste_text *text,
                struct waste_marks *marks)
{
    const char *system = e->args->system_text;
    struct waste_ids ids = {0};
    int ret = 0;

    if (e->args->raw)
        return 0;
    if (system != NULL)
        ret = waste_markup_message(e->markup, WASTE_ROLE_SYSTEM, system, strlen(system), &ids);
    size_t before = ids.count;
    waste_marks_add(marks, before, before);
    marks->lasting = marks->count > 0;
    if (ret == 0)
        ret = waste_markup_message(e->markup, WASTE_ROLE_USER, text->data, text->bytes, &ids);
    waste_marks_add(marks, ids.count, ids.count - before);
    waste_ids_finish(&ids);
    return ret;
}

int waste_prompt_make(struct waste_engine *e, struct waste_ids *out, struct waste_marks *marks)
{
    const struct waste_args *a = e->args;
    struct waste_text text = {0};

    *marks = (struct waste_marks){0};
    if (a->ids != NULL) {
        if (a->line.positional_count > 1)
            return waste_fail(2, "a prompt and --ids exclude each other");
        return waste_ids_append(out, a->ids, a->ids_count) == 0 ? 0
                                                                : waste_fail(1, "out of memory");
    }
    int rc = waste_prompt_text(a, &text);
    if (rc == 0 && waste_markup_first(e->markup, a->system_text, text.data, text.bytes,
                                      waste_engine_thinks(e), out) != 0)
        rc = waste_fail(1, "out of memory");
    if (rc == 0 && mark(e, &text, marks) != 0)
        rc = waste_fail(1, "out of memory");
    waste_text_finish(&text);
    return rc;
}

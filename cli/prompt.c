#include "cli/prompt.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_MAX = 64 << 20 }; /* of a prompt from stdin */

static int read_stdin(char **out, size_t *out_bytes)
{
    size_t room = 1 << 16, bytes = 0;
    char *text = malloc(room);

    while (text != NULL && bytes <= TEXT_MAX) {
        if (bytes + 1 >= room) {
            room *= 2;
            char *more = realloc(text, room);
            if (more == NULL)
                break;
            text = more;
        }
        size_t n = fread(text + bytes, 1, room - bytes - 1, stdin);
        if (n == 0) {
            if (ferror(stdin) || text == NULL)
                break;
            text[bytes] = '\0';
            *out = text;
            *out_bytes = bytes;
            return 0;
        }
        bytes += n;
    }
    free(text);
    if (bytes > TEXT_MAX)
        return waste_fail(2, "stdin: more than %d bytes", TEXT_MAX);
    return waste_fail(1, "stdin: %s", strerror(errno));
}

static int take_text(const struct waste_args *args, char **out, size_t *out_bytes)
{
    const char *given = args->positional_count > 1 ? args->positional[1] : NULL;

    if (given == NULL || strcmp(given, "-") == 0)
        return read_stdin(out, out_bytes);
    *out = strdup(given);
    if (*out == NULL)
        return waste_fail(1, "out of memory");
    *out_bytes = strlen(given);
    return 0;
}

int waste_prompt_make(struct waste_engine *e, struct waste_ids *out)
{
    const struct waste_args *a = e->args;
    char *text = NULL;
    size_t bytes = 0;

    if (a->ids != NULL) {
        if (a->positional_count > 1)
            return waste_fail(2, "a prompt and --ids exclude each other");
        return waste_ids_append(out, a->ids, a->ids_count) == 0 ? 0
                                                                : waste_fail(1, "out of memory");
    }
    int rc = take_text(a, &text, &bytes);
    if (rc != 0)
        return rc;
    /* the newline that ends a file or an echo is not part of a question */
    if (!a->raw && bytes > 0 && text[bytes - 1] == '\n')
        bytes--;
    if (bytes == 0) {
        free(text);
        return waste_fail(2, "the prompt is empty");
    }
    rc = waste_markup_first(e->markup, a->system_text, text, bytes, out);
    free(text);
    return rc == 0 ? 0 : waste_fail(1, "out of memory");
}

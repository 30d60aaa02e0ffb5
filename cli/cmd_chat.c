/* waste-run chat: a person or a pipe, line by line. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/chat.h"
#include "cli/cmd.h"
#include "cli/line.h"
#include "cli/signals.h"
#include "cli/text.h"

#define PROMPT "> "
#define PROMPT_MORE ". "
#define QUOTES "\"\"\""

static bool ends_with(const struct waste_text *text, const char *end)
{
    size_t n = strlen(end);

    return text->bytes >= n && memcmp(text->data + text->bytes - n, end, n) == 0;
}

/* Lines until one ends with the quotes. 1: done; 0: the input is over; or -ENOMEM. */
static int read_quoted(struct waste_line *lines, struct waste_text *out)
{
    const char *line;
    int ret = 0;

    while (ret == 0 && !ends_with(out, QUOTES)) {
        line = waste_line_next(lines);
        if (line == NULL)
            return 0;
        ret = waste_text_add(out, "\n", 1);
        if (ret == 0)
            ret = waste_text_add(out, line, strlen(line));
    }
    if (ret == 0) {
        out->bytes -= strlen(QUOTES);
        out->data[out->bytes] = '\0';
    }
    return ret == 0 ? 1 : ret;
}

/*
 * The next message or command: one line, or several where a line ends with a backslash or the text
 * is quoted. 1: there is one; 0: the input is over; or -ENOMEM.
 */
static int read_message(struct waste_line *lines, struct waste_text *out)
{
    const char *line = waste_line_next(lines);
    int ret;

    out->bytes = 0;
    if (line == NULL)
        return 0;
    if (strncmp(line, QUOTES, strlen(QUOTES)) == 0) {
        ret = waste_text_add(out, line + strlen(QUOTES), strlen(line + strlen(QUOTES)));
        waste_line_prompt(lines, PROMPT_MORE);
        if (ret == 0)
            ret = read_quoted(lines, out);
        waste_line_prompt(lines, PROMPT);
        return ret;
    }
    ret = waste_text_add(out, line, strlen(line));
    while (ret == 0 && *out->data != '/' && ends_with(out, "\\")) {
        out->data[out->bytes - 1] = '\n';
        waste_line_prompt(lines, PROMPT_MORE);
        line = waste_line_next(lines);
        waste_line_prompt(lines, PROMPT);
        if (line == NULL)
            break;
        ret = waste_text_add(out, line, strlen(line));
    }
    return ret == 0 ? 1 : ret;
}

static int talk(struct waste_chat *c)
{
    struct waste_line *lines = waste_line_create(PROMPT);
    struct waste_text text = {0};
    bool over = false;
    int rc = 0, got = 0;

    if (lines == NULL)
        return waste_fail(1, "out of memory");
    while (rc == 0 && !over && (got = read_message(lines, &text)) > 0) {
        if (text.bytes == 0)
            continue;
        if (*text.data == '/')
            rc = waste_chat_command(c, text.data, &over);
        else
            rc = waste_chat_say(c, text.data, text.bytes);
        if (waste_signals_forget_interrupt())
            break;
    }
    if (got < 0)
        rc = waste_fail(1, "out of memory");
    waste_line_destroy(lines);
    waste_text_finish(&text);
    /* a person has seen it; a script has the exit code */
    return rc == 0 && c->failed && !isatty(STDIN_FILENO) ? 1 : rc;
}

int waste_cmd_chat(const struct waste_args *args)
{
    struct waste_chat c;

    int rc = waste_chat_init(&c, args);
    if (rc == 0)
        rc = waste_chat_start(&c);
    if (rc == 0)
        rc = talk(&c);
    int unsaved = waste_chat_finish(&c);
    return rc == 0 ? unsaved : rc;
}

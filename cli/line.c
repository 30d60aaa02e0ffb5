#include "cli/line.h"

#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#include "cli/signals.h"
#include "cli/text.h"

enum { CTRL_D = 4 };

struct waste_line {
    EditLine *edit; /* NULL: no terminal */
    History *history;
    const char *prompt;
    struct waste_text text;
    char block[4096];
    size_t at, end;
};

/* One byte of stdin; -1 at the end or when an end was asked for. */
static int read_byte(struct waste_line *l)
{
    while (l->at == l->end) {
        struct pollfd fd = {.fd = STDIN_FILENO, .events = POLLIN};
        int rc = poll(&fd, 1, 200);
        if (waste_signals_ended())
            return -1;
        if (rc <= 0)
            continue;
        ssize_t n = read(STDIN_FILENO, l->block, sizeof(l->block));
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n <= 0)
            return -1;
        l->at = 0;
        l->end = (size_t)n;
    }
    return (unsigned char)l->block[l->at++];
}

/* libedit's reader of characters. */
static int get_character(EditLine *edit, wchar_t *out)
{
    struct waste_line *l;
    mbstate_t state = {0};

    el_get(edit, EL_CLIENTDATA, &l);
    for (;;) {
        int byte = read_byte(l);
        if (byte < 0)
            return 0;
        /* a Ctrl-D typed during a reply, when the terminal edits lines itself, arrives as 0 */
        char c = byte == 0 ? CTRL_D : (char)byte;
        size_t n = mbrtowc(out, &c, 1, &state);
        if (n == (size_t)-1) { /* no character: start over with the next byte */
            memset(&state, 0, sizeof(state));
            continue;
        }
        if (n != (size_t)-2)
            return 1;
    }
}

static const char *get_prompt(EditLine *edit)
{
    struct waste_line *l;

    el_get(edit, EL_CLIENTDATA, &l);
    return l->prompt;
}

static bool start_editing(struct waste_line *l)
{
    HistEvent event;

    setlocale(LC_CTYPE, "");
    if (MB_CUR_MAX == 1) /* the tokenizer speaks UTF-8 whatever the terminal says */
        setlocale(LC_CTYPE, "C.UTF-8");
    l->edit = el_init("waste-run", stdin, stdout, stderr);
    l->history = history_init();
    if (l->edit == NULL || l->history == NULL)
        return false;
    history(l->history, &event, H_SETSIZE, 500);
    el_set(l->edit, EL_CLIENTDATA, l);
    el_set(l->edit, EL_EDITOR, "emacs");
    el_set(l->edit, EL_SIGNAL, 1);
    el_set(l->edit, EL_HIST, history, l->history);
    el_set(l->edit, EL_PROMPT, get_prompt);
    el_set(l->edit, EL_GETCFN, get_character);
    return true;
}

struct waste_line *waste_line_create(const char *prompt)
{
    struct waste_line *l = calloc(1, sizeof(*l));

    if (l == NULL)
        return NULL;
    l->prompt = prompt;
    if (isatty(STDIN_FILENO) && !start_editing(l)) {
        waste_line_destroy(l);
        return NULL;
    }
    return l;
}

void waste_line_prompt(struct waste_line *l, const char *prompt)
{
    l->prompt = prompt;
}

void waste_line_destroy(struct waste_line *l)
{
    if (l == NULL)
        return;
    if (l->history != NULL)
        history_end(l->history);
    if (l->edit != NULL)
        el_end(l->edit);
    waste_text_finish(&l->text);
    free(l);
}

static const char *next_edited(struct waste_line *l)
{
    HistEvent event;
    int count;
    const char *line = el_gets(l->edit, &count);

    if (line == NULL || count <= 0)
        return NULL;
    size_t length = strcspn(line, "\r\n");
    if (length > 0)
        history(l->history, &event, H_ENTER, line);
    l->text.bytes = 0;
    return waste_text_add(&l->text, line, length) == 0 ? l->text.data : NULL;
}

const char *waste_line_next(struct waste_line *l)
{
    int byte;

    if (l->edit != NULL)
        return next_edited(l);
    l->text.bytes = 0;
    if (waste_text_add(&l->text, "", 0) != 0)
        return NULL;
    while ((byte = read_byte(l)) >= 0 && byte != '\n') {
        char c = (char)byte;
        if (waste_text_add(&l->text, &c, 1) != 0)
            return NULL;
    }
    if (waste_signals_ended() || (byte < 0 && l->text.bytes == 0))
        return NULL;
    return l->text.data != NULL ? l->text.data : "";
}

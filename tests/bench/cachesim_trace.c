#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/cachesim.h"

enum { MOST_EXPERTS = 65535, MOST_LAYERS = 4096, MOST_CHOSEN = 256, MOST_TOKENS = 1 << 20 };

/* Grows by doubling while lines come. */
struct lines {
    uint32_t layers, tokens, room;
    uint32_t (*turn)[1 + MOST_CHOSEN]; /* [room * layers] count, ids */
};

static const char *read_turn(const json_t *list, uint32_t *turn)
{
    size_t n = json_array_size(list);
    if (!json_is_array(list) || n == 0 || n > MOST_CHOSEN)
        return "a layer is not a list of 1 to 256 ids";
    turn[0] = (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(list, i);
        json_int_t value = json_integer_value(id);
        if (!json_is_integer(id) || value < 0 || value >= MOST_EXPERTS)
            return "an id is not an integer of 0 to 65534";
        turn[1 + i] = (uint32_t)value;
        for (size_t j = 0; j < i; j++)
            if (turn[1 + j] == turn[1 + i])
                return "a layer has an id twice";
    }
    return NULL;
}

static const char *read_token(const char *text, size_t bytes, struct lines *l)
{
    json_error_t why;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
    const json_t *layers = json_object_get(root, "layers");
    size_t n = json_array_size(layers);
    const char *error = NULL;
    if (!root)
        error = "not JSON";
    else if (!json_is_array(layers) || n == 0 || n > MOST_LAYERS)
        error = "\"layers\" is not a list of 1 to 4096 layers";
    else if (l->layers != 0 && n != l->layers)
        error = "another number of layers than on the first line";
    else if (l->tokens == MOST_TOKENS)
        error = "more than 1048576 tokens";
    if (!error) {
        l->layers = (uint32_t)n;
        if (l->tokens == l->room) {
            uint32_t room = l->room ? 2 * l->room : 64;
            void *more = realloc(l->turn, (size_t)room * n * sizeof(*l->turn));
            if (!more)
                error = "out of memory";
            else
                l->turn = more, l->room = room;
        }
    }
    for (size_t i = 0; !error && i < n; i++)
        error = read_turn(json_array_get(layers, i), l->turn[l->tokens * n + i]);
    l->tokens += !error;
    json_decref(root);
    return error;
}

static int pack(const struct lines *l, struct trace *t)
{
    size_t turns = (size_t)l->tokens * l->layers, chosen = 0;
    t->tokens = l->tokens;
    t->layers = l->layers;
    for (size_t i = 0; i < turns; i++) {
        chosen += l->turn[i][0];
        if (l->turn[i][0] > t->top_k)
            t->top_k = l->turn[i][0];
        for (uint32_t k = 1; k <= l->turn[i][0]; k++)
            if (l->turn[i][k] >= t->experts)
                t->experts = l->turn[i][k] + 1;
    }
    t->working_set = (double)chosen / t->tokens;
    t->count = malloc(turns * sizeof(*t->count));
    t->expert = calloc(turns * t->top_k, sizeof(*t->expert));
    if (!t->count || !t->expert)
        return -1;
    for (size_t i = 0; i < turns; i++) {
        t->count[i] = l->turn[i][0];
        memcpy(&t->expert[i * t->top_k], &l->turn[i][1], t->count[i] * sizeof(*t->expert));
    }
    return 0;
}

int trace_read(const char *path, struct trace *t, char *error, size_t room)
{
    struct lines l = {0};
    char *text = NULL;
    size_t text_room = 0, line = 0;
    ssize_t bytes;
    const char *why = NULL;
    FILE *file = fopen(path, "r");
    memset(t, 0, sizeof(*t));
    if (!file) {
        snprintf(error, room, "%s: %s", path, strerror(errno));
        return -1;
    }
    while (!why && (bytes = getline(&text, &text_room, file)) > 0) {
        line++;
        why = read_token(text, (size_t)bytes, &l);
    }
    if (why)
        snprintf(error, room, "%s:%zu: %s", path, line, why);
    else if (ferror(file) || l.tokens == 0)
        snprintf(error, room, "%s: %s", path, ferror(file) ? "cannot be read" : "no tokens");
    else if (pack(&l, t) < 0)
        snprintf(error, room, "%s: out of memory", path);
    bool good = t->expert != NULL && t->count != NULL;
    if (!good)
        trace_free(t);
    fclose(file);
    free(text);
    free(l.turn);
    return good ? 0 : -1;
}

void trace_free(struct trace *t)
{
    free(t->count);
    free(t->expert);
    memset(t, 0, sizeof(*t));
}

#include "cli/tokenizer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/merge.h"
#include "cli/pattern.h"
#include "cli/vocab.h"

struct waste_tokenizer {
    struct waste_vocab vocab;
    struct waste_classes classes;
    bool special_start[256]; /* bytes a special token's text begins with */
};

int waste_ids_append(struct waste_ids *ids, const uint32_t *id, size_t count)
{
    if (count > ids->room - ids->count) {
        size_t room = ids->room ? ids->room : 64;
        uint32_t *grown;

        while (room - ids->count < count)
            room *= 2;
        grown = realloc(ids->id, room * sizeof(*grown));
        if (grown == NULL)
            return -ENOMEM;
        ids->id = grown;
        ids->room = room;
    }
    if (count > 0)
        memcpy(ids->id + ids->count, id, count * sizeof(*id));
    ids->count += count;
    return 0;
}

int waste_ids_add(struct waste_ids *ids, uint32_t id)
{
    if (ids->count == ids->room)
        return waste_ids_append(ids, &id, 1);
    ids->id[ids->count++] = id;
    return 0;
}

void waste_ids_finish(struct waste_ids *ids)
{
    free(ids->id);
    memset(ids, 0, sizeof(*ids));
}

static int open_in(const char *dir, const char *ranks, const char *specials_dir,
                   const char *specials, uint32_t vocab, struct waste_tokenizer **out,
                   struct waste_error *err)
{
    uint32_t limit = vocab > 0 && vocab < WASTE_MAX_VOCAB ? vocab : WASTE_MAX_VOCAB;
    struct waste_tokenizer *t = calloc(1, sizeof(*t));
    int ret;

    if (t == NULL)
        return waste_error_set(err, -ENOMEM, "tokenizer: out of memory");
    waste_classes_init(&t->classes);
    ret = waste_vocab_load_ranks(&t->vocab, dir, ranks, limit, err);
    if (ret == 0 && specials != NULL)
        ret = waste_vocab_load_specials(&t->vocab, specials_dir, specials, limit, err);
    if (ret < 0) {
        waste_tokenizer_destroy(t);
        return ret;
    }
    for (uint32_t i = 0; i < t->vocab.specials; i++)
        t->special_start[(uint8_t)t->vocab.special[i].text[0]] = true;
    *out = t;
    return 0;
}

int waste_tokenizer_open(const char *dir, uint32_t vocab, struct waste_tokenizer **out,
                         struct waste_error *err)
{
    struct waste_tokenizer *t = NULL;
    int ret = open_in(dir, "tokenizer.model", dir, "specials.json", vocab, &t, err);
    bool missing = ret == -ENOENT;

    /* a model may have no special tokens; if it is the ranks that are missing, this says so */
    if (missing)
        ret = open_in(dir, "tokenizer.model", NULL, NULL, vocab, &t, err);
    if (ret < 0)
        return ret;
    const struct waste_vocab *v = &t->vocab;
    if (missing && vocab > v->ranks)
        ret = waste_error_set(err, -EINVAL,
                              "specials.json is missing: tokenizer.model has %u of %u tokens",
                              v->ranks, vocab);
    /* the number of ranks is the first special id: a file that lost some lines does not go unseen
     */
    if (v->specials > 0 && v->special[0].id != v->ranks)
        ret = waste_error_set(err, -EINVAL,
                              "tokenizer.model has %u ranks, specials.json begins with id %u",
                              v->ranks, v->special[0].id);
    if (ret == 0)
        *out = t;
    else
        waste_tokenizer_destroy(t);
    return ret;
}

int waste_tokenizer_open_model(const char *dir, const struct waste_config *config,
                               struct waste_tokenizer **out, struct waste_error *err)
{
    struct waste_tokenizer *t = NULL;
    int ret = waste_tokenizer_open(dir, config->vocab, &t, err);
    for (uint32_t i = 0; ret == 0 && i < config->eos_count; i++)
        if (config->eos[i] >= t->vocab.ranks && !waste_tokenizer_is_special(t, config->eos[i]))
            ret = waste_error_set(err, -EINVAL,
                                  "specials.json: the end token %u of manifest.json is missing",
                                  config->eos[i]);
    if (ret == 0)
        *out = t;
    else
        waste_tokenizer_destroy(t);
    return ret;
}

/* Splits a path where its last slash is. *dir is malloc'd; *name points into `path`. */
static int split_path(const char *path, char **dir, const char **name)
{
    const char *slash = strrchr(path, '/');

    *name = slash != NULL ? slash + 1 : path;
    *dir = slash == NULL ? strdup(".") : strndup(path, slash == path ? 1 : (size_t)(slash - path));
    return *dir == NULL ? -ENOMEM : 0;
}

int waste_tokenizer_open_files(const char *ranks, const char *specials, uint32_t vocab,
                               struct waste_tokenizer **out, struct waste_error *err)
{
    char *ranks_dir = NULL, *specials_dir = NULL;
    const char *ranks_name, *specials_name = NULL;
    int ret = split_path(ranks, &ranks_dir, &ranks_name);

    if (ret == 0 && specials != NULL)
        ret = split_path(specials, &specials_dir, &specials_name);
    ret = ret < 0 ? waste_error_set(err, ret, "tokenizer: out of memory")
                  : open_in(ranks_dir, ranks_name, specials_dir, specials_name, vocab, out, err);
    free(ranks_dir);
    free(specials_dir);
    return ret;
}

void waste_tokenizer_destroy(struct waste_tokenizer *t)
{
    if (t != NULL)
        waste_vocab_finish(&t->vocab);
    free(t);
}

static int encode(const struct waste_tokenizer *t, struct waste_merge *m, const char *text,
                  size_t bytes, struct waste_ids *out)
{
    for (size_t at = 0, length; at < bytes; at += length) {
        int ret;

        length = waste_pattern_next(&t->classes, text + at, bytes - at);
        if (length > WASTE_PIECE_BYTES)
            return -ENOMEM;
        if (length > 0) {
            ret = waste_merge_piece(m, &t->vocab, text + at, length, out);
        } else {
            ret = waste_ids_add(out, t->vocab.single[(uint8_t)text[at]]); /* part of no character */
            length = 1;
        }
        if (ret < 0)
            return ret;
    }
    return 0;
}

int waste_tokenizer_encode(const struct waste_tokenizer *t, const char *text, size_t bytes,
                           struct waste_ids *out)
{
    struct waste_merge merge = {0};
    int ret = encode(t, &merge, text, bytes, out);

    waste_merge_finish(&merge);
    return ret;
}

int waste_tokenizer_encode_markup(const struct waste_tokenizer *t, const char *text, size_t bytes,
                                  struct waste_ids *out)
{
    struct waste_merge merge = {0};
    size_t plain = 0; /* where the plain text before `at` begins */
    int ret = 0;

    for (size_t at = 0; at < bytes && ret == 0;) {
        const struct waste_special *special = NULL;

        if (t->special_start[(uint8_t)text[at]])
            special = waste_vocab_special_at(&t->vocab, text + at, bytes - at);
        if (special == NULL) {
            at++;
            continue;
        }
        ret = encode(t, &merge, text + plain, at - plain, out);
        if (ret == 0)
            ret = waste_ids_add(out, special->id);
        at += special->bytes;
        plain = at;
    }
    if (ret == 0)
        ret = encode(t, &merge, text + plain, bytes - plain, out);
    waste_merge_finish(&merge);
    return ret;
}

const char *waste_tokenizer_bytes(const struct waste_tokenizer *t, uint32_t id, size_t *bytes)
{
    const struct waste_special *special;

    if (id < t->vocab.ranks) {
        *bytes = t->vocab.off[id + 1] - t->vocab.off[id];
        return t->vocab.data + t->vocab.off[id];
    }
    special = waste_vocab_special(&t->vocab, id);
    if (special == NULL)
        return NULL;
    *bytes = special->bytes;
    return special->text;
}

bool waste_tokenizer_is_special(const struct waste_tokenizer *t, uint32_t id)
{
    return waste_vocab_special(&t->vocab, id) != NULL;
}

int64_t waste_tokenizer_special(const struct waste_tokenizer *t, const char *text)
{
    size_t bytes = strlen(text);
    const struct waste_special *special = waste_vocab_special_at(&t->vocab, text, bytes);

    return special != NULL && special->bytes == bytes ? (int64_t)special->id : -1;
}

uint32_t waste_tokenizer_ranks(const struct waste_tokenizer *t)
{
    return t->vocab.ranks;
}

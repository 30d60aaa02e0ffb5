#include "fetcher/catalog.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fetcher/io.h"
#include "fetcher/listing.h"

enum { CATALOG_BYTES = 64 << 20 };

void waste_catalog_finish(struct waste_catalog *l)
{
    for (uint32_t i = 0; i < l->count; i++)
        free(l->file[i].name);
    free(l->file);
    free(l->source);
    free(l->endpoint);
    free(l->asked);
    free(l->revision);
    *l = (struct waste_catalog){.count = 0};
}

struct waste_file *waste_catalog_add(struct waste_catalog *l, const char *name)
{
    if (l->count == l->room) {
        uint32_t room = l->room > 0 ? 2 * l->room : 64;
        struct waste_file *grown = realloc(l->file, room * sizeof(*grown));
        if (grown == NULL)
            return NULL;
        l->file = grown;
        l->room = room;
    }
    char *copy = strdup(name);
    if (copy == NULL)
        return NULL;
    l->file[l->count] = (struct waste_file){.name = copy, .size = WASTE_SIZE_UNKNOWN};
    return &l->file[l->count++];
}

struct waste_file *waste_catalog_find(const struct waste_catalog *l, const char *name)
{
    for (uint32_t i = 0; i < l->count; i++)
        if (strcmp(l->file[i].name, name) == 0)
            return &l->file[i];
    return NULL;
}

/* ---- reading ---- */

/* An optional string of at most room - 1 bytes; false if it is anything else. */
static bool take_text(const json_t *object, const char *key, char *out, size_t room)
{
    const json_t *value = json_object_get(object, key);

    *out = '\0';
    if (value == NULL)
        return true;
    if (!json_is_string(value) || json_string_length(value) >= room)
        return false;
    memcpy(out, json_string_value(value), json_string_length(value) + 1);
    return true;
}

static bool take_hex(const json_t *object, const char *key, char *out, size_t room)
{
    return take_text(object, key, out, room) &&
           (*out == '\0' || waste_listing_is_hex(out, room - 1));
}

static bool take_string(const json_t *object, const char *key, char **out)
{
    const json_t *value = json_object_get(object, key);

    *out = NULL;
    if (value == NULL)
        return true;
    *out = json_is_string(value) ? strdup(json_string_value(value)) : NULL;
    return *out != NULL;
}

static bool take_file(const char *name, const json_t *j, struct waste_catalog *l)
{
    const json_t *size = json_object_get(j, "size");
    struct waste_file *f = json_is_object(j) ? waste_catalog_add(l, name) : NULL;

    if (f == NULL || (size != NULL && (!json_is_integer(size) || json_integer_value(size) < 0)))
        return false;
    if (size != NULL)
        f->size = (uint64_t)json_integer_value(size);
    f->size_given = size != NULL && json_is_true(json_object_get(j, "size_given"));
    f->shard = json_is_true(json_object_get(j, "shard"));
    f->optional = json_is_true(json_object_get(j, "optional"));
    f->absent = json_is_true(json_object_get(j, "absent"));
    f->done = json_is_true(json_object_get(j, "done"));
    f->dropped = json_is_true(json_object_get(j, "dropped"));
    return take_hex(j, "sha256", f->sha256, sizeof(f->sha256)) &&
           take_hex(j, "git_id", f->git_id, sizeof(f->git_id)) &&
           take_hex(j, "actual", f->actual, sizeof(f->actual)) &&
           take_text(j, "etag", f->etag, sizeof(f->etag));
}

static int damaged(const char *what, struct waste_error *err)
{
    return waste_error_set(
        err, -EINVAL,
        "%s is damaged (%.100s): remove it, the files that are there are checked "
        "and kept",
        WASTE_CATALOG_NAME, what);
}

static int take_files(const json_t *files, struct waste_catalog *l, struct waste_error *err)
{
    const char *name;
    json_t *j;

    if (!json_is_object(files) || json_object_size(files) > WASTE_LISTING_FILES)
        return damaged("files", err);
    json_object_foreach((json_t *)files, name, j)
    {
        if (waste_listing_name_fault(name, strlen(name)) != NULL || !take_file(name, j, l))
            return damaged(name, err);
    }
    return waste_listing_check(l, err);
}

int waste_catalog_parse(const char *text, size_t bytes, struct waste_catalog *out,
                        struct waste_error *err)
{
    struct waste_catalog l = {.count = 0};
    json_error_t at;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &at);
    int rc;

    if (!json_is_object(root))
        rc = damaged(root == NULL ? at.text : "no object", err);
    else if (!take_string(root, "source", &l.source) || l.source == NULL ||
             !take_string(root, "endpoint", &l.endpoint) ||
             !take_string(root, "revision_asked", &l.asked) ||
             !take_string(root, "revision", &l.revision) ||
             !take_text(root, "boot", l.boot, sizeof(l.boot)))
        rc = damaged("source", err);
    else
        rc = take_files(json_object_get(root, "files"), &l, err);
    json_decref(root);
    if (rc == 0)
        *out = l;
    else
        waste_catalog_finish(&l);
    return rc;
}

int waste_catalog_load(int dir, struct waste_catalog *out, struct waste_error *err)
{
    char *text;
    size_t bytes;
    int rc = waste_io_read_file(dir, WASTE_CATALOG_NAME, CATALOG_BYTES, &text, &bytes);

    if (rc == -ENOENT)
        return rc;
    if (rc != 0)
        return waste_error_set(err, rc, "cannot read %s: %s", WASTE_CATALOG_NAME, strerror(-rc));
    rc = waste_catalog_parse(text, bytes, out, err);
    free(text);
    return rc;
}

/* ---- writing ---- */

static void put_text(json_t *object, const char *key, const char *text)
{
    if (text != NULL && *text != '\0')
        json_object_set_new(object, key, json_string(text));
}

static void put_true(json_t *object, const char *key, bool value)
{
    if (value)
        json_object_set_new(object, key, json_true());
}

static json_t *file_json(const struct waste_file *f)
{
    json_t *j = json_object();

    if (f->size != WASTE_SIZE_UNKNOWN)
        json_object_set_new(j, "size", json_integer((json_int_t)f->size));
    put_true(j, "size_given", f->size_given);
    put_true(j, "shard", f->shard);
    put_true(j, "optional", f->optional);
    put_true(j, "absent", f->absent);
    put_true(j, "done", f->done);
    put_true(j, "dropped", f->dropped);
    put_text(j, "sha256", f->sha256);
    put_text(j, "git_id", f->git_id);
    put_text(j, "actual", f->actual);
    put_text(j, "etag", f->etag);
    return j;
}

static char *catalog_text(const struct waste_catalog *l)
{
    json_t *root = json_object(), *files = json_object();

    put_text(root, "made_by", "waste-fetch get");
    put_text(root, "source", l->source);
    put_text(root, "endpoint", l->endpoint);
    put_text(root, "revision_asked", l->asked);
    put_text(root, "revision", l->revision);
    put_text(root, "boot", l->boot);
    for (uint32_t i = 0; i < l->count; i++)
        json_object_set_new(files, l->file[i].name, file_json(&l->file[i]));
    bool whole = json_object_size(files) == l->count;
    json_object_set_new(root, "files", files);
    char *text = whole ? json_dumps(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    return text;
}

int waste_catalog_save(int dir, const struct waste_catalog *l, struct waste_error *err)
{
    char *text = catalog_text(l);
    int rc =
        text == NULL ? -ENOMEM : waste_io_replace_file(dir, WASTE_CATALOG_NAME, text, strlen(text));

    free(text);
    return rc == 0
               ? 0
               : waste_error_set(err, rc, "cannot write %s: %s", WASTE_CATALOG_NAME, strerror(-rc));
}

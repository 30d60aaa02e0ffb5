#include "fetcher/listing.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { PART_BYTES = 240, NAME_BYTES = 1024, DEPTH = 16 };

bool waste_listing_is_hex(const char *text, size_t digits)
{
    for (size_t i = 0; i < digits; i++)
        if (!isxdigit((unsigned char)text[i]))
            return false;
    return text[digits] == '\0';
}

/* One part of a path, between slashes. */
static const char *part_fault(const char *part, size_t bytes)
{
    if (bytes == 0)
        return "has an empty part";
    if (part[0] == '.' && (bytes == 1 || (bytes == 2 && part[1] == '.')))
        return "leads out of the directory";
    return bytes > PART_BYTES ? "is too long" : NULL;
}

const char *waste_listing_name_fault(const char *name, size_t bytes)
{
    static const char partial[] = ".part";
    const char *fault = NULL;
    size_t begin = 0;
    int depth = 0;

    if (bytes == 0)
        return "is empty";
    if (bytes > NAME_BYTES)
        return "is too long";
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)name[i] < 32 || name[i] == 127 || name[i] == '\\')
            return "has a backslash or a control character";
    if (name[0] == '/')
        return "is an absolute path";
    for (size_t i = 0; i <= bytes && fault == NULL; i++) {
        if (i < bytes && name[i] != '/')
            continue;
        fault = part_fault(name + begin, i - begin);
        begin = i + 1;
        if (++depth > DEPTH)
            fault = "is too deep";
    }
    if (fault != NULL)
        return fault;
    if (strncmp(name, WASTE_CATALOG_NAME, strlen(WASTE_CATALOG_NAME)) == 0)
        return "is one that waste-fetch keeps for itself";
    if (bytes >= sizeof(partial) - 1 &&
        memcmp(name + bytes - (sizeof(partial) - 1), partial, sizeof(partial) - 1) == 0)
        return "ends in .part, as unfinished files do";
    return NULL;
}

static int bad_name(const char *where, const char *name, size_t bytes, const char *fault,
                    struct waste_error *err)
{
    return waste_error_set(err, -EINVAL, "%s: refused: the file name '%.*s' %s", where,
                           bytes < 120 ? (int)bytes : 120, name, fault);
}

static int no_memory(struct waste_error *err)
{
    return waste_error_set(err, -ENOMEM, "out of memory");
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Whether some name of the sorted list is `name`, a slash and more. */
static bool is_directory(const char *const *sorted, uint32_t count, const char *name)
{
    size_t bytes = strlen(name);
    uint32_t low = 0, high = count;

    /* the first name that is not less than "name/" */
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = strncmp(sorted[middle], name, bytes);
        if (order == 0)
            order = (unsigned char)sorted[middle][bytes] - '/';
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && strncmp(sorted[low], name, bytes) == 0 && sorted[low][bytes] == '/';
}

int waste_listing_check(const struct waste_catalog *l, struct waste_error *err)
{
    const char **sorted = malloc((l->count + 1) * sizeof(*sorted));
    int rc = 0;

    if (sorted == NULL)
        return no_memory(err);
    for (uint32_t i = 0; i < l->count; i++)
        sorted[i] = l->file[i].name;
    qsort(sorted, l->count, sizeof(*sorted), by_name);
    for (uint32_t i = 0; i < l->count && rc == 0; i++) {
        if (i > 0 && strcmp(sorted[i - 1], sorted[i]) == 0)
            rc = waste_error_set(err, -EINVAL, "the listing names '%.120s' twice", sorted[i]);
        else if (is_directory(sorted, l->count, sorted[i]))
            rc = waste_error_set(err, -EINVAL, "the listing has '%.120s' as a file and a directory",
                                 sorted[i]);
    }
    free(sorted);
    return rc;
}

/* ---- the hub ---- */

/* A digest that is there must be one. */
static int take_digest(const json_t *object, const char *key, size_t digits, char *out)
{
    const json_t *value = json_object_get(object, key);

    if (value == NULL || json_is_null(value))
        return 0;
    if (!json_is_string(value) || !waste_listing_is_hex(json_string_value(value), digits))
        return -EINVAL;
    for (size_t i = 0; i <= digits; i++)
        out[i] = (char)tolower((unsigned char)json_string_value(value)[i]);
    return 0;
}

static int take_size(const json_t *value, struct waste_file *f)
{
    if (value == NULL || json_is_null(value))
        return 0;
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return -EINVAL;
    f->size = (uint64_t)json_integer_value(value);
    f->size_given = true;
    return 0;
}

/* {"rfilename", "size", "blobId", "lfs": {"sha256" or "oid", "size"}}. The id of a blob in LFS is
 * that of its pointer. */
static int take_sibling(const json_t *j, struct waste_catalog *l, struct waste_error *err)
{
    const json_t *name = json_object_get(j, "rfilename"), *lfs = json_object_get(j, "lfs");
    const char *fault, *text = json_string_value(name);

    if (text == NULL)
        return waste_error_set(err, -EINVAL, "the hub's listing has a file without a name");
    fault = waste_listing_name_fault(text, json_string_length(name));
    if (fault != NULL)
        return bad_name("the hub's listing", text, json_string_length(name), fault, err);
    struct waste_file *f = waste_catalog_add(l, text);
    if (f == NULL)
        return no_memory(err);
    int rc = take_size(json_object_get(j, "size"), f);
    if (json_is_object(lfs)) {
        const char *oid = json_object_get(lfs, "sha256") != NULL ? "sha256" : "oid";
        rc = rc != 0 ? rc : take_digest(lfs, oid, WASTE_SHA256_TEXT - 1, f->sha256);
        rc = rc != 0 ? rc : take_size(json_object_get(lfs, "size"), f);
    } else {
        rc = rc != 0 ? rc : take_digest(j, "blobId", WASTE_SHA1_TEXT - 1, f->git_id);
    }
    return rc == 0 ? 0
                   : waste_error_set(err, rc,
                                     "the hub's listing: size or digest of '%.120s' is none", text);
}

static int take_siblings(const json_t *root, struct waste_catalog *l, struct waste_error *err)
{
    const json_t *list = json_object_get(root, "siblings"), *sha = json_object_get(root, "sha");
    int rc = 0;

    if (!json_is_string(sha) || !waste_listing_is_hex(json_string_value(sha), WASTE_SHA1_TEXT - 1))
        return waste_error_set(err, -EINVAL, "the hub's listing names no commit");
    if (!json_is_array(list) || json_array_size(list) == 0)
        return waste_error_set(err, -EINVAL, "the hub's listing has no files");
    if (json_array_size(list) > WASTE_LISTING_FILES)
        return waste_error_set(err, -EINVAL, "the hub's listing has more than %d files",
                               WASTE_LISTING_FILES);
    for (size_t i = 0; i < json_array_size(list) && rc == 0; i++)
        rc = take_sibling(json_array_get(list, i), l, err);
    if (rc != 0)
        return rc;
    free(l->revision);
    l->revision = strdup(json_string_value(sha));
    return l->revision == NULL ? no_memory(err) : waste_listing_check(l, err);
}

/* A JSON object, or NULL with err; `what` names it. */
static json_t *load_object(const char *what, const char *text, size_t bytes,
                           struct waste_error *err)
{
    json_error_t at;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &at);

    if (root == NULL)
        waste_error_set(err, -EINVAL, "%s is no JSON: %.120s", what, at.text);
    else if (!json_is_object(root))
        waste_error_set(err, -EINVAL, "%s is no JSON object", what);
    if (json_is_object(root))
        return root;
    json_decref(root);
    return NULL;
}

int waste_listing_parse_hub(const char *text, size_t bytes, struct waste_catalog *l,
                            struct waste_error *err)
{
    json_t *root = load_object("the hub's listing", text, bytes, err);

    if (root == NULL)
        return -EINVAL;
    int rc = take_siblings(root, l, err);
    json_decref(root);
    return rc;
}

/* ---- sha256sum ---- */

/* "HEX  NAME" or "HEX *NAME", "./" before the name or not. */
static int take_sum(const char *line, size_t bytes, int number, struct waste_catalog *l,
                    struct waste_error *err)
{
    enum { DIGITS = WASTE_SHA256_TEXT - 1 };
    char hex[WASTE_SHA256_TEXT], name[NAME_BYTES + 1];

    if (bytes > 0 && line[bytes - 1] == '\r')
        bytes--;
    if (bytes == 0 || line[0] == '#')
        return 0;
    if (bytes > DIGITS) {
        memcpy(hex, line, DIGITS);
        hex[DIGITS] = '\0';
    }
    if (bytes < DIGITS + 3 || !waste_listing_is_hex(hex, DIGITS) || line[DIGITS] != ' ' ||
        (line[DIGITS + 1] != ' ' && line[DIGITS + 1] != '*'))
        return waste_error_set(err, -EINVAL, "%s: line %d is not one of sha256sum's",
                               WASTE_SUMS_NAME, number);
    line += DIGITS + 2;
    bytes -= DIGITS + 2;
    if (bytes > 2 && memcmp(line, "./", 2) == 0) {
        line += 2;
        bytes -= 2;
    }
    const char *fault = waste_listing_name_fault(line, bytes);
    if (fault != NULL)
        return bad_name(WASTE_SUMS_NAME, line, bytes, fault, err);
    memcpy(name, line, bytes);
    name[bytes] = '\0';
    if (strcmp(name, WASTE_SUMS_NAME) == 0)
        return 0;
    struct waste_file *f = waste_catalog_add(l, name);
    if (f == NULL)
        return no_memory(err);
    for (int i = 0; i <= DIGITS; i++)
        f->sha256[i] = (char)tolower((unsigned char)hex[i]);
    return 0;
}

int waste_listing_parse_sums(const char *text, size_t bytes, struct waste_catalog *l,
                             struct waste_error *err)
{
    const char *end = text + bytes;
    int number = 0, rc = 0;

    while (text < end && rc == 0) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        size_t length = (size_t)((newline != NULL ? newline : end) - text);
        if (++number > WASTE_LISTING_FILES)
            return waste_error_set(err, -EINVAL, "%s has more than %d lines", WASTE_SUMS_NAME,
                                   WASTE_LISTING_FILES);
        rc = take_sum(text, length, number, l, err);
        text += length + 1;
    }
    if (rc == 0 && l->count == 0)
        rc = waste_error_set(err, -EINVAL, "%s names no files", WASTE_SUMS_NAME);
    return rc == 0 ? waste_listing_check(l, err) : rc;
}

/* ---- the index ---- */

static int take_shard(const char *name, bool add, struct waste_catalog *l, struct waste_error *err)
{
    struct waste_file *f = waste_catalog_find(l, name);

    if (f == NULL && !add)
        return waste_error_set(err, -EINVAL, "%s names %.120s, which the listing does not have",
                               WASTE_INDEX_NAME, name);
    if (f == NULL && l->count >= WASTE_LISTING_FILES)
        return waste_error_set(err, -EINVAL, "%s names more than %d files", WASTE_INDEX_NAME,
                               WASTE_LISTING_FILES);
    if (f == NULL)
        f = waste_catalog_add(l, name);
    if (f == NULL)
        return no_memory(err);
    f->shard = true;
    return 0;
}

/* The shards the map names, each once, as the keys of `shards`. */
static int collect_shards(const json_t *map, json_t *shards, struct waste_error *err)
{
    const char *tensor;
    json_t *value;

    json_object_foreach((json_t *)map, tensor, value)
    {
        const char *text = json_string_value(value), *fault;
        size_t bytes = json_string_length(value);
        if (text == NULL)
            return waste_error_set(err, -EINVAL, "%s: tensor '%.120s' has no file",
                                   WASTE_INDEX_NAME, tensor);
        if (json_object_get(shards, text) != NULL)
            continue;
        fault = waste_listing_name_fault(text, bytes);
        if (fault != NULL)
            return bad_name(WASTE_INDEX_NAME, text, bytes, fault, err);
        if (bytes < 12 || strcmp(text + bytes - 12, ".safetensors") != 0)
            return bad_name(WASTE_INDEX_NAME, text, bytes, "does not end in .safetensors", err);
        if (json_object_set_new(shards, text, json_true()) != 0)
            return no_memory(err);
    }
    return 0;
}

int waste_listing_parse_index(const char *text, size_t bytes, bool add, struct waste_catalog *l,
                              struct waste_error *err)
{
    json_t *root = load_object(WASTE_INDEX_NAME, text, bytes, err), *shards, *value;
    const json_t *map = json_object_get(root, "weight_map");
    const char *name;
    int rc;

    if (root == NULL)
        return -EINVAL;
    shards = json_object();
    if (!json_is_object(map) || json_object_size(map) == 0)
        rc = waste_error_set(err, -EINVAL, "%s has no weight_map", WASTE_INDEX_NAME);
    else
        rc = shards != NULL ? collect_shards(map, shards, err) : no_memory(err);
    json_object_foreach(shards, name, value)
    {
        if (rc == 0)
            rc = take_shard(name, add, l, err);
    }
    json_decref(shards);
    json_decref(root);
    return rc == 0 ? waste_listing_check(l, err) : rc;
}

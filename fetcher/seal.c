/* waste-fetch seal, and what other commands need of it. */
#include "fetcher/seal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fetcher/fetch.h"
#include "fetcher/inspect.h"
#include "fetcher/io.h"
#include "fetcher/jobs.h"
#include "reader/container_int.h"
#include "reader/direct.h"

/* One file to list. */
struct entry {
    char name[WASTE_MAX_FILE_NAME];
    uint64_t bytes, first_job;
    uint32_t *crc; /* [pieces]; NULL: the size will do */
};

struct sealing {
    const char *dir, *manifest;
    int dir_fd;
    struct entry *entry;
    uint32_t entries;
    uint64_t jobs, bytes;
    struct waste_progress progress;
};

/* Adds DIR/name if it is there. 0 or -errno. */
static int add(struct sealing *s, const char *name)
{
    struct entry *e = &s->entry[s->entries];
    struct stat st;
    bool is_manifest = strcmp(name, WASTE_MANIFEST) == 0;
    if (!is_manifest && fstatat(s->dir_fd, name, &st, 0) < 0)
        return errno == ENOENT ? 0 : -errno;
    *e = (struct entry){.bytes = is_manifest ? strlen(s->manifest) : (uint64_t)st.st_size,
                        .first_job = s->jobs};
    snprintf(e->name, sizeof(e->name), "%s", name);
    s->entries++;
    if (!waste_integrity_has_pieces(name))
        return 0;
    uint32_t pieces = waste_integrity_pieces(e->bytes);
    e->crc = calloc(pieces + 1, sizeof(e->crc[0]));
    if (!e->crc)
        return -ENOMEM;
    if (is_manifest) {
        for (uint32_t p = 0; p < pieces; p++)
            e->crc[p] = waste_integrity_crc(0, s->manifest + (size_t)p * WASTE_INTEGRITY_PIECE,
                                            waste_integrity_piece_bytes(e->bytes, p));
        return 0;
    }
    s->jobs += pieces;
    s->bytes += e->bytes;
    return 0;
}

/* The files of the container, the manifest first. */
static int list_files(struct sealing *s)
{
    static const char *const names[] = {WASTE_MANIFEST,    WASTE_TRUNK_FILE, WASTE_CODEBOOK_FILE,
                                        "tokenizer.model", "specials.json",  "chat.json",
                                        "vision.json",     "convert.json",   "synth.json"};
    enum { NAMES = sizeof(names) / sizeof(names[0]) };
    json_t *root = json_loads(s->manifest, 0, NULL), *bank;
    json_t *layers = json_object_get(root, "layers");
    const char *key;
    int rc = 0;
    s->entry = calloc(NAMES + json_object_size(layers), sizeof(s->entry[0]));
    if (!s->entry || !root)
        rc = -ENOMEM;
    for (size_t i = 0; i < NAMES && rc == 0; i++)
        rc = add(s, names[i]);
    json_object_foreach(layers, key, bank)
    {
        const char *file = json_string_value(json_object_get(bank, "file"));
        if (rc == 0)
            rc = file && waste_plain_file_name(file) ? add(s, file) : -EINVAL;
    }
    json_decref(root);
    return rc < 0 ? waste_fetch_fail("cannot list the files of %s: %s", s->dir, strerror(-rc)) : 0;
}

static int run(void *ctx, uint64_t job, uint8_t *buffer)
{
    struct sealing *s = ctx;
    struct waste_direct file;
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->entries; i++)
        if (s->entry[i].crc && i && s->entry[i].first_job <= job)
            n = i; /* the last that begins at or before it has it */
    struct entry *e = &s->entry[n];
    uint32_t piece = (uint32_t)(job - e->first_job);
    size_t bytes = waste_integrity_piece_bytes(e->bytes, piece);
    int rc = waste_direct_open(&file, s->dir_fd, e->name);
    if (rc == 0)
        rc = waste_direct_read(&file, (uint64_t)piece * WASTE_INTEGRITY_PIECE, bytes, buffer,
                               buffer + WASTE_INTEGRITY_PIECE);
    waste_direct_close(&file);
    if (rc == 0)
        e->crc[piece] = waste_integrity_crc(0, buffer, bytes);
    atomic_fetch_add_explicit(&s->progress.done, bytes, memory_order_relaxed);
    return rc;
}

static json_t *files_json(const struct sealing *s)
{
    json_t *files = json_object();
    for (uint32_t i = 0; i < s->entries; i++) {
        const struct entry *e = &s->entry[i];
        json_t *j = json_pack("{s:I}", "bytes", (json_int_t)e->bytes);
        json_t *list = e->crc ? json_array() : NULL;
        for (uint32_t p = 0; e->crc && p < waste_integrity_pieces(e->bytes); p++) {
            char hex[9];
            snprintf(hex, sizeof(hex), "%08x", e->crc[p]);
            json_array_append_new(list, json_string(hex));
        }
        if (list)
            json_object_set_new(j, "crc32", list);
        json_object_set_new(files, e->name, j);
    }
    return files;
}

char *waste_seal_text(const char *dir, const char *manifest, uint32_t threads, bool quiet)
{
    struct sealing s = {.dir = dir, .manifest = manifest};
    char *text = NULL;
    int e = -1;
    s.dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s.dir_fd < 0)
        waste_fetch_cannot("open", dir, errno);
    else
        e = list_files(&s);
    if (!e) {
        waste_progress_init(&s.progress, "seal", s.bytes, quiet);
        e = waste_jobs_run(
            &(struct waste_jobs){.count = s.jobs,
                                 .run = run,
                                 .ctx = &s,
                                 .buffer_bytes = 2 * WASTE_INTEGRITY_PIECE + 2 * WASTE_DIRECT_ALIGN,
                                 .threads = threads ? threads : waste_jobs_readers(),
                                 .progress = &s.progress});
        waste_progress_finish(&s.progress);
        if (e)
            waste_fetch_fail("cannot read %s: %s", dir, strerror(-e));
    }
    if (!e) {
        json_t *files = files_json(&s);
        text = waste_integrity_text(files);
        json_decref(files);
        if (!text)
            waste_fetch_fail("out of memory");
    }
    for (uint32_t i = 0; i < s.entries; i++)
        free(s.entry[i].crc);
    free(s.entry);
    if (s.dir_fd >= 0)
        close(s.dir_fd);
    return text;
}

/* `lock`: nobody else is at work there yet. */
static int write_text(const char *dir, const char *text, bool lock)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return waste_fetch_cannot("open", dir, errno);
    int e = lock && !waste_io_lock(fd, false)
                ? waste_fetch_fail("another waste-fetch is at work in %s", dir)
                : waste_io_write_file(fd, WASTE_INTEGRITY_FILE, text, strlen(text));
    close(fd);
    return e;
}

int waste_seal_write(const char *dir, const char *manifest, uint32_t threads, bool quiet)
{
    char *text = waste_seal_text(dir, manifest, threads, quiet);
    int e = text ? write_text(dir, text, false) : -1; /* the caller has the lock */
    free(text);
    return e;
}

/* What stands there already: NULL if nothing does. */
static char *read_old(const char *dir)
{
    struct waste_error err;
    char *text = NULL;
    size_t bytes;
    return waste_container_read_file(dir, WASTE_INTEGRITY_FILE, WASTE_MANIFEST_LIMIT, &text, &bytes,
                                     &err) == 0
               ? text
               : NULL;
}

/* Writes the new text, unless one that differs is to stay. *changed: it was written. */
static int replace(const struct waste_fetch_args *args, const char *dir, const char *text,
                   bool *changed)
{
    char *old = read_old(dir);
    bool same = old && strcmp(old, text) == 0;
    *changed = !same;
    free(old);
    if (old && !same && !args->force)
        return waste_fetch_fail("%s has an " WASTE_INTEGRITY_FILE " that says something else: "
                                "waste-fetch verify names what differs, --force replaces it",
                                dir);
    return same ? 0 : write_text(dir, text, true);
}

/* What is found whole gets its checksums. 0, or -1 with the reason printed. */
static int seal(const struct waste_fetch_args *args, const struct waste_inspection *i,
                bool *changed)
{
    struct waste_error err;
    char *manifest = NULL;
    size_t bytes;
    if (i->damages.count)
        return waste_fetch_fail("%s is not sealed: it is damaged in %u place%s", i->dir,
                                i->damages.count, i->damages.count == 1 ? "" : "s");
    if (waste_container_read_file(i->dir, WASTE_MANIFEST, WASTE_MANIFEST_LIMIT, &manifest, &bytes,
                                  &err) < 0)
        return waste_fetch_fail("%s", err.text);
    char *text = waste_seal_text(i->dir, manifest, args->threads, args->quiet);
    int rc = text ? replace(args, i->dir, text, changed) : -1;
    free(manifest);
    free(text);
    return rc;
}

/* As verify has it; "sealed": integrity.json is there and right. */
static int print_json(struct waste_inspection *i, bool sealed, bool changed)
{
    return waste_fetch_print_json(
        json_pack("{s:o, s:b, s:b, s:b, s:I, s:I, s:f, s:o}", "model", waste_io_json(i->dir),
                  "whole", i->damages.count == 0, "sealed", (int)sealed, "changed", (int)changed,
                  "records", (json_int_t)i->records, "bytes", (json_int_t)i->bytes, "seconds",
                  i->seconds, "damages", waste_damages_json(&i->damages)));
}

int waste_fetch_seal(const struct waste_fetch_args *args)
{
    struct waste_inspection i = {.dir = args->line.positional[0],
                                 .threads = args->threads,
                                 .ignore_integrity = true,
                                 .list_only = args->json,
                                 .quiet = args->quiet};
    bool looked = waste_inspect(&i) == 0, changed = false;
    int rc = looked ? seal(args, &i, &changed) : -1;
    if (looked && args->json && print_json(&i, rc == 0, rc == 0 && changed))
        rc = -1;
    if (rc == 0 && !args->json && !args->quiet)
        printf(changed ? "%s: sealed\n"
                       : "%s: " WASTE_INTEGRITY_FILE " is there and says the same\n",
               i.dir);
    waste_inspection_finish(&i);
    return rc;
}

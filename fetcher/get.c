/* waste-fetch get: the files of a checkpoint from a hub or a URL into a directory. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fetcher/download.h"
#include "fetcher/fetch.h"
#include "fetcher/io.h"
#include "fetcher/mirror.h"
#include "fetcher/part.h"
#include "fetcher/progress.h"
#include "fetcher/verdict.h"
#include "options/units.h"

#define SPARE_BYTES (UINT64_C(16) << 20) /* left free beside the files: catalog, directories */

enum { SIZE_TEXT = 24 };

static _Atomic bool stop;

struct get {
    const struct waste_fetch_args *args;
    struct waste_mirror m;
    struct waste_download *download;
    struct waste_finding *finding; /* --check */
    uint64_t received;
    double seconds;
};

static void on_signal(int number)
{
    (void)number;
    atomic_store_explicit(&stop, true, memory_order_relaxed);
}

/* The first signal ends the transfers in order, the second the program. */
static void catch_signals(void)
{
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};

    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGHUP, &a, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file beyond RLIMIT_FSIZE is an error */
}

/* ---- room ---- */

struct room {
    uint64_t need, free;
    bool fits;
};

/* For what is still to come, as far as sizes are known. 0, or -1 with the reason printed. */
static int look_for_room(const struct get *g, struct room *room)
{
    struct waste_mirror_sizes s;
    int rc = waste_mirror_free_bytes(&g->m, &room->free);

    if (rc != 0)
        return waste_fetch_fail("cannot ask for free space at %s: %s", g->m.s.path, strerror(-rc));
    waste_mirror_measure(&g->m, &s);
    room->need = s.left > 0 ? s.left + SPARE_BYTES : 0;
    room->fits = room->need <= room->free;
    return 0;
}

/* ---- report ---- */

static const char *state_of(const struct get *g, uint32_t i)
{
    const struct waste_file *f = &g->m.catalog.file[i];
    static const char *const found[] = {
        [WASTE_FOUND_NOT] = "missing",
        [WASTE_FOUND_RIGHT] = "right",
        [WASTE_FOUND_WRONG] = "wrong",
        [WASTE_FOUND_UNSURE] = "unsure",
    };

    if (g->finding != NULL)
        return found[g->finding[i].found];
    if (f->done)
        return "done";
    if (g->download != NULL && waste_download_state(g->download, i) == WASTE_DOWNLOAD_FAILED)
        return "failed";
    return g->m.dir >= 0 && waste_part_bytes(g->m.dir, f->name) > 0 ? "partial" : "missing";
}

static json_t *file_json(const struct get *g, uint32_t i)
{
    const struct waste_file *f = &g->m.catalog.file[i];
    const char *sha256 = f->sha256[0] != '\0' ? f->sha256 : f->actual;
    json_t *j = json_pack("{s:s, s:s, s:b}", "name", f->name, "state", state_of(g, i), "shard",
                          (int)f->shard);

    if (f->size != WASTE_SIZE_UNKNOWN)
        json_object_set_new(j, "bytes", json_integer((json_int_t)f->size));
    if (*sha256 != '\0')
        json_object_set_new(j, "sha256", json_string(sha256));
    return j;
}

static int print_json(const struct get *g)
{
    struct waste_mirror_sizes s;
    struct room room;

    if (look_for_room(g, &room) != 0)
        return -1;
    waste_mirror_measure(&g->m, &s);
    json_t *files = json_array();
    for (uint32_t i = 0; i < g->m.catalog.count; i++)
        if (g->m.catalog.file[i].wanted)
            json_array_append_new(files, file_json(g, i));
    json_t *root = json_pack(
        "{s:s, s:o, s:s?, s:I, s:I, s:I, s:I, s:b, s:f, s:o}", "source", g->m.catalog.source,
        "dest", waste_io_json(g->m.s.path), "revision", g->m.catalog.revision, "bytes", (json_int_t)s.total,
        "bytes_left", (json_int_t)s.left, "bytes_received", (json_int_t)g->received, "free_bytes",
        (json_int_t)room.free, "fits", (int)room.fits, "seconds", g->seconds, "files", files);
    return waste_fetch_print_json(root);
}

static void print_file(const struct get *g, uint32_t i)
{
    const struct waste_file *f = &g->m.catalog.file[i];
    char size[SIZE_TEXT] = "?";

    if (f->size != WASTE_SIZE_UNKNOWN)
        waste_units_format_size(f->size, size, sizeof(size));
    printf("%10s  %-7s  %s\n", size, state_of(g, i), f->name);
}

static void print_revision(const struct get *g)
{
    printf("%s: %s%s%s\n", g->m.s.path, g->m.catalog.source,
           g->m.catalog.revision != NULL ? " at " : "",
           g->m.catalog.revision != NULL ? g->m.catalog.revision : "");
}

/* ---- --dry-run ---- */

static int dry_run(const struct get *g)
{
    struct waste_mirror_sizes s;
    char left[SIZE_TEXT], total[SIZE_TEXT], free_text[SIZE_TEXT], need[SIZE_TEXT];
    struct room room;

    if (g->args->json)
        return print_json(g);
    waste_mirror_measure(&g->m, &s);
    if (look_for_room(g, &room) != 0)
        return -1;
    print_revision(g);
    for (uint32_t i = 0; i < g->m.catalog.count; i++)
        if (g->m.catalog.file[i].wanted)
            print_file(g, i);
    printf("%u of %u files to fetch, %s of %s", s.files_left, s.files,
           waste_units_format_size(s.left, left, sizeof(left)),
           waste_units_format_size(s.total, total, sizeof(total)));
    if (s.unknown > 0)
        printf(" and %u of unknown size", s.unknown);
    printf("; %s free\n", waste_units_format_size(room.free, free_text, sizeof(free_text)));
    if (!room.fits)
        printf("%s: too little room, %s are needed\n", g->m.s.path,
               waste_units_format_size(room.need, need, sizeof(need)));
    return 0;
}

/* ---- --check ---- */

static int report_check(struct get *g, uint32_t *bad)
{
    struct waste_catalog *l = &g->m.catalog;
    struct waste_error err;

    *bad = 0;
    for (uint32_t i = 0; i < l->count; i++) {
        struct waste_file *f = &l->file[i];
        if (!f->wanted || g->finding[i].found == WASTE_FOUND_RIGHT ||
            g->finding[i].found == WASTE_FOUND_UNSURE)
            continue;
        f->done = false;
        if (!g->args->json && g->finding[i].found == WASTE_FOUND_WRONG)
            printf("%s\n", g->finding[i].err.text);
        else if (!g->args->json)
            printf("%s: is not there\n", f->name);
        ++*bad;
    }
    if (g->args->json && print_json(g) != 0)
        return -1;
    return waste_mirror_save(&g->m, &err) == 0 ? 0 : waste_fetch_fail("%s", err.text);
}

/* Every byte of what should be there is read; what is wrong is noted, so that get fetches it. */
static int check(struct get *g)
{
    struct waste_catalog *l = &g->m.catalog;
    bool *look = calloc(l->count + 1, sizeof(*look));
    uint32_t bad = 0, wanted = 0;
    int rc;

    g->finding = calloc(l->count + 1, sizeof(*g->finding));
    if (look == NULL || g->finding == NULL) {
        free(look);
        return waste_fetch_fail("out of memory");
    }
    for (uint32_t i = 0; i < l->count; i++)
        wanted += look[i] = l->file[i].wanted;
    rc = waste_verdict_all(g->m.dir, l, look, g->args->jobs, "check", g->args->quiet, &stop,
                           g->finding);
    free(look);
    if (rc != 0)
        return waste_fetch_fail("stopped");
    if (report_check(g, &bad) != 0)
        return -1;
    if (bad > 0)
        return waste_fetch_fail("%s: %u of %u files are missing or wrong: get them by the same "
                                "command without --check",
                                g->m.s.path, bad, wanted);
    if (!g->args->json && !g->args->quiet)
        printf("%s: %u files are right\n", g->m.s.path, wanted);
    return 0;
}

/* ---- getting ---- */

static int check_space(const struct get *g)
{
    char need[SIZE_TEXT], have[SIZE_TEXT];
    struct room room;

    if (look_for_room(g, &room) != 0)
        return -1;
    return room.fits
               ? 0
               : waste_fetch_fail("%s needs %s more, the file system has %s free", g->m.s.path,
                                  waste_units_format_size(room.need, need, sizeof(need)),
                                  waste_units_format_size(room.free, have, sizeof(have)));
}

/* One line on what failed. */
static int report_failures(const struct get *g)
{
    const struct waste_error *first = waste_download_broken(g->download);
    uint32_t failed = 0, files = 0;

    if (first != NULL)
        return waste_fetch_fail("%s", first->text);
    for (uint32_t i = 0; i < g->m.catalog.count; i++) {
        files += g->m.catalog.file[i].wanted;
        if (waste_download_state(g->download, i) != WASTE_DOWNLOAD_FAILED)
            continue;
        if (failed++ == 0)
            first = waste_download_error(g->download, i);
    }
    if (failed == 0)
        return 0;
    if (failed == 1)
        return waste_fetch_fail("%s", first->text);
    return waste_fetch_fail("%u of %u files failed, the first: %s", failed, files, first->text);
}

static int report_stop(const struct get *g)
{
    struct waste_mirror_sizes s;
    char have[SIZE_TEXT], total[SIZE_TEXT];

    waste_mirror_measure(&g->m, &s);
    return waste_fetch_fail("stopped with %s of %s here; the same command goes on",
                            waste_units_format_size(s.total - s.left, have, sizeof(have)),
                            waste_units_format_size(s.total, total, sizeof(total)));
}

static int transfer(struct get *g)
{
    struct waste_mirror_sizes s;
    struct waste_progress progress;
    struct waste_error err;

    waste_mirror_measure(&g->m, &s);
    waste_progress_init(&progress, "get", s.total, g->args->quiet);
    progress.begun = s.total - s.left;
    atomic_store(&progress.done,
                 progress.begun - s.part); /* parts are counted when they are opened */
    const struct waste_download_setup setup = {.dir = g->m.dir,
                                               .path = g->m.s.path,
                                               .catalog = &g->m.catalog,
                                               .address = &g->m.address,
                                               .http = g->m.http,
                                               .done = &progress.done};
    g->download = waste_download_create(&setup, &err);
    if (g->download == NULL)
        return waste_fetch_fail("%s", err.text);
    for (uint32_t i = 0; i < g->m.catalog.count; i++)
        if (g->m.catalog.file[i].wanted && !g->m.catalog.file[i].done)
            waste_download_add(g->download, i);
    while (!atomic_load_explicit(&stop, memory_order_relaxed) &&
           waste_download_step(g->download, 200) > 0)
        waste_progress_show(&progress);
    g->seconds = waste_progress_finish(&progress);
    g->received = waste_download_received(g->download);
    if (report_failures(g) != 0)
        return -1;
    return atomic_load_explicit(&stop, memory_order_relaxed) ? report_stop(g) : 0;
}

static void print_summary(const struct get *g)
{
    struct waste_mirror_sizes s;
    char total[SIZE_TEXT], received[SIZE_TEXT];

    waste_mirror_measure(&g->m, &s);
    print_revision(g);
    printf("%u files, %s; %s received in %.1f s\n", s.files,
           waste_units_format_size(s.total, total, sizeof(total)),
           waste_units_format_size(g->received, received, sizeof(received)), g->seconds);
}

static int get(struct get *g)
{
    struct waste_mirror_sizes s;

    waste_mirror_measure(&g->m, &s);
    if (s.files_left > 0 && (check_space(g) != 0 || transfer(g) != 0)) {
        if (g->args->json)
            print_json(g);
        return -1;
    }
    if (g->args->json)
        return print_json(g);
    if (!g->args->quiet)
        print_summary(g);
    return 0;
}

static int open_mirror(struct get *g, struct waste_error *err)
{
    const struct waste_fetch_args *a = g->args;
    const struct waste_mirror_setup s = {.source = a->line.positional[0],
                                         .path = a->line.positional[1],
                                         .revision = a->revision,
                                         .include = &a->include,
                                         .exclude = &a->exclude,
                                         .jobs = a->jobs,
                                         .retries = a->retries,
                                         .stall_seconds = a->stall_seconds,
                                         .retry_wait = a->retry_wait,
                                         .make = !a->dry_run && !a->check,
                                         .look_only = a->dry_run,
                                         .quiet = a->quiet,
                                         .stop = &stop};
    int rc = waste_mirror_open(&g->m, &s, err);

    if (rc != 0 || a->check)
        return rc;
    rc = waste_mirror_settle(&g->m, err);
    if (rc != 0)
        waste_mirror_close(&g->m);
    return rc;
}

int waste_fetch_get(const struct waste_fetch_args *args)
{
    struct get g = {.args = args};
    struct waste_error err = {""};

    if (args->check && args->dry_run)
        return waste_fetch_refuse("--check and --dry-run exclude each other");
    catch_signals();
    int rc = open_mirror(&g, &err);
    if (rc != 0)
        return (rc == -EINVAL ? waste_fetch_refuse : waste_fetch_fail)("%s", err.text);
    rc = args->check ? check(&g) : args->dry_run ? dry_run(&g) : get(&g);
    waste_download_destroy(g.download);
    waste_mirror_close(&g.m);
    free(g.finding);
    return rc;
}

#include "cli/io_view.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "options/units.h"
#include "reader/banks.h"
#include "reader/io_drives.h"

/* A drive as it may be shown: what comes out of shared memory ends somewhere. */
static void show_drive(const struct waste_drive_record *d)
{
    char rate[24];

    printf("  drive        %.*s: %u of %u bank%s past the page cache, depth %u",
           (int)sizeof(d->name), d->name, d->direct_files, d->files, d->files == 1 ? "" : "s",
           d->depth);
    if (d->bytes_per_s > 0)
        printf(", %s/s measured", waste_units_format_size(d->bytes_per_s, rate, sizeof(rate)));
    putchar('\n');
}

static json_t *drive_json(const struct waste_drive_record *d)
{
    return json_pack("{s:o, s:I, s:I, s:I, s:I}", "name",
                     json_stringn_nocheck(d->name, strnlen(d->name, sizeof(d->name))), "depth",
                     (json_int_t)d->depth, "banks", (json_int_t)d->files, "direct_banks",
                     (json_int_t)d->direct_files, "bytes_per_s", (json_int_t)d->bytes_per_s);
}

static uint32_t drive_count(const struct waste_control *c)
{
    /* acquire: pairs with the reader's release, after the records */
    uint32_t count = atomic_load_explicit(&c->drive_count, memory_order_acquire);

    return count <= WASTE_DRIVE_RECORDS ? count : 0;
}

const char *waste_io_view_mode(const struct waste_control *c)
{
    return waste_io_rung_name(
        (enum waste_io_mode)atomic_load_explicit(&c->io_in_use, memory_order_relaxed),
        atomic_load_explicit(&c->io_direct, memory_order_relaxed) != 0);
}

static json_t *drives_json(const struct waste_drive_record *drive, uint32_t count)
{
    json_t *drives = json_array();

    for (uint32_t i = 0; i < count; i++)
        json_array_append_new(drives, drive_json(&drive[i]));
    return drives;
}

json_t *waste_io_view_json(const struct waste_control *c)
{
    return drives_json(c->drive, drive_count(c));
}

void waste_io_view_print(const struct waste_control *c)
{
    printf("  reading      %s\n", waste_io_view_mode(c));
    for (uint32_t i = 0; i < drive_count(c); i++)
        show_drive(&c->drive[i]);
}

json_t *waste_io_view_cache_json(const struct waste_control *c)
{
    /* relaxed, all: a look */
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I}", "slots_in_use",
        (json_int_t)atomic_load_explicit(&c->slots_in_use, memory_order_relaxed), "slots_wanted",
        (json_int_t)atomic_load_explicit(&c->slots_wanted, memory_order_relaxed), "slots_budget",
        (json_int_t)atomic_load_explicit(&c->slots_budget, memory_order_relaxed), "slots_room",
        (json_int_t)c->slot_count, "budget_bytes",
        (json_int_t)atomic_load_explicit(&c->budget_bytes, memory_order_relaxed),
        "pressure_shrinks",
        (json_int_t)atomic_load_explicit(&c->pressure_shrinks, memory_order_relaxed));
}

void waste_io_view_cache_print(const struct waste_control *c)
{
    uint32_t in_use = atomic_load_explicit(&c->slots_in_use, memory_order_relaxed);
    uint32_t wanted = atomic_load_explicit(&c->slots_wanted, memory_order_relaxed);
    uint32_t budget = atomic_load_explicit(&c->slots_budget, memory_order_relaxed);
    uint32_t shrinks = atomic_load_explicit(&c->pressure_shrinks, memory_order_relaxed);
    char size[24], total[24];

    printf("  cache        %u slots of %s; budget %s pays for %u, room for %u", in_use,
           waste_units_format_size(c->slot_bytes, size, sizeof(size)),
           waste_units_format_size(atomic_load_explicit(&c->budget_bytes, memory_order_relaxed),
                                   total, sizeof(total)),
           budget, c->slot_count);
    if (wanted < budget)
        printf("; memory is short: %u for now", wanted);
    if (shrinks > 0)
        printf("; shrunk %u time%s for want of memory", shrinks, shrinks == 1 ? "" : "s");
    putchar('\n');
}

/* As the reader does it. 0 or -errno with err. */
static int probe(const struct waste_args *args, const struct waste_model *model, const char **mode,
                 struct waste_drive_record *drive, uint32_t *count, struct waste_error *err)
{
    struct waste_banks banks;
    struct waste_io_drives_options options = {.depth = args->depth};
    struct waste_io *io;
    uint32_t direct = 0;

    options.mode = waste_options_io(args->io, &options.direct);
    int rc = waste_banks_open(&banks, args->line.positional[0], model, err);
    if (rc < 0)
        return rc;
    const struct waste_io_setup setup = {
        .files = banks.fd, .file_count = banks.count, .depth = WASTE_IO_DEPTH};
    rc = waste_io_drives_create(&options, &setup, &io, NULL, err);
    if (rc == 0) {
        const struct waste_io_drive *list = waste_io_drives_list(io, count);
        for (uint32_t i = 0; i < *count; i++) {
            drive[i] = (struct waste_drive_record){.bytes_per_s = list[i].bytes_per_s,
                                                   .depth = list[i].depth,
                                                   .files = list[i].drive.files,
                                                   .direct_files = list[i].direct_files};
            memcpy(drive[i].name, list[i].drive.name, WASTE_DRIVE_NAME);
            direct += list[i].direct_files;
        }
        *mode = waste_io_rung_name(io->mode, direct == banks.count);
        waste_io_destroy(io);
    }
    waste_banks_close(&banks);
    return rc;
}

json_t *waste_io_view_probe_json(const struct waste_args *args, const struct waste_model *model)
{
    struct waste_drive_record drive[WASTE_DRIVE_RECORDS];
    struct waste_error err;
    const char *mode;
    uint32_t count;

    if (probe(args, model, &mode, drive, &count, &err) < 0)
        return json_pack("{s:s}", "error", err.text);
    return json_pack("{s:s, s:o}", "mode", mode, "drives", drives_json(drive, count));
}

void waste_io_view_probe_print(const struct waste_args *args, const struct waste_model *model)
{
    struct waste_drive_record drive[WASTE_DRIVE_RECORDS];
    struct waste_error err;
    const char *mode;
    uint32_t count;

    if (probe(args, model, &mode, drive, &count, &err) < 0) {
        printf("  reading      %s\n", err.text);
        return;
    }
    printf("  reading      %s\n", mode);
    for (uint32_t i = 0; i < count; i++)
        show_drive(&drive[i]);
}

static const char *const outlook_name[WASTE_OUTLOOK_COUNT] = {
#define X(id, name, help) name,
    WASTE_OUTLOOKS(X)
#undef X
};
static const char *const outlook_help[WASTE_OUTLOOK_COUNT] = {
#define X(id, name, help) help,
    WASTE_OUTLOOKS(X)
#undef X
};

/* -1: no prediction of this rank was followed by its layer's demand. */
static double right_share(const struct waste_control *c, int outlook, uint32_t rank)
{
    if (rank == WASTE_RANK_RECORDS)
        return -1;
    /* relaxed, both: a look */
    uint64_t all = atomic_load_explicit(&c->rank_predicted[outlook][rank], memory_order_relaxed);
    uint64_t right = atomic_load_explicit(&c->rank_right[outlook][rank], memory_order_relaxed);

    return all > 0 ? (double)right / (double)all : -1;
}

json_t *waste_io_view_router_json(const struct waste_control *c)
{
    json_t *outlooks = json_object();

    for (int o = 0; o < WASTE_OUTLOOK_COUNT; o++) {
        json_t *list = json_array();
        for (uint32_t rank = 0; right_share(c, o, rank) >= 0; rank++)
            json_array_append_new(list, json_real(right_share(c, o, rank)));
        json_object_set_new(outlooks, outlook_name[o], list);
    }
    return outlooks;
}

void waste_io_view_router_print(const struct waste_control *c)
{
    for (int o = 0; o < WASTE_OUTLOOK_COUNT; o++) {
        if (right_share(c, o, 0) < 0)
            continue;
        printf("router   right in percent, by rank, %s:", outlook_help[o]);
        for (uint32_t rank = 0; right_share(c, o, rank) >= 0; rank++)
            printf(" %.0f", 100 * right_share(c, o, rank));
        printf("\n");
    }
}

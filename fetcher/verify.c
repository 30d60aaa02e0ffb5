/* waste-fetch verify: what is wrong with a container, all of it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fetcher/compare.h"
#include "fetcher/fetch.h"
#include "fetcher/inspect.h"
#include "fetcher/io.h"
#include "options/units.h"

static void print_text(const struct waste_inspection *i)
{
    const struct waste_expert_format *x = i->model ? &i->model->expert : NULL;
    char size[24];
    json_t *name;
    size_t n;
    json_array_foreach(i->extra, n, name)
        printf("%s: %s is no part of the container\n", i->dir, json_string_value(name));
    if (!i->integrity && i->model)
        printf("%s: not sealed: the bytes of trunk.bin and codebooks.bin have no checksums "
               "(waste-fetch seal)\n",
               i->dir);
    printf("%s: ", i->dir);
    if (i->damages.count)
        printf("damaged in %u place%s", i->damages.count, i->damages.count == 1 ? "" : "s");
    else
        printf("whole");
    printf("; %llu records of %u bytes, %s in %.1f s, %.0f MiB/s\n", (unsigned long long)i->records,
           x ? x->record_bytes : 0, waste_units_format_size(i->bytes, size, sizeof(size)),
           i->seconds, (double)i->bytes / 0x1p20 / (i->seconds > 0 ? i->seconds : 1e-9));
}

/* `compared` is NULL without --against. */
static void print_json(struct waste_inspection *i, const struct waste_comparison *compared)
{
    json_t *j =
        json_pack("{s:o, s:b, s:b, s:I, s:I, s:f, s:o, s:O}", "model", waste_io_json(i->dir),
                  "whole", i->damages.count == 0, "sealed", i->integrity != NULL, "records",
                  (json_int_t)i->records, "bytes", (json_int_t)i->bytes, "seconds", i->seconds,
                  "damages", waste_damages_json(&i->damages), "extra", i->extra);
    if (compared)
        json_object_set_new(j, "against", waste_comparison_json(compared, i));
    waste_fetch_print_json(j);
}

int waste_fetch_verify(const struct waste_fetch_args *args)
{
    struct waste_inspection i = {.dir = args->line.positional[0],
                                 .layer_range = args->layer_range,
                                 .threads = args->threads,
                                 .list_only = args->json,
                                 .quiet = args->quiet};
    struct waste_comparison compared = {0};
    bool can = waste_inspect(&i) == 0;
    if (can && args->against)
        can = waste_compare(&compared, &i, args->against) == 0;
    if (can && args->json)
        print_json(&i, args->against ? &compared : NULL);
    if (can && !args->json && !args->quiet) {
        if (args->against)
            waste_comparison_print(&compared, &i);
        print_text(&i);
    }
    int code = !can ? 2 : i.damages.count ? 1 : 0;
    waste_comparison_finish(&compared);
    waste_inspection_finish(&i);
    return code;
}

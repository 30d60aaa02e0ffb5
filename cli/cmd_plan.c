/* waste-run plan: what a budget pays for. */
#include <stdio.h>

#include "cli/cmd.h"
#include "cli/engine.h"
#include "cli/output.h"
#include "options/units.h"

static void row(const char *name, uint64_t bytes, const char *note)
{
    char size[24];

    printf("  %-12s %12s  %s\n", name, waste_units_format_size(bytes, size, sizeof(size)), note);
}

static const char *stage_note(const struct waste_plan *p, int stage, char *note, size_t bytes)
{
    if (stage != WASTE_STAGE_COMPUTE || p->chunk < 2)
        return "its own memory";
    snprintf(note, bytes, "its own memory; prompts in chunks of %u tokens", p->chunk);
    return note;
}

static void print_table(const struct waste_engine *e, uint32_t ctx)
{
    const struct waste_plan *p = &e->plan;
    char note[128], size[24], why[PATH_MAX + 160];

    printf("plan for %s\n", e->dir);
    row("control", p->control_bytes, "rings, slots, directory, counters");
    row("trunk", p->trunk_bytes, "weights every token uses");
    snprintf(note, sizeof(note), "one conversation of %u tokens", ctx);
    row("session", p->session_bytes, note);
    for (int i = 0; i < WASTE_STAGE_COUNT; i++)
        if (p->stage_bytes[i] != 0)
            row(waste_stage_name[i], p->stage_bytes[i], stage_note(p, i, note, sizeof(note)));
    row("waste-run", p->own_bytes, "its own memory, tokenizer included");
    snprintf(note, sizeof(note), "%u of %u experts, %.2f working sets of %u", p->slots,
             p->expert_slots, (double)p->slots / p->working_set_slots, p->working_set_slots);
    row("cache", p->cache_bytes, note);
    if (p->prefix_bytes > 0)
        row("kept states", p->prefix_bytes, "how conversations begin, --prefix-cache");
    snprintf(note, sizeof(note), "floor %s",
             waste_units_format_size(p->floor_bytes, size, sizeof(size)));
    row("total", p->total_bytes, note);
    printf("  budget       %12s  %s\n",
           waste_units_format_size(p->budget_bytes, size, sizeof(size)),
           p->budget_max     ? "max"
           : p->budget_given ? "given"
                             : "default");
    printf("  allowed      %12s  7/8 of what is free\n",
           waste_units_format_size(p->allowed_bytes, size, sizeof(size)));
    printf("  threads      %12u  %s\n", e->threads, waste_engine_threads_text(e, why, sizeof(why)));
}

static json_t *make_json(const struct waste_engine *e, uint32_t ctx)
{
    const struct waste_plan *p = &e->plan;
    json_t *stages = json_object();

    for (int i = 0; i < WASTE_STAGE_COUNT; i++)
        json_object_set_new(stages, waste_stage_name[i],
                            json_integer((json_int_t)p->stage_bytes[i]));
    json_object_set_new(stages, "waste-run", json_integer((json_int_t)p->own_bytes));
    json_t *object = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:I, "
        "s:I}",
        "control_bytes", (json_int_t)p->control_bytes, "trunk_bytes", (json_int_t)p->trunk_bytes,
        "session_bytes", (json_int_t)p->session_bytes, "cache_bytes", (json_int_t)p->cache_bytes,
        "prefix_bytes", (json_int_t)p->prefix_bytes, "process_bytes", stages, "total_bytes",
        (json_int_t)p->total_bytes, "floor_bytes", (json_int_t)p->floor_bytes, "budget_bytes",
        (json_int_t)p->budget_bytes, "allowed_bytes", (json_int_t)p->allowed_bytes, "slots",
        (json_int_t)p->slots, "floor_slots", (json_int_t)p->floor_slots, "working_set_slots",
        (json_int_t)p->working_set_slots, "expert_slots", (json_int_t)p->expert_slots, "ctx",
        (json_int_t)ctx, "budget_given", p->budget_given, "chunk", (json_int_t)p->chunk,
        "chunk_bytes", (json_int_t)p->chunk_bytes);
    if (object != NULL)
        waste_engine_threads_json(e, object);
    return object;
}

int waste_cmd_plan(const struct waste_args *args)
{
    struct waste_engine e;
    uint32_t ctx;

    int rc = waste_engine_load(&e, args, true);
    if (rc == 0)
        rc = waste_engine_fit(&e, NULL, 0, 0, &ctx);
    if (rc == 0)
        rc = waste_engine_plan(&e, ctx);
    if (rc == 0 && args->json)
        rc = waste_output_print_json(make_json(&e, ctx));
    else if (rc == 0)
        print_table(&e, ctx);
    waste_engine_finish(&e);
    return rc;
}

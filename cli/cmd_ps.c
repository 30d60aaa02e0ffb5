/* waste-run ps, stats: looking at running pipelines. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/cmd.h"
#include "cli/engine.h"
#include "cli/io_view.h"
#include "cli/output.h"
#include "cli/view.h"
#include "options/units.h"
#include "shm/segment.h"

static void print_process(const char *name, const struct waste_view_process *p)
{
    char rss[24], pss[24];

    printf("  %-10s %8d  %10s rss %10s pss", name, p->pid,
           waste_units_format_size(p->memory.rss, rss, sizeof(rss)),
           waste_units_format_size(p->memory.pss, pss, sizeof(pss)));
}

static void print_pipeline(const struct waste_view *v)
{
    char size[24];

    printf("%s\n  segments  ", v->model_dir);
    for (int i = 0; i < WASTE_SEG_COUNT; i++)
        printf(" %s %s%s", waste_segment_name[i],
               waste_units_format_size(v->segment[i], size, sizeof(size)),
               i + 1 < WASTE_SEG_COUNT ? "," : " in memory\n");
    print_process("waste-run", &v->own);
    printf("\n");
    for (int i = 0; i < WASTE_STAGE_COUNT; i++) {
        const struct waste_view_stage *s = &v->stage[i];
        if (s->process.pid == 0) {
            printf("  %-10s %8s\n", waste_stage_name[i], waste_stage_state_name[s->state]);
            continue;
        }
        print_process(waste_stage_name[i], &s->process);
        printf("  %s, %s, seen %.1f s ago, %u restart%s\n", waste_stage_state_name[s->state],
               waste_activity_name[s->activity], s->heartbeat_age, s->restarts,
               s->restarts == 1 ? "" : "s");
    }
}

/* Attaches and looks once. 0, or an exit code after one line; then waste_view_destroy(*out),
 * waste_attach_close(a). */
static int look_once(uint32_t pid, struct waste_attached *a, struct waste_view **out)
{
    struct waste_error err;

    int rc = waste_attach_open(pid, a, &err);
    if (rc != 0)
        return waste_fail(rc, "%s", err.text);
    *out = waste_view_create(a);
    if (*out == NULL) {
        waste_attach_close(a);
        return waste_fail(1, "out of memory");
    }
    waste_view_take(*out, true);
    return 0;
}

int waste_cmd_ps(const struct waste_args *args)
{
    json_t *list = json_array();
    int32_t *pids;
    size_t count, shown = 0;

    if (list == NULL || waste_attach_list(&pids, &count) != 0) {
        json_decref(list);
        return waste_fail(1, "out of memory");
    }
    for (size_t i = 0; i < count; i++) {
        struct waste_attached a;
        struct waste_view *v;
        if (args->pid != 0 && args->pid != (uint32_t)pids[i])
            continue;
        if (look_once((uint32_t)pids[i], &a, &v) != 0) /* it has ended meanwhile, or is stopped */
            continue;
        shown++;
        if (args->json)
            json_array_append_new(list, waste_view_ps_json(v));
        else
            print_pipeline(v);
        waste_view_destroy(v);
        waste_attach_close(&a);
    }
    free(pids);
    if (args->pid != 0 && shown == 0) {
        json_decref(list);
        return waste_fail(1, "no pipeline of waste-run %u is running", args->pid);
    }
    if (args->json)
        return waste_output_print_json(json_pack("{s:o}", "pipelines", list));
    if (shown == 0)
        puts("no pipeline is running");
    json_decref(list);
    return 0;
}

static void print_drive(const struct waste_view_drive *d)
{
    if (d->reads > 0)
        printf("  %-12s %" PRIu64 " reads, %.2f ms each, %" PRIu64 " in flight\n", d->info.name,
               d->reads, (double)d->ns / 1e6 / (double)d->reads, d->in_flight);
}

static void print_rates(const struct waste_view *v)
{
    struct waste_rates r;

    waste_view_rates(NULL, v, &r);
    printf("  %.2f tokens/s, prompts %.2f tokens/s, %.1f %% hits", r.tok_per_s, r.prompt_tok_per_s,
           r.hit_share > 0 ? 100 * r.hit_share : 0);
    if (r.disk_share >= 0)
        printf(", disk %.0f %% of its limit", 100 * r.disk_share);
    if (r.memory_share >= 0)
        printf(", memory %.0f %% of its limit", 100 * r.memory_share);
    putchar('\n');
    if (v->prefilling)
        printf("  prompt: %u of %u tokens, %.1f tokens/s, %.0f s left\n",
               v->prefill.position - v->prefill.begin, v->prefill.end - v->prefill.begin,
               v->prefill.tok_per_s, v->prefill.seconds_left);
    putchar('\n');
}

/* Small trunks do not ask for any. */
static void print_huge(const struct waste_view *v)
{
    uint64_t loaded = v->counter[WASTE_C_TRUNK_LOADED], huge = v->counter[WASTE_C_TRUNK_HUGE];
    char part[24], whole[24];

    if (loaded < WASTE_SEGMENT_LARGE)
        return;
    if (huge == 0)
        puts("  huge pages   none: this machine grants none to the trunk, and its products take "
             "longer");
    else
        printf("  huge pages   %s of the trunk's %s\n",
               waste_units_format_size(huge, part, sizeof(part)),
               waste_units_format_size(loaded, whole, sizeof(whole)));
}

static void print_loss(void *arg, const char *text)
{
    (void)arg;
    printf("  warning      %s\n", text);
}

static void print_counters(const struct waste_view *v)
{
    const struct waste_control *c = v->of->shm.control;

    waste_io_view_print(c);
    for (uint32_t i = 0; i < v->drives; i++)
        print_drive(&v->drive[i]);
    waste_io_view_cache_print(c);
    print_huge(v);
    waste_io_view_router_print(c);
    waste_view_losses(v, print_loss, NULL);
    print_rates(v);
    for (int i = 0; i < WASTE_COUNTER_COUNT; i++)
        printf("  %-20s %16" PRIu64 "  %s\n", waste_counter_info[i].name, v->counter[i],
               waste_counter_info[i].help);
}

int waste_cmd_stats(const struct waste_args *args)
{
    struct waste_attached a;
    struct waste_view *v;

    if (args->json && args->prometheus)
        return waste_fail(2, "option --prometheus: not together with --json");
    int rc = look_once(args->pid, &a, &v);
    if (rc != 0)
        return rc;
    if (args->json) {
        rc = waste_output_print_json(waste_view_stats_json(v));
    } else if (args->prometheus) {
        rc = waste_view_prometheus(v);
    } else {
        print_pipeline(v);
        print_counters(v);
    }
    waste_view_destroy(v);
    waste_attach_close(&a);
    return rc;
}

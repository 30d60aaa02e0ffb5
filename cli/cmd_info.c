/* waste-run info: what a container holds. */
#include <stdio.h>
#include <stdlib.h>

#include "cli/cmd.h"
#include "cli/engine.h"
#include "cli/io_view.h"
#include "cli/output.h"
#include "options/units.h"

static const char *const format_name[WASTE_FMT_COUNT] = {
    [WASTE_FMT_F32] = "F32", [WASTE_FMT_F16] = "F16",   [WASTE_FMT_Q8G] = "Q8G",
    [WASTE_FMT_Q4G] = "Q4G", [WASTE_FMT_VQ3R] = "VQ3R", [WASTE_FMT_VQ2R] = "VQ2R",
    [WASTE_FMT_Q3G] = "Q3G", [WASTE_FMT_VQ4P] = "VQ4P",
};

static const char *const chat_name[] = {
    [WASTE_MARKUP_RAW] = "plain text",
    [WASTE_MARKUP_FILE] = "chat.json says",
    [WASTE_MARKUP_XTML] = "Kimi K3",
    [WASTE_MARKUP_CHATML] = "Kimi-Linear",
};

static const char *format_of(uint32_t fmt)
{
    return fmt < WASTE_FMT_COUNT && format_name[fmt] != NULL ? format_name[fmt] : "?";
}

struct totals {
    uint64_t expert_bytes, trunk_file_bytes;
    uint64_t by_format[WASTE_FMT_COUNT];
    uint32_t moe_layers;
};

static struct totals add_up(const struct waste_model *m)
{
    struct totals t = {.moe_layers = waste_model_moe_layers(m)};

    for (uint32_t i = 0; i < m->config.layers; i++)
        t.expert_bytes += waste_model_layer(m, i)->bank.bytes;
    for (uint32_t i = 1; i < m->tensor_count; i++) {
        const struct waste_tensor *tensor = waste_model_tensor(m, i);
        uint64_t bytes = tensor->payload_bytes + (uint64_t)2 * tensor->rows * tensor->groups;
        t.trunk_file_bytes += bytes;
        if (tensor->fmt < WASTE_FMT_COUNT)
            t.by_format[tensor->fmt] += bytes;
    }
    return t;
}

static void print_text(const struct waste_engine *e, const struct totals *t)
{
    const struct waste_model *m = e->model;
    const struct waste_config *c = &m->config;
    char a[24], b[24], why[PATH_MAX + 160];

    printf("%s\n", e->dir);
    printf("  layers       %u: %u KDA, %u MLA; %u dense, %u MoE\n", c->layers, c->kda_layers,
           c->mla_layers, c->layers - t->moe_layers, t->moe_layers);
    printf("  hidden       %u, vocabulary %u, context ", c->hidden, c->vocab);
    if (c->max_context > 0)
        printf("%u\n", c->max_context);
    else
        printf("not said\n");
    printf("  experts      %u a layer, %u chosen, %u shared; width %u, inner %u%s\n", c->experts,
           c->top_k, c->shared_experts, c->expert_width, c->expert_inner,
           c->latent ? ", latent" : "");
    printf("  activation   %s%s\n", c->situ ? "SiTU" : "SiLU",
           c->res_block ? ", attention residuals" : "");
    printf("  bank         %s, record %s, %u codebooks, %s in all\n", format_of(m->expert.fmt),
           waste_units_format_size(m->expert.record_bytes, a, sizeof(a)), m->expert.codebooks,
           waste_units_format_size(t->expert_bytes, b, sizeof(b)));
    printf("  trunk        %s on disk, %s in memory:",
           waste_units_format_size(t->trunk_file_bytes, a, sizeof(a)),
           waste_units_format_size(m->trunk_bytes, b, sizeof(b)));
    for (uint32_t f = 0; f < WASTE_FMT_COUNT; f++)
        if (t->by_format[f] > 0)
            printf(" %s %s", format_of(f), waste_units_format_size(t->by_format[f], a, sizeof(a)));
    printf("\n  token        reads at most %u experts, %s\n", t->moe_layers * c->top_k,
           waste_units_format_size((uint64_t)t->moe_layers * c->top_k * m->expert.record_bytes, a,
                                   sizeof(a)));
    printf("  threads      %u for computing: %s\n", e->threads,
           waste_engine_threads_text(e, why, sizeof(why)));
    printf("  kernels      %s\n", waste_engine_arithmetic(e).cpu);
    waste_io_view_probe_print(e->args, m);
    printf("  fingerprint  %016llx\n", (unsigned long long)m->fingerprint);
    if (e->tokenizer != NULL)
        printf("  tokenizer    %u ranks; chat as %s%s\n", waste_tokenizer_ranks(e->tokenizer),
               chat_name[waste_markup_kind(e->markup)],
               !waste_markup_can_think(e->markup) ? ""
               : waste_markup_thinks(e->markup)   ? ", thinks"
                                                  : ", thinks when asked to (--think)");
}

static json_t *make_json(const struct waste_engine *e, const struct totals *t)
{
    const struct waste_model *m = e->model;
    const struct waste_config *c = &m->config;
    char fingerprint[20];
    json_t *formats = json_object();
    json_t *eos = json_array();

    snprintf(fingerprint, sizeof(fingerprint), "%016llx", (unsigned long long)m->fingerprint);
    for (uint32_t f = 0; f < WASTE_FMT_COUNT; f++)
        if (t->by_format[f] > 0)
            json_object_set_new(formats, format_of(f), json_integer((json_int_t)t->by_format[f]));
    for (uint32_t i = 0; i < c->eos_count; i++)
        json_array_append_new(eos, json_integer(c->eos[i]));
    json_t *object = json_pack(
        "{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:I, s:i, s:i, s:i, s:i}", "model", e->dir,
        "layers", (int)c->layers, "kda_layers", (int)c->kda_layers, "mla_layers",
        (int)c->mla_layers, "moe_layers", (int)t->moe_layers, "hidden", (int)c->hidden, "vocab",
        (int)c->vocab, "experts", (int)c->experts, "max_context", (json_int_t)c->max_context,
        "top_k", (int)c->top_k, "shared_experts", (int)c->shared_experts, "expert_width",
        (int)c->expert_width, "expert_inner", (int)c->expert_inner);
    json_t *more = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:s, s:b, s:b}", "expert_format",
        format_of(m->expert.fmt), "record_bytes", (json_int_t)m->expert.record_bytes, "codebooks",
        (json_int_t)m->expert.codebooks, "expert_bytes", (json_int_t)t->expert_bytes, "trunk_bytes",
        (json_int_t)m->trunk_bytes, "trunk_file_bytes", (json_int_t)t->trunk_file_bytes,
        "trunk_formats", formats, "eos", eos, "fingerprint", fingerprint, "latent",
        (int)(c->latent != 0), "attention_residuals", (int)(c->res_block != 0));
    if (object != NULL && more != NULL)
        json_object_update(object, more);
    json_decref(more);
    if (object != NULL) {
        waste_engine_threads_json(e, object);
        json_object_set_new(object, "kernels", json_string(waste_engine_arithmetic(e).cpu));
        json_object_set_new(object, "io", waste_io_view_probe_json(e->args, m));
    }
    return object;
}

int waste_cmd_info(const struct waste_args *args)
{
    struct waste_engine e;

    int rc = waste_engine_load(&e, args, true);
    if (rc == 0)
        rc = waste_engine_look(&e);
    if (rc == 0) {
        struct totals t = add_up(e.model);
        if (args->json)
            rc = waste_output_print_json(make_json(&e, &t));
        else
            print_text(&e, &t);
    }
    waste_engine_finish(&e);
    return rc;
}

/* The session in huge pages: as far as a context has come, and no further. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cm.h"
#include "forward_rig.h"

enum { CTX = 60000 };

/* A field of the mapping that begins at `base`, in bytes. */
static uint64_t smaps(const void *base, const char *field)
{
    char line[256], *end;
    unsigned long long kib = 0;
    bool ours = false;
    FILE *f = fopen("/proc/self/smaps", "r");

    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        uint64_t start = strtoull(line, &end, 16);
        if (end > line && *end == '-')
            ours = start == (uintptr_t)base;
        else if (ours && strncmp(line, field, strlen(field)) == 0 && line[strlen(field)] == ':')
            kib = strtoull(line + strlen(field) + 1, NULL, 10);
    }
    fclose(f);
    return kib << 10;
}

static void step(struct forward_rig *r, uint32_t position)
{
    uint32_t token = 7;

    waste_forward_want(r->server.forward, position, &token, 1);
    assert_int_equal(waste_forward_step(r->server.forward, position, 0, token, NULL), 0);
}

/* What the rows of `positions` positions take in whole huge pages, all layers. */
static uint64_t rows_pages(const struct forward_rig *r, uint32_t positions)
{
    const struct waste_config *c = &r->model->config;
    uint64_t row = (c->kv_lora + c->rope_dim) * sizeof(float), bytes = 0;

    for (uint32_t layer = 0; layer < c->mla_layers; layer++) {
        uint64_t at = r->env.conversation->latent_off + layer * r->env.session->mla_layer_bytes;
        uint64_t end = at + positions * row, first = at / WASTE_HUGE_PAGE;
        bytes += ((end + WASTE_HUGE_PAGE - 1) / WASTE_HUGE_PAGE - first) * WASTE_HUGE_PAGE;
    }
    return bytes;
}

static void test_the_session_is_in_huge_pages_as_far_as_the_context_has_come(void **state)
{
    struct forward_rig r;
    uint64_t states, huge, before;

    forward_rig_create(&r, WASTE_DEMO_MODEL, 1, CTX, 0, NULL);
    states = 2 * r.model->config.kda_layers * r.env.session->kda_layer_bytes;
    assert_true(r.session.bytes > 2 * (states + rows_pages(&r, CTX / 3)));
    uint64_t last = r.session.bytes / WASTE_HUGE_PAGE - 1;
    ((char *)r.session.base)[last * WASTE_HUGE_PAGE] = 0;
    if (waste_segment_make_huge(&r.session, last)) {
        forward_rig_destroy(&r);
        skip(); /* an older kernel, or no huge page to be had */
    }
    before = smaps(r.session.base, "ShmemPmdMapped");
    for (uint32_t position = 0; position < 3; position++)
        step(&r, position);
    huge = smaps(r.session.base, "ShmemPmdMapped") - before;
    assert_true(huge >= rows_pages(&r, 3));
    assert_true(huge <= rows_pages(&r, 3) + states + 2 * WASTE_HUGE_PAGE);
    step(&r, CTX / 3);
    assert_true(smaps(r.session.base, "ShmemPmdMapped") - before - huge >=
                rows_pages(&r, CTX / 3) - rows_pages(&r, 3));
    assert_true(smaps(r.session.base, "Rss") < r.session.bytes / 2 + 2 * WASTE_HUGE_PAGE);
    forward_rig_destroy(&r);
}

/* Too small for any, its pages are small and everything goes on. */
static void test_a_small_session_has_small_pages(void **state)
{
    struct forward_rig r;

    forward_rig_create(&r, WASTE_DEMO_MODEL, 1, 64, 0, NULL);
    step(&r, 0);
    step(&r, 1);
    assert_int_equal(smaps(r.session.base, "ShmemPmdMapped"), 0);
    forward_rig_destroy(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_session_is_in_huge_pages_as_far_as_the_context_has_come),
        cmocka_unit_test(test_a_small_session_has_small_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

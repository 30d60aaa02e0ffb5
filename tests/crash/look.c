/*
 * crash_look PID: what the control segment of a running pipeline holds, as one JSON object. What
 * `waste-run stats` does not show to people: slots, pins, rings, the directory.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/attach.h"

struct slots {
    unsigned state[8];
    unsigned invalid, pins, unlisted;
};

static void look_at_slots(const struct waste_shm *shm, struct slots *out)
{
    for (uint32_t i = 0; i < shm->control->slot_count; i++) {
        /* acquire: the key of a READY slot */
        uint64_t word = atomic_load_explicit(&shm->slot[i].word, memory_order_acquire);
        uint64_t key = atomic_load_explicit(&shm->slot[i].key, memory_order_relaxed);
        uint64_t entry = (key >> 32) * shm->model->config.experts + (key & UINT32_MAX);
        out->invalid += !waste_slot_valid(word);
        out->state[waste_slot_state(word)]++;
        out->pins += waste_slot_pins(word);
        if (waste_slot_state(word) == WASTE_SLOT_READY &&
            ((key >> 32) >= shm->model->config.layers ||
             (key & UINT32_MAX) >= shm->model->config.experts ||
             atomic_load_explicit(&shm->directory[entry], memory_order_relaxed) != i))
            out->unlisted++;
    }
}

/* Directory entries that lead to a slot that is not READY with their key. */
static unsigned astray(const struct waste_shm *shm)
{
    unsigned n = 0;

    for (uint32_t l = 0; l < shm->model->config.layers; l++) {
        for (uint32_t e = 0; e < shm->model->config.experts; e++) {
            uint32_t at = atomic_load_explicit(&shm->directory[l * shm->model->config.experts + e],
                                               memory_order_acquire);
            if (at == WASTE_SLOT_NONE)
                continue;
            n += at >= shm->control->slot_count ||
                 atomic_load_explicit(&shm->slot[at].key, memory_order_relaxed) !=
                     waste_slot_key(l, e) ||
                 waste_slot_state(atomic_load_explicit(&shm->slot[at].word,
                                                       memory_order_relaxed)) != WASTE_SLOT_READY;
        }
    }
    return n;
}

int main(int argc, char **argv)
{
    struct waste_attached a;
    struct waste_error err;
    struct slots slots = {0};

    if (argc != 2 || waste_attach_open((uint32_t)strtoul(argv[1], NULL, 10), &a, &err) != 0) {
        fprintf(stderr, "crash_look: %s\n", argc == 2 ? err.text : "one pid is wanted");
        return 1;
    }
    look_at_slots(&a.shm, &slots);
    printf("{\"empty\": %u, \"reading\": %u, \"ready\": %u, \"failed\": %u, \"invalid\": %u, "
           "\"pins\": %u, \"unlisted\": %u, \"astray\": %u, ",
           slots.state[WASTE_SLOT_EMPTY], slots.state[WASTE_SLOT_READING],
           slots.state[WASTE_SLOT_READY], slots.state[WASTE_SLOT_FAILED], slots.invalid, slots.pins,
           slots.unlisted, astray(&a.shm));
    printf("\"demand\": %" PRIu64 ", \"prefetch\": %" PRIu64 ", \"hidden\": %" PRIu64 "}\n",
           waste_ring_used(a.shm.demand), waste_ring_used(a.shm.prefetch),
           waste_ring_used(a.shm.hidden));
    waste_attach_close(&a);
    return 0;
}

/*
 * The expert cache: which slot holds which expert, which one is given up, what is read next.
 *
 * Decides, does no I/O. The owner feeds it demand and prefetch records, asks it for reads
 * (waste_cache_plan), and tells it how each read ended. Every slot word and directory entry that
 * the reader ever moves is moved here. What another process could have overwritten is only read
 * where it must be (the slot word); keys and places are remembered locally. One thread.
 *
 * Where a slot is, seen from here:
 *
 *     free        EMPTY, on the stack of free slots
 *     reading     READING
 *     held        READY or FAILED, asked for by a demand record that still counts: the newest, and
 *                 as many before it as it says; never a victim
 *     predicted   READY, asked for by a prefetch whose layer has not come yet: a victim for demand
 *                 when nothing else is left, never for another prefetch
 *     evictable   READY, in one of the policy's heaps
 */
#ifndef WASTE_READER_CACHE_H
#define WASTE_READER_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "reader/foresight.h"
#include "reader/ghost.h"
#include "reader/policy.h"
#include "shm/control.h"

struct waste_cache_slot {
    uint32_t layer, expert;
    uint8_t state;       /* enum waste_slot_state, as this side knows it */
    uint8_t predicted;   /* in, or when its read ends or it is not held any more to be put into,
                            its layer's list of predicted slots */
    uint8_t prefetched;  /* read for a prediction and not demanded since */
    uint8_t counted;     /* held: demanded since it is, not only foreseen */
    uint8_t open;        /* prefetched, and whether for nothing is not known yet */
    float risk;          /* open: that it was for nothing */
    uint64_t for_step;   /* predicted: of the newest prediction */
    uint64_t held;       /* the newest demand record that asks for it; 0: none that counts */
    uint32_t prev, next; /* list of predicted slots; stack of free slots (next) */
};

/* What the newest prediction for a layer would still have read. */
struct waste_cache_wishes {
    uint64_t step;
    enum waste_outlook outlook;
    uint32_t rank, left; /* the next one's rank; how many there are */
};

struct waste_cache {
    const struct waste_shm *shm;
    uint32_t slots, experts, top_k;
    uint32_t floor;          /* never fewer slots in use: waste_model_floor_slots() */
    uint32_t prefetch_limit; /* prefetch reads in flight; leaves top_k slots for demand */
    struct waste_policy policy;
    struct waste_foresight foresight;
    struct waste_ghost ghost;
    struct waste_cache_slot *slot; /* [slots] */
    uint32_t *slot_of;             /* [layers * experts], this side's copy of the directory */
    uint32_t free;
    /* slots that may not be used now, EMPTY and without pages: cache_resize.c */
    uint32_t retired, retired_count;
    uint32_t lost;             /* slots that a dead reader's reads may still write to: nobody's */
    uint32_t prefetch_most;    /* as asked for at the start */
    uint32_t *first_predicted; /* [layers] lists of predicted slots */
    uint32_t predicted, predicted_limit;
    uint32_t prefetch_reading;
    uint32_t prefetch_begun; /* since the newest demand */
    uint64_t records;        /* demand records taken */
    uint64_t healed;         /* slots and directory entries found overwritten by somebody else */
    /* where compute is, by the newest demand record that is not ahead of it */
    bool any_demand;
    uint64_t step;
    uint32_t layer;
    /* newest demand record; no slot yet: [wanted_next, wanted_count) */
    bool wanted_ahead;
    uint32_t wanted_layer, wanted_count, wanted_next;
    uint32_t *wanted;                  /* [top_k] experts to read */
    uint32_t held_count;               /* slots that are held */
    uint32_t *held;                    /* [slots] */
    uint32_t wishing;                  /* layers that have any left */
    struct waste_cache_wishes *wishes; /* [layers] */
};

struct waste_cache_read {
    uint32_t slot, layer, expert;
    bool demand;
};

struct waste_cache_repair {
    uint32_t kept;      /* READY slots found in order */
    uint32_t emptied;   /* READY with no usable key, FAILED or nonsense: now EMPTY */
    uint32_t punched;   /* READING: pages thrown away, now EMPTY */
    uint32_t lost;      /* READING, and the pages cannot be thrown away: not used */
    uint32_t directory; /* entries that pointed to something else */
};

/*
 * prefetch_limit: prefetch reads in flight at most; lowered so that top_k slots can always be had
 * for demand. Takes what is in the slots and the directory as the last incarnation left it and
 * repairs it; cache_fd, if not negative, is the segment of the slots, to punch. 0, -ENOMEM, -EINVAL
 * (fewer slots than the floor) or what punching said, if it leaves fewer than that.
 */
int waste_cache_init(struct waste_cache *c, const struct waste_shm *shm, uint32_t prefetch_limit,
                     int cache_fd, struct waste_cache_repair *repair);
void waste_cache_finish(struct waste_cache *c);

/* 0 if the record is one the model allows: a MoE layer, 1..top_k experts that exist; else -EINVAL.
 * Demand records of the kind TURNS, and prefetch records, may be `capacity` long instead of top_k.
 */
int waste_cache_check_demand(const struct waste_cache *c, const struct waste_want *want,
                             uint32_t capacity);
int waste_cache_check_prefetch(const struct waste_cache *c, const struct waste_want *want,
                               uint32_t capacity);

/* Before the first demand: what earlier runs learned (waste_policy_recall). A successor knows
 * better. */
void waste_cache_recall(struct waste_cache *c, uint32_t layer, uint32_t expert, float share);

/* Takes a checked demand record. The one before it must have found all its slots
 * (!waste_cache_wanting). */
void waste_cache_demand(struct waste_cache *c, const struct waste_want *want);

/* Experts of the newest demand that have no slot yet. */
static inline bool waste_cache_wanting(const struct waste_cache *c)
{
    return c->wanted_next < c->wanted_count;
}

/* Takes a checked prefetch record; most likely experts first. */
void waste_cache_prefetch(struct waste_cache *c, const struct waste_want *want);

/* Claims slots for up to `room` reads, demand before prefetch. Returns how many. */
uint32_t waste_cache_plan(struct waste_cache *c, struct waste_cache_read *out, uint32_t room);

/*
 * A slot to read an expert into that nobody asked for, because earlier runs used it. Takes free
 * slots only, and leaves enough of them for demand. 1: *out is to be read; 0: the expert is here or
 * on its way; -ENOSPC: no room (any more).
 */
int waste_cache_warm(struct waste_cache *c, uint32_t layer, uint32_t expert,
                     struct waste_cache_read *out);

/* What has become of a read that was planned for a prediction. */
enum waste_cache_prefetch_state {
    WASTE_CACHE_PREFETCH_OVER,     /* the slot is not being read */
    WASTE_CACHE_PREFETCH_AHEAD,    /* its layer is still to come, or it has none */
    WASTE_CACHE_PREFETCH_DEMANDED, /* the newest record has it */
    WASTE_CACHE_PREFETCH_PASSED,   /* its layer is over */
};
enum waste_cache_prefetch_state waste_cache_prefetch_state(const struct waste_cache *c,
                                                           uint32_t slot);

/* A read that was planned for a prediction has not begun and will not: the slot is free again. */
void waste_cache_cancelled(struct waste_cache *c, uint32_t slot);

/* A planned read has ended: the record is in the slot and checked; or it will never be. */
void waste_cache_ready(struct waste_cache *c, uint32_t slot);
void waste_cache_failed(struct waste_cache *c, uint32_t slot, enum waste_slot_error error,
                        uint32_t detail);

/* ---- size ---- */

static inline uint32_t waste_cache_in_use(const struct waste_cache *c)
{
    return c->slots - c->lost - c->retired_count;
}

/* Nobody computes: no demand record that was taken counts any more. */
void waste_cache_rest(struct waste_cache *c);

/* What waste-run wants used now: within the floor and all. */
uint32_t waste_cache_wanted_slots(const struct waste_cache *c);

/*
 * Some steps towards using that many: the least valuable are
 * emptied and put in out[room], for the caller to throw their pages away, or slots come back.
 * Returns how many are in out; fewer than room: it is done, or everything left is held, pinned or
 * being read (call again later).
 */
uint32_t waste_cache_resize(struct waste_cache *c, uint32_t *out, uint32_t room);

#endif

/*
 * The experts a layer of a chunk needs, from the demand records to the last unpin: every distinct
 * one once, in whatever order they are in memory, though the cache may hold only a few of them.
 *
 *     waste_stream_begin -> waste_stream_foresee -> waste_stream_take, then waste_stream_done for
 *     each taken, again and again until none is left -> the next layer ...  -> waste_stream_end
 *
 * Records of at most top_k experts go to the reader's demand ring (struct waste_want): first what
 * is in memory, then the others in the order in which they lie on disk, then what the next layer
 * will need. The reader keeps the experts of a record until a later one says that theirs is over,
 * so all that is posted and not over fits the slots in use, and nothing is evicted before it was
 * computed with. As experts are done with, the next ones are posted: that is the window which moves
 * over a layer, and on into the next.
 *
 * One thread; at a place of take or done no expert is being computed with but those taken.
 */
#ifndef WASTE_COMPUTE_STREAM_H
#define WASTE_COMPUTE_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/control.h"

enum { WASTE_STREAM_RECORDS = 1024 }; /* that count at once, at most */

/* An expert of the layer. */
struct waste_stream_expert {
    uint32_t id;
    uint32_t tokens; /* that chose it */
    uint32_t first;  /* of its tokens in the caller's lists */
    uint32_t slot;   /* taken */
    uint64_t record; /* posted in */
    uint8_t state;   /* enum waste_stream_state */
    bool renewed;    /* foreseen, and the reader has it already */
};

enum waste_stream_state {
    WASTE_STREAM_WAITING,
    WASTE_STREAM_POSTED,
    WASTE_STREAM_TAKEN,
    WASTE_STREAM_DONE,
};

struct waste_stream_record {
    uint32_t count, left; /* experts; of those, not done */
    uint64_t mark;        /* the ring's head behind it */
    bool ahead;           /* of what was foreseen; over when the layer itself has posted */
};

struct waste_stream {
    /* set once */
    const struct waste_shm *shm;
    const uint8_t *cache;
    int reader_event;
    uint32_t floor; /* slots that are always in use */
    /* the layer at hand */
    uint64_t step;
    uint32_t layer, count, left;        /* experts; not done */
    uint32_t next;                      /* nothing before it waits to be posted */
    struct waste_stream_expert *expert; /* [experts] in the order of posting */
    /* the next layer, as foreseen */
    uint32_t ahead_layer, ahead_count, ahead_next;
    uint32_t *ahead; /* [experts] */
    uint8_t *mark;   /* [experts] scratch */
    uint32_t sure;   /* tokens that must foresee an expert to make it worth a read */
    /* records; number n is at n % WASTE_STREAM_RECORDS */
    struct waste_stream_record *record;
    uint64_t posted, oldest; /* records posted; the oldest that counts */
    uint32_t held;           /* experts of those that count */
    uint32_t incarnation;    /* of the reader */
    int64_t posted_ns;
};

/* Bytes of the arrays, for `experts` a layer. */
size_t waste_stream_bytes(uint32_t experts);
/* `memory` is that long, on 64 bytes. */
void waste_stream_init(struct waste_stream *s, const struct waste_shm *shm, const uint8_t *cache,
                       int reader_event, void *memory);

/* Starts a layer: expert[count] with id, tokens and first filled in by the caller, any order; they
 * are put into the order of posting. */
void waste_stream_begin(struct waste_stream *s, uint64_t step, uint32_t layer, uint32_t count);

/* How many tokens would choose each expert of a later layer, [experts]: those that are sure to be
 * needed are read as soon as there is room. After begin. */
void waste_stream_foresee(struct waste_stream *s, uint32_t layer, const uint32_t *tokens);

/* Tells the reader what this layer's last tokens chose, `count` of them with top_k ids each, oldest
 * first. */
void waste_stream_learn(struct waste_stream *s, const uint32_t *ids, uint32_t count);

/*
 * Pins experts that are in memory by now, as long as their sizes (tiles of tokens) add up to at
 * most `room`, and at least one if one is there: place[] gets their places, *count how many. Posts
 * what there is room for. 0, or -EIO when the reader gave one up: text gets one line naming file,
 * layer, expert and reason.
 */
int waste_stream_take(struct waste_stream *s, uint32_t room, uint32_t *place, uint32_t *count,
                      char *text, size_t text_bytes);

/* The record of one that is taken. */
const uint8_t *waste_stream_data(const struct waste_stream *s, uint32_t place);

/* Unpins one that was taken. */
void waste_stream_done(struct waste_stream *s, uint32_t place);

/* On every way out of a chunk: unpins all, forgets the rest. */
void waste_stream_end(struct waste_stream *s);

#endif

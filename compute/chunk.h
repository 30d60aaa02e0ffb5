/*
 * A chunk of a prompt: many tokens through the model together, a layer at a time.
 *
 * Start reading at waste_chunk_run() in chunk.c. What a step does for one token (forward_int.h) is
 * done here for `count`: trunk weights and every distinct expert are read once, products go through
 * panels of decoded weights (batch.h). The numbers of a token depend neither on the others of its
 * chunk nor on how many there are, but where one method is chosen over another by how many share
 * the work: tables or panels for an expert, absorbed or expanded keys for attention.
 *
 * Rows: [token][...]. Tiled: see batch.h. `most` is the number of tokens there is room for.
 */
#ifndef WASTE_COMPUTE_CHUNK_H
#define WASTE_COMPUTE_CHUNK_H

#include "compute/batch.h"
#include "compute/forward_int.h"
#include "compute/stream.h"

enum {
    WASTE_CHUNK_PRODUCTS = 8,
    WASTE_CHUNK_KEYS = 128,   /* positions whose keys and values a task expands at once */
    WASTE_CHUNK_ABSORB = 128, /* tokens, at most, whose queries may be absorbed */
    WASTE_CHUNK_ROWS = 128,   /* rows of a product a task computes; whole panels */
    WASTE_CHUNK_LEARN = 64,   /* last tokens whose choices the reader learns from */
};

/* y = w x for all tokens: rows if ld, else tiled; or with `up`, tiled: y = act(w x, up x). */
struct waste_chunk_product {
    const struct waste_matrix *w, *up;
    const float *x; /* tiled */
    float *y, *up_y;
    size_t ld;
    uint32_t tasks;
};

/* One worker's own. */
struct waste_chunk_worker {
    float *scratch;     /* of batch.h */
    float *rows;        /* [WASTE_TILE][max(hidden, expert_width)] before they are packed */
    float *ahead;       /* the same, for the next layer's router */
    float *history;     /* KDA [conv_width - 1][dim] */
    uint32_t *ahead_id; /* [top_k] */
    float *ahead_weight, *choice; /* [top_k], [experts] */
    /* attention: keys [KEYS][nope + rope], values [KEYS][v], latents tiled, scores
     * [WASTE_TILE][KEYS], a tile of queries as the kernels want them; or absorbed queries
     * [ABSORB][kv_lora + rope] and mixes [ABSORB][kv_lora] */
    float *keys, *values, *latents, *scores, *tile, *queries, *mixes;
    float *max, *sum; /* [most] of a head's softmax so far */
};

/* An expert that is being computed with. */
struct waste_chunk_expert {
    uint32_t place, tokens;
    uint32_t tile0;               /* of its tokens in the tiled buffers */
    uint32_t rows;                /* of gate, up or down a task computes, at most */
    const uint32_t *token, *pair; /* [tokens] */
};

struct waste_chunk {
    void *arena;
    uint32_t most, count, tiles;
    bool pending, assign; /* `out` is to be added to (or is) the running sums */
    bool ahead;           /* this half-layer's input also goes to the next layer's router */
    bool z_is_input;      /* and is what the experts read */
    _Atomic uint32_t bad; /* the first token whose input was not finite; UINT32_MAX: none */

    float *blocks; /* [res blocks + 1][most][hidden]: f->running and what is before it */
    float *x;      /* tiled [hidden]: what a half-layer reads */
    float *out;    /* rows [hidden]: what it adds; before that, tiled, the next router's input */

    struct waste_chunk_product product[WASTE_CHUNK_PRODUCTS];
    uint32_t product_count, product_tasks;

    /* attention; shares its memory with the feed-forward half */
    float *q, *k, *v, *decay, *gate; /* rows: KDA [heads * dim], q and gate also MLA's */
    float *f_a, *g_a;                /* tiled [dim] */
    float *b;                        /* rows [heads] */
    float *q_a, *kv_a;               /* rows, MLA */
    float *att;                      /* rows, what o_proj reads */
    float *tiled;                    /* tiled, the same; before that q_a's norm */

    /* feed-forward */
    float *gate_h, *up_h;    /* tiled [max(dense, shared inner)] */
    float *logits;           /* rows [experts] */
    uint32_t *id;            /* [most][top_k] */
    float *weight;           /* [most][top_k] */
    _Atomic uint32_t *votes; /* [experts] tokens that would choose it in the next layer */
    uint32_t *first;         /* [experts] where its tokens begin */
    uint32_t *token, *pair;  /* [most * top_k] of each expert, one after the other */
    float *z;                /* rows [expert_width]: what the experts read */
    float *pairs;            /* [most][top_k][expert_width]: what each choice gave */
    float *routed;           /* tiled [expert_width], latent: their sum */
    float *latent_out;       /* rows [hidden]; where `pairs` is, when that is used up */
    struct waste_stream stream;
    void *stream_memory;
    /* experts at work: `room` tiles of tokens */
    uint32_t room, batch_count, batch_tiles, up_tasks, down_tasks;
    uint32_t *place;                  /* [experts] */
    struct waste_chunk_expert *batch; /* [experts] */
    float *in, *gate_e, *up_e,
        *down_e; /* tiled: [expert_width], [inner], [inner], [expert_width] */

    struct waste_chunk_worker worker[]; /* [threads] */
};

/*
 * Consumes token[count] (at most `most`) from f->position and f->bank on; logits [vocab] of the
 * last one, or NULL. Errors as waste_forward_step().
 */
int waste_chunk_run(struct waste_forward *f, const uint32_t *token, uint32_t count, float *logits);

/* As waste_forward_finish() and waste_forward_logits(). */
int waste_chunk_finish(struct waste_forward *f);
int waste_chunk_logits(struct waste_forward *f, uint32_t first, uint32_t count, float *logits);

/* chunk_buffers.c: as waste_forward_layout(), for chunks of `most` tokens. */
size_t waste_chunk_layout(struct waste_forward *f, char *base, uint32_t threads, uint32_t most);

/* chunk_products.c */
void waste_chunk_products_begin(struct waste_chunk *c);
void waste_chunk_product_rows(struct waste_chunk *c, const struct waste_matrix *w, const float *x,
                              float *y);
void waste_chunk_product_tiled(struct waste_chunk *c, const struct waste_matrix *w, const float *x,
                               float *y);
void waste_chunk_product_glu(struct waste_chunk *c, const struct waste_matrix *gate,
                             const struct waste_matrix *up, const float *x);
/* Runs them. */
int waste_chunk_products_run(struct waste_forward *f);

/* A phase of a chunk: 0, or why not to go on. */
int waste_chunk_phase(struct waste_forward *f, enum waste_phase phase, waste_phase_fn *fn,
                      uint32_t tasks);
/* Inside a long task: worker 0's life sign. */
void waste_chunk_tick(struct waste_forward *f, uint32_t worker);

/* Token t has a value that is no finite number: any worker. Then -EDOM, with the text and
 * f->position of the first such token; or 0. */
void waste_chunk_note_bad(struct waste_chunk *c, uint32_t t);
int waste_chunk_bad(struct waste_forward *f, const char *what);

/* Half-layers: c->x (and c->z) to c->out. 0 or as waste_forward_step(). */
int waste_chunk_kda(struct waste_forward *f);
int waste_chunk_mla(struct waste_forward *f);
int waste_chunk_dense(struct waste_forward *f);
int waste_chunk_moe(struct waste_forward *f);

/* c->att through o_proj. */
int waste_chunk_attention_out(struct waste_forward *f, const struct waste_matrix *o_proj);

/* Tasks that rows of gate, up or down of one expert are. */
static inline uint32_t waste_chunk_tasks(const struct waste_chunk_expert *e, uint32_t rows)
{
    return e->rows < rows ? (rows + e->rows - 1) / e->rows : 1;
}

static inline uint32_t waste_chunk_tile_tokens(const struct waste_chunk *c, uint32_t tile)
{
    uint32_t left = c->count - tile * WASTE_TILE;
    return left < WASTE_TILE ? left : WASTE_TILE;
}

#endif

/*
 * What the files of the forward pass share: its buffers, and how a phase is run.
 *
 * Names of shapes: hidden, heads, dim as in struct waste_config. A phase function is called once by
 * every worker that takes part; between its claims it may only write what its task number owns and
 * its own struct waste_worker.
 */
#ifndef WASTE_COMPUTE_FORWARD_INT_H
#define WASTE_COMPUTE_FORWARD_INT_H

#include "compute/experts.h"
#include "compute/forward.h"
#include "compute/team.h"
#include "compute/trial.h"
#include "compute/weights.h"

enum {
    WASTE_MLA_UNIT = 48, /* positions that kernels like to have multiples of */
    WASTE_MLA_BLOCK = 4, /* units whose scores a worker holds */
    WASTE_MLA_CHUNK = WASTE_MLA_BLOCK * WASTE_MLA_UNIT,
    WASTE_MLA_SEGMENTS = 16,          /* parts of a context, at most, with a softmax of their own */
    WASTE_MLA_HEADS = 2 * WASTE_TILE, /* heads that share one walk over a block */
    WASTE_TASK_BYTES = 64 << 10,      /* weights a task of a trunk product streams, about */
    WASTE_TASK_RUN = 16,              /* neighbouring tasks one claim may take */
    WASTE_MAX_PRODUCTS = 8,
    WASTE_LINE_FLOATS = 16, /* of a cache line */
};

/* Where a step's time goes; each has a counter. */
enum waste_phase { WASTE_PHASE_TRUNK, WASTE_PHASE_ATTENTION, WASTE_PHASE_EXPERTS, WASTE_PHASES };

/* y = w x, or with `up`: h = act(w x, up x), row by row; w and up have the same shape. */
struct waste_product {
    const struct waste_matrix *w, *up;
    float *y, *up_y, *h;
    uint32_t task_rows, tasks;
};

/* The weights a half-layer's input goes through; the first two unused without attention residuals.
 */
struct waste_input {
    const struct waste_matrix *res_norm, *res_proj, *norm;
};

/* One worker's own scratch. */
struct waste_worker {
    float *mixed;    /* [hidden] input of a half-layer after the residual mix */
    float *norm;     /* [max(hidden, q_lora, expert_width)] the same, normed */
    float *key;      /* [hidden] */
    float *xp, *xp2; /* prepared activations */
    float *head;     /* KDA in chunks: q, k, v [3][dim]; MLA: [kv_lora] */
    float *score;    /* [max(MLA_HEADS * MLA_CHUNK, res blocks + 1)] */
    float *queries;  /* MLA: absorbed, as the kernels want them */
    float *slice;    /* [4][rows of a down slice, or of a sum task] */
    void *tables;    /* of one block of positions */
};

/* Position slices of the expert products; fixed by the shapes, so that partial sums do not depend
 * on the number of threads. */
struct waste_slices {
    uint32_t positions; /* all */
    uint32_t each;      /* of one slice, a multiple of WASTE_VQ_BLOCK */
    uint32_t count;
    uint32_t rows;   /* of the product */
    uint32_t padded; /* to whole blocks of 64 */
};

struct waste_chunk;

struct waste_forward {
    struct waste_forward_env env;
    const struct waste_config *cfg;
    const struct waste_kernels *k;
    struct waste_team *team;
    struct waste_weights weights;
    struct waste_experts experts;
    struct waste_act act;
    struct waste_slices up_slices, down_slices;
    void *arena;

    /* the step at hand */
    uint32_t position, bank, layer;
    const struct waste_layer_weights *w; /* of `layer` */
    bool bad;   /* worker 0 met a sum of squares that is no finite number */
    bool fresh; /* the running sum starts anew with this layer's attention */
    char error[WASTE_ERROR_TEXT];
    int64_t phase_ns[WASTE_PHASES], expert_wait_ns, embed_wait_ns;
    int64_t begin_ns;  /* of the step or chunk */
    int64_t shared_ns; /* two workers or more were at it */
    uint32_t phases;
    uint32_t huge_end; /* the session is in huge pages up to this position (pages.c) ... */
    bool small_pages;  /* ... and beyond it never, as there are none */

    /* residual stream [hidden]: the running sum, and block_count block sums before it, block_stride
     * floats apart (attention residuals) */
    float *running, *blocks; /* blocks: a step's pool, [res blocks + 1][hidden] */
    uint32_t block_count;
    size_t block_stride;

    /* of the phase at hand: what its input goes through, and its products */
    struct waste_input input;
    struct waste_product product[WASTE_MAX_PRODUCTS];
    uint32_t product_count, product_tasks;

    /* attention */
    float *q, *kk, *v;              /* KDA [heads * dim]; q also MLA's queries */
    float *f_a, *b, *g_a;           /* KDA [dim], [heads], [dim] */
    _Atomic uint32_t low_rank_left; /* tasks of f_a and g_a not done */
    float *decay, *gate;            /* KDA [heads * dim]; gate also MLA's [heads * v_dim] */
    float *zero;                    /* KDA: a head's state, and history, before the first token */
    float *q_a, *kv_a;              /* MLA [q_lora], [kv_lora + rope_dim] */
    float *absorbed;                /* MLA [heads][kv_lora + rope_dim] */
    float *part, *part_max, *part_sum; /* MLA [segments][heads]([kv_lora]) */
    float *kv_b;                       /* MLA [heads * (nope_dim + v_dim)] */
    float *att;                        /* [heads * dim or v_dim], what o_proj reads */
    float *att_out;                    /* [hidden] */

    /* feed-forward */
    float *ffn_gate, *ffn_up, *ffn_h; /* [max(dense_inner, shared inner)] */
    float *ffn_out;                   /* [hidden] dense or shared experts' output */
    float *router, *router_scratch;   /* [experts] */
    _Atomic uint32_t router_left;     /* router tasks not done */
    bool router_bad;
    uint32_t moe_layers;
    uint64_t reads_seen;           /* the reader's, after the last step */
    struct waste_trial hint_trial; /* predictions: steps with them and without */
    float recent_reads;            /* a MoE layer and token, the last ones counting most: hint.c */
    float recent_wait_ns;          /* the same */
    uint32_t hint_layer;           /* the hint of the phase at hand is about this one's experts */
    bool hint_attention;           /* and what attention reads */
    _Atomic bool hint_open;        /* not given yet */
    float *ffn_x;                  /* [hidden] what router and shared experts read */
    float *z; /* [expert_width] what the experts read: its projection, or the same */
    float *up_acc, *down_acc; /* [top_k](gate, up)[slices][padded] */
    float *routed;            /* [expert_width] their weighted sum */
    float *latent_out;        /* [hidden] */
    uint32_t *batch;          /* [top_k] places in the selection being computed */
    uint32_t batch_count, batch_groups, expert_tasks;
    uint32_t shared_from; /* product tasks from here on are left for the experts' first phase */

    struct waste_chunk *chunk; /* what chunks of a prompt need (chunk.h); NULL: there are none */
    struct waste_worker worker[];
};

/* Runs one phase and books its time. A claim takes up to WASTE_TASK_RUN tasks. */
void waste_forward_run(struct waste_forward *f, enum waste_phase phase, waste_phase_fn *fn,
                       uint32_t tasks);
/* The same for tasks that are big and not neighbours: claimed one by one. */
void waste_forward_run_single(struct waste_forward *f, enum waste_phase phase, waste_phase_fn *fn,
                              uint32_t tasks);

/* Life sign from inside a phase; worker 0. */
void waste_forward_tick(struct waste_forward *f);

/* Life sign, and whether to go on: 0, -ECANCELED or -ESHUTDOWN. */
int waste_forward_check(struct waste_forward *f, enum waste_activity activity);

/* A value that is no finite number was met: -EDOM, with the text. The input of a layer is the last
 * layer's doing. */
int waste_forward_bad(struct waste_forward *f, const char *what);
int waste_forward_bad_input(struct waste_forward *f);

/* The embedding row of `token`, for f->position, into x[hidden]; the reader brings it. 0 or as
 * waste_forward_step(). */
int waste_forward_embed(struct waste_forward *f, float *x, uint32_t token);
/* What lm_head's input goes through. */
struct waste_input waste_forward_head_input(const struct waste_forward *f);
/* lm_head of f->running. */
int waste_forward_head(struct waste_forward *f, float *logits);

/* buffers.c: lays out every buffer of *f (sized by f->cfg, f->k and the arguments) from `base` on,
 * which may be NULL to learn the size. Returns the bytes; all buffers start on 64 bytes. */
size_t waste_forward_layout(struct waste_forward *f, char *base, uint32_t threads, uint32_t ctx);

/* Carves buffers one after the other, each from 64 bytes on; base NULL: only measures. */
struct waste_arena {
    char *base;
    size_t bytes;
};
void *waste_arena_carve(struct waste_arena *a, size_t count, size_t size);
float *waste_arena_floats(struct waste_arena *a, size_t count);

/* products.c: the product list of a phase. begin, add..., then run in claimed tasks. */
void waste_products_begin(struct waste_forward *f);
void waste_products_add(struct waste_forward *f, const struct waste_matrix *w, float *y);
void waste_products_add_glu(struct waste_forward *f, const struct waste_matrix *gate,
                            const struct waste_matrix *up);
/* The product that task `task` belongs to, and its rows. */
const struct waste_product *waste_products_find(const struct waste_forward *f, uint32_t task,
                                                uint32_t *r0, uint32_t *r1);
void waste_products_rows(const struct waste_forward *f, const struct waste_product *p,
                         const float *x, const float *xp, uint32_t r0, uint32_t r1);
/* Both; returns the product's number. */
uint32_t waste_products_task(struct waste_forward *f, const float *x, const float *xp,
                             uint32_t task, uint32_t *r0, uint32_t *r1);
/* Phase function: what f->input makes of the residual stream, times the products. */
void waste_products_input_phase(void *arg, uint32_t worker);

/* forward.c: sleeps until take() finds experts (*count > 0) or fails, and counts the time. */
int waste_forward_wait(struct waste_forward *f,
                       int (*take)(struct waste_forward *f, uint32_t *count), uint32_t *count);

/* hint.c: once; and after a step or chunk of so many tokens that took ns, to see what the reader
 * reads and whether predictions pay. */
void waste_hint_begin(struct waste_forward *f);
void waste_hint_step(struct waste_forward *f, uint32_t tokens, int64_t ns);
/* More than next to nothing was read lately. */
bool waste_hint_reads(const struct waste_forward *f);

/* hint.c: before a phase: does the router process get x, the input of the layer's attention or else
 * of its dense FFN? Not where next to nothing is read lately or where steps were seen to take
 * longer with it, and of an attention not where little is waited for experts: the router process
 * may stand on a worker's CPU while it predicts. */
void waste_hint_offer(struct waste_forward *f, bool attention);
/* In the phase, every worker after its waste_residual_input(), whose result is gone then, and
 * before it leaves: who comes first gives the hint, worker 0 if no other came. */
void waste_hint(struct waste_forward *f, uint32_t worker);
void waste_hint_close(struct waste_forward *f, uint32_t worker);
/* Worker 0, between phases, before the first wait for a MoE layer's experts: the same, of the input
 * of its FFN and what its shared experts made of it (f->ffn_out). */
void waste_hint_wait(struct waste_forward *f);

/* residual.c: what a half-layer reads: wk->norm and wk->xp = the mix of the residual stream, normed
 * by f->input. Worker 0 sets f->bad. Returns the mix before the norm. */
const float *waste_residual_input(struct waste_forward *f, uint32_t worker);

/* Before the layer's attention: what its FFN would read if the attention added nothing. In the
 * worker's scratch: after its waste_residual_input, whose result is gone then. */
const float *waste_residual_preview(struct waste_forward *f, uint32_t worker, uint32_t layer);
/* What attention residuals mix, with these weights, of one token's running sum and the blocks
 * before it: worker[worker].mixed; or `running` itself. */
const float *waste_residual_mix(struct waste_forward *f, uint32_t worker, const float *running,
                                const struct waste_matrix *res_norm,
                                const struct waste_matrix *res_proj);
/* y = rms norm of x with weights w[n]. Returns false if x is not finite. */
bool waste_rms_norm(const struct waste_forward *f, float *y, const float *x,
                    const struct waste_matrix *w, uint32_t n);
/* Before attention of `f->layer`: closes a residual block when one ends here. */
void waste_residual_advance(struct waste_forward *f);

/* kda.c, for a step and for a chunk: a layer's state in a bank; the history of q, k or v (0, 1, 2)
 * there; x = x / |x| * scale. */
float *waste_kda_state(const struct waste_forward *f, uint32_t bank);
float *waste_kda_history(const struct waste_forward *f, uint32_t bank, uint32_t which);
void waste_kda_normalise(const struct waste_forward *f, float *x, uint32_t n, float scale);
/* mla.c: the layer's rows of the cache. */
float *waste_mla_rows(const struct waste_forward *f);
/* Parts that a context of so many positions is cut into, whoever computes them. */
uint32_t waste_mla_segments(uint32_t positions);
/* About the sum of squares of a row [dim]: the mean of the first few of n. */
float waste_mla_row_squares(const struct waste_forward *f, const float *rows, uint32_t dim,
                            uint32_t stride, uint32_t n);
/* A softmax block by block: score[n] of the next one becomes weights relative to the largest of all
 * so far; *max, *sum and what has been mixed, o[width], are brought to that. */
void waste_mla_softmax(const struct waste_forward *f, float *score, uint32_t n, float *max,
                       float *sum, float *o, uint32_t width, bool first);
/* moe.c: a token's experts and their weights, [top_k], of finite logits; scratch[experts]. */
void waste_choose(const struct waste_forward *f, uint32_t *id, float *weight, const float *logits,
                  float *scratch);

/* pages.c: huge pages for the states, and for the latent rows of positions below `end`. */
void waste_forward_pages(struct waste_forward *f, uint32_t end);

/* Half-layers. 0 or as waste_forward_step(). */
int waste_kda(struct waste_forward *f);
int waste_mla(struct waste_forward *f);
int waste_dense(struct waste_forward *f);
int waste_moe(struct waste_forward *f);
/* o_proj and the residual sum, shared by both kinds of attention. */
void waste_attention_out(struct waste_forward *f, const struct waste_matrix *o_proj);

#endif

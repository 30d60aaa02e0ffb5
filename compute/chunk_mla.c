/*
 * Multi-head latent attention of a chunk.
 *
 *   1  norm, packed                                            a tile of tokens a task
 *   2  q (or q_a), kv_a and the output gate                    rows of all tokens
 *   3  the cache's rows of these positions; q_a's norm         a tile of tokens a task
 *   4  q_b
 *   5  a head a task: block after block of positions, scores, softmax and mix of all tokens
 *   6  o_proj
 *
 * Phase 5, expanded: a block's latents go through kv_b once, to keys and values of this head, and
 * all tokens use them: nope + rope + v multiply-adds a pair of token and position. Absorbed, as a
 * step does it: queries go through kv_b instead, and read the latents: 2 kv_lora + rope. A pass
 * through kv_b costs the same for a token as for a position, so few tokens far into a context are
 * absorbed, all else is expanded. Tokens are the rows of small matrix products in either (the
 * kernels' "heads").
 */
#include <math.h>
#include <string.h>

#include "compute/chunk.h"

/* One head's operands: query and key rows of `dim`, value rows of `width`. */
struct operands {
    const float *q, *k, *v;
    size_t q_ld;
    uint32_t k_ld, v_ld, dim, width;
    float *o;
    size_t o_ld;
};

static uint32_t row_floats(const struct waste_config *c)
{
    return c->kv_lora + c->rope_dim;
}

/* ---- the cache's rows, and queries ---- */

static void rows_phase(void *arg, uint32_t worker)
{
    struct waste_forward *f = arg;
    const struct waste_config *cfg = f->cfg;
    struct waste_chunk *c = f->chunk;
    uint32_t tile, row = row_floats(cfg);

    while (waste_team_claim(f->team, worker, &tile)) {
        uint32_t n = waste_chunk_tile_tokens(c, tile), first = tile * WASTE_TILE;
        for (uint32_t t = first; t < first + n; t++) {
            const float *kv = c->kv_a + (size_t)t * row;
            float *to = waste_mla_rows(f) + ((size_t)f->position + t) * row;
            waste_rms_norm(f, to, kv, &f->w->m[WASTE_T_MLA_KV_A_NORM], cfg->kv_lora);
            memcpy(to + cfg->kv_lora, kv + cfg->kv_lora, cfg->rope_dim * sizeof *to);
            if (cfg->q_lora) {
                float *q = c->q_a + (size_t)t * cfg->q_lora;
                waste_rms_norm(f, q, q, &f->w->m[WASTE_T_MLA_Q_A_NORM], cfg->q_lora);
            }
        }
        if (cfg->q_lora)
            waste_batch_pack(f->k, c->tiled, c->q_a, cfg->q_lora, NULL, c->count, cfg->q_lora, tile,
                             tile + 1);
    }
}

/* ---- softmax(q k) v, a block of positions at a time ---- */

/* Positions of the block that token t may see. */
static uint32_t visible(const struct waste_forward *f, uint32_t t, uint32_t k0, uint32_t n)
{
    uint32_t end = f->position + t + 1;

    return end <= k0 ? 0 : end - k0 < n ? end - k0 : n;
}

/*
 * Tokens [t0, t0 + count) meet positions [k0, k0 + n). max and sum are of what each has met so far;
 * o is its mix, relative to that maximum.
 */
static void meet(struct waste_forward *f, struct waste_chunk_worker *wk, const struct operands *p,
                 uint32_t t0, uint32_t count, uint32_t k0, uint32_t n)
{
    const struct waste_config *c = f->cfg;
    float scale = 1.0f / sqrtf((float)(c->nope_dim + c->rope_dim));

    f->k->mla_queries(wk->tile, p->q + t0 * p->q_ld, (uint32_t)p->q_ld, count, p->dim, scale,
                      waste_mla_row_squares(f, p->k, p->dim, p->k_ld, n));
    f->k->mla_scores(wk->scores, WASTE_CHUNK_KEYS, wk->tile, count, p->k, p->dim, p->k_ld, n);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t t = t0 + i, seen = visible(f, t, k0, n);
        float *score = wk->scores + (size_t)i * WASTE_CHUNK_KEYS;
        memset(score + seen, 0, (n - seen) * sizeof *score);
        if (seen)
            waste_mla_softmax(f, score, seen, &wk->max[t], &wk->sum[t], p->o + t * p->o_ld,
                              p->width, k0 == 0);
    }
    f->k->mla_mix(p->o + t0 * p->o_ld, (uint32_t)p->o_ld, wk->scores, WASTE_CHUNK_KEYS, count, p->v,
                  p->width, p->v_ld, n);
}

/* All tokens that can see a block. */
static void meet_block(struct waste_forward *f, struct waste_chunk_worker *wk,
                       const struct operands *p, uint32_t k0, uint32_t n)
{
    uint32_t count = f->chunk->count, first = k0 > f->position ? k0 - f->position : 0;

    for (uint32_t t = first / WASTE_TILE * WASTE_TILE; t < count; t += WASTE_TILE)
        meet(f, wk, p, t, count - t < WASTE_TILE ? count - t : WASTE_TILE, k0, n);
}

static void clear(const struct operands *p, uint32_t count)
{
    for (uint32_t t = 0; t < count; t++)
        memset(p->o + t * p->o_ld, 0, p->width * sizeof *p->o);
}

static void divide(const struct waste_chunk_worker *wk, const struct operands *p, uint32_t count)
{
    for (uint32_t t = 0; t < count; t++)
        for (uint32_t j = 0; j < p->width; j++)
            p->o[t * p->o_ld + j] /= wk->sum[t];
}

/* ---- the two ways ---- */

/* Rows [r0, r0 + rows) of kv_b. */
static struct waste_matrix part(const struct waste_forward *f, uint32_t r0, uint32_t rows)
{
    struct waste_matrix m = f->w->m[WASTE_T_MLA_KV_B];

    m.data += r0 * m.row_bytes;
    m.scales += m.scales ? (size_t)r0 * m.groups : 0;
    m.rows = rows;
    return m;
}

/* Keys and values of one head, of positions [k0, k0 + n). */
static void expand(struct waste_forward *f, struct waste_chunk_worker *wk, uint32_t head,
                   uint32_t k0, uint32_t n)
{
    const struct waste_config *c = f->cfg;
    uint32_t row = row_floats(c), key = c->nope_dim + c->rope_dim;
    uint32_t r0 = head * (c->nope_dim + c->v_dim);
    const struct waste_matrix keys = part(f, r0, c->nope_dim);
    const struct waste_matrix values = part(f, r0 + c->nope_dim, c->v_dim);
    const float *latent = waste_mla_rows(f) + (size_t)k0 * row;

    waste_batch_pack(f->k, wk->latents, latent, row, NULL, n, c->kv_lora, 0, waste_batch_tiles(n));
    waste_batch_product_rows(f->k, wk->keys, key, &keys, wk->latents, n, 0, keys.rows, wk->scratch);
    waste_batch_product_rows(f->k, wk->values, c->v_dim, &values, wk->latents, n, 0, values.rows,
                             wk->scratch);
    for (uint32_t i = 0; i < n; i++)
        memcpy(wk->keys + (size_t)i * key + c->nope_dim, latent + (size_t)i * row + c->kv_lora,
               c->rope_dim * sizeof *latent);
}

static void expanded_head(struct waste_forward *f, uint32_t worker, uint32_t head)
{
    const struct waste_config *cfg = f->cfg;
    struct waste_chunk *c = f->chunk;
    struct waste_chunk_worker *wk = &c->worker[worker];
    uint32_t key = cfg->nope_dim + cfg->rope_dim, end = f->position + c->count;
    const struct operands p = {
        .q = c->q + (size_t)head * key,
        .q_ld = (size_t)cfg->mla_heads * key,
        .k = wk->keys,
        .k_ld = key,
        .dim = key,
        .v = wk->values,
        .v_ld = cfg->v_dim,
        .width = cfg->v_dim,
        .o = c->att + (size_t)head * cfg->v_dim,
        .o_ld = (size_t)cfg->mla_heads * cfg->v_dim,
    };

    clear(&p, c->count);
    for (uint32_t k0 = 0; k0 < end; k0 += WASTE_CHUNK_KEYS) {
        uint32_t n = end - k0 < WASTE_CHUNK_KEYS ? end - k0 : WASTE_CHUNK_KEYS;
        expand(f, wk, head, k0, n);
        meet_block(f, wk, &p, k0, n);
        waste_chunk_tick(f, worker);
    }
    divide(wk, &p, c->count);
}

/* queries[t] = (sum over i of q_nope[i] kv_b's i-th key row of this head, q_rope) */
static void absorb(struct waste_forward *f, struct waste_chunk_worker *wk, uint32_t head)
{
    const struct waste_config *c = f->cfg;
    const struct waste_matrix *kv_b = &f->w->m[WASTE_T_MLA_KV_B];
    uint32_t row = row_floats(c), key = c->nope_dim + c->rope_dim;

    for (uint32_t t = 0; t < f->chunk->count; t++) {
        const float *q = f->chunk->q + ((size_t)t * c->mla_heads + head) * key;
        float *out = wk->queries + (size_t)t * row;
        memset(out, 0, c->kv_lora * sizeof *out);
        f->k->axpy_rows[kv_b->fmt](out, kv_b, q, head * (c->nope_dim + c->v_dim), c->nope_dim);
        memcpy(out + c->kv_lora, q + c->nope_dim, c->rope_dim * sizeof *out);
    }
}

static void absorbed_head(struct waste_forward *f, uint32_t worker, uint32_t head)
{
    const struct waste_config *cfg = f->cfg;
    struct waste_chunk *c = f->chunk;
    struct waste_chunk_worker *wk = &c->worker[worker];
    uint32_t row = row_floats(cfg), end = f->position + c->count;
    const struct waste_matrix values =
        part(f, head * (cfg->nope_dim + cfg->v_dim) + cfg->nope_dim, cfg->v_dim);
    struct operands p = {
        .q = wk->queries,
        .q_ld = row,
        .k_ld = row,
        .dim = row,
        .v_ld = row,
        .width = cfg->kv_lora,
        .o = wk->mixes,
        .o_ld = cfg->kv_lora,
    };

    absorb(f, wk, head);
    clear(&p, c->count);
    for (uint32_t k0 = 0; k0 < end; k0 += WASTE_CHUNK_KEYS) {
        p.k = p.v = waste_mla_rows(f) + (size_t)k0 * row;
        meet_block(f, wk, &p, k0, end - k0 < WASTE_CHUNK_KEYS ? end - k0 : WASTE_CHUNK_KEYS);
        waste_chunk_tick(f, worker);
    }
    divide(wk, &p, c->count);
    waste_batch_pack(f->k, wk->latents, wk->mixes, cfg->kv_lora, NULL, c->count, cfg->kv_lora, 0,
                     c->tiles);
    waste_batch_product_rows(f->k, c->att + (size_t)head * cfg->v_dim,
                             (size_t)cfg->mla_heads * cfg->v_dim, &values, wk->latents, c->count, 0,
                             values.rows, wk->scratch);
}

/* The multiply-adds of a head decide. */
static bool absorbing(const struct waste_forward *f)
{
    const struct waste_config *c = f->cfg;
    uint64_t tokens = f->chunk->count, positions = (uint64_t)f->position + tokens;
    uint64_t pairs = tokens * f->position + tokens * (tokens + 1) / 2;
    uint64_t through = (uint64_t)c->kv_lora * (c->nope_dim + c->v_dim);
    uint64_t expanded = positions * through + pairs * (c->nope_dim + c->rope_dim + c->v_dim);
    uint64_t absorbed = tokens * through + pairs * (2 * (uint64_t)c->kv_lora + c->rope_dim);

    return tokens <= WASTE_CHUNK_ABSORB && absorbed < expanded;
}

static void gate(struct waste_forward *f, uint32_t head)
{
    const struct waste_chunk *c = f->chunk;
    uint32_t dim = f->cfg->v_dim;

    for (uint32_t t = 0; t < c->count; t++) {
        size_t at = ((size_t)t * f->cfg->mla_heads + head) * dim;
        f->k->sigmoid_mul(c->att + at, c->gate + at, dim);
    }
}

static void heads_phase(void *arg, uint32_t worker)
{
    struct waste_forward *f = arg;
    bool absorbed = absorbing(f);
    uint32_t head;

    while (waste_team_claim(f->team, worker, &head)) {
        if (absorbed)
            absorbed_head(f, worker, head);
        else
            expanded_head(f, worker, head);
        if (f->cfg->mla_out_gate)
            gate(f, head);
    }
}

static int projections(struct waste_forward *f)
{
    const struct waste_matrix *m = f->w->m;
    struct waste_chunk *c = f->chunk;

    waste_chunk_products_begin(c);
    if (f->cfg->q_lora)
        waste_chunk_product_rows(c, &m[WASTE_T_MLA_Q_A], c->x, c->q_a);
    else
        waste_chunk_product_rows(c, &m[WASTE_T_MLA_Q], c->x, c->q);
    waste_chunk_product_rows(c, &m[WASTE_T_MLA_KV_A], c->x, c->kv_a);
    if (f->cfg->mla_out_gate)
        waste_chunk_product_rows(c, &m[WASTE_T_MLA_G], c->x, c->gate);
    int err = waste_chunk_products_run(f);
    if (!err)
        err = waste_chunk_phase(f, WASTE_PHASE_ATTENTION, rows_phase, c->tiles);
    if (err || !f->cfg->q_lora)
        return err;
    waste_chunk_products_begin(c);
    waste_chunk_product_rows(c, &m[WASTE_T_MLA_Q_B], c->tiled, c->q);
    return waste_chunk_products_run(f);
}

int waste_chunk_mla(struct waste_forward *f)
{
    int err = projections(f);

    if (!err)
        err = waste_chunk_phase(f, WASTE_PHASE_ATTENTION, heads_phase, f->cfg->mla_heads);
    return err ? err : waste_chunk_attention_out(f, &f->w->m[WASTE_T_MLA_O]);
}

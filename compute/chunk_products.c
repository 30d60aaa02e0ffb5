/* Trunk products of a chunk: the matrices of one phase as one list of tasks. */
#include "compute/chunk.h"

void waste_chunk_products_begin(struct waste_chunk *c)
{
    c->product_count = c->product_tasks = 0;
}

static void add(struct waste_chunk *c, struct waste_chunk_product p)
{
    p.tasks = (p.w->rows + WASTE_CHUNK_ROWS - 1) / WASTE_CHUNK_ROWS;
    c->product[c->product_count++] = p;
    c->product_tasks += p.tasks;
}

void waste_chunk_product_rows(struct waste_chunk *c, const struct waste_matrix *w, const float *x,
                              float *y)
{
    add(c, (struct waste_chunk_product){.w = w, .x = x, .y = y, .ld = w->rows});
}

void waste_chunk_product_tiled(struct waste_chunk *c, const struct waste_matrix *w, const float *x,
                               float *y)
{
    add(c, (struct waste_chunk_product){.w = w, .x = x, .y = y});
}

void waste_chunk_product_glu(struct waste_chunk *c, const struct waste_matrix *gate,
                             const struct waste_matrix *up, const float *x)
{
    add(c,
        (struct waste_chunk_product){.w = gate, .up = up, .x = x, .y = c->gate_h, .up_y = c->up_h});
}

/* The activation of rows [r0, r1), in place of the gate. */
static void activate(struct waste_forward *f, const struct waste_chunk_product *p, uint32_t r0,
                     uint32_t r1)
{
    for (uint32_t tile = 0; tile < f->chunk->tiles; tile++) {
        size_t at = ((size_t)tile * p->w->rows + r0) * WASTE_TILE;
        f->k->glu(p->y + at, p->y + at, p->up_y + at, (r1 - r0) * WASTE_TILE, &f->act);
    }
}

static void product_phase(void *arg, uint32_t worker)
{
    struct waste_forward *f = arg;
    struct waste_chunk *c = f->chunk;
    float *scratch = c->worker[worker].scratch;
    uint32_t task;

    while (waste_team_claim(f->team, worker, &task)) {
        const struct waste_chunk_product *p = c->product;
        while (task >= p->tasks)
            task -= p++->tasks;
        uint32_t r0 = task * WASTE_CHUNK_ROWS;
        uint32_t r1 = r0 + WASTE_CHUNK_ROWS < p->w->rows ? r0 + WASTE_CHUNK_ROWS : p->w->rows;
        if (p->ld) {
            waste_batch_product_rows(f->k, p->y, p->ld, p->w, p->x, c->count, r0, r1, scratch);
            continue;
        }
        waste_batch_product(f->k, p->y, p->w, p->x, c->count, r0, r1, scratch);
        if (p->up) {
            waste_batch_product(f->k, p->up_y, p->up, p->x, c->count, r0, r1, scratch);
            activate(f, p, r0, r1);
        }
    }
}

int waste_chunk_products_run(struct waste_forward *f)
{
    return waste_chunk_phase(f, WASTE_PHASE_TRUNK, product_phase, f->chunk->product_tasks);
}

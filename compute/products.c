/* Trunk products: the matrices of one phase as one list of tasks. */
#include "compute/forward_int.h"

/* Rows of a task: about WASTE_TASK_BYTES of weights, whole runs of 16 rows if that many fit. */
static uint32_t task_rows(const struct waste_matrix *w, uint32_t matrices)
{
    uint64_t rows = WASTE_TASK_BYTES / (w->row_bytes * matrices);

    if (rows >= 16)
        rows -= rows % 16;
    if (rows > w->rows)
        rows = w->rows;
    return rows ? (uint32_t)rows : 1;
}

static void add(struct waste_forward *f, struct waste_product p)
{
    p.task_rows = task_rows(p.w, p.up ? 2 : 1);
    p.tasks = (p.w->rows + p.task_rows - 1) / p.task_rows;
    f->product[f->product_count++] = p;
    f->product_tasks += p.tasks;
}

void waste_products_begin(struct waste_forward *f)
{
    f->product_count = f->product_tasks = 0;
}

void waste_products_add(struct waste_forward *f, const struct waste_matrix *w, float *y)
{
    add(f, (struct waste_product){.w = w, .y = y});
}

void waste_products_add_glu(struct waste_forward *f, const struct waste_matrix *gate,
                            const struct waste_matrix *up)
{
    add(f, (struct waste_product){
               .w = gate, .up = up, .y = f->ffn_gate, .up_y = f->ffn_up, .h = f->ffn_h});
}

const struct waste_product *waste_products_find(const struct waste_forward *f, uint32_t task,
                                                uint32_t *r0, uint32_t *r1)
{
    const struct waste_product *p = f->product;

    while (task >= p->tasks)
        task -= p++->tasks;
    *r0 = task * p->task_rows;
    *r1 = *r0 + p->task_rows < p->w->rows ? *r0 + p->task_rows : p->w->rows;
    return p;
}

void waste_products_rows(const struct waste_forward *f, const struct waste_product *p,
                         const float *x, const float *xp, uint32_t r0, uint32_t r1)
{
    f->k->matvec[p->w->fmt](p->y, p->w, x, xp, r0, r1);
    if (p->up) {
        f->k->matvec[p->up->fmt](p->up_y, p->up, x, xp, r0, r1);
        f->k->glu(p->h + r0, p->y + r0, p->up_y + r0, r1 - r0, &f->act);
    }
}

uint32_t waste_products_task(struct waste_forward *f, const float *x, const float *xp,
                             uint32_t task, uint32_t *r0, uint32_t *r1)
{
    const struct waste_product *p = waste_products_find(f, task, r0, r1);

    waste_products_rows(f, p, x, xp, *r0, *r1);
    return (uint32_t)(p - f->product);
}

void waste_products_input_phase(void *arg, uint32_t worker)
{
    struct waste_forward *f = arg;
    struct waste_worker *wk = &f->worker[worker];
    uint32_t task, r0, r1;
    bool claimed = waste_team_claim(f->team, worker, &task);

    /* worker 0 always takes part: it looks for values that are no numbers */
    if (!claimed && worker)
        return;
    waste_residual_input(f, worker);
    waste_hint(f, worker);
    for (; claimed; claimed = waste_team_claim(f->team, worker, &task))
        waste_products_task(f, wk->norm, wk->xp, task, &r0, &r1);
    waste_hint_close(f, worker);
}

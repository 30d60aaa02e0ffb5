/*
 * The session in huge pages. Every state and every latent row is read once a token, a page or less
 * at a time, so that with small pages looking up their addresses takes a tenth of attention's time.
 * Shared memory gets huge pages where it asks for them, whole ones only: it asks when a context
 * grows into them, so that what is not used takes no memory. Where there are none, small ones do.
 */
#include "compute/forward_int.h"
#include "shm/segment.h"

/* Those that hold bytes [from, end) of the session and end in it. False: no more are to be had. */
static bool make_huge(struct waste_forward *f, uint64_t from, uint64_t end)
{
    const struct waste_mapping map = {f->env.session, f->env.session->bytes};
    uint64_t first = from / WASTE_HUGE_PAGE, pages = map.bytes / WASTE_HUGE_PAGE;

    pages = pages * WASTE_HUGE_PAGE < end ? pages : (end + WASTE_HUGE_PAGE - 1) / WASTE_HUGE_PAGE;
    for (uint64_t page = first; page < pages; page++)
        waste_segment_touch(&map, page);
    for (uint64_t page = first; page < pages; page++) {
        if (waste_segment_make_huge(&map, page))
            return false;
        waste_forward_tick(f);
    }
    return true;
}

/* Of one MLA layer, the pages that begin in its rows of positions [first, end); for first 0 also
 * the one that its rows begin in. */
static bool rows_huge(struct waste_forward *f, uint32_t layer, uint32_t first, uint32_t end)
{
    const struct waste_session_header *h = f->env.session;
    uint64_t row = (f->cfg->kv_lora + f->cfg->rope_dim) * sizeof(float);
    uint64_t at = f->env.conversation->latent_off + layer * h->mla_layer_bytes;
    uint64_t from = at + first * row, before = first ? WASTE_HUGE_PAGE - 1 : 0;

    return make_huge(f, (from + before) / WASTE_HUGE_PAGE * WASTE_HUGE_PAGE, at + end * row);
}

void waste_forward_pages(struct waste_forward *f, uint32_t end)
{
    const struct waste_session *s = f->env.conversation;
    uint32_t first = f->huge_end;
    bool ok = true;

    if (f->small_pages || end <= first)
        return;
    for (uint32_t bank = 0; bank < 2 && !first && ok; bank++)
        ok = make_huge(f, s->bank_off[bank],
                       s->bank_off[bank] + f->cfg->kda_layers * f->env.session->kda_layer_bytes);
    for (uint32_t layer = 0; layer < f->cfg->mla_layers && ok; layer++)
        ok = rows_huge(f, layer, first, end);
    f->huge_end = end;
    f->small_pages = !ok;
}

#include "cli/detokenizer.h"

/* Of what the reply is made of, what is in sight. */
static int show(void *arg, const struct waste_event *event)
{
    struct waste_detokenizer *d = arg;

    if (event->kind != WASTE_EVENT_TEXT)
        return 0;
    if (event->channel != WASTE_CHANNEL_TEXT && event->channel != WASTE_CHANNEL_OTHER &&
        !(event->channel == WASTE_CHANNEL_THINK && d->flags & WASTE_DETOK_THINK))
        return 0;
    return waste_text_add(d->out, event->text, event->bytes);
}

void waste_detok_init(struct waste_detokenizer *d, const struct waste_tokenizer *tokenizer,
                      unsigned flags)
{
    waste_parser_init(&d->parser, tokenizer, show, d);
    d->parser.flat = flags & WASTE_DETOK_SPECIALS;
    d->flags = flags;
    d->out = NULL;
}

void waste_detok_prompt(struct waste_detokenizer *d, const uint32_t *ids, size_t count)
{
    waste_parser_prompt(&d->parser, ids, count);
}

int waste_detok_add(struct waste_detokenizer *d, uint32_t id, struct waste_text *out)
{
    d->out = out;
    d->parser.arg = d; /* wherever it is by now */
    return waste_parser_add(&d->parser, &id, 1);
}

int waste_detok_end(struct waste_detokenizer *d, struct waste_text *out)
{
    d->out = out;
    d->parser.arg = d; /* wherever it is by now */
    return waste_parser_end(&d->parser);
}

int waste_detokenize(const struct waste_tokenizer *tokenizer, unsigned flags, const uint32_t *ids,
                     size_t count, struct waste_text *out)
{
    struct waste_detokenizer d;
    int ret = 0;

    waste_detok_init(&d, tokenizer, flags);
    for (size_t i = 0; i < count && ret == 0; i++)
        ret = waste_detok_add(&d, ids[i], out);
    return ret == 0 ? waste_detok_end(&d, out) : ret;
}

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cli/json_text.h"
#include "cli/render.h"

static void begin(struct waste_segments *out, const char *control, struct waste_span name)
{
    waste_segments_markup(out, control);
    waste_segments_add(out, false, name.data, name.bytes);
    waste_segments_markup(out, "<|im_middle|>");
}

/* One piece of words out of three. */
static void joined(struct waste_segments *out, const char *before, struct waste_span middle,
                   const char *after)
{
    struct waste_text text = {0};

    if (waste_text_add(&text, before, strlen(before)) != 0 ||
        waste_text_add(&text, middle.data, middle.bytes) != 0 ||
        waste_text_add(&text, after, strlen(after)) != 0)
        out->error = -ENOMEM;
    waste_segments_add(out, false, text.data, text.bytes);
    waste_text_finish(&text);
}

static void call(struct waste_segments *out, const struct waste_call *one, unsigned number)
{
    struct waste_text text = {0};
    char index[16];

    waste_segments_markup(out, "<|tool_call_begin|>");
    if (one->id.bytes > 0) {
        waste_segments_add(out, false, one->id.data, one->id.bytes);
    } else {
        snprintf(index, sizeof(index), ":%u", number);
        joined(out, "functions.", one->name, index);
    }
    waste_segments_markup(out, "<|tool_call_argument_begin|>");
    if (one->raw.data != NULL)
        waste_segments_add(out, false, one->raw.data, one->raw.bytes);
    else if (one->arguments == NULL)
        waste_segments_words(out, "{}");
    else if (waste_json_text(one->arguments, false, &text) != 0)
        out->error = -ENOMEM;
    else
        waste_segments_add(out, false, text.data, text.bytes);
    waste_segments_markup(out, "<|tool_call_end|>");
    waste_text_finish(&text);
}

static void declare(struct waste_segments *out, const json_t *tools)
{
    struct waste_text text = {0};

    begin(out, "<|im_system|>", (struct waste_span){"tool_declare", 12});
    if (waste_json_text(tools, false, &text) != 0)
        out->error = -ENOMEM;
    waste_segments_add(out, false, text.data, text.bytes);
    waste_segments_markup(out, "<|im_end|>");
    waste_text_finish(&text);
}

void waste_render_chatml_message(const struct waste_message *m, struct waste_segments *out)
{
    static const char *const control[] = {"<|im_system|>", "<|im_user|>", "<|im_assistant|>",
                                          "<|im_system|>"};
    static const char *const role[] = {"system", "user", "assistant", "tool"};
    struct waste_span name = m->name;

    if (m->tools != NULL) {
        declare(out, m->tools);
        if (m->part_count == 0)
            return;
    }
    if (name.bytes == 0)
        name = (struct waste_span){role[m->role], strlen(role[m->role])};
    begin(out, control[m->role], name);
    if (m->role == WASTE_ROLE_TOOL) {
        struct waste_span of = m->result_id.bytes > 0 ? m->result_id : m->result_of;

        joined(out, "## Return of ", of, "\n");
    }
    waste_render_content(m, out);
    if (m->call_count > 0) {
        waste_segments_markup(out, "<|tool_calls_section_begin|>");
        for (size_t i = 0; i < m->call_count; i++)
            call(out, &m->calls[i], (unsigned)i);
        waste_segments_markup(out, "<|tool_calls_section_end|>");
    }
    waste_segments_markup(out, "<|im_end|>");
}

void waste_render_chatml_reply(struct waste_segments *out)
{
    begin(out, "<|im_assistant|>", (struct waste_span){"assistant", 9});
}

/* What the conversation has that the format has no place for, or NULL. */
static const char *not_for_chatml(const struct waste_conversation *c)
{
    for (size_t i = 0; i < c->count; i++)
        if (c->messages[i].reasoning.bytes > 0)
            return "reasoning";
    return c->tool_choice != NULL       ? "tool_choice"
           : c->response_format != NULL ? "response_format"
           : c->effort != NULL          ? "thinking_effort"
                                        : NULL;
}

int waste_render_chatml(const struct waste_conversation *c, struct waste_segments *out,
                        struct waste_error *err)
{
    const char *too_much = not_for_chatml(c);

    if (too_much != NULL)
        return waste_error_set(err, -EINVAL, "%s: this model's chat format has none", too_much);
    if (c->tools != NULL)
        declare(out, c->tools);
    for (size_t i = 0; i < c->count; i++)
        waste_render_chatml_message(&c->messages[i], out);
    if (c->reply)
        waste_render_chatml_reply(out);
    return 0;
}

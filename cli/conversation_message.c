/* The messages of a conversation: roles, content, calls and their results. */
#include "cli/conversation_int.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CALLS = 1024 }; /* of one message */

/* ---- tools ---- */

int waste_conversation_tools(struct waste_place *at, const json_t *object, const json_t **out)
{
    const json_t *tools = waste_field_get(object, "tools"), *tool;
    size_t i;

    if (tools == NULL)
        return 0;
    if (!json_is_array(tools))
        return waste_field_refuse(at, "tools: not an array");
    json_array_foreach(tools, i, tool)
    {
        const json_t *function = waste_field_get(tool, "function");

        if (!json_is_object(tool))
            return waste_field_refuse(at, "tools[%zu]: not an object", i);
        if (function != NULL && !json_is_string(waste_field_get(function, "name")))
            return waste_field_refuse(at, "tools[%zu].function.name: missing or not a string", i);
    }
    *out = json_array_size(tools) > 0 ? tools : NULL;
    return 0;
}

/* Arguments are the text of a JSON object, or that object; anything else stays as it is written. */
static int get_arguments(struct waste_conversation *c, const struct waste_place *at,
                         const json_t *function, struct waste_call *call)
{
    const json_t *value = waste_field_get(function, "arguments");
    json_t *parsed;

    if (value == NULL)
        return 0;
    if (json_is_object(value)) {
        call->arguments = value;
        return 0;
    }
    if (!json_is_string(value))
        return waste_field_refuse(at, "function.arguments: neither a string nor an object");
    call->raw = waste_field_span(value);
    parsed =
        json_loadb(call->raw.data, call->raw.bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    if (json_is_object(parsed))
        call->arguments = parsed;
    return parsed == NULL || json_array_append_new(c->parsed, parsed) == 0 ? 0 : -ENOMEM;
}

static int get_call(struct waste_conversation *c, const struct waste_place *at, const json_t *value,
                    struct waste_call *call)
{
    static const char *const types[] = {"function", NULL};
    const json_t *function = waste_field_get(value, "function");
    const char *type = NULL;
    int ret;

    if (!json_is_object(value))
        return waste_field_refuse_whole(at, "not an object");
    if ((ret = waste_field_get_word(at, value, "type", types, "function", &type)) < 0)
        return ret;
    if (!json_is_object(function))
        return waste_field_refuse(at, "function: %s",
                                  function == NULL ? "missing" : "not an object");
    ret = waste_field_get_string(at, value, "id", false, &call->id);
    if (ret == 0 && call->id.data != NULL && strlen(call->id.data) != call->id.bytes)
        ret = waste_field_refuse(at, "id: holds a zero byte");
    if (ret == 0 && !json_is_string(waste_field_get(function, "name")))
        ret = waste_field_refuse(at, "function.name: missing or not a string");
    if (ret < 0)
        return ret;
    call->name = waste_field_span(waste_field_get(function, "name"));
    return get_arguments(c, at, function, call);
}

static int get_calls(struct waste_conversation *c, struct waste_place *at, const json_t *message,
                     struct waste_message *m)
{
    const json_t *calls = waste_field_get(message, "tool_calls"), *call;
    size_t base = strlen(at->path), i;

    if (calls == NULL)
        return 0;
    if (!json_is_array(calls))
        return waste_field_refuse(at, "tool_calls: not an array");
    if (json_array_size(calls) == 0)
        return 0;
    if (m->role != WASTE_ROLE_ASSISTANT)
        return waste_field_refuse(at, "tool_calls: only an assistant calls tools");
    if (json_array_size(calls) > MAX_CALLS)
        return waste_field_refuse(at, "tool_calls: more than %d", MAX_CALLS);
    m->calls = calloc(json_array_size(calls), sizeof(*m->calls));
    if (m->calls == NULL)
        return -ENOMEM;
    json_array_foreach(calls, i, call)
    {
        snprintf(at->path + base, sizeof(at->path) - base, "tool_calls[%zu].", i);
        int ret = get_call(c, at, call, &m->calls[i]);
        if (ret < 0)
            return ret;
        m->call_count++;
        if (m->calls[i].id.data != NULL &&
            json_object_set_new(c->calls_by_id, m->calls[i].id.data,
                                json_pack("[II]", (json_int_t)(m - c->messages), (json_int_t)i)))
            return -ENOMEM;
    }
    c->calling = m;
    at->path[base] = '\0';
    return 0;
}

static bool same(struct waste_span a, struct waste_span b)
{
    return a.data != NULL && b.data != NULL && a.bytes == b.bytes &&
           memcmp(a.data, b.data, a.bytes) == 0;
}

/* The call that a result answers, among those of the newest message that calls tools. */
static struct waste_call *unanswered(const struct waste_conversation *c, struct waste_span name)
{
    for (size_t k = 0; c->calling != NULL && k < c->calling->call_count; k++)
        if (!c->calling->calls[k].answered &&
            (name.data == NULL || same(name, c->calling->calls[k].name)))
            return &c->calling->calls[k];
    return NULL;
}

/* Which call a result answers: the newest with its id; without one, the first that has no result
 * yet; and a result that names its tool needs no call. */
static int match_result(struct waste_conversation *c, const struct waste_place *at, size_t index)
{
    struct waste_message *m = &c->messages[index];
    const json_t *known =
        m->result_id.data != NULL ? json_object_get(c->calls_by_id, m->result_id.data) : NULL;
    struct waste_call *call;

    if (known != NULL) {
        struct waste_message *from = &c->messages[json_integer_value(json_array_get(known, 0))];
        call = &from->calls[json_integer_value(json_array_get(known, 1))];
        m->result_index = (unsigned)(call - from->calls) + 1;
    } else if ((call = unanswered(c, m->result_of)) != NULL) {
        m->result_index = (unsigned)(call - c->calling->calls) + 1;
    }
    if (call != NULL) {
        call->answered = true;
        m->result_of = call->name;
        return 0;
    }
    if (m->result_of.data == NULL)
        return waste_field_refuse_whole(at,
                                        "answers no call: give the tool_call_id of one, or tool");
    m->result_index = 1;
    if (index > 0 && m[-1].role == WASTE_ROLE_TOOL)
        m->result_index = m[-1].result_index + 1;
    return 0;
}

/* ---- content ---- */

static int add_part(struct waste_message *m, bool is_image, struct waste_span text)
{
    if (!is_image && text.bytes == 0)
        return 0;
    if ((m->part_count & (m->part_count - 1)) == 0) { /* a power of two: full */
        size_t room = m->part_count > 0 ? m->part_count * 2 : 1;
        struct waste_part *more = realloc(m->parts, room * sizeof(*more));

        if (more == NULL)
            return -ENOMEM;
        m->parts = more;
    }
    m->parts[m->part_count++] = (struct waste_part){is_image, text};
    return 0;
}

/* The next image prompt that has no place yet, or nothing. */
static struct waste_span next_image(struct waste_conversation *c)
{
    const json_t *prompts = waste_field_get(c->root, "image_prompts");

    if (c->images >= json_array_size(prompts))
        return (struct waste_span){0};
    return waste_field_span(json_array_get(prompts, c->images++));
}

/* A placeholder is an image as long as there are images, and then text like any other. */
static int add_text(struct waste_conversation *c, struct waste_message *m, struct waste_span text)
{
    static const char placeholder[] = WASTE_IMAGE_PLACEHOLDER;
    int ret = 0;

    while (ret == 0 && c->images < json_array_size(waste_field_get(c->root, "image_prompts"))) {
        const char *found = memmem(text.data, text.bytes, placeholder, sizeof(placeholder) - 1);
        size_t before;

        if (found == NULL)
            break;
        before = (size_t)(found - text.data);
        ret = add_part(m, false, (struct waste_span){text.data, before});
        if (ret == 0)
            ret = add_part(m, true, next_image(c));
        text.data += before + sizeof(placeholder) - 1;
        text.bytes -= before + sizeof(placeholder) - 1;
    }
    return ret == 0 ? add_part(m, false, text) : ret;
}

static int add_content_part(struct waste_conversation *c, const struct waste_place *at,
                            struct waste_message *m, const json_t *part)
{
    static const char *const types[] = {"text", "image_url", "image", NULL};
    struct waste_span text = {0};
    const char *type = NULL;
    int ret;

    if (json_is_string(part))
        return add_text(c, m, waste_field_span(part));
    if (!json_is_object(part))
        return waste_field_refuse_whole(at, "neither an object nor a string");
    if ((ret = waste_field_get_word(at, part, "type", types, "text, image_url, image", &type)) < 0)
        return ret;
    if (type == NULL)
        return waste_field_refuse(at, "type: missing");
    if (strcmp(type, "text") != 0)
        return add_part(m, true, next_image(c));
    ret = waste_field_get_string(at, part, "text", true, &text);
    return ret == 0 ? add_text(c, m, text) : ret;
}

static int get_content(struct waste_conversation *c, struct waste_place *at, const json_t *message,
                       struct waste_message *m)
{
    const json_t *content = waste_field_get(message, "content"), *part;
    size_t base = strlen(at->path), i;

    if (content == NULL) {
        if (m->role == WASTE_ROLE_ASSISTANT || m->tools != NULL)
            return 0;
        return waste_field_refuse(at, "content: missing");
    }
    if (json_is_string(content))
        return add_text(c, m, waste_field_span(content));
    if (!json_is_array(content))
        return waste_field_refuse(at, "content: neither a string nor an array");
    json_array_foreach(content, i, part)
    {
        snprintf(at->path + base, sizeof(at->path) - base, "content[%zu].", i);
        int ret = add_content_part(c, at, m, part);
        if (ret < 0)
            return ret;
    }
    at->path[base] = '\0';
    return 0;
}

/* ---- messages ---- */

static int get_role(const struct waste_place *at, const json_t *message, enum waste_role *out)
{
    static const char *const words[] = {"system", "user", "assistant", "tool", "developer", NULL};
    const char *word = NULL;
    int ret = waste_field_get_word(at, message, "role", words,
                                   "system, developer, user, assistant, tool", &word);

    if (ret < 0)
        return ret;
    if (word == NULL)
        return waste_field_refuse(at, "role: missing");
    for (int i = 0; i < WASTE_ROLE_COUNT; i++)
        if (word == words[i])
            *out = (enum waste_role)i;
    if (word == words[WASTE_ROLE_COUNT])
        *out = WASTE_ROLE_SYSTEM;
    return 0;
}

static int get_reasoning(const struct waste_place *at, const json_t *message,
                         struct waste_message *m)
{
    struct waste_span other = {0};
    int ret = waste_field_get_string(at, message, "reasoning_content", false, &m->reasoning);

    if (ret == 0)
        ret = waste_field_get_string(at, message, "reasoning", false, &other);
    if (ret < 0)
        return ret;
    if (m->reasoning.bytes == 0)
        m->reasoning = other;
    else if (other.bytes > 0 && !same(other, m->reasoning))
        return waste_field_refuse(at, "reasoning: is not reasoning_content");
    if (m->reasoning.bytes > 0 && m->role != WASTE_ROLE_ASSISTANT)
        return waste_field_refuse(at, "reasoning: only an assistant thinks");
    return 0;
}

/* A tool result says by id or by name what it is the result of. */
static int get_result(const struct waste_place *at, const json_t *message, struct waste_message *m)
{
    int ret = waste_field_get_string(at, message, "tool_call_id", false, &m->result_id);

    if (ret == 0)
        ret = waste_field_get_string(at, message, "tool", false, &m->result_of);
    if (ret == 0 && m->role != WASTE_ROLE_TOOL &&
        (m->result_id.data != NULL || m->result_of.data != NULL))
        return waste_field_refuse(at, "%s: only a tool result has one",
                                  m->result_id.data != NULL ? "tool_call_id" : "tool");
    if (ret == 0 && m->role == WASTE_ROLE_TOOL && m->result_of.data == NULL)
        m->result_of = m->name;
    return ret;
}

static int get_message(struct waste_conversation *c, struct waste_place *at, const json_t *value,
                       size_t index)
{
    static const char *const keys[] = {"role",      "name",       "content", "reasoning_content",
                                       "reasoning", "tool_calls", "tool",    "tool_call_id",
                                       "tools",     "id",         NULL};
    struct waste_message *m = &c->messages[index];
    int ret;

    if (!json_is_object(value))
        return waste_field_refuse_whole(at, "not an object");
    ret = get_role(at, value, &m->role);
    if (ret == 0)
        ret = waste_field_check_keys(at, value, keys);
    if (ret == 0)
        ret = waste_field_get_string(at, value, "name", false, &m->name);
    if (ret == 0)
        ret = get_reasoning(at, value, m);
    if (ret == 0)
        ret = waste_conversation_tools(at, value, &m->tools);
    if (ret == 0 && m->tools != NULL && m->role != WASTE_ROLE_SYSTEM)
        ret = waste_field_refuse(at, "tools: only a system message declares them");
    if (ret == 0)
        ret = get_content(c, at, value, m);
    if (ret == 0)
        ret = get_calls(c, at, value, m);
    if (ret == 0)
        ret = get_result(at, value, m);
    if (ret == 0 && m->role == WASTE_ROLE_TOOL)
        ret = match_result(c, at, index);
    return ret;
}

int waste_conversation_messages(struct waste_conversation *c, struct waste_place *at)
{
    const json_t *messages = waste_field_get(c->root, "messages"), *message;
    size_t i;

    if (!json_is_array(messages))
        return waste_field_refuse(at, "messages: %s",
                                  messages == NULL ? "missing" : "not an array");
    c->messages = calloc(json_array_size(messages) + 1, sizeof(*c->messages));
    if (c->messages == NULL)
        return -ENOMEM;
    json_array_foreach(messages, i, message)
    {
        snprintf(at->path, sizeof(at->path), "messages[%zu].", i);
        c->count = i + 1;
        int ret = get_message(c, at, message, i);
        if (ret < 0)
            return ret;
    }
    at->path[0] = '\0';
    return 0;
}

#include "cli/assemble.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cli/json_text.h"

static int add(struct waste_text *text, const char *more)
{
    return waste_text_add(text, more, strlen(more));
}

static void clear(struct waste_text *text)
{
    text->bytes = 0;
    if (text->data != NULL)
        text->data[0] = '\0';
}

static int begin_call(struct waste_assembly *m, const struct waste_event *event)
{
    clear(&m->name);
    clear(&m->arguments);
    m->index = event->index;
    return waste_text_add(&m->name, event->text, event->bytes);
}

static int begin_argument(struct waste_assembly *m, const struct waste_event *event)
{
    int ret = add(&m->arguments, m->arguments.bytes > 0 ? "," : "{");

    clear(&m->value);
    m->is_json = false;
    snprintf(m->type, sizeof(m->type), "%s", event->type);
    if (ret == 0)
        ret = waste_json_text_string(event->text, event->bytes, &m->arguments);
    return ret == 0 ? add(&m->arguments, ":") : ret;
}

static bool is_of_type(const json_t *value, const char *type)
{
    if (strcmp(type, "number") == 0)
        return json_is_number(value);
    if (strcmp(type, "integer") == 0)
        return json_is_integer(value);
    if (strcmp(type, "boolean") == 0)
        return json_is_boolean(value);
    if (strcmp(type, "null") == 0)
        return json_is_null(value);
    if (strcmp(type, "array") == 0)
        return json_is_array(value);
    return strcmp(type, "object") == 0 && json_is_object(value);
}

static int end_argument(struct waste_assembly *m)
{
    const char *text = m->value.bytes > 0 ? m->value.data : "";
    json_t *value;
    bool good;

    if (m->is_json) {
        clear(&m->arguments);
        return waste_text_add(&m->arguments, text, m->value.bytes);
    }
    if (strcmp(m->type, "string") == 0)
        return waste_json_text_string(text, m->value.bytes, &m->arguments);
    /* what is good is kept as the model wrote it: a number in all its digits */
    value = json_loadb(text, m->value.bytes, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    good = value != NULL && is_of_type(value, m->type);
    json_decref(value);
    if (good)
        return waste_text_add(&m->arguments, text, m->value.bytes);
    m->damaged = true;
    return waste_json_text_string(text, m->value.bytes, &m->arguments);
}

static int end_call(struct waste_assembly *m)
{
    char id[24];
    json_t *call;

    if (m->arguments.bytes == 0 && add(&m->arguments, "{") != 0)
        return -ENOMEM;
    if (!m->is_json && add(&m->arguments, "}") != 0)
        return -ENOMEM;
    snprintf(id, sizeof(id), "call_%u", m->index);
    call = json_pack("{s:s, s:s, s:{s:s%, s:s%}}", "id", id, "type", "function", "function", "name",
                     m->name.data != NULL ? m->name.data : "", m->name.bytes, "arguments",
                     m->arguments.data, m->arguments.bytes);
    m->is_json = false;
    if (m->calls == NULL)
        m->calls = json_array();
    return call != NULL && json_array_append_new(m->calls, call) == 0 ? 0 : -ENOMEM;
}

int waste_assembly_event(void *arg, const struct waste_event *event)
{
    struct waste_assembly *m = arg;

    switch (event->kind) {
    case WASTE_EVENT_TEXT:
        if (event->channel == WASTE_CHANNEL_TEXT)
            return waste_text_add(&m->response, event->text, event->bytes);
        if (event->channel == WASTE_CHANNEL_THINK)
            return waste_text_add(&m->thinking, event->text, event->bytes);
        return 0;
    case WASTE_EVENT_CALL:
        return begin_call(m, event);
    case WASTE_EVENT_ARGUMENT:
        return begin_argument(m, event);
    case WASTE_EVENT_JSON:
        clear(&m->value);
        m->is_json = true;
        return 0;
    case WASTE_EVENT_VALUE:
        return waste_text_add(&m->value, event->text, event->bytes);
    case WASTE_EVENT_ARGUMENT_END:
        return end_argument(m);
    case WASTE_EVENT_CALL_END:
        m->damaged |= event->damaged;
        return end_call(m);
    default:
        m->ended = true;
        m->damaged |= event->damaged;
        return 0;
    }
}

json_t *waste_assembly_json(const struct waste_assembly *m)
{
    json_t *object = json_pack("{s:s, s:s%}", "role", "assistant", "content",
                               m->response.bytes > 0 ? m->response.data : "", m->response.bytes);
    int failed = 0;

    if (m->thinking.bytes > 0)
        failed |= json_object_set_new(object, "reasoning_content",
                                      json_stringn(m->thinking.data, m->thinking.bytes));
    if (m->calls != NULL)
        failed |= json_object_set(object, "tool_calls", m->calls);
    if (failed == 0)
        return object;
    json_decref(object);
    return NULL;
}

void waste_assembly_finish(struct waste_assembly *m)
{
    waste_text_finish(&m->response);
    waste_text_finish(&m->thinking);
    waste_text_finish(&m->name);
    waste_text_finish(&m->arguments);
    waste_text_finish(&m->value);
    json_decref(m->calls);
    memset(m, 0, sizeof(*m));
}

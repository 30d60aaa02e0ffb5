#include "cli/conversation.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CALLS = 1024 }; /* of one message */

/* Where we are in the JSON, for what is said of it. */
struct place {
    struct waste_error *err;
    char path[96];
};

static int refuse(const struct place *at, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* "messages[2].content: what is wrong"; -EINVAL. */
static int refuse(const struct place *at, const char *format, ...)
{
    char why[160];
    va_list args;

    va_start(args, format);
    vsnprintf(why, sizeof(why), format, args);
    va_end(args);
    return waste_error_set(at->err, -EINVAL, "%s%s", at->path, why);
}

/* "messages[2]: what is wrong with all of it". */
static int refuse_whole(const struct place *at, const char *why)
{
    size_t length = strlen(at->path);

    if (length == 0)
        return waste_error_set(at->err, -EINVAL, "%s", why);
    return waste_error_set(at->err, -EINVAL, "%.*s: %s", (int)length - 1, at->path, why);
}

/* A key of the input as errors may show it. */
static const char *printable(const char *key, char buf[41])
{
    size_t n = 0;

    for (; key[n] != '\0' && n < 40; n++)
        buf[n] = key[n] > ' ' && key[n] < 0x7f ? key[n] : '?';
    buf[n] = '\0';
    return buf;
}

static struct waste_span span_of(const json_t *string)
{
    return (struct waste_span){json_string_value(string), json_string_length(string)};
}

/* NULL for a key that is not there or null. */
static const json_t *get(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    return json_is_null(value) ? NULL : value;
}

static int get_string(const struct place *at, const json_t *object, const char *key, bool needed,
                      struct waste_span *out)
{
    const json_t *value = get(object, key);

    if (value == NULL)
        return needed ? refuse(at, "%s: missing", key) : 0;
    if (!json_is_string(value))
        return refuse(at, "%s: not a string", key);
    *out = span_of(value);
    return 0;
}

/* One of `words` (NULL-terminated), or nothing. */
static int get_word(const struct place *at, const json_t *object, const char *key,
                    const char *const *words, const char *list, const char **out)
{
    struct waste_span value = {0};
    int ret = get_string(at, object, key, false, &value);

    if (ret < 0 || value.data == NULL)
        return ret;
    for (; *words != NULL; words++)
        if (strlen(*words) == value.bytes && memcmp(*words, value.data, value.bytes) == 0) {
            *out = *words;
            return 0;
        }
    return refuse(at, "%s: none of %s", key, list);
}

static int get_flag(const struct place *at, const json_t *object, const char *key, bool *out)
{
    const json_t *value = get(object, key);

    if (value == NULL)
        return 0;
    if (!json_is_boolean(value))
        return refuse(at, "%s: neither true nor false", key);
    *out = json_is_true(value);
    return 0;
}

/* Every key that says something is one of `known` (NULL-terminated). */
static int check_keys(const struct place *at, const json_t *object, const char *const *known)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        char name[41];
        size_t i = 0;

        while (known[i] != NULL && strcmp(known[i], key) != 0)
            i++;
        if (known[i] == NULL && !json_is_null(value) &&
            !(json_is_array(value) && json_array_size(value) == 0))
            return refuse(at, "%s: cannot be rendered", printable(key, name));
    }
    return 0;
}

/* ---- tools ---- */

static int get_tools(struct place *at, const json_t *object, const json_t **out)
{
    const json_t *tools = get(object, "tools"), *tool;
    size_t i;

    if (tools == NULL)
        return 0;
    if (!json_is_array(tools))
        return refuse(at, "tools: not an array");
    json_array_foreach(tools, i, tool)
    {
        const json_t *function = get(tool, "function");

        if (!json_is_object(tool))
            return refuse(at, "tools[%zu]: not an object", i);
        if (function != NULL && !json_is_string(get(function, "name")))
            return refuse(at, "tools[%zu].function.name: missing or not a string", i);
    }
    *out = json_array_size(tools) > 0 ? tools : NULL;
    return 0;
}

/* Arguments are the text of a JSON object, or that object; anything else stays as it is written. */
static int get_arguments(struct waste_conversation *c, const struct place *at,
                         const json_t *function, struct waste_call *call)
{
    const json_t *value = get(function, "arguments");
    json_t *parsed;

    if (value == NULL)
        return 0;
    if (json_is_object(value)) {
        call->arguments = value;
        return 0;
    }
    if (!json_is_string(value))
        return refuse(at, "function.arguments: neither a string nor an object");
    call->raw = span_of(value);
    parsed =
        json_loadb(call->raw.data, call->raw.bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    if (json_is_object(parsed))
        call->arguments = parsed;
    return parsed == NULL || json_array_append_new(c->parsed, parsed) == 0 ? 0 : -ENOMEM;
}

static int get_call(struct waste_conversation *c, const struct place *at, const json_t *value,
                    struct waste_call *call)
{
    static const char *const types[] = {"function", NULL};
    const json_t *function = get(value, "function");
    const char *type = NULL;
    int ret;

    if (!json_is_object(value))
        return refuse_whole(at, "not an object");
    if ((ret = get_word(at, value, "type", types, "function", &type)) < 0)
        return ret;
    if (!json_is_object(function))
        return refuse(at, "function: %s", function == NULL ? "missing" : "not an object");
    ret = get_string(at, value, "id", false, &call->id);
    if (ret == 0 && call->id.data != NULL && strlen(call->id.data) != call->id.bytes)
        ret = refuse(at, "id: holds a zero byte");
    if (ret == 0 && !json_is_string(get(function, "name")))
        ret = refuse(at, "function.name: missing or not a string");
    if (ret < 0)
        return ret;
    call->name = span_of(get(function, "name"));
    return get_arguments(c, at, function, call);
}

static int get_calls(struct waste_conversation *c, struct place *at, const json_t *message,
                     struct waste_message *m)
{
    const json_t *calls = get(message, "tool_calls"), *call;
    size_t base = strlen(at->path), i;

    if (calls == NULL)
        return 0;
    if (!json_is_array(calls))
        return refuse(at, "tool_calls: not an array");
    if (json_array_size(calls) == 0)
        return 0;
    if (m->role != WASTE_ROLE_ASSISTANT)
        return refuse(at, "tool_calls: only an assistant calls tools");
    if (json_array_size(calls) > MAX_CALLS)
        return refuse(at, "tool_calls: more than %d", MAX_CALLS);
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
static int match_result(struct waste_conversation *c, const struct place *at, size_t index)
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
        return refuse_whole(at, "answers no call: give the tool_call_id of one, or tool");
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
    const json_t *prompts = get(c->root, "image_prompts");

    if (c->images >= json_array_size(prompts))
        return (struct waste_span){0};
    return span_of(json_array_get(prompts, c->images++));
}

/* A placeholder is an image as long as there are images, and then text like any other. */
static int add_text(struct waste_conversation *c, struct waste_message *m, struct waste_span text)
{
    static const char placeholder[] = WASTE_IMAGE_PLACEHOLDER;
    int ret = 0;

    while (ret == 0 && c->images < json_array_size(get(c->root, "image_prompts"))) {
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

static int add_content_part(struct waste_conversation *c, const struct place *at,
                            struct waste_message *m, const json_t *part)
{
    static const char *const types[] = {"text", "image_url", "image", NULL};
    struct waste_span text = {0};
    const char *type = NULL;
    int ret;

    if (json_is_string(part))
        return add_text(c, m, span_of(part));
    if (!json_is_object(part))
        return refuse_whole(at, "neither an object nor a string");
    if ((ret = get_word(at, part, "type", types, "text, image_url, image", &type)) < 0)
        return ret;
    if (type == NULL)
        return refuse(at, "type: missing");
    if (strcmp(type, "text") != 0)
        return add_part(m, true, next_image(c));
    ret = get_string(at, part, "text", true, &text);
    return ret == 0 ? add_text(c, m, text) : ret;
}

static int get_content(struct waste_conversation *c, struct place *at, const json_t *message,
                       struct waste_message *m)
{
    const json_t *content = get(message, "content"), *part;
    size_t base = strlen(at->path), i;

    if (content == NULL) {
        if (m->role == WASTE_ROLE_ASSISTANT || m->tools != NULL)
            return 0;
        return refuse(at, "content: missing");
    }
    if (json_is_string(content))
        return add_text(c, m, span_of(content));
    if (!json_is_array(content))
        return refuse(at, "content: neither a string nor an array");
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

static int get_role(const struct place *at, const json_t *message, enum waste_role *out)
{
    static const char *const words[] = {"system", "user", "assistant", "tool", "developer", NULL};
    const char *word = NULL;
    int ret =
        get_word(at, message, "role", words, "system, developer, user, assistant, tool", &word);

    if (ret < 0)
        return ret;
    if (word == NULL)
        return refuse(at, "role: missing");
    for (int i = 0; i < WASTE_ROLE_COUNT; i++)
        if (word == words[i])
            *out = (enum waste_role)i;
    if (word == words[WASTE_ROLE_COUNT])
        *out = WASTE_ROLE_SYSTEM;
    return 0;
}

static int get_reasoning(const struct place *at, const json_t *message, struct waste_message *m)
{
    struct waste_span other = {0};
    int ret = get_string(at, message, "reasoning_content", false, &m->reasoning);

    if (ret == 0)
        ret = get_string(at, message, "reasoning", false, &other);
    if (ret < 0)
        return ret;
    if (m->reasoning.bytes == 0)
        m->reasoning = other;
    else if (other.bytes > 0 && !same(other, m->reasoning))
        return refuse(at, "reasoning: is not reasoning_content");
    if (m->reasoning.bytes > 0 && m->role != WASTE_ROLE_ASSISTANT)
        return refuse(at, "reasoning: only an assistant thinks");
    return 0;
}

/* A tool result says by id or by name what it is the result of. */
static int get_result(const struct place *at, const json_t *message, struct waste_message *m)
{
    int ret = get_string(at, message, "tool_call_id", false, &m->result_id);

    if (ret == 0)
        ret = get_string(at, message, "tool", false, &m->result_of);
    if (ret == 0 && m->role != WASTE_ROLE_TOOL &&
        (m->result_id.data != NULL || m->result_of.data != NULL))
        return refuse(at, "%s: only a tool result has one",
                      m->result_id.data != NULL ? "tool_call_id" : "tool");
    if (ret == 0 && m->role == WASTE_ROLE_TOOL && m->result_of.data == NULL)
        m->result_of = m->name;
    return ret;
}

static int get_message(struct waste_conversation *c, struct place *at, const json_t *value,
                       size_t index)
{
    static const char *const keys[] = {"role",      "name",       "content", "reasoning_content",
                                       "reasoning", "tool_calls", "tool",    "tool_call_id",
                                       "tools",     "id",         NULL};
    struct waste_message *m = &c->messages[index];
    int ret;

    if (!json_is_object(value))
        return refuse_whole(at, "not an object");
    ret = get_role(at, value, &m->role);
    if (ret == 0)
        ret = check_keys(at, value, keys);
    if (ret == 0)
        ret = get_string(at, value, "name", false, &m->name);
    if (ret == 0)
        ret = get_reasoning(at, value, m);
    if (ret == 0)
        ret = get_tools(at, value, &m->tools);
    if (ret == 0 && m->tools != NULL && m->role != WASTE_ROLE_SYSTEM)
        ret = refuse(at, "tools: only a system message declares them");
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

static int get_messages(struct waste_conversation *c, struct place *at)
{
    const json_t *messages = get(c->root, "messages"), *message;
    size_t i;

    if (!json_is_array(messages))
        return refuse(at, "messages: %s", messages == NULL ? "missing" : "not an array");
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

/* ---- what goes with them ---- */

static int get_response_format(struct waste_conversation *c, const struct place *at)
{
    static const char *const types[] = {"text", "json_object", "json_schema", NULL};
    const json_t *format = get(c->root, "response_format"), *schema;
    int ret;

    if (format == NULL)
        return 0;
    if (!json_is_object(format))
        return refuse(at, "response_format: not an object");
    struct place in = {at->err, "response_format."};
    ret =
        get_word(&in, format, "type", types, "text, json_object, json_schema", &c->response_format);
    if (ret < 0)
        return ret;
    if (c->response_format == NULL)
        return refuse(&in, "type: missing");
    if (strcmp(c->response_format, "text") == 0)
        c->response_format = NULL;
    if (c->response_format == NULL || strcmp(c->response_format, "json_schema") != 0)
        return 0;
    schema = get(get(format, "json_schema"), "schema");
    if (!json_is_object(schema) && !json_is_boolean(schema))
        return refuse(at, "response_format.json_schema.schema: %s",
                      schema == NULL ? "missing" : "not a schema");
    c->schema = schema;
    return 0;
}

#define CAPITALS "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

/* Image prompts are markup, so they may hold what stands for an image and no other structure. */
static int check_images(const struct waste_conversation *c, const struct place *at)
{
    static const char *const allowed[] = {"<|media_begin|>", "<|media_content|>", "<|media_pad|>",
                                          "<|media_end|>", "<|media_start|>"};
    const json_t *prompts = get(c->root, "image_prompts"), *prompt;
    size_t i;

    if (prompts != NULL && !json_is_array(prompts))
        return refuse(at, "image_prompts: not an array");
    json_array_foreach(prompts, i, prompt)
    {
        const char *text = json_string_value(prompt);

        if (text == NULL || strlen(text) != json_string_length(prompt))
            return refuse(at, "image_prompts[%zu]: not a string", i);
        while ((text = strpbrk(text, "<[")) != NULL) {
            size_t k = 0, count = sizeof(allowed) / sizeof(allowed[0]);

            while (k < count && strncmp(text, allowed[k], strlen(allowed[k])) != 0)
                k++;
            if (k == count && text[0] == '[' && text[1 + strspn(text + 1, CAPITALS)] != ']') {
                text++; /* no [EOS] and the like */
                continue;
            }
            if (k == count && text[0] == '<' && text[1] != '|') {
                text++;
                continue;
            }
            if (k == count)
                return refuse(at, "image_prompts[%zu]: markup of something else", i);
            text += strlen(allowed[k]);
        }
    }
    return 0;
}

/* true, false, or {"type": "enabled"|"disabled"}. */
static int get_thinking(const struct place *at, const json_t *root, bool *out)
{
    static const char *const types[] = {"enabled", "disabled", NULL};
    const json_t *thinking = get(root, "thinking");
    struct place in = {at->err, "thinking."};
    const char *type = NULL;
    int ret;

    if (!json_is_object(thinking))
        return get_flag(at, root, "thinking", out);
    ret = get_word(&in, thinking, "type", types, "enabled, disabled", &type);
    if (ret == 0 && type == NULL)
        return refuse(&in, "type: missing");
    if (ret == 0)
        *out = type == types[0];
    return ret;
}

static int get_request(struct waste_conversation *c, struct place *at)
{
    static const char *const efforts[] = {"low", "medium", "high", "max", NULL};
    static const char *const choices[] = {"auto", "none", "required", NULL};
    int ret = check_images(c, at);

    if (ret == 0)
        ret = get_messages(c, at);
    if (ret == 0 && c->images < json_array_size(get(c->root, "image_prompts")))
        ret = refuse(at, "image_prompts: %zu given, %zu have a place",
                     json_array_size(get(c->root, "image_prompts")), c->images);
    if (ret == 0)
        ret = get_tools(at, c->root, &c->tools);
    if (ret == 0 && json_is_object(get(c->root, "tool_choice")))
        ret = refuse(at, "tool_choice: a single tool cannot be asked for");
    if (ret == 0)
        ret =
            get_word(at, c->root, "tool_choice", choices, "auto, none, required", &c->tool_choice);
    if (c->tool_choice != NULL && strcmp(c->tool_choice, "auto") == 0)
        c->tool_choice = NULL;
    if (ret == 0)
        ret = get_response_format(c, at);
    if (ret == 0)
        ret = get_thinking(at, c->root, &c->thinking);
    if (ret == 0)
        ret =
            get_word(at, c->root, "thinking_effort", efforts, "low, medium, high, max", &c->effort);
    if (ret == 0 && c->effort == NULL)
        ret = get_word(at, c->root, "reasoning_effort", efforts, "low, medium, high, max",
                       &c->effort);
    if (ret == 0)
        ret = get_flag(at, c->root, "add_generation_prompt", &c->reply);
    return ret;
}

int waste_conversation_make(json_t *root, struct waste_conversation **out, struct waste_error *err)
{
    struct waste_conversation *c = calloc(1, sizeof(*c));
    struct place at = {.err = err};
    int ret = -ENOMEM;

    if (c != NULL) {
        c->root = json_incref(root);
        c->parsed = json_array();
        c->calls_by_id = json_object();
        c->thinking = c->reply = true;
        if (c->parsed != NULL && c->calls_by_id != NULL)
            ret =
                json_is_object(root) ? get_request(c, &at) : refuse_whole(&at, "not a JSON object");
    }
    if (ret == -ENOMEM)
        waste_error_set(err, ret, "out of memory");
    if (ret < 0) {
        waste_conversation_destroy(c);
        return ret;
    }
    *out = c;
    return 0;
}

int waste_conversation_parse(const char *text, size_t bytes, const char *name,
                             struct waste_conversation **out, struct waste_error *err)
{
    struct waste_error why;
    json_error_t where;
    json_t *root = json_loadb(text, bytes, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &where);
    int ret;

    if (root == NULL) {
        char shown[sizeof(where.text) + 1];

        /* what is near may be anything */
        for (size_t i = 0; i <= strlen(where.text); i++)
            shown[i] = (where.text[i] >= ' ' && where.text[i] < 0x7f) || where.text[i] == '\0'
                           ? where.text[i]
                           : '?';
        return waste_error_set(err, -EINVAL, "%s: line %d, column %d: %s", name, where.line,
                               where.column, shown);
    }
    ret = waste_conversation_make(root, out, &why);
    json_decref(root);
    return ret < 0 ? waste_error_set(err, ret, "%s: %s", name, why.text) : 0;
}

void waste_conversation_destroy(struct waste_conversation *c)
{
    if (c == NULL)
        return;
    for (size_t i = 0; i < c->count; i++) {
        free(c->messages[i].parts);
        free(c->messages[i].calls);
    }
    free(c->messages);
    json_decref(c->parsed);
    json_decref(c->calls_by_id);
    json_decref(c->root);
    free(c);
}

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "cli/json_text.h"
#include "cli/render.h"

static const char tools_text[] = "# Tools\n"
                                 "Here are the available tools, described in JSONSchema.\n\n";
static const char more_tools_text[] =
    "## New Tools Available\n"
    "The system dynamically extends the toolset via lazy-loading.\n"
    "You have access to all existing and extended tools.\n"
    "Here are the specs for the extended tools.\n\n";
static const char effort_text[] =
    "`thinking_effort` guides on how much to think in your thinking channel (not including the "
    "response channel), supported values include `low`, `medium`, `high`, and `max`.\n"
    "Now the system is invoked with `thinking_effort=%s`.";
static const char required_text[] = "The system is invoked with `tool_choice=required`.\n"
                                    "You MUST call tools in the next message.";
static const char none_text[] = "The system is invoked with `tool_choice=none`.\n"
                                "You MUST NOT call any tools in the next message.";
static const char format_text[] =
    "The system is invoked with `response_format=%s`.\n"
    "Your response must be raw JSON data without markdown code blocks (```json) or any additional "
    "formatting.";
static const char schema_text[] = "\nThe JSON data must match the following schema:\n";

/* ---- tags ---- */

static void open_tag(struct waste_segments *out, const char *name)
{
    waste_segments_markup(out, "<|open|>");
    waste_segments_words(out, name);
}

static void end_tag(struct waste_segments *out)
{
    waste_segments_markup(out, "<|sep|>");
}

static void open_plain(struct waste_segments *out, const char *name)
{
    open_tag(out, name);
    end_tag(out);
}

static void close_tag(struct waste_segments *out, const char *name)
{
    waste_segments_markup(out, "<|close|>");
    waste_segments_words(out, name);
    end_tag(out);
}

static bool begins(struct waste_span value, size_t at, const char *with)
{
    return value.bytes - at >= strlen(with) && memcmp(value.data + at, with, strlen(with)) == 0;
}

static void attribute_span(struct waste_segments *out, const char *name, struct waste_span value)
{
    struct waste_text escaped = {0};
    int error = 0;

    waste_segments_words(out, name);
    waste_segments_words(out, "=\"");
    for (size_t at = 0; at < value.bytes && error == 0; at++) {
        bool entity = begins(value, at, "&quot;") || begins(value, at, "&amp;");

        if (value.data[at] == '"')
            error = waste_text_add(&escaped, "&quot;", 6);
        else if (entity)
            error = waste_text_add(&escaped, "&amp;", 5);
        else
            error = waste_text_add(&escaped, value.data + at, 1);
    }
    if (error != 0)
        out->error = error;
    waste_segments_add(out, false, escaped.data, escaped.bytes);
    waste_segments_words(out, "\"");
    waste_text_finish(&escaped);
}

static void attribute(struct waste_segments *out, const char *name, const char *value)
{
    attribute_span(out, name, (struct waste_span){value, strlen(value)});
}

static void attribute_number(struct waste_segments *out, const char *name, unsigned value)
{
    char digits[16];

    snprintf(digits, sizeof(digits), "%u", value);
    attribute(out, name, digits);
}

static void close_message(struct waste_segments *out)
{
    close_tag(out, "message");
    waste_segments_markup(out, "<|end_of_msg|>");
}

/* A system message of ours. Takes over the text. */
static void notice(struct waste_segments *out, const char *type, struct waste_text *text)
{
    open_tag(out, "message");
    attribute(out, " role", "system");
    attribute(out, " type", type);
    end_tag(out);
    waste_segments_add(out, false, text->data, text->bytes);
    close_message(out);
    waste_text_finish(text);
}

static void add(struct waste_segments *out, struct waste_text *text, const char *more)
{
    if (waste_text_add(text, more, strlen(more)) != 0)
        out->error = -ENOMEM;
}

static void add_json_block(struct waste_segments *out, struct waste_text *text, const json_t *value)
{
    add(out, text, "```json\n");
    if (waste_json_text(value, true, text) != 0)
        out->error = -ENOMEM;
    add(out, text, "\n```");
}

static void declare_tools(struct waste_segments *out, const char *intro, const json_t *tools)
{
    struct waste_text text = {0};

    add(out, &text, intro);
    add_json_block(out, &text, tools);
    notice(out, "tool-declare", &text);
}

/* ---- messages ---- */

void waste_render_content(const struct waste_message *m, struct waste_segments *out)
{
    for (size_t i = 0; i < m->part_count; i++) {
        const struct waste_part *part = &m->parts[i];

        if (part->is_image && part->text.data == NULL)
            waste_segments_markup(out, WASTE_IMAGE_PLACEHOLDER);
        else
            waste_segments_add(out, part->is_image, part->text.data, part->text.bytes);
    }
}

static const char *type_name(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "object";
    case JSON_ARRAY:
        return "array";
    case JSON_STRING:
        return "string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "number";
    case JSON_NULL:
        return "null";
    default:
        return "boolean";
    }
}

static void argument(struct waste_segments *out, const char *key, const json_t *value)
{
    struct waste_text text = {0};

    open_tag(out, "argument");
    attribute(out, " key", key);
    attribute(out, " type", type_name(value));
    end_tag(out);
    if (json_is_string(value))
        waste_segments_add(out, false, json_string_value(value), json_string_length(value));
    else if (waste_json_text(value, false, &text) != 0)
        out->error = -ENOMEM;
    else
        waste_segments_add(out, false, text.data, text.bytes);
    close_tag(out, "argument");
    waste_text_finish(&text);
}

static bool is_blank(struct waste_span text)
{
    for (size_t i = 0; i < text.bytes; i++)
        if (strchr(" \t\r\n", text.data[i]) == NULL || text.data[i] == '\0')
            return false;
    return true;
}

static void call(struct waste_segments *out, const struct waste_call *one, unsigned number)
{
    const char *key;
    json_t *value;

    open_tag(out, "call");
    attribute_span(out, " tool", one->name);
    attribute_number(out, " index", number);
    end_tag(out);
    if (one->arguments != NULL) {
        json_object_foreach((json_t *)(uintptr_t)one->arguments, key, value)
            argument(out, key, value);
    } else if (!is_blank(one->raw)) {
        open_tag(out, "json");
        attribute(out, " type", "object");
        end_tag(out);
        waste_segments_add(out, false, one->raw.data, one->raw.bytes);
        close_tag(out, "json");
    }
    close_tag(out, "call");
}

static void channels(struct waste_segments *out, const struct waste_message *m, bool thinking)
{
    if (thinking || m->reasoning.bytes > 0) {
        open_plain(out, "think");
        waste_segments_add(out, false, m->reasoning.data, m->reasoning.bytes);
        close_tag(out, "think");
    }
    open_plain(out, "response");
    waste_render_content(m, out);
    close_tag(out, "response");
    if (m->call_count == 0)
        return;
    open_plain(out, "tools");
    for (size_t i = 0; i < m->call_count; i++)
        call(out, &m->calls[i], (unsigned)i + 1);
    close_tag(out, "tools");
}

void waste_render_xtml_message(const struct waste_message *m, bool thinking,
                               struct waste_segments *out)
{
    static const char *const role[] = {"system", "user", "assistant", "tool"};

    if (m->tools != NULL) {
        declare_tools(out, more_tools_text, m->tools);
        if (m->part_count == 0)
            return;
    }
    open_tag(out, "message");
    attribute(out, " role", role[m->role]);
    if (m->role == WASTE_ROLE_TOOL) {
        attribute_span(out, " tool", m->result_of);
        attribute_number(out, " index", m->result_index);
    } else if (m->name.bytes > 0) {
        attribute_span(out, " name", m->name);
    }
    end_tag(out);
    if (m->role == WASTE_ROLE_ASSISTANT)
        channels(out, m, thinking);
    else
        waste_render_content(m, out);
    close_message(out);
}

void waste_render_xtml_reply(bool thinking, struct waste_segments *out)
{
    open_tag(out, "message");
    attribute(out, " role", "assistant");
    end_tag(out);
    open_plain(out, thinking ? "think" : "response");
}

void waste_render_xtml(const struct waste_conversation *c, struct waste_segments *out)
{
    struct waste_text text = {0};
    char line[sizeof(effort_text) + 16];

    if (c->tools != NULL)
        declare_tools(out, tools_text, c->tools);
    if (c->thinking && c->effort != NULL) {
        snprintf(line, sizeof(line), effort_text, c->effort);
        add(out, &text, line);
        notice(out, "thinking-effort", &text);
    }
    for (size_t i = 0; i < c->count; i++)
        waste_render_xtml_message(&c->messages[i], c->thinking, out);
    if (c->tool_choice != NULL) {
        add(out, &text, strcmp(c->tool_choice, "none") == 0 ? none_text : required_text);
        notice(out, "tool-choice", &text);
    }
    if (c->response_format != NULL) {
        snprintf(line, sizeof(line), format_text, c->response_format);
        add(out, &text, line);
        if (c->schema != NULL) {
            add(out, &text, schema_text);
            add_json_block(out, &text, c->schema);
        }
        notice(out, "response-format", &text);
    }
    if (c->reply)
        waste_render_xtml_reply(c->thinking, out);
}

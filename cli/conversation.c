/* A conversation as a whole: what goes with the messages. */
#include "cli/conversation_int.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int get_response_format(struct waste_conversation *c, const struct waste_place *at)
{
    static const char *const types[] = {"text", "json_object", "json_schema", NULL};
    const json_t *format = waste_field_get(c->root, "response_format"), *schema;
    int ret;

    if (format == NULL)
        return 0;
    if (!json_is_object(format))
        return waste_field_refuse(at, "response_format: not an object");
    struct waste_place in = {at->err, "response_format."};
    ret = waste_field_get_word(&in, format, "type", types, "text, json_object, json_schema",
                               &c->response_format);
    if (ret < 0)
        return ret;
    if (c->response_format == NULL)
        return waste_field_refuse(&in, "type: missing");
    if (strcmp(c->response_format, "text") == 0)
        c->response_format = NULL;
    if (c->response_format == NULL || strcmp(c->response_format, "json_schema") != 0)
        return 0;
    schema = waste_field_get(waste_field_get(format, "json_schema"), "schema");
    if (!json_is_object(schema) && !json_is_boolean(schema))
        return waste_field_refuse(at, "response_format.json_schema.schema: %s",
                                  schema == NULL ? "missing" : "not a schema");
    c->schema = schema;
    return 0;
}

#define CAPITALS "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

/* Image prompts are markup, so they may hold what stands for an image and no other structure. */
static int check_images(const struct waste_conversation *c, const struct waste_place *at)
{
    static const char *const allowed[] = {"<|media_begin|>", "<|media_content|>", "<|media_pad|>",
                                          "<|media_end|>", "<|media_start|>"};
    const json_t *prompts = waste_field_get(c->root, "image_prompts"), *prompt;
    size_t i;

    if (prompts != NULL && !json_is_array(prompts))
        return waste_field_refuse(at, "image_prompts: not an array");
    json_array_foreach(prompts, i, prompt)
    {
        const char *text = json_string_value(prompt);

        if (text == NULL || strlen(text) != json_string_length(prompt))
            return waste_field_refuse(at, "image_prompts[%zu]: not a string", i);
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
                return waste_field_refuse(at, "image_prompts[%zu]: markup of something else", i);
            text += strlen(allowed[k]);
        }
    }
    return 0;
}

/* true, false, or {"type": "enabled"|"disabled"}. */
static int get_thinking(const struct waste_place *at, const json_t *root, bool *out)
{
    static const char *const types[] = {"enabled", "disabled", NULL};
    const json_t *thinking = waste_field_get(root, "thinking");
    struct waste_place in = {at->err, "thinking."};
    const char *type = NULL;
    int ret;

    if (!json_is_object(thinking))
        return waste_field_get_flag(at, root, "thinking", out);
    ret = waste_field_get_word(&in, thinking, "type", types, "enabled, disabled", &type);
    if (ret == 0 && type == NULL)
        return waste_field_refuse(&in, "type: missing");
    if (ret == 0)
        *out = type == types[0];
    return ret;
}

static int get_request(struct waste_conversation *c, struct waste_place *at)
{
    static const char *const efforts[] = {"low", "medium", "high", "max", NULL};
    static const char *const choices[] = {"auto", "none", "required", NULL};
    int ret = check_images(c, at);

    if (ret == 0)
        ret = waste_conversation_messages(c, at);
    if (ret == 0 && c->images < json_array_size(waste_field_get(c->root, "image_prompts")))
        ret = waste_field_refuse(at, "image_prompts: %zu given, %zu have a place",
                                 json_array_size(waste_field_get(c->root, "image_prompts")),
                                 c->images);
    if (ret == 0)
        ret = waste_conversation_tools(at, c->root, &c->tools);
    if (ret == 0 && json_is_object(waste_field_get(c->root, "tool_choice")))
        ret = waste_field_refuse(at, "tool_choice: a single tool cannot be asked for");
    if (ret == 0)
        ret = waste_field_get_word(at, c->root, "tool_choice", choices, "auto, none, required",
                                   &c->tool_choice);
    if (c->tool_choice != NULL && strcmp(c->tool_choice, "auto") == 0)
        c->tool_choice = NULL;
    if (ret == 0)
        ret = get_response_format(c, at);
    if (ret == 0)
        ret = get_thinking(at, c->root, &c->thinking);
    if (ret == 0)
        ret = waste_field_get_word(at, c->root, "thinking_effort", efforts,
                                   "low, medium, high, max", &c->effort);
    if (ret == 0 && c->effort == NULL)
        ret = waste_field_get_word(at, c->root, "reasoning_effort", efforts,
                                   "low, medium, high, max", &c->effort);
    if (ret == 0)
        ret = waste_field_get_flag(at, c->root, "add_generation_prompt", &c->reply);
    return ret;
}

int waste_conversation_make(json_t *root, struct waste_conversation **out, struct waste_error *err)
{
    struct waste_conversation *c = calloc(1, sizeof(*c));
    struct waste_place at = {.err = err};
    int ret = -ENOMEM;

    if (c != NULL) {
        c->root = json_incref(root);
        c->parsed = json_array();
        c->calls_by_id = json_object();
        c->thinking = c->reply = true;
        if (c->parsed != NULL && c->calls_by_id != NULL)
            ret = json_is_object(root) ? get_request(c, &at)
                                       : waste_field_refuse_whole(&at, "not a JSON object");
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

#include "cli/chat.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/output.h"
#include "cli/prompt.h"
#include "cli/signals.h"

int waste_chat_init(struct waste_chat *c, const struct waste_args *args)
{
    *c = (struct waste_chat){.args = *args};
    c->messages = json_array();
    c->images = json_array();
    c->attached = json_array();
    if (c->messages == NULL || c->images == NULL || c->attached == NULL)
        return waste_fail(1, "out of memory");
    if (args->system_text == NULL)
        return 0;
    return waste_chat_system(c, args->system_text) == 0
               ? 0
               : waste_fail(2, "option --system: the text is no UTF-8");
}

void waste_chat_finish(struct waste_chat *c)
{
    json_decref(c->messages);
    json_decref(c->images);
    json_decref(c->attached);
    waste_ids_finish(&c->ids);
}

void waste_chat_tell(struct waste_chat *c, const char *event, const char *format, ...)
{
    char text[4096];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    c->failed |= strcmp(event, "error") == 0;
    if (c->args.json)
        waste_output_print_json(json_pack("{s:s, s:s}", "event", event, "text", text));
    else if (strcmp(event, "error") == 0)
        waste_fail(1, "%s", text);
    else if (strcmp(event, "note") == 0)
        fprintf(stderr, "%s%s", c->args.quiet ? "" : text, c->args.quiet ? "" : "\n");
    else
        printf("%s\n", text);
    fflush(stdout);
}

/* ---- messages to ids ---- */

/* Appends what messages (an array) become. -EINVAL: the model's format has no place for them. */
static int encode(const struct waste_chat *c, json_t *messages, json_t *images,
                  struct waste_ids *out, struct waste_error *err)
{
    json_t *root = json_pack("{s:O, s:O, s:b}", "messages", messages, "image_prompts", images,
                             "thinking", (int)waste_engine_thinks(&c->e));
    struct waste_conversation *conversation = NULL;
    struct waste_segments segments = {0};
    int ret = root == NULL ? waste_error_set(err, -ENOMEM, "out of memory")
                           : waste_conversation_make(root, &conversation, err);

    if (ret == 0)
        ret = waste_markup_render(c->e.markup, conversation, &segments, err);
    if (ret == 0 && waste_segments_encode(&segments, c->e.tokenizer, out) != 0)
        ret = waste_error_set(err, -ENOMEM, "out of memory");
    waste_segments_finish(&segments);
    waste_conversation_destroy(conversation);
    json_decref(root);
    return ret;
}

/* Everything anew. */
static int encode_all(struct waste_chat *c, struct waste_ids *out, struct waste_error *err)
{
    waste_client_reset(&c->e.client);
    waste_ids_finish(&c->ids);
    c->generated = 0;
    return encode(c, c->messages, c->images, out, err);
}

/* The newest message alone, behind the end of the newest reply. */
static int encode_newest(struct waste_chat *c, struct waste_ids *out, struct waste_error *err)
{
    size_t last = json_array_size(c->messages) - 1;
    json_t *alone = json_pack("[O]", json_array_get(c->messages, last));
    int ret = alone == NULL
                  ? -ENOMEM
                  : waste_markup_close(c->e.markup, c->ids.id, c->ids.count, c->generated, out);

    ret = ret < 0 ? waste_error_set(err, ret, "out of memory")
                  : encode(c, alone, c->attached, out, err);
    json_decref(alone);
    return ret;
}

/* ---- a turn ---- */

static void show_bar(const struct waste_chat *c)
{
    const char *dim = waste_output_colour() ? "\033[2m" : "", *plain = *dim ? "\033[0m" : "";
    uint32_t ctx = c->e.pipeline.options.ctx;
    char status[160];

    if (c->args.quiet || !isatty(STDERR_FILENO))
        return;
    waste_output_status(&c->outcome, status, sizeof(status));
    fprintf(stderr, "%s[%s, context %zu of %u, %.0f %%]%s\n", dim, status, c->ids.count, ctx,
            100.0 * (double)c->ids.count / ctx, plain);
}

static void show_end(const struct waste_chat *c, json_t *message)
{
    json_t *event, *numbers;

    if (!c->args.json) {
        if (c->outcome.status == WASTE_REPLY_CONTEXT)
            waste_fail(1, "the context is full: /reset, or start with a larger --ctx");
        show_bar(c);
        return;
    }
    event = json_pack("{s:s, s:s, s:O, s:I, s:I}", "event", "end", "status",
                      waste_output_why(c->outcome.status), "message", message, "context",
                      (json_int_t)c->ids.count, "ctx", (json_int_t)c->e.pipeline.options.ctx);
    numbers = waste_output_json(&c->outcome);
    if (event != NULL && numbers != NULL)
        json_object_update(event, numbers);
    json_decref(numbers);
    waste_output_print_json(event);
}

static void set_output(const struct waste_chat *c, struct waste_output *output)
{
    bool seen = isatty(STDOUT_FILENO) && waste_engine_thinks(&c->e);

    output->mode = c->args.json ? WASTE_OUTPUT_EVENTS : WASTE_OUTPUT_STREAM;
    output->think =
        c->args.think == WASTE_THINK_SHOW || (c->args.think == WASTE_THINK_DEFAULT && seen);
    output->dim = waste_output_colour();
}

/* The newest question was not asked; its images are attached again. */
static void take_back(struct waste_chat *c)
{
    json_array_remove(c->messages, json_array_size(c->messages) - 1);
    json_array_clear(c->attached);
    for (size_t at = json_array_size(c->images) - c->newest_images; c->newest_images > 0;
         c->newest_images--) {
        json_array_append(c->attached, json_array_get(c->images, at));
        json_array_remove(c->images, at);
    }
}

/* One request for the reply to what the messages end with. */
static int request(struct waste_chat *c, const struct waste_ids *turn)
{
    struct waste_sampling sampling;
    struct waste_output output;
    struct waste_error err;
    json_t *message;
    int rc;

    waste_engine_sampling(&c->e, &sampling);
    if (waste_ids_append(&c->ids, turn->id, turn->count) != 0)
        return waste_fail(1, "out of memory");
    waste_output_init(&output, c->e.tokenizer, turn->id, turn->count);
    set_output(c, &output);
    struct waste_request_spec spec = {
        .ids = turn->id,
        .count = (uint32_t)turn->count,
        .max_tokens = c->args.n,
        .sampling = &sampling,
        .on_token = waste_output_token,
        .arg = &output,
    };
    bool failed = waste_client_request(&c->e.client, &spec, &c->outcome, &err) != 0;
    waste_output_end(&output);
    message = waste_assembly_json(&output.message);
    if (waste_ids_append(&c->ids, output.ids.id, output.ids.count) != 0 || message == NULL)
        output.error = ENOMEM;
    c->generated = output.ids.count;
    c->turns++;
    c->tokens += c->outcome.tokens;
    c->seconds += c->outcome.decode_seconds;
    if (failed) { /* the pipeline stays: so does the chat, with the question taken back */
        waste_chat_tell(c, "error", "%s", err.text);
        take_back(c);
        c->stale = true;
    } else if (message != NULL) {
        json_array_append(c->messages, message);
        show_end(c, message);
    }
    json_decref(message);
    rc =
        output.error != 0 ? waste_fail(1, "cannot write to stdout: %s", strerror(output.error)) : 0;
    waste_output_finish(&output);
    return rc;
}

/* The reply to the newest message. A question that does not fit is taken back if it is `fresh`. */
static int answer(struct waste_chat *c, bool fresh)
{
    struct waste_ids turn = {0};
    struct waste_error err;
    uint32_t ctx = c->e.pipeline.options.ctx;
    bool anew = c->stale || c->ids.count == 0;
    int ret = anew ? encode_all(c, &turn, &err) : encode_newest(c, &turn, &err), rc = 0;

    if (ret == 0 && turn.count + c->ids.count >= ctx)
        ret = waste_error_set(&err, -ENOSPC, "%zu more tokens do not fit the context of %u: /reset",
                              turn.count, ctx);
    if (ret == 0) {
        c->stale = false;
        json_array_clear(c->attached);
        rc = request(c, &turn);
    } else {
        waste_chat_tell(c, "error", "%s", err.text);
        c->stale |= anew;
        if (fresh)
            take_back(c);
    }
    waste_ids_finish(&turn);
    return rc;
}

int waste_chat_say(struct waste_chat *c, const char *text, size_t bytes)
{
    size_t images = json_array_size(c->attached);
    json_t *words = json_stringn(text, bytes), *content = words;

    if (words == NULL) {
        waste_chat_tell(c, "error", "that is no UTF-8");
        return 0;
    }
    if (images > 0)
        content = json_array();
    for (size_t i = 0; i < images; i++)
        json_array_append_new(content, json_pack("{s:s}", "type", "image_url"));
    if (images > 0)
        json_array_append_new(content, json_pack("{s:s, s:o}", "type", "text", "text", words));
    json_array_extend(c->images, c->attached);
    c->newest_images = images;
    if (json_array_append_new(c->messages,
                              json_pack("{s:s, s:o}", "role", "user", "content", content)) != 0)
        return waste_fail(1, "out of memory");
    return answer(c, true);
}

static bool has_role(const json_t *message, const char *role)
{
    const char *is = json_string_value(json_object_get(message, "role"));

    return is != NULL && strcmp(is, role) == 0;
}

int waste_chat_retry(struct waste_chat *c)
{
    size_t count = json_array_size(c->messages);

    if (count > 0 && has_role(json_array_get(c->messages, count - 1), "assistant"))
        json_array_remove(c->messages, --count);
    if (count == 0 || has_role(json_array_get(c->messages, count - 1), "system")) {
        waste_chat_tell(c, "error", "nothing has been asked");
        return 0;
    }
    c->stale = true;
    c->newest_images = 0;
    return answer(c, false);
}

/* ---- the past ---- */

void waste_chat_reset(struct waste_chat *c)
{
    json_t *first = json_incref(json_array_get(c->messages, 0));

    json_array_clear(c->messages);
    json_array_clear(c->images);
    json_array_clear(c->attached);
    if (first != NULL && has_role(first, "system"))
        json_array_append(c->messages, first);
    json_decref(first);
    c->stale = true;
}

int waste_chat_system(struct waste_chat *c, const char *text)
{
    json_t *message =
        json_pack("{s:s, s:s}", "role", "system", "content", text != NULL ? text : "");

    if (message == NULL)
        return -EINVAL;
    if (has_role(json_array_get(c->messages, 0), "system"))
        json_array_remove(c->messages, 0);
    if (text != NULL && *text != '\0')
        json_array_insert(c->messages, 0, message);
    json_decref(message);
    c->stale = true;
    return 0;
}

int waste_chat_save(const struct waste_chat *c, const char *path, struct waste_error *err)
{
    json_t *root = json_pack("{s:O, s:b}", "messages", c->messages, "thinking",
                             (int)waste_engine_thinks(&c->e));
    char beside[4096];
    FILE *f;
    int ret = 0;

    if (root != NULL && json_array_size(c->images) > 0)
        json_object_set(root, "image_prompts", c->images);
    /* beside it first: an old file is lost only to a whole new one */
    snprintf(beside, sizeof(beside), "%s.new", path);
    f = fopen(beside, "wbe");
    if (f == NULL || root == NULL)
        ret = f == NULL ? -errno : -ENOMEM;
    if (ret == 0 && (json_dumpf(root, f, JSON_INDENT(1)) != 0 || fputc('\n', f) == EOF))
        ret = -EIO;
    if (f != NULL && fclose(f) != 0 && ret == 0)
        ret = -errno;
    if (ret == 0 && rename(beside, path) != 0)
        ret = -errno;
    if (ret < 0 && f != NULL)
        unlink(beside);
    json_decref(root);
    return ret < 0 ? waste_error_set(err, ret, "cannot write %s: %s", path, strerror(-ret)) : 0;
}

/* The whole of it is checked before anything is given up. */
static int adopt(struct waste_chat *c, json_t *root, const char *path, struct waste_error *err)
{
    json_t *messages = json_object_get(root, "messages");
    json_t *images = json_object_get(root, "image_prompts");
    struct waste_ids ids = {0};
    json_t *none = json_array();
    struct waste_error why;
    int ret = encode(c, messages, images != NULL ? images : none, &ids, &why);

    waste_ids_finish(&ids);
    if (ret < 0) {
        json_decref(none);
        return waste_error_set(err, ret, "%s: %s", path, why.text);
    }
    json_decref(c->messages);
    json_decref(c->images);
    c->messages = json_incref(messages);
    c->images = images != NULL ? json_incref(images) : json_incref(none);
    json_array_clear(c->attached);
    json_decref(none);
    c->stale = true;
    return 0;
}

int waste_chat_load(struct waste_chat *c, const char *path, struct waste_error *err)
{
    json_error_t where;
    json_t *root = json_load_file(path, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &where);
    int ret;

    if (root == NULL && json_error_code(&where) == json_error_cannot_open_file)
        return waste_error_set(err, -ENOENT, "cannot read %s: %s", path, strerror(errno));
    if (root == NULL)
        return waste_error_set(err, -EINVAL, "%s: line %d: %s", path, where.line, where.text);
    if (json_is_array(root))
        root = json_pack("{s:o}", "messages", root);
    if (!json_is_array(json_object_get(root, "messages")))
        ret = waste_error_set(err, -EINVAL, "%s: messages: missing or not an array", path);
    else
        ret = adopt(c, root, path, err);
    json_decref(root);
    return ret;
}

#include "cli/talk.h"

#include <errno.h>
#include <string.h>

int waste_talk_init(struct waste_talk *t)
{
    *t = (struct waste_talk){
        .messages = json_array(), .images = json_array(), .attached = json_array()};
    return t->messages != NULL && t->images != NULL && t->attached != NULL ? 0 : -ENOMEM;
}

void waste_talk_finish(struct waste_talk *t)
{
    json_decref(t->messages);
    json_decref(t->images);
    json_decref(t->attached);
    waste_ids_finish(&t->ids);
}

/* ---- messages to ids ---- */

static bool has_role(const json_t *message, const char *role)
{
    const char *is = json_string_value(json_object_get(message, "role"));

    return is != NULL && strcmp(is, role) == 0;
}

/* Appends what messages (an array) become; opened: and the beginning of a reply. */
static int encode(const struct waste_engine *e, json_t *messages, json_t *images, bool opened,
                  struct waste_ids *out, struct waste_error *err)
{
    json_t *root =
        json_pack("{s:O, s:O, s:b, s:b}", "messages", messages, "image_prompts", images, "thinking",
                  (int)waste_engine_thinks(e), "add_generation_prompt", (int)opened);
    struct waste_conversation *conversation = NULL;
    struct waste_segments segments = {0};
    int ret = root == NULL ? waste_error_set(err, -ENOMEM, "out of memory")
                           : waste_conversation_make(root, &conversation, err);

    if (ret == 0)
        ret = waste_markup_render(e->markup, conversation, &segments, err);
    if (ret == 0 && waste_segments_encode(&segments, e->tokenizer, out) != 0)
        ret = waste_error_set(err, -ENOMEM, "out of memory");
    waste_segments_finish(&segments);
    waste_conversation_destroy(conversation);
    json_decref(root);
    return ret;
}

/* A mark where the tokens of these messages end, if `whole` goes on with the rest behind them and
 * the last of the messages (`newest`, NULL: all of them) is worth it. */
static bool mark(const struct waste_engine *e, json_t *messages, json_t *images, json_t *newest,
                 json_t *its_images, const struct waste_ids *whole, size_t at,
                 struct waste_marks *marks)
{
    struct waste_ids part = {0}, last = {0};
    struct waste_error err;
    unsigned before = marks->count;

    if (encode(e, messages, images, false, &part, &err) == 0 && at + part.count < whole->count &&
        memcmp(whole->id + at, part.id, part.count * sizeof(*part.id)) == 0 &&
        (newest == NULL || encode(e, newest, its_images, false, &last, &err) == 0))
        waste_marks_add(marks, at + part.count, newest != NULL ? last.count : part.count);
    waste_ids_finish(&part);
    waste_ids_finish(&last);
    return marks->count > before;
}

/* `alone`: the newest message. */
static int encode_anew(const struct waste_talk *t, const struct waste_engine *e, json_t *alone,
                       struct waste_ids *out, struct waste_marks *marks, struct waste_error *err)
{
    json_t *first = json_array_get(t->messages, 0), *none = json_array();
    json_t *system = has_role(first, "system") ? json_pack("[O]", first) : NULL;
    int ret = encode(e, t->messages, t->images, true, out, err);

    if (ret == 0 && system != NULL && none != NULL)
        marks->lasting = mark(e, system, none, NULL, NULL, out, 0, marks);
    if (ret == 0)
        mark(e, t->messages, t->images, alone, t->attached, out, 0, marks);
    json_decref(system);
    json_decref(none);
    return ret;
}

/* The newest question once more, behind the very tokens that were before it; they become *out's. */
static void encode_again(struct waste_talk *t, const struct waste_engine *e, struct waste_ids *out,
                         struct waste_marks *marks)
{
    json_t *first = json_array_get(t->messages, 0), *none = json_array();
    json_t *system = has_role(first, "system") ? json_pack("[O]", first) : NULL;

    *out = t->ids;
    t->ids = (struct waste_ids){0};
    if (t->turn.at == 0)
        *marks = t->turn.marks;
    else if (system != NULL && none != NULL)
        marks->lasting = mark(e, system, none, NULL, NULL, out, 0, marks);
    for (unsigned i = 0; t->turn.at > 0 && i < t->turn.marks.count; i++)
        waste_marks_add(marks, t->turn.at + t->turn.marks.at[i], WASTE_MARK_LEAST);
    json_decref(system);
    json_decref(none);
}

/* Behind the end of the newest reply. */
static int encode_newest(const struct waste_talk *t, const struct waste_engine *e, json_t *alone,
                         struct waste_ids *out, struct waste_marks *marks, struct waste_error *err)
{
    int ret = waste_markup_close(e->markup, t->ids.id, t->ids.count, t->generated, out);
    size_t closing = out->count;

    ret = ret < 0 ? waste_error_set(err, ret, "out of memory")
                  : encode(e, alone, t->attached, true, out, err);
    if (ret == 0)
        mark(e, alone, t->attached, NULL, NULL, out, closing, marks);
    return ret;
}

bool waste_talk_is_anew(const struct waste_talk *t)
{
    return t->stale || t->ids.count == 0;
}

int waste_talk_encode(struct waste_talk *t, const struct waste_engine *e, struct waste_ids *out,
                      struct waste_marks *marks, struct waste_error *err)
{
    json_t *alone = json_pack("[O]", json_array_get(t->messages, json_array_size(t->messages) - 1));
    bool thinks = waste_engine_thinks(e), again = t->again && t->turn.thinks == thinks;
    int ret = 0;

    t->again = false;
    *marks = (struct waste_marks){0};
    if (alone == NULL)
        return waste_error_set(err, -ENOMEM, "out of memory");
    if (waste_talk_is_anew(t)) {
        if (again)
            encode_again(t, e, out, marks);
        waste_ids_finish(&t->ids);
        t->generated = 0;
        t->stale = true; /* until all of it was asked */
        if (!again)
            ret = encode_anew(t, e, alone, out, marks, err);
    } else {
        ret = encode_newest(t, e, alone, out, marks, err);
    }
    t->turn.known = ret == 0;
    t->turn.thinks = thinks;
    t->turn.at = t->ids.count;
    t->turn.marks = *marks;
    json_decref(alone);
    return ret;
}

int waste_talk_asked(struct waste_talk *t, const struct waste_ids *turn)
{
    t->stale = false;
    json_array_clear(t->attached);
    return waste_ids_append(&t->ids, turn->id, turn->count);
}

int waste_talk_answered(struct waste_talk *t, const struct waste_ids *reply, json_t *message)
{
    t->generated = reply->count;
    if (waste_ids_append(&t->ids, reply->id, reply->count) != 0 || message == NULL)
        return -ENOMEM;
    return json_array_append(t->messages, message) == 0 ? 0 : -ENOMEM;
}

/* ---- messages ---- */

int waste_talk_ask(struct waste_talk *t, const char *text, size_t bytes)
{
    size_t images = json_array_size(t->attached);
    json_t *words = json_stringn(text, bytes), *content = words;

    if (words == NULL)
        return -EINVAL;
    if (images > 0)
        content = json_array();
    for (size_t i = 0; i < images; i++)
        json_array_append_new(content, json_pack("{s:s}", "type", "image_url"));
    if (images > 0)
        json_array_append_new(content, json_pack("{s:s, s:o}", "type", "text", "text", words));
    json_array_extend(t->images, t->attached);
    t->newest_images = images;
    return json_array_append_new(t->messages,
                                 json_pack("{s:s, s:o}", "role", "user", "content", content)) == 0
               ? 0
               : -ENOMEM;
}

void waste_talk_take_back(struct waste_talk *t)
{
    json_array_remove(t->messages, json_array_size(t->messages) - 1);
    json_array_clear(t->attached);
    for (size_t at = json_array_size(t->images) - t->newest_images; t->newest_images > 0;
         t->newest_images--) {
        json_array_append(t->attached, json_array_get(t->images, at));
        json_array_remove(t->images, at);
    }
}

bool waste_talk_take_back_reply(struct waste_talk *t)
{
    size_t count = json_array_size(t->messages);

    if (count > 0 && has_role(json_array_get(t->messages, count - 1), "assistant")) {
        json_array_remove(t->messages, --count);
        t->again = !waste_talk_is_anew(t) && t->turn.known;
        t->ids.count -= t->again ? t->generated : 0;
    }
    t->stale = true;
    t->newest_images = 0;
    return count > 0 && !has_role(json_array_get(t->messages, count - 1), "system");
}

void waste_talk_reset(struct waste_talk *t)
{
    json_t *first = json_incref(json_array_get(t->messages, 0));

    json_array_clear(t->messages);
    json_array_clear(t->images);
    json_array_clear(t->attached);
    if (first != NULL && has_role(first, "system"))
        json_array_append(t->messages, first);
    json_decref(first);
    t->stale = true;
}

int waste_talk_system(struct waste_talk *t, const char *text)
{
    json_t *message =
        json_pack("{s:s, s:s}", "role", "system", "content", text != NULL ? text : "");
    json_t *first = json_array_get(t->messages, 0);

    if (message == NULL)
        return -EINVAL;
    if (!json_equal(first, message)) {
        if (has_role(first, "system"))
            json_array_remove(t->messages, 0);
        if (text != NULL && *text != '\0')
            json_array_insert(t->messages, 0, message);
        t->stale = true;
    }
    json_decref(message);
    return 0;
}

json_t *waste_talk_json(const struct waste_talk *t, bool thinking)
{
    json_t *root = json_pack("{s:O, s:b}", "messages", t->messages, "thinking", (int)thinking);

    if (root != NULL && json_array_size(t->images) > 0)
        json_object_set(root, "image_prompts", t->images);
    return root;
}

int waste_talk_adopt(struct waste_talk *t, const struct waste_engine *e, json_t *root,
                     struct waste_error *err)
{
    json_t *messages = json_object_get(root, "messages");
    json_t *images = json_object_get(root, "image_prompts");
    struct waste_ids ids = {0};
    json_t *none = json_array();
    int ret;

    images = json_incref(images != NULL ? images : none);
    ret = json_is_array(messages)
              ? encode(e, messages, images, true, &ids, err)
              : waste_error_set(err, -EINVAL, "messages: missing or not an array");
    waste_ids_finish(&ids);
    json_decref(none);
    if (ret < 0) {
        json_decref(images);
        return ret;
    }
    json_decref(t->messages);
    json_decref(t->images);
    t->messages = json_incref(messages);
    t->images = images;
    json_array_clear(t->attached);
    t->newest_images = 0;
    t->stale = true;
    return 0;
}

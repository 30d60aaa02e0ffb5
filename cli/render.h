/*
 * Conversations as the segments of a chat format. Tokens play no part here: markup.h knows which
 * format a model speaks, segments.h makes ids.
 *
 * Each function appends; a lack of memory is noted in the segments.
 */
#ifndef WASTE_CLI_RENDER_H
#define WASTE_CLI_RENDER_H

#include "cli/conversation.h"
#include "cli/segments.h"

/*
 * Kimi K3. A message is <|open|>message role="user"<|sep|> ... <|close|>message<|sep|>
 * <|end_of_msg|>; within an assistant's, the channels think, response and tools are tags of the
 * same kind, and so are a call and its arguments.
 *
 * An attribute holds any text: in it " is written &quot;, and & is written &amp; where &quot; or
 * &amp; would be read otherwise.
 */
void waste_render_xtml(const struct waste_conversation *c, struct waste_segments *out);

/* One message alone. `thinking`: an assistant's message has the channel even when it is empty. */
void waste_render_xtml_message(const struct waste_message *m, bool thinking,
                               struct waste_segments *out);

/* The beginning of the assistant's reply. */
void waste_render_xtml_reply(bool thinking, struct waste_segments *out);

/* A message's content, in every format. */
void waste_render_content(const struct waste_message *m, struct waste_segments *out);

/*
 * Kimi-Linear: <|im_user|>name<|im_middle|>text<|im_end|>, a name being the role where there is
 * none. It has no thinking channel, no effort, no response format and no tool choice. 0, or -EINVAL
 * when the conversation has one of them to say.
 */
int waste_render_chatml(const struct waste_conversation *c, struct waste_segments *out,
                        struct waste_error *err);
void waste_render_chatml_message(const struct waste_message *m, struct waste_segments *out);
void waste_render_chatml_reply(struct waste_segments *out);

#endif

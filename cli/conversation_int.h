/* What the two files of conversation.h share. */
#ifndef WASTE_CLI_CONVERSATION_INT_H
#define WASTE_CLI_CONVERSATION_INT_H

#include "cli/conversation.h"

/* `object`'s tools, checked; *out stays as it is if there are none. */
int waste_conversation_tools(struct waste_place *at, const json_t *object, const json_t **out);

/* c->root's messages. 0, -EINVAL or -ENOMEM. */
int waste_conversation_messages(struct waste_conversation *c, struct waste_place *at);

#endif

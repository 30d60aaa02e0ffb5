#include "fetcher/chat.h"

#include <stdbool.h>
#include <string.h>

/* Kimi K3's XTML */
static const char xtml[] =
    "{\n"
    " \"system\": [\"<|open|>message role=\\\"system\\\"<|sep|>\","
    " \"<|close|>message<|sep|><|end_of_msg|>\"],\n"
    " \"user\": [\"<|open|>message role=\\\"user\\\"<|sep|>\","
    " \"<|close|>message<|sep|><|end_of_msg|>\"],\n"
    " \"assistant\": [\"<|open|>message role=\\\"assistant\\\"<|sep|><|open|>response<|sep|>\","
    " \"<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>\"],\n"
    " \"open\": \"<|open|>message role=\\\"assistant\\\"<|sep|><|open|>response<|sep|>\"\n"
    "}\n";

/* Kimi-Linear's ChatML */
static const char chatml[] =
    "{\n"
    " \"system\": [\"<|im_system|>system<|im_middle|>\", \"<|im_end|>\"],\n"
    " \"user\": [\"<|im_user|>user<|im_middle|>\", \"<|im_end|>\"],\n"
    " \"assistant\": [\"<|im_assistant|>assistant<|im_middle|>\", \"<|im_end|>\"],\n"
    " \"open\": \"<|im_assistant|>assistant<|im_middle|>\"\n"
    "}\n";

static bool has(const json_t *specials, const char *text)
{
    size_t i;
    json_t *s;
    json_array_foreach(specials, i, s)
    {
        const char *have = json_string_value(json_object_get(s, "text"));
        if (have && !strcmp(have, text))
            return true;
    }
    return false;
}

const char *waste_chat_text(const json_t *specials)
{
    if (has(specials, "<|open|>") && has(specials, "<|close|>") && has(specials, "<|sep|>"))
        return xtml;
    if (has(specials, "<|im_user|>") && has(specials, "<|im_middle|>") &&
        has(specials, "<|im_end|>"))
        return chatml;
    return NULL;
}

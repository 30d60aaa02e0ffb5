#include "fetcher/texts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fetcher/chat.h"
#include "fetcher/io.h"

static const char *const specials[] = {
    "[BOS]",
    "[EOS]",
    "<|end_of_msg|>",
    "<|open|>",
    "<|close|>",
    "<|sep|>",
    "<|media_begin|>",
    "<|media_content|>",
    "<|media_end|>",
    "<|media_pad|>",
    "<|kimi_image_placeholder|>",
};
enum { SPECIALS = sizeof(specials) / sizeof(specials[0]), END_OF_MSG = 2 };

/* Ranks; the rest of the vocabulary, 256 ids in a real one, is special. */
static uint32_t rank_count(const struct waste_shape *s)
{
    return s->vocab - (s->vocab >= 65536 ? 256 : 16);
}

void waste_texts_set_ids(struct waste_shape *s)
{
    uint32_t first = rank_count(s);
    json_object_set_new(s->config, "bos_token_id", json_integer(first));
    json_object_set_new(s->config, "eos_token_id", json_integer(first + END_OF_MSG));
}

static void base64(char *out, const unsigned char *in, size_t n)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3, out += 4) {
        size_t left = n - i;
        unsigned v = in[i] << 16 | (left > 1 ? in[i + 1] << 8 : 0) | (left > 2 ? in[i + 2] : 0);
        out[0] = digit[v >> 18];
        out[1] = digit[v >> 12 & 63];
        out[2] = left > 1 ? digit[v >> 6 & 63] : '=';
        out[3] = left > 2 ? digit[v & 63] : '=';
    }
    *out = 0;
}

/*
 * Token `rank`: the bytes, then all words of two letters, of three, and so on; the first letter may
 * be a space. Each word is a shorter one and a letter, so byte pair merging reaches it.
 */
static size_t token_bytes(uint32_t rank, unsigned char out[16])
{
    if (rank < 256) {
        out[0] = (unsigned char)rank;
        return 1;
    }
    uint64_t n = rank - 256, words = 27 * 26;
    size_t length = 2;
    for (; n >= words; length++) {
        n -= words;
        words *= 26;
    }
    for (size_t i = length; i-- > 1; n /= 26)
        out[i] = (unsigned char)('a' + n % 26);
    out[0] = n ? (unsigned char)('a' + n - 1) : ' ';
    return length;
}

static int write_ranks(int dir, const char *name, uint32_t count)
{
    size_t room = (size_t)count * 40, used = 0;
    char *text = malloc(room);
    if (!text)
        return waste_fetch_fail("out of memory");
    for (uint32_t r = 0; r < count; r++) {
        unsigned char bytes[16];
        char code[28];
        base64(code, bytes, token_bytes(r, bytes));
        used += (size_t)snprintf(text + used, room - used, "%s %u\n", code, r);
    }
    int e = waste_io_write_file(dir, name, text, used);
    free(text);
    return e;
}

static int write_json(int dir, const char *name, json_t *value)
{
    char *text = value ? json_dumps(value, JSON_INDENT(1)) : NULL;
    int e = text ? waste_io_write_file(dir, name, text, strlen(text))
                 : waste_fetch_fail("out of memory");
    free(text);
    json_decref(value);
    return e;
}

int waste_texts_write(int dir, const struct waste_shape *s)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < SPECIALS; i++)
        json_array_append_new(
            list, json_pack("{s:i, s:s}", "id", (int)(rank_count(s) + i), "text", specials[i]));
    const char *chat = waste_chat_text(list);
    int e = write_json(dir, "specials.json", list);
    if (!e)
        e = waste_io_write_file(dir, "chat.json", chat, strlen(chat));
    return e ? e : write_ranks(dir, "tokenizer.model", rank_count(s));
}

int waste_texts_write_release(int dir, const struct waste_shape *s)
{
    json_t *added = json_object();
    for (uint32_t i = 0; i < SPECIALS; i++) {
        char id[16];
        snprintf(id, sizeof(id), "%u", rank_count(s) + i);
        json_object_set_new(added, id,
                            json_pack("{s:s, s:b}", "content", specials[i], "special", 1));
    }
    int first = (int)rank_count(s);
    int e = write_json(dir, "tokenizer_config.json",
                       json_pack("{s:o, s:s, s:s}", "added_tokens_decoder", added, "bos_token",
                                 specials[0], "eos_token", specials[END_OF_MSG]));
    if (!e)
        e = write_json(
            dir, "generation_config.json",
            json_pack("{s:i, s:i}", "bos_token_id", first, "eos_token_id", first + END_OF_MSG));
    return e ? e : write_ranks(dir, "tiktoken.model", rank_count(s));
}

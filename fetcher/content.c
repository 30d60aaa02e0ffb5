#include "fetcher/content.h"

#include <jansson.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fetcher/listing.h"

static bool ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), tail = strlen(end);

    return n >= tail && strcmp(name + n - tail, end) == 0;
}

/* Eight bytes of length, little-endian, and a JSON object. */
static const char *safetensors_fault(int fd, uint64_t bytes)
{
    unsigned char head[9];
    uint64_t length = 0;

    if (pread(fd, head, sizeof(head), 0) != (ssize_t)sizeof(head))
        return "is too short for safetensors";
    for (int i = 7; i >= 0; i--)
        length = length << 8 | head[i];
    return length < 2 || length > bytes - 8 || head[8] != '{' ? "is no safetensors file" : NULL;
}

static const char *json_fault(int fd, uint64_t bytes)
{
    if (bytes == 0 || bytes > WASTE_INDEX_BYTES)
        return bytes == 0 ? "is empty" : "is too large for JSON";
    void *text = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (text == MAP_FAILED)
        return "cannot be read";
    json_t *root = json_loadb(text, bytes, JSON_DECODE_ANY, NULL);
    munmap(text, bytes);
    json_decref(root);
    return root == NULL ? "is no JSON" : NULL;
}

const char *waste_content_fault(int fd, const char *name, uint64_t bytes)
{
    if (ends_in(name, ".safetensors"))
        return safetensors_fault(fd, bytes);
    return ends_in(name, ".json") ? json_fault(fd, bytes) : NULL;
}

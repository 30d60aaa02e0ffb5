#include "cli/image.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static uint32_t big_endian(const uint8_t *at, int bytes)
{
    uint32_t value = 0;

    for (int i = 0; i < bytes; i++)
        value = value << 8 | at[i];
    return value;
}

/* JPEG: a list of marked segments; the size is in the one that starts a frame. */
static int jpeg_size(FILE *f, uint32_t *width, uint32_t *height)
{
    uint8_t head[4], frame[5];

    if (fseek(f, 2, SEEK_SET) != 0)
        return -EINVAL;
    while (fread(head, 1, 4, f) == 4 && head[0] == 0xff) {
        bool starts_frame = head[1] >= 0xc0 && head[1] <= 0xcf && head[1] != 0xc4 &&
                            head[1] != 0xc8 && head[1] != 0xcc;
        long length = (long)big_endian(head + 2, 2);

        if (starts_frame) {
            if (fread(frame, 1, 5, f) != 5)
                return -EINVAL;
            *height = big_endian(frame + 1, 2);
            *width = big_endian(frame + 3, 2);
            return 0;
        }
        if (length < 2 || fseek(f, length - 2, SEEK_CUR) != 0)
            return -EINVAL;
    }
    return -EINVAL;
}

int waste_image_size(const char *path, uint32_t *width, uint32_t *height, struct waste_error *err)
{
    FILE *f = fopen(path, "rbe");
    uint8_t head[24] = {0};
    int ret = 0;

    if (f == NULL)
        return waste_error_set(err, -errno, "cannot read %s: %s", path, strerror(errno));
    size_t n = fread(head, 1, sizeof(head), f);
    if (n >= 24 && memcmp(head, "\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR", 16) == 0) {
        *width = big_endian(head + 16, 4);
        *height = big_endian(head + 20, 4);
    } else if (n >= 10 && memcmp(head, "GIF8", 4) == 0) {
        *width = head[6] | (uint32_t)head[7] << 8;
        *height = head[8] | (uint32_t)head[9] << 8;
    } else if (n >= 4 && head[0] == 0xff && head[1] == 0xd8) {
        ret = jpeg_size(f, width, height);
    } else {
        ret = -EINVAL;
    }
    fclose(f);
    if (ret == 0 && (*width == 0 || *height == 0))
        ret = -EINVAL;
    return ret < 0 ? waste_error_set(err, ret, "%s: no PNG, GIF or JPEG image", path) : 0;
}

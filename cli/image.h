/* How large an image is: what its placeholder in a conversation says. */
#ifndef WASTE_CLI_IMAGE_H
#define WASTE_CLI_IMAGE_H

#include <stdint.h>

#include "reader/container.h"

/* Reads the head of a PNG, GIF or JPEG file. 0 or -errno with err. */
int waste_image_size(const char *path, uint32_t *width, uint32_t *height, struct waste_error *err);

#endif

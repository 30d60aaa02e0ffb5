/* Random data, guarded memory and the formats read in double precision. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/kernels/kernels_test.h"

static uint64_t state = 1;

void test_seed(uint64_t seed)
{
    state = seed * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < 8; i++)
        test_random();
}

uint64_t test_random(void)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545f4914f6cdd1du;
}

uint32_t test_below(uint32_t limit)
{
    return (uint32_t)((test_random() >> 32) * limit >> 32);
}

static double uniform(void)
{
    return ((double)(test_random() >> 11) + 0.5) * 0x1p-53;
}

float test_gauss(void)
{
    return (float)(sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform()));
}

void test_fill_bytes(void *p, size_t bytes)
{
    uint8_t *b = p;
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t v = test_random();
        memcpy(b + i, &v, bytes - i < 8 ? bytes - i : 8);
    }
}

uint16_t test_float_to_half(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000, mantissa = (bits & 0x7fffff) | 0x800000;
    int exponent = (int)(bits >> 23 & 255) - 112;
    if (exponent >= 31)
        return (uint16_t)(sign | 0x7bff);
    if (exponent <= 0)
        return (uint16_t)(exponent < -10 ? sign : sign | mantissa >> (14 - exponent));
    return (uint16_t)(sign | (uint32_t)exponent << 10 | (mantissa >> 13 & 1023));
}

double test_half_to_double(uint16_t h)
{
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    double v = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    return h & 0x8000 ? -v : v;
}

enum { MARGIN = 256, MAX_BLOCKS = 256 };
static struct block {
    uint8_t *map, *data;
    size_t map_bytes, bytes, tail;
} blocks[MAX_BLOCKS];
static size_t block_count;

static uint8_t canary(size_t i)
{
    return (uint8_t)(i * 37 + 11);
}

void *test_alloc(size_t bytes, size_t align)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), body = (bytes + align - 1) / align * align;
    struct block *b = &blocks[block_count++];
    if (block_count > MAX_BLOCKS)
        abort();
    size_t mapped = (body + MARGIN + page - 1) / page * page;
    b->map_bytes = mapped + page;
    b->map = mmap(NULL, b->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b->map == MAP_FAILED || mprotect(b->map + mapped, page, PROT_NONE) != 0) {
        perror("mmap");
        exit(1);
    }
    b->data = b->map + mapped - body;
    b->bytes = bytes;
    b->tail = body - bytes;
    for (size_t i = 0; i < MARGIN; i++)
        b->data[-1 - (ptrdiff_t)i] = canary(i);
    for (size_t i = 0; i < b->tail; i++)
        b->data[bytes + i] = canary(i);
    memset(b->data, 0x7f, bytes); /* a float nobody computes: 3.4e38 */
    return b->data;
}

bool test_guard_ok(const void *p)
{
    for (size_t n = 0; n < block_count; n++) {
        const struct block *b = &blocks[n];
        if (b->data != p)
            continue;
        for (size_t i = 0; i < MARGIN; i++)
            if (b->data[-1 - (ptrdiff_t)i] != canary(i))
                return false;
        for (size_t i = 0; i < b->tail; i++)
            if (b->data[b->bytes + i] != canary(i))
                return false;
        return true;
    }
    return false;
}

void test_free_all(void)
{
    while (block_count > 0) {
        block_count--;
        munmap(blocks[block_count].map, blocks[block_count].map_bytes);
    }
}

static uint16_t random_scale(void)
{
    if (test_below(8) == 0)
        return (uint16_t)test_below(1024); /* subnormal, or zero */
    return test_float_to_half((float)(0.02 * (0.5 + uniform())));
}

static uint64_t row_bytes(uint32_t fmt, uint32_t cols, uint32_t groups)
{
    switch (fmt) {
    case WASTE_FMT_Q8G:
        return (uint64_t)groups * 128;
    case WASTE_FMT_Q4G:
        return (uint64_t)groups * 64;
    case WASTE_FMT_Q3G:
        return (uint64_t)groups * 48 + 1;
    default:
        return (uint64_t)cols * 4;
    }
}

struct waste_matrix test_matrix(uint32_t fmt, uint32_t rows, uint32_t cols)
{
    uint32_t groups = fmt == WASTE_FMT_F32 ? 0 : (cols + 127) / 128;
    struct waste_matrix w = {.row_bytes = row_bytes(fmt, cols, groups),
                             .rows = rows,
                             .cols = cols,
                             .groups = groups,
                             .fmt = fmt};
    size_t bytes = rows * w.row_bytes;
    uint8_t *data = test_alloc(bytes + 64, 64);
    w.data = data;
    if (fmt == WASTE_FMT_F32) {
        float *f = (float *)data;
        for (size_t i = 0; i < (size_t)rows * cols; i++)
            f[i] = test_gauss();
        return w;
    }
    test_fill_bytes(data, bytes);
    uint16_t *scales = test_alloc((size_t)rows * groups * 2, 2);
    for (size_t i = 0; i < (size_t)rows * groups; i++)
        scales[i] = random_scale();
    w.scales = scales;
    return w;
}

static int stored_integer(uint32_t fmt, const uint8_t *row, uint32_t c)
{
    if (fmt == WASTE_FMT_Q8G)
        return (int8_t)row[c];
    if (fmt == WASTE_FMT_Q4G)
        return (c % 2 ? row[c / 2] >> 4 : row[c / 2] & 15) - 8;
    uint32_t value = 0; /* Q3G, bit by bit */
    for (uint32_t i = 0; i < 3; i++)
        value |= (uint32_t)(row[(3 * c + i) / 8] >> (3 * c + i) % 8 & 1) << i;
    return (int)value - 4;
}

double test_matrix_at(const struct waste_matrix *w, uint32_t r, uint32_t c)
{
    const uint8_t *row = w->data + r * w->row_bytes;
    if (w->fmt == WASTE_FMT_F32)
        return ((const float *)row)[c];
    return test_half_to_double(w->scales[(size_t)r * w->groups + c / 128]) *
           stored_integer(w->fmt, row, c);
}

struct test_vq test_vq(uint32_t fmt, uint32_t rows, uint32_t positions)
{
    static const float stage_norm[4] = {0.84f, 0.46f, 0.25f, 0.14f};
    struct test_vq m = {.fmt = fmt, .rows = rows, .positions = positions};
    m.stages = fmt == WASTE_FMT_VQ3R ? 3 : fmt == WASTE_FMT_VQ2R ? 2 : 4;
    m.entries = fmt == WASTE_FMT_VQ4P ? 64 : 256;
    m.index_bytes = fmt == WASTE_FMT_VQ2R ? 2 : 3;
    m.books = test_alloc((size_t)m.stages * m.entries * 8 * sizeof(float), 4);
    for (uint32_t i = 0; i < m.stages * m.entries * 8; i++)
        m.books[i] = (float)test_half_to_double(
            test_float_to_half(test_gauss() * stage_norm[i / (m.entries * 8)]));
    size_t bytes = (size_t)((rows + 63) / 64) * 64 * positions * m.index_bytes;
    m.index = test_alloc(bytes, 16); /* in a record they start 48 bytes into a page */
    test_fill_bytes(m.index, bytes);
    m.scales = test_alloc(2 * (size_t)rows + 1, 1);
    m.scales++;
    for (uint32_t r = 0; r < rows; r++) {
        uint16_t h = random_scale();
        memcpy(m.scales + 2 * (size_t)r, &h, 2);
    }
    return m;
}

double test_vq_at(const struct test_vq *m, uint32_t r, uint32_t c)
{
    const uint8_t *q = m->index + (((size_t)(r / 64) * m->positions + c / 8) * 64 + r % 64) *
                                      (size_t)m->index_bytes;
    double sum = 0;
    for (uint32_t s = 0; s < m->stages; s++) {
        uint32_t entry = q[s < 3 ? s : 2];
        if (m->fmt == WASTE_FMT_VQ4P) {
            const uint32_t field[4] = {q[0] & 63u, q[0] >> 6 | (q[1] & 15u) << 2,
                                       q[1] >> 4 | (q[2] & 3u) << 4, q[2] >> 2};
            entry = field[s];
        }
        sum += m->books[((size_t)s * m->entries + entry) * 8 + c % 8];
    }
    return sum;
}

double test_vq_scale(const struct test_vq *m, uint32_t r)
{
    uint16_t h;
    memcpy(&h, m->scales + 2 * (size_t)r, 2);
    return test_half_to_double(h);
}

const char *test_fmt_name(uint32_t fmt)
{
    static const char *const names[WASTE_FMT_COUNT] = {
        [WASTE_FMT_F32] = "f32",   [WASTE_FMT_Q8G] = "q8g",   [WASTE_FMT_Q4G] = "q4g",
        [WASTE_FMT_Q3G] = "q3g",   [WASTE_FMT_VQ3R] = "vq3r", [WASTE_FMT_VQ2R] = "vq2r",
        [WASTE_FMT_VQ4P] = "vq4p",
    };
    return names[fmt];
}

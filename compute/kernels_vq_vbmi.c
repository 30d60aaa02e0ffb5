/*
 * Vector-quantised products with AVX-512 VBMI: a table of 256 bytes is four registers, and two
 * vpermi2b look 64 indices up in it.
 *
 * Per position and stage, the dot products of x with all entries are rounded to 24 bits with one
 * scale for a group of GROUP positions, biased to be unsigned and cut into three byte planes, each
 * a table. Looked-up bytes add up exactly in 16-bit lanes; once a group the planes join to int32
 * and become float with the group's scale. What is lost is the rounding of the 24-bit entries.
 *
 * The bytes of the index block are used where they lie: lane j of stage 0 holds the byte j, j + 64
 * or j + 128 of the 192 that is a multiple of 3, so lane 3 r mod 64 belongs to row r. acc keeps
 * that order, split into even and odd lanes by the 16-bit sums; vq_finish undoes it.
 */
#include <immintrin.h>
#include <math.h>

#include "compute/kernels_int.h"

typedef __m512i vi;
typedef __m512 vf;

enum {
    GROUP = 8,   /* positions of one scale: 18 KiB of VQ3R tables, what L1 holds beside the rest */
    PLANES = 3,  /* bytes of an entry */
    HEADER = 64, /* before the planes of a group, and before the books of a prep */
};

/* Entries stay below 2^23 by a margin that covers the rounding of the bound itself. */
static const float entry_limit = 8388000.0f;

/* f(0), f(1), .. f(63) */
#define LIST_8(f, i)                                                                               \
    f((i)), f((i) + 1), f((i) + 2), f((i) + 3), f((i) + 4), f((i) + 5), f((i) + 6), f((i) + 7)
#define LIST_64(f)                                                                                 \
    LIST_8(f, 0), LIST_8(f, 8), LIST_8(f, 16), LIST_8(f, 24), LIST_8(f, 32), LIST_8(f, 40),        \
        LIST_8(f, 48), LIST_8(f, 56)
#define BYTE_CONSTANT(name, f)                                                                     \
    static const uint8_t name[64] __attribute__((aligned(64))) = {LIST_64(f)}

/* Lanes whose stage-0 byte comes from the second and the third of three loads. */
static const uint64_t from_second = 0x4924924924924924u, from_third = 0x2492492492492492u;

#define ROTATE_1(j) ((j) + 1) & 63
#define ROTATE_2(j) ((j) + 2) & 63
BYTE_CONSTANT(rotate_1, ROTATE_1);
BYTE_CONSTANT(rotate_2, ROTATE_2);

/* VQ2R: lane j is row 43 j mod 64 (3 * 43 = 1 mod 64), two bytes a row. */
#define PAIR_FIRST(j) 2 * (((j)*43) & 63)
#define PAIR_SECOND(j) 2 * (((j)*43) & 63) + 1
BYTE_CONSTANT(pair_first, PAIR_FIRST);
BYTE_CONSTANT(pair_second, PAIR_SECOND);

/* Bytes 0 and 1 (low and high half), or byte 2 (low half), of 32 dwords in two registers. */
#define LOW_PLANES(j) ((j)&31) * 4 + (j) / 32
#define HIGH_PLANE(j) ((j)&31) * 4 + 2
BYTE_CONSTANT(low_planes, LOW_PLANES);
BYTE_CONSTANT(high_plane, HIGH_PLANE);

/* Makes the compiler keep a value in a register, where it would repeat a load in every use. */
static inline vi pin(vi v)
{
    __asm__("" : "+v"(v));
    return v;
}

static inline uint32_t position_bytes(struct waste_vq_shape s)
{
    return s.stages * PLANES * s.entries;
}

static inline uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* A float (the largest norm of an entry), then the books as [stage][dimension][entry]. */
static size_t vq_prep_bytes(uint32_t fmt)
{
    struct waste_vq_shape s = waste_vq_shape(fmt);
    return HEADER + (size_t)s.stages * s.entries * WASTE_VEC_DIM * sizeof(float);
}

static inline void prep_any(void *prep, const float *books, struct waste_vq_shape s)
{
    float *out = (float *)((char *)prep + HEADER), largest = 1e-20f;
    for (uint32_t e = 0; e < s.stages * s.entries; e++) {
        float square = 0;
        for (uint32_t d = 0; d < WASTE_VEC_DIM; d++) {
            float v = books[e * WASTE_VEC_DIM + d];
            square += v * v;
            out[(e / s.entries * WASTE_VEC_DIM + d) * s.entries + e % s.entries] = v;
        }
        if (!(sqrtf(square) <= largest)) /* NaN counts, and then stays */
            largest = sqrtf(square);
    }
    *(float *)prep = largest;
}

/* Groups, each a float (its step) and its positions' planes: [position][stage][plane][entry]. */
static size_t vq_table_bytes(uint32_t fmt, uint32_t positions)
{
    return (size_t)(positions + GROUP - 1) / GROUP * HEADER +
           (size_t)positions * position_bytes(waste_vq_shape(fmt));
}

/*
 * Scales n positions of x so that no entry's product reaches 2^23, padded with zeros, and returns
 * what a unit is worth. By Cauchy-Schwarz; in two factors, so that neither overflows. NaN or
 * infinity in x makes the step NaN, and with it everything that joins acc.
 */
static float scale_group(float *scaled, const float *x, uint32_t n, float book_norm)
{
    vf v[GROUP / 2], largest = _mm512_setzero_ps(), square = _mm512_setzero_ps();
    __mmask16 finite = 0xffff;
    for (uint32_t i = 0; i < GROUP / 2; i++) {
        uint32_t left = n > 2 * i ? min_u32(n - 2 * i, 2) * WASTE_VEC_DIM : 0;
        v[i] = _mm512_maskz_loadu_ps((__mmask16)((1u << left) - 1), x + 16 * i);
        finite &= (__mmask16)~_mm512_fpclass_ps_mask(v[i], 0x99); /* not NaN, +-infinity */
        largest = _mm512_max_ps(largest, _mm512_abs_ps(v[i]));
    }
    float top = _mm512_reduce_max_ps(largest);
    if (top < 0x1p-126f)
        top = 0x1p-126f;
    for (uint32_t i = 0; i < GROUP / 2; i++) {
        v[i] = _mm512_mul_ps(v[i], _mm512_set1_ps(1 / top));
        vf s = _mm512_mul_ps(v[i], v[i]); /* sums of 8 by butterflies */
        s = _mm512_add_ps(s, _mm512_permute_ps(s, 0xb1));
        s = _mm512_add_ps(s, _mm512_permute_ps(s, 0x4e));
        s = _mm512_add_ps(s, _mm512_shuffle_f32x4(s, s, 0xb1));
        square = _mm512_max_ps(square, s);
    }
    float norm = sqrtf(fmaxf(_mm512_reduce_max_ps(square), 0x1p-20f)) * book_norm;
    for (uint32_t i = 0; i < GROUP / 2; i++)
        _mm512_store_ps(scaled + 16 * i, _mm512_mul_ps(v[i], _mm512_set1_ps(entry_limit / norm)));
    return finite == 0xffff ? top * (norm / entry_limit) : NAN;
}

/* 64 entries in four registers of int32 to one register a plane, `plane_bytes` apart. */
WASTE_INLINE void store_planes(uint8_t *out, uint32_t plane_bytes, const vi z[4])
{
    const vi low = _mm512_load_si512(low_planes), high = _mm512_load_si512(high_plane);
    vi a = _mm512_permutex2var_epi8(z[0], low, z[1]), b = _mm512_permutex2var_epi8(z[2], low, z[3]);
    vi c = _mm512_permutex2var_epi8(z[0], high, z[1]);
    vi d = _mm512_permutex2var_epi8(z[2], high, z[3]);
    vi top = _mm512_inserti64x4(c, _mm512_castsi512_si256(d), 1);
    _mm512_store_si512(out, _mm512_shuffle_i64x2(a, b, 0x44));
    _mm512_store_si512(out + plane_bytes, _mm512_shuffle_i64x2(a, b, 0xee));
    _mm512_store_si512(out + 2 * plane_bytes, _mm512_xor_si512(top, _mm512_set1_epi8(-128)));
}

/* Two positions at a time, so that a load of the books serves both. An odd last one has no second:
 * both go to the same place, the real one last. */
WASTE_INLINE void build_pair(uint8_t *out, uint8_t *second, const float *books, const float *x,
                             struct waste_vq_shape s)
{
    vf x0[WASTE_VEC_DIM], x1[WASTE_VEC_DIM];
    for (uint32_t d = 0; d < WASTE_VEC_DIM; d++) {
        x0[d] = _mm512_set1_ps(x[d]);
        x1[d] = _mm512_set1_ps(x[WASTE_VEC_DIM + d]);
    }
    for (uint32_t stage = 0; stage < s.stages; stage++)
        for (uint32_t e = 0; e < s.entries; e += 64) {
            const float *b = books + stage * WASTE_VEC_DIM * s.entries + e;
            vi z0[4], z1[4];
#pragma GCC unroll 4
            for (uint32_t i = 0; i < 4; i++) {
                vf v = _mm512_load_ps(b + 16 * i);
                vf a0 = _mm512_mul_ps(v, x0[0]), a1 = _mm512_mul_ps(v, x1[0]);
#pragma GCC unroll 8
                for (uint32_t d = 1; d < WASTE_VEC_DIM; d++) {
                    v = _mm512_load_ps(b + d * s.entries + 16 * i);
                    a0 = _mm512_fmadd_ps(v, x0[d], a0);
                    a1 = _mm512_fmadd_ps(v, x1[d], a1);
                }
                z0[i] = _mm512_cvtps_epi32(a0);
                z1[i] = _mm512_cvtps_epi32(a1);
            }
            uint32_t at = stage * PLANES * s.entries + e;
            store_planes(second + at, s.entries, z1);
            store_planes(out + at, s.entries, z0);
        }
}

WASTE_INLINE void tables_any(void *tables, const void *prep, const float *x, uint32_t positions,
                             struct waste_vq_shape s)
{
    const float *books = (const float *)((const char *)prep + HEADER);
    uint8_t *out = tables;
    for (uint32_t p = 0; p < positions; p += GROUP) {
        float scaled[GROUP * WASTE_VEC_DIM] __attribute__((aligned(64)));
        uint32_t n = min_u32(GROUP, positions - p);
        *(float *)out = scale_group(scaled, x + (size_t)p * WASTE_VEC_DIM, n, *(const float *)prep);
        out += HEADER;
        for (uint32_t q = 0; q < n; q += 2) {
            uint8_t *first = out + q * position_bytes(s);
            build_pair(first, q + 1 < n ? first + position_bytes(s) : first, books,
                       scaled + q * WASTE_VEC_DIM, s);
        }
        out += n * position_bytes(s);
    }
}

/* Sums of looked-up bytes: `all` has both bytes of a 16-bit lane (modulo 2^16), `odd` the upper. */
struct plane_sums {
    vi all[PLANES], odd[PLANES];
};

/* The bias of n biased entries a row, taken off the top plane beforehand. */
WASTE_INLINE void sums_start(struct plane_sums *sums, uint32_t n)
{
    for (uint32_t i = 0; i < PLANES; i++)
        sums->all[i] = sums->odd[i] = _mm512_setzero_si512();
    vi bias = _mm512_set1_epi16((short)-(int)(n * 128));
    sums->odd[PLANES - 1] = bias;
    sums->all[PLANES - 1] = _mm512_add_epi16(bias, _mm512_slli_epi16(bias, 8));
}

WASTE_INLINE void sums_add(struct plane_sums *sums, uint32_t plane, vi bytes)
{
    sums->all[plane] = pin(_mm512_add_epi16(sums->all[plane], bytes));
    sums->odd[plane] = pin(_mm512_add_epi16(sums->odd[plane], _mm512_srli_epi16(bytes, 8)));
}

/* 16 rows of acc += step * (low + 2^8 middle + 2^16 top). */
WASTE_INLINE void join(float *acc, vi low_middle, vi top, vf step)
{
    vi z = _mm512_dpwssd_epi32(top, low_middle, _mm512_set1_epi32(1 | 256 << 16));
    _mm512_store_ps(acc, _mm512_fmadd_ps(_mm512_cvtepi32_ps(z), step, _mm512_load_ps(acc)));
}

WASTE_INLINE void sums_finish(float *acc, const struct plane_sums *sums, vf step)
{
    const vi zero = _mm512_setzero_si512();
    vi even[PLANES];
    for (uint32_t i = 0; i < PLANES; i++)
        even[i] = _mm512_sub_epi16(sums->all[i], _mm512_slli_epi16(sums->odd[i], 8));
    join(acc, _mm512_unpacklo_epi16(even[0], even[1]), _mm512_unpacklo_epi16(zero, even[2]), step);
    join(acc + 16, _mm512_unpackhi_epi16(even[0], even[1]), _mm512_unpackhi_epi16(zero, even[2]),
         step);
    join(acc + 32, _mm512_unpacklo_epi16(sums->odd[0], sums->odd[1]),
         _mm512_unpacklo_epi16(zero, sums->odd[2]), step);
    join(acc + 48, _mm512_unpackhi_epi16(sums->odd[0], sums->odd[1]),
         _mm512_unpackhi_epi16(zero, sums->odd[2]), step);
}

/* The indices of 64 rows at one position, a register a stage. */
WASTE_INLINE void load_indices(vi index[4], const uint8_t *q, struct waste_vq_shape s)
{
    vi a = pin(_mm512_loadu_si512(q)), b = pin(_mm512_loadu_si512(q + 64));
    if (s.index_bytes == 2) {
        index[0] = _mm512_permutex2var_epi8(a, _mm512_load_si512(pair_first), b);
        index[1] = _mm512_permutex2var_epi8(a, _mm512_load_si512(pair_second), b);
        return;
    }
    const __mmask64 k1 = from_second, k2 = from_third;
    vi c = pin(_mm512_loadu_si512(q + 128));
    vi b0 = _mm512_mask_blend_epi8(k2, _mm512_mask_blend_epi8(k1, a, b), c);
    vi b1 = _mm512_mask_blend_epi8(k2, _mm512_mask_blend_epi8(k1, b, c), a);
    vi b2 = _mm512_mask_blend_epi8(k2, _mm512_mask_blend_epi8(k1, c, a), b);
    b1 = _mm512_permutexvar_epi8(_mm512_load_si512(rotate_1), b1);
    b2 = _mm512_permutexvar_epi8(_mm512_load_si512(rotate_2), b2);
    index[0] = b0;
    if (s.stages == 3) {
        index[1] = b1;
        index[2] = b2;
        return;
    }
    /* Six bits each; vpermb ignores the two above them, so neighbours' bits may stay there. */
    index[1] = _mm512_ternarylogic_epi32(_mm512_set1_epi8(3), _mm512_srli_epi16(b0, 6),
                                         _mm512_slli_epi16(b1, 2), 0xca);
    index[2] = _mm512_ternarylogic_epi32(_mm512_set1_epi8(15), _mm512_srli_epi16(b1, 4),
                                         _mm512_slli_epi16(b2, 4), 0xca);
    index[3] = _mm512_srli_epi16(b2, 2);
}

/* `blocks` blocks of 64 rows, one stage: each plane's table is loaded once for all of them. */
WASTE_INLINE void lookup_stage(struct plane_sums *sums, uint32_t blocks, const vi *index,
                               const uint8_t *table, uint32_t entries)
{
    __mmask64 upper[2], lower[2];
    for (uint32_t r = 0; r < blocks && entries == 256; r++) {
        upper[r] = _mm512_movepi8_mask(index[4 * r]);
        lower[r] = _knot_mask64(upper[r]);
    }
#pragma GCC unroll 3
    for (uint32_t plane = 0; plane < PLANES; plane++, table += entries) {
        vi t0 = pin(_mm512_load_si512(table));
        if (entries == 64) {
            for (uint32_t r = 0; r < blocks; r++)
                sums_add(&sums[r], plane, _mm512_permutexvar_epi8(index[4 * r], t0));
            continue;
        }
        vi t1 = pin(_mm512_load_si512(table + 64)), t2 = pin(_mm512_load_si512(table + 128));
        vi t3 = pin(_mm512_load_si512(table + 192));
#pragma GCC unroll 2
        for (uint32_t r = 0; r < blocks; r++) {
            vi v = _mm512_mask2_permutex2var_epi8(t0, index[4 * r], lower[r], t1);
            sums_add(&sums[r], plane, _mm512_mask2_permutex2var_epi8(t2, v, upper[r], t3));
        }
    }
}

/* `blocks` (1 or 2) blocks of 64 rows, `stride` bytes apart, over a group of n positions. */
WASTE_INLINE void lookup_group(float *acc, const uint8_t *table, const uint8_t *index,
                               size_t stride, uint32_t n, uint32_t blocks, const uint8_t *ahead,
                               struct waste_vq_shape s)
{
    const uint32_t bytes = WASTE_ROW_BLOCK * s.index_bytes;
    struct plane_sums sums[2];
    vf step = _mm512_set1_ps(*(const float *)table);
    table += HEADER;
    for (uint32_t r = 0; r < blocks; r++)
        sums_start(&sums[r], n * s.stages);
    for (uint32_t p = 0; p < n; p++, table += position_bytes(s)) {
        vi at[8];
#pragma GCC unroll 2
        for (uint32_t r = 0; r < blocks; r++) {
            load_indices(at + 4 * r, index + r * stride + p * bytes, s);
            for (uint32_t line = 0; line < bytes + (p + 1 == n ? 64 : 0); line += 64)
                _mm_prefetch((const char *)ahead + r * stride + p * bytes + line, _MM_HINT_T1);
        }
#pragma GCC unroll 4
        for (uint32_t stage = 0; stage < s.stages; stage++)
            lookup_stage(sums, blocks, at + stage, table + stage * PLANES * s.entries, s.entries);
    }
    for (uint32_t r = 0; r < blocks; r++)
        sums_finish(acc + r * WASTE_ROW_BLOCK, &sums[r], step);
}

WASTE_INLINE void apply_any(float *acc, const void *tables, const uint8_t *index, uint32_t rows,
                            uint32_t all_positions, uint32_t p0, uint32_t n, const uint8_t *next,
                            struct waste_vq_shape s)
{
    const size_t stride = (size_t)all_positions * WASTE_ROW_BLOCK * s.index_bytes;
    const uint8_t *table = tables;
    uint32_t blocks = waste_row_blocks(rows);
    for (uint32_t g = 0; g < n; g += GROUP) {
        const uint8_t *from = index + (size_t)(p0 + g) * WASTE_ROW_BLOCK * s.index_bytes;
        uint32_t m = min_u32(GROUP, n - g), b = 0;
        const uint8_t *after =
            next && g + GROUP >= n ? next : from + (size_t)GROUP * WASTE_ROW_BLOCK * s.index_bytes;
        for (; b + 2 <= blocks; b += 2) {
            const uint8_t *at = from + b * stride;
            const uint8_t *ahead = b + 4 <= blocks ? at + 2 * stride : after;
            lookup_group(acc + b * WASTE_ROW_BLOCK, table, at, stride, m, 2, ahead, s);
        }
        if (b < blocks)
            lookup_group(acc + b * WASTE_ROW_BLOCK, table, from + b * stride, stride, m, 1, from,
                         s);
        table += HEADER + m * position_bytes(s);
    }
}

#define VECTOR_QUANTISED(name, FMT)                                                                \
    static void vq_prep_##name(void *prep, const float *books)                                     \
    {                                                                                              \
        prep_any(prep, books, waste_vq_shape(FMT));                                                \
    }                                                                                              \
    static void vq_tables_##name(void *tables, const void *prep, const float *x,                   \
                                 uint32_t positions)                                               \
    {                                                                                              \
        tables_any(tables, prep, x, positions, waste_vq_shape(FMT));                               \
    }                                                                                              \
    static void vq_apply_##name(float *acc, const void *tables, const uint8_t *index,              \
                                uint32_t rows, uint32_t all_positions, uint32_t p0, uint32_t n,    \
                                const uint8_t *next)                                               \
    {                                                                                              \
        apply_any(acc, tables, index, rows, all_positions, p0, n, next, waste_vq_shape(FMT));      \
    }
VECTOR_QUANTISED(vq3r, WASTE_FMT_VQ3R)
VECTOR_QUANTISED(vq2r, WASTE_FMT_VQ2R)
VECTOR_QUANTISED(vq4p, WASTE_FMT_VQ4P)
#undef VECTOR_QUANTISED

/* Row r of a block is in byte lane 3 r mod 64, whose sum join() put at half of parity, then word.
 */
static void vq_finish(float *y, const float *acc, const uint8_t *scales, uint32_t rows)
{
    const vi count = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (uint32_t r = 0; r < rows; r += 16) {
        vi row = _mm512_add_epi32(count, _mm512_set1_epi32((int)(r % WASTE_ROW_BLOCK)));
        vi lane = _mm512_and_si512(_mm512_add_epi32(row, _mm512_slli_epi32(row, 1)),
                                   _mm512_set1_epi32(63));
        vi word = _mm512_srli_epi32(lane, 1), bit = _mm512_set1_epi32(1);
        vi at = _mm512_slli_epi32(_mm512_and_si512(lane, bit), 5);
        at = _mm512_or_si512(
            at, _mm512_slli_epi32(_mm512_and_si512(_mm512_srli_epi32(word, 2), bit), 4));
        at = _mm512_or_si512(at, _mm512_slli_epi32(_mm512_srli_epi32(word, 3), 2));
        at = _mm512_or_si512(at, _mm512_and_si512(word, _mm512_set1_epi32(3)));
        __mmask16 mask = (__mmask16)((1u << min_u32(16, rows - r)) - 1);
        vf v = _mm512_i32gather_ps(at, acc + r / WASTE_ROW_BLOCK * WASTE_ROW_BLOCK, 4);
        vf scale = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, scales + 2 * (size_t)r));
        _mm512_mask_storeu_ps(y + r, mask, _mm512_mul_ps(v, scale));
    }
}

void waste_kernels_fill_vq_vbmi(struct waste_kernels *k)
{
    k->vq_prep_bytes = vq_prep_bytes;
    k->vq_table_bytes = vq_table_bytes;
    k->vq_prep[WASTE_FMT_VQ3R] = vq_prep_vq3r;
    k->vq_prep[WASTE_FMT_VQ2R] = vq_prep_vq2r;
    k->vq_prep[WASTE_FMT_VQ4P] = vq_prep_vq4p;
    k->vq_tables[WASTE_FMT_VQ3R] = vq_tables_vq3r;
    k->vq_tables[WASTE_FMT_VQ2R] = vq_tables_vq2r;
    k->vq_tables[WASTE_FMT_VQ4P] = vq_tables_vq4p;
    k->vq_apply[WASTE_FMT_VQ3R] = vq_apply_vq3r;
    k->vq_apply[WASTE_FMT_VQ2R] = vq_apply_vq2r;
    k->vq_apply[WASTE_FMT_VQ4P] = vq_apply_vq4p;
    k->vq_finish = vq_finish;
    k->lookup_tokens[WASTE_FMT_VQ3R] = 5;
    k->lookup_tokens[WASTE_FMT_VQ2R] = 6;
    k->lookup_tokens[WASTE_FMT_VQ4P] = 13;
}

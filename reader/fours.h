/* Four floats at once, by the compiler: the same operations in the same order on every processor,
 * so the same results. Internal to habit.c and likeness.c. */
#ifndef WASTE_READER_FOURS_H
#define WASTE_READER_FOURS_H

#include <stdint.h>

typedef float waste_f4 __attribute__((vector_size(16), may_alias));
typedef int32_t waste_i4 __attribute__((vector_size(16), may_alias));

static inline waste_f4 waste_f4_all(float x)
{
    return (waste_f4){x, x, x, x};
}

/* The sums of four. */
static inline waste_f4 waste_f4_sums(waste_f4 a, waste_f4 b, waste_f4 c, waste_f4 d)
{
    waste_f4 ab =
        __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
    waste_f4 cd =
        __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
    return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) +
           __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}

static inline waste_i4 waste_f4_bits(float x)
{
    return (waste_i4)waste_f4_all(x);
}

/* One step of it: */
#define WASTE_F4_LOG_UNIT (0.69314718f / 8388608.0f)

/* The logarithm of x / one, x > 0, in units, but straight between powers of two: never 0.06 off,
 * continuous and rising, which is all that a feature needs. `one`: waste_f4_bits. */
static inline waste_f4 waste_f4_log(waste_f4 x, waste_i4 one)
{
    return __builtin_convertvector((waste_i4)x - one, waste_f4);
}

static inline waste_f4 waste_f4_choose(waste_i4 which, waste_f4 yes, waste_f4 no)
{
    return (waste_f4)(((waste_i4)yes & which) | ((waste_i4)no & ~which));
}

static inline waste_f4 waste_f4_max(waste_f4 a, waste_f4 b)
{
    return waste_f4_choose(a > b, a, b);
}

static inline waste_f4 waste_f4_min(waste_f4 a, waste_f4 b)
{
    return waste_f4_choose(a < b, a, b);
}

/* 1 / (1 + e^-x), e^-x within 4 %: it is straight between powers of two here. */
static inline waste_f4 waste_f4_sigmoid(waste_f4 x)
{
    waste_f4 bits = waste_f4_max(waste_f4_min(x, waste_f4_all(20)), waste_f4_all(-20)) *
                        (-8388608.0f / 0.69314718f) +
                    1064866805.0f;
    waste_f4 e = (waste_f4) __builtin_convertvector(bits, waste_i4);
    return 1 / (1 + e);
}

#endif

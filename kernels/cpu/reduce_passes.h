/* SPDX-License-Identifier: Apache-2.0
 *
 * The passes of a reduction in plain C, written so that compilers vectorise them: no branch, comparisons of integers,
 * arithmetic done on all values and chosen from afterwards. Each instruction set's file includes this and is built with
 * its flags, and none of them with contraction to fused operations: so the bits are the same on all. No include guard
 * on purpose.
 */
#include <string.h>

#include "kernels/cpu/reduce_ops.h"

#define INLINE static inline __attribute__((always_inline))

/* Of any alignment. */
typedef uint16_t any16 __attribute__((aligned(1)));
typedef uint32_t any32 __attribute__((aligned(1)));
typedef uint64_t any64 __attribute__((aligned(1)));
typedef int32_t any_i32 __attribute__((aligned(1)));
typedef int64_t any_i64 __attribute__((aligned(1)));
typedef float any_f32 __attribute__((aligned(1)));
typedef double any_f64 __attribute__((aligned(1)));

INLINE float f32_of(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

INLINE uint32_t bits_of(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    return bits;
}

/* ---- to FP32 and back ---- */

/* A float of 16 bits or less. Its denormals become exact by a subtraction whose operands are normal. */
INLINE uint32_t widen_bits(uint32_t v, unsigned mantissa, unsigned bias, unsigned sign_at, uint32_t special) {
    const uint32_t m = v & ((1u << sign_at) - 1), x = m << (23 - mantissa), one = (128 - bias) << 23;
    const uint32_t low = bits_of(f32_of(x + one) - f32_of(one)), high = x + ((127 - bias) << 23);
    uint32_t r = m >> mantissa ? high : low;
    r = m >= special ? 0x7f800000u | (m - special) : r;
    return r | v >> sign_at << 31;
}

/* To nearest even. Codes above top, which are those beyond the greatest finite value, become top. */
INLINE uint32_t narrow_bits(uint32_t bits, unsigned mantissa, unsigned bias, unsigned sign_at, uint32_t top) {
    const uint32_t a = bits & 0x7fffffff, shift = 23 - mantissa, magic = (127 + 24 - bias - mantissa) << 23;
    const uint32_t low = bits_of(f32_of(a) + f32_of(magic)) - magic;
    const uint32_t high = ((a + (1u << (shift - 1)) - 1 + (a >> shift & 1)) >> shift) - ((127 - bias) << mantissa);
    uint32_t r = a < (128 - bias) << 23 ? low : high;
    r = (r > top ? top : r) | bits >> 31 << sign_at;
    return a > 0x7f800000 ? (1u << sign_at) - 1 : r;
}

INLINE uint32_t from_bf16(uint32_t v) {
    return v << 16;
}

INLINE uint32_t from_fp16(uint32_t v) {
    return widen_bits(v, 10, 15, 15, 0x7c00);
}

INLINE uint32_t from_e4m3(uint32_t v) {
    const uint32_t r = widen_bits(v, 3, 7, 7, 0x80);
    return (v & 0x7f) == 0x7f ? 0x7fffffff : r;
}

INLINE uint32_t from_e5m2(uint32_t v) {
    return widen_bits(v, 2, 15, 7, 0x7c);
}

INLINE uint32_t to_bf16(uint32_t x) {
    return (x & 0x7fffffff) > 0x7f800000 ? 0x7fff : (x + 0x7fff + (x >> 16 & 1)) >> 16;
}

INLINE uint32_t to_fp16(uint32_t x) {
    return narrow_bits(x, 10, 15, 15, 0x7c00);
}

INLINE uint32_t to_e4m3(uint32_t x) {
    return narrow_bits(x, 3, 7, 7, 0x7e);
}

INLINE uint32_t to_e5m2(uint32_t x) {
    return narrow_bits(x, 2, 15, 7, 0x7b);
}

#define CONVERT(name, type)                                                                                            \
    static void widen_##name(void *restrict acc, const void *restrict values, size_t n) {                              \
        const type *v = values;                                                                                        \
        uint32_t *a = acc;                                                                                             \
        for (size_t i = 0; i < n; i++)                                                                                 \
            a[i] = from_##name(v[i]);                                                                                  \
    }                                                                                                                  \
    static void narrow_##name(void *restrict values, const void *restrict acc, size_t n) {                             \
        type *v = values;                                                                                              \
        const uint32_t *a = acc;                                                                                       \
        for (size_t i = 0; i < n; i++)                                                                                 \
            v[i] = (type)to_##name(a[i]);                                                                              \
    }
CONVERT(bf16, any16)
CONVERT(fp16, any16)
CONVERT(e4m3, uint8_t)
CONVERT(e5m2, uint8_t)

/* FP32 and FP64 are accumulators already; a NaN takes its one form. */
#define ONE_NAN(name, bits, any)                                                                                       \
    static void narrow_##name(void *restrict values, const void *restrict acc, size_t n) {                             \
        const bits greatest = (bits)-1 >> 1, infinite = sizeof(bits) == 4 ? 0x7f800000 : (bits)0x7ff00000 << 16 << 16; \
        any *v = values;                                                                                               \
        const bits *a = acc;                                                                                           \
        for (size_t i = 0; i < n; i++)                                                                                 \
            v[i] = (a[i] & greatest) > infinite ? greatest : a[i];                                                     \
    }
ONE_NAN(fp32, uint32_t, any32)
ONE_NAN(fp64, uint64_t, any64)

/* ---- combining ---- */

#define COMBINE(name, type, any, expression)                                                                           \
    static void name(void *restrict acc, const void *restrict values, size_t n) {                                      \
        type *a = acc;                                                                                                 \
        const any *v = values;                                                                                         \
        for (size_t i = 0; i < n; i++) {                                                                               \
            const type x = a[i], y = v[i];                                                                             \
            a[i] = (type)(expression);                                                                                 \
        }                                                                                                              \
    }
/* Integers wrap: sums and products are those of the unsigned type. */
#define WRAPPING(bits, type, any) COMBINE(sum_##bits, type, any, x + y) COMBINE(prod_##bits, type, any, x *y)
#define ORDERED(name, type, any)                                                                                       \
    COMBINE(max_##name, type, any, x > y ? x : y) COMBINE(min_##name, type, any, x < y ? x : y)
WRAPPING(8, uint8_t, uint8_t)
WRAPPING(32, uint32_t, any32)
WRAPPING(64, uint64_t, any64)
WRAPPING(f32, float, any_f32)
WRAPPING(f64, double, any_f64)
ORDERED(i8, int8_t, int8_t)
ORDERED(u8, uint8_t, uint8_t)
ORDERED(i32, int32_t, any_i32)
ORDERED(u32, uint32_t, any32)
ORDERED(i64, int64_t, any_i64)
ORDERED(u64, uint64_t, any64)

/* Floats are ordered by their bits as integers, those of negative ones turned round, so -0 lies below +0. A NaN gives
 * way to the other. */
#define FLOAT_ORDER(name, key, any, infinite)                                                                          \
    INLINE key key_##name(key x) {                                                                                     \
        const key least = (key)1 << (8 * sizeof(key) - 2);                                                             \
        return x ^ (x < 0 ? least - 1 + least : 0);                                                                    \
    }                                                                                                                  \
    INLINE bool nan_##name(key x) {                                                                                    \
        const key least = (key)1 << (8 * sizeof(key) - 2);                                                             \
        return (x & (least - 1 + least)) > (infinite);                                                                 \
    }                                                                                                                  \
    INLINE key greater_##name(key x, key y) {                                                                          \
        key r = key_##name(x) > key_##name(y) ? x : y;                                                                 \
        r = nan_##name(x) ? y : r;                                                                                     \
        return nan_##name(y) ? x : r;                                                                                  \
    }                                                                                                                  \
    INLINE key less_##name(key x, key y) {                                                                             \
        key r = key_##name(x) < key_##name(y) ? x : y;                                                                 \
        r = nan_##name(x) ? y : r;                                                                                     \
        return nan_##name(y) ? x : r;                                                                                  \
    }                                                                                                                  \
    COMBINE(max_##name, key, any, greater_##name(x, y))                                                                \
    COMBINE(min_##name, key, any, less_##name(x, y))
FLOAT_ORDER(f32, int32_t, any_i32, 0x7f800000)
FLOAT_ORDER(f64, int64_t, any_i64, 0x7ff0000000000000)

/* ---- scalars and divisors ---- */

#define SCALE(name, type)                                                                                              \
    static void scale_##name(void *acc, const void *scalar, size_t n) {                                                \
        type *a = acc, s;                                                                                              \
        memcpy(&s, scalar, sizeof(s));                                                                                 \
        for (size_t i = 0; i < n; i++)                                                                                 \
            a[i] = (type)(a[i] * s);                                                                                   \
    }
SCALE(8, uint8_t)
SCALE(32, uint32_t)
SCALE(64, uint64_t)
SCALE(f32, float)
SCALE(f64, double)

#define DIVIDE(name, type, wide)                                                                                       \
    static void divide_##name(void *acc, uint32_t divisor, size_t n) {                                                 \
        const wide d = (wide)divisor;                                                                                  \
        type *a = acc;                                                                                                 \
        for (size_t i = 0; i < n; i++)                                                                                 \
            a[i] = (type)((wide)a[i] / d);                                                                             \
    }
DIVIDE(i8, int8_t, int64_t)
DIVIDE(u8, uint8_t, uint32_t)
DIVIDE(i32, int32_t, int64_t)
DIVIDE(u32, uint32_t, uint32_t)
DIVIDE(i64, int64_t, int64_t)
DIVIDE(u64, uint64_t, uint64_t)
DIVIDE(f32, float, float)
DIVIDE(f64, double, double)

/* ---- the table: sums by hand are named by the including file ---- */

#define PASSES_INT(bits, name)                                                                                         \
    { bits / 8, NULL, NULL, {sum_##bits, prod_##bits, max_##name, min_##name}, scale_##bits, divide_##name, NULL }
#define PASSES_F32(widen, narrow, sum)                                                                                 \
    { 4, widen, narrow, {sum_f32, prod_f32, max_f32, min_f32}, scale_f32, divide_f32, sum }
#define REDUCE_TABLE(bf16_sum, fp16_sum, fp32_sum, e4m3_sum, e5m2_sum)                                                 \
    {                                                                                                                  \
        [zipcclInt8] = PASSES_INT(8, i8), [zipcclUint8] = PASSES_INT(8, u8), [zipcclInt32] = PASSES_INT(32, i32),      \
        [zipcclUint32] = PASSES_INT(32, u32), [zipcclInt64] = PASSES_INT(64, i64),                                     \
        [zipcclUint64] = PASSES_INT(64, u64), [zipcclFloat16] = PASSES_F32(widen_fp16, narrow_fp16, fp16_sum),         \
        [zipcclFloat32] = PASSES_F32(NULL, narrow_fp32, fp32_sum),                                                     \
        [zipcclFloat64] = {8, NULL, narrow_fp64, {sum_f64, prod_f64, max_f64, min_f64}, scale_f64, divide_f64, NULL},  \
        [zipcclBfloat16] = PASSES_F32(widen_bf16, narrow_bf16, bf16_sum),                                              \
        [zipcclFloat8e4m3] = PASSES_F32(widen_e4m3, narrow_e4m3, e4m3_sum),                                            \
        [zipcclFloat8e5m2] = PASSES_F32(widen_e5m2, narrow_e5m2, e5m2_sum),                                            \
    }

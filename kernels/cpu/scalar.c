/* SPDX-License-Identifier: Apache-2.0
 *
 * The codec's loops in plain C, for any processor: a vector is an array of 64 bytes. Masks and compaction work on
 * 64-bit words. Little-endian hosts only, as the values on the wire are.
 */
#include "kernels/cpu/ops.h"

#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#    error "zipccl needs a little-endian host"
#endif

#define VINLINE static inline __attribute__((always_inline))

typedef struct {
    uint8_t b[64];
} v64;

struct v_parts {
    v64 e;
    v64 bytes[3];
    uint64_t bits[4];
};

VINLINE v64 v_load(const void *p) {
    v64 v;
    memcpy(&v, p, sizeof(v));
    return v;
}

VINLINE void v_store(void *p, v64 v) {
    memcpy(p, &v, sizeof(v));
}

#define v_stream  v_store
#define v_fence() (void)0

#define BYTEWISE(name, expression)                                                                                     \
    VINLINE v64 name(v64 x, v64 y) {                                                                                   \
        v64 r;                                                                                                         \
        for (unsigned i = 0; i < 64; i++) {                                                                            \
            const uint8_t a = x.b[i], b = y.b[i];                                                                      \
            r.b[i] = (uint8_t)(expression);                                                                            \
        }                                                                                                              \
        return r;                                                                                                      \
    }
BYTEWISE(v_add, a + b)
BYTEWISE(v_sub, a - b)
BYTEWISE(v_subs, a > b ? a - b : 0)
BYTEWISE(v_max, a > b ? a : b)
BYTEWISE(v_min, a < b ? a : b)
BYTEWISE(v_keep_le, a <= b ? a : 0)
BYTEWISE(v_is_eq, a == b)
BYTEWISE(v_is_ge, a >= b)
BYTEWISE(v_is_bit, (a & b) != 0)

VINLINE v64 v_set1(uint8_t b) {
    v64 v;
    memset(&v, b, sizeof(v));
    return v;
}

/* Bytes of 0 or 1 to a mask: the product moves bit 8*i of a word to bit 56 + i. */
VINLINE uint64_t v_gather(v64 v) {
    uint64_t mask = 0;
    for (unsigned i = 0; i < 8; i++) {
        uint64_t w;
        memcpy(&w, v.b + 8 * i, 8);
        mask |= (w * 0x0102040810204080ull >> 56) << (8 * i);
    }
    return mask;
}

/* The inverse: each bit to a byte of 0 or 1. */
VINLINE v64 v_spread(uint64_t mask) {
    v64 v;
    for (unsigned i = 0; i < 8; i++) {
        uint64_t w = (mask >> (8 * i) & 0xff) * 0x0101010101010101ull & 0x8040201008040201ull;
        w = (w + 0x7f7f7f7f7f7f7f7full) >> 7 & 0x0101010101010101ull;
        memcpy(v.b + 8 * i, &w, 8);
    }
    return v;
}

VINLINE uint64_t v_bit(v64 v, uint8_t m) {
    return v_gather(v_is_bit(v, v_set1(m)));
}

VINLINE uint64_t v_eq(v64 x, v64 y) {
    return v_gather(v_is_eq(x, y));
}

VINLINE uint64_t v_ge(v64 x, v64 y) {
    return v_gather(v_is_ge(x, y));
}

VINLINE bool v_same(v64 x, v64 y) {
    return memcmp(&x, &y, sizeof(x)) == 0;
}

/* The accumulator's first four bytes are the sum. */
VINLINE v64 v_sad(v64 acc, v64 v) {
    uint32_t sum;
    memcpy(&sum, acc.b, 4);
    for (unsigned i = 0; i < 64; i++)
        sum += v.b[i];
    memcpy(acc.b, &sum, 4);
    return acc;
}

VINLINE unsigned v_hsum(v64 acc) {
    uint32_t sum;
    memcpy(&sum, acc.b, 4);
    return sum;
}

VINLINE v64 v_swap(v64 v, uint8_t b) {
    for (unsigned i = 0; i < 64; i++)
        v.b[i] = v.b[i] == 0 ? b : v.b[i] == b ? 0 : v.b[i];
    return v;
}

#define v_both(p0, p1, d, three)  ((p0) & (p1))
#define v_none(p0, p1, p2, codes) (~((p0) | (p1) | (p2)))

VINLINE void v_compact(uint8_t *out, v64 v, v64 codes, v64 code, uint64_t mask) {
    (void)codes;
    (void)code;
    for (; mask; mask &= mask - 1)
        *out++ = v.b[__builtin_ctzll(mask)];
}

VINLINE v64 v_expand(v64 v, uint64_t mask, const uint8_t *in) {
    for (; mask; mask &= mask - 1)
        v.b[__builtin_ctzll(mask)] = *in++;
    return v;
}

VINLINE v64 v_recode(uint64_t p0, uint64_t p1, v64 l0, v64 l1, v64 l2, const uint8_t *in) {
    const v64 a = v_spread(p0), b = v_spread(p1);
    v64 v;
    for (unsigned i = 0; i < 64; i++)
        v.b[i] = b.b[i] ? l2.b[i] : a.b[i] ? l1.b[i] : l0.b[i];
    return v_expand(v, p0 & p1, in);
}

VINLINE v64 v_untier(uint64_t p0, uint64_t p1, const uint8_t *in) {
    const v64 a = v_spread(p0), b = v_spread(p1);
    v64 v;
    for (unsigned i = 0; i < 64; i++)
        v.b[i] = (uint8_t)(a.b[i] + 2 * b.b[i]);
    return v_expand(v, p0 & p1, in);
}

VINLINE v64 v_untop7(uint64_t p0, uint64_t p1, uint64_t p2, v64 top, bool zero, uint8_t swapped, const uint8_t *in) {
    const v64 a = v_spread(p0), b = v_spread(p1), c = v_spread(p2);
    v64 v;
    for (unsigned i = 0; i < 64; i++)
        v.b[i] = (uint8_t)(top.b[i] - a.b[i] - 2 * b.b[i] - 4 * c.b[i]);
    return v_expand(zero ? v_swap(v, swapped) : v, ~(p0 | p1 | p2), in);
}

VINLINE void v_split(enum layout_kind kind, const uint8_t *src, struct v_parts *x) {
    const unsigned bits = layout_bit_planes(kind);
    v64 high;
    if (kind == KIND_FP32) {
        for (unsigned i = 0; i < 64; i++) {
            uint32_t w;
            memcpy(&w, src + (size_t)4 * i, 4);
            w = w << 1 | w >> 31;
            x->bytes[0].b[i] = (uint8_t)w;
            x->bytes[1].b[i] = (uint8_t)(w >> 8);
            x->bytes[2].b[i] = (uint8_t)(w >> 16);
            x->e.b[i] = (uint8_t)(w >> 24);
        }
        return;
    }
    if (kind == KIND_BF16 || kind == KIND_FP16) {
        for (unsigned i = 0; i < 64; i++) {
            uint16_t w;
            memcpy(&w, src + (size_t)2 * i, 2);
            w = (uint16_t)(w << 1 | w >> 15);
            x->bytes[0].b[i] = (uint8_t)w;
            high.b[i] = (uint8_t)(w >> 8);
        }
    } else {
        for (unsigned i = 0; i < 64; i++)
            high.b[i] = (uint8_t)(src[i] << 1 | src[i] >> 7);
    }
    for (unsigned i = 0; i < 64; i++)
        x->e.b[i] = (uint8_t)(high.b[i] >> bits);
    for (unsigned p = 0; p < bits; p++)
        x->bits[p] = v_bit(high, (uint8_t)(1u << p));
}

VINLINE void v_join(enum layout_kind kind, const struct v_parts *x, v64 out[4]) {
    const unsigned bits = layout_bit_planes(kind);
    if (kind == KIND_FP32) {
        for (unsigned i = 0; i < 64; i++) {
            uint32_t w = (uint32_t)x->e.b[i] << 24 | (uint32_t)x->bytes[2].b[i] << 16 |
                         (uint32_t)x->bytes[1].b[i] << 8 | x->bytes[0].b[i];
            w = w >> 1 | w << 31;
            memcpy((uint8_t *)out + (size_t)4 * i, &w, 4);
        }
        return;
    }
    v64 high = x->e;
    for (unsigned i = 0; i < 64; i++)
        high.b[i] = (uint8_t)(high.b[i] << bits);
    for (unsigned p = 0; p < bits; p++) {
        const v64 a = v_spread(x->bits[p]);
        for (unsigned i = 0; i < 64; i++)
            high.b[i] |= (uint8_t)(a.b[i] << p);
    }
    if (kind == KIND_BF16 || kind == KIND_FP16) {
        for (unsigned i = 0; i < 64; i++) {
            uint16_t w = (uint16_t)(high.b[i] << 8 | x->bytes[0].b[i]);
            w = (uint16_t)(w >> 1 | w << 15);
            memcpy((uint8_t *)out + (size_t)2 * i, &w, 2);
        }
    } else {
        for (unsigned i = 0; i < 64; i++)
            out[0].b[i] = (uint8_t)(high.b[i] >> 1 | high.b[i] << 7);
    }
}

#include "kernels/cpu/loops.h"

const struct cpu_ops cpu_ops_scalar = LOOPS_TABLE;

/* SPDX-License-Identifier: Apache-2.0
 *
 * A reduction of one value at a time, written from the rule of zipcclRedOp_t and from the definitions of the formats:
 * values as doubles (which hold all of 32 bits and less, and whose results rounded to FP32 are the FP32 results) or as
 * 128-bit integers, rounding by search among all encodings. Nothing is taken from kernels/.
 */
#ifndef ZIPCCL_TESTS_REDUCE_REFERENCE_H
#define ZIPCCL_TESTS_REDUCE_REFERENCE_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "kernels/reduce.h"

struct ref_type {
    unsigned bytes;
    bool is_float, is_signed;
    int exponent_bits, mantissa; /* floats */
    bool saturates, infinite;    /* floats: results; has infinities */
};

static inline struct ref_type ref_type_of(zipcclDataType_t t) {
    switch (t) {
    case zipcclInt8:
        return (struct ref_type){.bytes = 1, .is_signed = true};
    case zipcclUint8:
        return (struct ref_type){.bytes = 1};
    case zipcclInt32:
        return (struct ref_type){.bytes = 4, .is_signed = true};
    case zipcclUint32:
        return (struct ref_type){.bytes = 4};
    case zipcclInt64:
        return (struct ref_type){.bytes = 8, .is_signed = true};
    case zipcclUint64:
        return (struct ref_type){.bytes = 8};
    case zipcclFloat16:
        return (struct ref_type){2, true, true, 5, 10, false, true};
    case zipcclFloat32:
        return (struct ref_type){4, true, true, 8, 23, false, true};
    case zipcclFloat64:
        return (struct ref_type){8, true, true, 11, 52, false, true};
    case zipcclBfloat16:
        return (struct ref_type){2, true, true, 8, 7, false, true};
    case zipcclFloat8e4m3:
        return (struct ref_type){1, true, true, 4, 3, true, false};
    default:
        return (struct ref_type){1, true, true, 5, 2, true, true};
    }
}

struct ref_value {
    double f;
    __int128 i;
};

/* The magnitude that a code without sign stands for; with `unbounded` the topmost exponent is one like the others. */
static inline double ref_magnitude(const struct ref_type *t, uint64_t code, bool unbounded) {
    const int bias = (1 << (t->exponent_bits - 1)) - 1;
    const uint64_t fraction = code & ((1ull << t->mantissa) - 1);
    const int e = (int)(code >> t->mantissa);
    if (!unbounded && t->infinite && e == (1 << t->exponent_bits) - 1)
        return fraction ? NAN : INFINITY;
    if (!unbounded && !t->infinite && code == 0x7f)
        return NAN;
    if (e == 0)
        return ldexp((double)fraction, 1 - bias - t->mantissa);
    return ldexp((double)fraction + ldexp(1, t->mantissa), e - bias - t->mantissa);
}

static inline struct ref_value ref_load(zipcclDataType_t dtype, const void *p) {
    const struct ref_type t = ref_type_of(dtype);
    const unsigned bits = 8 * t.bytes;
    struct ref_value v = {0, 0};
    uint64_t code = 0;
    memcpy(&code, p, t.bytes);
    if (t.is_float) {
        const double m = ref_magnitude(&t, code & (UINT64_MAX >> (65 - bits)), false);
        v.f = code >> (bits - 1) ? -m : m;
    } else {
        v.i = code;
        if (t.is_signed && code >> (bits - 1))
            v.i -= (__int128)1 << bits;
    }
    return v;
}

static inline uint64_t ref_round(zipcclDataType_t dtype, struct ref_value v) {
    const struct ref_type t = ref_type_of(dtype);
    const unsigned bits = 8 * t.bytes;
    if (!t.is_float)
        return (uint64_t)v.i & (UINT64_MAX >> (64 - bits));
    const uint64_t all = UINT64_MAX >> (65 - bits), sign = signbit(v.f) ? all + 1 : 0;
    if (isnan(v.f))
        return all;
    if (dtype == zipcclFloat64) {
        uint64_t code;
        memcpy(&code, &v.f, 8);
        return code;
    }
    /* The first code past the greatest finite one: infinity, or what would follow if there were no NaN. */
    const uint64_t end =
        t.infinite ? (all >> t.mantissa << t.mantissa) : all; /* 0x7f80, 0x7c00, 0x7f800000; E4M3: 0x7f; E5M2: 0x7c */
    const double x = fabs(v.f);
    uint64_t low = 0, high = end; /* magnitude(low) <= x; x < magnitude(high) or high is the end */
    while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        if (ref_magnitude(&t, middle, true) <= x)
            low = middle;
        else
            high = middle;
    }
    const double a = ref_magnitude(&t, low, true), b = ref_magnitude(&t, high, true);
    uint64_t code = low;
    if (x - a > b - x || (x - a == b - x && low % 2 == 1) || x >= b)
        code = high;
    if (code == end && t.saturates)
        code = end - 1;
    return code | sign;
}

/* The result of one operation as an accumulator holds it. */
static inline struct ref_value ref_accumulator(zipcclDataType_t dtype, struct ref_value v) {
    const struct ref_type t = ref_type_of(dtype);
    if (t.is_float) {
        if (t.bytes <= 4)
            v.f = (double)(float)v.f;
        return v;
    }
    const uint64_t code = ref_round(dtype, v);
    return ref_load(dtype, &code);
}

static inline struct ref_value ref_combine(zipcclRedOp_t op, zipcclDataType_t dtype, struct ref_value a,
                                           struct ref_value b) {
    const bool is_float = ref_type_of(dtype).is_float;
    struct ref_value r = a;
    switch (op) {
    case zipcclProd:
        r.f = a.f * b.f;
        r.i = (__int128)((unsigned __int128)a.i * (unsigned __int128)b.i);
        break;
    case zipcclMax:
    case zipcclMin: {
        const bool want_greater = op == zipcclMax;
        if (!is_float)
            return (a.i > b.i) == want_greater ? a : b;
        if (isnan(a.f))
            return b;
        if (isnan(b.f))
            return a;
        if (a.f == b.f)
            return (signbit(b.f) != 0) == want_greater ? a : b;
        return (a.f > b.f) == want_greater ? a : b;
    }
    default:
        r.f = a.f + b.f;
        r.i = a.i + b.i;
    }
    return ref_accumulator(dtype, r);
}

/* Value i of the result, as bits. */
static inline uint64_t ref_reduce(const struct reduce *r, size_t i) {
    const struct ref_type t = ref_type_of(r->dtype);
    struct ref_value totals[64] = {{0, 0}};
    unsigned groups = 0;
    for (uint32_t k = 0; k < r->ninputs;) {
        struct ref_value sum = {0, 0};
        bool round = false, ended = false;
        for (unsigned members = 0; k < r->ninputs && !ended; k++, members++) {
            const struct reduce_input *in = &r->inputs[k];
            struct ref_value v = ref_load(r->dtype, (const uint8_t *)in->values + i * t.bytes);
            if (in->scaled)
                v = ref_combine(zipcclProd, r->dtype, v, ref_load(r->dtype, &in->scalar));
            sum = members ? ref_combine(r->op, r->dtype, sum, v) : v;
            ended = in->ends_group;
            round = ended && in->round_group;
        }
        if (round) {
            const uint64_t code = ref_round(r->dtype, sum);
            sum = ref_load(r->dtype, &code);
        }
        totals[groups++] = sum;
    }
    struct ref_value total = totals[0];
    for (unsigned g = 1; g < groups; g++)
        total = ref_combine(r->op, r->dtype, total, totals[g]);
    if (r->op == zipcclAvg && r->divisor) {
        total.f /= (double)(t.bytes <= 4 ? (float)r->divisor : (double)r->divisor);
        total.i /= r->divisor;
        total = ref_accumulator(r->dtype, total);
    }
    return ref_round(r->dtype, total);
}

#endif

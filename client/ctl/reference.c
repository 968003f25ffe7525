/* SPDX-License-Identifier: Apache-2.0
 *
 * The reference of reductions.
 */
#include "client/ctl/reference.h"

#include <math.h>
#include <string.h>

#include "kernels/dtype.h"

/* A float of fewer than 32 bits: exponent and mantissa bits; whether it saturates, and has infinities. */
struct narrow {
    unsigned e, m;
    bool saturates, has_infinity;
};

static const struct narrow *narrow_of(zipcclDataType_t dtype) {
    static const struct narrow bf16 = {8, 7, false, true}, fp16 = {5, 10, false, true}, e4m3 = {4, 3, true, false},
                               e5m2 = {5, 2, true, true};
    switch (dtype) {
    case zipcclBfloat16:
        return &bf16;
    case zipcclFloat16:
        return &fp16;
    case zipcclFloat8e4m3:
        return &e4m3;
    case zipcclFloat8e5m2:
        return &e5m2;
    default:
        return NULL;
    }
}

static bool is_integer(zipcclDataType_t dtype) {
    return dtype < zipcclFloat16;
}

static bool is_signed(zipcclDataType_t dtype) {
    return dtype == zipcclInt8 || dtype == zipcclInt32 || dtype == zipcclInt64;
}

static float widen(uint32_t bits, const struct narrow *k) {
    uint32_t top = (1u << k->e) - 1, exponent = bits >> k->m & top, mantissa = bits & ((1u << k->m) - 1);
    int bias = (1 << (k->e - 1)) - 1;
    float sign = bits >> (k->e + k->m) & 1 ? -1.0f : 1.0f;
    if (exponent == top && (k->has_infinity || mantissa == (1u << k->m) - 1))
        return mantissa ? NAN : sign * INFINITY;
    if (!exponent)
        return sign * ldexpf((float)mantissa, 1 - bias - (int)k->m);
    return sign * ldexpf((float)(mantissa | 1u << k->m), (int)exponent - bias - (int)k->m);
}

/* To nearest, ties to even. */
static uint32_t shrink(float value, const struct narrow *k) {
    uint32_t sign = signbit(value) ? 1u << (k->e + k->m) : 0, top = (1u << k->e) - 1;
    uint32_t ones = (1u << (k->e + k->m)) - 1, infinity = k->has_infinity ? top << k->m : ones;
    int bias = (1 << (k->e - 1)) - 1, exponent;
    if (isnan(value))
        return ones;
    double magnitude = fabs((double)value);
    if (isinf(value))
        return sign | (k->saturates ? infinity - 1 : infinity);
    if (magnitude == 0)
        return sign;
    (void)frexp(magnitude, &exponent); /* magnitude < 2^exponent */
    exponent = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
    /* In units of the last place; a carry out of the mantissa moves the exponent, as it must. */
    uint64_t units = (uint64_t)llrint(ldexp(magnitude, (int)k->m - exponent));
    uint64_t bits = units + ((uint64_t)(exponent + bias - 1) << k->m);
    if (bits >= infinity)
        bits = k->saturates ? infinity - 1 : infinity;
    return sign | (uint32_t)bits;
}

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float load_float(const struct reference *r, const uint8_t *at) {
    uint32_t bits = 0;
    memcpy(&bits, at, dtype_get(r->dtype)->bytes);
    if (r->dtype == zipcclFloat32)
        return float_of(bits);
    return r->dtype == zipcclBfloat16 ? float_of(bits << 16) : widen(bits, narrow_of(r->dtype));
}

static void store_float(const struct reference *r, float value, uint8_t *at) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (r->dtype == zipcclFloat32)
        bits = isnan(value) ? 0x7fffffff : bits;
    else if (r->dtype == zipcclBfloat16) /* the common one, and large */
        bits = isnan(value) ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    else
        bits = shrink(value, narrow_of(r->dtype));
    memcpy(at, &bits, dtype_get(r->dtype)->bytes);
}

/* b is chosen over a: a number over none, -0 below +0. */
#define CHOOSE(greater)                                                                                                \
    (isnan(a)   ? true                                                                                                 \
     : isnan(b) ? false                                                                                                \
     : a == b   ? ((greater) ? signbit(a) && !signbit(b) : !signbit(a) && signbit(b))                                  \
                : ((greater) ? b > a : b < a))

static float combine_float(zipcclRedOp_t op, float a, float b) {
    switch (op) {
    case zipcclProd:
        return a * b;
    case zipcclMax:
        return CHOOSE(true) ? b : a;
    case zipcclMin:
        return CHOOSE(false) ? b : a;
    default:
        return a + b;
    }
}

static double combine_double(zipcclRedOp_t op, double a, double b) {
    switch (op) {
    case zipcclProd:
        return a * b;
    case zipcclMax:
        return CHOOSE(true) ? b : a;
    case zipcclMin:
        return CHOOSE(false) ? b : a;
    default:
        return a + b;
    }
}

/* Sign-extended to 64 bits where the type is signed. */
static uint64_t load_integer(const struct reference *r, const uint8_t *at) {
    uint64_t bits = 0;
    unsigned unused = 64 - 8 * dtype_get(r->dtype)->bytes;
    memcpy(&bits, at, dtype_get(r->dtype)->bytes);
    bits <<= unused;
    return is_signed(r->dtype) ? (uint64_t)((int64_t)bits >> unused) : bits >> unused;
}

static uint64_t combine_integer(const struct reference *r, uint64_t a, uint64_t b) {
    bool less = is_signed(r->dtype) ? (int64_t)a < (int64_t)b : a < b;
    switch (r->redop) {
    case zipcclProd:
        return a * b;
    case zipcclMax:
        return less ? b : a;
    case zipcclMin:
        return less ? a : b;
    default:
        return a + b;
    }
}

/* Sums wrap in the type before they are divided. */
static uint64_t divide(const struct reference *r, uint64_t sum, unsigned n) {
    uint8_t wrapped[sizeof sum];
    memcpy(wrapped, &sum, sizeof sum);
    sum = load_integer(r, wrapped);
    if (!n)
        return sum;
    return is_signed(r->dtype) ? (uint64_t)((int64_t)sum / (int64_t)n) : sum / n;
}

uint64_t reference_scalar(zipcclDataType_t dtype) {
    struct reference r = {.dtype = dtype};
    uint64_t bits = 2;
    double half = 0.5;
    if (is_integer(dtype))
        return bits;
    bits = 0;
    if (dtype == zipcclFloat64)
        memcpy(&bits, &half, sizeof bits);
    else
        store_float(&r, 0.5f, (uint8_t *)&bits);
    return bits;
}

/* The node's result is rounded before it meets the others'. */
static bool rounds_between(const struct reference *r) {
    return r->nodes > 1 && (r->per_node > 1 || r->redop == zipcclPreMulSum);
}

static void one_float(const struct reference *r, size_t i, uint8_t *out) {
    size_t width = dtype_get(r->dtype)->bytes;
    float total = 0;
    for (unsigned node = 0; node < r->nodes; node++) {
        float sum = 0;
        for (unsigned k = 0; k < r->per_node; k++) {
            float x = load_float(r, r->values + (node * r->per_node + k) * r->stride + i * width);
            if (r->redop == zipcclPreMulSum)
                x *= 0.5f;
            sum = k ? combine_float(r->redop, sum, x) : x;
        }
        if (rounds_between(r)) {
            uint8_t rounded[sizeof(float)];
            store_float(r, sum, rounded);
            sum = load_float(r, rounded);
        }
        total = node ? combine_float(r->redop, total, sum) : sum;
    }
    if (r->redop == zipcclAvg)
        total /= (float)(r->nodes * r->per_node);
    store_float(r, total, out);
}

static void one_double(const struct reference *r, size_t i, uint8_t *out) {
    double total = 0;
    for (unsigned node = 0; node < r->nodes; node++) {
        double sum = 0;
        for (unsigned k = 0; k < r->per_node; k++) {
            double x;
            memcpy(&x, r->values + (node * r->per_node + k) * r->stride + i * sizeof x, sizeof x);
            if (r->redop == zipcclPreMulSum)
                x *= 0.5;
            sum = k ? combine_double(r->redop, sum, x) : x;
        }
        total = node ? combine_double(r->redop, total, sum) : sum;
    }
    if (r->redop == zipcclAvg)
        total /= r->nodes * r->per_node;
    uint64_t bits;
    memcpy(&bits, &total, sizeof bits);
    bits = isnan(total) ? UINT64_MAX >> 1 : bits;
    memcpy(out, &bits, sizeof bits);
}

static void one_integer(const struct reference *r, size_t i, uint8_t *out) {
    size_t width = dtype_get(r->dtype)->bytes;
    unsigned n = r->nodes * r->per_node;
    uint64_t total = 0;
    for (unsigned k = 0; k < n; k++) {
        uint64_t x = load_integer(r, r->values + k * r->stride + i * width);
        if (r->redop == zipcclPreMulSum)
            x *= 2;
        total = k ? combine_integer(r, total, x) : x;
    }
    if (r->redop == zipcclAvg)
        total = divide(r, total, n);
    memcpy(out, &total, width);
}

void reference_reduce(const struct reference *r, size_t first, size_t count, void *out) {
    size_t width = dtype_get(r->dtype)->bytes;
    for (size_t i = 0; i < count; i++) {
        uint8_t *to = (uint8_t *)out + i * width;
        if (is_integer(r->dtype))
            one_integer(r, first + i, to);
        else if (r->dtype == zipcclFloat64)
            one_double(r, first + i, to);
        else
            one_float(r, first + i, to);
    }
}

/* The greatest of the inputs' magnitudes, summed: what a rounding error is measured by. */
static bool near_one(const struct reference *r, size_t i, const uint8_t *got) {
    size_t width = dtype_get(r->dtype)->bytes;
    unsigned n = r->nodes * r->per_node;
    const struct narrow *k = narrow_of(r->dtype);
    uint8_t want[sizeof(double)];
    reference_reduce(r, i, 1, want);
    if (memcmp(want, got, width) == 0)
        return true;
    if (is_integer(r->dtype))
        return false;
    double size = 0, a, b;
    for (unsigned rank = 0; rank < n; rank++) {
        const uint8_t *at = r->values + rank * r->stride + i * width;
        double x = 0;
        if (r->dtype == zipcclFloat64)
            memcpy(&x, at, sizeof x);
        else
            x = (double)load_float(r, at);
        size = r->redop == zipcclProd ? (rank ? size * fabs(x) : fabs(x)) : size + fabs(x);
    }
    if (r->dtype == zipcclFloat64) {
        memcpy(&a, want, sizeof a);
        memcpy(&b, got, sizeof b);
    } else {
        a = (double)load_float(r, want);
        b = (double)load_float(r, got);
    }
    if (isnan(a) || isnan(b))
        return isnan(a) && isnan(b);
    double least = k ? (double)widen(1, k) : 0; /* a denormal step */
    int mantissa = k ? (int)k->m : r->dtype == zipcclFloat64 ? 52 : 23;
    return a == b || fabs(a - b) <= n * (ldexp(size, -mantissa) + least);
}

bool reference_near(const struct reference *r, size_t first, size_t count, const void *got) {
    size_t width = dtype_get(r->dtype)->bytes;
    for (size_t i = 0; i < count; i++)
        if (!near_one(r, first + i, (const uint8_t *)got + i * width))
            return false;
    return true;
}

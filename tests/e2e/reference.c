/* SPDX-License-Identifier: Apache-2.0 */
#include "reference.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "collect.h"

/* A small float: so many exponent and mantissa bits. finite: e4m3, whose greatest exponent holds numbers too. */
struct format {
    int exponent, mantissa;
    bool finite, saturates;
};

static const struct format formats[zipcclNumTypes] = {
    [zipcclFloat16] = {5, 10, false, false},
    [zipcclBfloat16] = {8, 7, false, false},
    [zipcclFloat8e4m3] = {4, 3, true, true},
    [zipcclFloat8e5m2] = {5, 2, false, true},
};

static bool is_float(zipcclDataType_t dtype) {
    return dtype == zipcclFloat32 || dtype == zipcclFloat64 || formats[dtype].exponent;
}

static uint64_t nan_bits(zipcclDataType_t dtype) {
    return UINT64_MAX >> (64 - 8 * dtype_size(dtype) + 1);
}

double reference_decode(zipcclDataType_t dtype, uint64_t bits) {
    const struct format *f = &formats[dtype];
    if (dtype == zipcclFloat64) {
        double x;
        memcpy(&x, &bits, sizeof(x));
        return x;
    }
    if (dtype == zipcclFloat32) {
        uint32_t low = (uint32_t)bits;
        float x;
        memcpy(&x, &low, sizeof(x));
        return (double)x;
    }
    int bias = (1 << (f->exponent - 1)) - 1, top = (1 << f->exponent) - 1;
    int m = (int)(bits & ((1u << f->mantissa) - 1)), e = (int)(bits >> f->mantissa) & top;
    double sign = bits >> (f->mantissa + f->exponent) & 1 ? -1.0 : 1.0;
    if (f->finite ? e == top && m == 7 : e == top && m)
        return (double)NAN;
    if (!f->finite && e == top)
        return sign * HUGE_VAL;
    if (e == 0)
        return sign * ldexp(m, 1 - bias - f->mantissa);
    return sign * ldexp(m + (1 << f->mantissa), e - bias - f->mantissa);
}

uint64_t reference_round(zipcclDataType_t dtype, double x) {
    const struct format *f = &formats[dtype];
    uint64_t bits = 0;
    if (isnan(x))
        return nan_bits(dtype);
    if (dtype == zipcclFloat64) {
        memcpy(&bits, &x, sizeof(x));
        return bits;
    }
    if (dtype == zipcclFloat32) { /* x is a float already */
        float y = (float)x;
        memcpy(&bits, &y, sizeof(y));
        return bits;
    }
    int bias = (1 << (f->exponent - 1)) - 1, least = 1 - bias;
    uint64_t sign = signbit(x) ? (uint64_t)1 << (f->exponent + f->mantissa) : 0, one = (uint64_t)1 << f->mantissa;
    uint64_t inf = ((uint64_t)1 << (f->exponent + f->mantissa)) - one; /* of e4m3: 256 */
    uint64_t most = f->finite ? inf + 6 : f->saturates ? inf - 1 : inf;
    double size = fabs(x);
    if (isinf(x))
        return sign | most;
    int e = size > 0 ? ilogb(size) : least;
    if (e < least)
        e = least;
    /* In units of the last place: 2^mantissa and more where the number is normal. A carry goes to the exponent. */
    bits = (uint64_t)nearbyint(ldexp(size, f->mantissa - e)) + (uint64_t)(e - least) * one;
    return sign | (bits > most ? most : bits);
}

/* ---- arithmetic of the accumulators ---- */

static float add32(float a, float b) {
    return a + b;
}

static float mul32(float a, float b) {
    return a * b;
}

static double combine_float(const struct reference *r, double a, double b) {
    bool is64 = r->dtype == zipcclFloat64;
    switch (r->redop) {
    case zipcclProd:
        return is64 ? a * b : (double)mul32((float)a, (float)b);
    case zipcclMax:
    case zipcclMin:
        if (isnan(a) || isnan(b))
            return isnan(a) ? b : a;
        if (a == b) /* zeros of both signs */
            return (signbit(a) != 0) == (r->redop == zipcclMin) ? a : b;
        return (a > b) == (r->redop == zipcclMax) ? a : b;
    default:
        return is64 ? a + b : (double)add32((float)a, (float)b);
    }
}

static bool is_signed(zipcclDataType_t dtype) {
    return dtype == zipcclInt8 || dtype == zipcclInt32 || dtype == zipcclInt64;
}

static int64_t extend(zipcclDataType_t dtype, uint64_t bits) {
    unsigned shift = 64 - 8 * (unsigned)dtype_size(dtype);
    return (int64_t)(bits << shift) >> shift;
}

static uint64_t wrap(zipcclDataType_t dtype, uint64_t bits) {
    return bits & (UINT64_MAX >> (64 - 8 * dtype_size(dtype)));
}

static uint64_t combine_integer(const struct reference *r, uint64_t a, uint64_t b) {
    bool less = is_signed(r->dtype) ? extend(r->dtype, a) < extend(r->dtype, b) : a < b;
    switch (r->redop) {
    case zipcclProd:
        return wrap(r->dtype, a * b);
    case zipcclMax:
        return less ? b : a;
    case zipcclMin:
        return less ? a : b;
    default:
        return wrap(r->dtype, a + b);
    }
}

/* ---- the rule ---- */

static uint64_t bits_of(const struct reference *r, int rank, size_t i) {
    size_t size = dtype_size(r->dtype);
    uint64_t bits = 0;
    memcpy(&bits, r->inputs[rank] + i * size, size);
    return bits;
}

static uint64_t integer_value(const struct reference *r, size_t i) {
    uint64_t total = 0;
    for (int rank = 0; rank < r->nranks; rank++) { /* in any order: it wraps */
        uint64_t x = bits_of(r, rank, i);
        if (r->redop == zipcclPreMulSum)
            x = wrap(r->dtype, x * r->scalars[rank]);
        total = rank ? combine_integer(r, total, x) : x;
    }
    if (r->redop != zipcclAvg)
        return total;
    if (is_signed(r->dtype))
        return wrap(r->dtype, (uint64_t)(extend(r->dtype, total) / r->nranks));
    return total / (uint64_t)r->nranks;
}

/* One rank's value, multiplied. */
static double float_of(const struct reference *r, int rank, size_t i) {
    double x = reference_decode(r->dtype, bits_of(r, rank, i)), s;
    if (r->redop != zipcclPreMulSum)
        return x;
    s = reference_decode(r->dtype, r->scalars[rank]);
    return r->dtype == zipcclFloat64 ? x * s : (double)mul32((float)x, (float)s);
}

static uint64_t float_value(const struct reference *r, size_t i) {
    double total = 0;
    bool done[REFERENCE_RANKS] = {false}, spans = false, first = true;
    for (int rank = 1; rank < r->nranks; rank++)
        spans = spans || r->node[rank] != r->node[0];
    for (int lowest = 0; lowest < r->nranks; lowest++) {
        double sum = float_of(r, lowest, i);
        int members = 1;
        if (done[r->node[lowest]])
            continue;
        done[r->node[lowest]] = true;
        for (int rank = lowest + 1; rank < r->nranks; rank++) {
            if (r->node[rank] != r->node[lowest])
                continue;
            sum = combine_float(r, sum, float_of(r, rank, i));
            members++;
        }
        if (spans && (members > 1 || r->redop == zipcclPreMulSum))
            sum = reference_decode(r->dtype, reference_round(r->dtype, sum));
        total = first ? sum : combine_float(r, total, sum);
        first = false;
    }
    if (r->redop == zipcclAvg)
        total = r->dtype == zipcclFloat64 ? total / r->nranks : (double)((float)total / (float)r->nranks);
    return reference_round(r->dtype, total);
}

uint64_t reference_value(const struct reference *r, size_t i) {
    return is_float(r->dtype) ? float_value(r, i) : integer_value(r, i);
}

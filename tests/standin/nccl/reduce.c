/* SPDX-License-Identifier: Apache-2.0
 *
 * Reductions around a ring of the ranks, as NCCL's: each hop adds a rank's values in FP32 (FP64 in FP64) and rounds to
 * the dtype. A part of the result begins at the rank behind the one that it ends at: of a reduce-scatter the rank whose
 * part it is, of a reduce the root, of an all-reduce rank p for the p-th of as many equal parts as there are ranks. The
 * real one cuts into channels and slices besides. An average of floats of
 * 32 bits or less adds values that were divided before, as NCCL's is scaled before; others divide at the end.
 */
#include <math.h>
#include <string.h>

#include "nccl_standin.h"

struct format {
    int exponent_bits, mantissa_bits;
    bool has_infinity;
};

static float decode(uint32_t bits, struct format f) {
    int bias = (1 << (f.exponent_bits - 1)) - 1, top = (1 << f.exponent_bits) - 1;
    uint32_t mantissa = bits & ((1u << f.mantissa_bits) - 1);
    int exponent = (int)(bits >> f.mantissa_bits) & top;
    float value;
    if (f.has_infinity && exponent == top)
        value = mantissa ? NAN : INFINITY;
    else if (!f.has_infinity && exponent == top && mantissa == (1u << f.mantissa_bits) - 1)
        value = NAN;
    else if (exponent == 0)
        value = ldexpf((float)mantissa, 1 - bias - f.mantissa_bits);
    else
        value = ldexpf((float)(mantissa | 1u << f.mantissa_bits), exponent - bias - f.mantissa_bits);
    return bits >> (f.exponent_bits + f.mantissa_bits) & 1 ? -value : value;
}

static uint32_t encode(float value, struct format f) {
    int bias = (1 << (f.exponent_bits - 1)) - 1, top = (1 << f.exponent_bits) - 1, exponent;
    uint32_t sign = signbit(value) ? 1u << (f.exponent_bits + f.mantissa_bits) : 0;
    uint32_t nan = ((uint32_t)top << f.mantissa_bits) | ((1u << f.mantissa_bits) - 1);
    /* Where there is no infinity, what overflows becomes the largest value. */
    uint32_t over = f.has_infinity ? (uint32_t)top << f.mantissa_bits : nan - 1;
    if (isnan(value))
        return sign | nan;
    value = fabsf(value);
    if (value == 0)
        return sign;
    if (isinf(value))
        return sign | over;
    frexpf(value, &exponent);
    exponent = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
    uint64_t steps = (uint64_t)rint(ldexp((double)value, f.mantissa_bits - exponent)); /* to nearest even */
    uint64_t bits = steps + ((uint64_t)(exponent + bias - 1) << f.mantissa_bits);
    return sign | (bits > over ? over : (uint32_t)bits);
}

static const struct format formats[ncclNumTypes] = {[ncclFloat16] = {5, 10, true},
                                                    [ncclBfloat16] = {8, 7, true},
                                                    [ncclFloat8e4m3] = {4, 3, false},
                                                    [ncclFloat8e5m2] = {5, 2, true}};

static float load_float(const uint8_t *p, size_t i, ncclDataType_t dtype) {
    float value;
    uint16_t half;
    if (dtype == ncclFloat32) {
        memcpy(&value, p + 4 * i, 4);
        return value;
    }
    if (dtype_bytes(dtype) == 1)
        return decode(p[i], formats[dtype]);
    memcpy(&half, p + 2 * i, 2);
    return decode(half, formats[dtype]);
}

static void store_float(uint8_t *p, size_t i, float value, ncclDataType_t dtype) {
    uint16_t half;
    if (dtype == ncclFloat32) {
        memcpy(p + 4 * i, &value, 4);
    } else if (dtype_bytes(dtype) == 1) {
        p[i] = (uint8_t)encode(value, formats[dtype]);
    } else {
        half = (uint16_t)encode(value, formats[dtype]);
        memcpy(p + 2 * i, &half, 2);
    }
}

#define COMBINE(a, b)                                                                                                  \
    (op == ncclProd  ? (a) * (b)                                                                                       \
     : op == ncclMax ? ((a) > (b) ? (a) : (b))                                                                         \
     : op == ncclMin ? ((a) < (b) ? (a) : (b))                                                                         \
                     : (a) + (b))

static void reduce_float(void *out, const uint8_t *const *in, int n, int first, size_t i, ncclDataType_t dtype,
                         ncclRedOp_t op) {
    const float divisor = op == ncclAvg ? (float)n : 1;
    float sum = load_float(in[first], i, dtype) / divisor;
    for (int k = 1; k < n; k++) {
        float value = load_float(in[(first + k) % n], i, dtype) / divisor;
        store_float(out, i, COMBINE(sum, value), dtype);
        sum = load_float(out, i, dtype);
    }
    store_float(out, i, sum, dtype);
}

#define REDUCE_AS(type, wide)                                                                                          \
    do {                                                                                                               \
        type value;                                                                                                    \
        memcpy(&value, in[first] + i * sizeof(type), sizeof(type));                                                    \
        wide sum = value;                                                                                              \
        for (int k = 1; k < n; k++) {                                                                                  \
            memcpy(&value, in[(first + k) % n] + i * sizeof(type), sizeof(type));                                      \
            sum = (wide)COMBINE(sum, (wide)value);                                                                     \
        }                                                                                                              \
        value = (type)(op == ncclAvg ? sum / (wide)n : sum);                                                           \
        memcpy((uint8_t *)out + i * sizeof(type), &value, sizeof(type));                                               \
    } while (0)

void reduce(void *out, const uint8_t *const *in, int n, int first, size_t from, size_t to, ncclDataType_t dtype,
            ncclRedOp_t op) {
    for (size_t i = from; i < to; i++) {
        switch (dtype) {
        case ncclInt8:
            REDUCE_AS(int8_t, int64_t);
            break;
        case ncclUint8:
            REDUCE_AS(uint8_t, uint64_t);
            break;
        case ncclInt32:
            REDUCE_AS(int32_t, int64_t);
            break;
        case ncclUint32:
            REDUCE_AS(uint32_t, uint64_t);
            break;
        case ncclInt64:
            REDUCE_AS(int64_t, int64_t);
            break;
        case ncclUint64:
            REDUCE_AS(uint64_t, uint64_t);
            break;
        case ncclFloat64:
            REDUCE_AS(double, double);
            break;
        default:
            reduce_float(out, in, n, first, i, dtype, op);
        }
    }
}

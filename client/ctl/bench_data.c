/* SPDX-License-Identifier: Apache-2.0
 *
 * Values to measure with.
 */
#include "client/ctl/bench_data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/dtype.h"

#define POOL (1u << 20) /* values made by hand; the rest are drawn from them one by one, to save time */

static uint64_t next_random(uint64_t *state) {
    *state += 0x9e3779b97f4a7c15u;
    uint64_t z = *state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Rounds a float to E exponent and M mantissa bits with this bias, to nearest, without specials: tiny becomes zero. */
static uint32_t narrow(float value, unsigned e, unsigned m, int bias) {
    uint32_t sign = signbit(value) ? 1u << (e + m) : 0;
    int exponent;
    float fraction = frexpf(fabsf(value), &exponent); /* 0.5 <= fraction < 1 */
    if (fraction == 0)
        return sign;
    int biased = exponent - 1 + bias;
    if (biased <= 0) { /* denormal */
        uint32_t steps = (uint32_t)lrintf(ldexpf(fabsf(value), bias - 1 + (int)m));
        return sign | steps;
    }
    uint32_t mantissa = (uint32_t)lrintf(ldexpf(fraction * 2 - 1, (int)m));
    uint32_t bits = ((uint32_t)biased << m) + mantissa; /* a carry moves into the exponent, as it must */
    return sign | bits;
}

static uint32_t encode(float value, zipcclDataType_t dtype) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    switch (dtype) {
    case zipcclBfloat16:
        return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    case zipcclFloat16:
        return narrow(value, 5, 10, 15);
    case zipcclFloat8e4m3:
        return narrow(value, 4, 3, 7);
    case zipcclFloat8e5m2:
        return narrow(value, 5, 2, 15);
    default:
        return bits;
    }
}

void bench_gauss(void *out, size_t bytes, zipcclDataType_t dtype, uint64_t seed) {
    uint8_t *to = out;
    size_t width = dtype_get(dtype)->bytes;
    width = width > sizeof(uint32_t) ? sizeof(uint32_t) : width;
    size_t n = bytes / width, made = n < POOL ? n : POOL;
    for (size_t i = 0; i < made; i += 2) {
        double u = ((double)(next_random(&seed) >> 11) + 1) * 0x1p-53, v = (double)(next_random(&seed) >> 11) * 0x1p-53;
        double radius = sqrt(-2 * log(u)) * BENCH_SIGMA;
        uint32_t a = encode((float)(radius * cos(2 * M_PI * v)), dtype);
        uint32_t b = encode((float)(radius * sin(2 * M_PI * v)), dtype);
        memcpy(to + i * width, &a, width);
        if (i + 1 < made)
            memcpy(to + (i + 1) * width, &b, width);
    }
    /* Single draws: longer runs would be repetitions that a dictionary coder finds. */
    for (size_t i = made; i < n; i++)
        memcpy(to + i * width, to + next_random(&seed) % POOL * width, width);
    memset(to + n * width, 0, bytes - n * width);
}

void bench_repeat(void *out, size_t bytes, const struct tensor *t, size_t offset) {
    uint8_t *to = out;
    const uint8_t *from = t->values;
    for (size_t done = 0; done < bytes && t->bytes;) {
        size_t at = (offset + done) % t->bytes, n = t->bytes - at;
        n = n < bytes - done ? n : bytes - done;
        memcpy(to + done, from + at, n);
        done += n;
    }
}

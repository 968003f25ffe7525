/* SPDX-License-Identifier: Apache-2.0
 *
 * The state machine of trials.
 */
#include "daemon/core/trial.h"

#define MANTISSA_BITS 11u
#define HALF_BITS     16u
#define MUST_GAIN_NUM 97u /* coded must take at most this part of raw */
#define MUST_GAIN_DEN 100u
#define REPORT        (TRIAL_OPS - 1)
#define WARM          2u

static uint32_t pack_half(uint64_t ns) {
    uint32_t exponent = 0;
    while (ns >> MANTISSA_BITS && exponent < 31) {
        ns >>= 1;
        exponent++;
    }
    if (ns >> MANTISSA_BITS)
        ns = (1u << MANTISSA_BITS) - 1;
    return exponent << MANTISSA_BITS | (uint32_t)ns;
}

static uint64_t unpack_half(uint32_t half) {
    return (uint64_t)(half & ((1u << MANTISSA_BITS) - 1)) << (half >> MANTISSA_BITS);
}

uint32_t trial_pack(uint64_t raw_ns, uint64_t coded_ns) {
    return pack_half(raw_ns) << HALF_BITS | pack_half(coded_ns);
}

uint32_t trial_worst(uint32_t a, uint32_t b) {
    uint32_t mask = (1u << HALF_BITS) - 1, raw_a = a >> HALF_BITS, raw_b = b >> HALF_BITS;
    uint32_t raw = raw_a > raw_b ? raw_a : raw_b;
    uint32_t coded = (a & mask) > (b & mask) ? a & mask : b & mask;
    return raw << HALF_BITS | coded;
}

zipcclCodec_t trial_choose(const struct trial_kind *kind, zipcclCodec_t modelled, uint32_t *report) {
    *report = kind->n == REPORT ? trial_pack(kind->best_ns[0], kind->best_ns[1]) : 0;
    if (kind->n < REPORT)
        return kind->n % 2 == 0 ? modelled : zipcclCodecRaw;
    if (kind->n == REPORT)
        return zipcclCodecRaw;
    return kind->coded ? modelled : zipcclCodecRaw;
}

void trial_done(struct trial_kind *kind, bool coded, uint64_t ns, uint32_t worst) {
    uint64_t *best = &kind->best_ns[coded];
    if (kind->n >= WARM && kind->n < REPORT && (*best == 0 || ns < *best))
        *best = ns ? ns : 1;
    if (kind->n == REPORT) {
        uint64_t worst_raw = unpack_half(worst >> HALF_BITS),
                 worst_coded = unpack_half(worst & ((1u << HALF_BITS) - 1));
        kind->coded = worst_coded * MUST_GAIN_DEN <= worst_raw * MUST_GAIN_NUM;
        kind->best_ns[0] = kind->best_ns[1] = 0;
    }
    kind->n++;
    if (kind->n >= TRIAL_OPS + TRIAL_REPEAT)
        kind->n = WARM;
}

struct trial_kind *trial_find(struct trial *trial, zipcclDataType_t dtype, uint64_t bytes) {
    uint32_t size = 0;
    while (size < 63 && bytes >> 1 >> size)
        size++;
    return &trial->kinds[(unsigned)dtype < zipcclNumTypes ? (unsigned)dtype : 0][size];
}

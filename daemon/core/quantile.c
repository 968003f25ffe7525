/* SPDX-License-Identifier: Apache-2.0
 *
 * Buckets that grow with the time: below 8 ns one each, then eight to every power of two. See quantile.h.
 */
#include "daemon/core/quantile.h"

#define PARTS      8u /* of a power of two */
#define PARTS_BITS 3u

static unsigned bucket_of(uint64_t ns) {
    if (ns < PARTS)
        return (unsigned)ns;
    unsigned power = 63u - (unsigned)__builtin_clzll(ns);
    uint64_t bucket = (power - PARTS_BITS + 1) * PARTS + ((ns >> (power - PARTS_BITS)) & (PARTS - 1));
    return bucket < QUANTILE_BUCKETS ? (unsigned)bucket : QUANTILE_BUCKETS - 1;
}

/* The middle of a bucket. */
static uint64_t middle_of(unsigned bucket) {
    if (bucket < PARTS)
        return bucket;
    unsigned shift = bucket / PARTS - 1;
    return ((uint64_t)(PARTS + bucket % PARTS) << shift) + ((1ull << shift) >> 1);
}

void quantile_add(struct quantile *q, uint64_t ns) {
    uint32_t *bucket = &q->buckets[bucket_of(ns)];
    if (*bucket == UINT32_MAX) { /* what is asked for is how they are spread: halves are spread alike */
        for (unsigned i = 0; i < QUANTILE_BUCKETS; i++)
            q->buckets[i] /= 2;
    }
    ++*bucket;
}

uint64_t quantile_at(const struct quantile *q, unsigned permille) {
    uint64_t all = 0, seen = 0;
    for (unsigned i = 0; i < QUANTILE_BUCKETS; i++)
        all += q->buckets[i];
    uint64_t rank = (all * permille + 999) / 1000;
    for (unsigned i = 0; i < QUANTILE_BUCKETS && all > 0; i++) {
        seen += q->buckets[i];
        if (seen >= rank && seen > 0)
            return middle_of(i);
    }
    return 0;
}

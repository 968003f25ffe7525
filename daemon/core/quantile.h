/* SPDX-License-Identifier: Apache-2.0
 *
 * How times of one kind are spread: counts in buckets of an eighth of a power of two, so that a quantile is right to
 * a sixteenth. Pure.
 */
#ifndef ZIPCCL_DAEMON_QUANTILE_H
#define ZIPCCL_DAEMON_QUANTILE_H

#include <stdint.h>

#define QUANTILE_BUCKETS 312u /* up to 2^41 ns, 36 minutes; the last has all above */

struct quantile {
    uint32_t buckets[QUANTILE_BUCKETS];
};

void quantile_add(struct quantile *q, uint64_t ns);
/* The time that `permille` of 1000 did not pass; 0: there are none. */
uint64_t quantile_at(const struct quantile *q, unsigned permille);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * The flight recorder of a job: a ring of its last operations, so that a hang can be read afterwards. Memory is fixed
 * and taken once, when the job begins; texts are written only for operations that fail or are looked at.
 * Loop thread alone.
 */
#ifndef ZIPCCL_DAEMON_FLIGHT_H
#define ZIPCCL_DAEMON_FLIGHT_H

#include <stdbool.h>
#include <stdint.h>

#define FLIGHT_OPS     4096u
#define FLIGHT_WHERE   64u /* bytes of a text */
#define FLIGHT_MISSING 4u  /* ranks that are named */

struct flight_op {
    uint64_t id; /* 1, 2, 3...; 0: an entry that was never used */
    uint64_t comm, seq, bytes, wire_bytes;
    uint64_t start_ns, arrived_ns, end_ns; /* CLOCK_MONOTONIC; end 0: under way */
    uint32_t group, rank;                  /* rank: + 1, 0: the node's */
    uint32_t local, arrived;
    uint32_t missing[FLIGHT_MISSING], nmissing;
    uint8_t op, dtype, codec, arm, result;
    bool native; /* the fabric did it whole */
};

struct flight {
    uint64_t last; /* id of the youngest */
    struct flight_op ops[FLIGHT_OPS];
    char where[FLIGHT_OPS][FLIGHT_WHERE];
};

/* A new entry, in place of the oldest: zero but for its id. NULL where f is. */
struct flight_op *flight_begin(struct flight *f);
/* The entry of an id; NULL: there is none, or it was overwritten. */
struct flight_op *flight_get(struct flight *f, uint64_t id);
/* Its text, FLIGHT_WHERE bytes. */
char *flight_where(struct flight *f, const struct flight_op *op);
/* The oldest id of the youngest `most` (0: of all) that are kept; last + 1 where there is none. */
uint64_t flight_first(const struct flight *f, uint32_t most);

#endif

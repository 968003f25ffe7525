/* SPDX-License-Identifier: Apache-2.0
 *
 * Who gives how much to whom in an operation of bench collective, and what follows from it: buffers, the least that a
 * node must send, and the bandwidths of nccl-tests. Pure.
 */
#ifndef ZIPCCL_CTL_LAYOUT_H
#define ZIPCCL_CTL_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/ctl/rows.h"
#include "zipccl_types.h"

struct layout {
    zipcclOp_t op;
    unsigned nodes, per_node, nranks;
    size_t width;            /* bytes of a value */
    uint64_t bytes;          /* as asked for, rounded down to what the operation can share out */
    uint64_t count;          /* as in the API; v operations: of a rank on average */
    const struct rows *rows; /* of the v operations; not NULL there */
};

#define LAYOUT_ROOT 0u

/* bytes: as --size gives them, see layout_bytes_mean. */
struct layout layout_make(zipcclOp_t op, unsigned nodes, unsigned per_node, size_t width, uint64_t bytes,
                          const struct rows *rows);
/* Values that `from` gives to `to` (all-to-all and its v); of all-gather-v and reduce-scatter-v: counts[to]. */
uint64_t layout_part(const struct layout *l, unsigned from, unsigned to);
/* Values in `from`'s send buffer before its part for `to`. */
uint64_t layout_part_at(const struct layout *l, unsigned from, unsigned to);
/* Whom a rank sends to, and receives from, in an exchange of pairs. */
unsigned layout_partner(const struct layout *l, unsigned rank);
unsigned layout_source(const struct layout *l, unsigned rank);
/* Bytes of this rank's buffers; 0: it needs none. */
uint64_t layout_send_bytes(const struct layout *l, unsigned rank);
uint64_t layout_recv_bytes(const struct layout *l, unsigned rank);
/* Bytes that the node that must send most must send at least, uncoded. */
double layout_must_send(const struct layout *l);
/* alg = these bytes / time, bus = alg * factor. */
double layout_alg_bytes(const struct layout *l);
double layout_bus_factor(const struct layout *l);
/* What --size says of this operation, for the head of a table. */
const char *layout_bytes_mean(zipcclOp_t op);

#endif

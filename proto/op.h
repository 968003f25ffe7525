/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations, reductions and arms: their names, which people read and type, and their kinds.
 */
#ifndef ZIPCCL_PROTO_OP_H
#define ZIPCCL_PROTO_OP_H

#include <stdbool.h>

#include "zipccl_types.h"

/* "all-gather"; "?" for an unknown value, never NULL. */
const char *op_name(unsigned op);
/* "all-gather", also "allgather" and "all_gather", any case. False where unknown. */
bool op_from_name(const char *name, zipcclOp_t *op);

/* Sums and the like: reduce-scatter(-v), all-reduce, reduce. */
bool op_reduces(zipcclOp_t op);
/* Made of transfers between pairs of ranks, each rank with a plan of its own: all-to-all(-v, -capped), gather, scatter,
 * send and receive. The others are planned for all ranks of a node together. */
bool op_exchanges(zipcclOp_t op);
/* Send and receive: of two ranks, not of all. */
bool op_is_pairwise(zipcclOp_t op);
/* Broadcast, reduce, gather, scatter. */
bool op_has_root(zipcclOp_t op);

/* "sum"...; "?" for an unknown value. */
const char *redop_name(unsigned redop);
bool redop_from_name(const char *name, zipcclRedOp_t *redop);
/* "ring", "flat", "hierarchical", "auto"; "?" for an unknown value. */
const char *arm_name(unsigned arm);
bool arm_from_name(const char *name, zipcclArm_t *arm);

#endif

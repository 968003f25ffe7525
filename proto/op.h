/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of operations: what people read and type.
 */
#ifndef ZIPCCL_PROTO_OP_H
#define ZIPCCL_PROTO_OP_H

#include <stdbool.h>

#include "zipccl_types.h"

/* "all-gather"; "?" for an unknown value, never NULL. */
const char *op_name(unsigned op);
/* "all-gather", also "allgather" and "all_gather", any case. False where unknown. */
bool op_from_name(const char *name, zipcclOp_t *op);

#endif

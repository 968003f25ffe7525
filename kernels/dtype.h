/* SPDX-License-Identifier: Apache-2.0
 *
 * The one table of data types: name, size, and for floats where the exponent lies.
 */
#ifndef ZIPCCL_KERNELS_DTYPE_H
#define ZIPCCL_KERNELS_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "zipccl_types.h"

struct dtype_info {
    const char *name;        /* "bf16" */
    const char *safetensors; /* "BF16", the name in a .safetensors header; NULL if none */
    uint8_t bytes;           /* of a value */
    uint8_t exponent_bits;   /* 0: not a float that the codec splits */
    uint8_t byte_planes;     /* remainder bits / 8 */
    uint8_t bit_planes;      /* remainder bits % 8 */
};

/* NULL for an unknown dtype (the value may come from outside). */
const struct dtype_info *dtype_get(unsigned dtype);
/* By name (either form, any case). False where unknown. */
bool dtype_from_name(const char *name, zipcclDataType_t *dtype);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of data types and its look-up by number and by name.
 */
#include "kernels/dtype.h"

#include <strings.h>

static const struct dtype_info g_dtypes[zipcclNumTypes] = {
    [zipcclInt8] = {"int8", "I8", 1, 0, 0, 0},
    [zipcclUint8] = {"uint8", "U8", 1, 0, 0, 0},
    [zipcclInt32] = {"int32", "I32", 4, 0, 0, 0},
    [zipcclUint32] = {"uint32", "U32", 4, 0, 0, 0},
    [zipcclInt64] = {"int64", "I64", 8, 0, 0, 0},
    [zipcclUint64] = {"uint64", "U64", 8, 0, 0, 0},
    [zipcclFloat16] = {"fp16", "F16", 2, 5, 1, 3},
    [zipcclFloat32] = {"fp32", "F32", 4, 8, 3, 0},
    [zipcclFloat64] = {"fp64", "F64", 8, 0, 0, 0},
    [zipcclBfloat16] = {"bf16", "BF16", 2, 8, 1, 0},
    [zipcclFloat8e4m3] = {"fp8_e4m3", "F8_E4M3", 1, 4, 0, 4},
    [zipcclFloat8e5m2] = {"fp8_e5m2", "F8_E5M2", 1, 5, 0, 3},
};

const struct dtype_info *dtype_get(unsigned dtype) {
    return dtype < zipcclNumTypes ? &g_dtypes[dtype] : NULL;
}

bool dtype_from_name(const char *name, zipcclDataType_t *dtype) {
    if (!name)
        return false;
    for (unsigned i = 0; i < zipcclNumTypes; i++) {
        const struct dtype_info *d = &g_dtypes[i];
        if (strcasecmp(name, d->name) == 0 || (d->safetensors && strcasecmp(name, d->safetensors) == 0)) {
            *dtype = (zipcclDataType_t)i;
            return true;
        }
    }
    return false;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensor files for the commands: raw values (.bf16, .f32, ...) or .safetensors, mapped, as a list of tensors.
 */
#ifndef ZIPCCL_CTL_TENSORS_H
#define ZIPCCL_CTL_TENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "zipccl_types.h"

struct tensor {
    char *name;             /* file name, or the name in a .safetensors file with odd characters escaped */
    char dtype_name[16];    /* "bf16"; of types that zipccl does not know as in the file */
    zipcclDataType_t dtype; /* zipcclUint8 where the type is not known: bytes */
    bool coded;             /* the codec splits this type */
    uint64_t count;
    size_t bytes;
    const void *values; /* any alignment */
};

struct tensor_file {
    void *map;
    size_t size;
};

struct tensor_list {
    struct tensor *tensors;
    size_t n;
    struct tensor_file *files;
    size_t nfiles;
};

/* Opens files; raw ones hold values of dtype, or, with dtype NULL, of what the extension says (else bf16).
 * False: why[256] has the reason. The list is freed by tensor_list_free in both cases. */
bool tensor_list_open(struct tensor_list *list, char *const *paths, size_t n, const zipcclDataType_t *dtype,
                      char why[256]);
void tensor_list_free(struct tensor_list *list);

/* By a name of the table of dtypes, or "e4m3", "e5m2". False where unknown. */
bool tensor_dtype_from_name(const char *name, zipcclDataType_t *dtype);

/* Text with control characters, quotes, backslashes and bytes that are not ASCII as \xNN. NULL: no memory. */
char *tensor_escape(const char *text);

#endif

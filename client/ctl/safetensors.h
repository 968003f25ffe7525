/* SPDX-License-Identifier: Apache-2.0
 *
 * A strict reader of .safetensors headers: 8 bytes of length (little endian), JSON, then the values.
 * The file is untrusted: each tensor's type, shape and range are checked against each other and against the file.
 */
#ifndef ZIPCCL_CTL_SAFETENSORS_H
#define ZIPCCL_CTL_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "zipccl_types.h"

#define SAFETENSORS_MAX_HEADER 100000000u
#define SAFETENSORS_WHY        256

struct safetensors_entry {
    char *name;  /* as in the file: any UTF-8, escape before showing */
    char *dtype; /* as in the file */
    bool coded;  /* zipccl_dtype is set: a type that the codec splits */
    zipcclDataType_t zipccl_dtype;
    uint64_t count; /* values */
    uint64_t begin; /* in the file */
    uint64_t bytes;
};

struct safetensors {
    struct safetensors_entry *entries; /* in the order of the data */
    size_t n;
};

/* Reads the header of a whole file in memory. On success *out is freed by safetensors_free.
 * zipcclCorruptData: *why says what is wrong; zipcclOutOfMemory. */
ZIPCCL_MUST_CHECK zipcclResult_t safetensors_parse(const void *file, size_t size, struct safetensors *out,
                                                   char why[SAFETENSORS_WHY]);
void safetensors_free(struct safetensors *s);

#endif

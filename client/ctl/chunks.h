/* SPDX-License-Identifier: Apache-2.0
 *
 * A tensor coded chunk by chunk, as the daemon codes it: 4 MiB of values at a time, every chunk in a place of its own.
 */
#ifndef ZIPCCL_CTL_CHUNKS_H
#define ZIPCCL_CTL_CHUNKS_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/codec.h"
#include "zipccl_types.h"

#define CHUNKS_BYTES     (4u << 20) /* of values */
#define CHUNKS_STREAMING (4u << 20) /* a tensor over this size bypasses the caches */

/* Memory that is resident and in huge pages where the system has them; page faults would otherwise be what is
 * measured. NULL: no memory. Freed by free. */
void *chunks_alloc(size_t bytes);

struct chunks {
    size_t capacity, max_bytes; /* of coded; of values */
    unsigned char *coded;
    struct codec_sizes *sizes;
    size_t n;
};

/* Room for values of up to max_bytes in any codec and dtype. */
bool chunks_new(struct chunks *c, size_t max_bytes);
void chunks_destroy(struct chunks *c);

/* Codes count values; the coded bytes become *coded_bytes (may be NULL). */
ZIPCCL_MUST_CHECK zipcclResult_t chunks_encode(struct chunks *c, zipcclCodec_t codec, zipcclDataType_t dtype,
                                               const void *values, size_t count, size_t *coded_bytes);
/* Decodes what chunks_encode coded with the same arguments. */
ZIPCCL_MUST_CHECK zipcclResult_t chunks_decode(const struct chunks *c, zipcclCodec_t codec, zipcclDataType_t dtype,
                                               void *values, size_t count);

#endif

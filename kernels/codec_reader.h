/* SPDX-License-Identifier: Apache-2.0
 *
 * Decodes a chunk a group (32 Ki values) at a time, so that what is done with the values next is done in the cache.
 * The checks are those of codec_decode; which group fails depends on where the chunk is corrupt, so the values of the
 * groups before are to be used only if all turn out well.
 */
#ifndef ZIPCCL_KERNELS_CODEC_READER_H
#define ZIPCCL_KERNELS_CODEC_READER_H

#include "kernels/codec.h"
#include "kernels/format.h"

/* Its state; no resources, so it may be dropped at any time. */
struct codec_reader {
    zipcclCodec_t codec;
    zipcclDataType_t dtype;
    size_t count;
    const uint8_t *static_part, *dynamic_part;
    struct zfmt_header header; /* checked; not for raw */
    struct codec_progress {
        size_t group, body, dynamic; /* the next group; where its body and its dynamic part start */
    } at;
};

/* As codec_decode: the parts are untrusted and have to stay until the last group is read. */
ZIPCCL_MUST_CHECK zipcclResult_t codec_reader_open(struct codec_reader *r, zipcclCodec_t codec, zipcclDataType_t dtype,
                                                   const void *static_part, size_t static_bytes,
                                                   const void *dynamic_part, size_t dynamic_bytes, size_t count);

/* Decodes the next group, or what is left, to dst (room for ZFMT_GROUP values, any alignment) and says how many values
 * that were: 0 at the end. zipcclCorruptData ends the reading. */
ZIPCCL_MUST_CHECK zipcclResult_t codec_reader_next(struct codec_reader *r, void *dst, size_t *values);

#endif

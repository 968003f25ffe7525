/* SPDX-License-Identifier: Apache-2.0
 *
 * A tensor coded chunk by chunk, as the daemon codes it.
 */
#include "client/ctl/chunks.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/dtype.h"

#define HUGE_PAGE (2u << 20)

static const zipcclCodec_t all_codecs[] = {zipcclCodecRaw, zipcclCodecTop7, zipcclCodecTier};

void *chunks_alloc(size_t bytes) {
    size_t size = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    void *p = aligned_alloc(HUGE_PAGE, size ? size : HUGE_PAGE);
    if (!p)
        return NULL;
    (void)madvise(p, size, MADV_HUGEPAGE); /* a wish; without it the memory is resident all the same */
    memset(p, 0, bytes);
    return p;
}

static size_t chunk_values(zipcclDataType_t dtype) {
    return CHUNKS_BYTES / dtype_get(dtype)->bytes;
}

/* The part of a chunk's place that the static part may take, and the whole place. */
static size_t place_of(zipcclCodec_t codec, zipcclDataType_t dtype, size_t count, size_t *static_bytes) {
    struct codec_sizes bound = codec_bound(codec, dtype, count);
    *static_bytes = (bound.static_bytes + 127) / 128 * 128;
    return *static_bytes + (bound.dynamic_bytes + 127) / 128 * 128;
}

bool chunks_new(struct chunks *c, size_t max_bytes) {
    size_t per_chunk = 0, nchunks = (max_bytes + CHUNKS_BYTES - 1) / CHUNKS_BYTES;
    size_t greatest = max_bytes < CHUNKS_BYTES ? max_bytes : CHUNKS_BYTES;
    memset(c, 0, sizeof *c);
    for (size_t i = 0; i < sizeof all_codecs / sizeof *all_codecs; i++) {
        for (unsigned d = 0; d < zipcclNumTypes; d++) {
            size_t unused;
            if (!codec_supports(all_codecs[i], (zipcclDataType_t)d))
                continue;
            size_t place = place_of(all_codecs[i], (zipcclDataType_t)d, greatest / dtype_get(d)->bytes, &unused);
            per_chunk = place > per_chunk ? place : per_chunk;
        }
    }
    c->capacity = per_chunk * nchunks;
    c->max_bytes = max_bytes;
    c->coded = chunks_alloc(c->capacity ? c->capacity : 1);
    c->sizes = calloc(nchunks + 1, sizeof *c->sizes);
    if (c->coded && c->sizes)
        return true;
    chunks_destroy(c);
    return false;
}

void chunks_destroy(struct chunks *c) {
    free(c->coded);
    free(c->sizes);
    memset(c, 0, sizeof *c);
}

zipcclResult_t chunks_encode(struct chunks *c, zipcclCodec_t codec, zipcclDataType_t dtype, const void *values,
                             size_t count, size_t *coded_bytes) {
    const char *from = values;
    size_t width = dtype_get(dtype)->bytes, step = chunk_values(dtype), total = 0, at = 0;
    unsigned flags = count * width > CHUNKS_STREAMING ? CODEC_STREAMING : 0;
    if (count * width > c->max_bytes)
        return zipcclInvalidArgument;
    c->n = 0;
    for (size_t done = 0; done < count; done += step) {
        size_t n = count - done < step ? count - done : step, static_bytes;
        size_t place = place_of(codec, dtype, n, &static_bytes);
        struct codec_sizes *sizes = &c->sizes[c->n];
        zipcclResult_t rc = codec_encode(codec, dtype, from + done * width, n, c->coded + at,
                                         c->coded + at + static_bytes, flags, sizes);
        if (rc != zipcclSuccess)
            return rc;
        total += sizes->static_bytes + sizes->dynamic_bytes;
        at += place;
        c->n++;
    }
    if (coded_bytes)
        *coded_bytes = total;
    return zipcclSuccess;
}

zipcclResult_t chunks_decode(const struct chunks *c, zipcclCodec_t codec, zipcclDataType_t dtype, void *values,
                             size_t count) {
    char *to = values;
    size_t width = dtype_get(dtype)->bytes, step = chunk_values(dtype), at = 0, i = 0;
    unsigned flags = count * width > CHUNKS_STREAMING ? CODEC_STREAMING : 0;
    for (size_t done = 0; done < count; done += step, i++) {
        size_t n = count - done < step ? count - done : step, static_bytes;
        size_t place = place_of(codec, dtype, n, &static_bytes);
        zipcclResult_t rc =
            codec_decode(codec, dtype, c->coded + at, c->sizes[i].static_bytes, c->coded + at + static_bytes,
                         c->sizes[i].dynamic_bytes, to + done * width, n, flags);
        if (rc != zipcclSuccess)
            return rc;
        at += place;
    }
    return zipcclSuccess;
}

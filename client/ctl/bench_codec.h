/* SPDX-License-Identifier: Apache-2.0
 *
 * Measuring codecs beside memcpy: one set of values, one size, all codecs in the same rounds.
 */
#ifndef ZIPCCL_CTL_BENCH_CODEC_H
#define ZIPCCL_CTL_BENCH_CODEC_H

#include <stdbool.h>
#include <stddef.h>

#include "client/ctl/peers.h"
#include "kernels/codec.h"
#include "zipccl_types.h"

#define BENCH_MAX_CASES  16
#define BENCH_MAX_ROUNDS 1000

struct bench_case {
    zipcclCodec_t codec;
    enum codec_isa isa;
    const struct peer *peer; /* not NULL: this one instead */
    bool gpu;                /* by bench_gpu_run */
    double ratio;
    bool exact;
    double encode_bps, decode_bps; /* medians */
    double encode_best_bps, decode_best_bps;
};

struct bench_codec {
    zipcclDataType_t dtype;
    const void *values; /* count values, from chunks_alloc */
    size_t count, bytes;
    double min_seconds; /* per case */
    struct bench_case cases[BENCH_MAX_CASES];
    size_t ncases;
    double memcpy_bps, memcpy_best_bps;
    size_t rounds; /* done */
};

/* Measures all cases. progress: called with the share done, may be NULL. */
ZIPCCL_MUST_CHECK zipcclResult_t bench_codec_run(struct bench_codec *b, void (*progress)(double share));

#endif

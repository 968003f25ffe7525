/* SPDX-License-Identifier: Apache-2.0
 *
 * Measuring codecs beside memcpy: one set of values, one size, all codecs in the same rounds. A share is the median of
 * pairs: memcpy and the codec within milliseconds of each other, since what disturbs a machine lasts for seconds.
 * Rounds in which somebody else used the core are left out where enough others are there, and counted.
 */
#ifndef ZIPCCL_CTL_BENCH_CODEC_H
#define ZIPCCL_CTL_BENCH_CODEC_H

#include <stdbool.h>
#include <stddef.h>

#include "client/ctl/peers.h"
#include "kernels/codec.h"
#include "zipccl_types.h"

#define BENCH_MAX_CASES  16
#define BENCH_MAX_ROUNDS 4000
#define BENCH_MIN_ROUNDS 5

/* Bytes of values a second: the median and the best of the rounds that count; and the share of memcpy. */
struct bench_rate {
    double bps, best_bps, share;
};

struct bench_case {
    zipcclCodec_t codec;
    enum codec_isa isa;
    const struct peer *peer; /* not NULL: this one instead */
    bool gpu;                /* by bench_gpu_run */
    double ratio;
    bool exact;
    size_t alone; /* rounds with the core to itself; only these count, unless there are fewer than BENCH_MIN_ROUNDS */
    struct bench_rate encode, decode;
};

struct bench_codec {
    zipcclDataType_t dtype;
    const void *values; /* count values, from chunks_alloc */
    size_t count, bytes;
    double min_seconds;    /* per case */
    double (*probe)(void); /* core_probe, or what a test wants; NULL: core_probe */
    struct bench_case cases[BENCH_MAX_CASES];
    size_t ncases;
    struct bench_rate memcpy; /* GPU: a copy there */
    size_t rounds;            /* done */
};

/* Of rounds that ran beside those of copy; both are changed. scratch has room for as many. */
struct bench_rate bench_rate_of(double *bps, const double *copy, size_t rounds, double *scratch);

/* Measures all cases. progress: called with the share done, may be NULL. */
ZIPCCL_MUST_CHECK zipcclResult_t bench_codec_run(struct bench_codec *b, void (*progress)(double share));

#endif

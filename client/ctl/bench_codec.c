/* SPDX-License-Identifier: Apache-2.0
 *
 * Measuring codecs beside memcpy. A round takes one sample of memcpy and of each case's encode and decode, so that what
 * disturbs the machine disturbs all alike; a sample repeats short work until the clock's grain does not matter.
 */
#include "client/ctl/bench_codec.h"

#include <stdlib.h>
#include <string.h>

#include "client/ctl/chunks.h"
#include "client/ctl/units.h"
#include "kernels/dtype.h"

#define SAMPLE_NS  1000000u
#define MIN_ROUNDS 5u

/* Per case two series, and memcpy's. */
struct series {
    double bps[BENCH_MAX_ROUNDS];
};

struct state {
    struct bench_codec *b;
    struct chunks chunks;
    uint8_t *back, *peer_coded;
    void *scratch;
    size_t coded; /* by the last encode */
    struct series *series;
};

typedef bool work_fn(struct state *s, const struct bench_case *c);

static bool do_memcpy(struct state *s, const struct bench_case *c) {
    (void)c;
    memcpy(s->back, s->b->values, s->b->bytes);
    __asm__ volatile("" ::"r"(s->back) : "memory");
    return true;
}

static bool do_encode(struct state *s, const struct bench_case *c) {
    if (!c->peer)
        return chunks_encode(&s->chunks, c->codec, s->b->dtype, s->b->values, s->b->count, &s->coded) == zipcclSuccess;
    s->coded = peers_encode(c->peer, s->scratch, s->b->values, s->b->count, s->peer_coded);
    return s->coded > 0;
}

static bool do_decode(struct state *s, const struct bench_case *c) {
    if (!c->peer)
        return chunks_decode(&s->chunks, c->codec, s->b->dtype, s->back, s->b->count) == zipcclSuccess;
    return peers_decode(c->peer, s->scratch, s->peer_coded, s->back, s->b->count);
}

/* Bytes of values a second over at least SAMPLE_NS; 0: the work failed. */
static double sample(struct state *s, const struct bench_case *c, work_fn *work) {
    uint64_t start = units_now_ns(), now;
    size_t times = 0;
    do {
        if (!work(s, c))
            return 0;
        times++;
        now = units_now_ns();
    } while (now - start < SAMPLE_NS);
    return (double)s->b->bytes * (double)times * 1e9 / (double)(now - start);
}

static bool one_round(struct state *s, size_t round, bool compare) {
    struct bench_codec *b = s->b;
    (void)do_memcpy(s, NULL); /* warms both buffers for all */
    s->series[0].bps[round] = sample(s, NULL, do_memcpy);
    for (size_t i = 0; i < b->ncases; i++) {
        struct bench_case *c = &b->cases[i];
        if (!c->peer && !codec_isa_force(c->isa))
            return false;
        s->series[1 + 2 * i].bps[round] = sample(s, c, do_encode);
        if (compare)
            memset(s->back, 0xa5, b->bytes);
        s->series[2 + 2 * i].bps[round] = sample(s, c, do_decode);
        c->ratio = s->coded ? (double)b->bytes / (double)s->coded : 0;
        if (s->series[1 + 2 * i].bps[round] == 0 || s->series[2 + 2 * i].bps[round] == 0 ||
            (compare && memcmp(s->back, b->values, b->bytes) != 0))
            c->exact = false;
    }
    return true;
}

static void summarize(struct series *series, size_t rounds, double *median, double *best) {
    *median = units_median(series->bps, rounds); /* sorts */
    *best = series->bps[rounds - 1];
}

zipcclResult_t bench_codec_run(struct bench_codec *b, void (*progress)(double share)) {
    struct state s = {.b = b};
    enum codec_isa isa_before = codec_isa_current();
    zipcclResult_t rc = zipcclOutOfMemory;
    bool any_peer = false;
    for (size_t i = 0; i < b->ncases; i++) {
        b->cases[i].exact = true;
        any_peer = any_peer || b->cases[i].peer;
    }
    s.back = chunks_alloc(b->bytes);
    s.peer_coded = any_peer ? chunks_alloc(peers_bound(b->count)) : NULL;
    s.scratch = any_peer ? peers_scratch_new() : NULL;
    s.series = calloc(1 + 2 * b->ncases, sizeof *s.series);
    if (!chunks_new(&s.chunks, b->bytes) || !s.back || !s.series || (any_peer && (!s.peer_coded || !s.scratch)))
        goto out;
    rc = zipcclInternalError;
    /* One round that does not count: caches, page tables, branch predictors. Its time says how many rounds fit. */
    if (!one_round(&s, 0, true))
        goto out;
    uint64_t start = units_now_ns();
    uint64_t budget = (uint64_t)(b->min_seconds * 1e9) * (b->ncases ? b->ncases : 1);
    bool last = false;
    for (b->rounds = 0; !last && b->rounds < BENCH_MAX_ROUNDS; b->rounds++) {
        uint64_t spent = units_now_ns() - start;
        last = (b->rounds + 1 >= MIN_ROUNDS && spent >= budget) || b->rounds + 1 == BENCH_MAX_ROUNDS;
        if (progress)
            progress(spent >= budget ? 1 : (double)spent / (double)budget);
        if (!one_round(&s, b->rounds, last))
            goto out;
    }
    summarize(&s.series[0], b->rounds, &b->memcpy_bps, &b->memcpy_best_bps);
    for (size_t i = 0; i < b->ncases; i++) {
        struct bench_case *c = &b->cases[i];
        summarize(&s.series[1 + 2 * i], b->rounds, &c->encode_bps, &c->encode_best_bps);
        summarize(&s.series[2 + 2 * i], b->rounds, &c->decode_bps, &c->decode_best_bps);
    }
    rc = zipcclSuccess;
out:
    if (!codec_isa_force(isa_before)) /* it was in use, so it is available */
        rc = zipcclInternalError;
    chunks_destroy(&s.chunks);
    free(s.back);
    free(s.peer_coded);
    peers_scratch_free(s.scratch);
    free(s.series);
    return rc;
}

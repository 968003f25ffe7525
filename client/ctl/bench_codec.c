/* SPDX-License-Identifier: Apache-2.0
 *
 * Measuring codecs beside memcpy. A round takes of each case a sample of memcpy, of encode and of decode, behind each
 * other, so that what disturbs the machine disturbs all alike; a sample repeats short work until the clock's grain does
 * not matter.
 */
#include "client/ctl/bench_codec.h"

#include <stdlib.h>
#include <string.h>

#include "client/ctl/chunks.h"
#include "client/ctl/core_probe.h"
#include "client/ctl/units.h"
#include "kernels/dtype.h"

#define SAMPLE_NS 200000u
#define CACHED    (16u << 20)
/* Where the core is shared, rounds go on for this many times the time asked, for rounds alone. */
#define PATIENCE 4

/* Bytes of values a second of a case, by round; and the longest of the probes of the core around them. */
struct series {
    double copy[BENCH_MAX_ROUNDS], encode[BENCH_MAX_ROUNDS], decode[BENCH_MAX_ROUNDS], probe[BENCH_MAX_ROUNDS];
};

struct state {
    struct bench_codec *b;
    struct chunks chunks;
    uint8_t *back, *peer_coded;
    void *scratch;
    size_t coded;          /* by the last encode */
    struct series *series; /* of each case */
    double least_probe;
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

/* Bytes of values a second over at least SAMPLE_NS; 0: the work failed. What fits a cache runs once before, or the
 * first of the sample would find the cache of the work before. */
static double sample(struct state *s, const struct bench_case *c, work_fn *work) {
    if (s->b->bytes <= CACHED && !work(s, c))
        return 0;
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

/* Where no codec takes the dtype, memcpy is there alone. */
static size_t series_of(const struct bench_codec *b) {
    return b->ncases ? b->ncases : 1;
}

/* The probes of a round: the longest of them is kept. */
static void probe(struct state *s, struct series *series, size_t round, bool first) {
    const double ns = (s->b->probe ? s->b->probe : core_probe)();
    if (s->least_probe == 0 || ns < s->least_probe)
        s->least_probe = ns;
    if (first || ns > series->probe[round])
        series->probe[round] = ns;
}

static bool one_round(struct state *s, size_t round, bool compare) {
    struct bench_codec *b = s->b;
    for (size_t i = 0; i < series_of(b); i++) {
        struct bench_case *c = &b->cases[i];
        struct series *series = &s->series[i];
        probe(s, series, round, true);
        series->copy[round] = sample(s, NULL, do_memcpy);
        probe(s, series, round, false);
        if (i == b->ncases)
            break;
        if (!c->peer && !codec_isa_force(c->isa))
            return false;
        series->encode[round] = sample(s, c, do_encode);
        probe(s, series, round, false);
        if (compare)
            memset(s->back, 0xa5, b->bytes);
        series->decode[round] = sample(s, c, do_decode);
        probe(s, series, round, false);
        c->ratio = s->coded ? (double)b->bytes / (double)s->coded : 0;
        if (series->encode[round] == 0 || series->decode[round] == 0 ||
            (compare && memcmp(s->back, b->values, b->bytes) != 0))
            c->exact = false;
    }
    return true;
}

static bool was_alone(const struct state *s, const struct series *series, size_t round) {
    return series->probe[round] <= s->least_probe * CORE_PROBE_SHARED;
}

/* How many rounds had the core to themselves. */
static size_t alone_of(const struct state *s, const struct series *series) {
    size_t alone = 0;
    for (size_t r = 0; r < s->b->rounds; r++)
        alone += was_alone(s, series, r);
    return alone;
}

/* Whether every series has enough of them. */
static bool enough_alone(const struct state *s) {
    for (size_t i = 0; i < series_of(s->b); i++) {
        if (alone_of(s, &s->series[i]) < BENCH_MIN_ROUNDS)
            return false;
    }
    return true;
}

/* Moves the rounds that count to the front and returns their number. */
static size_t keep_counted(const struct state *s, struct series *series, size_t alone) {
    size_t n = 0;
    if (alone < BENCH_MIN_ROUNDS)
        return s->b->rounds;
    for (size_t r = 0; r < s->b->rounds; r++) {
        if (!was_alone(s, series, r))
            continue;
        series->copy[n] = series->copy[r];
        series->encode[n] = series->encode[r];
        series->decode[n++] = series->decode[r];
    }
    return n;
}

struct bench_rate bench_rate_of(double *bps, const double *copy, size_t rounds, double *scratch) {
    struct bench_rate rate;
    for (size_t i = 0; i < rounds; i++)
        scratch[i] = copy[i] > 0 ? bps[i] / copy[i] : 0;
    rate.share = units_median(scratch, rounds);
    rate.bps = units_median(bps, rounds); /* sorts */
    rate.best_bps = bps[rounds - 1];
    return rate;
}

/* Of all cases' samples of memcpy: the median of their medians. */
static void summarize(struct state *s) {
    struct bench_codec *b = s->b;
    double scratch[BENCH_MAX_ROUNDS], medians[BENCH_MAX_CASES];
    for (size_t i = 0; i < series_of(b); i++) {
        struct series *series = &s->series[i];
        const size_t alone = alone_of(s, series), n = keep_counted(s, series, alone);
        if (i < b->ncases) {
            b->cases[i].alone = alone;
            b->cases[i].encode = bench_rate_of(series->encode, series->copy, n, scratch);
            b->cases[i].decode = bench_rate_of(series->decode, series->copy, n, scratch);
        }
        const struct bench_rate copy = bench_rate_of(series->copy, series->copy, n, scratch);
        medians[i] = copy.bps;
        b->memcpy.best_bps = copy.best_bps > b->memcpy.best_bps ? copy.best_bps : b->memcpy.best_bps;
    }
    b->memcpy.bps = units_median(medians, series_of(b));
    b->memcpy.share = 1;
}

zipcclResult_t bench_codec_run(struct bench_codec *b, void (*progress)(double share)) {
    /* Runs of other sizes and values before this one may have seen the core alone. */
    struct state s = {.b = b, .least_probe = b->probe ? 0 : core_probe_least()};
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
    s.series = calloc(series_of(b), sizeof *s.series);
    if (!chunks_new(&s.chunks, b->bytes) || !s.back || !s.series || (any_peer && (!s.peer_coded || !s.scratch)))
        goto out;
    rc = zipcclInternalError;
    /* One round that does not count: caches, page tables, branch predictors. Its time says how many rounds fit. */
    if (!one_round(&s, 0, true))
        goto out;
    uint64_t start = units_now_ns();
    uint64_t budget = (uint64_t)(b->min_seconds * 1e9) * series_of(b);
    bool last = false;
    for (b->rounds = 0; !last && b->rounds < BENCH_MAX_ROUNDS; b->rounds++) {
        uint64_t spent = units_now_ns() - start;
        last = (b->rounds + 1 >= BENCH_MIN_ROUNDS && spent >= budget &&
                (spent >= PATIENCE * budget || enough_alone(&s))) ||
               b->rounds + 1 == BENCH_MAX_ROUNDS;
        if (progress)
            progress(spent >= budget ? 1 : (double)spent / (double)budget);
        if (!one_round(&s, b->rounds, last))
            goto out;
    }
    summarize(&s);
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

/* SPDX-License-Identifier: Apache-2.0
 *
 * All-to-all-capped through executors of several nodes: any actual counts give equal bits and touch nothing else;
 * counts above the cap, changes of the counts on the way, and peers whose headers lie.
 */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "world.h"

#define GUARD 64u
#define EMPTY 0xee
#if defined(__SANITIZE_THREAD__)
#    define LIES 150u
#else
#    define LIES 600u
#endif

static uint32_t g_seed = 1;

static uint32_t roll(uint32_t n) {
    g_seed = g_seed * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)(g_seed >> 8) * n) >> 24);
}

/* One operation of all ranks. */
struct capped {
    zipcclDataType_t dtype;
    zipcclCodec_t codec;
    enum plan_phases phases;
    uint64_t max;
    size_t bytes; /* of a buffer */
    uint64_t send_counts[MAX_RANKS][MAX_RANKS], recv_counts[MAX_RANKS][MAX_RANKS], sent[MAX_RANKS][MAX_RANKS];
    uint8_t *send[MAX_RANKS], *recv[MAX_RANKS];
    struct exec_op *op[MAX_RANKS];
    struct outcome out[MAX_RANKS];
};
static struct capped g_capped;
static uint32_t g_number; /* of the operation, in each pair */

static void make(const struct world *w, zipcclDataType_t dtype, zipcclCodec_t codec, enum plan_phases phases,
                 uint64_t max) {
    struct capped *c = &g_capped;
    memset(c, 0, sizeof(*c));
    c->dtype = dtype;
    c->codec = codec_supports(codec, dtype) ? codec : zipcclCodecRaw;
    c->phases = phases;
    c->max = max;
    c->bytes = w->nranks * max * dtype_get(dtype)->bytes;
    for (uint32_t r = 0; r < w->nranks; r++) {
        c->send[r] = malloc(c->bytes + GUARD);
        c->recv[r] = malloc(c->bytes + GUARD);
        fill(c->send[r], dtype, w->nranks * max, r * 7 + g_number);
        memset(c->recv[r], EMPTY, c->bytes + GUARD);
        memset(c->recv_counts[r], 0xff, sizeof(c->recv_counts[r]));
        for (uint32_t p = 0; p < w->nranks; p++) {
            uint32_t how = roll(4);
            c->send_counts[r][p] = how == 0 ? 0 : how == 1 ? max : roll((uint32_t)max + 1);
        }
    }
}

static void start(struct world *w, uint32_t r) {
    struct capped *c = &g_capped;
    struct plan_transfer t[2 * MAX_RANKS];
    uint32_t numbers[2 * MAX_RANKS];
    struct plan_call call = {.op = zipcclOpAllToAllCapped, .dtype = c->dtype, .count = c->max};
    uint32_t n = plan_transfers(&call, r, w->nranks, 0, t);
    for (uint32_t i = 0; i < n; i++) {
        bool raw = w->rank_node[t[i].peer] == w->rank_node[r] || c->max == 0;
        t[i].codec = raw ? zipcclCodecRaw : c->codec;
        numbers[i] = g_number;
    }
    struct exec_args a = {.transfers = t,
                          .numbers = numbers,
                          .ntransfers = n,
                          .nbuffers = 1,
                          .rank = r,
                          .phases = c->phases,
                          .seq = g_number,
                          .done = done,
                          .arg = &c->out[r]};
    struct exec_buffers buffers = {
        .send = c->send[r], .recv = c->recv[r], .send_counts = c->send_counts[r], .recv_counts = c->recv_counts[r]};
    assert_int_equal(exec_op_start(w->comm[w->rank_node[r]], &a, &c->op[r]), zipcclSuccess);
    memcpy(c->sent[r], c->send_counts[r], sizeof(c->sent[r]));
    exec_op_arrive(c->op[r], 0, &buffers);
    /* What the client writes there now is too late. */
    memset(c->send_counts[r], 0xff, sizeof(c->send_counts[r]));
}

static void start_all(struct world *w) {
    g_number++;
    for (uint32_t k = 0; k < w->nranks; k++) {
        start(w, (k + g_number) % w->nranks);
        for (unsigned i = 0; i < g_number % 4; i++)
            poll_world(w);
    }
}

static bool all_done(const struct world *w) {
    for (uint32_t r = 0; r < w->nranks; r++) {
        if (!g_capped.out[r].done)
            return false;
    }
    return true;
}

static void wait_all(struct world *w) {
    double end = seconds() + WAIT;
    while (!all_done(w) && seconds() < end)
        poll_world(w);
    assert_true(all_done(w));
}

static void check_guards(const struct world *w) {
    for (uint32_t r = 0; r < w->nranks; r++) {
        for (size_t i = 0; i < GUARD; i++)
            assert_int_equal(g_capped.recv[r][g_capped.bytes + i], EMPTY);
    }
}

static void check(const struct world *w) {
    const struct capped *c = &g_capped;
    size_t width = dtype_get(c->dtype)->bytes, segment = c->max * width;
    for (uint32_t r = 0; r < w->nranks; r++) {
        uint64_t raw = 0;
        if (c->out[r].result.result)
            fail_msg("rank %u: %s", r, c->out[r].text);
        for (uint32_t p = 0; p < w->nranks; p++) {
            size_t bytes = c->sent[p][r] * width;
            raw += w->rank_node[p] == w->rank_node[r] ? 0 : c->sent[r][p] * width;
            assert_int_equal(c->recv_counts[r][p], c->sent[p][r]);
            assert_memory_equal(c->recv[r] + p * segment, c->send[p] + r * segment, bytes);
            for (size_t i = bytes; i < segment; i++) {
                if (c->recv[r][p * segment + i] != EMPTY)
                    fail_msg("rank %u: byte %zu of what %u sends, behind %zu, was touched", r, i, p, bytes);
            }
        }
        assert_int_equal(c->out[r].result.raw_bytes, raw);
    }
    check_guards(w);
}

static void drop(const struct world *w) {
    for (uint32_t r = 0; r < w->nranks; r++) {
        free(g_capped.send[r]);
        free(g_capped.recv[r]);
    }
}

/* Races do not depend on values: under the thread sanitizer each count goes with one dtype, once. */
#if defined(__SANITIZE_THREAD__)
#    define DTYPE_STEP 4u
#    define SALTS      1u
#else
#    define DTYPE_STEP 1u
#    define SALTS      3u
#endif

static void sweep(struct world *w, unsigned salt) {
    static const uint64_t most[] = {0, 1, 31, 1000, 40001, 150001};
    static const zipcclDataType_t dtypes[] = {zipcclBfloat16, zipcclFloat32, zipcclFloat8e4m3, zipcclInt32};
    for (unsigned i = 0; i < 6; i++) {
        for (unsigned d = i % DTYPE_STEP; d < 4; d += DTYPE_STEP) {
            make(w, dtypes[d], (zipcclCodec_t)((i + d + salt) % zipcclNumCodecs), (enum plan_phases)((i + d) % 3),
                 most[i]);
            start_all(w);
            wait_all(w);
            check(w);
            drop(w);
        }
    }
}

static void sweep_worlds(const struct fabric_ops *ops) {
    static const struct { uint32_t nodes, ranks; } worlds[] = {{1, 1}, {1, 3}, {2, 2}, {2, 4}, {3, 5}, {4, 8}};
    for (unsigned i = 0; i < sizeof(worlds) / sizeof(worlds[0]); i++) {
        struct world w;
        if (ops != &fabric_fake && worlds[i].nodes != 2)
            continue;
        open_world(&w, ops, worlds[i].nodes, worlds[i].ranks, i % 2 ? 8192 : 1 << 20, 64 << 10, 1 + i % 3, i % 3 == 1);
        g_number = 0;
        for (unsigned salt = 0; salt < SALTS; salt++)
            sweep(&w, salt);
        close_world(&w);
    }
}

static void test_fake(void **state) {
    (void)state;
    sweep_worlds(&fabric_fake);
}

static void test_ucx(void **state) {
    (void)state;
    sweep_worlds(&fabric_ucx);
}

static void fail_rest(struct world *w) {
    for (uint32_t r = 0; r < w->nranks; r++) {
        if (!g_capped.out[r].done)
            exec_op_fail(g_capped.op[r], zipcclAborted, "another rank failed");
    }
    wait_all(w);
}

/* Found before anything is sent; the text names both ranks. */
static void test_above_cap(void **state) {
    (void)state;
    for (uint32_t nodes = 1; nodes <= 2; nodes++) {
        for (uint32_t peer = 0; peer < 3; peer++) {
            struct world w;
            char text[64];
            open_world(&w, &fabric_fake, nodes, 3, 8192, 64 << 10, 2, false);
            make(&w, zipcclBfloat16, zipcclCodecTier, PLAN_STREAM, 100);
            g_capped.send_counts[1][peer] = peer == 0 ? UINT64_MAX : 101;
            g_number = 1;
            start(&w, 0);
            start(&w, 1);
            assert_int_equal(g_capped.out[1].done, 1);
            assert_int_equal(g_capped.out[1].result.result, zipcclInvalidArgument);
            snprintf(text, sizeof(text), "sendcounts[%u] of rank 1 is %s", peer, peer ? "101" : "18446744073709551615");
            assert_non_null(strstr(g_capped.out[1].text, text));
            assert_non_null(strstr(g_capped.out[1].text, "max_count, 100"));
            start(&w, 2);
            fail_rest(&w);
            for (uint32_t r = 0; r < 3; r++) {
                for (size_t i = 0; i < 100 * 2; i++) /* of what rank 1 had to send */
                    assert_int_equal(g_capped.recv[r][100 * 2 + i], EMPTY);
            }
            check_guards(&w);
            drop(&w);
            close_world(&w);
        }
    }
}

/* Ranks whose caps differ are told so. */
static void test_caps_differ(void **state) {
    (void)state;
    struct world w;
    open_world(&w, &fabric_fake, 2, 2, 8192, 64 << 10, 2, false);
    make(&w, zipcclBfloat16, zipcclCodecRaw, PLAN_STREAM, 100);
    g_number = 1;
    start(&w, 0);
    g_capped.max = 90;
    for (uint32_t p = 0; p < 2; p++)
        g_capped.send_counts[1][p] = 1;
    start(&w, 1);
    double end = seconds() + WAIT;
    while (!g_capped.out[1].done && seconds() < end)
        poll_world(&w);
    assert_int_equal(g_capped.out[1].result.result, zipcclInvalidArgument);
    assert_non_null(
        strstr(g_capped.out[1].text, "rank 0 sends at most 100 bf16 values to rank 1, which expects at most 90"));
    fail_rest(&w);
    drop(&w);
    close_world(&w);
}

/* ---- lies ---- */

#define MOST_SECONDS 20

static struct {
    uint32_t tag, left; /* which message of rank 0's: the left-th with this tag */
    uint64_t add_count;
    int32_t add_static;
    bool random, all, told; /* all: every message, alike */
} g_lie;

static void lie(struct fabric_header *h) {
    if (h->channel != fabric_channel(0, 1) ||
        (!g_lie.all && ((!g_lie.random && h->tag != g_lie.tag) || g_lie.left-- > 0)))
        return;
    g_lie.told = true;
    g_lie.left = UINT32_MAX;
    h->count += g_lie.add_count;
    h->static_bytes += (uint32_t)g_lie.add_static;
    if (!g_lie.random)
        return;
    uint64_t value = roll(3) ? roll(200000) : (uint64_t)roll(1 << 24) << (roll(5) * 8);
    switch (roll(3)) {
    case 0:
        h->count = value;
        break;
    case 1:
        h->static_bytes = (uint32_t)value;
        break;
    default:
        h->count = value;
        h->flags ^= 1;
        h->hash = value;
    }
}

/* One operation of two ranks on two nodes under a lie. How rank 1 ends; zipcclInProgress: it waits for more, that is,
 * it does not end in many polls, or (ends: it must) in seconds. */
static zipcclResult_t run_lie(zipcclCodec_t codec, uint64_t from_0, bool verify, bool ends) {
    struct world w;
    open_world(&w, &fabric_fake, 2, 2, 8192, 64 << 10, 2, verify);
    make(&w, zipcclBfloat16, codec, PLAN_STREAM, 100000);
    g_capped.send_counts[0][1] = from_0;
    g_number = 0;
    fake_headers(lie);
    start_all(&w);
    time_t last = time(NULL) + MOST_SECONDS;
    unsigned polls = 0;
    while (!g_capped.out[1].done && (polls < 20000 || ((ends || !g_lie.told) && time(NULL) < last))) {
        poll_world(&w);
        polls += g_lie.told;
        (void)sched_yield(); /* to the workers */
    }
    zipcclResult_t result = g_capped.out[1].done ? g_capped.out[1].result.result : zipcclInProgress;
    fake_headers(NULL);
    fail_rest(&w);
    if (result == zipcclSuccess)
        assert_true(g_capped.recv_counts[1][0] <= 100000);
    check_guards(&w);
    drop(&w);
    close_world(&w);
    return result;
}

static void test_lies(void **state) {
    (void)state;
    static const struct {
        uint32_t tag;
        uint64_t from_0, add_count;
        int32_t add_static;
        bool coded_alone, all;
        zipcclResult_t result;
    } lies[] = {
        {0, 100000, 1, 0, false, false, zipcclCorruptData}, /* above the cap */
        {0, 100000, 1, 0, false, true, zipcclCorruptData},  /* ... and no chunk tells */
        {0, 70000, UINT64_MAX - 70000, 0, false, false, zipcclCorruptData},
        {0, 1000, (uint64_t)-1, 0, false, false, zipcclCorruptData},    /* fewer values than there are bytes */
        {0, 1000, (uint64_t)-1000, 0, false, false, zipcclCorruptData}, /* none, but bytes */
        {0, 0, 5, 0, false, false, zipcclCorruptData},                  /* some, but no bytes */
        {0, 1000, 50000, 0, false, false, zipcclCorruptData},           /* a whole chunk, and another one */
        {1, 70000, 1, 0, false, false, zipcclCorruptData},              /* chunks that differ */
        {1, 70000, (uint64_t)-70000, 0, false, false, zipcclCorruptData},
        {2, 70000, (uint64_t)-1, 0, false, false, zipcclCorruptData},
        {0, 40000, 60000, 0, false, false, zipcclCorruptData}, /* chunks that do not come, chunk 1 tells */
        {0, 32768, 60000, 0, false, false, zipcclInProgress},  /* ... nobody tells: it waits */
        {0, 1000, 0, 1 << 30, true, false, zipcclCorruptData},
        {0, 1000, 0, 7, true, false, zipcclCorruptData},
    };
    for (unsigned coded = 0; coded < 2; coded++) {
        for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
            if (lies[i].coded_alone && !coded)
                continue;
            memset(&g_lie, 0, sizeof(g_lie));
            g_lie.tag = lies[i].tag;
            g_lie.add_count = lies[i].add_count;
            g_lie.add_static = lies[i].add_static;
            g_lie.all = lies[i].all;
            zipcclResult_t result = run_lie(coded ? zipcclCodecTier : zipcclCodecRaw, lies[i].from_0, i % 2,
                                            lies[i].result != zipcclInProgress);
            assert_true(g_lie.told);
            if (result != lies[i].result)
                fail_msg("lie %zu, coded %u: result %d", i, coded, (int)result);
        }
    }
}

static void test_random_lies(void **state) {
    (void)state;
    unsigned failures = 0;
    for (unsigned i = 0; i < LIES; i++) {
        memset(&g_lie, 0, sizeof(g_lie));
        g_lie.random = true;
        g_lie.left = roll(3);
        fake_seed(i);
        g_seed = i + 1;
        failures +=
            run_lie(i % 2 ? zipcclCodecTier : zipcclCodecRaw, roll(100001), i % 3 == 0, false) == zipcclCorruptData;
    }
    assert_true(failures > LIES / 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fake),        cmocka_unit_test(test_ucx),  cmocka_unit_test(test_above_cap),
        cmocka_unit_test(test_caps_differ), cmocka_unit_test(test_lies), cmocka_unit_test(test_random_lies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

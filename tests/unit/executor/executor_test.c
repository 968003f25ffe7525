/* SPDX-License-Identifier: Apache-2.0
 *
 * Executors of several nodes in one process, over the fake fabric and over UCX: every operation, bit for bit, and every
 * way to fail.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "world.h"

static void allocate(struct world *w, const struct plan_op *a, bool in_place) {
    size_t shard = a->count * dtype_get(a->dtype)->bytes;
    size_t total = a->op == zipcclOpAllGather ? shard * w->nranks : shard;
    for (uint32_t r = 0; r < w->nranks; r++) {
        w->recv[r] = malloc(total + 1);
        memset(w->recv[r], 0xee, total + 1);
        w->send[r] = in_place ? w->recv[r] + (a->op == zipcclOpAllGather ? shard * r : 0) : malloc(shard + 1);
        if (!in_place || a->op == zipcclOpAllGather || r == a->root)
            fill(w->send[r], a->dtype, a->count, r + (unsigned)w->seq);
    }
}

static void release(struct world *w, bool in_place) {
    for (uint32_t r = 0; r < w->nranks; r++) {
        if (!in_place)
            free(w->send[r]);
        free(w->recv[r]);
    }
}

static void check(struct world *w, const struct plan_op *a) {
    size_t shard = a->count * dtype_get(a->dtype)->bytes;
    size_t total = a->op == zipcclOpAllGather ? shard * w->nranks : shard;
    uint8_t *want = malloc(shard + 1);
    for (uint32_t r = 0; r < w->nranks; r++) {
        for (uint32_t s = 0; s < (a->op == zipcclOpAllGather ? w->nranks : 1); s++) {
            fill(want, a->dtype, a->count, (a->op == zipcclOpAllGather ? s : a->root) + (unsigned)w->seq);
            assert_memory_equal(w->recv[r] + s * shard, want, shard);
        }
        assert_int_equal(w->recv[r][total], 0xee);
    }
    free(want);
}

static void run(struct world *w, const struct plan_op *a, bool in_place) {
    w->seq++;
    allocate(w, a, in_place);
    for (uint32_t n = 0; n < w->nnodes; n++)
        start_node(w, n, a);
    for (uint32_t n = 0; n < w->nnodes; n++) {
        arrive_node(w, (n + (uint32_t)w->seq) % w->nnodes);
        for (unsigned k = 0; k < w->seq % 5; k++)
            poll_world(w);
    }
    for (uint32_t n = 0; n < w->nnodes; n++) {
        wait_node(w, n);
        if (w->out[n].result.result)
            fail_msg("node %u: %s", n, w->out[n].text);
        assert_string_equal(w->out[n].text, "");
    }
    if (a->op != zipcclOpBarrier)
        check(w, a);
    release(w, in_place);
}

/* Races do not depend on values: under the thread sanitizer every seventh case has to do. */
#if defined(__SANITIZE_THREAD__)
#    define CASE_STEP 7u
#else
#    define CASE_STEP 1u
#endif

static void run_all(struct world *w, bool large) {
    static const size_t counts[] = {0, 1, 31, 1000, 40001, 150001};
    static const zipcclDataType_t dtypes[] = {zipcclBfloat16, zipcclFloat32, zipcclFloat8e4m3, zipcclInt64};
    for (unsigned op = 0; op <= zipcclOpBarrier; op++) {
        for (unsigned c = 0; c < (large ? 6 : 4); c++) {
            for (unsigned d = 0; d < 4; d++) {
                for (unsigned codec = 0; codec < zipcclNumCodecs; codec++) {
                    struct plan_op a = {.op = (zipcclOp_t)op,
                                        .dtype = dtypes[d],
                                        .codec = (zipcclCodec_t)codec,
                                        .count = counts[c],
                                        .root = (c + d) % w->nranks};
                    if (codec_supports(a.codec, a.dtype) && (c + d + codec) % CASE_STEP == 0)
                        run(w, &a, (c + codec) % 2);
                }
            }
        }
    }
}

static void test_one_node(void **state) {
    (void)state;
    struct world w;
    open_world(&w, NULL, 1, 3, 4096, 1 << 20, 4, false);
    run_all(&w, true);
    close_world(&w);
}

static void test_synchronous(void **state) {
    (void)state;
    struct world w;
    open_world(&w, NULL, 1, 2, 65536, 1 << 20, 4, false);
    struct plan_op a = {.op = zipcclOpAllGather, .dtype = zipcclBfloat16, .count = 64};
    allocate(&w, &a, false);
    double best = 1;
    for (unsigned i = 0; i < 2000; i++) {
        double start = seconds();
        start_node(&w, 0, &a);
        arrive_node(&w, 0);
        assert_int_equal(w.out[0].done, 1); /* without a poll */
        double took = seconds() - start;
        best = took < best ? took : best;
    }
    print_message("local all-gather: %.2f us\n", best * 1e6);
    check(&w, &a);
    release(&w, false);
    close_world(&w);
}

static void test_fake(void **state) {
    (void)state;
    for (unsigned v = 0; v < 8; v++) {
        struct world w;
        fake_seed(v + 1);
        open_world(&w, &fabric_fake, 2 + v % 3, 2 + v % 3 + v / 2, v % 2 ? 0 : 8192, v % 2 ? 64 << 10 : 1 << 20,
                   1 + v % 4, v % 3 == 0);
        run_all(&w, v < 4);
        close_world(&w);
    }
}

static void test_ucx(void **state) {
    (void)state;
    for (unsigned v = 0; v < 2; v++) {
        struct world w;
        open_world(&w, &fabric_ucx, 2 + v, 4 + v, 8192, 128 << 10, 2 + v, v);
        run_all(&w, true);
        struct plan_op a = {
            .op = zipcclOpAllGather, .dtype = zipcclBfloat16, .codec = zipcclCodecTier, .count = 4 << 20};
        run(&w, &a, false);
        assert_true(w.out[0].result.wire_bytes < w.out[0].result.raw_bytes);
        assert_true(w.out[0].result.coded_to_bytes < w.out[0].result.coded_from_bytes);
        assert_true(w.out[0].result.encode_ns > 0 && w.out[0].result.decode_ns > 0);
        a.codec = zipcclCodecRaw;
        run(&w, &a, false);
        assert_int_equal(w.out[0].result.wire_bytes, w.out[0].result.raw_bytes);
        close_world(&w);
    }
}

/* Runs a on node 0 and b on node 1; both must fail, node 0 or 1, who first finds out, with a text that holds `text`. */
static void mismatch(const struct plan_op *a, const struct plan_op *b, const char *text) {
    struct world w;
    open_world(&w, &fabric_fake, 2, 2, 8192, 64 << 10, 2, false);
    w.seq = 12;
    allocate(&w, a->count > b->count ? a : b, false);
    start_node(&w, 0, a);
    start_node(&w, 1, b);
    arrive_node(&w, 0);
    arrive_node(&w, 1);
    double end = seconds() + WAIT;
    while (!(w.out[0].done && w.out[1].done) && seconds() < end) {
        poll_world(&w);
        for (uint32_t n = 0; n < 2; n++) { /* as the control plane would */
            if (w.out[n].done && !w.out[1 - n].done)
                exec_op_fail(w.op[1 - n], zipcclAborted, "the other node failed");
        }
    }
    assert_true(w.out[0].done == 1 && w.out[1].done == 1);
    bool found = strstr(w.out[0].text, text) || strstr(w.out[1].text, text);
    if (!found)
        fail_msg("no \"%s\" in \"%s\" / \"%s\"", text, w.out[0].text, w.out[1].text);
    release(&w, false);
    close_world(&w);
}

static void test_mismatch(void **state) {
    (void)state;
    const struct plan_op base = {.op = zipcclOpAllGather, .dtype = zipcclBfloat16, .count = 100};
    struct plan_op other = base;
    other.dtype = zipcclFloat32;
    other.count = 200;
    for (unsigned seed = 0; seed < 10; seed++) {
        fake_seed(seed);
        mismatch(&base, &other, " values a rank, this node expects ");
        mismatch(&base, &other, "200 fp32 values a rank");
        mismatch(&base, &other, "100 bf16 values a rank");
        mismatch(&base, &other, "all-gather #12: node ");
    }
    other = base;
    other.count = 1000000;
    mismatch(&base, &other, "1000000 bf16");
    other = base;
    other.op = zipcclOpBarrier;
    mismatch(&base, &other, "barrier");
    other = base;
    other.codec = zipcclCodecTier;
    mismatch(&base, &other, "coded tier");
    struct plan_op root = base, root2 = base;
    root.op = root2.op = zipcclOpBroadcast;
    root2.count = 5;
    mismatch(&root, &root2, "from rank 0");
}

static void test_corrupt(void **state) {
    (void)state;
    for (unsigned v = 0; v < 3; v++) { /* coded; coded and raw with hashes */
        struct world w;
        open_world(&w, &fabric_fake, 2, 2, 8192, 64 << 10, 2, v > 0);
        struct plan_op a = {.op = zipcclOpBroadcast,
                            .dtype = zipcclBfloat16,
                            .codec = v == 2 ? zipcclCodecRaw : zipcclCodecTier,
                            .count = 200000};
        w.seq = 3;
        allocate(&w, &a, false);
        start_node(&w, 0, &a);
        start_node(&w, 1, &a);
        fake_spoil(2);
        arrive_node(&w, 0);
        arrive_node(&w, 1);
        double end = seconds() + WAIT;
        while (!w.out[1].done && !w.out[0].done && seconds() < end)
            poll_world(&w);
        if (v > 0) { /* a spoiled bit of a mantissa is no error to the codec without a hash */
            wait_node(&w, 1);
            assert_int_equal(w.out[1].result.result, zipcclCorruptData);
            assert_non_null(strstr(w.out[1].text, "of rank 0 from node 0"));
            assert_int_equal(w.out[1].result.failed_node, 0);
        }
        /* The other node may wait for a message that the failed one took back: the core tells it, as here. */
        for (uint32_t n = 0; n < 2; n++) {
            if (w.out[1 - n].done && w.out[1 - n].result.result && !w.out[n].done)
                exec_op_fail(w.op[n], zipcclRemoteError, "the other node failed");
        }
        wait_node(&w, 0);
        wait_node(&w, 1);
        fake_spoil(0);
        release(&w, false);
        close_world(&w);
    }
}

static void test_death(void **state) {
    (void)state;
    struct world w;
    open_world(&w, &fabric_fake, 3, 3, 8192, 64 << 10, 2, false);
    struct plan_op a = {.op = zipcclOpAllGather, .dtype = zipcclBfloat16, .codec = zipcclCodecTier, .count = 300000};
    w.seq = 1;
    allocate(&w, &a, false);
    start_node(&w, 0, &a);
    start_node(&w, 1, &a);
    arrive_node(&w, 0);
    arrive_node(&w, 1);
    for (unsigned i = 0; i < 20; i++)
        poll_world(&w);
    fake_kill(w.fabric[2]);
    wait_node(&w, 0);
    wait_node(&w, 1);
    for (unsigned n = 0; n < 2; n++)
        assert_true(w.out[n].result.result == zipcclRemoteError || w.out[n].result.result == zipcclAborted);
    assert_true(w.out[0].result.failed_node == 2 || w.out[1].result.failed_node == 2);
    release(&w, false);
    close_world(&w);
}

static void test_fail(void **state) {
    (void)state;
    for (unsigned polls = 0; polls < 30; polls++) {
        struct world w;
        fake_seed(polls);
        open_world(&w, &fabric_fake, 2, 3, 0, 64 << 10, 2, false);
        struct plan_op a = {
            .op = zipcclOpAllGather, .dtype = zipcclBfloat16, .codec = zipcclCodecTier, .count = 200000};
        w.seq = 1;
        allocate(&w, &a, false);
        for (uint32_t n = 0; n < 2; n++) {
            start_node(&w, n, &a);
            arrive_node(&w, n);
        }
        for (unsigned i = 0; i < polls; i++)
            poll_world(&w);
        for (uint32_t n = 0; n < 2; n++) {
            if (!w.out[n].done)
                exec_op_fail(w.op[n], zipcclTimeout, "took too long");
        }
        for (uint32_t n = 0; n < 2; n++) {
            wait_node(&w, n);
            if (w.out[n].result.result)
                assert_string_equal(w.out[n].text, "took too long");
        }
        release(&w, false);
        close_world(&w);
    }
    struct world w; /* before anybody has arrived: at once */
    open_world(&w, NULL, 1, 2, 0, 64 << 10, 2, false);
    struct plan_op a = {.op = zipcclOpAllGather, .dtype = zipcclBfloat16, .count = 10};
    start_node(&w, 0, &a);
    exec_op_fail(w.op[0], zipcclAborted, "gone");
    assert_int_equal(w.out[0].done, 1);
    close_world(&w);
}

struct probed {
    unsigned done;
    zipcclResult_t result;
    uint64_t bps, latency;
};

static void probe_done(void *arg, zipcclResult_t result, uint64_t bps, uint64_t latency) {
    struct probed *p = arg;
    *p = (struct probed){p->done + 1, result, bps, latency};
}

static void probe_world(const struct fabric_ops *ops, uint32_t nnodes, unsigned polls) {
    struct world w;
    struct probed p[MAX_NODES] = {{0}};
    open_world(&w, ops, nnodes, nnodes, 8192, 1 << 20, 2, false);
    for (uint32_t n = 0; n < nnodes; n++)
        exec_comm_probe(w.comm[n], 4 << 20, probe_done, &p[n]);
    for (uint32_t n = 0; n < nnodes; n++) {
        double end = seconds() + WAIT;
        while (!p[n].done && seconds() < end)
            poll_world(&w);
        assert_int_equal(p[n].done, 1);
        assert_int_equal(p[n].result, zipcclSuccess);
        assert_true(p[n].bps > 0 && p[n].latency > 0);
        print_message("probe: %.0f MB/s, %.1f us\n", (double)p[n].bps / 1e6, (double)p[n].latency / 1e3);
    }
    struct plan_op a = {.op = zipcclOpBarrier};
    run(&w, &a, false);
    close_comms(&w);
    open_comms(&w); /* a probe that nobody answers goes with its communicator */
    exec_comm_probe(w.comm[0], 1 << 20, probe_done, &p[0]);
    for (unsigned i = 0; i < 100; i++)
        poll_world(&w);
    close_comms(&w);
    for (unsigned i = 0; i < polls; i++) /* 0: its messages go with the fabric */
        poll_world(&w);
    assert_int_equal(p[0].done, 1);
    close_world(&w);
}

static void test_probe(void **state) {
    (void)state;
    probe_world(&fabric_fake, 2, 100);
    probe_world(&fabric_fake, 4, 0);
    probe_world(&fabric_ucx, 2, 100);
    probe_world(&fabric_ucx, 3, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_node), cmocka_unit_test(test_synchronous), cmocka_unit_test(test_fake),
        cmocka_unit_test(test_ucx),      cmocka_unit_test(test_mismatch),    cmocka_unit_test(test_corrupt),
        cmocka_unit_test(test_death),    cmocka_unit_test(test_fail),        cmocka_unit_test(test_probe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

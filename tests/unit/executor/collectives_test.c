/* SPDX-License-Identifier: Apache-2.0
 *
 * All operations through executors of several nodes: data movement equal to the input, reductions equal to the rule of
 * zipcclRedOp_t (by one reduce_values over all ranks' inputs), in place and out of place, odd and zero counts, groups,
 * exchanges with late ranks and with ranks that disagree.
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
#include "kernels/reduce.h"
#include "proto/op.h"
#include "world.h"

#define GUARD     64u
#define MAX_GROUP 3u

/* The buffers of one operation of every rank. */
struct data {
    uint8_t *send[MAX_RANKS], *recv[MAX_RANKS], *want[MAX_RANKS];
    uint8_t *memory[MAX_RANKS][2];
    size_t send_bytes[MAX_RANKS], recv_bytes[MAX_RANKS];
    uint64_t scalar[MAX_RANKS];
};

static uint64_t count_of(const struct plan_op *op, uint32_t r) {
    return op->counts ? op->counts[r] : op->count;
}

static uint64_t offset_of(const struct plan_op *op, uint32_t r) {
    uint64_t at = 0;
    for (uint32_t i = 0; i < r; i++)
        at += count_of(op, i);
    return at;
}

/* Values that rank r gives and gets. */
static void sizes(const struct world *w, const struct plan_op *op, uint32_t r, uint64_t *send, uint64_t *recv) {
    uint64_t all = offset_of(op, w->nranks), own = count_of(op, r);
    bool root = r == op->root;
    *send = *recv = 0;
    switch (op->op) {
    case zipcclOpAllGather:
    case zipcclOpAllGatherv:
        *send = own, *recv = all;
        break;
    case zipcclOpReduceScatter:
    case zipcclOpReduceScatterv:
        *send = all, *recv = own;
        break;
    case zipcclOpBroadcast:
        *send = root ? own : 0, *recv = own;
        break;
    case zipcclOpAllReduce:
        *send = *recv = own;
        break;
    case zipcclOpReduce:
        *send = own, *recv = root ? own : 0;
        break;
    case zipcclOpAllToAll:
        *send = *recv = all;
        break;
    case zipcclOpGather:
        *send = own, *recv = root ? all : 0;
        break;
    case zipcclOpScatter:
        *send = root ? all : 0, *recv = own;
        break;
    default:
        break;
    }
}

/* Where rank r's own values lie in the larger buffer, in place. */
static uint64_t own_offset(const struct plan_op *op, uint32_t r) {
    bool parts = op->op == zipcclOpAllGather || op->op == zipcclOpAllGatherv || op->op == zipcclOpReduceScatter ||
                 op->op == zipcclOpReduceScatterv || op->op == zipcclOpGather || op->op == zipcclOpScatter;
    return parts ? offset_of(op, r) : 0;
}

static uint64_t one_and_a_half(zipcclDataType_t dtype) {
    switch (dtype) {
    case zipcclBfloat16:
        return 0x3fc0;
    case zipcclFloat16:
        return 0x3e00;
    case zipcclFloat32:
        return 0x3fc00000;
    case zipcclFloat64:
        return 0x3ff8000000000000;
    case zipcclFloat8e4m3:
        return 0x3c;
    case zipcclFloat8e5m2:
        return 0x3e;
    default:
        return 3;
    }
}

/* What the rule gives for `count` values from `first` of every rank's send buffer: by node, then by rank. */
static void reduce_all(const struct world *w, const struct plan_op *op, const struct data *d, uint64_t first,
                       uint64_t count, uint8_t *out) {
    struct reduce_input in[MAX_RANKS];
    uint32_t n = 0, order[MAX_NODES], nodes = 0;
    bool seen[MAX_NODES] = {false};
    for (uint32_t r = 0; r < w->nranks; r++) { /* nodes by their lowest rank */
        if (!seen[w->rank_node[r]])
            order[nodes++] = w->rank_node[r];
        seen[w->rank_node[r]] = true;
    }
    for (uint32_t k = 0; k < nodes; k++) {
        uint32_t start = n;
        for (uint32_t r = 0; r < w->nranks; r++) {
            if (w->rank_node[r] == order[k])
                in[n++] = (struct reduce_input){.values = d->send[r] + first * dtype_get(op->dtype)->bytes,
                                                .scalar = d->scalar[r],
                                                .scaled = op->redop == zipcclPreMulSum};
        }
        in[n - 1].ends_group = true;
        in[n - 1].round_group = nodes > 1 && (n - start > 1 || op->redop == zipcclPreMulSum);
    }
    if (count == 0)
        return;
    struct reduce reduce = {.op = op->redop,
                            .dtype = op->dtype,
                            .divisor = op->redop == zipcclAvg ? w->nranks : 0,
                            .inputs = in,
                            .ninputs = n};
    assert_int_equal(reduce_values(&reduce, out, count), zipcclSuccess);
}

static void expect(const struct world *w, const struct plan_op *op, struct data *d, uint32_t r) {
    size_t esz = dtype_get(op->dtype)->bytes, part = count_of(op, 0) * esz;
    uint8_t *want = d->want[r];
    if (op_reduces(op->op) && d->recv_bytes[r] > 0) {
        bool scatter = op->op == zipcclOpReduceScatter || op->op == zipcclOpReduceScatterv;
        reduce_all(w, op, d, scatter ? offset_of(op, r) : 0, count_of(op, r), want);
        return;
    }
    if (op->op == zipcclOpBroadcast && part > 0)
        memcpy(want, d->send[op->root], part);
    if (op->op == zipcclOpScatter && part > 0)
        memcpy(want, d->send[op->root] + r * part, part);
    for (uint32_t s = 0; s < w->nranks && d->recv_bytes[r] > 0; s++) {
        if (op->op == zipcclOpAllGather || op->op == zipcclOpAllGatherv || op->op == zipcclOpGather)
            memcpy(want + offset_of(op, s) * esz, d->send[s], count_of(op, s) * esz);
        if (op->op == zipcclOpAllToAll)
            memcpy(want + s * part, d->send[s] + r * part, part);
    }
}

static void make(const struct world *w, const struct plan_op *op, struct data *d, bool in_place) {
    size_t esz = dtype_get(op->dtype)->bytes;
    memset(d, 0, sizeof(*d));
    for (uint32_t r = 0; r < w->nranks; r++) {
        uint64_t send, recv;
        sizes(w, op, r, &send, &recv);
        d->send_bytes[r] = send * esz;
        d->recv_bytes[r] = recv * esz;
        d->scalar[r] = op->redop == zipcclPreMulSum ? one_and_a_half(op->dtype) + r % 2 : 0;
        for (unsigned k = 0; k < 2; k++) {
            size_t bytes = k ? recv * esz : send * esz;
            d->memory[r][k] = malloc(bytes + GUARD);
            memset(d->memory[r][k], 0xee, bytes + GUARD);
        }
        d->want[r] = malloc(recv * esz + 1);
        d->send[r] = d->memory[r][0];
        d->recv[r] = d->memory[r][1];
        uint64_t own = own_offset(op, r) * esz;
        if (in_place && send > 0 && recv > 0 && op->op != zipcclOpAllToAll) {
            if (send > recv)
                d->recv[r] = d->send[r] + own;
            else
                d->send[r] = d->recv[r] + own;
        }
        fill(d->send[r], op->dtype, send, r * 7 + (unsigned)w->seq + (unsigned)op->op);
    }
    for (uint32_t r = 0; r < w->nranks; r++)
        expect(w, op, d, r);
}

static void verify(const struct world *w, const struct plan_op *op, const struct data *d) {
    for (uint32_t r = 0; r < w->nranks; r++) {
        for (size_t i = 0; i < d->recv_bytes[r]; i++) {
            if (d->recv[r][i] != d->want[r][i])
                fail_msg("%s %s, %s, %s, %s, %llu values, %u ranks on %u nodes: rank %u differs at byte %zu of %zu",
                         op_name(op->op), redop_name(op->redop), arm_name(op->arm), dtype_get(op->dtype)->name,
                         codec_name(op->codec), (unsigned long long)op->count, w->nranks, w->nnodes, r, i,
                         d->recv_bytes[r]);
        }
        for (unsigned k = 0; k < 2; k++) {
            size_t bytes = k ? d->recv_bytes[r] : d->send_bytes[r];
            for (size_t i = 0; i < GUARD; i++)
                assert_int_equal(d->memory[r][k][bytes + i], 0xee);
        }
    }
}

static void drop(const struct world *w, struct data *d) {
    for (uint32_t r = 0; r < w->nranks; r++) {
        free(d->memory[r][0]);
        free(d->memory[r][1]);
        free(d->want[r]);
    }
}

/* Collectives, one or a group, on all nodes; nodes and ranks arrive in varying order. */
static void run_group(struct world *w, const struct plan_op *ops, uint32_t nops, bool in_place) {
    static struct data data[MAX_GROUP];
    struct exec_op *op[MAX_NODES];
    w->seq += MAX_GROUP;
    for (uint32_t i = 0; i < nops; i++)
        make(w, &ops[i], &data[i], in_place);
    for (uint32_t n = 0; n < w->nnodes; n++) {
        struct exec_args a = {.ops = ops, .nops = nops, .seq = w->seq, .done = done, .arg = &w->out[n]};
        memset(&w->out[n], 0, sizeof(w->out[n]));
        assert_int_equal(exec_op_start(w->comm[n], &a, &op[n]), zipcclSuccess);
    }
    for (uint32_t k = 0; k < w->nranks; k++) {
        uint32_t r = (k * 3 + (uint32_t)w->seq) % w->nranks, local = 0;
        struct exec_buffers buffers[MAX_GROUP];
        if (w->nranks % 3 == 0)
            r = k;
        for (uint32_t i = 0; i < r; i++)
            local += w->rank_node[i] == w->rank_node[r];
        for (uint32_t i = 0; i < nops; i++)
            buffers[i] =
                (struct exec_buffers){.send = data[i].send[r], .recv = data[i].recv[r], .scalar = data[i].scalar[r]};
        exec_op_arrive(op[w->rank_node[r]], local, buffers);
        for (unsigned i = 0; i < w->seq % 4; i++)
            poll_world(w);
    }
    for (uint32_t n = 0; n < w->nnodes; n++) {
        wait_node(w, n);
        if (w->out[n].result.result)
            fail_msg("%s on node %u: %s", op_name(ops[0].op), n, w->out[n].text);
    }
    for (uint32_t i = 0; i < nops; i++) {
        verify(w, &ops[i], &data[i]);
        drop(w, &data[i]);
    }
}

/* ---- exchanges ---- */

struct exchange {
    struct exec_op *op[MAX_RANKS];
    struct outcome out[MAX_RANKS];
    uint32_t numbers[MAX_RANKS][MAX_RANKS][2];
};
static struct exchange g_exchange;

static void start_exchange(struct world *w, uint32_t r, struct plan_transfer *t, uint32_t n, enum plan_phases phases,
                           zipcclCodec_t codec, const void *send, void *recv) {
    uint32_t numbers[4 * MAX_RANKS];
    struct exchange *x = &g_exchange;
    for (uint32_t i = 0; i < n; i++) {
        bool local = w->rank_node[t[i].peer] == w->rank_node[r];
        t[i].codec = local || t[i].count == 0 || !codec_supports(codec, t[i].dtype) ? zipcclCodecRaw : codec;
        numbers[i] = x->numbers[r][t[i].peer][t[i].send]++;
    }
    struct exec_args a = {.transfers = t,
                          .numbers = numbers,
                          .ntransfers = n,
                          .nbuffers = 1,
                          .rank = r,
                          .phases = phases,
                          .seq = w->seq,
                          .done = done,
                          .arg = &x->out[r]};
    struct exec_buffers buffers = {.send = send, .recv = recv};
    memset(&x->out[r], 0, sizeof(x->out[r]));
    assert_int_equal(exec_op_start(w->comm[w->rank_node[r]], &a, &x->op[r]), zipcclSuccess);
    exec_op_arrive(x->op[r], 0, &buffers);
}

static void wait_rank(struct world *w, uint32_t r) {
    double end = seconds() + WAIT;
    while (!g_exchange.out[r].done && seconds() < end)
        poll_world(w);
    assert_int_equal(g_exchange.out[r].done, 1);
    if (g_exchange.out[r].result.result)
        fail_msg("rank %u: %s", r, g_exchange.out[r].text);
}

static void run_exchange(struct world *w, const struct plan_op *op, enum plan_phases phases) {
    static struct data data;
    w->seq++;
    make(w, op, &data, w->seq % 2);
    for (uint32_t k = 0; k < w->nranks; k++) {
        struct plan_transfer t[4 * MAX_RANKS];
        uint32_t r = (k + (uint32_t)w->seq) % w->nranks;
        struct plan_call call = {.op = op->op, .dtype = op->dtype, .count = op->count, .root = op->root};
        uint32_t n = plan_transfers(&call, r, w->nranks, 0, t);
        start_exchange(w, r, t, n, phases, op->codec, data.send[r], data.recv[r]);
        for (unsigned i = 0; i < w->seq % 4; i++)
            poll_world(w);
    }
    for (uint32_t r = 0; r < w->nranks; r++)
        wait_rank(w, r);
    verify(w, op, &data);
    drop(w, &data);
}

/* ---- the sweeps ---- */

/* Under a sanitizer a part of the sweep has to do. */
#if defined(__SANITIZE_THREAD__)
#    define DTYPE_STEP 8u /* each dtype once, with one of the counts: races do not depend on values */
#elif defined(__SANITIZE_ADDRESS__)
#    define DTYPE_STEP 3u
#else
#    define DTYPE_STEP 1u
#endif
static const size_t g_counts[] = {0, 1, 31, 1000, 40001, 150001};
static const zipcclDataType_t g_dtypes[] = {zipcclBfloat16, zipcclFloat32, zipcclFloat8e4m3, zipcclInt32,
                                            zipcclFloat16,  zipcclFloat64, zipcclFloat8e5m2, zipcclUint8};
static const zipcclOp_t g_moves[] = {zipcclOpAllGather, zipcclOpBroadcast};
static const zipcclOp_t g_reduces[] = {zipcclOpReduceScatter, zipcclOpAllReduce, zipcclOpReduce};
static const zipcclOp_t g_exchanges[] = {zipcclOpAllToAll, zipcclOpGather, zipcclOpScatter};

static void sweep(struct world *w, unsigned salt) {
    uint64_t counts[MAX_RANKS];
    for (unsigned c = 0; c < 6; c++) {
        for (unsigned d = (c + salt) % DTYPE_STEP; d < 8; d += DTYPE_STEP) {
            zipcclCodec_t codec = (zipcclCodec_t)((c + d + salt) % zipcclNumCodecs);
            struct plan_op op = {.dtype = g_dtypes[d],
                                 .codec = codec_supports(codec, g_dtypes[d]) ? codec : zipcclCodecRaw,
                                 .count = g_counts[c],
                                 .root = (c + d) % w->nranks};
            for (unsigned i = 0; i < 2; i++) {
                op.op = g_moves[i];
                run_group(w, &op, 1, (c + d + i) % 2);
            }
            for (unsigned i = 0; i < 3; i++) {
                op.op = g_reduces[i];
                op.redop = (zipcclRedOp_t)((c + d + i + salt) % zipcclNumRedOps);
                op.arm = (zipcclArm_t)((d + i + salt / 2) % zipcclNumArms);
                if (op.arm == zipcclArmRing || (op.arm == zipcclArmFlat && op.redop == zipcclPreMulSum))
                    op.arm = zipcclArmHierarchical;
                run_group(w, &op, 1, (c + d + i) % 2);
            }
            op.redop = zipcclSum;
            for (unsigned i = 0; i < 3; i++) {
                op.op = g_exchanges[i];
                run_exchange(w, &op, (enum plan_phases)((c + d + i) % 3));
            }
            for (uint32_t r = 0; r < w->nranks; r++)
                counts[r] = g_counts[c] * ((r + d) % 4) / 3;
            op.count = 0;
            op.counts = counts;
            op.op = zipcclOpAllGatherv;
            run_group(w, &op, 1, d % 2);
            op.op = zipcclOpReduceScatterv;
            op.arm = zipcclArmHierarchical;
            run_group(w, &op, 1, d % 2);
        }
    }
}

static void sweep_worlds(const struct fabric_ops *ops) {
    static const struct { uint32_t nodes, ranks; } worlds[] = {{1, 1}, {1, 3}, {2, 2}, {2, 4}, {3, 5}, {4, 8}, {4, 4}};
    for (unsigned i = 0; i < sizeof(worlds) / sizeof(worlds[0]); i++) {
        struct world w;
        if (ops != &fabric_fake && worlds[i].nodes != 2 && worlds[i].nodes != 3)
            continue;
        memset(&g_exchange, 0, sizeof(g_exchange));
        open_world(&w, ops, worlds[i].nodes, worlds[i].ranks, i % 2 ? 8192 : 1 << 20, 64 << 10, 1 + i % 3, i % 3 == 1);
        sweep(&w, i);
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

/* The ring rounds at each hop, so other bits than the rule's are right; where no rounding happens they are the same. */
static void test_ring(void **state) {
    (void)state;
    static const zipcclOp_t ops[] = {zipcclOpReduceScatter, zipcclOpAllReduce};
    struct world w;
    open_world(&w, &fabric_fake, 2, 4, 8192, 64 << 10, 2, false);
    for (unsigned i = 0; i < 2; i++) {
        for (unsigned c = 0; c < 6; c++) {
            struct plan_op op = {.op = ops[i],
                                 .dtype = c % 2 ? zipcclInt32 : zipcclUint8,
                                 .arm = zipcclArmRing,
                                 .redop = c % 3 ? zipcclSum : zipcclMax,
                                 .count = g_counts[c]};
            run_group(&w, &op, 1, c % 2);
        }
    }
    close_world(&w);
}

static void test_group(void **state) {
    (void)state;
    for (unsigned i = 0; i < 12; i++) {
        struct world w;
        fake_seed(i + 1);
        open_world(&w, &fabric_fake, 2 + i % 2, 4, 8192, 64 << 10, 2, i % 4 == 3);
        struct plan_op ops[MAX_GROUP] = {
            {.op = zipcclOpAllGather, .dtype = zipcclBfloat16, .codec = zipcclCodecTier, .count = 70001},
            {.op = zipcclOpReduceScatter,
             .dtype = zipcclFloat32,
             .codec = zipcclCodecTier,
             .arm = zipcclArmHierarchical,
             .count = 40000 + i},
            {.op = zipcclOpBroadcast, .dtype = zipcclInt64, .count = 1000 * i, .root = 3}};
        run_group(&w, ops, MAX_GROUP, i % 2);
        run_group(&w, ops, MAX_GROUP, false);
        run_group(&w, ops + 1, 2, i % 2);
        close_world(&w);
    }
}

/* A rank that does not come holds up nobody but those that need its values; and the pairs that do not need it end. */
static void test_late(void **state) {
    (void)state;
    for (unsigned phases = 0; phases < 2; phases++) {
        struct world w;
        static uint8_t values[MAX_RANKS][1 << 18], out[MAX_RANKS][1 << 18];
        memset(&g_exchange, 0, sizeof(g_exchange));
        open_world(&w, &fabric_fake, 2, 4, 8192, 64 << 10, 2, false);
        w.seq = 1;
        /* A ring of transfers 0 -> 1 -> 2 -> 3, and rank 3 is late: 0 to 2 must end but for what 3 takes. */
        for (uint32_t r = 0; r < 4; r++)
            fill(values[r], zipcclBfloat16, 1 << 17, r);
        for (uint32_t r = 0; r < 3; r++) {
            struct plan_transfer t[2] = {
                {.send = true, .op = zipcclOpSend, .dtype = zipcclBfloat16, .peer = r + 1, .count = 1 << 17},
                {.send = false, .op = zipcclOpRecv, .dtype = zipcclBfloat16, .peer = r - 1, .count = 1 << 17}};
            uint32_t skip = r == 0 ? 1 : 2;
            if (r == 2) {
                t[0] = t[1];
                skip = 1;
            }
            start_exchange(&w, r, t, skip, (enum plan_phases)phases, zipcclCodecTier, values[r], out[r]);
        }
        for (uint32_t r = 0; r < 3; r++)
            wait_rank(&w, r);
        assert_memory_equal(out[1], values[0], 1 << 18);
        assert_memory_equal(out[2], values[1], 1 << 18);
        close_world(&w);
    }
}

/* Rank 1 has failed: as daemons do, rank 0 is told, and ends too. */
static void end_sender(struct world *w, double end) {
    if (!g_exchange.out[0].done)
        exec_op_fail(g_exchange.op[0], zipcclAborted, "the other rank failed");
    while (!g_exchange.out[0].done && seconds() < end)
        poll_world(w);
    assert_int_equal(g_exchange.out[0].done, 1);
    close_world(w);
}

/* The two ends of a transfer name different counts: both ranks are told, by their ranks. */
static void test_disagree(void **state) {
    (void)state;
    for (unsigned nodes = 1; nodes <= 2; nodes++) {
        struct world w;
        static uint8_t a[4096], b[4096];
        memset(&g_exchange, 0, sizeof(g_exchange));
        open_world(&w, &fabric_fake, nodes, 2, 8192, 64 << 10, 2, false);
        w.seq = 1;
        struct plan_transfer t = {.send = true, .op = zipcclOpSend, .dtype = zipcclBfloat16, .peer = 1, .count = 100};
        start_exchange(&w, 0, &t, 1, PLAN_STREAM, zipcclCodecRaw, a, NULL);
        t = (struct plan_transfer){.op = zipcclOpRecv, .dtype = zipcclBfloat16, .peer = 0, .count = 90};
        start_exchange(&w, 1, &t, 1, PLAN_STREAM, zipcclCodecRaw, NULL, b);
        double end = seconds() + WAIT;
        while (!g_exchange.out[1].done && seconds() < end)
            poll_world(&w);
        assert_int_equal(g_exchange.out[1].result.result, zipcclInvalidArgument);
        assert_non_null(strstr(g_exchange.out[1].text, "rank 0 sends 100 bf16 values to rank 1, which expects 90"));
        end_sender(&w, end);
    }
}

/* In two phases: a part whose header speaks of another size than came is refused before anything reads it. */
static struct { uint32_t tag, add; } g_lie;

static void lie(struct fabric_header *h) {
    h->static_bytes += h->tag == g_lie.tag ? g_lie.add : 0;
}

static void test_lies(void **state) {
    (void)state;
    static const uint32_t lies[][2] = {{0, 1 << 30}, {0, 128}, {0, (uint32_t)-128}, {1, 128}};
    static uint8_t a[1 << 17], b[1 << 17];
    fill(a, zipcclBfloat16, 1 << 16, 1);
    for (unsigned i = 0; i < 8; i++) {
        struct world w;
        memset(&g_exchange, 0, sizeof(g_exchange));
        open_world(&w, &fabric_fake, 2, 2, 8192, 64 << 10, 2, i % 2); /* with and without hashes */
        w.seq = 1;
        g_lie.tag = lies[i / 2][0];
        g_lie.add = lies[i / 2][1];
        fake_headers(lie);
        struct plan_transfer t = {
            .send = true, .op = zipcclOpSend, .dtype = zipcclBfloat16, .peer = 1, .count = 1 << 16};
        start_exchange(&w, 0, &t, 1, PLAN_TWO_PHASE, zipcclCodecTier, a, NULL);
        t = (struct plan_transfer){.op = zipcclOpRecv, .dtype = zipcclBfloat16, .peer = 0, .count = 1 << 16};
        start_exchange(&w, 1, &t, 1, PLAN_TWO_PHASE, zipcclCodecTier, NULL, b);
        double end = seconds() + WAIT;
        while (!g_exchange.out[1].done && seconds() < end)
            poll_world(&w);
        fake_headers(NULL);
        assert_int_equal(g_exchange.out[1].result.result, zipcclCorruptData);
        assert_non_null(strstr(g_exchange.out[1].text, "bytes, expected 32768 values"));
        end_sender(&w, end);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fake),  cmocka_unit_test(test_ucx),  cmocka_unit_test(test_ring),
        cmocka_unit_test(test_group), cmocka_unit_test(test_late), cmocka_unit_test(test_disagree),
        cmocka_unit_test(test_lies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

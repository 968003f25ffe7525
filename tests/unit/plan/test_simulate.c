/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulator of plans: times against closed forms, broken plans found, and every operation run to its end.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/plan/simulate.h"
#include "kernels/codec.h"
#include "proto/op.h"

#define MAX_NODES 8
#define MAX_STEPS 32
#define BYTES     1000000u
#define US        1e-6

/* A hand-made plan: steps, and pairs of an earlier and a later one. */
struct sketch {
    struct plan_step steps[MAX_STEPS];
    uint32_t nsteps;
    uint32_t edges[MAX_STEPS][2];
    uint32_t nedges;
};

struct sketches {
    struct sketch nodes[MAX_NODES];
    uint32_t nnodes;
};

static zipcclResult_t build(void *arg, uint32_t node, uint32_t index, struct simulate_plan *out) {
    const struct sketch *k = &((const struct sketches *)arg)->nodes[node];
    (void)index;
    struct plan *p = calloc(1, sizeof *p);
    assert_non_null(p);
    p->steps = calloc(MAX_STEPS, sizeof *p->steps);
    p->next = calloc(MAX_STEPS, sizeof *p->next);
    p->items = calloc(1, sizeof *p->items);
    assert_true(p->steps && p->next && p->items);
    memcpy(p->steps, k->steps, k->nsteps * sizeof *p->steps);
    p->items[0].dtype = zipcclUint8;
    p->nitems = 1;
    p->nsteps = k->nsteps;
    uint32_t at = 0;
    for (uint32_t i = 0; i < k->nsteps; i++) {
        p->steps[i].first_next = at;
        for (uint32_t e = 0; e < k->nedges; e++) {
            if (k->edges[e][0] != i)
                continue;
            p->next[at++] = k->edges[e][1];
            p->steps[i].nnext++;
            p->steps[k->edges[e][1]].ndeps++;
        }
    }
    *out = (struct simulate_plan){.plan = p};
    return zipcclSuccess;
}

/* Appends a step that waits for `after`, -1: for none; its number. */
static int add(struct sketches *k, uint32_t node, enum plan_kind kind, uint32_t peer, uint32_t tag, int after) {
    struct sketch *s = &k->nodes[node];
    int id = (int)s->nsteps++;
    s->steps[id] = (struct plan_step){.kind = (uint8_t)kind, .peer = peer, .tag = tag, .rank = node, .count = BYTES};
    if (kind == PLAN_COPY)
        s->steps[id].dst.offset = 1;
    if (after >= 0) {
        s->edges[s->nedges][0] = (uint32_t)after;
        s->edges[s->nedges++][1] = (uint32_t)id;
    }
    return id;
}

/* Round figures: a message takes 1000 us on the link, work 500 us and 3 us. */
static struct cost cost_of_test(void) {
    struct cost c;
    cost_defaults(&c);
    c.latency_s = 10 * US;
    c.overhead_s = 2 * US;
    c.gap_s = 1 * US;
    c.handshake_s = 20 * US;
    c.link_bps = 1e9;
    c.copy_bps = 2e9;
    c.step_s = 3 * US;
    c.workers = 2;
    c.header_bytes = 0;
    c.eager_bytes = 0;
    return c;
}

static enum simulate_end run(struct sketches *k, const struct cost *cost, const double *arrive,
                             struct simulate_result *r, char why[SIMULATE_WHY]) {
    struct simulate_source source = {
        .nnodes = k->nnodes, .nranks = k->nnodes, .plans_per_node = 1, .build = build, .arg = k};
    struct simulate_options o = {.cost = cost, .arrive = arrive};
    return simulate_run(&source, &o, r, why);
}

static void expect_us(struct sketches *k, const struct cost *cost, const double *arrive, double us) {
    struct simulate_result r;
    char why[SIMULATE_WHY];
    if (run(k, cost, arrive, &r, why) != SIMULATE_OK)
        fail_msg("%s", why);
    if (r.seconds / US < us - 1e-3 || r.seconds / US > us + 1e-3)
        fail_msg("%.3f us, not %.3f", r.seconds / US, us);
}

static void one_message(void **state) {
    (void)state;
    struct sketches k = {.nnodes = 2};
    struct cost c = cost_of_test();
    add(&k, 0, PLAN_SEND, 1, 0, -1);
    add(&k, 1, PLAN_RECV, 0, 0, -1);
    expect_us(&k, &c, NULL, 2 + 20 + 10 + 1000 + 2);
    c.eager_bytes = BYTES; /* no handshake */
    expect_us(&k, &c, NULL, 2 + 10 + 1000 + 2);
    c.header_bytes = 1000; /* a microsecond */
    expect_us(&k, &c, NULL, 2 + 10 + 1001 + 2);
}

static void ring(void **state) {
    (void)state;
    struct cost c = cost_of_test();
    for (uint32_t n = 2; n <= MAX_NODES; n++) {
        struct sketches k = {.nnodes = n};
        for (uint32_t node = 0; node < n; node++) {
            int last = -1;
            for (uint32_t round = 0; round + 1 < n; round++) {
                add(&k, node, PLAN_SEND, (node + 1) % n, round, last);
                last = add(&k, node, PLAN_RECV, (node + n - 1) % n, round, last);
            }
        }
        expect_us(&k, &c, NULL, (n - 1) * (2.0 + 20 + 10 + 1000 + 2));
    }
}

static void links(void **state) {
    (void)state;
    struct cost c = cost_of_test();
    /* Two senders, one receiver: its link in serves one after the other. */
    struct sketches in = {.nnodes = 3};
    add(&in, 0, PLAN_RECV, 1, 0, -1);
    add(&in, 0, PLAN_RECV, 2, 0, -1);
    add(&in, 1, PLAN_SEND, 0, 0, -1);
    add(&in, 2, PLAN_SEND, 0, 0, -1);
    expect_us(&in, &c, NULL, 2 + 20 + 10 + 2000 + 2);
    /* One sender, two receivers: its link out, with a gap between. */
    struct sketches out = {.nnodes = 3};
    add(&out, 0, PLAN_SEND, 1, 0, -1);
    add(&out, 0, PLAN_SEND, 2, 0, -1);
    add(&out, 1, PLAN_RECV, 0, 0, -1);
    add(&out, 2, PLAN_RECV, 0, 0, -1);
    expect_us(&out, &c, NULL, 2 + 20 + 10 + 2001 + 2);
    /* Both ways at once: no wait. */
    struct sketches both = {.nnodes = 2};
    for (uint32_t n = 0; n < 2; n++) {
        add(&both, n, PLAN_SEND, 1 - n, 0, -1);
        add(&both, n, PLAN_RECV, 1 - n, 0, -1);
    }
    expect_us(&both, &c, NULL, 2 + 20 + 10 + 1000 + 2);
}

static void work(void **state) {
    (void)state;
    struct cost c = cost_of_test();
    struct sketches k = {.nnodes = 1};
    for (int i = 0; i < 3; i++)
        add(&k, 0, PLAN_COPY, 0, 0, -1);
    expect_us(&k, &c, NULL, 2 * 503); /* two workers */
    c.workers = 3;
    expect_us(&k, &c, NULL, 503);
    /* Inside a node a message is a copy. */
    struct sketches self = {.nnodes = 1};
    add(&self, 0, PLAN_SEND, 0, 0, -1);
    add(&self, 0, PLAN_RECV, 0, 0, -1);
    expect_us(&self, &c, NULL, 503);
    struct simulate_result r;
    char why[SIMULATE_WHY];
    assert_int_equal(run(&self, &c, NULL, &r, why), SIMULATE_OK);
    assert_int_equal(r.bytes[SIMULATE_INSIDE], BYTES);
    assert_int_equal(r.bytes[SIMULATE_BETWEEN], 0);
    assert_int_equal(r.messages, 0);
}

static void late(void **state) {
    (void)state;
    struct cost c = cost_of_test();
    struct sketches k = {.nnodes = 2};
    for (uint32_t n = 0; n < 2; n++)
        add(&k, n, n ? PLAN_RECV : PLAN_SEND, 1 - n, 0, add(&k, n, PLAN_ARRIVE, 0, 0, -1));
    const double none[] = {0, 0}, sender[] = {5e-3, 0}, receiver[] = {0, 7e-3}, all[] = {1e-3, 1e-3};
    expect_us(&k, &c, NULL, 1034);
    expect_us(&k, &c, none, 1034);
    expect_us(&k, &c, all, 1034); /* time counts from the first arrival */
    expect_us(&k, &c, sender, 5000 + 1034);
    expect_us(&k, &c, receiver, 7000 + 1032); /* the send was posted long ago */
    c.eager_bytes = BYTES;
    expect_us(&k, &c, receiver, 7000 + 10); /* and its bytes are there: its end is told last */
}

static void expect_end(struct sketches *k, enum simulate_end end, const char *a, const char *b) {
    struct cost c = cost_of_test();
    struct simulate_result r;
    char why[SIMULATE_WHY];
    assert_int_equal(run(k, &c, NULL, &r, why), end);
    if (!strstr(why, a) || !strstr(why, b))
        fail_msg("\"%s\" lacks \"%s\" or \"%s\"", why, a, b);
}

static void deadlocks(void **state) {
    (void)state;
    /* Each sends what it waits for from the other. */
    struct sketches k = {.nnodes = 2};
    for (uint32_t n = 0; n < 2; n++)
        add(&k, n, PLAN_SEND, 1 - n, n, add(&k, n, PLAN_RECV, 1 - n, 1 - n, -1));
    expect_end(&k, SIMULATE_DEADLOCK, "node 0, step 0: receive from node 1, tag 1", "4 of 4 steps");
    /* Each receives only after its send has ended: buffers of small messages would hide it. */
    struct sketches head = {.nnodes = 2};
    struct cost c = cost_of_test();
    struct simulate_result r;
    char why[SIMULATE_WHY];
    for (uint32_t n = 0; n < 2; n++)
        add(&head, n, PLAN_RECV, 1 - n, 0, add(&head, n, PLAN_SEND, 1 - n, 0, -1));
    c.eager_bytes = BYTES;
    assert_int_equal(run(&head, &c, NULL, &r, why), SIMULATE_DEADLOCK);
    assert_non_null(strstr(why, "node 0, step 0: send to node 1, tag 0"));
    assert_non_null(strstr(why, "waits for node 1, step 1: receive"));
    c.eager_bytes = 0;
    assert_int_equal(run(&head, &c, NULL, &r, why), SIMULATE_DEADLOCK);
}

static void unmatched(void **state) {
    (void)state;
    struct sketches k = {.nnodes = 2};
    add(&k, 0, PLAN_SEND, 1, 0, -1);
    add(&k, 1, PLAN_RECV, 0, 0, -1);
    add(&k, 1, PLAN_SEND, 0, 5, -1);
    expect_end(&k, SIMULATE_UNMATCHED, "node 1, step 1: send to node 0, tag 5", "1 such step)");
    add(&k, 0, PLAN_RECV, 1, 4, -1);
    expect_end(&k, SIMULATE_UNMATCHED, "node 0, step 1: receive from node 1, tag 4", "2 such steps)");
    struct sketches twice = {.nnodes = 2};
    add(&twice, 0, PLAN_SEND, 1, 3, -1);
    add(&twice, 0, PLAN_SEND, 1, 3, -1);
    expect_end(&twice, SIMULATE_UNMATCHED, "node 0, step 1", "same tag");
    struct sketches differ = {.nnodes = 2};
    add(&differ, 0, PLAN_SEND, 1, 0, -1);
    add(&differ, 1, PLAN_RECV, 0, 0, -1);
    const struct plan_step same = differ.nodes[1].steps[0];
    differ.nodes[1].steps[0].count = 7;
    expect_end(&differ, SIMULATE_UNMATCHED, "node 1, step 0", "differ");
    differ.nodes[1].steps[0] = same;
    differ.nodes[1].steps[0].codec = zipcclCodecTier;
    expect_end(&differ, SIMULATE_UNMATCHED, "node 1, step 0", "differ");
    differ.nodes[1].steps[0] = same;
    differ.nodes[1].steps[0].part = PLAN_DYNAMIC;
    expect_end(&differ, SIMULATE_UNMATCHED, "node 1, step 0", "differ");
    struct sketches far = {.nnodes = 2};
    add(&far, 0, PLAN_SEND, 9, 0, -1);
    expect_end(&far, SIMULATE_UNMATCHED, "send to node 9", "1 such step)");
}

/* A topology of nodes * per ranks in order. */
static const struct plan_topology *topology(uint32_t nodes, uint32_t per) {
    static uint32_t rank_node[1024];
    static struct plan_topology t;
    assert_true(nodes * per <= 1024);
    for (uint32_t r = 0; r < nodes * per; r++)
        rank_node[r] = r / per;
    t = (struct plan_topology){nodes * per, nodes, rank_node};
    return &t;
}

static struct simulate_result run_op(const struct plan_op *op, uint32_t nodes, uint32_t per, const struct cost *cost,
                                     enum simulate_fold fold, enum plan_phases phases) {
    struct simulate_ops ops = {
        .ops = op, .nops = 1, .topology = topology(nodes, per), .chunk_bytes = 4 << 20, .window = 4, .phases = phases};
    struct simulate_source source;
    struct simulate_options o = {.cost = cost, .fold = fold};
    struct simulate_result r;
    char why[SIMULATE_WHY];
    assert_int_equal(simulate_source_of_ops(&ops, &source), zipcclSuccess);
    if (simulate_run(&source, &o, &r, why) != SIMULATE_OK)
        fail_msg("%s, %s, codec %d, %u nodes of %u: %s", op_name(op->op), arm_name(op->arm), op->codec, nodes, per,
                 why);
    return r;
}

static void bandwidth_bound(void **state) {
    (void)state;
    struct cost c;
    cost_defaults(&c);
    struct plan_op op = {.op = zipcclOpAllGather, .dtype = zipcclBfloat16, .count = 32 << 20};
    for (uint32_t nodes = 2; nodes <= 8; nodes *= 2) {
        struct simulate_result r = run_op(&op, nodes, 2, &c, SIMULATE_FOLD_NEVER, PLAN_STREAM);
        double bytes = 2.0 * (nodes - 1) * (64 << 20), bound = bytes / c.link_bps;
        assert_true(r.seconds > bound && r.seconds < bound * 1.03);
        assert_true(r.link_busy > 0.97 && r.link_busy <= 1);
        assert_int_equal(r.busiest_bytes, bytes);
        assert_int_equal(r.bytes[SIMULATE_BETWEEN], nodes * bytes);
    }
    /* Coded, the link sends as much less as the ratio says. */
    struct simulate_result raw = run_op(&op, 4, 2, &c, SIMULATE_FOLD_NEVER, PLAN_STREAM);
    op.codec = zipcclCodecTier;
    struct simulate_result tier = run_op(&op, 4, 2, &c, SIMULATE_FOLD_NEVER, PLAN_STREAM);
    double ratio = raw.seconds / tier.seconds;
    assert_true(ratio > 1.40 && ratio < CODEC_USUAL_RATIO);
    assert_float_equal((double)raw.busiest_bytes / (double)tier.busiest_bytes, CODEC_USUAL_RATIO, 0.001);
}

static bool same(const struct simulate_result *a, const struct simulate_result *b) {
    return a->seconds == b->seconds && a->messages == b->messages && a->busiest_bytes == b->busiest_bytes &&
           a->bytes[0] == b->bytes[0] && a->bytes[1] == b->bytes[1] && a->steps == b->steps;
}

static bool can_take(const struct plan_op *op) {
    return op->arm != zipcclArmRing || op->codec == zipcclCodecRaw;
}

/* Every operation, arm and codec over small topologies: all ends, twice alike, folded as unfolded. */
static void all_operations(void **state) {
    (void)state;
    struct cost c;
    cost_defaults(&c);
    for (unsigned op = 0; op < zipcclNumOps; op++) {
        if (op_is_pairwise((zipcclOp_t)op) || op == zipcclOpAllToAllv || op == zipcclOpAllGatherv ||
            op == zipcclOpReduceScatterv)
            continue;
        for (unsigned v = 0; v < 5 * zipcclNumArms * zipcclNumCodecs * 2; v++) {
            static const uint32_t shapes[5][2] = {{1, 3}, {2, 2}, {3, 1}, {4, 3}, {5, 2}};
            const uint32_t *shape = shapes[v % 5];
            struct plan_op a = {.op = (zipcclOp_t)op,
                                .dtype = zipcclBfloat16,
                                .arm = (zipcclArm_t)(v / 5 % zipcclNumArms),
                                .codec = (zipcclCodec_t)(v / 5 / zipcclNumArms % zipcclNumCodecs),
                                .count = v % 2 ? 300007 : 17};
            if (!can_take(&a) || (!op_reduces(a.op) && a.arm > 0))
                continue;
            enum plan_phases phases = op_exchanges(a.op) ? (enum plan_phases)(v % 3) : PLAN_STREAM;
            struct simulate_result one = run_op(&a, shape[0], shape[1], &c, SIMULATE_FOLD_NEVER, phases);
            struct simulate_result two = run_op(&a, shape[0], shape[1], &c, SIMULATE_FOLD_NEVER, phases);
            struct simulate_result folded = run_op(&a, shape[0], shape[1], &c, SIMULATE_FOLD_ALWAYS, phases);
            assert_true(same(&one, &two));
            if (!same(&one, &folded))
                fail_msg("%s, %s, codec %u, %u nodes of %u: folded %.9g s, all %.9g s", op_name(op), arm_name(a.arm),
                         a.codec, shape[0], shape[1], folded.seconds, one.seconds);
        }
    }
}

static void folding(void **state) {
    (void)state;
    struct cost c;
    cost_defaults(&c);
    struct plan_op op = {.op = zipcclOpAllGather, .dtype = zipcclBfloat16, .count = 100000};
    struct simulate_result r = run_op(&op, 6, 2, &c, SIMULATE_FOLD_ALWAYS, PLAN_STREAM);
    assert_int_equal(r.nodes_checked, 6);
    op.op = zipcclOpBroadcast; /* the root differs from the others */
    r = run_op(&op, 6, 2, &c, SIMULATE_FOLD_ALWAYS, PLAN_STREAM);
    assert_int_equal(r.nodes_checked, 0);
}

static void limits(void **state) {
    (void)state;
    struct cost c;
    cost_defaults(&c);
    struct plan_op op = {.op = zipcclOpAllGather, .dtype = zipcclBfloat16, .count = 100000};
    struct simulate_ops ops = {.ops = &op, .nops = 1, .topology = topology(4, 2), .chunk_bytes = 4 << 20, .window = 4};
    struct simulate_source source;
    struct simulate_options o = {.cost = &c, .max_steps = 100};
    struct simulate_result r;
    char why[SIMULATE_WHY];
    assert_int_equal(simulate_source_of_ops(&ops, &source), zipcclSuccess);
    assert_int_equal(simulate_run(&source, &o, &r, why), SIMULATE_TOO_LARGE);
    assert_non_null(strstr(why, "over 100 steps"));
    op.codec = zipcclCodecAuto;
    assert_int_equal(simulate_run(&source, &o, &r, why), SIMULATE_NO_PLAN);
    assert_true(why[0] != '\0');
    op.op = zipcclOpSend;
    assert_int_equal(simulate_source_of_ops(&ops, &source), zipcclInvalidArgument);
    op.op = zipcclOpAllToAllv;
    assert_int_equal(simulate_source_of_ops(&ops, &source), zipcclInvalidArgument);
}

static void coded_bytes(void **state) {
    (void)state;
    struct cost c;
    cost_defaults(&c);
    for (uint64_t n = 1; n < 1 << 22; n = n * 3 + 1) {
        uint64_t all = cost_coded_bytes(&c, zipcclCodecTier, zipcclBfloat16, n, PLAN_WHOLE);
        uint64_t fixed = cost_coded_bytes(&c, zipcclCodecTier, zipcclBfloat16, n, PLAN_STATIC);
        uint64_t rest = cost_coded_bytes(&c, zipcclCodecTier, zipcclBfloat16, n, PLAN_DYNAMIC);
        assert_int_equal(all, fixed + rest);
        assert_int_equal(cost_coded_bytes(&c, zipcclCodecRaw, zipcclBfloat16, n, PLAN_WHOLE), 2 * n);
        assert_int_equal(cost_coded_bytes(&c, zipcclCodecTier, zipcclInt32, n, PLAN_WHOLE), 4 * n);
    }
    assert_int_equal(cost_ps(1e-12), 1);
    assert_int_equal(cost_ps(-1), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_message),    cmocka_unit_test(ring),    cmocka_unit_test(links),
        cmocka_unit_test(work),           cmocka_unit_test(late),    cmocka_unit_test(deadlocks),
        cmocka_unit_test(unmatched),      cmocka_unit_test(folding), cmocka_unit_test(bandwidth_bound),
        cmocka_unit_test(all_operations), cmocka_unit_test(limits),  cmocka_unit_test(coded_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Collectives that the NCCL fabric has whole, between processes with two GPUs each, on the stand-ins: their values,
 * places in the order, nodes that cannot or come late or call something else, failures.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "fabric_node.h"

#define COUNT 5003u /* int32 values */

/* Rank r is on node r % nodes; the second rank of an odd node has its first GPU. */
static void join_ranks(struct node *node, uint64_t key, unsigned nodes, bool native) {
    const struct group g = {key, 0, (int)nodes - 1, (1u << GPUS) - 1, false, true};
    join_group(node, &g, (struct fabric_join){.native = native});
}

static void set_gpu(const struct node *node, unsigned local) {
    const struct group crossed = {.crossed = true};
    CHECK(cudaSetDevice(group_gpu(node, &crossed, local)) == cudaSuccess);
}

struct whole {
    struct fabric_collective c;
    struct fabric_part parts[GPUS];
    unsigned nodes;
    zipcclResult_t result;
};

static void whole_done(struct fabric_collective *c, zipcclResult_t result) {
    ((struct whole *)c->arg)->result = result;
}

static uint32_t greater(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

static bool ends(struct node *node, const struct whole *w, double seconds) {
    return wait_until(node, &w->result, seconds);
}

static int32_t value(unsigned rank, size_t i, uint32_t seed) {
    return (int32_t)(rank * 1000003u + (uint32_t)i * 7919u + seed);
}

/* Each rank sends its values, to all ranks, or a part to each; all it can have has room. */
static void prepare(const struct node *node, struct whole *w, uint64_t key, unsigned nodes, zipcclOp_t op,
                    unsigned root, uint32_t seq, bool on_gpu) {
    const size_t n = COUNT * sizeof(int32_t), all = n * GPUS * nodes;
    *w = (struct whole){.nodes = nodes, .result = PENDING};
    int32_t *values = malloc(all);
    for (unsigned l = 0; l < GPUS; l++) {
        unsigned rank = (unsigned)node->rank->rank + l * nodes;
        struct fabric_part *part = &w->parts[l];
        bool scatters = op == zipcclOpReduceScatter;
        part->send_bytes = op == zipcclOpBroadcast && rank != root ? 0 : scatters ? all : n;
        part->recv_bytes = op == zipcclOpReduce && rank != root ? 0 : op == zipcclOpAllGather ? all : n;
        for (size_t i = 0; i < all / sizeof(*values); i++)
            values[i] = value(rank, i, seq);
        void *send = NULL, *recv = NULL;
        set_gpu(node, l);
        CHECK((on_gpu ? cudaMalloc(&send, all) : cudaHostAlloc(&send, all, 0)) == cudaSuccess);
        CHECK(cudaMalloc(&recv, all) == cudaSuccess);
        CHECK(cudaMemcpy(send, values, all, cudaMemcpyDefault) == cudaSuccess);
        CHECK(cudaMemset(recv, 0, all) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess);
        part->send = send;
        part->recv = recv;
    }
    free(values);
    w->c = (struct fabric_collective){.header = {.comm = key,
                                                 .node = (uint32_t)node->rank->rank,
                                                 .seq = seq,
                                                 .op = (uint8_t)op,
                                                 .dtype = zipcclInt32,
                                                 .root = root,
                                                 .op_count = COUNT,
                                                 .report = 100 + (uint32_t)node->rank->rank},
                                      .redop = zipcclSum,
                                      .value_bytes = sizeof(int32_t),
                                      .parts = w->parts,
                                      .nparts = GPUS,
                                      .combine = greater,
                                      .done = whole_done,
                                      .arg = w};
}

static void drop(const struct node *node, struct whole *w) {
    for (unsigned l = 0; l < GPUS; l++) {
        struct cudaPointerAttributes a;
        void *send = (void *)(uintptr_t)w->parts[l].send;
        set_gpu(node, l);
        CHECK(cudaPointerGetAttributes(&a, send) == cudaSuccess);
        CHECK((a.type == cudaMemoryTypeHost ? cudaFreeHost(send) : cudaFree(send)) == cudaSuccess);
        CHECK(cudaFree(w->parts[l].recv) == cudaSuccess);
    }
}

static int32_t expected(const struct whole *w, unsigned rank, size_t i) {
    const uint32_t seq = w->c.header.seq;
    uint32_t sum = 0;
    if (w->c.header.op == zipcclOpBroadcast)
        return value(w->c.header.root, i, seq);
    if (w->c.header.op == zipcclOpAllGather)
        return value((unsigned)(i / COUNT), i % COUNT, seq);
    for (unsigned r = 0; r < GPUS * w->nodes; r++)
        sum += (uint32_t)value(r, w->c.header.op == zipcclOpReduceScatter ? rank * COUNT + i : i, seq);
    return (int32_t)sum;
}

static void check_taken(struct node *node, struct whole *w) {
    CHECK(w->result == zipcclSuccess && w->c.taken && !w->c.never);
    CHECK(w->c.header.report == 100 + w->nodes - 1);
    for (unsigned l = 0; l < GPUS; l++) {
        unsigned rank = (unsigned)node->rank->rank + l * w->nodes;
        int32_t *got = malloc(w->parts[l].recv_bytes + 1);
        CHECK(cudaMemcpy(got, w->parts[l].recv, w->parts[l].recv_bytes, cudaMemcpyDefault) == cudaSuccess);
        for (size_t i = 0; i < w->parts[l].recv_bytes / sizeof(*got); i++)
            CHECK(got[i] == expected(w, rank, i));
        free(got);
    }
    drop(node, w);
}

static void begin(struct node *node, struct whole *w) {
    fabric_nccl.collective(node->fabric, &w->c);
}

static const zipcclOp_t ops[] = {zipcclOpAllGather, zipcclOpBroadcast, zipcclOpReduceScatter, zipcclOpAllReduce,
                                 zipcclOpReduce};
enum { OPS = sizeof(ops) / sizeof(ops[0]) };

/* Three nodes, two communicators on the same GPUs, one of which is begun in another order on each node; in between,
 * messages of a third one. */
static int values(struct rank *rank) {
    enum { ROUNDS = 10 };
    struct node node;
    struct whole w[2];
    open_node(&node, rank);
    for (unsigned k = 0; k < 2; k++)
        join_ranks(&node, 10 + (k + (unsigned)rank->rank) % 2, 3, true);
    join_gpus(&node, 20, 0, 2, 1u << GPUS * (unsigned)rank->rank);
    for (unsigned i = 0; i < ROUNDS; i++) {
        struct message out, in;
        for (unsigned k = 0; k < 2; k++)
            prepare(&node, &w[k], 10 + k, 3, ops[i % OPS], (i + k) % 6, i, true);
        CHECK(cudaSetDevice((int)GPUS * rank->rank) == cudaSuccess);
        allocate(&out, DEVICE, 40000);
        allocate(&in, DEVICE, 40000);
        fill(&out, i + (unsigned)rank->rank);
        for (unsigned k = 0; k < 3; k++) {
            unsigned at = (k + (unsigned)rank->rank * (1 + i % 2)) % 3;
            if (at < 2)
                begin(&node, &w[at]);
            else {
                start_send(&node, &out, 20, 0, (rank->rank + 1) % 3, i);
                start_recv(&node, &in, 20, 0, (rank->rank + 2) % 3, i);
            }
            turn(&node, 0);
        }
        CHECK(ends(&node, &w[0], WAIT) && ends(&node, &w[1], WAIT));
        CHECK(wait_for(&node, &in, WAIT) && wait_for(&node, &out, WAIT));
        CHECK(in.result == zipcclSuccess && out.result == zipcclSuccess);
        compare(&in, i + (unsigned)((rank->rank + 2) % 3));
        release(&in);
        release(&out);
        check_taken(&node, &w[0]);
        check_taken(&node, &w[1]);
    }
    close_node(&node);
    return 0;
}

static void test_values(void **state) {
    (void)state;
    run(3, values);
}

/* A node that cannot, alone; one that does not want to, ever; one that is late holds up no GPU. */
static int unable(struct rank *rank) {
    struct node node;
    struct whole w, other;
    open_node(&node, rank);
    join_ranks(&node, 1, 3, true);
    join_ranks(&node, 2, 3, rank->rank != 1);
    join_gpus(&node, 3, 0, 2, 1u << GPUS * (unsigned)rank->rank);
    for (uint32_t seq = 1; seq < 8; seq++) {
        bool all = seq > 3; /* one after the other is the one that cannot */
        prepare(&node, &w, 1, 3, zipcclOpAllReduce, 0, seq, all || rank->rank != (int)seq - 1);
        begin(&node, &w);
        CHECK(ends(&node, &w, WAIT) && w.result == zipcclSuccess);
        CHECK(w.c.taken == all && !w.c.never);
        if (all)
            check_taken(&node, &w);
        else
            drop(&node, &w);
    }
    prepare(&node, &other, 2, 3, zipcclOpAllGather, 0, 1, true);
    begin(&node, &other);
    CHECK(ends(&node, &other, WAIT) && other.result == zipcclSuccess && !other.c.taken && other.c.never);
    drop(&node, &other);

    /* Under a rate of the link, or of the job, it could not wait for its time. */
    const struct fabric_share free_share = {.weight = 1}, rated = {.weight = 1, .rate_bits = 1000000000};
    struct fabric_flow *flow = fabric_nccl.flow_open(node.fabric, &free_share);
    CHECK(flow != NULL);
    for (uint32_t seq = 8; seq < 11; seq++) {
        uint64_t queued = 0, sent = 0;
        if (rank->rank == 2) {
            fabric_nccl.set_link_rate(node.fabric, seq == 8 ? rated.rate_bits : 0);
            fabric_nccl.flow_set(node.fabric, flow, seq == 9 ? &rated : &free_share);
        }
        prepare(&node, &w, 1, 3, zipcclOpAllReduce, 0, seq, true);
        w.c.flow = flow;
        w.c.sent_bytes = 64;
        begin(&node, &w);
        CHECK(ends(&node, &w, WAIT) && w.result == zipcclSuccess && w.c.taken == (seq == 10) && !w.c.never);
        fabric_nccl.flow_bytes(flow, &queued, &sent);
        CHECK(queued == 0 && sent == (seq == 10 ? 64 : 0));
        if (seq == 10)
            check_taken(&node, &w);
        else
            drop(&node, &w);
    }
    fabric_nccl.flow_close(node.fabric, flow);

    prepare(&node, &w, 1, 3, zipcclOpBroadcast, 2, 11, true);
    if (rank->rank != 1)
        begin(&node, &w);
    CHECK(cudaSetDevice((int)GPUS * rank->rank) == cudaSuccess);
    if (rank->rank < 2)
        talk(&node, 3, 0, 1);
    idle(&node, 0.05);
    CHECK(w.result == PENDING && !w.c.launched);
    CHECK(rank->rank != 0 || w.c.waits_for == 1);
    ranks_meet(rank, 1);
    if (rank->rank == 1)
        begin(&node, &w);
    CHECK(ends(&node, &w, WAIT));
    check_taken(&node, &w);
    close_node(&node);
    return 0;
}

static void test_unable(void **state) {
    (void)state;
    run(3, unable);
}

/* Nodes that call something else, as a collective of NCCL or by messages, before and after: nothing is moved. Key 1:
 * both ask, for different operations; 2 to 5: node 0, or node 1, goes by messages at once, or later. */
static int mismatched(struct rank *rank) {
    struct node node;
    struct whole w;
    open_node(&node, rank);
    for (int key = 1; key <= 5; key++) {
        const bool asks = key == 5 || rank->rank == key % 2, late = key == 3 || key == 4;
        join_ranks(&node, (uint64_t)key, 2, true);
        for (uint32_t seq = 1; seq < 4; seq++) {
            const bool other = seq == 2; /* between two that agree */
            prepare(&node, &w, (uint64_t)key, 2,
                    !other           ? zipcclOpAllGather
                    : rank->rank > 0 ? zipcclOpReduce
                                     : zipcclOpAllReduce,
                    0, seq, true);
            if (other && late) {
                ranks_meet(rank, 1 + key);
                idle(&node, asks ? 0 : 0.05);
            }
            if (other && !asks)
                fabric_nccl.by_messages(node.fabric, &w.c.header);
            else
                begin(&node, &w);
            if (other && key == 5) {
                CHECK(rank->rank == 1 || (ends(&node, &w, WAIT) && w.result == zipcclInvalidArgument));
                CHECK(rank->rank == 1 || (w.c.theirs.op == zipcclOpReduce && w.c.theirs.node == 1));
                ranks_meet(rank, 1 + key);
                fabric_nccl.abort(node.fabric, (uint64_t)key);
                CHECK(ends(&node, &w, WAIT) && w.result != zipcclSuccess);
                drop(&node, &w);
                break;
            }
            CHECK((other && !asks) || ends(&node, &w, WAIT));
            CHECK(!other || !asks || (w.result == zipcclSuccess && !w.c.taken && !w.c.never));
            if (other)
                drop(&node, &w);
            else
                check_taken(&node, &w);
        }
        ranks_meet(rank, 7 + key);
        fabric_nccl.forget(node.fabric, (uint64_t)key);
    }
    close_node(&node);
    return 0;
}

static void test_mismatched(void **state) {
    (void)state;
    run(2, mismatched);
}

/* A call of NCCL or CUDA fails on rank 0: the collective ends on both, as daemons do; the next communicator works. */
static int failing(struct rank *rank) {
    struct node node;
    struct whole w;
    open_node(&node, rank);
    join_ranks(&node, 1, 2, true);
    for (uint32_t i = 0; i < OPS; i++) {
        prepare(&node, &w, 1, 2, ops[i], 1, i, true);
        begin(&node, &w);
        if (rank->rank == 0) {
            CHECK(ends(&node, &w, WAIT));
            atomic_store(&rank->shared->step[2], w.result ? (int)i + 100 : (int)i + 1);
        }
        while (atomic_load(&rank->shared->step[2]) % 100 < (int)i + (atomic_load(&rank->shared->step[2]) < 100))
            turn(&node, 1);
        if (atomic_load(&rank->shared->step[2]) >= 100)
            break;
        CHECK(ends(&node, &w, WAIT));
        check_taken(&node, &w);
    }
    CHECK(atomic_load(&rank->shared->step[2]) >= 100);
    fabric_nccl.abort(node.fabric, 1);
    CHECK(ends(&node, &w, WAIT));
    CHECK(rank->rank == 1 || w.result != zipcclSuccess);
    drop(&node, &w);
    join_ranks(&node, 2, 2, true);
    prepare(&node, &w, 2, 2, zipcclOpAllReduce, 0, 1, true);
    begin(&node, &w);
    CHECK(ends(&node, &w, WAIT));
    check_taken(&node, &w);
    close_node(&node);
    return 0;
}

static void test_injection(void **state) {
    (void)state;
    static const char *const plans[] = {
        "ncclAllGather:1=1",          "ncclBroadcast:2=3",   "ncclReduceScatter:1=2",
        "ncclAllReduce:2=5",          "ncclReduce:1=1",      "nccl:3=6",
        "ncclCommInitRankConfig:2=1", "cudaEventRecord:2=1", "ncclAllReduce:1=2;ncclCommAbort:1=1"};
    run_failing(2, failing, plans, sizeof(plans) / sizeof(plans[0]));
}

/* Aborted while another node is waited for; one of them dies: the others hear of it within seconds. */
static int lost(struct rank *rank) {
    struct node node;
    struct whole w;
    open_node(&node, rank);
    join_ranks(&node, 1, 3, true);
    join_ranks(&node, 2, 3, true);
    prepare(&node, &w, 1, 3, zipcclOpAllReduce, 0, 1, true);
    if (rank->rank != 2)
        begin(&node, &w);
    idle(&node, 0.1);
    CHECK(w.result == PENDING);
    ranks_meet(rank, 1);
    fabric_nccl.abort(node.fabric, 1);
    CHECK(rank->rank == 2 || (ends(&node, &w, WAIT) && w.result == zipcclAborted));
    if (rank->rank == 2)
        begin(&node, &w);
    CHECK(ends(&node, &w, WAIT) && w.result == zipcclAborted);
    drop(&node, &w);
    for (uint32_t seq = 0; seq < 40; seq++) {
        prepare(&node, &w, 2, 3, zipcclOpAllGather, 0, seq, true);
        begin(&node, &w);
        if (rank->rank == 2 && seq == 3)
            syscall(SYS_exit_group, 0); /* no call ends anything */
        CHECK(ends(&node, &w, 10));
        if (w.result)
            break;
        check_taken(&node, &w);
    }
    CHECK(w.result == zipcclRemoteError);
    drop(&node, &w);
    meet(&node, 2, 2);
    fabric_nccl.forget(node.fabric, 1);
    fabric_nccl.forget(node.fabric, 2);
    fabric_nccl.close(node.fabric);
    return 0;
}

static void test_lost(void **state) {
    (void)state;
    run(3, lost);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values), cmocka_unit_test(test_unable),
                                       cmocka_unit_test(test_mismatched), cmocka_unit_test(test_injection),
                                       cmocka_unit_test(test_lost)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

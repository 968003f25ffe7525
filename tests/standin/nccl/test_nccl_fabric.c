/* SPDX-License-Identifier: Apache-2.0
 *
 * The NCCL fabric between processes with a GPU each, on the stand-ins: every kind of memory, orders that would
 * deadlock without the agreed one, failures.
 */
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
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

static const size_t sizes[] = {0, 1, 100, 16384, 16385, 300001, 3000000};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

/* All sizes from each node to each, from and to each kind of memory that goes together, receives first and last. */
static int values(struct rank *rank) {
    static const enum memory pairs[][2] = {{HOST, HOST},     {PINNED, PINNED}, {DEVICE, DEVICE},
                                           {PINNED, DEVICE}, {DEVICE, PINNED}, {HOST, PINNED}};
    enum { PAIRS = sizeof(pairs) / sizeof(pairs[0]), N = PAIRS * SIZES };
    struct node node;
    open_node(&node, rank);
    join(&node, 77, 0, rank->nranks - 1);
    struct message *out = calloc((size_t)N * (size_t)rank->nranks, sizeof(*out));
    struct message *in = calloc((size_t)N * (size_t)rank->nranks, sizeof(*in));
    for (int late = 0; late < 2; late++) {
        for (int pass = 0; pass < 2; pass++) {
            for (int i = 0; i < N * rank->nranks; i++) {
                int peer = i / N, k = i % N;
                uint32_t tag = (uint32_t)(k * 2 + late * (2 * N + 1) + k / 3 % 2); /* none twice */
                if (peer == rank->rank)
                    continue;
                if (pass != late) {
                    allocate(&out[i], pairs[k % PAIRS][0], sizes[k / PAIRS]);
                    fill(&out[i], (uint32_t)(rank->rank * 100 + peer) + tag);
                    start_send(&node, &out[i], 77, 0, peer, tag);
                } else {
                    allocate(&in[i], pairs[k % PAIRS][1], sizes[k / PAIRS]);
                    start_recv(&node, &in[i], 77, 0, peer, tag);
                }
                turn(&node, 0);
            }
            usleep(20000);
        }
        for (int i = 0; i < N * rank->nranks; i++) {
            int peer = i / N, k = i % N;
            uint32_t tag = (uint32_t)(k * 2 + late * (2 * N + 1) + k / 3 % 2); /* none twice */
            if (peer == rank->rank)
                continue;
            bool ended = wait_for(&node, &in[i], WAIT) && wait_for(&node, &out[i], WAIT);
            if (!ended)
                fprintf(stderr, "rank %d, round %d, message %d of %zu bytes: received %d, sent %d\n", rank->rank, late,
                        k, in[i].bytes, (int)in[i].result, (int)out[i].result);
            CHECK(ended);
            CHECK(in[i].result == zipcclSuccess && out[i].result == zipcclSuccess);
            CHECK(in[i].recv.bytes == in[i].bytes && in[i].recv.header.count == in[i].bytes);
            CHECK(in[i].recv.header.tag == tag && in[i].recv.header.flags == 1);
            compare(&in[i], (uint32_t)(peer * 100 + rank->rank) + tag);
            release(&in[i]);
            release(&out[i]);
        }
    }
    uint64_t sent_bytes, received_bytes;
    fabric_nccl.counters(node.fabric, &sent_bytes, &received_bytes);
    CHECK(sent_bytes > 3000000 && received_bytes > 3000000);
    free(out);
    free(in);
    close_node(&node);
    return 0;
}

static void test_values(void **state) {
    (void)state;
    run(3, values);
}

/* On a link with a rate, where large messages of host memory go in pieces. */
static void test_paced_values(void **state) {
    (void)state;
    fabric_node_link_rate = 2000000000u;
    int end = ranks_run(2, values, NULL, 0);
    fabric_node_link_rate = 0;
    assert_int_equal(end, 0);
}

/* Three GPUs, a communicator of each two and one of all; every node begins with another one. Without one order over all
 * of them this stands still: test_nccl shows it for two. */
static int orders(struct rank *rank) {
    enum { ROUNDS = 60, COMMS = 4, BYTES = 20000 };
    static const int first[COMMS] = {0, 1, 0, 0}, last[COMMS] = {1, 2, 2, 1};
    struct node node;
    open_node(&node, rank);
    struct message *m = calloc((size_t)ROUNDS * COMMS * 2 * 3, sizeof(*m));
    unsigned n = 0;
    for (int k = 0; k < COMMS; k++) {
        int c = (k + rank->rank) % COMMS;
        if (rank->rank >= first[c] && rank->rank <= last[c])
            join(&node, (uint64_t)(500 + c), first[c], last[c]);
    }
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (int k = 0; k < COMMS; k++) {
            int c = (k + rank->rank * (1 + (int)round % 2)) % COMMS;
            for (int peer = first[c]; peer <= last[c]; peer++) {
                if (rank->rank < first[c] || rank->rank > last[c] || peer == rank->rank)
                    continue;
                for (int way = 0; way < 2; way++) {
                    allocate(&m[n], DEVICE, BYTES);
                    if ((way + (int)round) % 2)
                        fill(&m[n], round);
                    if ((way + (int)round) % 2)
                        start_send(&node, &m[n], (uint64_t)(500 + c), first[c], peer, round);
                    else
                        start_recv(&node, &m[n], (uint64_t)(500 + c), first[c], peer, round);
                    n++;
                }
                turn(&node, 0);
            }
        }
    }
    for (unsigned i = 0; i < n; i++) {
        CHECK(wait_for(&node, &m[i], WAIT) && m[i].result == zipcclSuccess);
        compare(&m[i], m[i].recv.buffer ? m[i].recv.header.tag : m[i].send.header.tag);
        release(&m[i]);
    }
    free(m);
    close_node(&node);
    return 0;
}

static void test_orders(void **state) {
    (void)state;
    run(3, orders);
}

static int no_room(struct rank *rank) {
    struct node node;
    struct message m;
    open_node(&node, rank);
    join(&node, 5, 0, 1);
    for (uint32_t i = 0; i < 4; i++) {
        allocate(&m, i % 2 ? DEVICE : PINNED, (i < 2 ? 100000u : 600u) - (rank->rank == 1));
        if (rank->rank == 0)
            start_send(&node, &m, 5, 0, 1, i);
        else
            start_recv(&node, &m, 5, 0, 0, i);
        CHECK(wait_for(&node, &m, WAIT));
        CHECK(m.result == (rank->rank == 0 ? zipcclSuccess : zipcclLimitExceeded));
        CHECK(rank->rank == 0 || m.recv.header.count == (i < 2 ? 100000 : 600));
        release(&m);
    }
    talk(&node, 5, 0, 100);
    close_node(&node);
    return 0;
}

/* One communicator is aborted while it has messages in every state; another goes on; a third is made afterwards. */
static int aborted(struct rank *rank) {
    struct node node;
    struct message unwanted, missing;
    open_node(&node, rank);
    join(&node, 1, 0, 1);
    join(&node, 2, 0, 1);
    talk(&node, 1, 0, 0);
    talk(&node, 2, 0, 0);
    allocate(&unwanted, DEVICE, 50000);
    allocate(&missing, DEVICE, 50000);
    start_send(&node, &unwanted, 1, 0, 1 - rank->rank, 7);
    start_recv(&node, &missing, 1, 0, 1 - rank->rank, 8);
    idle(&node, 0.1);
    CHECK(unwanted.result == PENDING && missing.result == PENDING);
    ranks_meet(rank, 1);
    fabric_nccl.abort(node.fabric, 1);
    CHECK(wait_for(&node, &unwanted, WAIT) && unwanted.result != zipcclSuccess);
    CHECK(wait_for(&node, &missing, WAIT) && missing.result == zipcclAborted);
    talk(&node, 2, 0, 1);
    start_recv(&node, &missing, 1, 0, 1 - rank->rank, 9);
    CHECK(wait_for(&node, &missing, WAIT) && missing.result == zipcclAborted);
    start_send(&node, &unwanted, 1, 0, 1 - rank->rank, 10);
    fabric_nccl.forget(node.fabric, 1);
    join(&node, 3, 0, 1);
    talk(&node, 3, 0, 2);
    fabric_nccl.forget(node.fabric, 3);
    talk(&node, 2, 0, 3);
    CHECK(wait_for(&node, &unwanted, WAIT) && unwanted.result != zipcclSuccess);
    release(&unwanted);
    release(&missing);
    close_node(&node);
    return 0;
}

/* Rank 2 dies in the middle of transfers with rank 1, which goes on with rank 0. */
static int death(struct rank *rank) {
    enum { N = 240, BYTES = 200000 }; /* more than one launch has */
    struct node node;
    struct message m[N];
    open_node(&node, rank);
    if (rank->rank < 2)
        join(&node, 2, 0, 1);
    if (rank->rank > 0)
        join(&node, 1, 1, 2);
    for (uint32_t i = 0; i < (rank->rank == 0 ? 0 : rank->rank == 1 ? N : N - 20); i++) {
        allocate(&m[i], DEVICE, BYTES);
        if (rank->rank == (int)i % 2 + 1)
            start_send(&node, &m[i], 1, 1, 3 - rank->rank, i);
        else
            start_recv(&node, &m[i], 1, 1, 3 - rank->rank, i);
    }
    if (rank->rank == 2) {
        CHECK(wait_for(&node, &m[2], WAIT));
        syscall(SYS_exit_group, 0); /* no call ends anything */
    }
    unsigned failed = 0;
    double last = 0, begun = ranks_now();
    for (uint32_t i = 0; rank->rank == 1 && i < N; i++) {
        CHECK(wait_for(&node, &m[i], WAIT));
        CHECK(m[i].result == zipcclSuccess || m[i].result == zipcclRemoteError);
        failed += m[i].result != zipcclSuccess;
        last = ranks_now() - begun;
        release(&m[i]);
    }
    CHECK(rank->rank == 0 || (failed > 0 && last < 10));
    talk(&node, 2, 0, 1);
    meet(&node, 1, 2);
    fabric_nccl.forget(node.fabric, 1);
    fabric_nccl.forget(node.fabric, 2);
    fabric_nccl.close(node.fabric);
    return 0;
}

static void test_death(void **state) {
    (void)state;
    run(3, death);
}

/* As daemons do: rank 0 sees that something fails, then both abort. One message may have been before the failure. */
static void end_failed(struct node *node, const struct message *out, const struct message *in) {
    int rank = node->rank->rank;
    CHECK(rank == 1 || (wait_for(node, out, WAIT) && wait_for(node, in, WAIT)));
    CHECK(rank == 1 || in->result != zipcclSuccess || out->result != zipcclSuccess);
    meet(node, 1, 2);
    fabric_nccl.abort(node->fabric, 1);
    CHECK(wait_for(node, out, WAIT) && wait_for(node, in, WAIT));
}

/* A call of NCCL or CUDA fails on rank 0: messages end on both, the communicator is over, the next one works. */
static int failing(struct rank *rank) {
    struct node node;
    struct message out, in;
    open_node(&node, rank);
    join(&node, 1, 0, 1);
    allocate(&out, DEVICE, 50000);
    allocate(&in, DEVICE, 50000);
    start_send(&node, &out, 1, 0, 1 - rank->rank, 7);
    start_recv(&node, &in, 1, 0, 1 - rank->rank, 7);
    end_failed(&node, &out, &in);
    join(&node, 2, 0, 1);
    talk(&node, 2, 0, 0);
    release(&out);
    release(&in);
    close_node(&node);
    return 0;
}

/* Rank 0's GPU fails for good: the next communicator goes without NCCL, whatever its node 0 is. */
static int sticky(struct rank *rank) {
    struct node node;
    struct message out, in;
    open_node(&node, rank);
    join(&node, 1, 0, 1);
    allocate(&out, PINNED, 50000);
    allocate(&in, PINNED, 50000);
    start_send(&node, &out, 1, 0, 1 - rank->rank, 7);
    start_recv(&node, &in, 1, 0, 1 - rank->rank, 7);
    end_failed(&node, &out, &in);
    for (uint64_t key = 2; key < 4; key++) { /* first rank 0 is its node 0, then rank 1 */
        uint32_t self = (uint32_t)(key == 2 ? rank->rank : 1 - rank->rank);
        struct fabric_peer *peers[2] = {node.peers[1 - rank->rank], node.peers[1 - rank->rank]};
        const struct fabric_join again = {
            .comm = key, .node = self, .nnodes = 2, .gpus = 1u << rank->rank, .peers = peers};
        CHECK(fabric_nccl.join(node.fabric, &again) == zipcclSuccess);
        memset(out.data, 17 + rank->rank, out.bytes);
        out.result = in.result = PENDING;
        out.send = (struct fabric_send){.peer = peers[0],
                                        .header = {.comm = key, .node = self},
                                        .iov = {{out.data, out.bytes}},
                                        .niov = 1,
                                        .done = sent,
                                        .arg = &out};
        in.recv = (struct fabric_recv){.peer = peers[0],
                                       .comm = key,
                                       .node = 1 - self,
                                       .buffer = in.data,
                                       .capacity = in.bytes,
                                       .done = received,
                                       .arg = &in};
        fabric_nccl.send(node.fabric, &out.send);
        fabric_nccl.recv(node.fabric, &in.recv);
        CHECK(wait_for(&node, &in, WAIT) && in.result == zipcclSuccess);
        CHECK(wait_for(&node, &out, WAIT) && out.result == zipcclSuccess);
        CHECK(in.data[0] == 18 - rank->rank && in.data[in.bytes - 1] == 18 - rank->rank);
        CHECK(fabric_nccl.takes(node.fabric, key, &in)); /* no message there goes to or comes from a GPU's memory */
    }
    ranks_meet(rank, 0);
    syscall(SYS_exit_group, 0); /* rank 0's CUDA is of no more use */
    return 0;
}

static void test_sticky(void **state) {
    (void)state;
    run_with(2, sticky, "RANK_0_FAIL", "cudaEventRecord:1=700");
}

static void test_injection(void **state) {
    (void)state;
    static const char *const plans[] = {"ncclCommInitRankConfig:1=1",
                                        "ncclCommInitRankConfig:1=5",
                                        "ncclGroupStart:1=3",
                                        "ncclSend:1=2",
                                        "ncclRecv:1=3",
                                        "ncclGroupEnd:1=1",
                                        "nccl:1=6",
                                        "ncclCommGetAsyncError:2=3",
                                        "cudaEventRecord:1=1",
                                        "ncclGroupEnd:1=1;ncclCommRevoke:1=3",
                                        "ncclSend:1=2;ncclCommAbort:1=1"};
    run_failing(2, failing, plans, sizeof(plans) / sizeof(plans[0]));
}

/* A communicator that has done its work is forgotten; another one works. */
static int leaving(struct rank *rank) {
    struct node node;
    open_node(&node, rank);
    for (uint64_t key = 1; key < 4; key++) {
        join(&node, key, 0, 1);
        talk(&node, key, 0, 0);
        ranks_meet(rank, (int)key);
        fabric_nccl.forget(node.fabric, key);
    }
    close_node(&node);
    return 0;
}

static void test_leaving(void **state) {
    (void)state;
    static const char *const plans[] = {"ncclCommFinalize:1=3", "ncclCommDestroy:1=1",
                                        "ncclCommFinalize:1=2;ncclCommAbort:1=3"};
    run_failing(2, leaving, plans, sizeof(plans) / sizeof(plans[0]));
}

/* One that lacks what came later: its use would break a rule of the stand-in. */
static void test_older(void **state) {
    (void)state;
    run_with(2, aborted, "ZIPCCL_STANDIN_NCCL_VERSION", "21403");
}

static void test_failures(void **state) {
    (void)state;
    run(2, no_room);
    run(2, aborted);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),   cmocka_unit_test(test_paced_values), cmocka_unit_test(test_orders),
        cmocka_unit_test(test_failures), cmocka_unit_test(test_death),        cmocka_unit_test(test_injection),
        cmocka_unit_test(test_sticky),   cmocka_unit_test(test_older),        cmocka_unit_test(test_leaving),

    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The NCCL fabric between two processes with two GPUs each, on the stand-ins.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "fabric_node.h"

/* Two nodes with two GPUs each, others on either: three communicators over both GPUs or one of them, begun in another
 * order on each node; messages between every two GPUs, and from and to host memory. */
static int several_gpus(struct rank *rank) {
    enum { ROUNDS = 12, COMMS = 3, PAIRS = 5, BYTES = 30000 };
    static const uint32_t gpus[COMMS] = {3, 1, 2};
    struct node node;
    open_node(&node, rank);
    struct message *out = calloc(ROUNDS * COMMS * PAIRS, sizeof(*out)),
                   *in = calloc(ROUNDS * COMMS * PAIRS, sizeof(*in));
    int first = 2 * rank->rank, peer = 1 - rank->rank;
    for (int k = 0; k < COMMS; k++) {
        int c = (k + rank->rank) % COMMS;
        join_gpus(&node, (uint64_t)(900 + c), 0, 1, gpus[c] << first);
    }
    for (unsigned i = 0; i < ROUNDS * COMMS * PAIRS; i++) {
        unsigned at = rank->rank ? i / PAIRS * PAIRS + (PAIRS - 1 - i % PAIRS) : i; /* opposite ways within a round */
        unsigned c = at / PAIRS % COMMS, pair = at % PAIRS;
        unsigned from = c == 0 ? pair & 1 : c - 1, to = c == 0 ? pair >> 1 & 1 : c - 1;
        enum memory memory = pair == PAIRS - 1 ? PINNED : DEVICE;
        CHECK(cudaSetDevice(first + (int)from) == cudaSuccess);
        allocate(&out[at], memory, BYTES + at);
        fill(&out[at], at + (unsigned)rank->rank);
        CHECK(cudaSetDevice(first + (int)to) == cudaSuccess);
        allocate(&in[at], memory, BYTES + at);
        start_send(&node, &out[at], 900 + c, 0, peer, at);
        start_recv(&node, &in[at], 900 + c, 0, peer, at);
        turn(&node, 0);
    }
    for (unsigned i = 0; i < ROUNDS * COMMS * PAIRS; i++) {
        CHECK(wait_for(&node, &in[i], WAIT) && in[i].result == zipcclSuccess);
        CHECK(wait_for(&node, &out[i], WAIT) && out[i].result == zipcclSuccess);
        compare(&in[i], i + (unsigned)peer);
        release(&in[i]);
        release(&out[i]);
    }
    CHECK(cudaSetDevice(first) == cudaSuccess);
    free(out);
    free(in);
    close_node(&node);
    return 0;
}

static void test_several_gpus(void **state) {
    (void)state;
    run(2, several_gpus);
}

/* A call fails for one of two GPUs: all that the communicator has on both ends; the next one works. */
static int one_fails(struct rank *rank) {
    enum { N = 8 };
    struct node node;
    struct message out[N], in[N], other[2];
    int first = 2 * rank->rank, peer = 1 - rank->rank;
    open_node(&node, rank);
    join_gpus(&node, 1, 0, 1, 3u << first);
    for (unsigned i = 0; i < N; i++) {
        CHECK(cudaSetDevice(first + (int)(i % 2)) == cudaSuccess);
        allocate(&out[i], DEVICE, 40000);
        allocate(&in[i], DEVICE, 40000);
        start_send(&node, &out[i], 1, 0, peer, i);
        start_recv(&node, &in[i], 1, 0, peer, i);
    }
    unsigned failed = 0;
    for (unsigned i = 0; rank->rank == 0 && i < N; i++) {
        CHECK(wait_for(&node, &in[i], WAIT) && wait_for(&node, &out[i], WAIT));
        failed += in[i].result != zipcclSuccess;
    }
    CHECK(rank->rank == 1 || failed > 0);
    meet(&node, 1, 2);
    fabric_nccl.abort(node.fabric, 1);
    for (unsigned i = 0; i < N; i++) {
        CHECK(wait_for(&node, &in[i], WAIT) && wait_for(&node, &out[i], WAIT));
        release(&in[i]);
        release(&out[i]);
    }
    join_gpus(&node, 2, 0, 1, 2u << first);
    CHECK(cudaSetDevice(first + 1) == cudaSuccess);
    for (unsigned i = 0; i < 2; i++)
        allocate(&other[i], DEVICE, 70000);
    fill(&other[0], 5);
    start_send(&node, &other[0], 2, 0, peer, 1);
    start_recv(&node, &other[1], 2, 0, peer, 1);
    for (unsigned i = 0; i < 2; i++)
        CHECK(wait_for(&node, &other[i], WAIT));
    for (unsigned i = 0; i < 2; i++)
        CHECK(other[i].result == zipcclSuccess);
    compare(&other[1], 5);
    release(&other[0]);
    release(&other[1]);
    close_node(&node);
    return 0;
}

static void test_one_fails(void **state) {
    (void)state;
    static const char *const plans[] = {"ncclGroupEnd:1=1", "ncclCommInitRankConfig:1=6",
                                        "cudaEventCreateWithFlags:1=2"};
    run_failing(2, one_fails, plans, sizeof(plans) / sizeof(plans[0]));
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_several_gpus), cmocka_unit_test(test_one_fails)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

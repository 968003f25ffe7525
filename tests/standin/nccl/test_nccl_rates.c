/* SPDX-License-Identifier: Apache-2.0
 *
 * Rates, weights and priorities for what NCCL carries, on the stand-ins: messages take the time that the link's rate
 * gives them, flows share it, what waits for its time or its receiver holds up nobody, and ends at once when it must.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "fabric_node.h"

#define FAST  1000000000u
#define SLOW  1000000u  /* LARGE would take longer than anybody waits here */
#define LARGE 10000000u /* bytes */

/* Two nodes with a communicator that has done something. */
static void begin(struct node *node, struct rank *rank, uint64_t key) {
    open_node(node, rank);
    join(node, key, 0, 1);
    talk(node, key, 0, 0);
}

static int takes_its_time(struct rank *rank) {
    enum { N = 8, BYTES = 250000 };
    static const enum memory memory[] = {DEVICE, PINNED};
    struct node node;
    struct message m[N];
    begin(&node, rank, 1);
    fabric_nccl.set_link_rate(node.fabric, 200000000);
    double before = ranks_now();
    for (uint32_t i = 0; i < N; i++) {
        allocate(&m[i], memory[i % 2], BYTES);
        fill(&m[i], rank->rank ? 0 : i);
        if (rank->rank == 0)
            start_send(&node, &m[i], 1, 0, 1, 10 + i);
        else
            start_recv(&node, &m[i], 1, 0, 0, 10 + i);
    }
    for (uint32_t i = 0; i < N; i++)
        CHECK(wait_for(&node, &m[i], WAIT) && m[i].result == zipcclSuccess);
    CHECK(rank->rank == 1 || ranks_now() - before >= 0.99 * N * BYTES * 8 / 200e6);
    for (uint32_t i = 0; i < N; i++) {
        compare(&m[i], i);
        release(&m[i]);
    }
    close_node(&node);
    return 0;
}

/* Of weights 3 and 1, and one message of a third flow of high priority. It comes last and goes next; and when it has
 * gone, the receiver has been asked for all others. */
static int shares(struct rank *rank) {
    enum { N = 60, BYTES = 20000, LOOK = 40 };
    static const struct fabric_share share[3] = {{3, FLOW_NORMAL, 0}, {1, FLOW_NORMAL, 0}, {1, FLOW_HIGH, 0}};
    static struct message m[2 * N + 1];
    struct fabric_flow *flows[3];
    struct node node;
    struct message *last = &m[2 * N];
    unsigned of_first = 0;
    begin(&node, rank, 1);
    fabric_nccl.set_link_rate(node.fabric, SLOW);
    for (unsigned k = 0; k < 3; k++)
        flows[k] = fabric_nccl.flow_open(node.fabric, &share[k]);
    for (uint32_t i = 0; i <= 2 * N; i++) {
        allocate(&m[i], DEVICE, BYTES);
        m[i].flow = flows[i == 2 * N ? 2 : i < N ? 1 : 0];
        fill(&m[i], rank->rank ? 0 : i);
        if (rank->rank == 1)
            start_recv(&node, &m[i], 1, 0, 0, 10 + i);
    }
    ranks_meet(rank, 1); /* all receives are there before the first send */
    for (uint32_t i = 0; i <= 2 * N && rank->rank == 0; i++)
        start_send(&node, &m[i], 1, 0, 1, 10 + i);
    CHECK(wait_for(&node, last, WAIT) && last->result == zipcclSuccess);
    fabric_nccl.set_link_rate(node.fabric, 100000000);
    for (uint32_t i = 0; i <= 2 * N; i++) {
        CHECK(wait_for(&node, &m[i], WAIT) && m[i].result == zipcclSuccess);
        compare(&m[i], i);
        release(&m[i]);
        of_first += i >= N && i < 2 * N && m[i].place > last->place && m[i].place <= last->place + LOOK;
    }
    CHECK(rank->rank == 1 || last->place < N / 2);
    CHECK(rank->rank == 1 || (of_first >= LOOK * 3 / 4 - 2 && of_first <= LOOK * 3 / 4 + 2));
    for (unsigned k = 0; k < 3; k++) {
        uint64_t queued, sent, want = k == 2 ? BYTES : N * BYTES;
        fabric_nccl.flow_bytes(flows[k], &queued, &sent);
        CHECK(queued == 0 && sent == (rank->rank == 0 ? want : 0));
        fabric_nccl.flow_close(node.fabric, flows[k]);
    }
    close_node(&node);
    return 0;
}

/* One that waits for its time, on a link or a flow that is slow: it goes when that changes. */
static int rate_changes(struct rank *rank) {
    const struct fabric_share slow = {1, FLOW_NORMAL, SLOW}, fast = {1, FLOW_NORMAL, 0};
    struct node node;
    begin(&node, rank, 1);
    struct fabric_flow *flow = fabric_nccl.flow_open(node.fabric, &slow);
    for (uint32_t round = 0; round < 2; round++) {
        struct message m;
        uint64_t queued = 0, sent = 0;
        allocate(&m, DEVICE, LARGE);
        fabric_nccl.set_link_rate(node.fabric, round == 0 ? SLOW : 0);
        fabric_nccl.flow_set(node.fabric, flow, &slow);
        m.flow = round == 0 ? NULL : flow;
        if (rank->rank == 0) {
            fill(&m, round);
            start_send(&node, &m, 1, 0, 1, 10 + round);
        } else {
            start_recv(&node, &m, 1, 0, 0, 10 + round);
        }
        CHECK(!wait_for(&node, &m, 0.1));
        fabric_nccl.flow_bytes(flow, &queued, &sent);
        CHECK(queued == (round == 1 && rank->rank == 0 ? LARGE : 0) && sent == 0);
        ranks_meet(rank, 1 + (int)round);
        fabric_nccl.set_link_rate(node.fabric, 0);
        fabric_nccl.flow_set(node.fabric, flow, &fast);
        CHECK(wait_for(&node, &m, WAIT) && m.result == zipcclSuccess);
        compare(&m, round);
        release(&m);
    }
    fabric_nccl.flow_close(node.fabric, flow);
    close_node(&node);
    return 0;
}

/* Nobody has posted a receive for the large one: the link is free for the small one. */
static int not_posted(struct rank *rank) {
    struct node node;
    struct message large, small;
    begin(&node, rank, 1);
    fabric_nccl.set_link_rate(node.fabric, SLOW);
    allocate(&large, DEVICE, LARGE);
    allocate(&small, DEVICE, 20000);
    if (rank->rank == 0) {
        fill(&large, 1);
        fill(&small, 2);
        start_send(&node, &large, 1, 0, 1, 11);
        start_send(&node, &small, 1, 0, 1, 12);
    } else {
        start_recv(&node, &small, 1, 0, 0, 12);
    }
    CHECK(wait_for(&node, &small, WAIT) && small.result == zipcclSuccess);
    CHECK(rank->rank == 1 || large.result == PENDING);
    fabric_nccl.set_link_rate(node.fabric, 0);
    if (rank->rank == 1)
        start_recv(&node, &large, 1, 0, 0, 11);
    CHECK(wait_for(&node, &large, WAIT) && large.result == zipcclSuccess);
    compare(&large, 1);
    compare(&small, 2);
    release(&large);
    release(&small);
    close_node(&node);
    return 0;
}

/* What waits for its time, and what waits for its receiver, ends with its communicator; another one goes on. */
static int ends(struct rank *rank) {
    struct node node;
    begin(&node, rank, 1);
    for (uint64_t key = 2; key < 4; key++) {
        struct message waits, asks, in;
        join(&node, key, 0, 1);
        talk(&node, key, 0, 0);
        ranks_meet(rank, 2 * (int)key);
        fabric_nccl.set_link_rate(node.fabric, SLOW);
        allocate(&waits, DEVICE, LARGE);
        allocate(&asks, DEVICE, LARGE);
        allocate(&in, DEVICE, LARGE);
        start_send(&node, &waits, key, 0, 1 - rank->rank, 11);
        start_send(&node, &asks, key, 0, 1 - rank->rank, 12);
        start_recv(&node, &in, key, 0, 1 - rank->rank, 11);
        idle(&node, 0.1);
        CHECK(waits.result == PENDING && asks.result == PENDING && in.result == PENDING);
        ranks_meet(rank, 2 * (int)key + 1);
        if (key == 2)
            fabric_nccl.abort(node.fabric, key);
        else
            fabric_nccl.forget(node.fabric, key);
        CHECK(wait_for(&node, &waits, WAIT) && waits.result == zipcclAborted);
        CHECK(wait_for(&node, &asks, WAIT) && asks.result == zipcclAborted);
        CHECK(wait_for(&node, &in, WAIT) && in.result == zipcclAborted);
        release(&waits);
        release(&asks);
        release(&in);
        fabric_nccl.set_link_rate(node.fabric, FAST);
        talk(&node, 1, 0, (uint32_t)key);
    }
    close_node(&node);
    return 0;
}

static int dies(struct rank *rank) {
    struct node node;
    struct message waits, asks, in;
    begin(&node, rank, 1);
    fabric_nccl.set_link_rate(node.fabric, SLOW);
    allocate(&waits, DEVICE, LARGE);
    allocate(&asks, DEVICE, LARGE);
    allocate(&in, DEVICE, LARGE);
    start_send(&node, &waits, 1, 0, 1 - rank->rank, 11);
    start_send(&node, &asks, 1, 0, 1 - rank->rank, 12);
    start_recv(&node, &in, 1, 0, 1 - rank->rank, 11);
    idle(&node, 0.1);
    ranks_meet(rank, 1);
    if (rank->rank == 1)
        syscall(SYS_exit_group, 0); /* no call ends anything */
    CHECK(wait_for(&node, &waits, WAIT) && waits.result == zipcclRemoteError);
    CHECK(wait_for(&node, &asks, WAIT) && asks.result == zipcclRemoteError);
    CHECK(wait_for(&node, &in, WAIT) && in.result == zipcclRemoteError);
    fabric_nccl.forget(node.fabric, 1);
    fabric_nccl.close(node.fabric);
    return 0;
}

static void run_two(int (*fn)(struct rank *rank)) {
    fabric_node_link_rate = FAST;
    run(2, fn);
}

static void test_takes_its_time(void **state) {
    (void)state;
    run_two(takes_its_time);
}

static void test_shares(void **state) {
    (void)state;
    run_two(shares);
}

static void test_rate_changes(void **state) {
    (void)state;
    run_two(rate_changes);
}

static void test_not_posted(void **state) {
    (void)state;
    run_two(not_posted);
}

static void test_ends(void **state) {
    (void)state;
    run_two(ends);
    run_two(dies);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_takes_its_time), cmocka_unit_test(test_shares),
                                       cmocka_unit_test(test_rate_changes), cmocka_unit_test(test_not_posted),
                                       cmocka_unit_test(test_ends)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

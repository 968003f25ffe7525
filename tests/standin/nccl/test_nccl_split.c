/* SPDX-License-Identifier: Apache-2.0
 *
 * Splits in the NCCL fabric, between processes with two GPUs each, on the stand-ins: what comes of them works, in
 * whatever order nodes begin splits of two communicators on the same GPUs; nodes that do not want it; communicators
 * that end before, in the middle and after.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fabric_node.h"

static const struct group one = {.key = 1, .to = 2, .locals = 3},
                          two = {.key = 2, .to = 2, .locals = 3, .backwards = true},
                          pair = {.key = 9, .to = 1, .locals = 3};
/* Node 1 tells of no split. */
static const struct group deaf = {.key = 3, .to = 2, .locals = 3};
/* Of one: */
static const struct group left = {.key = 11, .to = 2, .locals = 1, .backwards = true},
                          right = {.key = 12, .to = 2, .locals = 2}, late = {.key = 13, .to = 2, .locals = 3};
/* Of two: */
static const struct group some = {.key = 21, .to = 1, .locals = 3, .backwards = true};
/* Of some: */
static const struct group again_left = {.key = 31, .to = 1, .locals = 1},
                          again_right = {.key = 32, .to = 1, .locals = 2, .backwards = true};

static bool has(const struct group *g, int node) {
    return node >= g->from && node <= g->to;
}

static void join_one(struct node *node, const struct group *g, bool split) {
    const bool splits = g != &deaf || node->rank->rank != 1;
    join_group(node, g, (struct fabric_join){.native = true, .splits = splits, .split = split});
}

struct parting {
    struct fabric_split split;
    uint64_t children[GPUS];
    zipcclResult_t result;
};

static void parted(struct fabric_split *split, zipcclResult_t result) {
    ((struct parting *)split->arg)->result = result;
}

/* Joins what this node is in, and splits; a child of NULL: none. */
static void part(struct node *node, struct parting *p, const struct group *parent, uint32_t number, bool wanted,
                 const struct group *first, const struct group *second) {
    const struct group *children[GPUS] = {first, second};
    *p = (struct parting){.result = PENDING};
    for (unsigned i = 0; i < GPUS; i++) {
        if (!children[i] || !has(children[i], node->rank->rank))
            continue;
        p->children[i] = children[i]->key;
        if (i == 0 || children[0] != children[1])
            join_one(node, children[i], true);
    }
    p->split = (struct fabric_split){.comm = parent->key,
                                     .number = number,
                                     .wanted = wanted,
                                     .children = p->children,
                                     .nchildren = GPUS,
                                     .done = parted,
                                     .arg = p};
    fabric_nccl.split(node->fabric, &p->split);
}

static bool is_parted(struct node *node, const struct parting *p, double seconds) {
    return wait_until(node, &p->result, seconds);
}

/* From and to all others, from one of its GPUs. */
struct chat {
    struct message out[MAX], in[MAX];
};

static void begin_chat(struct node *node, struct chat *chat, const struct group *g, uint32_t tag) {
    const int me = node->rank->rank;
    CHECK(cudaSetDevice((int)GPUS * me + (g->locals & 1 ? 0 : 1)) == cudaSuccess);
    for (int i = g->from; i <= g->to && has(g, me); i++) {
        if (i == me)
            continue;
        allocate(&chat->out[i], DEVICE, 70000);
        allocate(&chat->in[i], DEVICE, 70000);
        fill(&chat->out[i], (uint32_t)(me * 8 + i) + tag);
        start_recv(node, &chat->in[i], g->key, g->from, i, tag);
        start_send(node, &chat->out[i], g->key, g->from, i, tag);
    }
}

static void end_chat(struct node *node, struct chat *chat, const struct group *g, uint32_t tag) {
    const int me = node->rank->rank;
    for (int i = g->from; i <= g->to && has(g, me); i++) {
        if (i == me)
            continue;
        CHECK(wait_for(node, &chat->in[i], WAIT) && chat->in[i].result == zipcclSuccess);
        CHECK(wait_for(node, &chat->out[i], WAIT) && chat->out[i].result == zipcclSuccess);
        compare(&chat->in[i], (uint32_t)(i * 8 + me) + tag);
        release(&chat->in[i]);
        release(&chat->out[i]);
    }
}

static void chat(struct node *node, const struct group *g, uint32_t tag) {
    struct chat c;
    begin_chat(node, &c, g, tag);
    end_chat(node, &c, g, tag);
}

static void open_two(struct node *node, struct rank *rank) {
    open_node(node, rank);
    join_one(node, &one, false);
    join_one(node, &two, false);
    chat(node, &one, 1);
    chat(node, &two, 1);
}

/* Nodes begin the splits of two in different orders, in the middle of messages of both. */
static int orders(struct rank *rank) {
    struct node node;
    struct parting p[2], q;
    struct chat before[2];
    const bool turned = rank->rank == 1;
    open_two(&node, rank);
    begin_chat(&node, &before[0], turned ? &two : &one, 2);
    for (int k = 0; k < 2; k++) {
        if ((k == 0) != turned)
            part(&node, &p[0], &one, 1, true, &left, &right);
        else
            part(&node, &p[1], &two, 1, true, &some, &some);
        turn(&node, 1);
    }
    begin_chat(&node, &before[1], turned ? &one : &two, 2);
    if (has(&some, rank->rank)) /* before it is decided */
        chat(&node, &some, 3);
    chat(&node, &left, 3);
    chat(&node, &right, 3);
    end_chat(&node, &before[0], turned ? &two : &one, 2);
    end_chat(&node, &before[1], turned ? &one : &two, 2);
    CHECK(is_parted(&node, &p[0], WAIT) && p[0].result == zipcclSuccess && p[0].split.made == 2);
    CHECK(is_parted(&node, &p[1], WAIT) && p[1].result == zipcclSuccess &&
          p[1].split.made == (has(&some, rank->rank) ? 1 : 0));
    /* A split of a split; what it is split from goes first. */
    if (has(&some, rank->rank)) {
        part(&node, &q, &some, 1, true, &again_left, &again_right);
        chat(&node, &again_right, 4);
        CHECK(is_parted(&node, &q, WAIT) && q.result == zipcclSuccess && q.split.made == 2);
    }
    ranks_meet(rank, 1);
    fabric_nccl.forget(node.fabric, one.key);
    fabric_nccl.forget(node.fabric, two.key);
    chat(&node, &left, 5);
    if (has(&some, rank->rank)) {
        chat(&node, &some, 5);
        fabric_nccl.forget(node.fabric, some.key);
        chat(&node, &again_left, 5);
        chat(&node, &again_right, 5);
    }
    close_node(&node);
    return 0;
}

/* One node does not want it, which is in a new one or in none; no node is in any of them; then it is done, twice. */
static int unwanted(struct rank *rank) {
    struct node node;
    struct parting p;
    open_two(&node, rank);
    part(&node, &p, &one, 1, rank->rank != 2, &left, &right);
    chat(&node, &left, 2);
    chat(&node, &right, 2);
    CHECK(is_parted(&node, &p, WAIT) && p.result == zipcclSuccess && p.split.made == 0);
    part(&node, &p, &one, 2, true, NULL, NULL);
    CHECK(is_parted(&node, &p, WAIT) && p.result == zipcclSuccess && p.split.made == 0);
    part(&node, &p, &one, 3, rank->rank != 2, &again_left, &again_right);
    CHECK(is_parted(&node, &p, WAIT) && p.result == zipcclSuccess && p.split.made == 0);
    for (uint32_t number = 4; number < 6; number++) {
        const struct group *g = number == 4 ? &some : &late;
        part(&node, &p, &one, number, true, g, g);
        chat(&node, g, 2);
        CHECK(is_parted(&node, &p, WAIT) && p.result == zipcclSuccess);
        CHECK(p.split.made == (has(g, rank->rank) ? 1 : 0));
    }
    chat(&node, &one, 2);
    close_node(&node);
    return 0;
}

/* The parent ends while a node is missing: what waits fails, others go on. */
static int parent_ends(struct rank *rank) {
    struct node node;
    struct parting p;
    struct message m;
    open_two(&node, rank);
    if (rank->rank < 2) {
        part(&node, &p, &one, 1, true, &left, &right);
        CHECK(cudaSetDevice((int)GPUS * rank->rank) == cudaSuccess);
        allocate(&m, DEVICE, 70000);
        start_recv(&node, &m, left.key, 0, 1 - rank->rank, 7);
        CHECK(!is_parted(&node, &p, 0.1) && m.result == PENDING);
    }
    ranks_meet(rank, 1);
    fabric_nccl.abort(node.fabric, one.key);
    if (rank->rank < 2) {
        CHECK(is_parted(&node, &p, WAIT) && p.result == zipcclAborted && p.split.made == 0);
        CHECK(wait_for(&node, &m, WAIT) && m.result != zipcclSuccess);
        CHECK(fabric_nccl.why(node.fabric, left.key) != NULL);
        release(&m);
        fabric_nccl.forget(node.fabric, left.key);
        fabric_nccl.forget(node.fabric, right.key);
    }
    fabric_nccl.forget(node.fabric, one.key);
    part(&node, &p, &two, 1, true, &some, &some);
    CHECK(is_parted(&node, &p, WAIT) && p.result == zipcclSuccess);
    if (has(&some, rank->rank))
        chat(&node, &some, 2);
    chat(&node, &two, 2);
    close_node(&node);
    return 0;
}

/* One of the new ones ends before the last node comes: the split is made, for the other one. */
static int child_ends(struct rank *rank) {
    struct node node;
    struct parting p;
    open_two(&node, rank);
    if (rank->rank < 2) {
        part(&node, &p, &one, 1, true, &left, &right);
        CHECK(!is_parted(&node, &p, 0.1));
        fabric_nccl.abort(node.fabric, right.key);
        if (rank->rank == 1)
            fabric_nccl.forget(node.fabric, right.key);
    }
    ranks_meet(rank, 1);
    if (rank->rank == 2)
        part(&node, &p, &one, 1, true, &left, &right);
    chat(&node, &left, 2);
    CHECK(is_parted(&node, &p, WAIT) && p.result == zipcclSuccess && p.split.made == 2);
    if (rank->rank == 2)
        fabric_nccl.abort(node.fabric, right.key);
    if (rank->rank != 1)
        fabric_nccl.forget(node.fabric, right.key);
    chat(&node, &one, 2);
    chat(&node, &left, 3);
    close_node(&node);
    return 0;
}

/* NCCL fails on a GPU of node 0. As daemons do, all others abort then; others are in the middle of the call. */
static int failing(struct rank *rank) {
    struct node node;
    struct parting p;
    open_two(&node, rank);
    part(&node, &p, &one, 1, true, &left, &right);
    if (rank->rank == 0) {
        CHECK(is_parted(&node, &p, WAIT) && p.result != zipcclSuccess && p.split.failed < GPUS);
    } else {
        (void)is_parted(&node, &p, 0.2);
    }
    ranks_meet(rank, 1);
    fabric_nccl.abort(node.fabric, left.key);
    fabric_nccl.abort(node.fabric, right.key);
    fabric_nccl.abort(node.fabric, one.key);
    CHECK(is_parted(&node, &p, WAIT) && p.result != zipcclSuccess);
    fabric_nccl.forget(node.fabric, one.key);
    fabric_nccl.forget(node.fabric, left.key);
    fabric_nccl.forget(node.fabric, right.key);
    part(&node, &p, &two, 1, true, &some, &some);
    CHECK(is_parted(&node, &p, WAIT) && p.result == zipcclSuccess);
    if (has(&some, rank->rank))
        chat(&node, &some, 2);
    close_node(&node);
    return 0;
}

/* What trainers say of a new communicator is not all of it: it is made by itself. */
static int partial(struct rank *rank) {
    struct node node;
    struct parting p;
    open_node(&node, rank);
    join_one(&node, &pair, false);
    chat(&node, &pair, 1);
    part(&node, &p, &pair, 1, true, &again_left, rank->rank ? NULL : &again_right);
    if (rank->rank)
        join_one(&node, &again_right, false);
    chat(&node, &again_left, 2);
    chat(&node, &again_right, 2);
    CHECK(is_parted(&node, &p, WAIT) && p.result == zipcclSuccess && p.split.made == 0);
    close_node(&node);
    return 0;
}

/* A node that would not tell of a split, for the library of its trainers is older: nobody waits for it. */
static int untold(struct rank *rank) {
    struct node node;
    struct parting p;
    open_node(&node, rank);
    join_one(&node, &deaf, false);
    chat(&node, &deaf, 1);
    if (rank->rank == 1) {
        join_one(&node, &left, false);
        join_one(&node, &right, false);
    } else {
        part(&node, &p, &deaf, 1, true, &left, &right);
        CHECK(is_parted(&node, &p, WAIT) && p.result == zipcclSuccess && p.split.made == 0);
    }
    chat(&node, &left, 2);
    chat(&node, &right, 2);
    close_node(&node);
    return 0;
}

/* NCCL has no splits: the call would break a rule. */
static int older(struct rank *rank) {
    struct node node;
    struct parting p;
    open_node(&node, rank);
    join_one(&node, &pair, false);
    part(&node, &p, &pair, 1, true, &again_left, &again_right);
    chat(&node, &again_left, 2);
    chat(&node, &again_right, 2);
    CHECK(is_parted(&node, &p, WAIT) && p.result == zipcclSuccess && p.split.made == 0);
    close_node(&node);
    return 0;
}

static void test_orders(void **state) {
    (void)state;
    run(3, orders);
}

static void test_unwanted(void **state) {
    (void)state;
    run(3, unwanted);
    run(2, partial);
    run(3, untold);
    run_with(2, older, "ZIPCCL_STANDIN_NCCL_VERSION", "21705");
}

static void test_ends(void **state) {
    (void)state;
    run(3, parent_ends);
    run(3, child_ends);
}

static void test_failing(void **state) {
    (void)state;
    static const char *const plans[] = {"ncclCommSplit:1=1", "ncclCommSplit:2=3"};
    run_failing(3, failing, plans, sizeof(plans) / sizeof(plans[0]));
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_orders), cmocka_unit_test(test_unwanted),
                                       cmocka_unit_test(test_ends), cmocka_unit_test(test_failing)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

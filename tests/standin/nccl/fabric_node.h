/* SPDX-License-Identifier: Apache-2.0
 *
 * Nodes, communicators and messages of tests of the NCCL fabric: each rank of ranks.h is a node. And how tests run
 * their nodes, with faults or without.
 */
#ifndef ZIPCCL_TESTS_FABRIC_NODE_H
#define ZIPCCL_TESTS_FABRIC_NODE_H

#include "daemon/fabric/fabric.h"
#include "daemon/fabric/nccl_here.h"
#include "ranks.h"

#define PENDING ((zipcclResult_t)99)
#define WAIT    30.0
#define MAX     8
#define GPUS    2u /* of a node that has ranks of ours */

enum memory { HOST, PINNED, DEVICE, MEMORIES };

struct node {
    struct rank *rank;
    struct nccl_here here;
    struct fabric *fabric;
    struct fabric_peer *peers[MAX];
};

struct message {
    struct fabric_send send;
    struct fabric_recv recv;
    enum memory memory;
    uint8_t *data;
    size_t bytes;
    zipcclResult_t result;
    struct fabric_flow *flow; /* of its send; NULL: none */
    unsigned place;           /* of its send, among those that have ended here */
};

/* A communicator of ranks, on these GPUs of each node from..to. */
struct group {
    uint64_t key;
    int from, to;
    uint32_t locals; /* a bit for each */
    bool backwards;  /* ranks go around the nodes, forwards or backwards */
    bool crossed;    /* odd nodes have their GPUs the other way round */
};

extern uint64_t fabric_node_link_rate; /* of the ranks to come */

void open_node(struct node *node, struct rank *rank);
void close_node(struct node *node); /* until all ranks are there: one that closes early takes messages with it */
/* A communicator of the ranks from..to: with these GPUs of this one, or the one that ranks.c makes current. */
void join_gpus(struct node *node, uint64_t key, int from, int to, uint32_t gpus);
void join(struct node *node, uint64_t key, int from, int to);
uint8_t group_gpu(const struct node *node, const struct group *g, unsigned local); /* as CUDA numbers it */
/* how: native, splits, split. */
void join_group(struct node *node, const struct group *g, struct fabric_join how);
void turn(struct node *node, int ms);
void idle(struct node *node, double seconds);
void meet(struct node *node, int step, int n); /* as ranks_meet, of n ranks, with its fabric going on */
/* False: it is PENDING still. */
bool wait_until(struct node *node, const zipcclResult_t *result, double seconds);
bool wait_for(struct node *node, const struct message *m, double seconds);

void allocate(struct message *m, enum memory memory, size_t bytes);
void release(struct message *m);
void fill(struct message *m, uint32_t seed);
void compare(const struct message *m, uint32_t seed);
/* Callbacks of sends and receives whose argument is a struct message. */
void sent(struct fabric_send *send, zipcclResult_t result);
void received(struct fabric_recv *recv, zipcclResult_t result);
/* Ranks here; the communicator begins with rank `from`. Odd tags in two pieces. */
void start_send(struct node *node, struct message *m, uint64_t key, int from, int to, uint32_t tag);
void start_recv(struct node *node, struct message *m, uint64_t key, int from, int by, uint32_t tag);
/* Sends and receives something both ways in a communicator of the ranks from..from+1. */
void talk(struct node *node, uint64_t key, int from, uint32_t tag);

/* A test: n nodes, all of which end well. */
void run(int n, int (*fn)(struct rank *rank));
void run_with(int n, int (*fn)(struct rank *rank), const char *variable, const char *value); /* of the environment */
/* Once for each of the faults of rank 0's libraries. */
void run_failing(int n, int (*fn)(struct rank *rank), const char *const *faults, size_t nfaults);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Nodes, communicators and messages of tests of the NCCL fabric: each rank of ranks.h is a node.
 */
#ifndef ZIPCCL_TESTS_FABRIC_NODE_H
#define ZIPCCL_TESTS_FABRIC_NODE_H

#include "daemon/fabric/fabric.h"
#include "daemon/fabric/nccl_here.h"
#include "ranks.h"

#define PENDING ((zipcclResult_t)99)
#define WAIT    30.0
#define MAX     8

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

extern uint64_t fabric_node_link_rate; /* of the ranks to come */

void open_node(struct node *node, struct rank *rank);
void close_node(struct node *node); /* until all ranks are there: one that closes early takes messages with it */
/* A communicator of the ranks from..to: with these GPUs of this one, or the one that ranks.c makes current. */
void join_gpus(struct node *node, uint64_t key, int from, int to, uint32_t gpus);
void join(struct node *node, uint64_t key, int from, int to);
void turn(struct node *node, int ms);
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

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Executors of several nodes in one process, over the fake fabric or over UCX, for tests of the executor.
 */
#ifndef ZIPCCL_TESTS_EXECUTOR_WORLD_H
#define ZIPCCL_TESTS_EXECUTOR_WORLD_H

#include "daemon/core/executor.h"
#include "fake_fabric.h"

#define MAX_NODES 4
#define MAX_RANKS 8
#define WAIT      20.0

struct outcome {
    unsigned done;
    struct exec_result result;
    char text[256];
};

struct world {
    const struct fabric_ops *ops;
    uint32_t nnodes, nranks;
    uint32_t rank_node[MAX_RANKS];
    struct fabric *fabric[MAX_NODES];
    struct device *device[MAX_NODES];
    struct executor *executor[MAX_NODES];
    struct exec_comm *comm[MAX_NODES];
    struct fabric_peer *peers[MAX_NODES][MAX_NODES];
    struct outcome out[MAX_NODES];
    struct exec_op *op[MAX_NODES];
    uint8_t *send[MAX_RANKS], *recv[MAX_RANKS];
    uint64_t seq;
};

double seconds(void);
/* Ranks are spread unevenly over the nodes, not in order. */
void open_world(struct world *w, const struct fabric_ops *ops, uint32_t nnodes, uint32_t nranks, size_t inline_bytes,
                uint64_t chunk, uint32_t window, bool verify);
void open_comms(struct world *w);
void close_comms(struct world *w);
void close_world(struct world *w);
void poll_world(struct world *w);
void done(void *arg, const struct exec_result *result); /* arg: struct outcome */
void start_node(struct world *w, uint32_t n, const struct plan_op *op);
void arrive_node(struct world *w, uint32_t n);
void wait_node(struct world *w, uint32_t n);
void fill(uint8_t *p, zipcclDataType_t dtype, size_t count, unsigned seed);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the executor: operations and the plan cache (executor.c), steps (executor_steps.c), the check of what peers
 * send (executor_check.c), the probe (executor_probe.c).
 */
#ifndef ZIPCCL_DAEMON_EXECUTOR_IMPL_H
#define ZIPCCL_DAEMON_EXECUTOR_IMPL_H

#include "daemon/core/executor.h"

#define EXEC_NO_STEP    UINT32_MAX
#define EXEC_TEXT_BYTES 256

/* A coded chunk in scratch memory. */
struct exec_slot {
    uint8_t *memory; /* NULL: not used yet */
    const uint8_t *dynamic;
    size_t static_bytes, dynamic_bytes;
    uint64_t hash;
    bool has_hash;
};

/* A step under way. */
struct exec_work {
    struct exec_work *next;
    struct exec_op *op;
    uint32_t step;
    union {
        struct device_job job;
        struct fabric_send send;
        struct fabric_recv recv;
    };
    uint64_t expected_hash; /* raw receive with a hash: to compare with */
};

struct exec_slab {
    struct exec_slab *next;
    struct exec_work work[64];
};

struct executor {
    struct executor_config config;
    struct exec_work *idle;
    struct exec_slab *slabs;
    struct exec_probe *orphans; /* probes of freed communicators whose messages are still under way */
};

/* A plan, and operations that ran it and can run it again. */
struct exec_entry {
    struct exec_entry *next; /* most recently used first */
    zipcclOp_t op;
    zipcclDataType_t dtype;
    zipcclCodec_t codec;
    uint64_t count;
    uint32_t root;
    struct plan *plan;
    size_t slot_static, slot_bytes; /* bound of the static part; of both */
    uint32_t users;
    uint32_t nspare;
    struct exec_op *spare;
};

struct exec_comm {
    struct executor *executor;
    uint64_t key, chunk_bytes;
    uint32_t node, nlocal;
    struct plan_topology topology;
    uint32_t *rank_node;
    struct fabric_peer **peers;
    struct exec_entry *entries;
    uint32_t nentries;
    bool aborted;
    struct exec_probe *probe;
};

struct exec_op {
    struct exec_comm *comm;
    struct exec_entry *entry;
    const struct plan *plan;
    struct exec_args args;
    struct exec_op *next; /* spare */

    uint32_t ndone, nactive;
    uint32_t ready_head, ready_tail;
    bool running, failed, streaming;

    uint32_t *waiting;    /* by step: dependencies left */
    uint32_t *ready_next; /* by step: the queue of steps that may start */
    const void **send;    /* by local rank */
    void **recv;
    struct exec_slot *slots;

    struct exec_result result;
    char text[EXEC_TEXT_BYTES];
};

/* executor.c */
struct exec_work *exec_work_get(struct executor *e);
void exec_work_put(struct executor *e, struct exec_work *work);
void exec_op_failf(struct exec_op *op, zipcclResult_t result, int node, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Starts what is ready; ends the operation when nothing is left: op may be gone afterwards. */
void exec_op_run(struct exec_op *op);

/* executor_steps.c */
void exec_step_start(struct exec_op *op, uint32_t step);
void exec_step_complete(struct exec_op *op, uint32_t step);

/* executor_check.c. False, with the operation failed, where the message is not what this node expects. */
bool exec_check_message(struct exec_op *op, const struct plan_step *step, const struct fabric_header *header,
                        size_t bytes);

/* executor_probe.c */
void exec_probe_orphan(struct exec_comm *comm);
void exec_probe_free_all(struct executor *e);

#endif

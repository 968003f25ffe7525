/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the executor: the life of operations (executor.c), the cache of plans (executor_cache.c), work on values
 * (executor_steps.c), where chunks lie (executor_place.c), messages (executor_messages.c), transfers inside the node
 * (executor_local.c), transfers of unknown counts (executor_capped.c), collectives that the fabric has
 * (executor_native.c), the check of what peers send (executor_check.c), the probe (executor_probe.c).
 */
#ifndef ZIPCCL_DAEMON_EXECUTOR_IMPL_H
#define ZIPCCL_DAEMON_EXECUTOR_IMPL_H

#include "daemon/core/executor.h"

#define EXEC_NO_STEP    UINT32_MAX
#define EXEC_TEXT_BYTES 256
#define EXEC_BUCKETS    256u

/* Scratch of an operation; executor_place.c. */
struct exec_memory {
    uint8_t *base; /* NULL: not used yet */
    int8_t gpu;    /* where it was wanted; -1: in host memory */
};

/* A coded chunk. */
struct exec_slot {
    struct exec_memory memory;
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
    uint8_t *bounce;        /* values on their way between a GPU's memory and the fabric; freed at the work's end */
    size_t bounce_bytes;
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

/* A plan, and operations that ran it and can run it again. It belongs to the arguments that it was made for. */
struct exec_entry {
    struct exec_entry *next;             /* most recently used first */
    struct plan_op *ops;                 /* nops; their counts follow in the same memory */
    struct plan_transfer *transfers;     /* ntransfers */
    uint32_t nops, ntransfers, nbuffers; /* nops 0: an exchange */
    uint32_t rank;
    enum plan_phases phases;
    struct plan *plan;
    size_t *slot_static;     /* by item: bound of a slot's static part */
    size_t slot_bytes;       /* bound of any slot */
    size_t value_bytes;      /* of any scratch of values */
    uint64_t raw_recv_bytes; /* as raw_send_bytes of the plan */
    bool native;             /* the fabric may have it whole */
    bool streaming;          /* large, and read by nobody soon */
    bool capped;             /* some transfer is */
    bool one_gpu;            /* no step works on chunks of two ranks */
    uint32_t users;
    uint32_t nspare;
    struct exec_op *spare;
};

/* What messages of an item say of it, and what is expected of the other side's. */
struct exec_item {
    uint8_t op, dtype, redop, arm; /* send and receive are both "send" */
    uint8_t codec;
    uint32_t root; /* exchange: the collective that it is part of */
    uint32_t seq, channel;
    uint64_t op_count; /* v operations: a hash of the counts; capped: the most */
    bool capped;
    uint64_t actual; /* capped: values that travel; of a receive known once chunk 0 is here */
    size_t value_bytes;
    uint32_t peer;   /* exchange: the other rank */
    uint64_t number; /* for people: of the operation */
};

struct exec_comm {
    struct executor *executor;
    uint64_t key, chunk_bytes;
    uint32_t node, nlocal;
    struct plan_topology topology;
    uint32_t *rank_node;
    uint32_t *local_rank; /* by local index */
    int8_t *rank_gpu;     /* by rank: whose memory its last operation was on; -1: the host's */
    struct fabric_peer **peers;
    struct fabric_flow *link;
    struct device_flow *workers;
    struct exec_entry *entries;
    uint32_t nentries;
    bool aborted;
    bool native;                          /* the fabric may have whole collectives */
    uint32_t native_skip, native_refused; /* that do not ask now; so many after the next no */
    struct exec_probe *probe;
    struct exec_work *local[EXEC_BUCKETS]; /* sends and receives between local ranks that wait for their other side */
    uint32_t nlocal_waiting;
};

struct exec_op {
    struct exec_comm *comm;
    struct exec_entry *entry;
    const struct plan *plan;
    struct exec_args args; /* its arrays are gone */
    struct exec_op *next;  /* spare */

    uint32_t ndone, nactive;
    uint32_t ready_head, ready_tail;
    bool running, failed;

    uint32_t *waiting;    /* by step: dependencies left */
    uint32_t *ready_next; /* by step: the queue of steps that may start */
    struct exec_buffers *buffers;
    struct exec_slot *slots;
    struct exec_memory *scratch; /* of values */
    int8_t *gpus;                /* by local rank: where its chunks lie */
    struct device_input *inputs;
    struct exec_item *items;

    bool native; /* it is asked for, or under way: the plan does not run */
    uint32_t narrived;
    struct fabric_part *parts; /* by local rank; NULL: the fabric does not have it */
    struct fabric_collective whole;

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

/* executor_cache.c: entries, and operations of them with memory for their steps. */
ZIPCCL_MUST_CHECK zipcclResult_t exec_cache_get(struct exec_comm *comm, const struct exec_args *args,
                                                struct exec_op **op);
void exec_cache_put(struct exec_op *op);
void exec_cache_free(struct exec_comm *comm);

/* executor_steps.c, executor_messages.c, executor_local.c: each kind of step */
void exec_step_start(struct exec_op *op, uint32_t step);
void exec_step_complete(struct exec_op *op, uint32_t step);

const struct plan_step *exec_step_of(const struct exec_work *work);
const struct exec_item *exec_item_of(const struct exec_work *work);
uint8_t *exec_values(struct exec_op *op, struct plan_ref ref); /* the address that a reference means */
/* The same of what the step writes. NULL, with op failed: no memory. */
uint8_t *exec_values_to_write(struct exec_op *op, const struct plan_step *step);
struct exec_slot *exec_slot_to_write(struct exec_op *op, const struct plan_step *step);
void exec_work_end(struct exec_work *work, bool success);
bool exec_work_submit(struct exec_work *work, void (*done)(struct device_job *)); /* true: over already */
const char *exec_step_name(const struct exec_work *work, char text[64]);          /* "all-gather #12" */
void exec_send_start(struct exec_work *work);
void exec_recv_start(struct exec_work *work);
void exec_local_start(struct exec_work *work); /* send or receive between local ranks */
void exec_local_drop(struct exec_op *op);      /* those of an operation that failed */

/* ": " and what the device said of a job that failed, or nothing. */
static inline const char *exec_why_mark(const struct device_job *job) {
    return job->why ? ": " : "";
}
static inline const char *exec_why(const struct device_job *job) {
    return job->why ? job->why : "";
}

/* The end of a job that ran elsewhere: as inline, then run on. */
#define EXEC_JOB_DONE(name, finish)                                                                                    \
    static void name(struct device_job *job) {                                                                         \
        struct exec_work *work = job->arg;                                                                             \
        struct exec_op *op = work->op;                                                                                 \
        finish(work);                                                                                                  \
        exec_op_run(op);                                                                                               \
    }

/* executor_place.c */
bool exec_place_fits(const struct plan *plan); /* no step works on chunks of two local ranks */
void exec_place_start(struct exec_op *op);
void exec_place_arrive(struct exec_op *op, uint32_t local, const struct exec_buffers *buffers, uint32_t n);
/* Memory for what the step writes, where that is best. What it holds may be lost. False: there is none. */
bool exec_place(struct exec_op *op, const struct plan_step *step, struct exec_memory *memory, size_t bytes);
void exec_place_free(const struct exec_comm *comm, struct exec_memory *memory, size_t bytes);

/* executor_check.c. False, with the operation failed, where the message is not what this node expects. */
bool exec_check_message(struct exec_op *op, const struct plan_step *step, const struct fabric_header *header,
                        size_t bytes);
/* Likewise for what a node says of the whole operation: it fails, for it is another one. */
void exec_check_call(struct exec_op *op, const struct fabric_header *theirs);
/* The header of a message of this item, filled but for the step's own fields. */
struct fabric_header exec_header(const struct exec_op *op, const struct plan_step *step);

/* executor_capped.c. Those that return bool: false, with the operation failed. */
bool exec_capped_arrive(struct exec_op *op); /* reads what this rank sends */
/* Whether the actual count leaves nothing to do for the step. */
bool exec_capped_skips(const struct exec_op *op, const struct plan_step *step);
bool exec_capped_check(struct exec_op *op, const struct plan_step *step, const struct fabric_header *header);
/* A message was found to be right: chunk 0 of a capped transfer tells its count. */
void exec_capped_received(struct exec_op *op, const struct plan_step *step, const struct fabric_header *header);
/* Values of a step. */
static inline uint64_t exec_count(const struct exec_op *op, const struct plan_step *step) {
    const struct exec_item *item = &op->items[step->item];
    return item->capped ? plan_capped_count(&op->plan->items[step->item], step, item->actual) : step->count;
}

/* executor_native.c */
bool exec_native_can(const struct exec_comm *comm, const struct exec_entry *entry);
bool exec_native_choose(struct exec_op *op); /* at its start: whether the fabric is asked for it */
void exec_native_arrive(struct exec_op *op); /* a rank did */

/* executor_probe.c */
void exec_probe_orphan(struct exec_comm *comm);
void exec_probe_free_all(struct executor *e);

#endif

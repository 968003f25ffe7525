/* SPDX-License-Identifier: Apache-2.0
 *
 * The executor: runs a plan on a device and a fabric, one exec_op per operation (or group) of a communicator on this
 * node, or of one rank where it is an exchange.
 * It knows steps, slots and completions; it knows no socket, session or job.
 *
 * A communicator may have one collective and any number of exchanges under way. What two local ranks exchange is copied
 * here and does not touch the fabric.
 *
 * Everything is called, and calls back, on the loop thread. done is called exactly once per exec_op, when no step is
 * under way any more and no buffer of a client is touched again; it may run inside exec_op_arrive. The exec_op is
 * freed by the executor right after done returns.
 */
#ifndef ZIPCCL_DAEMON_EXECUTOR_H
#define ZIPCCL_DAEMON_EXECUTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/device/device.h"
#include "daemon/fabric/fabric.h"
#include "daemon/plan/plan.h"
#include "zipccl_types.h"

struct executor;
struct exec_comm;
struct exec_op;

struct executor_config {
    const struct device_ops *device_ops;
    struct device *device;
    const struct fabric_ops *fabric_ops; /* NULL: this daemon has no fabric, one node alone */
    struct fabric *fabric;
    uint64_t chunk_bytes;
    uint32_t window; /* slots per direction and peer */
    bool verify;     /* hash every message */
    bool native;     /* leave collectives to the fabric where it has them */
};

ZIPCCL_MUST_CHECK zipcclResult_t executor_new(const struct executor_config *config, struct executor **executor);
/* No exec_comm may be left. After the fabric is closed and before the device is: a probe may still own memory. */
void executor_free(struct executor *executor);

/* One communicator on this node. peers[i] is node i's endpoint (own index: NULL); topology is copied. gpus: by local
 * rank, its GPU as CUDA numbers them, EXEC_NO_GPU: none; NULL: none has one. split: bits. Caches
 * plans. */
#define EXEC_SPLIT  1u /* it comes of one, for the end of which it waits in the fabric */
#define EXEC_SPLITS 2u /* the fabric will be told of its own */
#define EXEC_NO_GPU UINT8_MAX
ZIPCCL_MUST_CHECK zipcclResult_t exec_comm_new(struct executor *executor, uint64_t key, uint32_t node,
                                               const struct plan_topology *topology, struct fabric_peer *const *peers,
                                               uint64_t chunk_bytes, const uint8_t *gpus, uint32_t split,
                                               struct exec_comm **comm);
/* Ends what it has on the fabric: its messages, also those of other nodes for it, and its probe. */
void exec_comm_abort(struct exec_comm *comm);
/* What of this node made its messages fail, for people; NULL: it is not known here. */
const char *exec_comm_why(const struct exec_comm *comm);
/* No exec_op may be left. Makes the fabric forget the communicator. Does not disconnect peers. */
void exec_comm_free(struct exec_comm *comm);

/* Whose share of the link and of the workers the communicator uses; NULL: the default one's. They outlive it. */
void exec_comm_set_flow(struct exec_comm *comm, struct fabric_flow *link, struct device_flow *workers);

/* What an operation did, for statistics. */
struct exec_result {
    zipcclResult_t result;
    const char *text;    /* why it failed: step, peer, rank; "" on success. Valid during done */
    int failed_node;     /* node that failed it, -1: not known */
    uint64_t raw_bytes;  /* what this node would have sent uncoded */
    uint64_t wire_bytes; /* what it sent */
    uint64_t coded_from_bytes, coded_to_bytes;
    uint64_t encode_ns, decode_ns; /* worker time; reductions, which decode, count as decode */
    bool native;                   /* the fabric did all of it */
    uint32_t worst_report;         /* report_combine of the reports of all nodes that were heard, and of this one */
};

/* A collective of this node's ranks (ops), or an exchange of one local rank (transfers). Arrays are read by
 * exec_op_start alone. */
struct exec_args {
    const struct plan_op *ops; /* decided: neither codec nor arm is auto; made plain here where nothing is coded */
    uint32_t nops;

    const struct plan_transfer *transfers; /* used where nops is 0 */
    const uint32_t *numbers; /* by transfer: how many this pair of ranks had in this direction before; both sides count
                              * alike */
    const uint32_t *calls;   /* by transfer: which collective it is part of; 0: send and receive. NULL: all 0 */
    uint32_t ntransfers, nbuffers;
    uint32_t rank;
    enum plan_phases phases;

    uint64_t seq;    /* of the first operation; the others of a group follow. Exchange: for people */
    uint32_t report; /* sent with every message, see report.h */
    void (*done)(void *arg, const struct exec_result *result);
    void *arg;
};

/* What a rank hands over for one operation (collective: by operation; exchange: by buffer index). */
struct exec_buffers {
    const void *send;
    void *recv;
    uint64_t scalar; /* PreMulSum */
    /* Of capped transfers, by the other rank, aligned: actual counts, read as the rank arrives; written as they come.
     */
    const uint64_t *send_counts;
    uint64_t *recv_counts;
};

/* Why it fails, though its steps may not all be over; NULL: it does not. */
const struct exec_result *exec_op_failing(const struct exec_op *op);
/* Starts the operation; its steps wait for arrivals. */
ZIPCCL_MUST_CHECK zipcclResult_t exec_op_start(struct exec_comm *comm, const struct exec_args *args,
                                               struct exec_op **op);
/* Local rank (exchange: 0) has called it, with buffers for each operation (copied); what they point to stays valid
 * until done. */
void exec_op_arrive(struct exec_op *op, uint32_t local, const struct exec_buffers *buffers);
/* Ends it with result and text (copied) as soon as its steps under way allow. */
void exec_op_fail(struct exec_op *op, zipcclResult_t result, const char *text);

/* What an operation is doing now: steps under way by kind, and the other side of the first send and receive. */
#define EXEC_NO_RANK UINT32_MAX
struct exec_where {
    uint32_t sends, recvs, encodes, others;
    uint32_t send_node, recv_node;
    uint32_t recv_rank; /* of an exchange, whose node it is is in recv_node; else EXEC_NO_RANK */
    enum exec_native {
        EXEC_BY_PLAN,
        EXEC_NATIVE,            /* the fabric is at it */
        EXEC_NATIVE_WAITS,      /* other nodes are to agree to that */
        EXEC_NATIVE_WAITS_NODE, /* this one, in recv_node, is late */
    } native;
};
void exec_op_where(const struct exec_op *op, struct exec_where *where);

/* A timed exchange of `bytes` with the next node (ring) for the switcher: done gets bytes a second and half a
 * round trip in ns. Run by all nodes of a new communicator at the same time, before its first operation. */
void exec_comm_probe(struct exec_comm *comm, uint64_t bytes,
                     void (*done)(void *arg, zipcclResult_t result, uint64_t bps, uint64_t latency_ns), void *arg);

#endif

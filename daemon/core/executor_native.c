/* SPDX-License-Identifier: Apache-2.0
 *
 * Collectives that are left to the fabric as a whole, where it has them: raw all-gather and broadcast, whose bits are
 * the same, and reductions whose arm is the ring, which is the wish for NCCL's own result.
 *
 * Whether all nodes can is found by asking, when all ranks of this node have come; where one cannot, the plan runs. So
 * that operations which never can do not ask each time, a no is followed by some that do not ask, twice as many after
 * each. All nodes count alike, for they all hear the same answers to the same operations.
 */
#include <string.h>

#include "daemon/core/executor_impl.h"
#include "daemon/core/report.h"
#include "proto/op.h"

#define MOST_SKIPPED 63u

static bool is_native(const struct plan_op *op) {
    if (op->count == 0 || op->codec != zipcclCodecRaw)
        return false;
    switch (op->op) {
    case zipcclOpAllGather:
    case zipcclOpBroadcast:
        return true;
    case zipcclOpReduceScatter:
    case zipcclOpAllReduce:
    case zipcclOpReduce: /* not all GPUs have NCCL's FP8 reductions */
        return op->arm == zipcclArmRing && op->redop <= zipcclAvg && op->dtype != zipcclFloat8e4m3 &&
               op->dtype != zipcclFloat8e5m2;
    default:
        return false;
    }
}

bool exec_native_can(const struct exec_comm *comm, const struct exec_entry *entry) {
    return comm->native && entry->nops == 1 && is_native(&entry->ops[0]);
}

/* An item's header, of no message. */
static struct fabric_header header_of(const struct exec_op *op, uint32_t item) {
    const struct plan_step none = {.item = item, .codec = op->items[item].codec};
    return exec_header(op, &none);
}

bool exec_native_choose(struct exec_op *op) {
    struct exec_comm *comm = op->comm;
    const struct executor_config *config = &comm->executor->config;
    if (!comm->native || op->entry->nops == 0)
        return false;
    if (op->parts && exec_native_can(comm, op->entry)) {
        if (comm->native_skip == 0)
            return true;
        comm->native_skip--;
    }
    for (uint32_t i = 0; i < op->entry->nops; i++) {
        struct fabric_header header = header_of(op, i);
        config->fabric_ops->by_messages(config->fabric, &header);
    }
    return false;
}

static void set_part(const struct exec_op *op, uint32_t local, struct fabric_part *part) {
    const struct plan_op *p = &op->entry->ops[0];
    const struct plan_topology *t = &op->comm->topology;
    const struct exec_buffers *buffers = &op->buffers[local];
    const size_t n = p->count * op->items[0].value_bytes, all = n * t->nranks;
    const bool is_root = op->plan->steps[local].rank == p->root; /* the arrivals come first, each with its rank */
    *part = (struct fabric_part){buffers->send, buffers->recv, n, n};
    if (p->op == zipcclOpReduceScatter)
        part->send_bytes = all;
    else if (p->op == zipcclOpAllGather)
        part->recv_bytes = all;
    else if (p->op == zipcclOpBroadcast && !is_root)
        part->send_bytes = 0;
    else if (p->op == zipcclOpReduce && !is_root)
        part->recv_bytes = 0;
}

/* By its plan, as if the ranks had come now. */
static void by_plan(struct exec_op *op) {
    struct exec_comm *comm = op->comm;
    op->native = false;
    comm->native = comm->native && !op->whole.never;
    comm->native_skip = comm->native_refused;
    comm->native_refused = comm->native_refused >= MOST_SKIPPED ? MOST_SKIPPED : 2 * comm->native_refused + 1;
    for (uint32_t i = 0; i < op->plan->nlocal; i++)
        exec_step_complete(op, i);
}

static void native_failed(struct exec_op *op, zipcclResult_t result) {
    const struct fabric_collective *whole = &op->whole;
    const struct exec_item *item = &op->items[0];
    const unsigned long long number = item->number;
    const char *why = exec_comm_why(op->comm);
    if (op->failed)
        return;
    if (result == zipcclInvalidArgument) {
        exec_check_call(op, &whole->theirs);
        return;
    }
    exec_op_failf(op, result, -1,
                  result == zipcclRemoteError ? "%s #%llu: another node, or its GPU, is gone%s%s"
                  : result == zipcclAborted   ? "%s #%llu: aborted while NCCL was to do all of it%s%s"
                  : whole->launched           ? "%s #%llu: NCCL's own collective fails%s%s"
                                              : "%s #%llu: the nodes cannot agree to NCCL's own collective%s%s",
                  op_name(item->op), number, why ? ": " : "", why ? why : "");
}

static void native_done(struct fabric_collective *whole, zipcclResult_t result) {
    struct exec_op *op = whole->arg;
    op->nactive--;
    if (result) {
        native_failed(op, result);
    } else if (op->failed) {
        /* Elsewhere; the others may have what they wanted. */
    } else if (whole->taken) {
        op->comm->native_refused = 0;
        op->result.worst_report = report_combine(op->result.worst_report, whole->header.report);
        op->result.wire_bytes = op->plan->raw_send_bytes;
        op->result.native = true;
        op->ndone = op->plan->nsteps;
    } else {
        by_plan(op);
    }
    exec_op_run(op);
}

void exec_native_arrive(struct exec_op *op) {
    const struct executor_config *config = &op->comm->executor->config;
    if (++op->narrived < op->plan->nlocal)
        return;
    for (uint32_t i = 0; i < op->plan->nlocal; i++)
        set_part(op, i, &op->parts[i]);
    op->whole = (struct fabric_collective){.header = header_of(op, 0),
                                           .flow = op->comm->link,
                                           .redop = (zipcclRedOp_t)op->items[0].redop,
                                           .value_bytes = op->items[0].value_bytes,
                                           .parts = op->parts,
                                           .nparts = op->plan->nlocal,
                                           .sent_bytes = op->plan->raw_send_bytes,
                                           .received_bytes = op->entry->raw_recv_bytes,
                                           .combine = report_combine,
                                           .done = native_done,
                                           .arg = op};
    op->nactive++;
    config->fabric_ops->collective(config->fabric, &op->whole);
}

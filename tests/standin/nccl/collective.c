/* SPDX-License-Identifier: Apache-2.0
 *
 * What a launch does on its stream: collectives one after the other as exchanges with all ranks, then all sends and
 * receives at once.
 */
#include <stdlib.h>
#include <string.h>

#include "nccl_standin.h"

size_t dtype_bytes(ncclDataType_t dtype) {
    static const uint8_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return (unsigned)dtype < sizeof(bytes) ? bytes[dtype] : 0;
}

/* What goes to rank `to`, NULL: nothing. */
static const uint8_t *part_to(const struct ncclComm *comm, const struct op *op, size_t n, int to) {
    const uint8_t *send = standin_view(op->send);
    int root = (int)op->call.root;
    switch (op->call.function) {
    case BROADCAST:
        return comm->rank == root ? send : NULL;
    case REDUCE:
    case GATHER:
        return to == root ? send : NULL;
    case SCATTER:
        return comm->rank == root ? send + n * (size_t)to : NULL;
    case REDUCE_SCATTER:
    case ALL_TO_ALL:
        return send + n * (size_t)to;
    default: /* ALL_REDUCE, ALL_GATHER */
        return send;
    }
}

static bool comes_from(const struct ncclComm *comm, const struct op *op, int from) {
    int root = (int)op->call.root;
    switch (op->call.function) {
    case BROADCAST:
    case SCATTER:
        return from == root;
    case REDUCE:
    case GATHER:
        return comm->rank == root;
    default:
        return true;
    }
}

static bool is_reduction(const struct op *op) {
    return op->call.function == REDUCE || op->call.function == ALL_REDUCE || op->call.function == REDUCE_SCATTER;
}

static bool is_in_parts(const struct op *op) {
    return op->call.function == ALL_GATHER || op->call.function == ALL_TO_ALL || op->call.function == GATHER;
}

static void reduce_parts(const struct ncclComm *comm, const struct op *op, const uint8_t *const *inputs) {
    int n = comm->nranks, last = op->call.function == REDUCE ? (int)op->call.root : comm->rank;
    size_t count = op->call.count, part = (count + (size_t)n - 1) / (size_t)n;
    ncclDataType_t dtype = (ncclDataType_t)op->call.dtype;
    uint8_t *recv = standin_view(op->recv);
    if (op->call.function != ALL_REDUCE) {
        reduce(recv, inputs, n, (last + 1) % n, 0, count, dtype, (ncclRedOp_t)op->call.op);
        return;
    }
    for (int p = 0; p < n; p++) {
        size_t from = part * (size_t)p < count ? part * (size_t)p : count,
               to = count - from < part ? count : from + part;
        reduce(recv, inputs, n, (p + 1) % n, from, to, dtype, (ncclRedOp_t)op->call.op);
    }
}

/* All that comes goes to scratch first: results may lie where values are still sent from. */
static bool run_collective(struct ncclComm *comm, const struct op *op) {
    size_t n = op->call.count * dtype_bytes((ncclDataType_t)op->call.dtype), ranks = (size_t)comm->nranks;
    uint8_t *scratch = malloc(n * ranks + 1), *recv = standin_view(op->recv);
    struct transfer *transfers = calloc(2 * ranks, sizeof(*transfers));
    const uint8_t **inputs = calloc(ranks, sizeof(*inputs));
    unsigned used = 0;
    bool good = scratch && transfers && inputs, any = false;
    for (int r = 0; good && r < comm->nranks; r++) {
        const uint8_t *part = part_to(comm, op, n, r);
        uint8_t *place = scratch + n * (size_t)r;
        bool comes = comes_from(comm, op, r);
        inputs[r] = place;
        any = any || comes;
        if (r == comm->rank && comes && part)
            memcpy(place, part, n);
        if (r == comm->rank)
            continue;
        if (part)
            transfers[used++] = (struct transfer){
                .peer = r, .send = true, .data = (uint8_t *)(uintptr_t)part, .bytes = n, .call = op->call};
        if (comes)
            transfers[used++] = (struct transfer){.peer = r, .data = place, .bytes = n, .call = op->call};
    }
    good = good && exchange(comm, transfers, used);
    if (good && any && is_reduction(op))
        reduce_parts(comm, op, inputs);
    for (int r = 0; good && !is_reduction(op) && r < comm->nranks; r++) {
        if (comes_from(comm, op, r) && n > 0)
            memcpy(recv + (is_in_parts(op) ? n * (size_t)r : 0), inputs[r], n);
    }
    free(scratch);
    free(transfers);
    free(inputs);
    return good;
}

/* The k-th of sends or receives with this rank itself; NULL: there are no more. */
static const struct op *own(const struct launch *l, bool is_send, unsigned k) {
    for (unsigned i = 0; i < l->nops; i++) {
        const struct op *op = &l->ops[i];
        if (op->call.function == SEND_RECV && op->peer == l->comm->rank && op->is_send == is_send && k-- == 0)
            return op;
    }
    return NULL;
}

static void run_own(const struct launch *l) {
    for (unsigned k = 0;; k++) {
        const struct op *send = own(l, true, k), *recv = own(l, false, k);
        if (!send && !recv)
            return;
        if (!send || !recv || memcmp(&send->call, &recv->call, sizeof(send->call)) != 0)
            rule_broken("order of calls", "rank %d sends to itself what it does not receive in the same group",
                        l->comm->rank);
        memmove(standin_view(recv->recv), standin_view(send->send), send->send_bytes);
    }
}

static void run_messages(struct launch *l) {
    struct transfer *transfers = calloc(l->nops, sizeof(*transfers));
    unsigned used = 0;
    for (unsigned i = 0; transfers && i < l->nops; i++) {
        const struct op *op = &l->ops[i];
        if (op->call.function != SEND_RECV || op->peer == l->comm->rank)
            continue;
        transfers[used++] = (struct transfer){.peer = op->peer,
                                              .send = op->is_send,
                                              .data = standin_view(op->is_send ? op->send : op->recv),
                                              .bytes = op->is_send ? op->send_bytes : op->recv_bytes,
                                              .call = op->call};
    }
    if (used)
        exchange(l->comm, transfers, used);
    free(transfers);
}

void run_launch(void *launch) {
    struct launch *l = launch;
    struct ncclComm *comm = l->comm;
    bool go = comm_take_turn(comm, l->ticket);
    for (unsigned i = 0; go && atomic_load(&comm->state) != ncclRemoteError && i < l->nops; i++) {
        if (l->ops[i].call.function != SEND_RECV)
            run_collective(comm, &l->ops[i]);
    }
    int state = atomic_load(&comm->state);
    if (go && (state == ncclSuccess || state == ncclInProgress)) {
        run_own(l);
        run_messages(l);
    }
    comm_serve(comm, l->ticket, go);
}

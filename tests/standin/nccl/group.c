/* SPDX-License-Identifier: Apache-2.0
 *
 * Groups, and operations on their way to a stream. A call outside of a group is a group of its own.
 *
 * A communicator that does not block is "in progress" after a group until it was asked once: who does not ask is told
 * by the next call's ncclInvalidArgument, as it may happen with the real library.
 */
#include <stdlib.h>
#include <string.h>

#include "nccl_standin.h"

#define MAX_INITS 64

static __thread struct {
    unsigned depth;
    ncclResult_t error;
    struct launch *first, *last;
    struct ncclComm *inits[MAX_INITS];
    unsigned ninits;
} group;

bool group_is_open(void) {
    return group.depth > 0;
}

bool group_has_ops_of(const struct ncclComm *comm) {
    const struct launch *l = group.first;
    while (l && l->comm != comm)
        l = l->next;
    return l != NULL;
}

ncclResult_t group_add_init(struct ncclComm *comm) {
    if (group.first)
        rule_broken("call in a group", "a communicator is made in a group that has operations");
    if (group.ninits == MAX_INITS)
        return ncclInvalidUsage;
    group.inits[group.ninits++] = comm;
    return comm->blocking ? ncclSuccess : ncclInProgress;
}

static ncclResult_t fail(ncclResult_t error) {
    if (group.error == ncclSuccess)
        group.error = error;
    return error;
}

static struct launch *launch_of(struct ncclComm *comm, cudaStream_t stream) {
    struct launch *l = group.first;
    while (l && l->comm != comm)
        l = l->next;
    if (l && l->stream != stream)
        rule_broken("one stream", "a group has operations of one communicator on two streams");
    if (l)
        return l;
    l = calloc(1, sizeof(*l));
    if (!l)
        return NULL;
    l->comm = comm;
    l->stream = stream;
    if (group.last)
        group.last->next = l;
    else
        group.first = l;
    group.last = l;
    return l;
}

ncclResult_t group_add_op(struct ncclComm *comm, cudaStream_t stream, const struct op *op) {
    if (group.ninits)
        rule_broken("call in a group", "an operation in a group that makes communicators");
    struct launch *l = launch_of(comm, stream);
    if (l && l->nops == l->room) {
        unsigned room = l->room ? 2 * l->room : 8;
        struct op *ops = realloc(l->ops, room * sizeof(*ops));
        if (!ops)
            return fail(ncclSystemError);
        l->ops = ops;
        l->room = room;
    }
    if (!l)
        return fail(ncclSystemError);
    l->ops[l->nops++] = *op;
    return ncclSuccess;
}

static void free_launch(struct launch *l) {
    free(l->ops);
    free(l);
}

static void run(void *arg) {
    struct launch *l = *(struct launch **)arg;
    run_launch(l);
    for (unsigned i = 0; i < l->nops; i++) {
        range_end(l->comm, l->ops[i].send, l->ops[i].send_bytes);
        range_end(l->comm, l->ops[i].recv, l->ops[i].recv_bytes);
    }
    free_launch(l);
}

static void nothing(void *arg) {
    (void)arg;
}

/* Memory in use beyond what one call can name is named by idle ones behind it. */
static ncclResult_t enqueue(struct launch *l) {
    unsigned n = 0, given;
    cudaStream_t stream = l->stream;
    struct standin_use *uses = calloc(2 * (size_t)l->nops, sizeof(*uses));
    if (!uses)
        return ncclSystemError;
    for (unsigned i = 0; i < l->nops; i++) {
        const struct op *op = &l->ops[i];
        range_use(l->comm, op->send, op->send_bytes);
        range_use(l->comm, op->recv, op->recv_bytes);
        if (op->send_bytes)
            uses[n++] = (struct standin_use){op->send, op->send_bytes};
        if (op->recv_bytes)
            uses[n++] = (struct standin_use){op->recv, op->recv_bytes};
    }
    given = n < STANDIN_USES ? n : STANDIN_USES;
    int error = standin_enqueue(stream, run, &l, sizeof(l), uses, given);
    for (unsigned i = given; error == 0 && i < n; i += STANDIN_USES) {
        unsigned rest = n - i < STANDIN_USES ? n - i : STANDIN_USES;
        error = standin_enqueue(stream, nothing, &n, sizeof(n), uses + i, rest);
    }
    free(uses);
    return error ? ncclUnhandledCudaError : ncclSuccess;
}

static void check_device(const struct launch *l) {
    int device;
    if (standin_stream_device(l->stream, &device) == 0 && device != l->comm->device)
        rule_broken("device", "rank %d is on device %d, its stream on device %d", l->comm->rank, l->comm->device,
                    device);
}

static ncclResult_t end_launches(void) {
    ncclResult_t result = ncclSuccess;
    struct launch *next;
    for (struct launch *l = group.first; l; l = next) {
        struct ncclComm *comm = l->comm;
        int success = ncclSuccess;
        next = l->next;
        check_device(l);
        l->ticket = comm->tickets++;
        ncclResult_t one = enqueue(l); /* l may be gone */
        if (one == ncclSuccess && !comm->blocking) {
            atomic_store(&comm->polls, 1);
            if (atomic_compare_exchange_strong(&comm->state, &success, ncclInProgress))
                one = ncclInProgress;
        }
        result = one == ncclSuccess ? result : one;
    }
    return result;
}

EXPORT ncclResult_t ncclGroupStart(void) {
    ncclResult_t result = GATE("ncclGroupStart");
    if (result == ncclSuccess)
        group.depth++;
    return result;
}

static ncclResult_t end_inits(void) {
    ncclResult_t result = ncclSuccess;
    for (unsigned i = 0; i < group.ninits; i++) {
        struct ncclComm *comm = group.inits[i];
        ncclResult_t one = comm->blocking ? comm_wait(comm) : ncclInProgress;
        result = one == ncclSuccess || result > ncclInProgress ? result : one;
    }
    return result;
}

static ncclResult_t end(void) {
    ncclResult_t result = group.error, inits = end_inits();
    if (result == ncclSuccess)
        result = group.first ? end_launches() : inits;
    else
        while (group.first) {
            struct launch *l = group.first;
            group.first = l->next;
            free_launch(l);
        }
    memset(&group, 0, sizeof(group));
    return result;
}

EXPORT ncclResult_t ncclGroupEnd(void) {
    if (group.depth == 0) {
        set_error("ncclGroupEnd: no group is open");
        return ncclInvalidUsage;
    }
    ncclResult_t result = GATE("ncclGroupEnd");
    if (result != ncclSuccess)
        fail(result);
    if (--group.depth > 0)
        return result;
    return end();
}

/* A pointer that the device can use, all of it. */
static void check_memory(const char *function, const void *p, size_t bytes) {
    struct standin_range range;
    if (bytes == 0)
        return;
    if (!standin_find(p, &range))
        rule_broken("memory", "%s gets a pointer that the device cannot use", function);
    if ((const char *)p + bytes > (const char *)range.base + range.bytes)
        rule_broken("memory", "%s runs past the end of its memory", function);
}

struct request {
    const char *name;
    struct standin_site *site;
    int version;
    ncclComm_t comm;
    cudaStream_t stream;
    struct op op;
};

static ncclResult_t check(struct request *r) {
    const struct op *op = &r->op;
    const struct ncclComm *comm = r->comm;
    int root = op->call.function == SEND_RECV ? op->peer : (int)op->call.root;
    if (op->call.dtype >= ncclNumTypes || op->call.op > ncclAvg || root < 0 || root >= comm->nranks) {
        set_error("%s: dtype, reduction or rank are wrong", r->name);
        return ncclInvalidArgument;
    }
    ncclResult_t result = comm_ready(comm);
    if (comm->finalized)
        rule_broken("use after finalize", "%s, rank %d", r->name, comm->rank);
    if (result == ncclSuccess && op->call.function == SEND_RECV)
        r->op.call.registered =
            is_registered(comm, op->is_send ? op->send : op->recv, op->is_send ? op->send_bytes : op->recv_bytes);
    if (result == ncclSuccess) {
        check_memory(r->name, op->send, op->send_bytes);
        check_memory(r->name, op->recv, op->recv_bytes);
    }
    if (result == ncclSuccess && op->call.registered)
        result = GATE("ncclRegisteredMemory"); /* no call, but counted, and failed on demand, as one */
    return result;
}

static ncclResult_t add(struct request *r) {
    need_version(r->name, r->version);
    ncclResult_t result = comm_enter(r->comm, r->site);
    if (result != ncclSuccess)
        return group.depth ? fail(result) : result;
    bool alone = group.depth == 0;
    group.depth += alone;
    result = check(r);
    result = result == ncclSuccess ? group_add_op(r->comm, r->stream, &r->op) : fail(result);
    group.depth -= alone;
    if (alone)
        result = end();
    comm_leave(r->comm);
    return result;
}

/* One exported call: its operation from the arguments `count`, `dtype`, `root` and so on of the function around. */
#define ADD(name_, version_, function_, op_, root_, ...)                                                               \
    do {                                                                                                               \
        static struct standin_site site_ = {.name = name_};                                                            \
        size_t n = count * dtype_bytes(dtype);                                                                         \
        (void)n;                                                                                                       \
        struct request request_ = {.name = name_,                                                                      \
                                   .site = &site_,                                                                     \
                                   .version = (version_),                                                              \
                                   .comm = comm,                                                                       \
                                   .stream = stream,                                                                   \
                                   .op = {__VA_ARGS__}};                                                               \
        request_.op.call = (struct call){                                                                              \
            .function = function_, .dtype = dtype, .op = (op_), .root = (uint32_t)(root_), .count = count};            \
        return add(&request_);                                                                                         \
    } while (0)
#define RANKS (comm && comm_is_known(comm) ? (size_t)comm->nranks : 0)
#define IS(r) (comm && comm_is_known(comm) && comm->rank == (r))

EXPORT ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                             cudaStream_t stream) {
    ADD("ncclSend", 20700, SEND_RECV, 0, 0, .is_send = true, .peer = peer, .send = send, .send_bytes = n);
}

EXPORT ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                             cudaStream_t stream) {
    ADD("ncclRecv", 20700, SEND_RECV, 0, 0, .is_recv = true, .peer = peer, .recv = recv, .recv_bytes = n);
}

EXPORT ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t dtype, int root,
                                  ncclComm_t comm, cudaStream_t stream) {
    ADD("ncclBroadcast", 20000, BROADCAST, 0, root, .send = send, .send_bytes = IS(root) ? n : 0, .recv = recv,
        .recv_bytes = n);
}

EXPORT ncclResult_t ncclBcast(void *buffer, size_t count, ncclDataType_t dtype, int root, ncclComm_t comm,
                              cudaStream_t stream) {
    ADD("ncclBcast", 20000, BROADCAST, 0, root, .send = buffer, .send_bytes = IS(root) ? n : 0, .recv = buffer,
        .recv_bytes = n);
}

EXPORT ncclResult_t ncclReduce(const void *send, void *recv, size_t count, ncclDataType_t dtype, ncclRedOp_t op,
                               int root, ncclComm_t comm, cudaStream_t stream) {
    ADD("ncclReduce", 20000, REDUCE, op, root, .send = send, .send_bytes = n, .recv = recv,
        .recv_bytes = IS(root) ? n : 0);
}

EXPORT ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t dtype, ncclRedOp_t op,
                                  ncclComm_t comm, cudaStream_t stream) {
    ADD("ncclAllReduce", 20000, ALL_REDUCE, op, 0, .send = send, .send_bytes = n, .recv = recv, .recv_bytes = n);
}

EXPORT ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t dtype, ncclRedOp_t op,
                                      ncclComm_t comm, cudaStream_t stream) {
    ADD("ncclReduceScatter", 20000, REDUCE_SCATTER, op, 0, .send = send, .send_bytes = n * RANKS, .recv = recv,
        .recv_bytes = n);
}

EXPORT ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t dtype, ncclComm_t comm,
                                  cudaStream_t stream) {
    ADD("ncclAllGather", 20000, ALL_GATHER, 0, 0, .send = send, .send_bytes = n, .recv = recv, .recv_bytes = n * RANKS);
}

EXPORT ncclResult_t ncclAlltoAll(const void *send, void *recv, size_t count, ncclDataType_t dtype, ncclComm_t comm,
                                 cudaStream_t stream) {
    ADD("ncclAlltoAll", 22800, ALL_TO_ALL, 0, 0, .send = send, .send_bytes = n * RANKS, .recv = recv,
        .recv_bytes = n * RANKS);
}

EXPORT ncclResult_t ncclGather(const void *send, void *recv, size_t count, ncclDataType_t dtype, int root,
                               ncclComm_t comm, cudaStream_t stream) {
    ADD("ncclGather", 22800, GATHER, 0, root, .send = send, .send_bytes = n, .recv = recv,
        .recv_bytes = IS(root) ? n * RANKS : 0);
}

EXPORT ncclResult_t ncclScatter(const void *send, void *recv, size_t count, ncclDataType_t dtype, int root,
                                ncclComm_t comm, cudaStream_t stream) {
    ADD("ncclScatter", 22800, SCATTER, 0, root, .send = send, .send_bytes = IS(root) ? n * RANKS : 0, .recv = recv,
        .recv_bytes = n);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * All-gather, broadcast and barrier, and what all operations share: the checks of their arguments.
 */
#include <stdlib.h>
#include <string.h>

#include "client/lib/collective.h"
#include "proto/op.h"

const struct collective_dtype collective_dtypes[zipcclNumTypes] = {
    [zipcclInt8] = {1, "int8"},         [zipcclUint8] = {1, "uint8"},           [zipcclInt32] = {4, "int32"},
    [zipcclUint32] = {4, "uint32"},     [zipcclInt64] = {8, "int64"},           [zipcclUint64] = {8, "uint64"},
    [zipcclFloat16] = {2, "float16"},   [zipcclFloat32] = {4, "float32"},       [zipcclFloat64] = {8, "float64"},
    [zipcclBfloat16] = {2, "bfloat16"}, [zipcclFloat8e4m3] = {1, "float8e4m3"}, [zipcclFloat8e5m2] = {1, "float8e5m2"},
};

zipcclResult_t collective_begin(struct collective *o, const char *name, zipcclOp_t kind, zipcclComm_t comm,
                                zipcclStream_t stream, zipcclDataType_t dtype) {
    memset(o, 0, sizeof *o);
    o->name = name;
    o->kind = kind;
    o->dtype = dtype;
    if (!comm || comm->magic != CLIENT_COMM_MAGIC)
        return fail_thread(zipcclInvalidArgument, "%s: comm is %s", name,
                           comm ? "not a communicator, or was freed" : "NULL");
    if (stream && stream->magic != CLIENT_STREAM_MAGIC)
        return fail_comm(comm, zipcclInvalidArgument, "%s: stream is not a stream of zipccl", name);
    if ((unsigned)dtype >= zipcclNumTypes)
        return fail_comm(comm, zipcclInvalidArgument, "%s: dtype %d does not exist", name, (int)dtype);
    o->codec = comm->codec;
    return zipcclSuccess;
}

zipcclResult_t collective_root(const struct collective *o, zipcclComm_t comm, const char *what, int root) {
    if (root >= 0 && root < comm->nranks)
        return zipcclSuccess;
    return fail_comm(comm, zipcclInvalidArgument, "%s: %s %d is not a rank of %d", o->name, what, root, comm->nranks);
}

zipcclResult_t collective_bytes(const struct collective *o, zipcclComm_t comm, const char *what, size_t count,
                                size_t parts, size_t *bytes) {
    if (__builtin_mul_overflow(count, (size_t)collective_dtypes[o->dtype].bytes, bytes) ||
        __builtin_mul_overflow(*bytes, parts, bytes) || *bytes > PTRDIFF_MAX)
        return fail_comm(comm, zipcclInvalidArgument, "%s: %s %zu is too large: no buffer holds that many %s values",
                         o->name, what, count, collective_dtypes[o->dtype].name);
    return zipcclSuccess;
}

zipcclResult_t collective_frame(struct collective *o, zipcclComm_t comm, size_t ncounts) {
    size_t most = (FRAME_MAX_PAYLOAD - sizeof *o->frame - sizeof(struct wire_point)) / sizeof(uint64_t);
    if (ncounts > most)
        return fail_comm(comm, zipcclLimitExceeded,
                         "%s: the counts of %d ranks do not fit a request to zipccld: at most %zu ranks", o->name,
                         comm->nranks, most / (ncounts / (size_t)comm->nranks));
    o->frame = malloc(sizeof *o->frame + ncounts * sizeof(uint64_t) + sizeof(struct wire_point));
    if (!o->frame)
        return fail_comm(comm, zipcclOutOfMemory, "%s: no memory for the counts of %d ranks", o->name, comm->nranks);
    o->ncounts = ncounts;
    return zipcclSuccess;
}

zipcclResult_t collective_take_counts(struct collective *o, zipcclComm_t comm, const size_t *counts, size_t *all,
                                      size_t *mine) {
    size_t total = 0, n = (size_t)comm->nranks, width = collective_dtypes[o->dtype].bytes;
    *all = *mine = 0;
    if (!counts)
        return fail_comm(comm, zipcclInvalidArgument, "%s: counts is NULL", o->name);
    zipcclResult_t r = collective_frame(o, comm, n);
    for (size_t i = 0; r == zipcclSuccess && i < n; i++) {
        collective_counts(o)[i] = counts[i];
        if (i == (size_t)comm->rank)
            o->own = total * width;
        if (__builtin_add_overflow(total, counts[i], &total) || total > PTRDIFF_MAX / width)
            r = fail_comm(comm, zipcclInvalidArgument,
                          "%s: counts[%zu] is %zu: too large, no buffer holds that many %s values", o->name, i,
                          counts[i], collective_dtypes[o->dtype].name);
    }
    if (r != zipcclSuccess)
        return r;
    *all = total * width;
    *mine = counts[comm->rank] * width;
    return zipcclSuccess;
}

bool collective_in_place(const struct collective *o) {
    if (o->shape == SEND_IN_RECV)
        return o->send == (const uint8_t *)o->recv + o->own;
    return o->shape == RECV_IN_SEND && o->recv == (const uint8_t *)o->send + o->own;
}

static zipcclResult_t overlapping(const struct collective *o, zipcclComm_t comm) {
    bool whole = o->send_bytes == o->recv_bytes && !o->own;
    if (o->shape == APART)
        return fail_comm(comm, zipcclInvalidArgument,
                         "%s: sendbuff %p overlaps recvbuff %p, and cannot work in place: use two buffers", o->name,
                         o->send, o->recv);
    if (o->shape == SEND_IN_RECV && whole)
        return fail_comm(comm, zipcclInvalidArgument, "%s: sendbuff %p overlaps recvbuff %p, but is not equal to it",
                         o->name, o->send, o->recv);
    if (o->shape == SEND_IN_RECV)
        return fail_comm(comm, zipcclInvalidArgument,
                         "%s: sendbuff %p overlaps recvbuff %p, but is not its part of rank %d", o->name, o->send,
                         o->recv, comm->rank);
    return fail_comm(comm, zipcclInvalidArgument,
                     "%s: recvbuff %p overlaps sendbuff %p, but is not its part of rank %d", o->name, o->recv, o->send,
                     comm->rank);
}

zipcclResult_t collective_buffers(struct collective *o, zipcclComm_t comm, const void *send, void *recv) {
    if ((o->send_bytes && !send) || (o->recv_bytes && !recv))
        return fail_comm(comm, zipcclInvalidArgument, "%s: %s is NULL, but rank %d %s %zu bytes", o->name,
                         o->send_bytes && !send ? "sendbuff" : "recvbuff", comm->rank,
                         o->send_bytes && !send ? "sends" : "receives",
                         o->send_bytes && !send ? o->send_bytes : o->recv_bytes);
    o->send = o->send_bytes ? send : NULL;
    o->recv = o->recv_bytes ? recv : NULL;
    if (o->send && o->recv && !collective_in_place(o) &&
        memory_overlaps(o->send, o->send_bytes, o->recv, o->recv_bytes))
        return overlapping(o, comm);
    return zipcclSuccess;
}

zipcclResult_t collective_submit(struct collective *o, zipcclResult_t described, zipcclComm_t comm,
                                 zipcclStream_t stream) {
    if (described != zipcclSuccess) {
        free(o->frame);
        return group_fail(described);
    }
    if (group_is_open())
        return group_note(o, comm, stream);
    struct note n = {.o = *o};
    struct batch b = {.comm = comm, .stream = stream, .first = &n, .n = 1};
    return issue(&b, false);
}

zipcclResult_t zipcclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount, zipcclDataType_t dtype,
                               zipcclComm_t comm, zipcclStream_t stream) {
    struct collective o;
    zipcclResult_t r = collective_begin(&o, "zipcclAllGather", zipcclOpAllGather, comm, stream, dtype);
    if (r == zipcclSuccess)
        r = collective_bytes(&o, comm, "sendcount", sendcount, (size_t)comm->nranks, &o.recv_bytes);
    if (r == zipcclSuccess) {
        o.shape = SEND_IN_RECV;
        o.count = sendcount;
        o.send_bytes = o.recv_bytes / (size_t)comm->nranks;
        o.own = o.send_bytes * (size_t)comm->rank;
        r = collective_buffers(&o, comm, sendbuff, recvbuff);
    }
    return collective_submit(&o, r, comm, stream);
}

zipcclResult_t zipcclAllGatherv(const void *sendbuff, void *recvbuff, const size_t *counts, zipcclDataType_t dtype,
                                zipcclComm_t comm, zipcclStream_t stream) {
    struct collective o;
    zipcclResult_t r = collective_begin(&o, "zipcclAllGatherv", zipcclOpAllGatherv, comm, stream, dtype);
    if (r == zipcclSuccess)
        r = collective_take_counts(&o, comm, counts, &o.recv_bytes, &o.send_bytes);
    o.shape = SEND_IN_RECV;
    if (r == zipcclSuccess)
        r = collective_buffers(&o, comm, sendbuff, recvbuff);
    return collective_submit(&o, r, comm, stream);
}

zipcclResult_t zipcclBroadcast(const void *sendbuff, void *recvbuff, size_t count, zipcclDataType_t dtype, int root,
                               zipcclComm_t comm, zipcclStream_t stream) {
    struct collective o;
    zipcclResult_t r = collective_begin(&o, "zipcclBroadcast", zipcclOpBroadcast, comm, stream, dtype);
    if (r == zipcclSuccess)
        r = collective_root(&o, comm, "root", root);
    if (r == zipcclSuccess)
        r = collective_bytes(&o, comm, "count", count, 1, &o.recv_bytes);
    if (r == zipcclSuccess) {
        o.shape = SEND_IN_RECV;
        o.count = count;
        o.root = root;
        o.send_bytes = comm->rank == root ? o.recv_bytes : 0;
        r = collective_buffers(&o, comm, sendbuff, recvbuff);
    }
    return collective_submit(&o, r, comm, stream);
}

zipcclResult_t zipcclBarrier(zipcclComm_t comm, zipcclStream_t stream) {
    struct collective o;
    zipcclResult_t r = collective_begin(&o, "zipcclBarrier", zipcclOpBarrier, comm, stream, zipcclUint8);
    if (r == zipcclSuccess && group_is_open())
        r = fail_comm(comm, zipcclInvalidUsage, "zipcclBarrier: not inside a group: call zipcclGroupEnd first");
    return collective_submit(&o, r, comm, stream);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The operations that are made of transfers between pairs of ranks.
 */
#include <stdlib.h>
#include <string.h>

#include "client/lib/collective.h"

zipcclResult_t zipcclAllToAll(const void *sendbuff, void *recvbuff, size_t count, zipcclDataType_t dtype,
                              zipcclComm_t comm, zipcclStream_t stream) {
    struct collective o;
    zipcclResult_t r = collective_begin(&o, "zipcclAllToAll", zipcclOpAllToAll, comm, stream, dtype);
    if (r == zipcclSuccess)
        r = collective_bytes(&o, comm, "count", count, (size_t)comm->nranks, &o.send_bytes);
    if (r == zipcclSuccess) {
        o.count = count;
        o.recv_bytes = o.send_bytes;
        r = collective_buffers(&o, comm, sendbuff, recvbuff);
    }
    return collective_submit(&o, r, comm, stream);
}

/* One side of an all-to-all-v: its counts and offsets to the frame, and how far it reaches. */
static zipcclResult_t take_side(struct collective *o, zipcclComm_t comm, const char *side, const size_t *counts,
                                const size_t *displs, uint64_t *out, size_t *bytes) {
    size_t n = (size_t)comm->nranks, width = collective_dtypes[o->dtype].bytes, next = 0, end;
    *bytes = 0;
    if (!counts)
        return fail_comm(comm, zipcclInvalidArgument, "%s: %scounts is NULL", o->name, side);
    for (size_t i = 0; i < n; i++) {
        size_t offset = displs ? displs[i] : next;
        out[i] = counts[i];
        out[n + i] = counts[i] || !displs ? offset : 0; /* where nothing goes does not matter */
        if (!counts[i])
            continue;
        if (__builtin_add_overflow(offset, counts[i], &end) || end > PTRDIFF_MAX / width)
            return fail_comm(comm, zipcclInvalidArgument,
                             "%s: %scounts[%zu] is %zu, at %zu: too large, no buffer holds that many %s values",
                             o->name, side, i, counts[i], offset, collective_dtypes[o->dtype].name);
        next = end;
        if (end * width > *bytes)
            *bytes = end * width;
    }
    return zipcclSuccess;
}

struct part {
    uint64_t offset, count;
    size_t rank;
};

static int by_offset(const void *a, const void *b) {
    const struct part *x = a, *y = b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* What two ranks send must not arrive in one place. */
static zipcclResult_t check_apart(const struct collective *o, zipcclComm_t comm, const uint64_t *counts,
                                  const uint64_t *offsets) {
    size_t n = (size_t)comm->nranks, used = 0;
    zipcclResult_t r = zipcclSuccess;
    struct part *parts = malloc(n * sizeof *parts);
    if (!parts)
        return fail_comm(comm, zipcclOutOfMemory, "%s: no memory for the counts of %d ranks", o->name, comm->nranks);
    for (size_t i = 0; i < n; i++)
        if (counts[i])
            parts[used++] = (struct part){.offset = offsets[i], .count = counts[i], .rank = i};
    qsort(parts, used, sizeof *parts, by_offset);
    for (size_t i = 1; i < used && r == zipcclSuccess; i++)
        if (parts[i].offset - parts[i - 1].offset < parts[i - 1].count)
            r = fail_comm(comm, zipcclInvalidArgument,
                          "%s: what ranks %zu and %zu send would overlap in recvbuff: see recvdispls and recvcounts",
                          o->name, parts[i - 1].rank, parts[i].rank);
    free(parts);
    return r;
}

zipcclResult_t zipcclAllToAllv(const void *sendbuff, const size_t *sendcounts, const size_t *senddispls, void *recvbuff,
                               const size_t *recvcounts, const size_t *recvdispls, zipcclDataType_t dtype,
                               zipcclComm_t comm, zipcclStream_t stream) {
    struct collective o;
    zipcclResult_t r = collective_begin(&o, "zipcclAllToAllv", zipcclOpAllToAllv, comm, stream, dtype);
    if (r == zipcclSuccess)
        r = collective_frame(&o, comm, 4 * (size_t)comm->nranks);
    if (r == zipcclSuccess) {
        size_t n = (size_t)comm->nranks;
        uint64_t *out = collective_counts(&o);
        r = take_side(&o, comm, "send", sendcounts, senddispls, out, &o.send_bytes);
        if (r == zipcclSuccess)
            r = take_side(&o, comm, "recv", recvcounts, recvdispls, out + 2 * n, &o.recv_bytes);
        if (r == zipcclSuccess && recvdispls)
            r = check_apart(&o, comm, out + 2 * n, out + 3 * n);
    }
    if (r == zipcclSuccess)
        r = collective_buffers(&o, comm, sendbuff, recvbuff);
    return collective_submit(&o, r, comm, stream);
}

/* The counts of a capped operation, whose buffers were taken. */
static zipcclResult_t take_count_buffers(struct collective *o, zipcclComm_t comm, const uint64_t *send,
                                         uint64_t *recv) {
    size_t bytes = (size_t)comm->nranks * sizeof *send;
    const char *missing = !send ? "sendcounts" : !recv ? "recvcounts" : NULL;
    const char *odd = (uintptr_t)send % sizeof *send   ? "sendcounts"
                      : (uintptr_t)recv % sizeof *recv ? "recvcounts"
                                                       : NULL;
    const char *over = NULL;
    if (missing)
        return fail_comm(comm, zipcclInvalidArgument, "%s: %s is NULL", o->name, missing);
    if (odd)
        return fail_comm(comm, zipcclInvalidArgument, "%s: %s is not aligned to %zu bytes", o->name, odd, sizeof *send);
    if (memory_overlaps(recv, bytes, send, bytes))
        over = "recvcounts overlaps sendcounts";
    else if (memory_overlaps(recv, bytes, o->send, o->send_bytes))
        over = "recvcounts overlaps sendbuff";
    else if (memory_overlaps(recv, bytes, o->recv, o->recv_bytes))
        over = "recvcounts overlaps recvbuff";
    else if (memory_overlaps(send, bytes, o->recv, o->recv_bytes))
        over = "sendcounts overlaps recvbuff";
    if (over)
        return fail_comm(comm, zipcclInvalidArgument, "%s: %s: use memory of its own", o->name, over);
    o->send_counts = send;
    o->recv_counts = recv;
    return zipcclSuccess;
}

zipcclResult_t zipcclAllToAllCapped(const void *sendbuff, const uint64_t *sendcounts, void *recvbuff,
                                    uint64_t *recvcounts, size_t max_count, zipcclDataType_t dtype, zipcclComm_t comm,
                                    zipcclStream_t stream) {
    struct collective o;
    zipcclResult_t r = collective_begin(&o, "zipcclAllToAllCapped", zipcclOpAllToAllCapped, comm, stream, dtype);
    if (r == zipcclSuccess)
        r = collective_bytes(&o, comm, "max_count", max_count, (size_t)comm->nranks, &o.send_bytes);
    if (r == zipcclSuccess) {
        o.count = max_count;
        o.recv_bytes = o.send_bytes;
        r = collective_buffers(&o, comm, sendbuff, recvbuff);
    }
    if (r == zipcclSuccess)
        r = take_count_buffers(&o, comm, sendcounts, recvcounts);
    return collective_submit(&o, r, comm, stream);
}

/* Gather and scatter: one part of every rank, all of them on the root, where the part may lie among them. */
static zipcclResult_t rooted(struct collective *o, zipcclComm_t comm, size_t count, int root, size_t *part,
                             size_t *all) {
    zipcclResult_t r = collective_root(o, comm, "root", root);
    if (r == zipcclSuccess)
        r = collective_bytes(o, comm, "count", count, (size_t)comm->nranks, all);
    if (r != zipcclSuccess)
        return r;
    o->count = count;
    o->root = root;
    *part = *all / (size_t)comm->nranks;
    o->own = *part * (size_t)comm->rank;
    if (comm->rank != root)
        *all = 0;
    return zipcclSuccess;
}

zipcclResult_t zipcclGather(const void *sendbuff, void *recvbuff, size_t count, zipcclDataType_t dtype, int root,
                            zipcclComm_t comm, zipcclStream_t stream) {
    struct collective o;
    zipcclResult_t r = collective_begin(&o, "zipcclGather", zipcclOpGather, comm, stream, dtype);
    if (r == zipcclSuccess)
        r = rooted(&o, comm, count, root, &o.send_bytes, &o.recv_bytes);
    o.shape = SEND_IN_RECV;
    if (r == zipcclSuccess)
        r = collective_buffers(&o, comm, sendbuff, recvbuff);
    return collective_submit(&o, r, comm, stream);
}

zipcclResult_t zipcclScatter(const void *sendbuff, void *recvbuff, size_t count, zipcclDataType_t dtype, int root,
                             zipcclComm_t comm, zipcclStream_t stream) {
    struct collective o;
    zipcclResult_t r = collective_begin(&o, "zipcclScatter", zipcclOpScatter, comm, stream, dtype);
    if (r == zipcclSuccess)
        r = rooted(&o, comm, count, root, &o.recv_bytes, &o.send_bytes);
    o.shape = RECV_IN_SEND;
    if (r == zipcclSuccess)
        r = collective_buffers(&o, comm, sendbuff, recvbuff);
    return collective_submit(&o, r, comm, stream);
}

/* The description of a send or a receive but for its buffer. */
static zipcclResult_t pairwise(struct collective *o, zipcclComm_t comm, size_t count, int peer, size_t *bytes) {
    zipcclResult_t r = collective_root(o, comm, "peer", peer);
    if (r == zipcclSuccess)
        r = collective_bytes(o, comm, "count", count, 1, bytes);
    if (r != zipcclSuccess)
        return r;
    if (peer == comm->rank && !group_is_open())
        return fail_comm(comm, zipcclInvalidUsage,
                         "%s: peer %d is this rank, which would wait for itself: put send and receive in a group",
                         o->name, peer);
    o->count = count;
    o->root = peer;
    return zipcclSuccess;
}

zipcclResult_t zipcclSend(const void *sendbuff, size_t count, zipcclDataType_t dtype, int peer, zipcclComm_t comm,
                          zipcclStream_t stream) {
    struct collective o;
    zipcclResult_t r = collective_begin(&o, "zipcclSend", zipcclOpSend, comm, stream, dtype);
    if (r == zipcclSuccess)
        r = pairwise(&o, comm, count, peer, &o.send_bytes);
    if (r == zipcclSuccess)
        r = collective_buffers(&o, comm, sendbuff, NULL);
    return collective_submit(&o, r, comm, stream);
}

zipcclResult_t zipcclRecv(void *recvbuff, size_t count, zipcclDataType_t dtype, int peer, zipcclComm_t comm,
                          zipcclStream_t stream) {
    struct collective o;
    zipcclResult_t r = collective_begin(&o, "zipcclRecv", zipcclOpRecv, comm, stream, dtype);
    if (r == zipcclSuccess)
        r = pairwise(&o, comm, count, peer, &o.recv_bytes);
    if (r == zipcclSuccess)
        r = collective_buffers(&o, comm, NULL, recvbuff);
    return collective_submit(&o, r, comm, stream);
}

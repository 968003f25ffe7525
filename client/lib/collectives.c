/* SPDX-License-Identifier: Apache-2.0
 *
 * The collectives: checks of the arguments, and from there one fixed frame to the daemon.
 *
 * On memory of zipcclMemAlloc nothing is allocated or copied. Other memory goes through staging: copied in here, and
 * out when the operation is finished.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "client/lib/internal.h"
#include "proto/op.h"
#include "proto/result.h"

#define PUMP_ABOVE 16u   /* outstanding operations after which a call also reads completions */
#define SENT_MAX   1000u /* ... and after which it waits for one: the daemon refuses more than 1024 of a rank */

static const struct {
    uint8_t bytes;
    const char *name;
} dtypes[zipcclNumTypes] = {
    [zipcclInt8] = {1, "int8"},         [zipcclUint8] = {1, "uint8"},           [zipcclInt32] = {4, "int32"},
    [zipcclUint32] = {4, "uint32"},     [zipcclInt64] = {8, "int64"},           [zipcclUint64] = {8, "uint64"},
    [zipcclFloat16] = {2, "float16"},   [zipcclFloat32] = {4, "float32"},       [zipcclFloat64] = {8, "float64"},
    [zipcclBfloat16] = {2, "bfloat16"}, [zipcclFloat8e4m3] = {1, "float8e4m3"}, [zipcclFloat8e5m2] = {1, "float8e5m2"},
};

struct collective {
    zipcclOp_t kind;
    zipcclDataType_t dtype;
    size_t count;
    int root;
    const void *send; /* NULL: this rank gives nothing */
    void *recv;
    size_t send_bytes, recv_bytes;
    size_t own; /* where in recv the own part belongs */
};

/* Where an operation's data is, while it is made ready. */
struct ready {
    struct place send, recv;
    struct region *staging[2];
    const void *copy_from; /* into shared memory, before it starts */
    void *copy_to;
    size_t copy_bytes;
    bool copy_out;
};

static bool overlap(const void *a, size_t na, const void *b, size_t nb) {
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return na && nb && x < y + nb && y < x + na;
}

/* Finds shared memory for [p, p + bytes), or staging that stands in for it. */
static zipcclResult_t settle(const void *p, size_t bytes, struct place *place, struct region **staging) {
    zipcclResult_t r = memory_find(p, bytes, place);
    if (r == zipcclSuccess && !place->region) {
        r = staging_take(bytes, &place->region);
        place->offset = 0;
        place->staged = r == zipcclSuccess;
    }
    if (r == zipcclSuccess && place->staged)
        *staging = place->region;
    return r;
}

static void copy_in(struct ready *w, const struct collective *o, const struct place *to) {
    w->copy_from = o->send;
    w->copy_to = to->region->base + to->offset;
    w->copy_bytes = o->send_bytes;
}

/* Decides where the daemon reads and writes. */
static zipcclResult_t make_ready(struct zipcclComm *c, const struct collective *o, struct ready *w) {
    memset(w, 0, sizeof *w);
    if (!o->recv_bytes)
        return zipcclSuccess;
    bool in_place = o->send == (const uint8_t *)o->recv + o->own;
    zipcclResult_t r = settle(o->recv, o->recv_bytes, &w->recv, &w->staging[0]);
    if (r != zipcclSuccess)
        return r;
    struct place own = {.region = w->recv.region, .offset = w->recv.offset + o->own};
    /* An in-place root receives what it has. */
    w->copy_out = w->recv.staged && !(in_place && o->send_bytes == o->recv_bytes);
    if (!o->send)
        return zipcclSuccess;
    if (in_place) {
        w->send = own;
        if (w->recv.staged)
            copy_in(w, o, &own);
        return zipcclSuccess;
    }
    r = memory_find(o->send, o->send_bytes, &w->send);
    if (r != zipcclSuccess || (w->send.region && !w->send.staged))
        return r;
    /* Memory that must be copied goes straight to its place in the result, unless an earlier operation may still
     * read from there. */
    if (w->recv.staged || !c->nops) {
        if (w->send.staged)
            staging_give(w->send.region);
        w->send = own;
    } else if (!w->send.region) {
        r = staging_take(o->send_bytes, &w->send.region);
        if (r != zipcclSuccess)
            return r;
        w->staging[1] = w->send.region;
    } else {
        w->staging[1] = w->send.region;
    }
    copy_in(w, o, &w->send);
    return zipcclSuccess;
}

static bool op_ended(void *arg) {
    return ((const struct op *)arg)->state != OP_SENT;
}

static bool may_send(void *arg) {
    const struct zipcclComm *c = arg;
    return c->nsent < SENT_MAX || c->failed != zipcclSuccess;
}

/* An operation on this stream is still to write what this one reads, or belongs to another communicator. */
static bool must_wait_first(const struct zipcclStream *stream, const struct zipcclComm *c, const struct collective *o) {
    if (stream->first && stream->first->comm != c)
        return true;
    for (const struct op *op = stream->first; op; op = op->next_in_stream)
        if (op->copy_to && overlap(op->copy_to, op->copy_bytes, o->send, o->send ? o->send_bytes : 0))
            return true;
    return false;
}

static zipcclResult_t say(struct zipcclComm *c, const struct collective *o, uint64_t seq, zipcclResult_t r,
                          const char *why) {
    if (o->kind == zipcclOpBarrier)
        return fail_comm(c, r, "barrier #%" PRIu64 ": %.380s", seq, why);
    return fail_comm(c, r, "%s #%" PRIu64 " of %zu %s: %.380s", op_name(o->kind), seq, o->count, dtypes[o->dtype].name,
                     why);
}

/* Sends the request; the op is then on its way, or done with an error. */
static zipcclResult_t send_request(struct zipcclComm *c, const struct collective *o, const struct ready *w,
                                   struct op **out) {
    struct binding *send = NULL, *recv = NULL;
    struct session *s = c->session;
    zipcclResult_t r = zipcclSuccess;
    if (w->recv.region)
        r = region_bind(w->recv.region, s, &recv);
    if (r == zipcclSuccess && w->send.region)
        r = region_bind(w->send.region, s, &send);
    if (r == zipcclSuccess && c->failed != zipcclSuccess)
        r = fail_thread(c->failed, "%s", c->fail_text);
    if (r != zipcclSuccess)
        return r;
    struct op *op = op_new(c);
    if (!op)
        return fail_thread(zipcclOutOfMemory, "no memory for an operation");
    op->seq = ++c->seq;
    op->kind = o->kind;
    op->dtype = o->dtype;
    op->count = o->count;
    op->uses[0] = recv;
    op->uses[1] = send;
    for (int i = 0; i < 2; i++) {
        op->staging[i] = w->staging[i];
        if (op->uses[i])
            op->uses[i]->users++;
    }
    if (w->copy_out) {
        op->copy_from = w->recv.region->base + w->recv.offset;
        op->copy_to = o->recv;
        op->copy_bytes = o->recv_bytes;
    }
    struct wire_request q = {.comm = c->handle,
                             .seq = op->seq,
                             .count = o->count,
                             .send_buffer = send ? send->buffer : 0,
                             .send_offset = w->send.offset,
                             .recv_buffer = recv ? recv->buffer : 0,
                             .recv_offset = w->recv.offset,
                             .op = (uint16_t)o->kind,
                             .dtype = (uint16_t)o->dtype,
                             .codec = (uint16_t)c->codec,
                             .root = (uint32_t)o->root,
                             .client_ns = (uint64_t)client_now_ns()};
    r = session_send(s, WIRE_REQUEST, 0, &q, sizeof q, NULL, 0);
    if (r != zipcclSuccess && s->conn)
        session_die(s, frame_conn_why(s->conn)); /* a gap in seq cannot be mended */
    *out = op;
    return zipcclSuccess;
}

static zipcclResult_t submit(struct zipcclComm *c, struct zipcclStream *stream, const struct collective *o) {
    struct ready w;
    struct op *op = NULL;
    memset(&w, 0, sizeof w);
    (void)pthread_mutex_lock(&client_lock);
    c->users++;
    if (c->nops > PUMP_ABOVE)
        (void)session_pump(c->session);
    zipcclResult_t r = c->failed;
    if (r != zipcclSuccess) {
        (void)say(c, o, c->seq + 1, r, c->fail_text);
        goto out;
    }
    if (stream) {
        stream_reap(stream);
        if (must_wait_first(stream, c, o))
            stream_drain(stream);
    }
    if (!may_send(c)) {
        zipcclResult_t room = session_wait(c->session, may_send, c, CLIENT_FOREVER);
        (void)room; /* a communicator that failed meanwhile sends nothing */
    }
    r = make_ready(c, o, &w);
    if (r == zipcclSuccess && w.copy_bytes) {
        (void)pthread_mutex_unlock(&client_lock);
        memcpy(w.copy_to, w.copy_from, w.copy_bytes);
        (void)pthread_mutex_lock(&client_lock);
    }
    if (r == zipcclSuccess)
        r = send_request(c, o, &w, &op);
    if (r != zipcclSuccess || !op) {
        for (int i = 0; i < 2; i++)
            if (w.staging[i])
                staging_give(w.staging[i]);
        (void)say(c, o, c->seq + 1, r, thread_error());
        goto out;
    }
    if (stream) {
        stream_add(stream, op);
        goto out;
    }
    zipcclResult_t waited = session_wait(c->session, op_ended, op, CLIENT_FOREVER);
    (void)waited; /* however the wait ended, op->result says how the operation did */
    r = op->result;
    if (r != zipcclSuccess)
        (void)say(c, o, op->seq, r, op->text);
    op_finish(op);
out:
    c->users--;
    if (c->failed != zipcclSuccess)
        client_notify(); /* an abort may wait for us */
    (void)pthread_mutex_unlock(&client_lock);
    return r;
}

/* What holds for all collectives. */
static zipcclResult_t check(const char *name, zipcclComm_t comm, zipcclStream_t stream, zipcclDataType_t dtype) {
    if (!comm || comm->magic != CLIENT_COMM_MAGIC)
        return fail_thread(zipcclInvalidArgument, "%s: comm is %s", name,
                           comm ? "not a communicator, or was freed" : "NULL");
    if (stream && stream->magic != CLIENT_STREAM_MAGIC)
        return fail_comm(comm, zipcclInvalidArgument, "%s: stream is not a stream of zipccl", name);
    if ((unsigned)dtype >= zipcclNumTypes)
        return fail_comm(comm, zipcclInvalidArgument, "%s: dtype %d does not exist", name, (int)dtype);
    return zipcclSuccess;
}

zipcclResult_t zipcclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount, zipcclDataType_t dtype,
                               zipcclComm_t comm, zipcclStream_t stream) {
    struct collective o = {.kind = zipcclOpAllGather, .dtype = dtype, .count = sendcount};
    zipcclResult_t r = check("zipcclAllGather", comm, stream, dtype);
    if (r != zipcclSuccess)
        return r;
    if (__builtin_mul_overflow(sendcount, (size_t)dtypes[dtype].bytes, &o.send_bytes) ||
        __builtin_mul_overflow(o.send_bytes, (size_t)comm->nranks, &o.recv_bytes) || o.recv_bytes > PTRDIFF_MAX)
        return fail_comm(comm, zipcclInvalidArgument, "zipcclAllGather: sendcount %zu is too large", sendcount);
    if (sendcount) {
        if (!sendbuff || !recvbuff)
            return fail_comm(comm, zipcclInvalidArgument, "zipcclAllGather: %s is NULL, sendcount is %zu",
                             sendbuff ? "recvbuff" : "sendbuff", sendcount);
        o.own = o.send_bytes * (size_t)comm->rank;
        o.send = sendbuff;
        o.recv = recvbuff;
        if (o.send != (const uint8_t *)recvbuff + o.own && overlap(sendbuff, o.send_bytes, recvbuff, o.recv_bytes))
            return fail_comm(comm, zipcclInvalidArgument,
                             "zipcclAllGather: sendbuff %p overlaps recvbuff %p, but is not its part of rank %d",
                             sendbuff, recvbuff, comm->rank);
    }
    return submit(comm, stream, &o);
}

zipcclResult_t zipcclBroadcast(const void *sendbuff, void *recvbuff, size_t count, zipcclDataType_t dtype, int root,
                               zipcclComm_t comm, zipcclStream_t stream) {
    struct collective o = {.kind = zipcclOpBroadcast, .dtype = dtype, .count = count, .root = root};
    zipcclResult_t r = check("zipcclBroadcast", comm, stream, dtype);
    if (r != zipcclSuccess)
        return r;
    if (root < 0 || root >= comm->nranks)
        return fail_comm(comm, zipcclInvalidArgument, "zipcclBroadcast: root %d is not a rank of %d", root,
                         comm->nranks);
    if (__builtin_mul_overflow(count, (size_t)dtypes[dtype].bytes, &o.recv_bytes) || o.recv_bytes > PTRDIFF_MAX)
        return fail_comm(comm, zipcclInvalidArgument, "zipcclBroadcast: count %zu is too large", count);
    if (count) {
        bool is_root = comm->rank == root;
        if (!recvbuff || (is_root && !sendbuff))
            return fail_comm(comm, zipcclInvalidArgument, "zipcclBroadcast: %s is NULL, count is %zu",
                             recvbuff ? "sendbuff" : "recvbuff", count);
        o.recv = recvbuff;
        if (is_root) {
            o.send = sendbuff;
            o.send_bytes = o.recv_bytes;
            if (sendbuff != recvbuff && overlap(sendbuff, o.send_bytes, recvbuff, o.recv_bytes))
                return fail_comm(comm, zipcclInvalidArgument,
                                 "zipcclBroadcast: sendbuff %p overlaps recvbuff %p, but is not equal to it", sendbuff,
                                 recvbuff);
        }
    }
    return submit(comm, stream, &o);
}

zipcclResult_t zipcclBarrier(zipcclComm_t comm, zipcclStream_t stream) {
    struct collective o = {.kind = zipcclOpBarrier, .dtype = zipcclUint8};
    zipcclResult_t r = check("zipcclBarrier", comm, stream, o.dtype);
    return r == zipcclSuccess ? submit(comm, stream, &o) : r;
}

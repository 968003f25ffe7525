/* SPDX-License-Identifier: Apache-2.0
 *
 * From described operations to frames.
 *
 * On memory of zipcclMemAlloc, or of a GPU that can be shared, nothing is allocated or copied. Other memory goes
 * through staging: copied in here, and out when the operation is finished. Whatever can fail comes before the first
 * frame of a batch: all or none are sent.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/collective.h"
#include "client/lib/cuda.h"
#include "proto/op.h"

#define PUMP_ABOVE 16u   /* outstanding operations after which a call also reads completions */
#define SENT_MAX   1000u /* ... and after which it waits for one: the daemon refuses more than 1024 of a rank */

static zipcclResult_t say(struct zipcclComm *c, const struct collective *o, uint64_t seq, zipcclResult_t r,
                          const char *why) {
    const char *dtype = collective_dtypes[o->dtype].name;
    if (o->kind == zipcclOpBarrier)
        return fail_comm(c, r, "barrier #%" PRIu64 ": %.380s", seq, why);
    if (o->frame || o->ncounts)
        return fail_comm(c, r, "%s #%" PRIu64 " of %s: %.380s", op_name(o->kind), seq, dtype, why);
    return fail_comm(c, r, "%s #%" PRIu64 " of %zu %s: %.380s", op_name(o->kind), seq, o->count, dtype, why);
}

/* An operation while it is made ready. */
struct ready {
    struct op *op;
    struct session *session;
    struct cuda_stream *cuda; /* NULL: it is in no CUDA stream */
    struct place places[OP_PLACES];
    struct copy in, in_counts; /* before it starts, the counts first */
};

static zipcclResult_t find(const struct ready *w, const void *p, size_t bytes, struct place *place) {
    zipcclResult_t r = memory_find(p, bytes, place);
    if (r == zipcclSuccess && w->cuda && place->region)
        cuda_pin(w->cuda, place->region);
    return r == zipcclSuccess && (!place->region || place->staged) ? cuda_find(w->session, w->cuda, p, bytes, place)
                                                                   : r;
}

static zipcclResult_t stage(const struct ready *w, size_t bytes, struct region **region) {
    zipcclResult_t r = staging_take(bytes, region);
    if (r == zipcclSuccess && w->cuda)
        cuda_pin(w->cuda, *region);
    return r;
}

/* Finds shared memory for [p, p + bytes), or staging that stands in for it. for_host: the daemon's processor reads it.
 */
static zipcclResult_t settle(const struct ready *w, const void *p, size_t bytes, bool for_host, struct place *place,
                             struct region **staging) {
    zipcclResult_t r = find(w, p, bytes, place);
    if (r == zipcclSuccess && for_host && place->region && place->region->kind == REGION_GPU)
        *place = (struct place){0};
    if (r == zipcclSuccess && !place->region) {
        r = stage(w, bytes, &place->region);
        place->offset = 0;
        place->staged = place->region;
    }
    if (r == zipcclSuccess && place->staged)
        *staging = place->region;
    return r;
}

static uint8_t *address(const struct place *place) {
    return place->region->base + place->offset;
}

/* Of an all-to-all-v only the parts are copied: what lies between them in the user's buffer is the user's. */
static void copy_set(struct copy *copy, const struct zipcclComm *c, const struct collective *o, bool receives) {
    size_t n = (size_t)c->nranks;
    if (o->kind != zipcclOpAllToAllv)
        return;
    copy->counts = collective_counts(o) + (receives ? 2 * n : 0);
    copy->offsets = copy->counts + n;
    copy->nparts = n;
    copy->width = collective_dtypes[o->dtype].bytes;
}

static void copy_in(struct ready *w, const struct zipcclComm *c, const struct collective *o) {
    w->in = (struct copy){.from = o->send, .to = address(&w->places[PLACE_SEND]), .bytes = o->send_bytes};
    copy_set(&w->in, c, o, false);
}

static void copy_out(struct ready *w, const struct zipcclComm *c, const struct collective *o) {
    w->op->out = (struct copy){.from = address(&w->places[PLACE_RECV]), .to = o->recv, .bytes = o->recv_bytes};
    copy_set(&w->op->out, c, o, true);
}

/* The outer buffer holds both. */
static zipcclResult_t place_in_place(struct zipcclComm *c, const struct collective *o, struct ready *w) {
    bool outer_is_recv = o->shape == SEND_IN_RECV;
    struct place *outer = &w->places[outer_is_recv ? PLACE_RECV : PLACE_SEND];
    struct place *inner = &w->places[outer_is_recv ? PLACE_SEND : PLACE_RECV];
    zipcclResult_t r = settle(w, outer_is_recv ? o->recv : o->send, outer_is_recv ? o->recv_bytes : o->send_bytes,
                              false, outer, &w->op->staging[PLACE_RECV]);
    if (r != zipcclSuccess)
        return r;
    *inner = *outer;
    inner->offset += o->own;
    if (!outer->staged)
        return zipcclSuccess;
    copy_in(w, c, o);
    /* Where the data only moves, a rank that receives its own part alone has it already. */
    if (op_reduces(o->kind) || (outer_is_recv && o->send_bytes != o->recv_bytes))
        copy_out(w, c, o);
    return zipcclSuccess;
}

/* Decides where the daemon reads and writes. */
static zipcclResult_t place_buffers(struct zipcclComm *c, const struct collective *o, struct ready *w) {
    struct place *send = &w->places[PLACE_SEND], *recv = &w->places[PLACE_RECV];
    zipcclResult_t r;
    if (o->send && o->recv && collective_in_place(o))
        return place_in_place(c, o, w);
    if (o->recv) {
        r = settle(w, o->recv, o->recv_bytes, false, recv, &w->op->staging[PLACE_RECV]);
        if (r != zipcclSuccess)
            return r;
        if (recv->staged)
            copy_out(w, c, o);
    }
    if (!o->send)
        return zipcclSuccess;
    r = find(w, o->send, o->send_bytes, send);
    if (r != zipcclSuccess || (send->region && !send->staged))
        return r;
    /* Memory that must be copied goes straight to its place in the result, unless an earlier operation may still
     * read from there. */
    if (o->recv && o->shape == SEND_IN_RECV && (recv->staged || !c->nops)) {
        if (send->staged)
            staging_give(send->region);
        *send = *recv;
        send->offset += o->own;
    } else {
        if (!send->region)
            r = stage(w, o->send_bytes, &send->region);
        if (r != zipcclSuccess)
            return r;
        w->op->staging[PLACE_SEND] = send->region;
    }
    copy_in(w, c, o);
    return zipcclSuccess;
}

/* Only the counted part of each segment is copied. */
static void copy_counted(struct copy *copy, const struct zipcclComm *c, const struct collective *o,
                         const struct place *counts) {
    copy->counts = (const uint64_t *)(const void *)address(counts);
    copy->stride = o->count;
    copy->nparts = (size_t)c->nranks;
    copy->width = collective_dtypes[o->dtype].bytes;
}

/* The counts of a capped operation, whose buffers have their places. */
static zipcclResult_t place_counts(struct zipcclComm *c, const struct collective *o, struct ready *w) {
    struct place *send = &w->places[PLACE_SEND_COUNTS], *recv = &w->places[PLACE_RECV_COUNTS];
    struct op *op = w->op;
    size_t bytes = (size_t)c->nranks * sizeof(uint64_t);
    if (!o->send_counts)
        return zipcclSuccess;
    /* Its parts are known when the stream comes to it: too late for copies that are enqueued now. */
    if (w->cuda && (w->in.to || op->out.to))
        return fail_thread(
            zipcclInvalidArgument,
            "sendbuff or recvbuff is memory that zipccld cannot share: use cudaMalloc, or exportable VMM");
    zipcclResult_t r = settle(w, o->recv_counts, bytes, true, recv, &op->staging[PLACE_RECV_COUNTS]);
    /* What is copied out at the end goes by these counts: a later operation may have written its own by then. */
    if (r == zipcclSuccess && op->out.to && !recv->staged) {
        *recv = (struct place){.staged = true};
        r = stage(w, bytes, &recv->region);
        if (r == zipcclSuccess)
            op->staging[PLACE_RECV_COUNTS] = recv->region;
    }
    if (r != zipcclSuccess)
        return r;
    if (op->out.to)
        copy_counted(&op->out, c, o, recv);
    if (recv->staged)
        op->out_counts = (struct copy){.from = address(recv), .to = (uint8_t *)o->recv_counts, .bytes = bytes};
    r = settle(w, o->send_counts, bytes, true, send, &op->staging[PLACE_SEND_COUNTS]);
    if (r != zipcclSuccess || !send->staged)
        return r;
    w->in_counts = (struct copy){.from = (const uint8_t *)o->send_counts, .to = address(send), .bytes = bytes};
    if (w->in.to)
        copy_counted(&w->in, c, o, send);
    return zipcclSuccess;
}

static zipcclResult_t bind_place(struct zipcclComm *c, const struct place *place, struct binding **use) {
    zipcclResult_t r = place->region ? region_bind(place->region, c->session, use) : zipcclSuccess;
    if (r == zipcclSuccess && *use)
        (*use)->users++;
    return r;
}

/* All but the sending. May drop the lock. */
static zipcclResult_t prepare(struct batch *b, struct note *n) {
    struct zipcclComm *c = b->comm;
    struct ready w;
    memset(&w, 0, sizeof w);
    w.session = c->session;
    w.cuda = b->stream ? b->stream->cuda : NULL;
    w.op = n->op = op_new(c);
    if (!n->op)
        return fail_thread(zipcclOutOfMemory, "no memory for an operation");
    w.op->kind = n->o.kind;
    zipcclResult_t r = place_buffers(c, &n->o, &w);
    if (r == zipcclSuccess)
        r = place_counts(c, &n->o, &w);
    for (int i = 0; r == zipcclSuccess && i < OP_PLACES; i++) {
        r = bind_place(c, &w.places[i], &w.op->uses[i]);
        w.op->offsets[i] = w.places[i].offset;
    }
    if (r != zipcclSuccess)
        return r;
    w.op->frame = n->o.frame;
    n->o.frame = NULL;
    if (w.cuda) {
        r = cuda_copy(w.cuda, &w.in_counts);
        return r == zipcclSuccess ? cuda_copy(w.cuda, &w.in) : r;
    }
    if (w.in.to || w.in_counts.to) {
        (void)pthread_mutex_unlock(&client_lock);
        copy_run(&w.in_counts);
        copy_run(&w.in);
        (void)pthread_mutex_lock(&client_lock);
    }
    return zipcclSuccess;
}

static uint64_t buffer_of(const struct op *op, enum op_place place) {
    return op->uses[place] ? op->uses[place]->buffer : 0;
}

/* Sends the request; the op is then on its way, or done with an error. */
static void send_request(struct batch *b, const struct note *n) {
    struct zipcclComm *c = b->comm;
    struct session *s = c->session;
    const struct collective *o = &n->o;
    struct op *op = n->op;
    bool capped = o->send_counts;
    struct wire_request q = {.comm = c->handle,
                             .seq = ++c->seq,
                             .count = capped ? 0 : o->count,
                             .send_buffer = buffer_of(op, PLACE_SEND),
                             .send_offset = op->offsets[PLACE_SEND],
                             .recv_buffer = buffer_of(op, PLACE_RECV),
                             .recv_offset = op->offsets[PLACE_RECV],
                             .max_count = capped ? o->count : 0,
                             .scalar = o->scalar,
                             .op = (uint16_t)o->kind,
                             .dtype = (uint16_t)o->dtype,
                             .codec = (uint16_t)o->codec,
                             .flags = n->next ? WIRE_GROUP_MORE : 0,
                             .root = (uint32_t)o->root,
                             .redop = (uint8_t)o->redop,
                             .arm = (uint8_t)o->arm,
                             .client_ns = (uint64_t)client_now_ns()};
    struct {
        struct wire_request request;
        struct wire_counts counts;
        struct wire_point point;
    } with_counts;
    struct wire_request *frame = op->frame ? op->frame : &with_counts.request;
    size_t bytes = sizeof q + o->ncounts * sizeof(uint64_t);
    bool pointed = b->point.ticket && !n->next; /* the last one speaks for the batch */
    q.flags |= pointed ? WIRE_ON_STREAM : 0;
    *frame = q;
    if (capped) {
        with_counts.counts = (struct wire_counts){.send_buffer = buffer_of(op, PLACE_SEND_COUNTS),
                                                  .send_offset = op->offsets[PLACE_SEND_COUNTS],
                                                  .recv_buffer = buffer_of(op, PLACE_RECV_COUNTS),
                                                  .recv_offset = op->offsets[PLACE_RECV_COUNTS]};
        bytes = sizeof q + sizeof with_counts.counts;
    }
    if (pointed) {
        memcpy((uint8_t *)frame + bytes, &b->point, sizeof b->point);
        bytes += sizeof b->point;
    }
    op->seq = q.seq;
    op->ticket = b->point.ticket;
    op->ends_batch = pointed;
    op->unfollowed = b->point.ticket;
    op_link(op);
    if (b->stream)
        stream_add(b->stream, op);
    /* It may have failed while earlier ones of the group were sent. */
    if (c->failed != zipcclSuccess) {
        op_complete(op, c->failed, c->fail_text, true);
        return;
    }
    zipcclResult_t r = session_send(s, WIRE_REQUEST, 0, frame, bytes, NULL, 0);
    if (r != zipcclSuccess && s->conn)
        session_die(s, frame_conn_why(s->conn)); /* a gap in seq cannot be mended */
}

/* Whether the end of the operation copies to there. */
static bool is_to_write(const struct op *op, const void *p, size_t bytes) {
    return p && ((op->out.to && memory_overlaps(op->out.to, op->out.bytes, p, bytes)) ||
                 (op->out_counts.to && memory_overlaps(op->out_counts.to, op->out_counts.bytes, p, bytes)));
}

/* An operation on this stream is still to write what this one reads, or belongs to another communicator. */
static bool must_wait_first(const struct batch *b) {
    if (b->stream->cuda) /* which keeps the order, copies included */
        return false;
    for (const struct op *op = b->stream->first; op; op = op->next_in_stream) {
        if (op->comm != b->comm)
            return true;
        for (const struct note *n = b->first; (op->out.to || op->out_counts.to) && n; n = n->next)
            if (is_to_write(op, n->o.send, n->o.send_bytes) ||
                is_to_write(op, n->o.send_counts, (size_t)b->comm->nranks * sizeof(uint64_t)))
                return true;
    }
    return false;
}

static bool has_room(void *arg) {
    const struct batch *b = arg;
    const struct zipcclComm *c = b->comm;
    return c->failed != zipcclSuccess || !c->nsent || c->nsent + b->n <= SENT_MAX;
}

/* Takes the communicators, and waits for what must come first. */
static zipcclResult_t begin(struct batch *batches, bool grouped) {
    zipcclResult_t r = zipcclSuccess;
    for (struct batch *b = batches; b; b = b->next) {
        if (grouped && !comm_is_live(b->comm)) {
            r = fail_thread(zipcclInvalidUsage, "zipcclGroupEnd: a communicator was freed while its operations were "
                                                "only noted: end the group before");
            b->comm = NULL;
        } else {
            b->comm->users++;
        }
    }
    for (struct batch *b = batches; b && r == zipcclSuccess; b = b->next) {
        if (!b->comm || !b->first) /* neither can be, without an error */
            continue;
        if (b->comm->nops > PUMP_ABOVE)
            (void)session_pump(b->comm->session);
        if (b->comm->failed != zipcclSuccess)
            r = say(b->comm, &b->first->o, b->comm->seq + 1, b->comm->failed, b->comm->fail_text);
    }
    for (struct batch *b = batches; b && r == zipcclSuccess; b = b->next) {
        unsigned ahead = 0;
        for (const struct batch *a = batches; a != b; a = a->next)
            ahead += a->stream == b->stream;
        if (b->stream) {
            stream_reap(b->stream);
            if (must_wait_first(b))
                stream_drain(b->stream);
        }
        if (b->stream && b->stream->cuda) {
            r = cuda_begin(b, ahead);
            if (r != zipcclSuccess)
                r = say(b->comm, &b->first->o, b->comm->seq + 1, r, thread_error());
        }
        if (!has_room(b)) {
            zipcclResult_t room = session_wait(b->comm->session, has_room, b, CLIENT_FOREVER);
            (void)room; /* one that failed meanwhile is noticed later */
        }
    }
    return r;
}

static zipcclResult_t prepare_all(struct batch *batches) {
    for (struct batch *b = batches; b; b = b->next)
        for (struct note *n = b->first; n; n = n->next) {
            zipcclResult_t r = prepare(b, n);
            if (r != zipcclSuccess)
                return say(b->comm, &n->o, b->comm->seq + 1, r, thread_error());
        }
    /* From here on the lock is kept until the first is sent. */
    for (struct batch *b = batches; b; b = b->next)
        if (b->first && b->comm->failed != zipcclSuccess)
            return say(b->comm, &b->first->o, b->comm->seq + 1, b->comm->failed, b->comm->fail_text);
    for (struct batch *b = batches; b; b = b->next) {
        zipcclResult_t r = b->stream && b->stream->cuda ? cuda_record(b->stream->cuda, &b->point) : zipcclSuccess;
        if (r != zipcclSuccess)
            return say(b->comm, &b->first->o, b->comm->seq + 1, r, thread_error());
    }
    return zipcclSuccess;
}

static void release(struct batch *b) {
    struct zipcclComm *c = b->comm;
    if (!c)
        return;
    b->comm = NULL;
    c->users--;
    if (c->failed != zipcclSuccess)
        client_notify(); /* an abort may wait for us */
}

/* Those of a group are done together, so the first of each communicator speaks for the rest. */
static bool one_ended(void *arg) {
    for (const struct batch *b = arg; b; b = b->next)
        if (b->comm && b->waited->op->state != OP_SENT)
            return true;
    return false;
}

/* Waits for all that have no stream, in whatever order the communicators end. */
static zipcclResult_t await(struct batch *batches) {
    zipcclResult_t first = zipcclSuccess;
    for (;;) {
        struct batch *pending = NULL;
        for (struct batch *b = batches; b; b = b->next) {
            while (b->comm && b->waited->op->state != OP_SENT) {
                struct note *n = b->waited;
                if (n->op->result != zipcclSuccess && first == zipcclSuccess)
                    first = say(b->comm, &n->o, n->op->seq, n->op->result, n->op->text);
                op_finish(n->op);
                n->op = NULL;
                b->waited = n->next;
                if (!b->waited)
                    release(b);
            }
            if (b->comm && !pending)
                pending = b;
        }
        if (!pending)
            return first;
        if (!one_ended(batches)) {
            zipcclResult_t waited = session_wait(pending->comm->session, one_ended, batches, CLIENT_FOREVER);
            (void)waited; /* however the wait ended, op->result says how the operation did */
        }
    }
}

zipcclResult_t issue(struct batch *batches, bool grouped) {
    (void)pthread_mutex_lock(&client_lock);
    zipcclResult_t r = begin(batches, grouped);
    if (r == zipcclSuccess)
        r = prepare_all(batches);
    for (struct batch *b = batches; r != zipcclSuccess && b; b = b->next)
        if (b->stream && b->stream->cuda && b->point.ticket)
            cuda_release(b->stream->cuda, b->point.ticket); /* nothing will be sent */
    for (struct batch *b = batches; b; b = b->next) {
        b->waited = b->first;
        for (struct note *n = b->first; n; n = n->next) {
            if (r == zipcclSuccess)
                send_request(b, n);
            else if (n->op)
                op_discard(n->op);
            free(n->o.frame);
            n->o.frame = NULL;
        }
        if (r == zipcclSuccess && b->stream && b->stream->cuda)
            cuda_follow(b);
        if (r != zipcclSuccess || b->stream)
            release(b);
    }
    if (r == zipcclSuccess)
        r = await(batches);
    (void)pthread_mutex_unlock(&client_lock);
    return r;
}

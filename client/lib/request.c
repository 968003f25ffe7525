/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests under way: control calls and collectives, and what their replies do. All with the lock held.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/cuda.h"
#include "client/lib/internal.h"
#include "proto/message.h"
#include "proto/result.h"
#include "zipccl.pb-c.h"

static bool call_done(void *arg) {
    return ((struct call *)arg)->done;
}

zipcclResult_t call_run(struct session *s, struct call *call, uint16_t type, const struct ProtobufCMessage *message,
                        const int *fds, uint32_t nfds, uint16_t want, int timeout_ms) {
    uint8_t bytes[8192]; /* the handles of a CUDA stream's events */
    size_t size = message ? protobuf_c_message_get_packed_size(message) : 0;
    call->done = false;
    call->result = zipcclSuccess;
    if (!s->conn) {
        (void)snprintf(call->text, sizeof call->text, "%s",
                       s->forked ? "the connection belongs to the parent process" : s->why);
        return s->forked ? zipcclInvalidUsage : zipcclDaemonUnavailable;
    }
    if (size > sizeof bytes) {
        (void)snprintf(call->text, sizeof call->text, "%s is too large", wire_type_name(type));
        return zipcclInternalError;
    }
    if (message)
        (void)protobuf_c_message_pack(message, bytes);
    call->id = s->next_id++;
    call->next = s->calls;
    s->calls = call;
    s->refs++;
    zipcclResult_t r = session_send(s, type, call->id, bytes, size, fds, nfds);
    if (r == zipcclSuccess)
        r = session_wait(s, call_done, call, timeout_ms);
    for (struct call **p = &s->calls; *p; p = &(*p)->next) {
        if (*p == call) {
            *p = call->next;
            break;
        }
    }
    if (call->done) {
        r = call->result;
        if (r == zipcclSuccess && call->reply_type != want) {
            (void)snprintf(call->text, sizeof call->text, "zipccld answered %s with %s", wire_type_name(type),
                           wire_type_name(call->reply_type));
            r = zipcclInternalError;
        }
    } else if (r == zipcclTimeout) {
        (void)snprintf(call->text, sizeof call->text,
                       "zipccld at %.100s did not answer %s within %d s: see 'zipcclctl status'", s->path,
                       wire_type_name(type), timeout_ms / 1000);
    } else {
        (void)snprintf(call->text, sizeof call->text, "%s", s->conn ? frame_conn_why(s->conn) : s->why);
    }
    session_put(s);
    return r;
}

/* Takes a reply apart for the call that waits for it. */
static void call_reply(struct session *s, const struct frame *f) {
    struct call *c = s->calls;
    ProtobufCMessage *m = NULL;
    const char *bad = "";
    while (c && (c->id != f->id || c->done))
        c = c->next;
    if (!c)
        return; /* nobody waits any more, or nobody ever wanted to */
    c->reply_type = f->type;
    if (message_descriptor(f->type)) {
        c->result = message_unpack(f, &m, &bad);
        if (c->result != zipcclSuccess) {
            (void)snprintf(c->text, sizeof c->text, "zipccld sent a bad %s: %s", wire_type_name(f->type), bad);
            c->result = zipcclInternalError;
        }
    }
    if (m && f->type == WIRE_ERROR) {
        const Zipccl__Error *e = (const Zipccl__Error *)m;
        c->result = result_from_wire(e->result);
        (void)snprintf(c->text, sizeof c->text, "%.*s", CLIENT_TEXT_BYTES - 1,
                       *e->text ? e->text : result_string(c->result));
    } else if (m && f->type == WIRE_COMM_INIT_REPLY) {
        c->value = ((const Zipccl__CommInitReply *)m)->comm;
        if (c->comm)
            c->comm->handle = c->value;
    } else if (m && f->type == WIRE_BUFFER_REGISTER_REPLY) {
        c->value = ((const Zipccl__BufferRef *)m)->buffer;
    } else if (m && f->type == WIRE_STREAM_ATTACH_REPLY) {
        c->value = ((const Zipccl__StreamRef *)m)->stream;
    } else if (f->type == WIRE_UNIQUE_ID_REPLY) {
        if (f->length == sizeof c->unique_id)
            memcpy(c->unique_id, f->payload, sizeof c->unique_id);
        else
            c->reply_type = 0;
    }
    message_free(m);
    c->done = true;
}

static struct zipcclComm *find_comm(const struct session *s, uint64_t handle) {
    struct zipcclComm *c = s->comms;
    while (c && (c->handle != handle || !handle))
        c = c->next;
    return c;
}

static void completion(struct session *s, const struct frame *f) {
    struct wire_completion w;
    char text[CLIENT_TEXT_BYTES];
    if (f->length < sizeof w) {
        session_die(s, "it sent a completion that is too short");
        return;
    }
    memcpy(&w, f->payload, sizeof w);
    if (w.text_bytes > f->length - sizeof w) {
        session_die(s, "it sent a completion whose text is cut");
        return;
    }
    struct zipcclComm *c = find_comm(s, w.comm);
    struct op *op = c ? c->ops : NULL;
    /* Nearly always the first. */
    while (op && (op->seq != w.seq || op->state != OP_SENT))
        op = op->next;
    if (!op)
        return; /* of a communicator that has failed or gone meanwhile */
    if (w.result == zipcclSuccess) {
        op_complete(op, zipcclSuccess, "", true);
        return;
    }
    zipcclResult_t r = result_from_wire(w.result);
    (void)snprintf(text, sizeof text, "%.*s", (int)(w.text_bytes < 400 ? w.text_bytes : 400),
                   (const char *)f->payload + sizeof w);
    op_complete(op, r, w.text_bytes ? text : result_string(r), true);
}

static void comm_event(struct session *s, const struct frame *f) {
    ProtobufCMessage *m;
    const char *bad;
    if (message_unpack(f, &m, &bad) != zipcclSuccess) {
        session_die(s, bad);
        return;
    }
    const Zipccl__CommEvent *e = (const Zipccl__CommEvent *)m;
    struct zipcclComm *c = find_comm(s, e->comm);
    zipcclResult_t r = result_from_wire(e->result);
    if (c)
        comm_fail(c, r, *e->text ? e->text : result_string(r));
    message_free(m);
}

void request_dispatch(struct session *s, const struct frame *f) {
    switch (f->type) {
    case WIRE_COMPLETION:
        completion(s, f);
        break;
    case WIRE_COMM_EVENT:
        comm_event(s, f);
        break;
    default:
        call_reply(s, f); /* what a newer daemon sends unasked is nobody's reply, and ignored */
        break;
    }
}

struct op *op_new(struct zipcclComm *c) {
    struct op *op = c->free_ops;
    if (op)
        c->free_ops = op->next;
    else if (!(op = malloc(sizeof *op)))
        return NULL;
    memset(op, 0, offsetof(struct op, text));
    op->text[0] = 0;
    op->comm = c;
    return op;
}

void op_link(struct op *op) {
    struct zipcclComm *c = op->comm;
    op->at = c->ops_end;
    *c->ops_end = op;
    c->ops_end = &op->next;
    c->nops++;
    c->nsent++;
}

static void give_back(struct op *op) {
    for (int i = 0; i < OP_PLACES; i++) {
        struct region *r = op->staging[i];
        if (r && op->stream && op->stream->cuda) {
            cuda_retire(op->stream->cuda, op->ticket, r, op->tainted);
        } else if (r && op->tainted && r->kind == REGION_STAGING) {
            region_free(r);
        } else if (r) {
            r->spoiled = r->spoiled || op->tainted;
            staging_give(r);
        }
    }
    free(op->frame);
    op->next = op->comm->free_ops;
    op->comm->free_ops = op;
}

void op_discard(struct op *op) {
    for (int i = 0; i < OP_PLACES; i++)
        if (op->uses[i])
            op->uses[i]->users--;
    give_back(op);
    client_notify(); /* somebody may wait to free the memory */
}

void copy_run(const struct copy *copy) {
    if (!copy->to)
        return;
    if (!copy->counts) {
        memcpy(copy->to, copy->from, copy->bytes);
        return;
    }
    for (size_t i = 0; i < copy->nparts; i++) {
        size_t count = copy->counts[i], at = copy->offsets ? copy->offsets[i] : i * copy->stride;
        if (!copy->offsets && count > copy->stride)
            count = copy->stride;
        if (count)
            memcpy(copy->to + at * copy->width, copy->from + at * copy->width, count * copy->width);
    }
}

/* From here on the user's shared memory is the user's again. */
void op_complete(struct op *op, zipcclResult_t r, const char *text, bool daemon_said_so) {
    if (op->state != OP_SENT)
        return;
    op->state = OP_DONE;
    op->comm->nsent--;
    op->result = r;
    op->tainted = !daemon_said_so;
    (void)snprintf(op->text, sizeof op->text, "%s", text);
    for (int i = 0; i < OP_PLACES; i++)
        if (op->uses[i])
            op->uses[i]->users--;
    if (op->ends_batch && !op->comm->session->forked) /* the parent's stream is not a child's to release */
        cuda_release(op->stream->cuda, op->ticket);
}

void op_finish(struct op *op) {
    struct zipcclComm *c = op->comm;
    op->state = OP_FINISHING;
    if ((op->out.to || op->out_counts.to) && op->result == zipcclSuccess) {
        (void)pthread_mutex_unlock(&client_lock);
        copy_run(&op->out);
        copy_run(&op->out_counts);
        (void)pthread_mutex_lock(&client_lock);
    }
    *op->at = op->next;
    if (op->next)
        op->next->at = op->at;
    else
        c->ops_end = op->at;
    c->nops--;
    give_back(op);
    client_notify();
}

void comm_fail(struct zipcclComm *c, zipcclResult_t r, const char *text) {
    if (c->failed == zipcclSuccess) {
        c->failed = r;
        (void)snprintf(c->fail_text, sizeof c->fail_text, "%s", text);
    }
    for (struct op *op = c->ops; op; op = op->next)
        op_complete(op, c->failed, c->fail_text, false);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations of a communicator: requests in, one operation at a time in issue order, completions out.
 * In the steady state nothing is allocated here.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/buffer.h"
#include "daemon/core/comm.h"
#include "daemon/core/daemon.h"
#include "daemon/core/log.h"
#include "daemon/core/session.h"
#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "proto/op.h"
#include "proto/result.h"

void comm_ops_current(const struct comm *c, char *text, size_t size) {
    text[0] = '\0';
    if (c->op_active)
        snprintf(text, size, "%s #%" PRIu64, op_name(c->desc.op), c->seq);
}

bool comm_ops_idle(const struct comm *c) {
    for (uint32_t i = 0; i < c->nmembers; i++) {
        if (c->members[i]->count > 0)
            return false;
    }
    return !c->op_active;
}

static void comm_complete(struct comm_member *m, const struct comm_pending *p, zipcclResult_t result, const char *text,
                          uint64_t wire_bytes, zipcclCodec_t codec) {
    struct {
        struct wire_completion head;
        char text[DAEMON_TEXT];
    } reply;
    size_t n = strlen(text);
    if (n > sizeof reply.text)
        n = sizeof reply.text;
    reply.head = (struct wire_completion){
        .comm = m->handle,
        .seq = p->request.seq,
        .result = (uint32_t)result,
        .text_bytes = (uint32_t)n,
        .wire_bytes = wire_bytes,
        .codec = (uint16_t)codec,
    };
    memcpy(reply.text, text, n);
    session_send(m->session, WIRE_COMPLETION, p->frame_id, &reply, sizeof reply.head + n);
}

static void comm_release_leases(struct comm *c) {
    for (uint32_t i = 0; i < c->nmembers; i++) {
        struct comm_member *m = c->members[i];
        buffer_put(m->lease_send);
        buffer_put(m->lease_recv);
        m->lease_send = m->lease_recv = NULL;
    }
}

static void comm_pop(struct comm_member *m) {
    m->head = (m->head + 1) & (m->capacity - 1);
    m->count--;
    m->arrived = false;
}

/* Replies to all requests that wait. Leases of those that the executor knows stay until it is done. */
void comm_ops_fail(struct comm *c) {
    for (uint32_t i = 0; i < c->nmembers; i++) {
        struct comm_member *m = c->members[i];
        while (m->count > 0) {
            struct comm_pending p = m->queue[m->head];
            comm_pop(m);
            buffer_put(p.send_buffer);
            buffer_put(p.recv_buffer);
            comm_complete(m, &p, c->error, c->text, 0, zipcclCodecRaw);
        }
    }
    if (c->op != NULL)
        exec_op_fail(c->op, c->error, c->text);
}

static void comm_op_sample(struct comm *c, const struct exec_result *r, uint64_t now_ns) {
    struct stats_sample sample = {
        .op = (zipcclOp_t)c->desc.op,
        .dtype = (zipcclDataType_t)c->desc.dtype,
        .codec = c->op_codec,
        .result = r->result,
        .raw_bytes = r->raw_bytes,
        .wire_bytes = r->wire_bytes,
        .coded_from_bytes = r->coded_from_bytes,
        .coded_to_bytes = r->coded_to_bytes,
        .total_ns = now_ns - c->first_ns,
        .wait_ns = c->last_ns - c->first_ns,
        .encode_ns = r->encode_ns,
        .decode_ns = r->decode_ns,
    };
    stats_add(&c->daemon->stats, c->job->stats, &sample);
}

static void comm_pump(struct comm *c);

/* The executor touches nothing of this operation any more. */
static void comm_op_done(void *arg, const struct exec_result *r) {
    struct comm *c = arg;
    char what[48];
    comm_ops_current(c, what, sizeof what);
    c->op = NULL;
    c->op_active = false;
    comm_release_leases(c);
    comm_op_sample(c, r, daemon_now_ns());
    if (c->state == COMM_FAILED) {
        comm_answer_leaving(c); /* all else was said */
        return;
    }
    if (r->result != zipcclSuccess) {
        const char *node =
            r->failed_node >= 0 && (uint32_t)r->failed_node < c->nnodes ? c->nodes[r->failed_node].name : NULL;
        comm_fail(c, NULL, r->result, "%s failed on node %s: %s%s%s", what, c->daemon->config.node_name, r->text,
                  node != NULL ? "; failed node: " : "", node != NULL ? node : "");
        return;
    }
    if (c->trial_kind != NULL)
        trial_done(c->trial_kind, c->op_codec != zipcclCodecRaw, daemon_now_ns() - c->last_ns, r->worst_report);
    c->ops_done++;
    c->seq++;
    c->narrived = 0;
    for (uint32_t i = 0; i < c->nmembers; i++) {
        struct comm_member *m = c->members[i];
        if (!m->arrived)
            continue;
        struct comm_pending p = m->queue[m->head];
        comm_pop(m);
        comm_complete(m, &p, zipcclSuccess, "", r->wire_bytes, c->op_codec);
    }
    for (uint32_t i = 0; i < c->nmembers; i++) {
        struct comm_member *m = c->members[i];
        if (m->state == MEMBER_LEAVING && m->count == 0 && m->session != NULL)
            comm_leave_done(m);
    }
    comm_pump(c);
}

/* The first request of the next operation starts it. */
static bool comm_op_start(struct comm *c, struct comm_member *m, const struct comm_pending *p) {
    char who[120];
    if (p->request.seq > c->left_after) {
        comm_describe_rank(c, c->left_rank, who, sizeof who);
        comm_fail(c, NULL, zipcclInvalidUsage, "rank %u called %s #%" PRIu64 ", but %s has left the communicator",
                  m->rank, op_name(p->request.op), p->request.seq, who);
        return false;
    }
    c->desc = p->request;
    c->desc_rank = m->rank;
    c->first_ns = p->arrived_ns;
    c->narrived = 0;
    zipcclCodec_t wanted = (zipcclCodec_t)p->request.codec;
    if (wanted == zipcclCodecAuto)
        wanted = c->codec;
    struct exec_args args = {
        .op = (zipcclOp_t)p->request.op,
        .dtype = (zipcclDataType_t)p->request.dtype,
        .count = p->request.count,
        .root = p->request.root,
        .seq = p->request.seq,
        .done = comm_op_done,
        .arg = c,
    };
    args.codec = choose_codec(&c->link_numbers, wanted, args.op, args.dtype, args.count, &c->topology);
    c->trial_kind = NULL;
    if (wanted == zipcclCodecAuto && args.codec != zipcclCodecRaw && args.op == zipcclOpAllGather) {
        c->trial_kind = trial_find(&c->trial, args.dtype, args.count * dtype_get(args.dtype)->bytes);
        args.codec = trial_choose(c->trial_kind, args.codec, &args.report);
    }
    c->op_codec = args.codec;
    zipcclResult_t rc = exec_op_start(c->exec, &args, &c->op);
    if (rc != zipcclSuccess) {
        c->op = NULL;
        comm_fail(c, NULL, rc, "%s #%" PRIu64 " could not start on node %s: %s", op_name(p->request.op), p->request.seq,
                  c->daemon->config.node_name, result_string(rc));
        return false;
    }
    c->op_active = true;
    return true;
}

/* Whether a rank asks for what the first one asked for. The text names both ranks and both values. */
static bool comm_op_matches(const struct comm *c, const struct comm_member *m, const struct wire_request *r, char *text,
                            size_t size) {
    const struct wire_request *d = &c->desc;
    char a[32], b[32];
    const char *what = NULL;
    if (r->op != d->op) {
        what = "operation";
        snprintf(a, sizeof a, "%s", op_name(r->op));
        snprintf(b, sizeof b, "%s", op_name(d->op));
    } else if (r->dtype != d->dtype) {
        what = "data type";
        snprintf(a, sizeof a, "%s", dtype_get(r->dtype)->name);
        snprintf(b, sizeof b, "%s", dtype_get(d->dtype)->name);
    } else if (r->count != d->count) {
        what = "count";
        snprintf(a, sizeof a, "%" PRIu64, r->count);
        snprintf(b, sizeof b, "%" PRIu64, d->count);
    } else if (r->root != d->root) {
        what = "root";
        snprintf(a, sizeof a, "%u", r->root);
        snprintf(b, sizeof b, "%u", d->root);
    } else if (r->codec != d->codec) {
        what = "codec";
        snprintf(a, sizeof a, "%s", codec_name((zipcclCodec_t)r->codec));
        snprintf(b, sizeof b, "%s", codec_name((zipcclCodec_t)d->codec));
    }
    if (what == NULL)
        return true;
    snprintf(text, size, "ranks differ in operation #%" PRIu64 ": %s is %s on rank %u, %s on rank %u", r->seq, what, a,
             m->rank, b, c->desc_rank);
    return false;
}

/* Hands requests to the executor while there are any for the operation that is next. */
static void comm_pump(struct comm *c) {
    bool progress = true;
    char text[256];
    if (c->pumping)
        return; /* an operation ended within an arrival below: the loop goes on */
    c->pumping = true;
    while (progress && c->state == COMM_READY) {
        progress = false;
        for (uint32_t i = 0; i < c->nmembers && c->state == COMM_READY; i++) {
            struct comm_member *m = c->members[i];
            if (m->arrived || m->count == 0)
                continue;
            progress = true;
            struct comm_pending *p = &m->queue[m->head];
            if (!c->op_active && !comm_op_start(c, m, p))
                break;
            if (!comm_op_matches(c, m, &p->request, text, sizeof text)) {
                comm_fail(c, NULL, zipcclInvalidArgument, "%s", text);
                break;
            }
            m->lease_send = p->send_buffer;
            m->lease_recv = p->recv_buffer;
            p->send_buffer = p->recv_buffer = NULL;
            m->arrived = true;
            c->narrived++;
            c->last_ns = p->arrived_ns > c->first_ns ? p->arrived_ns : c->first_ns;
            exec_op_arrive(c->op, m->local, p->send, p->recv);
        }
    }
    c->pumping = false;
}

/* What the request needs in each buffer; false: no such amount of bytes. */
static bool comm_bytes(const struct comm *c, const struct comm_member *m, const struct wire_request *r, uint64_t *send,
                       uint64_t *recv) {
    uint64_t bytes;
    *send = *recv = 0;
    if (r->op == zipcclOpBarrier)
        return true;
    if (__builtin_mul_overflow(r->count, (uint64_t)dtype_get(r->dtype)->bytes, &bytes))
        return false;
    *send = r->op == zipcclOpAllGather || m->rank == r->root ? bytes : 0;
    *recv = bytes;
    return r->op != zipcclOpAllGather || !__builtin_mul_overflow(bytes, (uint64_t)c->nranks, recv);
}

static zipcclResult_t comm_check_request(const struct comm *c, const struct comm_member *m,
                                         const struct wire_request *r, char *why, size_t size) {
    if (r->flags != 0 || r->reserved != 0 || r->max_count != 0)
        snprintf(why, size, "reserved fields are not 0");
    else if (r->op >= zipcclNumOps)
        snprintf(why, size, "unknown operation %u", r->op);
    else if (r->dtype >= zipcclNumTypes)
        snprintf(why, size, "unknown data type %u", r->dtype);
    else if (r->codec >= zipcclNumCodecs && r->codec != zipcclCodecAuto)
        snprintf(why, size, "unknown codec %u", r->codec);
    else if (r->op == zipcclOpBroadcast && r->root >= c->nranks)
        snprintf(why, size, "root %u is not below the number of ranks, %u", r->root, c->nranks);
    else if (r->seq != m->next_seq)
        snprintf(why, size, "operation #%" PRIu64 " came where #%" PRIu64 " was expected", r->seq, m->next_seq);
    else
        return zipcclSuccess;
    return zipcclInvalidArgument;
}

/* Room for one more request; the queue grows by doubling, to a limit. */
static zipcclResult_t comm_queue_room(struct comm_member *m) {
    if (m->count < m->capacity)
        return zipcclSuccess;
    if (m->capacity >= COMM_MAX_PENDING)
        return zipcclLimitExceeded;
    uint32_t capacity = m->capacity > 0 ? m->capacity * 2 : 16;
    struct comm_pending *queue = malloc(capacity * sizeof *queue);
    if (queue == NULL)
        return zipcclOutOfMemory;
    for (uint32_t i = 0; i < m->count; i++)
        queue[i] = m->queue[(m->head + i) & (m->capacity - 1)];
    free(m->queue);
    m->queue = queue;
    m->head = 0;
    m->capacity = capacity;
    return zipcclSuccess;
}

/* Refuses a request of a known communicator: a completion, because it names the operation that the client waits for. */
static void __attribute__((format(printf, 4, 5)))
comm_refuse(struct comm_member *m, const struct comm_pending *p, zipcclResult_t result, const char *format, ...) {
    struct session *s = m->session;
    char text[DAEMON_TEXT];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    s->daemon->stats.counters[STATS_errors_sent]++;
    log_info("request refused: %s (result=%d session=%" PRIu64 " comm=%016" PRIx64 " job=%s rank=%u)", text,
             (int)result, s->id, m->comm->key, m->comm->job->name, m->rank);
    comm_complete(m, p, result, text, 0, zipcclCodecRaw);
}

void comm_request(struct session *s, const struct frame *f) {
    struct wire_request r;
    struct comm_pending p = {.frame_id = f->id};
    uint64_t send_bytes, recv_bytes;
    const char *which = "send", *why = "";
    char text[160];
    if (f->length != sizeof r) {
        session_error(s, f->id, zipcclInvalidArgument, "a request has %zu bytes, not %u", sizeof r, f->length);
        return;
    }
    memcpy(&r, f->payload, sizeof r);
    struct comm_member *m = handles_get(&s->comms, r.comm);
    if (m == NULL || m->state == MEMBER_JOINING) {
        session_error(s, f->id, zipcclInvalidArgument, "unknown communicator %#" PRIx64, r.comm);
        return;
    }
    struct comm *c = m->comm;
    p.request = r;
    if (c->state == COMM_FAILED) {
        comm_complete(m, &p, c->error, c->text, 0, zipcclCodecRaw);
        return;
    }
    if (m->state != MEMBER_IN) {
        comm_refuse(m, &p, zipcclInvalidUsage, "rank %u is being destroyed", m->rank);
        return;
    }
    zipcclResult_t rc = comm_check_request(c, m, &r, text, sizeof text);
    if (rc != zipcclSuccess) {
        comm_refuse(m, &p, rc, "rank %u: %s", m->rank, text);
        return;
    }
    /* While draining, a rank may still join the operation that runs. Else the communicator is over, for all of its
     * ranks: they must hear the cause, not that this one left. */
    if (s->daemon->draining && !(c->op_active && r.seq == c->seq)) {
        comm_fail(c, NULL, zipcclDaemonUnavailable, "zipccld on node %s is shutting down", s->daemon->config.node_name);
        comm_complete(m, &p, c->error, c->text, 0, zipcclCodecRaw);
        return;
    }
    if (!comm_bytes(c, m, &r, &send_bytes, &recv_bytes)) {
        comm_refuse(m, &p, zipcclInvalidArgument, "rank %u: %s of %" PRIu64 " values overflows", m->rank, op_name(r.op),
                    r.count);
        return;
    }
    if ((rc = comm_queue_room(m)) != zipcclSuccess) {
        comm_refuse(m, &p, rc, "rank %u has %u requests under way, the most that are allowed", m->rank, m->count);
        /* More may be on their way behind it: the gap cannot be mended, and the other ranks must not wait for it. */
        comm_fail(c, NULL, rc, "rank %u had %u requests under way, the most that are allowed", m->rank, m->count);
        return;
    }
    rc = buffer_take(s, r.send_buffer, r.send_offset, send_bytes, &p.send_buffer, &p.send, &why);
    if (rc == zipcclSuccess) {
        which = "receive";
        rc = buffer_take(s, r.recv_buffer, r.recv_offset, recv_bytes, &p.recv_buffer, &p.recv, &why);
    }
    if (rc != zipcclSuccess) {
        buffer_put(p.send_buffer);
        comm_refuse(m, &p, rc, "rank %u, %s #%" PRIu64 ", %s buffer %#" PRIx64 " + %" PRIu64 ": %s", m->rank,
                    op_name(r.op), r.seq, which, which[0] == 's' ? r.send_buffer : r.recv_buffer,
                    which[0] == 's' ? r.send_offset : r.recv_offset, why);
        return;
    }
    p.arrived_ns = daemon_now_ns();
    m->queue[(m->head + m->count) & (m->capacity - 1)] = p;
    m->count++;
    m->next_seq++;
    s->daemon->stats.counters[STATS_requests]++;
    comm_pump(c);
}

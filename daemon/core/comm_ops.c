/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations of a communicator: each rank's queue is taken unit by unit (struct comm_member), in issue order; a unit
 * ends with the answers to its requests. In the steady state nothing is allocated here.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/buffer.h"
#include "daemon/core/comm.h"
#include "daemon/core/daemon.h"
#include "daemon/core/session.h"
#include "daemon/core/stream.h"
#include "proto/op.h"

void comm_ops_current(const struct comm *c, char *text, size_t size) {
    text[0] = '\0';
    if (c->op_active) {
        snprintf(text, size, "%s #%" PRIu64, op_name(c->desc_op), c->seq);
        return;
    }
    for (uint32_t i = 0; i < c->nmembers; i++) {
        const struct comm_member *m = c->members[i];
        if (m->unit == 0 || m->count == 0)
            continue;
        const struct comm_pending *p = comm_unit_request(m, 0);
        snprintf(text, size, "%s #%" PRIu64 " of rank %u", op_name(p->request.op), p->number, m->rank);
        return;
    }
}

bool comm_ops_running(const struct comm *c) {
    for (uint32_t i = 0; i < c->nmembers; i++) {
        if (c->members[i]->exchange != NULL)
            return true;
    }
    return c->op_active;
}

bool comm_ops_idle(const struct comm *c) {
    for (uint32_t i = 0; i < c->nmembers; i++) {
        if (c->members[i]->count > 0)
            return false;
    }
    return !comm_ops_running(c);
}

uint64_t comm_ops_since(const struct comm *c) {
    uint64_t since = c->op_active ? c->first_ns : UINT64_MAX;
    for (uint32_t i = 0; i < c->nmembers; i++) {
        const struct comm_member *m = c->members[i];
        if (m->exchange != NULL && m->since_ns < since)
            since = m->since_ns;
    }
    return since;
}

bool comm_grow(void **array, uint32_t *capacity, uint32_t need, size_t item) {
    if (need <= *capacity)
        return true;
    uint32_t room = *capacity > 0 ? *capacity : 16;
    while (room < need)
        room *= 2;
    void *bigger = realloc(*array, room * item);
    if (bigger == NULL)
        return false;
    *array = bigger;
    *capacity = room;
    return true;
}

void comm_complete(struct comm_member *m, const struct comm_pending *p, zipcclResult_t result, const char *text,
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
    if (p->point.stream != 0 && m->session != NULL)
        stream_signal(m->session, &p->point);
    session_send(m->session, WIRE_COMPLETION, p->frame_id, &reply, sizeof reply.head + n);
}

void comm_pending_free(struct comm_pending *p) {
    for (uint32_t i = 0; i < COMM_LEASES; i++) {
        buffer_put(p->leases[i]);
        p->leases[i] = NULL;
    }
    free(p->counts);
    p->counts = NULL;
}

static void release_leases(struct comm_member *m) {
    for (uint32_t i = 0; i < m->nleases; i++)
        buffer_put(m->leases[i]);
    m->nleases = 0;
}

static void pop(struct comm_member *m) {
    comm_pending_free(&m->queue[m->head]);
    m->head = (m->head + 1) & (m->capacity - 1);
    m->count--;
}

/* Replies to all requests that wait. Leases of those that the executor knows stay until it is done. */
void comm_ops_fail(struct comm *c) {
    for (uint32_t i = 0; i < c->nmembers; i++) {
        struct comm_member *m = c->members[i];
        while (m->count > 0) {
            struct comm_pending p = m->queue[m->head];
            m->queue[m->head].counts = NULL; /* the executor has read them */
            pop(m);
            if (m->session != NULL)
                comm_complete(m, &p, c->error, c->text, 0, zipcclCodecRaw);
            free(p.counts);
        }
        m->unit = 0;
        m->group_open = false;
        /* What the executor does not have is over. */
        m->waits_exchange = m->waits_exchange && m->exchange != NULL;
        m->waits_node = m->waits_node && m->arrived;
        comm_unit_step(m);
    }
    if (c->op != NULL)
        exec_op_fail(c->op, c->error, c->text);
    for (uint32_t i = 0; i < c->nmembers; i++) {
        if (c->members[i]->exchange != NULL)
            exec_op_fail(c->members[i]->exchange, c->error, c->text);
    }
}

void comm_sample(struct comm *c, const struct comm_pending *p, const struct exec_result *r, zipcclCodec_t codec,
                 uint64_t first_ns, uint64_t last_ns) {
    struct stats_sample sample = {
        .op = (zipcclOp_t)p->request.op,
        .dtype = (zipcclDataType_t)p->request.dtype,
        .codec = codec,
        .result = r->result,
        .raw_bytes = r->raw_bytes,
        .wire_bytes = r->wire_bytes,
        .coded_from_bytes = r->coded_from_bytes,
        .coded_to_bytes = r->coded_to_bytes,
        .total_ns = daemon_now_ns() - first_ns,
        .wait_ns = last_ns - first_ns,
        .encode_ns = r->encode_ns,
        .decode_ns = r->decode_ns,
    };
    stats_add(&c->daemon->stats, c->job->stats, &sample);
}

void comm_op_failed(struct comm *c, const char *what, const struct exec_result *r) {
    const char *node =
        r->failed_node >= 0 && (uint32_t)r->failed_node < c->nnodes ? c->nodes[r->failed_node].name : NULL;
    char text[DAEMON_TEXT];
    snprintf(text, sizeof text, "%s failed on node %s: %s%s%s", what, c->daemon->config.node_name, r->text,
             node != NULL ? "; failed node: " : "", node != NULL ? node : "");
    if (!comm_follows(r->result) || exec_comm_why(c->exec) != NULL)
        comm_fail(c, NULL, r->result, "%s", text);
    else if (!comm_ops_failing(c, false)) /* one that failed ends the messages of all others here */
        comm_fail_soon(c, r->result, text);
}

/* How much a failure tells. */
static unsigned weight(const struct exec_result *r) {
    return r == NULL ? 0 : r->result == zipcclAborted ? 1 : r->result == zipcclRemoteError ? 2 : 3;
}

bool comm_ops_failing(struct comm *c, bool follows) {
    const struct exec_result *cause = c->op != NULL ? exec_op_failing(c->op) : NULL;
    const struct comm_member *of = NULL;
    char what[64];
    for (uint32_t i = 0; i < c->nmembers; i++) {
        struct exec_op *op = c->members[i]->exchange;
        const struct exec_result *r = op != NULL ? exec_op_failing(op) : NULL;
        if (weight(r) > weight(cause)) {
            cause = r;
            of = c->members[i];
        }
    }
    if (cause == NULL || (!follows && comm_follows(cause->result)))
        return false;
    if (of != NULL)
        comm_exchange_name(of, what, sizeof what);
    else
        comm_ops_current(c, what, sizeof what);
    comm_op_failed(c, what, cause);
    return true;
}

/* A part of the unit is done: where it was the last, the unit's requests are answered. In a failed communicator they
 * were, or will be, and only the leases are left. */
void comm_unit_step(struct comm_member *m) {
    struct comm *c = m->comm;
    if (m->waits_node || m->waits_exchange)
        return;
    release_leases(m);
    if (c->state == COMM_FAILED || c->state == COMM_FAILING)
        return;
    uint64_t wire = m->exchange_result.wire_bytes;
    zipcclCodec_t codec = m->exchange_codec;
    while (m->unit > 0 && m->session != NULL) { /* an answer that cannot be sent ends the session, and all of this */
        struct comm_pending p = m->queue[m->head];
        m->queue[m->head].counts = NULL;
        pop(m);
        m->unit--;
        comm_complete(m, &p, zipcclSuccess, "", wire, codec);
        free(p.counts);
    }
    if (m->state == MEMBER_LEAVING && m->count == 0 && m->session != NULL)
        comm_leave_done(m);
}

/* How many requests the unit at the head has; 0: it is not complete yet, or its stream is not there. */
static uint32_t unit_size(const struct comm_member *m) {
    if (m->group_open && m->group == m->count)
        return 0; /* without a look at each, whenever another one comes */
    for (uint32_t i = 0; i < m->count; i++) {
        const struct comm_pending *p = comm_unit_request(m, i);
        if (!(p->request.flags & WIRE_GROUP_MORE))
            return p->gated ? 0 : i + 1;
    }
    return 0;
}

/* Ranks of this node must call the same collective as their k-th one. Other nodes see it in the messages. */
static bool check_call(struct comm_member *m, const struct comm_pending *p) {
    struct comm *c = m->comm;
    uint32_t at = (uint32_t)(p->number % COMM_CALLS);
    if (op_is_pairwise((zipcclOp_t)p->request.op) || c->calls[at].number > p->number)
        return true;
    if (c->calls[at].number < p->number) {
        c->calls[at].number = p->number;
        c->calls[at].rank = m->rank;
        c->calls[at].root = p->request.root;
        c->calls[at].op = p->request.op;
    }
    if (c->calls[at].op == p->request.op && c->calls[at].root == p->request.root)
        return true;
    if (c->calls[at].op == p->request.op) {
        comm_fail(c, NULL, zipcclInvalidArgument,
                  "ranks differ in operation #%" PRIu64 ": root is %u on rank %u, %u on rank %u", p->number,
                  p->request.root, m->rank, c->calls[at].root, c->calls[at].rank);
        return false;
    }
    comm_fail(c, NULL, zipcclInvalidArgument,
              "ranks differ in operation #%" PRIu64 ": operation is %s on rank %u, %s on rank %u", p->number,
              op_name(p->request.op), m->rank, op_name(c->calls[at].op), c->calls[at].rank);
    return false;
}

/* Takes the next unit of the rank's queue. False: there is none, or the communicator failed. */
static bool unit_start(struct comm_member *m) {
    struct comm *c = m->comm;
    uint32_t n = unit_size(m);
    if (n == 0)
        return false;
    if (!comm_grow((void **)&m->leases, &m->leases_capacity, COMM_LEASES * n, sizeof *m->leases)) {
        comm_fail(c, NULL, zipcclOutOfMemory, "node %s: out of memory", c->daemon->config.node_name);
        return false;
    }
    m->unit = n;
    m->nleases = 0;
    m->waits_node = m->waits_exchange = m->arrived = false;
    m->exchange_result = (struct exec_result){0};
    m->exchange_codec = zipcclCodecRaw;
    m->since_ns = comm_unit_request(m, 0)->arrived_ns;
    for (uint32_t i = 0; i < n; i++) {
        struct comm_pending *p = comm_unit_request(m, i);
        if (!check_call(m, p))
            return false;
        for (uint32_t k = 0; k < COMM_LEASES; k++) {
            m->leases[m->nleases++] = p->leases[k];
            p->leases[k] = NULL;
        }
        if (op_exchanges((zipcclOp_t)p->request.op))
            m->waits_exchange = true;
        else
            m->waits_node = true;
    }
    return !m->waits_exchange || comm_exchange_start(m);
}

/* Starts what can be started. Ends of operations within it only mark that it must go round again. */
void comm_pump(struct comm *c) {
    c->pump_again = true;
    if (c->pumping)
        return;
    c->pumping = true;
    while (c->pump_again && c->state == COMM_READY) {
        c->pump_again = false;
        for (uint32_t i = 0; i < c->nmembers && c->state == COMM_READY; i++) {
            struct comm_member *m = c->members[i];
            if (m->unit == 0 && m->count > 0 && unit_start(m))
                c->pump_again = true;
            if (c->state == COMM_READY && m->unit > 0 && m->waits_node && !m->arrived && comm_collective_join(m))
                c->pump_again = true;
        }
    }
    c->pumping = false;
}

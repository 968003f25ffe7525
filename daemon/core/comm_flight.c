/* SPDX-License-Identifier: Apache-2.0
 *
 * What communicators write into their job's flight recorder: the begin, the arrivals and the end of each operation; and
 * where it stands, when it fails or somebody looks.
 */
#include <stdio.h>
#include <string.h>

#include "daemon/core/comm.h"
#include "daemon/core/daemon.h"
#include "daemon/core/session.h"
#include "kernels/dtype.h"

static uint64_t bytes_of(const struct comm *c, const struct comm_pending *p) {
    uint32_t n = p->request.op == zipcclOpAllToAllv ? c->nranks : comm_ncounts(c, p->request.op);
    uint64_t values = p->request.count;
    for (uint32_t i = 0; p->counts != NULL && i < n; i++)
        values += p->counts[i];
    return values * dtype_get(p->request.dtype)->bytes;
}

static struct flight_op *begin(struct comm *c, const struct comm_pending *first, zipcclCodec_t codec, zipcclArm_t arm) {
    struct flight_op *f = flight_begin(c->job->stats->flight);
    if (f == NULL)
        return NULL;
    f->comm = c->key;
    f->seq = first->number;
    f->op = (uint8_t)first->request.op;
    f->dtype = (uint8_t)first->request.dtype;
    f->codec = (uint8_t)codec;
    f->arm = (uint8_t)arm;
    return f;
}

void comm_flight_collective(struct comm *c) {
    const struct comm_pending *first = comm_unit_request(c->desc_member, c->desc[0]);
    struct flight_op *f = begin(c, first, c->op_codec, c->op_arm);
    c->flight = f != NULL ? f->id : 0;
    if (f == NULL)
        return;
    f->start_ns = f->arrived_ns = c->first_ns;
    f->local = c->nmembers;
    f->group = c->ndesc;
    for (uint32_t i = 0; i < c->ndesc; i++)
        f->bytes += bytes_of(c, comm_unit_request(c->desc_member, c->desc[i]));
}

void comm_flight_arrived(struct comm *c) {
    struct flight_op *f = flight_get(c->job->stats->flight, c->flight);
    if (f == NULL)
        return;
    f->arrived = c->narrived;
    f->arrived_ns = c->last_ns;
}

void comm_flight_exchange(struct comm_member *m, const struct comm_pending *first, uint32_t n) {
    struct comm *c = m->comm;
    struct flight_op *f = begin(c, first, m->exchange_codec, zipcclArmAuto);
    m->flight = f != NULL ? f->id : 0;
    if (f == NULL)
        return;
    f->start_ns = f->arrived_ns = m->since_ns;
    f->rank = m->rank + 1;
    f->local = f->arrived = 1;
    f->group = n;
    f->bytes = bytes_of(c, first);
}

void comm_flight_end(struct comm *c, uint64_t id, const struct exec_result *r) {
    struct flight_op *f = flight_get(c->job->stats->flight, id);
    if (f == NULL)
        return;
    f->end_ns = daemon_now_ns();
    f->wire_bytes = r->wire_bytes;
    f->native = r->native;
    f->result = (uint8_t)(c->state == COMM_FAILED && c->error != zipcclSuccess ? c->error : r->result);
    char *where = flight_where(c->job->stats->flight, f);
    if (f->result != zipcclSuccess && where[0] == '\0' && r->text != NULL)
        snprintf(where, FLIGHT_WHERE, "%.*s", (int)FLIGHT_WHERE - 1, r->text);
}

/* The ranks of this node that have not called it. */
static void missing(const struct comm *c, struct flight_op *f) {
    f->nmissing = 0;
    for (uint32_t i = 0; i < c->nmembers; i++) {
        if (c->members[i]->arrived)
            continue;
        if (f->nmissing < FLIGHT_MISSING)
            f->missing[f->nmissing] = c->members[i]->rank;
        f->nmissing++;
    }
}

static void missing_text(const struct flight_op *f, char *text) {
    size_t used = (size_t)snprintf(text, FLIGHT_WHERE, "waiting for rank%s", f->nmissing > 1 ? "s" : "");
    for (uint32_t i = 0; i < f->nmissing && i < FLIGHT_MISSING && used < FLIGHT_WHERE; i++)
        used += (size_t)snprintf(text + used, FLIGHT_WHERE - used, "%s %u", i > 0 ? "," : "", f->missing[i]);
    if (f->nmissing > FLIGHT_MISSING && used < FLIGHT_WHERE)
        snprintf(text + used, FLIGHT_WHERE - used, " and %u more", f->nmissing - FLIGHT_MISSING);
}

/* What is waited for comes before what is worked at: the wait is what hangs. */
static void where_text(const struct comm *c, const struct exec_op *op, char *text) {
    struct exec_where w;
    exec_op_where(op, &w);
    const char *from = w.recv_node < c->nnodes ? c->nodes[w.recv_node].name : "?";
    const char *to = w.send_node < c->nnodes ? c->nodes[w.send_node].name : "?";
    if (w.native == EXEC_NATIVE)
        snprintf(text, FLIGHT_WHERE, "in NCCL's own collective");
    else if (w.native == EXEC_NATIVE_WAITS)
        snprintf(text, FLIGHT_WHERE, "waiting for other nodes, or the GPU");
    else if (w.native == EXEC_NATIVE_WAITS_NODE)
        snprintf(text, FLIGHT_WHERE, "waiting for node %s", from);
    else if (w.recvs > 0 && w.recv_rank != EXEC_NO_RANK)
        snprintf(text, FLIGHT_WHERE, "waiting for rank %u on node %s", w.recv_rank, from);
    else if (w.recvs > 0)
        snprintf(text, FLIGHT_WHERE, "waiting for node %s", from);
    else if (w.sends > 0)
        snprintf(text, FLIGHT_WHERE, "sending to node %s", to);
    else if (w.encodes > 0)
        snprintf(text, FLIGHT_WHERE, "encoding");
    else if (w.others > 0)
        snprintf(text, FLIGHT_WHERE, "decoding, copying or reducing");
    else
        snprintf(text, FLIGHT_WHERE, "between two steps");
}

void comm_flight_look(struct comm *c) {
    struct flight *flight = c->job->stats->flight;
    struct flight_op *f = c->op_active ? flight_get(flight, c->flight) : NULL;
    if (f != NULL) {
        missing(c, f);
        if (f->nmissing > 0)
            missing_text(f, flight_where(flight, f));
        else if (c->op != NULL)
            where_text(c, c->op, flight_where(flight, f));
    }
    for (uint32_t i = 0; i < c->nmembers; i++) {
        const struct comm_member *m = c->members[i];
        f = m->exchange != NULL ? flight_get(flight, m->flight) : NULL;
        if (f != NULL)
            where_text(c, m->exchange, flight_where(flight, f));
    }
}

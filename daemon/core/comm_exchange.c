/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank's own part of a unit: all-to-all, gather, scatter, send and receive, as one exchange of transfers with other
 * ranks. Ranks of one node do not wait for each other here, so a late one holds up only those that need its values.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/comm.h"
#include "daemon/core/daemon.h"
#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "proto/op.h"
#include "proto/result.h"

#define PAIRWISE (1u << 31) /* in the number of a transfer */

/* Answers are sent for the unit as a whole, statistics for its first exchange. */
static const struct comm_pending *first_exchange(const struct comm_member *m) {
    for (uint32_t i = 0; i < m->unit; i++) {
        const struct comm_pending *p = comm_unit_request(m, i);
        if (op_exchanges((zipcclOp_t)p->request.op))
            return p;
    }
    return NULL;
}

void comm_exchange_name(const struct comm_member *m, char *text, size_t size) {
    const struct comm_pending *p = first_exchange(m);
    text[0] = '\0';
    if (p != NULL)
        snprintf(text, size, "%s #%" PRIu64 " of rank %u", op_name(p->request.op), p->number, m->rank);
}

static void exchange_done(void *arg, const struct exec_result *r) {
    struct comm_member *m = arg;
    struct comm *c = m->comm;
    char what[64];
    comm_flight_end(c, m->flight, r);
    m->exchange = NULL;
    m->waits_exchange = false;
    if (c->state != COMM_FAILED) {
        comm_sample(c, first_exchange(m), r, m->exchange_codec, m->since_ns, m->since_ns);
        comm_exchange_name(m, what, sizeof what);
        if (r->result != zipcclSuccess)
            comm_op_failed(c, what, r);
    }
    if (c->state == COMM_FAILED || c->state == COMM_FAILING) {
        comm_unit_step(m);
        if (c->state == COMM_FAILED)
            comm_answer_leaving(c);
        return;
    }
    if (m->switches)
        switcher_done(&m->switcher, daemon_now_ns() - m->started_ns, r->coded_from_bytes, r->coded_to_bytes,
                      r->worst_report);
    m->switches = false;
    m->exchange_result.wire_bytes += r->wire_bytes;
    if (!m->waits_node)
        c->ops_done++;
    comm_unit_step(m);
    comm_pump(c);
}

static struct plan_call call_of(const struct comm *c, const struct comm_pending *p) {
    const struct wire_request *r = &p->request;
    struct plan_call call = {
        .op = (zipcclOp_t)r->op, .dtype = (zipcclDataType_t)r->dtype, .count = r->count, .root = r->root};
    if (call.op == zipcclOpAllToAllCapped)
        call.count = r->max_count;
    if (call.op == zipcclOpAllToAllv) {
        call.send_counts = p->counts;
        call.send_offsets = p->counts + c->nranks;
        call.recv_counts = p->counts + 2 * (size_t)c->nranks;
        call.recv_offsets = p->counts + 3 * (size_t)c->nranks;
    }
    return call;
}

static bool has_room(struct comm_member *m, uint32_t ntransfers, uint32_t nbuffers) {
    struct comm *c = m->comm;
    uint32_t capacity = m->transfers_capacity, again = m->transfers_capacity;
    if (m->sent == NULL) {
        m->sent = calloc(2 * (size_t)c->nranks, sizeof *m->sent);
        m->received = calloc(2 * (size_t)c->nranks, sizeof *m->received);
    }
    return m->sent != NULL && m->received != NULL &&
           comm_grow((void **)&m->numbers, &capacity, ntransfers, sizeof *m->numbers) &&
           comm_grow((void **)&m->calls, &again, ntransfers, sizeof *m->calls) &&
           comm_grow((void **)&m->transfers, &m->transfers_capacity, ntransfers, sizeof *m->transfers) &&
           comm_grow((void **)&m->buffers, &m->buffers_capacity, nbuffers, sizeof *m->buffers);
}

/* Sends and receives are numbered apart: the other rank need not issue them in the same order with collectives. */
static uint32_t next_number(struct comm_member *m, const struct plan_transfer *t, bool pairwise) {
    uint32_t *numbers = t->send ? m->sent : m->received;
    uint32_t number = numbers[t->peer + (pairwise ? m->comm->nranks : 0)]++;
    return pairwise ? number | PAIRWISE : number & ~PAIRWISE;
}

static bool is_all_to_all(const struct comm_pending *p) {
    return p->request.op == zipcclOpAllToAll || p->request.op == zipcclOpAllToAllv ||
           p->request.op == zipcclOpAllToAllCapped;
}

/* Lists the transfers of the unit with their numbers and buffers. False: no memory. */
static bool list_transfers(struct comm_member *m, uint32_t *ntransfers, uint32_t *nbuffers, uint32_t *report) {
    struct comm *c = m->comm;
    uint32_t all_to_alls = 0;
    for (uint32_t i = 0; i < m->unit; i++)
        all_to_alls += is_all_to_all(comm_unit_request(m, i));
    m->switches = false;
    *report = 0;
    *ntransfers = *nbuffers = 0;
    for (uint32_t i = 0; i < m->unit; i++) {
        const struct comm_pending *p = comm_unit_request(m, i);
        if (!op_exchanges((zipcclOp_t)p->request.op))
            continue;
        bool pairwise = op_is_pairwise((zipcclOp_t)p->request.op);
        uint32_t most = pairwise ? 1 : 2 * c->nranks;
        if (!has_room(m, *ntransfers + most, *nbuffers + 1))
            return false;
        struct switch_choice choice = {0};
        if (!comm_choose_exchange(m, p, all_to_alls == 1, &choice))
            return false;
        *report |= choice.report;
        struct plan_call call = call_of(c, p);
        struct plan_transfer *t = m->transfers + *ntransfers;
        uint32_t n = plan_transfers(&call, m->rank, c->nranks, *nbuffers, t);
        for (uint32_t k = 0; k < n; k++) {
            t[k].codec = comm_transfer_codec(m, &p->request, &t[k], choice.codec);
            m->exchange_codec = t[k].codec > m->exchange_codec ? t[k].codec : m->exchange_codec;
            m->numbers[*ntransfers + k] = next_number(m, &t[k], pairwise);
            m->calls[*ntransfers + k] = pairwise ? 0 : (uint32_t)p->number;
        }
        m->buffers[(*nbuffers)++] = (struct exec_buffers){
            .send = p->send, .recv = p->recv, .send_counts = p->send_counts, .recv_counts = p->recv_counts};
        *ntransfers += n;
    }
    return true;
}

const struct comm_pending *comm_exchange_unmet(const struct comm_member *m) {
    for (uint32_t i = 0; i < m->unit && m->waits_exchange; i++) {
        const struct comm_pending *p = comm_unit_request(m, i);
        zipcclOp_t op = (zipcclOp_t)p->request.op;
        if (op_exchanges(op) && !op_is_pairwise(op) && p->number > m->comm->left_after)
            return p;
    }
    return NULL;
}

bool comm_exchange_start(struct comm_member *m) {
    struct comm *c = m->comm;
    const struct comm_pending *first = first_exchange(m), *unmet = comm_exchange_unmet(m);
    char who[120];
    if (unmet != NULL) {
        comm_describe_rank(c, c->left_rank, who, sizeof who);
        comm_fail(c, NULL, zipcclInvalidUsage, "rank %u called %s #%" PRIu64 ", but %s has left the communicator",
                  m->rank, op_name(unmet->request.op), unmet->number, who);
        return false;
    }
    struct exec_args args = {
        .rank = m->rank, .phases = c->phases, .seq = first->number, .done = exchange_done, .arg = m};
    zipcclResult_t rc = zipcclOutOfMemory;
    if (list_transfers(m, &args.ntransfers, &args.nbuffers, &args.report)) {
        args.transfers = m->transfers;
        args.numbers = m->numbers;
        args.calls = m->calls;
        rc = exec_op_start(c->exec, &args, &m->exchange);
    }
    if (rc != zipcclSuccess) {
        m->exchange = NULL;
        comm_fail(c, NULL, rc, "%s #%" PRIu64 " of rank %u could not start on node %s: %s", op_name(first->request.op),
                  first->number, m->rank, c->daemon->config.node_name, result_string(rc));
        return false;
    }
    m->started_ns = daemon_now_ns();
    comm_flight_exchange(m, first, args.nbuffers);
    exec_op_arrive(m->exchange, 0, m->buffers);
    return c->state == COMM_READY;
}

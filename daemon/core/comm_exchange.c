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

/* Answers are sent for the unit as a whole, statistics for its first exchange. */
static const struct comm_pending *first_exchange(const struct comm_member *m) {
    for (uint32_t i = 0; i < m->unit; i++) {
        const struct comm_pending *p = comm_unit_request(m, i);
        if (op_exchanges((zipcclOp_t)p->request.op))
            return p;
    }
    return NULL;
}

static void exchange_done(void *arg, const struct exec_result *r) {
    struct comm_member *m = arg;
    struct comm *c = m->comm;
    char what[64];
    m->exchange = NULL;
    m->waits_exchange = false;
    if (c->state != COMM_FAILED) {
        const struct comm_pending *p = first_exchange(m);
        comm_sample(c, p, r, m->exchange_codec, m->since_ns, m->since_ns);
        snprintf(what, sizeof what, "%s #%" PRIu64 " of rank %u", op_name(p->request.op), p->number, m->rank);
        if (r->result != zipcclSuccess)
            comm_op_failed(c, what, r);
    }
    if (c->state == COMM_FAILED) {
        comm_unit_step(m);
        comm_answer_leaving(c);
        return;
    }
    m->exchange_result.wire_bytes += r->wire_bytes;
    if (!m->waits_node)
        c->ops_done++;
    comm_unit_step(m);
    comm_pump(c);
}

/* The two ends of a transfer decide alike: from its count, what both pinned, and what all nodes know of the link. */
static zipcclCodec_t choose(const struct comm *c, const struct comm_member *m, const struct wire_request *r,
                            const struct plan_transfer *t) {
    zipcclCodec_t wanted = r->codec == zipcclCodecAuto ? c->codec : (zipcclCodec_t)r->codec;
    if (c->topology.rank_node[t->peer] == c->topology.rank_node[m->rank])
        return zipcclCodecRaw;
    return choose_codec(&c->link_numbers, wanted, zipcclOpSend, t->dtype, t->count, &c->topology);
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
    uint32_t capacity = m->transfers_capacity;
    if (m->sent == NULL) {
        m->sent = calloc(c->nranks, sizeof *m->sent);
        m->received = calloc(c->nranks, sizeof *m->received);
    }
    return m->sent != NULL && m->received != NULL &&
           comm_grow((void **)&m->numbers, &capacity, ntransfers, sizeof *m->numbers) &&
           comm_grow((void **)&m->transfers, &m->transfers_capacity, ntransfers, sizeof *m->transfers) &&
           comm_grow((void **)&m->buffers, &m->buffers_capacity, nbuffers, sizeof *m->buffers);
}

/* Lists the transfers of the unit with their numbers and buffers. False: no memory. */
static bool list_transfers(struct comm_member *m, uint32_t *ntransfers, uint32_t *nbuffers) {
    struct comm *c = m->comm;
    *ntransfers = *nbuffers = 0;
    for (uint32_t i = 0; i < m->unit; i++) {
        const struct comm_pending *p = comm_unit_request(m, i);
        if (!op_exchanges((zipcclOp_t)p->request.op))
            continue;
        uint32_t most = op_is_pairwise((zipcclOp_t)p->request.op) ? 1 : 2 * c->nranks;
        if (!has_room(m, *ntransfers + most, *nbuffers + 1))
            return false;
        struct plan_call call = call_of(c, p);
        struct plan_transfer *t = m->transfers + *ntransfers;
        uint32_t n = plan_transfers(&call, m->rank, c->nranks, *nbuffers, t);
        for (uint32_t k = 0; k < n; k++) {
            t[k].codec = choose(c, m, &p->request, &t[k]);
            m->exchange_codec = t[k].codec > m->exchange_codec ? t[k].codec : m->exchange_codec;
            m->numbers[*ntransfers + k] = t[k].send ? m->sent[t[k].peer]++ : m->received[t[k].peer]++;
        }
        m->buffers[(*nbuffers)++] = (struct exec_buffers){
            .send = p->send, .recv = p->recv, .send_counts = p->send_counts, .recv_counts = p->recv_counts};
        *ntransfers += n;
    }
    return true;
}

bool comm_exchange_start(struct comm_member *m) {
    struct comm *c = m->comm;
    const struct comm_pending *first = first_exchange(m);
    struct exec_args args = {
        .rank = m->rank, .phases = c->phases, .seq = first->number, .done = exchange_done, .arg = m};
    zipcclResult_t rc = zipcclOutOfMemory;
    if (list_transfers(m, &args.ntransfers, &args.nbuffers)) {
        args.transfers = m->transfers;
        args.numbers = m->numbers;
        rc = exec_op_start(c->exec, &args, &m->exchange);
    }
    if (rc != zipcclSuccess) {
        m->exchange = NULL;
        comm_fail(c, NULL, rc, "%s #%" PRIu64 " of rank %u could not start on node %s: %s", op_name(first->request.op),
                  first->number, m->rank, c->daemon->config.node_name, result_string(rc));
        return false;
    }
    exec_op_arrive(m->exchange, 0, m->buffers);
    return c->state == COMM_READY;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The node's part of a unit: the collectives that all ranks of the node do together, one operation of the executor at a
 * time. The first rank that comes starts it, the others must ask for the same.
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

/* The collectives of a unit, in order. Longer lists than COMM_MAX_FUSED were refused as requests. */
static uint32_t list_collectives(const struct comm_member *m, uint32_t out[COMM_MAX_FUSED]) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->unit && n < COMM_MAX_FUSED; i++) {
        if (!op_exchanges((zipcclOp_t)comm_unit_request(m, i)->request.op))
            out[n++] = i;
    }
    return n;
}

static const struct comm_pending *desc(const struct comm *c, uint32_t i) {
    return comm_unit_request(c->desc_member, c->desc[i]);
}

static bool differs(const char **what, const char *name, bool yes) {
    if (yes)
        *what = name;
    return yes;
}

/* Whether a rank asks for what the first one asked for. The text names both ranks and both values. */
static bool matches(const struct comm *c, const struct comm_member *m, const struct comm_pending *p,
                    const struct comm_pending *first, char *text, size_t size) {
    const struct wire_request *r = &p->request, *d = &first->request;
    uint32_t ncounts = comm_ncounts(c, r->op);
    const char *what = NULL;
    char a[32] = "", b[32] = "";
    if (differs(&what, "operation", r->op != d->op)) {
        snprintf(a, sizeof a, "%s", op_name(r->op));
        snprintf(b, sizeof b, "%s", op_name(d->op));
    } else if (differs(&what, "number", p->number != first->number)) {
        snprintf(a, sizeof a, "%" PRIu64, p->number);
        snprintf(b, sizeof b, "%" PRIu64, first->number);
    } else if (differs(&what, "data type", r->dtype != d->dtype)) {
        snprintf(a, sizeof a, "%s", dtype_get(r->dtype)->name);
        snprintf(b, sizeof b, "%s", dtype_get(d->dtype)->name);
    } else if (differs(&what, "count", r->count != d->count)) {
        snprintf(a, sizeof a, "%" PRIu64, r->count);
        snprintf(b, sizeof b, "%" PRIu64, d->count);
    } else if (differs(&what, "root", r->root != d->root)) {
        snprintf(a, sizeof a, "%u", r->root);
        snprintf(b, sizeof b, "%u", d->root);
    } else if (differs(&what, "reduction", r->redop != d->redop)) {
        snprintf(a, sizeof a, "%s", redop_name(r->redop));
        snprintf(b, sizeof b, "%s", redop_name(d->redop));
    } else if (differs(&what, "arm", r->arm != d->arm)) {
        snprintf(a, sizeof a, "%s", arm_name(r->arm));
        snprintf(b, sizeof b, "%s", arm_name(d->arm));
    } else if (differs(&what, "codec", r->codec != d->codec)) {
        snprintf(a, sizeof a, "%s", codec_name((zipcclCodec_t)r->codec));
        snprintf(b, sizeof b, "%s", codec_name((zipcclCodec_t)d->codec));
    }
    for (uint32_t i = 0; what == NULL && i < ncounts; i++) {
        if (p->counts[i] == first->counts[i])
            continue;
        snprintf(a, sizeof a, "%" PRIu64 " for rank %u", p->counts[i], i);
        snprintf(b, sizeof b, "%" PRIu64, first->counts[i]);
        what = "count";
    }
    if (what == NULL)
        return true;
    snprintf(text, size, "ranks differ in operation #%" PRIu64 ": %s is %s on rank %u, %s on rank %u", first->number,
             what, a, m->rank, b, c->desc_rank);
    return false;
}

/* The executor touches nothing of this operation any more. */
static void collective_done(void *arg, const struct exec_result *r) {
    struct comm *c = arg;
    char what[48];
    comm_ops_current(c, what, sizeof what);
    if (c->state != COMM_FAILED)
        comm_sample(c, desc(c, 0), r, c->op_codec, c->first_ns, c->last_ns);
    comm_flight_end(c, c->flight, r);
    c->op = NULL;
    c->op_active = false;
    for (uint32_t i = 0; i < c->nmembers; i++) {
        if (c->members[i]->arrived)
            c->members[i]->waits_node = false;
    }
    if (c->state != COMM_FAILED && r->result != zipcclSuccess)
        comm_op_failed(c, what, r);
    if (c->state == COMM_FAILED || c->state == COMM_FAILING) {
        for (uint32_t i = 0; i < c->nmembers; i++)
            comm_unit_step(c->members[i]);
        if (c->state == COMM_FAILED)
            comm_answer_leaving(c); /* all else was said */
        return;
    }
    if (c->switches)
        switcher_done(&c->switcher, daemon_now_ns() - c->started_ns, r->coded_from_bytes, r->coded_to_bytes,
                      r->worst_report);
    c->switches = false;
    c->daemon->stats.counters[STATS_native_collectives] += r->native;
    c->ops_done += c->ndesc;
    c->seq += c->ndesc;
    c->narrived = 0;
    for (uint32_t i = 0; i < c->nmembers; i++) {
        struct comm_member *m = c->members[i];
        if (!m->arrived)
            continue;
        m->arrived = false;
        m->exchange_result.wire_bytes += r->wire_bytes;
        m->exchange_codec = c->op_codec > m->exchange_codec ? c->op_codec : m->exchange_codec;
        comm_unit_step(m);
    }
    comm_pump(c);
}

static struct plan_op plan_op_of(const struct comm_pending *p, const struct switch_choice *choice) {
    const struct wire_request *r = &p->request;
    return (struct plan_op){.op = (zipcclOp_t)r->op,
                            .dtype = (zipcclDataType_t)r->dtype,
                            .codec = choice->codec,
                            .arm = choice->arm,
                            .redop = (zipcclRedOp_t)r->redop,
                            .count = r->count,
                            .root = r->root,
                            .counts = p->counts};
}

/* The first rank starts it. */
static bool start(struct comm *c, struct comm_member *m) {
    struct plan_op ops[COMM_MAX_FUSED];
    struct exec_args args = {.ops = ops, .seq = c->seq, .done = collective_done, .arg = c};
    char who[120];
    c->ndesc = list_collectives(m, c->desc);
    c->desc_member = m;
    c->desc_rank = m->rank;
    const struct comm_pending *first = desc(c, 0);
    c->desc_op = first->request.op;
    c->seq = first->number;
    args.seq = c->seq;
    args.nops = c->ndesc;
    if (first->number > c->left_after) {
        comm_describe_rank(c, c->left_rank, who, sizeof who);
        comm_fail(c, NULL, zipcclInvalidUsage, "rank %u called %s #%" PRIu64 ", but %s has left the communicator",
                  m->rank, op_name(first->request.op), first->number, who);
        return false;
    }
    c->first_ns = m->since_ns;
    c->narrived = 0;
    c->op_codec = zipcclCodecRaw;
    c->switches = false;
    for (uint32_t i = 0; i < c->ndesc; i++) {
        struct switch_choice choice = {0};
        if (!comm_choose_collective(c, desc(c, i), c->ndesc == 1, &choice)) {
            comm_fail(c, NULL, zipcclOutOfMemory, "node %s: out of memory", c->daemon->config.node_name);
            return false;
        }
        ops[i] = plan_op_of(desc(c, i), &choice);
        c->op_arm = i == 0 ? choice.arm : c->op_arm;
        args.report = c->switches ? choice.report : 0;
        c->op_codec = ops[i].codec > c->op_codec ? ops[i].codec : c->op_codec;
        c->op_arm = i == 0 ? ops[i].arm : c->op_arm;
    }
    zipcclResult_t rc = exec_op_start(c->exec, &args, &c->op);
    if (rc != zipcclSuccess) {
        c->op = NULL;
        comm_fail(c, NULL, rc, "%s #%" PRIu64 " could not start on node %s: %s", op_name(first->request.op),
                  first->number, c->daemon->config.node_name, result_string(rc));
        return false;
    }
    c->op_active = true;
    comm_flight_collective(c);
    return true;
}

bool comm_collective_join(struct comm_member *m) {
    struct comm *c = m->comm;
    uint32_t mine[COMM_MAX_FUSED];
    char text[256];
    if (!c->op_active && !start(c, m))
        return false;
    uint32_t n = list_collectives(m, mine);
    if (n != c->ndesc) {
        comm_fail(c, NULL, zipcclInvalidArgument,
                  "ranks differ in operation #%" PRIu64 ": the group has %u collectives on rank %u, %u on rank %u",
                  c->seq, n, m->rank, c->ndesc, c->desc_rank);
        return false;
    }
    if (!comm_grow((void **)&m->buffers, &m->buffers_capacity, n, sizeof *m->buffers)) {
        comm_fail(c, NULL, zipcclOutOfMemory, "node %s: out of memory", c->daemon->config.node_name);
        return false;
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct comm_pending *p = comm_unit_request(m, mine[i]);
        if (!matches(c, m, p, desc(c, i), text, sizeof text)) {
            comm_fail(c, NULL, zipcclInvalidArgument, "%s", text);
            return false;
        }
        m->buffers[i] = (struct exec_buffers){.send = p->send, .recv = p->recv, .scalar = p->request.scalar};
    }
    m->arrived = true;
    c->narrived++;
    c->last_ns = m->since_ns > c->first_ns ? m->since_ns : c->first_ns;
    c->started_ns = daemon_now_ns();
    comm_flight_arrived(c);
    exec_op_arrive(c->op, m->local, m->buffers);
    return true;
}

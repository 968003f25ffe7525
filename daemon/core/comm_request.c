/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests of clients: everything in them is checked here, then they wait in their rank's queue.
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
#include "daemon/core/stream.h"
#include "kernels/dtype.h"
#include "proto/op.h"

uint32_t comm_ncounts(const struct comm *c, unsigned op) {
    switch (op) {
    case zipcclOpAllGatherv:
    case zipcclOpReduceScatterv:
        return c->nranks;
    case zipcclOpAllToAllv:
        return 4 * c->nranks;
    default:
        return 0;
    }
}

/* Values up to the end of the last part; false: an overflow. */
static bool extent(const uint64_t *counts, const uint64_t *offsets, uint32_t n, uint64_t *end) {
    *end = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t last;
        if (__builtin_add_overflow(offsets[i], counts[i], &last))
            return false;
        if (counts[i] > 0 && last > *end)
            *end = last;
    }
    return true;
}

static bool sum(const uint64_t *counts, uint32_t n, uint64_t *total) {
    *total = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (__builtin_add_overflow(*total, counts[i], total))
            return false;
    }
    return true;
}

/* What the request needs in each buffer, in values; false: no such amount. */
static bool needed_values(const struct comm *c, const struct comm_member *m, const struct comm_pending *p,
                          uint64_t *send, uint64_t *recv) {
    const struct wire_request *r = &p->request;
    uint64_t count = r->op == zipcclOpAllToAllCapped ? r->max_count : r->count, all = 0, n = c->nranks;
    const uint64_t *v = p->counts;
    bool root = m->rank == r->root;
    *send = *recv = 0;
    if (r->op != zipcclOpBarrier && __builtin_mul_overflow(count, n, &all))
        return false;
    switch ((zipcclOp_t)r->op) {
    case zipcclOpAllGather:
        *send = count, *recv = all;
        return true;
    case zipcclOpBroadcast:
        *send = root ? count : 0, *recv = count;
        return true;
    case zipcclOpReduceScatter:
        *send = all, *recv = count;
        return true;
    case zipcclOpAllReduce:
        *send = *recv = count;
        return true;
    case zipcclOpReduce:
        *send = count, *recv = root ? count : 0;
        return true;
    case zipcclOpAllToAll:
    case zipcclOpAllToAllCapped:
        *send = *recv = all;
        return true;
    case zipcclOpAllToAllv:
        return v != NULL && extent(v, v + n, c->nranks, send) && extent(v + 2 * n, v + 3 * n, c->nranks, recv);
    case zipcclOpGather:
        *send = count, *recv = root ? all : 0;
        return true;
    case zipcclOpScatter:
        *send = root ? all : 0, *recv = count;
        return true;
    case zipcclOpSend:
        *send = count;
        return true;
    case zipcclOpRecv:
        *recv = count;
        return true;
    case zipcclOpAllGatherv:
        *send = v != NULL ? v[m->rank] : 0;
        return v != NULL && sum(v, c->nranks, recv);
    case zipcclOpReduceScatterv:
        *recv = v != NULL ? v[m->rank] : 0;
        return v != NULL && sum(v, c->nranks, send);
    case zipcclOpBarrier:
    case zipcclNumOps:
        break;
    }
    return true;
}

static bool needed_bytes(const struct comm *c, const struct comm_member *m, const struct comm_pending *p,
                         uint64_t *send, uint64_t *recv) {
    uint64_t size = dtype_get(p->request.dtype)->bytes;
    return needed_values(c, m, p, send, recv) && !__builtin_mul_overflow(*send, size, send) &&
           !__builtin_mul_overflow(*recv, size, recv);
}

static zipcclResult_t check_request(const struct comm *c, const struct comm_member *m, const struct comm_pending *p,
                                    char *why, size_t size) {
    const struct wire_request *r = &p->request;
    const struct wire_point *point = &p->point;
    bool reduces = op_reduces((zipcclOp_t)r->op), root = op_has_root((zipcclOp_t)r->op);
    bool pairwise = op_is_pairwise((zipcclOp_t)r->op), capped = r->op == zipcclOpAllToAllCapped;
    if ((r->flags & ~(WIRE_GROUP_MORE | WIRE_ON_STREAM)) != 0 || r->reserved != 0 || (!capped && r->max_count != 0))
        snprintf(why, size, "reserved fields are not 0");
    else if (capped && r->count != 0)
        snprintf(why, size, "%s has a max_count, and no count", op_name(r->op));
    else if ((r->flags & WIRE_ON_STREAM) && point->stream == 0)
        snprintf(why, size, "the place in a stream is missing");
    else if (r->op >= zipcclNumOps)
        snprintf(why, size, "unknown operation %u", r->op);
    else if (r->dtype >= zipcclNumTypes)
        snprintf(why, size, "unknown data type %u", r->dtype);
    else if (r->codec >= zipcclNumCodecs && r->codec != zipcclCodecAuto)
        snprintf(why, size, "unknown codec %u", r->codec);
    else if (root && r->root >= c->nranks)
        snprintf(why, size, "root %u is not below the number of ranks, %u", r->root, c->nranks);
    else if (pairwise && r->root >= c->nranks)
        snprintf(why, size, "peer %u is not below the number of ranks, %u", r->root, c->nranks);
    else if (r->redop >= zipcclNumRedOps || (!reduces && r->redop != 0))
        snprintf(why, size, "unknown reduction %u", r->redop);
    else if (reduces && r->arm >= zipcclNumArms && r->arm != zipcclArmAuto)
        snprintf(why, size, "unknown arm %u", r->arm);
    else if (!reduces && r->arm != 0)
        snprintf(why, size, "%s has no arms", op_name(r->op));
    else if (r->redop != zipcclPreMulSum && r->scalar != 0)
        snprintf(why, size, "a scalar goes with premulsum alone");
    else if (r->op == zipcclOpBarrier && ((r->flags & WIRE_GROUP_MORE) || m->group_open))
        snprintf(why, size, "a barrier cannot be in a group");
    else if (!op_exchanges((zipcclOp_t)r->op) && m->group_collectives >= COMM_MAX_FUSED)
        snprintf(why, size, "a group has more than %u collectives", COMM_MAX_FUSED);
    else if (r->seq != m->next_seq)
        snprintf(why, size, "operation #%" PRIu64 " came where #%" PRIu64 " was expected", r->seq, m->next_seq);
    else
        return zipcclSuccess;
    return zipcclInvalidArgument;
}

/* What this communicator's layout does not allow. All ranks are refused alike, so the communicator goes on without it:
 * the client may ask for another arm with the next number. */
static zipcclResult_t check_arm(const struct comm *c, const struct wire_request *r, char *why, size_t size) {
    if (!op_reduces((zipcclOp_t)r->op) || r->arm != zipcclArmFlat || c->nnodes == 1)
        return zipcclSuccess;
    if (r->redop == zipcclPreMulSum)
        snprintf(why, size,
                 "the flat arm cannot do premulsum: the scalars of other nodes are not known; pin another arm");
    else if (c->most_ranks > FLAT_MOST_RANKS)
        snprintf(why, size,
                 "the flat arm would move %u times the bytes of the hierarchical one between nodes, for so many ranks "
                 "has a node; pin hierarchical or auto",
                 c->most_ranks);
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
    if (log_often(&s->daemon->refused_requests, daemon_now_ns(), "requests were refused"))
        log_info("request refused: %s (result=%d session=%" PRIu64 " comm=%016" PRIx64 " job=%s rank=%u)", text,
                 (int)result, s->id, m->comm->key, m->comm->job->name, m->rank);
    comm_complete(m, p, result, text, 0, zipcclCodecRaw);
}

/* Copies the counts that follow the request, freed by comm_pending_free, or where they are. */
static zipcclResult_t take_counts(const struct comm *c, const struct frame *f, size_t bytes, struct comm_pending *p,
                                  struct wire_counts *at) {
    uint32_t n = comm_ncounts(c, p->request.op);
    *at = (struct wire_counts){0};
    if (p->request.op == zipcclOpAllToAllCapped) {
        if (bytes != sizeof p->request + sizeof *at)
            return zipcclInvalidArgument;
        memcpy(at, (const char *)f->payload + sizeof p->request, sizeof *at);
        return zipcclSuccess;
    }
    if (bytes != sizeof p->request + n * sizeof *p->counts)
        return zipcclInvalidArgument;
    if (n == 0)
        return zipcclSuccess;
    p->counts = malloc(n * sizeof *p->counts);
    if (p->counts == NULL)
        return zipcclOutOfMemory;
    memcpy(p->counts, (const char *)f->payload + sizeof p->request, n * sizeof *p->counts);
    return zipcclSuccess;
}

/* Takes the leases of its buffers; at: of its counts, where it is capped. False: it was refused. */
static bool take_buffers(struct comm_member *m, struct comm_pending *p, const struct wire_counts *at) {
    const struct wire_request *r = &p->request;
    bool capped = r->op == zipcclOpAllToAllCapped;
    uint64_t send_bytes, recv_bytes, counts_bytes = capped ? m->comm->nranks * sizeof(uint64_t) : 0;
    if (!needed_bytes(m->comm, m, p, &send_bytes, &recv_bytes)) {
        comm_refuse(m, p, zipcclInvalidArgument, "rank %u: %s of %" PRIu64 " values overflows", m->rank, op_name(r->op),
                    capped ? r->max_count : r->count);
        return false;
    }
    const struct {
        const char *name;
        uint64_t buffer, offset, bytes;
        size_t align;
    } ranges[COMM_LEASES] = {{"send", r->send_buffer, r->send_offset, send_bytes, 1},
                             {"receive", r->recv_buffer, r->recv_offset, recv_bytes, 1},
                             {"send count", at->send_buffer, at->send_offset, counts_bytes, sizeof(uint64_t)},
                             {"receive count", at->recv_buffer, at->recv_offset, counts_bytes, sizeof(uint64_t)}};
    void *found[COMM_LEASES];
    for (uint32_t i = 0; i < COMM_LEASES; i++) {
        const char *why = "the range is not aligned to 8 bytes";
        zipcclResult_t rc = zipcclInvalidArgument;
        if (ranges[i].offset % ranges[i].align == 0)
            rc = buffer_take(m->session, ranges[i].buffer, ranges[i].offset, ranges[i].bytes, &p->leases[i], &found[i],
                             &why);
        if (rc == zipcclSuccess && ranges[i].align > 1 && p->leases[i] != NULL && p->leases[i]->memory.on_gpu) {
            why = "counts cannot lie in the memory of a GPU";
            rc = zipcclInvalidArgument;
        }
        if (rc == zipcclSuccess)
            continue;
        comm_refuse(m, p, rc, "rank %u, %s #%" PRIu64 ", %s buffer %#" PRIx64 " + %" PRIu64 ": %s", m->rank,
                    op_name(r->op), r->seq, ranges[i].name, ranges[i].buffer, ranges[i].offset, why);
        return false;
    }
    p->send = found[0];
    p->recv = found[1];
    p->send_counts = found[2];
    p->recv_counts = found[3];
    return true;
}

/* The client's stream is there, or will never be. */
static void gate_opened(const struct device_gate *gate, zipcclResult_t result, const char *why) {
    struct session *s = gate->owner;
    struct comm_member *m = handles_get(&s->comms, gate->key);
    for (uint32_t i = 0; m != NULL && i < m->count; i++) {
        struct comm_pending *p = comm_unit_request(m, i);
        if (p->request.seq != gate->number || !p->gated)
            continue;
        if (result != zipcclSuccess) {
            comm_fail(m->comm, NULL, result, "rank %u: %s #%" PRIu64 " waits for its stream, which failed%s%s", m->rank,
                      op_name(p->request.op), p->request.seq, why != NULL ? ": " : "", why != NULL ? why : "");
            return;
        }
        p->gated = false;
        p->arrived_ns = daemon_now_ns(); /* until now it was the trainer that was late */
        comm_pump(m->comm);
        return;
    }
}

/* Lets the request wait for its stream. False: it was refused. */
static bool wait_for_stream(struct comm_member *m, struct comm_pending *p) {
    const struct device_gate gate = {
        .opened = gate_opened, .owner = m->session, .key = m->handle, .number = p->request.seq};
    const char *why = "";
    if (p->point.stream == 0)
        return true;
    zipcclResult_t rc = stream_wait(m->session, &p->point, &gate, &why);
    p->gated = rc == zipcclSuccess;
    if (rc != zipcclSuccess)
        comm_refuse(m, p, rc, "rank %u, %s #%" PRIu64 ": %s", m->rank, op_name(p->request.op), p->request.seq, why);
    return rc == zipcclSuccess;
}

/* A refused request of a group leaves a gap that cannot be mended: the rest would run without it. */
static void refused(struct comm_member *m, struct comm_pending *p) {
    comm_pending_free(p);
    if (m->group_open || (p->request.flags & WIRE_GROUP_MORE))
        comm_fail(m->comm, NULL, zipcclInvalidArgument, "rank %u: an operation of a group was refused", m->rank);
}

static void enqueue(struct comm_member *m, struct comm_pending *p) {
    struct comm *c = m->comm;
    bool pairwise = op_is_pairwise((zipcclOp_t)p->request.op);
    p->arrived_ns = daemon_now_ns();
    p->number = pairwise ? p->request.seq : ++m->called;
    m->group_open = p->request.flags & WIRE_GROUP_MORE;
    m->group = m->group_open ? m->group + 1 : 0;
    m->group_collectives = m->group_open ? m->group_collectives + !op_exchanges((zipcclOp_t)p->request.op) : 0;
    m->queue[(m->head + m->count) & (m->capacity - 1)] = *p;
    m->count++;
    m->next_seq++;
    c->daemon->stats.counters[STATS_requests]++;
    if (m->group >= WIRE_MAX_GROUP) {
        comm_fail(c, NULL, zipcclLimitExceeded, "rank %u: a group has more than %u operations", m->rank,
                  WIRE_MAX_GROUP);
        return;
    }
    comm_pump(c);
}

/* Whether what runs on this node needs the request. */
static bool joins_running(const struct comm *c, const struct comm_member *m, const struct wire_request *r) {
    bool pairwise = op_is_pairwise((zipcclOp_t)r->op);
    uint64_t number = m->called + 1;
    if (c->op_active && !pairwise && number >= c->seq && number < c->seq + c->ndesc)
        return true;
    for (uint32_t i = 0; i < c->nmembers; i++) {
        const struct comm_member *other = c->members[i];
        for (uint32_t k = 0; k < other->unit && other->exchange != NULL && other != m; k++) {
            const struct comm_pending *p = comm_unit_request(other, k);
            bool is_pair = op_is_pairwise((zipcclOp_t)p->request.op);
            if (is_pair == pairwise &&
                (pairwise ? p->request.root == m->rank && r->root == other->rank : p->number == number))
                return true;
        }
    }
    return false;
}

void comm_request(struct session *s, const struct frame *f) {
    struct comm_pending p = {.frame_id = f->id};
    char text[192];
    if (f->length < sizeof p.request) {
        session_error(s, f->id, zipcclInvalidArgument, "a request has %zu bytes or more, not %u", sizeof p.request,
                      f->length);
        return;
    }
    memcpy(&p.request, f->payload, sizeof p.request);
    const struct wire_request *r = &p.request;
    size_t bytes = f->length;
    if ((r->flags & WIRE_ON_STREAM) && bytes >= sizeof p.request + sizeof p.point) {
        bytes -= sizeof p.point;
        memcpy(&p.point, f->payload + bytes, sizeof p.point);
    }
    struct comm_member *m = handles_get(&s->comms, r->comm);
    if (m == NULL || m->state == MEMBER_JOINING) {
        session_error(s, f->id, zipcclInvalidArgument, "unknown communicator %#" PRIx64, r->comm);
        return;
    }
    struct comm *c = m->comm;
    if (c->state == COMM_FAILED) {
        comm_complete(m, &p, c->error, c->text, 0, zipcclCodecRaw);
        return;
    }
    if (m->state != MEMBER_IN) {
        comm_refuse(m, &p, zipcclInvalidUsage, "rank %u is being destroyed", m->rank);
        return;
    }
    zipcclResult_t rc = check_request(c, m, &p, text, sizeof text);
    if (rc == zipcclSuccess && (rc = check_arm(c, r, text, sizeof text)) != zipcclSuccess)
        m->next_seq++;
    if (rc != zipcclSuccess) {
        comm_refuse(m, &p, rc, "rank %u: %s", m->rank, text);
        refused(m, &p);
        return;
    }
    /* While draining, a rank may still join the operation that runs. Else the communicator is over, for all of its
     * ranks: they must hear the cause, not that this one left. */
    if (drain_why(s->daemon, c->job, text, sizeof text) != NULL && !joins_running(c, m, r)) {
        comm_fail(c, NULL, zipcclDaemonUnavailable, "%s", text);
        comm_complete(m, &p, c->error, c->text, 0, zipcclCodecRaw);
        return;
    }
    struct wire_counts at;
    if ((rc = take_counts(c, f, bytes, &p, &at)) != zipcclSuccess) {
        comm_refuse(m, &p, rc, "rank %u: %s has %u bytes, which do not hold the counts of %u ranks", m->rank,
                    op_name(r->op), f->length, c->nranks);
        refused(m, &p);
        return;
    }
    if ((rc = comm_queue_room(m)) != zipcclSuccess) {
        comm_refuse(m, &p, rc, "rank %u has %u requests under way, the most that are allowed", m->rank, m->count);
        comm_pending_free(&p);
        /* More may be on their way behind it: the gap cannot be mended, and the other ranks must not wait for it. */
        comm_fail(c, NULL, rc, "rank %u had %u requests under way, the most that are allowed", m->rank, m->count);
        return;
    }
    if (!take_buffers(m, &p, &at) || !wait_for_stream(m, &p)) {
        refused(m, &p);
        return;
    }
    enqueue(m, &p);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * All-gather. A rank's values cross to each other node once; local ranks get them by copies.
 *
 * Each node numbers its pieces (chunk, local rank) in one order; the number is the tag, and both sides work through the
 * pieces of a node in that order. Coded, piece i uses send slot i mod window, and at each receiver slot i mod window of
 * the sender; a slot is taken again when its earlier piece has left (sender) or is decoded (receiver). A receive waits
 * only for local arrivals and decodes, so piece i moves on every node once piece i - window has: no cycle between
 * nodes. Raw, nothing holds memory, but the pieces under way are bounded in the same manner, so that a large operation
 * does not fill the queues of the fabric; receives are posted further ahead than sends.
 */
#include "daemon/plan/builder.h"

#include <stdlib.h>

#define RAW_SENDS_AHEAD 2u /* times window */
#define RAW_RECVS_AHEAD 4u

struct gather {
    struct builder *b;
    uint64_t chunk, nchunks;
    uint32_t window;
    bool coded;
    uint32_t *send_free; /* [window slot][peer]: the last send out of it */
    uint32_t *recv_free; /* [peer][window slot]: the last receive (raw) or decode (coded) of it */
    uint32_t send_window, recv_window;
};

static uint64_t piece_count(const struct gather *g, uint64_t chunk) {
    uint64_t start = chunk * g->chunk, left = g->b->op->count - start;
    return left < g->chunk ? left : g->chunk;
}

static struct plan_ref recv_ref(const struct gather *g, uint32_t local, uint32_t rank, uint64_t chunk) {
    return (struct plan_ref){PLAN_RECVBUF, g->b->buffers + local,
                             (rank * g->b->op->count + chunk * g->chunk) * g->b->value_bytes};
}

static void add_sends(struct gather *g, uint64_t piece) {
    struct builder *b = g->b;
    uint32_t local = (uint32_t)(piece % b->nlocal), slot = (uint32_t)(piece % g->send_window);
    uint64_t chunk = piece / b->nlocal;
    struct plan_ref src = {PLAN_SENDBUF, b->buffers + local, chunk * g->chunk * b->value_bytes};
    struct plan_step step = {.local = (uint16_t)local,
                             .codec = (uint8_t)b->op->codec,
                             .rank = b->members[b->first[b->node] + local],
                             .tag = (uint32_t)piece,
                             .count = piece_count(g, chunk)};
    uint32_t *busy = &g->send_free[(size_t)slot * b->nnodes];
    uint32_t ready = local; /* the arrival */
    if (g->coded) {
        step.kind = PLAN_ENCODE;
        step.src = src;
        step.dst = (struct plan_ref){PLAN_SLOT, b->slots + slot, 0};
        ready = builder_step(b, &step);
        builder_edge(b, local, ready);
        for (uint32_t n = 0; n < b->nnodes; n++)
            builder_edge(b, busy[n], ready);
        src = step.dst;
        step.dst = (struct plan_ref){0};
    }
    step.kind = PLAN_SEND;
    step.src = src;
    for (uint32_t k = 1; k < b->nnodes; k++) {
        step.peer = (b->node + k) % b->nnodes;
        uint32_t id = builder_step(b, &step);
        builder_edge(b, ready, id);
        if (!g->coded)
            builder_edge(b, busy[step.peer], id);
        busy[step.peer] = id;
    }
}

/* Copies what lies in local rank `from`'s buffer to the other ranks of this node. */
static void add_copies(struct gather *g, uint32_t have, uint32_t from, struct plan_ref src, uint32_t rank,
                       uint64_t chunk) {
    struct builder *b = g->b;
    for (uint32_t i = 0; i < b->nlocal; i++) {
        bool own = src.space == PLAN_RECVBUF && i == from;
        if (own)
            continue;
        struct plan_step step = {.kind = PLAN_COPY,
                                 .local = (uint16_t)i,
                                 .rank = rank,
                                 .count = piece_count(g, chunk),
                                 .src = src,
                                 .dst = recv_ref(g, i, rank, chunk)};
        uint32_t id = builder_step(b, &step);
        builder_edge(b, i, id);
        if (have != i)
            builder_edge(b, have, id);
    }
}

static void add_recv(struct gather *g, uint32_t peer, uint64_t piece) {
    struct builder *b = g->b;
    uint32_t theirs = builder_members(b, peer);
    uint64_t chunk = piece / theirs;
    if (chunk >= g->nchunks)
        return;
    uint32_t rank = b->members[b->first[peer] + (uint32_t)(piece % theirs)];
    uint32_t local = (uint32_t)(piece % b->nlocal), slot = (uint32_t)(piece % g->recv_window);
    uint32_t *busy = &g->recv_free[(size_t)peer * g->recv_window + slot];
    struct plan_ref dst = recv_ref(g, local, rank, chunk);
    /* Send slots come first, then each peer's; this node itself has none. */
    uint32_t peer_index = peer < b->node ? peer : peer - 1;
    struct plan_ref coded = {PLAN_SLOT, b->slots + g->send_window + peer_index * g->recv_window + slot, 0};
    struct plan_step step = {.kind = PLAN_RECV,
                             .codec = (uint8_t)b->op->codec,
                             .local = (uint16_t)local,
                             .peer = peer,
                             .tag = (uint32_t)piece,
                             .rank = rank,
                             .count = piece_count(g, chunk),
                             .dst = g->coded ? coded : dst};
    uint32_t have = builder_step(b, &step);
    builder_edge(b, local, have);
    builder_edge(b, *busy, have);
    if (g->coded) {
        uint32_t received = have;
        step.kind = PLAN_DECODE;
        step.src = coded;
        step.dst = dst;
        have = builder_step(b, &step);
        builder_edge(b, received, have);
    }
    *busy = have;
    add_copies(g, have, local, dst, rank, chunk);
}

void plan_all_gather(struct builder *b) {
    const struct plan_op *a = b->op;
    struct gather g = {.b = b, .coded = a->codec != zipcclCodecRaw};
    uint64_t total = a->count * b->value_bytes;
    g.chunk = plan_chunk_count(a->dtype, total, b->args->chunk_bytes);
    g.nchunks = (a->count + g.chunk - 1) / g.chunk;
    uint32_t most = 1;
    for (uint32_t n = 0; n < b->nnodes; n++)
        most = builder_members(b, n) > most ? builder_members(b, n) : most;
    if (g.nchunks > UINT32_MAX / most) {
        b->error = zipcclInvalidArgument;
        return;
    }
    uint64_t pieces = g.nchunks * most;
    uint64_t sends = (uint64_t)b->args->window * (g.coded ? 1 : RAW_SENDS_AHEAD);
    uint64_t recvs = (uint64_t)b->args->window * (g.coded ? 1 : RAW_RECVS_AHEAD);
    g.send_window = (uint32_t)(sends < pieces ? sends : pieces);
    g.recv_window = (uint32_t)(recvs < pieces ? recvs : pieces);
    if (b->nnodes > 1) {
        if (g.coded) {
            b->slots = builder_slots(b, g.send_window + (uint64_t)(b->nnodes - 1) * g.recv_window,
                                     g.chunk < a->count ? g.chunk : a->count);
        }
        g.send_free = builder_array(b, (size_t)g.send_window * b->nnodes);
        g.recv_free = builder_array(b, (size_t)g.recv_window * b->nnodes);
        if (b->error)
            goto out;
        uint64_t mine = g.nchunks * b->nlocal;
        for (uint64_t i = 0; i < pieces; i++) {
            if (i < mine)
                add_sends(&g, i);
            for (uint32_t k = 1; k < b->nnodes; k++)
                add_recv(&g, (b->node + b->nnodes - k) % b->nnodes, i);
        }
    }
    /* Last in the plan, for they hold up nobody else. */
    for (uint64_t c = 0; c < g.nchunks; c++) {
        for (uint32_t local = 0; local < b->nlocal; local++) {
            struct plan_ref src = {PLAN_SENDBUF, b->buffers + local, c * g.chunk * b->value_bytes};
            add_copies(&g, local, local, src, b->members[b->first[b->node] + local], c);
        }
    }
out:
    free(g.send_free);
    free(g.recv_free);
}

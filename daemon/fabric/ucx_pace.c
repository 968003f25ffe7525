/* SPDX-License-Identifier: Apache-2.0
 *
 * The link clock: a message leaves when the link, at its rate, would have put its last byte on the wire.
 *
 * The clock moves by wire times, not by when the thread woke, so lateness does not add up. Large messages go in order.
 * Small ones have a clock of their own, so that they do not wait behind large ones; the time that they take is added to
 * the clock of the large, so that the sum keeps to the rate.
 */
#include "daemon/fabric/ucx.h"

#define HEADER_BYTES sizeof(struct fabric_header)

void ucx_pace_set(struct ucx_pace *pace, uint64_t bits) {
    pace->ns_per_byte = bits ? 8e9 / (double)bits : 0.0;
}

void ucx_pace_init(struct ucx_pace *pace, uint64_t bits) {
    *pace = (struct ucx_pace){0};
    ucx_queue_init(&pace->large);
    ucx_queue_init(&pace->small);
    ucx_pace_set(pace, bits);
}

void ucx_pace_add(struct ucx_pace *pace, struct fabric_send *send, uint64_t now) {
    struct ucx_send *s = ucx_send_of(send);
    s->queued_ns = now;
    ucx_queue_push(ucx_send_bytes(send) <= UCX_SMALL_BYTES ? &pace->small : &pace->large, &s->link);
}

static uint64_t later(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* When the head of q has left, if the link is free for it at free_at. */
static uint64_t due_at(const struct ucx_pace *pace, const struct ucx_queue *q, uint64_t free_at, uint64_t *wire) {
    if (!q->head)
        return UINT64_MAX;
    struct fabric_send *send = ucx_send_from(q->head);
    *wire = (uint64_t)((double)(ucx_send_bytes(send) + HEADER_BYTES) * pace->ns_per_byte);
    return later(free_at, ucx_send_of(send)->queued_ns) + *wire;
}

struct fabric_send *ucx_pace_take(struct ucx_pace *pace, uint64_t now, uint64_t *due) {
    uint64_t wire = 0;
    uint64_t small = due_at(pace, &pace->small, pace->small_free, &wire);
    if (small <= now) {
        struct fabric_send *send = ucx_send_from(ucx_queue_pop(&pace->small));
        pace->small_free = small;
        pace->large_free = later(pace->large_free, ucx_send_of(send)->queued_ns) + wire;
        return send;
    }
    uint64_t large = due_at(pace, &pace->large, pace->large_free, &wire);
    if (large <= now) {
        pace->large_free = large;
        return ucx_send_from(ucx_queue_pop(&pace->large));
    }
    *due = small < large ? small : large;
    return NULL;
}

static void remove_from(struct ucx_queue *q, const struct fabric_peer *peer, uint64_t comm, struct ucx_queue *out) {
    struct ucx_queue keep;
    struct ucx_link *link;
    ucx_queue_init(&keep);
    while ((link = ucx_queue_pop(q))) {
        struct fabric_send *send = ucx_send_from(link);
        bool match = peer ? send->peer == peer : send->header.comm == comm;
        ucx_queue_push(match ? out : &keep, link);
    }
    while ((link = ucx_queue_pop(&keep)))
        ucx_queue_push(q, link);
}

void ucx_pace_remove(struct ucx_pace *pace, const struct fabric_peer *peer, uint64_t comm, struct ucx_queue *out) {
    remove_from(&pace->large, peer, comm, out);
    remove_from(&pace->small, peer, comm, out);
}

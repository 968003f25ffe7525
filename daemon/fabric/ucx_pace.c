/* SPDX-License-Identifier: Apache-2.0
 *
 * Sends that wait for the link: first, where they are large, for their receiver, then for their time.
 *
 * What is charged to the link must be what can go. A large message goes by rendezvous, so it would take its time on the
 * link although its receiver has posted nothing. So, under a rate, its header goes ahead as a question, by rendezvous:
 * the receiver takes that when it has a matching receive, and only then does the message queue. Questions overlap with
 * what is being sent; their way is given back, up to CREDIT_NS, so that an idle link loses no time by them.
 *
 * Where another fabric carries a message (nccl), what is sent here announces it, and is paced as the message itself: it
 * leaves when the link would have put the message's last byte on the wire. So what has been announced need not wait for
 * the link any more.
 */
#include "daemon/fabric/ucx.h"

#define HEADER_BYTES sizeof(struct fabric_header)
#define CREDIT_NS    1000000u
#define PIECE_BYTES  (60u << 10) /* with headers less than a segment of UCX's TCP */
#define MOST_AT_ONCE 4u          /* messages and pieces that are late, before others have their turn */

static struct flow *flow_of(struct fabric *f, const struct fabric_send *send) {
    return send->flow ? &send->flow->flow : &f->flow;
}

static void queue(struct fabric *f, struct fabric_send *send) {
    struct ucx_send *s = ucx_send_of(send);
    size_t bytes = ucx_charged_bytes(send);
    bool pieces = bytes > UCX_SMALL_BYTES;
    s->item.bytes = pieces ? bytes : bytes + HEADER_BYTES;
    s->item.piece = pieces ? PIECE_BYTES : 0;
    s->waits = pieces;
    s->pieces = 0;
    s->result = zipcclSuccess;
    pace_add(&f->pace, flow_of(f, send), bytes <= FLOW_SMALL_BYTES ? FLOW_SMALL : FLOW_BULK, &s->item);
}

static void answered(void *request, ucs_status_t status, void *user_data) {
    struct fabric_send *send = user_data;
    struct fabric *f = send->peer->fabric;
    struct ucx_send *s = ucx_send_of(send);
    struct ucx_comm *c = ucx_comm_find(f, send->header.comm);
    uint64_t now = ucx_now();
    if (request)
        ucp_request_free(request);
    if (status != UCS_OK || atomic_load(&send->peer->failed)) {
        ucx_finish(f, &s->link, zipcclRemoteError);
    } else if (c && c->dead) {
        ucx_finish(f, &s->link, zipcclAborted);
    } else {
        if (s->item.ready + CREDIT_NS < now)
            s->item.ready = now - CREDIT_NS;
        queue(f, send);
    }
}

static void ask(struct fabric *f, struct fabric_send *send) {
    static const char byte = 0;
    ucp_request_param_t param = {.op_attr_mask =
                                     UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_AM_SEND_FLAG_RNDV,
                                 .cb.send = answered,
                                 .user_data = send};
    if (atomic_load(&send->peer->failed)) {
        ucx_finish(f, &ucx_send_of(send)->link, zipcclRemoteError);
        return;
    }
    ucs_status_ptr_t request = ucp_am_send_nbx(send->peer->small, UCX_AM_ASK, &send->header, sizeof(send->header),
                                               &byte, sizeof(byte), &param);
    if (request == NULL || UCS_PTR_IS_ERR(request))
        answered(NULL, request ? UCS_PTR_STATUS(request) : UCS_OK, send);
}

void ucx_pace_send(struct fabric *f, struct fabric_send *send, uint64_t now) {
    if (send->peer->wait_ns) { /* comes again when there are endpoints */
        ucx_queue_push(&send->peer->pending, &ucx_send_of(send)->link);
        return;
    }
    if (send->unpaced || (f->pace.sched.ns_per_byte <= 0 && flow_of(f, send)->ns_per_byte <= 0)) {
        ucx_issue(f, send);
        return;
    }
    ucx_send_of(send)->item.ready = now;
    if (ucx_charged_bytes(send) > UCX_SMALL_BYTES)
        ask(f, send);
    else
        queue(f, send);
}

static struct fabric_send *send_of(const struct flow_item *item) {
    char *s = (char *)(uintptr_t)item - offsetof(struct ucx_send, item);
    return ucx_send_from((struct ucx_link *)(void *)s);
}

bool ucx_pace_run(struct fabric *f, uint64_t *due) {
    struct flow_item *item;
    bool any = false;
    *due = UINT64_MAX;
    if (!pace_waits(&f->pace))
        return false;
    uint64_t now = ucx_now();
    for (unsigned n = 0; n < MOST_AT_ONCE && (item = pace_take(&f->pace, now, due)); n++) {
        struct fabric_send *send = send_of(item);
        if (item->piece > 0 && !send->carried)
            ucx_piece_issue(f, send);
        else if (!flow_item_waits(item))
            ucx_issue(f, send);
        any = true;
    }
    return any;
}

static bool to_peer(const struct flow_item *item, const void *peer) {
    return send_of(item)->peer == peer;
}

static bool of_comm(const struct flow_item *item, const void *comm) {
    return send_of(item)->header.comm == *(const uint64_t *)comm;
}

static void keep(struct flow_item *item, void *to) {
    ucx_queue_push(to, &ucx_send_of(send_of(item))->link);
}

void ucx_pace_end(struct fabric *f, const struct fabric_peer *peer, uint64_t comm, zipcclResult_t result) {
    struct ucx_queue out;
    struct ucx_link *link;
    ucx_queue_init(&out);
    if (peer)
        pace_remove(&f->pace, to_peer, peer, keep, &out);
    else
        pace_remove(&f->pace, of_comm, &comm, keep, &out);
    while ((link = ucx_queue_pop(&out))) {
        struct fabric_send *send = ucx_send_from(link);
        if (ucx_send_of(send)->item.piece > 0)
            ucx_piece_drop(f, send, result);
        else
            ucx_finish(f, link, result);
    }
}

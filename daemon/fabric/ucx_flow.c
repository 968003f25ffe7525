/* SPDX-License-Identifier: Apache-2.0
 *
 * Flows as the loop sees them: their life, and what they have to send.
 *
 * How a flow shares belongs to the progress thread, which learns of changes by orders. It is told that a flow has ended
 * when no send of it is left anywhere, and frees it.
 */
#include "daemon/fabric/ucx.h"

#include <stdlib.h>

static bool tell(struct fabric *f, struct fabric_flow *flow, enum ucx_kind kind, const struct fabric_share *share) {
    struct ucx_order *o = calloc(1, sizeof(*o));
    if (!o)
        return false;
    o->owner = flow;
    if (share)
        o->share = *share;
    ucx_order_push(f, &o->link, kind);
    return true;
}

static void list_add(struct fabric *f, struct fabric_flow *flow) {
    flow->next = f->flows;
    flow->prev = &f->flows;
    if (flow->next)
        flow->next->prev = &flow->next;
    f->flows = flow;
}

static void list_del(struct fabric_flow *flow) {
    *flow->prev = flow->next;
    if (flow->next)
        flow->next->prev = flow->prev;
}

struct fabric_flow *ucx_flow_open(struct fabric *f, const struct fabric_share *share) {
    struct fabric_flow *flow = calloc(1, sizeof(*flow));
    if (!flow)
        return NULL;
    flow_init(&flow->flow);
    flow->rate_bits = share->rate_bits;
    if (!tell(f, flow, UCX_FLOW_SET, share)) {
        free(flow);
        return NULL;
    }
    list_add(f, flow);
    return flow;
}

void ucx_flow_set(struct fabric *f, struct fabric_flow *flow, const struct fabric_share *share) {
    flow->rate_bits = share->rate_bits;
    (void)tell(f, flow, UCX_FLOW_SET, share);
}

bool ucx_flow_has_rate(const struct fabric_flow *flow) {
    return flow && flow->rate_bits > 0;
}

static void end_idle(struct fabric *f, struct fabric_flow *flow) {
    if (!flow->closed || flow->sends > 0)
        return;
    list_del(flow); /* before: it may be gone afterwards */
    if (!tell(f, flow, UCX_FLOW_END, NULL))
        list_add(f, flow); /* stays until the fabric ends */
}

void ucx_flow_close(struct fabric *f, struct fabric_flow *flow) {
    flow->closed = true;
    end_idle(f, flow);
}

void ucx_flow_bytes(const struct fabric_flow *flow, uint64_t *queued, uint64_t *sent) {
    *queued = flow->queued;
    *sent = flow->sent;
}

void ucx_flow_begin(struct fabric_flow *flow, uint64_t bytes) {
    if (!flow)
        return;
    flow->queued += bytes;
    flow->sends++;
}

void ucx_flow_end(struct fabric *f, struct fabric_flow *flow, uint64_t bytes, bool success) {
    if (!flow)
        return;
    flow->queued -= bytes;
    flow->sent += success ? bytes : 0;
    flow->sends--;
    end_idle(f, flow);
}

void ucx_flow_free_all(struct fabric *f) {
    while (f->flows) {
        struct fabric_flow *flow = f->flows;
        f->flows = flow->next;
        free(flow);
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The transfers that the call of one rank is made of. Where there are several, the ranks after this one come first in
 * what is sent, those before it in what is received, so that not all begin with the same rank; this rank itself comes
 * last, for it keeps no link busy.
 */
#include "daemon/plan/plan.h"

#include "kernels/dtype.h"

struct list {
    const struct plan_call *call;
    struct plan_transfer *out;
    uint32_t n, buffer;
    uint64_t value_bytes;
};

static struct plan_transfer transfer(const struct list *l, bool send, uint32_t peer, uint64_t offset, uint64_t count) {
    return (struct plan_transfer){.send = send,
                                  .op = l->call->op,
                                  .dtype = l->call->dtype,
                                  .codec = zipcclCodecRaw,
                                  .peer = peer,
                                  .buffer = l->buffer,
                                  .offset = offset * l->value_bytes,
                                  .count = count,
                                  .capped = l->call->op == zipcclOpAllToAllCapped};
}

static void add(struct list *l, bool send, uint32_t peer, uint64_t offset) {
    l->out[l->n++] = transfer(l, send, peer, offset, l->call->count);
}

/* Sends stand at even places, receives at odd ones. The place of a rank follows from its distance, so that offsets
 * which are not given can be summed up on the way. */
static void add_pairs(struct list *l, uint32_t rank, uint32_t nranks) {
    const struct plan_call *c = l->call;
    bool v = c->op == zipcclOpAllToAllv;
    uint64_t send_at = 0, recv_at = 0;
    for (uint32_t p = 0; p < nranks; p++) {
        uint32_t after = (p + nranks - rank) % nranks, before = (rank + nranks - p) % nranks;
        uint64_t send_count = v ? c->send_counts[p] : c->count, recv_count = v ? c->recv_counts[p] : c->count;
        uint64_t send_offset = v && c->send_offsets ? c->send_offsets[p] : send_at;
        uint64_t recv_offset = v && c->recv_offsets ? c->recv_offsets[p] : recv_at;
        l->out[2 * ((after + nranks - 1) % nranks)] = transfer(l, true, p, send_offset, send_count);
        l->out[2 * ((before + nranks - 1) % nranks) + 1] = transfer(l, false, p, recv_offset, recv_count);
        send_at += send_count;
        recv_at += recv_count;
    }
    l->n = 2 * nranks;
}

uint32_t plan_transfers(const struct plan_call *call, uint32_t rank, uint32_t nranks, uint32_t buffer,
                        struct plan_transfer *out) {
    const struct dtype_info *dtype = dtype_get(call->dtype);
    struct list l = {.call = call, .out = out, .buffer = buffer, .value_bytes = dtype ? dtype->bytes : 0};
    bool root = rank == call->root;
    switch (call->op) {
    case zipcclOpAllToAll:
    case zipcclOpAllToAllv:
    case zipcclOpAllToAllCapped:
        add_pairs(&l, rank, nranks);
        break;
    case zipcclOpGather:
        for (uint32_t k = 1; k <= nranks && root; k++) {
            uint32_t peer = (rank + nranks - k) % nranks;
            add(&l, false, peer, peer * call->count);
        }
        add(&l, true, call->root, 0);
        break;
    case zipcclOpScatter:
        for (uint32_t k = 1; k <= nranks && root; k++) {
            uint32_t peer = (rank + k) % nranks;
            add(&l, true, peer, peer * call->count);
        }
        add(&l, false, call->root, 0);
        break;
    case zipcclOpSend:
        add(&l, true, call->root, 0);
        break;
    case zipcclOpRecv:
        add(&l, false, call->root, 0);
        break;
    default:
        break;
    }
    return l.n;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Endpoints: who of two sides connects first, and the hellos that tell the other one. All on the progress thread.
 */
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/fabric/ucx.h"

#define WAIT_NS   500000000ull
#define MAX_EARLY 1024u /* far more than peers that connect within a moment */
#define HELLOS    2u    /* one of each endpoint */
#define MAX_BYTES 4096u /* of an address */

void ucx_peer_error(void *arg, ucp_ep_h ep, ucs_status_t status) {
    struct fabric_peer *peer = arg;
    (void)ep;
    (void)status;
    atomic_store(&peer->failed, true);
    peer->fabric->some_failed = true;
}

static void hello_sent(void *request, ucs_status_t status, void *user_data) {
    (void)status;
    (void)user_data;
    ucp_request_free(request);
}

static ucp_ep_h open_endpoint(struct fabric *f, struct fabric_peer *peer) {
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                            UCP_EP_PARAM_FIELD_ERR_HANDLER,
                              .address = (const ucp_address_t *)(const void *)peer->address,
                              .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                              .err_handler = {.cb = ucx_peer_error, .arg = peer}};
    ucp_ep_h ep;
    if (ucp_ep_create(f->worker, &params, &ep) != UCS_OK)
        return NULL;
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_AM_SEND_FLAG_EAGER,
                                 .cb.send = hello_sent};
    ucs_status_ptr_t request =
        ucp_am_send_nbx(ep, UCX_AM_HELLO, peer->show, sizeof(peer->show), f->address, f->address_bytes, &param);
    if (UCS_PTR_IS_ERR(request))
        ucx_peer_error(peer, ep, UCS_PTR_STATUS(request));
    return ep;
}

static void open_endpoints(struct fabric *f, struct fabric_peer *peer) {
    struct ucx_link *link;
    struct ucx_queue pending = peer->pending;
    uint64_t now = ucx_now();
    if (!pending.head)
        ucx_queue_init(&pending);
    ucx_queue_init(&peer->pending);
    peer->wait_ns = 0;
    peer->bulk = open_endpoint(f, peer);
    peer->small = open_endpoint(f, peer);
    if (!peer->bulk || !peer->small)
        ucx_peer_error(peer, NULL, UCS_ERR_UNREACHABLE);
    while ((link = ucx_queue_pop(&pending))) {
        struct fabric_send *send = ucx_send_from(link);
        struct ucx_comm *c = ucx_comm_find(f, send->header.comm);
        if (c && c->dead)
            ucx_finish(f, link, zipcclAborted);
        else
            ucx_pace_send(f, send, now);
    }
}

static bool is_same(const uint8_t *a, size_t na, const void *b, size_t nb) {
    return na == nb && memcmp(a, b, na) == 0;
}

/* How many hellos of this side, with this token, came before; they are forgotten. */
static unsigned take_early(struct fabric *f, const struct fabric_peer *peer, const uint8_t *token) {
    for (struct ucx_early **p = &f->early; *p; p = &(*p)->next) {
        struct ucx_early *e = *p;
        if (!is_same(e->address, e->address_bytes, peer->address, peer->address_bytes) ||
            sodium_memcmp(e->token, token, sizeof(e->token)) != 0)
            continue;
        unsigned hellos = e->hellos;
        *p = e->next;
        f->nearly--;
        free(e);
        return hellos;
    }
    return 0;
}

static bool connects_first(const struct fabric *f, const struct fabric_peer *peer) {
    if (f->address_bytes != peer->address_bytes)
        return f->address_bytes < peer->address_bytes;
    return memcmp(f->address, peer->address, f->address_bytes) < 0;
}

void ucx_expect(struct fabric *f, struct fabric_peer *peer, const uint8_t *token) {
    memcpy(peer->expect[peer->nexpect++ % UCX_TOKENS], token, sizeof(peer->expect[0]));
    peer->hellos += take_early(f, peer, token);
    /* Endpoints are opened by ucx_connect_due. */
    if (peer->hellos >= HELLOS && peer->wait_ns)
        peer->wait_ns = 1;
}

void ucx_connect_peer(struct fabric *f, struct fabric_peer *peer, const uint8_t *token) {
    peer->next_live = f->live;
    f->live = peer;
    ucx_queue_init(&peer->pending);
    ucx_expect(f, peer, token);
    if (connects_first(f, peer) || peer->hellos >= HELLOS) {
        open_endpoints(f, peer);
        return;
    }
    peer->wait_ns = ucx_now() + WAIT_NS;
    f->some_wait = true;
}

static void note_early(struct fabric *f, const void *address, size_t bytes, const void *token) {
    for (struct ucx_early *e = f->early; e; e = e->next) {
        if (is_same(e->address, e->address_bytes, address, bytes) &&
            sodium_memcmp(e->token, token, sizeof(e->token)) == 0) {
            e->hellos++;
            return;
        }
    }
    struct ucx_early *e = f->nearly < MAX_EARLY ? calloc(1, sizeof(*e) + bytes) : NULL;
    if (!e)
        return; /* that side is connected to after a while */
    e->hellos = 1;
    memcpy(e->token, token, sizeof(e->token));
    e->address_bytes = bytes;
    memcpy(e->address, address, bytes);
    e->next = f->early;
    f->early = e;
    f->nearly++;
}

static bool is_expected(const struct fabric_peer *peer, const void *token) {
    bool found = false;
    for (unsigned i = 0; i < UCX_TOKENS && i < peer->nexpect; i++)
        found |= sodium_memcmp(peer->expect[i], token, sizeof(peer->expect[i])) == 0;
    return found;
}

ucs_status_t ucx_on_hello(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                          const ucp_am_recv_param_t *param) {
    struct fabric *f = arg;
    if (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV || bytes == 0 || bytes > MAX_BYTES ||
        header_bytes != FABRIC_TOKEN_BYTES)
        return UCS_OK; /* dropped */
    for (struct fabric_peer *p = f->live; p; p = p->next_live) {
        if (!is_same(p->address, p->address_bytes, data, bytes) || !is_expected(p, header))
            continue;
        /* Endpoints are opened by ucx_connect_due, outside of UCX's progress. */
        if (++p->hellos >= HELLOS && p->wait_ns)
            p->wait_ns = 1;
        return UCS_OK;
    }
    note_early(f, data, bytes, header); /* perhaps this node learns of the token later */
    return UCS_OK;
}

void ucx_connect_due(struct fabric *f, uint64_t *due) {
    uint64_t now = ucx_now();
    f->some_wait = false;
    for (struct fabric_peer *p = f->live; p; p = p->next_live) {
        if (!p->wait_ns)
            continue;
        if (p->wait_ns <= now) {
            open_endpoints(f, p);
            *due = now; /* what was issued may want progress */
            continue;
        }
        f->some_wait = true;
        *due = p->wait_ns < *due ? p->wait_ns : *due;
    }
}

static void close_endpoint(ucp_ep_h *ep) {
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE};
    if (!*ep)
        return;
    ucs_status_ptr_t request = ucp_ep_close_nbx(*ep, &param);
    *ep = NULL;
    if (UCS_PTR_IS_PTR(request))
        ucp_request_free(request);
}

void ucx_close_endpoints(struct fabric_peer *peer) {
    close_endpoint(&peer->bulk);
    close_endpoint(&peer->small);
}

void ucx_drop_early(struct fabric *f) {
    while (f->early) {
        struct ucx_early *e = f->early;
        f->early = e->next;
        free(e);
    }
}

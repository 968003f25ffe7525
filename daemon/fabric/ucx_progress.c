/* SPDX-License-Identifier: Apache-2.0
 *
 * The progress thread: takes orders, sends when the link clock allows, drives UCX, sleeps when there is nothing to do.
 *
 * Small messages go eagerly and may pile up at a receiver that is behind. So every GATE_EVERY-th small message of a
 * communicator goes by rendezvous, which ends only when its receive was posted, and while several such gates are shut
 * all do: what a receiver holds is bounded, and the rest waits here.
 */
#include "daemon/fabric/ucx.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "daemon/slice.h"

#define GATE_EVERY     128u
#define MAX_GATES      2u
#define FLUSH_NS       100000000u /* at close: for what is complete but not yet in the socket */
#define PROGRESS_BURST 4u         /* each may carry 64 KiB: what came, and orders, wait no longer */
#define DRAIN_CALLS    1000u

void ucx_finish(struct fabric *f, struct ucx_link *link, zipcclResult_t result) {
    link->result = result;
    ucx_queue_push(&f->finished, link);
}

/* Hands finished ones to the loop. */
static void publish(struct fabric *f) {
    if (!f->finished.head)
        return;
    pthread_mutex_lock(&f->done_lock);
    bool first = !f->done.head;
    *f->done.tail = f->finished.head;
    f->done.tail = f->finished.tail;
    pthread_mutex_unlock(&f->done_lock);
    ucx_queue_init(&f->finished);
    if (first)
        ucx_wake(f->done_fd);
}

static void sent(void *request, ucs_status_t status, void *user_data) {
    struct fabric_send *send = user_data;
    struct fabric *f = send->peer->fabric;
    if (request)
        ucp_request_free(request);
    if (ucx_send_of(send)->gate) {
        struct ucx_comm *c = ucx_comm_find(f, send->header.comm);
        if (c && c->gates > 0)
            c->gates--;
    }
    if (status == UCS_OK)
        atomic_fetch_add_explicit(&f->sent_bytes, ucx_send_bytes(send), memory_order_relaxed);
    ucx_finish(f, &ucx_send_of(send)->link, status == UCS_OK ? zipcclSuccess : zipcclRemoteError);
}

/* Whether a small message has to go by rendezvous. */
static bool is_gate(struct fabric *f, const struct fabric_send *send) {
    struct ucx_comm *c = ucx_comm_get(f, send->header.comm);
    if (!c || (++c->small_sent % GATE_EVERY != 0 && c->gates < MAX_GATES))
        return false;
    c->gates++;
    return true;
}

void ucx_issue(struct fabric *f, struct fabric_send *send) {
    struct ucx_send *s = ucx_send_of(send);
    size_t bytes = ucx_send_bytes(send);
    bool small = bytes <= UCX_SMALL_BYTES;
    s->gate = false;
    if (atomic_load(&send->peer->failed)) {
        ucx_finish(f, &s->link, zipcclRemoteError);
        return;
    }
    s->gate = small && bytes > 0 && is_gate(f, send);
    ucp_request_param_t param = {.op_attr_mask =
                                     UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = small && !s->gate ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV,
                                 .cb.send = sent,
                                 .user_data = send};
    const void *buffer = send->iov[0].base;
    size_t count = bytes;
    if (send->niov > 1) {
        for (unsigned i = 0; i < 2; i++)
            s->iov[i] = (ucp_dt_iov_t){(void *)(uintptr_t)send->iov[i].base, send->iov[i].bytes};
        param.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
        param.datatype = ucp_dt_make_iov();
        buffer = s->iov;
        count = 2;
    }
    ucs_status_ptr_t request = ucp_am_send_nbx(small ? send->peer->small : send->peer->bulk, UCX_AM_MESSAGE,
                                               &send->header, sizeof(send->header), buffer, count, &param);
    if (request == NULL || UCS_PTR_IS_ERR(request))
        sent(NULL, request ? UCS_PTR_STATUS(request) : UCS_OK, send);
}

/* Ends all that waits for peers that have failed. Closing their endpoints ends what UCX has. */
static void reap_failed(struct fabric *f) {
    if (!f->some_failed)
        return;
    f->some_failed = false;
    for (struct fabric_peer **p = &f->live; *p;) {
        struct fabric_peer *peer = *p;
        if (!atomic_load(&peer->failed)) {
            p = &peer->next_live;
            continue;
        }
        *p = peer->next_live;
        ucx_close_endpoints(peer);
        struct ucx_queue waiting = peer->pending;
        struct ucx_link *link;
        if (!waiting.head)
            ucx_queue_init(&waiting);
        ucx_queue_init(&peer->pending);
        peer->wait_ns = 0;
        while ((link = ucx_queue_pop(&waiting)))
            ucx_finish(f, link, zipcclRemoteError);
        ucx_pace_end(f, peer, 0, zipcclRemoteError);
        ucx_fail_receives(f, peer);
    }
}

static void take_send(struct fabric *f, struct fabric_send *send, uint64_t now) {
    struct ucx_comm *c = ucx_comm_find(f, send->header.comm);
    if (c && c->dead)
        ucx_finish(f, &ucx_send_of(send)->link, zipcclAborted);
    else
        ucx_pace_send(f, send, now);
}

static void run_order(struct fabric *f, struct ucx_order *order) {
    switch ((enum ucx_kind)order->link.kind) {
    case UCX_CONNECT:
        ucx_connect_peer(f, order->peer, order->token);
        break;
    case UCX_EXPECT:
        ucx_expect(f, order->peer, order->token);
        break;
    case UCX_KILL_COMM:
        ucx_kill_comm(f, order->value);
        break;
    case UCX_RATE:
        pace_set(&f->pace, order->value);
        break;
    case UCX_FLOW_SET:
        flow_set(&f->pace.sched, &order->owner->flow, order->share.weight, order->share.priority,
                 order->share.rate_bits);
        break;
    case UCX_FLOW_END:
        free(order->owner);
        break;
    default:
        break;
    }
    free(order);
}

/* Returns whether there were any. */
static bool run_orders(struct fabric *f) {
    struct ucx_queue orders;
    struct ucx_link *link;
    ucx_queue_init(&orders);
    pthread_mutex_lock(&f->order_lock);
    if (f->orders.head)
        orders = f->orders;
    ucx_queue_init(&f->orders);
    pthread_mutex_unlock(&f->order_lock);
    if (!orders.head)
        return false;
    uint64_t now = ucx_now();
    while ((link = ucx_queue_pop(&orders))) {
        if (link->kind == UCX_SEND)
            take_send(f, ucx_send_from(link), now);
        else if (link->kind == UCX_RECV)
            ucx_post(f, ucx_recv_from(link));
        else
            run_order(f, (struct ucx_order *)(void *)link);
    }
    return true;
}

static void sleep_until(struct fabric *f, uint64_t due) {
    struct pollfd fds[2] = {{.fd = f->ucx_fd, .events = POLLIN}, {.fd = f->order_fd, .events = POLLIN}};
    struct timespec ts, *timeout = NULL;
    if (due != UINT64_MAX) {
        uint64_t now = ucx_now(), wait = due > now ? due - now : 0;
        ts = (struct timespec){(time_t)(wait / 1000000000u), (long)(wait % 1000000000u)};
        timeout = &ts;
    }
    if (ppoll(fds, 2, timeout, NULL) > 0 && (fds[1].revents & POLLIN)) {
        uint64_t count;
        ssize_t n = read(f->order_fd, &count, sizeof(count));
        (void)n;
    }
}

static bool stopped(struct fabric *f, bool *orders) {
    pthread_mutex_lock(&f->order_lock);
    bool stop = f->stop;
    *orders = f->orders.head != NULL;
    pthread_mutex_unlock(&f->order_lock);
    return stop;
}

/* What is complete for the user leaves; then everything is dropped. */
static void shut_down(struct fabric *f) {
    ucp_request_param_t param = {0};
    ucs_status_ptr_t flush = f->live ? ucp_worker_flush_nbx(f->worker, &param) : NULL;
    uint64_t deadline = ucx_now() + FLUSH_NS;
    while (UCS_PTR_IS_PTR(flush) && ucp_request_check_status(flush) == UCS_INPROGRESS && ucx_now() < deadline) {
        if (ucp_worker_progress(f->worker) == 0)
            usleep(50);
    }
    if (UCS_PTR_IS_PTR(flush))
        ucp_request_free(flush);
    ucx_drop_all(f);
    for (struct fabric_peer *p = f->live; p; p = p->next_live) {
        ucx_close_endpoints(p);
    }
    for (unsigned i = 0; i < DRAIN_CALLS && ucp_worker_progress(f->worker); i++)
        ;
    ucx_drop_all(f);
}

void *ucx_progress_main(void *arg) {
    struct fabric *f = arg;
    slice_set(SLICE_SHORT_NS);
    prctl(PR_SET_TIMERSLACK, 1000ul); /* ns: the link clock needs precise sleeps */
    for (;;) {
        uint64_t due = UINT64_MAX;
        heartbeat_work(&f->heartbeat);
        bool orders, busy = run_orders(f);
        for (unsigned i = 0; i < PROGRESS_BURST && ucp_worker_progress(f->worker); i++)
            busy = true;
        busy = ucx_pace_run(f, &due) || busy;
        if (f->some_wait)
            ucx_connect_due(f, &due);
        reap_failed(f);
        publish(f);
        if (stopped(f, &orders))
            break;
        if (busy || orders || ucp_worker_arm(f->worker) == UCS_ERR_BUSY)
            continue;
        atomic_store(&f->sleeping, true);
        if (!stopped(f, &orders) && !orders) {
            heartbeat_idle(&f->heartbeat);
            sleep_until(f, due);
        }
        atomic_store(&f->sleeping, false);
    }
    shut_down(f);
    return NULL;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Sends and receives that note their end, and a loop over the fabrics under test.
 */
#ifndef ZIPCCL_TESTS_FABRIC_PAIR_H
#define ZIPCCL_TESTS_FABRIC_PAIR_H

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/fabric/fabric.h"

#define PENDING ((zipcclResult_t)99)

/* What both sides show, where a test is about something else. */
static const struct fabric_tokens same_token = {.show = {1, 2, 3}, .expect = {1, 2, 3}};

struct tx {
    struct fabric_send send;
    zipcclResult_t result;
};

struct rx {
    struct fabric_recv recv;
    zipcclResult_t result;
};

/* Two fabrics that know each other: to_b is b as a sees it, to_a the other way. For a set-up: 0, or -1 and a text. */
static inline int pair_open(const struct fabric_config *config, struct fabric **a, struct fabric **b,
                            struct fabric_peer **to_b, struct fabric_peer **to_a) {
    const char *why = NULL;
    size_t n;
    if (fabric_ucx.open(config, a, &why) || fabric_ucx.open(config, b, &why)) {
        fprintf(stderr, "%s\n", why ? why : "?");
        return -1;
    }
    const void *address = fabric_ucx.address(*b, &n);
    if (fabric_ucx.connect(*a, address, n, &same_token, to_b))
        return -1;
    address = fabric_ucx.address(*a, &n);
    return fabric_ucx.connect(*b, address, n, &same_token, to_a) ? -1 : 0;
}

static inline double seconds(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static inline void tx_done(struct fabric_send *send, zipcclResult_t result) {
    ((struct tx *)send->arg)->result = result;
}

static inline void rx_done(struct fabric_recv *recv, zipcclResult_t result) {
    ((struct rx *)recv->arg)->result = result;
}

static inline void tx_prepare(struct fabric_peer *peer, struct tx *t, uint64_t comm, uint32_t node, uint32_t tag,
                              const void *data, size_t bytes, struct fabric_flow *flow) {
    memset(t, 0, sizeof(*t));
    t->result = PENDING;
    t->send.peer = peer;
    t->send.flow = flow;
    t->send.header = (struct fabric_header){.comm = comm, .node = node, .seq = 1, .tag = tag, .count = bytes};
    /* Two parts where there is enough, as coded chunks have. */
    size_t first = bytes > 100 && tag % 2 ? bytes / 3 : bytes;
    t->send.iov[0] = (struct fabric_iov){data, first};
    t->send.iov[1] = (struct fabric_iov){(const char *)data + first, bytes - first};
    t->send.niov = bytes == 0 ? 0 : first < bytes ? 2 : 1;
    t->send.done = tx_done;
    t->send.arg = t;
}

static inline void tx_start_flow(struct fabric *f, struct fabric_peer *peer, struct tx *t, uint64_t comm, uint32_t node,
                                 uint32_t tag, const void *data, size_t bytes, struct fabric_flow *flow) {
    tx_prepare(peer, t, comm, node, tag, data, bytes, flow);
    fabric_ucx.send(f, &t->send);
}

static inline void tx_start(struct fabric *f, struct fabric_peer *peer, struct tx *t, uint64_t comm, uint32_t node,
                            uint32_t tag, const void *data, size_t bytes) {
    tx_start_flow(f, peer, t, comm, node, tag, data, bytes, NULL);
}

static inline void rx_start(struct fabric *f, struct fabric_peer *peer, struct rx *r, uint64_t comm, uint32_t node,
                            uint32_t tag, void *buffer, size_t capacity) {
    memset(r, 0, sizeof(*r));
    r->result = PENDING;
    r->recv.peer = peer;
    r->recv.comm = comm;
    r->recv.node = node;
    r->recv.seq = 1;
    r->recv.tag = tag;
    r->recv.buffer = buffer;
    r->recv.capacity = capacity;
    r->recv.done = rx_done;
    r->recv.arg = r;
    fabric_ucx.recv(f, &r->recv);
}

/* Runs the callbacks of both until *result is set or the time is over; whether it is set. */
static inline bool wait_for(struct fabric *a, struct fabric *b, const zipcclResult_t *result, double limit) {
    double end = seconds() + limit;
    while (*(volatile const zipcclResult_t *)result == PENDING && seconds() < end) {
        struct pollfd fds[2] = {{.fd = fabric_ucx.fd(a), .events = POLLIN}, {.fd = -1, .events = POLLIN}};
        if (b)
            fds[1].fd = fabric_ucx.fd(b);
        poll(fds, 2, 50);
        fabric_ucx.poll(a);
        if (b)
            fabric_ucx.poll(b);
    }
    return *result != PENDING;
}

#endif

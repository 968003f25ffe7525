/* SPDX-License-Identifier: Apache-2.0
 *
 * The fake fabric: lists of posted sends and receives, matched a few at each poll.
 */
#include "fake_fabric.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ITEMS 65536
#define MAX_DEAD  4096

struct fabric_peer {
    struct fabric *fabric;
};

struct fabric {
    struct fabric_peer self;
    bool dead;
    uint64_t dead_comms[MAX_DEAD];
    unsigned ndead;
    struct fabric_recv *recvs[MAX_ITEMS];
    unsigned nrecvs;
    struct {
        struct fabric_send *send;
        bool drop;      /* ends at the sender alone */
    } sends[MAX_ITEMS]; /* of this node */
    unsigned nsends;
    uint64_t sent_bytes;
};

static unsigned g_spoil, g_seed = 1;
static void (*g_headers)(struct fabric_header *header);

void fake_spoil(unsigned n) {
    g_spoil = n;
}

void fake_headers(void (*change)(struct fabric_header *header)) {
    g_headers = change;
}

void fake_seed(unsigned seed) {
    g_seed = seed;
}

static unsigned roll(unsigned n) {
    g_seed = g_seed * 1103515245u + 12345u;
    return (g_seed >> 8) % n;
}

struct fabric_peer *fake_peer(struct fabric *f) {
    return &f->self;
}

void fake_kill(struct fabric *f) {
    f->dead = true;
}

static bool is_dead_comm(const struct fabric *f, uint64_t comm) {
    for (unsigned i = 0; i < f->ndead; i++) {
        if (f->dead_comms[i] == comm)
            return true;
    }
    return false;
}

static zipcclResult_t fake_open(const struct fabric_config *config, struct fabric **fabric, const char **why) {
    (void)config;
    *why = NULL;
    *fabric = calloc(1, sizeof(**fabric));
    if (!*fabric)
        return zipcclOutOfMemory;
    (*fabric)->self.fabric = *fabric;
    return zipcclSuccess;
}

static void fake_close(struct fabric *f) {
    free(f);
}

static void fake_send(struct fabric *f, struct fabric_send *send) {
    f->sends[f->nsends].send = send;
    f->sends[f->nsends++].drop = false;
}

static void fake_recv(struct fabric *f, struct fabric_recv *recv) {
    f->recvs[f->nrecvs++] = recv;
}

static void fake_abort(struct fabric *f, uint64_t comm) {
    if (!is_dead_comm(f, comm) && f->ndead < MAX_DEAD)
        f->dead_comms[f->ndead++] = comm;
}

static void end_send(struct fabric *f, unsigned i, zipcclResult_t result) {
    struct fabric_send *send = f->sends[i].send;
    f->sends[i] = f->sends[--f->nsends];
    send->done(send, result);
}

static void copy_message(const struct fabric_send *send, struct fabric_recv *recv) {
    size_t at = 0;
    for (unsigned i = 0; i < send->niov; i++) {
        if (send->iov[i].bytes)
            memcpy((char *)recv->buffer + at, send->iov[i].base, send->iov[i].bytes);
        at += send->iov[i].bytes;
    }
    recv->bytes = at;
    if (at > 0 && g_spoil > 0 && --g_spoil == 0)
        ((uint8_t *)recv->buffer)[at / 2] ^= 0x10;
}

static void deliver(struct fabric *f, unsigned i, struct fabric *to) {
    struct fabric_send *send = f->sends[i].send;
    size_t bytes = 0;
    for (unsigned k = 0; k < send->niov; k++)
        bytes += send->iov[k].bytes;
    for (unsigned r = 0; r < to->nrecvs; r++) {
        struct fabric_recv *recv = to->recvs[r];
        if (recv->comm != send->header.comm || recv->node != send->header.node ||
            recv->channel != send->header.channel || recv->seq != send->header.seq || recv->tag != send->header.tag)
            continue;
        zipcclResult_t result = bytes > recv->capacity ? zipcclLimitExceeded : zipcclSuccess;
        to->recvs[r] = to->recvs[--to->nrecvs];
        recv->header = send->header;
        if (g_headers)
            g_headers(&recv->header);
        recv->bytes = bytes;
        if (result == zipcclSuccess)
            copy_message(send, recv);
        f->sent_bytes += bytes;
        end_send(f, i, zipcclSuccess);
        recv->done(recv, result);
        return;
    }
}

static void fake_poll(struct fabric *f) {
    for (unsigned k = 0; k < 8 && f->nsends > 0; k++) {
        unsigned i = roll(f->nsends);
        struct fabric_send *send = f->sends[i].send;
        struct fabric *to = send->peer->fabric;
        if (to->dead)
            end_send(f, i, zipcclRemoteError);
        else if (is_dead_comm(to, send->header.comm))
            end_send(f, i, zipcclSuccess);
        else if (is_dead_comm(f, send->header.comm))
            end_send(f, i, zipcclAborted);
        else if (roll(3) > 0)
            deliver(f, i, to);
    }
    for (unsigned r = 0; r < f->nrecvs;) {
        struct fabric_recv *recv = f->recvs[r];
        bool aborted = is_dead_comm(f, recv->comm);
        if (!aborted && !(recv->peer->fabric->dead)) {
            r++;
            continue;
        }
        f->recvs[r] = f->recvs[--f->nrecvs];
        recv->done(recv, aborted ? zipcclAborted : zipcclRemoteError);
        r = 0; /* the callback may have changed the list */
    }
}

static void fake_counters(const struct fabric *f, uint64_t *sent, uint64_t *received) {
    *sent = f->sent_bytes;
    *received = 0;
}

const struct fabric_ops fabric_fake = {.name = "fake",
                                       .open = fake_open,
                                       .close = fake_close,
                                       .send = fake_send,
                                       .recv = fake_recv,
                                       .abort = fake_abort,
                                       .forget = fake_abort,
                                       .poll = fake_poll,
                                       .counters = fake_counters};

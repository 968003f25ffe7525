/* SPDX-License-Identifier: Apache-2.0
 *
 * Matching: receives that wait for messages and messages that wait for receives, by communicator.
 *
 * A communicator is known from its first message or receive on, whichever comes first: a peer may be faster. Dead ones
 * stay in the table for a while, so that late messages for them are dropped and their senders end.
 */
#include "daemon/fabric/ucx.h"

#include <stdlib.h>
#include <string.h>

#define MAX_DEAD       4096u
#define MAX_HELD_BYTES ((size_t)64 << 20) /* small messages of one communicator; senders keep far below it */
#define MAX_STRANGE_BYTES                                                                                              \
    ((size_t)64 << 20) /* all messages of communicators that this node does not know, together                         \
                        */
#define MAX_STRANGE      1024u
#define RENDEZVOUS_BYTES 512u /* about what a message that is not here yet takes */

static unsigned bucket(uint32_t node, uint32_t channel, uint32_t seq, uint32_t tag) {
    uint32_t h = node * 0x9e3779b1u ^ channel * 0x27d4eb2fu ^ seq * 0x85ebca6bu ^ tag * 0xc2b2ae35u;
    return (h ^ h >> 15) % UCX_BUCKETS;
}

static struct ucx_comm **find(struct fabric *f, uint64_t key) {
    struct ucx_comm **p = &f->comms[(key * 0x9e3779b97f4a7c15ull) >> 56];
    while (*p && (*p)->key != key)
        p = &(*p)->next;
    return p;
}

struct ucx_comm *ucx_comm_find(struct fabric *f, uint64_t key) {
    return *find(f, key);
}

static size_t held_size(const struct ucx_held *held) {
    return sizeof(*held) + (held->rendezvous ? RENDEZVOUS_BYTES : held->bytes);
}

/* Takes one out of the list: it is known, or goes. What it took counts no more. */
static struct ucx_comm *take_strange(struct fabric *f, struct ucx_comm **at) {
    struct ucx_comm *c = *at;
    *at = c->next_strange;
    c->strange = false;
    f->nstrange--;
    f->strange_bytes -= sizeof(*c);
    for (unsigned i = 0; i < UCX_BUCKETS; i++) {
        for (const struct ucx_held *h = c->held[i]; h; h = h->next)
            f->strange_bytes -= held_size(h);
    }
    return c;
}

static struct ucx_comm *add_comm(struct fabric *f, uint64_t key) {
    struct ucx_comm **p = find(f, key);
    struct ucx_comm *c = calloc(1, sizeof(*c));
    if (c) {
        c->key = key;
        *p = c;
    }
    return c;
}

struct ucx_comm *ucx_comm_get(struct fabric *f, uint64_t key) {
    struct ucx_comm *c = *find(f, key);
    if (!c)
        return add_comm(f, key);
    struct ucx_comm **at = &f->strange;
    while (c->strange && *at != c)
        at = &(*at)->next_strange;
    return c->strange ? take_strange(f, at) : c;
}

static void received(void *request, ucs_status_t status, size_t bytes, void *user_data) {
    struct fabric_recv *recv = user_data;
    struct fabric *f = recv->peer->fabric;
    (void)bytes;
    if (request)
        ucp_request_free(request);
    if (status == UCS_OK)
        atomic_fetch_add_explicit(&f->received_bytes, recv->bytes, memory_order_relaxed);
    ucx_finish(f, ucx_recv_link(recv), status == UCS_OK ? zipcclSuccess : zipcclRemoteError);
}

/* Gets the data of a rendezvous message. */
static void fetch(struct fabric *f, struct fabric_recv *recv, void *desc) {
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                                                 UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
                                 .cb.recv_am = received,
                                 .user_data = recv};
    ucs_status_ptr_t request = ucp_am_recv_data_nbx(f->worker, desc, recv->buffer, recv->bytes, &param);
    if (request == NULL || UCS_PTR_IS_ERR(request))
        received(NULL, request ? UCS_PTR_STATUS(request) : UCS_OK, 0, recv);
}

/* Gives a message to its receive. False: the message is not used any more and may be dropped. */
static bool deliver(struct fabric *f, struct fabric_recv *recv, const struct fabric_header *header, void *data,
                    size_t bytes, bool rendezvous) {
    recv->header = *header;
    recv->bytes = bytes;
    if (bytes > recv->capacity) {
        ucx_finish(f, ucx_recv_link(recv), zipcclLimitExceeded);
        return false;
    }
    if (rendezvous) {
        fetch(f, recv, data);
        return true;
    }
    if (bytes > 0)
        memcpy(recv->buffer, data, bytes);
    received(NULL, UCS_OK, bytes, recv);
    return false;
}

struct ucx_link **ucx_find_posted(struct ucx_comm *c, const struct fabric_header *h) {
    for (struct ucx_link **p = &c->posted[bucket(h->node, h->channel, h->seq, h->tag)]; *p; p = &(*p)->next) {
        const struct fabric_recv *recv = ucx_recv_from(*p);
        if (recv->node == h->node && recv->channel == h->channel && recv->seq == h->seq && recv->tag == h->tag)
            return p;
    }
    return NULL;
}

static void drop_held(struct fabric *f, struct ucx_held *held) {
    if (held->rendezvous)
        ucp_am_data_release(f->worker, held->data); /* answers the sender */
    free(held);
}

/* Ends the receives and drops the messages of c. */
static void empty_comm(struct fabric *f, struct ucx_comm *c) {
    for (unsigned i = 0; i < UCX_BUCKETS; i++) {
        while (c->posted[i]) {
            struct ucx_link *link = c->posted[i];
            c->posted[i] = link->next;
            ucx_finish(f, link, zipcclAborted);
        }
        while (c->held[i]) {
            struct ucx_held *held = c->held[i];
            c->held[i] = held->next;
            drop_held(f, held);
        }
    }
    c->held_bytes = 0;
}

/* Room for a message of a communicator that this node knows nothing of: a faster node's, or anybody's who reaches the
 * port. Where there is none the oldest such communicators go. NULL: the message is dropped. */
static struct ucx_comm *admit_strange(struct fabric *f, uint64_t key, size_t bytes) {
    struct ucx_comm *c = ucx_comm_find(f, key);
    size_t need = bytes + (c ? 0 : sizeof(*c));
    while (f->strange_bytes + need > MAX_STRANGE_BYTES || (!c && f->nstrange >= MAX_STRANGE)) {
        struct ucx_comm **at = c && f->strange == c ? &c->next_strange : &f->strange;
        if (!*at)
            return NULL;
        struct ucx_comm *oldest = take_strange(f, at);
        empty_comm(f, oldest);
        *find(f, oldest->key) = oldest->next;
        free(oldest);
    }
    if (c)
        return c;
    c = add_comm(f, key);
    if (!c)
        return NULL;
    struct ucx_comm **p = &f->strange;
    while (*p)
        p = &(*p)->next_strange;
    *p = c;
    c->strange = true;
    c->next_strange = NULL;
    f->nstrange++;
    f->strange_bytes += sizeof(*c);
    return c;
}

/* The communicator that a message is of; bytes: what it takes while it waits. NULL: the message is dropped. */
static struct ucx_comm *comm_of(struct fabric *f, uint64_t key, size_t bytes) {
    struct ucx_comm *c = ucx_comm_find(f, key);
    return !c || c->strange ? admit_strange(f, key, bytes) : c;
}

static void allowed(void *request, ucs_status_t status, size_t bytes, void *user_data) {
    (void)status; /* a peer that is gone is noticed by its receives */
    (void)bytes;
    (void)user_data;
    ucp_request_free(request);
}

/* Answers a question. */
static void allow(struct fabric *f, void *desc, size_t bytes) {
    static char nowhere[8];
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK, .cb.recv_am = allowed};
    if (bytes > sizeof(nowhere)) {
        ucp_am_data_release(f->worker, desc);
        return;
    }
    (void)ucp_am_recv_data_nbx(f->worker, desc, nowhere, bytes, &param);
}

static void hold(struct ucx_comm *c, struct ucx_held *held) {
    /* At the end: the older are asked for first. */
    const struct fabric_header *h = &held->header;
    struct ucx_held **p = &c->held[bucket(h->node, h->channel, h->seq, h->tag)];
    while (*p)
        p = &(*p)->next;
    *p = held;
}

ucs_status_t ucx_on_ask(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                        const ucp_am_recv_param_t *param) {
    struct fabric *f = arg;
    struct fabric_header h;
    if (header_bytes != sizeof(h) || !(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV))
        return UCS_OK; /* answers it: the message comes, and is dropped where it has to be */
    memcpy(&h, header, sizeof(h));
    struct ucx_comm *c = comm_of(f, h.comm, sizeof(struct ucx_held) + RENDEZVOUS_BYTES);
    if (!c || c->dead)
        return UCS_OK;
    if (ucx_find_posted(c, &h)) {
        allow(f, data, bytes);
        return UCS_INPROGRESS;
    }
    struct ucx_held *held = malloc(sizeof(*held));
    if (!held) {
        ucx_kill_comm(f, h.comm);
        return UCS_OK;
    }
    *held = (struct ucx_held){.header = h, .data = data, .bytes = bytes, .rendezvous = true, .ask = true};
    if (c->strange)
        f->strange_bytes += held_size(held);
    hold(c, held);
    return UCS_INPROGRESS;
}

ucs_status_t ucx_on_message(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                            const ucp_am_recv_param_t *param) {
    struct fabric *f = arg;
    bool rendezvous = param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV;
    struct fabric_header h;
    if (header_bytes != sizeof(h))
        return UCS_OK; /* dropped */
    memcpy(&h, header, sizeof(h));
    struct ucx_comm *c = comm_of(f, h.comm, sizeof(struct ucx_held) + (rendezvous ? RENDEZVOUS_BYTES : bytes));
    if (!c || c->dead)
        return UCS_OK;
    struct ucx_link **posted = ucx_find_posted(c, &h);
    if (posted) {
        struct fabric_recv *recv = ucx_recv_from(*posted);
        *posted = (*posted)->next;
        return deliver(f, recv, &h, data, bytes, rendezvous) ? UCS_INPROGRESS : UCS_OK;
    }
    struct ucx_held *held = malloc(sizeof(*held) + (rendezvous ? 0 : bytes));
    if (!held || (!rendezvous && c->held_bytes + bytes > MAX_HELD_BYTES)) {
        free(held);
        ucx_kill_comm(f, h.comm); /* a lost message would hang its receiver: rather end it */
        return UCS_OK;
    }
    *held = (struct ucx_held){.header = h, .data = data, .bytes = bytes, .rendezvous = rendezvous};
    if (c->strange)
        f->strange_bytes += held_size(held);
    if (!rendezvous) {
        held->data = held + 1;
        if (bytes > 0)
            memcpy(held->data, data, bytes);
        c->held_bytes += bytes;
    }
    hold(c, held);
    return rendezvous ? UCS_INPROGRESS : UCS_OK;
}

void ucx_post(struct fabric *f, struct fabric_recv *recv) {
    struct ucx_comm *c = ucx_comm_get(f, recv->comm);
    if (!c || c->dead) {
        ucx_finish(f, ucx_recv_link(recv), c ? zipcclAborted : zipcclOutOfMemory);
        return;
    }
    unsigned b = bucket(recv->node, recv->channel, recv->seq, recv->tag);
    bool gone = atomic_load(&recv->peer->failed);
    for (struct ucx_held **p = &c->held[b], **next; *p; p = next) {
        struct ucx_held *held = *p;
        next = &held->next;
        if (held->header.node != recv->node || held->header.channel != recv->channel || held->header.seq != recv->seq ||
            held->header.tag != recv->tag)
            continue;
        if (gone && held->rendezvous)
            break; /* its data went with the peer */
        *p = held->next;
        if (held->ask) {
            allow(f, held->data, held->bytes);
            free(held);
            break; /* the message itself comes later */
        }
        if (!held->rendezvous)
            c->held_bytes -= held->bytes;
        if (deliver(f, recv, &held->header, held->data, held->bytes, held->rendezvous))
            free(held);
        else
            drop_held(f, held);
        return;
    }
    if (gone) {
        ucx_finish(f, ucx_recv_link(recv), zipcclRemoteError);
        return;
    }
    struct ucx_link **p = &c->posted[b], *link = ucx_recv_link(recv);
    ucx_recv_of(recv)->got = 0;
    while (*p)
        p = &(*p)->next;
    link->next = NULL;
    *p = link;
}

void ucx_kill_comm(struct fabric *f, uint64_t key) {
    struct ucx_comm *c = ucx_comm_get(f, key);
    ucx_pace_end(f, NULL, key, zipcclAborted);
    if (!c || c->dead)
        return;
    c->dead = true;
    empty_comm(f, c);
    if (f->last_dead)
        f->last_dead->next_dead = c;
    else
        f->first_dead = c;
    f->last_dead = c;
    if (++f->ndead <= MAX_DEAD)
        return;
    struct ucx_comm *oldest = f->first_dead, **at = find(f, oldest->key);
    f->first_dead = oldest->next_dead;
    f->ndead--;
    *at = oldest->next;
    free(oldest);
}

void ucx_fail_receives(struct fabric *f, const struct fabric_peer *peer) {
    for (unsigned i = 0; i < UCX_COMM_BUCKETS; i++) {
        for (struct ucx_comm *c = f->comms[i]; c; c = c->next) {
            for (unsigned b = 0; b < UCX_BUCKETS; b++) {
                for (struct ucx_link **p = &c->posted[b]; *p;) {
                    struct ucx_link *link = *p;
                    if (ucx_recv_from(link)->peer != peer) {
                        p = &link->next;
                        continue;
                    }
                    *p = link->next;
                    ucx_finish(f, link, zipcclRemoteError);
                }
            }
        }
    }
}

void ucx_drop_all(struct fabric *f) {
    f->strange = NULL;
    f->nstrange = 0;
    f->strange_bytes = 0;
    for (unsigned i = 0; i < UCX_COMM_BUCKETS; i++) {
        while (f->comms[i]) {
            struct ucx_comm *c = f->comms[i];
            f->comms[i] = c->next;
            empty_comm(f, c);
            free(c);
        }
    }
}

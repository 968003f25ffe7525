/* SPDX-License-Identifier: Apache-2.0
 *
 * One order of launches over all nodes and communicators, without anyone who gives it out.
 *
 * Kernels of NCCL occupy a GPU until their peers run theirs, so two nodes that launch the same two in different orders
 * wait for ever. Here every launch has a place, a logical time, that its nodes agree on: each proposes a time later
 * than any that it has seen, the latest proposal counts. A node launches a place when it is final and no earlier one is
 * pending: a pending one becomes final no earlier than it was proposed, so nothing can come before. Places are proposed
 * only when both sides have all that they need, so none stays pending for longer than messages take. A node has one
 * clock and one order; what is pending holds up the places behind it on its GPU alone.
 *
 * Messages: the receiver proposes for all of a sender's messages that have their receives (ready); the sender decides
 * and adds those of the receiver's that have their receives here (final). The making of a communicator, which may
 * synchronise the device, collectives and splits have places of all nodes (nccl_joint.c).
 */
#include "daemon/fabric/nccl.h"

#include <stdlib.h>
#include <string.h>

static bool is_joint(const struct nccl_entry *entry) {
    return entry->purpose != NCCL_FOR_MESSAGES;
}

static bool is_before(const struct nccl_entry *a, const struct nccl_entry *b) {
    if (a->time != b->time)
        return a->time < b->time;
    if (a->comm->key != b->comm->key)
        return a->comm->key < b->comm->key;
    if (a->initiator != b->initiator)
        return a->initiator < b->initiator;
    return a->partner < b->partner;
}

static void insert(struct fabric *f, struct nccl_entry *entry) {
    struct nccl_entry **p = &f->order;
    while (*p && is_before(*p, entry))
        p = &(*p)->next;
    entry->next = *p;
    *p = entry;
}

static void take_out(struct fabric *f, const struct nccl_entry *entry) {
    struct nccl_entry **p = &f->order;
    while (*p != entry)
        p = &(*p)->next;
    *p = entry->next;
}

static struct nccl_entry *new_entry(struct nccl_comm *comm, uint64_t time, uint32_t initiator, uint32_t partner) {
    struct nccl_entry *entry = calloc(1, sizeof(*entry));
    if (!entry) {
        nccl_comm_end(comm, zipcclOutOfMemory);
        return NULL;
    }
    entry->comm = comm;
    entry->time = time;
    entry->initiator = initiator;
    entry->partner = partner;
    return entry;
}

struct nccl_entry *nccl_order_add(struct nccl_comm *comm, enum nccl_purpose purpose) {
    const uint32_t partner = UINT32_MAX - purpose; /* no node's, another one for each */
    struct nccl_entry *entry = new_entry(comm, ++comm->fabric->clock, 0, partner);
    if (!entry)
        return NULL;
    entry->purpose = purpose;
    entry->latest = entry->time;
    insert(comm->fabric, entry);
    return entry;
}

void nccl_order_remove(struct nccl_entry *entry) {
    take_out(entry->comm->fabric, entry);
    entry->comm->places[entry->purpose] = NULL;
    free(entry);
}

void nccl_order_settle(struct nccl_entry *entry, uint64_t time) {
    struct fabric *f = entry->comm->fabric;
    take_out(f, entry);
    entry->time = time;
    entry->final = true;
    f->clock = time > f->clock ? time : f->clock;
    insert(f, entry);
}

/* As many matched receives of its two GPUs as there is room for; their ids. */
static void take_matched(struct nccl_peer *peer, struct nccl_entry *entry, struct nccl_control *control) {
    struct nccl_recv **p = &peer->matched;
    while (*p) {
        struct nccl_recv *recv = *p;
        if (entry->nrecvs == NCCL_MAX_IDS || recv->gpu != entry->gpu || recv->body.gpu != entry->peer_gpu) {
            p = &recv->next;
            continue;
        }
        *p = recv->next;
        control->ids[control->n++] = recv->body.id | (recv->enrolled ? NCCL_ENROLLED_ID : 0);
        entry->recvs[entry->nrecvs++] = recv;
    }
    peer->matched_tail = p;
}

/* The announced sends of these ids. False: one is not known, or another GPU's. */
static bool take_announced(struct nccl_peer *peer, struct nccl_entry *entry, const struct nccl_control *control) {
    for (uint32_t i = 0; i < control->n; i++) {
        struct nccl_send **p = &peer->announced;
        const bool enrolled = control->ids[i] & NCCL_ENROLLED_ID;
        while (*p && (*p)->body.id != (control->ids[i] & ~NCCL_ENROLLED_ID))
            p = &(*p)->next;
        if (!*p || (*p)->body.gpu != entry->gpu || (enrolled && !(*p)->body.enrolled))
            return false;
        struct nccl_send *send = *p;
        *p = send->next;
        send->enrolled = enrolled;
        entry->sends[entry->nsends++] = send;
    }
    return true;
}

/* Our ready for two GPUs that is not final yet; NULL: there is none. */
static struct nccl_entry *find_asked(const struct nccl_peer *peer, uint32_t gpu, uint32_t peer_gpu) {
    const struct nccl_comm *comm = peer->comm;
    struct nccl_entry *e = comm->fabric->order;
    while (e && (e->comm != comm || e->final || is_joint(e) || e->peer != peer->node || e->gpu != gpu ||
                 e->peer_gpu != peer_gpu))
        e = e->next;
    return e;
}

static void ask_for(struct nccl_peer *peer, uint32_t gpu, uint32_t peer_gpu) {
    struct nccl_comm *comm = peer->comm;
    struct fabric *f = comm->fabric;
    struct nccl_control control = {.kind = NCCL_READY, .gpu = gpu, .peer_gpu = peer_gpu};
    struct nccl_entry *entry = new_entry(comm, ++f->clock, comm->node, peer->node);
    if (!entry)
        return;
    entry->peer = peer->node;
    entry->gpu = gpu;
    entry->peer_gpu = peer_gpu;
    take_matched(peer, entry, &control);
    control.time = entry->time;
    insert(f, entry);
    nccl_comm_tell(comm, peer->node, &control);
}

/* Proposes places for what has its receives, where none is asked for already. */
static void ask(struct nccl_peer *peer) {
    struct nccl_comm *comm = peer->comm;
    struct nccl_recv *recv = peer->matched;
    while (recv && comm->ordered && !comm->over) {
        if (recv->body.gpu >= peer->ngpus) {
            nccl_comm_end(comm, zipcclCorruptData);
        } else if (find_asked(peer, recv->gpu, recv->body.gpu)) {
            recv = recv->next;
        } else {
            ask_for(peer, recv->gpu, recv->body.gpu);
            recv = peer->matched;
        }
    }
}

void nccl_order_matched(struct nccl_comm *comm, struct nccl_recv *recv, uint32_t node) {
    struct nccl_peer *peer = &comm->peers[node];
    recv->next = NULL;
    *peer->matched_tail = recv;
    peer->matched_tail = &recv->next;
    ask(peer);
}

void nccl_order_begun(struct nccl_comm *comm) {
    nccl_send_held(comm);
    nccl_native_decided(comm);
    for (uint32_t i = 0; i < comm->nnodes; i++)
        ask(&comm->peers[i]);
}

static uint32_t gpus_of(const struct nccl_entry *entry) {
    const struct nccl_comm *comm = entry->comm;
    uint32_t gpus = 0;
    for (uint32_t i = 0; i < comm->ngpus; i++)
        gpus |= is_joint(entry) || i == entry->gpu ? 1u << comm->gpus[i] : 0;
    return gpus;
}

/* The first one that is final and has none before it on its GPUs; NULL: there is none. */
static struct nccl_entry *take_next(struct fabric *f) {
    uint32_t busy = 0;
    for (struct nccl_entry *entry = f->order; entry; entry = entry->next) {
        if (entry->final && (gpus_of(entry) & busy) == 0) {
            take_out(f, entry);
            return entry;
        }
        busy |= gpus_of(entry);
    }
    return NULL;
}

void nccl_order_run(struct fabric *f) {
    struct nccl_entry *entry;
    while ((entry = take_next(f))) {
        if (is_joint(entry))
            nccl_joint_launch(entry);
        else
            nccl_entry_launch(f, entry);
    }
}

static bool heard_ready(struct nccl_peer *peer, const struct nccl_control *c) {
    struct nccl_comm *comm = peer->comm;
    struct fabric *f = comm->fabric;
    struct nccl_control answer = {.kind = NCCL_FINAL, .gpu = c->peer_gpu, .peer_gpu = c->gpu};
    if (c->peer_gpu >= comm->ngpus || c->gpu >= NCCL_MAX_GPUS)
        return false;
    f->clock = (c->time > f->clock ? c->time : f->clock) + 1;
    struct nccl_entry *entry = new_entry(comm, f->clock, peer->node, comm->node);
    if (!entry)
        return true;
    entry->peer = peer->node;
    entry->gpu = c->peer_gpu;
    entry->peer_gpu = c->gpu;
    entry->final = true;
    insert(f, entry);
    if (!take_announced(peer, entry, c))
        return false;
    take_matched(peer, entry, &answer);
    answer.time = entry->time;
    nccl_comm_tell(comm, peer->node, &answer);
    return true;
}

static bool heard_final(struct nccl_peer *peer, const struct nccl_control *c) {
    struct nccl_entry *entry = find_asked(peer, c->peer_gpu, c->gpu);
    if (!entry || c->time < entry->time || !take_announced(peer, entry, c))
        return false;
    nccl_order_settle(entry, c->time);
    ask(peer);
    return true;
}

/* The receiver has no room for it, and says so to its user: here it is over. */
static bool heard_drop(struct nccl_peer *peer, const struct nccl_control *c) {
    struct nccl_send **p = &peer->announced;
    while (*p && (c->n != 1 || (*p)->body.id != c->ids[0]))
        p = &(*p)->next;
    struct nccl_send *send = *p;
    if (!send)
        return false;
    *p = send->next;
    send->body.bytes[0] = send->body.bytes[1] = 0; /* not counted */
    nccl_send_end(peer->comm->fabric, send, zipcclSuccess);
    return true;
}

static bool heard(struct nccl_peer *peer, const struct nccl_control *c) {
    if (c->purpose != NCCL_FOR_MESSAGES)
        return nccl_joint_heard(peer, c);
    switch (c->kind) {
    case NCCL_READY:
        return heard_ready(peer, c);
    case NCCL_FINAL:
        return heard_final(peer, c);
    case NCCL_DROP:
        return heard_drop(peer, c);
    default:
        return false;
    }
}

bool nccl_order_heard(struct nccl_peer *peer, const struct nccl_control *c) {
    struct fabric *f = peer->comm->fabric;
    bool good = heard(peer, c);
    nccl_order_run(f);
    return good;
}

void nccl_order_drop(struct nccl_comm *comm) {
    struct fabric *f = comm->fabric;
    for (struct nccl_entry **p = &f->order; *p;) {
        struct nccl_entry *entry = *p;
        if (entry->comm != comm) {
            p = &entry->next;
            continue;
        }
        *p = entry->next;
        for (unsigned i = 0; i < entry->nsends; i++)
            nccl_send_end(f, entry->sends[i], comm->reason);
        for (unsigned i = 0; i < entry->nrecvs; i++)
            nccl_recv_end(f, entry->recvs[i], comm->reason);
        free(entry);
    }
    memset(comm->places, 0, sizeof(comm->places));
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Joint places in the order of launches: all nodes of a communicator have them, on all of their GPUs. They are for its
 * making (nccl_making.c), collectives (nccl_native.c) and splits (nccl_split.c), of which each says what travels along
 * and what is launched. There may be one of each at a time.
 *
 * Node 0 proposes to all others and asks for their proposals; when all have come, it tells them which was the latest.
 * What nodes say before, and node 0's no, is a matter of what the place is for; after the asking a no is left to the
 * making alone, whose nodes look at their GPUs only then.
 */
#include "daemon/fabric/nccl.h"

static const struct nccl_joint *const joints[NCCL_PURPOSES] = {
    [NCCL_FOR_MAKING] = &nccl_making, [NCCL_FOR_CALL] = &nccl_calls, [NCCL_FOR_SPLIT] = &nccl_splits};

static struct nccl_control message(struct nccl_comm *comm, enum nccl_kind kind, enum nccl_purpose purpose,
                                   uint64_t time) {
    struct nccl_control control = {.kind = (uint16_t)kind, .purpose = (uint16_t)purpose, .time = time};
    joints[purpose]->fill(comm, &control);
    return control;
}

void nccl_joint_propose(struct nccl_comm *comm, enum nccl_purpose purpose) {
    struct nccl_entry *entry = comm->places[purpose] = nccl_order_add(comm, purpose);
    if (!entry)
        return;
    struct nccl_control control = message(comm, comm->node == 0 ? NCCL_PROPOSE : NCCL_PROPOSAL, purpose, entry->latest);
    for (uint32_t i = 0; i < comm->nnodes; i++)
        comm->peers[i].proposed[purpose] = false;
    if (comm->node == 0)
        nccl_comm_tell_others(comm, &control);
    else
        nccl_comm_tell(comm, 0, &control);
}

void nccl_joint_launch(struct nccl_entry *entry) {
    entry->comm->places[entry->purpose] = NULL;
    joints[entry->purpose]->launch(entry);
}

static bool heard_proposal(struct nccl_peer *peer, const struct nccl_control *c) {
    struct nccl_comm *comm = peer->comm;
    struct nccl_entry *entry = comm->places[c->purpose];
    if (comm->node == 0 && comm->plain)
        return true; /* another node said no meanwhile */
    if (comm->node != 0 || !entry || peer->proposed[c->purpose] || !joints[c->purpose]->take(peer, c))
        return false;
    peer->proposed[c->purpose] = true;
    entry->latest = c->time > entry->latest ? c->time : entry->latest;
    if (++entry->nproposals < comm->nnodes - 1)
        return true;
    struct nccl_control last = message(comm, NCCL_FINAL, entry->purpose, entry->latest);
    nccl_order_settle(entry, entry->latest);
    nccl_comm_tell_others(comm, &last);
    return true;
}

static bool heard_final(struct nccl_peer *peer, const struct nccl_control *c) {
    struct nccl_entry *entry = peer->comm->places[c->purpose];
    if (peer->node != 0 || !entry || entry->final || c->time < entry->time || !joints[c->purpose]->take(peer, c))
        return false;
    nccl_order_settle(entry, c->time);
    return true;
}

bool nccl_joint_heard(struct nccl_peer *peer, const struct nccl_control *c) {
    const struct nccl_joint *joint = joints[c->purpose];
    switch (c->kind) {
    case NCCL_SAY:
        return joint->said && joint->said(peer, c);
    case NCCL_NO:
        return joint->refused(peer, c);
    case NCCL_PROPOSE:
        return peer->node == 0 && !peer->comm->places[c->purpose] && joint->take(peer, c);
    case NCCL_PROPOSAL:
        return heard_proposal(peer, c);
    case NCCL_FINAL:
        return heard_final(peer, c);
    default:
        return false;
    }
}

void nccl_joint_drop(struct nccl_comm *comm) {
    for (unsigned i = 0; i < NCCL_PURPOSES; i++) {
        if (joints[i] && joints[i]->drop)
            joints[i]->drop(comm);
    }
}

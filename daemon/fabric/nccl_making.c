/* SPDX-License-Identifier: Apache-2.0
 *
 * The making of NCCL's communicator: whether there is to be one, and what its nodes agree on.
 *
 * Node 0 looks at its GPUs and sends the unique id with its proposal of a place; all others look at theirs, and propose
 * with the number of them, or say no. Then the communicator goes by UCX alone.
 */
#include "daemon/fabric/nccl.h"

#include <stdlib.h>

/* ---- no NCCL ---- */

static void become_plain(struct nccl_comm *comm) {
    comm->plain = true;
    if (comm->places[NCCL_FOR_MAKING])
        nccl_order_remove(comm->places[NCCL_FOR_MAKING]);
    nccl_send_held(comm);
    nccl_native_decided(comm);
}

/* Node 0. */
static void say_no(struct nccl_comm *comm) {
    struct nccl_control control = {.kind = NCCL_NO, .purpose = NCCL_FOR_MAKING};
    nccl_comm_tell_others(comm, &control);
    become_plain(comm);
}

static bool refused(struct nccl_peer *peer, const struct nccl_control *c) {
    struct nccl_comm *comm = peer->comm;
    const struct nccl_entry *place = comm->places[NCCL_FOR_MAKING];
    (void)c;
    if (comm->ordered || (comm->node != 0 && peer->node != 0) || (place && place->final))
        return false;
    if (comm->plain)
        return true; /* two nodes have none */
    if (comm->node == 0)
        say_no(comm);
    else
        become_plain(comm);
    return true;
}

/* ---- its place ---- */

void nccl_making_looked(struct nccl_comm *comm) {
    struct nccl_control no = {.kind = NCCL_NO, .purpose = NCCL_FOR_MAKING};
    if (comm->plain)
        return; /* another node said so meanwhile */
    comm->peers[comm->node].ngpus = comm->ngpus;
    if (!comm->unable)
        nccl_joint_propose(comm, NCCL_FOR_MAKING);
    else if (comm->node == 0)
        say_no(comm);
    else
        nccl_comm_tell(comm, 0, &no);
}

static uint32_t wants(const struct nccl_comm *comm) {
    return (comm->native ? NCCL_WANTS_NATIVE : 0) | (comm->splits ? NCCL_WANTS_SPLITS : 0);
}

static void want_less(struct nccl_comm *comm, uint32_t theirs) {
    comm->native = comm->native && (theirs & NCCL_WANTS_NATIVE);
    comm->splits = comm->splits && (theirs & NCCL_WANTS_SPLITS);
}

static void fill(struct nccl_comm *comm, struct nccl_control *c) {
    c->gpu = comm->ngpus;
    c->number = wants(comm);
    if (c->kind == NCCL_PROPOSE)
        c->unique = comm->unique;
    for (uint32_t i = 0; i < comm->nnodes && c->kind == NCCL_FINAL; i++)
        c->gpus[c->n++] = (uint8_t)comm->peers[i].ngpus;
}

static bool set_gpus(struct nccl_peer *peer, uint32_t ngpus) {
    peer->ngpus = ngpus;
    return ngpus > 0 && ngpus <= NCCL_MAX_GPUS;
}

/* The unique id has come. */
static bool take_propose(struct nccl_comm *comm, const struct nccl_control *c) {
    if (comm->looked || comm->plain)
        return false;
    comm->looked = true;
    comm->unique = c->unique;
    nccl_comm_look(comm);
    return true;
}

static bool take(struct nccl_peer *peer, const struct nccl_control *c) {
    struct nccl_comm *comm = peer->comm;
    if (c->kind == NCCL_PROPOSE)
        return take_propose(comm, c);
    bool good = c->kind == NCCL_PROPOSAL
                    ? set_gpus(peer, c->gpu)
                    : c->n == comm->nnodes && c->gpus[comm->node] == comm->ngpus && !(c->number & ~wants(comm));
    for (uint32_t i = 0; i < comm->nnodes && good && c->kind == NCCL_FINAL; i++)
        good = set_gpus(&comm->peers[i], c->gpus[i]);
    want_less(comm, c->number);
    return good;
}

/* The ranks of all nodes are known. */
static void launch(struct nccl_entry *entry) {
    struct nccl_comm *comm = entry->comm;
    uint32_t rank = 0;
    free(entry);
    for (uint32_t i = 0; i < comm->nnodes; i++) {
        comm->peers[i].first = rank;
        rank += comm->peers[i].ngpus;
    }
    comm->native = comm->native && rank == comm->nranks; /* else some have no GPU, or share one */
    comm->by_rank = comm->native;
    comm->ordered = true;
    nccl_comm_make(comm);
    nccl_order_begun(comm);
}

const struct nccl_joint nccl_making = {.fill = fill, .take = take, .refused = refused, .launch = launch};

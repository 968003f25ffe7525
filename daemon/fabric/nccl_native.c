/* SPDX-License-Identifier: Apache-2.0
 *
 * Whole collectives by NCCL's own, on the ranks' buffers, where every rank of the communicator has a GPU of its own.
 *
 * Whether the buffers of all ranks lie in their GPUs is known nowhere, and nothing may move before it is. So a node
 * tells node 0 when all of its ranks have come to a collective: what they called, and whether it can go this way. When
 * all have, node 0 asks for places in the order of launches, as for the making of a communicator. So a rank that is
 * late holds up no GPU. Where one cannot, node 0 says no, and all go by messages. Where one called something else, it
 * fails there.
 *
 * A node may go by messages at once, for it calls something else, or the same in a group. Then whoever asks must hear a
 * no from it: if it is node 0, all others ask it; else node 0 tells those of its call that have not come to it. The
 * messages tell what each called, and find ranks that disagree.
 */
#include "daemon/fabric/nccl.h"
#include "daemon/fabric/ucx_flow.h"

#include <stdlib.h>
#include <string.h>

static void end(struct fabric *f, struct fabric_collective *user, zipcclResult_t result) {
    ucx_flow_end(f->below, user->flow, user->sent_bytes, user->taken && !result);
    user->result = result;
    user->next = NULL;
    *f->ended_collectives_tail = user;
    f->ended_collectives_tail = &user->next;
    nccl_wake(f);
}

/* It is decided. Others may have called the next one already. */
static struct fabric_collective *take_asked(struct nccl_comm *comm) {
    struct fabric_collective *user = comm->asked;
    comm->asked = NULL;
    comm->asked_told = false;
    for (uint32_t i = 0; i < comm->nnodes; i++) {
        struct nccl_peer *peer = &comm->peers[i];
        peer->called = peer->called && peer->call.seq != user->header.seq;
    }
    return user;
}

static void end_asked(struct nccl_comm *comm, zipcclResult_t result) {
    end(comm->fabric, take_asked(comm), result);
}

void nccl_native_tell(struct fabric *f) {
    struct fabric_collective *user = f->ended_collectives;
    f->ended_collectives = NULL;
    f->ended_collectives_tail = &f->ended_collectives;
    while (user) {
        struct fabric_collective *next = user->next;
        user->done(user, user->result);
        user = next;
    }
}

static void drop(struct nccl_comm *comm) {
    if (comm->asked)
        end_asked(comm, comm->reason);
}

/* ---- is it to go this way? ---- */

static bool lies_on(const struct nccl_comm *comm, const void *memory, size_t bytes, uint32_t gpu) {
    const struct nccl_gpus *gpus = &comm->fabric->gpus;
    uint32_t number = 0;
    return bytes == 0 ||
           (gpus->ops->place(gpus->owner, memory, &number) == NCCL_PLACE_GPU && number == comm->gpus[gpu]);
}

static bool can(const struct nccl_comm *comm, const struct fabric_collective *user) {
    bool all = user->nparts == comm->ngpus && comm->fabric->link_rate_bits == 0 && !ucx_flow_has_rate(user->flow);
    for (uint32_t i = 0; i < user->nparts && all; i++)
        all = lies_on(comm, user->parts[i].send, user->parts[i].send_bytes, i) &&
              lies_on(comm, user->parts[i].recv, user->parts[i].recv_bytes, i);
    return all;
}

/* To whoever has called it. */
static void say_no(struct nccl_comm *comm, uint32_t seq) {
    struct nccl_control no = {.kind = NCCL_NO, .purpose = NCCL_FOR_CALL, .call = {.seq = seq}};
    for (uint32_t i = 0; i < comm->nnodes && !comm->over; i++) {
        struct nccl_peer *peer = &comm->peers[i];
        if (!peer->called || peer->call.seq != seq)
            continue;
        peer->called = false;
        nccl_comm_tell(comm, i, &no);
    }
}

static void go_by_messages(struct nccl_comm *comm, uint32_t seq) {
    comm->by_messages = seq;
    comm->any_by_messages = true;
    say_no(comm, seq);
}

/* Or went. */
static bool goes_by_messages(const struct nccl_comm *comm, uint32_t seq) {
    return comm->any_by_messages && (int32_t)(comm->by_messages - seq) >= 0;
}

/* Node 0: one cannot. */
static void refuse(struct nccl_comm *comm) {
    go_by_messages(comm, comm->asked->header.seq);
    if (comm->asked)
        end_asked(comm, zipcclSuccess);
}

static bool has_come(const struct nccl_peer *peer) {
    return peer->called && peer->call.seq == peer->comm->asked->header.seq;
}

static void look_for_late(struct nccl_comm *comm) {
    uint32_t *node = &comm->asked->waits_for;
    while (*node < comm->nnodes && (*node == comm->node || has_come(&comm->peers[*node])))
        ++*node;
}

/* Node 0, which has called too: so has this one. */
static void take_call(struct nccl_peer *peer) {
    struct nccl_comm *comm = peer->comm;
    struct fabric_collective *user = comm->asked;
    if (!fabric_same_call(&peer->call, &user->header)) {
        user->theirs = peer->call;
        user->theirs.node = peer->node;
        end_asked(comm, zipcclInvalidArgument);
        return;
    }
    if (!peer->can) {
        refuse(comm);
        return;
    }
    user->header.report = user->combine(user->header.report, peer->call.report);
    look_for_late(comm);
    if (++comm->ncalls == comm->nnodes - 1)
        nccl_joint_propose(comm, NCCL_FOR_CALL);
}

static void start(struct nccl_comm *comm) {
    struct fabric_collective *user = comm->asked;
    struct nccl_control control = {
        .kind = NCCL_SAY, .purpose = NCCL_FOR_CALL, .gpu = can(comm, user), .call = user->header};
    comm->asked_told = true;
    comm->can = control.gpu;
    comm->ncalls = 0;
    if (comm->node != 0) {
        nccl_comm_tell(comm, 0, &control);
        return;
    }
    look_for_late(comm);
    if (!comm->can)
        refuse(comm);
    for (uint32_t i = 1; i < comm->nnodes && comm->asked == user; i++) {
        if (has_come(&comm->peers[i]))
            take_call(&comm->peers[i]);
        else
            nccl_comm_tell(comm, i, &control);
    }
}

/* It is known whether the communicator has NCCL, and whether it has ranks of ours. */
void nccl_native_decided(struct nccl_comm *comm) {
    struct fabric_collective *user = comm->asked;
    if (!user || comm->asked_told || (!comm->plain && !comm->ordered))
        return;
    if (!comm->plain && comm->native) {
        start(comm);
        return;
    }
    user->never = true;
    end_asked(comm, zipcclSuccess);
}

void nccl_native(struct fabric *f, struct fabric_collective *user) {
    struct nccl_comm *comm = nccl_comm_find(f, user->header.comm);
    user->taken = user->never = user->launched = false;
    user->waits_for = comm && comm->node == 0 ? 0 : user->header.node;
    ucx_flow_begin(user->flow, user->sent_bytes);
    if (!comm || comm->over || comm->asked) {
        end(f, user, comm && comm->over ? comm->reason : zipcclInvalidUsage);
        return;
    }
    comm->asked = user;
    nccl_native_decided(comm);
}

void nccl_native_by_messages(struct fabric *f, const struct fabric_header *header) {
    struct nccl_comm *comm = nccl_comm_find(f, header->comm);
    if (comm && !comm->over && !comm->plain && comm->native)
        go_by_messages(comm, header->seq);
}

/* ---- what others tell; false: nonsense ---- */

static bool said(struct nccl_peer *peer, const struct nccl_control *c) {
    struct nccl_comm *comm = peer->comm;
    if (comm->plain || !comm->native || (comm->node != 0 && peer->node != 0) ||
        (peer->called && peer->call.seq == c->call.seq))
        return false;
    peer->call = c->call;
    peer->can = c->gpu;
    peer->called = true;
    if (goes_by_messages(comm, c->call.seq))
        say_no(comm, c->call.seq);
    else if (comm->node == 0 && comm->asked_told && !comm->places[NCCL_FOR_CALL] && has_come(peer))
        take_call(peer);
    return true;
}

static void fill(struct nccl_comm *comm, struct nccl_control *c) {
    c->number = comm->asked->header.report; /* once it is final: of all */
}

static bool take(struct nccl_peer *peer, const struct nccl_control *c) {
    struct nccl_comm *comm = peer->comm;
    if (!comm->asked_told || !comm->can)
        return false;
    if (c->kind == NCCL_PROPOSE)
        nccl_joint_propose(comm, NCCL_FOR_CALL);
    else if (c->kind == NCCL_FINAL)
        comm->asked->header.report = c->number;
    return true;
}

/* It may answer what is decided already. */
static bool refused(struct nccl_peer *peer, const struct nccl_control *c) {
    struct nccl_comm *comm = peer->comm;
    if (!comm->asked_told || comm->asked->header.seq != c->call.seq)
        return true;
    if (comm->places[NCCL_FOR_CALL] || (comm->node != 0 && peer->node != 0))
        return false;
    if (comm->node == 0)
        refuse(comm);
    else
        end_asked(comm, zipcclSuccess);
    return true;
}

/* ---- the launch ---- */

static void add_op(struct nccl_command *command, enum nccl_op_kind kind, const void *memory, size_t bytes) {
    if (bytes > 0)
        command->ops[command->nops++] =
            (struct nccl_op){.address = (uintptr_t)memory, .bytes = bytes, .kind = (uint32_t)kind};
}

/* Moved values are bytes to NCCL, whatever they are to us. */
static struct nccl_call call_of(const struct fabric_collective *user) {
    const struct fabric_header *h = &user->header;
    bool moves = h->op == zipcclOpAllGather || h->op == zipcclOpBroadcast;
    return (struct nccl_call){.op = h->op,
                              .dtype = moves ? (uint32_t)zipcclUint8 : h->dtype,
                              .redop = moves ? (uint32_t)zipcclSum : (uint32_t)user->redop,
                              .root = h->root,
                              .count = moves ? h->op_count * user->value_bytes : h->op_count};
}

static void ended(struct fabric *f, struct nccl_entry *entry) {
    struct nccl_comm *comm = entry->comm;
    struct fabric_collective *user = entry->collective;
    zipcclResult_t result = entry->result;
    if (result && !comm->over)
        nccl_comm_end(comm, result);
    user->taken = true;
    f->sent_bytes += result ? 0 : user->sent_bytes;
    f->received_bytes += result ? 0 : user->received_bytes;
    end(f, user, result && comm->over ? comm->reason : result);
    free(entry);
    nccl_comm_release(comm);
}

static void launch(struct nccl_entry *entry) {
    struct nccl_comm *comm = entry->comm;
    struct fabric *f = comm->fabric;
    struct fabric_collective *user = entry->collective = take_asked(comm);
    struct nccl_command command;
    comm->users++;
    user->launched = true;
    entry->id = ++f->ids;
    for (uint32_t i = 0; i < comm->ngpus && !entry->result; i++) {
        command.comm = comm->id;
        command.id = entry->id;
        command.what = NCCL_COLLECTIVE;
        command.nops = 0;
        command.rank = command.nranks = 0;
        command.call = call_of(user);
        add_op(&command, NCCL_OP_SEND, user->parts[i].send, user->parts[i].send_bytes);
        add_op(&command, NCCL_OP_RECV, user->parts[i].recv, user->parts[i].recv_bytes);
        if (f->gpus.ops->ask(f->launchers[comm->gpus[i]], &command))
            entry->pending++;
        else
            entry->result = zipcclOutOfMemory;
    }
    if (entry->result && !comm->over)
        nccl_comm_end(comm, entry->result);
    if (entry->pending == 0) {
        ended(f, entry);
        return;
    }
    entry->next = NULL;
    *f->launched_tail = entry;
    f->launched_tail = &entry->next;
}

void nccl_native_answered(struct fabric *f, struct nccl_entry *entry, const struct nccl_answer *answer) {
    if (answer->result && !entry->result) {
        entry->result = answer->result;
        nccl_comm_fail(entry->comm, answer);
    }
    if (entry->pending == 0)
        ended(f, entry);
}

const struct nccl_joint nccl_calls = {
    .said = said, .refused = refused, .fill = fill, .take = take, .launch = launch, .drop = drop};

/* SPDX-License-Identifier: Apache-2.0
 *
 * Whole collectives by NCCL's own, on the ranks' buffers, where every rank of the communicator has a GPU of its own.
 *
 * Whether the buffers of all ranks lie in their GPUs is known nowhere, and nothing may move before it is. So a node
 * tells node 0 when all of its ranks have come to a collective: what they called, and whether it can go this way. When
 * all have, node 0 asks for places in the order of launches, as for the making of a communicator, or says that one
 * cannot. So a rank that is late holds up no GPU.
 *
 * Ranks that call different operations: node 0 compares what the others tell. Where a node goes by messages what
 * another one leaves to NCCL, one of the two is node 0, or both differ from it; so node 0 also tells those of its call
 * that did not come yet, and who hears of a call that goes, or went, by messages here says so.
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
    comm->place = NULL;
    for (uint32_t i = 0; i < comm->nnodes; i++) {
        struct nccl_peer *peer = &comm->peers[i];
        peer->called = peer->called && peer->call.seq != user->header.seq;
        peer->placed = false;
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

void nccl_native_drop(struct nccl_comm *comm) {
    if (comm->asked)
        end_asked(comm, comm->reason);
}

static void tell_others(struct nccl_comm *comm, const struct nccl_control *control) {
    for (uint32_t i = 1; i < comm->nnodes && !comm->over; i++)
        nccl_comm_tell(comm, i, control);
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

/* Node 0: all nodes have called the same. */
static void decide(struct nccl_comm *comm) {
    struct nccl_control control = {.kind = comm->can ? NCCL_PROPOSE_CALL : NCCL_NO_CALL};
    if (!comm->can) {
        tell_others(comm, &control);
        if (comm->asked)
            end_asked(comm, zipcclSuccess);
        return;
    }
    comm->place = nccl_order_propose(comm);
    if (!comm->place)
        return;
    comm->nplaced = 0;
    comm->latest = control.time = comm->place->time;
    tell_others(comm, &control);
}

static void fail_other(struct nccl_comm *comm, const struct nccl_peer *peer, const struct fabric_header *theirs,
                       bool heard) {
    comm->asked->other = peer->node;
    comm->asked->heard = heard;
    comm->asked->theirs = *theirs;
    comm->asked->theirs.node = peer->node;
    end_asked(comm, zipcclInvalidArgument);
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
        fail_other(comm, peer, &peer->call, true);
        return;
    }
    comm->can = comm->can && peer->can;
    user->header.report = user->combine(user->header.report, peer->call.report);
    look_for_late(comm);
    if (++comm->ncalls == comm->nnodes - 1)
        decide(comm);
}

static void start(struct nccl_comm *comm) {
    struct fabric_collective *user = comm->asked;
    struct nccl_control control = {.kind = NCCL_CALL, .call = user->header};
    comm->asked_told = true;
    comm->can = can(comm, user);
    comm->ncalls = 0;
    control.gpu = comm->can;
    if (comm->node != 0) {
        nccl_comm_tell(comm, 0, &control);
        return;
    }
    look_for_late(comm);
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
    user->taken = user->never = user->launched = user->heard = false;
    user->waits_for = comm && comm->node == 0 ? 0 : user->header.node;
    ucx_flow_begin(user->flow, user->sent_bytes);
    if (!comm || comm->over || comm->asked) {
        end(f, user, comm && comm->over ? comm->reason : zipcclInvalidUsage);
        return;
    }
    comm->asked = user;
    nccl_native_decided(comm);
}

/* ---- what goes by messages ---- */

/* NULL: it does not, or not yet. The header of one that is long past says no more than its number. */
static const struct fabric_header *find_past(const struct nccl_comm *comm, uint32_t seq, bool *known) {
    static const struct fabric_header none;
    for (uint32_t i = 0; i < comm->npast && i < NCCL_PAST; i++) {
        if (comm->past[i].seq == seq) {
            *known = true;
            return &comm->past[i];
        }
    }
    *known = false;
    return comm->npast > 0 && (int32_t)(comm->past[(comm->npast - 1) % NCCL_PAST].seq - seq) > 0 ? &none : NULL;
}

/* False: it does not go by messages here, as far as is known. */
static bool answer_other(struct nccl_peer *peer) {
    bool known;
    const struct fabric_header *past = find_past(peer->comm, peer->call.seq, &known);
    if (!past)
        return false;
    struct nccl_control control = {.kind = NCCL_CALLED_OTHER, .gpu = known, .call = *past};
    control.call.seq = peer->call.seq;
    peer->called = false;
    nccl_comm_tell(peer->comm, peer->node, &control);
    return true;
}

void nccl_native_by_messages(struct fabric *f, const struct fabric_header *header) {
    struct nccl_comm *comm = nccl_comm_find(f, header->comm);
    if (!comm || comm->over || comm->plain || !comm->native)
        return;
    comm->past[comm->npast++ % NCCL_PAST] = *header;
    if (comm->npast == 2 * NCCL_PAST)
        comm->npast = NCCL_PAST;
    for (uint32_t i = 0; i < comm->nnodes && !comm->over; i++) {
        struct nccl_peer *peer = &comm->peers[i];
        if (peer->called && peer->call.seq == header->seq)
            (void)answer_other(peer);
    }
}

/* ---- what others tell; false: nonsense ---- */

static bool heard_call(struct nccl_peer *peer, const struct nccl_control *c) {
    struct nccl_comm *comm = peer->comm;
    if (comm->plain || !comm->native || (comm->node != 0 && peer->node != 0) ||
        (peer->called && peer->call.seq == c->call.seq))
        return false;
    peer->call = c->call;
    peer->can = c->gpu;
    peer->called = true;
    if (!answer_other(peer) && comm->node == 0 && comm->asked_told && !comm->place && has_come(peer))
        take_call(peer);
    return true;
}

static bool heard_other(struct nccl_peer *peer, const struct nccl_control *c) {
    struct nccl_comm *comm = peer->comm;
    if (comm->asked_told && !comm->place && c->call.seq == comm->asked->header.seq)
        fail_other(comm, peer, &c->call, c->gpu);
    return true;
}

static bool heard_propose(struct nccl_peer *peer) {
    struct nccl_comm *comm = peer->comm;
    struct nccl_control control = {.kind = NCCL_CALL_PROPOSAL};
    if (peer->node != 0 || !comm->asked_told || comm->place || !comm->can)
        return false;
    comm->place = nccl_order_propose(comm);
    if (!comm->place)
        return true;
    control.time = comm->place->time;
    nccl_comm_tell(comm, 0, &control);
    return true;
}

static bool heard_proposal(struct nccl_peer *peer, const struct nccl_control *c) {
    struct nccl_comm *comm = peer->comm;
    struct nccl_control last = {.kind = NCCL_FINAL_CALL};
    if (comm->node != 0 || !comm->place || comm->place->final || peer->placed)
        return false;
    peer->placed = true;
    comm->latest = c->time > comm->latest ? c->time : comm->latest;
    if (++comm->nplaced < comm->nnodes - 1)
        return true;
    last.time = comm->latest;
    last.gpu = comm->asked->header.report;
    nccl_order_settle(comm->place, comm->latest);
    tell_others(comm, &last);
    return true;
}

static bool heard_final(struct nccl_peer *peer, const struct nccl_control *c) {
    struct nccl_comm *comm = peer->comm;
    if (peer->node != 0 || !comm->place || comm->place->final || c->time < comm->place->time)
        return false;
    comm->asked->header.report = c->gpu;
    nccl_order_settle(comm->place, c->time);
    return true;
}

static bool heard_no(struct nccl_peer *peer) {
    struct nccl_comm *comm = peer->comm;
    if (peer->node != 0 || !comm->asked_told || comm->place)
        return false;
    end_asked(comm, zipcclSuccess);
    return true;
}

bool nccl_native_heard(struct nccl_peer *peer, const struct nccl_control *c) {
    switch (c->kind) {
    case NCCL_CALL:
        return heard_call(peer, c);
    case NCCL_CALLED_OTHER:
        return heard_other(peer, c);
    case NCCL_PROPOSE_CALL:
        return heard_propose(peer);
    case NCCL_CALL_PROPOSAL:
        return heard_proposal(peer, c);
    case NCCL_FINAL_CALL:
        return heard_final(peer, c);
    case NCCL_NO_CALL:
        return heard_no(peer);
    default:
        return false;
    }
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

void nccl_native_launch(struct fabric *f, struct nccl_entry *entry) {
    struct nccl_comm *comm = entry->comm;
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

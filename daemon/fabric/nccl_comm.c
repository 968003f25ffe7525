/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators of the NCCL fabric: control messages between their nodes, and their end.
 *
 * Each node keeps one control receive posted from every other one, so what one node tells another arrives in order;
 * the end of that receive is how a node's death is seen.
 */
#include "daemon/fabric/nccl.h"

#include <stdlib.h>
#include <string.h>

static void heard(struct fabric_recv *recv, zipcclResult_t result);
static void peer_left(struct nccl_peer *peer);

struct nccl_comm *nccl_comm_find(struct fabric *f, uint64_t key) {
    struct nccl_comm *comm = f->comms;
    while (comm && comm->key != key)
        comm = comm->next;
    return comm;
}

static void free_if_unused(struct nccl_comm *comm) {
    if (!comm->gone || comm->users > 0)
        return;
    struct nccl_comm **p = &comm->fabric->gone;
    while (*p != comm)
        p = &(*p)->next;
    *p = comm->next;
    free(comm);
}

void nccl_comm_release(struct nccl_comm *comm) {
    comm->users--;
    free_if_unused(comm);
}

void nccl_comm_free_all(struct fabric *f) {
    struct nccl_comm **lists[2] = {&f->comms, &f->gone};
    while (f->order) {
        struct nccl_entry *entry = f->order;
        f->order = entry->next;
        free(entry);
    }
    for (unsigned i = 0; i < 2; i++) {
        while (*lists[i]) {
            struct nccl_comm *comm = *lists[i];
            *lists[i] = comm->next;
            free(comm);
        }
    }
}

static void told(struct fabric_send *send, zipcclResult_t result) {
    struct nccl_letter *letter = send->arg;
    struct nccl_comm *comm = letter->comm;
    struct fabric *f = comm->fabric;
    letter->next = f->spare_letters;
    f->spare_letters = letter;
    if (result && !comm->over)
        nccl_comm_end(comm, result);
    nccl_comm_release(comm);
}

static size_t control_bytes(const struct nccl_control *control) {
    size_t tail = control->kind == NCCL_PROPOSE_INIT ? sizeof(control->unique) : control->n * sizeof(control->ids[0]);
    return offsetof(struct nccl_control, ids) + tail;
}

void nccl_comm_tell(struct nccl_comm *comm, uint32_t node, const struct nccl_control *control) {
    struct fabric *f = comm->fabric;
    struct nccl_peer *peer = &comm->peers[node];
    struct nccl_letter *letter = f->spare_letters;
    if (letter) {
        f->spare_letters = letter->next;
    } else if ((letter = calloc(1, sizeof(*letter)))) {
        letter->next_of_all = f->all_letters;
        f->all_letters = letter;
    } else {
        if (!comm->over)
            nccl_comm_end(comm, zipcclOutOfMemory);
        return;
    }
    letter->comm = comm;
    letter->body = *control;
    memset(&letter->send, 0, sizeof(letter->send));
    letter->send.peer = peer->endpoint;
    letter->send.header =
        (struct fabric_header){.comm = comm->key, .node = comm->node, .seq = peer->out_seq++, .channel = NCCL_CONTROL};
    letter->send.iov[0] = (struct fabric_iov){&letter->body, control_bytes(control)};
    letter->send.niov = 1;
    letter->send.done = told;
    letter->send.arg = letter;
    comm->users++;
    fabric_ucx.send(f->below, &letter->send);
}

static void listen_to(struct nccl_peer *peer) {
    struct nccl_comm *comm = peer->comm;
    memset(&peer->control, 0, sizeof(peer->control));
    peer->control.peer = peer->endpoint;
    peer->control.comm = comm->key;
    peer->control.node = peer->node;
    peer->control.channel = NCCL_CONTROL;
    peer->control.seq = peer->in_seq++;
    peer->control.buffer = &peer->heard;
    peer->control.capacity = sizeof(peer->heard);
    peer->control.done = heard;
    peer->control.arg = peer;
    comm->users++;
    fabric_ucx.recv(comm->fabric->below, &peer->control);
}

static bool is_sound(const struct nccl_peer *peer, size_t bytes) {
    const struct nccl_control *c = &peer->heard;
    return bytes >= offsetof(struct nccl_control, ids) && c->n <= NCCL_MAX_IDS && bytes == control_bytes(c) &&
           c->time < UINT64_MAX / 2;
}

static void heard(struct fabric_recv *recv, zipcclResult_t result) {
    struct nccl_peer *peer = recv->arg;
    struct nccl_comm *comm = peer->comm;
    if (!comm->over) {
        if (result != zipcclSuccess)
            nccl_comm_end(comm, result);
        else if (!is_sound(peer, recv->bytes))
            nccl_comm_end(comm, zipcclCorruptData);
        else if (peer->heard.kind == NCCL_LEFT)
            peer_left(peer);
        else if (!nccl_order_heard(peer, &peer->heard))
            nccl_comm_end(comm, zipcclCorruptData);
    }
    /* Also of one that is over: an unread message would keep its sender. */
    if (result == zipcclSuccess && !comm->gone)
        listen_to(peer);
    nccl_comm_release(comm);
}

static void order(struct nccl_comm *comm, struct nccl_command *command, enum nccl_what what) {
    *command = (struct nccl_command){.what = what, .comm = comm, .of = comm};
    comm->users++;
    nccl_launch_order(comm->fabric, command);
}

zipcclResult_t nccl_comm_join(struct fabric *f, uint64_t key, uint32_t node, uint32_t nnodes,
                              struct fabric_peer *const *peers) {
    if (nnodes < 2 || node >= nnodes || nccl_comm_find(f, key))
        return zipcclInvalidArgument;
    struct nccl_comm *comm = calloc(1, sizeof(*comm) + nnodes * sizeof(comm->peers[0]));
    if (!comm)
        return zipcclOutOfMemory;
    comm->fabric = f;
    comm->key = key;
    comm->node = node;
    comm->nnodes = nnodes;
    comm->next = f->comms;
    f->comms = comm;
    for (uint32_t i = 0; i < nnodes; i++) {
        struct nccl_peer *peer = &comm->peers[i];
        *peer = (struct nccl_peer){.comm = comm, .endpoint = peers[i], .node = i};
        peer->matched_tail = &peer->matched;
        if (i != node)
            listen_to(peer);
    }
    if (node == 0 && nccl_launch_able(f))
        order(comm, &comm->command, NCCL_MAKE_ID);
    else if (node == 0)
        nccl_order_plain(comm);
    return zipcclSuccess;
}

static void end_announced(struct nccl_peer *peer, zipcclResult_t reason) {
    while (peer->announced) {
        struct nccl_send *send = peer->announced;
        peer->announced = send->next;
        nccl_send_end(peer->comm->fabric, send, reason);
    }
}

/* What it was not told to receive, it never will. */
static void peer_left(struct nccl_peer *peer) {
    peer->left = true;
    end_announced(peer, zipcclAborted);
}

static void end_messages(struct nccl_comm *comm) {
    for (uint32_t i = 0; i < comm->nnodes; i++) {
        struct nccl_peer *peer = &comm->peers[i];
        end_announced(peer, comm->reason);
        while (peer->matched) {
            struct nccl_recv *recv = peer->matched;
            peer->matched = recv->next;
            nccl_recv_end(comm->fabric, recv, comm->reason);
        }
        peer->matched_tail = &peer->matched;
    }
}

static void tell_others(struct nccl_comm *comm, const struct nccl_control *control) {
    for (uint32_t i = 0; i < comm->nnodes; i++) {
        if (i != comm->node)
            nccl_comm_tell(comm, i, control);
    }
}

static void end(struct nccl_comm *comm, zipcclResult_t reason, enum nccl_what what) {
    comm->over = true;
    comm->reason = reason;
    fabric_ucx.abort(comm->fabric->below, comm->key); /* ends the receives whose messages have not come */
    end_messages(comm);
    nccl_order_drop(comm);
    order(comm, &comm->abort_command, what);
    nccl_order_run(comm->fabric); /* others may have waited for its places */
}

void nccl_comm_end(struct nccl_comm *comm, zipcclResult_t reason) {
    if (!comm->over)
        end(comm, reason, NCCL_ABORT);
}

void nccl_comm_forget(struct nccl_comm *comm) {
    struct fabric *f = comm->fabric;
    struct nccl_comm **p = &f->comms;
    struct nccl_control left = {.kind = NCCL_LEFT};
    comm->users++;
    if (!comm->over) {
        tell_others(comm, &left);
        end(comm, zipcclAborted, NCCL_LEAVE);
    }
    while (*p != comm)
        p = &(*p)->next;
    *p = comm->next;
    comm->next = f->gone;
    f->gone = comm;
    comm->gone = true;
    nccl_comm_release(comm);
}

void nccl_comm_answer(struct nccl_command *command) {
    struct nccl_comm *comm = command->comm;
    if (command->what == NCCL_MAKE_ID && command->result && !comm->over)
        nccl_order_plain(comm);
    else if (command->what == NCCL_FAILED || (command->result && command->what < NCCL_LEAVE))
        nccl_comm_end(comm, command->result);
    else if (command->what == NCCL_MAKE_ID && !comm->over)
        nccl_order_init(comm);
    if (command->what != NCCL_FAILED) /* unasked: the abort that follows keeps the communicator */
        nccl_comm_release(comm);
}

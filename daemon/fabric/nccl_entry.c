/* SPDX-License-Identifier: Apache-2.0
 *
 * What the NCCL fabric asks the launching sides for: launches whose place has come, copies from bounces; and their
 * ends.
 */
#include <stdlib.h>

#include "daemon/fabric/nccl.h"

bool nccl_entry_copy(struct fabric *f, struct nccl_recv *recv) {
    struct nccl_command command;
    command.comm = 0;
    command.id = recv->id = ++f->ids;
    command.what = NCCL_COPY;
    command.nops = 2;
    command.ops[0] = (struct nccl_op){.address = (uintptr_t)recv->user->buffer, .bytes = recv->user->bytes};
    command.ops[1] = (struct nccl_op){.address = (uintptr_t)recv->bounce, .bytes = recv->user->bytes};
    if (!f->gpus.ops->ask(f->launchers[recv->comm->gpus[recv->gpu]], &command))
        return false;
    recv->next = NULL;
    *f->copying_tail = recv;
    f->copying_tail = &recv->next;
    return true;
}

static void entry_ended(struct fabric *f, struct nccl_entry *entry, zipcclResult_t result) {
    struct nccl_comm *comm = entry->comm;
    if (result && !comm->over)
        nccl_comm_end(comm, result);
    result = result && comm->over ? comm->reason : result;
    for (unsigned i = 0; i < entry->nsends; i++)
        nccl_send_end(f, entry->sends[i], result);
    for (unsigned i = 0; i < entry->nrecvs; i++) {
        f->received_bytes += result ? 0 : entry->recvs[i]->user->bytes;
        nccl_recv_end(f, entry->recvs[i], result);
    }
    free(entry);
    nccl_comm_release(comm);
}

static void add_op(struct nccl_command *command, uint32_t kind, const void *base, size_t bytes, uint32_t peer) {
    if (bytes > 0)
        command->ops[command->nops++] =
            (struct nccl_op){.address = (uintptr_t)base, .bytes = bytes, .kind = kind, .peer = peer};
}

void nccl_entry_launch(struct fabric *f, struct nccl_entry *entry) {
    struct nccl_comm *comm = entry->comm;
    const struct nccl_peer *peer = &comm->peers[entry->peer];
    struct nccl_command command;
    comm->users++;
    if (!comm->ordered || entry->peer_gpu >= peer->ngpus) {
        entry_ended(f, entry, zipcclCorruptData);
        return;
    }
    command.comm = comm->id;
    command.id = entry->id = ++f->ids;
    command.what = NCCL_LAUNCH;
    command.nops = 0;
    uint32_t rank = nccl_comm_rank(comm, entry->peer, entry->peer_gpu);
    for (unsigned i = 0; i < entry->nsends; i++) {
        const struct fabric_send *user = entry->sends[i]->user;
        const uint32_t kind = NCCL_OP_SEND | (entry->sends[i]->enrolled ? NCCL_OP_REGISTERED : 0);
        for (unsigned k = 0; k < user->niov; k++)
            add_op(&command, kind, user->iov[k].base, user->iov[k].bytes, rank);
    }
    for (unsigned i = 0; i < entry->nrecvs; i++) {
        const struct nccl_recv *recv = entry->recvs[i];
        const uint8_t *at = recv->user->buffer;
        const uint32_t kind = NCCL_OP_RECV | (recv->enrolled ? NCCL_OP_REGISTERED : 0);
        add_op(&command, kind, at, recv->body.bytes[0], rank);
        add_op(&command, kind, at + recv->body.bytes[0], recv->body.bytes[1], rank);
    }
    if (!f->gpus.ops->ask(f->launchers[comm->gpus[entry->gpu]], &command)) {
        entry_ended(f, entry, zipcclOutOfMemory);
        return;
    }
    entry->next = NULL;
    *f->launched_tail = entry;
    f->launched_tail = &entry->next;
}

void nccl_entry_launched(struct fabric *f, const struct nccl_answer *answer) {
    struct nccl_entry **p = &f->launched;
    while (*p && (*p)->id != answer->id)
        p = &(*p)->next;
    struct nccl_entry *entry = *p;
    if (!entry)
        return;
    if (entry->collective && --entry->pending > 0) {
        nccl_native_answered(f, entry, answer);
        return;
    }
    if (!(*p = entry->next))
        f->launched_tail = p;
    if (entry->collective) {
        nccl_native_answered(f, entry, answer);
        return;
    }
    if (answer->result)
        nccl_comm_fail(entry->comm, answer);
    entry_ended(f, entry, answer->result);
}

void nccl_entry_copied(struct fabric *f, const struct nccl_answer *answer) {
    struct nccl_recv **p = &f->copying;
    while (*p && (*p)->id != answer->id)
        p = &(*p)->next;
    struct nccl_recv *recv = *p;
    if (!recv)
        return;
    if (!(*p = recv->next))
        f->copying_tail = p;
    if (answer->result)
        nccl_comm_fail(recv->comm, answer);
    nccl_recv_end(f, recv, answer->result);
}

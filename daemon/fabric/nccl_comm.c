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
    free(comm->members);
    free(comm);
}

void nccl_comm_release(struct nccl_comm *comm) {
    comm->users--;
    free_if_unused(comm);
}

void nccl_comm_free_all(struct fabric *f) {
    struct nccl_comm **lists[2] = {&f->comms, &f->gone};
    struct nccl_entry **entries[2] = {&f->order, &f->launched};
    for (unsigned i = 0; i < 2; i++) {
        while (*entries[i]) {
            struct nccl_entry *entry = *entries[i];
            *entries[i] = entry->next;
            free(entry);
        }
        while (*lists[i]) {
            struct nccl_comm *comm = *lists[i];
            *lists[i] = comm->next;
            free(comm->members);
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
    size_t tail = 0;
    switch (control->purpose) {
    case NCCL_FOR_MAKING:
        tail = control->kind == NCCL_PROPOSE ? sizeof(control->unique) : control->n;
        break;
    case NCCL_FOR_CALL:
        tail = control->kind == NCCL_SAY || control->kind == NCCL_NO ? sizeof(control->call) : 0;
        break;
    case NCCL_FOR_SPLIT:
        tail = control->n * sizeof(control->children[0]);
        break;
    default:
        tail = control->n * sizeof(control->ids[0]);
        break;
    }
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
    letter->send.unpaced = true; /* places of the order wait for it */
    letter->send.done = told;
    letter->send.arg = letter;
    comm->users++;
    fabric_ucx.send(f->below, &letter->send);
}

void nccl_comm_tell_others(struct nccl_comm *comm, const struct nccl_control *control) {
    for (uint32_t i = 0; i < comm->nnodes && !comm->over; i++) {
        if (i != comm->node)
            nccl_comm_tell(comm, i, control);
    }
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
    static const uint32_t most[NCCL_PURPOSES] = {
        [NCCL_FOR_MESSAGES] = NCCL_MAX_IDS, [NCCL_FOR_MAKING] = NCCL_MAX_NODES, [NCCL_FOR_SPLIT] = NCCL_MAX_CHILDREN};
    const struct nccl_control *c = &peer->heard;
    return bytes >= offsetof(struct nccl_control, ids) && c->purpose < NCCL_PURPOSES && c->n <= most[c->purpose] &&
           bytes == control_bytes(c) && c->time < UINT64_MAX / 2;
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

/* ---- its GPUs ---- */

bool nccl_comm_ask(struct nccl_comm *comm, uint32_t gpu, struct nccl_command *command) {
    const struct nccl_gpus *gpus = &comm->fabric->gpus;
    struct nccl_launcher **l = &comm->fabric->launchers[comm->gpus[gpu]];
    if (!*l)
        *l = gpus->ops->launcher(gpus->owner, comm->gpus[gpu], comm->fabric->wake);
    command->comm = comm->id;
    command->id = gpu;
    command->nops = 0;
    if (!*l || !gpus->ops->ask(*l, command))
        return false;
    comm->users++;
    return true;
}

static bool ask(struct nccl_comm *comm, uint32_t gpu, enum nccl_what what) {
    struct nccl_command command;
    command.what = what;
    command.rank = nccl_comm_rank(comm, comm->node, gpu);
    command.nranks = comm->peers[comm->nnodes - 1].first + comm->peers[comm->nnodes - 1].ngpus;
    command.unique = comm->unique;
    return nccl_comm_ask(comm, gpu, &command);
}

void nccl_comm_look(struct nccl_comm *comm) {
    for (uint32_t i = 0; i < comm->ngpus && !comm->unable; i++) {
        comm->unable = !ask(comm, i, comm->node == 0 && i == 0 ? NCCL_MAKE_ID : NCCL_LOOK);
        comm->looks += !comm->unable;
    }
    comm->unable = comm->unable || comm->ngpus == 0;
    if (comm->looks == 0)
        nccl_making_looked(comm);
}

void nccl_comm_make(struct nccl_comm *comm) {
    for (uint32_t i = 0; i < comm->ngpus && !comm->over; i++) {
        if (!ask(comm, i, NCCL_MAKE))
            nccl_comm_end(comm, zipcclOutOfMemory);
    }
}

/* In two steps over all GPUs, where it is revoked. Ends of an end that find no memory leave NCCL's part of it. */
static void ask_all(struct nccl_comm *comm, enum nccl_what what) {
    comm->revokes = 0;
    for (uint32_t i = 0; comm->ordered && i < comm->ngpus; i++) {
        bool asked = ask(comm, i, what);
        comm->revokes += asked && what == NCCL_REVOKE;
    }
}

static void answered(struct nccl_comm *comm, const struct nccl_answer *answer) {
    switch ((enum nccl_what)answer->what) {
    case NCCL_MAKE_ID:
        comm->unique = answer->unique;
        __attribute__((fallthrough));
    case NCCL_LOOK:
        comm->unable = comm->unable || answer->result;
        if (--comm->looks == 0 && !comm->over)
            nccl_making_looked(comm);
        break;
    case NCCL_MAKE:
    case NCCL_FAILED:
        if (answer->result)
            nccl_comm_fail(comm, answer);
        break;
    case NCCL_SPLIT:
        nccl_split_answered(comm, answer);
        break;
    case NCCL_REVOKE:
        if (--comm->revokes == 0)
            ask_all(comm, NCCL_ABORT);
        break;
    default:
        break;
    }
}

void nccl_comm_answer(struct fabric *f, const struct nccl_answer *answer) {
    struct nccl_comm *lists[2] = {f->comms, f->gone};
    for (unsigned i = 0; i < 2; i++) {
        for (struct nccl_comm *comm = lists[i]; comm; comm = comm->next) {
            if (comm->id != answer->comm)
                continue;
            comm->users += answer->what == NCCL_FAILED; /* unasked */
            answered(comm, answer);
            nccl_comm_release(comm);
            return;
        }
    }
}

/* ---- its life ---- */

uint32_t nccl_comm_rank(const struct nccl_comm *comm, uint32_t node, uint32_t gpu) {
    uint32_t at = comm->peers[node].first + gpu;
    return comm->by_rank && comm->ordered ? comm->members[at] : at;
}

/* The ranks by node, as if each had a GPU of its own; this node's GPUs in their order where each has. False: no
 * memory. */
static bool set_members(struct nccl_comm *comm, const struct fabric_join *join) {
    uint32_t used = 0, nlocal = 0, n = join->nnodes;
    bool own = true;
    uint32_t *at = calloc(n + 1, sizeof(*at)); /* of a node's ranks in members */
    comm->members = calloc(join->nranks ? join->nranks : 1, sizeof(*comm->members));
    if (!at || !comm->members) {
        free(at);
        return false;
    }
    for (uint32_t r = 0; r < join->nranks; r++) {
        nlocal += join->rank_node[r] == join->node;
        at[join->rank_node[r] + 1]++;
    }
    for (uint32_t i = 1; i < n; i++)
        at[i + 1] += at[i];
    for (uint32_t i = 0; i < n; i++) {
        comm->peers[i].first = at[i];
        comm->peers[i].ngpus = at[i + 1] - at[i];
    }
    for (uint32_t r = 0; r < join->nranks; r++)
        comm->members[at[join->rank_node[r]]++] = r;
    free(at);
    for (uint32_t i = 0; i < nlocal; i++) {
        uint32_t gpu = join->rank_gpus[i];
        own = own && gpu < NCCL_MAX_GPUS && !(used >> gpu & 1);
        used |= gpu < NCCL_MAX_GPUS ? 1u << gpu : 0;
    }
    comm->own = own && nlocal == comm->ngpus;
    comm->native = join->native && comm->own;
    for (uint32_t i = 0; comm->own && i < nlocal; i++)
        comm->gpus[i] = join->rank_gpus[i];
    return true;
}

zipcclResult_t nccl_comm_join(struct fabric *f, const struct fabric_join *join) {
    uint32_t nnodes = join->nnodes;
    if (nnodes < 2 || join->node >= nnodes || nccl_comm_find(f, join->comm))
        return zipcclInvalidArgument;
    struct nccl_comm *comm = calloc(1, sizeof(*comm) + nnodes * sizeof(comm->peers[0]));
    if (!comm)
        return zipcclOutOfMemory;
    comm->fabric = f;
    comm->key = join->comm;
    comm->id = ++f->ids;
    comm->node = join->node;
    comm->nnodes = nnodes;
    for (uint32_t i = 0; i < NCCL_MAX_GPUS && nnodes <= NCCL_MAX_NODES; i++) {
        if (join->gpus >> i & 1)
            comm->gpus[comm->ngpus++] = i;
    }
    comm->nranks = join->nranks;
    comm->splits = join->splits;
    comm->held = join->split;
    if (join->rank_gpus && !set_members(comm, join)) {
        free(comm->members);
        free(comm);
        return zipcclOutOfMemory;
    }
    comm->next = f->comms;
    f->comms = comm;
    for (uint32_t i = 0; i < nnodes; i++) {
        struct nccl_peer *peer = &comm->peers[i];
        peer->comm = comm;
        peer->endpoint = join->peers[i];
        peer->node = i;
        peer->matched_tail = &peer->matched;
        if (i != comm->node)
            listen_to(peer);
    }
    if (comm->node == 0 && !comm->held)
        nccl_comm_look(comm);
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
    nccl_joint_drop(comm);
}

/* what: NCCL_LEAVE or NCCL_REVOKE, behind which an abort comes. */
static void end(struct nccl_comm *comm, zipcclResult_t reason, enum nccl_what what) {
    comm->over = true;
    comm->reason = reason;
    fabric_ucx.abort(comm->fabric->below, comm->key); /* ends the receives whose messages have not come */
    end_messages(comm);
    nccl_order_drop(comm);
    ask_all(comm, what);
    nccl_order_run(comm->fabric); /* others may have waited for its places */
}

void nccl_comm_end(struct nccl_comm *comm, zipcclResult_t reason) {
    if (!comm->over)
        end(comm, reason, NCCL_REVOKE);
}

void nccl_comm_fail(struct nccl_comm *comm, const struct nccl_answer *answer) {
    if (comm->over)
        return;
    comm->why = answer->why;
    nccl_comm_end(comm, answer->result);
}

void nccl_comm_forget(struct nccl_comm *comm) {
    struct fabric *f = comm->fabric;
    struct nccl_comm **p = &f->comms;
    struct nccl_control left = {.kind = NCCL_LEFT};
    comm->users++;
    if (!comm->over) {
        for (uint32_t i = 0; i < comm->nnodes; i++) { /* all, also where one could not be told */
            if (i != comm->node)
                nccl_comm_tell(comm, i, &left);
        }
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

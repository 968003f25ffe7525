/* SPDX-License-Identifier: Apache-2.0
 *
 * Splits: NCCL's communicators of new communicators are made of their parent's, by ncclCommSplit.
 *
 * All of the parent's GPUs must call that once, also those that are in no new communicator, and in one order with all
 * else that they launch. So a node tells node 0 of the parent when all of its ranks have come: whether it can, and how
 * many ranks it has in each new communicator. When all have, node 0 asks for places in the order of launches, on all of
 * the parent's GPUs, as for a collective; or it says no, and each new communicator is made by itself, by a unique id.
 * Until then the new ones wait ("held"): they have joined on all of their nodes by the time that a place is asked for.
 *
 * Nothing stands still. A place is asked for when nobody is missing, so it is pending for no longer than messages take;
 * like each place it waits for earlier ones alone, on all of its GPUs, so the earliest that has not ended can go on
 * everywhere, whatever other communicators share the GPUs. Only then does a GPU begin; it begins when its stream is
 * empty, since NCCL wants nothing of the parent under way, and all behind it wait, which have later places everywhere.
 * A new communicator's messages have later places, as its nodes' clocks are past this one's. So it can be split again:
 * that is the same with another parent.
 *
 * What trainers say cannot make NCCL's calls differ: node 0 goes on only where the ranks of each new communicator that
 * nodes told of are all that it has. Colors come from the numbers of the new communicators.
 *
 * A parent that fails before its place has come takes the new ones that wait along: other nodes may have gone on.
 * Afterwards they are on their own. NCCL's share nothing with the parent's (splitShare = 0): else the end of either by
 * an abort would be the other one's too. Only while ncclCommSplit is under way does an abort of the parent end it.
 */
#include "daemon/fabric/nccl.h"

#include <stdlib.h>
#include <string.h>

static const char parent_failed[] = "the communicator that it is split from failed before it was made";

static void end_user(struct fabric *f, struct fabric_split *user, zipcclResult_t result) {
    user->result = result;
    user->next = NULL;
    *f->ended_splits_tail = user;
    f->ended_splits_tail = &user->next;
    nccl_wake(f);
}

void nccl_split_tell(struct fabric *f) {
    struct fabric_split *user = f->ended_splits;
    f->ended_splits = NULL;
    f->ended_splits_tail = &f->ended_splits;
    while (user) {
        struct fabric_split *next = user->next;
        user->done(user, user->result);
        user = next;
    }
}

/* It is over for this node; with an error GPUs may have it under way still. */
static void end(struct nccl_comm *comm, zipcclResult_t result) {
    struct nccl_split *split = &comm->split;
    struct fabric_split *user = split->user;
    split->user = NULL;
    user->made = !result && split->launched ? split->nchildren : 0;
    end_user(comm->fabric, user, result);
}

/* One that waits for the split; NULL: there is none, or it has ended. */
static struct nccl_comm *find_held(struct fabric *f, uint64_t key) {
    struct nccl_comm *child = key ? nccl_comm_find(f, key) : NULL;
    return child && child->held && !child->over ? child : NULL;
}

/* They are made as others are. */
static void let_go(struct fabric *f, const struct fabric_split *user) {
    for (uint32_t i = 0; i < user->nchildren; i++) {
        struct nccl_comm *child = find_held(f, user->children[i]);
        if (!child)
            continue;
        child->held = false;
        if (child->node == 0)
            nccl_comm_look(child);
    }
}

static void end_held(struct fabric *f, const struct fabric_split *user, zipcclResult_t reason) {
    for (uint32_t i = 0; i < user->nchildren; i++) {
        struct nccl_comm *child = find_held(f, user->children[i]);
        if (!child)
            continue;
        child->why = parent_failed;
        nccl_comm_end(child, reason);
    }
}

/* What a GPU has under way ends with its answer. */
static void drop(struct nccl_comm *comm) {
    if (!comm->split.user || comm->split.launched)
        return;
    end_held(comm->fabric, comm->split.user, comm->reason);
    end(comm, comm->reason);
}

/* ---- what this node says ---- */

/* Of a number of 64 bits; node 0 looks whether two of a split have the same. */
static int32_t color_of(uint64_t key) {
    return (int32_t)((key ^ key >> 32) & INT32_MAX);
}

static struct nccl_child *child_of(struct nccl_split *split, const struct nccl_comm *child) {
    uint32_t i = 0;
    while (i < split->nchildren && split->children[i].key != child->key)
        i++;
    if (i == split->nchildren)
        split->children[split->nchildren++] = (struct nccl_child){.key = child->key, .nranks = child->nranks};
    return &split->children[i];
}

/* A GPU goes on to a new communicator. False: that has it not, or is not made so. */
static bool set_branch(struct nccl_comm *comm, uint32_t gpu, uint64_t key) {
    struct nccl_split *split = &comm->split;
    const struct nccl_comm *child = find_held(comm->fabric, key);
    uint32_t at = 0;
    split->branches[gpu] = (struct nccl_branch){.color = -1};
    split->keys[gpu] = key;
    if (key == 0)
        return true;
    if (!child || !child->own || !child->splits || child->native < comm->native)
        return false;
    while (at < child->ngpus && child->gpus[at] != comm->gpus[gpu])
        at++;
    if (at == child->ngpus)
        return false;
    split->branches[gpu] = (struct nccl_branch){.comm = child->id,
                                                .color = color_of(key),
                                                .key = (int32_t)child->members[child->peers[child->node].first + at]};
    child_of(split, child)->here++;
    return true;
}

/* Whether all ranks here can: each has a GPU of its own, the same in both communicators. */
static bool set_branches(struct nccl_comm *comm) {
    struct nccl_split *split = &comm->split;
    const struct fabric_split *user = split->user;
    bool all = comm->ordered && comm->own && user->wanted && user->nchildren == comm->ngpus &&
               comm->fabric->version >= NCCL_SPLIT_SINCE;
    split->nchildren = 0;
    for (uint32_t i = 0; all && i < comm->ngpus; i++)
        all = set_branch(comm, i, user->children[i]);
    for (uint32_t i = 0; all && i < split->nchildren; i++)
        all = split->children[i].here == nccl_comm_find(comm->fabric, split->children[i].key)->ngpus;
    return all;
}

/* ---- node 0 decides ---- */

static void say_no(struct nccl_comm *comm) {
    struct nccl_control no = {.kind = NCCL_NO, .purpose = NCCL_FOR_SPLIT, .number = comm->split.user->number};
    nccl_comm_tell_others(comm, &no);
    if (!comm->split.user)
        return; /* the communicator has ended of it */
    let_go(comm->fabric, comm->split.user);
    end(comm, zipcclSuccess);
}

static int by_key(const void *a, const void *b) {
    const struct nccl_child *x = a, *y = b;
    return (x->key > y->key) - (x->key < y->key);
}

static int by_color(const void *a, const void *b) {
    int32_t x = color_of(((const struct nccl_child *)a)->key), y = color_of(((const struct nccl_child *)b)->key);
    return (x > y) - (x < y);
}

/* Whether the ranks that nodes told of are all that the new communicators have, and colors tell those apart. */
static bool is_whole(struct nccl_child *children, size_t n) {
    size_t count = 0;
    qsort(children, n, sizeof(*children), by_key);
    for (size_t i = 0, same; i < n; i += same) {
        uint64_t ranks = 0;
        for (same = 0; i + same < n && children[i + same].key == children[i].key; same++) {
            if (children[i + same].nranks != children[i].nranks)
                return false;
            ranks += children[i + same].here;
        }
        if (ranks != children[i].nranks)
            return false;
        children[count++] = children[i];
    }
    qsort(children, count, sizeof(*children), by_color);
    for (size_t i = 1; i < count; i++) {
        if (by_color(&children[i - 1], &children[i]) == 0)
            return false;
    }
    return count > 0;
}

/* What all nodes said, as one list. NULL: no memory. */
static struct nccl_child *collect(const struct nccl_comm *comm, size_t *n) {
    struct nccl_child *all = malloc(comm->nnodes * sizeof(comm->split.children));
    *n = 0;
    for (uint32_t i = 0; all && i < comm->nnodes; i++) {
        const struct nccl_child *of = i == 0 ? comm->split.children : comm->peers[i].children;
        const uint32_t here = i == 0 ? comm->split.nchildren : comm->peers[i].nchildren;
        memcpy(&all[*n], of, here * sizeof(*of));
        *n += here;
    }
    return all;
}

/* All nodes have come to it. */
static void decide(struct nccl_comm *comm) {
    bool all = comm->split.can;
    for (uint32_t i = 1; i < comm->nnodes; i++) {
        struct nccl_peer *peer = &comm->peers[i];
        if (peer->split != comm->split.user->number) { /* a trainer skipped one */
            nccl_comm_end(comm, zipcclInvalidUsage);
            return;
        }
        all = all && peer->split_can;
        peer->said = false;
    }
    size_t n;
    struct nccl_child *children = all ? collect(comm, &n) : NULL;
    all = children && is_whole(children, n);
    free(children);
    if (all)
        nccl_joint_propose(comm, NCCL_FOR_SPLIT);
    else
        say_no(comm);
}

static void decide_if_all(struct nccl_comm *comm) {
    bool all = comm->split.user && !comm->places[NCCL_FOR_SPLIT] && !comm->split.launched;
    for (uint32_t i = 1; i < comm->nnodes; i++)
        all = all && comm->peers[i].said;
    if (all)
        decide(comm);
}

/* Whether nodes tell each other of splits; once it is made, or is not, all know alike. */
static bool is_told_of(const struct nccl_comm *comm) {
    return !comm->plain && (comm->splits || !comm->ordered);
}

void nccl_split(struct fabric *f, struct fabric_split *user) {
    struct nccl_comm *comm = nccl_comm_find(f, user->comm);
    struct nccl_control control = {.kind = NCCL_SAY, .purpose = NCCL_FOR_SPLIT, .number = user->number};
    user->made = 0;
    user->failed = UINT32_MAX;
    if (!comm || comm->over || comm->split.user) {
        zipcclResult_t reason = comm && comm->over ? comm->reason : zipcclInvalidUsage;
        end_held(f, user, reason);
        end_user(f, user, reason);
        return;
    }
    if (!is_told_of(comm)) {
        let_go(f, user);
        end_user(f, user, zipcclSuccess);
        return;
    }
    comm->split.user = user;
    comm->split.launched = false;
    comm->split.can = set_branches(comm);
    if (comm->node == 0) {
        decide_if_all(comm);
        return;
    }
    control.gpu = comm->split.can;
    control.n = comm->split.can ? comm->split.nchildren : 0;
    memcpy(control.children, comm->split.children, control.n * sizeof(control.children[0]));
    nccl_comm_tell(comm, 0, &control);
}

/* ---- what others tell; false: nonsense ---- */

static bool said(struct nccl_peer *peer, const struct nccl_control *c) {
    struct nccl_comm *comm = peer->comm;
    struct nccl_control no = {.kind = NCCL_NO, .purpose = NCCL_FOR_SPLIT, .number = c->number};
    if (comm->node != 0 || peer->said)
        return false;
    if (!is_told_of(comm)) {
        nccl_comm_tell(comm, peer->node, &no);
        return true;
    }
    peer->said = true;
    peer->split = c->number;
    peer->split_can = c->gpu;
    peer->nchildren = c->n;
    memcpy(peer->children, c->children, c->n * sizeof(c->children[0]));
    decide_if_all(comm);
    return true;
}

/* They speak of the one that is under way here, and has not begun. */
static bool is_same(const struct nccl_comm *comm, const struct nccl_control *c) {
    const struct nccl_split *split = &comm->split;
    return split->user && !split->launched && split->user->number == c->number;
}

static void fill(struct nccl_comm *comm, struct nccl_control *c) {
    c->number = comm->split.user->number;
}

static bool take(struct nccl_peer *peer, const struct nccl_control *c) {
    struct nccl_comm *comm = peer->comm;
    if (!is_same(comm, c) || !comm->split.can)
        return false;
    if (c->kind == NCCL_PROPOSE)
        nccl_joint_propose(comm, NCCL_FOR_SPLIT);
    return true;
}

static bool refused(struct nccl_peer *peer, const struct nccl_control *c) {
    struct nccl_comm *comm = peer->comm;
    if (peer->node != 0 || !is_same(comm, c) || comm->places[NCCL_FOR_SPLIT])
        return false;
    let_go(comm->fabric, comm->split.user);
    end(comm, zipcclSuccess);
    return true;
}

/* ---- the launch ---- */

/* With answers counted where it is known still. */
static void abort_branch(struct nccl_comm *comm, uint32_t gpu) {
    struct fabric *f = comm->fabric;
    const uint64_t id = comm->split.branches[gpu].comm;
    struct nccl_command command = {.comm = id, .id = gpu, .what = NCCL_ABORT};
    struct nccl_comm *lists[2] = {f->comms, f->gone};
    if (!f->gpus.ops->ask(f->launchers[comm->gpus[gpu]], &command))
        return;
    for (unsigned i = 0; i < 2; i++) {
        for (struct nccl_comm *child = lists[i]; child; child = child->next)
            child->users += child->id == id;
    }
}

/* It has ended meanwhile, and NCCL's is made for the others' sake. */
static void abort_dead(struct nccl_comm *comm, uint64_t key) {
    for (uint32_t i = 0; i < comm->ngpus; i++) {
        if (comm->split.keys[i] == key)
            abort_branch(comm, i);
    }
}

static void begin_child(struct nccl_comm *comm, uint64_t key) {
    struct nccl_comm *child = find_held(comm->fabric, key);
    if (!child) {
        abort_dead(comm, key);
        return;
    }
    child->held = false;
    child->ordered = child->by_rank = true;
    child->native = child->native && comm->native;
    nccl_order_begun(child);
}

/* The first one tells the user: others may hang until all is aborted for it. */
static void fail(struct nccl_comm *comm, zipcclResult_t result, uint32_t gpu) {
    if (!comm->split.user)
        return;
    comm->split.user->failed = gpu;
    end(comm, result);
}

static void launch(struct nccl_entry *entry) {
    struct nccl_comm *comm = entry->comm;
    struct nccl_split *split = &comm->split;
    struct nccl_command command;
    bool all = true;
    free(entry);
    split->launched = true;
    split->pending = 0;
    for (uint32_t i = 0; i < comm->ngpus && all; i++) {
        command.what = NCCL_SPLIT;
        command.rank = command.nranks = 0;
        command.branch = split->branches[i];
        all = nccl_comm_ask(comm, i, &command);
        split->pending += all;
    }
    for (uint32_t i = 0; i < split->nchildren; i++)
        begin_child(comm, split->children[i].key);
    if (all)
        return;
    fail(comm, zipcclOutOfMemory, UINT32_MAX);
    if (!comm->over)
        nccl_comm_end(comm, zipcclOutOfMemory);
}

void nccl_split_answered(struct nccl_comm *comm, const struct nccl_answer *answer) {
    struct nccl_split *split = &comm->split;
    const uint64_t key = split->keys[answer->id];
    struct nccl_comm *child = key ? nccl_comm_find(comm->fabric, key) : NULL;
    split->pending--;
    if (answer->result && child)
        nccl_comm_fail(child, answer);
    if (answer->result) {
        fail(comm, answer->result, (uint32_t)answer->id);
        nccl_comm_fail(comm, answer);
    }
    if (split->pending == 0 && split->user)
        end(comm, zipcclSuccess);
}

const struct nccl_joint nccl_splits = {
    .said = said, .refused = refused, .fill = fill, .take = take, .launch = launch, .drop = drop};

/* SPDX-License-Identifier: Apache-2.0
 *
 * Splits, as the fabric is told of them. zipcclCommSplit makes new communicators by unique ids, of which daemons need
 * not know whence they come. But a fabric may make what it needs for them of what it has for their parent, on all of
 * its nodes at once. So each rank says to which split of the parent it has come: with its join, or, where it joins
 * none, alone. When all ranks here have, and what they join is connected or has failed, the fabric hears of it; until
 * it has decided, what it makes for the new ones waits there, and with it their first messages.
 *
 * A parent that fails before takes them along: the fabrics of other nodes may wait for it, or have gone on.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/core/comm.h"
#include "daemon/core/daemon.h"
#include "daemon/core/log.h"
#include "daemon/core/session.h"
#include "proto/result.h"

#define MOST_AHEAD 4u /* splits: a rank that joins none may come to the next one, if its last one failed */

/* Where a rank of this node goes. */
struct split_rank {
    bool told;
    uint64_t key; /* of the communicator that it joins; 0: none */
};

struct comm_split {
    struct list link; /* in the parent's, by number */
    struct comm *comm;
    uint32_t number;
    bool asked;         /* the fabric; it is gone when that has answered */
    uint64_t *children; /* for the fabric */
    struct fabric_split fabric;
    struct split_rank ranks[]; /* by local rank */
};

static struct comm_split *split_first(const struct comm *c) {
    return list_empty(&c->splits) ? NULL : list_entry(c->splits.next, struct comm_split, link);
}

static void split_free(struct comm_split *s) {
    list_del(&s->link);
    free(s->children);
    free(s);
}

static struct comm_split *split_get(struct comm *c, uint32_t number) {
    list_for_each(l, &c->splits) {
        struct comm_split *s = list_entry(l, struct comm_split, link);
        if (s->number == number)
            return s;
    }
    struct comm_split *s = calloc(1, sizeof *s + c->nmembers * sizeof s->ranks[0]);
    if (s == NULL || (s->children = calloc(c->nmembers, sizeof *s->children)) == NULL) {
        free(s);
        return NULL;
    }
    s->comm = c;
    s->number = number;
    list_add_tail(&c->splits, &s->link); /* each rank counts, so none comes before its time */
    return s;
}

/* What is not made yet fails with its parent. */
static void split_fail_children(const struct comm_split *s) {
    struct comm *c = s->comm;
    for (uint32_t i = 0; i < c->nmembers; i++) {
        struct comm *child = s->ranks[i].key != 0 ? comm_find(c->daemon, s->ranks[i].key) : NULL;
        if (child != NULL && child->split_of == c->key &&
            (child->state == COMM_JOINING || (child->state == COMM_CONNECTING && child->split_waits)))
            comm_fail(child, NULL, c->error, "the communicator that it is split from failed: %s", c->text);
    }
}

void comm_split_fail(struct comm *c) {
    list_for_each_safe(l, &c->splits) {
        struct comm_split *s = list_entry(l, struct comm_split, link);
        split_fail_children(s);
        if (!s->asked)
            split_free(s);
    }
}

void comm_split_free(struct comm *c) {
    list_for_each_safe(l, &c->splits) split_free(list_entry(l, struct comm_split, link));
}

static void split_failed(struct comm_split *s, zipcclResult_t result) {
    struct comm *c = s->comm;
    const char *why = exec_comm_why(c->exec);
    char who[120];
    if (s->fabric.failed < c->nmembers)
        comm_describe_rank(c, c->members[s->fabric.failed]->rank, who, sizeof who);
    else
        snprintf(who, sizeof who, "node %s", c->daemon->config.node_name);
    comm_fail(c, NULL, result, "zipcclCommSplit #%" PRIu32 ": NCCL's split fails on %s: %s", s->number, who,
              why != NULL ? why : result_string(result));
}

static void split_done(struct fabric_split *fabric, zipcclResult_t result) {
    struct comm_split *s = fabric->arg;
    struct comm *c = s->comm;
    if (result != zipcclSuccess)
        split_failed(s, result);
    for (uint32_t i = 0; i < c->nmembers; i++) {
        struct comm *child = s->ranks[i].key != 0 ? comm_find(c->daemon, s->ranks[i].key) : NULL;
        if (child != NULL)
            child->split_waits = false;
    }
    c->daemon->stats.counters[STATS_nccl_splits] += fabric->made;
    log_debug("split (comm=%016" PRIx64 " job=%s number=%" PRIu32 " made=%" PRIu32 ")", c->key, c->job->name, s->number,
              fabric->made);
    split_free(s);
    comm_split_look(c);
}

/* Where a local rank goes. False: that is not known yet. *wanted becomes false where it goes nowhere in the end. */
static bool split_place(const struct comm_split *s, uint32_t local, uint64_t *child, bool *wanted) {
    const struct comm_member *m = s->comm->members[local];
    const struct split_rank *r = &s->ranks[local];
    *child = 0;
    if (!r->told) {
        *wanted = false; /* one that has left never tells, nor does an older library */
        return m->session == NULL || m->state != MEMBER_IN || !(m->session->features & WIRE_FEATURE_SPLIT);
    }
    if (r->key == 0)
        return true;
    const struct comm *c = comm_find(s->comm->daemon, r->key);
    if (c == NULL || c->state == COMM_FAILED) {
        *wanted = false;
        return true;
    }
    if (c->exec != NULL && c->nnodes > 1)
        *child = c->fabric_key;
    return c->exec != NULL;
}

void comm_split_look(struct comm *c) {
    struct daemon *d = c->daemon;
    struct comm_split *s = split_first(c);
    bool wanted = d->config.nccl_split;
    if (s == NULL || s->asked || c->state == COMM_FAILED || c->state == COMM_FAILING)
        return;
    for (uint32_t i = 0; i < c->nmembers; i++) {
        if (!split_place(s, i, &s->children[i], &wanted))
            return;
    }
    s->asked = true;
    s->fabric = (struct fabric_split){.comm = c->fabric_key,
                                      .number = s->number,
                                      .wanted = wanted,
                                      .children = s->children,
                                      .nchildren = c->nmembers,
                                      .done = split_done,
                                      .arg = s};
    d->fabric_ops->split(d->fabric, &s->fabric);
}

bool comm_split_told(const struct comm *c) {
    bool all = c->daemon->config.nccl_split;
    for (uint32_t i = 0; all && i < c->nmembers; i++)
        all = c->members[i]->session != NULL && (c->members[i]->session->features & WIRE_FEATURE_SPLIT);
    return all;
}

bool comm_split_waits(const struct comm *c) {
    const struct comm *parent = c->split_of != 0 ? comm_find(c->daemon, c->split_of) : NULL;
    const struct comm_split *s = parent != NULL && parent->state != COMM_FAILED ? split_first(parent) : NULL;
    return s != NULL && !s->asked && c->nnodes > 1;
}

void comm_split_connected(struct comm *c) {
    struct comm *parent = c->split_of != 0 ? comm_find(c->daemon, c->split_of) : NULL;
    if (parent != NULL)
        comm_split_look(parent);
}

bool comm_split_come(struct session *s, uint64_t handle, uint32_t number, uint64_t key, struct comm **parent,
                     const char **why) {
    struct comm_member *m = handles_get(&s->comms, handle);
    const struct daemon *d = s->daemon;
    *parent = NULL;
    /* The parent may have failed, or been left by another thread. */
    if (m == NULL || m->state != MEMBER_IN || m->comm->state != COMM_READY || m->comm->nnodes < 2 ||
        d->fabric_ops->split == NULL)
        return true;
    const struct comm_split *first = split_first(m->comm);
    *why = "splits are counted by each rank: 1, 2, 3...";
    if (number != m->splits + 1 || (first != NULL && number - first->number >= MOST_AHEAD))
        return number != 0 && number == m->splits; /* told before: its join failed */
    struct comm_split *split = split_get(m->comm, number);
    *why = "out of memory";
    if (split == NULL)
        return false;
    m->splits = number;
    split->ranks[m->local] = (struct split_rank){true, key};
    *parent = m->comm;
    return true;
}

void comm_split_none(struct session *s, uint32_t id, const Zipccl__CommSplit *m) {
    const char *why;
    struct comm *parent;
    if (!comm_split_come(s, m->comm, m->split, 0, &parent, &why)) {
        session_error(s, id, zipcclInvalidUsage, "%s", why);
        return;
    }
    session_send(s, WIRE_OK, id, NULL, 0);
    if (parent != NULL)
        comm_split_look(parent);
}

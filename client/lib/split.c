/* SPDX-License-Identifier: Apache-2.0
 *
 * zipcclCommSplit, made of two all-gathers on the parent: who goes where, then the unique ids. Each rank then tells its
 * daemon that it has come to the split, which may make the new communicators by one of NCCL: with its join, or alone.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/collective.h"
#include "zipccl.pb-c.h"

#define NAME "zipcclCommSplit"

/* What every rank tells in the first round... */
struct choice {
    int32_t color, key;
};

/* ... and, those that lead a color, in the second. */
struct invitation {
    zipcclUniqueId id;
    uint32_t result; /* of making the id */
    char why[252];
};

/* This rank in its new communicator. */
struct seat {
    int leader; /* rank of the parent */
    int nranks, rank;
};

static bool before(const struct choice *choices, int a, int b) {
    return choices[a].key != choices[b].key ? choices[a].key < choices[b].key : a < b;
}

static struct seat find_seat(const struct choice *choices, int nranks, int me) {
    struct seat s = {.leader = me};
    for (int i = 0; i < nranks; i++) {
        if (choices[i].color != choices[me].color)
            continue;
        s.nranks++;
        s.rank += before(choices, i, me);
        if (before(choices, i, s.leader))
            s.leader = i;
    }
    return s;
}

static zipcclResult_t share(zipcclComm_t comm, const void *mine, void *all, size_t bytes) {
    zipcclResult_t r = zipcclAllGather(mine, all, bytes, zipcclUint8, comm, NULL);
    return r == zipcclSuccess ? r : fail_comm(comm, r, NAME ": %.380s", thread_error());
}

static void invite(zipcclComm_t comm, struct invitation *i) {
    zipcclResult_t r = comm_unique_id(comm->session, "zipcclGetUniqueId", &i->id);
    i->result = (uint32_t)r;
    if (r != zipcclSuccess)
        (void)snprintf(i->why, sizeof i->why, "%s", thread_error());
}

/* Both rounds: the new communicator's id and this rank's seat in it. from->number stays 0 where not all ranks came. */
static zipcclResult_t agree(zipcclComm_t comm, struct choice *choices, struct invitation *invitations,
                            struct seat *seat, struct split *from) {
    struct invitation mine;
    struct choice own = choices[comm->rank];
    zipcclResult_t r = share(comm, &own, choices, sizeof own);
    if (r != zipcclSuccess)
        return r;
    *seat = find_seat(choices, comm->nranks, comm->rank);
    bool joins = own.color != ZIPCCL_SPLIT_NOCOLOR;
    memset(&mine, 0, sizeof mine);
    if (joins && seat->leader == comm->rank)
        invite(comm, &mine);
    r = share(comm, &mine, invitations, sizeof mine);
    if (r != zipcclSuccess)
        return r;
    (void)pthread_mutex_lock(&client_lock);
    if (comm->session->info.features & WIRE_FEATURE_SPLIT)
        *from = (struct split){comm->handle, ++comm->splits};
    (void)pthread_mutex_unlock(&client_lock);
    if (!joins)
        return zipcclSuccess;
    const struct invitation *theirs = &invitations[seat->leader];
    r = theirs->result < zipcclNumResults ? (zipcclResult_t)theirs->result : zipcclInternalError;
    if (r != zipcclSuccess)
        return fail_comm(comm, r, NAME ": rank %d, which leads color %d, has no unique id: %.*s", seat->leader,
                         own.color, (int)sizeof theirs->why, theirs->why);
    return zipcclSuccess;
}

/* This rank joins nothing. What the daemon says does not matter: without it, NCCL's split is not made. */
static void decline(struct session *s, const struct split *from) {
    Zipccl__CommSplit m = ZIPCCL__COMM_SPLIT__INIT;
    struct call call;
    memset(&call, 0, sizeof call);
    m.comm = from->parent;
    m.split = from->number;
    (void)pthread_mutex_lock(&client_lock);
    zipcclResult_t r = call_run(s, &call, WIRE_COMM_SPLIT, &m.base, NULL, 0, WIRE_OK, CLIENT_CONTROL_MS);
    (void)r;
    (void)pthread_mutex_unlock(&client_lock);
}

static zipcclResult_t split(zipcclComm_t comm, struct choice *choices, struct invitation *invitations,
                            zipcclComm_t *newcomm) {
    struct seat seat;
    struct split from = {0};
    bool joins = choices[comm->rank].color != ZIPCCL_SPLIT_NOCOLOR;
    struct session *s = comm->session;
    (void)pthread_mutex_lock(&client_lock);
    comm->users++; /* an abort of the parent waits for us... */
    s->refs++;
    (void)pthread_mutex_unlock(&client_lock);
    zipcclResult_t r = agree(comm, choices, invitations, &seat, &from);
    (void)pthread_mutex_lock(&client_lock);
    comm->users--; /* ... but not for the others of the new communicator */
    client_notify();
    (void)pthread_mutex_unlock(&client_lock);
    if (r == zipcclSuccess && joins)
        r = comm_join(s, NAME, newcomm, seat.nranks, &invitations[seat.leader].id, seat.rank, &from);
    if (from.number && (r != zipcclSuccess || !joins))
        decline(s, &from);
    (void)pthread_mutex_lock(&client_lock);
    session_put(s);
    if (r != zipcclSuccess && comm_is_live(comm))
        (void)snprintf(comm->error, sizeof comm->error, "%s", thread_error());
    (void)pthread_mutex_unlock(&client_lock);
    return r;
}

zipcclResult_t zipcclCommSplit(zipcclComm_t comm, int color, int key, zipcclComm_t *newcomm) {
    if (!comm || comm->magic != CLIENT_COMM_MAGIC)
        return fail_thread(zipcclInvalidArgument, NAME ": comm is %s",
                           comm ? "not a communicator, or was freed" : "NULL");
    if (!newcomm)
        return fail_comm(comm, zipcclInvalidArgument, NAME ": newcomm is NULL");
    *newcomm = NULL;
    if (color < 0 && color != ZIPCCL_SPLIT_NOCOLOR)
        return fail_comm(comm, zipcclInvalidArgument, NAME ": color %d: need 0 or more, or ZIPCCL_SPLIT_NOCOLOR",
                         color);
    if (group_is_open())
        return fail_comm(comm, zipcclInvalidUsage, NAME ": not inside a group: call zipcclGroupEnd first");
    size_t n = (size_t)comm->nranks;
    struct choice *choices = calloc(n, sizeof *choices);
    struct invitation *invitations = calloc(n, sizeof *invitations);
    zipcclResult_t r;
    if (choices && invitations) {
        choices[comm->rank] = (struct choice){.color = color, .key = key};
        r = split(comm, choices, invitations, newcomm);
    } else {
        r = fail_comm(comm, zipcclOutOfMemory, NAME ": no memory for the choices of %d ranks", comm->nranks);
    }
    free(choices);
    free(invitations);
    return r;
}

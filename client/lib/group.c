/* SPDX-License-Identifier: Apache-2.0
 *
 * Groups: operations of this thread that are only noted until the outermost end.
 */
#include <stdio.h>
#include <stdlib.h>

#include "client/lib/collective.h"
#include "proto/op.h"

static _Thread_local struct group {
    unsigned depth, n;
    struct batch *batches, *last; /* last: the one noted to last */
    zipcclResult_t error;         /* the first of a note */
    char text[CLIENT_TEXT_BYTES];
} group;

bool group_is_open(void) {
    return group.depth;
}

bool group_uses(const struct zipcclStream *stream) {
    const struct batch *b = group.batches;
    while (b && b->stream != stream)
        b = b->next;
    return b;
}

zipcclResult_t group_fail(zipcclResult_t r) {
    if (group.depth && group.error == zipcclSuccess) {
        group.error = r;
        (void)snprintf(group.text, sizeof group.text, "%s", thread_error());
    }
    return r;
}

static struct batch *batch_of(zipcclComm_t comm) {
    struct batch *b = group.last;
    if (b && b->comm == comm)
        return b;
    for (b = group.batches; b && b->comm != comm;)
        b = b->next;
    if (!b && (b = calloc(1, sizeof *b))) {
        struct batch **end = &group.batches;
        while (*end)
            end = &(*end)->next;
        *end = b;
        b->comm = comm;
        b->end = &b->first;
    }
    group.last = b;
    return b;
}

static zipcclResult_t add(struct collective *o, zipcclComm_t comm, zipcclStream_t stream) {
    if (group.n == WIRE_MAX_GROUP)
        return fail_comm(comm, zipcclLimitExceeded, "%s: a group holds at most %u operations: end it before", o->name,
                         WIRE_MAX_GROUP);
    struct batch *b = batch_of(comm);
    bool exchanges = op_exchanges(o->kind);
    if (b && !exchanges && b->ncollectives == WIRE_MAX_GROUP_COLLECTIVES)
        return fail_comm(comm, zipcclLimitExceeded,
                         "%s: a group holds at most %u collectives of a communicator: end it before", o->name,
                         WIRE_MAX_GROUP_COLLECTIVES);
    struct note *n = b ? calloc(1, sizeof *n) : NULL;
    if (!n)
        return fail_comm(comm, zipcclOutOfMemory, "%s: no memory for an operation of a group", o->name);
    if (b->n && b->stream != stream) {
        free(n);
        return fail_comm(comm, zipcclInvalidUsage,
                         "%s: another stream than the one that this group uses for this communicator already", o->name);
    }
    n->o = *o;
    b->stream = stream;
    *b->end = n;
    b->end = &n->next;
    b->n++;
    b->ncollectives += !exchanges;
    group.n++;
    return zipcclSuccess;
}

zipcclResult_t group_note(struct collective *o, zipcclComm_t comm, zipcclStream_t stream) {
    zipcclResult_t r = add(o, comm, stream);
    if (r != zipcclSuccess)
        free(o->frame);
    return r == zipcclSuccess ? r : group_fail(r);
}

zipcclResult_t zipcclGroupStart(void) {
    group.depth++;
    return zipcclSuccess;
}

/* Frees what was noted; the group is then as new. */
static void clear(void) {
    for (struct batch *b = group.batches, *next; b; b = next) {
        next = b->next;
        for (struct note *n = b->first, *after; n; n = after) {
            after = n->next;
            free(n->o.frame);
            free(n);
        }
        free(b);
    }
    group.batches = group.last = NULL;
    group.n = 0;
    group.error = zipcclSuccess;
}

zipcclResult_t zipcclGroupEnd(void) {
    if (!group.depth)
        return fail_thread(zipcclInvalidUsage,
                           "zipcclGroupEnd: no group is open in this thread: call zipcclGroupStart");
    if (--group.depth)
        return zipcclSuccess;
    zipcclResult_t r = group.error;
    if (r != zipcclSuccess) {
        (void)fail_thread(r, "zipcclGroupEnd: nothing was issued: %.450s", group.text);
    } else {
        /* A batch without a note is left where memory ran out, which is an error. */
        r = group.batches ? issue(group.batches, true) : zipcclSuccess;
    }
    clear();
    return r;
}

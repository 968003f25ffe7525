/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams: ordered lists of operations that nobody waits for yet.
 *
 * The daemon keeps the order of one communicator alone. So a stream holds operations of one communicator, or of one
 * group, at a time: an operation of another one waits, in its call, for those before it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/lib/collective.h"
#include "client/lib/cuda.h"
#include "proto/op.h"

static bool valid(zipcclStream_t stream) {
    return stream && stream->magic == CLIENT_STREAM_MAGIC;
}

void stream_add(struct zipcclStream *stream, struct op *op) {
    op->stream = stream;
    if (stream->last)
        stream->last->next_in_stream = op;
    else
        stream->first = op;
    stream->last = op;
}

/* Finishes an operation that is done. It stays in the stream while it is copied without the lock, so that nobody takes
 * the stream for done. */
static void finish(struct zipcclStream *stream, struct op *op) {
    if (op->result != zipcclSuccess && stream->error == zipcclSuccess) {
        stream->error = op->result;
        (void)snprintf(stream->text, sizeof stream->text, "rank %d of %d: %s #%" PRIu64 ": %.400s", op->comm->rank,
                       op->comm->nranks, op_name(op->kind), op->seq, op->text);
    }
    op_finish(op);
    struct op *before = NULL;
    for (struct op *o = stream->first; o != op; o = o->next_in_stream)
        before = o;
    if (before)
        before->next_in_stream = op->next_in_stream;
    else
        stream->first = op->next_in_stream;
    if (stream->last == op)
        stream->last = before;
    client_notify();
}

static bool can_finish(const struct op *op) {
    return op->state == OP_DONE && !op->unfollowed;
}

void stream_reap(struct zipcclStream *stream) {
    /* Another thread may be in the middle of finishing the first one; it goes on with the rest. */
    while (stream->first && can_finish(stream->first))
        finish(stream, stream->first);
}

static void sleep_until_changed(void) {
    client_sleepers++;
    (void)pthread_cond_wait(&client_changed, &client_lock);
    client_sleepers--;
}

void stream_finish(struct zipcclStream *stream, const struct zipcclComm *c) {
    for (;;) {
        struct op *op = stream->first;
        while (op && op->comm != c)
            op = op->next_in_stream;
        if (!op)
            return;
        if (can_finish(op))
            finish(stream, op);
        else
            sleep_until_changed(); /* another thread finishes it */
    }
}

static bool first_moved(void *arg) {
    const struct zipcclStream *stream = arg;
    return !stream->first || stream->first->state != OP_SENT;
}

void stream_drain(struct zipcclStream *stream) {
    for (;;) {
        stream_reap(stream);
        struct op *op = stream->first;
        if (!op)
            return;
        if (op->state != OP_SENT) {
            sleep_until_changed();
        } else if (session_wait(op->comm->session, first_moved, stream, CLIENT_FOREVER) != zipcclSuccess) {
            return; /* cannot be: it has no deadline */
        }
    }
}

zipcclResult_t zipcclStreamCreate(zipcclStream_t *stream) {
    if (!stream)
        return fail_thread(zipcclInvalidArgument, "zipcclStreamCreate: stream is NULL");
    *stream = calloc(1, sizeof **stream);
    if (!*stream)
        return fail_thread(zipcclOutOfMemory, "zipcclStreamCreate: no memory");
    (*stream)->magic = CLIENT_STREAM_MAGIC;
    return zipcclSuccess;
}

/* The first error since it was last asked for; lock held. */
static zipcclResult_t take_error(struct zipcclStream *stream) {
    zipcclResult_t r = stream->error;
    stream->error = zipcclSuccess;
    return r == zipcclSuccess ? r : fail_thread(r, "%s", stream->text);
}

zipcclResult_t zipcclStreamSynchronize(zipcclStream_t stream) {
    if (!stream)
        return zipcclSuccess; /* operations without a stream are done when they return */
    if (!valid(stream))
        return fail_thread(zipcclInvalidArgument, "zipcclStreamSynchronize: stream is not a stream of zipccl");
    (void)pthread_mutex_lock(&client_lock);
    stream_drain(stream);
    zipcclResult_t gpu = stream->cuda ? cuda_synchronize(stream->cuda) : zipcclSuccess;
    zipcclResult_t r = take_error(stream);
    (void)pthread_mutex_unlock(&client_lock);
    return r != zipcclSuccess ? r : gpu;
}

zipcclResult_t zipcclStreamQuery(zipcclStream_t stream) {
    if (!stream)
        return zipcclSuccess;
    if (!valid(stream))
        return fail_thread(zipcclInvalidArgument, "zipcclStreamQuery: stream is not a stream of zipccl");
    (void)pthread_mutex_lock(&client_lock);
    if (stream->first && stream->first->state == OP_SENT)
        (void)session_pump(stream->first->comm->session);
    stream_reap(stream);
    zipcclResult_t r = stream->first ? zipcclInProgress : take_error(stream);
    if (r == zipcclSuccess && stream->cuda)
        r = cuda_query(stream->cuda);
    (void)pthread_mutex_unlock(&client_lock);
    return r;
}

zipcclResult_t zipcclStreamDestroy(zipcclStream_t stream) {
    if (!stream)
        return zipcclSuccess;
    if (!valid(stream))
        return fail_thread(zipcclInvalidArgument, "zipcclStreamDestroy: stream is not a stream of zipccl");
    if (group_uses(stream))
        return fail_thread(zipcclInvalidUsage,
                           "zipcclStreamDestroy: operations of an open group use stream: call zipcclGroupEnd first");
    (void)pthread_mutex_lock(&client_lock);
    stream_drain(stream);
    zipcclResult_t r = take_error(stream);
    stream->magic = 0;
    if (stream->cuda)
        cuda_stream_free(stream->cuda);
    (void)pthread_mutex_unlock(&client_lock);
    free(stream);
    return r;
}

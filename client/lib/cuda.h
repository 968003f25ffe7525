/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams and memory of GPUs, inside the library. All with the lock held, unless said otherwise.
 *
 * Every batch of operations on a CUDA stream has a ticket: 1, 2, 3... of the stream. Event and word number ticket %
 * CUDA_POINTS are its own until the word, which daemon and library share, has become the ticket: the event says to the
 * daemon that the stream has come to the batch, the word says to the stream that the batch is over. The daemon writes
 * the word; where it fails, or ends, the library's own thread does, which reads the session's socket while there is a
 * CUDA stream.
 */
#ifndef ZIPCCL_CLIENT_CUDA_H
#define ZIPCCL_CLIENT_CUDA_H

#include "client/lib/cuda_api.h"
#include "client/lib/internal.h"

#define CUDA_POINTS 64u /* batches of a stream that are not over; the next one waits, in its call, for the first */

struct batch;

/* A staging area that copies in the stream still read. */
struct cuda_retired {
    struct cuda_retired *next;
    struct region *region;
    uint32_t ticket;
    bool tainted;
};

struct cuda_stream {
    const struct cuda_api *api;
    cuda_stream_t stream;
    cuda_context_t context;
    unsigned char uuid[CUDA_UUID_BYTES];
    struct session *session; /* where it is attached; referenced */
    uint64_t handle;         /* 0: nowhere */
    struct region *words;
    uintptr_t device_words; /* as the GPU sees them */
    bool by_host;           /* the stream waits in host functions, for the driver has no wait for a word */
    uint32_t ticket;        /* of the last batch */
    cuda_event_t events[CUDA_POINTS], after[CUDA_POINTS];
    struct cuda_retired *retired;
    struct cuda_wait {
        struct cuda_stream *stream;
        uint32_t ticket;
    } waits[CUDA_POINTS]; /* of host functions */
};

/* cuda_stream.c */
/* The GPU that is current in this thread. False: none is, or the daemon has nothing to do with GPUs. */
bool cuda_current(const struct session *s, unsigned char uuid[CUDA_UUID_BYTES]);
/* Before anything of a batch is done; `ahead` batches of the same call use the stream too. May drop the lock. */
ZIPCCL_MUST_CHECK zipcclResult_t cuda_begin(struct batch *b, unsigned ahead);
/* Copies in the stream. */
ZIPCCL_MUST_CHECK zipcclResult_t cuda_copy(struct cuda_stream *t, const struct copy *copy);
/* Marks the stream's place: all that was put on it before belongs to the batch. */
ZIPCCL_MUST_CHECK zipcclResult_t cuda_record(struct cuda_stream *t, struct wire_point *point);
/* The batch was sent: the stream waits for it, and then copies its results out of staging. */
void cuda_follow(struct batch *b);
/* However the batch ended: the stream goes on. */
void cuda_release(struct cuda_stream *t, uint32_t ticket);
/* Gives a staging area back when the stream is done with it. */
void cuda_retire(struct cuda_stream *t, uint32_t ticket, struct region *region, bool tainted);
void cuda_reap(struct cuda_stream *t);
zipcclResult_t cuda_query(struct cuda_stream *t);       /* zipcclInProgress: the CUDA stream is not empty */
zipcclResult_t cuda_synchronize(struct cuda_stream *t); /* drops the lock */
/* Its operations have ended. */
void cuda_stream_free(struct cuda_stream *t);

/* cuda_memory.c */
/* Where [p, p + bytes) of a GPU is; place->region stays as it was where it must be staged, or is host memory. t NULL:
 * the operation has no CUDA stream, and memory of a GPU is refused; else pageable memory is, except zipccl's own, which
 * is not asked for here. Fails with fail_thread. */
ZIPCCL_MUST_CHECK zipcclResult_t cuda_find(struct session *s, const struct cuda_stream *t, const void *p, size_t bytes,
                                           struct place *place);
void cuda_pin(const struct cuda_stream *t, struct region *region); /* so that copies of it do not block */
void cuda_unpin(struct region *region);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * From the arguments of a call to requests. The functions of the API check and describe (struct collective); a call
 * outside of a group is a batch of one, a group is noted as batches, one a communicator; issue() sends batches.
 */
#ifndef ZIPCCL_CLIENT_COLLECTIVE_H
#define ZIPCCL_CLIENT_COLLECTIVE_H

#include "client/lib/internal.h"

/* Which buffer may lie inside the other one. */
enum collective_shape { APART, SEND_IN_RECV, RECV_IN_SEND };

struct collective {
    const char *name; /* of the function, for errors */
    zipcclOp_t kind;
    zipcclDataType_t dtype;
    enum collective_shape shape;
    size_t count; /* capped: the most */
    int root;     /* send, receive: the peer */
    zipcclCodec_t codec;
    zipcclRedOp_t redop;
    zipcclArm_t arm;
    uint64_t scalar;
    const void *send; /* NULL: this rank gives nothing */
    void *recv;
    size_t send_bytes, recv_bytes; /* from the first to the last byte */
    const uint64_t *send_counts;   /* capped, else NULL */
    uint64_t *recv_counts;
    size_t own;                 /* where in the outer buffer the inner one lies when in place */
    struct wire_request *frame; /* malloc'ed, with the counts behind it; NULL where there are none. Goes to the op */
    size_t ncounts;
};

/* An operation that is to be issued. */
struct note {
    struct note *next;
    struct collective o;
    struct op *op;
};

/* The operations of one communicator that are issued together. */
struct batch {
    struct batch *next;
    struct zipcclComm *comm; /* NULL: released */
    struct zipcclStream *stream;
    struct note *first, **end, *waited; /* waited: the first one that is not finished */
    unsigned n, ncollectives;           /* the latter: those that do not exchange */
    struct wire_point point;            /* in its CUDA stream */
};

static inline bool memory_overlaps(const void *a, size_t na, const void *b, size_t nb) {
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return na && nb && x < y + nb && y < x + na;
}

/* collectives.c */
extern const struct collective_dtype {
    uint8_t bytes;
    const char *name;
} collective_dtypes[zipcclNumTypes];

/* What holds for all operations; begins the description. */
ZIPCCL_MUST_CHECK zipcclResult_t collective_begin(struct collective *o, const char *name, zipcclOp_t kind,
                                                  zipcclComm_t comm, zipcclStream_t stream, zipcclDataType_t dtype);
ZIPCCL_MUST_CHECK zipcclResult_t collective_root(const struct collective *o, zipcclComm_t comm, const char *what,
                                                 int root);
/* bytes of `parts` times `count` values. */
ZIPCCL_MUST_CHECK zipcclResult_t collective_bytes(const struct collective *o, zipcclComm_t comm, const char *what,
                                                  size_t count, size_t parts, size_t *bytes);
/* A frame for that many counts, which are then at collective_counts. */
ZIPCCL_MUST_CHECK zipcclResult_t collective_frame(struct collective *o, zipcclComm_t comm, size_t ncounts);
static inline uint64_t *collective_counts(const struct collective *o) {
    return (uint64_t *)(o->frame + 1);
}
/* The counts of all-gather-v and reduce-scatter-v: *all bytes together, this rank's at own. */
ZIPCCL_MUST_CHECK zipcclResult_t collective_take_counts(struct collective *o, zipcclComm_t comm, const size_t *counts,
                                                        size_t *all, size_t *mine);
/* Takes the buffers, whose sizes are known: NULL where nothing is needed; else there, and rightly placed. */
ZIPCCL_MUST_CHECK zipcclResult_t collective_buffers(struct collective *o, zipcclComm_t comm, const void *send,
                                                    void *recv);
/* Whether the inner buffer is its part of the outer one. */
bool collective_in_place(const struct collective *o);
/* Notes or issues what was described; `described` not zipcclSuccess: tells the group, if there is one, and returns it.
 */
ZIPCCL_MUST_CHECK zipcclResult_t collective_submit(struct collective *o, zipcclResult_t described, zipcclComm_t comm,
                                                   zipcclStream_t stream);

/* issue.c: all batches or none; waits for those without a stream. Takes the frames of the notes. */
ZIPCCL_MUST_CHECK zipcclResult_t issue(struct batch *batches, bool grouped);

/* group.c: of this thread */
bool group_is_open(void);
bool group_uses(const struct zipcclStream *stream);
ZIPCCL_MUST_CHECK zipcclResult_t group_note(struct collective *o, zipcclComm_t comm, zipcclStream_t stream);
/* The group fails with this; what was said last is its text. Returns r. */
zipcclResult_t group_fail(zipcclResult_t r);

/* reductions.c, with the lock held: what zipcclRedOpCreatePreMulSum made for a communicator */
void redops_free(struct zipcclComm *comm);
bool redops_hold(struct zipcclComm *comm, int handle);
bool comms_use_redop(int handle); /* comm.c: any of this process */

#endif

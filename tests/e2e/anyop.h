/* SPDX-License-Identifier: Apache-2.0
 *
 * Any operation, checked: filled from the pool, issued, and compared with what every rank can work out by itself; sums
 * with reference.h. Ranks that draw from equal seeds draw equal operations.
 */
#ifndef ZIPCCL_TESTS_E2E_ANYOP_H
#define ZIPCCL_TESTS_E2E_ANYOP_H

#include "collect.h"

/* A communicator as one of its ranks sees it. */
struct any_world {
    zipcclComm_t comm;
    int rank, nranks;
    int node[E2E_MAX_RANKS]; /* by rank */
};

struct any_op {
    zipcclOp_t op;
    zipcclDataType_t dtype;
    zipcclRedOp_t redop; /* zipcclPreMulSum: made for it */
    zipcclCodec_t codec;
    zipcclArm_t arm;
    size_t count; /* v operations: what counts are made from */
    int root;     /* send, receive: the other rank */
    bool in_place;
    bool gaps;    /* all-to-all-v: between the parts */
    uint64_t seq; /* picks the data. Send and receive of one message have the same */
};

/* The buffers of one rank for one operation. */
struct any_buffers {
    struct buffer send, recv;
    uint8_t *from, *to; /* where the operation begins */
    zipcclRedOp_t made; /* premulsum: the handle; 0: none */
    /* Where the operation runs instead, with what it was filled with carried there before; NULL: in the buffers. Who
     * sets these brings the results back. */
    uint8_t *there_send, *there_recv;
    void (*carry)(struct any_buffers *b);
};
void any_buffers_new(struct any_buffers *b, enum memory send, enum memory recv, size_t bytes);
void any_buffers_free(struct any_buffers *b);

uint64_t any_random(uint64_t *state);
/* The ranks of a layout, "0011". */
void any_world_set(struct any_world *w, const char *layout, int rank, zipcclComm_t comm);
/* An operation of all ranks; neither of its buffers is larger than `bytes`. */
struct any_op any_draw(uint64_t *state, const struct any_world *w, size_t bytes, uint64_t seq);
const char *any_name(const struct any_op *a, char text[160]);
/* Elements from one rank to another in an all-to-all-v; of rank `from` in other v operations (to: 0). */
size_t any_count(const struct any_op *a, int from, int to);

/* Pins codec and arm, fills the buffers, issues. */
zipcclResult_t any_issue(const struct any_world *w, zipcclStream_t stream, const struct any_op *a,
                         struct any_buffers *b);
/* Fails where a bit is not what it must be, or something around was touched. */
void any_check(const struct any_world *w, const struct any_op *a, struct any_buffers *b);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Collectives whose result is checked bit by bit, on data of every kind and memory of every kind.
 *
 * The pool is one read-only area of test data. What rank r sends in operation s is a piece of it that follows from r
 * and s alone, so every rank knows what it must receive without being told.
 */
#ifndef ZIPCCL_TESTS_E2E_COLLECT_H
#define ZIPCCL_TESTS_E2E_COLLECT_H

#include "harness.h"

enum memory {
    MEMORY_ZIPCCL,     /* zipcclMemAlloc */
    MEMORY_FOREIGN,    /* malloc */
    MEMORY_UNALIGNED,  /* malloc, at an odd address */
    MEMORY_REGISTERED, /* malloc and zipcclMemRegister */
    MEMORY_KINDS,
    MEMORY_MIXED = MEMORY_KINDS /* another kind per rank and direction */
};

#define POOL_BYTES    (16u << 20)
#define COLLECT_GUARD 64u /* bytes around each receive buffer that must stay as they are */

/* Random bits, Gaussian BF16 and FP32, real tensors, special values, zeros, and all of them in small pieces. Made once,
 * before the ranks are forked; ends the case where there is no memory. */
const uint8_t *pool(void);
/* The part of the pool that holds Gaussian BF16 alone. */
const uint8_t *pool_gaussian(size_t *bytes);
/* What `rank` sends in operation `seq`. */
const uint8_t *pool_piece(int rank, uint64_t seq, size_t bytes);

size_t dtype_size(zipcclDataType_t dtype);

/* A buffer of one kind; offset: how far inside of its memory it starts. */
struct buffer {
    enum memory kind;
    size_t capacity;
    uint8_t *base, *data;
    void *handle;
};
void buffer_new(struct buffer *b, enum memory kind, size_t capacity);
void buffer_free(struct buffer *b);

struct collect {
    zipcclOp_t op;
    zipcclDataType_t dtype;
    size_t count;
    int root;
    bool in_place;
    uint64_t seq; /* picks the data */
};

/* The buffers of one rank for operations of up to `bytes` per rank. */
struct collect_buffers {
    struct buffer send, recv;
};
void collect_buffers_new(struct collect_buffers *b, const struct e2e_rank *r, enum memory kind, size_t bytes);
void collect_buffers_free(struct collect_buffers *b);

/* Fills the buffers and issues the operation. */
void collect_issue(const struct e2e_rank *r, zipcclComm_t comm, zipcclStream_t stream, struct collect_buffers *b,
                   const struct collect *c);
/* Compares every bit. Fails where one differs, or where something around the buffer was touched. */
void collect_check(const struct e2e_rank *r, const struct collect_buffers *b, const struct collect *c);
/* Both, without a stream. */
void collect_run(const struct e2e_rank *r, zipcclComm_t comm, struct collect_buffers *b, const struct collect *c);

#endif

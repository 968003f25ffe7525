/* SPDX-License-Identifier: Apache-2.0
 *
 * The ranks of bench collective: forked processes that run one operation over libzipccl, raw and zipped in turn, and
 * leave times, bytes and the comparison of bits in memory that they share with the parent.
 */
#ifndef ZIPCCL_CTL_COLLECTIVE_RANKS_H
#define ZIPCCL_CTL_COLLECTIVE_RANKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/ctl/layout.h"
#include "client/ctl/private_daemons.h"
#include "client/ctl/tensors.h"
#include "zipccl_types.h"

#define RANKS_MAX       64
#define RANKS_MAX_SIZES 32
#define RANKS_MAX_ITERS 100000
#define RANKS_WHY       512

/* What is run in turn: raw and zipped, or (switcher) each pinned choice, raw first, and auto last. */
enum { RANKS_RAW, RANKS_ZIPPED, RANKS_MAX_ARMS = 6 };

struct ranks_pick {
    const char *name;
    zipcclCodec_t codec;
    zipcclArm_t way; /* of operations that reduce: pinned, or zipcclArmAuto */
};

struct ranks_plan {
    zipcclOp_t op;
    unsigned nodes, per_node;
    uint64_t sizes[RANKS_MAX_SIZES]; /* bytes, as layout_bytes_mean says */
    size_t nsizes;
    zipcclDataType_t dtype;
    const struct tensor *tensor; /* NULL: Gaussian values */
    zipcclCodec_t codec;         /* of the zipped arm */
    struct ranks_pick picks[RANKS_MAX_ARMS];
    unsigned arms;           /* of picks; 1: a barrier has nothing to zip */
    bool switcher;           /* auto against all that is pinned */
    zipcclRedOp_t redop;     /* of operations that reduce */
    zipcclArm_t way;         /* ... pinned, or zipcclArmAuto */
    const struct rows *rows; /* of the v operations */
    double imbalance;        /* the last rank is late by this times the operation's own time; 0: not measured */
    uint32_t iters;          /* 0: by time */
    uint32_t warmup;
    bool has_warmup; /* else by size */
};

/* Of each round, to the last end; not sorted; owned. */
struct ranks_times {
    double *us;       /* from the first call */
    double *after_us; /* from the last call */
};

struct ranks_arm_result {
    struct ranks_times even, late;  /* late: with imbalance; else NULL */
    double late_us;                 /* by how much the last rank came late */
    uint64_t wire_bytes, raw_bytes; /* of one operation: sent by the node that sent most, and what that was uncoded */
    uint64_t all_wire_bytes;        /* ... by all nodes */
    zipcclCodec_t codec;            /* that the daemons used */
};

enum ranks_bits { RANKS_EQUAL, RANKS_NEAR, RANKS_DIFFER }; /* near: a ring's own roundings */

struct ranks_result {
    uint32_t rounds;
    enum ranks_bits bits;
    struct ranks_arm_result arms[RANKS_MAX_ARMS];
};

/* The operation of one size. */
struct layout ranks_layout(const struct ranks_plan *plan, size_t size);

struct ranks;

/* Forks the ranks. NULL: why says so. */
struct ranks *ranks_start(const struct ranks_plan *plan, const struct private_daemons *daemons, char why[RANKS_WHY]);
enum ranks_state { RANKS_RUN, RANKS_DONE, RANKS_FAILED };
/* Looks after them; *share is how much is done. RANKS_FAILED: why says so. */
enum ranks_state ranks_poll(struct ranks *r, double *share, char why[RANKS_WHY]);
/* Once all are done. False: no memory. */
bool ranks_take(const struct ranks *r, size_t size, struct ranks_result *result);
void ranks_result_free(struct ranks_result *result);
/* Ends those that still run, and frees. NULL is fine. */
void ranks_stop(struct ranks *r);

#endif

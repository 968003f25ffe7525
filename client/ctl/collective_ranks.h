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

#include "client/ctl/private_daemons.h"
#include "client/ctl/tensors.h"
#include "zipccl_types.h"

#define RANKS_MAX       64
#define RANKS_MAX_SIZES 32
#define RANKS_MAX_ITERS 100000
#define RANKS_WHY       512

enum ranks_arm { RANKS_RAW, RANKS_ZIPPED, RANKS_ARMS };

struct ranks_plan {
    zipcclOp_t op;
    unsigned nodes, per_node;
    uint64_t sizes[RANKS_MAX_SIZES]; /* bytes of each rank; of a broadcast, all */
    size_t nsizes;
    zipcclDataType_t dtype;
    const struct tensor *tensor; /* NULL: Gaussian values */
    zipcclCodec_t codec;         /* of the zipped arm */
    unsigned arms;               /* 1: a barrier has nothing to zip */
    uint32_t iters;              /* 0: by time */
    uint32_t warmup;
    bool has_warmup; /* else by size */
};

struct ranks_arm_result {
    double *us;                     /* of each round, from the first start to the last end; not sorted; owned */
    uint64_t wire_bytes, raw_bytes; /* of one operation: sent by the node that sent most, and what that was uncoded */
    uint64_t all_wire_bytes;        /* ... by all nodes */
    zipcclCodec_t codec;            /* that the daemons used */
};

struct ranks_result {
    uint32_t rounds;
    bool exact;
    struct ranks_arm_result arms[RANKS_ARMS];
};

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

/* SPDX-License-Identifier: Apache-2.0
 *
 * What a rank of bench collective and its parent share: the plan as the fork copied it, and memory mapped in both.
 */
#ifndef ZIPCCL_CTL_RANK_PROCESS_H
#define ZIPCCL_CTL_RANK_PROCESS_H

#include <stdatomic.h>
#include <sys/types.h>

#include "client/ctl/collective_ranks.h"
#include "zipccl.h"

#define RANK_AUTO_ITERS 2000u       /* most rounds where none were asked for */
#define RANK_AUTO_LEAST 5u          /* ... and least */
#define RANK_AUTO_NS    2000000000u /* time for both arms of a size, about */
/* The switcher's trials are a cost that many operations share. */
#define RANK_SWITCHER_NS    20000000000u
#define RANK_SWITCHER_LEAST 24u

struct rank_stamp {
    uint64_t start_ns, end_ns;
};

/* Of the operations whose bytes were counted, on one node. */
struct rank_bytes {
    uint64_t count, wire, raw;
    zipcclCodec_t codec;
};

struct rank_size {
    atomic_uint rounds; /* of each arm; 0 while it is not known */
    atomic_int bits;    /* enum ranks_bits: the worst */
    atomic_uint_fast64_t late_ns[RANKS_MAX_ARMS];
    struct rank_bytes bytes[RANKS_MAX_ARMS][PRIVATE_MAX_DAEMONS];
};

enum rank_trouble { RANK_FINE, RANK_WRITES_WHY, RANK_TOLD_WHY };

struct rank_shared {
    zipcclUniqueId id;
    atomic_bool has_id;
    atomic_uint_fast64_t met; /* arrivals at meetings, all together */
    atomic_uint size, round;  /* where rank 0 is */
    atomic_int trouble;       /* enum rank_trouble */
    char why[RANKS_WHY];
    struct rank_size sizes[RANKS_MAX_SIZES];
};

struct ranks {
    struct ranks_plan plan;
    const struct private_daemons *daemons;
    unsigned nranks;
    uint32_t capacity; /* rounds that stamps has room for */
    struct rank_shared *shared;
    unsigned variants;         /* arms, and with imbalance each again */
    struct rank_stamp *stamps; /* [size][variant][round][rank], shared */
    uint8_t *values;           /* what the ranks send, each from rank * stride on; shared. NULL for barriers */
    uint8_t *results;          /* what they reduce to; shared. NULL where nothing is reduced */
    size_t stamps_bytes, values_bytes, results_bytes;
    pid_t pids[RANKS_MAX];
};

static inline struct rank_stamp *rank_stamp_at(const struct ranks *r, size_t size, unsigned variant, uint32_t round) {
    return r->stamps + ((size * r->variants + variant) * r->capacity + round) * r->nranks;
}

/* The time of a round from the first call, or (after) from the last one, to the last end, in microseconds. */
double rank_stamp_us(const struct ranks *r, const struct rank_stamp *stamps, bool after);
/* Bytes from one rank's values to the next one's. */
size_t rank_stride(const struct layout *l);

/* The whole life of a rank's process, from the fork to its exit code. */
int rank_run(const struct ranks *r, unsigned rank);

#endif

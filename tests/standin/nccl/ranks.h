/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks as processes, for tests of the NCCL stand-in: forked before anything of CUDA is touched, each with a device of
 * its own, a unique id that rank 0 made, and a stream.
 */
#ifndef ZIPCCL_TESTS_STANDIN_RANKS_H
#define ZIPCCL_TESTS_STANDIN_RANKS_H

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#define RANKS_MAX_IDS 4

struct ranks_shared {
    ncclUniqueId ids[RANKS_MAX_IDS];
    atomic_int nids, step[16]; /* step: for the tests */
    struct {
        atomic_size_t bytes;
        char text[2048];
    } address[8]; /* of ranks, for tests of a fabric */
};

struct rank {
    int rank, nranks;
    struct ranks_shared *shared;
    cudaStream_t stream;
};

/* Runs fn in n processes. 0: all returned 0. Otherwise the first bad end: the exit code, or 256 + the signal; -1: time
 * is over. The others are killed then. text gets what they wrote to stderr. */
int ranks_run(int n, int (*fn)(struct rank *rank), char *text, size_t size);

ncclUniqueId ranks_id(struct rank *rank, int i);    /* the i-th of this run */
ncclComm_t ranks_comm(struct rank *rank, int i);    /* blocking; ends the process on failure */
void ranks_meet(struct rank *rank, int step);       /* all ranks */
bool ranks_idle(struct rank *rank, double seconds); /* whether its stream has ended its work by then */
double ranks_now(void);

/* In a rank: ends the process with the line. */
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            ranks_fail(__FILE__, __LINE__, #condition);                                                                \
    } while (0)
void ranks_fail(const char *file, int line, const char *condition) __attribute__((noreturn));

#endif

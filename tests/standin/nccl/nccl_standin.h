/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the stand-in for libnccl.so.2: communicators between processes on one machine, by Unix sockets.
 *
 * Every rank has a connection to every other rank, made by the one whose data it carries; acknowledgements come back on
 * it. Operations run on the CUDA stream as host functions, and end when the peers' operations have taken place: a send
 * waits for its receive, as large messages do on a GPU. What the real library forbids ends the process with the name of
 * the rule (check.c).
 */
#ifndef ZIPCCL_TESTS_STANDIN_NCCL_H
#define ZIPCCL_TESTS_STANDIN_NCCL_H

#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "tests/standin/cuda/standin.h"

#define EXPORT           __attribute__((visibility("default")))
#define NAME_BYTES       80
#define MAX_RANKS        256
#define LOOK_MS          50 /* how often what waits looks at the device */
#define MAX_REGISTRATION 64

/* What a message says of the call that it belongs to; the receiver compares it with its own. */
struct call {
    uint32_t function; /* enum function */
    uint32_t dtype, op, root;
    uint64_t count;
    uint64_t registered; /* Send/Recv: its memory is */
};

enum function {
    SEND_RECV = 1,
    BROADCAST,
    REDUCE,
    ALL_REDUCE,
    REDUCE_SCATTER,
    ALL_GATHER,
    ALL_TO_ALL,
    GATHER,
    SCATTER,
    FINALIZE,
    SPLIT
};

struct op {
    struct call call;
    bool is_send, is_recv; /* SEND_RECV */
    int peer;
    const void *send;
    void *recv;
    size_t send_bytes, recv_bytes;
};

/* The operations of one communicator in a group: what one kernel is on a GPU. */
struct launch {
    struct launch *next;
    struct ncclComm *comm;
    cudaStream_t stream;
    uint64_t ticket;
    unsigned nops, room;
    struct op *ops;
};

enum life { LIVE, DESTROYED, ABORTED };

/* Never freed, only emptied: its use afterwards must be seen. */
struct ncclComm {
    struct ncclComm *next;
    _Atomic enum life life;
    atomic_int user, depth; /* the thread inside of a call */
    int rank, nranks, device;
    bool blocking;
    char name[NAME_BYTES]; /* of its sockets */
    int listen, wake;      /* wake: readable once aborted */
    int *out, *in;         /* by rank: our data and their acknowledgements; their data */
    atomic_int state;      /* ncclResult_t: what ncclCommGetAsyncError says */
    atomic_int polls;      /* answers of ncclInProgress to give first */
    atomic_bool stopped, revoked;
    bool finalized;
    int nsplits;
    pthread_t helper; /* does work: init, split, finalize */
    bool has_helper;
    ncclResult_t (*work)(struct ncclComm *comm);
    char error[160];                  /* the helper's words */
    _Atomic(struct ncclComm *) child; /* of a split under way */
    ncclComm_t *newcomm;              /* where it goes when that is over */
    int color, key;
    pthread_mutex_t lock;
    pthread_cond_t turn;
    uint64_t tickets, served; /* launches: their order, over all streams */
    unsigned running;
    struct {
        void *base;
        size_t bytes;
        uint64_t id;
    } registered[MAX_REGISTRATION];
};

struct transfer {
    int peer;
    bool send;
    uint8_t *data;
    size_t bytes;
    struct call call;
    size_t moved; /* bytes of header and data */
    bool acknowledged;
};

/* check.c */
void rule_broken(const char *rule, const char *format, ...) __attribute__((noreturn, format(printf, 2, 3)));
/* Counts a call; what it must return at once: an injected result, or the device's sticky error. */
ncclResult_t gate(struct standin_site *site);
#define GATE(call)                                                                                                     \
    ({                                                                                                                 \
        static struct standin_site site_ = {.name = (call)};                                                           \
        gate(&site_);                                                                                                  \
    })
/* The same for a call on comm, which must be alive and have no other thread inside. comm_leave ends it on success. */
ncclResult_t comm_enter(struct ncclComm *comm, struct standin_site *site);
#define COMM_ENTER(comm, call)                                                                                         \
    ({                                                                                                                 \
        static struct standin_site site_ = {.name = (call)};                                                           \
        comm_enter((comm), &site_);                                                                                    \
    })
void comm_leave(struct ncclComm *comm);
int library_version(void);
void need_version(const char *function, int version);
void set_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* bootstrap.c */
ncclResult_t bootstrap(struct ncclComm *comm);
void disconnect(struct ncclComm *comm);

/* comm.c */
bool comm_is_known(const struct ncclComm *comm);
ncclResult_t comm_wait(struct ncclComm *comm);        /* for its helper */
ncclResult_t comm_ready(const struct ncclComm *comm); /* ncclInvalidArgument: the call before is not over yet */
bool comm_is_over(const struct ncclComm *comm);       /* aborted or revoked */
void comm_fail(struct ncclComm *comm, ncclResult_t result);
/* The turn of a launch: false where the communicator is over. comm_serve comes after either. */
bool comm_take_turn(struct ncclComm *comm, uint64_t ticket);
void comm_serve(struct ncclComm *comm, uint64_t ticket, bool ran);

/* group.c */
bool group_is_open(void);
bool group_has_ops_of(const struct ncclComm *comm);
ncclResult_t group_add_init(struct ncclComm *comm);
ncclResult_t group_add_op(struct ncclComm *comm, cudaStream_t stream, const struct op *op);

/* transfer.c: false, with the communicator failed, where they did not all end */
bool exchange(struct ncclComm *comm, struct transfer *transfers, unsigned n);

/* collective.c */
void run_launch(void *launch);
size_t dtype_bytes(ncclDataType_t dtype);

/* reduce.c: out = in[first] op in[first + 1] ... around all n, of the values from..to */
void reduce(void *out, const uint8_t *const *in, int n, int first, size_t from, size_t to, ncclDataType_t dtype,
            ncclRedOp_t op);

/* memory.c */
bool is_registered(const struct ncclComm *comm, const void *base, size_t bytes);
/* What queued operations use, for ncclCommDeregister */
void range_use(const struct ncclComm *comm, const void *base, size_t bytes);
void range_end(const struct ncclComm *comm, const void *base, size_t bytes);

#endif

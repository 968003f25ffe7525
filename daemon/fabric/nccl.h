/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the NCCL fabric: the seam's functions (nccl.c), communicators and what their nodes tell each other
 * (nccl_comm.c), the agreed order (nccl_order.c), the launching thread (nccl_launch.c), the library's functions
 * (nccl_library.c).
 *
 * Headers, small messages and control go by the UCX fabric below. A message whose values NCCL moves is announced there;
 * once its receive is posted, the two nodes agree on a place in the order of launches, and both launch it there. All
 * bookkeeping is on the loop thread; the launching thread alone calls NCCL and knows streams.
 */
#ifndef ZIPCCL_DAEMON_FABRIC_NCCL_H
#define ZIPCCL_DAEMON_FABRIC_NCCL_H

#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>

#include "daemon/fabric/fabric.h"

#define NCCL_SMALL_BYTES ((size_t)16 << 10) /* of host memory: goes by UCX */
#define NCCL_ANNOUNCED   0x80u              /* header flag: the payload is a struct nccl_announcement */
#define NCCL_CONTROL     UINT32_MAX         /* channel: no rank sends to itself */
#define NCCL_MAX_IDS     64u                /* messages of one direction in a launch */

struct nccl_announcement {
    uint64_t id;       /* of the sender */
    uint64_t bytes[2]; /* of its two pieces */
};

enum nccl_kind {
    NCCL_PROPOSE_INIT, /* node 0 to all: the unique id; what is your proposal? */
    NCCL_PROPOSAL,     /* to node 0 */
    NCCL_FINAL_INIT,   /* node 0 to all: the place in the order */
    NCCL_PLAIN,        /* to node 0, which tells all: no NCCL here; this communicator goes by UCX alone */
    NCCL_READY,        /* receiver to sender: these messages have their receives; my proposal */
    NCCL_FINAL,        /* sender to receiver: the place; with them go those of yours that have their receives here */
    NCCL_DROP,         /* receiver to sender: this message is not wanted */
    NCCL_LEFT,         /* nothing more comes from here: it was forgotten */
};

struct nccl_control {
    uint32_t kind, n;
    uint64_t time;
    union {
        uint64_t ids[NCCL_MAX_IDS];
        ncclUniqueId unique;
    };
};

struct nccl_comm;

enum nccl_memory { NCCL_PAGEABLE, NCCL_PINNED, NCCL_DEVICE, NCCL_FOREIGN /* of another GPU */ };

/* What the launching thread is asked for, and answers with. */
enum nccl_what {
    NCCL_MAKE_ID,
    NCCL_MAKE,
    NCCL_LAUNCH,
    NCCL_COPY,
    NCCL_LEAVE,
    NCCL_ABORT,
    NCCL_FAILED /* told unasked */
};
struct nccl_command {
    struct nccl_command *next;
    enum nccl_what what;
    zipcclResult_t result;
    struct nccl_comm *comm;
    void *of; /* entry, receive */
};

/* An announced send. */
struct nccl_send {
    struct nccl_send *next, *next_of_all;
    zipcclResult_t result;
    struct fabric_send announce, *user;
    struct nccl_comm *comm;
    struct nccl_announcement body;
    bool announced; /* UCX has nothing of it (any more) */
    bool held;      /* until it is known whether there is NCCL */
    bool ended;     /* the user was told */
};

/* A posted receive, whatever way its message comes. */
struct nccl_recv {
    struct nccl_recv *next, *next_of_all;
    zipcclResult_t result;
    struct fabric_recv below, *user;
    struct nccl_comm *comm;
    struct nccl_announcement body;                   /* once matched with one */
    uint8_t saved[sizeof(struct nccl_announcement)]; /* what the announcement overwrites in the user's buffer */
    enum nccl_memory memory;                         /* of the user's buffer */
    uint8_t *bounce;             /* device memory cannot be written by UCX: NCCL_SMALL_BYTES, pinned */
    struct nccl_command command; /* the copy from it */
    cudaEvent_t event;
};

/* A control message under way. */
struct nccl_letter {
    struct nccl_letter *next, *next_of_all;
    struct fabric_send send;
    struct nccl_comm *comm;
    struct nccl_control body;
};

/* A place in the order of launches: the making of a communicator, or messages between two nodes. Ordered by time, then
 * communicator, initiator, partner: the same on all nodes that take part. */
struct nccl_entry {
    struct nccl_entry *next;
    struct nccl_comm *comm;
    uint64_t time;
    uint32_t initiator, partner;
    bool final;
    bool is_init;
    unsigned nsends, nrecvs;
    struct nccl_send *sends[NCCL_MAX_IDS];
    struct nccl_recv *recvs[NCCL_MAX_IDS];
    uint32_t peer; /* the other node */
    struct nccl_command command;
    /* the launching thread's */
    cudaEvent_t event;
    bool launched;
};

/* Another node of a communicator. */
struct nccl_peer {
    struct nccl_comm *comm;
    struct fabric_peer *endpoint;
    uint32_t node, out_seq, in_seq;
    struct fabric_recv control; /* posted at all times */
    struct nccl_control heard;
    struct nccl_send *announced; /* not in a launch yet */
    struct nccl_recv *matched, **matched_tail;
    struct nccl_entry *asked; /* our ready that is not final yet */
    bool proposed, left;
};

struct nccl_comm {
    struct nccl_comm *next;
    struct fabric *fabric;
    uint64_t key;
    uint32_t node, nnodes;
    bool ordered;          /* its making was handed to the launching thread: messages may follow */
    bool plain;            /* or it has no NCCL */
    bool over;             /* failed, aborted or forgotten */
    zipcclResult_t reason; /* of it */
    bool gone;             /* not in the list any more: freed with the last user */
    unsigned users;        /* posted control receives, control messages, commands under way */
    uint32_t proposals;    /* node 0: heard, and the latest */
    uint64_t latest;
    struct nccl_entry *init; /* its place, until it is handed over */
    ncclUniqueId unique;
    struct nccl_command command, abort_command, failed_command;
    /* the launching thread's */
    ncclComm_t handle;
    bool made, broken, told;
    uint64_t leave_by, failed_at; /* ns */
    struct nccl_peer peers[];     /* own: unused */
};

/* The functions of the libraries; those of `LATER` may be missing. */
#define NCCL_FUNCTIONS(X)                                                                                              \
    X(ncclResult_t, ncclGetVersion, (int *))                                                                           \
    X(ncclResult_t, ncclGetUniqueId, (ncclUniqueId *))                                                                 \
    X(ncclResult_t, ncclCommInitRankConfig, (ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *))                    \
    X(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t, ncclResult_t *))                                               \
    X(ncclResult_t, ncclCommFinalize, (ncclComm_t))                                                                    \
    X(ncclResult_t, ncclCommDestroy, (ncclComm_t))                                                                     \
    X(ncclResult_t, ncclCommAbort, (ncclComm_t))                                                                       \
    X(ncclResult_t, ncclSend, (const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))                   \
    X(ncclResult_t, ncclRecv, (void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))                         \
    X(ncclResult_t, ncclGroupStart, (void))                                                                            \
    X(ncclResult_t, ncclGroupEnd, (void))
#define NCCL_LATER(X) X(22807, ncclResult_t, ncclCommRevoke, (ncclComm_t, int))
#define NCCL_CUDA(X)                                                                                                   \
    X(cudaError_t, cudaSetDevice, (int))                                                                               \
    X(cudaError_t, cudaStreamCreateWithPriority, (cudaStream_t *, unsigned, int))                                      \
    X(cudaError_t, cudaStreamQuery, (cudaStream_t))                                                                    \
    X(cudaError_t, cudaStreamDestroy, (cudaStream_t))                                                                  \
    X(cudaError_t, cudaEventCreateWithFlags, (cudaEvent_t *, unsigned))                                                \
    X(cudaError_t, cudaEventDestroy, (cudaEvent_t))                                                                    \
    X(cudaError_t, cudaEventRecord, (cudaEvent_t, cudaStream_t))                                                       \
    X(cudaError_t, cudaEventQuery, (cudaEvent_t))                                                                      \
    X(cudaError_t, cudaMemcpyAsync, (void *, const void *, size_t, enum cudaMemcpyKind, cudaStream_t))                 \
    X(cudaError_t, cudaHostAlloc, (void **, size_t, unsigned))                                                         \
    X(cudaError_t, cudaFreeHost, (void *))                                                                             \
    X(cudaError_t, cudaGetLastError, (void))                                                                           \
    X(cudaError_t, cudaPointerGetAttributes, (struct cudaPointerAttributes *, const void *))

struct nccl_library {
    void *nccl, *cudart;
    int version;
#define NCCL_POINTER(type, name, args)              type(*name) args;
#define NCCL_LATER_POINTER(since, type, name, args) type(*name) args;
    NCCL_FUNCTIONS(NCCL_POINTER)
    NCCL_LATER(NCCL_LATER_POINTER)
    NCCL_CUDA(NCCL_POINTER)
};

struct nccl_queue {
    struct nccl_command *head, **tail;
};

struct fabric {
    struct nccl_library library;
    struct fabric *below; /* of fabric_ucx */
    int device, epoll, wake;
    bool opened; /* below is */

    /* Loop thread. */
    struct nccl_comm *comms, *gone;
    struct nccl_entry *order; /* by place; the first ones may be final */
    uint64_t clock, ids;
    struct nccl_send *all_sends, *spare_sends, *ended_sends, **ended_sends_tail;
    struct nccl_recv *all_recvs, *spare_recvs, *ended_recvs, **ended_recvs_tail;
    struct nccl_letter *all_letters, *spare_letters;
    uint64_t sent_bytes, received_bytes;

    /* Both. */
    pthread_t thread;
    bool started, has_lock;
    pthread_mutex_t lock;
    pthread_cond_t some;
    struct nccl_queue orders, answers;
    bool stop;

    /* Launching thread. */
    struct nccl_queue waiting; /* in order; the head may have begun */
    bool begun;
    struct nccl_entry *flying, **flying_tail;
    struct nccl_recv *copying, **copying_tail;
    struct nccl_queue leaving;
    cudaStream_t stream, copy_stream;
    cudaEvent_t spare_events[64];
    unsigned nspare_events;
};

/* nccl_library.c. *why: static text for people. */
ZIPCCL_MUST_CHECK zipcclResult_t nccl_library_load(struct nccl_library *library, const char **why);
void nccl_library_unload(struct nccl_library *library);

/* nccl.c, loop thread */
void nccl_send_end(struct fabric *f, struct nccl_send *send, zipcclResult_t result); /* tells the user, by poll */
void nccl_recv_end(struct fabric *f, struct nccl_recv *recv, zipcclResult_t result);
void nccl_send_held(struct nccl_comm *comm); /* it is known now */
void nccl_wake(struct fabric *f);

/* nccl_comm.c, loop thread */
struct nccl_comm *nccl_comm_find(struct fabric *f, uint64_t key); /* NULL: not known; it may be over */
ZIPCCL_MUST_CHECK zipcclResult_t nccl_comm_join(struct fabric *f, uint64_t key, uint32_t node, uint32_t nnodes,
                                                struct fabric_peer *const *peers);
/* Ends what it has under way, and the communicator; may be called again. The other nodes are not told: the failure of
 * an operation is, by the daemons, with its cause. */
void nccl_comm_end(struct nccl_comm *comm, zipcclResult_t reason);
/* The user will not name it again. One that has nothing under way and did not fail is left in peace. */
void nccl_comm_forget(struct nccl_comm *comm);
void nccl_comm_release(struct nccl_comm *comm); /* one user less; frees it with the last */
void nccl_comm_tell(struct nccl_comm *comm, uint32_t node, const struct nccl_control *control);
void nccl_comm_answer(struct nccl_command *command);
void nccl_comm_free_all(struct fabric *f);

/* nccl_order.c, loop thread */
void nccl_order_plain(struct nccl_comm *comm); /* node 0: this communicator is to have no NCCL */
void nccl_order_init(struct nccl_comm *comm);  /* node 0: the id is known */
bool nccl_order_heard(struct nccl_peer *peer, const struct nccl_control *c); /* false: nonsense */
void nccl_order_matched(struct nccl_comm *comm, struct nccl_recv *recv, uint32_t node);
void nccl_order_drop(struct nccl_comm *comm); /* its entries */
void nccl_order_run(struct fabric *f);        /* launches what is next */

/* nccl_launch.c */
bool nccl_launch_able(const struct fabric *f); /* the GPU has not failed */
ZIPCCL_MUST_CHECK bool nccl_launch_start(struct fabric *f);
void nccl_launch_stop(struct fabric *f);
void nccl_launch_order(struct fabric *f, struct nccl_command *command);
struct nccl_command *nccl_launch_answers(struct fabric *f); /* a list */

static inline void nccl_queue_init(struct nccl_queue *q) {
    q->head = NULL;
    q->tail = &q->head;
}

static inline void nccl_queue_push(struct nccl_queue *q, struct nccl_command *command) {
    command->next = NULL;
    *q->tail = command;
    q->tail = &command->next;
}

static inline struct nccl_command *nccl_queue_pop(struct nccl_queue *q) {
    struct nccl_command *command = q->head;
    if (command && !(q->head = command->next))
        q->tail = &q->head;
    return command;
}

#endif

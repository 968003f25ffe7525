/* SPDX-License-Identifier: Apache-2.0
 *
 * The library's own types, and who may touch what.
 *
 * One mutex (client_lock) covers everything here; fields are read and written with it held, unless said otherwise.
 * There is no thread of the library's own. Whoever waits reads the socket: the first waiter of a session leads, polls
 * without the lock, and dispatches what comes, also for others; the rest wait on one condition variable.
 *
 * Ownership: a session is referenced by communicators and bindings, and freed when it is dead and nobody refers to it.
 * A region (shared memory) belongs to the application, to a registration or to the staging cache. An op belongs to its
 * communicator, on the list of outstanding or of free ones.
 */
#ifndef ZIPCCL_CLIENT_INTERNAL_H
#define ZIPCCL_CLIENT_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/lib/connect.h"
#include "proto/frame.h"
#include "proto/spin.h"
#include "proto/wire.h"
#include "zipccl.h"

#define CLIENT_TEXT_BYTES   512
#define CLIENT_CONTROL_MS   30000 /* that a daemon may take for a small request */
#define CLIENT_LEAVE_MS     5000  /* ... to say goodbye */
#define CLIENT_CONNECT_MS   30000 /* zipccld may be starting, its socket held by systemd; a GPU takes seconds */
#define CLIENT_FOREVER      (-1)
#define CLIENT_COMM_MAGIC   0x6d6d6f637a69706dull
#define CLIENT_STREAM_MAGIC 0x6d7274737a69706dull

/* A control request under way; on the waiter's stack. */
struct call {
    struct call *next;
    uint32_t id;
    bool done;
    zipcclResult_t result;
    uint16_t reply_type;
    uint64_t value;          /* the one number of the reply: communicator or buffer */
    struct zipcclComm *comm; /* its handle is set as the reply comes, since events may follow at once */
    uint8_t unique_id[128];
    char text[CLIENT_TEXT_BYTES]; /* why it failed */
};

struct session {
    struct session *next;
    char *path;
    struct frame_conn *conn; /* NULL: dead */
    struct connect_info info;
    unsigned refs;
    bool forked;              /* it was the parent's */
    bool leading;             /* somebody polls for all */
    unsigned polling;         /* threads that poll the socket without the lock */
    struct frame_conn *grave; /* of a dead session, to be closed by the last of those */
    int wake_fd;              /* eventfd that ends the leader's poll */
    struct spin spin;         /* of all who wait on it */
    uint32_t next_id;
    char why[CLIENT_TEXT_BYTES]; /* why it died */
    struct call *calls;
    struct zipcclComm *comms;
    unsigned cuda_streams; /* attached here; while there are some, a thread reads the socket */
    pthread_t reader;
    bool has_reader;
};

/* A region as one session's daemon knows it. */
struct binding {
    struct binding *next;
    struct session *session;
    uint64_t buffer;
    unsigned users; /* outstanding operations */
};

enum region_kind { REGION_USER, REGION_STAGING, REGION_REGISTERED, REGION_GPU };

struct region {
    struct region *next; /* in the staging cache; GPU memory: of all that is known */
    enum region_kind kind;
    uint8_t *base;
    size_t bytes; /* mapped */
    int fd;
    unsigned pins; /* unfinished operations that a registered region stands in for */
    bool closed;   /* deregistered: freed with the last pin */
    bool spoiled;  /* registered, and somebody else may still write it, or GPU memory that cannot be shared: ordinary
                    * staging is used instead */
    bool pinned;   /* copies in a CUDA stream do not block */
    uint64_t gpu_id;
    unsigned char gpu_uuid[16], gpu_handle[64]; /* the handle: where fd is -1 */
    struct binding *bindings;
};

enum op_state { OP_SENT, OP_DONE, OP_FINISHING };

/* Bytes that are to be copied: all, or parts of them. */
struct copy {
    const uint8_t *from;
    uint8_t *to; /* NULL: nothing */
    size_t bytes;
    const uint64_t *counts; /* of the parts, in values; NULL: all. Read as it runs */
    const uint64_t *offsets;
    size_t stride; /* values; where offsets is NULL: part i lies at i times as many, and has no more */
    size_t nparts, width;
};

/* The buffers of an operation. */
enum op_place { PLACE_RECV, PLACE_SEND, PLACE_RECV_COUNTS, PLACE_SEND_COUNTS, OP_PLACES };

/* One outstanding operation. */
struct op {
    struct op *next, **at; /* of the communicator's list; free ones use next alone */
    struct op *next_in_stream;
    struct zipcclComm *comm;
    struct zipcclStream *stream; /* NULL: its caller waits for it */
    uint32_t ticket;             /* of its batch in a CUDA stream */
    bool ends_batch;             /* ... of which it is the last operation */
    bool unfollowed;             /* the CUDA stream does not wait for it yet: not to be finished */
    uint64_t seq;
    enum op_state state;
    zipcclResult_t result;
    struct binding *uses[OP_PLACES];
    struct region *staging[OP_PLACES]; /* given back at the end */
    bool tainted;                      /* ended without the daemon's word: cached staging must not be used again */
    struct copy out, out_counts;       /* at the end, in this order */
    size_t offsets[OP_PLACES];         /* in the buffers of uses */
    struct wire_request *frame;        /* with the counts behind it; NULL where there are none. Owned */
    zipcclOp_t kind;
    char text[CLIENT_TEXT_BYTES];
};

struct zipcclComm {
    uint64_t magic;
    struct zipcclComm *next; /* of the session */
    struct zipcclComm *next_live;
    struct session *session;
    uint64_t handle; /* 0 until the daemon accepted it */
    int nranks, rank;
    zipcclCodec_t codec;
    zipcclArm_t arm;
    struct redop *redops; /* made by zipcclRedOpCreatePreMulSum; see reductions.c */
    uint64_t seq;
    uint32_t splits; /* that this rank has come to */
    unsigned users;  /* threads inside a call */
    bool ending;     /* a thread is in Destroy or Abort and will free it */
    enum { LEAVE_NOT, LEAVE_ASKED, LEAVE_OVER } leave;
    zipcclResult_t left; /* what the daemon said to that */
    zipcclResult_t failed;
    char fail_text[CLIENT_TEXT_BYTES];
    char error[CLIENT_TEXT_BYTES]; /* zipcclGetLastError */
    struct op *ops, **ops_end, *free_ops;
    unsigned nops;
    unsigned nsent; /* of these, in OP_SENT */
};

struct zipcclStream {
    uint64_t magic;
    struct op *first, *last;  /* of one communicator, or of one group; of a CUDA stream: any */
    struct cuda_stream *cuda; /* NULL: a stream of the library's own */
    zipcclResult_t error;
    char text[CLIENT_TEXT_BYTES];
};

extern pthread_mutex_t client_lock;
extern pthread_cond_t client_changed;
extern unsigned client_sleepers; /* on client_changed */

/* error.c */
zipcclResult_t fail_thread(zipcclResult_t r, const char *format, ...) __attribute__((format(printf, 2, 3)));
zipcclResult_t fail_comm(struct zipcclComm *c, zipcclResult_t r, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
const char *thread_error(void);

/* session.c: all with the lock held */
ZIPCCL_MUST_CHECK zipcclResult_t session_get(struct session **session); /* the one of $ZIPCCL_SOCKET; referenced */
void session_put(struct session *s);
bool session_pump(struct session *s); /* reads what is there; true: something came */
void session_die(struct session *s, const char *why);
void session_wake(struct session *s);
/* Waits until done(arg), at most timeout_ms. zipcclTimeout. A dead session ends it too: whatever it owed is done. */
ZIPCCL_MUST_CHECK zipcclResult_t session_wait(struct session *s, bool (*done)(void *arg), void *arg, int timeout_ms);
ZIPCCL_MUST_CHECK zipcclResult_t session_send(struct session *s, uint16_t type, uint32_t id, const void *payload,
                                              size_t bytes, const int *fds, uint32_t nfds);
void client_notify(void);
int64_t client_now_ns(void);

/* request.c: with the lock held */
struct ProtobufCMessage;
/* Sends a control request and waits for its reply; call->text says why it failed. */
ZIPCCL_MUST_CHECK zipcclResult_t call_run(struct session *s, struct call *call, uint16_t type,
                                          const struct ProtobufCMessage *message, const int *fds, uint32_t nfds,
                                          uint16_t want, int timeout_ms);
void request_dispatch(struct session *s, const struct frame *f);
struct op *op_new(struct zipcclComm *c); /* not yet under way */
void op_link(struct op *op);             /* ... from here on it is */
void op_discard(struct op *op);          /* of one that never was */
void copy_run(const struct copy *copy);  /* also without the lock */
void op_complete(struct op *op, zipcclResult_t r, const char *text, bool daemon_said_so);
void op_finish(struct op *op); /* copies out, without the lock meanwhile, and frees; the op must be done */
void comm_fail(struct zipcclComm *c, zipcclResult_t r, const char *text);

/* In the child of a fork, with the lock held: what the parent goes on using must not be used here. None of these
 * allocates or frees. */
void comms_forked(void);   /* comm.c: all communicators fail */
void memory_forked(void);  /* memory.c: registered memory is staged */
void staging_forked(void); /* staging.c: the cache starts empty */

/* A split that a communicator comes of. */
struct split {
    uint64_t parent; /* its handle */
    uint32_t number; /* of its splits: 1, 2, 3... */
};

/* comm.c */
bool comm_is_live(const struct zipcclComm *comm); /* lock held */
/* As the functions of the API, but over this session; without the lock. Texts begin with name. from: NULL: of none. */
ZIPCCL_MUST_CHECK zipcclResult_t comm_unique_id(struct session *s, const char *name, zipcclUniqueId *id);
ZIPCCL_MUST_CHECK zipcclResult_t comm_join(struct session *s, const char *name, zipcclComm_t *comm, int nranks,
                                           const zipcclUniqueId *id, int rank, const struct split *from);

/* stream.c */
void stream_drain(struct zipcclStream *stream); /* lock held; waits until all is done and copied */
void stream_reap(struct zipcclStream *stream);  /* lock held; finishes what is done */
/* Finishes those of this communicator, which have all ended; those of others in the same group may not. */
void stream_finish(struct zipcclStream *stream, const struct zipcclComm *c);
void stream_add(struct zipcclStream *stream, struct op *op);

/* memory.c: with the lock held, unless said otherwise */
ZIPCCL_MUST_CHECK zipcclResult_t region_new(size_t bytes, struct region **region); /* without the lock; fail_thread */
void region_free(struct region *region);
/* The region as this session's daemon knows it; registers it where it does not yet. Fails with fail_thread. */
ZIPCCL_MUST_CHECK zipcclResult_t region_bind(struct region *region, struct session *s, struct binding **binding);

struct place {
    struct region *region; /* NULL: no shared memory */
    size_t offset;
    bool staged; /* region stands in for the memory: copy. Then it is the caller's to staging_give */
};
/* Where [p, p + bytes) is. zipcclInvalidArgument, with fail_thread, where it leaves the memory that it begins in. */
ZIPCCL_MUST_CHECK zipcclResult_t memory_find(const void *p, size_t bytes, struct place *place);
/* A staging region of at least that size, from the cache or new. May drop the lock. Fails with fail_thread. */
ZIPCCL_MUST_CHECK zipcclResult_t staging_take(size_t bytes, struct region **region);
/* Also for registered regions: the operation is finished with it. */
void staging_give(struct region *region);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators: what this node knows of one. joining -> connecting -> ready -> closing, or failed, by way of
 * failing or at once.
 *
 * A comm belongs to the loop thread and is freed by comm_reap when it has ended: failed or left by all ranks, without a
 * local rank, and without an operation under way. The node that made the unique id is the root: it may have no rank of
 * its own, and collects joins, readiness, aborts and leaves of all nodes (a star).
 *
 * comm.c: life, failure. comm_join.c: rendezvous. comm_connect.c: from there to the first operation. comm_request.c:
 * requests, checked and queued. comm_ops.c: units of a rank's queue and their ends. comm_collective.c: what a unit does
 * with all ranks of the node. comm_exchange.c: what it does alone. comm_choice.c: with which arm and codec.
 * comm_profile.c: what earlier ones learned of that. comm_flight.c: what is recorded of it. comm_split.c: what comes of
 * another one by a split.
 */
#ifndef ZIPCCL_DAEMON_COMM_H
#define ZIPCCL_DAEMON_COMM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/core/executor.h"
#include "daemon/core/list.h"
#include "daemon/core/log.h"
#include "daemon/core/model.h"
#include "daemon/core/switcher.h"
#include "peer.pb-c.h"
#include "proto/frame.h"
#include "proto/wire.h"
#include "zipccl.pb-c.h"

#define COMM_MAX_RANKS   65536u
#define COMM_ID_LIFE_NS  600000000000ull /* of an id that nobody uses, of a job without sessions */
#define COMM_MAX_PENDING 8192u           /* requests of one rank that wait; more than the largest group */
#define COMM_NO_NODE     UINT32_MAX
#define COMM_MAX_FUSED   WIRE_MAX_GROUP_COLLECTIVES /* collectives of a group, which run side by side */
#define COMM_CALLS       64u
#define COMM_NOTES       16u
#define FLAT_MOST_RANKS  2u    /* of a node: the flat arm moves so many times the bytes of the hierarchical one */
#define COMM_LEASES      4u    /* buffers of one request */
#define COMM_MAX_IDS     1024u /* unique ids of one user that nobody used yet */

struct daemon;
struct session;
struct job;
struct buffer;
struct peer_link;
struct profile;

enum comm_state {
    COMM_JOINING,
    COMM_CONNECTING,
    COMM_READY,
    COMM_FAILING, /* its messages have ended, and why is to be heard from the node that knows */
    COMM_CLOSING,
    COMM_FAILED,
};

/* A request that waits for its turn. */
struct comm_pending {
    struct wire_request request;
    uint64_t *counts;            /* of a v operation, or NULL; freed with it */
    const uint64_t *send_counts; /* of a capped operation, in its client's memory */
    uint64_t *recv_counts;
    uint64_t number; /* a collective's: 1, 2, 3... of this rank, equal on all ranks. Send, receive: its seq */
    uint32_t frame_id;
    struct buffer *leases[COMM_LEASES]; /* of send, recv, send_counts, recv_counts; or NULL */
    void *send, *recv;
    uint64_t arrived_ns;
    struct wire_point point; /* where in a stream it is; stream 0: in none */
    bool gated;              /* the stream is not there yet */
};

enum comm_member_state { MEMBER_JOINING, MEMBER_IN, MEMBER_LEAVING, MEMBER_LEFT };

/* A local rank. Freed with the comm.
 *
 * Its requests are taken in units: one request, or the requests of a group. A unit has a part that all ranks of the
 * node do together (gathers, reductions...), a part that this rank does alone (an exchange), or both; they run side by
 * side, and the unit's requests are answered when both are done. */
struct comm_member {
    struct comm *comm;
    struct session *session; /* NULL: gone */
    struct list link;        /* in the session's members */
    uint64_t handle;         /* 0: none */
    enum comm_member_state state;
    uint32_t rank, local;
    uint8_t gpu; /* that it has made current, by CUDA's number here; EXEC_NO_GPU */
    pid_t pid;
    uint32_t reply_id; /* of the init or destroy under way */
    bool announced;    /* the root knows */
    uint64_t next_seq; /* that the client must send */
    uint64_t called;   /* collectives that it has called */
    uint32_t splits;   /* that it has come to */
    struct comm_pending *queue;
    uint32_t head, count, capacity;
    bool group_open;                   /* the last request of the queue says that more of its group follows */
    uint32_t group, group_collectives; /* requests of that group so far, those that do not exchange */

    /* the unit under way */
    uint32_t unit;                            /* requests; 0: none */
    bool waits_node, arrived, waits_exchange; /* parts that are not done; has joined the node's operation */
    struct exec_op *exchange;                 /* NULL: not under way */
    uint64_t since_ns;                        /* its start */
    struct exec_result exchange_result;       /* numbers alone; text is gone */
    zipcclCodec_t exchange_codec;             /* the most that any of its transfers took */
    struct buffer **leases;                   /* of the unit; they outlive a failure until it is done */
    uint32_t nleases, leases_capacity;
    struct plan_transfer *transfers; /* scratch */
    uint32_t *numbers, *calls;       /* of the transfers */
    uint32_t transfers_capacity;
    struct exec_buffers *buffers; /* scratch */
    uint32_t buffers_capacity;
    struct switcher switcher;  /* of all-to-all, among the ranks of the communicator */
    bool switches;             /* the exchange under way takes part in it */
    uint64_t started_ns;       /* that exchange */
    uint32_t *sent, *received; /* transfers of collectives so far, by the other rank; then sends and receives, by the
                                * other rank; NULL: none yet */
    uint64_t flight;           /* entry of the exchange under way in the flight recorder */
};

/* A node, as the root knows it while ranks join and later. */
struct comm_node {
    struct peer_link *link; /* root alone; NULL: this node */
    char name[64];
    uint8_t instance[16];
    char listen[112];
    uint8_t *fabric;
    size_t fabric_bytes;
    char fabric_name[8];
    uint64_t link_rate_bits, encode_bps, decode_bps;
    uint32_t chunk_bytes;
    bool ready;
    uint64_t measured_bps, latency_ns;
};

struct comm_rank {
    bool in, left;
    uint32_t node; /* index in nodes */
    uint32_t pid;
};

/* What was chosen for operations that take no part in trials: for people. */
struct comm_note {
    struct switch_want want;
    struct switch_choice choice;
    uint8_t size; /* log2 of bytes */
    uint64_t ops, used;
};

struct comm {
    struct list link;
    struct daemon *daemon;
    uint64_t key, nonce;
    struct job *job;
    uint32_t nranks;
    bool is_root;
    struct peer_link *root_link; /* where not root */
    enum comm_state state;
    uint64_t join_deadline_ns;
    zipcclResult_t error;
    char text[DAEMON_TEXT]; /* why it failed; while it fails: what is said where nobody tells why */
    unsigned ticks;         /* for which it waits for that */

    struct comm_member **members; /* local ranks; by rank once connecting */
    uint32_t nmembers, present;   /* present: not gone, not left */
    struct comm_rank *ranks;      /* nranks */
    uint32_t nin, nleft;
    struct comm_node *nodes;
    uint32_t nnodes;

    /* from the table on */
    uint32_t node; /* this node's index; COMM_NO_NODE: a root without ranks */
    uint32_t *rank_node;
    struct plan_topology topology;
    uint32_t most_ranks; /* of any node */
    struct fabric_peer **peers;
    struct exec_comm *exec;
    uint64_t fabric_key; /* what the fabric calls it */
    bool probing;
    uint64_t split_of;       /* key of the communicator that it is split from; 0: none */
    bool split_waits;        /* for the fabric to decide about that split */
    struct list splits;      /* of this one, under way */
    struct model model;      /* as agreed at the creation */
    struct profile *profile; /* of earlier ones, which its switchers recall; NULL: none */
    uint64_t link_rate_bits;
    zipcclCodec_t codec; /* where the ranks pin none; auto: the switcher's choice */
    zipcclArm_t arm;
    struct switcher switcher;
    bool switches; /* the operation under way takes part in it */
    struct comm_note notes[COMM_NOTES];
    uint64_t note_clock;

    /* the node's collective, or group of them: one at a time */
    struct exec_op *op;
    bool op_active, pumping, pump_again;
    uint64_t seq;                    /* number of its first operation, or of the next */
    struct comm_member *desc_member; /* the first rank; what it asked for is in its unit: */
    uint32_t desc[COMM_MAX_FUSED];   /* these requests of it */
    uint32_t ndesc, desc_rank;
    uint16_t desc_op;
    zipcclCodec_t op_codec;
    zipcclArm_t op_arm;
    uint32_t narrived;
    uint64_t first_ns, last_ns;
    uint64_t started_ns; /* the last rank's arrival began it */
    uint64_t flight;     /* its entry in the flight recorder */
    struct {             /* which operation, of which root, the collectives of late were, by number: ranks must agree */
        uint64_t number;
        uint32_t rank, root;
        uint16_t op;
    } calls[COMM_CALLS];
    enum plan_phases phases; /* of coded exchanges */
    uint64_t ops_done;
    uint64_t left_after; /* least number of collectives that a rank which left had called */
    uint32_t left_rank;
};

/* A unique id that was made here and that nobody used yet. */
struct comm_id {
    struct list link;
    uint64_t key, nonce, made_ns;
    struct job *job;
};

/* Client side. */
void comm_unique_id(struct session *s, uint32_t id);
void comm_init(struct session *s, uint32_t id, const Zipccl__CommInit *m);
void comm_destroy(struct session *s, uint32_t id, uint64_t handle);
void comm_abort(struct session *s, uint32_t id, uint64_t handle);
void comm_request(struct session *s, const struct frame *f);
void comm_session_gone(struct session *s);

/* Peer side: frames of links that are up; link states. */
void comm_peer_join(struct peer_link *link, const Zipccl__Peer__PeerJoin *m);
void comm_peer_table(struct peer_link *link, const Zipccl__Peer__PeerTable *m);
void comm_peer_ready(struct peer_link *link, const Zipccl__Peer__PeerReady *m);
void comm_peer_go(struct peer_link *link, const Zipccl__Peer__PeerGo *m);
void comm_peer_abort(struct peer_link *link, const Zipccl__Peer__PeerAbort *m);
void comm_peer_leave(struct peer_link *link, const Zipccl__Peer__PeerLeave *m);
void comm_link_up(struct peer_link *link);
void comm_link_lost(struct peer_link *link, const char *why);

void comm_tick(struct daemon *d, uint64_t now_ns);
void comm_reap(struct daemon *d);
/* Fails the communicators that are idle; true: none is left alive. */
bool comm_drain(struct daemon *d, bool now);
void comm_drop_ids(struct daemon *d); /* at the end */

const char *comm_state_name(enum comm_state state);

/* Between the parts of the communicator. */
void comm_fail(struct comm *c, struct peer_link *origin, zipcclResult_t result, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Whether the result says no more than that another node ended it. */
static inline bool comm_follows(zipcclResult_t result) {
    return result == zipcclAborted || result == zipcclRemoteError;
}
/* Such a failure waits a moment for the cause, which comes by the link. */
void comm_fail_soon(struct comm *c, zipcclResult_t result, const char *text);
struct comm *comm_find(struct daemon *d, uint64_t key);
struct comm *comm_new(struct daemon *d, uint64_t key, uint64_t nonce, struct job *job, uint32_t nranks, bool is_root);
struct comm_member *comm_member_new(struct comm *c, struct session *s, uint32_t rank, uint32_t reply_id);
void comm_member_gone(struct comm_member *m); /* detaches it from its session */
/* "rank 2", with pid and node where they are known. */
void comm_describe_rank(const struct comm *c, uint32_t rank, char *text, size_t size);
/* Ranks or nodes as a list: "1, 3 and 12 more". */
struct comm_names {
    char text[200];
    size_t used;
    uint32_t listed, more;
};
void comm_names_add(struct comm_names *n, const char *name);
const char *comm_names_end(struct comm_names *n);

void comm_ops_fail(struct comm *c); /* replies to all that wait, at once; ends what runs */
void comm_ops_left(struct comm *c, uint32_t rank, uint64_t ops);
void comm_leave_done(struct comm_member *m);
void comm_answer_leaving(struct comm *c);
/* "all-gather #12", or "" where nothing runs. */
void comm_ops_current(const struct comm *c, char *text, size_t size);
bool comm_ops_idle(const struct comm *c);
bool comm_ops_running(const struct comm *c);   /* buffers of clients may be touched */
uint64_t comm_ops_since(const struct comm *c); /* start of the oldest that runs; UINT64_MAX: none */
void comm_join_timeout(struct comm *c);
/* comm_connect.c: this node takes over the root's table, and connects. */
void comm_connect_apply(struct comm *c, const Zipccl__Peer__PeerTable *m);

/* comm_ops.c */
void comm_pump(struct comm *c);
void comm_complete(struct comm_member *m, const struct comm_pending *p, zipcclResult_t result, const char *text,
                   uint64_t wire_bytes, zipcclCodec_t codec);
void comm_unit_step(struct comm_member *m); /* a part is done: ends the unit where it was the last */
void comm_pending_free(struct comm_pending *p);
static inline struct comm_pending *comm_unit_request(const struct comm_member *m, uint32_t i) {
    return &m->queue[(m->head + i) & (m->capacity - 1)];
}
/* Fails it for an operation that failed: "all-gather #3 failed on node a: why; failed node: b"; soon, where that is all
 * that is known. */
void comm_op_failed(struct comm *c, const char *what, const struct exec_result *r);
/* Fails it for an operation that fails here and is the cause, though its steps are not all over. False: there is none.
 * follows: also for one that fails because of another node. */
bool comm_ops_failing(struct comm *c, bool follows);
void comm_sample(struct comm *c, const struct comm_pending *p, const struct exec_result *r, zipcclCodec_t codec,
                 uint64_t first_ns, uint64_t last_ns);
/* Grows an array; false: no memory. */
bool comm_grow(void **array, uint32_t *capacity, uint32_t need, size_t item);

/* comm_collective.c: false where the communicator failed */
bool comm_collective_join(struct comm_member *m);
/* comm_exchange.c */
bool comm_exchange_start(struct comm_member *m);
void comm_exchange_name(const struct comm_member *m, char *text, size_t size); /* of the one under way, for people */
/* The first operation of the exchange under way that a rank which left has not called; NULL: none. */
const struct comm_pending *comm_exchange_unmet(const struct comm_member *m);

/* comm_choice.c. alone: it is no group's. False: no memory. */
bool comm_choices_init(struct comm *c);
ZIPCCL_MUST_CHECK bool comm_choose_collective(struct comm *c, const struct comm_pending *p, bool alone,
                                              struct switch_choice *choice);
ZIPCCL_MUST_CHECK bool comm_choose_exchange(struct comm_member *m, const struct comm_pending *p, bool alone,
                                            struct switch_choice *choice);
/* The two ends of a transfer decide alike: from its count, what both pinned, and the choice for its operation. */
zipcclCodec_t comm_transfer_codec(const struct comm_member *m, const struct wire_request *r,
                                  const struct plan_transfer *t, zipcclCodec_t codec);
/* The cap of this node's link changed: all communicators measure anew. */
void comm_choices_alarm(struct daemon *d);

/* comm_profile.c: what communicators of the same nodes learned. At the root: puts a profile into its "go", if there is
 * one that fits. */
void comm_profile_offer(struct comm *c, uint64_t link_bps, ProtobufCBinaryData *bytes);
/* On every node: takes over what "go" brought; false: it cannot. */
ZIPCCL_MUST_CHECK bool comm_profile_take(struct comm *c, const ProtobufCBinaryData *bytes, const char **why);
void comm_profile_recall(const struct comm *c, struct switcher *s);
void comm_profile_learn(struct comm *c); /* at its end */

/* comm_split.c. A rank that joins none of a split has come to it. */
void comm_split_none(struct session *s, uint32_t id, const Zipccl__CommSplit *m);
/* A rank comes to the split `number` of the communicator of that handle; key: of what it is about to join, or 0.
 * *parent: to be looked at then; NULL: there is nothing to do. False: *why. */
ZIPCCL_MUST_CHECK bool comm_split_come(struct session *s, uint64_t handle, uint32_t number, uint64_t key,
                                       struct comm **parent, const char **why);
void comm_split_look(struct comm *c);        /* tells the fabric, where all ranks have come */
bool comm_split_waits(const struct comm *c); /* whether it is to wait for the split that it comes of */
bool comm_split_told(const struct comm *c);  /* whether its ranks here tell of its splits */
void comm_split_connected(struct comm *c);   /* it joined the fabric */
void comm_split_fail(struct comm *c);        /* and what waits for its splits */
void comm_split_free(struct comm *c);        /* when the fabric is closed, or asks nothing */

/* comm_flight.c: the flight recorder */
void comm_flight_collective(struct comm *c); /* it began */
void comm_flight_arrived(struct comm *c);    /* one more rank called it */
void comm_flight_exchange(struct comm_member *m, const struct comm_pending *first, uint32_t n);
void comm_flight_end(struct comm *c, uint64_t id, const struct exec_result *r);
void comm_flight_look(struct comm *c); /* notes where all that is under way stands */

/* comm_request.c */
uint32_t comm_ncounts(const struct comm *c, unsigned op); /* that follow the request */

#endif

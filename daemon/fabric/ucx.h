/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the UCX fabric: the functions that the loop calls (ucx.c), the progress thread (ucx_progress.c), the matching
 * of messages with receives (ucx_match.c), what waits for the link (ucx_pace.c), flows as the loop sees them
 * (ucx_flow.c), large messages in pieces (ucx_piece.c).
 *
 * The progress thread alone touches UCX and the tables. Sends, receives and orders reach it by one queue, finished ones
 * return by another; each queue has a lock and an eventfd.
 */
#ifndef ZIPCCL_DAEMON_FABRIC_UCX_H
#define ZIPCCL_DAEMON_FABRIC_UCX_H

#include <pthread.h>
#include <stdatomic.h>
#include <ucp/api/ucp.h>

#include "daemon/fabric/fabric.h"
#include "daemon/fabric/ucx_flow.h"
#include "daemon/flow/pace.h"

#define UCX_AM_MESSAGE   1u
#define UCX_AM_HELLO     2u /* sets up the connection, so that a peer's death is seen without traffic; shows the token */
#define UCX_AM_ASK       3u                 /* a message's header: may it come? Answered by receiving its one byte */
#define UCX_AM_PIECE     4u                 /* of a message that may come */
#define UCX_SMALL_BYTES  ((size_t)16 << 10) /* eager, and may overtake large messages */
#define UCX_COMM_BUCKETS 256u
#define UCX_BUCKETS      32u /* of a communicator's posted receives and held messages */
#define UCX_TOKENS       16u /* that a peer may show: one for each communicator that was set up with it of late */

enum ucx_kind { UCX_SEND, UCX_RECV, UCX_CONNECT, UCX_EXPECT, UCX_KILL_COMM, UCX_RATE, UCX_FLOW_SET, UCX_FLOW_END };

/* First in every queued thing: internal[] of sends and receives, struct ucx_order. */
struct ucx_link {
    struct ucx_link *next;
    uint32_t kind;   /* enum ucx_kind */
    uint32_t result; /* of a finished one */
};

struct ucx_queue {
    struct ucx_link *head, **tail;
};

/* What lies in fabric_send.internal. */
struct ucx_send {
    struct ucx_link link;
    union {
        struct flow_item item; /* while it waits for its receiver or its time */
        ucp_dt_iov_t iov[2];   /* once UCX has it */
    };
    uint32_t pieces; /* that UCX has */
    uint8_t result;  /* that it ends with: zipcclResult_t */
    bool waits;      /* pieces of it wait for their time */
    bool gate;       /* a small message that goes by rendezvous: its end says that the receiver keeps up */
};
_Static_assert(sizeof(struct ucx_send) <= sizeof(((struct fabric_send *)0)->internal), "internal is too small");
/* What lies in fabric_recv.internal. */
struct ucx_recv {
    struct ucx_link link;
    size_t got; /* bytes, in pieces */
};
_Static_assert(sizeof(struct ucx_recv) <= sizeof(((struct fabric_recv *)0)->internal), "internal is too small");

struct ucx_order {
    struct ucx_link link;
    struct fabric_peer *peer;
    uint64_t value;                    /* communicator, rate */
    uint8_t token[FABRIC_TOKEN_BYTES]; /* UCX_CONNECT, UCX_EXPECT: that the peer may show */
    struct fabric_flow *owner;
    struct fabric_share share;
};

struct fabric_flow {
    struct flow flow;                 /* progress thread */
    struct fabric_flow *next, **prev; /* loop thread, as all below */
    uint64_t queued, sent;
    uint32_t sends; /* that are not done */
    bool closed;
    uint64_t rate_bits; /* as it was set last */
};

/* Two endpoints: a small message does not wait in the socket behind a large one. Where both sides connect at once, UCX
 * has to find out which of two sockets stays, and may lose the race: so the side of the lesser address connects, and
 * the other one when it has heard its hellos (or after a while, whatever the reason). */
struct fabric_peer {
    struct fabric_peer *next;
    struct fabric *fabric;
    unsigned refs;                 /* loop thread */
    atomic_bool failed;            /* set by the progress thread, for good */
    struct fabric_peer *next_live; /* progress thread: peers with endpoints */
    ucp_ep_h bulk, small;
    unsigned hellos;          /* heard */
    uint64_t wait_ns;         /* until when it waits for them; 0: it does not */
    struct ucx_queue pending; /* sends, while it waits */
    uint8_t show[FABRIC_TOKEN_BYTES];
    uint8_t expect[UCX_TOKENS][FABRIC_TOKEN_BYTES]; /* of these any; the last ones */
    unsigned nexpect;                               /* so far */
    size_t address_bytes;
    uint8_t address[];
};

/* A message that no receive was posted for yet. */
struct ucx_held {
    struct ucx_held *next;
    struct fabric_header header;
    void *data; /* rendezvous: UCX's descriptor; else a copy after this structure */
    size_t bytes;
    bool rendezvous;
    bool ask; /* not the message yet */
};

struct ucx_early {
    struct ucx_early *next;
    unsigned hellos;
    uint8_t token[FABRIC_TOKEN_BYTES];
    size_t address_bytes;
    uint8_t address[];
};

struct ucx_comm {
    struct ucx_comm *next;
    uint64_t key;
    bool dead;    /* aborted or forgotten: everything is dropped */
    bool strange; /* messages came, but this node knows nothing of it (yet): they may be anybody's */
    struct ucx_comm *next_strange;
    struct ucx_comm *next_dead;
    size_t held_bytes;
    unsigned small_sent, gates; /* see ucx_progress.c */
    struct ucx_link *posted[UCX_BUCKETS];
    struct ucx_held *held[UCX_BUCKETS];
};

struct fabric {
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_address_t *address;
    size_t address_bytes;
    int ucx_fd, order_fd, done_fd;
    pthread_t thread;
    bool started;
    struct heartbeat heartbeat;
    char describe[96];

    struct fabric_peer *peers; /* loop thread */
    struct fabric_flow *flows; /* loop thread */

    pthread_mutex_t order_lock;
    struct ucx_queue orders;
    bool stop;
    atomic_bool sleeping;

    pthread_mutex_t done_lock;
    struct ucx_queue done;

    atomic_uint_least64_t sent_bytes, received_bytes;

    /* Progress thread. */
    struct ucx_queue finished; /* on its way to done */
    struct pace pace;
    struct flow flow; /* of sends that name none */
    struct ucx_comm *comms[UCX_COMM_BUCKETS];
    struct ucx_comm *first_dead, *last_dead;
    unsigned ndead;
    struct ucx_comm *strange; /* oldest first */
    unsigned nstrange;
    size_t strange_bytes; /* that they take */
    struct fabric_peer *live;
    struct ucx_piece *spare;
    struct ucx_early *early; /* hellos of sides that this one has not been told to connect to yet */
    unsigned nearly;
    bool some_failed, some_wait;
};

static inline void ucx_queue_init(struct ucx_queue *q) {
    q->head = NULL;
    q->tail = &q->head;
}

static inline void ucx_queue_push(struct ucx_queue *q, struct ucx_link *link) {
    link->next = NULL;
    *q->tail = link;
    q->tail = &link->next;
}

static inline struct ucx_link *ucx_queue_pop(struct ucx_queue *q) {
    struct ucx_link *link = q->head;
    if (link && !(q->head = link->next))
        q->tail = &q->head;
    return link;
}

static inline struct ucx_send *ucx_send_of(struct fabric_send *send) {
    return (struct ucx_send *)(void *)send->internal;
}

static inline struct fabric_send *ucx_send_from(struct ucx_link *link) {
    return (struct fabric_send *)(void *)((char *)link - offsetof(struct fabric_send, internal));
}

static inline struct ucx_link *ucx_recv_link(struct fabric_recv *recv) {
    return (struct ucx_link *)(void *)recv->internal;
}

static inline struct fabric_recv *ucx_recv_from(struct ucx_link *link) {
    return (struct fabric_recv *)(void *)((char *)link - offsetof(struct fabric_recv, internal));
}

static inline struct ucx_recv *ucx_recv_of(struct fabric_recv *recv) {
    return (struct ucx_recv *)(void *)recv->internal;
}

static inline size_t ucx_send_bytes(const struct fabric_send *send) {
    size_t bytes = 0;
    for (unsigned i = 0; i < send->niov; i++)
        bytes += send->iov[i].bytes;
    return bytes;
}

/* What the link, its flow's queue and its rate are charged with. */
static inline size_t ucx_charged_bytes(const struct fabric_send *send) {
    return send->carried ? send->carried : ucx_send_bytes(send);
}

/* ucx.c */
uint64_t ucx_now(void);
void ucx_wake(int fd);
void ucx_order_push(struct fabric *f, struct ucx_link *link, enum ucx_kind kind);

/* ucx_progress.c */
void *ucx_progress_main(void *fabric);
void ucx_finish(struct fabric *f, struct ucx_link *link, zipcclResult_t result);
void ucx_issue(struct fabric *f, struct fabric_send *send);

/* ucx_connect.c, progress thread */
void ucx_connect_peer(struct fabric *f, struct fabric_peer *peer, const uint8_t *token);
/* A connected peer may show this token, too. */
void ucx_expect(struct fabric *f, struct fabric_peer *peer, const uint8_t *token);
ucs_status_t ucx_on_hello(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                          const ucp_am_recv_param_t *param);
void ucx_peer_error(void *arg, ucp_ep_h ep, ucs_status_t status);
/* Connects those that have waited long enough; *due becomes when to ask again, where that is earlier. */
void ucx_connect_due(struct fabric *f, uint64_t *due);
void ucx_close_endpoints(struct fabric_peer *peer);
void ucx_drop_early(struct fabric *f);

/* ucx_piece.c */
void ucx_piece_free_all(struct fabric *f);
void ucx_piece_issue(struct fabric *f, struct fabric_send *send);
/* What is left of it goes no more: ends when UCX has nothing of it. */
void ucx_piece_drop(struct fabric *f, struct fabric_send *send, zipcclResult_t result);
ucs_status_t ucx_on_piece(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                          const ucp_am_recv_param_t *param);

/* ucx_match.c */
/* Where the receive of a message hangs; NULL: none is posted. */
struct ucx_link **ucx_find_posted(struct ucx_comm *c, const struct fabric_header *header);
struct ucx_comm *ucx_comm_find(struct fabric *f, uint64_t key); /* NULL: not known */
struct ucx_comm *ucx_comm_get(struct fabric *f, uint64_t key);  /* this node's own; NULL: no memory */
ucs_status_t ucx_on_message(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                            const ucp_am_recv_param_t *param);
ucs_status_t ucx_on_ask(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                        const ucp_am_recv_param_t *param);
void ucx_post(struct fabric *f, struct fabric_recv *recv);
void ucx_kill_comm(struct fabric *f, uint64_t key);
void ucx_fail_receives(struct fabric *f, const struct fabric_peer *peer);
void ucx_drop_all(struct fabric *f);

/* ucx_flow.c, on the loop thread */
struct fabric_flow *ucx_flow_open(struct fabric *f, const struct fabric_share *share);
void ucx_flow_set(struct fabric *f, struct fabric_flow *flow, const struct fabric_share *share);
void ucx_flow_close(struct fabric *f, struct fabric_flow *flow);
void ucx_flow_bytes(const struct fabric_flow *flow, uint64_t *queued, uint64_t *sent);
void ucx_flow_free_all(struct fabric *f);

/* ucx_pace.c, on the progress thread */
/* A new send: issued, or put where it waits. */
void ucx_pace_send(struct fabric *f, struct fabric_send *send, uint64_t now);
/* Issues what has its time; returns whether any had. *due: when to ask again. */
bool ucx_pace_run(struct fabric *f, uint64_t *due);
/* Takes out the waiting sends to a peer or, where that is NULL, of a communicator, and ends them. */
void ucx_pace_end(struct fabric *f, const struct fabric_peer *peer, uint64_t comm, zipcclResult_t result);

#endif

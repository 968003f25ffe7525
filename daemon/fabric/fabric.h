/* SPDX-License-Identifier: Apache-2.0
 *
 * The fabric seam: messages between daemons. `ucx` runs on UCX active messages; `nccl` moves values in memory of a GPU
 * by NCCL, and all else by ucx.
 *
 * All functions are called on the loop thread. Progress happens on a thread of the fabric's own; fabric poll, called
 * when fd is readable, runs the callbacks on the loop thread. A message waits at its sender (rendezvous) or in the
 * fabric (small ones) until the receiver posts a matching receive: a slow node holds nobody's memory.
 */
#ifndef ZIPCCL_DAEMON_FABRIC_H
#define ZIPCCL_DAEMON_FABRIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/flow/flow.h"
#include "daemon/heartbeat.h"
#include "zipccl_types.h"

struct fabric;
struct fabric_peer; /* an endpoint, ref-counted by connect/disconnect pairs */
struct fabric_flow; /* the sends of one job, as they share the link with others */

/* Travels in front of every message. comm, node, channel, seq and tag match sends to receives. 64 bytes, little
 * endian. */
struct fabric_header {
    uint64_t comm;                   /* number of the communicator, which its nodes alone know */
    uint32_t node;                   /* index of the sending node in it */
    uint32_t seq;                    /* collective: its number; transfer: its number between the two ranks */
    uint32_t tag;                    /* of the plan */
    uint8_t op, dtype, codec, flags; /* what the sender believes: checked by the receiver (flags bit 0: hash is set) */
    uint32_t root;
    uint32_t report;       /* of the sending node, for the switcher (daemon/core/report.h); 0: none */
    uint64_t op_count;     /* count of the whole operation */
    uint64_t count;        /* values in this message; capped transfers: in all of them, see executor_capped.c */
    uint32_t static_bytes; /* of a coded chunk; the rest is the dynamic part. raw: 0 */
    uint32_t channel;      /* FABRIC_COLLECTIVE, or fabric_channel of two ranks */
    uint64_t hash;         /* XXH3 of the payload where flags say so */
};
_Static_assert(sizeof(struct fabric_header) == 64, "fabric_header layout");

/* Ranks are below 65536, and no rank sends to itself through the fabric: 0 is free. */
#define FABRIC_COLLECTIVE 0u
static inline uint32_t fabric_channel(uint32_t from_rank, uint32_t to_rank) {
    return from_rank << 16 | to_rank;
}

/* What the two sides of a connection show each other: who shows something else is not heard. */
#define FABRIC_TOKEN_BYTES 16u
struct fabric_tokens {
    uint8_t show[FABRIC_TOKEN_BYTES], expect[FABRIC_TOKEN_BYTES];
};

struct fabric_iov {
    const void *base;
    size_t bytes;
};

/* How a flow shares the link: weights count among those of a priority. Effective where the link, or the flow, has a
 * rate: without one nothing waits here. */
struct fabric_share {
    uint32_t weight;
    enum flow_priority priority;
    uint64_t rate_bits; /* 0: the link's alone */
};

/* A send. Owned by the caller; buffers stay untouched until done runs. Paced by the link rate: it counts when its
 * receiver is ready for it. */
struct fabric_send {
    struct fabric_peer *peer;
    struct fabric_flow *flow; /* NULL: the default one, weight 1 */
    struct fabric_header header;
    struct fabric_iov iov[2];
    unsigned niov;
    /* Between fabrics; 0 and false of all others. */
    uint64_t carried; /* bytes that go another way once this has come: they are paced and count, in its place */
    bool unpaced;     /* goes at once, whatever waits for the link */
    void (*done)(struct fabric_send *send, zipcclResult_t result);
    void *arg;
    void *internal[10];
};

/* A receive. done gets success with header and bytes set, zipcclLimitExceeded (header set too) where the message is
 * longer than capacity, zipcclRemoteError where the peer is gone, zipcclAborted after fabric abort. */
struct fabric_recv {
    struct fabric_peer *peer; /* where it comes from: the peer's death ends the receive */
    uint64_t comm;
    uint32_t node, channel, seq, tag;
    void *buffer;
    size_t capacity;
    struct fabric_header header; /* as received */
    size_t bytes;
    void (*done)(struct fabric_recv *recv, zipcclResult_t result);
    void *arg;
    void *internal[6];
};

struct nccl_gpus;

struct fabric_config {
    const char *tls;              /* UCX_TLS, NULL: UCX's own choice */
    const char *net_devices;      /* UCX_NET_DEVICES, NULL: all */
    uint64_t link_rate_bits;      /* bits a second that this node may send to all others together; 0: uncapped */
    const struct nccl_gpus *gpus; /* for nccl: nccl_launch.h; copied */
};

/* A communicator that is made, on all its nodes. */
struct fabric_join {
    uint64_t comm;
    uint32_t node, nnodes;            /* this one's index */
    uint32_t gpus;                    /* a bit for each GPU of this node that its ranks use, as CUDA numbers them */
    struct fabric_peer *const *peers; /* own: not used */
    bool native;                      /* whole collectives may be left to the fabric */
    bool splits;                      /* this node tells of its splits */
    bool split; /* it comes of one: what the fabric makes for it waits until that is decided (struct fabric_split) */
    uint32_t nranks;
    const uint32_t *rank_node;
    const uint8_t *rank_gpus; /* of this node's ranks, in their order; NULL: not known, nor the others of them */
};

/* What a rank gives to a collective that the fabric carries out. */
struct fabric_part {
    const void *send;
    void *recv;
    size_t send_bytes, recv_bytes; /* 0: it gives none */
};

/* A collective that is left to the fabric as a whole, where all nodes can and leave it so: they agree on that first,
 * and where one does not, nothing was moved, and all are to do it by messages. Called when all ranks of this node are
 * there; one at a time of a communicator. Owned by the caller until done runs, as the buffers are. */
struct fabric_collective {
    struct fabric_header header; /* of the operation: comm, node, seq, and what this node believes of it */
    struct fabric_flow *flow;    /* as of a send: under a rate it goes by messages, which can wait */
    zipcclRedOp_t redop;
    size_t value_bytes;
    const struct fabric_part *parts; /* by local rank */
    uint32_t nparts;
    uint64_t sent_bytes, received_bytes;         /* to and from other nodes */
    uint32_t (*combine)(uint32_t a, uint32_t b); /* of reports */
    /* By done, with success: whether it took place, and if not, whether it is any use to ask again in this
     * communicator; the same on all nodes. header.report is of all nodes. */
    bool taken, never;
    struct fabric_header theirs; /* with zipcclInvalidArgument: what another node called, and left to the fabric too */
    bool launched;               /* the GPUs work on it. Until then: */
    uint32_t waits_for;          /* a node that is not there yet; this one where it is not known which */
    void (*done)(struct fabric_collective *collective, zipcclResult_t result);
    void *arg;
    struct fabric_collective *next; /* the fabric's, as the following */
    zipcclResult_t result;
};

/* A communicator is split: all of its nodes call this, or, where one tells of none, any; for each split once and in
 * order, when those of the new ones that have ranks here and span nodes have joined. The fabric may make them of what
 * it has for the old one: all nodes do, or none does, and where a node does not want it none does. Owned by the caller
 * until done runs. */
struct fabric_split {
    uint64_t comm;
    uint32_t number;          /* 1, 2, 3... of this communicator, equal on all nodes */
    bool wanted;              /* here */
    const uint64_t *children; /* by local rank: the communicator that it joins; 0: none, or one that spans no nodes */
    uint32_t nchildren;
    /* By done, with success: so many new communicators of this node were made so; 0: none was, all go on alone. With
     * an error those that are not made yet have failed, and so has the old one. */
    uint32_t made;
    uint32_t failed; /* the local rank whose GPU it is that failed first; UINT32_MAX: none here */
    void (*done)(struct fabric_split *split, zipcclResult_t result);
    void *arg;
    struct fabric_split *next; /* the fabric's, as the following */
    zipcclResult_t result;
};

/* Whether both sides call the same operation. */
static inline bool fabric_same_call(const struct fabric_header *a, const struct fabric_header *b) {
    return a->op == b->op && a->dtype == b->dtype && a->op_count == b->op_count && a->root == b->root &&
           a->flags >> 1 == b->flags >> 1 && a->codec == b->codec;
}

struct fabric_ops {
    const char *name;
    /* *why: static text for people on failure. */
    ZIPCCL_MUST_CHECK zipcclResult_t (*open)(const struct fabric_config *config, struct fabric **fabric,
                                             const char **why);
    void (*close)(struct fabric *fabric); /* drops everything; callbacks do not run */
    const void *(*address)(const struct fabric *fabric, size_t *bytes);
    ZIPCCL_MUST_CHECK zipcclResult_t (*connect)(struct fabric *fabric, const void *address, size_t bytes,
                                                const struct fabric_tokens *tokens, struct fabric_peer **peer);
    void (*disconnect)(struct fabric *fabric, struct fabric_peer *peer);
    /* Before anything is sent or received of a communicator; NULL where the fabric need not know. Ended by forget. */
    ZIPCCL_MUST_CHECK zipcclResult_t (*join)(struct fabric *fabric, const struct fabric_join *join);
    /* Whether values there may be sent and received as they are in comm, whatever memory they come from or go to; NULL:
     * all in host memory may, and none in a GPU's. */
    bool (*takes)(struct fabric *fabric, uint64_t comm, const void *values);
    /* Whether comm's messages are best in the memory of that GPU, where one works on them; NULL: they never are. */
    bool (*takes_gpu)(struct fabric *fabric, uint64_t comm, unsigned gpu);
    void (*send)(struct fabric *fabric, struct fabric_send *send);
    void (*recv)(struct fabric *fabric, struct fabric_recv *recv);
    /* NULL: it has no collectives, and need not know of any. done runs by poll. */
    void (*collective)(struct fabric *fabric, struct fabric_collective *collective);
    /* This node begins a collective that goes by messages: so is everybody to do that. */
    void (*by_messages)(struct fabric *fabric, const struct fabric_header *header);
    /* NULL: it makes nothing of splits, and joins with one go on as others. done runs by poll. comm is not forgotten
     * before. */
    void (*split)(struct fabric *fabric, struct fabric_split *split);
    /* Ends the posted receives of comm with zipcclAborted (by poll, later), drops messages of comm that wait or come
     * from now on, so that their senders end too. */
    void (*abort)(struct fabric *fabric, uint64_t comm);
    /* What of this node made the sends and receives of comm fail, for people; NULL: it is not known here. The operation
     * itself may be NULL. Valid until close. */
    const char *(*why)(struct fabric *fabric, uint64_t comm);
    /* comm is over: forget it (messages that still come are dropped). */
    void (*forget)(struct fabric *fabric, uint64_t comm);
    void (*set_link_rate)(struct fabric *fabric, uint64_t bits);
    /* NULL: no memory. Changes take effect at once. After close a flow is forgotten as soon as its sends are done. */
    struct fabric_flow *(*flow_open)(struct fabric *fabric, const struct fabric_share *share);
    void (*flow_set)(struct fabric *fabric, struct fabric_flow *flow, const struct fabric_share *share);
    void (*flow_close)(struct fabric *fabric, struct fabric_flow *flow);
    /* Bytes of sends that are not done, and of those that are. */
    void (*flow_bytes)(const struct fabric_flow *flow, uint64_t *queued, uint64_t *sent);
    int (*fd)(const struct fabric *fabric);
    void (*poll)(struct fabric *fabric);
    void (*describe)(const struct fabric *fabric, char *text, size_t size);
    /* Of the progress thread; may be NULL. Valid until close. */
    const struct heartbeat *(*heartbeat)(const struct fabric *fabric);
    /* Counters since open. */
    void (*counters)(const struct fabric *fabric, uint64_t *sent_bytes, uint64_t *received_bytes);
};

extern const struct fabric_ops fabric_ucx;
extern const struct fabric_ops fabric_nccl; /* with NCCL's headers only */

#endif

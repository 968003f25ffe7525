/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the NCCL fabric, on the loop: the seam's functions (nccl.c), messages (nccl_messages.c), communicators and
 * what their nodes tell each other (nccl_comm.c), the agreed order (nccl_order.c) and what has a place of all nodes
 * there (nccl_joint.c): their making (nccl_making.c), whole collectives (nccl_native.c), splits (nccl_split.c); what is
 * launched (nccl_entry.c). The launching side of each GPU is behind nccl_launch.h.
 *
 * Headers, small messages and control go by the UCX fabric below. A message whose values NCCL moves is announced there;
 * once its receive is posted, the two nodes agree on a place in the order of launches, and the GPU of either launches
 * it there. Where the link or its job has a rate it is announced when its time has come, so nothing in the order waits
 * for time. A communicator has a rank for each GPU that takes part: those of node 0, of node 1 and so on.
 */
#ifndef ZIPCCL_DAEMON_FABRIC_NCCL_H
#define ZIPCCL_DAEMON_FABRIC_NCCL_H

#include "daemon/fabric/fabric.h"
#include "daemon/fabric/nccl_launch.h"

#define NCCL_SMALL_BYTES  ((size_t)16 << 10) /* of host memory: goes by UCX */
#define NCCL_ANNOUNCED    0x80u              /* header flag: the payload is a struct nccl_announcement */
#define NCCL_ENROLLED_ID  (1ull << 63)       /* with the id of a message: both ends are registered */
#define NCCL_CONTROL      UINT32_MAX         /* channel: no rank sends to itself */
#define NCCL_MAX_IDS      64u                /* messages of one direction in a launch */
#define NCCL_MAX_GPUS     16u                /* of a node */
#define NCCL_MAX_NODES    512u               /* of a communicator; one with more goes by UCX alone */
#define NCCL_MAX_CHILDREN NCCL_MAX_GPUS      /* of a split, on a node */
_Static_assert(4 * NCCL_MAX_IDS <= NCCL_MAX_OPS, "both directions, two pieces each");

struct nccl_announcement {
    uint64_t id;       /* of the sender */
    uint64_t bytes[2]; /* of its two pieces */
    uint32_t gpu;      /* of its node's in the communicator: the one that sends */
    uint32_t enrolled; /* 1: the memory is registered with NCCL */
};

/* What a control message, and a place in the order, is for. */
enum nccl_purpose { NCCL_FOR_MESSAGES, NCCL_FOR_MAKING, NCCL_FOR_CALL, NCCL_FOR_SPLIT, NCCL_PURPOSES };

enum nccl_kind {
    /* For messages: nccl_order.c. */
    NCCL_READY, /* receiver to sender: these messages have their receives; my proposal */
    NCCL_FINAL, /* sender to receiver: the place; with them go those of yours that have their receives here */
    NCCL_DROP,  /* receiver to sender: this message is not wanted */
    NCCL_LEFT,  /* nothing more comes from here: it was forgotten */
    /* For all else: nccl_joint.c. */
    NCCL_SAY,      /* to node 0: all ranks here have come to the collective, or the split, and whether they can go this
                    * way. Of a collective, node 0 to who has not come */
    NCCL_NO,       /* node 0 to all: no NCCL, or not this way; of the making also to node 0; of a collective to who
                    * called */
    NCCL_PROPOSE,  /* node 0 to all: all can; what is your proposal? */
    NCCL_PROPOSAL, /* to node 0. The answer is NCCL_FINAL, to all: the place */
};

/* A communicator that comes of a split, as a node has it. */
struct nccl_child {
    uint64_t key;
    uint32_t here, nranks; /* ranks of it here, and all */
};

#define NCCL_WANTS_NATIVE 1u /* whole collectives */
#define NCCL_WANTS_SPLITS 2u

struct nccl_control {
    uint16_t kind, purpose;
    uint32_t n;
    uint64_t time;
    uint32_t gpu; /* ready and final: of who tells. Making: how many there are. Say: whether it can */
    union {
        uint32_t peer_gpu; /* ready and final: of who is told */
        uint32_t number; /* making: what is wanted (NCCL_WANTS_NATIVE...). Collective: all reports. Split: which one */
    };
    union {
        uint64_t ids[NCCL_MAX_IDS];                    /* of messages */
        struct nccl_child children[NCCL_MAX_CHILDREN]; /* of a say of a split */
        uint8_t gpus[NCCL_MAX_NODES];                  /* of the making's final, by node */
        struct nccl_unique unique;
        struct fabric_header call; /* of the say of one; of a no, its seq */
    };
};

enum nccl_memory { NCCL_PAGEABLE, NCCL_PINNED, NCCL_DEVICE, NCCL_FOREIGN /* of a GPU that takes no part */ };

/* An announced send. */
struct nccl_send {
    struct nccl_send *next, *next_of_all;
    zipcclResult_t result;
    struct fabric_send announce, *user;
    struct nccl_comm *comm;
    struct nccl_announcement body;
    uint64_t bytes; /* that its flow has queued for it */
    bool announced; /* UCX has nothing of it (any more) */
    bool held;      /* until it is known whether there is NCCL */
    bool enrolled;  /* both ends are registered: the receiver says so */
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
    uint32_t gpu;                                    /* that receives it */
    bool enrolled;                                   /* both ends are registered; known once matched */
    uint8_t *bounce; /* device memory cannot be written by UCX: NCCL_SMALL_BYTES, pinned */
    uint64_t id;     /* of the copy from it */
};

/* A control message under way. */
struct nccl_letter {
    struct nccl_letter *next, *next_of_all;
    struct fabric_send send;
    struct nccl_comm *comm;
    struct nccl_control body;
};

/* A place in the order of launches: of messages between a GPU here and one of another node, or joint, of all nodes and
 * GPUs. Ordered by time, then communicator, initiator, partner: the same on all nodes that take part. */
struct nccl_entry {
    struct nccl_entry *next;
    struct nccl_comm *comm;
    uint64_t time;
    uint32_t initiator, partner;
    bool final;
    enum nccl_purpose purpose;
    uint64_t latest; /* node 0's, of a joint one: of the proposals that it has heard */
    uint32_t nproposals;
    unsigned nsends, nrecvs;
    struct nccl_send *sends[NCCL_MAX_IDS];
    struct nccl_recv *recvs[NCCL_MAX_IDS];
    uint32_t peer, gpu, peer_gpu;         /* the other node; indices in the communicator */
    uint64_t id;                          /* of the launch */
    struct fabric_collective *collective; /* once launched */
    unsigned pending;                     /* GPUs that have not answered */
    zipcclResult_t result;                /* the first that was bad */
};

/* A node of a communicator. This one is not listened to, and sent nothing. */
struct nccl_peer {
    struct nccl_comm *comm;
    struct fabric_peer *endpoint;
    uint32_t node, out_seq, in_seq;
    uint32_t ngpus, first;      /* and the rank of the first one; known when the communicator's making is final */
    struct fabric_recv control; /* posted at all times */
    struct nccl_control heard;
    struct nccl_send *announced; /* not in a launch yet */
    struct nccl_recv *matched, **matched_tail;
    bool left;
    bool proposed[NCCL_PURPOSES]; /* node 0 has its proposal */
    bool called, can;             /* a collective that is not decided: it told us, it can */
    struct fabric_header call;    /* what it told */
    bool said, split_can;         /* likewise of a split */
    uint32_t split, nchildren;    /* its number */
    struct nccl_child children[NCCL_MAX_CHILDREN];
};

/* A split of a communicator. */
struct nccl_split {
    struct fabric_split *user; /* NULL: none is under way */
    bool can;                  /* this node */
    bool launched;             /* and */
    unsigned pending;          /* GPUs that have not answered */
    uint32_t nchildren;        /* distinct ones here */
    struct nccl_child children[NCCL_MAX_CHILDREN];
    uint64_t keys[NCCL_MAX_GPUS]; /* by GPU of the communicator: of the child; 0: none */
    struct nccl_branch branches[NCCL_MAX_GPUS];
};

struct nccl_comm {
    struct nccl_comm *next;
    struct fabric *fabric;
    uint64_t key, id; /* id: for the launching sides */
    uint32_t node, nnodes;
    uint32_t ngpus, gpus[NCCL_MAX_GPUS]; /* of this node: as CUDA numbers them. Where each rank has its own: in their
                                          * order, else ascending */
    bool native;       /* whole collectives: wanted, here and where that was heard of; once ordered: agreed */
    bool splits;       /* all nodes tell of its splits: as native */
    bool own;          /* each rank here has a GPU of its own; GPUs are in their order */
    uint32_t *members; /* ranks of node 0, of node 1... NULL: not told */
    bool by_rank;      /* once ordered: they are NCCL's */
    uint32_t nranks;
    bool held;             /* it comes of a split, which is not decided */
    bool ordered;          /* its making was handed to the launching sides: messages may follow */
    bool plain;            /* or it has no NCCL */
    bool over;             /* failed, aborted or forgotten */
    zipcclResult_t reason; /* of it */
    bool gone;             /* not in the list any more: freed with the last user */
    unsigned users;        /* posted control receives, control messages, records of launching sides */
    unsigned looks;        /* at this node's GPUs, under way */
    bool looked, unable;   /* one of them does not work */
    unsigned revokes;      /* under way: then it is aborted */
    struct nccl_entry *places[NCCL_PURPOSES]; /* joint ones, until they are launched */
    struct fabric_collective *asked;          /* has no place that has come yet */
    bool asked_told, can;                     /* to the other nodes; this node can, at node 0 all that were heard */
    uint32_t ncalls;                          /* node 0: others that called it too */
    uint32_t by_messages;                     /* the latest collective that went so, or goes */
    bool any_by_messages;
    struct nccl_split split;
    struct nccl_unique unique;
    const char *why; /* a GPU of this node failed it; or NULL */
    struct nccl_peer peers[];
};

struct fabric {
    struct nccl_gpus gpus;
    bool gpus_opened;
    int version;                                    /* of NCCL */
    uint64_t link_rate_bits;                        /* 0: none */
    struct fabric *below;                           /* of fabric_ucx */
    struct nccl_launcher *launchers[NCCL_MAX_GPUS]; /* by CUDA's number, from the first use on */
    int epoll, wake;
    bool opened; /* below is */
    struct nccl_comm *comms, *gone;
    struct nccl_entry *order;                     /* by place */
    struct nccl_entry *launched, **launched_tail; /* not answered yet */
    struct nccl_recv *copying, **copying_tail;    /* likewise */
    uint64_t clock, ids;
    struct nccl_send *all_sends, *spare_sends, *ended_sends, **ended_sends_tail;
    struct nccl_recv *all_recvs, *spare_recvs, *ended_recvs, **ended_recvs_tail;
    struct nccl_letter *all_letters, *spare_letters;
    struct fabric_collective *ended_collectives, **ended_collectives_tail;
    struct fabric_split *ended_splits, **ended_splits_tail;
    uint64_t sent_bytes, received_bytes;
};

/* nccl.c */
void nccl_wake(struct fabric *f);

/* nccl_messages.c */
bool nccl_takes(struct fabric *f, uint64_t key, const void *values);
bool nccl_takes_gpu(struct fabric *f, uint64_t key, unsigned gpu);
void nccl_send(struct fabric *f, struct fabric_send *user);
void nccl_recv(struct fabric *f, struct fabric_recv *user);
void nccl_messages_tell(struct fabric *f); /* users, of those that have ended */
void nccl_send_end(struct fabric *f, struct nccl_send *send, zipcclResult_t result); /* tells the user, by poll */
void nccl_recv_end(struct fabric *f, struct nccl_recv *recv, zipcclResult_t result);
void nccl_send_held(struct nccl_comm *comm); /* it is known now */

/* nccl_entry.c */
/* Hands an entry to the launching side of its GPU; it is the fabric's from then on. */
void nccl_entry_launch(struct fabric *f, struct nccl_entry *entry);
/* A small message goes from its bounce to the GPU's memory. False: no memory. */
bool nccl_entry_copy(struct fabric *f, struct nccl_recv *recv);
void nccl_entry_launched(struct fabric *f, const struct nccl_answer *answer);
void nccl_entry_copied(struct fabric *f, const struct nccl_answer *answer);

/* nccl_comm.c */
struct nccl_comm *nccl_comm_find(struct fabric *f, uint64_t key); /* NULL: not known; it may be over */
uint32_t nccl_comm_rank(const struct nccl_comm *comm, uint32_t node, uint32_t gpu); /* of NCCL; once it is made */
ZIPCCL_MUST_CHECK zipcclResult_t nccl_comm_join(struct fabric *f, const struct fabric_join *join);
/* Ends what it has under way, and the communicator; may be called again. The other nodes are not told: the failure of
 * an operation is, by the daemons, with its cause. */
void nccl_comm_end(struct nccl_comm *comm, zipcclResult_t reason);
/* Likewise, where a GPU of this node answers with an error. */
void nccl_comm_fail(struct nccl_comm *comm, const struct nccl_answer *answer);
/* The user will not name it again. One that has nothing under way and did not fail is left in peace. */
void nccl_comm_forget(struct nccl_comm *comm);
void nccl_comm_release(struct nccl_comm *comm); /* one user less; frees it with the last */
void nccl_comm_tell(struct nccl_comm *comm, uint32_t node, const struct nccl_control *control);
/* All nodes but this one, or up to the one with which it ends. */
void nccl_comm_tell_others(struct nccl_comm *comm, const struct nccl_control *control);
void nccl_comm_answer(struct fabric *f, const struct nccl_answer *answer);
void nccl_comm_look(struct nccl_comm *comm); /* whether its GPUs work: nccl_making_looked follows */
void nccl_comm_make(struct nccl_comm *comm); /* on all its GPUs */
/* Asks the launching side of one of its GPUs; the answer counts as a user. False: it is not there, or no memory. */
ZIPCCL_MUST_CHECK bool nccl_comm_ask(struct nccl_comm *comm, uint32_t gpu, struct nccl_command *command);
void nccl_comm_free_all(struct fabric *f);

/* nccl_order.c */
bool nccl_order_heard(struct nccl_peer *peer, const struct nccl_control *c); /* false: nonsense */
void nccl_order_matched(struct nccl_comm *comm, struct nccl_recv *recv, uint32_t node);
void nccl_order_drop(struct nccl_comm *comm); /* its entries */
void nccl_order_run(struct fabric *f);        /* launches what is next */
/* A joint place, as this node proposes it. NULL, with the communicator ended: no memory. */
struct nccl_entry *nccl_order_add(struct nccl_comm *comm, enum nccl_purpose purpose);
void nccl_order_remove(struct nccl_entry *entry);                /* a joint one; it is freed */
void nccl_order_settle(struct nccl_entry *entry, uint64_t time); /* it is agreed */
void nccl_order_begun(struct nccl_comm *comm);                   /* its making is with the launching sides */

/* nccl_joint.c; what is particular to a purpose: */
struct nccl_joint {
    /* A say, and a no. False: nonsense; said is NULL where it is always. */
    bool (*said)(struct nccl_peer *peer, const struct nccl_control *c);
    bool (*refused)(struct nccl_peer *peer, const struct nccl_control *c);
    /* What goes with a propose, proposal and final, and what came. The one that takes a propose proposes, now or later.
     * False: nonsense. */
    void (*fill)(struct nccl_comm *comm, struct nccl_control *c);
    bool (*take)(struct nccl_peer *peer, const struct nccl_control *c);
    void (*launch)(struct nccl_entry *entry); /* its place has come; the entry is the callee's */
    void (*drop)(struct nccl_comm *comm);     /* it is over: users are told, whether there is a place or not; or NULL */
};
extern const struct nccl_joint nccl_making, nccl_calls, nccl_splits;
/* This node's proposal, or node 0's to all. The communicator may end of it. */
void nccl_joint_propose(struct nccl_comm *comm, enum nccl_purpose purpose);
void nccl_joint_launch(struct nccl_entry *entry);
bool nccl_joint_heard(struct nccl_peer *peer, const struct nccl_control *c); /* false: nonsense */
void nccl_joint_drop(struct nccl_comm *comm);                                /* it is over */

/* nccl_making.c */
void nccl_making_looked(struct nccl_comm *comm); /* its GPUs work, or do not; at node 0 the id is known */

/* nccl_native.c; of the seam: */
void nccl_native(struct fabric *f, struct fabric_collective *user);
void nccl_native_by_messages(struct fabric *f, const struct fabric_header *header);
void nccl_native_tell(struct fabric *f); /* those that ended */
/* and the others': */
void nccl_native_decided(struct nccl_comm *comm); /* whether it has NCCL */
void nccl_native_answered(struct fabric *f, struct nccl_entry *entry, const struct nccl_answer *answer);

/* nccl_split.c; of the seam: */
void nccl_split(struct fabric *f, struct fabric_split *user);
void nccl_split_tell(struct fabric *f); /* those that ended */
/* and the others': */
void nccl_split_answered(struct nccl_comm *comm, const struct nccl_answer *answer);

#endif

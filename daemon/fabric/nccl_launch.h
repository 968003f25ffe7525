/* SPDX-License-Identifier: Apache-2.0
 *
 * What the loop asks of the launching side of a GPU, and what it hears from there: plain records. Things are named by
 * numbers, memory by its address, so that the launching side may be anywhere.
 *
 * A launching side is a GPU's alone: one thread, which makes all calls of NCCL for that GPU, in the order of the
 * records. Each record is answered once, by one of its kind and number; NCCL_FAILED comes unasked.
 */
#ifndef ZIPCCL_DAEMON_FABRIC_NCCL_LAUNCH_H
#define ZIPCCL_DAEMON_FABRIC_NCCL_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "zipccl_types.h"

#define NCCL_MAX_OPS      256u /* of a record */
#define NCCL_UNIQUE_BYTES 128u
#define NCCL_SPLIT_SINCE  21801 /* version of NCCL */

/* An ncclUniqueId. */
struct nccl_unique {
    uint8_t bytes[NCCL_UNIQUE_BYTES];
};

enum nccl_what {
    NCCL_MAKE_ID,    /* a unique id; fails where the GPU has failed */
    NCCL_LOOK,       /* whether the GPU works; zipcclUnhandledDeviceError: it has an error that stays */
    NCCL_MAKE,       /* a communicator: this GPU is its rank `rank` of nranks */
    NCCL_SPLIT,      /* branch is made of it. All of its GPUs are asked, also those that are in no new one */
    NCCL_LAUNCH,     /* ops, as one group */
    NCCL_COLLECTIVE, /* call: ops are what it reads, a send, and what it writes, a receive; each where there is any */
    NCCL_COPY,       /* op 1, host memory, to op 0 */
    NCCL_ENROLL,     /* op 0, for a communicator: memory that it uses until its end. An error: it is not registered */
    NCCL_LEAVE,      /* the communicator is over on all ranks alike, nothing of it is under way */
    NCCL_REVOKE,     /* it failed: what it has under way ends */
    NCCL_ABORT,      /* and it is freed; the last record of it, as NCCL_LEAVE is */
    NCCL_FAILED      /* NCCL says that it failed: an abort is to follow */
};

enum nccl_op_kind { NCCL_OP_SEND, NCCL_OP_RECV };
/* With it, the memory is used as one that is registered, at both ends: NCCL forbids that one end is and the other is
 * not. So such memory has two addresses, of which NCCL knows one. */
#define NCCL_OP_REGISTERED 0x100u

struct nccl_op {
    uint64_t address, bytes;
    uint32_t kind, peer;
};

struct nccl_call {
    uint32_t op, dtype, redop, root; /* zipcclOp_t, zipcclDataType_t, zipcclRedOp_t; a rank of NCCL */
    uint64_t count;                  /* as NCCL counts */
};

/* A communicator that comes of a split, and this GPU in it. */
struct nccl_branch {
    uint64_t comm; /* 0: none */
    int32_t color; /* the same on all of its GPUs; another one in each other one of the split */
    int32_t key;   /* ranks are in the order of keys */
};

struct nccl_command {
    uint64_t comm, id; /* comm 0: of none */
    uint32_t what, nops;
    uint32_t rank, nranks;
    union {
        struct nccl_unique unique; /* of NCCL_MAKE */
        struct nccl_call call;     /* of NCCL_COLLECTIVE */
        struct nccl_branch branch; /* of NCCL_SPLIT */
    };
    struct nccl_op ops[NCCL_MAX_OPS];
};

/* Bytes of a record that are used. */
static inline size_t nccl_command_bytes(const struct nccl_command *command) {
    return offsetof(struct nccl_command, ops) + command->nops * sizeof(command->ops[0]);
}

struct nccl_answer {
    uint64_t comm, id;
    uint32_t what;
    zipcclResult_t result;
    const char *why;           /* of an error, for people; or NULL. Valid until the GPUs are closed */
    struct nccl_unique unique; /* of NCCL_MAKE_ID */
};

enum nccl_place {
    NCCL_PLACE_HOST,   /* memory that processors alone reach */
    NCCL_PLACE_PINNED, /* host memory that all GPUs reach */
    NCCL_PLACE_GPU
};

struct nccl_launcher;

/* The GPUs of this node, as whoever works on them gives them to the fabric. */
struct nccl_gpus_ops {
    /* Before all else: which NCCL is there. *why: for people. */
    ZIPCCL_MUST_CHECK zipcclResult_t (*open)(void *owner, int *version, const char **why);
    void (*close)(void *owner);
    /* *gpu: whose memory it is, as CUDA numbers them. */
    enum nccl_place (*place)(void *owner, const void *memory, uint32_t *gpu);
    /* Whether memory is registered for a communicator, as it is called in commands. The function itself may be NULL. */
    bool (*registered)(void *owner, uint64_t comm, const void *memory);
    /* Host memory that all GPUs reach; NULL: there is none. */
    void *(*alloc)(void *owner, size_t bytes);
    void (*free)(void *owner, void *memory, size_t bytes);
    /* The launching side of a GPU. An answer makes wake, an eventfd, readable. NULL: no such GPU, or no memory. */
    struct nccl_launcher *(*launcher)(void *owner, uint32_t gpu, int wake);
    /* Of all records that were asked, what is under way ends, and communicators are aborted. Several are to be told to
     * end before the first one is closed: one may wait for another. Answers are lost. */
    void (*launcher_end)(struct nccl_launcher *l);
    void (*launcher_close)(struct nccl_launcher *l);
    /* False: no memory. The record is copied. */
    ZIPCCL_MUST_CHECK bool (*ask)(struct nccl_launcher *l, const struct nccl_command *command);
    /* False: there is none. */
    bool (*hear)(struct nccl_launcher *l, struct nccl_answer *answer);
};

struct nccl_gpus {
    const struct nccl_gpus_ops *ops;
    void *owner;
};

/* nccl_here.c: by this process itself. The owner is a zeroed struct nccl_here. */
extern const struct nccl_gpus_ops nccl_gpus_here;

#endif

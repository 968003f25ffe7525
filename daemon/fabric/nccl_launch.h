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

#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "zipccl_types.h"

#define NCCL_MAX_OPS 256u /* of a record */

enum nccl_what {
    NCCL_MAKE_ID, /* a unique id; fails where the GPU has failed */
    NCCL_LOOK,    /* whether the GPU works */
    NCCL_MAKE,    /* a communicator: this GPU is its rank `rank` of nranks */
    NCCL_LAUNCH,  /* ops, as one group */
    NCCL_COPY,    /* op 1, host memory, to op 0 */
    NCCL_LEAVE,   /* the communicator is over on all ranks alike, nothing of it is under way */
    NCCL_REVOKE,  /* it failed: what it has under way ends */
    NCCL_ABORT,   /* and it is freed; the last record of it, as NCCL_LEAVE is */
    NCCL_FAILED   /* NCCL says that it failed: an abort is to follow */
};

enum nccl_op_kind { NCCL_OP_SEND, NCCL_OP_RECV };

struct nccl_op {
    uint64_t address, bytes;
    uint32_t kind, peer;
};

struct nccl_command {
    uint64_t comm, id; /* comm 0: of none */
    uint32_t what, nops;
    uint32_t rank, nranks;
    ncclUniqueId unique; /* of NCCL_MAKE */
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
    ncclUniqueId unique; /* of NCCL_MAKE_ID */
};

struct nccl_library;
struct nccl_launcher;

/* An answer makes wake, an eventfd, readable. NULL: the GPU gives no stream, or there is no memory or thread. */
struct nccl_launcher *nccl_launcher_open(const struct nccl_library *library, int gpu, int wake);
/* Of all records that were asked, what is under way ends, and communicators are aborted. Several are to be told to end
 * before the first one is closed: one may wait for another. Answers are lost. */
void nccl_launcher_end(struct nccl_launcher *l);
void nccl_launcher_close(struct nccl_launcher *l);
/* False: no memory. The record is copied. */
ZIPCCL_MUST_CHECK bool nccl_launcher_ask(struct nccl_launcher *l, const struct nccl_command *command);
/* False: there is none. */
bool nccl_launcher_hear(struct nccl_launcher *l, struct nccl_answer *answer);

#endif

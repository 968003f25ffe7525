/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators: how they come, how they go, and what they say about themselves.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/collective.h"
#include "client/lib/cuda.h"
#include "client/lib/internal.h"
#include "zipccl.pb-c.h"

static bool valid(zipcclComm_t comm) {
    return comm && comm->magic == CLIENT_COMM_MAGIC;
}

zipcclResult_t comm_unique_id(struct session *s, const char *name, zipcclUniqueId *id) {
    struct call call;
    memset(&call, 0, sizeof call);
    (void)pthread_mutex_lock(&client_lock);
    zipcclResult_t r = call_run(s, &call, WIRE_UNIQUE_ID, NULL, NULL, 0, WIRE_UNIQUE_ID_REPLY, CLIENT_CONTROL_MS);
    if (r == zipcclSuccess)
        memcpy(id->internal, call.unique_id, sizeof id->internal);
    else
        (void)fail_thread(r, "%s: %s", name, call.text);
    (void)pthread_mutex_unlock(&client_lock);
    return r;
}

/* The one of the environment; referenced. */
static zipcclResult_t session_of_environment(struct session **s) {
    (void)pthread_mutex_lock(&client_lock);
    zipcclResult_t r = session_get(s);
    (void)pthread_mutex_unlock(&client_lock);
    return r;
}

static void session_release(struct session *s) {
    (void)pthread_mutex_lock(&client_lock);
    session_put(s);
    (void)pthread_mutex_unlock(&client_lock);
}

zipcclResult_t zipcclGetUniqueId(zipcclUniqueId *id) {
    struct session *s;
    if (!id)
        return fail_thread(zipcclInvalidArgument, "zipcclGetUniqueId: id is NULL");
    zipcclResult_t r = session_of_environment(&s);
    if (r != zipcclSuccess)
        return r;
    r = comm_unique_id(s, "zipcclGetUniqueId", id);
    session_release(s);
    return r;
}

/* All communicators of this process, also those whose session is dead. */
static struct zipcclComm *live;

/* Lock held. Other than valid(), it is right about one that another thread frees meanwhile. */
bool comm_is_live(const struct zipcclComm *comm) {
    const struct zipcclComm *c = live;
    while (c && c != comm)
        c = c->next_live;
    return c;
}

bool comms_use_redop(int handle) {
    for (struct zipcclComm *c = live; c; c = c->next_live)
        if (redops_hold(c, handle))
            return true;
    return false;
}

static void comm_link(struct zipcclComm *c) {
    c->next = c->session->comms;
    c->session->comms = c;
    c->next_live = live;
    live = c;
}

void comms_forked(void) {
    for (struct zipcclComm *c = live; c; c = c->next_live) {
        c->session->forked = true;
        c->users = 0;
        c->ending = false;
        c->leave = LEAVE_NOT;
        comm_fail(c, zipcclInvalidUsage,
                  "the communicator belongs to the parent of this forked process: make one in the child");
        for (struct op *op = c->ops; op; op = op->next) {
            op->state = OP_DONE; /* also where a thread that is not here was finishing it */
            op->tainted = true;  /* the parent uses the same staging */
            if (op->result != zipcclSuccess || (!op->out.to && !op->out_counts.to))
                continue;
            op->result = c->failed;
            (void)snprintf(op->text, sizeof op->text, "%s", c->fail_text);
        }
    }
}

static void comm_free(struct zipcclComm *c) {
    for (struct zipcclComm **p = &c->session->comms; *p; p = &(*p)->next) {
        if (*p == c) {
            *p = c->next;
            break;
        }
    }
    for (struct zipcclComm **p = &live; *p; p = &(*p)->next_live) {
        if (*p == c) {
            *p = c->next_live;
            break;
        }
    }
    for (struct op *op = c->free_ops, *next; op; op = next) {
        next = op->next;
        free(op);
    }
    redops_free(c);
    session_put(c->session);
    c->magic = 0;
    free(c);
}

zipcclResult_t comm_join(struct session *s, const char *name, zipcclComm_t *comm, int nranks, const zipcclUniqueId *id,
                         int rank, const struct split *from) {
    Zipccl__CommInit m = ZIPCCL__COMM_INIT__INIT;
    uint8_t bytes[sizeof id->internal], uuid[CUDA_UUID_BYTES];
    struct call call;
    struct zipcclComm *c = calloc(1, sizeof *c);
    if (!c)
        return fail_thread(zipcclOutOfMemory, "%s: no memory", name);
    c->magic = CLIENT_COMM_MAGIC;
    c->nranks = nranks;
    c->rank = rank;
    c->codec = zipcclCodecAuto;
    c->arm = zipcclArmAuto;
    c->ops_end = &c->ops;
    memcpy(bytes, id->internal, sizeof bytes);
    m.unique_id.data = bytes;
    m.unique_id.len = sizeof bytes;
    m.nranks = (uint32_t)nranks;
    m.rank = (uint32_t)rank;
    m.parent = from ? from->parent : 0;
    m.split = from ? from->number : 0;
    memset(&call, 0, sizeof call);
    call.comm = c;
    (void)pthread_mutex_lock(&client_lock);
    if (cuda_current(s, uuid))
        m.device = (ProtobufCBinaryData){sizeof uuid, uuid};
    s->refs++;
    c->session = s;
    comm_link(c);
    zipcclResult_t r = call_run(s, &call, WIRE_COMM_INIT, &m.base, NULL, 0, WIRE_COMM_INIT_REPLY, CLIENT_FOREVER);
    if (r == zipcclSuccess && !c->handle) {
        r = zipcclInternalError;
        (void)snprintf(call.text, sizeof call.text, "zipccld gave the communicator no handle");
    }
    if (r == zipcclSuccess) {
        *comm = c;
    } else {
        (void)fail_thread(r, "%s, rank %d of %d: %s", name, rank, nranks, call.text);
        comm_free(c);
    }
    (void)pthread_mutex_unlock(&client_lock);
    return r;
}

zipcclResult_t zipcclCommInitRank(zipcclComm_t *comm, int nranks, zipcclUniqueId id, int rank) {
    struct wire_unique_id u;
    struct session *s;
    if (!comm)
        return fail_thread(zipcclInvalidArgument, "zipcclCommInitRank: comm is NULL");
    *comm = NULL;
    if (group_is_open())
        return fail_thread(zipcclInvalidUsage, "zipcclCommInitRank: not inside a group: call zipcclGroupEnd first");
    if (nranks < 1 || rank < 0 || rank >= nranks)
        return fail_thread(zipcclInvalidArgument, "zipcclCommInitRank: rank %d of nranks %d: need 0 <= rank < nranks",
                           rank, nranks);
    memcpy(&u, id.internal, sizeof u);
    if (u.magic != WIRE_UNIQUE_ID_MAGIC)
        return fail_thread(zipcclInvalidArgument,
                           "zipcclCommInitRank: id is none of zipcclGetUniqueId, or was cut on its way to rank %d",
                           rank);
    zipcclResult_t r = session_of_environment(&s);
    if (r != zipcclSuccess)
        return r;
    r = comm_join(s, "zipcclCommInitRank", comm, nranks, &id, rank, NULL);
    session_release(s);
    return r;
}

static bool ops_ended(void *arg) {
    const struct zipcclComm *c = arg;
    for (const struct op *op = c->ops; op; op = op->next)
        if (op->state == OP_SENT)
            return false;
    return true;
}

static void sleep_until_changed(void) {
    client_sleepers++;
    (void)pthread_cond_wait(&client_changed, &client_lock);
    client_sleepers--;
}

/* Ends what nobody else will end; lock held. All operations have ended, but streams may not have looked yet. */
static void comm_finish_ops(struct zipcclComm *c) {
    while (c->ops) {
        if (c->ops->stream) {
            stream_finish(c->ops->stream, c);
        } else if (c->session->forked) { /* of a thread that is not in this process */
            op_finish(c->ops);
        } else { /* its caller is about to take it */
            sleep_until_changed();
        }
    }
    while (c->users)
        sleep_until_changed();
}

/* Tells the daemon, once; bounded, since the application wants to end. May drop the lock. */
static zipcclResult_t comm_leave(struct zipcclComm *c, uint16_t type, char *text) {
    Zipccl__CommRef m = ZIPCCL__COMM_REF__INIT;
    struct call call;
    if (c->leave != LEAVE_NOT) {
        while (c->leave == LEAVE_ASKED)
            sleep_until_changed();
        if (c->left != zipcclSuccess)
            (void)snprintf(text, CLIENT_TEXT_BYTES, "another thread left the communicator, which failed");
        return c->left;
    }
    if (!c->session->conn)
        return zipcclSuccess; /* nobody to tell */
    c->leave = LEAVE_ASKED;
    memset(&call, 0, sizeof call);
    m.comm = c->handle;
    zipcclResult_t r = call_run(c->session, &call, type, &m.base, NULL, 0, WIRE_OK, CLIENT_LEAVE_MS);
    if (r != zipcclSuccess)
        (void)snprintf(text, CLIENT_TEXT_BYTES, "%s", call.text);
    c->leave = LEAVE_OVER;
    c->left = r;
    client_notify();
    return r;
}

zipcclResult_t zipcclCommDestroy(zipcclComm_t comm) {
    char text[CLIENT_TEXT_BYTES] = "";
    zipcclResult_t r;
    if (!comm)
        return zipcclSuccess;
    if (group_is_open())
        return fail_thread(zipcclInvalidUsage,
                           "zipcclCommDestroy: not inside a group: comm was not freed, call zipcclGroupEnd first");
    (void)pthread_mutex_lock(&client_lock);
    if (!comm_is_live(comm)) {
        r = fail_thread(zipcclInvalidArgument, "zipcclCommDestroy: comm is not a communicator, or was freed");
        goto out;
    }
    if (comm->ending) {
        r = fail_thread(zipcclInvalidUsage,
                        "zipcclCommDestroy: another thread is in zipcclCommDestroy or zipcclCommAbort of comm");
        goto out;
    }
    comm->ending = true;
    zipcclResult_t waited = session_wait(comm->session, ops_ended, comm, CLIENT_FOREVER);
    (void)waited; /* a session that broke has ended them too */
    comm_finish_ops(comm);
    r = comm_leave(comm, WIRE_COMM_DESTROY, text);
    comm_finish_ops(comm); /* an abort may have come meanwhile */
    /* A communicator that had failed is known to have: leaving it is no new failure. But without an answer, the daemon
     * may still write the buffers, and the caller must know. */
    if (comm->failed != zipcclSuccess && r != zipcclTimeout)
        r = zipcclSuccess;
    if (r != zipcclSuccess)
        (void)fail_thread(r, "zipcclCommDestroy, rank %d of %d: %s", comm->rank, comm->nranks, text);
    comm_free(comm);
out:
    (void)pthread_mutex_unlock(&client_lock);
    return r;
}

zipcclResult_t zipcclCommAbort(zipcclComm_t comm) {
    char text[CLIENT_TEXT_BYTES] = "";
    zipcclResult_t r;
    if (!comm)
        return zipcclSuccess;
    (void)pthread_mutex_lock(&client_lock);
    if (!comm_is_live(comm)) {
        r = fail_thread(zipcclInvalidArgument, "zipcclCommAbort: comm is not a communicator, or was freed");
        goto out;
    }
    bool owner = !comm->ending; /* else the thread that ends it frees it */
    comm->ending = true;
    if (!owner)
        comm->users++;
    if (comm->failed == zipcclSuccess) {
        comm->failed = zipcclAborted;
        (void)snprintf(comm->fail_text, sizeof comm->fail_text, "zipcclCommAbort was called");
    }
    /* The daemon ends the operations, once it no longer touches their memory, and then answers. */
    r = comm_leave(comm, WIRE_COMM_ABORT, text);
    if (r != zipcclSuccess)
        (void)fail_thread(r, "zipcclCommAbort, rank %d of %d: %s", comm->rank, comm->nranks, text);
    comm_fail(comm, comm->failed, comm->fail_text);
    session_wake(comm->session);
    if (owner) {
        comm_finish_ops(comm);
        comm_free(comm);
    } else {
        comm->users--;
        client_notify();
    }
out:
    (void)pthread_mutex_unlock(&client_lock);
    return r;
}

zipcclResult_t zipcclCommGetAsyncError(zipcclComm_t comm, zipcclResult_t *error) {
    zipcclResult_t r = zipcclSuccess;
    if (!error)
        return fail_thread(zipcclInvalidArgument, "zipcclCommGetAsyncError: error is NULL");
    (void)pthread_mutex_lock(&client_lock);
    if (!comm_is_live(comm)) {
        r = fail_thread(zipcclInvalidArgument, "zipcclCommGetAsyncError: comm is %s",
                        comm ? "not a communicator, or was freed" : "NULL");
    } else {
        if (comm->failed == zipcclSuccess)
            (void)session_pump(comm->session);
        *error = comm->failed;
    }
    (void)pthread_mutex_unlock(&client_lock);
    return r;
}

zipcclResult_t zipcclCommCount(zipcclComm_t comm, int *count) {
    if (!valid(comm) || !count)
        return fail_thread(zipcclInvalidArgument, "zipcclCommCount: %s", count ? "comm is not valid" : "count is NULL");
    *count = comm->nranks;
    return zipcclSuccess;
}

zipcclResult_t zipcclCommUserRank(zipcclComm_t comm, int *rank) {
    if (!valid(comm) || !rank)
        return fail_thread(zipcclInvalidArgument, "zipcclCommUserRank: %s",
                           rank ? "comm is not valid" : "rank is NULL");
    *rank = comm->rank;
    return zipcclSuccess;
}

zipcclResult_t zipcclCommSetCodec(zipcclComm_t comm, zipcclCodec_t codec) {
    if (!valid(comm))
        return fail_thread(zipcclInvalidArgument, "zipcclCommSetCodec: comm is not valid");
    if (codec != zipcclCodecAuto && (unsigned)codec >= zipcclNumCodecs)
        return fail_comm(comm, zipcclInvalidArgument, "zipcclCommSetCodec: codec %d does not exist", (int)codec);
    (void)pthread_mutex_lock(&client_lock);
    comm->codec = codec;
    (void)pthread_mutex_unlock(&client_lock);
    return zipcclSuccess;
}

zipcclResult_t zipcclCommSetArm(zipcclComm_t comm, zipcclArm_t arm) {
    if (!valid(comm))
        return fail_thread(zipcclInvalidArgument, "zipcclCommSetArm: comm is not valid");
    if (arm != zipcclArmAuto && (unsigned)arm >= zipcclNumArms)
        return fail_comm(comm, zipcclInvalidArgument, "zipcclCommSetArm: arm %d does not exist", (int)arm);
    (void)pthread_mutex_lock(&client_lock);
    comm->arm = arm;
    (void)pthread_mutex_unlock(&client_lock);
    return zipcclSuccess;
}

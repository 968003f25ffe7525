/* SPDX-License-Identifier: Apache-2.0
 *
 * The operations that reduce, and the reductions that applications make (PreMulSum).
 */
#include <stdlib.h>
#include <string.h>

#include "client/lib/collective.h"
#include "proto/op.h"

/* Of one communicator. Handles are unique in the process, so that one of another communicator is known as such. */
struct redop {
    struct redop *next;
    int handle;
    zipcclDataType_t dtype;
    uint64_t scalar;
};

static int last_handle = zipcclNumRedOps;

static struct redop **find(struct zipcclComm *c, int handle) {
    struct redop **p = &c->redops;
    while (*p && (*p)->handle != handle)
        p = &(*p)->next;
    return p;
}

/* Completes the description; begins with no lock. */
static zipcclResult_t take_redop(struct collective *o, zipcclComm_t comm, zipcclRedOp_t op) {
    zipcclResult_t r = zipcclSuccess;
    o->arm = comm->arm;
    o->redop = op;
    if ((unsigned)op < zipcclPreMulSum)
        return zipcclSuccess;
    if (op == zipcclPreMulSum)
        return fail_comm(comm, zipcclInvalidArgument,
                         "%s: zipcclPreMulSum needs a scalar: pass what zipcclRedOpCreatePreMulSum gives", o->name);
    (void)pthread_mutex_lock(&client_lock);
    const struct redop *made = *find(comm, (int)op);
    if (!made) {
        r = fail_comm(comm, zipcclInvalidArgument,
                      "%s: reduction %d does not exist: it was destroyed, or made for another communicator", o->name,
                      (int)op);
    } else if (made->dtype != o->dtype) {
        r = fail_comm(comm, zipcclInvalidArgument, "%s: reduction %d was made for %s, dtype is %s", o->name, (int)op,
                      collective_dtypes[made->dtype].name, collective_dtypes[o->dtype].name);
    } else if (o->arm == zipcclArmFlat) {
        r = fail_comm(comm, zipcclInvalidArgument,
                      "%s: the flat arm does not do zipcclPreMulSum: zipcclCommSetArm another one", o->name);
    } else {
        o->redop = zipcclPreMulSum;
        o->scalar = made->scalar;
    }
    (void)pthread_mutex_unlock(&client_lock);
    return r;
}

static zipcclResult_t begin(struct collective *o, const char *name, zipcclOp_t kind, zipcclComm_t comm,
                            zipcclStream_t stream, zipcclDataType_t dtype, zipcclRedOp_t op) {
    zipcclResult_t r = collective_begin(o, name, kind, comm, stream, dtype);
    return r == zipcclSuccess ? take_redop(o, comm, op) : r;
}

zipcclResult_t zipcclAllReduce(const void *sendbuff, void *recvbuff, size_t count, zipcclDataType_t dtype,
                               zipcclRedOp_t op, zipcclComm_t comm, zipcclStream_t stream) {
    struct collective o;
    zipcclResult_t r = begin(&o, "zipcclAllReduce", zipcclOpAllReduce, comm, stream, dtype, op);
    if (r == zipcclSuccess)
        r = collective_bytes(&o, comm, "count", count, 1, &o.recv_bytes);
    if (r == zipcclSuccess) {
        o.shape = SEND_IN_RECV;
        o.count = count;
        o.send_bytes = o.recv_bytes;
        r = collective_buffers(&o, comm, sendbuff, recvbuff);
    }
    return collective_submit(&o, r, comm, stream);
}

zipcclResult_t zipcclReduce(const void *sendbuff, void *recvbuff, size_t count, zipcclDataType_t dtype,
                            zipcclRedOp_t op, int root, zipcclComm_t comm, zipcclStream_t stream) {
    struct collective o;
    zipcclResult_t r = begin(&o, "zipcclReduce", zipcclOpReduce, comm, stream, dtype, op);
    if (r == zipcclSuccess)
        r = collective_root(&o, comm, "root", root);
    if (r == zipcclSuccess)
        r = collective_bytes(&o, comm, "count", count, 1, &o.send_bytes);
    if (r == zipcclSuccess) {
        o.shape = SEND_IN_RECV;
        o.count = count;
        o.root = root;
        o.recv_bytes = comm->rank == root ? o.send_bytes : 0;
        r = collective_buffers(&o, comm, sendbuff, recvbuff);
    }
    return collective_submit(&o, r, comm, stream);
}

zipcclResult_t zipcclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount, zipcclDataType_t dtype,
                                   zipcclRedOp_t op, zipcclComm_t comm, zipcclStream_t stream) {
    struct collective o;
    zipcclResult_t r = begin(&o, "zipcclReduceScatter", zipcclOpReduceScatter, comm, stream, dtype, op);
    if (r == zipcclSuccess)
        r = collective_bytes(&o, comm, "recvcount", recvcount, (size_t)comm->nranks, &o.send_bytes);
    if (r == zipcclSuccess) {
        o.shape = RECV_IN_SEND;
        o.count = recvcount;
        o.recv_bytes = o.send_bytes / (size_t)comm->nranks;
        o.own = o.recv_bytes * (size_t)comm->rank;
        r = collective_buffers(&o, comm, sendbuff, recvbuff);
    }
    return collective_submit(&o, r, comm, stream);
}

zipcclResult_t zipcclReduceScatterv(const void *sendbuff, void *recvbuff, const size_t *counts, zipcclDataType_t dtype,
                                    zipcclRedOp_t op, zipcclComm_t comm, zipcclStream_t stream) {
    struct collective o;
    zipcclResult_t r = begin(&o, "zipcclReduceScatterv", zipcclOpReduceScatterv, comm, stream, dtype, op);
    if (r == zipcclSuccess)
        r = collective_take_counts(&o, comm, counts, &o.send_bytes, &o.recv_bytes);
    o.shape = RECV_IN_SEND;
    if (r == zipcclSuccess)
        r = collective_buffers(&o, comm, sendbuff, recvbuff);
    return collective_submit(&o, r, comm, stream);
}

/* The next number that no communicator uses; lock held. */
static int new_handle(void) {
    do
        last_handle = last_handle >= zipcclMaxRedOp - 1 ? zipcclNumRedOps + 1 : last_handle + 1;
    while (comms_use_redop(last_handle));
    return last_handle;
}

bool redops_hold(struct zipcclComm *comm, int handle) {
    return *find(comm, handle);
}

zipcclResult_t zipcclRedOpCreatePreMulSum(zipcclRedOp_t *op, const void *scalar, zipcclDataType_t dtype,
                                          zipcclComm_t comm) {
    struct collective o;
    zipcclResult_t r =
        collective_begin(&o, "zipcclRedOpCreatePreMulSum", zipcclOpAllReduce, comm, /* stream */ NULL, dtype);
    if (r != zipcclSuccess)
        return r;
    if (!op || !scalar)
        return fail_comm(comm, zipcclInvalidArgument, "%s: %s is NULL", o.name, op ? "scalar" : "op");
    struct redop *made = calloc(1, sizeof *made);
    if (!made)
        return fail_comm(comm, zipcclOutOfMemory, "%s: no memory", o.name);
    made->dtype = dtype;
    memcpy(&made->scalar, scalar, collective_dtypes[dtype].bytes);
    (void)pthread_mutex_lock(&client_lock);
    made->handle = new_handle();
    made->next = comm->redops;
    comm->redops = made;
    *op = (zipcclRedOp_t)made->handle;
    (void)pthread_mutex_unlock(&client_lock);
    return zipcclSuccess;
}

zipcclResult_t zipcclRedOpDestroy(zipcclRedOp_t op, zipcclComm_t comm) {
    zipcclResult_t r = zipcclSuccess;
    if (!comm || comm->magic != CLIENT_COMM_MAGIC)
        return fail_thread(zipcclInvalidArgument, "zipcclRedOpDestroy: comm is %s",
                           comm ? "not a communicator, or was freed" : "NULL");
    (void)pthread_mutex_lock(&client_lock);
    struct redop **p = find(comm, (int)op), *made = *p;
    if (made)
        *p = made->next;
    else
        r = fail_comm(comm, zipcclInvalidArgument,
                      "zipcclRedOpDestroy: reduction %d is none that zipcclRedOpCreatePreMulSum made for this "
                      "communicator, or was destroyed",
                      (int)op);
    (void)pthread_mutex_unlock(&client_lock);
    free(made);
    return r;
}

void redops_free(struct zipcclComm *comm) {
    for (struct redop *r = comm->redops, *next; r; r = next) {
        next = r->next;
        free(r);
    }
    comm->redops = NULL;
}

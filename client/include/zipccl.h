/* SPDX-License-Identifier: Apache-2.0
 *
 * libzipccl: collectives that travel losslessly compressed, in the shape of NCCL's API.
 *
 * The library speaks to zipccld, the daemon of this node, over a Unix socket. The socket is
 * $ZIPCCL_SOCKET, else /run/zipccl/zipccld.sock. The job is $ZIPCCL_JOB_ID, else $SLURM_JOB_ID,
 * else "default"; a job belongs to the user who first named it on a node.
 *
 * Threads: all functions may be called from any thread. Calls on one communicator must not run
 * at the same time in two threads (as with NCCL), except zipcclCommAbort and
 * zipcclCommGetAsyncError. An abort that meets a destroy of the same communicator ends its operations and
 * leaves the freeing to it.
 *
 * Forks: a child must not use inherited communicators or streams: it makes its own. Memory of zipcclMemAlloc
 * stays one memory that parent and child share.
 *
 * Waiting: while waits are short, a thread that waits looks at the socket for up to $ZIPCCL_SPIN_US microseconds
 * (default 50, at most 10000; 0: never) before it sleeps, yielding the processor in between.
 *
 * Ordering: every rank of a communicator issues the same operations in the same order.
 *
 * Errors: an operation that fails ends its communicator on all ranks. Its buffers may be written until
 * zipcclCommDestroy or zipcclCommAbort has returned; their contents are undefined. Where one of these returns
 * zipcclTimeout, zipccld did not say that it is done with the buffers of operations under way: those of
 * zipcclMemAlloc may still be written, and must be freed (zipcclMemFree), not reused.
 *
 * Bits: data movement is bit-exact for every value of every dtype, NaN payloads and -0 included.
 */
#ifndef ZIPCCL_H
#define ZIPCCL_H

#include <stddef.h>
#include <stdint.h>

#include "zipccl_types.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#    define ZIPCCL_API __attribute__((visibility("default")))
#else
#    define ZIPCCL_API
#endif

#define ZIPCCL_MAJOR           0
#define ZIPCCL_MINOR           1
#define ZIPCCL_PATCH           0
#define ZIPCCL_VERSION_CODE    (ZIPCCL_MAJOR * 10000 + ZIPCCL_MINOR * 100 + ZIPCCL_PATCH)
#define ZIPCCL_UNIQUE_ID_BYTES 128

/* Opaque. A communicator is one rank's handle; it is freed by zipcclCommDestroy or Abort. */
typedef struct zipcclComm *zipcclComm_t;
/* Opaque. An ordered queue of operations; operations of one stream complete in order. */
typedef struct zipcclStream *zipcclStream_t;
/* Names a communicator to be; made by one rank, handed to all by the application (MPI, a file...). */
typedef struct {
    char internal[ZIPCCL_UNIQUE_ID_BYTES];
} zipcclUniqueId;

/* Version of the library, ZIPCCL_VERSION_CODE of the build. */
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclGetVersion(int *version);

/* A short constant text for a result; never NULL. */
ZIPCCL_API const char *zipcclGetErrorString(zipcclResult_t result);
/* What went wrong last on this communicator (comm NULL: in this thread, outside a communicator),
 * with rank, operation and remedy. Never NULL; valid until the next failing call or destroy. */
ZIPCCL_API const char *zipcclGetLastError(zipcclComm_t comm);

/* Makes an id at this node's daemon, which becomes the meeting point of the communicator. */
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclGetUniqueId(zipcclUniqueId *id);

/* Joins the communicator `id` as `rank` of `nranks`. Blocks until all ranks joined, or until the
 * daemon's join_timeout, which gives zipcclTimeout and names the missing ranks.
 * The caller owns *comm. */
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclCommInitRank(zipcclComm_t *comm, int nranks, zipcclUniqueId id,
                                                               int rank);
/* Waits for outstanding operations, leaves, and frees comm. comm is invalid afterwards, whatever
 * is returned. zipcclTimeout: zipccld did not answer; see Errors above for the buffers. */
ZIPCCL_API zipcclResult_t zipcclCommDestroy(zipcclComm_t comm);
/* Ends outstanding operations of all ranks with zipcclAborted and frees comm. zipcclTimeout: as for
 * zipcclCommDestroy. */
ZIPCCL_API zipcclResult_t zipcclCommAbort(zipcclComm_t comm);
/* *error becomes zipcclSuccess while the communicator works, else why it does not. Never blocks. */
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclCommGetAsyncError(zipcclComm_t comm, zipcclResult_t *error);
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclCommCount(zipcclComm_t comm, int *count);
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclCommUserRank(zipcclComm_t comm, int *rank);
/* Pins the codec of this communicator's later operations (zipcclCodecAuto undoes it). Every rank
 * must pin alike; ranks that differ get zipcclInvalidArgument from the next operation. */
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclCommSetCodec(zipcclComm_t comm, zipcclCodec_t codec);

/* Pins how this communicator's later reductions move their data (zipcclArmAuto undoes it); every rank must pin alike.
 * Flat is refused (zipcclInvalidArgument) where it would move more than twice the hierarchical arm's bytes between
 * nodes, and for zipcclPreMulSum. */
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclCommSetArm(zipcclComm_t comm, zipcclArm_t arm);

/* Ranks of comm that give the same color (>= 0) form a new communicator, ordered by key, then by rank. Called by all
 * ranks of comm, when no operation is under way; with ZIPCCL_SPLIT_NOCOLOR a rank joins none and *newcomm is NULL. */
#define ZIPCCL_SPLIT_NOCOLOR (-1)
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclCommSplit(zipcclComm_t comm, int color, int key,
                                                            zipcclComm_t *newcomm);

/* Streams. An operation given a stream returns once it is queued; its buffers belong to zipccl
 * until the stream says that it is done. An operation given NULL returns when it is done.
 * With 1000 operations of its communicator under way, queueing waits for the first to be done. */
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclStreamCreate(zipcclStream_t *stream);
/* Waits for all operations queued so far; returns the first error among them, once. */
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclStreamSynchronize(zipcclStream_t stream);
/* zipcclSuccess: all done. zipcclInProgress: not yet. Else the first error. Never blocks. */
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclStreamQuery(zipcclStream_t stream);
/* Waits, then frees. */
ZIPCCL_API zipcclResult_t zipcclStreamDestroy(zipcclStream_t stream);

/* Memory shared with the daemon: operations on it need no copy. Zeroed, 4 KiB aligned, resident.
 * Freed by zipcclMemFree, which waits for operations that use it. */
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclMemAlloc(void **ptr, size_t bytes);
ZIPCCL_API zipcclResult_t zipcclMemFree(void *ptr);
/* Prepares memory that zipccl did not allocate: keeps a shared staging area of the same size, so
 * that later operations on the range allocate nothing (they still copy). Optional: any pointer
 * works without it. *handle is freed by zipcclMemDeregister. */
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclMemRegister(void *ptr, size_t bytes, void **handle);
ZIPCCL_API zipcclResult_t zipcclMemDeregister(void *handle);

/* Collectives. Counts are in elements of dtype, equal on all ranks.
 *
 * recvbuff holds nranks * sendcount elements, rank r's at r * sendcount. In place where
 * sendbuff == recvbuff + rank * sendcount elements. */
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount,
                                                            zipcclDataType_t dtype, zipcclComm_t comm,
                                                            zipcclStream_t stream);
/* sendbuff is read on root alone and may be NULL elsewhere; in place where equal to recvbuff. */
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclBroadcast(const void *sendbuff, void *recvbuff, size_t count,
                                                            zipcclDataType_t dtype, int root, zipcclComm_t comm,
                                                            zipcclStream_t stream);
/* Done when every rank has called it. */
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclBarrier(zipcclComm_t comm, zipcclStream_t stream);

/* Reductions; what they compute, in which order and with which roundings: zipcclRedOp_t.
 *
 * sendbuff and recvbuff hold count elements each; in place where equal. */
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclAllReduce(const void *sendbuff, void *recvbuff, size_t count,
                                                            zipcclDataType_t dtype, zipcclRedOp_t op, zipcclComm_t comm,
                                                            zipcclStream_t stream);
/* recvbuff is written on root alone and may be NULL elsewhere. */
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclReduce(const void *sendbuff, void *recvbuff, size_t count,
                                                         zipcclDataType_t dtype, zipcclRedOp_t op, int root,
                                                         zipcclComm_t comm, zipcclStream_t stream);
/* sendbuff holds nranks * recvcount elements; rank r gets the result of those at r * recvcount. In place where
 * recvbuff == sendbuff + rank * recvcount elements. */
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
                                                                zipcclDataType_t dtype, zipcclRedOp_t op,
                                                                zipcclComm_t comm, zipcclStream_t stream);
/* A reduction that multiplies this rank's values by *scalar (of dtype) first. Every rank makes its own, and calls the
 * operation with it; other dtypes are refused. Freed by zipcclRedOpDestroy or with the communicator. */
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclRedOpCreatePreMulSum(zipcclRedOp_t *op, const void *scalar,
                                                                       zipcclDataType_t dtype, zipcclComm_t comm);
ZIPCCL_API zipcclResult_t zipcclRedOpDestroy(zipcclRedOp_t op, zipcclComm_t comm);

/* As the operations without v, but with counts[r] elements of rank r, equal on all ranks; parts lie one after another.
 * counts is read during the call. In place as there. */
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclAllGatherv(const void *sendbuff, void *recvbuff, const size_t *counts,
                                                             zipcclDataType_t dtype, zipcclComm_t comm,
                                                             zipcclStream_t stream);
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclReduceScatterv(const void *sendbuff, void *recvbuff,
                                                                 const size_t *counts, zipcclDataType_t dtype,
                                                                 zipcclRedOp_t op, zipcclComm_t comm,
                                                                 zipcclStream_t stream);

/* Both buffers hold nranks * count elements: those at p * count go to, and come from, rank p. The buffers must not
 * overlap (here and in all-to-all-v). */
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclAllToAll(const void *sendbuff, void *recvbuff, size_t count,
                                                           zipcclDataType_t dtype, zipcclComm_t comm,
                                                           zipcclStream_t stream);
/* sendcounts[p] elements at sendbuff + senddispls[p] go to rank p; recvcounts[p] come to recvbuff + recvdispls[p] from
 * it, and must equal what p sends. displs NULL: the parts lie one after another. Arrays are read during the call. */
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclAllToAllv(const void *sendbuff, const size_t *sendcounts,
                                                            const size_t *senddispls, void *recvbuff,
                                                            const size_t *recvcounts, const size_t *recvdispls,
                                                            zipcclDataType_t dtype, zipcclComm_t comm,
                                                            zipcclStream_t stream);
/* An all-to-all-v whose counts no host needs to know when it calls: both buffers hold nranks * max_count elements, and
 * what goes to, or comes from, rank p starts at p * max_count. sendcounts[p] elements go to p; each must be at most
 * max_count, else the communicator fails with zipcclInvalidArgument, which names both ranks. recvcounts[p] becomes the
 * number of elements that came from p; what lies behind them in its segment stays as it was. max_count is equal on all
 * ranks.
 * Both arrays hold nranks counts, aligned to 8 bytes, and are buffers like sendbuff and recvbuff: they belong to zipccl
 * until the operation is done. In memory of zipcclMemAlloc, sendcounts is read when the operation runs, which is after
 * the operations that this rank issued before it on this communicator: one of these may write it. Other memory is
 * staged, so that it is read during the call (sendbuff: whole segments, where sendcounts is not). Of the four, only
 * sendbuff and sendcounts may overlap. */
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclAllToAllCapped(const void *sendbuff, const uint64_t *sendcounts,
                                                                 void *recvbuff, uint64_t *recvcounts, size_t max_count,
                                                                 zipcclDataType_t dtype, zipcclComm_t comm,
                                                                 zipcclStream_t stream);
/* count elements of every rank; recvbuff (root alone) holds nranks * count. In place on root where sendbuff ==
 * recvbuff + root * count elements. */
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclGather(const void *sendbuff, void *recvbuff, size_t count,
                                                         zipcclDataType_t dtype, int root, zipcclComm_t comm,
                                                         zipcclStream_t stream);
/* sendbuff (root alone) holds nranks * count elements; rank r gets those at r * count. In place on root where recvbuff
 * == sendbuff + root * count elements. */
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclScatter(const void *sendbuff, void *recvbuff, size_t count,
                                                          zipcclDataType_t dtype, int root, zipcclComm_t comm,
                                                          zipcclStream_t stream);

/* Between two ranks: a send meets the peer's receive of the same count and dtype, in the order in which each of the two
 * issues them. Both may wait for each other: where ranks send and receive at once, put the calls in a group. */
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclSend(const void *sendbuff, size_t count, zipcclDataType_t dtype,
                                                       int peer, zipcclComm_t comm, zipcclStream_t stream);
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclRecv(void *recvbuff, size_t count, zipcclDataType_t dtype, int peer,
                                                       zipcclComm_t comm, zipcclStream_t stream);

/* Between start and end (of this thread; they nest) operations are only noted, arguments checked; the outermost end
 * issues them as one: they run side by side, and are done together. All use one stream for each communicator. Ranks
 * must group the same collectives (not the same sends and receives). The end returns the first error of the notes too;
 * then nothing was issued. At most 4096 operations of a communicator, 256 of them collectives
 * other than all-to-all, gather and scatter; not zipcclBarrier, zipcclCommInitRank, CommSplit, Destroy. */
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclGroupStart(void);
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclGroupEnd(void);

#ifdef __cplusplus
}
#endif
#endif

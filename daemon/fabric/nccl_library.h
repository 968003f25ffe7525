/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions of NCCL and of the CUDA runtime that are in use, found when the fabric is opened.
 */
#ifndef ZIPCCL_DAEMON_FABRIC_NCCL_LIBRARY_H
#define ZIPCCL_DAEMON_FABRIC_NCCL_LIBRARY_H

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "daemon/fabric/nccl_launch.h"
#include "zipccl_types.h"

/* The functions of the libraries; those of `LATER` may be missing. */
#define NCCL_FUNCTIONS(X)                                                                                              \
    X(ncclResult_t, ncclGetVersion, (int *))                                                                           \
    X(ncclResult_t, ncclGetUniqueId, (ncclUniqueId *))                                                                 \
    X(ncclResult_t, ncclCommInitRankConfig, (ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *))                    \
    X(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t, ncclResult_t *))                                               \
    X(ncclResult_t, ncclCommFinalize, (ncclComm_t))                                                                    \
    X(ncclResult_t, ncclCommDestroy, (ncclComm_t))                                                                     \
    X(ncclResult_t, ncclCommAbort, (ncclComm_t))                                                                       \
    X(ncclResult_t, ncclSend, (const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))                   \
    X(ncclResult_t, ncclRecv, (void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))                         \
    X(ncclResult_t, ncclAllGather, (const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t))           \
    X(ncclResult_t, ncclBroadcast, (const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))      \
    X(ncclResult_t, ncclReduceScatter,                                                                                 \
      (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t))                           \
    X(ncclResult_t, ncclAllReduce,                                                                                     \
      (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t))                           \
    X(ncclResult_t, ncclReduce,                                                                                        \
      (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t, cudaStream_t))                      \
    X(ncclResult_t, ncclGroupStart, (void))                                                                            \
    X(ncclResult_t, ncclGroupEnd, (void))
#define NCCL_LATER(X)                                                                                                  \
    X(NCCL_SPLIT_SINCE, ncclResult_t, ncclCommSplit, (ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *))             \
    X(21900, ncclResult_t, ncclCommRegister, (ncclComm_t, void *, size_t, void **))                                    \
    X(21900, ncclResult_t, ncclCommDeregister, (ncclComm_t, void *))                                                   \
    X(22807, ncclResult_t, ncclCommRevoke, (ncclComm_t, int))
#define NCCL_CUDA(X)                                                                                                   \
    X(cudaError_t, cudaGetDeviceCount, (int *))                                                                        \
    X(cudaError_t, cudaSetDevice, (int))                                                                               \
    X(cudaError_t, cudaStreamCreateWithPriority, (cudaStream_t *, unsigned, int))                                      \
    X(cudaError_t, cudaStreamQuery, (cudaStream_t))                                                                    \
    X(cudaError_t, cudaStreamDestroy, (cudaStream_t))                                                                  \
    X(cudaError_t, cudaEventCreateWithFlags, (cudaEvent_t *, unsigned))                                                \
    X(cudaError_t, cudaEventDestroy, (cudaEvent_t))                                                                    \
    X(cudaError_t, cudaEventRecord, (cudaEvent_t, cudaStream_t))                                                       \
    X(cudaError_t, cudaEventQuery, (cudaEvent_t))                                                                      \
    X(cudaError_t, cudaMemcpyAsync, (void *, const void *, size_t, enum cudaMemcpyKind, cudaStream_t))                 \
    X(cudaError_t, cudaHostAlloc, (void **, size_t, unsigned))                                                         \
    X(cudaError_t, cudaFreeHost, (void *))                                                                             \
    X(cudaError_t, cudaGetLastError, (void))                                                                           \
    X(cudaError_t, cudaPointerGetAttributes, (struct cudaPointerAttributes *, const void *))

struct nccl_library {
    void *nccl, *cudart;
    int version;
#define NCCL_POINTER(type, name, args)              type(*name) args;
#define NCCL_LATER_POINTER(since, type, name, args) type(*name) args;
    NCCL_FUNCTIONS(NCCL_POINTER)
    NCCL_LATER(NCCL_LATER_POINTER)
    NCCL_CUDA(NCCL_POINTER)
};

/* *why: static text for people. */
ZIPCCL_MUST_CHECK zipcclResult_t nccl_library_load(struct nccl_library *library, const char **why);
void nccl_library_unload(struct nccl_library *library);

#endif

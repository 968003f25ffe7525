/* SPDX-License-Identifier: Apache-2.0
 *
 * libzipccl on CUDA: the operations of zipccl.h in the order of a CUDA stream. Needs no header of CUDA, and the library
 * links to none of its libraries: the driver is found at run time.
 *
 * An operation given such a stream returns once it is queued. It starts when the CUDA stream comes to it, and what is put
 * on the CUDA stream after it starts when it is done; no thread of the caller waits for the GPU. Where an operation
 * fails, the CUDA stream goes on with undefined contents in its buffers, and zipcclCommGetAsyncError says so: look at it
 * as with NCCL. The same holds where zipccld ends.
 *
 * Memory: cudaMalloc's and VMM allocations that can be exported by descriptor are shared with the daemon and not copied;
 * with an allocation, all of it is shared. Other memory (managed, of memory pools, buffers that span several VMM
 * allocations) goes through a pinned staging area by copies in the stream.
 *
 * CUDA graphs: an operation on a stream that is being captured is refused with zipcclInvalidUsage.
 */
#ifndef ZIPCCL_CUDA_H
#define ZIPCCL_CUDA_H

#include "zipccl.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* cudaStream_t and CUstream point to it */

/* A stream that stands for cuda_stream (NULL: the legacy default stream), which is of the current device and must outlive
 * it. zipcclInvalidUsage where this process has no CUDA driver, or this node's zipccld no GPU. zipcclStreamSynchronize waits for both; zipcclStreamDestroy too, and it leaves cuda_stream alone. */
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclStreamFromCuda(zipcclStream_t *stream,
                                                                 struct CUstream_st *cuda_stream);
/* The allocation that holds ptr is about to be freed, and no operation uses it: the daemon lets go of it. Without this
 * it does so when the address is used for other memory, or when the process ends; until then the memory is not free. */
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclCudaForget(const void *ptr);

#ifdef __cplusplus
}
#endif
#endif

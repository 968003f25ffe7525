/* SPDX-License-Identifier: Apache-2.0
 *
 * libzipccl on CUDA: the operations of zipccl.h in the order of a CUDA stream. Needs no header of CUDA, and the library
 * links to none of its libraries: the driver is found at run time.
 *
 * An operation given such a stream returns once it is queued. It starts when the CUDA stream comes to it, and what is
 * put on the CUDA stream after it starts when it is done; no thread of the caller waits for the GPU. Where an operation
 * fails, the CUDA stream goes on with undefined contents in its buffers, and zipcclCommGetAsyncError says so: look at
 * it as with NCCL. The same holds where zipccld ends.
 *
 * Memory: cudaMalloc's and VMM allocations that can be exported by descriptor are shared with the daemon and not
 * copied; with an allocation, all of it is shared. Other memory (managed, of memory pools, buffers that span several
 * VMM allocations, pinned host memory) goes through a pinned staging area by copies in the stream; memory of
 * zipcclMemAlloc does not, and is pinned at its first use in a CUDA stream. Pageable memory is refused.
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

/* A stream that stands for cuda_stream (NULL: the legacy default stream), which is of the current device and must
 * outlive it. zipcclInvalidUsage where this process has no CUDA driver, or this node's zipccld no GPU.
 * zipcclStreamSynchronize waits for both; zipcclStreamDestroy too, and it leaves cuda_stream alone. */
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclStreamFromCuda(zipcclStream_t *stream,
                                                                 struct CUstream_st *cuda_stream);
/* Call before memory that operations have used is freed (cudaFree, cuMemUnmap), when none uses it any more: returns
 * when the daemon has let go of the allocation that holds ptr. CUDA does not define what becomes of memory that is
 * freed while another process has it open. Memory that zipccl does not know is fine. */
ZIPCCL_API ZIPCCL_MUST_CHECK zipcclResult_t zipcclCudaForget(const void *ptr);

#ifdef __cplusplus
}
#endif
#endif

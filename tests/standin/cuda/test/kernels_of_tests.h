/* SPDX-License-Identifier: Apache-2.0
 *
 * Launchers of the kernels of the stand-in's own tests.
 */
#ifndef ZIPCCL_TESTS_STANDIN_KERNELS_OF_TESTS_H
#define ZIPCCL_TESTS_STANDIN_KERNELS_OF_TESTS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
cudaError_t launch_add(uint32_t *values, uint32_t count, uint32_t what, cudaStream_t stream);
/* Writes 32 words at an address that may be wrong. */
cudaError_t launch_touch(uint32_t *at, cudaStream_t stream);
/* A kernel that the stand-in does not have. */
cudaError_t launch_missing(uint32_t *at, cudaStream_t stream);
cudaError_t launch_big_block(uint8_t *out, unsigned threads, unsigned shared, bool allow, int *blocks,
                             cudaStream_t stream);
#ifdef __cplusplus
}
#endif
#endif

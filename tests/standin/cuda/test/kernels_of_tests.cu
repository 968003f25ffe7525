/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels of the stand-in's own tests, with launchers that C can call.
 */
#include "kernels_of_tests.h"

extern "C" __global__ void test_add(uint32_t *values, uint32_t count, uint32_t what) {
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        values[i] += what;
}

extern "C" __global__ void test_touch(uint32_t *at) {
    at[threadIdx.x] = 1;
}

extern "C" __global__ void test_big_block(uint8_t *out) {
    extern __shared__ uint8_t room[];
    room[threadIdx.x] = static_cast<uint8_t>(threadIdx.x);
    __syncthreads();
    out[threadIdx.x] = room[blockDim.x - 1 - threadIdx.x];
}

/* PTX of this one is not translated: it stands for a kernel that the stand-in lacks. */
#ifndef ZIPCCL_STANDIN_PTX
extern "C" __global__ void test_missing(uint32_t *at) {
    *at = 2;
}
#endif

cudaError_t launch_add(uint32_t *values, uint32_t count, uint32_t what, cudaStream_t stream) {
    test_add<<<2, 64, 0, stream>>>(values, count, what);
    return cudaGetLastError();
}

cudaError_t launch_touch(uint32_t *at, cudaStream_t stream) {
    test_touch<<<1, 32, 0, stream>>>(at);
    return cudaGetLastError();
}

cudaError_t launch_missing(uint32_t *at, cudaStream_t stream) {
#ifndef ZIPCCL_STANDIN_PTX
    test_missing<<<1, 1, 0, stream>>>(at);
#endif
    return cudaGetLastError();
}

cudaError_t launch_big_block(uint8_t *out, unsigned threads, unsigned shared, bool allow, int *blocks,
                             cudaStream_t stream) {
    cudaError_t e = cudaSuccess;
    if (allow)
        e = cudaFuncSetAttribute(test_big_block, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    if (e == cudaSuccess)
        e = cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, test_big_block, static_cast<int>(threads), shared);
    if (e == cudaSuccess) {
        test_big_block<<<1, threads, shared, stream>>>(out);
        e = cudaGetLastError();
    }
    return e;
}

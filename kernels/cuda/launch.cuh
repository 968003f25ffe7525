/* SPDX-License-Identifier: Apache-2.0
 *
 * What the launchers share: the device in hand, the grid of a kernel, the start of a call.
 */
#ifndef ZIPCCL_KERNELS_CUDA_LAUNCH_CUH
#define ZIPCCL_KERNELS_CUDA_LAUNCH_CUH

#include "kernels/cuda/codec_cuda.h"
#include "kernels/cuda/plan.h"

#include <cuda_runtime.h>

namespace zip {

inline zipcclResult_t result_of(cudaError_t e) {
    return e == cudaSuccess ? zipcclSuccess : zipcclUnhandledDeviceError;
}

/* What a launch needs of the current device. */
struct Device {
    int sms = 0, shared = 0;
    cudaError_t error;
    Device() {
        int device = 0;
        error = cudaGetDevice(&device);
        if (error == cudaSuccess)
            error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
        if (error == cudaSuccess)
            error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    }
};

/* A call in the making; Row: of its table. */
template <class Row> struct Call {
    Work work;
    Device device;
    const Row *table;
    zipccl_cuda_result *results;
    uint64_t tiles;
    unsigned max_sms;
    cudaStream_t stream;
};

/* Blocks of a kernel: as many as the allowed multiprocessors hold, and no more than there are tiles. */
template <class Row, class K> cudaError_t grid_of(const Call<Row> &c, K kernel, size_t shared, unsigned *grid) {
    int blocks = 0;
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    if (e == cudaSuccess)
        e = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kBlockThreads, shared);
    const unsigned all = static_cast<unsigned>(c.device.sms), sms = c.max_sms && c.max_sms < all ? c.max_sms : all;
    const uint64_t room = static_cast<uint64_t>(sms) * (blocks > 0 ? static_cast<unsigned>(blocks) : 1u);
    *grid = static_cast<unsigned>(room < c.tiles ? room : c.tiles);
    return e;
}

template <class Row, class K, class... A> zipcclResult_t start(const Call<Row> &c, K kernel, size_t shared, A... more) {
    unsigned grid = 0;
    const cudaError_t e = grid_of(c, kernel, shared, &grid);
    if (e != cudaSuccess)
        return result_of(e);
    kernel<<<grid, kBlockThreads, shared, c.stream>>>(c.work, c.table, c.results, more...);
    return result_of(cudaGetLastError());
}

/* The part that all calls have in common: a cleared workspace. What prepares the table has to follow. */
template <class Row>
zipcclResult_t begin(Call<Row> *c, uint32_t segments, uint64_t total_values, void *workspace, void *stream) {
    c->tiles = tiles_of(segments, total_values);
    c->stream = static_cast<cudaStream_t>(stream);
    if (c->device.error != cudaSuccess)
        return result_of(c->device.error);
    if (c->tiles > 0x7fffffffu)
        return zipcclInvalidArgument;
    c->work = work_of(workspace, segments, c->tiles);
    return result_of(cudaMemsetAsync(workspace, 0, zipccl_cuda_workspace(segments, total_values), c->stream));
}

} // namespace zip

#endif

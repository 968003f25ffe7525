/* SPDX-License-Identifier: Apache-2.0
 *
 * The launcher: looks up a codec's and dtype's kernels, sizes the grid, enqueues prepare, window and kernel.
 */
#include "kernels/cuda/codec_cuda.h"

#include "kernels/cuda/codec_kernels.cuh"
#include "kernels/cuda/plan.h"

#include <cuda_runtime.h>

namespace {

using Plain = void (*)(zip::Work, const zipccl_cuda_segment *, zipccl_cuda_result *);
using Add = void (*)(zip::Work, const zipccl_cuda_segment *, zipccl_cuda_result *, uint32_t, uint32_t);
using Window = void (*)(zip::Work, const zipccl_cuda_segment *);

struct Row {
    zipcclCodec_t codec;
    zipcclDataType_t dtype;
    Plain encode, reread, decode;
    Add add;
    Window window;
};
#define ROW(name, codec, type, dtype)                                                                                  \
    {codec,                                                                                                            \
     dtype,                                                                                                            \
     zip_encode_##name##_##type,                                                                                       \
     dtype == zipcclFloat32 ? zip_encode_##name##_fp32_reread : nullptr,                                               \
     zip_decode_##name##_##type,                                                                                       \
     zip_decode_add_##name##_##type,                                                                                   \
     codec == zipcclCodecTop7 ? zip_window_##type : nullptr},
const Row g_rows[] = {ZIP_CASES(ROW)};
#undef ROW

const Row *row_of(zipcclCodec_t codec, zipcclDataType_t dtype) {
    for (const Row &r : g_rows)
        if (r.codec == codec && r.dtype == dtype)
            return &r;
    return nullptr;
}

zipcclResult_t result_of(cudaError_t e) {
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

/* A call in the making. */
struct Call {
    zip::Work work;
    Device device;
    const zipccl_cuda_segment *table;
    zipccl_cuda_result *results;
    uint64_t tiles;
    unsigned max_sms;
    cudaStream_t stream;
};

/* Blocks of a kernel: as many as the allowed multiprocessors hold, and no more than there are tiles. */
template <class K> cudaError_t grid_of(const Call &c, K kernel, size_t shared, unsigned *grid) {
    int blocks = 0;
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    if (e == cudaSuccess)
        e = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, zip::kBlockThreads, shared);
    const unsigned all = static_cast<unsigned>(c.device.sms), sms = c.max_sms && c.max_sms < all ? c.max_sms : all;
    const uint64_t room = static_cast<uint64_t>(sms) * (blocks > 0 ? static_cast<unsigned>(blocks) : 1u);
    *grid = static_cast<unsigned>(room < c.tiles ? room : c.tiles);
    return e;
}

template <class K, class... A> zipcclResult_t start(const Call &c, K kernel, size_t shared, A... more) {
    unsigned grid = 0;
    const cudaError_t e = grid_of(c, kernel, shared, &grid);
    if (e != cudaSuccess)
        return result_of(e);
    kernel<<<grid, zip::kBlockThreads, shared, c.stream>>>(c.work, c.table, c.results, more...);
    return result_of(cudaGetLastError());
}

/* The part that all calls have in common. */
zipcclResult_t begin(Call *c, unsigned stride, uint32_t segments, uint64_t total_values, void *workspace,
                     void *stream) {
    c->tiles = zip::tiles_of(segments, total_values);
    c->stream = static_cast<cudaStream_t>(stream);
    if (c->device.error != cudaSuccess)
        return result_of(c->device.error);
    if (c->tiles > 0x7fffffffu)
        return zipcclInvalidArgument;
    c->work = zip::work_of(workspace, segments, c->tiles);
    const cudaError_t e = cudaMemsetAsync(workspace, 0, zipccl_cuda_workspace(segments, total_values), c->stream);
    if (e != cudaSuccess)
        return result_of(e);
    zip_prepare<<<1, zip::kBlockThreads, 0, c->stream>>>(c->work, c->table, stride, c->results);
    return result_of(cudaGetLastError());
}

} // namespace

size_t zipccl_cuda_workspace(uint32_t segments, uint64_t total_values) {
    return zip::work_words(segments, zip::tiles_of(segments, total_values)) * sizeof(uint32_t);
}

zipcclResult_t zipccl_cuda_encode(zipcclCodec_t codec, zipcclDataType_t dtype, const zipccl_cuda_segment *table,
                                  uint32_t segments, uint64_t total_values, zipccl_cuda_result *results,
                                  void *workspace, unsigned max_sms, void *stream) {
    const Row *row = row_of(codec, dtype);
    if (!row)
        return zipcclInvalidArgument;
    if (segments == 0)
        return zipcclSuccess;
    Call c = {};
    c.table = table, c.results = results, c.max_sms = max_sms;
    zipcclResult_t r = begin(&c, 1, segments, total_values, workspace, stream);
    if (r != zipcclSuccess)
        return r;
    if (row->window) {
        const unsigned all = static_cast<unsigned>(c.device.sms), sms = max_sms && max_sms < all ? max_sms : all;
        const unsigned grid = segments > sms ? sms : segments;
        row->window<<<grid, zip::kBlockThreads, 0, c.stream>>>(c.work, table);
        r = result_of(cudaGetLastError());
        if (r != zipcclSuccess)
            return r;
    }
    constexpr int small = 2048; /* bytes of static shared memory, at most */
    if (dtype != zipcclFloat32)
        return start(c, row->encode, zip::kEncodeShared);
    if (c.device.shared < static_cast<int>(zip::kEncodeSharedFp32) + small)
        return start(c, row->reread, zip::kEncodeShared);
    return start(c, row->encode, zip::kEncodeSharedFp32);
}

zipcclResult_t zipccl_cuda_decode(zipcclCodec_t codec, zipcclDataType_t dtype, const zipccl_cuda_segment *table,
                                  uint32_t segments, uint64_t total_values, zipccl_cuda_result *results,
                                  void *workspace, unsigned max_sms, void *stream) {
    const Row *row = row_of(codec, dtype);
    if (!row)
        return zipcclInvalidArgument;
    if (segments == 0)
        return zipcclSuccess;
    Call c = {};
    c.table = table, c.results = results, c.max_sms = max_sms;
    const zipcclResult_t r = begin(&c, 1, segments, total_values, workspace, stream);
    return r != zipcclSuccess
               ? r
               : start(c, row->decode, codec == zipcclCodecTier ? zip::kDecodeSharedTier : zip::kDecodeSharedTop7);
}

zipcclResult_t zipccl_cuda_decode_add(zipcclCodec_t codec, zipcclDataType_t dtype, zipcclDataType_t out_dtype,
                                      unsigned inputs, const zipccl_cuda_segment *table, uint32_t segments,
                                      uint64_t total_values, zipccl_cuda_result *results, void *workspace,
                                      unsigned max_sms, void *stream) {
    const Row *row = row_of(codec, dtype);
    if (!row || inputs == 0 || (out_dtype != dtype && out_dtype != zipcclFloat32))
        return zipcclInvalidArgument;
    if (segments == 0)
        return zipcclSuccess;
    Call c = {};
    c.table = table, c.results = results, c.max_sms = max_sms;
    const zipcclResult_t r = begin(&c, inputs, segments, total_values, workspace, stream);
    return r != zipcclSuccess
               ? r
               : start(c, row->add, codec == zipcclCodecTier ? zip::kDecodeSharedTier : zip::kDecodeSharedTop7,
                       static_cast<uint32_t>(inputs), static_cast<uint32_t>(out_dtype == zipcclFloat32));
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The codec's launchers: look up a codec's and dtype's kernels, enqueue prepare, window and kernel.
 */
#include "kernels/cuda/codec_cuda.h"

#include "kernels/cuda/codec_kernels.cuh"
#include "kernels/cuda/launch.cuh"

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

/* The part that all calls have in common. */
zipcclResult_t begin_codec(zip::Call<zipccl_cuda_segment> *c, unsigned stride, uint32_t segments, uint64_t total_values,
                           void *workspace, void *stream) {
    const zipcclResult_t r = zip::begin(c, segments, total_values, workspace, stream);
    if (r != zipcclSuccess)
        return r;
    zip_prepare<<<1, zip::kBlockThreads, 0, c->stream>>>(c->work, c->table, stride, c->results);
    return zip::result_of(cudaGetLastError());
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
    zip::Call<zipccl_cuda_segment> c = {};
    c.table = table, c.results = results, c.max_sms = max_sms;
    zipcclResult_t r = begin_codec(&c, 1, segments, total_values, workspace, stream);
    if (r != zipcclSuccess)
        return r;
    if (row->window) {
        const unsigned all = static_cast<unsigned>(c.device.sms), sms = max_sms && max_sms < all ? max_sms : all;
        const unsigned grid = segments > sms ? sms : segments;
        row->window<<<grid, zip::kBlockThreads, 0, c.stream>>>(c.work, table);
        r = zip::result_of(cudaGetLastError());
        if (r != zipcclSuccess)
            return r;
    }
    constexpr uint32_t small = 2048; /* bytes of static shared memory, at most */
    const uint32_t shared = zip::encode_shared(codec, dtype, true);
    if (row->reread && static_cast<uint32_t>(c.device.shared) < shared + small)
        return zip::start(c, row->reread, zip::encode_shared(codec, dtype, false));
    return zip::start(c, row->encode, shared);
}

zipcclResult_t zipccl_cuda_decode(zipcclCodec_t codec, zipcclDataType_t dtype, const zipccl_cuda_segment *table,
                                  uint32_t segments, uint64_t total_values, zipccl_cuda_result *results,
                                  void *workspace, unsigned max_sms, void *stream) {
    const Row *row = row_of(codec, dtype);
    if (!row)
        return zipcclInvalidArgument;
    if (segments == 0)
        return zipcclSuccess;
    zip::Call<zipccl_cuda_segment> c = {};
    c.table = table, c.results = results, c.max_sms = max_sms;
    const zipcclResult_t r = begin_codec(&c, 1, segments, total_values, workspace, stream);
    return r != zipcclSuccess
               ? r
               : zip::start(c, row->decode, codec == zipcclCodecTier ? zip::kDecodeSharedTier : zip::kDecodeSharedTop7);
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
    zip::Call<zipccl_cuda_segment> c = {};
    c.table = table, c.results = results, c.max_sms = max_sms;
    const zipcclResult_t r = begin_codec(&c, inputs, segments, total_values, workspace, stream);
    return r != zipcclSuccess
               ? r
               : zip::start(c, row->add, codec == zipcclCodecTier ? zip::kDecodeSharedTier : zip::kDecodeSharedTop7,
                            static_cast<uint32_t>(inputs), static_cast<uint32_t>(out_dtype == zipcclFloat32));
}

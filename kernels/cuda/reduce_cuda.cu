/* SPDX-License-Identifier: Apache-2.0
 *
 * The launcher of reductions.
 */
#include "kernels/cuda/reduce_cuda.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce_kernels.cuh"

namespace {

using Kernel = void (*)(zip::Work, const zipccl_cuda_reduction *, zipccl_cuda_result *, uint32_t);

struct Row {
    zipcclCodec_t codec;
    zipcclDataType_t dtype;
    Kernel kernel;
};
#define RAW(type, dtype)                {zipcclCodecRaw, dtype, zip_reduce_raw_##type},
#define CODED(name, codec, type, dtype) {codec, dtype, zip_reduce_##name##_##type},
const Row g_rows[] = {ZIP_RAW_CASES(RAW) ZIP_CASES(CODED)};
#undef RAW
#undef CODED

} // namespace

zipcclResult_t zipccl_cuda_reduce(zipcclCodec_t codec, zipcclDataType_t dtype, zipcclRedOp_t op,
                                  const zipccl_cuda_reduction *table, uint32_t reductions, uint64_t total_values,
                                  zipccl_cuda_result *results, void *workspace, unsigned max_sms, void *stream) {
    const Row *row = nullptr;
    for (const Row &r : g_rows)
        if (r.codec == codec && r.dtype == dtype)
            row = &r;
    if (!row || static_cast<unsigned>(op) >= zipcclNumRedOps)
        return zipcclInvalidArgument;
    if (reductions == 0)
        return zipcclSuccess;
    zip::Call<zipccl_cuda_reduction> c = {};
    c.table = table, c.results = results, c.max_sms = max_sms;
    zipcclResult_t r = zip::begin(&c, reductions, total_values, workspace, stream);
    if (r != zipcclSuccess)
        return r;
    zip_reduce_prepare<<<1, zip::kBlockThreads, 0, c.stream>>>(c.work, table, results);
    r = zip::result_of(cudaGetLastError());
    return r != zipcclSuccess ? r : zip::start(c, row->kernel, zip::reduce_shared(codec), static_cast<uint32_t>(op));
}

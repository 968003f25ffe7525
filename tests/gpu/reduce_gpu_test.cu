/* SPDX-License-Identifier: Apache-2.0
 *
 * Reductions on a device against kernels/reduce.c, bit for bit: every dtype and operation, raw inputs and coded ones.
 * Run after codec_gpu_test, which says whether there is a device.
 */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <cuda_runtime.h>

#include "kernels/cuda/reduce_cuda.h"
#include "tests/gpu/check.h"

extern "C" {
#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "kernels/reduce.h"
}

namespace {

constexpr uint32_t kInputs = 7;
uint64_t g_seed = 88172645463325252ull;

uint64_t random64() {
    g_seed ^= g_seed << 13, g_seed ^= g_seed >> 7, g_seed ^= g_seed << 17;
    return g_seed;
}

void *to_device(const void *from, size_t bytes) {
    void *p;
    CHECK(cudaMalloc(&p, bytes + 16));
    CHECK(cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice));
    return p;
}

/* Half of the inputs are any bits; the others near 1, so that they are worth coding. */
void fill(std::vector<uint8_t> &v, unsigned bytes, bool any) {
    for (size_t i = 0; i < v.size(); i += bytes) {
        const uint64_t x = any ? random64() : (random64() & 0x807f807f807f807full) | 0x3f003f003f003f00ull;
        memcpy(&v[i], &x, bytes);
    }
}

bool run(zipcclCodec_t codec, zipcclDataType_t dtype, zipcclRedOp_t op, size_t count) {
    const unsigned bytes = dtype_get(dtype)->bytes;
    std::vector<std::vector<uint8_t>> values(kInputs, std::vector<uint8_t>(count * bytes));
    std::vector<zipccl_cuda_input> inputs(kInputs);
    std::vector<reduce_input> want_inputs(kInputs);
    std::vector<void *> taken;
    for (uint32_t k = 0; k < kInputs; k++) {
        zipccl_cuda_input &in = inputs[k];
        fill(values[k], bytes, k % 3 == 2);
        in.flags = static_cast<uint32_t>(random64() % 4) * 2 | (op == zipcclPreMulSum ? random64() % 2 : 0);
        in.scalar = 0x3f803f803f803f80ull & (bytes == 8 ? ~0ull : (1ull << 8 * bytes) - 1);
        const codec_sizes bound = codec_bound(codec, dtype, count);
        if (codec != zipcclCodecRaw && k % 2) {
            std::vector<uint8_t> parts(bound.static_bytes), dynamic(bound.dynamic_bytes + 1);
            codec_sizes sizes;
            if (codec_encode(codec, dtype, values[k].data(), count, parts.data(), dynamic.data(), 0, &sizes) !=
                zipcclSuccess)
                return false;
            in.codec = static_cast<uint32_t>(codec);
            in.src = to_device(parts.data(), sizes.static_bytes);
            in.src_dynamic = to_device(dynamic.data(), sizes.dynamic_bytes);
            in.static_bytes = sizes.static_bytes, in.dynamic_bytes = sizes.dynamic_bytes;
            taken.push_back(const_cast<void *>(in.src_dynamic));
        } else {
            in.src = to_device(values[k].data(), values[k].size());
        }
        taken.push_back(const_cast<void *>(in.src));
        want_inputs[k] = {values[k].data(), in.scalar, (in.flags & ZIPCCL_CUDA_SCALED) != 0,
                          (in.flags & ZIPCCL_CUDA_ENDS_GROUP) != 0, (in.flags & ZIPCCL_CUDA_ROUND_GROUP) != 0};
    }
    std::vector<uint8_t> want(count * bytes), got(count * bytes);
    const uint32_t divisor = op == zipcclAvg ? 5 : 0;
    const reduce all = {op, dtype, divisor, want_inputs.data(), kInputs, 0, nullptr, false};
    if (reduce_values(&all, want.data(), count) != zipcclSuccess)
        return false;
    const zipccl_cuda_reduction row = {
        to_device(got.data(), got.size()),
        static_cast<zipccl_cuda_input *>(to_device(inputs.data(), inputs.size() * sizeof(inputs[0]))), count, kInputs,
        divisor};
    zipccl_cuda_result result = {};
    void *const table = to_device(&row, sizeof(row)), *const results = to_device(&result, sizeof(result)), *work;
    CHECK(cudaMalloc(&work, zipccl_cuda_workspace(1, count)));
    bool ok = zipccl_cuda_reduce(codec, dtype, op, static_cast<zipccl_cuda_reduction *>(table), 1, count,
                                 static_cast<zipccl_cuda_result *>(results), work, 0, nullptr) == zipcclSuccess;
    CHECK(cudaMemcpy(&result, results, sizeof(result), cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(got.data(), row.dst, got.size(), cudaMemcpyDeviceToHost));
    ok = ok && result.status == 0 && got == want;
    if (!ok)
        printf("reduce %s %s op %d count %zu: DIFFERS (status %u)\n", codec_name(codec), dtype_get(dtype)->name, op,
               count, result.status);
    for (void *p : taken)
        CHECK(cudaFree(p));
    for (void *p : {row.dst, const_cast<void *>(static_cast<const void *>(row.inputs)), table, results, work})
        CHECK(cudaFree(p));
    return ok;
}

} // namespace

int main() {
    unsigned runs = 0, failed = 0;
    for (int t = 0; t < zipcclNumTypes; t++)
        for (zipcclCodec_t codec : {zipcclCodecRaw, zipcclCodecTier, zipcclCodecTop7})
            for (int op = 0; op < zipcclNumRedOps; op++)
                for (size_t count : {size_t{1}, size_t{33000}, size_t{1000003}}) {
                    const zipcclDataType_t dtype = static_cast<zipcclDataType_t>(t);
                    if (codec != zipcclCodecRaw && !codec_supports(codec, dtype))
                        continue;
                    runs++;
                    failed += !run(codec, dtype, static_cast<zipcclRedOp_t>(op), count);
                }
    printf("reduce: %u of %u differ\n", failed, runs);
    return failed != 0;
}

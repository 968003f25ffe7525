/* SPDX-License-Identifier: Apache-2.0
 *
 * The GPU codec on a device: chunks equal the CPU codec's, decode gives the values back, and event timings.
 * Exit 77: no device (errors 34, 35 and 100 alone). codec_gpu_test [MiB]: size of the timed buffer (256).
 */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <cuda_runtime.h>

#include "kernels/cuda/codec_cuda.h"
#include "tests/gpu/check.h"

extern "C" {
#include "kernels/codec.h"
}

namespace {

struct Buffers {
    void *values, *back, *parts, *dynamic, *work;
    zipccl_cuda_segment *table;
    zipccl_cuda_result *results;
};

float time_of(cudaEvent_t a, cudaEvent_t b) {
    float ms = 0;
    CHECK(cudaEventSynchronize(b));
    CHECK(cudaEventElapsedTime(&ms, a, b));
    return ms;
}

/* Values near 2^-k at random signs, as gradients are. */
void fill(std::vector<uint8_t> &v, unsigned bytes, uint64_t s) {
    for (size_t i = 0; i < v.size(); i += bytes) {
        s ^= s << 13, s ^= s >> 7, s ^= s << 17;
        uint64_t x = s;
        if (bytes == 2)
            x = (s & 0x807f) | (0x3c80 - (static_cast<uint64_t>(__builtin_ctzll(s >> 20 | 1ull << 20)) << 7));
        memcpy(&v[i], &x, bytes);
    }
}

bool run(zipcclCodec_t codec, zipcclDataType_t dtype, unsigned bytes, size_t count, bool timed) {
    std::vector<uint8_t> values(count * bytes), back(count * bytes);
    fill(values, bytes, count + 12345);
    const codec_sizes bound = codec_bound(codec, dtype, count);
    std::vector<uint8_t> parts(bound.static_bytes + 128), dynamic(bound.dynamic_bytes + 128), got;
    codec_sizes want;
    if (codec_encode(codec, dtype, values.data(), count, parts.data(), dynamic.data(), 0, &want) != zipcclSuccess)
        return false;
    Buffers b = {};
    CHECK(cudaMalloc(&b.values, values.size() + 16));
    CHECK(cudaMalloc(&b.back, values.size() + 16));
    CHECK(cudaMalloc(&b.parts, bound.static_bytes));
    CHECK(cudaMalloc(&b.dynamic, bound.dynamic_bytes + 128));
    CHECK(cudaMalloc(&b.work, zipccl_cuda_workspace(1, count)));
    CHECK(cudaMalloc(&b.table, 2 * sizeof(*b.table)));
    CHECK(cudaMalloc(&b.results, sizeof(*b.results)));
    CHECK(cudaMemcpy(b.values, values.data(), values.size(), cudaMemcpyHostToDevice));
    const zipccl_cuda_segment rows[2] = {{b.values, b.parts, b.dynamic, count, bound.static_bytes, bound.dynamic_bytes},
                                         {b.back, b.parts, b.dynamic, count, bound.static_bytes, bound.dynamic_bytes}};
    CHECK(cudaMemcpy(b.table, rows, sizeof(rows), cudaMemcpyHostToDevice));
    cudaEvent_t e[3];
    for (cudaEvent_t &x : e)
        CHECK(cudaEventCreate(&x));
    float best[2] = {1e9f, 1e9f};
    zipccl_cuda_result r[2];
    for (int i = 0; i < (timed ? 20 : 1); i++) {
        CHECK(cudaEventRecord(e[0]));
        if (zipccl_cuda_encode(codec, dtype, b.table, 1, count, b.results, b.work, 0, nullptr) != zipcclSuccess)
            return false;
        CHECK(cudaEventRecord(e[1]));
        CHECK(cudaMemcpy(&r[0], b.results, sizeof(r[0]), cudaMemcpyDeviceToHost));
        const float encode = time_of(e[0], e[1]);
        CHECK(cudaEventRecord(e[1]));
        if (zipccl_cuda_decode(codec, dtype, b.table + 1, 1, count, b.results, b.work, 0, nullptr) != zipcclSuccess)
            return false;
        CHECK(cudaEventRecord(e[2]));
        CHECK(cudaMemcpy(&r[1], b.results, sizeof(r[1]), cudaMemcpyDeviceToHost));
        const float decode = time_of(e[1], e[2]);
        best[0] = encode < best[0] ? encode : best[0];
        best[1] = decode < best[1] ? decode : best[1];
    }
    bool ok = r[0].status == 0 && r[1].status == 0 && r[0].static_bytes == want.static_bytes &&
              r[0].dynamic_bytes == want.dynamic_bytes;
    got.resize(want.static_bytes);
    CHECK(cudaMemcpy(got.data(), b.parts, want.static_bytes, cudaMemcpyDeviceToHost));
    ok = ok && memcmp(got.data(), parts.data(), got.size()) == 0;
    got.resize(want.dynamic_bytes);
    CHECK(cudaMemcpy(got.data(), b.dynamic, want.dynamic_bytes, cudaMemcpyDeviceToHost));
    ok = ok && memcmp(got.data(), dynamic.data(), got.size()) == 0;
    CHECK(cudaMemcpy(back.data(), b.back, back.size(), cudaMemcpyDeviceToHost));
    ok = ok && back == values;
    printf("%s dtype %d count %zu: %s", codec_name(codec), dtype, count, ok ? "same" : "DIFFERS");
    if (timed)
        printf(", ratio %.3f, encode %.0f GB/s, decode %.0f GB/s",
               static_cast<double>(values.size()) / static_cast<double>(want.static_bytes + want.dynamic_bytes),
               static_cast<double>(values.size()) / best[0] / 1e6, static_cast<double>(values.size()) / best[1] / 1e6);
    printf("\n");
    for (void *p :
         {b.values, b.back, b.parts, b.dynamic, b.work, static_cast<void *>(b.table), static_cast<void *>(b.results)})
        CHECK(cudaFree(p));
    return ok;
}

} // namespace

int main(int argc, char **argv) {
    int devices = 0;
    const cudaError_t e = cudaGetDeviceCount(&devices);
    if (e == 34 || e == 35 || e == 100) {
        printf("skipped: no device (%d, %s)\n", e, cudaGetErrorString(e));
        return 77;
    }
    CHECK(e);
    cudaDeviceProp device;
    CHECK(cudaGetDeviceProperties(&device, 0));
    printf("%s\n", device.name);
    bool ok = true;
    for (zipcclCodec_t codec : {zipcclCodecTier, zipcclCodecTop7}) {
        const struct {
            zipcclDataType_t dtype;
            unsigned bytes;
        } types[] = {
            {zipcclBfloat16, 2}, {zipcclFloat16, 2}, {zipcclFloat32, 4}, {zipcclFloat8e4m3, 1}, {zipcclFloat8e5m2, 1}};
        for (const auto &t : types)
            for (size_t count : {size_t{0}, size_t{1}, size_t{511}, size_t{512}, size_t{33000}, size_t{5000001}})
                ok = run(codec, t.dtype, t.bytes, count, false) && ok;
        ok = run(codec, zipcclBfloat16, 2, (argc > 1 ? strtoull(argv[1], nullptr, 10) : 256) << 19, true) && ok;
    }
    return !ok;
}

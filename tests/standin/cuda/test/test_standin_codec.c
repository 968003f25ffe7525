/* SPDX-License-Identifier: Apache-2.0
 *
 * The GPU codec as the daemon calls it (codec_cuda.h, compiled by nvcc, kernels launched through the runtime) on the
 * stand-in: chunks are those of the CPU codec, byte for byte; sums are right; a captured graph gives the same.
 */
#include "forked.h"

#include "kernels/codec.h"
#include "kernels/cuda/codec_cuda.h"
#include "kernels/dtype.h"

#include <cuda_runtime_api.h>

#define SEGMENTS 3
#define COUNT    40000u /* more than a group of 32 Ki values */

static const size_t g_counts[SEGMENTS] = {COUNT, 513, 0};

/* Values as in a gradient: exponents near each other, in places far. */
static void fill(uint8_t *p, zipcclDataType_t dtype, size_t count, uint64_t seed) {
    const size_t bytes = dtype_get(dtype)->bytes;
    for (size_t i = 0; i < count; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const uint32_t r = (uint32_t)(seed >> 32), down = (uint32_t)__builtin_ctz(r | 0x8000u);
        const float f = (float)(int32_t)r * 0x1p-38f / (float)(1u << down);
        uint32_t bits;
        memcpy(&bits, &f, sizeof(bits));
        if (bytes == 2)
            bits >>= 16;
        memcpy(p + i * bytes, &bits, bytes);
    }
}

struct device_side {
    struct zipccl_cuda_segment *table;
    struct zipccl_cuda_result *results;
    void *workspace;
    uint8_t *values[SEGMENTS], *static_part[SEGMENTS], *dynamic_part[SEGMENTS];
    struct codec_sizes bound[SEGMENTS];
    uint64_t total;
};

static void device_open(struct device_side *d, zipcclCodec_t codec, zipcclDataType_t dtype) {
    struct zipccl_cuda_segment table[SEGMENTS];
    memset(d, 0, sizeof(*d));
    for (unsigned i = 0; i < SEGMENTS; i++) {
        d->bound[i] = codec_bound(codec, dtype, g_counts[i]);
        OK(cudaMalloc((void **)&d->values[i], g_counts[i] * dtype_get(dtype)->bytes + 16));
        OK(cudaMalloc((void **)&d->static_part[i], d->bound[i].static_bytes));
        OK(cudaMalloc((void **)&d->dynamic_part[i], d->bound[i].dynamic_bytes + 128));
        table[i] = (struct zipccl_cuda_segment){
            d->values[i], d->static_part[i],        d->dynamic_part[i],
            g_counts[i],  d->bound[i].static_bytes, d->bound[i].dynamic_bytes,
        };
        d->total += g_counts[i];
    }
    OK(cudaMalloc((void **)&d->table, sizeof(table)));
    OK(cudaMalloc((void **)&d->results, SEGMENTS * sizeof(*d->results)));
    OK(cudaMalloc(&d->workspace, zipccl_cuda_workspace(SEGMENTS, d->total)));
    OK(cudaMemcpy(d->table, table, sizeof(table), cudaMemcpyHostToDevice));
}

static void device_close(struct device_side *d) {
    for (unsigned i = 0; i < SEGMENTS; i++) {
        OK(cudaFree(d->values[i]));
        OK(cudaFree(d->static_part[i]));
        OK(cudaFree(d->dynamic_part[i]));
    }
    OK(cudaFree(d->table));
    OK(cudaFree(d->results));
    OK(cudaFree(d->workspace));
}

static void same_bytes(const void *device, const void *want, size_t bytes) {
    uint8_t *got = malloc(bytes + 1);
    CHECK(got);
    OK(cudaMemcpy(got, device, bytes, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < bytes; i++)
        if (got[i] != ((const uint8_t *)want)[i]) {
            fprintf(stderr, "byte %zu of %zu is %02x, want %02x\n", i, bytes, got[i], ((const uint8_t *)want)[i]);
            exit(1);
        }
    free(got);
}

/* What the CPU codec makes of the same values must lie on the device. */
static void same_chunks(const struct device_side *d, zipcclCodec_t codec, zipcclDataType_t dtype, uint8_t **values) {
    struct zipccl_cuda_result results[SEGMENTS];
    OK(cudaMemcpy(results, d->results, sizeof(results), cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < SEGMENTS; i++) {
        struct codec_sizes sizes;
        uint8_t *s = aligned_alloc(128, d->bound[i].static_bytes + 128),
                *y = aligned_alloc(128, d->bound[i].dynamic_bytes + 128);
        OK(codec_encode(codec, dtype, values[i], g_counts[i], s, y, 0, &sizes));
        CHECK_IS(results[i].status, 0);
        CHECK_IS(results[i].static_bytes, sizes.static_bytes);
        CHECK_IS(results[i].dynamic_bytes, sizes.dynamic_bytes);
        same_bytes(d->static_part[i], s, sizes.static_bytes);
        same_bytes(d->dynamic_part[i], y, sizes.dynamic_bytes);
        free(s);
        free(y);
    }
}

static void both_ways(zipcclCodec_t codec, zipcclDataType_t dtype) {
    struct device_side d;
    uint8_t *values[SEGMENTS];
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    device_open(&d, codec, dtype);
    for (unsigned i = 0; i < SEGMENTS; i++) {
        const size_t bytes = g_counts[i] * dtype_get(dtype)->bytes;
        values[i] = malloc(bytes + 16);
        CHECK(values[i]);
        fill(values[i], dtype, g_counts[i], 7 + i);
        OK(cudaMemcpyAsync(d.values[i], values[i], bytes, cudaMemcpyHostToDevice, stream));
    }
    OK(zipccl_cuda_encode(codec, dtype, d.table, SEGMENTS, d.total, d.results, d.workspace, 0, stream));
    OK(cudaStreamSynchronize(stream));
    same_chunks(&d, codec, dtype, values);

    for (unsigned i = 0; i < SEGMENTS; i++)
        OK(cudaMemsetAsync(d.values[i], 0, g_counts[i] * dtype_get(dtype)->bytes, stream));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    OK(zipccl_cuda_decode(codec, dtype, d.table, SEGMENTS, d.total, d.results, d.workspace, 2, stream));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphDestroy(graph));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaGraphExecDestroy(exec));
    for (unsigned i = 0; i < SEGMENTS; i++)
        same_bytes(d.values[i], values[i], g_counts[i] * dtype_get(dtype)->bytes);
    for (unsigned i = 0; i < SEGMENTS; i++)
        free(values[i]);
    device_close(&d);
    OK(cudaStreamDestroy(stream));
}

static void tier_bf16(int peer) {
    (void)peer;
    both_ways(zipcclCodecTier, zipcclBfloat16);
}
static void tier_fp32(int peer) {
    (void)peer;
    both_ways(zipcclCodecTier, zipcclFloat32);
}
static void top7_bf16(int peer) {
    (void)peer;
    both_ways(zipcclCodecTop7, zipcclBfloat16);
}

/* Two chunks of small integers in BF16, added in FP32: exact whatever the order. */
static void sums(int peer) {
    enum { N = 5000 };
    struct zipccl_cuda_segment table[2];
    struct zipccl_cuda_result *results;
    const struct codec_sizes bound = codec_bound(zipcclCodecTier, zipcclBfloat16, N);
    uint16_t in[2][N];
    float out[N], *values;
    void *device_table, *workspace;
    (void)peer;
    OK(cudaMalloc((void **)&values, sizeof(out)));
    for (unsigned k = 0; k < 2; k++) {
        struct codec_sizes sizes;
        void *s = aligned_alloc(128, bound.static_bytes), *y = aligned_alloc(128, bound.dynamic_bytes);
        for (unsigned i = 0; i < N; i++) {
            const float f = (float)((i * (k + 3)) % 128);
            uint32_t bits;
            memcpy(&bits, &f, sizeof(bits));
            in[k][i] = (uint16_t)(bits >> 16);
        }
        OK(codec_encode(zipcclCodecTier, zipcclBfloat16, in[k], N, s, y, 0, &sizes));
        table[k] = (struct zipccl_cuda_segment){values, NULL, NULL, N, bound.static_bytes, bound.dynamic_bytes};
        OK(cudaMalloc(&table[k].static_part, bound.static_bytes));
        OK(cudaMalloc(&table[k].dynamic_part, bound.dynamic_bytes));
        OK(cudaMemcpy(table[k].static_part, s, sizes.static_bytes, cudaMemcpyHostToDevice));
        OK(cudaMemcpy(table[k].dynamic_part, y, sizes.dynamic_bytes, cudaMemcpyHostToDevice));
        free(s);
        free(y);
    }
    OK(cudaMalloc(&device_table, sizeof(table)));
    OK(cudaMalloc((void **)&results, sizeof(*results)));
    OK(cudaMalloc(&workspace, zipccl_cuda_workspace(1, N)));
    OK(cudaMemcpy(device_table, table, sizeof(table), cudaMemcpyHostToDevice));
    OK(zipccl_cuda_decode_add(zipcclCodecTier, zipcclBfloat16, zipcclFloat32, 2, device_table, 1, N, results, workspace,
                              0, NULL));
    OK(cudaMemcpy(out, values, sizeof(out), cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < N; i++)
        CHECK_IS(out[i], (i * 3) % 128 + (i * 4) % 128);
}

static void codec_runs(void **state) {
    (void)state;
    forked_passes(tier_bf16, NULL);
    forked_passes(tier_fp32, "ZIPCCL_STANDIN_SEPARATE=1", NULL);
    forked_passes(top7_bf16, NULL);
}

static void codec_adds(void **state) {
    (void)state;
    forked_passes(sums, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(codec_runs), cmocka_unit_test(codec_adds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

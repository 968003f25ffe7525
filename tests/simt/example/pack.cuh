/* SPDX-License-Identifier: Apache-2.0
 *
 * A toy packer with what a codec kernel has: double-buffered async copies, bit planes, a block scan, compaction. A
 * block takes TILES tiles of 4,096 bytes: the low bit of each byte goes to a plane, bytes above 250 to the escapes.
 * FAULT plants one error: the tests of the tests.
 */
#ifndef ZIPCCL_TESTS_SIMT_EXAMPLE_PACK_CUH
#define ZIPCCL_TESTS_SIMT_EXAMPLE_PACK_CUH

#include "gpu.cuh"

enum { PACK_THREADS = 256, PACK_TILES = 3, PACK_TILE = 4096 };
enum { OK, NO_SYNC, BAD_INDEX, BAD_MASK, NO_WAIT, DIVERGENT, MISALIGNED, UNINIT };

template <int FAULT> GPU_FN void pack_body(const uint4 *in, uint4 *planes, uint8_t *escapes, uint32_t *counts) {
    GPU_SHARED(uint4, tile, [2][PACK_THREADS]);
    GPU_SHARED(uint16_t, bits, [PACK_THREADS]);
    GPU_SHARED(uint32_t, sums, [PACK_THREADS / 32]);
    const uint32_t t = threadIdx.x, lane = t & 31, warp = t >> 5;
    const uint32_t mask = FAULT == BAD_MASK && lane == 3 ? 0xfffffffeu : 0xffffffffu;
    const uint4 *src = in + blockIdx.x * PACK_TILES * PACK_THREADS + t;
    gpu_cp_async16(&tile[0][t], src);
    gpu_cp_commit();
    for (uint32_t k = 0; k < PACK_TILES; k++) {
        const uint32_t out = blockIdx.x * PACK_TILES + k;
        if (k + 1 < PACK_TILES)
            gpu_cp_async16(&tile[(k + 1) & 1][t], src + (k + 1) * PACK_THREADS);
        gpu_cp_commit();
        if (FAULT != NO_WAIT)
            gpu_cp_wait<1>();
        const uint4 v = tile[k & 1][t];
        const uint32_t w[4] = {v.x, v.y, v.z, v.w};
        uint32_t low = 0, count = 0;
        for (uint32_t i = 0; i < 16; i++) {
            const uint32_t b = w[i / 4] >> (8 * (i % 4)) & 255;
            low |= (b & 1) << i;
            count += b > 250;
        }
        if (FAULT != UNINIT || t != 5)
            bits[t] = static_cast<uint16_t>(low);
        uint32_t sum = count;
        for (uint32_t d = 1; d < 32; d <<= 1) {
            const uint32_t below = __shfl_up_sync(mask, sum, d);
            sum += lane >= d ? below : 0;
        }
        if (lane == 31)
            sums[warp + (FAULT == BAD_INDEX)] = sum;
        if (FAULT == DIVERGENT && warp == 1)
            __syncthreads();
        else if (FAULT != NO_SYNC)
            __syncthreads();
        uint32_t at = out * PACK_TILE + sum - count, total = 0;
        for (uint32_t i = 0; i < PACK_THREADS / 32; i++) {
            at += i < warp ? sums[i] : 0;
            total += sums[i];
        }
        for (uint32_t i = 0; i < 16; i++) {
            const uint32_t b = w[i / 4] >> (8 * (i % 4)) & 255;
            if (b > 250)
                escapes[at++] = static_cast<uint8_t>(b);
        }
        if (warp == 0) {
            const char *from = reinterpret_cast<const char *>(bits) + (FAULT == MISALIGNED ? 4 : 0);
            if (FAULT == MISALIGNED)
                gpu_st16(planes + out * 32 + lane,
                         gpu_ld16(reinterpret_cast<const uint4 *>(reinterpret_cast<const char *>(src) + 4)));
            else
                gpu_st16(planes + out * 32 + lane, reinterpret_cast<const uint4 *>(from)[lane]);
        }
        if (t == 0)
            counts[out] = total;
        __syncthreads();
    }
    gpu_cp_wait<0>();
}

#define PACK_KERNEL(name, fault)                                                                                       \
    extern "C" __global__ void __launch_bounds__(PACK_THREADS)                                                         \
        name(const uint4 *in, uint4 *planes, uint8_t *escapes, uint32_t *counts) {                                     \
        pack_body<fault>(in, planes, escapes, counts);                                                                 \
    }
PACK_KERNEL(pack_ok, OK)
PACK_KERNEL(pack_no_sync, NO_SYNC)
PACK_KERNEL(pack_bad_index, BAD_INDEX)
PACK_KERNEL(pack_bad_mask, BAD_MASK)
PACK_KERNEL(pack_no_wait, NO_WAIT)
PACK_KERNEL(pack_divergent, DIVERGENT)
PACK_KERNEL(pack_misaligned, MISALIGNED)
PACK_KERNEL(pack_uninit, UNINIT)

#endif

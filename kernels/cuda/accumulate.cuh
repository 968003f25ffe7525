/* SPDX-License-Identifier: Apache-2.0
 *
 * Decode + accumulate: a group of each input after another, the sums of its 32,768 values in registers (64 a thread).
 * Inputs are added in order in FP32; one rounding at the end.
 */
#ifndef ZIPCCL_KERNELS_CUDA_ACCUMULATE_CUH
#define ZIPCCL_KERNELS_CUDA_ACCUMULATE_CUH

#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/floats.cuh"

namespace zip {

/* The values of a lane of the short block. */
template <int DTYPE>
GPU_FN void short_lane(const uint8_t *body, bool raw, uint32_t bytes, uint32_t lane, uint32_t w[Kind<DTYPE>::words]) {
    GPU_UNROLL
    for (uint32_t j = 0; j < Kind<DTYPE>::bytes; j++) {
        const uint32_t at = 16 * (lane * Kind<DTYPE>::bytes + j);
        const uint4 v = raw && at < bytes ? gpu_ld16(body + at) : zero16();
        w[4 * j] = v.x, w[4 * j + 1] = v.y, w[4 * j + 2] = v.z, w[4 * j + 3] = v.w;
    }
}

/* A call, not inlined: beside the sums and the rounding to FP8 its registers would spill. */
template <int DTYPE, int CODEC>
GPU_COLD bool take_input_apart(const zipccl_cuda_segment *table, uint32_t inputs, uint32_t k, uint8_t *big,
                               TileShared &sh) {
    return take_input<DTYPE, CODEC>(table, inputs, k, big, sh);
}

template <int DTYPE, int CODEC>
GPU_FN void decode_add(const Work &work, const zipccl_cuda_segment *table, zipccl_cuda_result *results, uint32_t inputs,
                       bool to_fp32, uint8_t *big, TileShared &sh) {
    using K = Kind<DTYPE>;
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    uint8_t *const stage = big + kTwo + warp * 4 * ZFMT_BLOCK;
    fill_select(sh.decode.select);
    while (draw_input(work, table, inputs, sh)) {
        float acc[kRounds][16];
        bool ok = true;
        GPU_UNROLL
        for (uint32_t q = 0; q < kRounds; q++) {
            GPU_UNROLL
            for (uint32_t i = 0; i < 16; i++)
                acc[q][i] = -0.0f; /* the sum of nothing: x + -0 is x for every x */
        }
        GPU_ROLL
        for (uint32_t k = 0; k < inputs && ok; k++) {
            if constexpr (K::bytes == 1)
                ok = take_input_apart<DTYPE, CODEC>(table, inputs, k, big, sh);
            else
                ok = take_input<DTYPE, CODEC>(table, inputs, k, big, sh);
            /* One block at a time: two would not fit the registers. */
            GPU_ROLL
            for (uint32_t r = 0; r < kRounds; r++) {
                const uint32_t block = warp + r * kWarps;
                if (!ok || block >= sh.tile.blocks)
                    continue;
                uint32_t w[K::words];
                if (block < sh.tile.full)
                    decode_lane<DTYPE, CODEC, true>(block, sh.group, big, sh.decode, stage, lane, w);
                else
                    short_lane<DTYPE>(sh.group.bodies + uint64_t{sh.decode.offset[block]} * ZFMT_BODY_ALIGN,
                                      (sh.decode.head[block] & 255) == ZFMT_RAW, sh.tile.rest * K::bytes, lane, w);
                GPU_UNROLL
                for (uint32_t q = 0; q < kRounds; q++) {
                    if (q != r)
                        continue;
                    GPU_UNROLL
                    for (uint32_t i = 0; i < 16; i++)
                        acc[q][i] = __fadd_rn(acc[q][i], value_of<DTYPE>(w, i));
                }
            }
            __syncthreads(); /* the escapes have been used */
        }
        if (!ok) {
            if (threadIdx.x == 0)
                atomicOr(&results[sh.tile.segment].status, static_cast<uint32_t>(ZIPCCL_CUDA_CORRUPT));
            continue;
        }
        GPU_ROLL
        for (uint32_t r = 0; r < kRounds; r++) {
            const uint32_t block = warp + r * kWarps;
            if (block >= sh.tile.blocks)
                continue;
            const uint64_t at = uint64_t{sh.tile.group} * ZFMT_GROUP + block * ZFMT_BLOCK;
            const uint32_t values = block < sh.tile.full ? ZFMT_BLOCK : sh.tile.rest;
            float sum[16] = {};
            GPU_UNROLL
            for (uint32_t q = 0; q < kRounds; q++) {
                GPU_UNROLL
                for (uint32_t i = 0; i < 16; i++)
                    sum[i] = q == r ? acc[q][i] : sum[i];
            }
            if (to_fp32 || DTYPE == zipcclFloat32)
                put_sums<zipcclFloat32>(sh.dst + 4 * at, stage, lane, sum, values, true);
            else
                put_sums<DTYPE>(sh.dst + K::bytes * at, stage, lane, sum, values, true);
        }
    }
}

} // namespace zip

#endif

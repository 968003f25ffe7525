/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels by name: zip_<action>_<codec>_<dtype>.
 */
#ifndef ZIPCCL_KERNELS_CUDA_CODEC_KERNELS_CUH
#define ZIPCCL_KERNELS_CUDA_CODEC_KERNELS_CUH

#include "kernels/cuda/accumulate.cuh"
#include "kernels/cuda/cases.h"
#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/encode.cuh"

#define ZIP_BOUNDS(blocks) __launch_bounds__(zip::kThreads, blocks)

extern "C" __global__ void ZIP_BOUNDS(1)
    zip_prepare(zip::Work work, const zipccl_cuda_segment *table, uint32_t stride, zipccl_cuda_result *results) {
    GPU_SHARED(uint32_t, sums, [zip::kWarps]);
    zip::prepare(work, table, stride, results, sums);
}

#define ZIP_KERNELS(name, codec, type, dtype)                                                                          \
    extern "C" __global__ void ZIP_BOUNDS(dtype == zipcclFloat32 ? 1 : 2)                                              \
        zip_encode_##name##_##type(zip::Work work, const zipccl_cuda_segment *table, zipccl_cuda_result *results) {    \
        GPU_DYN_SHARED(pages);                                                                                         \
        GPU_SHARED(zip::EncodeShared, sh, );                                                                           \
        zip::encode<dtype, codec, true>(work, table, results, pages, sh);                                              \
    }                                                                                                                  \
    extern "C" __global__ void ZIP_BOUNDS(2)                                                                           \
        zip_decode_##name##_##type(zip::Work work, const zipccl_cuda_segment *table, zipccl_cuda_result *results) {    \
        GPU_DYN_SHARED(big);                                                                                           \
        GPU_SHARED(zip::TileShared, sh, );                                                                             \
        zip::decode<dtype, codec>(work, table, results, big, sh);                                                      \
    }                                                                                                                  \
    extern "C" __global__ void ZIP_BOUNDS(1)                                                                           \
        zip_decode_add_##name##_##type(zip::Work work, const zipccl_cuda_segment *table, zipccl_cuda_result *results,  \
                                       uint32_t inputs, uint32_t to_fp32) {                                            \
        GPU_DYN_SHARED(big);                                                                                           \
        GPU_SHARED(zip::TileShared, sh, );                                                                             \
        zip::decode_add<dtype, codec>(work, table, results, inputs, to_fp32 != 0, big, sh);                            \
    }
ZIP_CASES(ZIP_KERNELS)
#undef ZIP_KERNELS

#ifndef ZIP_CASES_FEW
/* FP32 for GPUs with less than 130 KiB of shared memory a block. */
#    define ZIP_REREAD(name, codec)                                                                                    \
        extern "C" __global__ void ZIP_BOUNDS(1) zip_encode_##name##_fp32_reread(                                      \
            zip::Work work, const zipccl_cuda_segment *table, zipccl_cuda_result *results) {                           \
            GPU_DYN_SHARED(pages);                                                                                     \
            GPU_SHARED(zip::EncodeShared, sh, );                                                                       \
            zip::encode<zipcclFloat32, codec, false>(work, table, results, pages, sh);                                 \
        }
ZIP_REREAD(tier, zipcclCodecTier)
ZIP_REREAD(top7, zipcclCodecTop7)
#    undef ZIP_REREAD
#endif

#define ZIP_WINDOW(type, dtype)                                                                                        \
    extern "C" __global__ void ZIP_BOUNDS(1) zip_window_##type(zip::Work work, const zipccl_cuda_segment *table) {     \
        GPU_SHARED(uint32_t, hist, [256]);                                                                             \
        GPU_SHARED(uint32_t, box, [2]);                                                                                \
        zip::sample_windows<dtype>(work, table, hist, box);                                                            \
    }
ZIP_WINDOW(bf16, zipcclBfloat16)
ZIP_WINDOW(fp16, zipcclFloat16)
ZIP_WINDOW(fp32, zipcclFloat32)
ZIP_WINDOW(e4m3, zipcclFloat8e4m3)
ZIP_WINDOW(e5m2, zipcclFloat8e5m2)
#undef ZIP_WINDOW

#endif

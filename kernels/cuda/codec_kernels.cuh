/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels by name: zip_<action>_<codec>_<dtype>, and zip_window_<dtype>. ZIP_CASES(X) lists all codecs and dtypes,
 * ZIP_ADD_CASES(X) those that are decoded and added, ZIP_WINDOW_CASES(X) dtypes; a test that wants a few may define
 * them.
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
    }
ZIP_CASES(ZIP_KERNELS)
#undef ZIP_KERNELS

#ifndef ZIP_ADD_CASES
#    define ZIP_ADD_CASES(X) ZIP_CASES(X)
#endif
#define ZIP_ADD(name, codec, type, dtype)                                                                              \
    extern "C" __global__ void ZIP_BOUNDS(1)                                                                           \
        zip_decode_add_##name##_##type(zip::Work work, const zipccl_cuda_segment *table, zipccl_cuda_result *results,  \
                                       uint32_t inputs, uint32_t to_fp32) {                                            \
        GPU_DYN_SHARED(big);                                                                                           \
        GPU_SHARED(zip::TileShared, sh, );                                                                             \
        zip::decode_add<dtype, codec>(work, table, results, inputs, to_fp32 != 0, big, sh);                            \
    }
ZIP_ADD_CASES(ZIP_ADD)
#undef ZIP_ADD

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

/* X(dtype name, dtype) */
#ifndef ZIP_WINDOW_CASES
#    define ZIP_WINDOW_CASES(X)                                                                                        \
        X(bf16, zipcclBfloat16)                                                                                        \
        X(fp16, zipcclFloat16)                                                                                         \
        X(fp32, zipcclFloat32) X(e4m3, zipcclFloat8e4m3) X(e5m2, zipcclFloat8e5m2)
#endif
#define ZIP_WINDOW(type, dtype)                                                                                        \
    extern "C" __global__ void ZIP_BOUNDS(1) zip_window_##type(zip::Work work, const zipccl_cuda_segment *table) {     \
        GPU_SHARED(uint32_t, hist, [256]);                                                                             \
        GPU_SHARED(uint32_t, box, [2]);                                                                                \
        zip::sample_windows<dtype>(work, table, hist, box);                                                            \
    }
ZIP_WINDOW_CASES(ZIP_WINDOW)
#undef ZIP_WINDOW

#endif

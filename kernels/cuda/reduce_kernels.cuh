/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels of reductions by name: zip_reduce_raw_<dtype> of raw inputs, zip_reduce_<codec>_<dtype> of raw and coded
 * ones. ZIP_RAW_CASES(X) lists dtypes, ZIP_CASES(X) what codec_kernels.cuh does; a test that wants a few may define
 * them.
 */
#ifndef ZIPCCL_KERNELS_CUDA_REDUCE_KERNELS_CUH
#define ZIPCCL_KERNELS_CUDA_REDUCE_KERNELS_CUH

#include "kernels/cuda/cases.h"
#include "kernels/cuda/reduce.cuh"

/* X(dtype name, dtype) */
#ifndef ZIP_RAW_CASES
#    define ZIP_RAW_CASES(X)                                                                                           \
        X(int8, zipcclInt8)                                                                                            \
        X(uint8, zipcclUint8)                                                                                          \
        X(int32, zipcclInt32)                                                                                          \
        X(uint32, zipcclUint32)                                                                                        \
        X(int64, zipcclInt64)                                                                                          \
        X(uint64, zipcclUint64)                                                                                        \
        X(fp64, zipcclFloat64)                                                                                         \
        X(bf16, zipcclBfloat16)                                                                                        \
        X(fp16, zipcclFloat16) X(fp32, zipcclFloat32) X(e4m3, zipcclFloat8e4m3) X(e5m2, zipcclFloat8e5m2)
#endif

extern "C" __global__ void __launch_bounds__(zip::kThreads, 1)
    zip_reduce_prepare(zip::Work work, const zipccl_cuda_reduction *table, zipccl_cuda_result *results) {
    GPU_SHARED(uint32_t, sums, [zip::kWarps]);
    zip::prepare(work, table, 1, results, sums);
}

/* Two blocks a multiprocessor, but where 16 bytes are 16 values. */
#define ZIP_REDUCE_RAW(type, dtype)                                                                                    \
    extern "C" __global__ void __launch_bounds__(zip::kThreads, sizeof(zip::Number<dtype>::B) == 1 ? 1 : 2)            \
        zip_reduce_raw_##type(zip::Work work, const zipccl_cuda_reduction *table, zipccl_cuda_result *results,         \
                              uint32_t op) {                                                                           \
        GPU_SHARED(zip::ReduceShared, sh, );                                                                           \
        zip::reduce_raw<dtype>(work, table, results, op, sh);                                                          \
    }
ZIP_RAW_CASES(ZIP_REDUCE_RAW)
#undef ZIP_REDUCE_RAW

#define ZIP_REDUCE_CODED(name, codec, type, dtype)                                                                     \
    extern "C" __global__ void __launch_bounds__(zip::kThreads, 1) zip_reduce_##name##_##type(                         \
        zip::Work work, const zipccl_cuda_reduction *table, zipccl_cuda_result *results, uint32_t op) {                \
        GPU_DYN_SHARED(big);                                                                                           \
        GPU_SHARED(zip::ReduceShared, sh, );                                                                           \
        zip::reduce_coded<dtype, codec>(work, table, results, op, big, sh);                                            \
    }
ZIP_CASES(ZIP_REDUCE_CODED)
#undef ZIP_REDUCE_CODED

#endif

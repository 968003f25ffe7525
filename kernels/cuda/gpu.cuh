/* SPDX-License-Identifier: Apache-2.0
 *
 * The thin wrapper that kernels include: CUDA under nvcc, the SIMT runtime of tests/simt under a C++ compiler.
 */
#ifndef ZIPCCL_KERNELS_CUDA_GPU_CUH
#define ZIPCCL_KERNELS_CUDA_GPU_CUH

#include <stdint.h>

/* Faults that a test of the tests plants: 1 a barrier left out, 2 an off-by-one, 3 a wrong shuffle mask. Elsewhere this
 * is a constant, and no code. */
#ifdef ZIP_PLANTED
extern int zip_planted;
#    define ZIP_FAULT(n) (zip_planted == (n))
#else
#    define ZIP_FAULT(n) false
#endif

#ifdef __CUDACC__
#    pragma nv_diag_suppress 186 /* loops over no planes */
#    define GPU_FN                       __device__ __forceinline__
#    define GPU_CONST                    __host__ __device__ constexpr
#    define GPU_COLD                     __device__ __noinline__
#    define GPU_UNROLL                   _Pragma("unroll")
#    define GPU_ROLL                     _Pragma("unroll 1")
#    define GPU_SHARED(type, name, dims) __shared__ __align__(16) type name dims
#    define GPU_DYN_SHARED(name)         extern __shared__ __align__(128) uint8_t name[]
GPU_FN uint4 gpu_ld16(const void *p) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
GPU_FN void gpu_st16(void *p, uint4 v) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}
template <class T> GPU_FN T gpu_ld(const T *p) {
    return *p;
}
template <class T> GPU_FN void gpu_st(T *p, T v) {
    *p = v;
}
/* Words that thread blocks exchange: the word is the whole message, so relaxed order will do. */
GPU_FN uint32_t gpu_ld_flag(const uint32_t *p) {
    uint32_t v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
GPU_FN void gpu_st_flag(uint32_t *p, uint32_t v) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
GPU_FN void gpu_cp_async16(void *shared, const void *global) {
    const uint32_t s = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(s), "l"(global) : "memory");
}
GPU_FN void gpu_cp_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> GPU_FN void gpu_cp_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
#else
#    include "simt.h"
#    define GPU_FN    inline
#    define GPU_CONST constexpr
#    define GPU_COLD  inline
#    define GPU_UNROLL
#    define GPU_ROLL
#    define GPU_SHARED(type, name, dims) SIMT_SHARED(type, name, dims)
#    define GPU_DYN_SHARED(name)         SIMT_DYN_SHARED(uint8_t, name)
GPU_FN uint4 gpu_ld16(const void *p, simt::Loc loc = SIMT_HERE) {
    return simt::load(static_cast<const uint4 *>(p), loc);
}
GPU_FN void gpu_st16(void *p, uint4 v, simt::Loc loc = SIMT_HERE) {
    simt::store(static_cast<uint4 *>(p), v, loc);
}
template <class T> GPU_FN T gpu_ld(const T *p, simt::Loc loc = SIMT_HERE) {
    return simt::load(p, loc);
}
template <class T> GPU_FN void gpu_st(T *p, T v, simt::Loc loc = SIMT_HERE) {
    simt::store(p, v, loc);
}
GPU_FN uint32_t gpu_ld_flag(const uint32_t *p) {
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}
GPU_FN void gpu_st_flag(uint32_t *p, uint32_t v) {
    __atomic_store_n(p, v, __ATOMIC_RELAXED);
}
GPU_FN void gpu_cp_async16(void *shared, const void *global, simt::Loc loc = SIMT_HERE) {
    simt::copy_async<16>(shared, global, 16, loc);
}
GPU_FN void gpu_cp_commit() {
    simt::cp_commit();
}
template <int N> GPU_FN void gpu_cp_wait(simt::Loc loc = SIMT_HERE) {
    simt::cp_wait(N, loc);
}
#endif

#endif

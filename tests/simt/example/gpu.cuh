/* SPDX-License-Identifier: Apache-2.0
 *
 * The thin wrapper that kernels include: CUDA under nvcc, the SIMT runtime under a C++ compiler.
 */
#ifndef ZIPCCL_TESTS_SIMT_EXAMPLE_GPU_CUH
#define ZIPCCL_TESTS_SIMT_EXAMPLE_GPU_CUH

#include <stdint.h>

#ifdef __CUDACC__
#    define GPU_FN                       __device__ __forceinline__
#    define GPU_SHARED(type, name, dims) __shared__ __align__(16) type name dims
#    define GPU_DYN_SHARED(type, name)   extern __shared__ __align__(128) type name[]
GPU_FN uint4 gpu_ld16(const uint4 *p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
GPU_FN void gpu_st16(uint4 *p, uint4 v) {
    *p = v;
}
GPU_FN void gpu_cp_async16(void *shared, const void *global) {
    uint32_t s = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
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
#    define GPU_FN                       inline
#    define GPU_SHARED(type, name, dims) SIMT_SHARED(type, name, dims)
#    define GPU_DYN_SHARED(type, name)   SIMT_DYN_SHARED(type, name)
GPU_FN uint4 gpu_ld16(const uint4 *p, simt::Loc loc = SIMT_HERE) {
    return simt::load(p, loc);
}
GPU_FN void gpu_st16(uint4 *p, uint4 v, simt::Loc loc = SIMT_HERE) {
    simt::store(p, v, loc);
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

/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA C++ for a C++17 compiler: kernel source that includes this in place of CUDA's headers runs on the SIMT runtime.
 * Launch with SIMT_LAUNCH(kernel, grid, block, dynamic_shared_bytes, arguments...).
 *
 * What the source must do that CUDA would not ask for: declare shared memory by SIMT_SHARED (poisoned, checked) or
 * SIMT_DYN_SHARED, and reach the GPU's special loads, stores and copies by wrappers (example/gpu.cuh).
 */
#ifndef ZIPCCL_TESTS_SIMT_H
#define ZIPCCL_TESTS_SIMT_H

#include "simt_intrin.h"
#include "simt_rt.h"

/* ---- the language ---- */
#define __global__
#define __device__
#define __host__
#define __constant__    static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__    __attribute__((noinline))
#define __restrict__ __restrict
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static /* one block runs at a time; not poisoned: prefer SIMT_SHARED */

/* SIMT_SHARED(uint32_t, hist, [256]); a last argument may be empty. */
#define SIMT_SHARED(type, name, dims)                                                                                  \
    alignas(16) static type name dims;                                                                                 \
    simt::shared_var(&name, sizeof name, SIMT_HERE)
#define SIMT_DYN_SHARED(type, name) type *const name = reinterpret_cast<type *>(simt::grid.dyn)

#define threadIdx (simt::cur->tid)
#define blockIdx  (simt::grid.block_idx)
#define blockDim  (simt::grid.block_dim)
#define gridDim   (simt::grid.grid_dim)
#define warpSize  32

#define SIMT_LAUNCH(kernel, grid_dim, block_dim, dyn_bytes, ...)                                                       \
    simt::launch(#kernel, grid_dim, block_dim, dyn_bytes, [&] { kernel(__VA_ARGS__); })

/* ---- vector types ---- */
#define SIMT_VECTORS(T, name, align2, align4)                                                                          \
    struct alignas(align2) name##2 {                                                                                   \
        T x, y;                                                                                                        \
    };                                                                                                                 \
    struct alignas(align4) name##4 {                                                                                   \
        T x, y, z, w;                                                                                                  \
    };                                                                                                                 \
    inline name##2 make_##name##2(T x, T y) {                                                                          \
        return {x, y};                                                                                                 \
    }                                                                                                                  \
    inline name##4 make_##name##4(T x, T y, T z, T w) {                                                                \
        return {x, y, z, w};                                                                                           \
    }
SIMT_VECTORS(unsigned char, uchar, 2, 4)
SIMT_VECTORS(unsigned short, ushort, 4, 8)
SIMT_VECTORS(int, int, 8, 16)
SIMT_VECTORS(unsigned, uint, 8, 16)
SIMT_VECTORS(float, float, 8, 16)
SIMT_VECTORS(unsigned long long, ulonglong, 16, 16)
#undef SIMT_VECTORS

/* ---- barriers ---- */
inline void __syncthreads(simt::Loc loc = SIMT_HERE) {
    simt::barrier(0, 0, simt::Red::none, false, true, true, loc);
}
inline int __syncthreads_count(int pred, simt::Loc loc = SIMT_HERE) {
    return static_cast<int>(simt::barrier(0, 0, simt::Red::popc, pred != 0, true, true, loc));
}
inline int __syncthreads_and(int pred, simt::Loc loc = SIMT_HERE) {
    return static_cast<int>(simt::barrier(0, 0, simt::Red::and_, pred != 0, true, true, loc));
}
inline int __syncthreads_or(int pred, simt::Loc loc = SIMT_HERE) {
    return static_cast<int>(simt::barrier(0, 0, simt::Red::or_, pred != 0, true, true, loc));
}
inline void __syncwarp(unsigned mask = ~0u, simt::Loc loc = SIMT_HERE) {
    simt::collective(simt::Warp::sync, mask, 0, 0, loc);
}
inline void __threadfence_block() {
    simt::fence();
}
inline void __threadfence() {
    simt::fence();
}
inline void __threadfence_system() {
    simt::fence();
}
inline void __nanosleep(unsigned, simt::Loc loc = SIMT_HERE) {
    simt::yield(loc);
}
[[noreturn]] inline void __trap(simt::Loc loc = SIMT_HERE) {
    simt::die(loc, "trap");
}

/* ---- warp collectives ---- */
inline unsigned __activemask() {
    return simt::live_mask(); /* of the lanes that live: code must not rely on more */
}
inline unsigned __ballot_sync(unsigned mask, int pred, simt::Loc loc = SIMT_HERE) {
    return static_cast<unsigned>(simt::collective(simt::Warp::ballot, mask, pred != 0, 0, loc));
}
inline int __any_sync(unsigned mask, int pred, simt::Loc loc = SIMT_HERE) {
    return static_cast<int>(simt::collective(simt::Warp::any, mask, pred != 0, 0, loc));
}
inline int __all_sync(unsigned mask, int pred, simt::Loc loc = SIMT_HERE) {
    return static_cast<int>(simt::collective(simt::Warp::all, mask, pred != 0, 0, loc));
}
inline int __uni_sync(unsigned mask, int pred, simt::Loc loc = SIMT_HERE) {
    return static_cast<int>(simt::collective(simt::Warp::uni, mask, pred != 0, 0, loc));
}

namespace simt {
template <class T> inline T shuffle(unsigned mask, T v, unsigned src, Loc loc) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    using Word = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
    return bits<T>(static_cast<Word>(collective(Warp::shfl, mask, bits<Word>(v), src, loc)));
}
template <class T> inline uint64_t match_key(T v) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "matches compare 4 or 8 bytes");
    return bits<std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>(v);
}
inline int reduce(Warp op, unsigned mask, int v, Loc loc) {
    return static_cast<int>(static_cast<uint32_t>(collective(op, mask, static_cast<uint32_t>(v), 0, loc)));
}
inline unsigned reduce(Warp op, unsigned mask, unsigned v, Loc loc) {
    return static_cast<unsigned>(collective(op, mask, v, 0, loc));
}
} // namespace simt

template <class T> inline T __shfl_sync(unsigned mask, T v, int src, int width = 32, simt::Loc loc = SIMT_HERE) {
    unsigned w = static_cast<unsigned>(width), base = simt::cur->lane & ~(w - 1);
    return simt::shuffle(mask, v, base + (static_cast<unsigned>(src) & (w - 1)), loc);
}
template <class T> inline T __shfl_up_sync(unsigned mask, T v, unsigned d, int width = 32, simt::Loc loc = SIMT_HERE) {
    unsigned lane = simt::cur->lane, base = lane & ~(static_cast<unsigned>(width) - 1);
    return simt::shuffle(mask, v, lane >= base + d ? lane - d : lane, loc);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T v, unsigned d, int width = 32, simt::Loc loc = SIMT_HERE) {
    unsigned lane = simt::cur->lane, last = lane | (static_cast<unsigned>(width) - 1);
    return simt::shuffle(mask, v, lane + d <= last ? lane + d : lane, loc);
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T v, int x, int width = 32, simt::Loc loc = SIMT_HERE) {
    unsigned lane = simt::cur->lane, last = lane | (static_cast<unsigned>(width) - 1);
    unsigned src = (lane ^ static_cast<unsigned>(x)) & 31;
    return simt::shuffle(mask, v, src <= last ? src : lane, loc);
}
template <class T> inline unsigned __match_any_sync(unsigned mask, T v, simt::Loc loc = SIMT_HERE) {
    return static_cast<unsigned>(simt::collective(simt::Warp::match_any, mask, simt::match_key(v), 0, loc));
}
template <class T> inline unsigned __match_all_sync(unsigned mask, T v, int *pred, simt::Loc loc = SIMT_HERE) {
    uint64_t r = simt::collective(simt::Warp::match_all, mask, simt::match_key(v), 0, loc);
    *pred = static_cast<int>(r >> 63);
    return static_cast<unsigned>(r);
}
#define SIMT_REDUCE(name, T, op)                                                                                       \
    inline T __reduce_##name##_sync(unsigned mask, T v, simt::Loc loc = SIMT_HERE) {                                   \
        return simt::reduce(simt::Warp::op, mask, v, loc);                                                             \
    }
SIMT_REDUCE(add, unsigned, add)
SIMT_REDUCE(add, int, add)
SIMT_REDUCE(min, unsigned, min_u)
SIMT_REDUCE(min, int, min_s)
SIMT_REDUCE(max, unsigned, max_u)
SIMT_REDUCE(max, int, max_s)
SIMT_REDUCE(and, unsigned, and_)
SIMT_REDUCE(or, unsigned, or_)
SIMT_REDUCE(xor, unsigned, xor_)
#undef SIMT_REDUCE

/* ---- atomics (relaxed, as CUDA's) ---- */
namespace simt {
template <class T, class F> inline T atomic_update(T *p, F next, Loc loc) {
    check_aligned(p, sizeof(T), loc);
    T old;
    __atomic_load(p, &old, __ATOMIC_RELAXED);
    for (;;) {
        T want = next(old);
        if (__atomic_compare_exchange(p, &old, &want, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            return old;
    }
}
} // namespace simt
#define SIMT_ATOMIC(name, expr)                                                                                        \
    template <class T> inline T name(T *p, T v, simt::Loc loc = SIMT_HERE) {                                           \
        return simt::atomic_update(                                                                                    \
            p, [v](T old) { return static_cast<T>(expr); }, loc);                                                      \
    }
SIMT_ATOMIC(atomicAdd, old + v)
SIMT_ATOMIC(atomicSub, old - v)
SIMT_ATOMIC(atomicMin, v < old ? v : old)
SIMT_ATOMIC(atomicMax, v > old ? v : old)
SIMT_ATOMIC(atomicAnd, old &v)
SIMT_ATOMIC(atomicOr, old | v)
SIMT_ATOMIC(atomicXor, old ^ v)
SIMT_ATOMIC(atomicExch, (static_cast<void>(old), v))
SIMT_ATOMIC(atomicInc, old >= v ? T{0} : old + T{1})
SIMT_ATOMIC(atomicDec, old == 0 || old > v ? v : old - T{1})
#undef SIMT_ATOMIC
template <class T> inline T atomicCAS(T *p, T expected, T v, simt::Loc loc = SIMT_HERE) {
    return simt::atomic_update(
        p, [&](T old) { return old == expected ? v : old; }, loc);
}

/* ---- global memory: checked for alignment, seen by the trace ---- */
namespace simt {
template <class T> inline T load(const T *p, Loc loc = SIMT_HERE) {
    check_aligned(p, sizeof(T), loc);
    access(p, sizeof(T), false, loc);
    return *p;
}
template <class T> inline void store(T *p, T v, Loc loc = SIMT_HERE) {
    check_aligned(p, sizeof(T), loc);
    access(p, sizeof(T), true, loc);
    *p = v;
}
inline void copy_now(void *dst, const void *src, unsigned bytes, unsigned src_bytes) {
    memcpy(dst, src, src_bytes);
    memset(static_cast<char *>(dst) + src_bytes, 0, bytes - src_bytes);
}
/* cp.async of N bytes; what follows the first src_bytes is zero. */
template <unsigned N> inline void copy_async(void *dst, const void *src, unsigned src_bytes = N, Loc loc = SIMT_HERE) {
    access(src, src_bytes, false, loc);
    cp_async(dst, src, N, src_bytes, copy_now, loc);
}
} // namespace simt
template <class T> inline T __ldg(const T *p, simt::Loc loc = SIMT_HERE) {
    return simt::load(p, loc);
}
template <class T> inline T __ldcs(const T *p, simt::Loc loc = SIMT_HERE) {
    return simt::load(p, loc);
}
template <class T> inline T __ldcg(const T *p, simt::Loc loc = SIMT_HERE) {
    return simt::load(p, loc);
}
template <class T> inline void __stcs(T *p, T v, simt::Loc loc = SIMT_HERE) {
    simt::store(p, v, loc);
}
template <class T> inline void __stcg(T *p, T v, simt::Loc loc = SIMT_HERE) {
    simt::store(p, v, loc);
}

/* ---- device overloads of the host's names ---- */
#define SIMT_MINMAX(T)                                                                                                 \
    inline T min(T a, T b) {                                                                                           \
        return b < a ? b : a;                                                                                          \
    }                                                                                                                  \
    inline T max(T a, T b) {                                                                                           \
        return a < b ? b : a;                                                                                          \
    }
SIMT_MINMAX(int)
SIMT_MINMAX(unsigned)
SIMT_MINMAX(long long)
SIMT_MINMAX(unsigned long long)
SIMT_MINMAX(float)
#undef SIMT_MINMAX

#endif

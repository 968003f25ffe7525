/* SPDX-License-Identifier: Apache-2.0
 *
 * What translated PTX needs beside arithmetic: checked memory spaces, atomics, shuffles, and the list of kernels.
 * Shared addresses are offsets from simt::grid.dyn; all others are addresses of this process.
 */
#ifndef ZIPCCL_TESTS_SIMT_PTX_RT_H
#define ZIPCCL_TESTS_SIMT_PTX_RT_H

#include "ptx_count.h"
#include "ptx_ops.h"
#include "simt_rt.h"

#include <chrono>
#include <cstdlib>

namespace ptx {

/* ---- kernels and variables of translated modules ---- */
struct Kernel {
    const char *name;
    void (*run)(unsigned char *const *params);
    unsigned static_shared; /* with alignment for the dynamic part behind it */
    unsigned max_threads;   /* 0: any */
    const unsigned *param_bytes;
    unsigned params;
};
struct Variable {
    const char *name;
    void *address;
    size_t bytes;
};
struct Module {
    const Kernel *kernels;
    size_t num_kernels;
    const Variable *variables;
    size_t num_variables;
    Module *next;
    static Module *&first() {
        static Module *m;
        return m;
    }
    Module(const Kernel *k, size_t nk, const Variable *v, size_t nv)
        : kernels(k), num_kernels(nk), variables(v), num_variables(nv), next(first()) {
        first() = this;
    }
};
inline const Kernel *find_kernel(const char *name) {
    for (Module *m = Module::first(); m; m = m->next)
        for (size_t i = 0; i < m->num_kernels; i++)
            if (strcmp(m->kernels[i].name, name) == 0)
                return &m->kernels[i];
    return nullptr;
}
inline const Variable *find_variable(const char *name) {
    for (Module *m = Module::first(); m; m = m->next)
        for (size_t i = 0; i < m->num_variables; i++)
            if (strcmp(m->variables[i].name, name) == 0)
                return &m->variables[i];
    return nullptr;
}
/* As cudaLaunchKernel: params[i] points to the i-th argument. */
inline void launch(const Kernel &k, dim3 grid, dim3 block, size_t dyn_bytes, void *const *params) {
    if (k.max_threads && block.x * block.y * block.z > k.max_threads)
        simt::die(simt::Loc{k.name, 0}, "bad launch: %u threads, the kernel allows %u", block.x * block.y * block.z,
                  k.max_threads);
    counts.launch();
    simt::launch(k.name, grid, block, k.static_shared + dyn_bytes,
                 [&] { k.run(reinterpret_cast<unsigned char *const *>(params)); });
}
/* With the arguments themselves. Their number and sizes are checked. */
template <class... A> inline void launch(const char *name, dim3 grid, dim3 block, size_t dyn_bytes, A... args) {
    const Kernel *k = find_kernel(name);
    constexpr unsigned sizes[] = {sizeof(A)...};
    void *params[] = {&args...};
    if (!k)
        simt::die(simt::Loc{name, 0}, "no such kernel");
    bool same = k->params == sizeof...(A);
    for (unsigned i = 0; same && i < k->params; i++)
        same = sizes[i] == k->param_bytes[i];
    if (!same)
        simt::die(simt::Loc{name, 0}, "bad launch: the arguments do not fit the kernel");
    launch(*k, grid, block, dyn_bytes, params);
}

/* ---- memory ---- */
inline unsigned char *shared(uint32_t a, unsigned bytes, bool write, simt::Loc loc) {
    if (a % bytes != 0)
        simt::die(loc, "misaligned access: shared 0x%x is not a multiple of %u bytes", a, bytes);
    return simt::shared_at(a, bytes, write, loc);
}
inline bool is_shared(uint64_t a) {
    return a - reinterpret_cast<uint64_t>(simt::grid.dyn) < simt::grid.dyn_bytes;
}
/* Device addresses from `base` on that stand for what lies `shift` further on (tests/standin). Global memory elsewhere
 * is the host's: `host` tells the range of addresses around a that a kernel may touch, or does not return. */
inline struct View {
    uint64_t base, bytes, shift;
    void (*host)(uint64_t a, uint64_t *from, uint64_t *to);
    uint64_t from, to; /* what it told last */
} view;
inline unsigned char *plain(uint64_t a, unsigned bytes, simt::Loc loc) {
    unsigned char *p = reinterpret_cast<unsigned char *>(a - view.base < view.bytes ? a + view.shift : a);
    if (a < 65536)
        simt::die(loc, "access through the null pointer: 0x%llx", static_cast<unsigned long long>(a));
    simt::check_aligned(p, bytes, loc);
    return p;
}
inline unsigned char *global(uint64_t a, unsigned bytes, bool write, simt::Loc loc) {
    if (simt::grid.dyn_bytes && is_shared(a))
        simt::die(loc, "a global access to shared memory");
    if (view.bytes && a - view.base >= view.bytes && (a < view.from || a >= view.to))
        view.host(a, &view.from, &view.to);
    unsigned char *p = plain(a, bytes, loc);
    simt::access(p, bytes, write, loc);
    return p;
}
inline unsigned char *generic(uint64_t a, unsigned bytes, bool write, simt::Loc loc) {
    if (simt::grid.dyn_bytes && is_shared(a))
        return shared(static_cast<uint32_t>(a - reinterpret_cast<uint64_t>(simt::grid.dyn)), bytes, write, loc);
    return plain(a, bytes, loc); /* perhaps local: not traced */
}
inline unsigned char *local(uint64_t a, unsigned bytes, bool, simt::Loc loc) {
    return plain(a, bytes, loc);
}
inline uint64_t from_shared(uint32_t a) {
    return reinterpret_cast<uint64_t>(simt::grid.dyn) + a;
}
inline uint32_t to_shared(uint64_t a, simt::Loc loc) {
    if (!is_shared(a) && a != from_shared(simt::grid.dyn_bytes))
        simt::die(loc, "cvta.to.shared of an address that is not shared");
    return static_cast<uint32_t>(a - reinterpret_cast<uint64_t>(simt::grid.dyn));
}
template <class T> inline T load(const unsigned char *p) {
    T v;
    memcpy(&v, p, sizeof v);
    return v;
}
template <class T> inline void store(unsigned char *p, T v) {
    memcpy(p, &v, sizeof v);
}
template <class T> inline T load_ordered(const unsigned char *p) {
    word<sizeof(T)> v = __atomic_load_n(reinterpret_cast<const word<sizeof(T)> *>(p), __ATOMIC_ACQUIRE);
    return simt::bits<T>(v);
}
template <class T> inline void store_ordered(unsigned char *p, T v) {
    __atomic_store_n(reinterpret_cast<word<sizeof(T)> *>(p), simt::bits<word<sizeof(T)>>(v), __ATOMIC_RELEASE);
}

/* ---- atomics ---- */
enum class Atom { add, min, max, and_, or_, xor_, exch, inc, dec, cas };
template <class T, Atom O> inline T atom(unsigned char *at, T a, T b = T()) {
    using W = word<sizeof(T)>;
    W *p = reinterpret_cast<W *>(at);
    W old = __atomic_load_n(p, __ATOMIC_RELAXED);
    for (;;) {
        T v = simt::bits<T>(old), n;
        if constexpr (O == Atom::add)
            n = arith<0, Arith::add>(v, a);
        else if constexpr (O == Atom::min)
            n = a < v ? a : v;
        else if constexpr (O == Atom::max)
            n = v < a ? a : v;
        else if constexpr (O == Atom::exch)
            n = a;
        else if constexpr (O == Atom::cas)
            n = v == a ? b : v;
        else if constexpr (O == Atom::inc)
            n = v >= a ? T(0) : static_cast<T>(v + 1);
        else if constexpr (O == Atom::dec)
            n = v == T(0) || v > a ? a : static_cast<T>(v - 1);
        else if constexpr (O == Atom::and_)
            n = static_cast<T>(v & a);
        else if constexpr (O == Atom::or_)
            n = static_cast<T>(v | a);
        else
            n = static_cast<T>(v ^ a);
        if (__atomic_compare_exchange_n(p, &old, simt::bits<W>(n), false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            return v;
    }
}

/* ---- asynchronous copies into shared memory ---- */
inline void copy_now(void *dst, const void *src, unsigned bytes, unsigned src_bytes) {
    memcpy(dst, src, src_bytes);
    memset(static_cast<char *>(dst) + src_bytes, 0, bytes - src_bytes);
    simt::shared_mark(static_cast<uint32_t>(static_cast<unsigned char *>(dst) - simt::grid.dyn), bytes,
                      simt::Cell::written);
}
inline void cp_async(uint32_t dst, uint64_t src, unsigned bytes, unsigned src_bytes, simt::Loc loc) {
    unsigned char *d = shared(dst, bytes, true, loc);
    const unsigned char *s = src_bytes ? global(src, bytes, false, loc) : reinterpret_cast<unsigned char *>(src);
    simt::cp_async(d, s, bytes, src_bytes, copy_now, loc);
    simt::shared_mark(dst, bytes, simt::Cell::pending);
}

/* ---- warps ---- */
enum class Shfl { up, down, bfly, idx };
/* c holds the clamp in bits 0-4 and the segment mask in bits 8-12. */
template <Shfl M> inline uint32_t shfl(uint32_t v, uint32_t b, uint32_t c, uint32_t mask, bool &inside, simt::Loc loc) {
    int lane = static_cast<int>(simt::cur->lane), clamp = static_cast<int>(c & 31),
        segment = static_cast<int>(c >> 8 & 31);
    int max = (lane & segment) | (clamp & ~segment & 31), min = lane & segment, off = static_cast<int>(b & 31);
    int src = M == Shfl::up     ? lane - off
              : M == Shfl::down ? lane + off
              : M == Shfl::bfly ? lane ^ off
                                : min | (off & ~segment & 31);
    inside = M == Shfl::up ? src >= max : src <= max;
    return static_cast<uint32_t>(
        simt::collective(simt::Warp::shfl, mask, v, static_cast<unsigned>(inside ? src : lane), loc));
}

/* ---- the rest ---- */
inline uint64_t clock() {
    return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}
[[noreturn]] inline void assert_fail(unsigned char *const *params, simt::Loc loc) {
    simt::die(loc, "assertion failed: %s", load<const char *>(params[0]));
}

} // namespace ptx

#endif

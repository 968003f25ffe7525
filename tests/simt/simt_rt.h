/* SPDX-License-Identifier: Apache-2.0
 *
 * The SIMT runtime: runs a kernel on one CPU thread, a block after the other, each thread of a block as a fiber.
 * A fiber runs until its next barrier or warp collective, so a schedule is the order in which the fibers are resumed.
 * Anything that a GPU would leave undefined (mismatched collectives, a deadlock, a misaligned access) stops the program
 * with the kernel, the block, the thread and the source line.
 *
 * The runtime's files (simt_fiber.h) are always compiled without sanitizers: what they do is invisible to them,
 * and they tell them of fibers, barriers and pending copies through their interfaces (SIMT_ASAN, SIMT_TSAN).
 */
#ifndef ZIPCCL_TESTS_SIMT_RT_H
#define ZIPCCL_TESTS_SIMT_RT_H

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

#if defined(__has_feature)
#    if __has_feature(address_sanitizer)
#        define SIMT_ASAN 1
#    endif
#    if __has_feature(thread_sanitizer)
#        define SIMT_TSAN 1
#    endif
#elif defined(__SANITIZE_ADDRESS__)
#    define SIMT_ASAN 1
#elif defined(__SANITIZE_THREAD__)
#    define SIMT_TSAN 1
#endif

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {
    }
};

namespace simt {

/* A place in kernel source; the defaults of trailing parameters catch the caller's. */
struct Loc {
    const char *file;
    int line;
};
/* As std::source_location::current(): in a default argument it gives the place of the call. */
constexpr Loc here(const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    return Loc{file, line};
}
#define SIMT_HERE simt::here()

constexpr unsigned kWarp = 32;
constexpr unsigned kMaxThreads = 1024;
constexpr unsigned kBarriers = 16;
constexpr unsigned char kPoison = 0xA5;       /* shared memory nobody wrote */
constexpr unsigned char kCopyPoison = 0xCD;   /* destination of an async copy not waited for */
constexpr unsigned kStaticShared = 48u << 10; /* bytes of static shared memory a kernel may have */

enum class Order { forward, reverse, random };

struct Config {
    Order order = Order::forward; /* of the fibers of a block, and of the blocks */
    uint64_t seed = 1;            /* of Order::random */
    bool blocks_in_order = false; /* for kernels that wait for blocks of lower index */
    bool check_uninit = true;     /* PTX alone: a read of shared memory nobody wrote stops */
    bool check_bounds = false;    /* traced accesses must lie in a registered buffer */
    bool trace = false;           /* count traced accesses and their coalescing */
    size_t stack = 256u << 10;    /* bytes of a fiber's stack */
    unsigned shared_limit = 227u << 10;
};
extern Config config;

/* Schedule i of any number: forward, reverse, then random ones with seeds of their own. */
void set_schedule(unsigned i);

/* The running thread and the running launch. */
struct Lane {
    dim3 tid;
    unsigned index; /* linear, in the block */
    unsigned lane;  /* in the warp */
    unsigned warp;
};
struct Grid {
    const char *kernel;
    dim3 block_idx, block_dim, grid_dim;
    unsigned char *dyn; /* dynamic shared memory; under PTX all shared memory */
    unsigned dyn_bytes;
    unsigned threads; /* of a block */
};
extern Lane *cur; /* null outside kernels */
extern Grid grid;

/* Runs fn(arg) once a thread. One launch at a time; callers on other threads wait. */
void launch(const char *kernel, dim3 grid_dim, dim3 block_dim, size_t dyn_bytes, void (*fn)(void *), void *arg);

template <class F> void launch(const char *kernel, dim3 grid_dim, dim3 block_dim, size_t dyn_bytes, F body) {
    simt::launch(/* qualified: an unqualified call would look in F's namespace too */
                 kernel, grid_dim, block_dim, dyn_bytes, [](void *p) { (*static_cast<F *>(p))(); }, &body);
}

/* Stops the program: message, kernel, block, thread, place, and what every thread of the block waits for. */
[[noreturn]] void die(Loc loc, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Warp collectives. Every lane of the mask must call the same one with the same mask. */
enum class Warp : uint8_t {
    none,
    sync,
    ballot,
    any,
    all,
    uni,
    shfl,
    match_any,
    match_all,
    elect,
    add,
    min_u,
    max_u,
    min_s,
    max_s,
    and_,
    or_,
    xor_
};
/* value: the lane's input. src: the lane read by shfl. Returns the lane's result; for match_all bit 63 is the
 * predicate. */
uint64_t collective(Warp op, uint32_t mask, uint64_t value, unsigned src, Loc loc);
uint32_t live_mask();
void yield(Loc loc);
[[noreturn]] void exit_thread();

/* Block barriers. threads 0: all that live. Result: of the reduction over the predicates of those that arrive.
 * one_place: the waiters must stand on one source line, as __syncthreads demands. */
enum class Red : uint8_t { none, popc, and_, or_ };
unsigned barrier(unsigned id, unsigned threads, Red red, bool pred, bool wait, bool one_place, Loc loc);

/* Asynchronous copies: run(dst, src, bytes, src_bytes) is called when the group is waited for. */
using CopyFn = void (*)(void *dst, const void *src, unsigned bytes, unsigned src_bytes);
void cp_async(void *dst, const void *src, unsigned bytes, unsigned src_bytes, CopyFn run, Loc loc);
void cp_commit();
void cp_wait(unsigned pending, Loc loc);

/* Poisons a __shared__ variable when a block meets it first, and counts the kernel's static shared memory. */
void shared_var(void *p, size_t bytes, Loc loc);

/* Byte states of the shared memory at grid.dyn, for executors that see every access (PTX). */
enum class Cell : unsigned char { unwritten, written, pending };
unsigned char *shared_at(uint32_t offset, unsigned bytes, bool write, Loc loc); /* checked; marks writes */
void shared_mark(uint32_t offset, unsigned bytes, Cell state);

void fence();

inline void check_aligned(const void *p, unsigned align, Loc loc) {
    if (reinterpret_cast<uintptr_t>(p) % align != 0)
        die(loc, "misaligned access: %p is not a multiple of %u bytes", p, align);
}

/* The memory trace: buffers in global memory, the accesses that wrappers (or PTX) report, their coalescing. */
struct Traffic {
    uint64_t read, written; /* bytes asked for by lanes */
};
struct Access {
    Loc loc;
    bool write;
    unsigned size;    /* bytes a lane; the greatest */
    uint64_t warps;   /* warp-wide accesses */
    uint64_t moved;   /* bytes asked for */
    uint64_t touched; /* bytes of the 32-byte sectors touched */
    uint64_t partial; /* warp accesses that touch more sectors than their bytes fill */
    uint64_t full;    /* 16 bytes a lane, 32 lanes, exactly four 128-byte lines */
};
int buffer_add(const void *base, size_t bytes, const char *name); /* returns its number */
void buffer_clear();
Traffic buffer_traffic(int buffer);
void trace_reset();
size_t trace_count();
Access trace_access(size_t i);
uint64_t trace_partial(); /* sum over accesses */
void trace_report(FILE *out);
void access_slow(const void *p, unsigned bytes, bool write, Loc loc);
inline void access(const void *p, unsigned bytes, bool write, Loc loc) {
    if (config.trace || config.check_bounds)
        access_slow(p, bytes, write, loc);
}
/* For the runtime's own use: the trace groups accesses of a warp until the block ends. */
void trace_block_end();

uint64_t switches(); /* fiber switches so far */

} // namespace simt

#endif

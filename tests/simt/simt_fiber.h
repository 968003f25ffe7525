/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the SIMT runtime (simt_rt.h): its fibers and its state. simt_fiber.cpp: fibers; simt_warp.cpp: collectives;
 * simt_block.cpp: barriers, asynchronous copies, shared memory; simt_report.cpp: why a program stops; simt_rt.cpp:
 * launches; simt_trace.cpp: the memory trace, which needs none of this.
 *
 * For these files alone, which are never instrumented: so no template instance is shared with code that is.
 */
#ifndef ZIPCCL_TESTS_SIMT_FIBER_H
#define ZIPCCL_TESTS_SIMT_FIBER_H

#include "simt_rt.h"

#include <cstdlib>

#ifdef SIMT_ASAN
#    include <sanitizer/asan_interface.h>
#    include <sanitizer/common_interface_defs.h>
#endif
#ifdef SIMT_TSAN
#    include <sanitizer/tsan_interface.h>
#endif

/* Saves the callee-saved registers on the current stack, its top in *from, and goes on where `to` was left. */
extern "C" void simt_switch(void **from, void *to);

namespace simt {
#pragma GCC visibility push(hidden)
namespace inside {

/* A growing array of plain data. Not std::vector: its instances could be taken from instrumented code. */
template <class T> struct Array {
    T *at = nullptr;
    size_t n = 0, room = 0;
    T &operator[](size_t i) const {
        return at[i];
    }
    T *begin() const {
        return at;
    }
    T *end() const {
        return at + n;
    }
    void resize(size_t m) { /* new elements are zero */
        if (m > room) {
            room = m > 2 * room ? m : 2 * room;
            at = static_cast<T *>(realloc(static_cast<void *>(at), room * sizeof(T)));
            if (!at)
                abort();
        }
        if (m > n)
            memset(static_cast<void *>(at + n), 0, (m - n) * sizeof(T));
        n = m;
    }
    void push(const T &v) {
        resize(n + 1);
        at[n - 1] = v;
    }
};

enum class State : uint8_t { ready, yielded, in_warp, in_barrier, done };

struct Pending {
    void *dst;
    const void *src;
    unsigned bytes, src_bytes, group;
    CopyFn run;
    Loc loc;
};

struct Fiber {
    Lane lane;
    State state;
    Warp op;
    Red red;
    uint8_t barrier;
    bool one_place;
    uint32_t mask;
    unsigned src;
    uint64_t value, result;
    Loc loc;
    unsigned group; /* of async copies, open now */
    Array<Pending> copies;
    void *sp;
    char *stack;
    size_t stack_bytes;
    void *tsan, *fake_stack;
};

struct Barrier {
    unsigned arrived, expected; /* expected 0: all that live */
    unsigned popc;
    bool used_red;
    Loc first;
};

/* Lanes of a warp that are on their way into one collective: the usual case, in which nobody has to be looked at. */
struct Meeting {
    Warp op;
    uint32_t mask;
    uint32_t arrived; /* lanes that wait in this collective */
    uint32_t waiting; /* lanes that wait in any */
    uint32_t away;    /* lanes that have ended or wait at a barrier */
};

struct SharedVar {
    void *p;
    uint64_t block;
};

struct Runtime {
    Array<Fiber> fibers;
    Array<unsigned> order;
    Array<SharedVar> vars;
    Array<unsigned char> cells;
    Barrier barriers[kBarriers];
    Meeting meetings[kMaxThreads / kWarp];
    unsigned live;
    uint64_t block_serial, var_bytes, rng, switches;
    bool progress;
    void (*fn)(void *);
    void *arg;
    void *main_sp, *main_tsan, *main_fake;
    const void *main_stack;
    size_t main_stack_bytes;
    char sync_start, sync_done, sync_barrier[kBarriers], sync_warp[kMaxThreads];
};
extern Runtime rt;

inline Fiber &me() {
    return rt.fibers[cur->index];
}

/* simt_fiber.cpp */
void shuffle(unsigned *v, unsigned n); /* by config.seed */
[[noreturn]] void leave();
void prepare(Fiber &f, unsigned index); /* a thread of the next block */

/* simt_block.cpp */
void release_barrier(unsigned id);

/* simt_report.cpp */
const char *name_of(Warp op);
bool same_place(const Loc &a, const Loc &b);

/* Switches are what a program does most: so they are here. */
inline void to_main(bool last) {
    Fiber &f = me();
    rt.switches++;
#ifdef SIMT_TSAN
    __tsan_switch_to_fiber(rt.main_tsan, __tsan_switch_to_fiber_no_sync);
#endif
#ifdef SIMT_ASAN
    __sanitizer_start_switch_fiber(last ? nullptr : &f.fake_stack, rt.main_stack, rt.main_stack_bytes);
#endif
    (void)last;
    simt_switch(&f.sp, rt.main_sp);
#ifdef SIMT_ASAN
    __sanitizer_finish_switch_fiber(f.fake_stack, &rt.main_stack, &rt.main_stack_bytes);
#endif
}

inline void to_fiber(Fiber &f) {
    cur = &f.lane;
#ifdef SIMT_TSAN
    __tsan_switch_to_fiber(f.tsan, __tsan_switch_to_fiber_no_sync);
#endif
#ifdef SIMT_ASAN
    __sanitizer_start_switch_fiber(&rt.main_fake, f.stack, f.stack_bytes);
#endif
    simt_switch(&rt.main_sp, f.sp);
#ifdef SIMT_ASAN
    __sanitizer_finish_switch_fiber(rt.main_fake, nullptr, nullptr);
#endif
    cur = nullptr;
}

/* What sanitizers know of an order between threads: the clocks of all waiters meet at the barrier's address.
 * Shuffles and votes give no such order, as on the GPU: __syncwarp and __syncthreads alone do. */
template <class Pick> inline void order_waiters(char *at, Pick waits) {
#ifdef SIMT_TSAN
    void *self = __tsan_get_current_fiber();
    for (int acquire = 0; acquire < 2; acquire++)
        for (Fiber &f : rt.fibers)
            if (waits(f)) {
                __tsan_switch_to_fiber(f.tsan, __tsan_switch_to_fiber_no_sync);
                if (acquire)
                    __tsan_acquire(at);
                else
                    __tsan_release(at);
            }
    __tsan_switch_to_fiber(self, __tsan_switch_to_fiber_no_sync);
#else
    (void)at;
    (void)waits;
#endif
}

} // namespace inside
#pragma GCC visibility pop
} // namespace simt

#endif

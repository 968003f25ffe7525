/* SPDX-License-Identifier: Apache-2.0
 *
 * Fibers of the SIMT runtime: a thread of a block each, with a stack of its own.
 */
#include "simt_fiber.h"

#include <sys/mman.h>

#ifndef __x86_64__
#    error "the fiber switch is written for x86-64"
#endif

asm(R"(
.text
.globl simt_switch
.hidden simt_switch
.type simt_switch,@function
simt_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size simt_switch,.-simt_switch
)");

namespace simt {
namespace inside {

constexpr size_t kPage = 4096;

Runtime rt;

static uint64_t next_random() {
    rt.rng ^= rt.rng << 13;
    rt.rng ^= rt.rng >> 7;
    rt.rng ^= rt.rng << 17;
    return rt.rng * 0x2545F4914F6CDD1Dull >> 16;
}

void shuffle(unsigned *v, unsigned n) {
    for (unsigned i = n; i > 1; i--) {
        unsigned j = static_cast<unsigned>(next_random() % i), t = v[i - 1];
        v[i - 1] = v[j];
        v[j] = t;
    }
}

/* A barrier without a count waits for the threads that live: one that leaves may be the last it waited for. */
void leave() {
    Fiber &f = me();
    if (f.copies.n)
        die(f.copies[0].loc, "the thread ends with an asynchronous copy not waited for");
#ifdef SIMT_TSAN
    __tsan_release(&rt.sync_done);
#endif
    f.state = State::done;
    rt.meetings[f.lane.warp].away |= 1u << f.lane.lane;
    rt.live--;
    rt.progress = true;
    for (unsigned id = 0; id < kBarriers; id++)
        if (rt.barriers[id].arrived && rt.barriers[id].expected == 0 && rt.barriers[id].arrived == rt.live)
            release_barrier(id);
    to_main(true);
    abort();
}

static void fiber_main() {
#ifdef SIMT_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &rt.main_stack, &rt.main_stack_bytes);
#endif
#ifdef SIMT_TSAN
    __tsan_acquire(&rt.sync_start);
#endif
    rt.fn(rt.arg);
    leave();
}

void prepare(Fiber &f, unsigned index) {
    const dim3 &d = grid.block_dim;
    f.lane = {dim3(index % d.x, index / d.x % d.y, index / (d.x * d.y)), index, index % kWarp, index / kWarp};
    f.state = State::ready;
    f.op = Warp::none;
    f.group = 0;
    f.copies.n = 0;
    if (!f.stack) {
        f.stack_bytes = config.stack;
        void *m = mmap(nullptr, f.stack_bytes + kPage, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
        if (m == MAP_FAILED || mprotect(m, kPage, PROT_NONE) != 0) {
            perror("simt: fiber stack");
            abort();
        }
        f.stack = static_cast<char *>(m) + kPage;
#ifdef SIMT_TSAN
        f.tsan = __tsan_create_fiber(0);
#endif
    }
    void **s = reinterpret_cast<void **>(f.stack + f.stack_bytes);
    *--s = nullptr; /* as the return address that a call would leave: it aligns the stack */
    *--s = reinterpret_cast<void *>(fiber_main);
    for (int i = 0; i < 6; i++)
        *--s = nullptr;
    f.sp = s;
}

} // namespace inside

using namespace inside;

uint32_t live_mask() {
    Fiber *warp = &me() - cur->lane;
    uint32_t mask = 0;
    for (unsigned l = 0; l < kWarp && cur->warp * kWarp + l < grid.threads; l++)
        if (warp[l].state != State::done)
            mask |= 1u << l;
    return mask;
}

void yield(Loc loc) {
    Fiber &f = me();
    f.loc = loc;
    f.state = State::yielded;
    to_main(false);
}

void exit_thread() {
#ifdef SIMT_ASAN
    __asan_handle_no_return();
#endif
    leave();
    abort();
}

} // namespace simt

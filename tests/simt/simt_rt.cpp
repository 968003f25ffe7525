/* SPDX-License-Identifier: Apache-2.0
 *
 * Fibers, schedules, collectives, barriers, asynchronous copies and shared memory of the SIMT runtime (simt_rt.h).
 * Types stay in an anonymous namespace, so that no template instance is shared with instrumented code.
 */
#include "simt_rt.h"

#include <cstdarg>
#include <cstdlib>
#include <mutex>
#include <sys/mman.h>

#ifdef SIMT_ASAN
#    include <sanitizer/asan_interface.h>
#    include <sanitizer/common_interface_defs.h>
#endif
#ifdef SIMT_TSAN
#    include <sanitizer/tsan_interface.h>
#endif

#ifndef __x86_64__
#    error "the fiber switch is written for x86-64"
#endif

/* Saves the callee-saved registers on the current stack, its top in *from, and goes on where `to` was left. */
extern "C" void simt_switch(void **from, void *to);
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

Config config;
Lane *cur;
Grid grid;

namespace {

constexpr size_t kPage = 4096;

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
constexpr uint64_t kStuckRounds = 1u << 20;

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
Runtime rt;
std::mutex launch_lock;

Fiber &me() {
    return rt.fibers[cur->index];
}

uint64_t next_random() {
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

/* ---- fibers ---- */

void to_main(bool last) {
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

void to_fiber(Fiber &f) {
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
template <class Pick> void order_waiters(char *at, Pick waits) {
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

void release_barrier(unsigned id);

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

void fiber_main() {
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

/* ---- reports ---- */

const char *name_of(Warp op) {
    static const char *const names[] = {"nothing",    "syncwarp",   "ballot",     "any",        "all",
                                        "uni",        "shfl",       "match_any",  "match_all",  "elect",
                                        "reduce_add", "reduce_min", "reduce_max", "reduce_min", "reduce_max",
                                        "reduce_and", "reduce_or",  "reduce_xor"};
    return names[static_cast<unsigned>(op)];
}

bool same_place(const Loc &a, const Loc &b) {
    return a.line == b.line && (a.file == b.file || (a.file && b.file && strcmp(a.file, b.file) == 0));
}

bool same_wait(const Fiber &a, const Fiber &b) {
    if (a.state != b.state)
        return false;
    if (a.state == State::in_warp)
        return a.op == b.op && a.mask == b.mask && same_place(a.loc, b.loc);
    if (a.state == State::in_barrier)
        return a.barrier == b.barrier && same_place(a.loc, b.loc);
    return true;
}

void list_threads() {
    for (size_t i = 0, j; i < rt.fibers.n && i < grid.threads; i = j) {
        const Fiber &f = rt.fibers[i];
        for (j = i + 1; j < grid.threads && same_wait(f, rt.fibers[j]); j++)
            ;
        if (j == i + 1)
            fprintf(stderr, "  thread %zu ", i);
        else
            fprintf(stderr, "  threads %zu to %zu ", i, j - 1);
        switch (f.state) {
        case State::in_warp:
            fprintf(stderr, "wait in %s with mask 0x%08x at %s:%d\n", name_of(f.op), f.mask, f.loc.file, f.loc.line);
            break;
        case State::in_barrier:
            fprintf(stderr, "wait at barrier %u at %s:%d\n", f.barrier, f.loc.file, f.loc.line);
            break;
        case State::done:
            fprintf(stderr, "have ended\n");
            break;
        case State::yielded:
            fprintf(stderr, "spin at %s:%d\n", f.loc.file, f.loc.line);
            break;
        case State::ready:
            fprintf(stderr, "can run\n");
            break;
        }
    }
}

} // namespace

void die(Loc loc, const char *format, ...) {
    va_list args;
    fflush(stdout);
    fprintf(stderr, "simt: ");
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\n  at %s:%d\n", loc.file ? loc.file : "?", loc.line);
    if (grid.kernel)
        fprintf(stderr, "  in kernel %s, block (%u,%u,%u)\n", grid.kernel, grid.block_idx.x, grid.block_idx.y,
                grid.block_idx.z);
    if (cur)
        fprintf(stderr, "  in thread (%u,%u,%u), warp %u lane %u\n", cur->tid.x, cur->tid.y, cur->tid.z, cur->warp,
                cur->lane);
    if (grid.kernel)
        list_threads();
    fflush(stderr);
    abort();
}

/* ---- collectives ---- */

namespace {

void compute(Warp op, uint32_t mask, Fiber *warp) {
    uint32_t ballot = 0;
    uint64_t acc = 0;
    bool first = true, all_equal = true;
    const bool alone = op == Warp::sync || op == Warp::shfl; /* nothing is combined */
    for (unsigned l = 0; l < kWarp && !alone; l++) {
        if (!(mask >> l & 1))
            continue;
        uint64_t v = warp[l].value;
        int32_t s = static_cast<int32_t>(v), a = static_cast<int32_t>(acc);
        ballot |= static_cast<uint32_t>(v != 0) << l;
        if (first) {
            acc = v;
            first = false;
            continue;
        }
        all_equal = all_equal && v == warp[__builtin_ctz(mask)].value;
        switch (op) {
        case Warp::add:
            acc = static_cast<uint32_t>(acc + v);
            break;
        case Warp::min_u:
            acc = v < acc ? v : acc;
            break;
        case Warp::max_u:
            acc = v > acc ? v : acc;
            break;
        case Warp::min_s:
            acc = s < a ? v : acc;
            break;
        case Warp::max_s:
            acc = s > a ? v : acc;
            break;
        case Warp::and_:
            acc &= v;
            break;
        case Warp::or_:
            acc |= v;
            break;
        case Warp::xor_:
            acc ^= v;
            break;
        default:
            break;
        }
    }
    for (unsigned l = 0; l < kWarp && op != Warp::sync; l++) {
        if (!(mask >> l & 1))
            continue;
        Fiber &f = warp[l];
        switch (op) {
        case Warp::ballot:
            f.result = ballot;
            break;
        case Warp::any:
            f.result = ballot != 0;
            break;
        case Warp::all:
            f.result = ballot == mask;
            break;
        case Warp::uni:
            f.result = ballot == 0 || ballot == mask;
            break;
        case Warp::shfl: /* a lane outside of the mask has no value to give */
            f.result = mask >> f.src & 1 ? warp[f.src].value : 0xA5A5A5A5A5A5A5A5ull;
            break;
        case Warp::match_any:
            f.result = 0;
            for (unsigned k = 0; k < kWarp; k++)
                if ((mask >> k & 1) && warp[k].value == f.value)
                    f.result |= 1u << k;
            break;
        case Warp::match_all:
            f.result = all_equal ? mask | 1ull << 63 : 0;
            break;
        case Warp::elect:
            f.result = static_cast<unsigned>(__builtin_ctz(mask));
            break;
        default:
            f.result = acc;
        }
    }
}

} // namespace

uint64_t collective(Warp op, uint32_t mask, uint64_t value, unsigned src, Loc loc) {
    if (!cur)
        die(loc, "%s outside of a kernel", name_of(op));
    Fiber &f = me();
    Fiber *warp = &f - cur->lane;
    unsigned lanes = grid.threads - cur->warp * kWarp;
    uint32_t exist = lanes >= kWarp ? ~0u : (1u << lanes) - 1, have = 0;
    if (!(mask >> cur->lane & 1))
        die(loc, "%s: the calling lane is not in its own mask 0x%08x", name_of(op), mask);
    mask &= exist; /* a full mask is usual in a short last warp */
    f.op = op;
    f.mask = mask;
    f.value = value;
    f.src = src;
    f.loc = loc;
    f.state = State::in_warp;
    Meeting &m = rt.meetings[cur->warp];
    const bool usual =
        (mask & m.away) == 0 && m.waiting == m.arrived && (m.arrived == 0 || (m.op == op && m.mask == mask));
    m.waiting |= 1u << cur->lane;
    if (usual) {
        m.op = op;
        m.mask = mask;
        m.arrived |= 1u << cur->lane;
        have = m.arrived;
    }
    for (unsigned l = 0; l < kWarp && !usual; l++) {
        if (!(mask >> l & 1))
            continue;
        const Fiber &g = warp[l];
        if (g.state == State::done)
            die(loc, "missing lane: %s with mask 0x%08x, but lane %u has ended", name_of(op), mask, l);
        if (g.state == State::in_barrier)
            die(loc, "missing lane: %s with mask 0x%08x, but lane %u waits at barrier %u at %s:%d", name_of(op), mask,
                l, g.barrier, g.loc.file, g.loc.line);
        if (g.state != State::in_warp)
            continue;
        if (g.op == op && g.mask == mask)
            have |= 1u << l;
        else if (g.mask >> cur->lane & 1)
            die(loc, "mismatched collective: %s with mask 0x%08x, but lane %u is in %s with mask 0x%08x at %s:%d",
                name_of(op), mask, l, name_of(g.op), g.mask, g.loc.file, g.loc.line);
    }
    if (have == mask) {
        compute(op, mask, warp);
        if (op == Warp::sync)
            order_waiters(&rt.sync_warp[cur->index - cur->lane + static_cast<unsigned>(__builtin_ctz(mask))],
                          [&](const Fiber &g) {
                              return g.lane.warp == cur->warp && g.state == State::in_warp && (mask >> g.lane.lane & 1);
                          });
        for (unsigned l = 0; l < kWarp; l++)
            if (mask >> l & 1)
                warp[l].state = State::ready;
        m.arrived &= ~mask;
        m.waiting &= ~mask;
        rt.progress = true;
    }
    to_main(false);
    return f.result;
}

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

/* ---- barriers ---- */

namespace {

void release_barrier(unsigned id) {
    Barrier &b = rt.barriers[id];
    auto waits = [id](const Fiber &f) { return f.state == State::in_barrier && f.barrier == id; };
    order_waiters(&rt.sync_barrier[id], waits);
    for (Fiber &f : rt.fibers)
        if (waits(f)) {
            f.state = State::ready;
            rt.meetings[f.lane.warp].away &= ~(1u << f.lane.lane);
            f.result = f.red == Red::popc   ? b.popc
                       : f.red == Red::and_ ? b.popc == b.arrived
                                            : static_cast<unsigned>(b.popc != 0);
        }
    b = Barrier{};
    rt.progress = true;
}

} // namespace

unsigned barrier(unsigned id, unsigned threads, Red red, bool pred, bool wait, bool one_place, Loc loc) {
    if (!cur)
        die(loc, "a barrier outside of a kernel");
    if (id >= kBarriers)
        die(loc, "barrier %u: there are %u", id, kBarriers);
    if (threads % kWarp != 0)
        die(loc, "barrier %u for %u threads: not a multiple of %u", id, threads, kWarp);
    Fiber &f = me();
    Barrier &b = rt.barriers[id];
    if (b.arrived == 0) {
        b.expected = threads;
        b.first = loc;
    } else if (b.expected != threads) {
        die(loc, "barrier %u for %u threads, but others came for %u at %s:%d", id, threads, b.expected, b.first.file,
            b.first.line);
    } else if (one_place && !same_place(b.first, loc)) {
        die(loc, "divergent barrier %u: other threads of the block wait at %s:%d", id, b.first.file, b.first.line);
    }
    b.arrived++;
    b.popc += pred;
    f.red = red;
    f.loc = loc;
    f.barrier = static_cast<uint8_t>(id);
    if (wait) {
        f.state = State::in_barrier;
        rt.meetings[f.lane.warp].away |= 1u << f.lane.lane;
    }
#ifdef SIMT_TSAN
    else
        __tsan_release(&rt.sync_barrier[id]);
#endif
    if (b.arrived == (b.expected ? b.expected : rt.live))
        release_barrier(id);
    if (!wait)
        return 0;
    to_main(false);
    return static_cast<unsigned>(f.result);
}

void fence() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* ---- asynchronous copies ---- */

void cp_async(void *dst, const void *src, unsigned bytes, unsigned src_bytes, CopyFn run, Loc loc) {
    Fiber &f = me();
    if (bytes != 4 && bytes != 8 && bytes != 16)
        die(loc, "cp.async of %u bytes", bytes);
    if (src_bytes > bytes)
        die(loc, "cp.async: %u source bytes for %u", src_bytes, bytes);
    check_aligned(dst, bytes, loc);
    check_aligned(src, bytes, loc);
#ifdef SIMT_ASAN
    if (__asan_region_is_poisoned(dst, bytes) || __asan_region_is_poisoned(const_cast<void *>(src), src_bytes))
        die(loc, "cp.async outside of its buffers, or over a copy not waited for");
#endif
    for (unsigned i = 0; i < bytes; i++)
        static_cast<volatile unsigned char *>(dst)[i] = kCopyPoison;
#ifdef SIMT_ASAN
    __asan_poison_memory_region(dst, bytes);
#endif
    f.copies.push({dst, src, bytes, src_bytes, f.group, run, loc});
}

void cp_commit() {
    me().group++;
}

void cp_wait(unsigned pending, Loc loc) {
    Fiber &f = me();
    size_t kept = 0;
    (void)loc;
    for (size_t i = 0; i < f.copies.n; i++) {
        Pending p = f.copies[i];
        if (p.group + pending >= f.group) {
            f.copies[kept++] = p;
            continue;
        }
#ifdef SIMT_ASAN
        __asan_unpoison_memory_region(p.dst, p.bytes);
#endif
        p.run(p.dst, p.src, p.bytes, p.src_bytes);
    }
    f.copies.resize(kept);
}

/* ---- shared memory ---- */

void shared_var(void *p, size_t bytes, Loc loc) {
    for (SharedVar &v : rt.vars)
        if (v.p == p) {
            if (v.block == rt.block_serial)
                return;
            v.block = rt.block_serial;
            goto poison;
        }
    rt.vars.push({p, rt.block_serial});
poison:
    rt.var_bytes += bytes;
    if (rt.var_bytes > kStaticShared)
        die(loc, "%llu bytes of static shared memory, the limit is %u", static_cast<unsigned long long>(rt.var_bytes),
            kStaticShared);
    for (size_t i = 0; i < bytes; i++)
        static_cast<volatile unsigned char *>(p)[i] = kPoison;
}

unsigned char *shared_at(uint32_t offset, unsigned bytes, bool write, Loc loc) {
    if (offset > grid.dyn_bytes || bytes > grid.dyn_bytes - offset)
        die(loc, "shared memory: %u bytes at 0x%x, but the block has %u", bytes, offset, grid.dyn_bytes);
    for (unsigned i = 0; i < bytes; i++) {
        Cell c = static_cast<Cell>(rt.cells[offset + i]);
        if (c == Cell::pending)
            die(loc, "%s of shared memory at 0x%x, destination of a cp.async not waited for", write ? "write" : "read",
                offset + i);
        if (write)
            rt.cells[offset + i] = static_cast<unsigned char>(Cell::written);
        else if (c == Cell::unwritten && config.check_uninit)
            die(loc, "read of uninitialised shared memory at 0x%x", offset + i);
    }
    return grid.dyn + offset;
}

void shared_mark(uint32_t offset, unsigned bytes, Cell state) {
    memset(&rt.cells[offset], static_cast<int>(state), bytes);
}

/* ---- launches ---- */

namespace {

void run_block(unsigned block) {
    const dim3 &g = grid.grid_dim;
    grid.block_idx = dim3(block % g.x, block / g.x % g.y, block / (g.x * g.y));
    grid.dyn = nullptr;
    if (grid.dyn_bytes) { /* fresh for each block, so that ASan guards it */
        void *p = nullptr;
        if (posix_memalign(&p, 1024, grid.dyn_bytes) != 0)
            abort();
        memset(p, kPoison, grid.dyn_bytes);
        grid.dyn = static_cast<unsigned char *>(p);
        rt.cells.n = 0;
        rt.cells.resize(grid.dyn_bytes); /* Cell::unwritten */
    }
    rt.block_serial++;
    rt.var_bytes = 0;
    rt.live = grid.threads;
    for (Barrier &b : rt.barriers)
        b = Barrier{};
    for (Meeting &m : rt.meetings)
        m = Meeting{};
    for (unsigned i = 0; i < grid.threads; i++) {
        prepare(rt.fibers[i], i);
        rt.order[i] = config.order == Order::reverse ? grid.threads - 1 - i : i;
    }
#ifdef SIMT_TSAN
    __tsan_release(&rt.sync_start);
#endif
    uint64_t stuck = 0;
    while (rt.live) {
        bool ran = false;
        rt.progress = false;
        if (config.order == Order::random)
            shuffle(rt.order.at, grid.threads);
        for (unsigned i = 0; i < grid.threads; i++) {
            Fiber &f = rt.fibers[rt.order[i]];
            if (f.state == State::yielded)
                f.state = State::ready;
            if (f.state != State::ready)
                continue;
            ran = true;
            to_fiber(f);
        }
        if (!ran)
            die(Loc{grid.kernel, 0}, "deadlock: no thread can run");
        stuck = rt.progress ? 0 : stuck + 1;
        if (stuck > kStuckRounds)
            die(Loc{grid.kernel, 0}, "livelock: threads spin and nothing happens");
    }
#ifdef SIMT_TSAN
    __tsan_acquire(&rt.sync_done);
#endif
    free(grid.dyn);
    trace_block_end();
}

} // namespace

void launch(const char *kernel, dim3 grid_dim, dim3 block_dim, size_t dyn_bytes, void (*fn)(void *), void *arg) {
    std::lock_guard<std::mutex> lock(launch_lock);
    uint64_t threads = uint64_t{block_dim.x} * block_dim.y * block_dim.z;
    unsigned blocks = grid_dim.x * grid_dim.y * grid_dim.z;
    grid = Grid{kernel, dim3(), block_dim, grid_dim, nullptr, static_cast<unsigned>(dyn_bytes), 0};
    if (threads == 0 || threads > kMaxThreads || blocks == 0)
        die(Loc{kernel, 0}, "bad launch: %u blocks of %llu threads", blocks, static_cast<unsigned long long>(threads));
    if (dyn_bytes > config.shared_limit)
        die(Loc{kernel, 0}, "bad launch: %zu bytes of shared memory, the limit is %u", dyn_bytes, config.shared_limit);
    grid.threads = static_cast<unsigned>(threads);
    rt.fibers.resize(grid.threads > rt.fibers.n ? grid.threads : rt.fibers.n);
    for (Fiber &f : rt.fibers)
        f.state = State::done;
    rt.order.resize(rt.fibers.n);
    if (!rt.vars.room) { /* room enough: sanitizers would see it grow */
        rt.vars.resize(1024);
        rt.vars.n = 0;
    }
    rt.fn = fn;
    rt.arg = arg;
    rt.rng = config.seed * 0x9E3779B97F4A7C15ull | 1;
#ifdef SIMT_TSAN
    rt.main_tsan = __tsan_get_current_fiber();
#endif
    Array<unsigned> block_order;
    block_order.resize(blocks);
    for (unsigned i = 0; i < blocks; i++)
        block_order[i] = config.order == Order::reverse && !config.blocks_in_order ? blocks - 1 - i : i;
    if (config.order == Order::random && !config.blocks_in_order)
        shuffle(block_order.at, blocks);
    for (unsigned b : block_order)
        run_block(b);
    free(block_order.at);
    grid = Grid{};
}

void set_schedule(unsigned i) {
    config.order = i == 0 ? Order::forward : i == 1 ? Order::reverse : Order::random;
    config.seed = i;
}

uint64_t switches() {
    return rt.switches;
}

} // namespace simt

/* SPDX-License-Identifier: Apache-2.0
 *
 * What the threads of a block share in the SIMT runtime: barriers, asynchronous copies, shared memory.
 */
#include "simt_fiber.h"

namespace simt {
namespace inside {

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

} // namespace inside

using namespace inside;

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

} // namespace simt

/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches on the SIMT runtime (simt_rt.h): blocks in their order, and the schedule of a block's fibers.
 */
#include "simt_fiber.h"

#include <mutex>

namespace simt {

using namespace inside;

Config config;
Lane *cur;
Grid grid;

static std::mutex launch_lock;

constexpr uint64_t kStuckRounds = 1u << 20;

static void run_block(unsigned block) {
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

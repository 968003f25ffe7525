/* SPDX-License-Identifier: Apache-2.0
 *
 * Why a program on the SIMT runtime stops: the message, the place, and what every thread of the block waits for.
 */
#include "simt_fiber.h"

#include <cstdarg>

namespace simt {
namespace inside {

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

static bool same_wait(const Fiber &a, const Fiber &b) {
    if (a.state != b.state)
        return false;
    if (a.state == State::in_warp)
        return a.op == b.op && a.mask == b.mask && same_place(a.loc, b.loc);
    if (a.state == State::in_barrier)
        return a.barrier == b.barrier && same_place(a.loc, b.loc);
    return true;
}

static void list_threads() {
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

} // namespace inside

using namespace inside;

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

} // namespace simt

/* SPDX-License-Identifier: Apache-2.0
 *
 * Counts the instructions that warps issue. A GPU runs a basic block once for all lanes of a warp that are in it, so a
 * visit counts where no lane of the warp has been as often since the warp last met (at a collective or a barrier):
 * lanes that branch apart cost the sum of their ways, as on a GPU. Thread blocks must run one after another (a grid of
 * one).
 */
#ifndef ZIPCCL_TESTS_SIMT_PTX_COUNT_H
#define ZIPCCL_TESTS_SIMT_PTX_COUNT_H

#include "simt_rt.h"

#include <vector>

namespace ptx {

/* The order of KINDS in ptx_work.py. */
enum Work { issued, integer, multiply, special, floating, shared_units, memory_units, warp_ops, num_work };
inline const char *const work_names[num_work] = {"issued",   "integer", "multiply", "special",
                                                 "floating", "shared",  "memory",   "warp"};

struct Counts {
    bool on = false;
    uint64_t work[num_work] = {}; /* of warps */
    uint64_t met[1024] = {};      /* of each thread: how often it met its warp */
    void restart() {
        for (uint64_t &w : work)
            w = 0;
    }
    /* Threads of a launch begin together. */
    void launch() {
        static uint64_t launches;
        launches++;
        for (uint64_t &m : met)
            m = launches << 32;
    }
};
inline Counts counts;

inline void meet() {
    counts.met[simt::cur->index]++;
}

/* The basic blocks of a function. */
class Visits {
    struct Mark {
        uint64_t met;
        uint32_t visits;
    };
    const unsigned (*mix)[num_work];
    size_t blocks;
    std::vector<Mark> of_lane, of_warp;
    static Mark &now(Mark &m, uint64_t met) {
        if (m.met != met)
            m = {met, 0};
        return m;
    }

  public:
    Visits(const unsigned (*m)[num_work], size_t n) : mix(m), blocks(n) {
    }
    void visit(size_t block) {
        if (!counts.on)
            return;
        if (of_lane.empty()) {
            of_lane.resize(blocks * 1024);
            of_warp.resize(blocks * 32);
        }
        const unsigned t = simt::cur->index;
        Mark &lane = now(of_lane[block * 1024 + t], counts.met[t]);
        Mark &warp = now(of_warp[block * 32 + t / 32], counts.met[t]);
        if (++lane.visits <= warp.visits)
            return;
        warp.visits = lane.visits;
        for (unsigned k = 0; k < num_work; k++)
            counts.work[k] += mix[block][k];
    }
};

} // namespace ptx

#endif

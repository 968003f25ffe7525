/* SPDX-License-Identifier: Apache-2.0
 *
 * Warp collectives of the SIMT runtime: the lanes of a mask meet, and the last one computes for all.
 */
#include "simt_fiber.h"

namespace simt {

using namespace inside;

static void compute(Warp op, uint32_t mask, Fiber *warp) {
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

} // namespace simt

/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory trace: bytes per registered buffer, and how well the accesses of each warp fill sectors and lines.
 * The n-th access of a lane at a source line belongs to the n-th of the other lanes of its warp at that line.
 */
#include "simt_rt.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

namespace simt {
namespace {

constexpr uintptr_t kSector = 32, kLine = 128;

struct Buffer {
    uintptr_t base;
    size_t bytes;
    std::string name;
    Traffic traffic;
};

/* One warp-wide access being gathered. */
struct Gather {
    unsigned lanes = 0, bytes = 0, size = 0;
    std::vector<uintptr_t> sectors; /* with repeats */
};

using Place = std::tuple<const char *, int, bool>;
using Key = std::tuple<Place, unsigned, unsigned>; /* place, warp, occurrence */

struct Trace {
    std::vector<Buffer> buffers;
    std::map<Place, Access> accesses;
    std::map<Key, Gather> open;
    std::map<std::pair<Place, unsigned>, unsigned> seen; /* place, thread: occurrences in this block */
};

Trace &trace() {
    static Trace t;
    return t;
}

Buffer *find(uintptr_t p, unsigned bytes) {
    for (Buffer &b : trace().buffers)
        if (p >= b.base && p + bytes <= b.base + b.bytes)
            return &b;
    return nullptr;
}

} // namespace

int buffer_add(const void *base, size_t bytes, const char *name) {
    trace().buffers.push_back({reinterpret_cast<uintptr_t>(base), bytes, name, Traffic{0, 0}});
    return static_cast<int>(trace().buffers.size()) - 1;
}

void buffer_clear() {
    trace().buffers.clear();
}

Traffic buffer_traffic(int buffer) {
    return trace().buffers.at(static_cast<size_t>(buffer)).traffic;
}

void trace_reset() {
    for (Buffer &b : trace().buffers)
        b.traffic = Traffic{0, 0};
    trace().accesses.clear();
}

void access_slow(const void *p, unsigned bytes, bool write, Loc loc) {
#ifdef SIMT_TSAN
    return; /* the thread sanitizer would see the trace's own allocations */
#endif
    uintptr_t at = reinterpret_cast<uintptr_t>(p);
    Trace &t = trace();
    Buffer *b = find(at, bytes);
    if (b)
        (write ? b->traffic.written : b->traffic.read) += bytes;
    else if (config.check_bounds)
        die(loc, "%s of %u bytes at %p, outside of every registered buffer", write ? "write" : "read", bytes, p);
    if (!config.trace || !cur)
        return;
    Place place{loc.file, loc.line, write};
    Gather &g = t.open[Key{place, cur->warp, t.seen[{place, cur->index}]++}];
    g.lanes++;
    g.bytes += bytes;
    g.size = std::max(g.size, bytes);
    for (uintptr_t s = at / kSector; s <= (at + bytes - 1) / kSector; s++)
        g.sectors.push_back(s);
}

void trace_block_end() {
    Trace &t = trace();
    for (auto &entry : t.open) {
        Gather &g = entry.second;
        const Place &place = std::get<0>(entry.first);
        std::sort(g.sectors.begin(), g.sectors.end());
        g.sectors.erase(std::unique(g.sectors.begin(), g.sectors.end()), g.sectors.end());
        size_t n = g.sectors.size();
        bool run = g.sectors.back() - g.sectors.front() == n - 1;
        Access &a = t.accesses[place];
        a.loc = Loc{std::get<0>(place), std::get<1>(place)};
        a.write = std::get<2>(place);
        a.size = std::max(a.size, g.size);
        a.warps++;
        a.moved += g.bytes;
        a.touched += n * kSector;
        a.partial += n > (g.bytes + kSector - 1) / kSector;
        a.full += g.lanes == kWarp && g.size == 16 && n == kWarp * 16 / kSector && run &&
                  g.sectors.front() % (kLine / kSector) == 0;
    }
    t.open.clear();
    t.seen.clear();
}

size_t trace_count() {
    return trace().accesses.size();
}

Access trace_access(size_t i) {
    return std::next(trace().accesses.begin(), static_cast<std::ptrdiff_t>(i))->second;
}

uint64_t trace_partial() {
    uint64_t n = 0;
    for (auto &a : trace().accesses)
        n += a.second.partial;
    return n;
}

void trace_report(FILE *out) {
    fprintf(out, "%-24s %12s %12s\n", "buffer", "read", "written");
    for (const Buffer &b : trace().buffers)
        fprintf(out, "%-24s %12llu %12llu\n", b.name.c_str(), static_cast<unsigned long long>(b.traffic.read),
                static_cast<unsigned long long>(b.traffic.written));
    fprintf(out, "%-40s %5s %4s %8s %10s %10s %12s %6s\n", "place", "", "size", "warps", "moved", "touched",
            "uncoalesced", "full");
    for (const auto &entry : trace().accesses) {
        const Access &a = entry.second;
        std::string place = std::string(a.loc.file) + ":" + std::to_string(a.loc.line);
        if (place.size() > 40)
            place = place.substr(place.size() - 40);
        fprintf(out, "%-40s %5s %4u %8llu %10llu %10llu %12llu %6llu\n", place.c_str(), a.write ? "write" : "read",
                a.size, static_cast<unsigned long long>(a.warps), static_cast<unsigned long long>(a.moved),
                static_cast<unsigned long long>(a.touched), static_cast<unsigned long long>(a.partial),
                static_cast<unsigned long long>(a.full));
    }
}

} // namespace simt

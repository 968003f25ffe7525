/* SPDX-License-Identifier: Apache-2.0
 *
 * pack_test KERNEL: runs it in several schedules and compares each with a scalar reference. PACK_PTX: from PTX.
 */
#ifdef PACK_PTX
#    include "ptx_rt.h"
struct uint4 {
    uint32_t x, y, z, w;
};
#else
#    include "pack.cuh"
#endif

#include <cstdlib>
#include <string>
#include <vector>

int main(int argc, char **argv) {
    constexpr unsigned blocks = 4, tiles = blocks * 3, tile = 4096;
    std::string name = argc > 1 ? argv[1] : "pack_ok";
    auto *in = static_cast<uint8_t *>(aligned_alloc(128, tiles * tile));
    auto *planes = static_cast<uint8_t *>(aligned_alloc(128, tiles * tile / 8));
    std::vector<uint8_t> want_planes(tiles * tile / 8), want_escapes(tiles * tile), escapes(tiles * tile);
    std::vector<uint32_t> want_counts(tiles), counts(tiles);
    for (unsigned i = 0; i < tiles * tile; i++) {
        in[i] = static_cast<uint8_t>((i * 2654435761u) >> 13);
        want_planes[i / 8] = static_cast<uint8_t>(want_planes[i / 8] | (in[i] & 1) << (i % 8));
        if (in[i] > 250)
            want_escapes[i / tile * tile + want_counts[i / tile]++] = in[i];
    }
    simt::config.trace = true;
    simt::buffer_add(in, tiles * tile, "in");
    for (unsigned s = 0; s < 5; s++) {
        simt::set_schedule(s);
        memset(planes, 0, tiles * tile / 8);
        escapes.assign(escapes.size(), 0);
        auto *i4 = reinterpret_cast<uint4 *>(in), *p4 = reinterpret_cast<uint4 *>(planes);
#ifdef PACK_PTX
        ptx::launch(name.c_str(), dim3(blocks), dim3(256), 0, i4, p4, escapes.data(), counts.data());
#else
#    define RUN(k)                                                                                                     \
        if (name == #k)                                                                                                \
        SIMT_LAUNCH(k, dim3(blocks), dim3(256), 0, i4, p4, escapes.data(), counts.data())
        RUN(pack_ok);
        RUN(pack_no_sync);
        RUN(pack_bad_index);
        RUN(pack_bad_mask);
        RUN(pack_no_wait);
        RUN(pack_divergent);
        RUN(pack_misaligned);
        RUN(pack_uninit);
#endif
        if (memcmp(planes, want_planes.data(), want_planes.size()) != 0 || escapes != want_escapes ||
            counts != want_counts) {
            printf("schedule %u differs from the reference\n", s);
            return 1;
        }
    }
#ifdef SIMT_TSAN
    simt::config.trace = false;
#endif
    bool traced = !simt::config.trace || simt::buffer_traffic(0).read == 5 * tiles * tile;
    printf("same in every schedule, input read once: %s\n", traced ? "yes" : "no");
    free(in);
    free(planes);
    return !traced;
}

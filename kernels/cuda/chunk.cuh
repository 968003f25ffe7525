/* SPDX-License-Identifier: Apache-2.0
 *
 * What encode and decode share: the segment table, tiles (a group of a segment), pages of shared memory, look-back.
 */
#ifndef ZIPCCL_KERNELS_CUDA_CHUNK_CUH
#define ZIPCCL_KERNELS_CUDA_CHUNK_CUH

#include "kernels/cuda/bytes.cuh"
#include "kernels/cuda/plan.h"

namespace zip {

constexpr uint32_t kThreads = kBlockThreads, kWarps = kThreads / 32, kGroupBlocks = ZFMT_GROUP_BLOCKS;
constexpr uint32_t kRounds = kGroupBlocks / kWarps; /* blocks of a warp */
constexpr uint32_t kPage = 512;                     /* bytes that a warp moves at once, 16 a lane */

struct Tables {
    uint64_t blocks, groups, table, bodies;
};
GPU_FN Tables tables_of(uint64_t count) {
    Tables t;
    t.blocks = (count + ZFMT_BLOCK - 1) / ZFMT_BLOCK;
    t.groups = (count + ZFMT_GROUP - 1) / ZFMT_GROUP;
    t.table = sizeof(zfmt_header) + (t.blocks * sizeof(zfmt_block) + ZFMT_ALIGN - 1) / ZFMT_ALIGN * ZFMT_ALIGN;
    t.bodies = t.table + (t.groups * sizeof(zfmt_group) + ZFMT_ALIGN - 1) / ZFMT_ALIGN * ZFMT_ALIGN;
    return t;
}
GPU_FN uint32_t align_up(uint32_t n, uint32_t to) {
    return (n + to - 1) / to * to;
}
GPU_FN uint4 zero16() {
    return make_uint4(0, 0, 0, 0);
}

/* Bytes of a code plane of tiers 2 to 4 over n values. */
GPU_FN uint32_t plane_bytes(uint32_t n) {
    return align_up((n + 7) / 8, ZFMT_ARRAY_ALIGN);
}

/* Offsets in the dynamic part of a tier group: planes of tiers 2 (which begin it), 3 and, where it has one, 4, and the
 * raw bytes. */
struct Dynamic {
    uint32_t tier3, tier4, raw, size;
    GPU_FN Dynamic(uint32_t n1, uint32_t n2, uint32_t n3, uint32_t n4) {
        tier3 = 2 * plane_bytes(n1);
        tier4 = tier3 + 2 * plane_bytes(n2);
        raw = n4 == n3 ? tier4 : tier4 + 2 * plane_bytes(n3);
        size = align_up(raw + n4, ZFMT_ALIGN);
    }
};

/* 16-byte unit c of a block in shared memory: a lane that reads units 2i, 2i + 1 (or 4i ..) meets no bank twice. */
GPU_FN uint32_t swizzle(uint32_t c) {
    return c ^ ((c >> 3) & 3);
}

/* A tile in hand. */
struct Tile {
    uint32_t segment, index, first; /* index: of the tile; first: of the segment's first tile */
    uint32_t group, values, full, rest, blocks;
};

/* Thread 0 draws the next tile and finds its segment; all threads get it. False: none is left.
 * A ticket, so that the tiles that a look-back waits for are always in hands already. Row: of a table; has a count. */
template <class Row> GPU_FN bool draw_tile(const Work &w, const Row *table, uint32_t stride, uint32_t *box, Tile *t) {
    __syncthreads();
    if (threadIdx.x == 0) {
        const uint32_t tile = atomicAdd(w.ticket, 1u);
        uint32_t low = 0, high = w.segments;
        while (high - low > 1) {
            const uint32_t mid = (low + high) / 2;
            if (gpu_ld(w.first + mid) <= tile)
                low = mid;
            else
                high = mid;
        }
        box[0] = tile;
        box[1] = low;
    }
    __syncthreads();
    t->index = box[0];
    t->segment = box[1];
    if (t->index >= gpu_ld(w.first + w.segments))
        return false;
    t->first = gpu_ld(w.first + t->segment);
    t->group = t->index - t->first;
    const uint64_t left =
        gpu_ld(&table[static_cast<uint64_t>(t->segment) * stride].count) - uint64_t{t->group} * ZFMT_GROUP;
    t->values = left < ZFMT_GROUP ? static_cast<uint32_t>(left) : ZFMT_GROUP;
    t->full = t->values / ZFMT_BLOCK;
    t->rest = t->values % ZFMT_BLOCK;
    t->blocks = t->full + (t->rest != 0);
    return true;
}

/* Decoupled look-back by one warp: publishes this tile's sum and returns the sum of all earlier ones of the segment.
 * A word is a flag in its top bits and a sum below. */
constexpr uint32_t kSum = 1u << 30, kPrefix = 2u << 30, kValue = kSum - 1;

GPU_FN uint32_t look_back(uint32_t *words, const Tile &t, uint32_t sum, uint32_t lane) {
    if (lane == 0)
        gpu_st_flag(words + t.index, (t.group == 0 ? kPrefix : kSum) | sum);
    uint32_t before = 0;
    for (uint32_t left = t.group; left > 0;) {
        uint32_t word = kPrefix;
        if (lane < left)
            word = gpu_ld_flag(words + t.first + left - 1 - lane);
        while (__any_sync(kAll, word < kSum)) {
            __nanosleep(64);
            if (word < kSum)
                word = gpu_ld_flag(words + t.first + left - 1 - lane);
        }
        const uint32_t whole = __ballot_sync(kAll, word >= kPrefix);
        const uint32_t nearest = whole ? static_cast<uint32_t>(__ffs(static_cast<int>(whole))) - 1 : 31;
        before += __reduce_add_sync(kAll, lane <= nearest ? word & kValue : 0u);
        if (whole)
            break;
        left -= 32;
    }
    if (lane == 0 && t.group != 0)
        gpu_st_flag(words + t.index, kPrefix | (before + sum));
    return before;
}

/* Exclusive sums of 64 numbers by one warp; returns the total. Lane i owns 2i and 2i + 1. */
GPU_FN uint32_t scan_blocks(const uint32_t *in, uint32_t *out, uint32_t lane) {
    const uint32_t a = in[2 * lane], b = in[2 * lane + 1], sum = scan_warp(a + b, lane);
    out[2 * lane] = sum - a - b;
    out[2 * lane + 1] = sum - b;
    return __shfl_sync(kAll, sum, 31);
}

/* A number of each warp: the sum of those of earlier warps; *total grows by all. */
GPU_FN uint32_t before_warp(const uint32_t *counts, uint32_t warp, uint32_t lane, uint32_t *total) {
    const uint32_t n = lane < kWarps ? counts[lane] : 0;
    *total += __reduce_add_sync(kAll, n);
    return __reduce_add_sync(kAll, lane < warp ? n : 0u);
}

/* Where the mask of a lane's 16 bytes begins, if n bytes in all are valid: bits at and above are off. */
GPU_FN uint32_t valid16(uint32_t at, uint32_t n) {
    return at >= n ? 0u : n - at >= 16 ? 0xffffu : (1u << (n - at)) - 1;
}

/* ---- kernels that prepare ---- */

/* One thread block: first tiles of the segments, cleared results. A segment without values has a tile for its header.
 */
template <class Row>
GPU_FN void prepare(const Work &w, const Row *table, uint32_t stride, zipccl_cuda_result *results, uint32_t *sums) {
    const uint32_t t = threadIdx.x, lane = t & 31, warp = t / 32;
    uint32_t base = 0;
    for (uint32_t at = 0; at < w.segments; at += kThreads) {
        uint32_t n = 0;
        if (at + t < w.segments) {
            const uint64_t count = gpu_ld(&table[static_cast<uint64_t>(at + t) * stride].count);
            const uint64_t groups = (count + ZFMT_GROUP - 1) / ZFMT_GROUP;
            n = count > ZFMT_MAX_COUNT ? 0u : groups ? static_cast<uint32_t>(groups) : 1u;
        }
        const uint32_t sum = scan_warp(n, lane);
        if (lane == 31)
            sums[warp] = sum;
        __syncthreads();
        uint32_t before = base, total = base;
        for (uint32_t i = 0; i < kWarps; i++) {
            before += i < warp ? sums[i] : 0;
            total += sums[i];
        }
        if (at + t < w.segments) {
            const bool fits = n != 0 && before + sum <= w.tiles;
            gpu_st(w.first + at + t, min(before + sum - n, w.tiles));
            gpu_st(&results[at + t].static_bytes, uint64_t{0});
            gpu_st(&results[at + t].dynamic_bytes, uint64_t{0});
            gpu_st(&results[at + t].status, fits ? 0u : static_cast<uint32_t>(ZIPCCL_CUDA_INVALID));
            gpu_st(&results[at + t].bad_input, kAll);
        }
        base = total;
        __syncthreads();
    }
    if (t == 0)
        gpu_st(w.first + w.segments, min(base, w.tiles));
}

template <int DTYPE> GPU_FN uint32_t exponent_at(const void *values, uint64_t i) {
    using K = Kind<DTYPE>;
    if constexpr (K::bytes == 4)
        return gpu_ld(static_cast<const uint32_t *>(values) + i) << 1 >> 24;
    else if constexpr (K::bytes == 2)
        return (static_cast<uint32_t>(gpu_ld(static_cast<const uint16_t *>(values) + i)) << 1 & 0xffff) >>
               (8 + K::bit_planes);
    else
        return (static_cast<uint32_t>(gpu_ld(static_cast<const uint8_t *>(values) + i)) << 1 & 0xff) >> K::bit_planes;
}

/* The window of top7 of each segment, as model_window_of. */
template <int DTYPE>
GPU_FN void sample_windows(const Work &w, const zipccl_cuda_segment *table, uint32_t *hist, uint32_t *box) {
    const uint32_t t = threadIdx.x;
    for (uint32_t s = blockIdx.x; s < w.segments; s += gridDim.x) {
        const uint64_t count = gpu_ld(&table[s].count);
        const void *values = gpu_ld(&table[s].values);
        const bool ok = count <= ZFMT_MAX_COUNT && reinterpret_cast<uintptr_t>(values) % 16 == 0;
        if (t < 256)
            hist[t] = 0;
        if (t == 0)
            box[0] = 0;
        __syncthreads();
        const uint32_t size = count < 2048 ? static_cast<uint32_t>(count) : 2048;
        if (ok && count < 2048) {
            for (uint32_t i = t; i < size; i += kThreads)
                atomicAdd(hist + exponent_at<DTYPE>(values, i), 1u);
        } else if (ok) {
            const uint64_t q = count / 512, at = t * q + (((t * 40503ull) % 65536) * q >> 16);
            for (uint64_t j = at; j < at + 4 && j < count; j++)
                atomicAdd(hist + exponent_at<DTYPE>(values, j), 1u);
        }
        __syncthreads();
        if (t < 32) { /* the sample's true size: a place at the end may be cut */
            uint32_t n = 0;
            for (uint32_t e = t; e < 256; e += 32)
                n += hist[e];
            n = __reduce_add_sync(kAll, n);
            if (t == 0)
                box[1] = hist[0] > 0 && hist[0] * 16 >= n && hist[0] < n;
        }
        __syncthreads();
        const uint32_t zero = box[1], width = 7 - zero;
        if (t >= width - 1 && t < 255) {
            uint32_t hits = 0;
            for (uint32_t k = 0; k < width; k++)
                hits += zero && t == k ? 0 : hist[t - k];
            atomicMax(box, hits << 8 | (255 - t));
        }
        __syncthreads();
        if (t == 0)
            gpu_st(w.window + s, (255 - (box[0] & 255)) | zero << 8);
        __syncthreads();
    }
}

} // namespace zip

#endif

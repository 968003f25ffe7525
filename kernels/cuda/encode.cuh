/* SPDX-License-Identifier: Apache-2.0
 *
 * Encode. A thread block of 16 warps takes a group; a warp takes 4 of its 64 blocks, 16 consecutive values a lane.
 *
 * Where a body goes depends on the modes of all blocks before it, yet values must be read once. So a group's values are
 * copied to shared memory, modes are chosen from there (kernels/model.h), one look-back over the groups of the segment
 * gives the offset, and the bodies are written from shared memory. Tiers 2 and 3 then run over the group's escapes in
 * the same memory, where the values have been, and a second look-back places the dynamic part.
 *
 * Shared memory has 64 places. While values are in use a place holds a block of them; later its first 512 bytes are
 * page A and the next 512 page B. A block leaves its escapes in its page B; they move together to the pages A (512 a
 * page); tier 2 turns page A into its two code planes and sends its escapes to the pages B; tier 3 does the same with B
 * and sends its escapes to what is left of A (384 bytes a page: a block has at most 368 of them, since four quarter
 * bytes of price each stay within 4 * budget).
 *
 * STAGED 0 is for GPUs whose shared memory cannot hold a group of FP32: blocks are read again, from the L2 cache.
 */
#ifndef ZIPCCL_KERNELS_CUDA_ENCODE_CUH
#define ZIPCCL_KERNELS_CUDA_ENCODE_CUH

#include "kernels/cuda/chunk.cuh"

namespace zip {

constexpr uint32_t kRest = kPage - 2 * ZFMT_PLANE; /* of page A, behind two planes */

template <int DTYPE, bool STAGED> GPU_CONST uint32_t encode_pitch() {
    return STAGED && Kind<DTYPE>::raw > 2 * kPage ? Kind<DTYPE>::raw : 2 * kPage;
}

/* Small shared memory of the kernel. */
struct EncodeShared {
    uint32_t head[kGroupBlocks]; /* mode | base << 8 */
    uint32_t units[kGroupBlocks];
    uint32_t offset[kGroupBlocks];
    uint32_t escapes[kGroupBlocks];
    uint32_t place[kGroupBlocks];
    uint32_t counts[kWarps];
    uint32_t box[8];
};

/* ---- the rule ---- */

GPU_FN uint32_t warp_count(const uint32_t m[4]) {
    return __reduce_add_sync(kAll, count_marks(m));
}

/* Escapes of tier 1: d = base - e, or of base + 1 with 0 and base + 1 exchanged. */
GPU_FN void differences(const uint32_t e[4], uint32_t base, bool zero, uint32_t d[4]) {
    const uint32_t top = repeat((base + zero) & 255), other = repeat((base + 1) & 255);
    GPU_UNROLL
    for (int i = 0; i < 4; i++)
        d[i] = sub_bytes(top, zero ? swap_bytes(e[i], other) : e[i]);
}

template <uint32_t ADD, uint32_t LEAST> GPU_FN uint32_t count_beyond(const uint32_t e[4], uint32_t base) {
    uint32_t m[4];
    const uint32_t top = repeat((base + ADD) & 255);
    GPU_UNROLL
    for (int i = 0; i < 4; i++)
        m[i] = mark_ge<LEAST>(sub_bytes(top, e[i]));
    return warp_count(m);
}

/* Step 2: S. Rows 0, 2, 4 and 6 lie in the lanes with bit 2 off; such a lane gives its words 2 and 3 to the lane beside
 * it, so that all lanes take part. M - min(M - e, 12) is max(e, M - 12). */
GPU_FN uint32_t sum_of_guess(const uint32_t e[4], uint32_t lane) {
    const bool given = lane & 4;
    uint32_t sum = 0, less = 0;
    GPU_UNROLL
    for (int i = 0; i < 2; i++) {
        const uint32_t other = __shfl_xor_sync(kAll, e[2 + i], 4), own = given ? other : e[i];
        uint32_t top = max_bytes(own, __shfl_xor_sync(kAll, own, 8));
        top = max_bytes(top, __shfl_xor_sync(kAll, top, 16));
        const uint32_t below = top - own, far = full(mark_ge<13>(below));
        sum = __dp4a(top, kOnes, sum);
        less = __dp4a((below & ~far) | (repeat(12) & far), kOnes, less);
    }
    return __reduce_add_sync(kAll, sum - less);
}

/* Steps 4 and 5. Returns mode | base << 8. */
GPU_COLD uint32_t settle(const uint32_t e[4], uint32_t base, uint32_t n1, uint32_t budget, uint32_t lane) {
    uint32_t m[4];
    GPU_UNROLL
    for (int i = 0; i < 4; i++)
        m[i] = mark_zero(e[i]);
    const uint32_t z = warp_count(m);
    if (z <= 32) {
        const uint32_t n2 = count_beyond<1, 6>(e, base), n3 = count_beyond<2, 9>(e, base);
        if (n1 + n2 + 4 * n3 <= 4 * budget)
            return ZFMT_TIER | base << 8;
    }
    /* Row j's part of the sample is 8 values of lane 4j + j / 2, in its words 0 and 1 or 2 and 3. */
    const bool sampled = (lane & 3) == lane >> 3;
    const uint32_t s0 = lane & 4 ? e[2] : e[0], s1 = lane & 4 ? e[3] : e[1];
    const auto count_sample = [sampled](uint32_t m0, uint32_t m1) {
        return __reduce_add_sync(kAll, sampled ? static_cast<uint32_t>(__popc((m0 >> 7) | (m1 >> 6))) : 0u);
    };
    const uint32_t rank = (64 - count_sample(mark_zero(s0), mark_zero(s1)) + 1) / 2;
    uint32_t median = 0;
    for (uint32_t bit = 128; bit && rank; bit >>= 1)
        if (count_sample(mark_ge(s0, median | bit), mark_ge(s1, median | bit)) >= rank)
            median |= bit;
    GPU_UNROLL
    for (int i = 0; i < 4; i++)
        m[i] = mark_ge<16>(sub_bytes(e[i], repeat((median - 8) & 255)));
    if (ZFMT_BLOCK - warp_count(m) + z + budget * 2 / 3 < ZFMT_BLOCK)
        return ZFMT_RAW;
    uint32_t hits = 0; /* lane k < 16: h[k] */
    for (uint32_t k = 0; k < 16; k++) {
        const uint32_t x = median - 8 + k;
        if (x - 1 >= 255) /* not in 1 .. 255 */
            continue;
        GPU_UNROLL
        for (int i = 0; i < 4; i++)
            m[i] = mark_zero(e[i] ^ repeat(x));
        const uint32_t n = warp_count(m);
        hits = lane == k ? n : hits;
    }
    const uint32_t k = lane & 15, candidate = median - 8 + k;
    int n[3] = {static_cast<int>(ZFMT_BLOCK), 0, 0};
    uint32_t h[10]; /* h[k - 6] .. h[k + 3] */
    GPU_UNROLL
    for (int j = 0; j < 10; j++) {
        const uint32_t at = k + static_cast<uint32_t>(j) - 6;
        const uint32_t v = __shfl_sync(kAll, hits, static_cast<int>(at & 15));
        h[j] = at < 16 ? v : 0;
    }
    if (lane < 16) {
        n[0] -= static_cast<int>(h[6] + h[5] + h[4]);
        n[1] = n[0] - static_cast<int>(h[7] + h[3] + h[2]);
        n[2] = n[1] - static_cast<int>(h[8] + h[1] + h[0]);
    } else {
        n[0] -= static_cast<int>(z + h[6] + h[5]);
        n[1] = n[0] - static_cast<int>(h[8] + h[4] + h[3]);
        n[2] = n[1] - static_cast<int>(h[9] + h[2] + h[1]);
    }
    const uint32_t price = static_cast<uint32_t>(n[0] + n[1] + 4 * n[2]) & 0xffff;
    const uint32_t best = __reduce_min_sync(kAll, candidate > 255 ? kAll : price << 5 | lane);
    if (best >> 5 > 4 * budget)
        return ZFMT_RAW;
    const uint32_t winner = best & 31;
    return ((winner < 16 ? ZFMT_TIER : ZFMT_TIER_ZERO)) | (median - 8 + (winner & 15)) << 8;
}

/* The mode and base of a full block, and its escapes of tier 1. */
template <int DTYPE>
GPU_FN uint32_t choose_tier(const uint32_t w[Kind<DTYPE>::words], const uint32_t e[4], uint32_t lane, uint32_t *n1) {
    using K = Kind<DTYPE>;
    constexpr uint32_t budget = K::budget(2), sure = budget * 2 / 3, accept = sure < 160 ? sure : 160;
    const uint32_t base = min((sum_of_guess(e, lane) + 488) / 256, 255u);
    *n1 = count_beyond<0, 3>(e, base);
    if (*n1 == 0) {
        uint32_t first = w[0];
        if constexpr (K::bytes == 2)
            first = __byte_perm(first, 0, 0x1010);
        else if constexpr (K::bytes == 1)
            first = __byte_perm(first, 0, 0x0000);
        first = __shfl_sync(kAll, first, 0);
        uint32_t other = 0;
        GPU_UNROLL
        for (uint32_t i = 0; i < K::words; i++)
            other |= w[i] ^ first;
        if (__all_sync(kAll, other == 0))
            return first ? ZFMT_CONST : ZFMT_ZERO;
    }
    if (*n1 <= accept)
        return ZFMT_TIER | base << 8;
    const uint32_t head = settle(e, base, *n1, budget, lane), mode = head & 255;
    uint32_t d[4], m[4];
    differences(e, head >> 8, mode == ZFMT_TIER_ZERO, d);
    GPU_UNROLL
    for (int i = 0; i < 4; i++)
        m[i] = mark_ge<3>(d[i]);
    const uint32_t n = warp_count(m);
    *n1 = mode == ZFMT_RAW ? 0 : n;
    return head;
}

/* d + 1 of top7: 1 .. 7, or an escape. */
GPU_FN void top7_codes(const uint32_t e[4], uint32_t window, uint32_t c[4], uint32_t m[4]) {
    const uint32_t base = window & 255, zero = window >> 8;
    const uint32_t top = repeat((base + zero + 1) & 255), other = repeat((base + 1) & 255);
    GPU_UNROLL
    for (int i = 0; i < 4; i++) {
        c[i] = sub_bytes(top, zero ? swap_bytes(e[i], other) : e[i]);
        m[i] = mark_zero(c[i]) | mark_ge<8>(c[i]);
        c[i] &= ~full(m[i]);
    }
}

/* ---- reading ---- */

/* The 16 values of a lane. */
template <int DTYPE, bool STAGED>
GPU_FN void lane_values(const uint8_t *place, const uint8_t *src, uint32_t lane, uint32_t w[Kind<DTYPE>::words]) {
    GPU_UNROLL
    for (uint32_t j = 0; j < Kind<DTYPE>::bytes; j++) {
        const uint32_t c = lane * Kind<DTYPE>::bytes + j;
        const uint4 v = STAGED ? *reinterpret_cast<const uint4 *>(place + 16 * swizzle(c)) : gpu_ld16(src + 16 * c);
        w[4 * j] = v.x;
        w[4 * j + 1] = v.y;
        w[4 * j + 2] = v.z;
        w[4 * j + 3] = v.w;
    }
}

/* 16 bytes of a short block, zeros past its end. */
GPU_FN uint4 short_unit(const uint8_t *src, uint32_t at, uint32_t bytes) {
    if (at + 16 <= bytes)
        return gpu_ld16(src + at);
    uint32_t w[4] = {0, 0, 0, 0};
    GPU_UNROLL
    for (uint32_t i = 0; i < 16; i++)
        if (at + i < bytes)
            w[i / 4] |= static_cast<uint32_t>(gpu_ld(src + at + i)) << (8 * (i % 4));
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/* ---- writing ---- */

/* The marked ones of a lane's 16 bytes, one after another. */
GPU_FN void put_escapes(uint8_t *out, const uint32_t d[4], uint32_t mask) {
    GPU_UNROLL
    for (uint32_t i = 0; i < 16; i++)
        if (mask >> i & 1)
            *out++ = static_cast<uint8_t>(d[i / 4] >> (8 * (i % 4)));
}

template <int DTYPE, int CODEC>
GPU_FN void put_coded(const Values<DTYPE> &v, uint32_t head, uint32_t window, uint8_t *place, uint8_t *body,
                      uint32_t lane) {
    using K = Kind<DTYPE>;
    constexpr uint32_t planes = CODEC == zipcclCodecTier ? 2 : 3;
    uint32_t plane[planes], mask, d[4];
    if (CODEC == zipcclCodecTier) {
        differences(v.e, head >> 8, (head & 255) == ZFMT_TIER_ZERO, d);
        uint32_t c[4];
        GPU_UNROLL
        for (int i = 0; i < 4; i++)
            c[i] = d[i] | full(mark_ge<3>(d[i]));
        plane[0] = gather(c, 0);
        plane[1] = gather(c, 1);
        mask = plane[0] & plane[1];
    } else {
        uint32_t m[4];
        top7_codes(v.e, window, d, m);
        plane[0] = gather(d, 0);
        plane[1] = gather(d, 1);
        plane[planes - 1] = gather(d, 2);
        mask = ~(plane[0] | plane[1] | plane[planes - 1]) & 0xffff;
        GPU_UNROLL
        for (int i = 0; i < 4; i++)
            d[i] = v.e[i];
    }
    /* The planes, through the block's page A. */
    uint16_t *const half = reinterpret_cast<uint16_t *>(place) + lane;
    GPU_UNROLL
    for (uint32_t p = 0; p < planes; p++)
        half[p * 32] = static_cast<uint16_t>(plane[p]);
    GPU_UNROLL
    for (uint32_t p = 0; p < K::bit_planes; p++)
        half[(planes + p) * 32] = static_cast<uint16_t>(gather(v.high, p));
    const uint32_t n = static_cast<uint32_t>(__popc(mask)), before = scan_warp(n, lane) - n;
    put_escapes(place + kPage + before, d, mask);
    __syncwarp();
    if (lane < 4 * (planes + K::bit_planes)) {
        const uint32_t at = 16 * lane;
        gpu_st16(body + at + (at < planes * ZFMT_PLANE ? 0 : K::byte_planes * ZFMT_BLOCK),
                 *reinterpret_cast<const uint4 *>(place + at));
    }
    GPU_UNROLL
    for (uint32_t p = 0; p < K::byte_planes; p++)
        gpu_st16(body + planes * ZFMT_PLANE + p * ZFMT_BLOCK + 16 * lane,
                 make_uint4(v.b[p][0], v.b[p][1], v.b[p][2], v.b[p][3]));
}

/* Zeros after n bytes in pages, up to a multiple of 16. */
GPU_FN void pad_unit(uint8_t *pages, uint32_t n, uint32_t page, uint32_t pitch) {
    const uint32_t at = n + threadIdx.x;
    if (at < align_up(n, 16))
        pages[at / page * pitch + at % page] = 0;
}

/* Tier 2 or 3 over n bytes d that lie in pages at `in`; its escapes go to pages of out_page bytes at `out`. Each input
 * page becomes its code planes. Returns the count of escapes. */
template <uint32_t TIER>
GPU_FN uint32_t code_escapes(uint8_t *in, uint32_t n, uint8_t *out, uint32_t out_page, uint32_t pitch,
                             uint32_t *counts) {
    constexpr uint32_t add = TIER - 1, less = 3 * (TIER - 1);
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    uint32_t met = 0;
    for (uint32_t first = 0; first * kPage < n; first += kWarps) {
        const uint32_t page = first + warp;
        uint8_t *const at = in + page * pitch;
        const uint32_t valid = valid16(page * kPage + 16 * lane, n);
        uint32_t d[4] = {0, 0, 0, 0}, mask = 0, own = 0, sum = 0;
        const bool busy = page * kPage < n; /* of the whole warp */
        if (busy) {
            if (valid) {
                const uint4 v = *reinterpret_cast<const uint4 *>(at + 16 * lane);
                d[0] = v.x, d[1] = v.y, d[2] = v.z, d[3] = v.w;
            }
            uint32_t c[4];
            GPU_UNROLL
            for (int i = 0; i < 4; i++) {
                const uint32_t x = sub_bytes(d[i], repeat(256 - add)); /* d + add */
                const uint32_t beyond = full(mark_ge<less + 3>(x));
                const uint32_t code = sub_bytes(x, repeat(less)) & full(mark_ge<less>(x)); /* 0 below */
                c[i] = code | beyond;
            }
            const uint32_t p0 = gather(c, 0) & valid, p1 = gather(c, 1) & valid;
            mask = p0 & p1;
            own = static_cast<uint32_t>(__popc(mask));
            sum = scan_warp(own, lane);
            __syncwarp(); /* all lanes have read */
            reinterpret_cast<uint16_t *>(at)[lane] = static_cast<uint16_t>(p0);
            reinterpret_cast<uint16_t *>(at + ZFMT_PLANE)[lane] = static_cast<uint16_t>(p1);
        }
        if (lane == 31)
            counts[warp] = sum;
        __syncthreads();
        uint32_t to = met + sum - own + ZIP_FAULT(2);
        to += before_warp(counts, warp, lane, &met);
        if (busy) {
            uint32_t page_to = to / out_page, in_page = to % out_page;
            GPU_UNROLL
            for (uint32_t i = 0; i < 16; i++)
                if (mask >> i & 1) {
                    out[page_to * pitch + in_page] = static_cast<uint8_t>(d[i / 4] >> (8 * (i % 4)));
                    if (++in_page == out_page) {
                        page_to++;
                        in_page = 0;
                    }
                }
        }
        __syncthreads();
    }
    pad_unit(out, met, out_page, pitch);
    __syncthreads();
    return met;
}

/* 16 bytes at offset `at` of a tier group's dynamic part. */
GPU_FN uint4 dynamic_unit(const uint8_t *pages, uint32_t pitch, const Dynamic &l, uint32_t n3, uint32_t at) {
    const uint8_t *p;
    if (at < l.raw) {
        const bool third = at >= 2 * l.p2;
        const uint32_t in = third ? at - 2 * l.p2 : at, size = third ? l.p3 : l.p2, plane = in >= size;
        const uint32_t x = in - (plane ? size : 0);
        p = pages + x / ZFMT_PLANE * pitch + (third ? kPage : 0) + plane * ZFMT_PLANE + x % ZFMT_PLANE;
        return *reinterpret_cast<const uint4 *>(p);
    }
    const uint32_t x = at - l.raw;
    if (x >= n3)
        return zero16();
    return *reinterpret_cast<const uint4 *>(pages + x / kRest * pitch + 2 * ZFMT_PLANE + x % kRest);
}

/* The header, the padding of tables and bodies, and the result: by the segment's last group. */
template <int DTYPE, int CODEC>
GPU_FN void put_header(const zipccl_cuda_segment &s, const Tables &tables, uint32_t window, uint32_t body_end,
                       uint32_t dynamic_end, zipccl_cuda_result *result, uint32_t t) {
    uint8_t *const at = static_cast<uint8_t *>(s.static_part);
    const uint64_t end = tables.bodies + uint64_t{body_end} * ZFMT_BODY_ALIGN;
    const uint64_t bytes = (end + ZFMT_ALIGN - 1) / ZFMT_ALIGN * ZFMT_ALIGN, more = uint64_t{dynamic_end} * ZFMT_ALIGN;
    if (t < 8) {
        uint4 v = zero16();
        if (t == 0)
            v = make_uint4(ZFMT_MAGIC, ZFMT_VERSION | CODEC << 16 | DTYPE << 24, static_cast<uint32_t>(s.count),
                           static_cast<uint32_t>(s.count >> 32));
        else if (t == 1)
            v = make_uint4(static_cast<uint32_t>(bytes), static_cast<uint32_t>(bytes >> 32),
                           static_cast<uint32_t>(more), static_cast<uint32_t>(more >> 32));
        else if (t == 2)
            v.x = CODEC == zipcclCodecTop7 ? window : 0;
        gpu_st16(at + 16 * t, v);
    } else if (t < 16) { /* group entries past the last */
        const uint64_t entry = tables.table + tables.groups * sizeof(zfmt_group) + 16 * (t - 8);
        if (entry < tables.bodies)
            gpu_st16(at + entry, zero16());
    } else if (t < 20 && end < bytes) {
        gpu_st16(at + end + 16 * (t - 16), zero16());
    } else if (t == 32) {
        gpu_st(&result->static_bytes, bytes);
        gpu_st(&result->dynamic_bytes, more);
        gpu_st(&result->status, more > s.dynamic_room ? static_cast<uint32_t>(ZIPCCL_CUDA_OVERFLOW) : 0u);
    }
}

template <int DTYPE> GPU_FN bool encode_ok(const zipccl_cuda_segment &s) {
    const uint64_t values = (s.count * Kind<DTYPE>::bytes + ZFMT_BODY_ALIGN - 1) / ZFMT_BODY_ALIGN * ZFMT_BODY_ALIGN;
    return reinterpret_cast<uintptr_t>(s.values) % 16 == 0 && reinterpret_cast<uintptr_t>(s.static_part) % 128 == 0 &&
           reinterpret_cast<uintptr_t>(s.dynamic_part) % 128 == 0 &&
           (tables_of(s.count).bodies + values + ZFMT_ALIGN - 1) / ZFMT_ALIGN * ZFMT_ALIGN <= s.static_room;
}

/* One group. */
template <int DTYPE, int CODEC, bool STAGED>
GPU_FN void encode_tile(const Work &work, const Tile &tile, const zipccl_cuda_segment &s, zipccl_cuda_result *result,
                        uint8_t *pages, EncodeShared &sh) {
    using K = Kind<DTYPE>;
    constexpr uint32_t pitch = encode_pitch<DTYPE, STAGED>(), planes = CODEC == zipcclCodecTier ? 2 : 3;
    const uint32_t t = threadIdx.x, lane = t & 31, warp = t / 32;
    const Tables tables = tables_of(s.count);
    uint8_t *const parts = static_cast<uint8_t *>(s.static_part);
    const uint8_t *const src = static_cast<const uint8_t *>(s.values) + uint64_t{tile.group} * ZFMT_GROUP * K::bytes;
    const uint32_t window = CODEC == zipcclCodecTop7 ? gpu_ld(work.window + tile.segment) : 0;

    /* 1. Values to shared memory: all copies start at once, a block is used when it is there. */
    if (STAGED) {
        GPU_UNROLL
        for (uint32_t r = 0; r < kRounds; r++) {
            const uint32_t block = warp + r * kWarps;
            if (block < tile.full)
                GPU_UNROLL
            for (uint32_t j = 0; j < K::bytes; j++)
                gpu_cp_async16(pages + block * pitch + 16 * swizzle(32 * j + lane),
                               src + block * K::raw + 16 * (32 * j + lane));
            gpu_cp_commit();
        }
    }

    /* 2. Modes. */
    GPU_ROLL
    for (uint32_t r = 0; r < kRounds; r++) {
        const uint32_t block = warp + r * kWarps;
        if (STAGED) {
            if (r == 0)
                gpu_cp_wait<3>();
            else if (r == 1)
                gpu_cp_wait<2>();
            else if (r == 2)
                gpu_cp_wait<1>();
            else
                gpu_cp_wait<0>();
            __syncwarp();
        }
        uint32_t head = 0, n1 = 0, units = 0;
        if (block < tile.full) {
            Values<DTYPE> v;
            uint32_t w[K::words];
            lane_values<DTYPE, STAGED>(pages + block * pitch, src + block * K::raw, lane, w);
            v.split(w);
            if (CODEC == zipcclCodecTier) {
                head = choose_tier<DTYPE>(w, v.e, lane, &n1);
            } else {
                uint32_t c[4], m[4];
                top7_codes(v.e, window, c, m);
                n1 = warp_count(m);
                head = n1 <= K::budget(3) ? ZFMT_TOP7 : ZFMT_RAW;
                n1 = head == ZFMT_TOP7 ? n1 : 0;
            }
            const uint32_t mode = head & 255;
            units = mode == ZFMT_ZERO    ? 0
                    : mode == ZFMT_CONST ? 1
                                         : (mode == ZFMT_RAW ? K::raw : K::coded(planes)) / 64;
        } else if (block < tile.blocks) {
            const uint32_t bytes = tile.rest * K::bytes;
            uint32_t any = CODEC != zipcclCodecTier;
            for (uint32_t at = 16 * lane; at < bytes; at += kPage) {
                const uint4 v = short_unit(src + block * K::raw, at, bytes);
                any |= v.x | v.y | v.z | v.w;
            }
            head = __any_sync(kAll, any != 0) ? ZFMT_RAW : ZFMT_ZERO;
            units = head == ZFMT_RAW ? (bytes + 63) / 64 : 0;
        }
        if (lane == 0) {
            sh.head[block] = head;
            sh.units[block] = units;
            sh.escapes[block] = n1;
        }
    }
    __syncthreads();

    /* 3. Where bodies go. */
    if (warp == 0) {
        const uint32_t sum = scan_blocks(sh.units, sh.offset, lane), before = look_back(work.bodies, tile, sum, lane);
        if (lane == 0) {
            sh.box[2] = before;
            sh.box[3] = sum;
        }
    } else if (warp == 1) {
        const uint32_t n1 = scan_blocks(sh.escapes, sh.place, lane);
        if (lane == 0)
            sh.box[4] = n1;
    } else if (warp == 2 && lane < 8 && tile.blocks) {
        uint32_t w[4];
        GPU_UNROLL
        for (uint32_t i = 0; i < 4; i++)
            w[i] = sh.head[8 * lane + 2 * i] | sh.head[8 * lane + 2 * i + 1] << 16;
        gpu_st16(parts + sizeof(zfmt_header) + uint64_t{tile.group} * 128 + 16 * lane,
                 make_uint4(w[0], w[1], w[2], w[3]));
    }
    __syncthreads();
    const uint32_t body_at = sh.box[2], body_end = body_at + sh.box[3], n1 = sh.box[4];
    uint8_t *const bodies = parts + tables.bodies + uint64_t{body_at} * ZFMT_BODY_ALIGN;

    /* 4. Bodies, and a block's escapes to its page B. */
    GPU_ROLL
    for (uint32_t block = warp; block < tile.blocks; block += kWarps) {
        uint8_t *const body = bodies + sh.offset[block] * ZFMT_BODY_ALIGN, *const place = pages + block * pitch;
        const uint8_t *const from = src + block * K::raw;
        const uint32_t head = sh.head[block], mode = head & 255;
        if (block >= tile.full) {
            const uint32_t bytes = tile.rest * K::bytes;
            for (uint32_t at = 16 * lane; at < align_up(bytes, 64) && mode == ZFMT_RAW; at += kPage)
                gpu_st16(body + at, short_unit(from, at, bytes));
        } else if (mode == ZFMT_RAW) {
            GPU_UNROLL
            for (uint32_t j = 0; j < K::bytes; j++) {
                const uint32_t c = 32 * j + lane;
                gpu_st16(body + 16 * c,
                         STAGED ? *reinterpret_cast<const uint4 *>(place + 16 * swizzle(c)) : gpu_ld16(from + 16 * c));
            }
        } else if (mode == ZFMT_CONST) {
            uint32_t value =
                STAGED ? *reinterpret_cast<const uint32_t *>(place) : gpu_ld(reinterpret_cast<const uint32_t *>(from));
            value &= K::bytes == 4 ? kAll : K::bytes == 2 ? 0xffff : 0xff;
            if (lane < 4)
                gpu_st16(body + 16 * lane, make_uint4(lane == 0 ? value : 0, 0, 0, 0));
        } else if (mode != ZFMT_ZERO) {
            Values<DTYPE> v;
            uint32_t w[K::words];
            lane_values<DTYPE, STAGED>(place, from, lane, w);
            __syncwarp(); /* all lanes have read: the place becomes two pages */
            v.split(w);
            put_coded<DTYPE, CODEC>(v, head, window, place, body, lane);
        }
    }
    if (!ZIP_FAULT(1))
        __syncthreads();

    /* 5. Escapes together, to the pages A. */
    GPU_ROLL
    for (uint32_t block = warp; block < tile.full; block += kWarps) {
        const uint32_t n = sh.escapes[block], to = sh.place[block];
        for (uint32_t i = lane; i < n; i += 32)
            pages[(to + i) / kPage * pitch + (to + i) % kPage] = pages[block * pitch + kPage + i];
    }
    pad_unit(pages, n1, kPage, pitch);
    __syncthreads();

    /* 6. Tiers 2 and 3, and where the dynamic part goes. */
    uint32_t n2 = 0, n3 = 0, size = align_up(n1, ZFMT_ALIGN);
    if (CODEC == zipcclCodecTier && n1) {
        n2 = code_escapes<2>(pages, n1, pages + kPage, kPage, pitch, sh.counts);
        n3 = code_escapes<3>(pages + kPage, n2, pages + 2 * ZFMT_PLANE, kRest, pitch, sh.counts);
    }
    const Dynamic layout(n1, n2, n3);
    if (CODEC == zipcclCodecTier)
        size = n1 ? layout.size : 0;
    if (warp == 0) {
        const uint32_t before = look_back(work.dynamic, tile, size / ZFMT_ALIGN, lane);
        if (lane == 0) {
            sh.box[5] = before;
            if (tile.blocks)
                gpu_st16(parts + tables.table + uint64_t{tile.group} * sizeof(zfmt_group),
                         make_uint4(body_at, before, n1 | n2 << 16, n3));
        }
    }
    __syncthreads();
    const uint32_t dynamic_at = sh.box[5];
    uint8_t *const dynamic = static_cast<uint8_t *>(s.dynamic_part) + uint64_t{dynamic_at} * ZFMT_ALIGN;
    if (uint64_t{dynamic_at} * ZFMT_ALIGN + size <= s.dynamic_room) {
        for (uint32_t at = 16 * t; at < size; at += 16 * kThreads) {
            uint4 v;
            if (CODEC == zipcclCodecTier)
                v = dynamic_unit(pages, pitch, layout, n3, at);
            else
                v = at < n1 ? *reinterpret_cast<const uint4 *>(pages + at / kPage * pitch + at % kPage) : zero16();
            gpu_st16(dynamic + at, v);
        }
    }
    if (tile.group + 1 >= tables.groups)
        put_header<DTYPE, CODEC>(s, tables, window, body_end, dynamic_at + size / ZFMT_ALIGN, result, t);
}

template <int DTYPE, int CODEC, bool STAGED>
GPU_FN void encode(const Work &work, const zipccl_cuda_segment *table, zipccl_cuda_result *results, uint8_t *pages,
                   EncodeShared &sh) {
    Tile tile;
    while (draw_tile(work, table, 1, sh.box, &tile)) {
        const zipccl_cuda_segment s = table[tile.segment];
        zipccl_cuda_result *const result = results + tile.segment;
        if (gpu_ld(&result->status) & ZIPCCL_CUDA_INVALID)
            continue;
        if (encode_ok<DTYPE>(s)) {
            encode_tile<DTYPE, CODEC, STAGED>(work, tile, s, result, pages, sh);
        } else if (threadIdx.x == 0 && (tile.group + 1) * uint64_t{ZFMT_GROUP} >= s.count) {
            gpu_st(&result->status, static_cast<uint32_t>(ZIPCCL_CUDA_INVALID));
        }
    }
}

} // namespace zip

#endif

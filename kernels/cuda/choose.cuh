/* SPDX-License-Identifier: Apache-2.0
 *
 * How a lane reads its values of a block, the mode of a block (the rule of kernels/model.h), and what its values are
 * coded to.
 */
#ifndef ZIPCCL_KERNELS_CUDA_CHOOSE_CUH
#define ZIPCCL_KERNELS_CUDA_CHOOSE_CUH

#include "kernels/cuda/chunk.cuh"

namespace zip {

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

/* ---- the rule ---- */

GPU_FN uint32_t warp_count(const uint32_t m[4]) {
    return __reduce_add_sync(kAll, count_marks(m));
}

/* What 16 values of a lane are coded to: the bits of code planes, a bit for each escape, and the bytes that escape. */
template <int CODEC> struct Codes {
    static constexpr uint32_t planes = CODEC == zipcclCodecTier ? 2 : 3;
    uint32_t plane[planes], mask, d[4];
};

/* Tier 1: d = base - e, or of base + 1 with 0 and base + 1 exchanged; escapes are those of 3 and more. */
GPU_FN void tier_codes(const uint32_t e[4], uint32_t base, bool zero, Codes<zipcclCodecTier> *codes) {
    const uint32_t top = repeat((base + zero) & 255), other = repeat((base + 1) & 255);
    uint32_t c[4];
    GPU_UNROLL
    for (int i = 0; i < 4; i++) {
        const uint32_t d = sub_bytes(top, zero ? swap_bytes(e[i], other) : e[i]);
        codes->d[i] = d;
        c[i] = (d | (mark_ge<4>(d) >> 7) * 3) & 3 * kOnes; /* 3 is its own mark */
    }
    gather_codes(c, &codes->plane[0], &codes->plane[1]);
    codes->mask = codes->plane[0] & codes->plane[1] & 0xffff;
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

/* How many values of the block escape, and how many of earlier lanes. */
template <int CODEC> GPU_FN uint32_t count_escapes(const Codes<CODEC> &codes, uint32_t lane, uint32_t *before) {
    const uint32_t n = static_cast<uint32_t>(__popc(codes.mask)), sum = scan_warp(n, lane);
    *before = sum - n;
    return __shfl_sync(kAll, sum, 31);
}

/* A guess with no more escapes than this is taken. */
template <int DTYPE> GPU_CONST uint32_t surely() {
    return Kind<DTYPE>::budget(2) * 2 / 3 < 160 ? Kind<DTYPE>::budget(2) * 2 / 3 : 160;
}
/* The guess: mode and base of a full block, its codes and its escapes of tier 1. */
template <int DTYPE, bool STAGED>
GPU_FN uint32_t choose_tier(const uint8_t *place, const uint8_t *src, const uint32_t e[4], uint32_t lane,
                            Codes<zipcclCodecTier> *codes, uint32_t *n1, uint32_t *before) {
    using K = Kind<DTYPE>;
    const uint32_t base = min((sum_of_guess(e, lane) + 488) / 256, 255u);
    tier_codes(e, base, false, codes);
    *n1 = count_escapes(*codes, lane, before);
    if (*n1 == 0) { /* values once more: they have not been kept */
        uint32_t w[K::words];
        lane_values<DTYPE, STAGED>(place, src, lane, w);
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
    return ZFMT_TIER | base << 8;
}

/* d + 1 of top7: 1 .. 7, or an escape, which is 0 and stays as it is. */
GPU_FN void top7_codes(const uint32_t e[4], uint32_t window, Codes<zipcclCodecTop7> *codes) {
    const uint32_t base = window & 255, zero = window >> 8;
    const uint32_t top = repeat((base + zero + 1) & 255), other = repeat((base + 1) & 255);
    uint32_t c[4];
    GPU_UNROLL
    for (int i = 0; i < 4; i++) {
        const uint32_t d = sub_bytes(top, zero ? swap_bytes(e[i], other) : e[i]);
        c[i] = d & ~full(mark_ge<8>(d));
        codes->d[i] = e[i];
    }
    GPU_UNROLL
    for (uint32_t p = 0; p < 3; p++)
        codes->plane[p] = gather(c, p);
    codes->mask = ~(codes->plane[0] | codes->plane[1] | codes->plane[2]) & 0xffff;
}

} // namespace zip

#endif

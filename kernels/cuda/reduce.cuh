/* SPDX-License-Identifier: Apache-2.0
 *
 * Reductions of raw inputs, and of raw and coded ones. A thread block takes a tile of 32,768 values through all inputs.
 *
 * With coded inputs: totals in registers, 64 a thread; one input after another, which the thread block prepares
 * together if it is coded (take_segment). The sums of a group of several inputs wait in local memory.
 */
#ifndef ZIPCCL_KERNELS_CUDA_REDUCE_CUH
#define ZIPCCL_KERNELS_CUDA_REDUCE_CUH

#include "kernels/cuda/combine.cuh"

namespace zip {

/* The input in hand; here, not in registers. */
struct Turn {
    uint32_t k, codec, flags;
    bool fresh, ends; /* begins and ends a group */
    float scalar;
};
struct ReduceShared {
    TileShared tile;
    zipccl_cuda_reduction job;
    Turn turn;
};

/* Draws the next tile and its reduction to shared memory. */
GPU_FN bool draw_reduction(const Work &work, const zipccl_cuda_reduction *table, ReduceShared &sh) {
    Tile tile;
    if (!draw_tile(work, table, 1, sh.tile.decode.box, &tile))
        return false;
    if (threadIdx.x == 0) {
        sh.tile.tile = tile;
        sh.job = table[tile.segment];
        sh.tile.dst = static_cast<uint8_t *>(sh.job.dst);
        sh.tile.count = sh.job.count;
    }
    __syncthreads();
    return true;
}

/* What the inputs of the reduction in hand are like, which may be raw or of one codec. All threads get the same answer.
 */
struct Inputs {
    bool valid, aligned;
};
GPU_FN Inputs look_at_inputs(const zipccl_cuda_reduction &job, uint32_t bytes, uint32_t codec) {
    const auto off = [](const void *p, uint32_t to) { return reinterpret_cast<uintptr_t>(p) % to != 0; };
    bool bad = job.ninputs == 0 || off(job.dst, bytes), apart = off(job.dst, 16);
    for (uint32_t k = threadIdx.x; k < job.ninputs; k += kThreads) {
        const zipccl_cuda_input *const in = job.inputs + k;
        const uint32_t own = gpu_ld(&in->codec);
        const void *const src = gpu_ld(&in->src);
        bad = bad || (own == zipcclCodecRaw ? off(src, bytes) : own != codec);
        apart = apart || (own == zipcclCodecRaw && off(src, 16));
    }
    Inputs r;
    r.valid = __syncthreads_or(bad) == 0;
    r.aligned = __syncthreads_or(apart) == 0;
    return r;
}

GPU_FN void mark(zipccl_cuda_result *results, const ReduceShared &sh, uint32_t status, uint32_t bad_input) {
    if (threadIdx.x != 0)
        return;
    atomicOr(&results[sh.tile.tile.segment].status, status);
    atomicMin(&results[sh.tile.tile.segment].bad_input, bad_input);
}

/* ---- raw ---- */

/* N values from value `at` on, by one thread: 16 bytes, or one value. */
template <int DTYPE, uint32_t N> GPU_FN void reduce_some(const zipccl_cuda_reduction &job, uint32_t op, uint64_t at) {
    using M = Number<DTYPE>;
    using B = typename M::B;
    using Acc = typename M::Acc;
    constexpr uint32_t in_word = sizeof(B) < 4 ? 4 / sizeof(B) : 1;
    Acc group[N], total[N];
    GPU_UNROLL
    for (uint32_t i = 0; i < N; i++) {
        total[i] = Arithmetic<Acc>::nothing(op);
        group[i] = total[i];
    }
    bool first = true;
    GPU_ROLL
    for (uint32_t k = 0; k < job.ninputs; k++) {
        const zipccl_cuda_input *const in = job.inputs + k;
        const B *const src = static_cast<const B *>(gpu_ld(&in->src)) + at;
        const uint32_t flags = gpu_ld(&in->flags);
        Acc v[N];
        if constexpr (N == 1) {
            v[0] = M::widen(gpu_ld(src));
        } else {
            const uint4 x = gpu_ld16(src);
            const uint32_t w[4] = {x.x, x.y, x.z, x.w};
            GPU_UNROLL
            for (uint32_t i = 0; i < N; i++) {
                if constexpr (sizeof(B) == 8)
                    v[i] = M::widen(w[2 * i] | static_cast<uint64_t>(w[2 * i + 1]) << 32);
                else
                    v[i] = M::widen(static_cast<B>(w[i / in_word] >> (8 * sizeof(B) * (i % in_word))));
            }
        }
        scale<Acc, N>(flags, M::widen(static_cast<B>(gpu_ld(&in->scalar))), v);
        if (!first)
            combine<Acc, N>(op, v, group);
        GPU_UNROLL
        for (uint32_t i = 0; i < N; i++)
            group[i] = v[i];
        first = (flags & ZIPCCL_CUDA_ENDS_GROUP) != 0;
        if (first || k + 1 == job.ninputs) {
            round_group<DTYPE, N>(flags, group);
            combine<Acc, N>(op, total, group);
        }
    }
    average<Acc, N>(op, job.divisor, total);
    B *const dst = static_cast<B *>(job.dst) + at;
    if constexpr (N == 1) {
        gpu_st(dst, M::narrow(total[0]));
    } else {
        uint32_t w[4] = {0, 0, 0, 0};
        GPU_UNROLL
        for (uint32_t i = 0; i < N; i++) {
            const uint64_t x = M::narrow(total[i]);
            if constexpr (sizeof(B) == 8)
                w[2 * i] = static_cast<uint32_t>(x), w[2 * i + 1] = static_cast<uint32_t>(x >> 32);
            else
                w[i / in_word] |= static_cast<uint32_t>(x) << (8 * sizeof(B) * (i % in_word));
        }
        gpu_st16(dst, make_uint4(w[0], w[1], w[2], w[3]));
    }
}

template <int DTYPE>
GPU_FN void reduce_raw(const Work &work, const zipccl_cuda_reduction *table, zipccl_cuda_result *results, uint32_t op,
                       ReduceShared &sh) {
    constexpr uint32_t bytes = sizeof(typename Number<DTYPE>::B), step = 16 / bytes;
    while (draw_reduction(work, table, sh)) {
        const Inputs is = look_at_inputs(sh.job, bytes, zipcclCodecRaw);
        const uint32_t values = sh.tile.tile.values;
        if (!is.valid) {
            mark(results, sh, ZIPCCL_CUDA_INVALID, kAll);
            continue;
        }
        const uint64_t base = uint64_t{sh.tile.tile.group} * ZFMT_GROUP;
        const uint32_t whole = is.aligned ? values / step * step : 0;
        GPU_ROLL
        for (uint32_t at = threadIdx.x * step; at < whole; at += kThreads * step)
            reduce_some<DTYPE, step>(sh.job, op, base + at);
        GPU_ROLL
        for (uint32_t at = whole + threadIdx.x; at < values; at += kThreads)
            reduce_some<DTYPE, 1>(sh.job, op, base + at);
    }
}

/* ---- raw and coded ---- */

/* The 16 values of a lane of a raw block, of which `values` are there. */
template <int DTYPE>
GPU_FN void raw_lane(const uint8_t *src, uint32_t values, uint8_t *stage, uint32_t lane,
                     uint32_t w[Kind<DTYPE>::words]) {
    using K = Kind<DTYPE>;
    using B = typename Bits<K::bytes>::type;
    if (values == ZFMT_BLOCK && reinterpret_cast<uintptr_t>(src) % 16 == 0) {
        GPU_UNROLL
        for (uint32_t j = 0; j < K::bytes; j++)
            *reinterpret_cast<uint4 *>(stage + 16 * swizzle(32 * j + lane)) = gpu_ld16(src + 16 * (32 * j + lane));
    } else {
        GPU_ROLL
        for (uint32_t i = lane; i < ZFMT_BLOCK; i += 32)
            *reinterpret_cast<B *>(stage + staged(i * K::bytes)) =
                i < values ? gpu_ld(reinterpret_cast<const B *>(src) + i) : B{0};
    }
    __syncwarp();
    GPU_UNROLL
    for (uint32_t j = 0; j < K::bytes; j++) {
        const uint4 v = *reinterpret_cast<const uint4 *>(stage + 16 * swizzle(lane * K::bytes + j));
        w[4 * j] = v.x, w[4 * j + 1] = v.y, w[4 * j + 2] = v.z, w[4 * j + 3] = v.w;
    }
    __syncwarp();
}

/* Prepares a coded input. */
template <int DTYPE, int CODEC> GPU_FN bool take_coded(const zipccl_cuda_input *in, uint8_t *big, TileShared &sh) {
    if (threadIdx.x == 0) {
        sh.segment.values = nullptr;
        sh.segment.static_part = const_cast<void *>(in->src);
        sh.segment.dynamic_part = const_cast<void *>(in->src_dynamic);
        sh.segment.count = sh.count;
        sh.segment.static_room = in->static_bytes;
        sh.segment.dynamic_room = in->dynamic_bytes;
    }
    return take_segment<DTYPE, CODEC>(big, sh);
}

/* Thread 0 puts input k into shared memory. */
template <int DTYPE> GPU_FN void put_turn(uint32_t k, bool fresh, ReduceShared &sh) {
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    const zipccl_cuda_input *const in = sh.job.inputs + k;
    sh.turn.k = k;
    sh.turn.codec = gpu_ld(&in->codec);
    sh.turn.flags = gpu_ld(&in->flags);
    sh.turn.fresh = fresh;
    sh.turn.scalar = to_float<DTYPE>(static_cast<uint32_t>(gpu_ld(&in->scalar)));
    sh.turn.ends = k + 1 == sh.job.ninputs || sh.turn.flags & ZIPCCL_CUDA_ENDS_GROUP;
}

/* A lane's 16 values of the input in hand, which has been taken if it is coded. */
template <int DTYPE, int CODEC>
GPU_FN void input_lane(uint32_t block, const uint8_t *big, uint8_t *stage, uint32_t lane, const ReduceShared &shared,
                       float v[16]) {
    using K = Kind<DTYPE>;
    const TileShared &sh = shared.tile;
    uint32_t w[K::words];
    if (shared.turn.codec != zipcclCodecRaw && block < sh.tile.full) {
        decode_lane<DTYPE, CODEC, true>(block, sh.group, big, sh.decode, stage, lane, w);
    } else {
        const uint8_t *src;
        uint32_t values = block < sh.tile.full ? ZFMT_BLOCK : sh.tile.rest;
        if (shared.turn.codec == zipcclCodecRaw) {
            src = static_cast<const uint8_t *>(gpu_ld(&shared.job.inputs[shared.turn.k].src)) +
                  (uint64_t{sh.tile.group} * ZFMT_GROUP + block * ZFMT_BLOCK) * K::bytes;
        } else { /* the short block */
            src = sh.group.bodies + uint64_t{sh.decode.offset[block]} * ZFMT_BODY_ALIGN;
            values = (sh.decode.head[block] & 255) == ZFMT_RAW ? values : 0;
        }
        raw_lane<DTYPE>(src, values, stage, lane, w);
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < 16; i++)
        v[i] = value_of<DTYPE>(w, i);
}

/* Blocks warp + r * kWarps of the tile in hand, r from `first` on, ROUNDS of them. Returns the first corrupt input, or
 * ninputs. */
template <int DTYPE, int CODEC, uint32_t ROUNDS>
GPU_FN uint32_t reduce_rounds(uint32_t first, uint32_t op, uint8_t *big, ReduceShared &sh) {
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    uint8_t *const stage = big + kTwo + warp * 4 * ZFMT_BLOCK;
    float total[ROUNDS][16];
    float parked[ROUNDS][16]; /* sums of groups that go on: in local memory, as r is not known */
    GPU_UNROLL
    for (uint32_t q = 0; q < ROUNDS; q++) {
        GPU_UNROLL
        for (uint32_t i = 0; i < 16; i++)
            total[q][i] = Arithmetic<float>::nothing(op);
    }
    put_turn<DTYPE>(0, true, sh);
    for (;;) {
        __syncthreads();
        if (sh.turn.codec != zipcclCodecRaw && !take_coded<DTYPE, CODEC>(sh.job.inputs + sh.turn.k, big, sh.tile))
            return sh.turn.k;
        /* One block at a time: two would not fit the registers. */
        GPU_ROLL
        for (uint32_t r = 0; r < ROUNDS; r++) {
            const uint32_t block = warp + (first + r) * kWarps;
            if (block >= sh.tile.tile.blocks)
                continue;
            float v[16];
            input_lane<DTYPE, CODEC>(block, big, stage, lane, sh, v);
            scale<float, 16>(sh.turn.flags, sh.turn.scalar, v);
            if (!sh.turn.fresh)
                combine<float, 16>(op, v, parked[r]);
            if (!sh.turn.ends) {
                GPU_UNROLL
                for (uint32_t i = 0; i < 16; i++)
                    parked[r][i] = v[i];
                continue;
            }
            round_group<DTYPE, 16>(sh.turn.flags, v);
            GPU_UNROLL
            for (uint32_t q = 0; q < ROUNDS; q++)
                if (q == r)
                    combine<float, 16>(op, total[q], v);
        }
        if (sh.turn.k + 1 == sh.job.ninputs)
            break;
        put_turn<DTYPE>(sh.turn.k + 1, sh.turn.ends, sh);
    }
    __syncthreads(); /* the escapes have been used */
    GPU_ROLL
    for (uint32_t r = 0; r < ROUNDS; r++) {
        const uint32_t block = warp + (first + r) * kWarps;
        if (block >= sh.tile.tile.blocks)
            continue;
        const uint64_t at = uint64_t{sh.tile.tile.group} * ZFMT_GROUP + block * ZFMT_BLOCK;
        float end[16] = {};
        GPU_UNROLL
        for (uint32_t q = 0; q < ROUNDS; q++) {
            GPU_UNROLL
            for (uint32_t i = 0; i < 16; i++)
                end[i] = q == r ? total[q][i] : end[i];
        }
        average<float, 16>(op, sh.job.divisor, end);
        put_sums<DTYPE>(sh.tile.dst + Kind<DTYPE>::bytes * at, stage, lane, end,
                        block < sh.tile.tile.full ? ZFMT_BLOCK : sh.tile.tile.rest,
                        reinterpret_cast<uintptr_t>(sh.tile.dst) % 16 == 0);
    }
    return sh.job.ninputs;
}

template <int DTYPE, int CODEC>
GPU_FN void reduce_coded(const Work &work, const zipccl_cuda_reduction *table, zipccl_cuda_result *results, uint32_t op,
                         uint8_t *big, ReduceShared &sh) {
    fill_select(sh.tile.decode.select);
    while (draw_reduction(work, table, sh)) {
        const Inputs is = look_at_inputs(sh.job, Kind<DTYPE>::bytes, CODEC);
        if (!is.valid) {
            mark(results, sh, ZIPCCL_CUDA_INVALID, kAll);
            continue;
        }
        /* FP32 needs more registers: half of the tile, and the other. */
        constexpr uint32_t rounds = DTYPE == zipcclFloat32 ? kRounds / 2 : kRounds;
        uint32_t bad = sh.job.ninputs;
        GPU_ROLL
        for (uint32_t first = 0; first < kRounds && bad == sh.job.ninputs; first += rounds)
            bad = reduce_rounds<DTYPE, CODEC, rounds>(first, op, big, sh);
        if (bad != sh.job.ninputs)
            mark(results, sh, ZIPCCL_CUDA_CORRUPT, bad);
    }
}

} // namespace zip

#endif

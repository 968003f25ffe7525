/* SPDX-License-Identifier: Apache-2.0
 *
 * Encode. A thread block of 16 warps takes a group; a warp takes 4 of its 64 blocks, 16 consecutive values a lane.
 *
 * Where a body goes depends on the modes of all blocks before it, yet values are read and coded once. So a group's
 * values are copied to shared memory; a block's mode is chosen from there (kernels/model.h) and the block is coded at
 * once, in its place. One look-back over the groups of the segment then gives the offset, and the bodies are copied
 * out. Now the escapes are moved together, and tiers 2 to 4 run over them in the same memory; a second look-back
 * places the dynamic part.
 *
 * Shared memory while blocks are coded: 64 places (plan.h). Later the escapes of each tier, in bytes (kEscapes1 to
 * kEscapes4). The code planes of tiers 2 and 3 take the beginning of what they have read, and the escapes of the tier
 * after it lie behind them. Those of tiers 3 and 4 are few: six quarter bytes of price each stay within 4 * budget.
 * Tier 4 leaves what it has read, for it is used only where it pays.
 *
 * STAGED false is for GPUs whose shared memory cannot hold a group of FP32: blocks are read from memory, and their byte
 * planes made from a second reading, from the L2 cache.
 */
#ifndef ZIPCCL_KERNELS_CUDA_ENCODE_CUH
#define ZIPCCL_KERNELS_CUDA_ENCODE_CUH

#include "kernels/cuda/choose.cuh"

namespace zip {

constexpr uint32_t kPlanes = 2 * ZFMT_GROUP / 8; /* of a tier, at most */
constexpr uint32_t kEscapes1 = 0, kEscapes3 = kEscapes1 + kPlanes;
constexpr uint32_t kEscapes2 = kEscapes3 + ZFMT_GROUP, kEscapes4 = kEscapes2 + kPlanes;
constexpr uint32_t kPagesEnd = kEscapes2 + ZFMT_GROUP;
constexpr uint32_t kMostEscapes3 = 4 * 368 / 6 * kGroupBlocks; /* 368: the greatest budget */
constexpr uint32_t kPlanes4 = kEscapes3 + kMostEscapes3 + 16;
static_assert(kPlanes4 % 16 == 0 && kPlanes4 + 2 * (kMostEscapes3 / 8 + 16) <= kEscapes2, "planes of tier 4");
static_assert(kPlanes <= 16 * kThreads, "planes lie where the first round of a tier has read");

/* Sizes of a place. */
template <int DTYPE, int CODEC, bool STAGED> struct Shape {
    using K = Kind<DTYPE>;
    static constexpr bool tier = CODEC == zipcclCodecTier;
    static constexpr uint32_t coded = encode_coded(tier, K::bytes, K::bit_planes, STAGED);
    static constexpr uint32_t escapes = encode_escapes(tier, K::bytes, K::bit_planes, STAGED);
    static constexpr uint32_t pitch = encode_pitch(tier, K::bytes, K::bit_planes, STAGED);
    static_assert(!tier || pitch * kGroupBlocks >= kPagesEnd, "tiers 2 and 3");
    static_assert(K::budget(2) <= 368 && kEscapes4 + kMostEscapes3 + 16 <= kPagesEnd, "tier 4");
};

/* Small shared memory of the kernel. */
struct EncodeShared {
    uint32_t head[kGroupBlocks]; /* mode | base << 8 */
    uint32_t units[kGroupBlocks];
    uint32_t offset[kGroupBlocks];
    uint32_t escapes[kGroupBlocks];
    uint32_t place[kGroupBlocks];
    uint32_t counts[kWarps];
    uint32_t box[8];
    Tile tile; /* in hand; here, so that values have the registers */
    zipccl_cuda_segment segment;
};

/* ---- writing ---- */

/* The bytes at `in` whose bits are set go to where `end` ends, the last one first. */
GPU_FN void put_escapes(const uint8_t *in, uint32_t mask, uint8_t *end) {
    GPU_ROLL
    while (mask) {
        const uint32_t above = static_cast<uint32_t>(__clz(static_cast<int>(mask)));
        *--end = *(in + 31 - above);
        mask &= ~(0x80000000u >> above);
    }
}

/* Zeros after n bytes, up to a multiple of 16. */
GPU_FN void pad_unit(uint8_t *bytes, uint32_t n, uint32_t t) {
    if (n + t < align_up(n, 16))
        bytes[n + t] = 0;
}

/* Codes a block in its place. Escapes first, from bytes that lie for the time being
 * where the body is going to. */
template <int DTYPE, int CODEC, bool STAGED>
GPU_FN void code_block(const Values<DTYPE> &v, const Codes<CODEC> &codes, uint32_t n1, uint32_t before, uint8_t *place,
                       uint32_t lane) {
    using K = Kind<DTYPE>;
    constexpr uint32_t planes = Codes<CODEC>::planes, bytes_at = planes * ZFMT_PLANE;
    constexpr uint32_t bits_at = bytes_at + (STAGED ? K::byte_planes * ZFMT_BLOCK : 0);
    __syncwarp(); /* all lanes have read the values */
    if (n1) {
        uint8_t *const out = place + Shape<DTYPE, CODEC, STAGED>::escapes;
        *reinterpret_cast<uint4 *>(place + 16 * lane) = make_uint4(codes.d[0], codes.d[1], codes.d[2], codes.d[3]);
        put_escapes(place + 16 * lane, codes.mask, out + before + static_cast<uint32_t>(__popc(codes.mask)));
        pad_unit(out, n1, lane);
        __syncwarp();
    }
    uint16_t *const half = reinterpret_cast<uint16_t *>(place) + lane;
    GPU_UNROLL
    for (uint32_t p = 0; p < planes; p++)
        half[p * 32] = static_cast<uint16_t>(codes.plane[p]);
    GPU_UNROLL
    for (uint32_t p = 0; p < K::bit_planes; p++)
        half[bits_at / 2 + p * 32] = static_cast<uint16_t>(gather(v.high, p));
    GPU_UNROLL
    for (uint32_t p = 0; STAGED && p < K::byte_planes; p++)
        *reinterpret_cast<uint4 *>(place + bytes_at + p * ZFMT_BLOCK + 16 * lane) =
            make_uint4(v.b[p][0], v.b[p][1], v.b[p][2], v.b[p][3]);
}

/* A coded block from its place to memory. */
template <int DTYPE, int CODEC, bool STAGED>
GPU_FN void put_body(uint8_t *body, const uint8_t *place, [[maybe_unused]] const uint8_t *src, uint32_t lane) {
    using K = Kind<DTYPE>;
    constexpr uint32_t coded = Shape<DTYPE, CODEC, STAGED>::coded;
    constexpr uint32_t planes = Codes<CODEC>::planes * ZFMT_PLANE;
    GPU_UNROLL
    for (uint32_t first = 0; first < coded; first += kPage) {
        const uint32_t at = first + 16 * lane;
        if (first + kPage <= coded || at < coded)
            gpu_st16(body + at, *reinterpret_cast<const uint4 *>(place + at));
    }
    if constexpr (!STAGED) { /* FP32: no bit planes */
        uint32_t w[K::words];
        lane_values<DTYPE, false>(nullptr, src, lane, w);
        Values<DTYPE> v;
        v.split(w);
        GPU_UNROLL
        for (uint32_t p = 0; p < K::byte_planes; p++)
            gpu_st16(body + planes + p * ZFMT_BLOCK + 16 * lane,
                     make_uint4(v.b[p][0], v.b[p][1], v.b[p][2], v.b[p][3]));
    }
}

/* 16 bytes of a lane become part of bytes at `out`, from byte `to` on, which are zero. */
GPU_FN void or_unit(uint8_t *out, uint32_t to, uint4 x) {
    uint32_t *const w = reinterpret_cast<uint32_t *>(out + (to & ~3u));
    const uint32_t shift = 8 * (to & 3);
    atomicOr(w, x.x << shift);
    atomicOr(w + 1, __funnelshift_l(x.x, x.y, shift));
    atomicOr(w + 2, __funnelshift_l(x.y, x.z, shift));
    atomicOr(w + 3, __funnelshift_l(x.z, x.w, shift));
    if (shift)
        atomicOr(w + 4, x.w >> (32 - shift));
}

/* Tier 2, 3 or 4 over n bytes d at `in`: code planes, which may take their place, and escapes to `out`. Returns the
 * count of escapes. */
template <uint32_t TIER>
GPU_FN uint32_t code_escapes(const uint8_t *in, uint32_t n, uint8_t *planes, uint8_t *out, EncodeShared &sh) {
    constexpr uint32_t add = TIER - 1, less = 3 * (TIER - 1);
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32, plane = plane_bytes(n);
    uint32_t met = 0;
    for (uint32_t first = 0; first < n; first += 16 * kThreads) {
        const uint32_t at = first + 16 * threadIdx.x;
        const bool busy = first + warp * kPage < n; /* the whole warp */
        uint32_t p0 = 0, p1 = 0, mask = 0, sum = 0;
        if (busy) {
            const uint32_t valid = valid16(at, n);
            const uint4 v = valid ? *reinterpret_cast<const uint4 *>(in + at) : zero16();
            const uint32_t d[4] = {v.x, v.y, v.z, v.w};
            uint32_t c[4];
            GPU_UNROLL
            for (int i = 0; i < 4; i++) {
                const uint32_t x = sub_bytes(d[i], repeat(256 - add));                     /* d + add */
                const uint32_t code = sub_bytes(x, repeat(less)) & full(mark_ge<less>(x)); /* 0 below */
                c[i] = (code | full(mark_ge<less + 3>(x))) & 3 * kOnes;
            }
            gather_codes(c, &p0, &p1);
            p0 &= valid;
            p1 &= valid;
            mask = p0 & p1;
            sum = scan_warp(static_cast<uint32_t>(__popc(mask)), lane);
        }
        if (lane == 31)
            sh.counts[warp] = sum;
        __syncthreads();
        if (busy) {
            const uint32_t to = met + sum + ZIP_FAULT(2);
            put_escapes(in + at, mask, out + to + before_warp(sh.counts, warp, lane, &met));
        }
        __syncthreads();
        if (busy && at / 8 < plane) {
            *reinterpret_cast<uint16_t *>(planes + at / 8) = static_cast<uint16_t>(p0);
            *reinterpret_cast<uint16_t *>(planes + plane + at / 8) = static_cast<uint16_t>(p1);
        }
    }
    if (warp == 0) { /* busy in each round */
        pad_unit(out, met, lane);
        if (lane == 0)
            sh.box[TIER] = met;
    }
    __syncthreads();
    return sh.box[TIER];
}

/* 16 bytes at offset `at` of a tier group's dynamic part. */
GPU_FN uint4 dynamic_unit(const uint8_t *pages, const Dynamic &l, uint32_t n3, uint32_t n4, uint32_t at) {
    const uint32_t from = at < l.tier3   ? kEscapes1 + at
                          : at < l.tier4 ? kEscapes2 + at - l.tier3
                          : at < l.raw   ? kPlanes4 + at - l.tier4
                                         : (n4 == n3 ? kEscapes3 : kEscapes4) + at - l.raw;
    return at < l.raw + n4 ? *reinterpret_cast<const uint4 *>(pages + from) : zero16();
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
GPU_FN void encode_tile(const Work &work, zipccl_cuda_result *results, uint8_t *pages, EncodeShared &sh) {
    using K = Kind<DTYPE>;
    using Shape = Shape<DTYPE, CODEC, STAGED>;
    constexpr uint32_t pitch = Shape::pitch;
    const uint32_t t = threadIdx.x, lane = t & 31, warp = t / 32;
    const Tile &tile = sh.tile;
    const zipccl_cuda_segment &s = sh.segment;
    const uint8_t *const src = static_cast<const uint8_t *>(s.values) + uint64_t{tile.group} * ZFMT_GROUP * K::bytes;
    const uint32_t window = CODEC == zipcclCodecTop7 ? gpu_ld(work.window + tile.segment) : 0;

    /* 1. Values to shared memory: all copies start at once, a block is used when it is there. */
    if (STAGED) {
        const uint8_t *const from = src + warp * K::raw + 16 * lane;
        uint8_t *const to = pages + warp * pitch + 16 * swizzle(lane);
        GPU_UNROLL
        for (uint32_t r = 0; r < kRounds; r++) {
            if (warp + r * kWarps < tile.full)
                GPU_UNROLL
            for (uint32_t j = 0; j < K::bytes; j++)
                gpu_cp_async16(to + r * kWarps * pitch + kPage * j, from + r * kWarps * K::raw + kPage * j);
            gpu_cp_commit();
        }
    }

    /* 2. Modes, and the blocks that are coded. */
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
            Codes<CODEC> codes;
            uint32_t before = 0;
            if constexpr (CODEC == zipcclCodecTier) {
                head = choose_tier<DTYPE, STAGED>(pages + block * pitch, src + block * K::raw, v.e, lane, &codes, &n1,
                                                  &before);
                if (n1 > surely<DTYPE>()) {
                    head = settle(v.e, head >> 8, n1, K::budget(2), lane);
                    /* Values once more: nothing but the block's mode is to live across that call. */
                    lane_values<DTYPE, STAGED>(pages + block * pitch, src + block * K::raw, lane, w);
                    v.split(w);
                    tier_codes(v.e, head >> 8, (head & 255) == ZFMT_TIER_ZERO, &codes);
                    n1 = count_escapes(codes, lane, &before);
                    n1 = (head & 255) == ZFMT_RAW ? 0 : n1;
                }
            } else {
                top7_codes(v.e, window, &codes);
                n1 = count_escapes(codes, lane, &before);
                head = n1 <= K::budget(3) ? ZFMT_TOP7 : ZFMT_RAW;
                n1 = head == ZFMT_TOP7 ? n1 : 0;
            }
            const uint32_t mode = head & 255;
            units = mode == ZFMT_ZERO    ? 0
                    : mode == ZFMT_CONST ? 1
                                         : (mode == ZFMT_RAW ? K::raw : K::coded(Codes<CODEC>::planes)) / 64;
            if (mode != ZFMT_RAW && mode != ZFMT_ZERO && mode != ZFMT_CONST)
                code_block<DTYPE, CODEC, STAGED>(v, codes, n1, before, pages + block * pitch, lane);
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
    const Tables tables = tables_of(s.count);
    uint8_t *const parts = static_cast<uint8_t *>(s.static_part);
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

    /* 4. Bodies. */
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
            put_body<DTYPE, CODEC, STAGED>(body, place, from, lane);
        }
    }

    /* 5. Escapes together: out of the places, and 16 a lane to where they belong. */
    uint4 escapes[kRounds] = {}; /* or ptxas keeps room for what was there before */
    GPU_UNROLL
    for (uint32_t r = 0; r < kRounds; r++) {
        const uint32_t block = warp + r * kWarps;
        if (block < tile.full && 16 * lane < sh.escapes[block])
            escapes[r] = *reinterpret_cast<const uint4 *>(pages + block * pitch + Shape::escapes + 16 * lane);
    }
    if (!ZIP_FAULT(1))
        __syncthreads();
    for (uint32_t at = 16 * t; at < n1 + 16; at += 16 * kThreads)
        *reinterpret_cast<uint4 *>(pages + kEscapes1 + at) = zero16();
    __syncthreads();
    GPU_UNROLL
    for (uint32_t r = 0; r < kRounds; r++) {
        const uint32_t block = warp + r * kWarps;
        if (block < tile.full && 16 * lane < sh.escapes[block])
            or_unit(pages + kEscapes1, sh.place[block] + 16 * lane, escapes[r]);
    }
    __syncthreads();

    /* 6. Tiers 2 to 4, and where the dynamic part goes. */
    uint32_t n2 = 0, n3 = 0, n4 = 0, size = align_up(n1, ZFMT_ALIGN);
    if (CODEC == zipcclCodecTier && n1) {
        n2 = code_escapes<2>(pages + kEscapes1, n1, pages + kEscapes1, pages + kEscapes2, sh);
        n3 = code_escapes<3>(pages + kEscapes2, n2, pages + kEscapes2, pages + kEscapes3, sh);
        n4 = n3;
    }
    Dynamic layout(n1, n2, n3, n4);
    if (CODEC == zipcclCodecTier && n3) {
        const uint32_t raw = layout.tier4 + 2 * plane_bytes(n3);
        if (align_up(raw, ZFMT_ALIGN) < layout.size) { /* it can pay */
            const uint32_t n = code_escapes<4>(pages + kEscapes3, n3, pages + kPlanes4, pages + kEscapes4, sh);
            const uint32_t with = align_up(raw + n, ZFMT_ALIGN);
            if (with < layout.size) {
                n4 = n;
                layout.raw = raw;
                layout.size = with;
            }
        }
    }
    if (CODEC == zipcclCodecTier)
        size = n1 ? layout.size : 0;
    if (warp == 0) {
        const uint32_t before = look_back(work.dynamic, tile, size / ZFMT_ALIGN, lane);
        if (lane == 0) {
            sh.box[5] = before;
            if (tile.blocks)
                gpu_st16(parts + tables.table + uint64_t{tile.group} * sizeof(zfmt_group),
                         make_uint4(body_at, before, n1 | n2 << 16, n3 | n4 << 16));
        }
    }
    __syncthreads();
    const uint32_t dynamic_at = sh.box[5];
    uint8_t *const dynamic = static_cast<uint8_t *>(s.dynamic_part) + uint64_t{dynamic_at} * ZFMT_ALIGN;
    if (uint64_t{dynamic_at} * ZFMT_ALIGN + size <= s.dynamic_room) {
        for (uint32_t at = 16 * t; at < size; at += 16 * kThreads) {
            uint4 v;
            if (CODEC == zipcclCodecTier)
                v = dynamic_unit(pages, layout, n3, n4, at);
            else
                v = at < n1 ? *reinterpret_cast<const uint4 *>(pages + kEscapes1 + at) : zero16();
            gpu_st16(dynamic + at, v);
        }
    }
    if (tile.group + 1 >= tables.groups)
        put_header<DTYPE, CODEC>(s, tables, window, body_end, dynamic_at + size / ZFMT_ALIGN, results + tile.segment,
                                 t);
}

template <int DTYPE, int CODEC, bool STAGED>
GPU_FN void encode(const Work &work, const zipccl_cuda_segment *table, zipccl_cuda_result *results, uint8_t *pages,
                   EncodeShared &sh) {
    Tile tile;
    while (draw_tile(work, table, 1, sh.box, &tile)) {
        if (threadIdx.x == 0) {
            sh.tile = tile;
            sh.segment = table[tile.segment];
        }
        __syncthreads();
        zipccl_cuda_result *const result = results + tile.segment;
        if (gpu_ld(&result->status) & ZIPCCL_CUDA_INVALID)
            continue;
        if (encode_ok<DTYPE>(sh.segment)) {
            encode_tile<DTYPE, CODEC, STAGED>(work, results, pages, sh);
        } else if (threadIdx.x == 0 && (tile.group + 1) * uint64_t{ZFMT_GROUP} >= sh.segment.count) {
            gpu_st(&result->status, static_cast<uint32_t>(ZIPCCL_CUDA_INVALID));
        }
    }
}

} // namespace zip

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Decode, and decode + accumulate. A thread block takes a group, any group: it checks the header, the group's modes and
 * its entry against the next one's (by induction every offset is checked), counts the escapes in the code planes,
 * undoes tiers 4, 3 and 2 in shared memory and then the blocks, a warp each. Nothing is read before its place has been
 * checked; what is wrong marks the segment corrupt.
 */
#ifndef ZIPCCL_KERNELS_CUDA_DECODE_CUH
#define ZIPCCL_KERNELS_CUDA_DECODE_CUH

#include "kernels/cuda/chunk.cuh"
#include "kernels/layout.h"

namespace zip {

/* Small shared memory of the kernel. */
struct DecodeShared {
    uint32_t head[kGroupBlocks];
    uint32_t units[kGroupBlocks];
    uint32_t offset[kGroupBlocks];
    uint32_t escapes[kGroupBlocks];
    uint32_t place[kGroupBlocks];
    uint32_t counts[kWarps];
    uint32_t box[8];
    uint32_t select[16]; /* fill_select */
    uint4 header[8];
    uint4 entry[2]; /* of this group and the next */
};

/* Large shared memory: two pages that each tier goes through by turns, the raw bytes of a group with a tier 4 in page
 * two, so that the escapes of tier 1 end in page one (top7's begin there), and page two is free for the warps' stages;
 * then code planes. */
constexpr uint32_t kOne = 0, kTwo = ZFMT_GROUP, kCodes = 2 * ZFMT_GROUP;
template <int CODEC> GPU_CONST uint32_t code_planes() {
    return CODEC == zipcclCodecTier ? 2 : 3;
}
template <int CODEC> GPU_CONST uint32_t decode_bytes() {
    return kCodes + kGroupBlocks * ZFMT_PLANE * code_planes<CODEC>();
}

/* A group that has passed the checks. */
struct Group {
    const uint8_t *bodies, *dynamic;
    uint32_t window;
};

/* Escapes of the tiers, from a group's entry: read from shared memory where they are wanted, for registers are few. */
struct Counts {
    uint32_t n1, n2, n3, n4;
    GPU_FN explicit Counts(const uint4 &entry)
        : n1(entry.z & 0xffff), n2(entry.z >> 16), n3(entry.w & 0xffff), n4(entry.w >> 16) {
    }
};

/* For each mask of four bytes a selector of __byte_perm that puts the next bytes of its second word there, and their
 * count above it. Bytes that stay have selectors 0 to 3. A barrier must follow. */
GPU_FN void fill_select(uint32_t select[16]) {
    const uint32_t m = threadIdx.x;
    if (m >= 16)
        return;
    uint32_t s = 0, n = 0;
    GPU_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        s |= (m >> i & 1 ? 4 + n : i) << (4 * i);
        n += m >> i & 1;
    }
    select[m] = s | n << 16;
}

/* Marked bytes of a lane's 16 take the next bytes of the page at `in`, from byte `at` on. Reads up to 8 bytes past the
 * last: pages end in a unit of zeros. Four bytes in one step, for lanes that branch apart would take all 16 steps. */
GPU_FN void get_escapes(uint32_t w[4], uint32_t mask, const uint8_t *in, uint32_t at, const uint32_t select[16]) {
    GPU_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t s = select[mask >> (4 * i) & 15];
        const uint32_t *const two = reinterpret_cast<const uint32_t *>(in + (at & ~3u));
        w[i] = __byte_perm(w[i], __funnelshift_r(two[0], two[1], 8 * (at & 3)), s & 0xffff);
        at += s >> 16;
    }
}

/* The header in shared memory. */
template <int DTYPE, int CODEC>
GPU_FN bool header_ok(const uint4 header[8], const zipccl_cuda_segment &s, uint64_t count, const Tables &tables,
                      uint64_t *static_bytes, uint64_t *dynamic_bytes) {
    using K = Kind<DTYPE>;
    const uint4 a = header[0], b = header[1], c = header[2];
    uint32_t rest = c.y | c.z | c.w | c.x >> 16;
    for (uint32_t i = 3; i < 8; i++)
        rest |= header[i].x | header[i].y | header[i].z | header[i].w;
    const uint64_t raw = (count * K::bytes + ZFMT_BODY_ALIGN - 1) / ZFMT_BODY_ALIGN * ZFMT_BODY_ALIGN;
    const uint64_t most = (tables.bodies + raw + ZFMT_ALIGN - 1) / ZFMT_ALIGN * ZFMT_ALIGN;
    constexpr uint32_t grown = K::budget(code_planes<CODEC>()) * ZFMT_GROUP_BLOCKS + LAYOUT_ROUNDING;
    const uint64_t more = tables.groups * ((grown + ZFMT_ALIGN - 1) / ZFMT_ALIGN * ZFMT_ALIGN);
    *static_bytes = b.x | uint64_t{b.y} << 32;
    *dynamic_bytes = b.z | uint64_t{b.w} << 32;
    return a.x == ZFMT_MAGIC && a.y == (ZFMT_VERSION | CODEC << 16 | DTYPE << 24) &&
           (a.z | uint64_t{a.w} << 32) == count && rest == 0 && (CODEC == zipcclCodecTop7 ? c.x >> 8 <= 1 : c.x == 0) &&
           *static_bytes >= tables.bodies && *static_bytes <= most && *dynamic_bytes <= more &&
           *static_bytes % ZFMT_ALIGN == 0 && *dynamic_bytes % ZFMT_ALIGN == 0 && *static_bytes <= s.static_room &&
           *dynamic_bytes <= s.dynamic_room;
}

/* Bytes of a group's dynamic part. */
template <int CODEC> GPU_FN uint32_t dynamic_bytes_of(const Counts &c) {
    return CODEC == zipcclCodecTier && c.n1 ? Dynamic(c.n1, c.n2, c.n3, c.n4).size
           : CODEC == zipcclCodecTier       ? 0
                                            : align_up(c.n1, ZFMT_ALIGN);
}

/* Checks everything that can be checked before bodies are read. All threads get the same answer, thread 0 writes the
 * group. */
template <int DTYPE, int CODEC>
GPU_FN bool check_group(const Tile &tile, const zipccl_cuda_segment &s, uint64_t count, DecodeShared &sh, Group *g) {
    using K = Kind<DTYPE>;
    const uint32_t t = threadIdx.x, lane = t & 31;
    const Tables tables = tables_of(count);
    uint64_t static_bytes, dynamic_bytes;
    if (reinterpret_cast<uintptr_t>(s.values) % 16 != 0 || reinterpret_cast<uintptr_t>(s.static_part) % 128 != 0 ||
        reinterpret_cast<uintptr_t>(s.dynamic_part) % 128 != 0 || s.static_room < tables.bodies)
        return false;
    const uint8_t *const parts = static_cast<const uint8_t *>(s.static_part);
    const uint8_t *const entry = parts + tables.table + uint64_t{tile.group} * sizeof(zfmt_group);
    if (t >= 64 && t < 72)
        sh.header[t - 64] = gpu_ld16(parts + 16 * (t - 64));
    else if (t >= 96 && t < 98)
        sh.entry[t - 96] = tile.group + t - 96 < tables.groups ? gpu_ld16(entry + 16 * (t - 96)) : zero16();
    bool ok = true;
    if (t < kGroupBlocks) {
        uint32_t head = 0, units = 0;
        if (t < tile.blocks) {
            const bool whole = t < tile.full;
            head =
                gpu_ld(reinterpret_cast<const uint16_t *>(parts + sizeof(zfmt_header)) + uint64_t{tile.group} * 64 + t);
            const uint32_t mode = head & 255, base = head >> 8;
            if (CODEC == zipcclCodecTier)
                ok = mode == ZFMT_TIER || mode == ZFMT_TIER_ZERO
                         ? whole
                         : base == 0 && (mode == ZFMT_ZERO || mode == ZFMT_RAW || (mode == ZFMT_CONST && whole));
            else
                ok = base == 0 && (mode == ZFMT_RAW || (mode == ZFMT_TOP7 && whole));
            units = mode == ZFMT_ZERO    ? 0
                    : mode == ZFMT_CONST ? 1
                    : mode == ZFMT_RAW   ? (whole ? K::raw : tile.rest * K::bytes + 63) / 64
                                         : K::coded(code_planes<CODEC>()) / 64;
        }
        sh.head[t] = head;
        sh.units[t] = units;
        sh.escapes[t] = 0;
    }
    if (!__syncthreads_and(ok) || !header_ok<DTYPE, CODEC>(sh.header, s, count, tables, &static_bytes, &dynamic_bytes))
        return false;
    if (t == 0)
        g->window = sh.header[2].x;
    if (tables.groups == 0)
        return static_bytes == tables.bodies && dynamic_bytes == 0;
    if (t < 32) {
        const uint32_t sum = scan_blocks(sh.units, sh.offset, lane);
        if (lane == 0)
            sh.box[2] = sum;
    }
    __syncthreads();
    const uint32_t sum = sh.box[2];
    const uint4 own = sh.entry[0], next = sh.entry[1];
    const Counts c(own);
    if (c.n1 > tile.values || c.n2 > c.n1 || c.n3 > c.n2 || c.n4 > c.n3 || (CODEC == zipcclCodecTop7 && (c.n2 | own.w)))
        return false;
    if (tile.group == 0 && (own.x | own.y))
        return false;
    const uint32_t size = dynamic_bytes_of<CODEC>(c);
    const uint64_t body_end = tables.bodies + (uint64_t{own.x} + sum) * ZFMT_BODY_ALIGN;
    const uint64_t dynamic_end = uint64_t{own.y} * ZFMT_ALIGN + size;
    if (body_end > static_bytes || dynamic_end > dynamic_bytes)
        return false;
    if (tile.group + 1 < tables.groups) {
        ok = next.x == own.x + sum && next.y == own.y + size / ZFMT_ALIGN;
    } else {
        ok = (body_end + ZFMT_ALIGN - 1) / ZFMT_ALIGN * ZFMT_ALIGN == static_bytes && dynamic_end == dynamic_bytes;
    }
    if (t == 0) {
        g->bodies = parts + tables.bodies + uint64_t{own.x} * ZFMT_BODY_ALIGN;
        g->dynamic = static_cast<const uint8_t *>(s.dynamic_part) + uint64_t{own.y} * ZFMT_ALIGN;
    }
    return ok;
}

/* Undoes tier 2, 3 or 4: n values to `out`, escapes from `in`. Returns the count of escapes met. A call, not inlined:
 * beside the 64 sums of decode + accumulate its registers would spill. */
template <uint32_t TIER>
GPU_COLD uint32_t undo_tier(const uint8_t *planes, uint32_t n, const uint8_t *in, uint8_t *out, DecodeShared &sh) {
    /* Codes 0, 1, 2: 255 3 4 (tier 2), 254 5 6 (tier 3), 253 7 8 (tier 4). */
    constexpr uint32_t v0 = 257 - TIER, v1 = v0 ^ (2 * TIER - 1), v2 = v0 ^ (2 * TIER);
    const uint16_t *const plane0 = reinterpret_cast<const uint16_t *>(planes);
    const uint16_t *const plane1 = plane0 + plane_bytes(n) / 2;
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    uint32_t met = 0;
    for (uint32_t first = 0; first < n; first += kThreads * 16) {
        const uint32_t at = first + threadIdx.x * 16;
        const bool busy = first + warp * kPage < n; /* the whole warp */
        uint32_t p0 = 0, p1 = 0, mask = 0, before = 0, sum = 0;
        if (busy) {
            const uint32_t valid = valid16(at, n);
            if (valid) {
                p0 = gpu_ld(plane0 + at / 16) & valid;
                p1 = gpu_ld(plane1 + at / 16) & valid;
            }
            mask = p0 & p1;
            const uint32_t own = static_cast<uint32_t>(__popc(mask));
            sum = scan_warp(own, lane);
            before = sum - own;
        }
        if (lane == 31)
            sh.counts[warp] = sum;
        __syncthreads();
        if (busy) {
            uint32_t from = met + before, w[4];
            from += before_warp(sh.counts, warp, lane, &met);
            GPU_UNROLL
            for (uint32_t i = 0; i < 4; i++)
                w[i] = repeat(v0) ^ spread(p0, i) * v1 ^ spread(p1, i) * v2;
            if (mask)
                get_escapes(w, mask, in, from, sh.select);
            if (at < n)
                *reinterpret_cast<uint4 *>(out + at) = make_uint4(w[0], w[1], w[2], w[3]);
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) { /* whose warp was busy in each round */
        sh.box[2 + TIER] = met;
        if (n <= ZFMT_GROUP - 16) /* for get_escapes; n = 32,768 does not end inside a word */
            *reinterpret_cast<uint4 *>(out + align_up(n, 16)) = zero16();
    }
    __syncthreads();
    return sh.box[2 + TIER];
}

/* Code planes to shared memory and their escapes counted; then the escapes themselves to page kOne. */
template <int DTYPE, int CODEC>
GPU_FN bool get_group_escapes(const Tile &tile, const Group &g, uint8_t *big, DecodeShared &sh) {
    constexpr uint32_t planes = code_planes<CODEC>();
    const uint32_t t = threadIdx.x, lane = t & 31, warp = t / 32;
    uint8_t *const one = big + kOne, *const two = big + kTwo, *const codes = big + kCodes;
    GPU_ROLL
    for (uint32_t block = warp; block < tile.full; block += kWarps) {
        const uint32_t mode = sh.head[block] & 255;
        if (mode != ZFMT_TIER && mode != ZFMT_TIER_ZERO && mode != ZFMT_TOP7)
            continue;
        uint8_t *const at = codes + block * planes * ZFMT_PLANE;
        if (lane < 4 * planes)
            *reinterpret_cast<uint4 *>(at + 16 * lane) =
                gpu_ld16(g.bodies + uint64_t{sh.offset[block]} * ZFMT_BODY_ALIGN + 16 * lane);
        __syncwarp();
        const uint16_t *const half = reinterpret_cast<const uint16_t *>(at) + lane;
        const uint32_t mask =
            CODEC == zipcclCodecTier ? half[0] & half[32] : ~(half[0] | half[32] | half[(planes - 1) * 32]) & 0xffff;
        const uint32_t n = __reduce_add_sync(kAll, static_cast<uint32_t>(__popc(mask)));
        if (lane == 0)
            sh.escapes[block] = n;
    }
    __syncthreads();
    if (warp == 0) {
        const uint32_t n = scan_blocks(sh.escapes, sh.place, lane);
        if (lane == 0)
            sh.box[3] = n;
    }
    __syncthreads();
    const Counts c(sh.entry[0]);
    if (sh.box[3] != c.n1)
        return false;
    if (c.n1 == 0)
        return true;
    const Dynamic l(c.n1, c.n2, c.n3, c.n4);
    const uint32_t raw = CODEC == zipcclCodecTier ? c.n4 : c.n1;
    const uint8_t *const from = g.dynamic + (CODEC == zipcclCodecTier ? l.raw : 0);
    const bool fourth = CODEC == zipcclCodecTier && c.n4 != c.n3;
    uint8_t *const to = fourth ? two : one;
    /* A unit of zeros behind them, for get_escapes; but the code planes lie behind page two, and stay. */
    const uint32_t end = fourth ? min(raw + 16, ZFMT_GROUP) : raw + 16;
    for (uint32_t at = 16 * t; at < end; at += 16 * kThreads)
        *reinterpret_cast<uint4 *>(to + at) = at < raw ? gpu_ld16(from + at) : zero16();
    __syncthreads();
    if (CODEC == zipcclCodecTop7)
        return true;
    return (!fourth || undo_tier<4>(g.dynamic + l.tier4, c.n3, two, one, sh) == c.n4) &&
           undo_tier<3>(g.dynamic + l.tier3, c.n2, one, two, sh) == c.n3 &&
           undo_tier<2>(g.dynamic, c.n1, two, one, sh) == c.n2;
}

/* The 16 values of a lane of a full block. RAW: the block may be raw. */
template <int DTYPE, int CODEC, bool RAW>
GPU_FN void decode_lane(uint32_t block, const Group &g, const uint8_t *big, const DecodeShared &sh, uint8_t *stage,
                        uint32_t lane, uint32_t w[Kind<DTYPE>::words]) {
    using K = Kind<DTYPE>;
    constexpr uint32_t planes = code_planes<CODEC>();
    const uint32_t head = sh.head[block], mode = head & 255;
    const uint8_t *const body = g.bodies + uint64_t{sh.offset[block]} * ZFMT_BODY_ALIGN;
    if (RAW && mode == ZFMT_RAW) {
        GPU_UNROLL
        for (uint32_t j = 0; j < K::bytes; j++)
            *reinterpret_cast<uint4 *>(stage + 16 * swizzle(32 * j + lane)) = gpu_ld16(body + 16 * (32 * j + lane));
        __syncwarp();
        GPU_UNROLL
        for (uint32_t j = 0; j < K::bytes; j++) {
            const uint4 v = *reinterpret_cast<const uint4 *>(stage + 16 * swizzle(lane * K::bytes + j));
            w[4 * j] = v.x, w[4 * j + 1] = v.y, w[4 * j + 2] = v.z, w[4 * j + 3] = v.w;
        }
        __syncwarp();
        return;
    }
    if (mode == ZFMT_ZERO || mode == ZFMT_CONST) {
        uint32_t value = mode == ZFMT_CONST ? gpu_ld(reinterpret_cast<const uint32_t *>(body)) : 0;
        value = K::bytes == 4 ? value : K::bytes == 2 ? (value & 0xffff) * 0x00010001u : repeat(value & 255);
        GPU_UNROLL
        for (uint32_t i = 0; i < K::words; i++)
            w[i] = value;
        return;
    }
    Values<DTYPE> v;
    const uint8_t *const remainder = body + planes * ZFMT_PLANE;
    const auto get_bytes = [&] {
        GPU_UNROLL
        for (uint32_t p = 0; p < K::byte_planes; p++) {
            const uint4 x = gpu_ld16(remainder + p * ZFMT_BLOCK + 16 * lane);
            v.b[p][0] = x.x, v.b[p][1] = x.y, v.b[p][2] = x.z, v.b[p][3] = x.w;
        }
    };
    uint32_t bits[K::bit_planes ? K::bit_planes : 1];
    const auto get_bits = [&] {
        GPU_UNROLL
        for (uint32_t p = 0; p < K::bit_planes; p++)
            bits[p] = gpu_ld(
                reinterpret_cast<const uint16_t *>(remainder + K::byte_planes * ZFMT_BLOCK + p * ZFMT_PLANE) + lane);
    };
    constexpr bool late = RAW && K::bytes != 2; /* beside 64 sums there are no registers to load these early */
    if (!late) {
        get_bytes();
        get_bits();
    }
    const uint16_t *const half = reinterpret_cast<const uint16_t *>(big + kCodes + block * planes * ZFMT_PLANE) + lane;
    const uint32_t p0 = half[0], p1 = half[32], p2 = planes == 3 ? half[(planes - 1) * 32] : 0;
    const uint32_t mask = CODEC == zipcclCodecTier ? p0 & p1 : ~(p0 | p1 | p2) & 0xffff;
    const uint32_t n = static_cast<uint32_t>(__popc(mask)), before = scan_warp(n, lane) - n;
    const uint32_t escapes = sh.place[block] + before;
    const bool zero = CODEC == zipcclCodecTier ? mode == ZFMT_TIER_ZERO : g.window >> 8 & 1;
    const uint32_t base = CODEC == zipcclCodecTier ? head >> 8 : g.window & 255;
    const uint32_t top = repeat((base + zero + (CODEC == zipcclCodecTop7)) & 255), other = repeat((base + 1) & 255);
    GPU_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        v.e[i] = spread(p0, i) + 2 * spread(p1, i);
        if (CODEC == zipcclCodecTop7)
            v.e[i] += 4 * spread(p2, i);
    }
    if (CODEC == zipcclCodecTier && mask)
        get_escapes(v.e, mask, big + kOne, escapes, sh.select);
    if (late)
        get_bits();
    GPU_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        v.e[i] = sub_bytes(top, v.e[i]);
        if (zero)
            v.e[i] = swap_bytes(v.e[i], other);
        v.high[i] = 0;
        GPU_UNROLL
        for (uint32_t p = 0; p < K::bit_planes; p++)
            v.high[i] |= spread(bits[p], i) << p;
    }
    if (CODEC == zipcclCodecTop7 && mask)
        get_escapes(v.e, mask, big + kOne, escapes, sh.select);
    if (late)
        get_bytes();
    v.join(w);
}

/* The 16 words-per-byte values of each lane to memory, in units that lie side by side. */
template <uint32_t UNITS>
GPU_FN void put_lane(uint8_t *dst, uint8_t *stage, uint32_t lane, const uint32_t w[4 * UNITS]) {
    GPU_UNROLL
    for (uint32_t j = 0; j < UNITS; j++)
        *reinterpret_cast<uint4 *>(stage + 16 * swizzle(lane * UNITS + j)) =
            make_uint4(w[4 * j], w[4 * j + 1], w[4 * j + 2], w[4 * j + 3]);
    __syncwarp();
    GPU_UNROLL
    for (uint32_t j = 0; j < UNITS; j++)
        gpu_st16(dst + 16 * (32 * j + lane), *reinterpret_cast<const uint4 *>(stage + 16 * swizzle(32 * j + lane)));
    __syncwarp();
}

/* A short block, raw or zero. */
GPU_FN void put_short(uint8_t *dst, const uint8_t *body, bool raw, uint32_t bytes, uint32_t lane) {
    for (uint32_t at = 16 * lane; at < bytes; at += kPage) {
        const uint4 v = raw ? gpu_ld16(body + at) : zero16();
        if (at + 16 <= bytes) {
            gpu_st16(dst + at, v);
        } else {
            const uint32_t w[4] = {v.x, v.y, v.z, v.w};
            GPU_UNROLL
            for (uint32_t i = 0; i < 16; i++)
                if (at + i < bytes)
                    gpu_st(dst + at + i, static_cast<uint8_t>(w[i / 4] >> (8 * (i % 4))));
        }
    }
}

/* What a tile needs for long is kept in shared memory, so that values have the registers. */
struct TileShared {
    DecodeShared decode;
    Tile tile;
    Group group;
    zipccl_cuda_segment segment;
    uint8_t *dst;
    uint64_t count;
};

/* Draws the next tile to shared memory. */
GPU_FN bool draw_input(const Work &work, const zipccl_cuda_segment *table, uint32_t inputs, TileShared &sh) {
    Tile tile;
    if (!draw_tile(work, table, inputs, sh.decode.box, &tile))
        return false;
    if (threadIdx.x == 0) {
        const zipccl_cuda_segment *const rows = table + uint64_t{tile.segment} * inputs;
        sh.tile = tile;
        sh.dst = static_cast<uint8_t *>(gpu_ld(&rows->values));
        sh.count = gpu_ld(&rows->count);
    }
    __syncthreads();
    return true;
}

/* The checks and escapes of the chunk that is sh.segment, in the tile in hand. */
template <int DTYPE, int CODEC> GPU_FN bool take_segment(uint8_t *big, TileShared &sh) {
    __syncthreads();
    bool ok = check_group<DTYPE, CODEC>(sh.tile, sh.segment, sh.count, sh.decode, &sh.group);
    __syncthreads();
    ok = ok && (sh.tile.blocks == 0 || get_group_escapes<DTYPE, CODEC>(sh.tile, sh.group, big, sh.decode));
    __syncthreads();
    return ok;
}

/* Input k of the tile in hand. */
template <int DTYPE, int CODEC>
GPU_FN bool take_input(const zipccl_cuda_segment *table, uint32_t inputs, uint32_t k, uint8_t *big, TileShared &sh) {
    if (threadIdx.x == 0) {
        sh.segment = table[uint64_t{sh.tile.segment} * inputs + k];
        sh.segment.values = sh.dst;
    }
    return take_segment<DTYPE, CODEC>(big, sh);
}

template <int DTYPE, int CODEC>
GPU_FN void decode(const Work &work, const zipccl_cuda_segment *table, zipccl_cuda_result *results, uint8_t *big,
                   TileShared &sh) {
    using K = Kind<DTYPE>;
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    uint8_t *const stage = big + kTwo + warp * K::raw;
    fill_select(sh.decode.select);
    while (draw_input(work, table, 1, sh)) {
        if (!take_input<DTYPE, CODEC>(table, 1, 0, big, sh)) {
            if (threadIdx.x == 0)
                atomicOr(&results[sh.tile.segment].status, static_cast<uint32_t>(ZIPCCL_CUDA_CORRUPT));
            continue;
        }
        uint8_t *const dst = sh.dst + uint64_t{sh.tile.group} * ZFMT_GROUP * K::bytes;
        GPU_ROLL
        for (uint32_t block = warp; block < sh.tile.full; block += kWarps) {
            if ((sh.decode.head[block] & 255) == ZFMT_RAW) {
                const uint8_t *const body = sh.group.bodies + uint64_t{sh.decode.offset[block]} * ZFMT_BODY_ALIGN;
                GPU_UNROLL
                for (uint32_t j = 0; j < K::bytes; j++)
                    gpu_st16(dst + block * K::raw + 16 * (32 * j + lane), gpu_ld16(body + 16 * (32 * j + lane)));
                continue;
            }
            uint32_t w[K::words];
            decode_lane<DTYPE, CODEC, false>(block, sh.group, big, sh.decode, stage, lane, w);
            put_lane<K::bytes>(dst + block * K::raw, stage, lane, w);
        }
        const uint32_t full = sh.tile.full;
        if (sh.tile.rest && warp == full % kWarps)
            put_short(dst + full * K::raw, sh.group.bodies + uint64_t{sh.decode.offset[full]} * ZFMT_BODY_ALIGN,
                      (sh.decode.head[full] & 255) == ZFMT_RAW, sh.tile.rest * K::bytes, lane);
    }
}

} // namespace zip

#endif

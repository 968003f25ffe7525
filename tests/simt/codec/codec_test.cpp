/* SPDX-License-Identifier: Apache-2.0
 *
 * The GPU codec's kernels on a CPU against the CPU codec, byte for byte. codec_test CASE [dtype]: a case is a batch of
 * segments (equal), corrupt input (hostile), sums (add), or the count of bytes moved (trace).
 */
#include "run.h"

#include "inputs.h"

extern "C" {
#include "kernels/dtype.h"
#include "kernels/layout.h"
}

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace {

constexpr double ENCODE_LIMIT = 38, DECODE_LIMIT = 28.5; /* instructions a value, test_count */
int g_failures;
const zipcclDataType_t g_floats[] = {zipcclBfloat16, zipcclFloat16, zipcclFloat32, zipcclFloat8e4m3, zipcclFloat8e5m2};
#define EXPECT(c, ...)                                                                                                 \
    do {                                                                                                               \
        if (!(c)) {                                                                                                    \
            printf("%s:%d: %s: ", __FILE__, __LINE__, #c);                                                             \
            printf(__VA_ARGS__);                                                                                       \
            printf("\n");                                                                                              \
            g_failures++;                                                                                              \
        }                                                                                                              \
    } while (0)

std::vector<zipcclCodec_t> codecs_of(zipcclDataType_t dtype) {
    std::vector<zipcclCodec_t> v;
    for (zipcclCodec_t codec : {zipcclCodecTier, zipcclCodecTop7})
        if (have(codec, dtype))
            v.push_back(codec);
    return v;
}

/* Device memory: 128-byte aligned, of its exact size, so that the address sanitizer sees what goes past it. */
struct Memory {
    uint8_t *p;
    size_t bytes;
    explicit Memory(size_t n, int fill = 0xee)
        : p(static_cast<uint8_t *>(aligned_alloc(128, (n + 127) / 128 * 128 + 128))), bytes(n) {
        memset(p, fill, (n + 127) / 128 * 128 + 128);
    }
    ~Memory() {
        free(p);
    }
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;
};

struct Segment {
    std::unique_ptr<Memory> values, parts, dynamic, want_parts, want_dynamic;
    size_t count;
    codec_sizes sizes;
    std::string name;
};

struct Set {
    zipcclCodec_t codec;
    zipcclDataType_t dtype;
    std::vector<Segment> segments;

    void add(const std::string &name, size_t count, const void *values) {
        Segment s;
        const size_t bytes = count * dtype_get(dtype)->bytes;
        const codec_sizes bound = codec_bound(codec, dtype, count);
        s.values = std::make_unique<Memory>(bytes);
        if (bytes)
            memcpy(s.values->p, values, bytes);
        s.count = count;
        s.name = name;
        s.parts = std::make_unique<Memory>(bound.static_bytes);
        s.dynamic = std::make_unique<Memory>(bound.dynamic_bytes);
        s.want_parts = std::make_unique<Memory>(bound.static_bytes);
        s.want_dynamic = std::make_unique<Memory>(bound.dynamic_bytes);
        if (codec_encode(codec, dtype, s.values->p, count, s.want_parts->p, s.want_dynamic->p, 0, &s.sizes) !=
            zipcclSuccess)
            abort();
        segments.push_back(std::move(s));
    }
    void add_kind(unsigned in, size_t count, uint64_t seed) {
        std::vector<uint8_t> v(count * dtype_get(dtype)->bytes + 8);
        inputs_fill(v.data(), dtype, count, in, seed);
        add("input " + std::to_string(in) + " count " + std::to_string(count), count, v.data());
    }
    /* Exponents about centre(i, a random number). */
    template <class F> void add_exponents(const std::string &name, size_t count, uint64_t seed, F centre) {
        const size_t bytes = dtype_get(dtype)->bytes;
        std::vector<uint8_t> v(count * bytes);
        for (size_t i = 0; i < count; i++) {
            const unsigned about = static_cast<unsigned>(centre(i, inputs_random(&seed)));
            const uint64_t x = inputs_near(dtype, 1, about, &seed);
            memcpy(v.data() + i * bytes, &x, bytes);
        }
        add(name, count, v.data());
    }
    /* Escapes of every tier, and about as many as pay. */
    void add_wide(size_t count) {
        add_exponents("wide", count, 64, [](size_t, uint64_t random) { return 100 + random % 14; });
    }
    /* A piece of a real tensor, from value `at` on. */
    void add_file(const char *file, size_t at, size_t count) {
        const size_t bytes = dtype_get(dtype)->bytes;
        std::vector<uint8_t> v(count * bytes);
        const std::string path = std::string(ZIPCCL_TEST_DATA "/tensors/") + file;
        FILE *f = fopen(path.c_str(), "rb");
        if (!f || fseek(f, static_cast<long>(at * bytes), SEEK_SET) != 0)
            abort();
        const size_t n = fread(v.data(), bytes, count, f);
        fclose(f);
        add(file, n, v.data());
    }
    Batch batch(bool encoded_by_cpu) const {
        Batch b;
        for (const Segment &s : segments) {
            Memory &parts = encoded_by_cpu ? *s.want_parts : *s.parts,
                   &dynamic = encoded_by_cpu ? *s.want_dynamic : *s.dynamic;
            b.table.push_back({s.values->p, parts.p, dynamic.p, s.count, parts.bytes, dynamic.bytes});
            b.total_values += s.count;
        }
        return b;
    }
};

void check_encode(Set &set, bool reread, unsigned schedule, unsigned grid) {
    simt::set_schedule(schedule);
    Batch b = set.batch(false);
    b.grid = grid;
    for (Segment &s : set.segments) {
        memset(s.parts->p, 0xaa, s.parts->bytes);
        memset(s.dynamic->p, 0xaa, s.dynamic->bytes);
    }
    run_encode(set.codec, set.dtype, reread, b);
    for (size_t i = 0; i < set.segments.size(); i++) {
        const Segment &s = set.segments[i];
        const zipccl_cuda_result &r = b.results[i];
        EXPECT(r.status == 0, "%s: status %u", s.name.c_str(), r.status);
        EXPECT(r.static_bytes == s.sizes.static_bytes && r.dynamic_bytes == s.sizes.dynamic_bytes,
               "%s: %llu + %llu bytes, want %zu + %zu", s.name.c_str(), static_cast<unsigned long long>(r.static_bytes),
               static_cast<unsigned long long>(r.dynamic_bytes), s.sizes.static_bytes, s.sizes.dynamic_bytes);
        for (size_t k = 0; k < s.sizes.static_bytes; k++)
            if (s.parts->p[k] != s.want_parts->p[k]) {
                EXPECT(false, "%s schedule %u: static byte %zu is %02x, want %02x", s.name.c_str(), schedule, k,
                       s.parts->p[k], s.want_parts->p[k]);
                break;
            }
        for (size_t k = 0; k < s.sizes.dynamic_bytes; k++)
            if (s.dynamic->p[k] != s.want_dynamic->p[k]) {
                EXPECT(false, "%s schedule %u: dynamic byte %zu is %02x, want %02x", s.name.c_str(), schedule, k,
                       s.dynamic->p[k], s.want_dynamic->p[k]);
                break;
            }
    }
}

void check_decode(Set &set, unsigned schedule, unsigned grid) {
    simt::set_schedule(schedule);
    Batch b = set.batch(true);
    b.grid = grid;
    std::vector<std::unique_ptr<Memory>> out;
    for (size_t i = 0; i < set.segments.size(); i++) {
        out.push_back(std::make_unique<Memory>(set.segments[i].values->bytes, 0x55));
        b.table[i].values = out[i]->p;
        b.table[i].static_room = set.segments[i].sizes.static_bytes;
        b.table[i].dynamic_room = set.segments[i].sizes.dynamic_bytes;
    }
    run_decode(set.codec, set.dtype, b);
    for (size_t i = 0; i < set.segments.size(); i++) {
        const Segment &s = set.segments[i];
        EXPECT(b.results[i].status == 0, "%s: status %u", s.name.c_str(), b.results[i].status);
        EXPECT(memcmp(out[i]->p, s.values->p, s.values->bytes) == 0, "%s schedule %u: decoded values", s.name.c_str(),
               schedule);
        EXPECT(out[i]->p[s.values->bytes] == 0x55, "%s: wrote past the end", s.name.c_str());
    }
}

Set make_set(zipcclCodec_t codec, zipcclDataType_t dtype, bool tiny) {
    Set set{codec, dtype, {}};
    set.add("empty", 0, nullptr);
    for (int in = 0; in < NUM_INPUTS; in++)
        set.add_kind(static_cast<unsigned>(in), tiny ? 1536 + 7 : 34816 + static_cast<size_t>(in) * 513,
                     7 + static_cast<uint64_t>(in));
    for (size_t n : {1, 15, 511, 512, 513, 2048})
        set.add_kind(IN_NARROW, n, n);
    set.add_kind(IN_ZERO, 100, 1);
    set.add_wide(1543);
    if (tiny)
        return set;
    set.add_kind(IN_ALTERNATING, 2 * 32768, 640);
    set.add_kind(IN_MANY_ZEROS, 3 * 32768 + 1000, 3);
    set.add_kind(IN_RANDOM, 40 * 512, 4);
    if (dtype == zipcclBfloat16)
        for (const char *f :
             {"grad_expert_s0160.bf16", "grad_emb_s0160.bf16", "weight_qkv_s0160.bf16", "moe_dispatch_s0160.bf16"})
            set.add_file(f, 4096, 40000);
    if (dtype == zipcclFloat32)
        set.add_file("grad_o_s0160.f32", 4096, 34000);
    /* One exponent after another: every escape of every tier, and windows at the ends of the range. */
    set.add_exponents("every exponent", 49152, 99,
                      [](size_t i, uint64_t random) { return i / 1024 * 6 + random % (i / 8192 * 3 + 1); });
    return set;
}

void test_equal(zipcclDataType_t dtype, bool tiny) {
    for (zipcclCodec_t codec : codecs_of(dtype)) {
        Set set = make_set(codec, dtype, tiny);
        for (unsigned schedule = 0; schedule < (tiny ? 1u : 3u); schedule++) {
            check_encode(set, false, schedule, 1 + schedule);
            check_decode(set, schedule, 1 + schedule);
        }
        if (dtype == zipcclFloat32 && have_reread())
            check_encode(set, true, 0, 2);
    }
}

/* A dynamic region that is too small: the flag, true sizes, nothing past the end. */
void test_overflow() {
    Set set{zipcclCodecTier, zipcclBfloat16, {}};
    set.add_kind(IN_NARROW, 3 * 32768, 5);
    Batch b = set.batch(false);
    Segment &s = set.segments[0];
    b.table[0].dynamic_room = s.sizes.dynamic_bytes - 128;
    memset(s.dynamic->p, 0xaa, s.dynamic->bytes);
    run_encode(set.codec, set.dtype, false, b);
    EXPECT(b.results[0].status == ZIPCCL_CUDA_OVERFLOW, "status %u", b.results[0].status);
    EXPECT(b.results[0].dynamic_bytes == s.sizes.dynamic_bytes, "bytes");
    EXPECT(s.dynamic->p[s.sizes.dynamic_bytes - 128] == 0xaa, "wrote past the room");
    EXPECT(memcmp(s.parts->p, s.want_parts->p, s.sizes.static_bytes) == 0, "static part");
    b.table[0].static_room = s.sizes.static_bytes / 2;
    run_encode(set.codec, set.dtype, false, b);
    EXPECT(b.results[0].status == ZIPCCL_CUDA_INVALID, "status %u", b.results[0].status);
}

/* Corrupted chunks: the GPU's answer is the CPU's. */
void test_hostile(zipcclDataType_t dtype) {
    uint64_t seed = 12345;
    unsigned refused = 0, runs = 0;
    for (zipcclCodec_t codec : codecs_of(dtype)) {
        Set set{codec, dtype, {}};
        set.add_kind(IN_NARROW, 32768 + 600, 5);
        set.add_kind(IN_MANY_ZEROS, 2000, 6);
        set.add_kind(IN_RANDOM, 33000, 7);
        set.add_wide(2048);
        for (unsigned round = 0; round < 30; round++) {
            Batch b = set.batch(true);
            std::vector<std::unique_ptr<Memory>> keep;
            std::vector<zipcclResult_t> want;
            std::vector<std::vector<uint8_t>> values;
            for (size_t i = 0; i < set.segments.size(); i++) {
                const Segment &s = set.segments[i];
                auto parts = std::make_unique<Memory>(s.sizes.static_bytes),
                     dynamic = std::make_unique<Memory>(s.sizes.dynamic_bytes);
                memcpy(parts->p, s.want_parts->p, s.sizes.static_bytes);
                memcpy(dynamic->p, s.want_dynamic->p, s.sizes.dynamic_bytes);
                const uint64_t how = inputs_random(&seed);
                const size_t tables = 128 + (s.count / 512 + 1) * 2 + 128 + 64;
                size_t where = inputs_random(&seed) % (how % 3 == 0   ? 48
                                                       : how % 3 == 1 ? tables
                                                                      : s.sizes.static_bytes);
                if (where >= s.sizes.static_bytes)
                    where = 0;
                if (how % 7 == 6 && s.sizes.dynamic_bytes)
                    dynamic->p[inputs_random(&seed) % s.sizes.dynamic_bytes] ^= static_cast<uint8_t>(1u << how % 8);
                else
                    parts->p[where] =
                        how % 2 ? static_cast<uint8_t>(inputs_random(&seed)) : parts->p[where] ^ 1u << (how >> 8) % 8;
                values.emplace_back(s.values->bytes);
                want.push_back(codec_decode(codec, dtype, parts->p, s.sizes.static_bytes, dynamic->p,
                                            s.sizes.dynamic_bytes, values[i].data(), s.count, 0));
                keep.push_back(std::make_unique<Memory>(s.values->bytes, 0x55));
                b.table[i] = {keep.back()->p,       parts->p, dynamic->p, s.count, s.sizes.static_bytes,
                              s.sizes.dynamic_bytes};
                keep.push_back(std::move(parts));
                keep.push_back(std::move(dynamic));
            }
            run_decode(codec, dtype, b);
            for (size_t i = 0; i < set.segments.size(); i++) {
                runs++;
                refused += want[i] != zipcclSuccess;
                EXPECT((b.results[i].status == 0) == (want[i] == zipcclSuccess),
                       "round %u segment %zu: status %u, CPU %d", round, i, b.results[i].status, want[i]);
                if (want[i] == zipcclSuccess)
                    EXPECT(memcmp(keep[3 * i]->p, values[i].data(), values[i].size()) == 0,
                           "round %u segment %zu: values", round, i);
            }
        }
    }
    EXPECT(runs == 0 || (refused > 0 && refused < runs), "%u of %u refused", refused, runs);
}

/* A group of which every value is an escape of every tier; with a fourth tier all but the last one. No encoder makes
 * it, all decoders take it: the chunk's other groups have nothing, so that its dynamic part is not too long. */
void test_all_escape(bool fourth) {
    constexpr zipcclDataType_t dtype = zipcclBfloat16;
    constexpr size_t tier_bytes = 2 * ZFMT_GROUP / 8;
    const size_t dynamic_bytes = (fourth ? 3 : 2) * tier_bytes + ZFMT_GROUP;
    if (!have(zipcclCodecTier, dtype))
        return;
    size_t count = ZFMT_GROUP;
    while (codec_bound(zipcclCodecTier, dtype, count).dynamic_bytes < dynamic_bytes)
        count += ZFMT_GROUP;
    const layout_tables t = layout_tables_of(count);
    const size_t body = layout_body(KIND_BF16, ZFMT_TIER), bodies = ZFMT_GROUP_BLOCKS * body;
    Memory parts(t.bodies + bodies, 0), dynamic(dynamic_bytes, 0xff), values(2 * count, 0x55);
    zfmt_header head = {};
    head.magic = ZFMT_MAGIC;
    head.version = ZFMT_VERSION;
    head.codec = zipcclCodecTier;
    head.dtype = dtype;
    head.count = count;
    head.static_bytes = parts.bytes;
    head.dynamic_bytes = dynamic.bytes;
    memcpy(parts.p, &head, sizeof(head));
    for (size_t g = 0; g < t.groups; g++) {
        zfmt_group group = {
            static_cast<uint32_t>(bodies / ZFMT_BODY_ALIGN), static_cast<uint32_t>(dynamic_bytes / ZFMT_ALIGN), {0}};
        if (g == 0)
            group = {0, 0, {ZFMT_GROUP, ZFMT_GROUP, ZFMT_GROUP, static_cast<uint16_t>(ZFMT_GROUP - fourth)}};
        memcpy(parts.p + t.table + g * sizeof(group), &group, sizeof(group));
    }
    uint64_t seed = 5;
    for (size_t b = 0; b < ZFMT_GROUP_BLOCKS; b++) {
        parts.p[t.heads + b * sizeof(zfmt_block)] = ZFMT_TIER;
        memset(parts.p + t.bodies + b * body, 0xff, 2 * ZFMT_PLANE);
    }
    for (size_t i = 0; i < ZFMT_GROUP; i++)
        dynamic.p[dynamic_bytes - ZFMT_GROUP + i] = static_cast<uint8_t>(inputs_random(&seed));
    if (fourth)
        dynamic.p[dynamic_bytes - ZFMT_GROUP - 1] = 0x7f; /* tier 4 hits the last one with code 1 */
    std::vector<uint8_t> want(2 * count);
    EXPECT(codec_decode(zipcclCodecTier, dtype, parts.p, parts.bytes, dynamic.p, dynamic.bytes, want.data(), count,
                        0) == zipcclSuccess,
           "the CPU refuses it");
    Batch b;
    b.table.push_back({values.p, parts.p, dynamic.p, count, parts.bytes, dynamic.bytes});
    b.total_values = count;
    run_decode(zipcclCodecTier, dtype, b);
    EXPECT(b.results[0].status == 0, "status %u", b.results[0].status);
    EXPECT(memcmp(values.p, want.data(), want.size()) == 0, "values");
}

/* ---- sums, with a reference in double steps of its own ---- */

double value(zipcclDataType_t t, const uint8_t *p) {
    uint32_t v = 0;
    memcpy(&v, p, dtype_get(t)->bytes);
    const dtype_info *d = dtype_get(t);
    const int bits = 8 * d->bytes, m = bits - 1 - d->exponent_bits, bias = (1 << (d->exponent_bits - 1)) - 1;
    const int e = static_cast<int>(v >> m & ((1u << d->exponent_bits) - 1)), f = static_cast<int>(v & ((1u << m) - 1));
    const double sign = v >> (bits - 1) & 1 ? -1 : 1;
    const int top = (1 << d->exponent_bits) - 1;
    if (t == zipcclFloat8e4m3 ? e == top && f == 7 : e == top)
        return t != zipcclFloat8e4m3 && f == 0 ? sign * INFINITY : NAN;
    return sign * (e ? ldexp(1 + ldexp(f, -m), e - bias) : ldexp(f, 1 - bias - m));
}

/* The nearest of all values of a narrow dtype, ties to an even code; overflow as codec_cuda.h says. */
uint32_t rounded(zipcclDataType_t t, float x) {
    const dtype_info *d = dtype_get(t);
    const int bits = 8 * d->bytes;
    uint32_t low = 0, high = t == zipcclFloat8e4m3   ? 0x7e
                             : t == zipcclFloat8e5m2 ? 0x7b
                             : t == zipcclFloat16    ? 0x7c00
                                                     : 0x7f80;
    const uint32_t most = high, sign = std::signbit(x) ? 1u << (bits - 1) : 0;
    const double a = std::fabs(static_cast<double>(x));
    auto at = [t, d, most](uint32_t c) {
        if (d->bytes == 2 && c == most) /* infinity, as the next step after the greatest value */
            return t == zipcclFloat16 ? 65536.0 : ldexp(1, 128);
        return value(t, reinterpret_cast<const uint8_t *>(&c));
    };
    if (a >= at(high))
        return high | sign;
    while (high - low > 1) {
        const uint32_t mid = (low + high) / 2;
        (at(mid) <= a ? low : high) = mid;
    }
    const double down = a - at(low), up = at(high) - a;
    return (down < up || (down == up && low % 2 == 0) ? low : high) | sign;
}

void test_add(zipcclDataType_t dtype) {
    const size_t bytes = dtype_get(dtype)->bytes;
    for (zipcclCodec_t codec : codecs_of(dtype)) {
        for (unsigned inputs : {1u, 3u}) {
            Set set{codec, dtype, {}};
            for (size_t count : {size_t{33000}, size_t{700}, size_t{0}})
                for (unsigned k = 0; k < inputs; k++)
                    set.add_kind(k == 2 ? IN_SPECIAL : count == 700 ? IN_MANY_ZEROS : IN_NARROW, count, 40 + k);
            for (bool wide : {false, true}) {
                Batch b = set.batch(true);
                b.total_values = 33700;
                std::vector<std::unique_ptr<Memory>> out;
                for (size_t i = 0; i < b.table.size(); i++) {
                    out.push_back(std::make_unique<Memory>(set.segments[i].count * (wide ? 4 : bytes), 0x55));
                    b.table[i].values = out[i]->p;
                }
                run_decode_add(codec, dtype, wide, inputs, b);
                for (size_t s = 0; s < b.results.size(); s++) {
                    EXPECT(b.results[s].status == 0, "segment %zu: status %u", s, b.results[s].status);
                    unsigned wrong = 0;
                    for (size_t i = 0; i < set.segments[s * inputs].count; i++) {
                        float sum = static_cast<float>(value(dtype, set.segments[s * inputs].values->p + i * bytes));
                        for (unsigned k = 1; k < inputs; k++)
                            sum += static_cast<float>(value(dtype, set.segments[s * inputs + k].values->p + i * bytes));
                        const zipcclDataType_t to = wide ? zipcclFloat32 : dtype;
                        uint32_t got = 0, want;
                        memcpy(&got, out[s * inputs]->p + i * dtype_get(to)->bytes, dtype_get(to)->bytes);
                        if (std::isnan(sum)) /* all ones but the sign */
                            want = 0x7fffffffu >> (32 - 8 * dtype_get(to)->bytes);
                        else if (to == zipcclFloat32)
                            memcpy(&want, &sum, 4);
                        else
                            want = rounded(to, sum);
                        wrong += got != want;
                    }
                    EXPECT(wrong == 0, "codec %d, %u inputs, segment %zu, wide %d: %u sums differ", codec, inputs, s,
                           wide, wrong);
                }
            }
            Batch b = set.batch(true);
            b.total_values = 33700;
            Memory broken(b.table[0].static_room, 0), out(4 * 33700);
            for (zipccl_cuda_segment &row : b.table)
                row.values = out.p;
            b.table[inputs - 1].static_part = broken.p;
            run_decode_add(codec, dtype, true, inputs, b);
            EXPECT(b.results[0].status == ZIPCCL_CUDA_CORRUPT && b.results[1].status == 0, "a broken input");
        }
    }
}

/* Bytes moved by encode and decode of two groups, against the ideal; every 16-byte access in full sectors. */
void test_trace(zipcclDataType_t dtype) {
    for (zipcclCodec_t codec : codecs_of(dtype)) {
        Set set{codec, dtype, {}};
        if (dtype == zipcclBfloat16)
            set.add_file("weight_qkv_s0160.bf16", 0, 131072);
        else
            set.add_kind(IN_NARROW, 131072, 3);
        const Segment &s = set.segments[0];
        Batch b = set.batch(false);
        simt::config.trace = true;
        simt::buffer_clear();
        const int values = simt::buffer_add(s.values->p, s.values->bytes, "values");
        const int parts = simt::buffer_add(s.parts->p, s.parts->bytes, "static part");
        const int dynamic = simt::buffer_add(s.dynamic->p, s.dynamic->bytes, "dynamic part");
        simt::trace_reset();
        run_encode(codec, dtype, false, b);
        const double coded = static_cast<double>(s.sizes.static_bytes + s.sizes.dynamic_bytes);
        const double read =
            static_cast<double>(simt::buffer_traffic(values).read) / static_cast<double>(s.values->bytes);
        const double wrote =
            static_cast<double>(simt::buffer_traffic(parts).written + simt::buffer_traffic(dynamic).written) / coded;
        const double again = static_cast<double>(simt::buffer_traffic(parts).read + simt::buffer_traffic(dynamic).read);
        printf("%s %s encode: values read %.4f times, coded bytes written %.4f times\n", codec_name(codec),
               dtype_get(dtype)->name, read, wrote);
        EXPECT(read <= (codec == zipcclCodecTop7 ? 1.04 : 1.0), "read %.4f", read); /* the sample is 2,048 of 131,072 */
        EXPECT(wrote <= 1.0 && again == 0, "wrote %.4f, read back %.0f", wrote, again);
        /* The parts of a group's dynamic part begin at 16 bytes, so a few accesses of decode touch half a sector more.
         */
        auto coalesced = [&](const char *what, double limit) {
            uint64_t moved = 0, touched = 0;
            for (size_t i = 0; i < simt::trace_count(); i++) {
                const simt::Access a = simt::trace_access(i);
                moved += a.size == 16 ? a.moved : 0;
                touched += a.size == 16 ? a.touched : 0;
            }
            EXPECT(static_cast<double>(touched) <= limit * static_cast<double>(moved),
                   "%s: %llu bytes of sectors for %llu", what, static_cast<unsigned long long>(touched),
                   static_cast<unsigned long long>(moved));
            if (g_failures)
                simt::trace_report(stdout);
        };
        coalesced("encode", 1.002);
        simt::trace_reset();
        run_decode(codec, dtype, b);
        const double coded_read =
            static_cast<double>(simt::buffer_traffic(parts).read + simt::buffer_traffic(dynamic).read) / coded;
        const double out =
            static_cast<double>(simt::buffer_traffic(values).written) / static_cast<double>(s.values->bytes);
        printf("%s %s decode: coded bytes read %.4f times, values written %.4f times\n", codec_name(codec),
               dtype_get(dtype)->name, coded_read, out);
        EXPECT(coded_read <= 1.02, "read %.4f", coded_read);
        EXPECT(out == 1.0, "wrote %.4f", out);
        coalesced("decode", 1.01);
        simt::config.trace = false;
    }
}

/* Instructions a value, for kernels/cuda/report.py. The limits hold what has been reached (BF16, tier). */
void test_count(zipcclDataType_t dtype) {
    for (zipcclCodec_t codec : codecs_of(dtype)) {
        Set set{codec, dtype, {}};
        if (dtype == zipcclBfloat16)
            set.add_file("weight_qkv_s0160.bf16", 0, 131072);
        else if (dtype == zipcclFloat32)
            set.add_file("grad_o_s0160.f32", 0, 131072);
        else
            set.add_kind(IN_NARROW, 131072, 3);
        const std::string name = std::string("_") + codec_name(codec) + "_" + dtype_get(dtype)->name;
        const bool limited = dtype == zipcclBfloat16 && codec == zipcclCodecTier;
        const uint64_t values = set.segments[0].count;
        Batch b = set.batch(true);
        b.grid = 1;
        count_restart();
        run_encode(codec, dtype, false, b);
        const double encode = count_print(("encode" + name).c_str(), values);
        count_restart();
        run_decode(codec, dtype, b);
        const double decode = count_print(("decode" + name).c_str(), values);
        count_restart();
        run_decode_add(codec, dtype, false, 1, b);
        const double add = count_print(("decode_add" + name).c_str(), values);
        EXPECT(encode > 1 && decode > 1 && add > decode, "%f %f %f", encode, decode, add);
        EXPECT(!limited || (encode <= ENCODE_LIMIT && decode <= DECODE_LIMIT), "%f %f", encode, decode);
    }
}

} // namespace

int main(int argc, char **argv) {
    const std::string which = argc > 1 ? argv[1] : "equal";
    for (const zipcclDataType_t t : g_floats) {
        if (argc > 2 && std::string(argv[2]) != dtype_get(t)->name)
            continue;
        if (which == "equal")
            test_equal(t, false);
        else if (which == "tiny")
            test_equal(t, true);
        else if (which == "hostile")
            test_hostile(t);
        else if (which == "add")
            test_add(t);
        else if (which == "trace")
            test_trace(t);
        else if (which == "count")
            test_count(t);
    }
    if (which == "overflow")
        test_overflow();
    if (which == "hostile") {
        test_all_escape(false);
        test_all_escape(true);
    }
    printf("%s: %d failures\n", which.c_str(), g_failures);
    return g_failures != 0;
}

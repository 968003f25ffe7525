/* SPDX-License-Identifier: Apache-2.0
 *
 * The reductions of a GPU on a CPU against kernels/reduce.c, bit for bit: every dtype, operation and kind of input.
 * From the kernels' source, or (CODEC_PTX) from nvcc's PTX. reduce_test raw | coded | broken
 */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#ifdef REDUCE_FEW
#    define ZIP_RAW_CASES(X) X(int8, zipcclInt8) X(fp16, zipcclFloat16)
#    define ZIP_CASES(X)     X(tier, zipcclCodecTier, bf16, zipcclBfloat16)
#endif
#include "kernels/cuda/plan.h"
#include "kernels/cuda/reduce_cuda.h"

#ifdef CODEC_PTX
#    include "ptx_rt.h"
#else
#    include "kernels/cuda/reduce_kernels.cuh"
#endif
#include "inputs.h"

extern "C" {
#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "kernels/reduce.h"
}

namespace {

int g_failures;
uint64_t g_seed = 2024;
#define EXPECT(c, ...)                                                                                                 \
    do {                                                                                                               \
        if (!(c)) {                                                                                                    \
            printf("%s:%d: %s: ", __FILE__, __LINE__, #c);                                                             \
            printf(__VA_ARGS__);                                                                                       \
            printf("\n");                                                                                              \
            g_failures++;                                                                                              \
        }                                                                                                              \
    } while (0)

uint32_t below(uint32_t n) {
    return static_cast<uint32_t>(inputs_random(&g_seed) % n);
}

/* ---- launches ---- */

std::string type_name(zipcclDataType_t t) {
    const std::string name = dtype_get(t)->name;
    return name.compare(0, 4, "fp8_") == 0 ? name.substr(4) : name;
}

std::string kernel_name(zipcclCodec_t codec, zipcclDataType_t t) {
    return std::string("zip_reduce_") + codec_name(codec) + "_" + type_name(t);
}

#ifdef CODEC_PTX
template <class... A> bool start(const std::string &name, unsigned grid, size_t bytes, A... args) {
    if (!ptx::find_kernel(name.c_str()))
        return false;
    ptx::launch(name.c_str(), dim3(grid), dim3(zip::kBlockThreads), bytes, args...);
    return true;
}
#else
using Kernel = void (*)(zip::Work, const zipccl_cuda_reduction *, zipccl_cuda_result *, uint32_t);
struct Row {
    const char *name;
    Kernel run;
};
#    define RAW(type, dtype)                {"zip_reduce_raw_" #    type, zip_reduce_raw_##type},
#    define CODED(name, codec, type, dtype) {"zip_reduce_" #    name "_" #    type, zip_reduce_##name##_##type},
const Row g_rows[] = {ZIP_RAW_CASES(RAW) ZIP_CASES(CODED)};
#    define ONE(...)                        +1
const unsigned g_raw = 0 ZIP_RAW_CASES(ONE), g_coded = 0 ZIP_CASES(ONE);
bool start(const std::string &name, unsigned grid, size_t bytes, zip::Work w, const zipccl_cuda_reduction *t,
           zipccl_cuda_result *r, uint32_t op) {
    for (const Row &row : g_rows)
        if (name == row.name) {
            simt::launch(row.name, dim3(grid), dim3(zip::kBlockThreads), bytes, [&] { row.run(w, t, r, op); });
            return true;
        }
    return false;
}
bool start(const std::string &, unsigned, size_t, zip::Work w, const zipccl_cuda_reduction *t, zipccl_cuda_result *r) {
    simt::launch("zip_reduce_prepare", dim3(1), dim3(zip::kBlockThreads), 0, [&] { zip_reduce_prepare(w, t, r); });
    return true;
}
#endif

bool have(zipcclCodec_t codec, zipcclDataType_t t) {
#ifdef CODEC_PTX
    return ptx::find_kernel(kernel_name(codec, t).c_str()) != nullptr;
#else
    for (const Row &row : g_rows)
        if (kernel_name(codec, t) == row.name)
            return true;
    return false;
#endif
}

void run(zipcclCodec_t codec, zipcclDataType_t t, zipcclRedOp_t op, const std::vector<zipccl_cuda_reduction> &table,
         std::vector<zipccl_cuda_result> &results) {
    uint64_t total = 0;
    for (const zipccl_cuda_reduction &r : table)
        total += r.count;
    const uint32_t n = static_cast<uint32_t>(table.size());
    const uint64_t tiles = zip::tiles_of(n, total);
    std::vector<uint32_t> words(zip::work_words(n, tiles), 0);
    const zip::Work work = zip::work_of(words.data(), n, tiles);
    results.assign(n, zipccl_cuda_result{~0ull, ~0ull, ~0u, 0});
    start("zip_reduce_prepare", 1, 0, work, table.data(), results.data());
    if (!start(kernel_name(codec, t), 2, zip::reduce_shared(codec), work, table.data(), results.data(),
               static_cast<uint32_t>(op)))
        abort();
}

/* ---- one reduction, here and there ---- */

/* 128-byte aligned, of its exact size. */
struct Memory {
    uint8_t *p;
    explicit Memory(size_t n) : p(static_cast<uint8_t *>(aligned_alloc(128, (n + 127) / 128 * 128 + 128))) {
        memset(p, 0x55, (n + 127) / 128 * 128 + 128);
    }
    ~Memory() {
        free(p);
    }
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;
};

struct Reduction {
    std::vector<std::unique_ptr<Memory>> keep;
    std::vector<zipccl_cuda_input> inputs;
    std::vector<reduce_input> want_inputs;
    std::vector<uint8_t> want;
    uint8_t *dst;
    size_t count;
    uint32_t divisor;

    uint8_t *room(size_t n) {
        keep.push_back(std::make_unique<Memory>(n));
        return keep.back()->p;
    }
    /* shift: by so many values is all that may be off 16 bytes. */
    Reduction(zipcclCodec_t codec, zipcclDataType_t t, zipcclRedOp_t op, size_t n, uint32_t ninputs, uint32_t shift)
        : count(n), divisor(op == zipcclAvg ? 1 + below(9) : 0) {
        const size_t bytes = dtype_get(t)->bytes, size = n * bytes, off = shift * bytes;
        for (uint32_t k = 0; k < ninputs; k++) {
            zipccl_cuda_input in = {};
            uint8_t *const values = room(size + off) + off;
            static const unsigned kinds[] = {IN_NARROW, IN_RANDOM, IN_SPECIAL, IN_NARROW, IN_MANY_ZEROS};
            inputs_fill(values, t, n, kinds[below(5)], g_seed + k);
            in.flags = below(2) * ZIPCCL_CUDA_ENDS_GROUP | below(2) * ZIPCCL_CUDA_ROUND_GROUP |
                       (op == zipcclPreMulSum && below(3)) * ZIPCCL_CUDA_SCALED;
            inputs_fill(reinterpret_cast<uint8_t *>(&in.scalar), t, 1, IN_NARROW, g_seed + 77 + k);
            if (codec != zipcclCodecRaw && below(3)) {
                const codec_sizes bound = codec_bound(codec, t, n);
                codec_sizes sizes;
                uint8_t *const parts = room(bound.static_bytes), *const dynamic = room(bound.dynamic_bytes);
                if (codec_encode(codec, t, values, n, parts, dynamic, 0, &sizes) != zipcclSuccess)
                    abort();
                in.codec = static_cast<uint32_t>(codec);
                in.src = parts;
                in.src_dynamic = dynamic;
                in.static_bytes = sizes.static_bytes;
                in.dynamic_bytes = sizes.dynamic_bytes;
            } else {
                in.src = values;
            }
            inputs.push_back(in);
            want_inputs.push_back({values, in.scalar, (in.flags & ZIPCCL_CUDA_SCALED) != 0,
                                   (in.flags & ZIPCCL_CUDA_ENDS_GROUP) != 0,
                                   (in.flags & ZIPCCL_CUDA_ROUND_GROUP) != 0});
        }
        want.resize(size);
        const reduce all = {op, t, divisor, want_inputs.data(), ninputs, 0, nullptr, false};
        if (reduce_values(&all, want.data(), n) != zipcclSuccess)
            abort();
        /* Sometimes in the place of a raw input. */
        dst = inputs[0].codec == zipcclCodecRaw && below(2) ? static_cast<uint8_t *>(const_cast<void *>(inputs[0].src))
                                                            : room(size + off) + off;
    }
    zipccl_cuda_reduction row() const {
        return {dst, inputs.data(), count, static_cast<uint32_t>(inputs.size()), divisor};
    }
};

void check(zipcclCodec_t codec, zipcclDataType_t t, zipcclRedOp_t op) {
    const struct {
        size_t count;
        uint32_t inputs, shift;
    } cases[] = {{33000, 3, 0}, {700, 6, 1}, {1, 2, 0}, {0, 1, 0}, {1536, 1, 3}, {2048, 5, 0}, {600, 9, 0}};
    std::vector<std::unique_ptr<Reduction>> jobs;
    std::vector<zipccl_cuda_reduction> table;
    for (const auto &c : cases) {
        jobs.push_back(std::make_unique<Reduction>(codec, t, op, c.count, c.inputs, c.shift));
        table.push_back(jobs.back()->row());
    }
    std::vector<zipccl_cuda_result> results;
    run(codec, t, op, table, results);
    for (size_t i = 0; i < jobs.size(); i++) {
        const Reduction &r = *jobs[i];
        const size_t bytes = dtype_get(t)->bytes;
        EXPECT(results[i].status == 0, "%s op %d, %zu values: status %u", kernel_name(codec, t).c_str(), op, r.count,
               results[i].status);
        size_t at = 0;
        while (at < r.want.size() && r.dst[at] == r.want[at])
            at++;
        EXPECT(at == r.want.size(), "%s op %d, %zu values of %zu inputs: byte %zu of value %zu is %02x, want %02x",
               kernel_name(codec, t).c_str(), op, r.count, r.inputs.size(), at % bytes, at / bytes, r.dst[at],
               r.want[at]);
        EXPECT(r.dst[r.want.size()] == 0x55, "wrote past the end");
    }
}

/* Corrupt, misaligned and unknown inputs; none. */
void check_broken(zipcclCodec_t codec, zipcclDataType_t t) {
    std::vector<std::unique_ptr<Reduction>> jobs;
    std::vector<zipccl_cuda_reduction> table;
    for (unsigned i = 0; i < 5; i++) {
        jobs.push_back(std::make_unique<Reduction>(codec, t, zipcclSum, 40000, 6, 0));
        table.push_back(jobs.back()->row());
    }
    uint32_t bad = 6;
    for (uint32_t k = 6; k-- > 0;)
        if (jobs[1]->inputs[k].codec != zipcclCodecRaw) { /* all that are coded; the first of them is told */
            static_cast<uint8_t *>(const_cast<void *>(jobs[1]->inputs[k].src))[k % 2] ^= 1;
            bad = k;
        }
    EXPECT(bad < 6, "no coded input among six");
    jobs[2]->inputs[4].codec = 7;
    table[3].ninputs = 0;
    if (dtype_get(t)->bytes == 1) /* has no wrong place */
        jobs[4]->inputs[5].codec = 8;
    jobs[4]->inputs[0].codec = zipcclCodecRaw;
    jobs[4]->inputs[0].src = static_cast<const uint8_t *>(jobs[4]->inputs[0].src) + 1;
    std::vector<zipccl_cuda_result> results;
    run(codec, t, zipcclSum, table, results);
    EXPECT(results[0].status == 0 && memcmp(jobs[0]->dst, jobs[0]->want.data(), jobs[0]->want.size()) == 0,
           "the first");
    EXPECT(results[1].status == ZIPCCL_CUDA_CORRUPT && results[1].bad_input == bad, "status %u, input %u, want %u",
           results[1].status, results[1].bad_input, bad);
    for (unsigned i = 2; i < 5; i++)
        EXPECT(results[i].status == ZIPCCL_CUDA_INVALID, "%u: status %u", i, results[i].status);
}

} // namespace

int main(int argc, char **argv) {
    const std::string which = argc > 1 ? argv[1] : "raw";
    unsigned kernels = 0;
    for (int t = 0; t < zipcclNumTypes; t++)
        for (zipcclCodec_t codec : {zipcclCodecRaw, zipcclCodecTier, zipcclCodecTop7}) {
            const zipcclDataType_t type = static_cast<zipcclDataType_t>(t);
            if ((codec == zipcclCodecRaw) != (which == "raw") || !have(codec, type))
                continue;
            kernels++;
            if (which == "broken")
                check_broken(codec, type);
            for (int op = 0; which != "broken" && op < zipcclNumRedOps; op++)
                check(codec, type, static_cast<zipcclRedOp_t>(op));
        }
    EXPECT(kernels > 0, "no kernels");
#ifndef CODEC_PTX
    EXPECT(kernels == (which == "raw" ? g_raw : g_coded), "%u kernels", kernels);
#endif
    printf("%s: %u kernels, %d failures\n", which.c_str(), kernels, g_failures);
    return g_failures != 0;
}

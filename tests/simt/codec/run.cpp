/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"

#include <cstdlib>

#ifdef CODEC_PTX
#    include "ptx_rt.h"
#else
#    include "kernels/cuda/codec_kernels.cuh"
#endif

#ifdef ZIP_PLANTED
int zip_planted = getenv("ZIP_PLANT") ? atoi(getenv("ZIP_PLANT")) : 0;
#endif

namespace {

const char *type_name(zipcclDataType_t t) {
    switch (t) {
    case zipcclBfloat16:
        return "bf16";
    case zipcclFloat16:
        return "fp16";
    case zipcclFloat32:
        return "fp32";
    case zipcclFloat8e4m3:
        return "e4m3";
    default:
        return "e5m2";
    }
}

#ifdef CODEC_PTX
template <class... A> void start(const std::string &name, unsigned grid, size_t bytes, A... args) {
    ptx::launch(name.c_str(), dim3(grid), dim3(zip::kBlockThreads), bytes, args...);
}
#else
template <class... A> void start(const std::string &name, unsigned grid, size_t bytes, A... args) {
    struct Row {
        const char *name;
        void (*run)(A...);
    };
    static const std::vector<Row> rows = [] {
        std::vector<Row> r;
        [[maybe_unused]] auto add = [&r](const char *n, auto f) {
            if constexpr (std::is_same_v<decltype(f), void (*)(A...)>)
                r.push_back({n, f});
        };
        add("zip_prepare", zip_prepare);
#    define ROW(codec_name, codec, type, dtype)                                                                        \
        add("zip_encode_" #codec_name "_" #type, zip_encode_##codec_name##_##type);                                    \
        add("zip_decode_" #codec_name "_" #type, zip_decode_##codec_name##_##type);                                    \
        add("zip_decode_add_" #codec_name "_" #type, zip_decode_add_##codec_name##_##type);                            \
        add("zip_window_" #type, zip_window_##type);
        ZIP_CASES(ROW)
#    undef ROW
#    ifndef ZIP_CASES_FEW
        add("zip_encode_tier_fp32_reread", zip_encode_tier_fp32_reread);
        add("zip_encode_top7_fp32_reread", zip_encode_top7_fp32_reread);
#    endif
        return r;
    }();
    for (const Row &row : rows)
        if (name == row.name)
            return simt::launch(row.name, dim3(grid), dim3(zip::kBlockThreads), bytes, [&] { row.run(args...); });
    fprintf(stderr, "no kernel %s\n", name.c_str());
    abort();
}
#endif

struct Device {
    std::vector<uint32_t> words;
    zip::Work work;
    Device(Batch &b, unsigned stride) {
        const uint32_t segments = static_cast<uint32_t>(b.table.size() / stride);
        const uint64_t tiles = zip::tiles_of(segments, b.total_values);
        words.assign(zip::work_words(segments, tiles), 0);
        work = zip::work_of(words.data(), segments, tiles);
        b.results.assign(segments, zipccl_cuda_result{~0ull, ~0ull, ~0u, 0});
        start("zip_prepare", 1, 0, work, static_cast<const zipccl_cuda_segment *>(b.table.data()), stride,
              b.results.data());
    }
};

} // namespace

bool have(zipcclCodec_t codec, zipcclDataType_t dtype) {
#ifdef CODEC_PTX
    return ptx::find_kernel((std::string("zip_encode_") + codec_name(codec) + "_" + type_name(dtype)).c_str()) !=
           nullptr;
#elif defined(ZIP_CASES_FEW)
#    define CASE(codec_name, c, type, d) (codec == (c) && dtype == (d)) ||
    return ZIP_CASES(CASE) false;
#    undef CASE
#else
    return codec_supports(codec, dtype);
#endif
}

bool have_reread() {
#if defined(CODEC_PTX) || defined(ZIP_CASES_FEW)
    return false;
#else
    return true;
#endif
}

void count_restart() {
#ifdef CODEC_PTX
    ptx::counts.on = true;
    ptx::counts.restart();
#endif
}

double count_print([[maybe_unused]] const char *what, [[maybe_unused]] uint64_t values) {
#ifdef CODEC_PTX
    const double lanes = 32.0 / static_cast<double>(values);
    printf("count %s", what);
    for (unsigned k = 0; k < ptx::num_work; k++)
        printf(" %s %.3f", ptx::work_names[k], static_cast<double>(ptx::counts.work[k]) * lanes);
    printf("\n");
    return static_cast<double>(ptx::counts.work[ptx::issued]) * lanes;
#else
    return 0;
#endif
}

void run_encode(zipcclCodec_t codec, zipcclDataType_t dtype, bool reread, Batch &b) {
    Device d(b, 1);
    const zipccl_cuda_segment *table = b.table.data();
    if (codec == zipcclCodecTop7)
        start(std::string("zip_window_") + type_name(dtype), b.grid, 0, d.work, table);
    start(std::string("zip_encode_") + codec_name(codec) + "_" + type_name(dtype) + (reread ? "_reread" : ""), b.grid,
          zip::encode_shared(codec, dtype, !reread), d.work, table, b.results.data());
}

void run_decode(zipcclCodec_t codec, zipcclDataType_t dtype, Batch &b) {
    Device d(b, 1);
    start(std::string("zip_decode_") + codec_name(codec) + "_" + type_name(dtype), b.grid,
          codec == zipcclCodecTier ? zip::kDecodeSharedTier : zip::kDecodeSharedTop7, d.work,
          static_cast<const zipccl_cuda_segment *>(b.table.data()), b.results.data());
}

void run_decode_add(zipcclCodec_t codec, zipcclDataType_t dtype, bool to_fp32, unsigned inputs, Batch &b) {
    Device d(b, inputs);
    start(std::string("zip_decode_add_") + codec_name(codec) + "_" + type_name(dtype), b.grid,
          codec == zipcclCodecTier ? zip::kDecodeSharedTier : zip::kDecodeSharedTop7, d.work,
          static_cast<const zipccl_cuda_segment *>(b.table.data()), b.results.data(), static_cast<uint32_t>(inputs),
          static_cast<uint32_t>(to_fp32));
}

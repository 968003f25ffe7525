/* SPDX-License-Identifier: Apache-2.0
 *
 * zipcclctl's CUDA module: copies, encode and decode on the first GPU, timed with events.
 */
#include "client/ctl/bench_cuda.h"

#include "kernels/cuda/codec_cuda.h"

#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <vector>

namespace {

constexpr size_t kMinRounds = 5, kWarmRounds = 3, kPiece = size_t{64} << 20;

/* What went wrong first. */
struct Failure {
    char *text;
    bool failed = false;
    bool check(cudaError_t e, const char *what) {
        if (e != cudaSuccess && !failed) {
            failed = true;
            (void)snprintf(text, BENCH_CUDA_TEXT, "%s: %s", what, cudaGetErrorString(e));
        }
        return !failed;
    }
    bool check(zipcclResult_t r, const char *what) {
        if (r != zipcclSuccess && !failed) {
            failed = true;
            (void)snprintf(text, BENCH_CUDA_TEXT, "%s does not start (%d)", what, static_cast<int>(r));
        }
        return !failed;
    }
};

struct Memory {
    void *p = nullptr;
    Memory() = default;
    ~Memory() {
        (void)cudaFree(p);
    }
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;
    bool take(size_t bytes, Failure *f) {
        return f->check(cudaMalloc(&p, bytes ? bytes : 1), "GPU memory");
    }
    uint8_t *at(size_t offset) const {
        return static_cast<uint8_t *>(p) + offset;
    }
};

struct Event {
    cudaEvent_t e = nullptr;
    ~Event() {
        if (e)
            (void)cudaEventDestroy(e);
    }
};

size_t align_to(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

class Bench {
    bench_cuda *b;
    Failure f;
    Memory values, back, parts, dynamic, table, results, work;
    Event event[2];
    std::vector<zipccl_cuda_result> host_results;

    uint32_t segments() const {
        return static_cast<uint32_t>(b->nsegments);
    }
    uint64_t count() const {
        return b->bytes / b->value_bytes;
    }
    const zipccl_cuda_segment *rows(bool decode) const {
        return static_cast<const zipccl_cuda_segment *>(table.p) + (decode ? b->nsegments : 0);
    }

    bool prepare() {
        size_t static_bytes = 0, dynamic_bytes = 0, at = 0;
        for (size_t i = 0; i < b->nsegments; i++) {
            static_bytes += align_to(b->segments[i].static_room, 128);
            dynamic_bytes += align_to(b->segments[i].dynamic_room, 128);
        }
        if (!values.take(b->bytes, &f) || !back.take(b->bytes, &f) || !parts.take(static_bytes, &f) ||
            !dynamic.take(dynamic_bytes, &f) || !table.take(2 * b->nsegments * sizeof(zipccl_cuda_segment), &f) ||
            !results.take(b->nsegments * sizeof(zipccl_cuda_result), &f) ||
            !work.take(zipccl_cuda_workspace(segments(), count()), &f))
            return false;
        std::vector<zipccl_cuda_segment> host(2 * b->nsegments);
        static_bytes = dynamic_bytes = 0;
        for (size_t i = 0; i < b->nsegments; i++) {
            const bench_cuda_segment &s = b->segments[i];
            host[i] = {values.at(at), parts.at(static_bytes), dynamic.at(dynamic_bytes),
                       s.count,       s.static_room,          s.dynamic_room};
            host[b->nsegments + i] = host[i];
            host[b->nsegments + i].values = back.at(at);
            at += s.count * b->value_bytes;
            static_bytes += align_to(s.static_room, 128);
            dynamic_bytes += align_to(s.dynamic_room, 128);
        }
        f.check(cudaMemcpy(table.p, host.data(), host.size() * sizeof(host[0]), cudaMemcpyHostToDevice), "copy");
        for (size_t done = 0; done < b->bytes && !f.failed; done += b->period) {
            const size_t n = b->bytes - done < b->period ? b->bytes - done : b->period;
            f.check(done ? cudaMemcpy(values.at(done), values.p, n, cudaMemcpyDeviceToDevice)
                         : cudaMemcpy(values.p, b->values, n, cudaMemcpyHostToDevice),
                    "copy");
        }
        for (Event &x : event)
            f.check(cudaEventCreate(&x.e), "event");
        return !f.failed;
    }

    bool start(int what) {
        zipccl_cuda_result *const r = static_cast<zipccl_cuda_result *>(results.p);
        if (what == 0)
            return f.check(cudaMemcpyAsync(back.p, values.p, b->bytes, cudaMemcpyDeviceToDevice, nullptr), "copy");
        return what == 1 ? f.check(zipccl_cuda_encode(b->codec, b->dtype, rows(false), segments(), count(), r, work.p,
                                                      0, nullptr),
                                   "encode")
                         : f.check(zipccl_cuda_decode(b->codec, b->dtype, rows(true), segments(), count(), r, work.p, 0,
                                                      nullptr),
                                   "decode");
    }

    /* Bytes a second; 0: failed. */
    double time(int what) {
        float ms = 0;
        if (!f.check(cudaEventRecord(event[0].e), "event") || !start(what) ||
            !f.check(cudaEventRecord(event[1].e), "event") ||
            !f.check(cudaEventSynchronize(event[1].e), what == 1   ? "encode"
                                                       : what == 2 ? "decode"
                                                                   : "copy") ||
            !f.check(cudaEventElapsedTime(&ms, event[0].e, event[1].e), "event"))
            return 0;
        return ms > 0 ? static_cast<double>(b->bytes) * 1e3 / static_cast<double>(ms) : 0;
    }

    /* Whether all segments ended well; what they are long after encode. */
    bool well(bool decode) {
        host_results.resize(b->nsegments);
        if (!f.check(cudaMemcpy(host_results.data(), results.p, b->nsegments * sizeof(host_results[0]),
                                cudaMemcpyDeviceToHost),
                     "copy"))
            return false;
        bool ok = true;
        b->coded = decode ? b->coded : 0;
        for (const zipccl_cuda_result &r : host_results) {
            ok = ok && r.status == 0;
            b->coded += decode ? 0 : r.static_bytes + r.dynamic_bytes;
        }
        return ok;
    }

    /* The decoded values, a piece at a time, against the host's. */
    bool same() {
        std::vector<uint8_t> piece(kPiece < b->period ? kPiece : b->period);
        for (size_t done = 0; done < b->bytes && !f.failed;) {
            const size_t in_period = done % b->period;
            size_t n = piece.size() < b->period - in_period ? piece.size() : b->period - in_period;
            n = n < b->bytes - done ? n : b->bytes - done;
            if (!f.check(cudaMemcpy(piece.data(), back.at(done), n, cudaMemcpyDeviceToHost), "copy") ||
                memcmp(piece.data(), static_cast<const uint8_t *>(b->values) + in_period, n) != 0)
                return false;
            done += n;
        }
        return !f.failed;
    }

    /* One encode and decode of all, with the bits compared. */
    bool compare() {
        if (!f.check(cudaMemset(back.p, 0xa5, b->bytes), "memset") || !start(1) || !well(false) || !start(2))
            return false;
        return well(true) && same();
    }

  public:
    Bench(bench_cuda *bench, char *text) : b(bench), f{text} {
    }
    bool run() {
        b->rounds = 0;
        if (!prepare())
            return false;
        b->exact = compare();
        double spent = 0;
        for (size_t round = 0; !f.failed && b->rounds < BENCH_CUDA_MAX_ROUNDS; round++) {
            const double bps[3] = {time(0), time(1), time(2)};
            if (f.failed || round < kWarmRounds)
                continue;
            b->copy_bps[b->rounds] = bps[0];
            b->encode_bps[b->rounds] = bps[1];
            b->decode_bps[b->rounds] = bps[2];
            b->rounds++;
            for (const double x : bps)
                spent += x > 0 ? static_cast<double>(b->bytes) / x : 0;
            if (b->rounds >= kMinRounds && spent >= b->min_seconds)
                break;
        }
        b->exact = compare() && b->exact;
        return !f.failed;
    }
};

} // namespace

bench_cuda_answer bench_cuda_open(char text[BENCH_CUDA_TEXT]) {
    int devices = 0;
    cudaDeviceProp device;
    const cudaError_t e = cudaGetDeviceCount(&devices);
    if (e == cudaErrorStubLibrary || e == cudaErrorInsufficientDriver || e == cudaErrorNoDevice ||
        (e == cudaSuccess && devices == 0)) {
        (void)snprintf(text, BENCH_CUDA_TEXT, "%s", e == cudaSuccess ? "no device" : cudaGetErrorString(e));
        return BENCH_CUDA_NO_DEVICE;
    }
    Failure f{text};
    if (!f.check(e, "CUDA") || !f.check(cudaGetDeviceProperties(&device, 0), "CUDA"))
        return BENCH_CUDA_FAILED;
    (void)snprintf(text, BENCH_CUDA_TEXT, "%s", device.name);
    return BENCH_CUDA_OK;
}

bench_cuda_answer bench_cuda_run(bench_cuda *b, char text[BENCH_CUDA_TEXT]) {
    Bench bench(b, text);
    return bench.run() ? BENCH_CUDA_OK : BENCH_CUDA_FAILED;
}

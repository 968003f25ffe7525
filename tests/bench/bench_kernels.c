/* SPDX-License-Identifier: Apache-2.0
 *
 * Speed and ratio of the codec on one core, against memcpy in the same run: bench_kernels [--verify] [--isa NAME]
 * [--codec NAME] [--mib N] [--chunk N] [--reps N] FILE.bf16|FILE.f32 ... Each file is repeated to fill the buffer.
 * Without files: N(0, sigma) values. Prints ratio, and the speed of encode and decode as a share of memcpy's (best
 * median of five rounds).
 */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "kernels/model.h"

#define MAX_REPS 1001
#define ROUNDS   5

struct options {
    bool verify;
    zipcclCodec_t codec;
    size_t bytes, chunk;
    unsigned reps;
};

struct buffers {
    uint8_t *src, *dst, *parts, *dynamic;
};

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, unsigned n) {
    qsort(v, n, sizeof(*v), compare);
    return v[n / 2];
}

static void *pages(size_t bytes) {
    bytes = (bytes + 4095 + (1u << 21)) & ~(size_t)4095;
    uint8_t *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        exit(2);
    (void)madvise(p, bytes, MADV_HUGEPAGE);
    memset(p, 1, bytes);
    return (uint8_t *)(((uintptr_t)p + 4095) & ~(uintptr_t)4095);
}

static void check(zipcclResult_t r) {
    if (r != zipcclSuccess) {
        fprintf(stderr, "bench_kernels: codec failed: %d\n", r);
        exit(1);
    }
}

/* One pass over the buffer in chunks; encode leaves the parts for decode. Returns the coded bytes. */
static size_t pass(const struct options *o, zipcclDataType_t dtype, const struct buffers *b, bool decode,
                   struct codec_sizes *sizes) {
    const size_t width = dtype_get(dtype)->bytes;
    const struct codec_sizes bound = codec_bound(o->codec, dtype, o->chunk / width);
    const unsigned flags = o->bytes > (8u << 20) ? CODEC_STREAMING : 0;
    size_t total = 0;
    for (size_t at = 0, i = 0; at < o->bytes; at += o->chunk, i++) {
        const size_t count = (o->bytes - at < o->chunk ? o->bytes - at : o->chunk) / width;
        uint8_t *s = b->parts + i * bound.static_bytes, *d = b->dynamic + i * bound.dynamic_bytes;
        if (decode)
            check(codec_decode(o->codec, dtype, s, sizes[i].static_bytes, d, sizes[i].dynamic_bytes, b->dst + at, count,
                               flags));
        else
            check(codec_encode(o->codec, dtype, b->src + at, count, s, d, flags, &sizes[i]));
        total += sizes[i].static_bytes + sizes[i].dynamic_bytes;
    }
    return total;
}

static void bench(const struct options *o, const char *name, zipcclDataType_t dtype, const struct buffers *b) {
    static struct codec_sizes sizes[1 << 16];
    static double t[3][MAX_REPS];
    double best[3] = {1e30, 1e30, 1e30};
    const size_t coded = pass(o, dtype, b, false, sizes);
    memset(b->dst, 0xee, o->bytes);
    (void)pass(o, dtype, b, true, sizes);
    if (o->verify && memcmp(b->src, b->dst, o->bytes) != 0) {
        fprintf(stderr, "bench_kernels: %s: round trip differs\n", name);
        exit(1);
    }
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (unsigned i = 0; i < o->reps; i++) {
            const uint64_t a = now_ns();
            memcpy(b->dst, b->src, o->bytes);
            const uint64_t c = now_ns();
            (void)pass(o, dtype, b, false, sizes);
            const uint64_t d = now_ns();
            (void)pass(o, dtype, b, true, sizes);
            const uint64_t e = now_ns();
            t[0][i] = (double)(c - a);
            t[1][i] = (double)(d - c);
            t[2][i] = (double)(e - d);
        }
        double m[3];
        for (unsigned k = 0; k < 3; k++) {
            m[k] = median(t[k], o->reps);
            best[k] = m[k] < best[k] ? m[k] : best[k];
        }
    }
    printf("%-28s %-6s ratio %6.3f  memcpy %6.1f GB/s  encode %5.2f (%5.1f GB/s)  decode %5.2f (%5.1f GB/s)\n", name,
           codec_name(o->codec), (double)o->bytes / (double)coded, (double)o->bytes / best[0], best[0] / best[1],
           (double)o->bytes / best[1], best[0] / best[2], (double)o->bytes / best[2]);
    fflush(stdout);
}

/* Box-Muller over a xorshift generator. */
static double gauss(void) {
    static uint64_t s = 88172645463325252ull;
    double u[2];
    for (unsigned i = 0; i < 2; i++) {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        u[i] = ((double)(s >> 11) + 0.5) / 9007199254740992.0;
    }
    return sqrt(-2 * log(u[0])) * cos(6.283185307179586 * u[1]);
}

static void fill_gauss(uint8_t *p, size_t bytes, double sigma) {
    for (size_t i = 0; i + 2 <= bytes; i += 2) {
        const float f = (float)(gauss() * sigma);
        uint32_t w;
        memcpy(&w, &f, 4);
        w = (w + 0x8000) >> 16;
        memcpy(p + i, &w, 2);
    }
}

static bool fill_file(uint8_t *p, size_t bytes, const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) {
        perror(path);
        return false;
    }
    size_t n = fread(p, 1, bytes, f);
    fclose(f);
    for (size_t at = n; n && at < bytes; at += n)
        memcpy(p + at, p, n < bytes - at ? n : bytes - at);
    return n > 0;
}

int main(int argc, char **argv) {
    struct options o = {.codec = zipcclCodecTier, .bytes = 1u << 20, .reps = 101};
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        bool ok = true;
        if (strcmp(argv[i], "--verify") == 0) {
            o.verify = true;
            continue;
        }
        if (strcmp(argv[i], "--isa") == 0) {
            ok = false;
            for (unsigned k = 0; k < CODEC_NUM_ISAS; k++)
                ok |= strcmp(value, codec_isa_name((enum codec_isa)k)) == 0 && codec_isa_force((enum codec_isa)k);
        } else if (strcmp(argv[i], "--codec") == 0) {
            ok = codec_from_name(value, &o.codec);
        } else if (strcmp(argv[i], "--mib") == 0) {
            o.bytes = (size_t)strtoull(value, NULL, 10) << 20;
        } else if (strcmp(argv[i], "--chunk") == 0) {
            o.chunk = (size_t)strtoull(value, NULL, 10) << 20;
        } else if (strcmp(argv[i], "--reps") == 0) {
            o.reps = (unsigned)strtoul(value, NULL, 10);
        } else {
            ok = false;
        }
        if (!ok || o.bytes == 0 || o.reps == 0 || o.reps > MAX_REPS) {
            fprintf(stderr, "bench_kernels: bad option %s %s\n", argv[i], value);
            return 2;
        }
        i++;
    }
    if (!o.chunk)
        o.chunk = 4u << 20;
    if (o.chunk > o.bytes)
        o.chunk = o.bytes;
    const size_t chunks = (o.bytes + o.chunk - 1) / o.chunk;
    const struct codec_sizes bound = codec_bound(o.codec, zipcclFloat8e4m3, o.chunk);
    struct buffers b = {pages(o.bytes), pages(o.bytes), pages(chunks * bound.static_bytes),
                        pages(chunks * (bound.dynamic_bytes + bound.static_bytes))};
    printf("isa %s, %zu MiB, chunks of %zu MiB\n", codec_isa_name(codec_isa_current()), o.bytes >> 20, o.chunk >> 20);
    if (i == argc) {
        const int exponents[] = {-60, -6, 0, 40};
        for (unsigned k = 0; k < 4; k++) {
            char name[32];
            snprintf(name, sizeof(name), "N(0, 2^%d)", exponents[k]);
            fill_gauss(b.src, o.bytes, ldexp(1.3, exponents[k]));
            bench(&o, name, zipcclBfloat16, &b);
        }
    }
    for (; i < argc; i++) {
        const char *slash = strrchr(argv[i], '/'), *dot = strrchr(argv[i], '.');
        zipcclDataType_t dtype = zipcclBfloat16;
        if (dot && !dtype_from_name(strcmp(dot, ".f32") == 0 ? "fp32" : dot + 1, &dtype))
            dtype = zipcclBfloat16;
        if (!fill_file(b.src, o.bytes, argv[i]))
            return 1;
        bench(&o, slash ? slash + 1 : argv[i], dtype, &b);
    }
    return 0;
}

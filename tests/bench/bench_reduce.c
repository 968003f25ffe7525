/* SPDX-License-Identifier: Apache-2.0
 *
 * Speed of reductions on one core, beside memcpy and a plain loop in the same run: bench_reduce [--isa NAME] [--kib N]
 * [--reps N] [FILE.bf16]. N: KiB of one input. First raw inputs of several dtypes, then coded BF16 inputs (the file's
 * values, else normally distributed ones): decoded a group at a time and added in the cache, beside decoding all and
 * adding then. Speeds are GB/s of result, each the best of all runs, which take turns.
 */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "daemon/device/host.h"
#include "kernels/codec_reader.h"
#include "kernels/dtype.h"
#include "kernels/reduce.h"

#define MAX_INPUTS 16u

static size_t g_bytes = 256u << 10;
static unsigned g_reps = 200;
static uint8_t *g_src[MAX_INPUTS], *g_decoded[MAX_INPUTS], *g_fixed[MAX_INPUTS], *g_dynamic[MAX_INPUTS], *g_dst;
static struct host_scratch g_scratch;

/* What is timed. */
struct work {
    zipcclRedOp_t op;
    zipcclDataType_t dtype;
    unsigned n;
    struct reduce_input *inputs;
    struct device_input *coded;
};

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void *pages(size_t bytes) {
    uint8_t *p = mmap(NULL, bytes + (2u << 20), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        exit(2);
    (void)madvise(p, bytes + (2u << 20), MADV_HUGEPAGE);
    memset(p, 1, bytes + (2u << 20));
    return p;
}

static void check(zipcclResult_t r) {
    if (r != zipcclSuccess) {
        fprintf(stderr, "bench_reduce: failed: %d\n", r);
        exit(1);
    }
}

static unsigned streaming(void) {
    return g_bytes > (8u << 20) ? CODEC_STREAMING : 0;
}

static void run_copy(const struct work *w) {
    (void)w;
    memcpy(g_dst, g_src[0], g_bytes);
}

static void run_reduce(const struct work *w) {
    const struct reduce r = {
        .op = w->op, .dtype = w->dtype, .divisor = w->n, .inputs = w->inputs, .ninputs = w->n, .flags = streaming()};
    check(reduce_values(&r, g_dst, g_bytes / dtype_get(w->dtype)->bytes));
}

/* What one would write first: a value at a time, converted by shifts. */
static void run_naive(const struct work *w) {
    uint16_t *const dst = (uint16_t *)(void *)g_dst;
    for (size_t i = 0; i < g_bytes / 2; i++) {
        float sum = 0;
        for (unsigned k = 0; k < w->n; k++) {
            const uint32_t bits = (uint32_t)((const uint16_t *)w->inputs[k].values)[i] << 16;
            float f;
            memcpy(&f, &bits, 4);
            sum += f;
        }
        uint32_t x;
        memcpy(&x, &sum, 4);
        dst[i] = sum != sum ? 0x7fff : (uint16_t)((x + 0x7fff + (x >> 16 & 1)) >> 16);
    }
}

static void run_fused(const struct work *w) {
    struct device_job job = {.work = DEVICE_REDUCE,
                             .dtype = w->dtype,
                             .flags = streaming(),
                             .dst = g_dst,
                             .count = g_bytes / 2,
                             .inputs = w->coded,
                             .ninputs = w->n,
                             .redop = w->op};
    check(host_reduce(&job, &g_scratch));
}

static void run_decode(const struct work *w) {
    for (unsigned k = 0; k < w->n; k++) {
        const struct device_input *in = &w->coded[k];
        if (in->codec != zipcclCodecRaw)
            check(codec_decode(in->codec, w->dtype, in->src, in->src_static, in->src_dynamic, in->src_dynamic_bytes,
                               g_decoded[k], g_bytes / 2, streaming()));
    }
}

static void run_apart(const struct work *w) {
    run_decode(w);
    run_reduce(w);
}

/* GB/s of result of each; they take turns. */
static void measure(const struct work *w, void (*const *what)(const struct work *), unsigned count, double *speed) {
    for (unsigned k = 0; k < count; k++)
        speed[k] = 0;
    for (unsigned i = 0; i < g_reps; i++) {
        for (unsigned k = 0; k < count; k++) {
            what[k](w); /* so that the caches hold what it wants */
            const uint64_t start = now_ns();
            what[k](w);
            const double s = (double)g_bytes / (double)(now_ns() - start);
            speed[k] = s > speed[k] ? s : speed[k];
        }
    }
}

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

static void fill(uint8_t *p, FILE *f) {
    size_t n = 0;
    if (f) {
        while (n < g_bytes) {
            const size_t got = fread(p + n, 1, g_bytes - n, f);
            if (got == 0 && ftell(f) == 0)
                exit(1);
            if (got == 0)
                rewind(f);
            n += got;
        }
        return;
    }
    for (; n < g_bytes; n += 2) {
        const float v = (float)(gauss() * 0.02);
        uint32_t w;
        memcpy(&w, &v, 4);
        w = (w + 0x8000) >> 16;
        memcpy(p + n, &w, 2);
    }
}

static void bench_raw(void) {
    static const zipcclDataType_t types[] = {zipcclBfloat16,   zipcclFloat16, zipcclFloat32, zipcclFloat8e4m3,
                                             zipcclFloat8e5m2, zipcclFloat64, zipcclInt32};
    static const char *const ops[] = {"sum", "prod", "max", "min", "avg"};
    struct reduce_input in[MAX_INPUTS] = {0};
    for (unsigned k = 0; k < MAX_INPUTS; k++)
        in[k].values = g_src[k];
    for (unsigned t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        for (unsigned n = 2; n <= 8; n *= 2) {
            for (unsigned op = 0; op < 5; op++) {
                if (n > 2 && op > 0)
                    continue;
                const struct work w = {(zipcclRedOp_t)op, types[t], n, in, NULL};
                void (*const what[])(const struct work *) = {run_copy, run_reduce, run_naive};
                const bool naive = t == 0 && op == 0;
                double speed[3];
                measure(&w, what, naive ? 3 : 2, speed);
                printf("raw %-9s %-4s of %u: %6.2f GB/s, %5.2f of memcpy (%6.2f)", dtype_get(types[t])->name, ops[op],
                       n, speed[1], speed[1] / speed[0], speed[0]);
                if (naive)
                    printf(", %5.2f of a plain loop (%.2f)", speed[1] / speed[2], speed[2]);
                printf("\n");
            }
        }
    }
}

static void bench_coded(zipcclCodec_t codec) {
    struct reduce_input in[MAX_INPUTS] = {0};
    struct device_input coded[MAX_INPUTS] = {0};
    for (unsigned k = 0; k < MAX_INPUTS; k++) {
        struct codec_sizes sizes;
        check(codec_encode(codec, zipcclBfloat16, g_src[k], g_bytes / 2, g_fixed[k], g_dynamic[k], 0, &sizes));
        coded[k] = (struct device_input){.codec = codec,
                                         .src = g_fixed[k],
                                         .src_static = sizes.static_bytes,
                                         .src_dynamic = g_dynamic[k],
                                         .src_dynamic_bytes = sizes.dynamic_bytes};
        in[k].values = g_decoded[k];
    }
    /* Input 0 is this node's own: raw. */
    coded[0] = (struct device_input){.src = g_src[0]};
    in[0].values = g_src[0];
    for (unsigned n = 2; n <= MAX_INPUTS; n *= 2) {
        const struct work w = {zipcclSum, zipcclBfloat16, n, in, coded};
        void (*const what[])(const struct work *) = {run_copy, run_fused, run_apart, run_decode};
        double speed[4];
        measure(&w, what, 4, speed);
        printf("%s bf16 sum of 1 raw, %2u coded: %6.2f GB/s, %5.2f of memcpy, %5.2f of decode then add (%5.2f), %5.2f "
               "of decode alone (%5.2f)\n",
               codec_name(codec), n - 1, speed[1], speed[1] / speed[0], speed[1] / speed[2], speed[2],
               speed[1] / speed[3], speed[3]);
    }
}

int main(int argc, char **argv) {
    int i = 1;
    for (; i + 1 < argc && argv[i][0] == '-'; i += 2) {
        const unsigned long value = strtoul(argv[i + 1], NULL, 10);
        bool ok = false;
        if (strcmp(argv[i], "--isa") == 0) {
            for (unsigned k = 0; k < CODEC_NUM_ISAS; k++)
                ok |= strcmp(argv[i + 1], codec_isa_name((enum codec_isa)k)) == 0 && codec_isa_force((enum codec_isa)k);
        } else if (strcmp(argv[i], "--kib") == 0) {
            g_bytes = value << 10;
            ok = value != 0;
        } else if (strcmp(argv[i], "--reps") == 0) {
            g_reps = (unsigned)value;
            ok = value != 0;
        }
        if (!ok) {
            fprintf(stderr, "bench_reduce: bad option %s %s\n", argv[i], argv[i + 1]);
            return 2;
        }
    }
    FILE *f = NULL;
    if (i < argc && !(f = fopen(argv[i], "rb"))) {
        perror(argv[i]);
        return 1;
    }
    const struct codec_sizes bound = codec_bound(zipcclCodecTier, zipcclBfloat16, g_bytes / 2);
    const struct codec_sizes bound7 = codec_bound(zipcclCodecTop7, zipcclBfloat16, g_bytes / 2);
    for (unsigned k = 0; k < MAX_INPUTS; k++) {
        /* Not all on the same sets of the caches. */
        g_src[k] = (uint8_t *)pages(g_bytes) + k * 4160u;
        g_decoded[k] = (uint8_t *)pages(g_bytes) + k * 4160u;
        g_fixed[k] = pages(bound.static_bytes);
        g_dynamic[k] = pages(bound.dynamic_bytes + bound7.dynamic_bytes);
        fill(g_src[k], f);
    }
    if (f)
        fclose(f);
    g_dst = (uint8_t *)pages(g_bytes) + 64 * 1001u;
    if (!host_scratch_init(&g_scratch))
        return 1;
    printf("isa %s, %zu KiB an input\n", codec_isa_name(codec_isa_current()), g_bytes >> 10);
    bench_raw();
    bench_coded(zipcclCodecTier);
    bench_coded(zipcclCodecTop7);
    return 0;
}

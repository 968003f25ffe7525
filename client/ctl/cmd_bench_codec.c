/* SPDX-License-Identifier: Apache-2.0
 *
 * zipcclctl bench codec: the codec beside memcpy and beside others' codecs, or on a GPU.
 */
#include <stdlib.h>
#include <string.h>

#include "client/ctl/bench_codec.h"
#include "client/ctl/bench_data.h"
#include "client/ctl/bench_gpu.h"
#include "client/ctl/chunks.h"
#include "client/ctl/ctl.h"
#include "client/ctl/output.h"
#include "client/ctl/progress.h"
#include "client/ctl/table.h"
#include "client/ctl/units.h"
#include "kernels/dtype.h"

#define MAX_SIZES 16
#define MAX_SIZE  (16ull << 30)

struct plan {
    const struct ctl_args *args;
    uint64_t sizes[MAX_SIZES];
    size_t nsizes;
    double min_seconds;
    bool has_codec, has_isa, has_dtype;
    zipcclCodec_t codec;
    enum codec_isa isa;
    zipcclDataType_t dtype;
    struct table *table;
    json_t *results, *sizes_json;
    bool exact, gpu;
    char gpu_name[BENCH_CUDA_TEXT];
};

/* --device cuda: sizes of its own, no instruction set. */
static enum ctl_exit read_device(const struct ctl_args *args, struct plan *p) {
    const char *device = ctl_get(args, "device");
    p->gpu = strcmp(device, "cuda") == 0;
    if (!p->gpu && strcmp(device, "cpu") != 0)
        return ctl_usage(args, "--device wants cpu or cuda, got \"%s\"", device);
    if (p->gpu && ctl_has(args, "isa"))
        return ctl_usage(args, "--isa is of --device cpu");
    if (p->gpu && !ctl_has(args, "size"))
        (void)units_parse_sizes("1MiB,16MiB,256MiB,1GiB,4GiB", p->sizes, MAX_SIZES, &p->nsizes);
    return CTL_OK;
}

static enum ctl_exit read_options(const struct ctl_args *args, struct plan *p) {
    const char *codec = ctl_get(args, "codec"), *isa = ctl_get(args, "isa"), *dtype = ctl_get(args, "dtype");
    if (!units_parse_sizes(ctl_get(args, "size"), p->sizes, MAX_SIZES, &p->nsizes))
        return ctl_usage(args, "--size wants sizes as 1MiB,64MiB, up to 16 GiB, got \"%s\"", ctl_get(args, "size"));
    for (size_t i = 0; i < p->nsizes; i++)
        if (p->sizes[i] > MAX_SIZE || p->sizes[i] % 8)
            return ctl_usage(args, "--size takes multiples of 8 up to 16 GiB");
    if (!units_parse_number(ctl_get(args, "min-time"), 0, 3600, &p->min_seconds))
        return ctl_usage(args, "--min-time wants seconds, got \"%s\"", ctl_get(args, "min-time"));
    p->has_codec = codec != NULL;
    if (codec && (!codec_from_name(codec, &p->codec) || p->codec >= zipcclNumCodecs || p->codec == zipcclCodecRaw))
        return ctl_usage(args, "no codec \"%s\"; tier or top7", codec);
    p->has_isa = isa != NULL;
    while (isa && strcmp(isa, codec_isa_name(p->isa)) != 0)
        if (++p->isa == CODEC_NUM_ISAS)
            return ctl_usage(args, "no instruction set \"%s\"; scalar, avx2 or avx512", isa);
    if (isa && !codec_isa_available(p->isa))
        return ctl_fail(args, CTL_FAILED, "this processor has no %s", isa);
    p->has_dtype = dtype != NULL;
    p->dtype = zipcclBfloat16;
    if (dtype && !tensor_dtype_from_name(dtype, &p->dtype))
        return ctl_usage(args, "no dtype \"%s\"; for example bf16, fp16, fp32, e4m3, e5m2", dtype);
    return read_device(args, p);
}

static void add_cases(const struct plan *p, struct bench_codec *b) {
    b->ncases = 0;
    for (unsigned c = zipcclCodecRaw + 1; c < zipcclNumCodecs; c++) {
        if (!codec_supports((zipcclCodec_t)c, b->dtype) || (p->has_codec && p->codec != (zipcclCodec_t)c))
            continue;
        if (p->gpu)
            b->cases[b->ncases++] = (struct bench_case){.codec = (zipcclCodec_t)c, .gpu = true};
        for (int i = p->gpu ? -1 : CODEC_NUM_ISAS - 1; i >= 0; i--) /* the fastest first */
            if (codec_isa_available((enum codec_isa)i) && (!p->has_isa || p->isa == (enum codec_isa)i))
                b->cases[b->ncases++] = (struct bench_case){.codec = (zipcclCodec_t)c, .isa = (enum codec_isa)i};
    }
    if (p->gpu || b->dtype != zipcclBfloat16 || ctl_has(p->args, "no-peers"))
        return;
    for (const struct peer *peer = peers; peer->name; peer++)
        b->cases[b->ncases++] = (struct bench_case){.peer = peer};
}

static void show_share(double share) {
    progress_show(share, "bench codec");
}

static const char *case_codec(const struct bench_case *c) {
    return c->peer ? c->peer->name : codec_name(c->codec);
}

static const char *case_isa(const struct bench_case *c) {
    return c->peer ? "own" : c->gpu ? "cuda" : codec_isa_name(c->isa);
}

/* The best rounds, each by itself: as if nobody else used the processor. */
static double best_share(const struct bench_rate *rate, const struct bench_rate *copy) {
    return copy->best_bps > 0 ? rate->best_bps / copy->best_bps : 0;
}

static void rate_cells(struct table *table, const struct bench_rate *rate, const struct bench_rate *copy) {
    table_cell(table, "%.2f", rate->bps / 1e9);
    table_cell(table, "%.2f", rate->share);
    table_cell(table, "%.2f", best_share(rate, copy));
}

/* Rounds that had the core to themselves, of all. */
static void rounds_cell(struct table *table, const struct bench_codec *b, const struct bench_case *c) {
    if (c->gpu)
        table_cell(table, "%zu", b->rounds);
    else
        table_cell(table, "%zu/%zu", c->alone, b->rounds);
}

static void report(struct plan *p, const char *name, const struct bench_codec *b) {
    const char *dtype = dtype_get(b->dtype)->name;
    char size[UNITS_TEXT];
    table_cell(p->table, "%s", name);
    table_cell(p->table, "%s", units_bytes(size, b->bytes));
    table_cell(p->table, "%s", p->gpu ? "copy" : "memcpy");
    table_cell(p->table, "-");
    table_cell(p->table, "%s", dtype);
    table_cell(p->table, "1.000");
    for (int i = 0; i < 2; i++)
        rate_cells(p->table, &b->memcpy, &b->memcpy);
    table_cell(p->table, "-");
    table_cell(p->table, "equal");
    for (size_t i = 0; i < b->ncases; i++) {
        const struct bench_case *c = &b->cases[i];
        table_cell(p->table, "%s", name);
        table_cell(p->table, "%s", size);
        table_cell(p->table, "%s", case_codec(c));
        table_cell(p->table, "%s", case_isa(c));
        table_cell(p->table, "%s", dtype);
        table_cell(p->table, "%.3f", c->ratio);
        rate_cells(p->table, &c->encode, &b->memcpy);
        rate_cells(p->table, &c->decode, &b->memcpy);
        rounds_cell(p->table, b, c);
        table_cell(p->table, "%s", c->exact ? "equal" : "DIFFER");
        p->exact = p->exact && c->exact;
        (void)json_array_append_new(
            p->results,
            json_pack("{s:o, s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:b, s:i, s:i}",
                      "name", output_text(name), "codec", case_codec(c), "isa", case_isa(c), "dtype", dtype, "ratio",
                      output_real(c->ratio), "encode_gbps", output_real(c->encode.bps / 1e9), "decode_gbps",
                      output_real(c->decode.bps / 1e9), "encode_share", output_real(c->encode.share), "decode_share",
                      output_real(c->decode.share), "encode_best_gbps", output_real(c->encode.best_bps / 1e9),
                      "decode_best_gbps", output_real(c->decode.best_bps / 1e9), "encode_best_share",
                      output_real(best_share(&c->encode, &b->memcpy)), "decode_best_share",
                      output_real(best_share(&c->decode, &b->memcpy)), "memcpy_gbps", output_real(b->memcpy.bps / 1e9),
                      "bytes", (json_int_t)b->bytes, "exact", c->exact, "rounds", (int)b->rounds, "rounds_alone",
                      (int)(c->gpu ? b->rounds : c->alone)));
    }
    (void)json_array_append_new(p->sizes_json,
                                json_pack("{s:o, s:I, s:o, s:o}", "name", output_text(name), "bytes",
                                          (json_int_t)b->bytes, "memcpy_gbps", output_real(b->memcpy.bps / 1e9),
                                          "memcpy_best_gbps", output_real(b->memcpy.best_bps / 1e9)));
}

/* t NULL: Gaussian values. */
static enum ctl_exit run_one(struct plan *p, const struct tensor *t, uint64_t size, double *memcpy_gbps) {
    struct bench_codec b = {.dtype = t ? t->dtype : p->dtype, .bytes = size, .min_seconds = p->min_seconds};
    const uint64_t made = p->gpu && size > BENCH_GPU_PERIOD ? BENCH_GPU_PERIOD : size;
    void *values = chunks_alloc(made);
    char why[BENCH_CUDA_TEXT] = "a codec failed";
    b.count = size / dtype_get(b.dtype)->bytes;
    if (!values)
        return ctl_fail(p->args, CTL_FAILED, "out of memory");
    if (t)
        bench_repeat(values, made, t, 0);
    else
        bench_gauss(values, made, b.dtype, 1);
    b.values = values;
    add_cases(p, &b);
    zipcclResult_t rc = zipcclSuccess;
    if (p->gpu)
        rc = bench_gpu_run(&b, why) ? zipcclSuccess : zipcclUnhandledDeviceError;
    else
        rc = bench_codec_run(&b, show_share);
    progress_clear();
    free(values);
    if (rc != zipcclSuccess)
        return ctl_fail(p->args, CTL_FAILED, "%s", rc == zipcclOutOfMemory ? "out of memory" : why);
    *memcpy_gbps = b.memcpy.bps / 1e9;
    report(p, t ? t->name : "gauss", &b);
    return CTL_OK;
}

enum ctl_exit ctl_bench_codec(const struct ctl_args *args) {
    static const char *const head[] = {"name",  "size", "codec",       "isa",   "dtype", "ratio", "encode GB/s",
                                       "share", "best", "decode GB/s", "share", "best",  "alone", "bits"};
    struct plan p = {.args = args, .exact = true};
    struct tensor_list list = {0};
    char why[256];
    double memcpy_gbps = 0;
    enum ctl_exit rc = read_options(args, &p);
    if (rc != CTL_OK)
        return rc;
    if (p.gpu && !bench_gpu_open(p.gpu_name))
        return ctl_fail(args, CTL_FAILED, "%s", p.gpu_name);
    p.table = table_new("lrlllrrrrrrrrl");
    p.results = json_array();
    p.sizes_json = json_array();
    if (!p.table || !p.results || !p.sizes_json) {
        rc = ctl_fail(args, CTL_FAILED, "out of memory");
        goto out;
    }
    for (size_t i = 0; i < sizeof head / sizeof *head; i++)
        table_cell(p.table, "%s", head[i]);
    if (!tensor_list_open(&list, args->operands, args->noperands, p.has_dtype ? &p.dtype : NULL, why)) {
        rc = ctl_fail(args, CTL_FAILED, "%s", why);
        goto out;
    }
    for (size_t i = 0; i < (args->noperands ? list.n : 1) && rc == CTL_OK; i++)
        for (size_t s = 0; s < p.nsizes && rc == CTL_OK; s++)
            if (!args->noperands || list.tensors[i].bytes)
                rc = run_one(&p, args->noperands ? &list.tensors[i] : NULL, p.sizes[s], &memcpy_gbps);
    if (rc != CTL_OK)
        goto out;
    if (ctl_has(args, "json"))
        rc = output_json(json_pack("{s:s, s:f, s:o, s:O, s:O}", "schema", "zipccl.bench.codec/1", "memcpy_gbps",
                                   memcpy_gbps, "device", output_text(p.gpu ? p.gpu_name : "cpu"), "results", p.results,
                                   "sizes", p.sizes_json));
    else {
        if (p.gpu)
            (void)printf("%s\n", p.gpu_name);
        table_print(p.table, stdout, 0);
    }
    if (rc == CTL_OK && !p.exact)
        rc = ctl_fail(args, CTL_FAILED, "decoded bits differ");
out:
    tensor_list_free(&list);
    table_free(p.table);
    json_decref(p.results);
    json_decref(p.sizes_json);
    return rc;
}

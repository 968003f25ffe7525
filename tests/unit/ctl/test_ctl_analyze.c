/* SPDX-License-Identifier: Apache-2.0
 *
 * analyze on the real tensors: ratios, exact bits, JSON keys; and the codecs of the benchmark on odd values.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/ctl/analyze.h"
#include "client/ctl/bench_codec.h"
#include "client/ctl/bench_data.h"
#include "client/ctl/peers.h"
#include "client/ctl/planes.h"
#include "kernels/codec.h"

#define TOLERANCE 0.01

static const struct golden {
    const char *file;
    double limit, top7, tier;
} goldens[] = {
    {"act_hidden_s0160.bf16", 1.506, 1.419, 1.486},  {"grad_emb_s0160.bf16", 1.651, 1.406, 5.447},
    {"grad_expert_s0160.bf16", 1.442, 1.358, 1.423}, {"grad_qkv_s0010.bf16", 1.365, 1.216, 1.490},
    {"weight_qkv_s0160.bf16", 1.517, 1.426, 1.489},  {"grad_o_s0160.f32", 1.194, 1.168, 1.191},
};

static void check_keys(const struct tensor *t, const struct analyze_result *r) {
    json_t *json = analyze_json(t, r);
    assert_non_null(json);
    assert_string_equal(json_string_value(json_object_get(json, "name")), t->name);
    assert_string_equal(json_string_value(json_object_get(json, "dtype")), t->dtype_name);
    assert_int_equal(json_integer_value(json_object_get(json, "values")), t->count);
    assert_true(json_is_real(json_object_get(json, "exponent_entropy")));
    assert_true(json_is_real(json_object_get(json, "limit_ratio")));
    assert_true(json_is_real(json_object_get(json, "speedup")));
    json_t *tier = json_object_get(json_object_get(json, "codecs"), "tier");
    assert_true(json_is_real(json_object_get(tier, "ratio")));
    assert_true(json_is_true(json_object_get(tier, "exact")));
    json_decref(json);
}

static void real_tensors(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof goldens / sizeof *goldens; i++) {
        struct tensor_list list;
        struct analyze_result r;
        char path[512], why[256], *paths[] = {path};
        (void)snprintf(path, sizeof path, "%s/tensors/%s", ZIPCCL_TEST_DATA, goldens[i].file);
        assert_true(tensor_list_open(&list, paths, 1, NULL, why));
        assert_int_equal(analyze_tensor(&list.tensors[0], 125e6, &r), zipcclSuccess);
        assert_true(r.exact);
        assert_true(fabs(r.limit / goldens[i].limit - 1) < TOLERANCE);
        assert_true(fabs(r.codecs[zipcclCodecTop7].ratio / goldens[i].top7 - 1) < TOLERANCE);
        assert_true(fabs(r.codecs[zipcclCodecTier].ratio / goldens[i].tier - 1) < TOLERANCE);
        check_keys(&list.tensors[0], &r);
        tensor_list_free(&list);
    }
}

static void bad_files(void **state) {
    struct tensor_list list;
    char why[256] = "", *missing[] = {"/nonexistent/x.bf16"}, *directory[] = {"/"};
    (void)state;
    assert_false(tensor_list_open(&list, missing, 1, NULL, why));
    assert_non_null(strstr(why, "x.bf16"));
    tensor_list_free(&list);
    assert_false(tensor_list_open(&list, directory, 1, NULL, why));
    tensor_list_free(&list);
}

static void speedup_formula(void **state) {
    (void)state;
    /* A codec much faster than the link gives its ratio, one slower than the link costs. */
    assert_true(fabs(analyze_speedup(1e9, 1.5, 1e12, 1e12, 1e8) - 1.5) < 0.01);
    assert_true(analyze_speedup(1e9, 1.5, 5e7, 1e12, 1e8) < 0.51);
    assert_true(analyze_speedup(0, 1.5, 1e9, 1e9, 1e8) == 1);
}

static void planes(void **state) {
    (void)state;
    static uint16_t values[65536], back[65536];
    static uint8_t exponents[65536], rest[65536];
    for (unsigned i = 0; i < 65536; i++)
        values[i] = (uint16_t)i;
    planes_split(values, exponents, rest, 65536);
    assert_int_equal(exponents[0x3f80], 0x7f);
    assert_int_equal(rest[0x8001], 3);
    planes_merge(exponents, rest, back, 65536);
    assert_memory_equal(values, back, sizeof values);
}

/* Every codec and peer on Gaussian, constant and random values, at sizes that leave a part of a block. */
static void peers_are_exact(void **state) {
    static const size_t counts[] = {1, 3, 511, 4096, PEERS_BLOCK, PEERS_BLOCK + 7, 3 * PEERS_BLOCK - 1};
    size_t most = 3 * PEERS_BLOCK;
    uint16_t *values = malloc(2 * most), *back = malloc(2 * most);
    uint8_t *coded = malloc(peers_bound(most));
    void *scratch = peers_scratch_new();
    (void)state;
    assert_true(values && back && coded && scratch);
    for (int kind = 0; kind < 3; kind++) {
        bench_gauss(values, 2 * most, zipcclBfloat16, 5);
        for (size_t i = 0; kind && i < most; i++)
            values[i] = kind == 1 ? 0x3f80 : (uint16_t)(i * 40503u >> 3);
        for (const struct peer *peer = peers; peer->name; peer++) {
            for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
                size_t size = peers_encode(peer, scratch, values, counts[i], coded);
                assert_in_range(size, 1, peers_bound(counts[i]));
                memset(back, 0x77, 2 * most);
                assert_true(peers_decode(peer, scratch, coded, back, counts[i]));
                assert_memory_equal(values, back, 2 * counts[i]);
            }
        }
    }
    free(values);
    free(back);
    free(coded);
    peers_scratch_free(scratch);
}

static void benchmark_runs(void **state) {
    static uint16_t values[65536];
    struct bench_codec b = {.dtype = zipcclBfloat16, .values = values, .count = 65536, .bytes = sizeof values};
    (void)state;
    bench_gauss(values, sizeof values, zipcclBfloat16, 1);
    b.cases[b.ncases++] = (struct bench_case){.codec = zipcclCodecTier, .isa = CODEC_ISA_SCALAR};
    if (peers[0].name)
        b.cases[b.ncases++] = (struct bench_case){.peer = &peers[0]};
    assert_int_equal(bench_codec_run(&b, NULL), zipcclSuccess);
    assert_true(b.memcpy.bps > 0 && b.rounds >= 5);
    for (size_t i = 0; i < b.ncases; i++) {
        assert_true(b.cases[i].exact && b.cases[i].encode.bps > 0 && b.cases[i].decode.bps > 0 &&
                    b.cases[i].encode.share > 0 && b.cases[i].encode.best_bps >= b.cases[i].encode.bps);
        assert_true(b.cases[i].ratio > 1.4 && b.cases[i].ratio < 1.6);
    }
    /* No codec at all: memcpy is measured. Shares are of the copy of the same round. */
    b.ncases = 0;
    assert_int_equal(bench_codec_run(&b, NULL), zipcclSuccess);
    assert_true(b.memcpy.bps > 0 && b.memcpy.best_bps >= b.memcpy.bps);
    double bps[3] = {5, 100, 40}, scratch[3];
    const double copy[3] = {10, 400, 50};
    const struct bench_rate rate = bench_rate_of(bps, copy, 3, scratch);
    assert_true(rate.share == 0.5 && rate.bps == 40 && rate.best_bps == 100);
}

/* Four probes a round, the first round does not count: every other one has the core to itself. */
static double every_other_round(void) {
    static unsigned calls;
    return calls++ / 4 % 2 ? 10 : 14;
}

static void shared_rounds_are_told(void **state) {
    static uint16_t values[65536];
    struct bench_codec b = {.dtype = zipcclBfloat16,
                            .values = values,
                            .count = 65536,
                            .bytes = sizeof values,
                            .min_seconds = 0.02,
                            .probe = every_other_round,
                            .ncases = 1,
                            .cases = {{.codec = zipcclCodecTier, .isa = CODEC_ISA_SCALAR}}};
    (void)state;
    assert_int_equal(bench_codec_run(&b, NULL), zipcclSuccess);
    assert_int_equal(b.cases[0].alone, (b.rounds + 1) / 2);
    assert_true(b.cases[0].exact && b.cases[0].encode.share > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(real_tensors),           cmocka_unit_test(bad_files),
        cmocka_unit_test(speedup_formula),        cmocka_unit_test(planes),
        cmocka_unit_test(peers_are_exact),        cmocka_unit_test(benchmark_runs),
        cmocka_unit_test(shared_rounds_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

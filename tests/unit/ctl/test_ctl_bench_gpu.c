/* SPDX-License-Identifier: Apache-2.0
 *
 * bench codec --device cuda, as far as it goes without CUDA: the module is a fake one beside this test. The program
 * itself says what is missing where there is no GPU.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "client/ctl/bench_data.h"
#include "client/ctl/bench_gpu.h"

static void set_fault(const char *fault) {
    assert_int_equal(setenv("FAKE_CUDA", fault, 1), 0);
}

static void opens(void **state) {
    char text[BENCH_CUDA_TEXT];
    (void)state;
    set_fault("none");
    assert_false(bench_gpu_open(text));
    assert_string_equal(text, "no GPU here: the driver says no");
    set_fault("open");
    assert_false(bench_gpu_open(text));
    assert_string_equal(text, "the driver says no");
    set_fault("");
    assert_true(bench_gpu_open(text));
    assert_string_equal(text, "Fake GPU");
}

static void measures(void **state) {
    static uint16_t values[65536];
    static const size_t sizes[] = {sizeof values, (size_t)5 << 29}; /* the second: of three segments */
    char text[BENCH_CUDA_TEXT];
    (void)state;
    set_fault("");
    assert_true(bench_gpu_open(text));
    bench_gauss(values, sizeof values, zipcclBfloat16, 1);
    uint8_t *period = calloc(1, BENCH_GPU_PERIOD);
    assert_non_null(period);
    for (size_t at = 0; at < BENCH_GPU_PERIOD; at += sizeof values)
        memcpy(period + at, values, sizeof values);
    for (size_t i = 0; i < 2; i++) {
        struct bench_codec b = {.dtype = zipcclBfloat16, .values = period, .count = sizes[i] / 2, .bytes = sizes[i]};
        b.cases[b.ncases++] = (struct bench_case){.codec = zipcclCodecTier, .gpu = true};
        b.cases[b.ncases++] = (struct bench_case){.codec = zipcclCodecTop7, .gpu = true};
        if (!bench_gpu_run(&b, text))
            fail_msg("%s", text);
        assert_true(b.rounds == 3 && b.memcpy.bps == 200e9 && b.memcpy.best_bps == 300e9);
        for (size_t c = 0; c < b.ncases; c++) {
            assert_true(b.cases[c].exact && b.cases[c].encode.bps == 20e9 && b.cases[c].encode.best_bps == 30e9);
            assert_true(b.cases[c].ratio > 1.3 && b.cases[c].ratio < 1.6);
        }
    }
    free(period);
}

static void fails(void **state) {
    static uint16_t values[4096];
    char text[BENCH_CUDA_TEXT];
    struct bench_codec b = {.dtype = zipcclBfloat16, .values = values, .count = 4096, .bytes = sizeof values};
    (void)state;
    b.cases[b.ncases++] = (struct bench_case){.codec = zipcclCodecTier, .gpu = true};
    set_fault("run");
    assert_true(bench_gpu_open(text));
    assert_false(bench_gpu_run(&b, text));
    assert_string_equal(text, "out of memory");
    set_fault("bits");
    assert_true(bench_gpu_run(&b, text));
    assert_false(b.cases[0].exact);
}

/* Output of the program, and its exit code. */
static int program(const char *arguments, char *text, size_t size) {
    char line[512];
    snprintf(line, sizeof line, ZIPCCL_TEST_BIN "/zipcclctl bench codec %s 2>&1", arguments);
    FILE *out = popen(line, "r");
    assert_non_null(out);
    text[fread(text, 1, size - 1, out)] = '\0';
    const int status = pclose(out);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void program_says(void **state) {
    char text[4096];
    (void)state;
    assert_int_equal(program("--device tpu", text, sizeof text), 2);
    assert_non_null(strstr(text, "cpu or cuda"));
    assert_int_equal(program("--device cuda --isa scalar", text, sizeof text), 2);
    const int code = program("--device cuda --size 1MiB --min-time 0", text, sizeof text);
    if (code != 0) { /* no device or no module: these two alone may be */
        assert_int_equal(code, 1);
        assert_true(strstr(text, "no GPU here: ") || strstr(text, "no CUDA module"));
    } else {
        assert_non_null(strstr(text, "equal"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opens),
        cmocka_unit_test(measures),
        cmocka_unit_test(fails),
        cmocka_unit_test(program_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * zipcclctl simulate: what it prints and refuses, its JSON and its chart; and charts of hard values.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ctype.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/ctl/svg_chart.h"

#define PROGRAM  ZIPCCL_TEST_BIN "/zipcclctl simulate "
#define MAX_TEXT (256u << 10)

static char text[MAX_TEXT];

/* Runs the program; text has standard output and error. The exit code. */
static int run(const char *options) {
    char command[1024];
    (void)snprintf(command, sizeof command, PROGRAM "%s 2>&1", options);
    FILE *p = popen(command, "r"); /* the tests' own words */
    assert_non_null(p);
    size_t n = fread(text, 1, sizeof text - 1, p);
    text[n] = 0;
    int status = pclose(p);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void expect(const char *options, int code, const char *has) {
    int got = run(options);
    if (got != code || !strstr(text, has))
        fail_msg("simulate %s: exit %d, not %d, or lacks \"%s\":\n%s", options, got, code, has, text);
}

static void bad_arguments(void **state) {
    (void)state;
    static const struct {
        const char *options, *says;
    } bad[] = {
        {"--op sort", "no operation \"sort\""},
        {"--op send", "not simulated"},
        {"--op all-to-all-v", "not simulated"},
        {"--nodes 0", "--nodes takes 1 to 65536"},
        {"--nodes many", "--nodes takes"},
        {"--ranks-per-node 0", "--ranks-per-node takes"},
        {"--nodes 60000 --ranks-per-node 8", "at most 65536"},
        {"--root 128", "--root takes a rank, 0 to 127"},
        {"--workers 0", "--workers takes"},
        {"--dtype bf17", "no dtype"},
        {"--codec auto", "no codec \"auto\""},
        {"--codec zstd", "no codec"},
        {"--arm auto", "no arm"},
        {"--arm tree", "no arm"},
        {"--op all-gather --arm flat", "has no arms"},
        {"--size 0", "--size wants"},
        {"--size 3", "--size wants"},
        {"--size -1", "--size wants"},
        {"--size 2TiB", "--size wants"},
        {"--size 16", "less than one value"},
        {"--chunk 1KiB", "--chunk takes"},
        {"--window 0", "--window takes"},
        {"--phases three", "--phases takes"},
        {"--link-gbps 0", "--link-gbps wants"},
        {"--intra-gbps nan", "--intra-gbps wants"},
        {"--codec-gbps 10/", "--codec-gbps wants"},
        {"--codec-gbps /10", "--codec-gbps wants"},
        {"--codec-gbps fast", "--codec-gbps wants"},
        {"--ratio 0.5", "--ratio wants"},
        {"--latency-us -1", "--latency-us wants"},
        {"--late 3", "--late wants"},
        {"--late 3=5", "--late wants"},
        {"--late 999=5ms", "--late wants"},
        {"--late =5ms", "--late wants"},
        {"--imbalance 5", "--imbalance wants"},
        {"--imbalance ms", "--imbalance wants"},
        {"--imbalance 5ms --plot /tmp/x.svg", "--plot"},
        {"something", "takes no operand"},
        {"--node 3", "did you mean --nodes"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect(bad[i].options, 2, bad[i].says);
    expect("--nodes 2 --plot /no/such/place.svg", 1, "/no/such/place.svg: No such file");
    expect("--op all-gather --nodes 1024 --size 1GiB", 1, "take a smaller --size");
}

static void tables(void **state) {
    (void)state;
    expect("--op all-gather --nodes 4 --size 8MiB", 0, "<- wins");
    assert_non_null(strstr(text, "all-gather of 8 MiB bf16, 4 nodes of 8 ranks (32), links of 400 Gbit/s"));
    assert_non_null(strstr(text, "tier"));
    expect("--op all-reduce --nodes 4 --codec raw --arm ring", 0, "ring");
    assert_null(strstr(text, "tier"));
    assert_null(strstr(text, "flat"));
    expect("--op barrier", 0, "raw");
    expect("--op all-gather --dtype int32 --nodes 2", 0, "raw"); /* no codec takes it */
    assert_null(strstr(text, "tier"));
    expect("--op all-gather --nodes 600 --size 64KiB", 0, "one was simulated for all");
    expect("--op all-to-all --nodes 2 --ranks-per-node 2 --size 4MiB --phases two", 0, "<- wins");
    expect("--help", 0, "--late RANK=TIME...");
    expect("--help", 0, "of BF16 by tier 1.488");
}

static json_t *json_of(const char *options) {
    json_error_t error;
    char all[512];
    (void)snprintf(all, sizeof all, "--json %s", options);
    assert_int_equal(run(all), 0);
    json_t *root = json_loads(text, 0, &error);
    if (!root)
        fail_msg("%s, line %d: %s", error.text, error.line, text);
    assert_string_equal(json_string_value(json_object_get(root, "schema")), "zipccl.simulate/1");
    return root;
}

static double number(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

/* The arm with this codec, of an operation without arms. */
static const json_t *arm_of(const json_t *root, const char *codec) {
    const json_t *arms = json_object_get(root, "arms");
    for (size_t i = 0; i < json_array_size(arms); i++) {
        const json_t *arm = json_array_get(arms, i);
        if (!strcmp(json_string_value(json_object_get(arm, "codec")), codec))
            return arm;
    }
    fail_msg("no %s", codec);
    return NULL;
}

static void json(void **state) {
    (void)state;
    json_t *root = json_of("--op all-gather --nodes 4 --ranks-per-node 2 --size 16MiB --link-gbps 8 --ratio 1.3/1.5");
    const json_t *raw = arm_of(root, "raw"), *tier = arm_of(root, "tier"), *top7 = arm_of(root, "top7");
    assert_true(json_is_null(json_object_get(raw, "arm")));
    assert_true(number(tier, "ratio") > 1.499 && number(top7, "ratio") < 1.301);
    assert_int_equal(number(raw, "busiest_node_bytes"), 2 * 3 * (16 << 20));
    double bound = 2 * 3 * (16 << 20) / 1e3; /* microseconds at 1e9 bytes a second */
    assert_true(number(raw, "us") > bound && number(raw, "us") < bound * 1.02);
    assert_true(number(tier, "speedup") > 1.45 && number(tier, "speedup") < 1.5);
    assert_true(json_is_true(json_object_get(tier, "wins")));
    assert_true(json_is_false(json_object_get(raw, "wins")));
    assert_int_equal(number(json_object_get(root, "cost"), "workers"), 2);
    json_decref(root);

    /* Who comes late holds up all. */
    json_t *late = json_of("--op all-gather --nodes 4 --ranks-per-node 2 --size 16MiB --late 3=1s --codec raw");
    assert_true(number(arm_of(late, "raw"), "us") > 1e6);
    json_decref(late);
    json_t *one = json_of("--nodes 4 --imbalance 5ms"), *two = json_of("--nodes 4 --imbalance 5ms");
    assert_true(json_equal(one, two));
    json_decref(one);
    json_decref(two);
}

/* Whether tags are closed in order, quotes too, and text has no bare & or <. */
static bool well_formed(const char *s) {
    char open[64][16];
    int depth = 0, roots = 0;
    while (*s) {
        if (*s == '&' && strncmp(s, "&amp;", 5) != 0 && strncmp(s, "&lt;", 4) != 0 && strncmp(s, "&gt;", 4) != 0)
            return false;
        if (*s++ != '<')
            continue;
        bool close = *s == '/';
        s += close;
        char name[16];
        size_t n = 0;
        while (isalnum((unsigned char)*s) && n < sizeof name - 1)
            name[n++] = *s++;
        name[n] = 0;
        if (n == 0)
            return false;
        bool quoted = false, empty = false;
        for (; *s && (quoted || *s != '>'); s++) {
            if (*s == '"')
                quoted = !quoted;
            if (*s == '<' || *s == '&')
                return false;
            empty = !quoted && *s == '/';
        }
        if (!*s || quoted)
            return false;
        if (close) {
            if (depth == 0 || strcmp(open[--depth], name) != 0)
                return false;
        } else if (!empty) {
            if (depth == 64)
                return false;
            roots += depth == 0;
            strcpy(open[depth++], name);
        }
        s++;
    }
    return depth == 0 && roots == 1;
}

static void plot(void **state) {
    (void)state;
    char path[] = "/tmp/zipccl-plot-XXXXXX", options[256];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    (void)snprintf(options, sizeof options, "--nodes 4 --ranks-per-node 2 --op all-reduce --size 1MiB --plot %s", path);
    json_t *root = json_of(options);
    const json_t *sweep = json_object_get(root, "sweep"), *ranks = json_object_get(sweep, "ranks");
    assert_int_equal(json_array_size(json_object_get(sweep, "sizes")), 15);
    assert_int_equal(json_array_size(ranks), 3);
    assert_int_equal(number(json_array_get(ranks, 2), "ranks"), 8);
    assert_int_equal(json_array_size(json_object_get(json_array_get(ranks, 0), "coded")), 4);
    json_decref(root);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    unlink(path);
    assert_true(well_formed(text));
    assert_int_equal(strncmp(text, "<svg xmlns=\"http://www.w3.org/2000/svg\"", 39), 0);
    assert_non_null(strstr(text, "prefers-color-scheme:dark"));
    assert_non_null(strstr(text, "tier, hierarchical"));
    assert_non_null(strstr(text, "speed-up over raw"));
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "inf"));
}

/* One point, no point that is a number, huge and equal values, text that is markup. */
static void hard_charts(void **state) {
    (void)state;
    static const double values[] = {1, NAN, 0, 1e-9, 12345, INFINITY};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        for (size_t n = 1; n <= 3; n++) {
            struct svg_panel panel = {.title = "a < b & \"c\"", .x_title = "x", .npoints = n};
            struct svg_chart chart = {.title = "<t>",
                                      .subtitle = "&",
                                      .y_title = "y\001",
                                      .nseries = 1,
                                      .series = {"<&>"},
                                      .panels = &panel,
                                      .npanels = 1,
                                      .mark = 1,
                                      .mark_text = "m"};
            for (size_t k = 0; k < n; k++) {
                panel.x[k] = (double)(k + 1);
                panel.y[0][k] = k == 1 ? 1 : values[i];
            }
            char *out = NULL;
            size_t bytes = 0;
            FILE *f = open_memstream(&out, &bytes);
            assert_non_null(f);
            svg_chart_print(&chart, f);
            fclose(f);
            if (!well_formed(out) || strstr(out, "nan") || strstr(out, "inf") || bytes > 65536)
                fail_msg("%s", out);
            free(out);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_arguments), cmocka_unit_test(tables),      cmocka_unit_test(json),
        cmocka_unit_test(plot),          cmocka_unit_test(hard_charts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

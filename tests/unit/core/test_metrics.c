/* SPDX-License-Identifier: Apache-2.0
 *
 * The text of metrics: escapes, bounds, sums that never shrink, both formats; and that rules and dashboard ask only for
 * metrics that exist.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "daemon/core/metrics.h"
#include "proto/message.h"
#include "tests/e2e/openmetrics.h"

static struct metrics_view view_of(const struct stats *s) {
    struct metrics_view v = {.stats = s, .version = "1.2.3", .node = "n\\0 \"q\"\n", .device = "host", .fabric = "ucx"};
    v.comms[0] = (struct metrics_state){"ready", 3};
    v.comms[1] = (struct metrics_state){"failed", 1};
    v.peers[0] = (struct metrics_state){"up", 2};
    v.ncomms = 2;
    v.npeers = 1;
    return v;
}

static size_t render(const struct stats *s, bool openmetrics, struct om *om) {
    struct metrics_view v = view_of(s);
    struct metrics_text t = {.openmetrics = openmetrics};
    metrics_render(&v, &t);
    assert_false(t.failed);
    char *text = strndup(t.data, t.used);
    size_t bytes = t.used;
    metrics_text_free(&t);
    if (!om_parse(om, text, openmetrics))
        fail_msg("%s", om->error);
    if (openmetrics)
        assert_string_equal(text + strlen(text) - 7, "\n# EOF\n");
    else
        assert_null(strstr(text, "EOF"));
    free(text);
    return bytes;
}

static void add(struct stats *s, struct stats_job *job, unsigned op, unsigned dtype, unsigned codec, uint64_t ns) {
    struct stats_sample sample = {.op = (zipcclOp_t)op,
                                  .dtype = (zipcclDataType_t)dtype,
                                  .codec = (zipcclCodec_t)codec,
                                  .raw_bytes = 100,
                                  .wire_bytes = 70,
                                  .coded_from_bytes = 90,
                                  .coded_to_bytes = 60,
                                  .total_ns = ns,
                                  .wait_ns = 1};
    stats_add(s, job, &sample);
}

static void test_escapes(void **state) {
    static struct stats s;
    struct om om;
    (void)state;
    stats_init(&s);
    struct stats_job *job = stats_job_begin(&s, "a\\b\"c{},=\xc3\xa4", 7);
    assert_non_null(job);
    add(&s, job, 0, 9, 1, 5000);
    for (int open = 0; open < 2; open++) {
        render(&s, open, &om);
        assert_true(om_sum(&om, "zipccl_operations_total",
                           "job=\"a\\\\b\\\"c{},=\xc3\xa4\",uid=\"7\",op=\"all-gather\",dtype=\"bf16\","
                           "codec=\"top7\"") == 1);
        assert_true(om_sum(&om, "zipccl_build_info", "node=\"n\\\\0 \\\"q\\\"\\n\"") == 1);
        assert_true(om_sum(&om, "zipccl_operation_seconds_total", "job=\"a") == 5000e-9);
        om_free(&om);
    }
    stats_free(&s);
}

static void test_names(void **state) {
    static const char *const good[] = {"", "job 1", "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", "\xed\x9f\xbf"};
    static const char *const bad[] = {"a\nb",     "\x7f",         "\xc2\x85",      "\xff",
                                      "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80",  "\xf4\x90\x80\x80",
                                      "\xc3",     "\xe2\x82",     "\xf0\x9f\x98 ", "\x80"};
    static struct stats s;
    struct om om;
    (void)state;
    stats_init(&s);
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_true(message_text_shows(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(message_text_shows(bad[i]));
        struct stats_job *job = stats_job_begin(&s, bad[i], 1);
        assert_non_null(job);
        add(&s, job, 1, 0, 0, 10);
    }
    render(&s, true, &om);
    assert_true(om_sum(&om, "zipccl_operations_total", "job=\"other\",uid=\"\"") == sizeof bad / sizeof bad[0]);
    om_free(&om);
    stats_free(&s);
}

/* Jobs come and go: few are shown, no sum shrinks, and nothing is counted twice. */
static void test_many_jobs(void **state) {
    static struct stats s;
    struct om om;
    double other = 0;
    (void)state;
    stats_init(&s);
    for (unsigned i = 1; i <= 300; i++) {
        char name[32];
        snprintf(name, sizeof name, "job-%u", i);
        struct stats_job *job = stats_job_begin(&s, name, i % 3);
        assert_non_null(job);
        add(&s, job, i % zipcclNumOps, i % zipcclNumTypes, i % 3, i * 1000);
        if (i % 10 != 0 || i < 100)
            stats_job_end(&s, job);
        if (i % 50 != 0)
            continue;
        render(&s, i % 100 == 0, &om);
        assert_true(om_sum(&om, "zipccl_operations_total", "") == i);
        assert_true(om_sum(&om, "zipccl_operation_raw_bytes_total", "") == 100 * i);
        assert_true(om_sum(&om, "zipccl_operation_duration_seconds_count", "") == i);
        assert_true(om_sum(&om, "zipccl_operations_total", "job=\"other\"") >= other);
        other = om_sum(&om, "zipccl_operations_total", "job=\"other\"");
        om_free(&om);
        assert_true(s.nshown_jobs <= STATS_SHOWN_JOBS && s.nshown_rows <= STATS_SHOWN_ROWS);
    }
    assert_true(other > 0);
    stats_free(&s);
}

/* The worst that clients can make of it. */
static void test_bound(void **state) {
    static struct stats s;
    struct om om;
    char name[128];
    (void)state;
    stats_init(&s);
    memset(name, '"', sizeof name);
    name[127] = '\0';
    for (unsigned i = 0; i < 40; i++) {
        snprintf(name, 8, "%05u\"\"", i);
        name[7] = '"';
        struct stats_job *job = stats_job_begin(&s, name, UINT32_MAX - 1);
        assert_non_null(job);
        for (unsigned row = 0; row < zipcclNumOps * zipcclNumTypes * 3u; row++)
            add(&s, job, row / 36, row / 3 % 12, row % 3, (uint64_t)1 << (row % 40));
    }
    assert_int_equal(s.nshown_rows, STATS_SHOWN_ROWS);
    size_t bytes = render(&s, true, &om);
    assert_true(bytes < METRICS_TEXT_MAX * 3 / 4);
    print_message("the longest text has %zu bytes, %zu samples\n", bytes, om.n);
    assert_true(om_sum(&om, "zipccl_operations_total", "") == 40 * zipcclNumOps * zipcclNumTypes * 3);
    om_free(&om);
    stats_free(&s);
    /* Beyond the bound the text is refused, not cut. */
    struct metrics_text t = {.openmetrics = true};
    metrics_text_family(&t, "a", METRICS_GAUGE, NULL, "A.");
    for (unsigned i = 0; i < 100000 && !t.failed; i++) {
        struct metrics_label label = {"l", name};
        metrics_text_count(&t, "", &label, 1, i);
    }
    assert_true(t.failed && t.size <= METRICS_TEXT_MAX);
    metrics_text_free(&t);
}

static void test_buckets(void **state) {
    static struct stats s;
    struct om om;
    (void)state;
    stats_init(&s);
    struct stats_job *job = stats_job_begin(&s, "j", 1);
    assert_non_null(job);
    static const uint64_t times[] = {0, 1000, 1001, 2000, 67108864000, 67108864001, UINT64_MAX / 4};
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++)
        add(&s, job, 1, 7, 0, times[i]);
    render(&s, true, &om);
    assert_true(om_sum(&om, "zipccl_operation_duration_seconds_bucket", "le=\"1e-06\"") == 2);
    assert_true(om_sum(&om, "zipccl_operation_duration_seconds_bucket", "le=\"2e-06\"") == 4);
    assert_true(om_sum(&om, "zipccl_operation_duration_seconds_bucket", "le=\"67.108864\"") == 5);
    assert_true(om_sum(&om, "zipccl_operation_duration_seconds_bucket", "le=\"+Inf\"") == 7);
    om_free(&om);
    stats_free(&s);
}

static void test_accept(void **state) {
    static const struct {
        const char *accept;
        bool open;
    } cases[] = {
        {NULL, false},
        {"", false},
        {"*/*", false},
        {"text/plain", false},
        {"application/openmetrics-text", true},
        {"Application/OpenMetrics-Text; version=1.0.0", true},
        {"application/openmetrics-text; version=2.0.0, text/plain", false},
        {"application/openmetrics-text;version=1.0.0;q=0", false},
        {"application/openmetrics-text;version=1.0.0;q=0.2,text/plain;q=0.9", false},
        {"text/plain;q=0.5,application/openmetrics-text;version=\"1.0.0\"", true},
        {"application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
         "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
         true},
        {"application/openmetrics-textual", false},
        {",;,;=,q=;;;,", false},
        {"application/openmetrics-text;", true},
        {"application/openmetrics-text;q", true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (metrics_wants_openmetrics(cases[i].accept) != cases[i].open)
            fail_msg("'%s'", cases[i].accept);
    }
}

/* The reader must be worth its name. */
static void test_strictness(void **state) {
#define HEAD "# TYPE a counter\n# HELP a A.\n"
    static const char *const bad[] = {
        HEAD "a_total 1\n",
        HEAD "a_total 1\n# EOF\n\n",
        HEAD "a 1\n# EOF\n",
        HEAD "a_total 1\na_total 2\n# EOF\n",
        HEAD "a_total{b=\"x} 1\n# EOF\n",
        HEAD "a_total{b=\"\\x\"} 1\n# EOF\n",
        HEAD "a_total{b=\"1\",b=\"2\"} 1\n# EOF\n",
        HEAD "a_total  1\n# EOF\n",
        HEAD "a_total nan\n# EOF\n",
        HEAD "b_total 1\n# EOF\n",
        HEAD "\n# EOF\n",
        "# TYPE a counter\n# UNIT a bytes\n# EOF\n",
        HEAD "# TYPE a counter\n# EOF\n",
        "# TYPE h histogram\n# HELP h H.\nh_bucket{le=\"1.0\"} 2\nh_bucket{le=\"+Inf\"} 1\n# EOF\n",
        "# TYPE h histogram\n# HELP h H.\nh_bucket{le=\"1.0\"} 2\nh_count 2\n# EOF\n",
    };
    struct om om;
    (void)state;
    assert_true(om_parse(&om, HEAD "a_total{b=\"\\n\"} 1.5\n# EOF\n", true));
    om_free(&om);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (om_parse(&om, bad[i], true))
            fail_msg("passed: %s", bad[i]);
        om_free(&om);
    }
}

/* Every name that starts with zipccl_ in the text is one that this daemon exports. */
static unsigned check_names(const char *text, const struct om *om) {
    unsigned found = 0;
    for (const char *p = text; (p = strstr(p, "zipccl_")) != NULL;) {
        char name[128];
        size_t n = strspn(p, "abcdefghijklmnopqrstuvwxyz0123456789_");
        snprintf(name, sizeof name, "%.*s", (int)n, p);
        if (!om_has(om, name))
            fail_msg("'%s' is not exported: %s", name, text);
        p += n;
        found++;
    }
    return found;
}

static unsigned walk(json_t *node, const struct om *om) {
    unsigned found = 0;
    const char *key;
    size_t i;
    json_t *value;
    json_object_foreach(node, key, value) {
        bool query = strcmp(key, "expr") == 0 || strcmp(key, "query") == 0;
        if (json_is_string(value) && query) {
            unsigned names = check_names(json_string_value(value), om);
            if (names == 0 && strcmp(key, "expr") == 0)
                fail_msg("asks for no metric: %s", json_string_value(value));
            found += names;
        }
        found += walk(value, om);
    }
    json_array_foreach(node, i, value) found += walk(value, om);
    return found;
}

static void test_queries(void **state) {
    static struct stats s;
    struct om om;
    char text[16384];
    json_error_t error;
    (void)state;
    stats_init(&s);
    struct stats_job *job = stats_job_begin(&s, "j", 1);
    assert_non_null(job);
    add(&s, job, 0, 9, 1, 10);
    render(&s, false, &om);
    json_t *dashboard =
        json_load_file(ZIPCCL_TEST_SOURCE "/config/grafana/zipccl.json", JSON_REJECT_DUPLICATES, &error);
    if (dashboard == NULL)
        fail_msg("line %d: %s", error.line, error.text);
    assert_true(walk(dashboard, &om) > 30);
    json_decref(dashboard);
    FILE *in = fopen(ZIPCCL_TEST_SOURCE "/config/prometheus/zipccl.rules.yml", "r");
    assert_non_null(in);
    size_t n = fread(text, 1, sizeof text - 1, in);
    fclose(in);
    text[n] = '\0';
    assert_true(n < sizeof text - 1 && check_names(text, &om) >= 6);
    om_free(&om);
    stats_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_escapes), cmocka_unit_test(test_names),      cmocka_unit_test(test_many_jobs),
        cmocka_unit_test(test_bound),   cmocka_unit_test(test_buckets),    cmocka_unit_test(test_accept),
        cmocka_unit_test(test_queries), cmocka_unit_test(test_strictness),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

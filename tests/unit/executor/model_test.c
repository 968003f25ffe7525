/* SPDX-License-Identifier: Apache-2.0
 *
 * The time model and the reports: slow links favour coding, fast ones do not; words keep order and combine.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "daemon/core/model.h"
#include "daemon/core/report.h"
#include "daemon/core/switcher_impl.h"

static const uint32_t g_nodes[] = {0, 0, 1, 1, 1};

static struct model model_of(double gbits) {
    struct model m;
    model_init(&m);
    m.link_bps = (uint64_t)(gbits * 1.25e8);
    m.latency_ns = 30000;
    m.encode_bps = m.decode_bps = 2000000000;
    return m;
}

static void test_shape(void **state) {
    (void)state;
    const struct plan_topology t = {5, 2, g_nodes};
    uint32_t members[2];
    struct model_shape s = model_shape_of(&t, members);
    assert_int_equal(s.most, 3);
    assert_int_equal(s.least, 2);
    struct model_op op = {.op = zipcclOpAllGather, .dtype = zipcclBfloat16, .bytes = 100};
    assert_int_equal(model_wire(&s, &op), 300);
    op.op = zipcclOpBroadcast;
    assert_int_equal(model_wire(&s, &op), 100);
    op.op = zipcclOpBarrier;
    assert_int_equal(model_wire(&s, &op), 0);
    s.nnodes = 1;
    op.op = zipcclOpAllGather;
    assert_int_equal(model_wire(&s, &op), 0);
}

/* A faster link never makes coding right where a slower one did not; times grow with bytes, never overflow. */
static void test_monotonic(void **state) {
    (void)state;
    const struct model_shape shape = {4, 2, 2, 2};
    for (unsigned o = 0; o < zipcclNumOps; o++) {
        uint64_t before_ns = 0;
        if (o == zipcclOpBarrier)
            continue;
        for (uint64_t bytes = 1; bytes < 1ull << 48; bytes *= 8) {
            bool coded = true;
            struct switch_want w = {.op = (zipcclOp_t)o,
                                    .dtype = zipcclBfloat16,
                                    .codec = zipcclCodecAuto,
                                    .arm = zipcclArmHierarchical,
                                    .bytes = bytes};
            for (double gbits = 0.01; gbits < 1000; gbits *= 1.5) {
                struct switch_candidate c[SWITCH_CANDIDATES];
                struct model m = model_of(gbits);
                uint32_t n = switcher_candidates(&m, &shape, &w, c);
                bool now = c[switcher_predicted(c, n)].codec != zipcclCodecRaw;
                assert_false(now && !coded);
                coded = now;
            }
            assert_false(coded);
            struct model slow = model_of(0.001);
            struct model_op op = {.op = (zipcclOp_t)o, .dtype = zipcclBfloat16, .bytes = bytes};
            uint64_t ns = model_predict(&slow, &shape, &op);
            assert_true(ns >= before_ns);
            before_ns = ns;
        }
    }
}

/* The link that a measured time tells of is the link. */
static void test_link_from(void **state) {
    (void)state;
    const struct model_shape shape = {4, 2, 2, 2};
    struct model_op op = {.op = zipcclOpAllGather, .dtype = zipcclBfloat16, .bytes = 1 << 22};
    struct model old = model_of(10);
    for (double gbits = 0.01; gbits < 20; gbits *= 2) {
        struct model now = model_of(gbits);
        uint64_t bps = model_link_from(&old, &shape, &op, model_predict(&now, &shape, &op));
        assert_in_range(bps, now.link_bps * 99 / 100, now.link_bps * 101 / 100);
    }
    op.codec = zipcclCodecTier;
    assert_int_equal(model_link_from(&old, &shape, &op, 1000000000), 0);
    op.codec = zipcclCodecRaw;
    op.bytes = 2048;
    assert_int_equal(model_link_from(&old, &shape, &op, 1000000000), 0);
}

static void test_report(void **state) {
    (void)state;
    uint64_t before = 0;
    for (uint64_t ns = 1; ns < UINT64_MAX / 3; ns = ns * 3 / 2 + 1) {
        uint16_t code = report_code(ns);
        assert_true(code >= 1 && code < 8192 && code >= report_code(before));
        if (ns >= 256 && ns < 1000000000000ull)
            assert_in_range(report_ns(code), ns - ns / 200, ns);
        if (before > 0) {
            struct report r = report_unpack(report_combine(report_pack(false, ns, 0, 0), report_pack(0, before, 0, 0)));
            assert_int_equal(r.worst, code);
            assert_int_equal(r.least, report_code(before));
        }
        before = ns;
    }
    assert_int_equal(report_pack(false, 0, 0, 0), 0);
    assert_int_equal(report_combine(0, 0x12345678), 0x12345678);
    struct report r = report_unpack(report_combine(report_pack(true, 0, 3100, 2000), report_pack(false, 5000, 31, 1)));
    assert_true(r.alarm);
    assert_in_range(r.parts, 20, 21);
    assert_int_equal(r.worst, r.least);
    assert_int_equal(report_unpack(report_pack(false, 1, 100, 200)).parts, REPORT_PARTS);
    assert_int_equal(report_unpack(report_pack(false, 1, UINT64_MAX, UINT64_MAX)).parts, REPORT_PARTS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shape),
        cmocka_unit_test(test_monotonic),
        cmocka_unit_test(test_link_from),
        cmocka_unit_test(test_report),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

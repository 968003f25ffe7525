/* SPDX-License-Identifier: Apache-2.0
 *
 * The choice of a codec: slow links code, fast ones do not, pins are kept where they can be.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "daemon/core/choose.h"

static const uint32_t g_nodes[] = {0, 0, 1, 1};
static const struct plan_topology g_two = {4, 2, g_nodes}, g_one = {2, 1, g_nodes};

static struct choose_link link_of(double gbits) {
    return (struct choose_link){.link_bps = (uint64_t)(gbits * 1.25e8),
                                .latency_ns = 30000,
                                .encode_bps = 10000000000,
                                .decode_bps = 10000000000};
}

static void test_auto(void **state) {
    (void)state;
    struct choose_link slow = link_of(1), loopback = link_of(20), none = {0};
    const zipcclCodec_t wanted = zipcclCodecAuto;
    assert_int_equal(choose_codec(&slow, wanted, zipcclOpAllGather, zipcclBfloat16, 1 << 20, &g_two), zipcclCodecTier);
    assert_int_equal(choose_codec(&slow, wanted, zipcclOpBroadcast, zipcclBfloat16, 1 << 20, &g_two), zipcclCodecTier);
    struct choose_link slower = link_of(0.1);
    assert_int_equal(choose_codec(&slower, wanted, zipcclOpAllGather, zipcclFloat32, 1 << 20, &g_two), zipcclCodecTier);
    assert_int_equal(choose_codec(&loopback, wanted, zipcclOpAllGather, zipcclBfloat16, 1 << 24, &g_two),
                     zipcclCodecRaw);
    assert_int_equal(choose_codec(&none, wanted, zipcclOpAllGather, zipcclBfloat16, 1 << 24, &g_two), zipcclCodecRaw);
    assert_int_equal(choose_codec(&slow, wanted, zipcclOpAllGather, zipcclBfloat16, 100, &g_two), zipcclCodecRaw);
    assert_int_equal(choose_codec(&slow, wanted, zipcclOpAllGather, zipcclInt32, 1 << 20, &g_two), zipcclCodecRaw);
    assert_int_equal(choose_codec(&slow, wanted, zipcclOpAllGather, zipcclBfloat16, 1 << 20, &g_one), zipcclCodecRaw);
    assert_int_equal(choose_codec(&slow, wanted, zipcclOpBarrier, zipcclBfloat16, 0, &g_two), zipcclCodecRaw);
}

static void test_pinned(void **state) {
    (void)state;
    struct choose_link fast = link_of(400);
    assert_int_equal(choose_codec(&fast, zipcclCodecTop7, zipcclOpAllGather, zipcclBfloat16, 5, &g_two),
                     zipcclCodecTop7);
    assert_int_equal(choose_codec(&fast, zipcclCodecTier, zipcclOpAllGather, zipcclInt8, 5, &g_two), zipcclCodecRaw);
    assert_int_equal(choose_codec(&fast, zipcclCodecTier, zipcclOpAllGather, zipcclBfloat16, 5, &g_one),
                     zipcclCodecRaw);
    assert_int_equal(choose_codec(&fast, zipcclCodecTier, zipcclOpAllGather, zipcclBfloat16, 0, &g_two),
                     zipcclCodecRaw);
}

/* A faster link never makes coding right where a slower one did not. */
static void test_monotonic(void **state) {
    (void)state;
    for (uint64_t count = 1; count < 1ull << 32; count *= 8) {
        zipcclCodec_t before = zipcclCodecTier;
        for (double gbits = 0.01; gbits < 1000; gbits *= 1.5) {
            struct choose_link link = link_of(gbits);
            zipcclCodec_t now = choose_codec(&link, zipcclCodecAuto, zipcclOpAllGather, zipcclBfloat16, count, &g_two);
            assert_false(before == zipcclCodecRaw && now != zipcclCodecRaw);
            before = now;
        }
        assert_int_equal(before, zipcclCodecRaw);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_auto), cmocka_unit_test(test_pinned),
                                       cmocka_unit_test(test_monotonic)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

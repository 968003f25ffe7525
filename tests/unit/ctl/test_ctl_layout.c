/* SPDX-License-Identifier: Apache-2.0
 *
 * What bench collective works out: who gives what to whom, counts from files, and the reference of reductions.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/ctl/layout.h"
#include "client/ctl/reference.h"
#include "kernels/dtype.h"

#define S 4800 /* bytes: 2400 values of bf16 */

static void from_text(struct rows *rows, const char *text, bool good) {
    char path[] = "/tmp/zipccl-rows-XXXXXX", why[ROWS_WHY] = "";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    assert_int_equal(rows_load(path, rows, why), good);
    if (!good)
        assert_non_null(strstr(why, path));
    close(fd);
    unlink(path);
}

static void test_rows(void **state) {
    (void)state;
    struct rows r;
    char why[ROWS_WHY];
    static const char *const bad[] = {"",
                                      "1 2\n3",
                                      "0 0",
                                      "1 -2",
                                      "1 x",
                                      "{\"a\":1}",
                                      "1e3",
                                      "[[1, 2]]",
                                      "99999999999999999999",
                                      "{\"rows_per_expert\": [1, 2.5]}",
                                      "[{\"rows_per_expert\": [1, 2]}, {\"rows_per_expert\": [1]}]"};
    assert_true(rows_load(NULL, &r, why));
    assert_int_equal(r.experts, 8);
    assert_int_equal(r.lists, 1);
    rows_free(&r);
    assert_true(rows_load(ZIPCCL_TEST_DATA "/tensors/manifest.json", &r, why));
    assert_int_equal(r.experts, 8);
    assert_int_equal(r.lists, 2);
    assert_int_equal(r.values[15], 232);
    /* 317 + 342 of 2048 to the first of four ranks. */
    assert_true(fabs(rows_share(&r, 1, 0, 4) - 659.0 / 2048) < 1e-12);
    rows_free(&r);
    from_text(&r, "1, 2, 5\n# a comment\n\n0 0 8\n", true);
    assert_int_equal(r.lists, 2);
    assert_true(rows_share(&r, 1, 2, 3) == 1 && rows_share(&r, 3, 0, 3) == 0);
    assert_true(fabs(rows_share(&r, 0, 3, 4) - 1.0 / 9) < 1e-12); /* the list begins anew */
    rows_free(&r);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        from_text(&r, bad[i], false);
    assert_false(rows_load("/nonexistent", &r, why));
}

/* Whatever is sent arrives. */
static void test_layouts(void **state) {
    (void)state;
    static const unsigned shapes[][2] = {{1, 1}, {1, 3}, {2, 1}, {2, 2}, {3, 2}, {5, 3}};
    struct rows rows;
    char why[ROWS_WHY];
    assert_true(rows_load(NULL, &rows, why));
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++)
        for (int op = 0; op < zipcclNumOps; op++) {
            struct layout l = layout_make((zipcclOp_t)op, shapes[k][0], shapes[k][1], 2, S + 1, &rows);
            uint64_t sent = 0, came = 0;
            unsigned n = l.nranks;
            for (unsigned r = 0; r < n; r++) {
                sent += layout_send_bytes(&l, r);
                came += layout_recv_bytes(&l, r);
                assert_int_equal(layout_source(&l, layout_partner(&l, r)), r);
            }
            assert_true(l.bytes <= S && l.bytes % 2 == 0);
            if (op == zipcclOpAllToAll || op == zipcclOpAllToAllv || op == zipcclOpGather || op == zipcclOpScatter ||
                op == zipcclOpSend)
                assert_int_equal(sent, came);
            if (op == zipcclOpAllGather || op == zipcclOpAllGatherv)
                assert_int_equal(sent * n, came);
            if (op == zipcclOpReduceScatter || op == zipcclOpReduceScatterv)
                assert_int_equal(sent, came * n);
            if (shapes[k][0] == 1)
                assert_true(layout_must_send(&l) == 0);
        }
    rows_free(&rows);
}

static void must_send(zipcclOp_t op, double bytes, double alg, double factor) {
    struct layout l = layout_make(op, 2, 2, 2, S, NULL);
    assert_true(layout_must_send(&l) == bytes);
    assert_true(layout_alg_bytes(&l) == alg);
    assert_true(layout_bus_factor(&l) == factor);
}

/* Two nodes of two ranks; the factors are those of nccl-tests. */
static void test_bytes(void **state) {
    (void)state;
    must_send(zipcclOpAllGather, 2 * S, 4 * S, 0.75);
    must_send(zipcclOpBroadcast, S, S, 1);
    must_send(zipcclOpAllReduce, S, S, 1.5);
    must_send(zipcclOpReduce, S, S, 1);
    must_send(zipcclOpReduceScatter, S / 2, S, 0.75);
    must_send(zipcclOpAllToAll, S, S, 0.75);
    must_send(zipcclOpGather, 2 * S, 4 * S, 0.75);
    must_send(zipcclOpScatter, 2 * S, 4 * S, 0.75);
    must_send(zipcclOpSend, 2 * S, S, 1);
    must_send(zipcclOpBarrier, 0, 0, 1);
}

static struct reference make(zipcclDataType_t dtype, zipcclRedOp_t op, unsigned nodes, unsigned per_node,
                             const void *values) {
    return (struct reference){.dtype = dtype,
                              .redop = op,
                              .nodes = nodes,
                              .per_node = per_node,
                              .values = values,
                              .stride = dtype_get(dtype)->bytes};
}

static uint32_t reduce(zipcclDataType_t dtype, zipcclRedOp_t op, unsigned nodes, unsigned per_node,
                       const void *values) {
    struct reference r = make(dtype, op, nodes, per_node, values);
    uint32_t out = 0;
    reference_reduce(&r, 0, 1, &out);
    return out;
}

static void test_reference(void **state) {
    (void)state;
    /* 256 + 1 + 1: exact in FP32; rounded between nodes, each 1 is lost. */
    static const uint16_t bf16[] = {0x4380, 0x3f80, 0x3f80, 0x3f80};
    assert_int_equal(reduce(zipcclBfloat16, zipcclSum, 1, 3, bf16), 0x4381); /* 258 */
    assert_int_equal(reduce(zipcclBfloat16, zipcclSum, 3, 1, bf16), 0x4381); /* one rank a node: no rounding */
    assert_int_equal(reduce(zipcclBfloat16, zipcclSum, 2, 2, bf16), 0x4381); /* 256 (257 to even) + 2 */
    assert_int_equal(reduce(zipcclBfloat16, zipcclSum, 1, 4, bf16), 0x4382); /* 259 to even: 260 */
    assert_int_equal(reduce(zipcclBfloat16, zipcclAvg, 1, 2, bf16), 0x4300); /* 128.5 to even */
    assert_int_equal(reduce(zipcclBfloat16, zipcclProd, 1, 2, bf16), 0x4380);
    assert_int_equal(reduce(zipcclBfloat16, zipcclPreMulSum, 1, 2, bf16), 0x4300);
    static const uint16_t odd[] = {0x7fc1, 0x8000, 0x0000};
    assert_int_equal(reduce(zipcclBfloat16, zipcclSum, 1, 2, odd), 0x7fff);
    assert_int_equal(reduce(zipcclBfloat16, zipcclMax, 1, 3, odd), 0x0000);
    assert_int_equal(reduce(zipcclBfloat16, zipcclMin, 1, 3, odd), 0x8000);
    assert_int_equal(reduce(zipcclBfloat16, zipcclMax, 1, 1, odd), 0x7fff);
    static const uint16_t huge[] = {0x7bff, 0x7bff, 0x0001, 0x0001};
    assert_int_equal(reduce(zipcclFloat16, zipcclSum, 1, 2, huge), 0x7c00);
    assert_int_equal(reduce(zipcclFloat16, zipcclSum, 1, 2, huge + 2), 0x0002); /* denormals */
    static const uint8_t e4m3[] = {0x7e, 0x7e}, e5m2[] = {0x7b, 0x7b}, one[] = {0x38, 0x38};
    assert_int_equal(reduce(zipcclFloat8e4m3, zipcclSum, 1, 2, e4m3), 0x7e);
    assert_int_equal(reduce(zipcclFloat8e5m2, zipcclSum, 1, 2, e5m2), 0x7b);
    assert_int_equal(reduce(zipcclFloat8e4m3, zipcclSum, 1, 2, one), 0x40); /* 1 + 1 */
    static const float fp32[] = {1, 0x1p-24f, 0x1p-24f};
    float sum;
    uint32_t bits = reduce(zipcclFloat32, zipcclSum, 1, 3, fp32);
    memcpy(&sum, &bits, sizeof sum);
    assert_true(sum == 1); /* in order, each is lost */
    static const int32_t ints[] = {INT32_MAX, 1, -7, 0};
    assert_int_equal(reduce(zipcclInt32, zipcclSum, 1, 2, ints), 0x80000000u);
    assert_int_equal((int32_t)reduce(zipcclInt32, zipcclAvg, 1, 2, ints + 2), -3);
    assert_int_equal((int32_t)reduce(zipcclInt32, zipcclMin, 2, 2, ints), -7);
    assert_int_equal(reduce(zipcclUint32, zipcclMax, 2, 2, ints), (uint32_t)-7);
    static const int8_t bytes[] = {100, 100};
    assert_int_equal((int8_t)reduce(zipcclInt8, zipcclSum, 1, 2, bytes), -56);
    assert_int_equal((int8_t)reduce(zipcclInt8, zipcclAvg, 1, 2, bytes), -28);
    assert_int_equal(reference_scalar(zipcclBfloat16), 0x3f00);
    assert_int_equal(reference_scalar(zipcclFloat8e4m3), 0x30);
}

static void test_near(void **state) {
    (void)state;
    static const uint16_t bf16[] = {0x4380, 0x3f80, 0x3f80};
    struct reference r = make(zipcclBfloat16, zipcclSum, 1, 3, bf16);
    static const struct {
        uint16_t got;
        bool near;
    } cases[] = {{0x4381, true}, {0x4380, true}, {0x4384, true}, {0x4400, false}, {0x7fff, false}, {0xc381, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(reference_near(&r, 0, 1, &cases[i].got), cases[i].near);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),      cmocka_unit_test(test_layouts), cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_reference), cmocka_unit_test(test_near),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

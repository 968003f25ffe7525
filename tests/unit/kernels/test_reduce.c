/* SPDX-License-Identifier: Apache-2.0
 *
 * Reductions against reduce_reference.h, on every instruction set: every operation and dtype, all pairs of 8-bit
 * floats, special values, groups and roundings, any alignment, in place, at guard pages, in several calls.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/kernels/chunks.h"
#include "tests/unit/kernels/reduce_reference.h"

static uint64_t g_seed = 0x2545f4914f6cdd1d;

static unsigned below(unsigned n) {
    return (unsigned)(next_random(&g_seed) >> 33) % n;
}

static void compare(const struct reduce *r, const uint8_t *got, size_t i, uint64_t want) {
    const size_t bytes = dtype_get(r->dtype)->bytes;
    uint64_t bits = 0;
    memcpy(&bits, got + i * bytes, bytes);
    if (bits == want)
        return;
    print_message("%s, op %u, %s, %u inputs, value %zu:", codec_isa_name(codec_isa_current()), (unsigned)r->op,
                  dtype_get(r->dtype)->name, r->ninputs, i);
    for (uint32_t k = 0; k < r->ninputs; k++) {
        uint64_t v = 0;
        memcpy(&v, (const uint8_t *)r->inputs[k].values + i * bytes, bytes);
        print_message(" %llx%s%s", (unsigned long long)v, r->inputs[k].ends_group ? ";" : "",
                      r->inputs[k].ends_group && r->inputs[k].round_group ? "r" : "");
    }
    print_message(" -> %llx, not %llx\n", (unsigned long long)bits, (unsigned long long)want);
    fail();
}

/* Values that roundings, overflows and comparisons turn on. */
static uint64_t special_value(zipcclDataType_t dtype) {
    const struct ref_type t = ref_type_of(dtype);
    const unsigned bits = 8 * t.bytes;
    const uint64_t all = UINT64_MAX >> (64 - bits), sign = all / 2 + 1;
    if (!t.is_float) {
        const uint64_t v[] = {0, 1, all, sign, sign - 1, sign + 1, 2, all - 1};
        return v[below(8)];
    }
    const uint64_t infinity = all / 2 >> t.mantissa << t.mantissa, one = infinity / 2 >> t.mantissa << t.mantissa;
    const uint64_t v[] = {0,
                          1,
                          2,
                          (1ull << t.mantissa) - 1,
                          1ull << t.mantissa,
                          (1ull << t.mantissa) + 1,
                          one,
                          one + 1,
                          one - 1,
                          infinity - 1,
                          infinity,
                          infinity + 1,
                          all / 2,
                          all / 2 - 1,
                          infinity | (1ull << (t.mantissa - 1)),
                          infinity - (1ull << t.mantissa)};
    return v[below(16)] | (below(2) ? sign : 0);
}

static void fill_values(uint8_t *p, zipcclDataType_t dtype, size_t count) {
    const unsigned how = below(4);
    const struct ref_type t = ref_type_of(dtype);
    for (size_t i = 0; i < count; i++) {
        uint64_t v = next_random(&g_seed);
        if (how == 0 || (how == 1 && below(4) == 0))
            v = special_value(dtype);
        else if (t.is_float && how != 1) {
            /* exponents near each other, so that sums round */
            const uint64_t e = (1ull << (t.exponent_bits - 1)) - below(5);
            v = (v & ((1ull << t.mantissa) - 1)) | e << t.mantissa | (v >> 63) << (8 * t.bytes - 1);
        }
        memcpy(p + i * t.bytes, &v, t.bytes);
    }
}

#define EACH_ISA                                                                                                       \
    for (unsigned isa = 0; isa < CODEC_NUM_ISAS; isa++)                                                                \
        if (codec_isa_force((enum codec_isa)isa))

/* One random reduction of count values. */
static void check_random(zipcclRedOp_t op, zipcclDataType_t dtype, size_t count, unsigned n) {
    const size_t bytes = dtype_get(dtype)->bytes, size = count * bytes;
    const unsigned in_place = below(2) ? below(n) : n, groups = below(3), rounds = below(3);
    uint8_t *values[9], *kept = malloc(size + 1), *dst = guarded(size, 1);
    uint64_t *want = malloc((count + 1) * sizeof(*want));
    struct reduce_input in[9];
    assert_non_null(kept);
    assert_non_null(want);
    for (unsigned k = 0; k < n; k++) {
        values[k] = guarded(size, 1); /* of any alignment, by its size and from its end */
        fill_values(values[k], dtype, count);
        in[k] = (struct reduce_input){.values = values[k],
                                      .scaled = op == zipcclPreMulSum && below(4) != 0,
                                      .ends_group = groups == 1 ? below(2) : groups == 2,
                                      .round_group = rounds == 1 ? below(2) : rounds == 2};
        fill_values((uint8_t *)&in[k].scalar, dtype, 1);
    }
    struct reduce r = {.op = op, .dtype = dtype, .inputs = in, .ninputs = n, .divisor = below(3) ? n : below(70)};
    for (size_t i = 0; i < count; i++)
        want[i] = ref_reduce(&r, i);
    memcpy(kept, values[in_place % n], size);
    EACH_ISA {
        uint8_t *const to = in_place < n ? values[in_place] : dst;
        r.flags = below(2) ? CODEC_STREAMING : 0;
        r.carry = NULL;
        r.more = false;
        assert_int_equal(reduce_values(&r, to, count), zipcclSuccess);
        for (size_t i = 0; i < count; i++)
            compare(&r, to, i, want[i]);
        memcpy(values[in_place % n], kept, size);
        /* In several calls. */
        const size_t acc = reduce_carry_bytes(dtype);
        struct reduce_carry carry = {.group = malloc(count * acc + 1), .total = malloc(count * acc + 1)};
        memset(dst, 0x5a, size);
        for (unsigned k = 0, m; k < n; k += m) {
            m = 1 + below(n - k);
            struct reduce part = r;
            part.inputs = in + k;
            part.ninputs = m;
            part.carry = &carry;
            part.more = k + m < n;
            assert_int_equal(reduce_values(&part, dst, count), zipcclSuccess);
            assert_true(!part.more || count == 0 || dst[size - 1] == 0x5a);
        }
        for (size_t i = 0; i < count; i++)
            compare(&r, dst, i, want[i]);
        free(carry.group);
        free(carry.total);
    }
    for (unsigned k = 0; k < n; k++)
        release(values[k], size, 1);
    release(dst, size, 1);
    free(kept);
    free(want);
}

static void test_random(void **state) {
    (void)state;
    for (unsigned op = 0; op < zipcclNumRedOps; op++) {
        for (unsigned dtype = 0; dtype < zipcclNumTypes; dtype++) {
            for (unsigned n = 1; n <= 9; n++) {
                for (unsigned round = 0; round < 6; round++)
                    check_random((zipcclRedOp_t)op, (zipcclDataType_t)dtype, below(round % 2 ? 1200 : 140), n);
            }
        }
    }
}

static void check_pair(const struct reduce *r, uint8_t *dst, size_t count) {
    EACH_ISA {
        assert_int_equal(reduce_values(r, dst, count), zipcclSuccess);
        for (size_t i = 0; i < count; i++)
            compare(r, dst, i, ref_reduce(r, i));
    }
}

/* Every pair of encodings of 8 bits. */
static void test_all_pairs(void **state) {
    (void)state;
    static uint8_t a[65536], b[65536], dst[65536];
    static const zipcclDataType_t types[] = {zipcclFloat8e4m3, zipcclFloat8e5m2, zipcclInt8, zipcclUint8};
    for (unsigned i = 0; i < 65536; i++) {
        a[i] = (uint8_t)i;
        b[i] = (uint8_t)(i >> 8);
    }
    const struct reduce_input in[2] = {{.values = a}, {.values = b}};
    for (unsigned t = 0; t < 4; t++) {
        for (unsigned op = 0; op < zipcclNumRedOps; op++) {
            const struct reduce r = {
                .op = (zipcclRedOp_t)op, .dtype = types[t], .inputs = in, .ninputs = 2, .divisor = 3};
            check_pair(&r, dst, sizeof(dst));
        }
    }
}

/* Every encoding of 16 bits by some partners: half of the least step and what is around it, specials, scalars. */
static void test_16_bits(void **state) {
    (void)state;
    static uint16_t a[65536], b[65536], dst[65536];
    static const zipcclDataType_t types[] = {zipcclBfloat16, zipcclFloat16};
    for (unsigned i = 0; i < 65536; i++)
        a[i] = (uint16_t)i;
    for (unsigned t = 0; t < 2; t++) {
        const unsigned mantissa = t ? 10 : 7;
        for (unsigned round = 0; round < 12; round++) {
            for (unsigned i = 0; i < 65536; i++) {
                const unsigned down = (mantissa + 1 + round % 3) << mantissa, low = i & 0x7fff;
                b[i] = (uint16_t)(round < 6 ? (low > down ? low - down : round) | (round & 1) << 15
                                            : special_value(types[t]));
            }
            struct reduce_input in[2] = {{.values = a}, {.values = b, .scaled = round % 2, .scalar = 0x3eab}};
            for (unsigned op = 0; op < zipcclNumRedOps; op++) {
                struct reduce r = {.op = (zipcclRedOp_t)op, .dtype = types[t], .inputs = in, .ninputs = 2};
                r.divisor = round + 1;
                check_pair(&r, (uint8_t *)dst, 65536);
            }
        }
    }
}

/* Roundings of FP32 to the narrow types, through scalars that make products of all sizes. */
static void test_scaled(void **state) {
    (void)state;
    enum { N = 4096 };
    static uint8_t a[8 * N], b[8 * N], dst[8 * N];
    for (unsigned dtype = 0; dtype < zipcclNumTypes; dtype++) {
        for (unsigned round = 0; round < 24; round++) {
            fill_values(a, (zipcclDataType_t)dtype, N);
            fill_values(b, (zipcclDataType_t)dtype, N);
            struct reduce_input in[2] = {{.values = a, .scaled = true, .ends_group = true, .round_group = round % 2},
                                         {.values = b, .scaled = true}};
            fill_values((uint8_t *)&in[0].scalar, (zipcclDataType_t)dtype, 1);
            fill_values((uint8_t *)&in[1].scalar, (zipcclDataType_t)dtype, 1);
            const struct reduce r = {
                .op = zipcclPreMulSum, .dtype = (zipcclDataType_t)dtype, .inputs = in, .ninputs = round % 3 ? 2 : 1};
            check_pair(&r, dst, N);
        }
    }
}

/* The rule in a few lines that can be read. */
static void test_rule(void **state) {
    (void)state;
    const uint16_t one = 0x3f80, tiny = 0x3b80; /* 1 and 2^-8, in BF16: half of 1's last place */
    uint16_t out = 0;
    struct reduce_input in[3] = {{.values = &one}, {.values = &tiny}, {.values = &tiny}};
    struct reduce r = {.op = zipcclSum, .dtype = zipcclBfloat16, .inputs = in, .ninputs = 3};
    EACH_ISA {
        in[1].ends_group = in[1].round_group = false;
        assert_int_equal(reduce_values(&r, &out, 1), zipcclSuccess);
        assert_int_equal(out, 0x3f81); /* rounded once */
        in[1].ends_group = in[1].round_group = true;
        assert_int_equal(reduce_values(&r, &out, 1), zipcclSuccess);
        assert_int_equal(out, 0x3f80); /* rounded at each step, to even */
        const uint8_t inf = 0x7c, minus_zero = 0x80, zero = 0, nan = 0xff;
        uint8_t narrow = 0;
        struct reduce_input pair[2] = {{.values = &inf}, {.values = &inf}};
        struct reduce r8 = {.op = zipcclSum, .dtype = zipcclFloat8e5m2, .inputs = pair, .ninputs = 2};
        assert_int_equal(reduce_values(&r8, &narrow, 1), zipcclSuccess);
        assert_int_equal(narrow, 0x7b);
        pair[0].values = &minus_zero;
        pair[1].values = &zero;
        r8.op = zipcclMin;
        assert_int_equal(reduce_values(&r8, &narrow, 1), zipcclSuccess);
        assert_int_equal(narrow, 0x80);
        pair[1].values = &nan;
        assert_int_equal(reduce_values(&r8, &narrow, 1), zipcclSuccess);
        assert_int_equal(narrow, 0x80);
        pair[0].values = &nan;
        assert_int_equal(reduce_values(&r8, &narrow, 1), zipcclSuccess);
        assert_int_equal(narrow, 0x7f);
        const int8_t low = -128, minus_one = -1;
        struct reduce_input ints[2] = {{.values = &low}, {.values = &minus_one}};
        struct reduce ri = {.op = zipcclAvg, .dtype = zipcclInt8, .inputs = ints, .ninputs = 2, .divisor = 2};
        assert_int_equal(reduce_values(&ri, &narrow, 1), zipcclSuccess);
        assert_int_equal(narrow, 63); /* -129 wraps to 127 */
    }
    r.ninputs = 0;
    assert_int_equal(reduce_values(&r, &out, 1), zipcclInvalidArgument);
    r.ninputs = 1;
    r.op = zipcclNumRedOps;
    assert_int_equal(reduce_values(&r, &out, 1), zipcclInvalidArgument);
    r.op = zipcclSum;
    r.dtype = zipcclNumTypes;
    assert_int_equal(reduce_values(&r, &out, 1), zipcclInvalidArgument);
    assert_int_equal(reduce_carry_bytes(zipcclNumTypes), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rule),    cmocka_unit_test(test_random), cmocka_unit_test(test_all_pairs),
        cmocka_unit_test(test_16_bits), cmocka_unit_test(test_scaled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

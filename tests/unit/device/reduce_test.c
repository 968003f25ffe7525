/* SPDX-License-Identifier: Apache-2.0
 *
 * DEVICE_REDUCE: coded inputs of every codec beside raw ones give what reduce_values gives of the decoded values;
 * corrupt ones are told. That reduce_values is right is the business of tests/unit/kernels/test_reduce.c.
 */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/device/device.h"
#include "kernels/reduce.h"
#include "tests/unit/kernels/chunks.h"

#define MAX_INPUTS 70

static struct device *g_device;
static uint64_t g_seed = 0x9e3779b97f4a7c15;

static unsigned below(unsigned n) {
    return (unsigned)(next_random(&g_seed) >> 33) % n;
}

static int set_up(void **state) {
    (void)state;
    const struct device_config config = {.workers = 2, .inline_bytes = 4096};
    const char *why;
    return device_host.open(&config, &g_device, &why);
}

static int tear_down(void **state) {
    (void)state;
    device_host.close(g_device);
    return 0;
}

static void job_done(struct device_job *job) {
    *(bool *)job->arg = true;
}

static bool run(struct device_job *job) {
    bool finished = false;
    job->done = job_done;
    job->arg = &finished;
    if (device_host.submit(g_device, job))
        return true;
    while (!finished) {
        struct pollfd p = {.fd = device_host.fd(g_device), .events = POLLIN};
        assert_int_equal(poll(&p, 1, 30000), 1);
        device_host.poll(g_device);
    }
    return false;
}

/* A reduction and what it works on; parts and result end at pages without access. */
struct task {
    zipcclDataType_t dtype;
    size_t count, bytes;
    unsigned n;
    uint8_t *values[MAX_INPUTS], *fixed[MAX_INPUTS], *dynamic[MAX_INPUTS], *dst;
    struct device_input in[MAX_INPUTS];
    struct device_job job;
};

static void code(struct task *t, unsigned k, zipcclCodec_t codec) {
    const struct codec_sizes bound = codec_bound(codec, t->dtype, t->count);
    struct device_input *in = &t->in[k];
    uint8_t *fixed = device_host.alloc(g_device, bound.static_bytes + bound.dynamic_bytes + 1);
    struct device_job job = {.work = DEVICE_ENCODE,
                             .codec = codec,
                             .dtype = t->dtype,
                             .src = t->values[k],
                             .dst = fixed,
                             .dst_dynamic = fixed + bound.static_bytes,
                             .count = t->count,
                             .verify = true};
    (void)run(&job);
    assert_int_equal(job.result, zipcclSuccess);
    t->fixed[k] = guarded(job.out_static, 1);
    t->dynamic[k] = guarded(job.out_dynamic, 1);
    memcpy(t->fixed[k], fixed, job.out_static);
    memcpy(t->dynamic[k], fixed + bound.static_bytes, job.out_dynamic);
    device_host.free(g_device, fixed, bound.static_bytes + bound.dynamic_bytes + 1);
    in->codec = codec;
    in->src = t->fixed[k];
    in->src_static = job.out_static;
    in->src_dynamic = t->dynamic[k];
    in->src_dynamic_bytes = job.out_dynamic;
    in->verify = below(2);
    in->hash = job.hash;
}

static struct task *make(zipcclRedOp_t op, zipcclDataType_t dtype, size_t count, unsigned n, unsigned coded_in_8) {
    struct task *t = calloc(1, sizeof(*t));
    assert_non_null(t);
    t->dtype = dtype;
    t->count = count;
    t->bytes = count * dtype_get(dtype)->bytes;
    t->n = n;
    t->dst = guarded(t->bytes, 1);
    const unsigned groups = below(3);
    const bool codable = codec_supports(zipcclCodecTier, dtype);
    for (unsigned k = 0; k < n; k++) {
        t->values[k] = guarded(t->bytes, 1);
        fill(t->values[k], dtype, count, codable ? (enum input)below(NUM_INPUTS) : IN_RANDOM, below(1000));
        t->in[k] = (struct device_input){.scaled = op == zipcclPreMulSum && below(2),
                                         .ends_group = groups == 1 ? below(2) : groups == 2,
                                         .round_group = below(2),
                                         .src = t->values[k]};
        fill((uint8_t *)&t->in[k].scalar, dtype, 1, codable ? IN_NARROW : IN_RANDOM, below(1000));
        if (codable && below(8) < coded_in_8)
            code(t, k, below(2) ? zipcclCodecTier : zipcclCodecTop7);
    }
    t->job = (struct device_job){.work = DEVICE_REDUCE,
                                 .dtype = dtype,
                                 .flags = below(2) ? CODEC_STREAMING : 0,
                                 .dst = t->dst,
                                 .count = count,
                                 .inputs = t->in,
                                 .ninputs = n,
                                 .redop = op,
                                 .divisor = below(2) * n};
    return t;
}

static void drop(struct task *t) {
    for (unsigned k = 0; k < t->n; k++) {
        release(t->values[k], t->bytes, 1);
        if (t->fixed[k])
            release(t->fixed[k], t->in[k].src_static, 1);
        if (t->dynamic[k])
            release(t->dynamic[k], t->in[k].src_dynamic_bytes, 1);
    }
    release(t->dst, t->bytes, 1);
    free(t);
}

/* The result by way of the values. */
static uint8_t *expected(const struct task *t) {
    struct reduce_input in[MAX_INPUTS];
    uint8_t *want = malloc(t->bytes + 1);
    assert_non_null(want);
    for (unsigned k = 0; k < t->n; k++)
        in[k] = (struct reduce_input){t->values[k], t->in[k].scalar, t->in[k].scaled, t->in[k].ends_group,
                                      t->in[k].round_group};
    const struct reduce r = {
        .op = t->job.redop, .dtype = t->dtype, .divisor = t->job.divisor, .inputs = in, .ninputs = t->n};
    assert_int_equal(reduce_values(&r, want, t->count), zipcclSuccess);
    return want;
}

static void check(struct task *t) {
    uint8_t *want = expected(t);
    const bool was_inline = run(&t->job);
    assert_int_equal(was_inline, t->bytes * t->n < 4096);
    assert_int_equal(t->job.result, zipcclSuccess);
    assert_true(t->bytes == 0 || memcmp(t->dst, want, t->bytes) == 0);
    /* In the place of a raw input. */
    for (unsigned k = 0; k < t->n; k++) {
        if (t->in[k].codec != zipcclCodecRaw)
            continue;
        t->job.dst = t->values[k];
        (void)run(&t->job);
        assert_int_equal(t->job.result, zipcclSuccess);
        assert_true(t->bytes == 0 || memcmp(t->values[k], want, t->bytes) == 0);
        break;
    }
    free(want);
    drop(t);
}

/* Races do not depend on values: under the thread sanitizer a part of the cases has to do. */
#if defined(__SANITIZE_THREAD__)
#    define CASE_STEP 5u
#    define ROUNDS    60u
#else
#    define CASE_STEP 1u
#    define ROUNDS    300u
#endif

static void test_mixed(void **state) {
    (void)state;
    static const size_t counts[] = {0, 1, 300, 511, 512, 32768, 32769, 70001};
    for (unsigned dtype = 0; dtype < zipcclNumTypes; dtype++) {
        for (unsigned op = 0; op < zipcclNumRedOps; op++) {
            for (unsigned c = (dtype + op) % CASE_STEP; c < 8; c += CASE_STEP)
                check(make((zipcclRedOp_t)op, (zipcclDataType_t)dtype, counts[c], 1 + below(6), below(9)));
        }
    }
}

/* More coded inputs than wait decoded at once, and more than there was room for. */
static void test_many_inputs(void **state) {
    (void)state;
    for (unsigned t = 0; t < NUM_FLOATS; t++) {
        for (unsigned op = t % CASE_STEP; op < zipcclNumRedOps; op += CASE_STEP) {
            check(make((zipcclRedOp_t)op, g_floats[t], 40000, 17 + below(4), 8));
            check(make((zipcclRedOp_t)op, g_floats[t], 33000, 12 + below(9), 5));
        }
        check(make(zipcclSum, g_floats[t], 1000, MAX_INPUTS, 6));
    }
}

static void test_corrupt(void **state) {
    (void)state;
    unsigned told = 0;
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct task *t =
            make((zipcclRedOp_t)below(zipcclNumRedOps), g_floats[below(NUM_FLOATS)], below(70000), 1 + below(10), 6);
        bool bad[MAX_INPUTS] = {false}, any = false;
        uint8_t *back = malloc(t->bytes + 1);
        assert_non_null(back);
        for (unsigned k = 0; k < t->n; k++) {
            struct device_input *in = &t->in[k];
            if (in->codec == zipcclCodecRaw)
                continue;
            if (below(3) == 0) {
                const unsigned where = below(3);
                uint8_t *p = where == 2 && in->src_dynamic_bytes ? t->dynamic[k] : t->fixed[k];
                const size_t n = p == t->dynamic[k]                    ? in->src_dynamic_bytes
                                 : where == 0 && in->src_static > 2048 ? 2048
                                                                       : in->src_static;
                p[below((unsigned)n)] ^= (uint8_t)(1 + below(255));
                bad[k] = in->verify;
            }
            if (codec_decode(in->codec, t->dtype, in->src, in->src_static, in->src_dynamic, in->src_dynamic_bytes, back,
                             t->count, 0) != zipcclSuccess)
                bad[k] = true;
            else
                memcpy(t->values[k], back, t->bytes);
            any |= bad[k];
        }
        uint8_t *want = expected(t);
        t->job.bad_input = MAX_INPUTS;
        (void)run(&t->job);
        assert_int_equal(t->job.result, any ? zipcclCorruptData : zipcclSuccess);
        if (any)
            assert_true(t->job.bad_input < t->n && bad[t->job.bad_input]);
        else
            assert_true(t->bytes == 0 || memcmp(t->dst, want, t->bytes) == 0);
        told += any;
        free(want);
        free(back);
        drop(t);
    }
    assert_true(told > ROUNDS / 10 && told < ROUNDS);
}

/* What no caller should ask. */
static void test_refused(void **state) {
    (void)state;
    int32_t a = 5, b = 0;
    struct device_input in = {.src = &a};
    struct device_job job = {
        .work = DEVICE_REDUCE, .dtype = zipcclInt32, .dst = &b, .count = 1, .inputs = &in, .ninputs = 1};
    assert_true(run(&job));
    assert_int_equal(job.result, zipcclSuccess);
    assert_int_equal(b, 5);
    in.codec = zipcclCodecTier; /* integers are never coded */
    assert_true(run(&job));
    assert_int_equal(job.result, zipcclInvalidArgument);
    in.codec = zipcclCodecRaw;
    job.redop = zipcclNumRedOps;
    assert_true(run(&job));
    assert_int_equal(job.result, zipcclInvalidArgument);
    job.redop = zipcclSum;
    job.ninputs = 0;
    assert_true(run(&job));
    assert_int_equal(job.result, zipcclInvalidArgument);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mixed),
        cmocka_unit_test(test_many_inputs),
        cmocka_unit_test(test_corrupt),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

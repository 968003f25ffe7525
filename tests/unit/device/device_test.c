/* SPDX-License-Identifier: Apache-2.0
 *
 * The host device: what may be imported, scratch memory, jobs inline and on workers, hashes.
 */
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/device/device.h"
#include "kernels/codec.h"

static struct device *g_device;
static unsigned g_done;

static int set_up(void **state) {
    (void)state;
    struct device_config config = {.workers = 3, .inline_bytes = 1024};
    const char *why;
    return device_host.open(&config, &g_device, &why);
}

static int tear_down(void **state) {
    (void)state;
    device_host.close(g_device);
    return 0;
}

static int new_memfd(size_t bytes, unsigned seals) {
    int fd = memfd_create("zipccl-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    if (seals)
        assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static zipcclResult_t import(int fd, size_t bytes, struct device_memory *m, const char **why) {
    const struct device_import import = {.fd = fd, .bytes = bytes};
    return device_host.import(g_device, &import, m, why);
}

static void refuse(int fd, size_t bytes) {
    struct device_memory m;
    const char *why = NULL;
    assert_int_equal(import(fd, bytes, &m, &why), zipcclInvalidArgument);
    assert_non_null(why);
    assert_null(m.base);
    close(fd);
}

static void test_import(void **state) {
    (void)state;
    const char *why;
    struct device_memory m;
    int fd = new_memfd(10000, F_SEAL_SHRINK);
    assert_int_equal(import(fd, 10000, &m, &why), zipcclSuccess);
    m.base[9999] = 7;
    uint8_t seen = 0;
    assert_int_equal(pread(fd, &seen, 1, 9999), 1);
    assert_int_equal(seen, 7);
    close(fd);
    m.base[0] = 1; /* mapped still */
    (void)device_host.release(g_device, &m, NULL);
    assert_null(m.base);
    refuse(new_memfd(10000, 0), 10000);
    refuse(new_memfd(10000, F_SEAL_SHRINK), 10001);
    refuse(new_memfd(10000, F_SEAL_SHRINK), 0);
    refuse(new_memfd(10000, F_SEAL_SHRINK | F_SEAL_WRITE), 10000);
    refuse(open("/dev/zero", O_RDWR), 4096);
}

static void test_alloc(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 4096, 4097, 65536, 70000, 1 << 20, (3 << 20) + 5, 9 << 20};
    for (unsigned round = 0; round < 2; round++) {
        uint8_t *p[8];
        for (unsigned i = 0; i < 8; i++) {
            p[i] = device_host.alloc(g_device, sizes[i]);
            assert_non_null(p[i]);
            assert_int_equal((uintptr_t)p[i] % 4096, 0);
            memset(p[i], (int)i, sizes[i]);
        }
        for (unsigned i = 0; i < 8; i++) {
            assert_int_equal(p[i][sizes[i] - 1], i);
            device_host.free(g_device, p[i], sizes[i]);
        }
    }
    uint8_t *p = device_host.alloc(g_device, 1 << 20);
    device_host.free(g_device, p, 1 << 20);
    assert_ptr_equal(device_host.alloc(g_device, 1 << 20), p);
    device_host.free(g_device, p, 1 << 20);
    device_host.free(g_device, NULL, 5);
}

static void job_done(struct device_job *job) {
    g_done++;
    *(bool *)job->arg = true;
}

static void run(struct device_job *job, bool *was_inline) {
    bool finished = false;
    job->done = job_done;
    job->arg = &finished;
    *was_inline = device_host.submit(g_device, job);
    while (!*was_inline && !finished) {
        struct pollfd p = {.fd = device_host.fd(g_device), .events = POLLIN};
        assert_int_equal(poll(&p, 1, 10000), 1);
        device_host.poll(g_device);
    }
}

static void test_codec(void **state) {
    (void)state;
    static const size_t counts[] = {1, 100, 511, 512, 5000, 70001};
    for (unsigned c = 0; c < 6; c++) {
        size_t n = counts[c];
        uint16_t *values = malloc(n * 2), *back = malloc(n * 2);
        for (size_t i = 0; i < n; i++)
            values[i] = (uint16_t)(0x3c00 + (i * 37) % 1024);
        struct codec_sizes bound = codec_bound(zipcclCodecTier, zipcclBfloat16, n);
        uint8_t *slot = device_host.alloc(g_device, bound.static_bytes + bound.dynamic_bytes);
        struct device_job encode = {.work = DEVICE_ENCODE,
                                    .codec = zipcclCodecTier,
                                    .dtype = zipcclBfloat16,
                                    .src = values,
                                    .dst = slot,
                                    .dst_dynamic = slot + bound.static_bytes,
                                    .count = n,
                                    .verify = true};
        bool was_inline;
        run(&encode, &was_inline);
        assert_int_equal(was_inline, n * 2 < 1024);
        assert_int_equal(encode.result, zipcclSuccess);
        struct device_job decode = {.work = DEVICE_DECODE,
                                    .codec = zipcclCodecTier,
                                    .dtype = zipcclBfloat16,
                                    .src = slot,
                                    .src_static = encode.out_static,
                                    .src_dynamic = slot + bound.static_bytes,
                                    .src_dynamic_bytes = encode.out_dynamic,
                                    .dst = back,
                                    .count = n,
                                    .verify = true,
                                    .hash = encode.hash};
        run(&decode, &was_inline);
        assert_int_equal(decode.result, zipcclSuccess);
        assert_memory_equal(values, back, n * 2);
        decode.hash ^= 1;
        run(&decode, &was_inline);
        assert_int_equal(decode.result, zipcclCorruptData);
        /* The hash is of the parts one after the other, however they lie. */
        uint8_t *joined = malloc(encode.out_static + encode.out_dynamic);
        memcpy(joined, slot, encode.out_static);
        memcpy(joined + encode.out_static, slot + bound.static_bytes, encode.out_dynamic);
        decode.src = joined;
        decode.src_dynamic = joined + encode.out_static;
        decode.hash ^= 1;
        run(&decode, &was_inline);
        assert_int_equal(decode.result, zipcclSuccess);
        free(joined);
        device_host.free(g_device, slot, bound.static_bytes + bound.dynamic_bytes);
        free(values);
        free(back);
    }
}

static void test_many(void **state) {
    (void)state;
    enum { N = 500, BYTES = 5000 };
    struct device_job *jobs = calloc(N, sizeof(*jobs));
    uint8_t *src = malloc(BYTES), *dst = calloc(N, BYTES);
    bool *finished = calloc(N, sizeof(*finished));
    memset(src, 9, BYTES);
    g_done = 0;
    for (unsigned i = 0; i < N; i++) {
        jobs[i] = (struct device_job){.work = DEVICE_COPY,
                                      .src = src,
                                      .dst = dst + (size_t)i * BYTES,
                                      .count = BYTES,
                                      .verify = i % 2,
                                      .done = job_done,
                                      .arg = &finished[i]};
        assert_false(device_host.submit(g_device, &jobs[i]));
    }
    while (g_done < N) {
        struct pollfd p = {.fd = device_host.fd(g_device), .events = POLLIN};
        assert_int_equal(poll(&p, 1, 10000), 1);
        device_host.poll(g_device);
    }
    for (unsigned i = 0; i < N; i++) {
        assert_true(finished[i] && dst[(size_t)i * BYTES + BYTES - 1] == 9);
        assert_int_equal(jobs[i].hash, i % 2 ? jobs[1].hash : 0);
    }
    /* Closing waits for jobs and runs no callbacks. */
    struct device_config config = {.workers = 1};
    struct device *d;
    const char *why;
    assert_int_equal(device_host.open(&config, &d, &why), zipcclSuccess);
    for (unsigned i = 0; i < N; i++)
        assert_false(device_host.submit(d, &jobs[i]));
    device_host.close(d);
    assert_int_equal(g_done, N);
    free(jobs);
    free(src);
    free(dst);
    free(finished);
}

static void test_describe(void **state) {
    (void)state;
    char text[64];
    device_host.describe(g_device, text, sizeof(text));
    assert_true(strncmp(text, "host: 3 workers, ", 17) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_import), cmocka_unit_test(test_alloc),    cmocka_unit_test(test_codec),
        cmocka_unit_test(test_many),   cmocka_unit_test(test_describe),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

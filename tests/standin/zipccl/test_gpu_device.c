/* SPDX-License-Identifier: Apache-2.0
 *
 * The device seam through worker processes: jobs on memory of GPUs, alone and of two GPUs at once, give the bits that
 * the host device gives; flows share a GPU. This process is the trainer, whose memory the workers open, and the daemon,
 * which does not.
 */
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gpu_buffers.h"
#include "kernels/codec.h"
#include "tests/unit/worker/waited.h"

#define COUNT  20000u
#define BYTES  (COUNT * sizeof(float))
#define INPUTS 11u  /* of a reduction: more than one record has */
#define MANY   700u /* jobs at once: more than a worker has */
#define SHARES 120u /* jobs of a flow; as large as a small one may not be */
#define LARGE  ((size_t)300 << 10)

static struct device *g_device;

/* A buffer of the trainer on a GPU, as it is here and as the device knows it. */
struct piece {
    float *own;
    struct device_memory memory;
};

static void open_device(void) {
    const struct device_config config = {.workers = 1, .worker_program = ZIPCCL_TEST_BIN "/zipccld"};
    const char *why = "";
    E2E_CHECK(device_workers.open(&config, &g_device, &why) == zipcclSuccess, "%s", why);
}

static void piece_new(struct piece *b, int gpu, size_t bytes) {
    static uint64_t ids;
    struct device_gpu info;
    cudaIpcMemHandle_t handle;
    const char *why = "";
    CUDA_OK(cudaSetDevice(gpu));
    CUDA_OK(cudaMalloc((void **)&b->own, bytes));
    CUDA_OK(cudaIpcGetMemHandle(&handle, b->own));
    E2E_CHECK(device_workers.gpu(g_device, (unsigned)gpu, &info), "GPU %d", gpu);
    const struct device_import import = {.kind = DEVICE_MEMORY_CUDA_IPC,
                                         .fd = -1,
                                         .bytes = bytes,
                                         .handle = (const uint8_t *)&handle,
                                         .uuid = info.uuid,
                                         .pid = getpid(),
                                         .process_start = 1,
                                         .id = ++ids};
    E2E_CHECK(waited_import(g_device, &import, &b->memory, &why) == zipcclSuccess, "%s", why);
    E2E_CHECK(device_workers.on_gpu(g_device, b->memory.base + bytes - 1), "its end");
}

static void piece_free(struct piece *b) {
    waited_release(g_device, &b->memory);
    CUDA_OK(cudaFree(b->own)); /* the stand-in stops a program that frees what another one has open */
}

static void fill(float *values, unsigned seed) {
    for (unsigned i = 0; i < COUNT; i++)
        values[i] = (float)((i * 2654435761u + seed * 40503u) >> 12) * 1e-4f - 50.f;
}

static void put(struct piece *b, const float *values) {
    CUDA_OK(cudaMemcpy(b->own, values, BYTES, cudaMemcpyDefault));
}

static void expect(struct piece *b, const float *values, const char *what) {
    static float got[COUNT];
    CUDA_OK(cudaMemcpy(got, b->own, BYTES, cudaMemcpyDefault));
    E2E_CHECK(memcmp(got, values, BYTES) == 0, "%s: other bits", what);
}

static unsigned g_left;

static void job_done(struct device_job *job) {
    g_left--;
    job->arg = NULL;
}

static void submit(struct device_job *job) {
    job->done = job_done;
    job->arg = job;
    g_left++;
    if (device_workers.submit(g_device, job))
        job_done(job);
}

static void wait_all(void) {
    struct pollfd fd = {.fd = device_workers.fd(g_device), .events = POLLIN};
    double end = e2e_now() + 30;
    while (g_left > 0) {
        E2E_CHECK(e2e_now() < end, "%u jobs do not end", g_left);
        (void)poll(&fd, 1, 100);
        device_workers.poll(g_device);
    }
}

static void run(struct device_job *job) {
    submit(job);
    wait_all();
    E2E_CHECK(job->result == zipcclSuccess, "job %d: %s", (int)job->work, job->why ? job->why : "");
}

/* Coded on one GPU, decoded on the other, with the host's codec between them. */
static void case_codec(struct e2e *e) {
    static float values[COUNT], host[COUNT];
    struct piece a, b;
    (void)e;
    open_device();
    piece_new(&a, 0, BYTES);
    piece_new(&b, 1, BYTES);
    fill(values, 1);
    put(&a, values);
    const struct codec_sizes bound = codec_bound(zipcclCodecTier, zipcclFloat32, COUNT);
    uint8_t *slot = device_workers.alloc(g_device, bound.static_bytes + bound.dynamic_bytes);
    uint8_t *plain = device_workers.alloc(g_device, BYTES);
    E2E_CHECK(slot && plain, "scratch");
    struct device_job encode = {.work = DEVICE_ENCODE,
                                .codec = zipcclCodecTier,
                                .dtype = zipcclFloat32,
                                .src = a.memory.base,
                                .dst = slot,
                                .dst_dynamic = slot + bound.static_bytes,
                                .count = COUNT,
                                .verify = true};
    run(&encode);
    struct device_job decode = {.work = DEVICE_DECODE,
                                .codec = zipcclCodecTier,
                                .dtype = zipcclFloat32,
                                .src = slot,
                                .src_static = encode.out_static,
                                .src_dynamic = slot + bound.static_bytes,
                                .src_dynamic_bytes = encode.out_dynamic,
                                .dst = b.memory.base,
                                .count = COUNT,
                                .verify = true,
                                .hash = encode.hash};
    run(&decode);
    expect(&b, values, "decoded on the other GPU");
    decode.dst = plain;
    run(&decode);
    memcpy(host, plain, BYTES);
    E2E_CHECK(memcmp(host, values, BYTES) == 0, "decoded on the host: other bits");
    slot[bound.static_bytes] ^= 1;
    decode.dst = b.memory.base;
    submit(&decode);
    wait_all();
    E2E_CHECK(decode.result == zipcclCorruptData, "a wrong bit gave %d", (int)decode.result);
    device_workers.free(g_device, slot, bound.static_bytes + bound.dynamic_bytes);
    device_workers.free(g_device, plain, BYTES);
    piece_free(&a);
    piece_free(&b);
    device_workers.close(g_device);
}
E2E_CASE(codec, 60)

/* Inputs on both GPUs and in host memory; copies between GPUs. */
static void case_two_gpus(struct e2e *e) {
    static float values[INPUTS][COUNT], want[COUNT];
    struct piece in[INPUTS - 1], out;
    struct device_input inputs[INPUTS];
    (void)e;
    open_device();
    float *last = device_workers.alloc(g_device, BYTES), *sum = device_workers.alloc(g_device, BYTES);
    E2E_CHECK(last && sum, "scratch");
    for (unsigned i = 0; i < INPUTS; i++) {
        fill(values[i], i);
        inputs[i] = (struct device_input){.codec = zipcclCodecRaw, .src = last};
        if (i + 1 == INPUTS)
            break;
        piece_new(&in[i], (int)(i % 2), BYTES);
        put(&in[i], values[i]);
        inputs[i].src = in[i].memory.base;
    }
    memcpy(last, values[INPUTS - 1], BYTES);
    piece_new(&out, 1, BYTES);
    struct device_job reduce = {.work = DEVICE_REDUCE,
                                .dtype = zipcclFloat32,
                                .inputs = inputs,
                                .ninputs = INPUTS,
                                .redop = zipcclSum,
                                .dst = out.memory.base,
                                .count = COUNT};
    run(&reduce);
    /* The same on the host: all inputs copied there, which is itself a job. */
    float *copies = device_workers.alloc(g_device, INPUTS * BYTES);
    E2E_CHECK(copies, "scratch");
    for (unsigned i = 0; i < INPUTS; i++) {
        float *to = copies + (size_t)i * COUNT;
        struct device_job copy = {.work = DEVICE_COPY, .src = inputs[i].src, .dst = to, .count = BYTES};
        run(&copy);
        E2E_CHECK(memcmp(to, values[i], BYTES) == 0, "input %u was copied wrongly", i);
        inputs[i].src = to;
    }
    reduce.dst = sum;
    run(&reduce);
    memcpy(want, sum, BYTES);
    expect(&out, want, "a reduction of both GPUs");
    struct device_job move = {.work = DEVICE_COPY, .src = out.memory.base, .dst = in[0].memory.base, .count = BYTES};
    run(&move);
    expect(&in[0], want, "a copy from GPU 1 to GPU 0");
    device_workers.free(g_device, copies, INPUTS * BYTES);
    device_workers.free(g_device, last, BYTES);
    device_workers.free(g_device, sum, BYTES);
    for (unsigned i = 0; i + 1 < INPUTS; i++)
        piece_free(&in[i]);
    piece_free(&out);
    device_workers.close(g_device);
}
E2E_CASE(two_gpus, 60)

/* More jobs than a worker has at once, and a client's memfd among their memory. */
static void case_many(struct e2e *e) {
    static struct device_job jobs[MANY];
    static float values[COUNT];
    const size_t step = BYTES / MANY / 4 * 4;
    struct device_memory host;
    struct piece a;
    const char *why = "";
    (void)e;
    open_device();
    piece_new(&a, 0, BYTES);
    int fd = memfd_create("client", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    E2E_CHECK(fd >= 0 && ftruncate(fd, BYTES) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0, "memfd");
    const struct device_import import = {.kind = DEVICE_MEMORY_HOST, .fd = fd, .bytes = BYTES};
    E2E_CHECK(waited_import(g_device, &import, &host, &why) == zipcclSuccess, "%s", why);
    close(fd);
    fill(values, 5);
    memset(host.base, 0, BYTES);
    put(&a, values);
    for (unsigned i = 0; i < MANY; i++) {
        size_t at = i * step, bytes = i + 1 == MANY ? BYTES - at : step;
        jobs[i] =
            (struct device_job){.work = DEVICE_COPY, .src = a.memory.base + at, .dst = host.base + at, .count = bytes};
        submit(&jobs[i]);
    }
    wait_all();
    for (unsigned i = 0; i < MANY; i++)
        E2E_CHECK(jobs[i].result == zipcclSuccess, "job %u: %s", i, jobs[i].why ? jobs[i].why : "");
    E2E_CHECK(memcmp(host.base, values, BYTES) == 0, "other bits");
    waited_release(g_device, &host);
    piece_free(&a);
    device_workers.close(g_device);
}
E2E_CASE(many, 60)

static const void *g_order[2 * SHARES + 1]; /* flows of the jobs that have ended */
static unsigned g_norder;

static void in_order(struct device_job *job) {
    g_order[g_norder++] = job->arg;
    g_left--;
}

/* Two flows of weights 3 and 1 keep a GPU busy, a third one of high priority comes last. */
static void case_shares(struct e2e *e) {
    static struct device_job jobs[2 * SHARES + 1];
    struct piece from, to;
    unsigned before = 0, of_a = 0, of_both = 0;
    (void)e;
    open_device();
    piece_new(&from, 0, LARGE);
    piece_new(&to, 0, SHARES * LARGE);
    CUDA_OK(cudaMemset(from.own, 0x5a, LARGE));
    CUDA_OK(cudaMemset(to.own, 0, SHARES * LARGE));
    CUDA_OK(cudaDeviceSynchronize()); /* they are asynchronous, and the worker is another process */
    struct device_flow *a = device_workers.flow_open(g_device, 3, FLOW_NORMAL);
    struct device_flow *b = device_workers.flow_open(g_device, 1, FLOW_NORMAL);
    struct device_flow *high = device_workers.flow_open(g_device, 1, FLOW_HIGH);
    E2E_CHECK(a && b && high, "flows");
    for (unsigned i = 0; i <= 2 * SHARES; i++) {
        struct device_flow *flow = i == 2 * SHARES ? high : i % 2 ? a : b;
        jobs[i] = (struct device_job){.work = DEVICE_COPY,
                                      .src = from.memory.base,
                                      .dst = to.memory.base + (i / 2 % SHARES) * LARGE,
                                      .count = LARGE,
                                      .flow = flow,
                                      .done = in_order,
                                      .arg = flow};
        g_left++;
        E2E_CHECK(!device_workers.submit(g_device, &jobs[i]), "job %u has not waited", i);
    }
    wait_all();
    while (g_order[before] != high)
        before++;
    E2E_CHECK(before <= 32, "%u jobs have passed the one of high priority", before);
    for (unsigned i = 0; i <= 2 * SHARES; i++)
        E2E_CHECK(jobs[i].result == zipcclSuccess, "job %u: %s", i, jobs[i].why ? jobs[i].why : "");
    /* Behind what the worker had at once, while both wait. */
    for (unsigned i = 32; i < 32 + SHARES; i++) {
        of_a += g_order[i] == a;
        of_both += g_order[i] == a || g_order[i] == b;
    }
    E2E_CHECK(of_a * 4 >= of_both * 3 - 24 && of_a * 4 <= of_both * 3 + 24, "%u of %u", of_a, of_both);
    uint8_t *got = malloc(SHARES * LARGE);
    E2E_CHECK(got, "memory");
    CUDA_OK(cudaMemcpy(got, to.own, SHARES * LARGE, cudaMemcpyDefault));
    for (size_t i = 0; i < SHARES * LARGE; i++)
        E2E_CHECK(got[i] == 0x5a, "byte %zu", i);
    free(got);
    device_workers.flow_close(g_device, a);
    device_workers.flow_close(g_device, b);
    device_workers.flow_close(g_device, high);
    piece_free(&from);
    piece_free(&to);
    device_workers.close(g_device);
}
E2E_CASE(shares, 60)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_codec), cmocka_unit_test(test_two_gpus),
                                       cmocka_unit_test(test_many), cmocka_unit_test(test_shares)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * What goes wrong with GPUs: none there, capture of graphs, an error that stays, a daemon that dies while streams wait,
 * memory given without a stream.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_buffers.h"

#define COUNT 3000u

/* A node without a GPU: auto serves the host, cuda does not start; both say why. */
static void case_no_gpu(struct e2e *e) {
    char output[2048], socket[96];
    snprintf(socket, sizeof(socket), "socket=%s/none.sock", e->dir);
    setenv(gpu_standin() ? "ZIPCCL_STANDIN_DEVICES" : "CUDA_VISIBLE_DEVICES", gpu_standin() ? "0" : "", 1);
    int status = e2e_daemon_run(e, output, sizeof(output), 20,
                                (const char *const[]){"--set", "device=cuda", "--set", socket, "--set",
                                                      "listen=127.0.0.1:0", "--set", "metrics_listen=", NULL});
    E2E_CHECK(status > 0 && e2e_mentions(output, "device = cuda") && e2e_mentions(output, "no GPU"), "%d: %s", status,
              output);
    e2e_set(e, "device=auto");
    e2e_daemons(e, 2);
    e2e_alive(e);
    char *log = e2e_read_file(e->daemons[0].log);
    E2E_CHECK(e2e_mentions(log, "no GPU") && e2e_mentions(log, "host memory"), "%s", log);
    free(log);
}
E2E_CASE(no_gpu, 60)

static void use_rank(struct e2e_rank *r, struct gpu_rank *g, zipcclComm_t *comm, float **memory) {
    gpu_rank_begin(g, r->rank);
    *comm = e2e_comm(r);
    CUDA_OK(cudaMalloc((void **)memory, 4 * COUNT * sizeof(float)));
    CUDA_OK(cudaMemsetAsync(*memory, 0, 4 * COUNT * sizeof(float), g->cuda));
}

/* No GPU in the daemon: streams are refused with a reason, and so is memory of a GPU without a stream. */
static void host_daemon_rank(struct e2e_rank *r) {
    zipcclStream_t stream;
    cudaStream_t cuda;
    CUDA_OK(cudaStreamCreate(&cuda));
    E2E_CHECK(zipcclStreamFromCuda(&stream, cuda) == zipcclInvalidUsage, "a host daemon took a stream");
    E2E_CHECK(e2e_mentions(zipcclGetLastError(NULL), "uses no GPU"), "%s", zipcclGetLastError(NULL));
    float *memory;
    zipcclComm_t comm = e2e_comm(r);
    CUDA_OK(cudaMalloc((void **)&memory, 4096));
    E2E_CHECK(zipcclBroadcast(memory, memory, 16, zipcclFloat32, 0, comm, NULL) == zipcclInvalidArgument, "%s",
              zipcclGetLastError(comm));
    E2E_CHECK(e2e_mentions(zipcclGetLastError(comm), "zipcclStreamFromCuda"), "%s", zipcclGetLastError(comm));
    E2E_OK(NULL, zipcclCommDestroy(comm));
    CUDA_OK(cudaFree(memory));
}

static void case_host_daemon(struct e2e *e) {
    e2e_set(e, "device=host");
    e2e_daemons(e, 1);
    e2e_ranks(e, "0", host_daemon_rank, NULL, 20);
}
E2E_CASE(host_daemon, 30)

static void capture_rank(struct e2e_rank *r) {
    struct gpu_rank g;
    zipcclComm_t comm;
    float *memory;
    cudaGraph_t graph;
    use_rank(r, &g, &comm, &memory);
    CUDA_OK(cudaStreamBeginCapture(g.cuda, cudaStreamCaptureModeThreadLocal));
    zipcclResult_t result = zipcclAllGather(memory + r->rank * COUNT, memory, COUNT, zipcclFloat32, comm, g.stream);
    E2E_CHECK(result == zipcclInvalidUsage && e2e_mentions(zipcclGetLastError(comm), "captured"), "%d: %s", (int)result,
              zipcclGetLastError(comm));
    CUDA_OK(cudaStreamEndCapture(g.cuda, &graph));
    CUDA_OK(cudaGraphDestroy(graph));
    /* Nothing is broken by that. */
    E2E_OK(comm, zipcclAllGather(memory + r->rank * COUNT, memory, COUNT, zipcclFloat32, comm, g.stream));
    E2E_OK(comm, zipcclStreamSynchronize(g.stream));
    /* Pageable memory has no place in a stream. */
    static float pageable[4];
    E2E_CHECK(zipcclBroadcast(pageable, pageable, 4, zipcclFloat32, 0, comm, g.stream) == zipcclInvalidArgument &&
                  e2e_mentions(zipcclGetLastError(comm), "pageable"),
              "%s", zipcclGetLastError(comm));
    E2E_OK(NULL, zipcclCommDestroy(comm));
    E2E_OK(NULL, zipcclCudaForget(memory));
    CUDA_OK(cudaFree(memory));
    gpu_rank_end(&g);
}

static void case_capture(struct e2e *e) {
    e2e_set(e, "device=cuda");
    e2e_daemons(e, 1);
    e2e_ranks(e, "00", capture_rank, NULL, 30);
}
E2E_CASE(capture, 40)

/* The stream goes on, and the communicator tells. */
static void lost_rank(struct e2e_rank *r) {
    struct gpu_rank g;
    zipcclComm_t comm;
    zipcclResult_t error = zipcclSuccess;
    float *memory;
    use_rank(r, &g, &comm, &memory);
    E2E_OK(comm, zipcclCommSetCodec(comm, zipcclCodecTier));
    E2E_OK(comm, zipcclAllGather(memory + r->rank * COUNT, memory, COUNT, zipcclFloat32, comm, g.stream));
    CUDA_OK(cudaStreamSynchronize(g.cuda));
    if (r->rank == 0) { /* the other one never calls it */
        E2E_OK(comm, zipcclAllGather(memory, memory, COUNT, zipcclFloat32, comm, g.stream));
        e2e_raise(r->shared, 0);
    } else {
        e2e_raise(r->shared, 1);
    }
    e2e_await(r->shared, 2);
    double start = e2e_now();
    CUDA_OK(cudaStreamSynchronize(g.cuda)); /* hangs, unless the library's own thread lets the stream go on */
    if (r->rank == 0)
        while (error == zipcclSuccess && e2e_now() < start + 20)
            E2E_OK(NULL, zipcclCommGetAsyncError(comm, &error));
    e2e_report(r, error, comm, start);
    (void)zipcclCommAbort(comm);
    (void)zipcclStreamDestroy(g.stream);
}

static void case_daemon_dies(struct e2e *e) {
    struct e2e_group g;
    e2e_set(e, "device=cuda");
    e2e_daemons(e, 1);
    e2e_start(e, &g, "00", lost_rank, NULL);
    e2e_await(g.shared, 0);
    e2e_await(g.shared, 1);
    e2e_daemon_kill(e, 0);
    e2e_raise(g.shared, 2);
    e2e_wait(e, &g, 30);
    e2e_expect(&g, 0, zipcclDaemonUnavailable, 5, "is gone", NULL);
}
E2E_CASE(daemon_dies, 60)

/* A kernel of the daemon faults: the operation fails with a text that names it, and status says what is left. */
static void fault_rank(struct e2e_rank *r) {
    struct gpu_rank g;
    zipcclComm_t comm;
    zipcclResult_t error = zipcclSuccess;
    float *memory;
    double start = e2e_now();
    use_rank(r, &g, &comm, &memory);
    E2E_OK(comm, zipcclCommSetCodec(comm, zipcclCodecTier));
    for (int i = 0; i < 64 && error == zipcclSuccess; i++) {
        error = zipcclAllGather(memory + r->rank * COUNT, memory, COUNT, zipcclFloat32, comm, g.stream);
        CUDA_OK(cudaStreamSynchronize(g.cuda));
        if (error == zipcclSuccess)
            E2E_OK(NULL, zipcclCommGetAsyncError(comm, &error));
    }
    e2e_report(r, error, comm, start);
    (void)zipcclCommAbort(comm);
    (void)zipcclStreamDestroy(g.stream);
}

static void case_fault(struct e2e *e) {
    struct e2e_group g;
    char path[96];
    if (!gpu_standin())
        e2e_skip("a GPU does not fault on demand");
    snprintf(path, sizeof(path), "%s/fail", e->dir);
    FILE *f = fopen(path, "w");
    E2E_CHECK(f && fputs("kernel:40=700\n", f) >= 0 && fclose(f) == 0, "%s", path);
    setenv("ZIPCCL_STANDIN_FAIL_FILE", path, 1);
    e2e_set(e, "device=cuda");
    e2e_daemons(e, 2);
    unsetenv("ZIPCCL_STANDIN_FAIL_FILE"); /* of the daemons alone */
    e2e_start(e, &g, "01", fault_rank, NULL);
    e2e_wait(e, &g, 40);
    for (int rank = 0; rank < 2; rank++)
        e2e_expect(&g, rank, zipcclUnhandledDeviceError, 0, "all-gather #", "rank ", "GPU ", "illegal memory access",
                   NULL);
    e2e_daemons_live(e);
    e2e_alive(e); /* host memory is served still */
}
E2E_CASE(fault, 60)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_gpu),      cmocka_unit_test(test_host_daemon), cmocka_unit_test(test_capture),
        cmocka_unit_test(test_daemon_dies), cmocka_unit_test(test_fault),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

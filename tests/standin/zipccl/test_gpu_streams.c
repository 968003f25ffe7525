/* SPDX-License-Identifier: Apache-2.0
 *
 * The order that a CUDA stream gives: operations of several communicators in one stream, more under way than a stream
 * has tickets, counts that the stream writes, waits in host functions; what a call costs its thread; a trainer that
 * dies in the middle.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_buffers.h"

#define COUNT 600u

/* Two communicators take turns on one buffer: each reads what the other one has just written. */
static void turns_rank(struct e2e_rank *r) {
    struct gpu_rank g;
    int32_t *memory, host[4 * COUNT], mine[COUNT];
    size_t n = (size_t)r->nranks * COUNT;
    gpu_rank_begin(&g, r->rank);
    zipcclComm_t comm[2] = {e2e_comm(r), e2e_comm(r)};
    CUDA_OK(cudaMalloc((void **)&memory, 2 * n * sizeof(*memory)));
    for (unsigned i = 0; i < COUNT; i++)
        mine[i] = (int32_t)(i * 7 + (unsigned)r->rank * 1000);
    CUDA_OK(cudaMemcpyAsync(memory, mine, sizeof(mine), cudaMemcpyDefault, g.cuda));
    for (unsigned i = 0; i < 100; i++) { /* more than tickets */
        E2E_OK(comm[0], zipcclAllGather(memory, memory + n, COUNT, zipcclInt32, comm[0], g.stream));
        E2E_OK(comm[1], zipcclReduceScatter(memory + n, memory, COUNT, zipcclInt32, zipcclMax, comm[1], g.stream));
    }
    CUDA_OK(cudaMemcpyAsync(host, memory, COUNT * sizeof(*host), cudaMemcpyDefault, g.cuda));
    CUDA_OK(cudaStreamSynchronize(g.cuda));
    /* Gathered and scattered again: each rank has its own part, whatever the reduction, and the rest as it was. */
    for (unsigned i = 0; i < COUNT; i++)
        E2E_CHECK(host[i] == mine[i], "rank %d: value %u is %d, not %d", r->rank, i, host[i], mine[i]);
    E2E_OK(NULL, zipcclStreamSynchronize(g.stream));
    E2E_OK(NULL, zipcclCommDestroy(comm[0]));
    E2E_OK(NULL, zipcclCommDestroy(comm[1]));
    E2E_OK(NULL, zipcclCudaForget(memory));
    CUDA_OK(cudaFree(memory));
    gpu_rank_end(&g);
}

static void case_turns(struct e2e *e) {
    e2e_set(e, "device=cuda");
    e2e_daemons(e, 2);
    e2e_ranks(e, "01", turns_rank, NULL, 60);
    setenv("ZIPCCL_CUDA_WAIT", "host", 1);
    e2e_ranks(e, "001", turns_rank, NULL, 60);
}
E2E_CASE(turns, 100)

/* Two communicators on streams of their own, which two nodes issue in opposite orders: neither waits for the other. */
static void opposite_rank(struct e2e_rank *r) {
    struct gpu_rank g[2];
    int32_t *memory, host[2][2 * COUNT];
    zipcclComm_t comm[2];
    gpu_rank_begin(&g[0], 0);
    gpu_rank_begin(&g[1], 0);
    comm[0] = e2e_comm(r);
    comm[1] = e2e_comm(r);
    CUDA_OK(cudaMalloc((void **)&memory, sizeof(host)));
    CUDA_OK(cudaMemset(memory, r->rank + 1, sizeof(host)));
    CUDA_OK(cudaDeviceSynchronize());
    for (unsigned i = 0; i < 40; i++) {
        unsigned k = (i + (unsigned)r->rank) % 2;
        int32_t *all = memory + k * 2 * COUNT;
        E2E_OK(comm[k], zipcclAllGather(all + r->rank * (int)COUNT, all, COUNT, zipcclInt32, comm[k], g[k].stream));
    }
    for (unsigned k = 0; k < 2; k++) {
        CUDA_OK(cudaMemcpyAsync(host[k], memory + k * 2 * COUNT, sizeof(host[k]), cudaMemcpyDefault, g[k].cuda));
        CUDA_OK(cudaStreamSynchronize(g[k].cuda));
        for (unsigned i = 0; i < 2 * COUNT; i++)
            E2E_CHECK(host[k][i] == (i < COUNT ? 0x01010101 : 0x02020202), "value %u is %x", i, (unsigned)host[k][i]);
        E2E_OK(NULL, zipcclStreamSynchronize(g[k].stream));
        E2E_OK(NULL, zipcclCommDestroy(comm[k]));
    }
    E2E_OK(NULL, zipcclCudaForget(memory));
    CUDA_OK(cudaFree(memory));
    gpu_rank_end(&g[0]);
    gpu_rank_end(&g[1]);
}

static void case_opposite(struct e2e *e) {
    e2e_set(e, "device=cuda");
    e2e_daemons(e, 2);
    e2e_ranks(e, "01", opposite_rank, NULL, 60);
}
E2E_CASE(opposite, 70)

/* Counts that are in the GPU's memory, and written there by the stream itself. */
static void capped_rank(struct e2e_rank *r) {
    enum { MOST = 3000 };
    struct gpu_rank g;
    uint64_t *counts, mine[4], told[4];
    float *memory, *host;
    size_t n = (size_t)r->nranks * MOST;
    gpu_rank_begin(&g, r->rank);
    zipcclComm_t comm = e2e_comm(r);
    E2E_OK(comm, zipcclCommSetCodec(comm, zipcclCodecTier));
    CUDA_OK(cudaMallocHost((void **)&host, n * sizeof(*host)));
    CUDA_OK(cudaMalloc((void **)&memory, 2 * n * sizeof(*memory)));
    CUDA_OK(cudaMalloc((void **)&counts, 8 * sizeof(*counts)));
    for (unsigned round = 0; round < 3; round++) {
        for (int p = 0; p < r->nranks; p++)
            mine[p] = (uint64_t)((r->rank + 1) * (p + 2) * 111) * (round + 1) % MOST;
        for (size_t i = 0; i < n; i++)
            host[i] = (float)((size_t)r->rank * 100000 + i);
        CUDA_OK(cudaMemcpyAsync(memory, host, n * sizeof(*host), cudaMemcpyDefault, g.cuda));
        CUDA_OK(cudaMemcpyAsync(counts, mine, sizeof(mine), cudaMemcpyDefault, g.cuda));
        E2E_OK(comm, zipcclAllToAllCapped(memory, counts, memory + n, counts + 4, MOST, zipcclFloat32, comm, g.stream));
        CUDA_OK(cudaStreamSynchronize(g.cuda));
        CUDA_OK(cudaMemcpy(told, counts + 4, sizeof(told), cudaMemcpyDefault));
        CUDA_OK(cudaMemcpy(host, memory + n, n * sizeof(*host), cudaMemcpyDefault));
        for (int p = 0; p < r->nranks; p++) {
            uint64_t want = (uint64_t)((p + 1) * (r->rank + 2) * 111) * (round + 1) % MOST;
            E2E_CHECK(told[p] == want, "rank %d: %llu values from rank %d, not %llu", r->rank,
                      (unsigned long long)told[p], p, (unsigned long long)want);
            for (size_t i = 0; i < want; i++) {
                float value = (float)((size_t)p * 100000 + (size_t)r->rank * MOST + i);
                E2E_CHECK(host[(size_t)p * MOST + i] == value, "rank %d: value %zu from rank %d", r->rank, i, p);
            }
        }
    }
    E2E_OK(NULL, zipcclStreamSynchronize(g.stream));
    E2E_OK(NULL, zipcclCommDestroy(comm));
    E2E_OK(NULL, zipcclCudaForget(memory));
    E2E_OK(NULL, zipcclCudaForget(counts));
    CUDA_OK(cudaFree(memory));
    CUDA_OK(cudaFree(counts));
    CUDA_OK(cudaFreeHost(host));
    gpu_rank_end(&g);
}

static void case_capped(struct e2e *e) {
    e2e_set(e, "device=cuda");
    e2e_daemons(e, 2);
    e2e_ranks(e, "011", capped_rank, NULL, 60);
}
E2E_CASE(capped, 70)

/* Calls in which this process has waited for the GPU, as the stand-in counts them. */
static unsigned long blocking(const char *path) {
    char row[65] = "", name[65];
    unsigned long n, found = 0;
    FILE *f = fopen(path, "r");
    E2E_CHECK(f, "%s", path);
    while (fread(row, 64, 1, f) == 1)
        if (sscanf(row, "%64s %lu", name, &n) == 2 && strcmp(name, "blocking") == 0)
            found = n;
    fclose(f);
    return found;
}

static int by_time(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void cost_rank(struct e2e_rank *r) {
    enum { N = 40, ROUNDS = 5 };
    struct gpu_rank g;
    char path[96], mine[128];
    double cost[N * ROUNDS];
    int32_t *memory;
    snprintf(path, sizeof(path), "%s/cost", r->e->dir);
    snprintf(mine, sizeof(mine), "%s.%d", path, (int)getpid());
    setenv("ZIPCCL_STANDIN_COUNT", path, 1);
    gpu_rank_begin(&g, r->rank);
    zipcclComm_t comm = e2e_comm(r);
    CUDA_OK(cudaMalloc((void **)&memory, 4 * COUNT * sizeof(*memory)));
    for (unsigned round = 0; round < ROUNDS; round++) {
        CUDA_OK(cudaStreamSynchronize(g.cuda));
        unsigned long before = gpu_standin() ? blocking(mine) : 0;
        for (unsigned i = 0; i < N; i++) {
            double start = e2e_now();
            E2E_OK(comm, zipcclAllGather(memory + r->rank * (int)COUNT, memory, COUNT, zipcclInt32, comm, g.stream));
            cost[round * N + i] = e2e_now() - start;
        }
        unsigned long waited = gpu_standin() ? blocking(mine) - before : 0;
        E2E_CHECK(waited == 0, "%lu calls of %u operations waited for the GPU", waited, (unsigned)N);
    }
    qsort(cost, N * ROUNDS, sizeof(*cost), by_time);
    e2e_report(r, zipcclSuccess, comm, e2e_now() - cost[N * ROUNDS / 2]);
    E2E_OK(NULL, zipcclStreamSynchronize(g.stream));
    E2E_OK(NULL, zipcclCommDestroy(comm));
    E2E_OK(NULL, zipcclCudaForget(memory));
    CUDA_OK(cudaFree(memory));
    gpu_rank_end(&g);
}

static void case_cost(struct e2e *e) {
    struct e2e_group g;
    e2e_set(e, "device=cuda");
    e2e_daemons(e, 1);
    e2e_start(e, &g, "00", cost_rank, NULL);
    e2e_wait(e, &g, 30);
    double seconds = g.shared->reports[0].seconds;
    e2e_all_passed(e, &g);
    print_message("             a call takes its thread %.1f us (median)\n", seconds * 1e6);
}
E2E_CASE(cost, 40)

/* A trainer is killed while its operation is under way: the others hear of it, their streams go on, and the daemons
 * serve the next job on the same GPUs. */
static void killed_rank(struct e2e_rank *r) {
    struct gpu_rank g;
    zipcclResult_t error = zipcclSuccess;
    float *memory;
    gpu_rank_begin(&g, r->rank);
    zipcclComm_t comm = e2e_comm(r);
    CUDA_OK(cudaMalloc((void **)&memory, 4 * COUNT * sizeof(*memory)));
    CUDA_OK(cudaMemsetAsync(memory, 0, 4 * COUNT * sizeof(*memory), g.cuda));
    E2E_OK(comm, zipcclCommSetCodec(comm, zipcclCodecTier));
    E2E_OK(comm, zipcclAllGather(memory + r->rank * (int)COUNT, memory, COUNT, zipcclFloat32, comm, g.stream));
    CUDA_OK(cudaStreamSynchronize(g.cuda));
    if (r->rank == 1)
        kill(getpid(), SIGKILL);
    double start = e2e_now();
    for (int i = 0; i < 3 && error == zipcclSuccess; i++)
        error = zipcclAllGather(memory + r->rank * (int)COUNT, memory, COUNT, zipcclFloat32, comm, g.stream);
    CUDA_OK(cudaStreamSynchronize(g.cuda));
    while (error == zipcclSuccess && e2e_now() < start + 20)
        E2E_OK(NULL, zipcclCommGetAsyncError(comm, &error));
    e2e_report(r, error, comm, start);
    (void)zipcclCommAbort(comm);
    (void)zipcclStreamDestroy(g.stream);
}

static void case_killed(struct e2e *e) {
    struct e2e_group g;
    e2e_set(e, "device=cuda");
    e2e_daemons(e, 2);
    e2e_start(e, &g, "001", killed_rank, NULL);
    e2e_wait(e, &g, 30);
    e2e_expect(&g, 0, zipcclRemoteError, 10, "rank 1", NULL);
    e2e_expect(&g, 2, zipcclRemoteError, 10, "rank 1", NULL);
    e2e_daemons_live(e);
    e2e_ranks(e, "01", turns_rank, NULL, 60);
}
E2E_CASE(killed, 70)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_turns),  cmocka_unit_test(test_capped),   cmocka_unit_test(test_cost),
        cmocka_unit_test(test_killed), cmocka_unit_test(test_opposite),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

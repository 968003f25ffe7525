/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_faults.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "raw.h"

enum { CODED = 9, OPS = CODED + 5 };

struct gpu_call gpu_calls[GPU_MAX_CALLS];
unsigned gpu_ncalls;

/* As e2e_comm, but a daemon that has died is an error like others; who has no id for that reason has none itself. */
static zipcclResult_t join(struct e2e_rank *r, zipcclComm_t *comm) {
    struct e2e_shared *s = r->shared;
    enum { WAITS, MADE, FAILED };
    if (r->rank == 0) {
        zipcclResult_t error = zipcclGetUniqueId(&s->id);
        atomic_store(&s->id_ready, error ? FAILED : MADE);
        if (error)
            return error;
    }
    double end = e2e_now() + 20 * E2E_SLOW;
    while (atomic_load(&s->id_ready) == WAITS && e2e_now() < end)
        e2e_sleep(0.0005);
    return atomic_load(&s->id_ready) == MADE ? zipcclCommInitRank(comm, r->nranks, s->id, r->rank) : zipcclSuccess;
}

/* First coded, each on all kinds of memory; then what NCCL does as a whole where it is there. */
static zipcclResult_t issue(const struct e2e_rank *r, int i, float *m, zipcclComm_t comm, zipcclStream_t stream) {
    enum { N = GPU_FAULTS_COUNT };
    float *own = m + r->rank * N;
    switch (i < CODED ? i / 3 : i - CODED + 3) {
    case 0:
    case 3:
        return zipcclAllGather(own, m, N, zipcclFloat32, comm, stream);
    case 1:
    case 4:
        return zipcclAllReduce(m, m, N, zipcclFloat32, zipcclSum, comm, stream);
    case 5:
        return zipcclReduceScatter(m, own, N, zipcclFloat32, zipcclSum, comm, stream);
    case 6:
        return zipcclReduce(m, m, N, zipcclFloat32, zipcclMax, r->nranks - 1, comm, stream);
    default:
        return zipcclBroadcast(m, m, N, zipcclBfloat16, 0, comm, stream);
    }
}

/* Ranks 0 and 2 have a GPU of each node. */
static zipcclResult_t split(const struct e2e_rank *r, zipcclComm_t comm) {
    zipcclComm_t child = NULL;
    zipcclResult_t error = zipcclCommSplit(comm, r->rank == 1 ? ZIPCCL_SPLIT_NOCOLOR : 0, 0, &child);
    if (error == zipcclSuccess && child)
        error = zipcclBarrier(child, NULL);
    (void)(error == zipcclSuccess ? zipcclCommDestroy(child) : zipcclCommAbort(child));
    return error;
}

bool gpu_faults_split;

void gpu_faults_rank(struct e2e_rank *r) {
    static const enum gpu_kind kinds[] = {GPU_MALLOC, GPU_VMM, GPU_POOL};
    struct gpu_memory memory[3];
    cudaStream_t cuda;
    zipcclStream_t stream = NULL;
    double start = e2e_now();
    int devices;
    CUDA_OK(cudaGetDeviceCount(&devices));
    CUDA_OK(cudaSetDevice(r->rank % devices));
    CUDA_OK(cudaStreamCreateWithFlags(&cuda, cudaStreamNonBlocking));
    for (int i = 0; i < 3; i++) {
        gpu_memory_new(&memory[i], kinds[i], (size_t)r->nranks * GPU_FAULTS_COUNT * sizeof(float), cuda);
        CUDA_OK(cudaMemsetAsync(memory[i].base, 0, (size_t)r->nranks * GPU_FAULTS_COUNT * sizeof(float), cuda));
    }
    zipcclComm_t comm = NULL;
    zipcclResult_t error = join(r, &comm);
    if (!comm) {
        e2e_report(r, error, NULL, start);
        return;
    }
    error = zipcclStreamFromCuda(&stream, cuda);
    if (error == zipcclSuccess && gpu_faults_split)
        error = split(r, comm);
    if (error == zipcclSuccess)
        E2E_OK(comm, zipcclCommSetCodec(comm, zipcclCodecTier));
    for (int i = 0; i < OPS && error == zipcclSuccess; i++) {
        start = e2e_now();
        if (i == CODED) {
            E2E_OK(comm, zipcclCommSetCodec(comm, zipcclCodecRaw));
            E2E_OK(comm, zipcclCommSetArm(comm, zipcclArmRing));
        }
        error = issue(r, i, (float *)(void *)memory[i < CODED ? i % 3 : i % 2].base, comm, stream);
        CUDA_OK(cudaStreamSynchronize(cuda)); /* a stream never hangs in an operation that failed */
        if (error == zipcclSuccess)
            E2E_OK(NULL, zipcclCommGetAsyncError(comm, &error));
    }
    e2e_report(r, error, error == zipcclSuccess || stream ? comm : NULL, start);
    if (error == zipcclSuccess) /* an abort would be the others' error */
        E2E_OK(NULL, zipcclCommDestroy(comm));
    else
        (void)zipcclCommAbort(comm);
    (void)zipcclStreamDestroy(stream);
}

void gpu_arm(const struct e2e *e, const char *call, const char *error) {
    char path[96];
    snprintf(path, sizeof(path), "%s/fail", e->dir);
    FILE *f = fopen(path, "w");
    E2E_CHECK(f && (!call || fprintf(f, "%s:1=%s", call, error) > 0) && fputs("\n", f) >= 0 && fclose(f) == 0, "%s",
              path);
}

void gpu_start_node0(struct e2e *e) {
    char path[96];
    snprintf(path, sizeof(path), "%s/fail", e->dir);
    setenv("ZIPCCL_STANDIN_FAIL_FILE", path, 1);
    snprintf(path, sizeof(path), "%s/count", e->dir);
    setenv("ZIPCCL_STANDIN_COUNT", path, 1);
    e2e_daemon_start(e, 0);
    zipccl__status__free_unpacked(raw_status(e->daemons[0].socket), NULL); /* it listens before it opens its device */
    unsetenv("ZIPCCL_STANDIN_FAIL_FILE");
    unsetenv("ZIPCCL_STANDIN_COUNT");
}

unsigned long gpu_counted(const struct e2e *e, const char *of, const char *call, bool learn) {
    struct dirent **entries;
    unsigned long total = 0;
    int n = scandir(e->dir, &entries, NULL, alphasort);
    E2E_CHECK(n > 0, "%s", e->dir);
    for (int i = 0; i < n; i++) {
        char path[400], row[65] = "", name[65];
        unsigned long count;
        snprintf(path, sizeof(path), "%s/%.255s", e->dir, entries[i]->d_name);
        FILE *f = strncmp(entries[i]->d_name, of, strlen(of)) == 0 ? fopen(path, "r") : NULL;
        while (f && fread(row, 64, 1, f) == 1) {
            if (sscanf(row, "%63s %lu", name, &count) != 2 || count == 0 || strcmp(name, "blocking") == 0)
                continue;
            if (call && strcmp(name, call) == 0)
                total += count;
            unsigned k = 0;
            while (learn && k < gpu_ncalls && strcmp(gpu_calls[k].name, name) != 0)
                k++;
            if (learn && k == gpu_ncalls) {
                E2E_CHECK(gpu_ncalls < GPU_MAX_CALLS, "more than %d calls", GPU_MAX_CALLS);
                snprintf(gpu_calls[gpu_ncalls++].name, sizeof(gpu_calls[0].name), "%s", name);
            }
        }
        if (f)
            fclose(f);
        free(entries[i]);
    }
    free(entries);
    return total;
}

void gpu_counted_daemons(struct e2e *e) {
    e2e_set(e, "device=cuda");
    e2e_set(e, "chunk_bytes=64KiB");
    e2e_daemons(e, 2);
    e2e_daemon_stop(e, 0, 20);
    gpu_arm(e, NULL, NULL);
    gpu_start_node0(e);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Every call of CUDA and NCCL that the daemon makes fails once, by each kind of error: an error or a slower way, never
 * a hang or a leak; a job that has nothing to do with GPUs does not notice, and the next job works.
 *
 * Which calls there are is counted, not listed. Errors that pass come one after another to one daemon; after one that
 * stays, and for calls that are made at the start alone, it is started anew. ZIPCCL_TEST_ALL=1: each call by each
 * error; without it each call by one that passes, and every fourth by one that stays.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_buffers.h"
#include "raw.h"

enum { COUNT = 3000, OPS = 9, MAX_CALLS = 128 };

static const int passing[] = {1 /* invalid value */, 2 /* no memory */, 400 /* invalid handle */, 801 /* unsupported */,
                              999 /* unknown */};
static const int of_nccl[] = {1 /* CUDA error */, 2 /* system error */, 3 /* internal error */, 5 /* invalid usage */,
                              6 /* remote error */};
_Static_assert(sizeof(of_nccl) == sizeof(passing), "as many kinds");
static const int staying[] = {700 /* illegal address */, 719 /* launch failure */};

struct call {
    char name[64];
    unsigned long count;
};
static struct call calls[MAX_CALLS];
static unsigned ncalls;

/* Until one fails; any error will do, if it has a text. */
static void gpu_rank_fn(struct e2e_rank *r) {
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
        gpu_memory_new(&memory[i], kinds[i], (size_t)r->nranks * COUNT * sizeof(float), cuda);
        CUDA_OK(cudaMemsetAsync(memory[i].base, 0, (size_t)r->nranks * COUNT * sizeof(float), cuda));
    }
    zipcclComm_t comm = NULL;
    zipcclResult_t error = zipcclCommInitRank(&comm, r->nranks, e2e_id(r), r->rank);
    if (error != zipcclSuccess) {
        e2e_report(r, error, NULL, start);
        return;
    }
    error = zipcclStreamFromCuda(&stream, cuda);
    if (error == zipcclSuccess)
        E2E_OK(comm, zipcclCommSetCodec(comm, zipcclCodecTier));
    for (int i = 0; i < OPS && error == zipcclSuccess; i++) {
        float *m = (float *)(void *)memory[i % 3].base;
        error = i / 3 == 0   ? zipcclAllGather(m + r->rank * COUNT, m, COUNT, zipcclFloat32, comm, stream)
                : i / 3 == 1 ? zipcclAllReduce(m, m, COUNT, zipcclFloat32, zipcclSum, comm, stream)
                             : zipcclBroadcast(m, m, COUNT, zipcclBfloat16, 0, comm, stream);
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

/* A job in host memory that runs until flag 0 is raised; rank 0's first value says so to all. */
static void bystander_rank(struct e2e_rank *r) {
    zipcclComm_t comm = e2e_comm(r);
    static uint16_t recv[COUNT * 4];
    for (unsigned i = 0;; i++) {
        for (unsigned v = 0; v < COUNT; v++)
            recv[r->rank * COUNT + (int)v] = (uint16_t)(0x3f80u + v % 77 + i % 512 + (unsigned)r->rank);
        if (r->rank == 0)
            recv[0] = (uint16_t)atomic_load(&r->shared->flags[0]);
        E2E_OK(comm, zipcclAllGather(recv + r->rank * COUNT, recv, COUNT, zipcclBfloat16, comm, NULL));
        for (unsigned v = 1; v < (unsigned)r->nranks * COUNT; v++)
            E2E_CHECK(recv[v] == (uint16_t)(0x3f80u + v % COUNT % 77 + i % 512 + v / COUNT), "operation %u", i);
        if (recv[0])
            break;
        e2e_sleep(0.002);
    }
    E2E_OK(NULL, zipcclCommDestroy(comm));
}

static void arm(const struct e2e *e, const char *call, int code) {
    char path[96];
    snprintf(path, sizeof(path), "%s/fail", e->dir);
    FILE *f = fopen(path, "w");
    E2E_CHECK(f && (!call || fprintf(f, "%s:1=%d", call, code) > 0) && fputs("\n", f) >= 0 && fclose(f) == 0, "%s",
              path);
}

/* Node 0 alone counts and fails; what it forks does, too. */
static void start_node0(struct e2e *e) {
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

/* How often a call was made by node 0's processes, those that are gone too; learn: calls not seen before are added. */
static unsigned long counted(const struct e2e *e, const char *call, bool learn) {
    struct dirent **entries;
    unsigned long total = 0;
    int n = scandir(e->dir, &entries, NULL, alphasort);
    E2E_CHECK(n > 0, "%s", e->dir);
    for (int i = 0; i < n; i++) {
        char path[400], row[65] = "", name[65];
        unsigned long count;
        snprintf(path, sizeof(path), "%s/%.255s", e->dir, entries[i]->d_name);
        FILE *f = strncmp(entries[i]->d_name, "count.", 6) == 0 ? fopen(path, "r") : NULL;
        while (f && fread(row, 64, 1, f) == 1) {
            if (sscanf(row, "%63s %lu", name, &count) != 2 || count == 0 || strcmp(name, "blocking") == 0)
                continue;
            if (call && strcmp(name, call) == 0)
                total += count;
            unsigned k = 0;
            while (learn && k < ncalls && strcmp(calls[k].name, name) != 0)
                k++;
            if (learn && k == ncalls) {
                E2E_CHECK(ncalls < MAX_CALLS, "more than %d calls", MAX_CALLS);
                snprintf(calls[ncalls++].name, sizeof(calls[0].name), "%s", name);
            }
        }
        if (f)
            fclose(f);
        free(entries[i]);
    }
    free(entries);
    return total;
}

/* A job on GPUs of both nodes, beside the bystander. Fails where it hangs, or says nothing of an error. */
static bool job_works(struct e2e *e, const char *what, int code) {
    struct e2e_group g;
    bool works = true;
    e2e_start(e, &g, "001", gpu_rank_fn, NULL);
    e2e_wait(e, &g, 20);
    e2e_daemons_live(e);
    for (int rank = 0; rank < g.nranks; rank++) {
        const struct e2e_report *report = &g.shared->reports[rank];
        E2E_CHECK(report->result >= 0, "%s=%d: rank %d says nothing", what, code, rank);
        E2E_CHECK(report->result == zipcclSuccess || report->text[0], "%s=%d: an error without a text", what, code);
        works = works && report->result == zipcclSuccess;
    }
    if (!works)
        fprintf(stderr, "%s=%d: %s\n", what, code, g.shared->reports[0].text);
    return works;
}

static bool is_nccl(const char *name) {
    return strncmp(name, "nccl", 4) == 0;
}

static void must_work(struct e2e *e, const char *what, int code) {
    arm(e, NULL, 0);
    E2E_CHECK(job_works(e, what, code), "%s=%d: the next job fails too", what, code);
}

/* The call fails during the start: it ends with a reason, or serves. */
static void at_start(struct e2e *e, const char *call, int code) {
    char output[4096], path[96], socket[96];
    e2e_daemon_stop(e, 0, 20);
    arm(e, call, code);
    snprintf(path, sizeof(path), "%s/fail", e->dir);
    snprintf(socket, sizeof(socket), "socket=%s/start.sock", e->dir);
    setenv("ZIPCCL_STANDIN_FAIL_FILE", path, 1);
    int status =
        e2e_daemon_run(e, output, sizeof(output), 0.6,
                       (const char *const[]){"--set", "device=cuda", "--set", socket, "--set", "listen=127.0.0.1:0",
                                             "--set", "metrics_listen=", "--set", "fabric=none", NULL});
    unsetenv("ZIPCCL_STANDIN_FAIL_FILE");
    /* -1: it serves, and was ended. */
    E2E_CHECK(status < 128 && (status == -1 || (status > 0 && e2e_mentions(output, "cuda|GPU"))), "%s=%d: exit %d: %s",
              call, code, status, output);
    arm(e, NULL, 0);
    start_node0(e);
}

/* No call, but what was launched, while it runs. */
static bool runs_in_stream(const char *name) {
    return strcmp(name, "kernel") == 0 || strcmp(name, "copy") == 0;
}

static bool every(const char *name) {
    const char *value = getenv(name);
    return value && *value && strcmp(value, "0") != 0;
}

static void case_every_call(struct e2e *e) {
    struct e2e_group bystander;
    bool all = every("ZIPCCL_TEST_ALL");
    e2e_set(e, "device=cuda");
    e2e_set(e, "chunk_bytes=64KiB");
    e2e_daemons(e, 2);
    e2e_daemon_stop(e, 0, 20);
    arm(e, NULL, 0);
    start_node0(e);
    must_work(e, "nothing", 0);
    (void)counted(e, NULL, true);
    E2E_CHECK(ncalls > 20, "only %u calls", ncalls);
    fprintf(stderr, "%u calls\n", ncalls);
    unsigned fds = e2e_proc_fds(e->daemons[0].pid), hit = 0, starts = 0;
    for (unsigned i = 0; i < ncalls; i++) {
        unsigned ncodes = all ? sizeof(passing) / sizeof(passing[0]) : 1;
        bool seen = false;
        if (runs_in_stream(calls[i].name))
            continue; /* what fails there stays */
        e2e_start(e, &bystander, "00", bystander_rank, NULL);
        for (unsigned k = 0; k < ncodes; k++) {
            const int *codes = is_nccl(calls[i].name) ? of_nccl : passing;
            int code = codes[all ? k : i % (sizeof(passing) / sizeof(passing[0]))];
            unsigned long before = counted(e, calls[i].name, false);
            arm(e, calls[i].name, code);
            (void)job_works(e, calls[i].name, code);
            seen = seen || counted(e, calls[i].name, false) > before;
            must_work(e, calls[i].name, code);
        }
        e2e_raise(bystander.shared, 0);
        e2e_wait(e, &bystander, 20);
        e2e_all_passed(e, &bystander);
        hit += seen;
        starts += !seen;
        if (!seen)
            at_start(e, calls[i].name, passing[i % 2]);
    }
    must_work(e, "any", 0);
    fprintf(stderr, "%u calls failed during work, %u at the start\n", hit, starts);
    E2E_CHECK(hit > 15, "%u", hit);
    unsigned now = e2e_proc_fds(e->daemons[0].pid);
    E2E_CHECK(starts || now <= fds + 4, "%u descriptors, %u at first", now, fds);
}
E2E_CASE(every_call, 400)

static void case_errors_that_stay(struct e2e *e) {
    bool all = every("ZIPCCL_TEST_ALL");
    e2e_set(e, "device=cuda");
    e2e_set(e, "chunk_bytes=64KiB");
    e2e_daemons(e, 2);
    e2e_daemon_stop(e, 0, 20);
    arm(e, NULL, 0);
    start_node0(e);
    must_work(e, "nothing", 0);
    (void)counted(e, NULL, true);
    for (unsigned i = 0; i < ncalls; i++) {
        if (is_nccl(calls[i].name) || (!all && i % 4 != 0 && !runs_in_stream(calls[i].name)))
            continue;
        int code = staying[i / 4 % 2];
        struct e2e_group bystander;
        e2e_start(e, &bystander, "00", bystander_rank, NULL);
        arm(e, calls[i].name, code);
        (void)job_works(e, calls[i].name, code);
        e2e_raise(bystander.shared, 0);
        e2e_wait(e, &bystander, 20);
        e2e_all_passed(e, &bystander);
        e2e_daemon_stop(e, 0, 20);
        arm(e, NULL, 0);
        start_node0(e);
    }
    must_work(e, "any", 0);
}
E2E_CASE(errors_that_stay, 300)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_call), cmocka_unit_test(test_errors_that_stay)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

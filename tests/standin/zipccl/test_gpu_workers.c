/* SPDX-License-Identifier: Apache-2.0
 *
 * Lives of the GPUs' worker processes: killed, faulted, stuck, orphaned, over and over. The jobs of their GPU hear why,
 * within a second; those of the other GPU go on; the next job finds a new worker.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_buffers.h"

#define COUNT 3000u

enum { FLAG_STOP };

struct work {
    int gpu;
    zipcclCodec_t codec;
    int enough; /* operations after which a rank ends by itself; 0: it goes on until it is told, or fails */
};

static float value_of(int rank, int op, unsigned i) {
    return (float)((rank + 1) * 1000 + op % 7) + (float)i / 4;
}

/* All-gathers on one GPU, whose bits it checks. */
static void work_rank(struct e2e_rank *r) {
    const struct work *work = r->args;
    zipcclResult_t error = zipcclSuccess;
    struct gpu_rank g;
    float *memory, *host = malloc((size_t)r->nranks * COUNT * sizeof(float));
    E2E_CHECK(host, "memory");
    gpu_rank_begin(&g, work->gpu);
    zipcclComm_t comm = e2e_comm(r);
    E2E_OK(comm, zipcclCommSetCodec(comm, work->codec));
    CUDA_OK(cudaMalloc((void **)&memory, (size_t)r->nranks * COUNT * sizeof(float)));
    double good = e2e_now();
    for (int op = 0; error == zipcclSuccess; op++) {
        float *mine = host + (size_t)r->rank * COUNT, *there = memory + (size_t)r->rank * COUNT;
        for (unsigned i = 0; i < COUNT; i++)
            mine[i] = value_of(r->rank, op, i);
        CUDA_OK(cudaMemcpyAsync(there, mine, COUNT * sizeof(float), cudaMemcpyDefault, g.cuda));
        error = zipcclAllGather(there, memory, COUNT, zipcclFloat32, comm, g.stream);
        CUDA_OK(cudaMemcpyAsync(host, memory, (size_t)r->nranks * COUNT * sizeof(float), cudaMemcpyDefault, g.cuda));
        CUDA_OK(cudaStreamSynchronize(g.cuda));
        if (error == zipcclSuccess)
            E2E_OK(NULL, zipcclCommGetAsyncError(comm, &error));
        if (error != zipcclSuccess)
            break;
        for (int from = 0; from < r->nranks; from++) {
            for (unsigned i = 0; i < COUNT; i++)
                E2E_CHECK(host[(size_t)from * COUNT + i] == value_of(from, op, i),
                          "rank %d, operation %d: value %u of rank %d", r->rank, op, i, from);
        }
        good = e2e_now();
        atomic_fetch_add(&r->shared->counter, 1);
        /* All ranks end with the same operation: the one whose number the case chose. */
        int last = atomic_load(&r->shared->flags[FLAG_STOP]);
        if (work->enough ? op + 1 == work->enough : last && op + 1 >= last)
            break;
    }
    e2e_report(r, error, comm, good);
    if (error != zipcclSuccess) {
        (void)zipcclCommAbort(comm);
        (void)zipcclStreamDestroy(g.stream);
        return;
    }
    E2E_OK(NULL, zipcclCommDestroy(comm));
    E2E_OK(NULL, zipcclCudaForget(memory));
    CUDA_OK(cudaFree(memory));
    free(host);
    gpu_rank_end(&g);
}

/* Until the ranks of a group have done so many operations more. */
static void await_work(struct e2e *e, const struct e2e_group *g, int more) {
    int from = atomic_load(&g->shared->counter);
    double end = e2e_now() + 30;
    while (atomic_load(&g->shared->counter) < from + more) {
        e2e_daemons_live(e);
        E2E_CHECK(e2e_now() < end, "%d operations, then none", atomic_load(&g->shared->counter));
        e2e_sleep(0.002);
    }
}

/* The ranks end well, after some operations that none of them can have begun. */
static void finish(struct e2e *e, struct e2e_group *g) {
    atomic_store(&g->shared->flags[FLAG_STOP], atomic_load(&g->shared->counter) + 20);
    e2e_wait(e, g, 60);
    for (int i = 0; i < g->nranks; i++)
        e2e_expect(g, i, zipcclSuccess, 0, NULL);
    e2e_all_passed(e, g);
}

/* A daemon that listens may not have all of them yet. */
static pid_t worker_of(struct e2e *e, unsigned node, unsigned gpu) {
    double end = e2e_now() + 20;
    pid_t pid;
    while ((pid = gpu_worker(e->daemons[node].pid, gpu)) == 0) {
        e2e_daemons_live(e);
        E2E_CHECK(e2e_now() < end, "node %u: GPU %u has no worker", node, gpu);
        e2e_sleep(0.005);
    }
    return pid;
}

static unsigned mentions(const char *path, const char *what) {
    char *text = e2e_read_file(path);
    unsigned n = 0;
    for (const char *p = text; (p = strstr(p, what)) != NULL; p++)
        n++;
    free(text);
    return n;
}

/* New workers of a daemon since it started. */
static void await_new(struct e2e *e, unsigned node, unsigned n) {
    double end = e2e_now() + 20;
    while (mentions(e->daemons[node].log, "has a new worker") < n) {
        e2e_daemons_live(e);
        E2E_CHECK(e2e_now() < end, "no new worker (%u)", n);
        e2e_sleep(0.005);
    }
}

static void check_told(struct e2e *e, const char *command, ...) {
    char line[256], output[16384];
    va_list all;
    snprintf(line, sizeof(line), "%s/zipcclctl %s --socket %s 2>&1", ZIPCCL_TEST_BIN, command, e->daemons[0].socket);
    FILE *f = popen(line, "r");
    E2E_CHECK(f, "%s", line);
    output[fread(output, 1, sizeof(output) - 1, f)] = '\0';
    E2E_CHECK(pclose(f) == 0, "%s: %s", line, output);
    va_start(all, command);
    for (const char *what; (what = va_arg(all, const char *)) != NULL;)
        E2E_CHECK(strstr(output, what), "%s does not tell '%s': %s", command, what, output);
    va_end(all);
}

/* A worker is lost while both GPUs work, by what `harm` does to it. */
static void lose(struct e2e *e, zipcclCodec_t codec, void (*harm)(struct e2e *e), const char *why) {
    const struct work first = {0, codec, 0}, second = {1, zipcclCodecRaw, 0}, next = {0, codec, 10};
    struct e2e_group a, b;
    pid_t lost = worker_of(e, 0, 0), other = worker_of(e, 0, 1);
    e2e_start(e, &a, "01", work_rank, &first);
    e2e_start(e, &b, "01", work_rank, &second);
    await_work(e, &a, 10);
    await_work(e, &b, 10);
    harm(e);
    e2e_wait(e, &a, 30);
    for (int rank = 0; rank < 2; rank++)
        e2e_expect(&a, rank, zipcclUnhandledDeviceError, 1, "all-gather #", "rank ", "GPU 0", why, NULL);
    await_work(e, &b, 20);
    finish(e, &b);
    e2e_daemons_live(e);
    e2e_ranks(e, "01", work_rank, &next, 60);
    E2E_CHECK(worker_of(e, 0, 0) != lost && worker_of(e, 0, 1) == other, "the wrong worker is new");
    check_told(e, "events", "worker-lost", why, "worker-up", NULL);
    check_told(e, "status", "GPUs:", "restarts", "workers_lost", NULL);
}

static void harm_kill(struct e2e *e) {
    kill(worker_of(e, 0, 0), SIGKILL);
}

static void case_killed(struct e2e *e) {
    e2e_set(e, "device=cuda");
    e2e_daemons(e, 2);
    lose(e, zipcclCodecTier, harm_kill, "killed by signal 9");
}
E2E_CASE(killed, 100)

/* All that the GPUs do there is to send and to receive: by NCCL, where it is. */
static void case_killed_raw(struct e2e *e) {
    e2e_set(e, "device=cuda");
    e2e_daemons(e, 2);
    lose(e, zipcclCodecRaw, harm_kill, "killed by signal 9");
}
E2E_CASE(killed_raw, 100)

static void write_rule(const struct e2e *e, const char *rule) {
    char path[96];
    snprintf(path, sizeof(path), "%s/fail", e->dir);
    FILE *f = fopen(path, "w");
    E2E_CHECK(f && fputs(rule, f) >= 0 && fclose(f) == 0, "%s", path);
}

/* Only GPU 0 runs kernels: the other job is raw. The rule is gone when the next worker starts. */
static void harm_fault(struct e2e *e) {
    write_rule(e, "kernel:1=700\n");
    await_new(e, 0, 1);
    write_rule(e, "\n");
}

static void case_fault(struct e2e *e) {
    char path[96];
    write_rule(e, "\n");
    snprintf(path, sizeof(path), "%s/fail", e->dir);
    e2e_set(e, "device=cuda");
    setenv("ZIPCCL_STANDIN_FAIL_FILE", path, 1);
    e2e_daemon_start(e, 0);
    unsetenv("ZIPCCL_STANDIN_FAIL_FILE"); /* of the first daemon alone */
    e2e_daemon_start(e, 1);
    lose(e, zipcclCodecTier, harm_fault, "illegal memory access");
}
E2E_CASE(fault, 100)

/* A job that its worker does not end in time: the worker is stopped, and never again runs by itself. */
static void stick(struct e2e *e, const char *layout, zipcclCodec_t codec) {
    const struct work work = {0, codec, 0}, next = {0, codec, 5};
    struct e2e_group g;
    e2e_set(e, "device=cuda");
    e2e_set(e, "worker_timeout=1s");
    e2e_daemons(e, layout[1] == '1' ? 2 : 1);
    e2e_start(e, &g, layout, work_rank, &work);
    await_work(e, &g, 10);
    kill(worker_of(e, 0, 0), SIGSTOP);
    e2e_wait(e, &g, 30);
    for (int rank = 0; rank < 2; rank++)
        e2e_expect(&g, rank, zipcclUnhandledDeviceError, 5, "all-gather #", "GPU 0", "stuck", NULL);
    e2e_ranks(e, layout, work_rank, &next, 60);
}

static void case_stuck(struct e2e *e) {
    stick(e, "00", zipcclCodecTier);
}
E2E_CASE(stuck, 60)

static void case_stuck_raw(struct e2e *e) {
    stick(e, "01", zipcclCodecRaw);
}
E2E_CASE(stuck_raw, 60)

/* Only brings its stream. */
static void bring_rank(struct e2e_rank *r) {
    cudaStream_t stream;
    zipcclStream_t attached;
    CUDA_OK(cudaSetDevice(0));
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    e2e_report(r, zipcclStreamFromCuda(&attached, stream), NULL, e2e_now());
}

/* A trainer comes to a GPU whose worker does not answer: until that one is found out, the other GPU's job goes on. */
static void case_stuck_registration(struct e2e *e) {
    enum { SAMPLES = 10 };
    static const struct work work = {0, zipcclCodecTier, 5}, other = {1, zipcclCodecTier, 0};
    struct e2e_group a, b;
    int counts[SAMPLES + 1] = {0};
    e2e_set(e, "device=cuda");
    e2e_set(e, "worker_timeout=2s");
    e2e_daemons(e, 2);
    e2e_start(e, &b, "01", work_rank, &other);
    await_work(e, &b, 10);
    kill(worker_of(e, 0, 0), SIGSTOP);
    e2e_start(e, &a, "0", bring_rank, NULL);
    double end = e2e_now() + 20;
    while (mentions(e->daemons[0].log, "its worker (pid") == 0) {
        E2E_CHECK(e2e_now() < end, "the worker is not missed");
        memmove(counts, counts + 1, SAMPLES * sizeof(counts[0]));
        counts[SAMPLES] = atomic_load(&b.shared->counter);
        e2e_sleep(0.05);
    }
    /* The half second before it was found out, without the last look. */
    E2E_CHECK(counts[SAMPLES - 1] > counts[0], "nobody got on (%d operations)", counts[0]);
    e2e_wait(e, &a, 30);
    e2e_expect(&a, 0, zipcclUnhandledDeviceError, 0, "GPU 0", NULL);
    finish(e, &b);
    e2e_ranks(e, "01", work_rank, &work, 60);
}
E2E_CASE(stuck_registration, 60)

static void await_end(pid_t pid) {
    double end = e2e_now() + 5;
    char path[32], state = 0;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    for (FILE *f; (f = fopen(path, "r")) != NULL;) {
        int n = fscanf(f, "%*d (%*[^)]) %c", &state);
        fclose(f);
        if (n != 1 || state == 'Z') /* whoever is its parent now may never look */
            return;
        E2E_CHECK(e2e_now() < end, "worker %d lives on", (int)pid);
        e2e_sleep(0.002);
    }
}

/* Workers end with their daemon, whichever way it goes, and outlive trainers. */
static void case_orphans(struct e2e *e) {
    static const struct work work = {0, zipcclCodecTier, 0}, next = {0, zipcclCodecTier, 5};
    struct e2e_group g;
    e2e_set(e, "device=cuda");
    e2e_daemons(e, 2);
    pid_t workers[] = {worker_of(e, 0, 0), worker_of(e, 0, 1), worker_of(e, 1, 0), worker_of(e, 1, 1)};
    e2e_start(e, &g, "01", work_rank, &work);
    await_work(e, &g, 4);
    kill(g.pids[0], SIGKILL);
    e2e_wait(e, &g, 30);
    e2e_expect(&g, 1, zipcclRemoteError, 2, "rank 0", NULL);
    e2e_ranks(e, "01", work_rank, &next, 60);
    E2E_CHECK(worker_of(e, 0, 0) == workers[0] && worker_of(e, 1, 0) == workers[2], "a trainer took a worker with it");
    e2e_start(e, &g, "00", work_rank, &work);
    await_work(e, &g, 4);
    e2e_daemon_kill(e, 0);
    await_end(workers[0]);
    await_end(workers[1]);
    e2e_wait(e, &g, 30);
    e2e_expect(&g, 0, zipcclDaemonUnavailable, 2, NULL);
    e2e_daemon_stop(e, 1, 10);
    await_end(workers[2]);
    await_end(workers[3]);
}
E2E_CASE(orphans, 90)

/* A worker dies 50 times: nothing of the dead is left in the daemon. */
static void case_again(struct e2e *e) {
    enum { TIMES = 50 };
    static const struct work work = {0, zipcclCodecTier, 5};
    e2e_set(e, "device=cuda");
    e2e_daemons(e, 1);
    e2e_ranks(e, "00", work_rank, &work, 60);
    unsigned fds = 0;
    for (unsigned i = 1; i <= TIMES; i++) {
        kill(worker_of(e, 0, 0), SIGKILL);
        await_new(e, 0, i);
        if (i == 2)
            fds = e2e_proc_fds(e->daemons[0].pid);
    }
    e2e_ranks(e, "00", work_rank, &work, 60);
    unsigned now = e2e_proc_fds(e->daemons[0].pid);
    for (double end = e2e_now() + 5; now > fds && e2e_now() < end; now = e2e_proc_fds(e->daemons[0].pid))
        e2e_sleep(0.01); /* connections of the last job may not be closed yet */
    E2E_CHECK(now <= fds, "%u descriptors after 2 workers, %u after %u", fds, now, (unsigned)TIMES);
}
E2E_CASE(again, 100)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_killed),    cmocka_unit_test(test_killed_raw),
                                       cmocka_unit_test(test_fault),     cmocka_unit_test(test_stuck),
                                       cmocka_unit_test(test_stuck_raw), cmocka_unit_test(test_stuck_registration),
                                       cmocka_unit_test(test_orphans),   cmocka_unit_test(test_again)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

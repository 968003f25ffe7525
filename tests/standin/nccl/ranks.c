/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs ranks as processes.
 */
#include "ranks.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LIMIT     90.0 /* seconds; sanitizers included */
#define MAX_RANKS 8

double ranks_now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

void ranks_fail(const char *file, int line, const char *condition) {
    fprintf(stderr, "%s:%d: %s does not hold\n", file, line, condition);
    _exit(1);
}

static int run_one(struct rank *rank, int (*fn)(struct rank *)) {
    const char *fail = getenv("RANK_0_FAIL");
    if (fail && rank->rank == 0)
        setenv("ZIPCCL_STANDIN_FAIL", fail, 1);
    CHECK(cudaSetDevice(rank->rank) == cudaSuccess);
    CHECK(cudaStreamCreate(&rank->stream) == cudaSuccess);
    if (rank->rank == 0) {
        for (int i = 0; i < RANKS_MAX_IDS; i++)
            CHECK(ncclGetUniqueId(&rank->shared->ids[i]) == ncclSuccess);
        atomic_store(&rank->shared->nids, RANKS_MAX_IDS);
    }
    return fn(rank);
}

static int end_of(int status) {
    return WIFSIGNALED(status) ? 256 + WTERMSIG(status) : WEXITSTATUS(status);
}

int ranks_run(int n, int (*fn)(struct rank *rank), char *text, size_t size) {
    struct ranks_shared *shared =
        mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[MAX_RANKS];
    FILE *err = tmpfile();
    if (shared == MAP_FAILED || !err || n > MAX_RANKS)
        abort();
    setenv("ZIPCCL_STANDIN_DEVICES", "8", 1);
    for (int i = 0; i < n; i++) {
        pids[i] = fork();
        if (pids[i] != 0)
            continue;
        dup2(fileno(err), STDERR_FILENO);
        struct rank rank = {.rank = i, .nranks = n, .shared = shared};
        exit(run_one(&rank, fn));
    }
    int left = n, result = 0;
    double before = ranks_now(), passed = 0; /* without the time in which all was stopped */
    while (left > 0 && result == 0) {
        for (int i = 0; i < n; i++) {
            int status;
            if (pids[i] <= 0 || waitpid(pids[i], &status, WNOHANG) != pids[i])
                continue;
            pids[i] = 0;
            left--;
            result = result ? result : end_of(status);
        }
        double now = ranks_now();
        passed += now - before < 0.1 ? now - before : 0.1;
        before = now;
        if (passed > LIMIT)
            result = -1;
        usleep(500);
    }
    for (int i = 0; i < n; i++) {
        if (pids[i] > 0) {
            kill(pids[i], SIGKILL);
            waitpid(pids[i], NULL, 0);
        }
    }
    rewind(err);
    char all[4096];
    size_t got = fread(all, 1, sizeof(all) - 1, err);
    all[got] = '\0';
    fclose(err);
    if (text)
        snprintf(text, size, "%s", all);
    else if (result)
        fprintf(stderr, "%s", all);
    munmap(shared, sizeof(*shared));
    return result;
}

ncclUniqueId ranks_id(struct rank *rank, int i) {
    while (atomic_load(&rank->shared->nids) == 0)
        usleep(200);
    return rank->shared->ids[i];
}

ncclComm_t ranks_comm(struct rank *rank, int i) {
    ncclComm_t comm = NULL;
    CHECK(ncclCommInitRank(&comm, rank->nranks, ranks_id(rank, i), rank->rank) == ncclSuccess);
    return comm;
}

void ranks_meet(struct rank *rank, int step) {
    atomic_fetch_add(&rank->shared->step[step], 1);
    while (atomic_load(&rank->shared->step[step]) < rank->nranks)
        usleep(200);
}

bool ranks_idle(struct rank *rank, double seconds) {
    double end = ranks_now() + seconds;
    while (cudaStreamQuery(rank->stream) == cudaErrorNotReady) {
        if (ranks_now() > end)
            return false;
        usleep(500);
    }
    return true;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Pools in memory of GPUs: coded chunks and partial results that NCCL carries lie there once they are warm, and nothing
 * of them in host memory; the bits are the same without room, without a pool, and after a worker's death; what is not
 * needed any more goes back.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_buffers.h"
#include "raw.h"

#define BYTES 36000u /* a rank: a chunk of them does not count as small */
#define FULL  6u     /* rounds with all operations, each codec with each arm; later ones have two */

enum { FLAG_GO, FLAG_DONE };

struct work {
    unsigned rounds;
    bool waits;   /* after each round, until the case has looked */
    size_t large; /* bytes to each rank, in one all-to-all a round; 0: operations of all kinds */
};

static const zipcclOp_t ops[] = {zipcclOpAllGather, zipcclOpReduceScatter, zipcclOpAllReduce, zipcclOpBroadcast,
                                 zipcclOpReduce,    zipcclOpAllToAll,      zipcclOpGather,    zipcclOpScatter};
#define NOPS (sizeof(ops) / sizeof(ops[0]))

/* All ranks are here, and the case has had its look. */
static void meet(struct e2e_rank *r, int round) {
    atomic_fetch_add(&r->shared->flags[FLAG_DONE], 1);
    while (atomic_load(&r->shared->flags[FLAG_GO]) <= round)
        e2e_sleep(0.001);
}

static void work_rank(struct e2e_rank *r) {
    const struct work *work = r->args;
    struct any_world w;
    struct gpu_rank g;
    struct gpu_buffers b;
    double start = e2e_now();
    const size_t bytes = work->large ? work->large : BYTES;
    gpu_rank_begin(&g, r->rank % 2);
    any_world_set(&w, "0011", r->rank, e2e_comm(r));
    gpu_buffers_new(&b, &g, GPU_MALLOC, GPU_VMM, (size_t)r->nranks * bytes);
    zipcclResult_t error = zipcclSuccess;
    for (unsigned round = 0; round < work->rounds && error == zipcclSuccess; round++) {
        for (unsigned i = 0; i < (work->large ? 1 : round < FULL ? NOPS : 2) && error == zipcclSuccess; i++) {
            const unsigned dtype = (round + i) / 2 % 2; /* not in step with codec and arm */
            struct any_op a = {.op = work->large ? zipcclOpAllToAll : ops[round < FULL ? i : (round + 3 * i) % NOPS],
                               .dtype = dtype ? zipcclFloat32 : zipcclBfloat16,
                               .codec = round % 3 == 2 ? zipcclCodecRaw : zipcclCodecTier,
                               .arm = round % 2 ? zipcclArmFlat : zipcclArmHierarchical,
                               .redop = dtype ? zipcclSum : zipcclAvg,
                               .count = bytes / (dtype ? 4 : 2),
                               .root = (int)(round + i) % r->nranks,
                               .seq = round * 100 + i};
            error = any_issue(&w, g.stream, &a, &b.any);
            gpu_fetch(&b);
            CUDA_OK(cudaStreamSynchronize(g.cuda));
            if (error == zipcclSuccess)
                E2E_OK(NULL, zipcclCommGetAsyncError(w.comm, &error));
            if (error == zipcclSuccess)
                any_check(&w, &a, &b.any);
        }
        if (work->waits)
            meet(r, (int)round);
    }
    e2e_report(r, error, error == zipcclSuccess ? NULL : w.comm, start);
    if (error != zipcclSuccess) {
        (void)zipcclCommAbort(w.comm);
        (void)zipcclStreamDestroy(g.stream);
        any_buffers_free(&b.any);
        return;
    }
    E2E_OK(NULL, zipcclStreamSynchronize(g.stream));
    gpu_buffers_free(&b);
    E2E_OK(NULL, zipcclCommDestroy(w.comm));
    gpu_rank_end(&g);
}

struct pools {
    uint64_t bytes, used, missed;
};

/* Of both GPUs of all nodes together. */
static struct pools look(const struct e2e *e) {
    struct pools all = {0};
    for (unsigned node = 0; node < e->ndaemons; node++) {
        Zipccl__Status *s = raw_status(e->daemons[node].socket);
        E2E_CHECK(s->n_gpus == 2, "%zu GPUs", s->n_gpus);
        for (size_t i = 0; i < s->n_gpus; i++) {
            all.bytes += s->gpus[i]->pool_bytes;
            all.used += s->gpus[i]->pool_used_bytes;
            all.missed += s->gpus[i]->pool_missed_bytes;
        }
        zipccl__status__free_unpacked(s, NULL);
    }
    return all;
}

static void await_round(struct e2e *e, const struct e2e_group *g, unsigned round) {
    double end = e2e_now() + 60 * E2E_SLOW;
    while (atomic_load(&g->shared->flags[FLAG_DONE]) < g->nranks * (int)(round + 1)) {
        e2e_daemons_live(e);
        E2E_CHECK(e2e_now() < end, "round %u", round);
        e2e_sleep(0.001);
    }
}

/* The ranks run a round at a time; the pools after each. */
static void rounds(struct e2e *e, struct e2e_group *g, const struct work *work, struct pools *after) {
    e2e_start(e, g, "0011", work_rank, work);
    for (unsigned round = 0; round < work->rounds; round++) {
        await_round(e, g, round);
        after[round] = look(e);
        atomic_store(&g->shared->flags[FLAG_GO], (int)round + 1);
    }
    e2e_wait(e, g, 60);
    e2e_all_passed(e, g);
}

/* Calls of that name, of all workers. */
static unsigned long calls(const struct e2e *e, const char *name) {
    unsigned long all = 0, n;
    for (unsigned node = 0; node < e->ndaemons; node++) {
        for (unsigned gpu = 0; gpu < 2; gpu++) {
            char path[128], row[65] = "", found[65];
            snprintf(path, sizeof(path), "%s/count.%d", e->dir, (int)gpu_worker(e->daemons[node].pid, gpu));
            FILE *f = fopen(path, "r");
            E2E_CHECK(f, "%s", path);
            while (fread(row, 64, 1, f) == 1) {
                if (sscanf(row, "%64s %lu", found, &n) == 2 && strcmp(found, name) == 0)
                    all += n;
            }
            fclose(f);
        }
    }
    return all;
}

static void start(struct e2e *e, const char *pool_size) {
    char path[96];
    pool();
    e2e_set(e, "device=cuda");
    e2e_set(e, "fabric=nccl");
    e2e_set(e, "chunk_bytes=64KiB");
    e2e_set(e, "gpu_pool=%s", pool_size);
    snprintf(path, sizeof(path), "%s/count", e->dir);
    setenv("ZIPCCL_STANDIN_COUNT", path, 1);
    e2e_daemons(e, 2);
    unsetenv("ZIPCCL_STANDIN_COUNT");
}

/* The daemons have no memory of GPUs soon. */
static void nothing_kept(struct e2e *e) {
    double end = e2e_now() + 10 * E2E_SLOW;
    for (;;) {
        struct pools now = look(e);
        if (now.bytes == 0 && now.used == 0)
            return;
        E2E_CHECK(e2e_now() < end, "%llu bytes are kept", (unsigned long long)now.bytes);
        e2e_sleep(0.005);
    }
}

/* The first round finds the pools empty; from then on they have room, and do not grow. */
static void case_warm(struct e2e *e) {
    enum { ROUNDS = E2E_SANITIZED ? 15 : 50, COLD = FULL };
    const struct work work = {.rounds = ROUNDS, .waits = true};
    struct pools after[ROUNDS];
    struct e2e_group g;
    start(e, "256MiB");
    E2E_CHECK(look(e).bytes == 0, "memory is taken before it is needed");
    rounds(e, &g, &work, after);
    E2E_CHECK(after[0].missed > 0 && after[0].bytes > 0, "nothing has found the pools cold");
    for (unsigned i = COLD; i < ROUNDS; i++) {
        E2E_CHECK(after[i].missed == after[COLD - 1].missed, "round %u: %llu bytes went through host memory", i,
                  (unsigned long long)(after[i].missed - after[COLD - 1].missed));
        E2E_CHECK(after[i].bytes == after[COLD - 1].bytes && after[i].used == 0, "round %u: %llu bytes, %llu used", i,
                  (unsigned long long)after[i].bytes, (unsigned long long)after[i].used);
    }
    nothing_kept(e);
    unsigned long registered = calls(e, "ncclCommRegister");
    unsigned long used = calls(e, "ncclRegisteredMemory"), sends = calls(e, "ncclSend"), recvs = calls(e, "ncclRecv");
    E2E_CHECK(used > 200 && used < sends + recvs, "%lu of %lu sends and %lu receives are of registered memory", used,
              sends, recvs);
    E2E_CHECK(registered >= 4, "%lu slabs were registered", registered);
    E2E_CHECK(registered == calls(e, "ncclCommDeregister"), "%lu of %lu were struck out again",
              calls(e, "ncclCommDeregister"), registered);
}
E2E_CASE(warm, 100)

/* The least pool does not hold what an all-to-all has under way: the rest goes through host memory, and people are
 * told, once for each GPU. */
static void case_full(struct e2e *e) {
    const struct work work = {.rounds = 2, .waits = true, .large = 512u << 10};
    struct pools after[2];
    struct e2e_group g;
    e2e_set(e, "window=16");
    start(e, "2MiB");
    rounds(e, &g, &work, after);
    E2E_CHECK(after[1].bytes == 4 * (2u << 20), "%llu bytes", (unsigned long long)after[1].bytes);
    E2E_CHECK(after[1].missed > after[0].missed, "there was room for all");
    for (unsigned node = 0; node < 2; node++) {
        char *log = e2e_read_file(e->daemons[node].log);
        unsigned told = 0;
        for (const char *p = log; (p = strstr(p, "(gpu_pool) is full")) != NULL; p++)
            told++;
        free(log);
        E2E_CHECK(told == 2, "node %u tells %u times that its pools are full", node, told);
    }
    nothing_kept(e);
}
E2E_CASE(full, 100)

static void case_off(struct e2e *e) {
    const struct work work = {.rounds = 3, .waits = true};
    struct pools after[3];
    struct e2e_group g;
    start(e, "0");
    rounds(e, &g, &work, after);
    E2E_CHECK(after[2].bytes == 0 && after[2].missed > after[0].missed, "%llu bytes",
              (unsigned long long)after[2].bytes);
    E2E_CHECK(calls(e, "ncclCommRegister") == 0, "memory is registered");
}
E2E_CASE(off, 100)

/* A node that verifies has no chunk on a GPU; the other one has, and checks what comes. */
static void case_one_verifies(struct e2e *e) {
    const struct work work = {.rounds = 3, .waits = true};
    struct pools after[3];
    struct e2e_group g;
    start(e, "256MiB");
    e2e_daemon_stop(e, 1, 20);
    e2e_set(e, "verify=on");
    e2e_daemon_start(e, 1);
    rounds(e, &g, &work, after);
    E2E_CHECK(after[2].bytes > 0, "no node has a pool");
}
E2E_CASE(one_verifies, 100)

/* An NCCL that knows no registration. */
static void case_plain(struct e2e *e) {
    const struct work work = {.rounds = 3, .waits = true};
    struct pools after[3];
    struct e2e_group g;
    setenv("ZIPCCL_STANDIN_NCCL_VERSION", "21805", 1);
    start(e, "256MiB");
    unsetenv("ZIPCCL_STANDIN_NCCL_VERSION");
    rounds(e, &g, &work, after);
    E2E_CHECK(after[2].bytes > 0, "there is no pool");
    E2E_CHECK(calls(e, "ncclCommRegister") == 0, "a call that this NCCL does not have");
}
E2E_CASE(plain, 100)

/* A worker is killed while its pool is in use: it is gone with it, and the next communicator has a new one. */
static void case_killed(struct e2e *e) {
    const struct work first = {.rounds = 100000}, next = {.rounds = 3, .waits = true};
    struct pools after[3];
    struct e2e_group g;
    start(e, "256MiB");
    double end = e2e_now() + 30 * E2E_SLOW;
    e2e_start(e, &g, "0011", work_rank, &first);
    while (look(e).used == 0) {
        e2e_daemons_live(e);
        E2E_CHECK(e2e_now() < end, "nothing uses the pools");
    }
    const pid_t lost = gpu_worker(e->daemons[0].pid, 0);
    E2E_CHECK(lost, "GPU 0 has no worker");
    kill(lost, SIGKILL);
    e2e_wait(e, &g, 30);
    for (int rank = 0; rank < g.nranks; rank++) { /* the other node may see the silence before it is told why */
        const struct e2e_report *report = &g.shared->reports[rank];
        E2E_CHECK(report->text[0] && (report->result == zipcclRemoteError ||
                                      (report->result == zipcclUnhandledDeviceError && strstr(report->text, "GPU 0"))),
                  "rank %d: %d, %s", rank, report->result, report->text);
    }
    e2e_daemons_live(e);
    nothing_kept(e);
    rounds(e, &g, &next, after);
    E2E_CHECK(after[2].bytes > 0 && gpu_worker(e->daemons[0].pid, 0) != lost, "no new worker, or no new pool");
    nothing_kept(e);
}
E2E_CASE(killed, 100)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_warm),         cmocka_unit_test(test_full),
                                       cmocka_unit_test(test_off),          cmocka_unit_test(test_plain),
                                       cmocka_unit_test(test_one_verifies), cmocka_unit_test(test_killed)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

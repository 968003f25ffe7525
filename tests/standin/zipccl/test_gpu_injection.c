/* SPDX-License-Identifier: Apache-2.0
 *
 * Every call of CUDA and NCCL that the daemon makes fails once, by each kind of error: an error or a slower way, never
 * a hang or a leak; a job that has nothing to do with GPUs does not notice, and the next job works.
 *
 * Which calls there are is counted, not listed. Errors that pass come one after another to one daemon; after one that
 * stays, and for calls that are made at the start alone, it is started anew. ZIPCCL_TEST_ALL=1: each call by each
 * error; without it each call by one that passes, and every fourth by one that stays.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_faults.h"

enum { COUNT = GPU_FAULTS_COUNT };

static const char *const passing[] = {"1" /* invalid value */, "2" /* no memory */, "400" /* invalid handle */,
                                      "801" /* unsupported */, "999" /* unknown */};
static const char *const of_nccl[] = {"1" /* CUDA error */, "2" /* system error */, "3" /* internal error */,
                                      "5" /* invalid usage */, "6" /* remote error */};
_Static_assert(sizeof(of_nccl) == sizeof(passing), "as many kinds");
static const char *const staying[] = {"700" /* illegal address */, "719" /* launch failure */};

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

/* A job on GPUs of both nodes, beside the bystander. Fails where it hangs, or says nothing of an error. */
static bool job_works(struct e2e *e, const char *what, const char *code) {
    struct e2e_group g;
    bool works = true;
    e2e_start(e, &g, "001", gpu_faults_rank, NULL);
    e2e_wait(e, &g, 20);
    e2e_daemons_live(e);
    for (int rank = 0; rank < g.nranks; rank++) {
        const struct e2e_report *report = &g.shared->reports[rank];
        E2E_CHECK(report->result >= 0, "%s=%s: rank %d says nothing", what, code, rank);
        E2E_CHECK(report->result == zipcclSuccess || report->text[0], "%s=%s: an error without a text", what, code);
        works = works && report->result == zipcclSuccess;
    }
    if (!works)
        fprintf(stderr, "%s=%s: %s\n", what, code, g.shared->reports[0].text);
    return works;
}

static bool is_nccl(const char *name) {
    return strncmp(name, "nccl", 4) == 0;
}

static void must_work(struct e2e *e, const char *what, const char *code) {
    gpu_arm(e, NULL, NULL);
    E2E_CHECK(job_works(e, what, code), "%s=%s: the next job fails too", what, code);
}

/* The call fails during the start: it ends with a reason, or serves. */
static void at_start(struct e2e *e, const char *call, const char *code) {
    char output[4096], path[96], socket[96];
    e2e_daemon_stop(e, 0, 20);
    gpu_arm(e, call, code);
    snprintf(path, sizeof(path), "%s/fail", e->dir);
    snprintf(socket, sizeof(socket), "socket=%s/start.sock", e->dir);
    setenv("ZIPCCL_STANDIN_FAIL_FILE", path, 1);
    int status =
        e2e_daemon_run(e, output, sizeof(output), 0.6,
                       (const char *const[]){"--set", "device=cuda", "--set", socket, "--set", "listen=127.0.0.1:0",
                                             "--set", "metrics_listen=", "--set", "fabric=none", NULL});
    unsetenv("ZIPCCL_STANDIN_FAIL_FILE");
    /* -1: it serves, and was ended. */
    E2E_CHECK(status < 128 && (status == -1 || (status > 0 && e2e_mentions(output, "cuda|GPU"))), "%s=%s: exit %d: %s",
              call, code, status, output);
    gpu_arm(e, NULL, NULL);
    gpu_start_node0(e);
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
    gpu_faults_split = true;
    gpu_counted_daemons(e);
    must_work(e, "nothing", "");
#ifdef ZIPCCL_HAVE_NCCL
    /* The last calls are those of pools that are given back. */
    for (double end = e2e_now() + 10 * E2E_SLOW; !gpu_counted(e, "count.", "cuMemUnmap", false) && e2e_now() < end;)
        e2e_sleep(0.01);
#endif
    (void)gpu_counted(e, "count.", NULL, true);
    E2E_CHECK(gpu_ncalls > 20, "only %u calls", gpu_ncalls);
#ifdef ZIPCCL_HAVE_NCCL
    static const char *const some[] = {"cuMemCreate", "cuMemUnmap", "ncclCommRegister", "ncclCommDeregister",
                                       "ncclCommSplit"};
    for (unsigned i = 0; i < sizeof(some) / sizeof(some[0]); i++)
        E2E_CHECK(gpu_counted(e, "count.", some[i], false) > 0, "%s is not among them", some[i]);
#endif
    fprintf(stderr, "%u calls\n", gpu_ncalls);
    unsigned fds = e2e_proc_fds(e->daemons[0].pid), hit = 0, starts = 0;
    for (unsigned i = 0; i < gpu_ncalls; i++) {
        unsigned ncodes = all ? sizeof(passing) / sizeof(passing[0]) : 1;
        bool seen = false;
        if (runs_in_stream(gpu_calls[i].name))
            continue; /* what fails there stays */
        e2e_start(e, &bystander, "00", bystander_rank, NULL);
        for (unsigned k = 0; k < ncodes; k++) {
            const char *const *codes = is_nccl(gpu_calls[i].name) ? of_nccl : passing;
            const char *code = codes[all ? k : i % (sizeof(passing) / sizeof(passing[0]))];
            unsigned long before = gpu_counted(e, "count.", gpu_calls[i].name, false);
            gpu_arm(e, gpu_calls[i].name, code);
            (void)job_works(e, gpu_calls[i].name, code);
            seen = seen || gpu_counted(e, "count.", gpu_calls[i].name, false) > before;
            must_work(e, gpu_calls[i].name, code);
        }
        e2e_raise(bystander.shared, 0);
        e2e_wait(e, &bystander, 20);
        e2e_all_passed(e, &bystander);
        hit += seen;
        starts += !seen;
        if (!seen)
            at_start(e, gpu_calls[i].name, passing[i % 2]);
    }
    must_work(e, "any", "");
    fprintf(stderr, "%u calls failed during work, %u at the start\n", hit, starts);
    E2E_CHECK(hit > 15, "%u", hit);
    unsigned now = e2e_proc_fds(e->daemons[0].pid);
    E2E_CHECK(starts || now <= fds + 4, "%u descriptors, %u at first", now, fds);
}
E2E_CASE(every_call, 400)

static void case_errors_that_stay(struct e2e *e) {
    bool all = every("ZIPCCL_TEST_ALL");
    gpu_counted_daemons(e);
    must_work(e, "nothing", "");
    (void)gpu_counted(e, "count.", NULL, true);
    for (unsigned i = 0; i < gpu_ncalls; i++) {
        if (is_nccl(gpu_calls[i].name) || (!all && i % 4 != 0 && !runs_in_stream(gpu_calls[i].name)))
            continue;
        const char *code = staying[i / 4 % 2];
        struct e2e_group bystander;
        e2e_start(e, &bystander, "00", bystander_rank, NULL);
        gpu_arm(e, gpu_calls[i].name, code);
        (void)job_works(e, gpu_calls[i].name, code);
        e2e_raise(bystander.shared, 0);
        e2e_wait(e, &bystander, 20);
        e2e_all_passed(e, &bystander);
        e2e_daemon_stop(e, 0, 20);
        gpu_arm(e, NULL, NULL);
        gpu_start_node0(e);
    }
    must_work(e, "any", "");
}
E2E_CASE(errors_that_stay, 300)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_call), cmocka_unit_test(test_errors_that_stay)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * kill -9 at every step of a collective on GPUs: of the trainer at each call of CUDA that libzipccl and it make, of the
 * daemon's side at each of its own. The others have their error within a second, and the next job works.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu_faults.h"

#define SOON 1.0 /* from the operation that meets it to its error, in seconds */
/* Of all errors so many may take up to five times as long: where others use the processors a process may not run. */
#define LATE_ONES 2u

struct victim {
    int rank;
    const char *rule; /* of the injector; NULL: its calls are counted */
};

static void mortal_rank(struct e2e_rank *r) {
    const struct victim *v = r->args;
    char path[96];
    if (r->rank == v->rank && v->rule)
        setenv("ZIPCCL_STANDIN_FAIL", v->rule, 1);
    else if (r->rank == v->rank) {
        snprintf(path, sizeof(path), "%s/trainer", r->e->dir);
        setenv("ZIPCCL_STANDIN_COUNT", path, 1);
    }
    gpu_faults_rank(r);
}

static void check_time(const struct e2e_report *report, int rank, const char *what, unsigned *late) {
    *late += report->seconds >= SOON * E2E_SLOW;
    E2E_CHECK(report->seconds < 5 * SOON * E2E_SLOW && *late <= LATE_ONES,
              "%s: rank %d has its error after %.1f s, %u were late: %s", what, rank, report->seconds, *late,
              report->text);
}

/* All but the victim told of an error, soon. */
static void check_survivors(const struct e2e_group *g, int victim, const char *what, unsigned *late) {
    for (int rank = 0; rank < g->nranks; rank++) {
        const struct e2e_report *report = &g->shared->reports[rank];
        if (rank == victim)
            continue;
        E2E_CHECK(report->result > 0, "%s: rank %d: %s", what, rank, e2e_result_name(report->result));
        E2E_CHECK(report->text[0], "%s: rank %d has an error without a text", what, rank);
        check_time(report, rank, what, late);
    }
}

static bool killed(const struct e2e_group *g, int rank) {
    return WIFSIGNALED(g->status[rank]) && WTERMSIG(g->status[rank]) == SIGKILL;
}

static void next_job(struct e2e *e, const char *what) {
    struct e2e_group g;
    e2e_start(e, &g, "001", gpu_faults_rank, NULL);
    e2e_wait(e, &g, 20);
    for (int rank = 0; rank < g.nranks; rank++)
        E2E_CHECK(g.shared->reports[rank].result == zipcclSuccess, "after %s: rank %d: %s", what, rank,
                  g.shared->reports[rank].text);
    e2e_all_passed(e, &g);
}

static void case_trainer(struct e2e *e) {
    struct e2e_group g;
    struct victim v = {.rank = 1};
    unsigned deaths = 0, late = 0;
    e2e_set(e, "device=cuda");
    e2e_set(e, "join_timeout=500ms"); /* who dies before it joins is missed then */
    e2e_daemons(e, 2);
    e2e_start(e, &g, "001", mortal_rank, &v);
    e2e_wait(e, &g, 20);
    e2e_all_passed(e, &g);
    gpu_ncalls = 0;
    (void)gpu_counted(e, "trainer.", NULL, true);
    E2E_CHECK(gpu_ncalls > 10, "%u calls", gpu_ncalls);
    for (unsigned i = 0; i < gpu_ncalls; i++) {
        const char *name = gpu_calls[i].name;
        unsigned long n = gpu_counted(e, "trainer.", name, false);
        for (unsigned k = 0; k < 2; k++) { /* the first one, and one in the middle */
            char rule[96];
            if (k == 1 && n < 3)
                continue;
            snprintf(rule, sizeof(rule), "%s:%lu=kill", name, k == 0 ? 1 : n / 2 + 1);
            v.rule = rule;
            e2e_start(e, &g, "001", mortal_rank, &v);
            e2e_wait(e, &g, 20);
            e2e_daemons_live(e);
            if (killed(&g, 1) && g.shared->reports[1].result == -1) {
                deaths++;
                check_survivors(&g, 1, rule, &late);
            }
        }
    }
    fprintf(stderr, "%u calls, %u deaths\n", gpu_ncalls, deaths);
    E2E_CHECK(deaths > 12, "only %u deaths", deaths);
    next_job(e, "the trainers' deaths");
}
E2E_CASE(trainer, 200)

/* What makes the call is the daemon, or its worker of that GPU. */
static void case_daemon(struct e2e *e) {
    struct e2e_group g;
    unsigned deaths = 0, late = 0;
    gpu_counted_daemons(e);
    next_job(e, "nothing");
    gpu_ncalls = 0;
    (void)gpu_counted(e, "count.", NULL, true);
    E2E_CHECK(gpu_ncalls > 20, "%u calls", gpu_ncalls);
    for (unsigned i = 0; i < gpu_ncalls; i++) {
        const char *name = gpu_calls[i].name;
        pid_t pid = e->daemons[0].pid;
        unsigned long before = gpu_counted(e, "count.", name, false);
        gpu_arm(e, name, "kill");
        e->daemons[0].pid = 0; /* may die */
        e2e_start(e, &g, "001", gpu_faults_rank, NULL);
        e2e_wait(e, &g, 20);
        if (gpu_counted(e, "count.", name, false) > before) {
            deaths++;
            for (int rank = 0; rank < g.nranks; rank++) {
                const struct e2e_report *report = &g.shared->reports[rank];
                if (report->result == zipcclSuccess) /* that of the other GPU may have ended before */
                    continue;
                E2E_CHECK(report->text[0], "%s: rank %d has an error without a text", name, rank);
                check_time(report, rank, name, &late);
            }
        }
        gpu_arm(e, NULL, NULL);
        /* The last calls are those of sessions that end. */
        bool dead = false, called = true;
        for (double end = e2e_now() + 0.2 * E2E_SLOW; called && !dead && e2e_now() < end; e2e_sleep(0.005)) {
            dead = waitpid(pid, NULL, WNOHANG) == pid;
            called = dead || gpu_counted(e, "count.", name, false) > before;
        }
        if (dead)
            gpu_start_node0(e);
        else
            e->daemons[0].pid = pid;
        e2e_daemons_live(e);
    }
    fprintf(stderr, "%u calls, %u deaths\n", gpu_ncalls, deaths);
    E2E_CHECK(deaths > 12, "only %u deaths", deaths);
    next_job(e, "the daemons' deaths");
}
E2E_CASE(daemon, 200)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_trainer), cmocka_unit_test(test_daemon)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Who waits uses no processor: daemons and ranks look at their sockets only while small operations follow each other.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "collect.h"

#define SMALL_OPS   2000
#define LONG_OPS    8
#define IDLE_S      1.0
#define LATE_S      0.1
#define IDLE_MOST_S 0.3 /* of IDLE_S; whoever spins takes all of it */

enum { BUSY, ENDED };

/* Of all threads of a process. */
static double cpu_of(pid_t pid) {
    char path[64];
    unsigned long user, system;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    char *text = e2e_read_file(path);
    const char *rest = text ? strrchr(text, ')') : NULL;
    E2E_CHECK(rest && sscanf(rest, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) == 2,
              "no times in %s", path);
    free(text);
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

static double own_cpu(void) {
    struct rusage u;
    E2E_CHECK(getrusage(RUSAGE_SELF, &u) == 0, "getrusage");
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void idle_for(const struct e2e *e, unsigned node, const char *what) {
    pid_t pid = e->daemons[node].pid;
    double before = cpu_of(pid);
    e2e_sleep(IDLE_S);
    double used = cpu_of(pid) - before;
    printf("%s, node%u: %.3f s of processor in %g s\n", what, node, used, IDLE_S);
    E2E_CHECK(used < IDLE_MOST_S, "%s: node%u used %.3f s of processor in %g s", what, node, used, IDLE_S);
}

/* Many small operations, then nothing, with everything still open. */
static void small_rank(struct e2e_rank *r) {
    uint8_t send = (uint8_t)r->rank, recv[E2E_MAX_RANKS];
    const char *spin_us = r->args;
    if (spin_us && setenv("ZIPCCL_SPIN_US", spin_us, 1) != 0)
        E2E_FAIL("setenv");
    zipcclComm_t comm = e2e_comm(r);
    for (int i = 0; i < SMALL_OPS; i++) {
        memset(recv, 0xff, sizeof(recv));
        E2E_OK(comm, zipcclAllGather(&send, recv, 1, zipcclUint8, comm, NULL));
        for (int k = 0; k < r->nranks; k++)
            E2E_CHECK(recv[k] == k, "operation %d: %u of rank %d", i, recv[k], k);
    }
    e2e_raise(r->shared, BUSY);
    e2e_await(r->shared, ENDED);
    E2E_OK(comm, zipcclBarrier(comm, NULL));
    E2E_OK(comm, zipcclCommDestroy(comm));
}

static void small_then_idle(struct e2e *e, const char *layout, unsigned ndaemons, const char *spin_us) {
    struct e2e_group g;
    e2e_start(e, &g, layout, small_rank, spin_us);
    e2e_await(g.shared, BUSY);
    e2e_sleep(0.2); /* until the last rank is there, too */
    for (unsigned i = 0; i < ndaemons; i++)
        idle_for(e, i, "after small operations");
    e2e_raise(g.shared, ENDED);
    e2e_wait(e, &g, 30);
    e2e_all_passed(e, &g);
}

static void case_daemon(struct e2e *e) {
    e2e_daemons(e, 2);
    e2e_sleep(0.3); /* it listens a little before all of its start is over */
    idle_for(e, 0, "at start");
    small_then_idle(e, "00", 1, NULL);
    small_then_idle(e, "01", 2, NULL);
}
E2E_CASE(daemon, 60)

/* The same without any spinning, and with as much as is allowed. */
static void case_settings(struct e2e *e) {
    e2e_set(e, "busy_poll=0");
    e2e_daemon_start(e, 0);
    small_then_idle(e, "00", 1, "0");
    e2e_set(e, "busy_poll=10000");
    e2e_daemon_start(e, 1);
    small_then_idle(e, "11", 1, "10000");
    small_then_idle(e, "1111", 1, "not a number");
}
E2E_CASE(settings, 60)

/* Rank 0 waits for the others, which are always late. */
static void waiting_rank(struct e2e_rank *r) {
    zipcclComm_t comm = e2e_comm(r);
    for (int i = 0; i < SMALL_OPS; i++)
        E2E_OK(comm, zipcclBarrier(comm, NULL));
    double before = own_cpu();
    for (int i = 0; i < LONG_OPS; i++) {
        if (r->rank > 0)
            e2e_sleep(LATE_S);
        E2E_OK(comm, zipcclBarrier(comm, NULL));
    }
    double used = own_cpu() - before;
    printf("rank %d: %.3f s of processor in %g s\n", r->rank, used, LONG_OPS * LATE_S);
    E2E_CHECK(used < IDLE_MOST_S, "rank %d used %.3f s of processor in %g s", r->rank, used, LONG_OPS * LATE_S);
    E2E_OK(comm, zipcclCommDestroy(comm));
}

static void case_ranks(struct e2e *e) {
    e2e_daemons(e, 1);
    e2e_ranks(e, "000", waiting_rank, NULL, 30);
}
E2E_CASE(ranks, 40)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_daemon),
        cmocka_unit_test(test_settings),
        cmocka_unit_test(test_ranks),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Why a communicator failed, where its messages end before the cause is told: all ranks hear the cause, if it comes in
 * a moment, and what is known if it does not.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "harness.h"

#define SOON   4.0 /* "at once", on a busy machine */
#define COUNT  (1u << 22)
#define TRIES  3
#define POSTED 0.2 /* until what ranks have called is posted; if it is not, nothing is tested */

/* ---- one rank finds it, another one of its node is told sooner that its messages end ---- */

static void finds_rank(struct e2e_rank *r) {
    const bool *alone = r->args;
    zipcclComm_t comm = e2e_comm(r);
    uint8_t *large = calloc(1, COUNT), small[101] = {0};
    E2E_CHECK(large, "memory");
    E2E_OK(comm, zipcclBarrier(comm, NULL));
    double start = e2e_now();
    zipcclResult_t rc = zipcclSuccess;
    if (r->rank == 0) { /* sends 100 values, where 101 are wanted */
        e2e_sleep(POSTED);
        start = e2e_now();
        rc = zipcclSend(small, 100, zipcclInt8, 3, comm, NULL);
    } else if (r->rank == 2 && !*alone) { /* waits for what nobody sends */
        rc = zipcclRecv(small, 101, zipcclInt8, 0, comm, NULL);
    } else if (r->rank == 3) { /* finds it, while rank 1 does not take what it sends */
        E2E_OK(NULL, zipcclGroupStart());
        E2E_OK(comm, zipcclRecv(small, 101, zipcclInt8, 0, comm, NULL));
        E2E_OK(comm, zipcclSend(large, COUNT, zipcclInt8, 1, comm, NULL));
        rc = zipcclGroupEnd();
    }
    for (zipcclResult_t error = rc; rc == zipcclSuccess && e2e_now() < start + 20 * E2E_SLOW; rc = error) {
        E2E_OK(comm, zipcclCommGetAsyncError(comm, &error));
        e2e_sleep(0.002);
    }
    e2e_report(r, rc, comm, start);
    zipcclCommDestroy(comm);
    free(large);
}

static void finds(struct e2e *e, bool alone) {
    struct e2e_group g;
    e2e_start(e, &g, "0011", finds_rank, &alone);
    e2e_wait(e, &g, 40);
    for (int i = 0; i < g.nranks; i++)
        e2e_expect(&g, i, zipcclInvalidArgument, SOON, "receive", "100", "101", NULL);
    e2e_all_passed(e, &g);
}

static void case_found_beside_others(struct e2e *e) {
    e2e_set(e, "codec=raw");
    e2e_daemons(e, 2);
    finds(e, false);
    finds(e, true);
}
E2E_CASE(found_beside_others, 100)

/* ---- the cause comes from a third node, which is late ---- */

/* Rank 0 makes the id, and no more: its node is the root. */
static void pair_rank(struct e2e_rank *r) {
    zipcclUniqueId id = e2e_id(r);
    zipcclComm_t comm = NULL;
    if (r->rank == 0) {
        e2e_await(r->shared, 2);
        return;
    }
    E2E_OK(NULL, zipcclCommInitRank(&comm, 2, id, r->rank - 1));
    E2E_OK(comm, zipcclBarrier(comm, NULL));
    e2e_raise(r->shared, r->rank - 1);
    double start = e2e_now();
    zipcclResult_t rc = zipcclSuccess;
    if (r->rank == 2) {
        rc = zipcclBarrier(comm, NULL); /* which the other one does not call */
        e2e_report(r, rc, comm, start);
    } else {
        while (rc == zipcclSuccess && zipcclCommGetAsyncError(comm, &rc) == zipcclSuccess)
            e2e_sleep(0.002);
    }
    zipcclCommDestroy(comm);
}

/* Node 1 is stopped while the root does not run: node 2 sees that it is gone. back: the root runs again in a moment. */
static struct e2e_report stop_behind_root(struct e2e *e, bool back) {
    struct e2e_group g;
    e2e_start(e, &g, "012", pair_rank, NULL);
    e2e_await(g.shared, 0);
    e2e_await(g.shared, 1);
    e2e_sleep(POSTED);
    pid_t root = e->daemons[0].pid;
    kill(root, SIGSTOP);
    E2E_CHECK(waitpid(root, NULL, WUNTRACED) == root, "the root is not stopped");
    double start = e2e_now();
    e2e_daemon_stop(e, 1, SOON);
    e2e_sleep(0.02);
    if (back)
        kill(root, SIGCONT);
    e2e_wait_rank(e, &g, 2, 20);
    double took = e2e_now() - start;
    kill(root, SIGCONT);
    e2e_raise(g.shared, 2);
    e2e_wait(e, &g, 20);
    const struct e2e_report report = g.shared->reports[2];
    e2e_all_passed(e, &g);
    E2E_CHECK(took < SOON * E2E_SLOW, "it took %.1f s", took);
    e2e_daemon_start(e, 1);
    return report;
}

static void case_cause_comes_later(struct e2e *e) {
    struct e2e_report r = {.result = zipcclRemoteError};
    e2e_set(e, "drain_timeout=0");
    e2e_daemons(e, 3);
    /* Where the machine is busy, the root may be too late. */
    for (unsigned i = 0; i < TRIES && r.result == zipcclRemoteError; i++)
        r = stop_behind_root(e, true);
    E2E_CHECK(r.result == zipcclDaemonUnavailable && e2e_mentions(r.text, "node1") &&
                  e2e_mentions(r.text, "shutting down"),
              "%s: %s", e2e_result_name(r.result), r.text);
    r = stop_behind_root(e, false);
    E2E_CHECK(r.result == zipcclRemoteError && e2e_mentions(r.text, "node1"), "%s: %s", e2e_result_name(r.result),
              r.text);
    e2e_alive(e);
}
E2E_CASE(cause_comes_later, 100)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_found_beside_others),
                                       cmocka_unit_test(test_cause_comes_later)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

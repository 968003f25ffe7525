/* SPDX-License-Identifier: Apache-2.0
 *
 * A daemon that is killed under load and started anew by its service manager, which holds the sockets: every client has
 * its error within a second, joins again from the same process with the same memory, and nothing of the dead daemon is
 * left.
 */
#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "collect.h"
#include "raw.h"

enum { KILLS = 3, AFTER = 12, BIG = 1 << 20, SMALL = 512 };

struct load {
    size_t count;                   /* values a rank */
    _Atomic uint64_t *killed_at_us; /* of each kill, CLOCK_MONOTONIC; 0: not yet */
};

static uint64_t now_us(void) {
    return (uint64_t)(e2e_now() * 1e6);
}

/* All-gathers with every bit compared, until one fails; at least `least`, and no more where it is the end. */
static zipcclResult_t gather(struct e2e_rank *r, zipcclComm_t comm, uint16_t *recv, const struct load *l, unsigned seed,
                             unsigned least, bool last, atomic_int *going) {
    size_t count = l->count;
    for (unsigned i = 0;; i++) {
        for (size_t v = 0; v < count; v++)
            recv[(size_t)r->rank * count + v] = (uint16_t)(0x3f80u + v % 89 + i + seed + (unsigned)r->rank);
        zipcclResult_t rc = zipcclAllGather(recv + (size_t)r->rank * count, recv, count, zipcclBfloat16, comm, NULL);
        if (rc != zipcclSuccess)
            return rc;
        for (size_t v = 0; v < (size_t)r->nranks * count; v++)
            E2E_CHECK(recv[v] == (uint16_t)(0x3f80u + v % count % 89 + i + seed + v / count), "operation %u value %zu",
                      i, v);
        if (i + 1 == least)
            atomic_fetch_add(going, 1);
        if (i + 1 >= least && last)
            return zipcclSuccess;
    }
}

static void loaded_rank(struct e2e_rank *r) {
    const struct load *l = r->args;
    void *memory = NULL;
    E2E_OK(NULL, zipcclMemAlloc(&memory, (size_t)r->nranks * l->count * 2)); /* once: it outlives the daemons */
    for (unsigned k = 0; k <= KILLS; k++) {
        bool last = k == KILLS;
        zipcclComm_t comm = e2e_comm(r);
        zipcclResult_t rc = gather(r, comm, memory, l, 31 * k, last ? AFTER : 3, last, &r->shared->flags[k]);
        uint64_t end = now_us(), killed = last ? 0 : atomic_load(&l->killed_at_us[k]);
        if (!last) {
            fprintf(stderr, "rank %d: %s %.1f ms after the kill: %s\n", r->rank, e2e_result_name(rc),
                    ((double)end - (double)killed) * 1e-3, zipcclGetLastError(comm));
            E2E_CHECK(killed && end >= killed, "failed before there was a kill");
            E2E_CHECK(end - killed < 1000000u * E2E_SLOW, "the error came after %.0f ms",
                      (double)(end - killed) * 1e-3);
            E2E_CHECK(rc == zipcclRemoteError || rc == zipcclDaemonUnavailable, "%s", e2e_result_name(rc));
            E2E_CHECK(e2e_mentions(zipcclGetLastError(comm), r->node == 0 ? "zipccld|daemon" : "node0"), "\"%s\"",
                      zipcclGetLastError(comm));
        }
        zipcclResult_t ended = zipcclCommDestroy(comm);
        E2E_CHECK(!last || ended == zipcclSuccess, "%s", e2e_result_name(ended));
    }
    E2E_OK(NULL, zipcclMemFree(memory));
}

/* Names in a directory, but these; sorted, one a line. */
static void list(const char *path, const char *but, const char *but_too, char *text, size_t size) {
    struct dirent **entries;
    size_t used = 0;
    int n = scandir(path, &entries, NULL, alphasort);
    E2E_CHECK(n >= 0, "%s: %s", path, strerror(errno));
    text[0] = '\0';
    for (int i = 0; i < n; i++) {
        const char *name = entries[i]->d_name;
        if (name[0] != '.' && strcmp(name, but) != 0 && strcmp(name, but_too) != 0 && used < size)
            used += (size_t)snprintf(text + used, size - used, "%s/%s\n", path, name);
        free(entries[i]);
    }
    free(entries);
}

/* What shared memory there is: files of /dev/shm, and segments of System V. */
static void list_shared(char *text, size_t size) {
    list("/dev/shm", "", "", text, size);
    char *segments = e2e_read_file("/proc/sysvipc/shm");
    size_t used = strlen(text);
    snprintf(text + used, size - used, "%s", segments);
    free(segments);
}

/* Shared memory that nothing else on this machine uses, where that is allowed. */
static void own_shared_memory(void) {
    if (geteuid() != 0 || unshare(CLONE_NEWNS | CLONE_NEWIPC) < 0)
        return;
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 || mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=64m") < 0)
        fprintf(stderr, "/dev/shm is shared with others: %s\n", strerror(errno));
}

static void await_all(const struct e2e_group *g, unsigned kill) {
    double end = e2e_now() + 30 * E2E_SLOW;
    while (atomic_load(&g->shared->flags[kill]) < g->nranks) {
        E2E_CHECK(e2e_now() < end, "after kill %u only %d of %d ranks work", kill, atomic_load(&g->shared->flags[kill]),
                  g->nranks);
        e2e_sleep(0.001);
    }
}

/* ucx: the ways that UCX may go. */
static void killed_under_load(struct e2e *e, const char *ucx) {
    static _Atomic uint64_t *killed;
    static char before[65536], after[65536];
    char state[96];
    const char *run[2];
    struct e2e_group across, inside;
    own_shared_memory();
    killed = e2e_shared_memory(sizeof(*killed) * KILLS);
    struct load big = {.count = BIG, .killed_at_us = killed}, small = {.count = SMALL, .killed_at_us = killed};
    snprintf(state, sizeof(state), "%s/state", e->dir);
    E2E_CHECK(mkdir(state, 0700) == 0, "%s", strerror(errno));
    e2e_set(e, "ucx_tls=%s", ucx);
    e2e_set(e, "state_directory=%s", state);
    list_shared(before, sizeof(before));
    for (unsigned i = 0; i < 2; i++)
        run[i] = e2e_daemon_hold(e, i);
    e2e_daemons(e, 2);
    e2e_start(e, &across, "0011", loaded_rank, &big);
    e2e_start(e, &inside, "000", loaded_rank, &small);
    for (unsigned k = 0; k < KILLS; k++) {
        await_all(&across, k);
        await_all(&inside, k);
        e2e_sleep(0.02 * (k + 1)); /* somewhere within an operation */
        atomic_store(&killed[k], now_us());
        e2e_daemon_kill(e, 0);
        e2e_sleep(0.3); /* RestartSec: who joins meanwhile waits in the socket */
        e2e_daemon_start(e, 0);
    }
    e2e_wait(e, &across, 30);
    e2e_wait(e, &inside, 30);
    e2e_all_passed(e, &across);
    e2e_all_passed(e, &inside);
    raw_nothing_left(e);
    e2e_alive(e);
    for (unsigned i = 0; i < 2; i++) {
        e2e_daemon_stop(e, i, 20);
        list(run[i], "zipccld.sock", "admin.sock", after, sizeof(after));
        E2E_CHECK(!*after, "left in the run-time directory:\n%s", after);
    }
    list_shared(after, sizeof(after));
    E2E_CHECK(strcmp(before, after) == 0, "shared memory before:\n%safter:\n%s", before, after);
}

static void case_killed_under_load(struct e2e *e) {
    killed_under_load(e, "tcp");
}
E2E_CASE(killed_under_load, 90)

/* Where UCX may go every way that it has, among them shared memory. */
static void case_killed_under_load_any_way(struct e2e *e) {
    killed_under_load(e, "all");
}
E2E_CASE(killed_under_load_any_way, 90)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_killed_under_load),
                                       cmocka_unit_test(test_killed_under_load_any_way)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

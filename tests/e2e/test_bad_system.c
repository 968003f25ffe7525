/* SPDX-License-Identifier: Apache-2.0
 *
 * Daemons that die, stop, hang or are set up badly, and machines without memory.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collect.h"

#define SOON 4.0

/* All-gathers until one fails; flag 0 is raised after the first few. */
static void endless_rank(struct e2e_rank *r) {
    enum { COUNT = 1 << 19 };
    zipcclComm_t comm = e2e_comm(r);
    zipcclResult_t rc = zipcclSuccess;
    uint16_t *recv = NULL;
    void *memory = NULL;
    E2E_OK(NULL, zipcclMemAlloc(&memory, (size_t)r->nranks * COUNT * 2));
    recv = memory;
    double start = e2e_now(), end = start + 40 * E2E_SLOW;
    for (int i = 0; rc == zipcclSuccess && e2e_now() < end; i++) {
        start = e2e_now();
        rc = zipcclAllGather(recv + (size_t)r->rank * COUNT, recv, COUNT, zipcclBfloat16, comm, NULL);
        if (i == 2)
            e2e_raise(r->shared, r->rank);
    }
    e2e_report(r, rc, comm, start);
    zipcclCommDestroy(comm);
    zipcclMemFree(memory);
}

/* Waits in one operation that the last rank never calls. */
static void waiting_rank(struct e2e_rank *r) {
    zipcclComm_t comm = e2e_comm(r);
    zipcclResult_t rc = zipcclSuccess, error = zipcclSuccess;
    E2E_OK(comm, zipcclBarrier(comm, NULL));
    e2e_raise(r->shared, r->rank);
    double start = e2e_now();
    if (r->rank < r->nranks - 1)
        rc = zipcclBarrier(comm, NULL);
    while (rc == zipcclSuccess && error == zipcclSuccess && e2e_now() < start + 40 * E2E_SLOW) {
        E2E_OK(comm, zipcclCommGetAsyncError(comm, &error));
        e2e_sleep(0.01);
    }
    e2e_report(r, rc != zipcclSuccess ? rc : error, comm, start);
    zipcclCommDestroy(comm);
}

static void expect_lost(const struct e2e_group *g, int rank, const char *what) {
    const struct e2e_report *report = &g->shared->reports[rank];
    E2E_CHECK(report->result == zipcclRemoteError || report->result == zipcclDaemonUnavailable, "rank %d: %s: %s", rank,
              e2e_result_name(report->result), report->text);
    E2E_CHECK(e2e_mentions(report->text, what), "rank %d: nothing of \"%s\" in \"%s\"", rank, what, report->text);
}

static void daemon_dies(struct e2e *e, const char *layout, e2e_rank_fn fn, unsigned victim) {
    struct e2e_group g;
    char name[32];
    snprintf(name, sizeof(name), "node%u", victim);
    e2e_start(e, &g, layout, fn, NULL);
    for (int i = 0; i < g.nranks; i++)
        e2e_await(g.shared, i);
    e2e_sleep(0.05);
    double start = e2e_now();
    e2e_daemon_kill(e, victim);
    e2e_wait(e, &g, 20);
    double took = e2e_now() - start;
    E2E_CHECK(took < SOON * E2E_SLOW, "took %.1f s", took);
    for (int i = 0; i < g.nranks; i++)
        expect_lost(&g, i, layout[i] == (char)('0' + victim) ? "zipccld|daemon" : name);
    e2e_all_passed(e, &g);
    /* Who starts without it is told so, and where it looked. */
    e2e_daemon_start(e, victim); /* replaces the stale socket */
    e2e_alive(e);
}

static void case_daemon_dies(struct e2e *e) {
    e2e_daemons(e, 2);
    daemon_dies(e, "00", endless_rank, 0);
    daemon_dies(e, "0011", endless_rank, 1);
    daemon_dies(e, "0011", endless_rank, 0);
    daemon_dies(e, "0011", waiting_rank, 1);
    daemon_dies(e, "0011", waiting_rank, 0);
}
E2E_CASE(daemon_dies, 60)

/* A communicator across a third node that is not concerned works on. */
static void case_third_node_works_on(struct e2e *e) {
    struct e2e_group across, apart;
    e2e_daemons(e, 3);
    e2e_start(e, &across, "01", endless_rank, NULL);
    e2e_start(e, &apart, "02", endless_rank, NULL);
    for (int i = 0; i < 2; i++) {
        e2e_await(across.shared, i);
        e2e_await(apart.shared, i);
    }
    e2e_daemon_kill(e, 1);
    e2e_wait(e, &across, 20);
    expect_lost(&across, 0, "node1");
    e2e_all_passed(e, &across);
    e2e_sleep(0.5);
    E2E_CHECK(apart.shared->reports[0].result == -1 && apart.shared->reports[1].result == -1, "nodes 0 and 2: %s",
              apart.shared->reports[0].text);
    e2e_alive(e);
    kill(apart.pids[1], SIGKILL);
    e2e_wait(e, &apart, 20);
    e2e_expect(&apart, 0, zipcclRemoteError, 0, "rank 1", NULL);
    e2e_alive(e);
}
E2E_CASE(third_node_works_on, 60)

static void no_daemon_rank(struct e2e_rank *r) {
    zipcclUniqueId id;
    double start = e2e_now();
    zipcclResult_t rc = zipcclGetUniqueId(&id);
    e2e_report(r, rc, NULL, start);
}

static void case_no_daemon(struct e2e *e) {
    struct e2e_group g;
    struct e2e_daemon *d = &e->daemons[0];
    snprintf(d->socket, sizeof(d->socket), "%s/nothing.sock", e->dir);
    e2e_start(e, &g, "0", no_daemon_rank, NULL);
    e2e_wait(e, &g, 20);
    e2e_expect(&g, 0, zipcclDaemonUnavailable, 10, "nothing.sock", NULL);
    e2e_all_passed(e, &g);
    /* A socket file that a dead daemon left. */
    e2e_daemons(e, 1);
    e2e_daemon_kill(e, 0);
    e2e_start(e, &g, "0", no_daemon_rank, NULL);
    e2e_wait(e, &g, 20);
    e2e_expect(&g, 0, zipcclDaemonUnavailable, 10, d->socket, NULL);
    e2e_all_passed(e, &g);
}
E2E_CASE(no_daemon, 40)

/* The id of a daemon that is gone. */
static void stale_id_rank(struct e2e_rank *r) {
    zipcclComm_t comm = NULL;
    zipcclUniqueId id = e2e_id(r);
    e2e_raise(r->shared, r->rank);
    if (r->rank == 0)
        return;
    e2e_await(r->shared, 2);
    double start = e2e_now();
    e2e_report(r, zipcclCommInitRank(&comm, 2, id, 1), NULL, start);
}

static void case_root_daemon_is_gone(struct e2e *e) {
    struct e2e_group g;
    e2e_set(e, "join_timeout=3s");
    e2e_set(e, "peer_timeout=1s");
    e2e_daemons(e, 2);
    e2e_start(e, &g, "01", stale_id_rank, NULL);
    e2e_await(g.shared, 0);
    e2e_await(g.shared, 1);
    e2e_daemon_kill(e, 0);
    e2e_raise(g.shared, 2);
    e2e_wait(e, &g, 20);
    const struct e2e_report *report = &g.shared->reports[1];
    E2E_CHECK(report->result == zipcclRemoteError || report->result == zipcclTimeout, "%s: %s",
              e2e_result_name(report->result), report->text);
    E2E_CHECK(e2e_mentions(report->text, "127.0.0.1"), "no address in \"%s\"", report->text);
    e2e_alive(e);
}
E2E_CASE(root_daemon_is_gone, 40)

static void case_second_daemon(struct e2e *e) {
    char output[8192], config[96], socket[128];
    e2e_daemons(e, 1);
    snprintf(config, sizeof(config), "%s/zipccld.conf", e->dir);
    snprintf(socket, sizeof(socket), "socket=%s", e->daemons[0].socket);
    const char *const args[] = {"--config", config, "--set", socket, "--set", "listen=127.0.0.1:0", NULL};
    int rc = e2e_daemon_run(e, output, sizeof(output), 10, args);
    E2E_CHECK(rc > 0 && rc < 128, "exit %d: %s", rc, output);
    E2E_CHECK(strstr(output, e->daemons[0].socket) && e2e_mentions(output, "another|already"), "%s", output);
    e2e_alive(e);
    /* The TCP port alone is taken. */
    int pid = (int)e->daemons[0].pid;
    char *log = e2e_read_file(e->daemons[0].log), *at = strstr(log, "127.0.0.1:");
    E2E_CHECK(at && pid, "the log does not tell the port");
    unsigned port = (unsigned)atoi(at + 10);
    char other[128], listen[64];
    snprintf(other, sizeof(other), "socket=%s/other.sock", e->dir);
    snprintf(listen, sizeof(listen), "listen=127.0.0.1:%u", port);
    const char *const taken[] = {"--config", config, "--set", other, "--set", listen, NULL};
    rc = e2e_daemon_run(e, output, sizeof(output), 10, taken);
    E2E_CHECK(rc > 0 && rc < 128 && strstr(output, listen + 7), "exit %d: %s", rc, output);
    snprintf(other, sizeof(other), "%s/other.sock", e->dir);
    E2E_CHECK(access(other, F_OK) < 0, "a socket was left behind");
    free(log);
    e2e_alive(e);
}
E2E_CASE(second_daemon, 40)

static void bad_config(struct e2e *e, const char *text, const char *const *expected) {
    char output[8192], config[96];
    snprintf(config, sizeof(config), "%s/bad.conf", e->dir);
    FILE *f = fopen(config, "w");
    E2E_CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0, "%s", config);
    const char *const check[] = {"--check-config", "--config", config, NULL};
    const char *const start[] = {"--config", config, NULL};
    for (int k = 0; k < 2; k++) {
        int rc = e2e_daemon_run(e, output, sizeof(output), 10, k ? start : check);
        E2E_CHECK(rc == 2, "exit %d: %s", rc, output);
        for (const char *const *x = expected; *x; x++)
            E2E_CHECK(strstr(output, *x), "nothing of \"%s\" in %s", *x, output);
    }
}

static void case_bad_config(struct e2e *e) {
    char output[8192], config[96], empty[96], socket[128];
    snprintf(empty, sizeof(empty), "%s/empty.conf", e->dir);
    int fd = open(empty, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    E2E_CHECK(fd >= 0, "%s", empty);
    close(fd);
    bad_config(e, "[zipccld]\nnode_name = a\nlink_rat = 1gbit\n",
               (const char *const[]){"bad.conf:3", "link_rat", NULL});
    bad_config(e, "[zipccld]\nwindow = many\n", (const char *const[]){"bad.conf:2", "window", "many", NULL});
    bad_config(e, "[zipccld]\nwindow = 0\ncodec = zip\nlisten = nowhere\n",
               (const char *const[]){"bad.conf:2", "bad.conf:3", "zip", "top7", "bad.conf:4", "nowhere", NULL});
    bad_config(e, "[zipccld]\nwindow = 2\nwindow = 3\n", (const char *const[]){"bad.conf:3", "window", NULL});
    bad_config(e, "[other]\nwindow = 2\n", (const char *const[]){"bad.conf:", "other", NULL});
    bad_config(e, "[zipccld]\nnonsense\n", (const char *const[]){"bad.conf:2", NULL});
    snprintf(config, sizeof(config), "%s/missing.conf", e->dir);
    const char *const missing[] = {"--config", config, NULL};
    int rc = e2e_daemon_run(e, output, sizeof(output), 10, missing);
    E2E_CHECK(rc == 2 && strstr(output, "missing.conf"), "exit %d: %s", rc, output);
    const char *const set[] = {"--config", empty, "--set", "chunk_bytes=12", NULL};
    rc = e2e_daemon_run(e, output, sizeof(output), 10, set);
    E2E_CHECK(rc == 2 && strstr(output, "chunk_bytes") && strstr(output, "12"), "exit %d: %s", rc, output);
    const char *const option[] = {"--no-such-option", NULL};
    rc = e2e_daemon_run(e, output, sizeof(output), 10, option);
    E2E_CHECK(rc == 2 && strstr(output, "no-such-option"), "exit %d: %s", rc, output);
    const char *const good[] = {"--check-config", "--config", empty, "--set", "window=2", NULL};
    rc = e2e_daemon_run(e, output, sizeof(output), 10, good);
    E2E_CHECK(rc == 0, "exit %d: %s", rc, output);
    /* What it names on this node is looked at, too. */
    static const char *const bad[][2] = {{"user=nobody-of-this-name", "nobody-of-this-name"},
                                         {"socket_group=no-such-group", "no-such-group"},
                                         {"peer_key_file=/no/such/key", "/no/such/key"}};
    for (unsigned i = 0; i < 3; i++) {
        const char *const here[] = {"--check-config", "--config", empty, "--set", bad[i][0], NULL};
        rc = e2e_daemon_run(e, output, sizeof(output), 10, here);
        E2E_CHECK(rc == 2 && strstr(output, bad[i][1]) && !strstr(output, "ok\n"), "exit %d: %s", rc, output);
    }
    /* A socket where none can be. */
    snprintf(socket, sizeof(socket), "socket=%s/no/such/dir.sock", e->dir);
    const char *const nowhere[] = {"--config", empty, "--set", socket, "--set", "listen=127.0.0.1:0", NULL};
    rc = e2e_daemon_run(e, output, sizeof(output), 10, nowhere);
    E2E_CHECK(rc > 0 && rc < 128 && strstr(output, "no/such/dir.sock"), "exit %d: %s", rc, output);
}
E2E_CASE(bad_config, 60)

/* ---- memory ---- */

static void case_shm_is_full(struct e2e *e) {
    char byte[4096] = {0};
    if (geteuid() != 0 || unshare(CLONE_NEWNS) < 0)
        e2e_skip("needs root, to mount a /dev/shm of its own");
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 || mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=64k") < 0)
        e2e_skip("cannot mount: %s", strerror(errno));
    int fd = open("/dev/shm/full", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    while (write(fd, byte, sizeof(byte)) > 0)
        ;
    close(fd);
    e2e_set(e, "ucx_tls="); /* UCX chooses, so it may choose shared memory */
    e2e_daemons(e, 2);
    e2e_alive(e);
    e2e_daemon_stop(e, 0, 20);
    e2e_daemon_stop(e, 1, 20);
}
E2E_CASE(shm_is_full, 60)

static void poor_rank(struct e2e_rank *r) {
    const int *limit = r->args;
    void *p = NULL, *handle = NULL;
    zipcclComm_t comm = e2e_comm(r);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit old, tight;
    E2E_CHECK(getrlimit(*limit, &old) == 0, "getrlimit");
    tight = old;
    tight.rlim_cur = *limit == RLIMIT_FSIZE ? 1 << 20 : (e2e_proc_kb(getpid(), "VmSize") + 8192) * 1024;
    E2E_CHECK(setrlimit(*limit, &tight) == 0, "setrlimit");
    double start = e2e_now();
    zipcclResult_t rc = zipcclMemAlloc(&p, 64 << 20);
    /* More than any machine has: asked for under the limit on files alone, which holds whatever the library does. */
    if (*limit == RLIMIT_FSIZE) {
        E2E_CHECK(zipcclMemAlloc(&p, (size_t)1 << 60) == zipcclOutOfMemory, "2^60 bytes");
        E2E_CHECK(zipcclMemAlloc(&p, SIZE_MAX) == zipcclOutOfMemory, "SIZE_MAX bytes");
        E2E_CHECK(zipcclMemRegister(&tight, (size_t)1 << 60, &handle) == zipcclOutOfMemory, "2^60 bytes");
        rc = zipcclMemAlloc(&p, 64 << 20);
    }
    char text[512];
    snprintf(text, sizeof(text), "%s", zipcclGetLastError(NULL));
    double end = e2e_now();
    E2E_CHECK(setrlimit(*limit, &old) == 0, "setrlimit");
    E2E_CHECK(rc == zipcclOutOfMemory && end - start < SOON * E2E_SLOW, "%s: %s", e2e_result_name((int)rc), text);
    E2E_CHECK(e2e_mentions(text, "67108864|64 MiB|64MiB"), "%s", text);
    E2E_OK(NULL, zipcclMemAlloc(&p, 1 << 20));
    E2E_OK(comm, zipcclAllGather((char *)p + r->rank * 1000, p, 1000, zipcclUint8, comm, NULL));
    E2E_OK(NULL, zipcclMemFree(p));
    E2E_OK(NULL, zipcclCommDestroy(comm));
}

static void case_out_of_memory(struct e2e *e) {
    const int fsize = RLIMIT_FSIZE, as = RLIMIT_AS;
    e2e_daemons(e, 1);
    e2e_ranks(e, "00", poor_rank, &fsize, 20);
    if (!E2E_SANITIZED) /* sanitizers reserve address space of their own */
        e2e_ranks(e, "00", poor_rank, &as, 20);
    e2e_alive(e);
}
E2E_CASE(out_of_memory, 60)

static void limited_rank(struct e2e_rank *r) {
    zipcclComm_t comm = e2e_comm(r);
    void *p = NULL;
    double start = e2e_now();
    zipcclResult_t rc = zipcclMemAlloc(&p, 2 << 20);
    if (rc == zipcclSuccess) { /* the daemon may learn of it later */
        rc = zipcclAllGather(p, p, 1 << 20, zipcclUint8, comm, NULL);
        e2e_report(r, rc, comm, start);
        zipcclMemFree(p);
    } else {
        e2e_report(r, rc, NULL, start);
    }
    zipcclCommDestroy(comm);
}

static void case_limits(struct e2e *e) {
    struct e2e_group g;
    e2e_set(e, "max_buffer_bytes=1MiB");
    e2e_set(e, "max_comms=2");
    e2e_daemons(e, 1);
    e2e_start(e, &g, "0", limited_rank, NULL);
    e2e_wait(e, &g, 20);
    e2e_expect(&g, 0, zipcclLimitExceeded, SOON, "max_buffer_bytes|1048576", NULL);
    e2e_all_passed(e, &g);
    e2e_alive(e);
}
E2E_CASE(limits, 40)

/* ---- drain, and links that are cut ---- */

static void drained_rank(struct e2e_rank *r) {
    enum { BYTES = 8 << 20 };
    zipcclComm_t comm = e2e_comm(r);
    void *memory = NULL;
    E2E_OK(NULL, zipcclMemAlloc(&memory, (size_t)r->nranks * BYTES));
    uint8_t *recv = memory;
    memcpy(recv + (size_t)r->rank * BYTES, pool_piece(r->rank, 1, BYTES), BYTES);
    e2e_raise(r->shared, r->rank);
    E2E_OK(comm, zipcclAllGather(recv + (size_t)r->rank * BYTES, recv, BYTES, zipcclUint8, comm, NULL));
    for (int i = 0; i < r->nranks; i++)
        E2E_CHECK(memcmp(recv + (size_t)i * BYTES, pool_piece(i, 1, BYTES), BYTES) == 0, "rank %d", i);
    e2e_raise(r->shared, 8 + r->rank);
    double start = e2e_now();
    zipcclResult_t rc = zipcclSuccess;
    while (rc == zipcclSuccess && e2e_now() < start + 30 * E2E_SLOW) {
        rc = zipcclBarrier(comm, NULL);
        e2e_sleep(0.01);
    }
    e2e_report(r, rc, comm, start);
    zipcclCommDestroy(comm);
    zipcclMemFree(memory);
}

static void case_drain(struct e2e *e) {
    struct e2e_group g;
    pool();
    e2e_set(e, "link_rate=100mbit"); /* 8 MiB take more than half a second */
    e2e_set(e, "drain_timeout=%ds", 20 * E2E_SLOW);
    e2e_daemons(e, 2);
    e2e_start(e, &g, "01", drained_rank, NULL);
    e2e_await(g.shared, 0);
    e2e_await(g.shared, 1);
    e2e_sleep(0.1);
    e2e_daemon_stop(e, 0, 25); /* fails unless it exits 0 */
    e2e_wait(e, &g, 20);
    E2E_CHECK(atomic_load(&g.shared->flags[8]) && atomic_load(&g.shared->flags[9]), "the operation did not end well");
    expect_lost(&g, 0, "zipccld|daemon|drain|shut|stop");
    expect_lost(&g, 1, "node0");
    e2e_all_passed(e, &g);
    e2e_daemon_start(e, 0);
    e2e_alive(e);
}
E2E_CASE(drain, 60)

/* Nothing runs: the end is at once, whoever is connected. */
static void case_drain_idle(struct e2e *e) {
    struct e2e_group g;
    e2e_daemons(e, 2);
    e2e_start(e, &g, "01", waiting_rank, NULL);
    e2e_await(g.shared, 0);
    e2e_await(g.shared, 1);
    e2e_set(e, "drain_timeout=1s");
    e2e_daemon_stop(e, 1, 15); /* a barrier that nobody completes runs: the default of 10 s goes by */
    e2e_wait(e, &g, 20);
    for (int i = 0; i < 2; i++)
        E2E_CHECK(g.shared->reports[i].result > 0, "rank %d was told nothing", i);
    e2e_all_passed(e, &g);
    double start = e2e_now();
    e2e_daemon_start(e, 1);
    e2e_alive(e);
    e2e_daemon_stop(e, 1, 5);
    E2E_CHECK(e2e_now() - start < 15 * E2E_SLOW, "%.1f s", e2e_now() - start);
}
E2E_CASE(drain_idle, 60)

static void case_link_is_cut(struct e2e *e) {
    struct e2e_group g;
    e2e_set(e, "peer_timeout=1s");
    e2e_daemons(e, 2);
    for (int k = 0; k < 4; k++) { /* the root stops, and the other; busy, and waiting */
        unsigned victim = (unsigned)k % 2;
        int other = 1 - (int)victim;
        e2e_start(e, &g, "01", k < 2 ? endless_rank : waiting_rank, NULL);
        e2e_await(g.shared, 0);
        e2e_await(g.shared, 1);
        e2e_sleep(0.05);
        kill(e->daemons[victim].pid, SIGSTOP);
        e2e_wait_rank(e, &g, other, 1 + SOON + 4);
        kill(e->daemons[victim].pid, SIGCONT);
        e2e_wait(e, &g, 20);
        e2e_expect(&g, other, zipcclRemoteError, 0, victim ? "node1" : "node0", NULL);
        E2E_CHECK(g.shared->reports[victim].result > 0, "rank %u was told nothing", victim);
        e2e_all_passed(e, &g);
        e2e_alive(e);
    }
}
E2E_CASE(link_is_cut, 60)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_daemon_dies),   cmocka_unit_test(test_third_node_works_on),
        cmocka_unit_test(test_no_daemon),     cmocka_unit_test(test_root_daemon_is_gone),
        cmocka_unit_test(test_second_daemon), cmocka_unit_test(test_bad_config),
        cmocka_unit_test(test_shm_is_full),   cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_limits),        cmocka_unit_test(test_drain),
        cmocka_unit_test(test_drain_idle),    cmocka_unit_test(test_link_is_cut),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * zipcclctl against real daemons: flight, events, status under load, admin requests and who may make them.
 */
#include <errno.h>
#include <jansson.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collect.h"
#include "raw.h"

#define PENDING   200
#define STATUSES  20
#define LEAST_S   0.05 /* in which status answers */
#define PROCESS_S 0.15 /* that starting a program may take beside it, where others use the machine */

#define FLIGHT "flight e2e-flight-0" /* the harness names jobs by case and group */

enum { CALLED, LET_GO };

/* Runs zipcclctl; its output, malloc'ed. */
static char *ctl_output(const struct e2e *e, unsigned node, const char *command, int *code) {
    char line[512], *text = calloc(1, 1 << 20);
    snprintf(line, sizeof line, "%s/zipcclctl %s --socket %s 2>&1", ZIPCCL_TEST_BIN, command, e->daemons[node].socket);
    FILE *out = popen(line, "r");
    E2E_CHECK(out != NULL && text != NULL, "%s", line);
    size_t n = fread(text, 1, (1 << 20) - 1, out);
    text[n] = '\0';
    int status = pclose(out);
    *code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return text;
}

static json_t *ctl_json(const struct e2e *e, unsigned node, const char *command, const char *schema) {
    char line[256];
    json_error_t error;
    int code;
    snprintf(line, sizeof line, "%s --json", command);
    char *text = ctl_output(e, node, line, &code);
    json_t *root = json_loads(text, 0, &error);
    E2E_CHECK(root != NULL && (code == 0 || code == 1 || code == 4), "%s: exit %d: %s", command, code, text);
    E2E_CHECK(strcmp(json_string_value(json_object_get(root, "schema")), schema) == 0, "%s", text);
    free(text);
    return root;
}

/* Fails unless the command exits so and says this. */
static void expect(const struct e2e *e, unsigned node, const char *command, int code, const char *says) {
    int got;
    char *text = ctl_output(e, node, command, &got);
    E2E_CHECK(got == code, "%s: exit %d, not %d: %s", command, got, code, text);
    E2E_CHECK(strstr(text, says) != NULL, "%s: no '%s' in: %s", command, says, text);
    free(text);
}

static const char *get(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

static double number(const json_t *object, const char *key) {
    return json_number_value(json_object_get(object, key));
}

/* Rank 0 calls an all-gather that the last rank never calls. */
static void hanging_rank(struct e2e_rank *r) {
    uint8_t send = (uint8_t)r->rank, recv[E2E_MAX_RANKS];
    zipcclComm_t comm = e2e_comm(r);
    E2E_OK(comm, zipcclAllGather(&send, recv, 1, zipcclUint8, comm, NULL));
    e2e_raise(r->shared, CALLED);
    if (r->rank == r->nranks - 1)
        e2e_await(r->shared, LET_GO);
    double start = e2e_now();
    zipcclResult_t result = zipcclAllGather(&send, recv, 1, zipcclUint8, comm, NULL);
    e2e_report(r, result, comm, start);
    (void)zipcclCommDestroy(comm);
}

/* The youngest operation, which the flight recorder must have by now. */
static void last_op(const struct e2e *e, const char *result, const char *where) {
    char *all = NULL;
    for (double end = e2e_now() + 10; e2e_now() < end; e2e_sleep(0.05)) {
        json_t *root = ctl_json(e, 0, FLIGHT, "zipccl.flight/1");
        json_t *ops = json_object_get(root, "operations");
        json_t *op = json_array_get(ops, json_array_size(ops) - 1);
        bool found = json_array_size(ops) == 2 && strstr(get(op, "result"), result) && strstr(get(op, "where"), where);
        if (found) {
            json_t *first = json_array_get(ops, 0);
            E2E_CHECK(strcmp(get(first, "result"), "ok") == 0 && strcmp(get(first, "op"), "all-gather") == 0 &&
                          json_integer_value(json_object_get(first, "arrived")) == 3 && get(first, "where")[0] == '\0',
                      "the first operation");
            E2E_CHECK(json_integer_value(json_object_get(op, "sequence")) == 2 &&
                          json_integer_value(json_array_get(json_object_get(op, "missing_ranks"), 0)) == 2,
                      "the second operation");
        }
        free(all);
        all = json_dumps(root, JSON_INDENT(1));
        json_decref(root);
        if (found) {
            free(all);
            return;
        }
    }
    E2E_FAIL("no operation is '%s' and '%s': %s", result, where, all);
}

static void case_flight(struct e2e *e) {
    struct e2e_group g;
    e2e_daemons(e, 1);
    expect(e, 0, FLIGHT, 1, "knows no operations");
    e2e_start(e, &g, "000", hanging_rank, NULL);
    e2e_await(g.shared, CALLED);
    last_op(e, "under way", "waiting for rank 2");
    kill(g.pids[2], SIGKILL);
    last_op(e, "RemoteError", "waiting for rank 2");
    e2e_wait(e, &g, 10);
    e2e_expect(&g, 0, zipcclRemoteError, 5, "rank 2", NULL);
    last_op(e, "RemoteError", "waiting for rank 2"); /* also when the job has ended */
    expect(e, 0, FLIGHT, 0, "waiting for rank 2");
    expect(e, 0, "events", 0, "comm-failed");
    expect(e, 0, "events", 0, "died during all-gather #2");
    json_t *root = ctl_json(e, 0, "events", "zipccl.events/1"), *event;
    json_int_t before = 0;
    size_t i;
    const char *const kinds[] = {"start", "job-begin", "comm-new", "comm-ready", "comm-failed", "job-end"};
    json_array_foreach(json_object_get(root, "events"), i, event) {
        E2E_CHECK(i < 6 && strcmp(get(event, "kind"), kinds[i]) == 0, "event %zu is %s", i, get(event, "kind"));
        E2E_CHECK(json_integer_value(json_object_get(event, "id")) == before + 1, "ids");
        before++;
    }
    E2E_CHECK(before == 6, "%d events", (int)before);
    json_decref(root);
    expect(e, 0, "flight nobody", 1, "nobody");
    expect(e, 0, "flight", 2, "needs JOB");
}
E2E_CASE(flight, 60)

/* Waits until the flight recorder of a node says so of the youngest operation of the job. */
static void hangs_at(const struct e2e *e, unsigned node, const char *job, const char *where) {
    char command[96], *text = NULL;
    int code;
    snprintf(command, sizeof command, "flight %s --last 1", job);
    for (double end = e2e_now() + 10; e2e_now() < end; e2e_sleep(0.05)) {
        free(text);
        text = ctl_output(e, node, command, &code);
        if (code == 0 && strstr(text, "under way") && strstr(text, where)) {
            free(text);
            return;
        }
    }
    E2E_FAIL("node %u: nothing hangs '%s': %s", node, where, text);
}

/* Rank 0 calls an operation, the other one, on another node, is late. args: the operation. */
static void late_rank(struct e2e_rank *r) {
    static uint16_t send[4096], recv[4096];
    bool exchanges = *(const bool *)r->args;
    zipcclComm_t comm = e2e_comm(r);
    if (r->rank == 1) {
        e2e_raise(r->shared, CALLED);
        e2e_await(r->shared, LET_GO);
    }
    if (exchanges)
        E2E_OK(comm, zipcclAllToAll(send, recv, 2048, zipcclBfloat16, comm, NULL));
    else
        E2E_OK(comm, zipcclAllReduce(send, recv, 4096, zipcclBfloat16, zipcclSum, comm, NULL));
    E2E_OK(comm, zipcclCommDestroy(comm));
}

static void case_nodes(struct e2e *e) {
    e2e_daemons(e, 2);
    for (int exchanges = 0; exchanges < 2; exchanges++) {
        struct e2e_group g;
        char job[32];
        bool args = exchanges;
        snprintf(job, sizeof job, "e2e-nodes-%u", e->ngroups);
        e2e_start(e, &g, "01", late_rank, &args);
        e2e_await(g.shared, CALLED);
        hangs_at(e, 0, job, exchanges ? "waiting for rank 1 on node node1" : "waiting for node node1");
        e2e_raise(g.shared, LET_GO);
        e2e_wait(e, &g, 20);
        e2e_all_passed(e, &g);
    }
    expect(e, 0, "events", 0, "peer-up");
    int code; /* what else doctor finds is the machine's */
    char *text = ctl_output(e, 0, "doctor", &code);
    E2E_CHECK((code == 1 || code == 4) && strstr(text, "1, all up"), "doctor: exit %d: %s", code, text);
    free(text);
    e2e_daemon_kill(e, 1);
    e2e_sleep(0.5);
    expect(e, 0, "events", 0, "peer-lost");
}
E2E_CASE(nodes, 60)

/* A daemon that does not answer, and none at all. */
static void case_exits(struct e2e *e) {
    const char *const commands[] = {"status", "stats",      "decisions",   "flight x",       "events",
                                    "jobs",   "top",        "config show", "reload",         "log level debug",
                                    "doctor", "drain node", "drain job x", "events --follow"};
    e2e_daemons(e, 1);
    expect(e, 0, "status --what", 2, "no option");
    expect(e, 0, "drain job x --timeout soon", 2, "--timeout");
    expect(e, 0, "top --sort size", 2, "--sort");
    kill(e->daemons[0].pid, SIGSTOP);
    expect(e, 0, "status", 5, "did not answer");
    kill(e->daemons[0].pid, SIGCONT);
    e2e_daemon_stop(e, 0, 5);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        expect(e, 0, commands[i], 3, "not reachable");
}
E2E_CASE(exits, 60)

/* Rank 0 has many operations under way: the last rank is late for all. */
static void loaded_rank(struct e2e_rank *r) {
    uint8_t send = (uint8_t)r->rank, recv[PENDING][E2E_MAX_RANKS];
    zipcclComm_t comm = e2e_comm(r);
    if (r->rank == r->nranks - 1) {
        e2e_raise(r->shared, CALLED);
        e2e_await(r->shared, LET_GO);
    }
    E2E_OK(comm, zipcclGroupStart());
    for (int i = 0; i < PENDING; i++)
        E2E_OK(comm, zipcclAllGather(&send, recv[i], 1, zipcclUint8, comm, NULL));
    E2E_OK(comm, zipcclGroupEnd());
    E2E_OK(comm, zipcclCommDestroy(comm));
}

static void case_load(struct e2e *e) {
    struct e2e_group g;
    json_int_t queued = 0;
    double best = 1e9;
    e2e_daemons(e, 1);
    e2e_start(e, &g, "00", loaded_rank, NULL);
    e2e_await(g.shared, CALLED);
    for (double end = e2e_now() + 10; queued < PENDING && e2e_now() < end;) {
        json_t *root = ctl_json(e, 0, "status", "zipccl.status/1");
        queued = json_integer_value(json_object_get(json_array_get(json_object_get(root, "comms"), 0), "ops_queued"));
        json_decref(root);
    }
    E2E_CHECK(queued == PENDING, "%d requests under way", (int)queued);
    for (int i = 0; i < STATUSES; i++) {
        double start = e2e_now();
        expect(e, 0, "status", 0, "running");
        double took = e2e_now() - start;
        best = took < best ? took : best;
    }
    printf("zipcclctl status: %.1f ms at best, of %d\n", best * 1e3, STATUSES);
    E2E_CHECK(best < (LEAST_S + PROCESS_S) * E2E_SLOW, "status took %.3f s", best);
    expect(e, 0, "jobs", 0, "200");
    expect(e, 0, "stats --job nobody", 0, "No operation of a job 'nobody'");
    expect(e, 0, "top --once --interval 0.1", 0, "ops/s");
    json_decref(ctl_json(e, 0, "top --interval 0.1", "zipccl.top/1"));
    e2e_raise(g.shared, LET_GO);
    e2e_wait(e, &g, 20);
    e2e_all_passed(e, &g);
    json_t *root = ctl_json(e, 0, "stats", "zipccl.stats/1");
    const json_t *row = json_array_get(json_object_get(root, "ops"), 0);
    double p50 = number(row, "p50_ms"), p99 = number(row, "p99_ms");
    E2E_CHECK(p50 > 0 && number(row, "min_ms") <= p50 && p50 <= p99 && p99 <= number(row, "max_ms"), "p50 %f, p99 %f",
              p50, p99);
    json_decref(root);
}
E2E_CASE(load, 60)

/* args: whether rank 0 calls an operation, which nobody else does. All keep their communicators until let go. */
static void outlier_rank(struct e2e_rank *r) {
    uint8_t send = (uint8_t)r->rank, recv[E2E_MAX_RANKS];
    zipcclComm_t comm = e2e_comm(r);
    bool calls = *(const bool *)r->args && r->rank == 0;
    e2e_raise(r->shared, CALLED);
    E2E_CHECK(!calls || zipcclAllGather(&send, recv, 1, zipcclUint8, comm, NULL) == zipcclRemoteError, "it went well");
    e2e_await(r->shared, LET_GO);
    E2E_OK(NULL, zipcclCommDestroy(comm));
}

/* Waits until the first communicator of status, of two, is of this job and in this state. */
static void first_is(const struct e2e *e, const char *job, const char *state, bool busy) {
    for (double end = e2e_now() + 10 * E2E_SLOW; e2e_now() < end; e2e_sleep(0.05)) {
        json_t *root = ctl_json(e, 0, "status", "zipccl.status/1"), *comms = json_object_get(root, "comms");
        const json_t *first = json_array_get(comms, 0);
        bool found = json_array_size(comms) == 2 && strcmp(get(first, "job"), job) == 0 &&
                     strcmp(get(first, "state"), state) == 0 && (get(first, "current")[0] != '\0') == busy;
        json_decref(root);
        if (found)
            return;
    }
    E2E_FAIL("the first communicator is not of %s, %s", job, state);
}

/* status begins with what needs a look: what runs for long, and before all what has failed. */
static void case_outliers(struct e2e *e) {
    static const bool no = false, yes = true;
    struct e2e_group idle, bad, busy;
    e2e_daemons(e, 1);
    e2e_start(e, &idle, "00", outlier_rank, &no);
    e2e_await(idle.shared, CALLED);
    e2e_start(e, &bad, "00", outlier_rank, &yes);
    first_is(e, "e2e-outliers-1", "ready", true);
    kill(bad.pids[1], SIGKILL);
    first_is(e, "e2e-outliers-1", "failed", false);
    e2e_raise(idle.shared, LET_GO);
    e2e_wait(e, &idle, 10);
    e2e_all_passed(e, &idle);
    e2e_start(e, &busy, "00", outlier_rank, &yes);
    e2e_await(busy.shared, CALLED);
    e2e_sleep(0.2); /* it runs by now, and is still behind the one that failed */
    first_is(e, "e2e-outliers-1", "failed", false);
    e2e_raise(bad.shared, LET_GO);
    e2e_wait_rank(e, &bad, 0, 10);
    kill(busy.pids[1], SIGKILL);
    e2e_raise(busy.shared, LET_GO);
    e2e_wait_rank(e, &busy, 0, 10);
}
E2E_CASE(outliers, 60)

/* More jobs than one reply has room for: how many are not shown is said. */
static void case_many(struct e2e *e) {
    enum { SHOWN = 512, MORE = 3 };
    static int fds[SHOWN + MORE];
    struct rlimit files = {.rlim_cur = 4096, .rlim_max = 4096};
    char job[32];
    E2E_CHECK(setrlimit(RLIMIT_NOFILE, &files) == 0, "%s", strerror(errno));
    e2e_set(e, "max_sessions_per_user=1000");
    e2e_set(e, "max_jobs=1000");
    e2e_set(e, "max_jobs_per_user=1000");
    e2e_daemons(e, 1);
    for (int i = 0; i < SHOWN + MORE; i++) {
        snprintf(job, sizeof(job), "many-%d", i);
        fds[i] = raw_session(e->daemons[0].socket, job);
    }
    expect(e, 0, "status", 0, "and 3 more jobs: shown are those that came first");
    expect(e, 0, "jobs", 0, "\nand 3 more jobs: shown are those that came first");
    json_t *root = ctl_json(e, 0, "status", "zipccl.status/1");
    E2E_CHECK(json_array_size(json_object_get(root, "jobs")) == SHOWN &&
                  json_integer_value(json_object_get(root, "jobs_left_out")) == MORE &&
                  json_integer_value(json_object_get(root, "comms_left_out")) == 0,
              "%d jobs", (int)json_array_size(json_object_get(root, "jobs")));
    json_decref(root);
    for (int i = 0; i < SHOWN + MORE; i++)
        close(fds[i]);
}
E2E_CASE(many, 60)

/* Where sessions have run out an administrator gets in all the same; where descriptors have, everybody is told. */
static void case_places(struct e2e *e) {
    struct rlimit few = {0};
    char command[200];
    struct raw_frame f;
    int taken[16], n = 0, refused = -1;
    e2e_set(e, "admin_socket=%s/admin.sock", e->dir);
    e2e_set(e, "max_sessions=12");
    e2e_daemons(e, 1);
    while (n < 12)
        taken[n++] = raw_session(e->daemons[0].socket, "a");
    unsigned held = e2e_proc_fds(e->daemons[0].pid);
    expect(e, 0, "status", 1, "max_sessions");
    snprintf(command, sizeof command, "%s/zipcclctl status --socket %s/admin.sock >/dev/null", ZIPCCL_TEST_BIN, e->dir);
    E2E_CHECK(WEXITSTATUS(system(command)) == 0, "an administrator was refused");
    while (n > 0)
        close(taken[--n]);
    for (double end = e2e_now() + 10 * E2E_SLOW; e2e_proc_fds(e->daemons[0].pid) > held - 12; e2e_sleep(0.01))
        E2E_CHECK(e2e_now() < end, "%u descriptors, %u with the sessions", e2e_proc_fds(e->daemons[0].pid), held);
    few.rlim_cur = few.rlim_max = held - 12;
    E2E_CHECK(prlimit(e->daemons[0].pid, RLIMIT_NOFILE, &few, NULL) == 0, "prlimit");
    while (refused < 0 && n < 12) { /* who is taken hears nothing before a hello */
        taken[n] = raw_connect(e->daemons[0].socket);
        refused = raw_next(taken[n++], &f, 0.2) == 1 ? n - 1 : -1;
    }
    E2E_CHECK(refused >= 0 && f.header.type == WIRE_ERROR, "nobody was refused");
    expect(e, 0, "status", 1, "no descriptors left");
    while (n > 0)
        close(taken[--n]);
}
E2E_CASE(places, 60)

/* Runs a command as the user nobody. */
static int as_nobody(const struct e2e *e, const char *command) {
    const struct passwd *nobody = getpwnam("nobody");
    char line[512];
    E2E_CHECK(nobody != NULL, "no user nobody");
    snprintf(line, sizeof line, "exec %s/zipcclctl %s --socket %s", ZIPCCL_TEST_BIN, command, e->daemons[0].socket);
    pid_t pid = fork();
    if (pid == 0) {
        if (setgid(nobody->pw_gid) == 0 && setuid(nobody->pw_uid) == 0)
            execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(126);
    }
    int status = 0;
    E2E_CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status), "%s", command);
    return WEXITSTATUS(status);
}

static void write_config(const struct e2e *e, const char *text) {
    char path[96];
    snprintf(path, sizeof path, "%s/zipccld.conf", e->dir);
    FILE *f = fopen(path, "w");
    E2E_CHECK(f != NULL, "%s", path);
    fprintf(f, "[zipccld]\n%s\n", text);
    E2E_CHECK(fclose(f) == 0, "%s", path);
}

static void case_admin(struct e2e *e) {
    char check[160];
    e2e_set(e, "socket_mode=0666");
    e2e_daemons(e, 1);
    expect(e, 0, "log level debug", 0, "before: info");
    expect(e, 0, "log level loud", 1, "no log level");
    expect(e, 0, "reload", 0, "log_level changes from 'debug' to 'info'");
    expect(e, 0, "reload", 0, "nothing has changed");
    write_config(e, "op_timeout = 7s\nwindow = 8");
    expect(e, 0, "reload", 0, "op_timeout changes");
    expect(e, 0, "config show", 0, "7s");
    json_t *doctor = ctl_json(e, 0, "doctor", "zipccl.doctor/1"), *line;
    size_t i, seen = 0;
    json_array_foreach(json_object_get(doctor, "checks"), i, line) {
        const char *check = get(line, "check"), *level = get(line, "level");
        E2E_CHECK((strcmp(level, "ok") == 0) == (get(line, "remedy")[0] == '\0'), "%s: a remedy where it is due",
                  check);
        seen += strcmp(check, "daemon") == 0 && strcmp(level, "ok") == 0;
        seen += strcmp(check, "version") == 0 && strcmp(level, "ok") == 0;
        seen += strcmp(check, "socket") == 0 && strcmp(level, "warn") == 0; /* mode 0666 */
        seen += strcmp(check, "listen") == 0 && strcmp(level, "warn") == 0; /* loopback */
    }
    E2E_CHECK(seen == 4, "doctor: %zu of 4 lines", seen);
    json_decref(doctor);
    write_config(e, "op_timeout = soon");
    expect(e, 0, "reload", 1, "bad value 'soon'");
    json_t *root = ctl_json(e, 0, "config show", "zipccl.config/1");
    const json_t *key = json_object_get(json_object_get(root, "keys"), "op_timeout");
    E2E_CHECK(strcmp(get(key, "value"), "7s") == 0 && strcmp(get(key, "default"), "0") == 0, "op_timeout");
    json_decref(root);
    snprintf(check, sizeof check, "%s/zipcclctl config check %s/zipccld.conf >/dev/null 2>&1", ZIPCCL_TEST_BIN, e->dir);
    E2E_CHECK(WEXITSTATUS(system(check)) == 1, "a bad file passed");
    write_config(e, "op_timeout = 1s");
    E2E_CHECK(WEXITSTATUS(system(check)) == 0, "a good file failed");
    if (geteuid() != 0)
        e2e_skip("not root: cannot become another user");
    E2E_CHECK(chmod(e->dir, 0755) == 0, "chmod");
    E2E_CHECK(as_nobody(e, "status >/dev/null") == 0, "status as nobody");
    E2E_CHECK(as_nobody(e, "log level debug") == 77, "log level as nobody");
    E2E_CHECK(as_nobody(e, "reload") == 77, "reload as nobody");
    E2E_CHECK(as_nobody(e, "drain node") == 77, "drain node as nobody");
    E2E_CHECK(as_nobody(e, "drain job default") == 77, "drain job as nobody");
    e2e_alive(e);
}
E2E_CASE(admin, 60)

/* Joins, and reports why it cannot. */
static void refused_rank(struct e2e_rank *r) {
    zipcclUniqueId id;
    double start = e2e_now();
    e2e_report(r, zipcclGetUniqueId(&id), NULL, start);
}

static void case_drain(struct e2e *e) {
    struct e2e_group g, late;
    char command[96];
    e2e_daemons(e, 1);
    expect(e, 0, "drain node --cancel", 1, "not being drained");
    expect(e, 0, "drain job nobody", 1, "serves no job");
    /* One operation runs: it may end until the time-out, then it fails. */
    e2e_start(e, &g, "00", hanging_rank, NULL);
    e2e_await(g.shared, CALLED);
    e2e_sleep(0.2);
    expect(e, 0, "drain node --timeout 0.5", 0, "takes no new operations");
    e2e_wait_rank(e, &g, 0, 10);
    e2e_expect(&g, 0, zipcclDaemonUnavailable, 5, "drained by its administrator", NULL);
    expect(e, 0, "status", 4, "drained,");
    e2e_start(e, &late, "0", refused_rank, NULL);
    e2e_wait(e, &late, 10);
    e2e_expect(&late, 0, zipcclDaemonUnavailable, 5, "drained", NULL);
    e2e_raise(g.shared, LET_GO);
    e2e_wait(e, &g, 10);
    expect(e, 0, "drain node --cancel", 0, "takes work again");
    e2e_alive(e);
    /* A job alone. */
    snprintf(command, sizeof command, "drain job e2e-drain-%u --timeout 0", e->ngroups);
    e2e_start(e, &g, "00", hanging_rank, NULL);
    e2e_await(g.shared, CALLED);
    expect(e, 0, command, 0, "takes no new operations");
    e2e_raise(g.shared, LET_GO);
    e2e_wait(e, &g, 10);
    e2e_expect(&g, 0, zipcclDaemonUnavailable, 5, "is being drained by the administrator of node", NULL);
    expect(e, 0, "events", 0, "cancelled: takes work again");
    e2e_alive(e);
    e2e_daemon_stop(e, 0, 5);
}
E2E_CASE(drain, 60)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flight),   cmocka_unit_test(test_nodes), cmocka_unit_test(test_exits),
        cmocka_unit_test(test_load),     cmocka_unit_test(test_admin), cmocka_unit_test(test_drain),
        cmocka_unit_test(test_outliers), cmocka_unit_test(test_many),  cmocka_unit_test(test_places)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

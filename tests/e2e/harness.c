/* SPDX-License-Identifier: Apache-2.0 */
#include "harness.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char current_dir[64]; /* of the case that runs, for the signal handler */
static pid_t current_case;

double e2e_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void e2e_sleep(double seconds) {
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&t, &t) < 0 && errno == EINTR)
        ;
}

void e2e_fail(const char *file, int line, const char *condition, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s:%d: %s: ", strrchr(file, '/') ? strrchr(file, '/') + 1 : file, line, condition);
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    fflush(NULL);
    _exit(1);
}

void e2e_skip(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "skipped: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    fflush(NULL);
    _exit(E2E_SKIP);
}

const char *e2e_result_name(int result) {
#define RESULT_NAME(name, value, text)                                                                                 \
    if (result == (value))                                                                                             \
        return #name;
    ZIPCCL_RESULTS(RESULT_NAME)
#undef RESULT_NAME
    return result == -1 ? "(nothing)" : "(unknown)";
}

void e2e_ok(const char *file, int line, const char *what, zipcclResult_t result, zipcclComm_t comm) {
    if (result != zipcclSuccess)
        e2e_fail(file, line, what, "%s: %s", e2e_result_name(result), zipcclGetLastError(comm));
}

char *e2e_read_file(const char *path) {
    FILE *f = fopen(path, "r");
    size_t size = 0, capacity = 1 << 16;
    char *text = malloc(capacity);
    if (!text)
        abort();
    while (f) {
        size_t n = fread(text + size, 1, capacity - size - 1, f);
        if (n == 0)
            break;
        size += n;
        if (capacity - size < 2 && !(text = realloc(text, capacity *= 2)))
            abort();
    }
    if (f)
        fclose(f);
    text[size] = '\0';
    return text;
}

/* ---- cases ---- */

static int remove_entry(const char *path, const struct stat *st, int flag, struct FTW *ftw) {
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

static void remove_dir(void) {
    if (current_dir[0])
        nftw(current_dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    current_dir[0] = '\0';
}

static void on_signal(int signal) {
    if (current_case > 0)
        kill(-current_case, SIGKILL);
    remove_dir();
    _exit(128 + signal);
}

static void print_logs(void) {
    struct dirent **entries;
    int n = scandir(current_dir, &entries, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char path[512];
        size_t length = strlen(entries[i]->d_name);
        if (length > 4 && strcmp(entries[i]->d_name + length - 4, ".log") == 0) {
            snprintf(path, sizeof(path), "%s/%s", current_dir, entries[i]->d_name);
            char *text = e2e_read_file(path);
            size_t size = strlen(text);
            const char *tail = size > 12000 ? text + size - 12000 : text;
            if (size)
                fprintf(stderr, "---- %s%s\n%s%s", entries[i]->d_name, tail == text ? "" : " (its end)", tail,
                        text[size - 1] == '\n' ? "" : "\n");
            free(text);
        }
        free(entries[i]);
    }
    if (n >= 0)
        free(entries);
}

static void finish(struct e2e *e) {
    for (unsigned i = 0; i < e->ndaemons; i++)
        if (e->daemons[i].pid)
            e2e_daemon_stop(e, i, 20);
}

/* Where a case takes all memory, the kernel shall end the case and nobody else. */
static void protect_others(void) {
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, "1000", 4) != 4)
        e2e_skip("cannot make itself the first to go where memory runs out");
    close(fd);
}

/* -1: still running at the deadline. */
static int wait_until(pid_t pid, double deadline) {
    int status;
    for (;;) {
        pid_t got = waitpid(pid, &status, WNOHANG);
        if (got == pid)
            return status;
        if (got < 0 && errno != EINTR)
            return 0;
        if (e2e_now() > deadline)
            return -1;
        e2e_sleep(0.002);
    }
}

void e2e_run(const char *name, void (*fn)(struct e2e *e), int seconds) {
    const char *tmp = getenv("TMPDIR");
    snprintf(current_dir, sizeof(current_dir), "%.30s/zipccl-e2e-XXXXXX", tmp && strlen(tmp) < 31 ? tmp : "/tmp");
    if (!mkdtemp(current_dir)) {
        current_dir[0] = '\0';
        fail_msg("mkdtemp: %s", strerror(errno));
    }
    chmod(current_dir, 0755); /* other users of a case must reach the sockets */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    fflush(NULL);
    double start = e2e_now();
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit none = {0, 0};
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        /* cmocka catches these; here they must end the process. */
        static const int signals[] = {SIGTERM, SIGINT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGSYS};
        for (unsigned i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
            signal(signals[i], SIG_DFL);
        setrlimit(RLIMIT_CORE, &none);
        protect_others();
        struct e2e e = {.name = name};
        memcpy(e.dir, current_dir, sizeof(e.dir));
        fn(&e);
        finish(&e);
        fflush(NULL);
        _exit(0);
    }
    if (pid < 0)
        fail_msg("fork: %s", strerror(errno));
    setpgid(pid, pid);
    current_case = pid;
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);
    int status = wait_until(pid, start + seconds * E2E_SLOW);
    bool late = status == -1;
    kill(-pid, SIGKILL);
    if (late)
        kill(pid, SIGKILL);
    /* Everything that the case started is this process's child by now, and dying. */
    for (double end = e2e_now() + 10; e2e_now() < end;) {
        if (waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD)
            break;
        e2e_sleep(0.001);
    }
    current_case = 0;
    bool skipped = !late && WIFEXITED(status) && WEXITSTATUS(status) == E2E_SKIP;
    bool passed = !late && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!skipped && !passed)
        print_logs();
    remove_dir();
    if (skipped)
        skip();
    if (late)
        fail_msg("%s: still running after %d s", name, seconds * E2E_SLOW);
    if (!passed)
        fail_msg("%s: %s %d", name, WIFSIGNALED(status) ? "signal" : "exit",
                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    fprintf(stderr, "             %s: %.1f s\n", name, e2e_now() - start);
}

/* ---- ranks ---- */

void *e2e_shared_memory(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    E2E_CHECK(p != MAP_FAILED, "%s", strerror(errno));
    return p;
}

void e2e_start(struct e2e *e, struct e2e_group *g, const char *layout, e2e_rank_fn fn, const void *args) {
    unsigned generation = e->ngroups++;
    memset(g, 0, sizeof(*g));
    g->nranks = (int)strlen(layout);
    E2E_CHECK(g->nranks <= E2E_MAX_RANKS, "layout %s", layout);
    g->shared = e2e_shared_memory(sizeof(*g->shared));
    for (int i = 0; i < g->nranks; i++)
        g->shared->reports[i].result = -1;
    fflush(NULL);
    for (int i = 0; i < g->nranks; i++) {
        struct e2e_rank r = {
            .e = e, .rank = i, .nranks = g->nranks, .node = layout[i] - '0', .args = args, .shared = g->shared};
        r.socket = e->daemons[r.node].socket;
        pid_t pid = fork();
        E2E_CHECK(pid >= 0, "%s", strerror(errno));
        if (pid) {
            g->pids[i] = pid;
            continue;
        }
        char text[128];
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        snprintf(text, sizeof(text), "%s/group%02u-rank%d.log", e->dir, generation, i);
        int fd = open(text, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        E2E_CHECK(fd >= 0, "%s: %s", text, strerror(errno));
        dup2(fd, 1);
        dup2(fd, 2);
        close(fd);
        snprintf(text, sizeof(text), "e2e-%s-%u", e->name, generation);
        setenv("ZIPCCL_JOB_ID", text, 1);
        setenv("ZIPCCL_SOCKET", r.socket, 1);
        fn(&r);
        fflush(NULL);
        exit(0); /* a leak check runs here, where the build has one */
    }
}

void e2e_wait_rank(struct e2e *e, struct e2e_group *g, int rank, double seconds) {
    double end = e2e_now() + seconds * E2E_SLOW;
    while (g->pids[rank]) {
        pid_t got = waitpid(g->pids[rank], &g->status[rank], WNOHANG);
        if (got == g->pids[rank]) {
            g->pids[rank] = 0;
            return;
        }
        if (e2e_now() > end) {
            for (int i = 0; i < g->nranks; i++)
                if (!g->pids[i] || waitpid(g->pids[i], &g->status[i], WNOHANG) == g->pids[i])
                    fprintf(stderr, "rank %d has ended with status 0x%x\n", i, g->status[i]);
            E2E_FAIL("rank %d of %s is still running after %.0f s", rank, e->name, seconds * E2E_SLOW);
        }
        e2e_daemons_live(e);
        e2e_sleep(0.002);
    }
}

void e2e_wait(struct e2e *e, struct e2e_group *g, double seconds) {
    double end = e2e_now() + seconds * E2E_SLOW;
    for (int i = 0; i < g->nranks; i++) {
        double left = end - e2e_now();
        e2e_wait_rank(e, g, i, left > 0.01 ? left / E2E_SLOW : 0.01);
    }
}

void e2e_all_passed(struct e2e *e, const struct e2e_group *g) {
    for (int i = 0; i < g->nranks; i++)
        E2E_CHECK(g->pids[i] == 0 && WIFEXITED(g->status[i]) && WEXITSTATUS(g->status[i]) == 0,
                  "%s: rank %d ended with status 0x%x", e->name, i, g->status[i]);
    munmap(g->shared, sizeof(*g->shared));
}

void e2e_ranks(struct e2e *e, const char *layout, e2e_rank_fn fn, const void *args, double seconds) {
    struct e2e_group g;
    e2e_start(e, &g, layout, fn, args);
    e2e_wait(e, &g, seconds);
    e2e_all_passed(e, &g);
}

void e2e_raise(struct e2e_shared *s, int flag) {
    atomic_store(&s->flags[flag], 1);
}

void e2e_await(struct e2e_shared *s, int flag) {
    double end = e2e_now() + 30 * E2E_SLOW;
    while (!atomic_load(&s->flags[flag])) {
        E2E_CHECK(e2e_now() < end, "flag %d was never raised", flag);
        e2e_sleep(0.001);
    }
}

void e2e_meet(struct e2e_shared *s, int target) {
    double end = e2e_now() + 30 * E2E_SLOW;
    atomic_fetch_add(&s->counter, 1);
    while (atomic_load(&s->counter) < target) {
        E2E_CHECK(e2e_now() < end, "only %d of %d came", atomic_load(&s->counter), target);
        e2e_sleep(0.0005);
    }
}

zipcclUniqueId e2e_id(struct e2e_rank *r) {
    struct e2e_shared *s = r->shared;
    int ticket = (int)++r->next_id;
    zipcclUniqueId id;
    if (r->rank == 0) {
        E2E_OK(NULL, zipcclGetUniqueId(&id));
        s->id = id;
        atomic_store(&s->id_ready, ticket);
        return id;
    }
    double end = e2e_now() + 30 * E2E_SLOW;
    while (atomic_load(&s->id_ready) < ticket) {
        E2E_CHECK(e2e_now() < end, "rank 0 made no unique id");
        e2e_sleep(0.0005);
    }
    return s->id;
}

zipcclComm_t e2e_comm(struct e2e_rank *r) {
    zipcclComm_t comm = NULL;
    E2E_OK(NULL, zipcclCommInitRank(&comm, r->nranks, e2e_id(r), r->rank));
    return comm;
}

void e2e_report(struct e2e_rank *r, zipcclResult_t result, zipcclComm_t comm, double start) {
    struct e2e_report *report = &r->shared->reports[r->rank];
    report->seconds = e2e_now() - start;
    snprintf(report->text, sizeof(report->text), "%s", result == zipcclSuccess ? "" : zipcclGetLastError(comm));
    report->result = (int)result;
    fprintf(stderr, "rank %d: %s after %.3f s: %s\n", r->rank, e2e_result_name(report->result), report->seconds,
            report->text);
}

bool e2e_mentions(const char *text, const char *what) {
    char one[128];
    if (!*what)
        return true;
    while (*what) {
        size_t n = strcspn(what, "|");
        snprintf(one, sizeof(one), "%.*s", (int)n, what);
        if (strcasestr(text, one))
            return true;
        what += n + (what[n] == '|');
    }
    return false;
}

void e2e_expect(const struct e2e_group *g, int rank, zipcclResult_t result, double seconds, ...) {
    const struct e2e_report *report = &g->shared->reports[rank];
    E2E_CHECK(report->result == (int)result, "rank %d: expected %s, got %s: %s", rank, e2e_result_name((int)result),
              e2e_result_name(report->result), report->text);
    E2E_CHECK(seconds == 0 || report->seconds < seconds * E2E_SLOW, "rank %d: took %.2f s: %s", rank, report->seconds,
              report->text);
    va_list texts;
    va_start(texts, seconds);
    for (const char *what; (what = va_arg(texts, const char *));)
        E2E_CHECK(e2e_mentions(report->text, what), "rank %d: nothing of \"%s\" in \"%s\"", rank, what, report->text);
    va_end(texts);
}

/* ---- the check that all is well ---- */

static void alive_rank(struct e2e_rank *r) {
    enum { COUNT = 3000 };
    zipcclComm_t comm = e2e_comm(r);
    uint16_t send[COUNT], recv[2 * COUNT];
    for (int i = 0; i < COUNT; i++)
        send[i] = (uint16_t)(i * 31 + r->rank * 7);
    E2E_OK(comm, zipcclAllGather(send, recv, COUNT, zipcclBfloat16, comm, NULL));
    for (int i = 0; i < r->nranks * COUNT; i++)
        E2E_CHECK(recv[i] == (uint16_t)(i % COUNT * 31 + i / COUNT * 7), "value %d", i);
    E2E_OK(NULL, zipcclCommDestroy(comm));
}

void e2e_alive(struct e2e *e) {
    unsigned first = E2E_MAX_NODES, last = 0;
    char layout[3] = {0};
    e2e_daemons_live(e);
    for (unsigned i = 0; i < e->ndaemons; i++) {
        if (!e->daemons[i].pid)
            continue;
        first = first < i ? first : i;
        last = i;
        layout[0] = layout[1] = (char)('0' + i);
        e2e_ranks(e, layout, alive_rank, NULL, 20);
    }
    layout[0] = (char)('0' + first);
    if (last > first)
        e2e_ranks(e, layout, alive_rank, NULL, 20);
}

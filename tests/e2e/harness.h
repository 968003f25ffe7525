/* SPDX-License-Identifier: Apache-2.0
 *
 * End-to-end tests: real daemons, real ranks, one process each.
 *
 * A case is a function that runs in a process group of its own, with a time-out and a temporary directory. It starts
 * daemons (one per node) and groups of ranks (a forked process each), and checks what they report. Whatever happens,
 * all processes of the case are dead and its directory is gone when e2e_run returns; where it failed, the logs of all
 * its daemons and ranks are printed first.
 */
#ifndef ZIPCCL_TESTS_E2E_HARNESS_H
#define ZIPCCL_TESTS_E2E_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <cmocka.h>

#include "zipccl.h"

#define E2E_MAX_NODES    4
#define E2E_MAX_RANKS    16
#define E2E_MAX_SETTINGS 16
#define E2E_FLAGS        16
#define E2E_SKIP         77

/* Sanitized programs are slower; every bound on time is multiplied by this. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#    define E2E_SLOW 4
#elif defined(__has_feature)
#    if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#        define E2E_SLOW 4
#    endif
#endif
#ifdef E2E_SLOW
#    define E2E_SANITIZED 1
#else
#    define E2E_SLOW      1
#    define E2E_SANITIZED 0
#endif

struct e2e_daemon {
    pid_t pid; /* 0: does not run */
    char name[16];
    char socket[96];
    char log[96];
    int held[2]; /* sockets that a service manager holds for it: of clients, of the administrator; 0: none */
};

struct e2e {
    const char *name; /* of the case */
    char dir[64];
    char settings[E2E_MAX_SETTINGS][96]; /* "key=value", given to every daemon */
    unsigned nsettings;
    struct e2e_daemon daemons[E2E_MAX_NODES];
    unsigned ndaemons;
    unsigned ngroups; /* that were started so far */
};

/* What a rank tells the case. */
struct e2e_report {
    int result; /* zipcclResult_t of what the case is about, -1: nothing reported */
    char text[768];
    double seconds; /* that it took */
    uint64_t value; /* whatever the case wants */
};

/* Shared by the case and the ranks of a group. */
struct e2e_shared {
    zipcclUniqueId id;
    atomic_int id_ready;
    atomic_int flags[E2E_FLAGS];
    atomic_int counter;
    struct e2e_report reports[E2E_MAX_RANKS];
};

/* What the function of a rank is given. */
struct e2e_rank {
    struct e2e *e;
    int rank, nranks, node;
    const char *socket;
    const void *args;
    struct e2e_shared *shared;
    unsigned next_id; /* communicators that e2e_comm made */
};
typedef void (*e2e_rank_fn)(struct e2e_rank *r);

struct e2e_group {
    int nranks;
    pid_t pids[E2E_MAX_RANKS]; /* 0: has ended */
    int status[E2E_MAX_RANKS]; /* as waitpid gives it */
    struct e2e_shared *shared;
};

/* Runs fn as a case of at most `seconds` (times E2E_SLOW); fails or skips the cmocka test. */
void e2e_run(const char *name, void (*fn)(struct e2e *e), int seconds);
#define E2E_CASE(name, seconds)                                                                                        \
    static void test_##name(void **state) {                                                                            \
        (void)state;                                                                                                   \
        e2e_run(#name, case_##name, seconds);                                                                          \
    }

/* Ends the case (or the rank) as failed, with a text. */
void e2e_fail(const char *file, int line, const char *condition, const char *format, ...)
    __attribute__((format(printf, 4, 5), noreturn));
#define E2E_FAIL(...) e2e_fail(__FILE__, __LINE__, "failed", __VA_ARGS__)
#define E2E_CHECK(condition, ...)                                                                                      \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            e2e_fail(__FILE__, __LINE__, #condition, __VA_ARGS__);                                                     \
    } while (0)
/* For zipccl calls that must work. comm: whose last error is told. */
void e2e_ok(const char *file, int line, const char *what, zipcclResult_t result, zipcclComm_t comm);
#define E2E_OK(comm, call) e2e_ok(__FILE__, __LINE__, #call, (call), (comm))
/* Ends the case as skipped. */
void e2e_skip(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

double e2e_now(void); /* seconds, monotonic */
void e2e_sleep(double seconds);

/* Daemons. A setting applies to those that are started later. */
void e2e_set(struct e2e *e, const char *format, ...) __attribute__((format(printf, 2, 3)));
void e2e_daemons(struct e2e *e, unsigned n); /* starts nodes 0 to n-1 and waits until they listen */
void e2e_daemon_start(struct e2e *e, unsigned node);
/* From now on the daemon of this node is given its sockets, as systemd does: they lie in a directory of their own
 * (run<NODE>), stay when it dies, and who connects meanwhile waits. Returns the directory. */
const char *e2e_daemon_hold(struct e2e *e, unsigned node);
void e2e_daemon_kill(struct e2e *e, unsigned node); /* SIGKILL */
/* SIGTERM, and waits: at most `seconds`; fails unless it exits 0. */
void e2e_daemon_stop(struct e2e *e, unsigned node, double seconds);
/* Fails where a daemon that should run has died. */
void e2e_daemons_live(struct e2e *e);
/* Runs zipccld with these arguments, output to `output`; returns its exit status, -1 where it ran longer than
 * `seconds`. */
int e2e_daemon_run(struct e2e *e, char *output, size_t size, double seconds, const char *const *args);
uint64_t e2e_proc_kb(pid_t pid, const char *field); /* of /proc/PID/status */
unsigned e2e_proc_fds(pid_t pid);
/* What the log of a daemon holds now; malloc'ed. */
char *e2e_read_file(const char *path);

/* Zeroed, shared with every process that is forked later; lives as long as the case. */
void *e2e_shared_memory(size_t bytes);

/* Groups of ranks. layout: one digit per rank, its node: "0011" is two ranks on each of two nodes. */
void e2e_start(struct e2e *e, struct e2e_group *g, const char *layout, e2e_rank_fn fn, const void *args);
/* Waits until all ranks have ended; fails after `seconds` (times E2E_SLOW). */
void e2e_wait(struct e2e *e, struct e2e_group *g, double seconds);
/* Same for one rank. */
void e2e_wait_rank(struct e2e *e, struct e2e_group *g, int rank, double seconds);
/* Fails unless every rank exited 0. */
void e2e_all_passed(struct e2e *e, const struct e2e_group *g);
/* e2e_start, e2e_wait, e2e_all_passed. */
void e2e_ranks(struct e2e *e, const char *layout, e2e_rank_fn fn, const void *args, double seconds);
/* A fresh two-rank all-gather between the first and the last running daemon works, as does one inside each node. */
void e2e_alive(struct e2e *e);

/* In a rank: the next communicator of the whole group. */
zipcclComm_t e2e_comm(struct e2e_rank *r);
/* Same id, without joining: rank 0 makes it, the others wait for it. */
zipcclUniqueId e2e_id(struct e2e_rank *r);
/* Reports a result with the last error of comm, and the time since `start`. */
void e2e_report(struct e2e_rank *r, zipcclResult_t result, zipcclComm_t comm, double start);
void e2e_raise(struct e2e_shared *s, int flag);
/* Waits for a flag (of a rank or of the case); fails after 30 s. */
void e2e_await(struct e2e_shared *s, int flag);
/* Waits until `n` have called it with this counter's target: a barrier outside of zipccl. */
void e2e_meet(struct e2e_shared *s, int target);

/* Fails unless rank reported `result`, within `seconds` (times E2E_SLOW; 0: any), with all texts in its text
 * (case-insensitive; "a|b": one of them). The list ends with NULL. */
void e2e_expect(const struct e2e_group *g, int rank, zipcclResult_t result, double seconds, ...)
    __attribute__((sentinel));
bool e2e_mentions(const char *text, const char *what);
const char *e2e_result_name(int result);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Lives of workers: started, watched, ended, started again. What a lost one had mapped stays unusable, with the reason;
 * memory that is registered later goes to its successor.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/worker/supervisor.h"

#define MS            1000000ull
#define START_NS      (60000 * MS)
#define SOON_NS       (50 * MS) /* before a new one starts; doubled where starts fail */
#define LATE_NS       (30000 * MS)
#define SEND_START_MS 1000
#define END_MS        500u
#define FAST_NS       (5 * MS) /* between ticks while one is down */
#define SLOW_NS       (250 * MS)
#define LATE_TICK_NS  (2 * SLOW_NS)
#define WORKER_FD     3

const char *worker_lost(const struct worker *w, uint32_t generation) {
    bool gone = generation != w->generation || w->state == WORKER_DOWN || w->state == WORKER_STUCK;
    return !gone ? NULL : w->why ? w->why : "the GPU has no worker";
}

bool worker_out(const struct worker *w, uint64_t until) {
    return w->state == WORKER_STUCK || (w->state == WORKER_DOWN && w->retry_ns > until);
}

struct worker *worker_of_uuid(const struct device *d, const uint8_t *uuid) {
    for (unsigned i = 0; i < d->nworkers; i++) {
        if (d->workers[i].known && memcmp(d->workers[i].uuid, uuid, DEVICE_UUID_BYTES) == 0)
            return (struct worker *)(uintptr_t)&d->workers[i];
    }
    return NULL;
}

void worker_init(struct worker *w, struct device *d, unsigned ordinal) {
    *w = (struct worker){.device = d, .ordinal = ordinal};
    worker_order_init(&w->order);
    while (w->nidle < WORKER_JOBS) {
        w->idle_slots[w->nidle] = w->nidle;
        w->nidle++;
    }
}

static void tell_event(const struct worker *w, bool lost, const char *text) {
    const struct device_event event = {.kind = lost ? DEVICE_EVENT_LOST : DEVICE_EVENT_BACK, .text = text};
    if (w->device->config.event)
        w->device->config.event(w->device->config.event_arg, &event);
}

/* What systemd told the daemon is not for its workers. */
static char **environment(void) {
    static const char *const not [] = {
        "NOTIFY_SOCKET=", "WATCHDOG_PID=", "WATCHDOG_USEC=", "LISTEN_PID=", "LISTEN_FDS=", "LISTEN_FDNAMES="};
    size_t n = 0, kept = 0;
    while (environ[n])
        n++;
    char **env = malloc((n + 1) * sizeof(*env));
    for (size_t i = 0; env && i < n; i++) {
        bool keep = true;
        for (size_t k = 0; k < sizeof(not ) / sizeof(not [0]); k++)
            keep = keep && strncmp(environ[i], not [k], strlen(not [k])) != 0;
        if (keep)
            env[kept++] = environ[i];
    }
    if (env)
        env[kept] = NULL;
    return env;
}

/* The program, with the socket as its descriptor WORKER_FD and no signal blocked. */
static bool run_program(struct worker *w, int socket) {
    const char *program = w->device->config.worker_program ? w->device->config.worker_program : "/proc/self/exe";
    char *const argv[] = {"zipccld", "--worker=3", NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, all;
    char **env = environment();
    bool good = false;
    sigemptyset(&none);
    sigfillset(&all);
    if (posix_spawn_file_actions_init(&actions) != 0) {
        free((void *)env);
        return false;
    }
    if (posix_spawnattr_init(&attributes) == 0) {
        good = env && posix_spawnattr_setsigmask(&attributes, &none) == 0 &&
               posix_spawnattr_setsigdefault(&attributes, &all) == 0 &&
               posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF) == 0 &&
               posix_spawn_file_actions_adddup2(&actions, socket, WORKER_FD) == 0 &&
               posix_spawn(&w->pid, program, &actions, &attributes, argv, env) == 0;
        posix_spawnattr_destroy(&attributes);
    }
    posix_spawn_file_actions_destroy(&actions);
    free((void *)env);
    return good;
}

bool worker_spawn(struct worker *w) {
    struct device *d = w->device;
    const struct worker_start start = {.record_bytes = WORKER_RECORD_BYTES,
                                       .gpu_sms = d->config.gpu_sms,
                                       .own_gpu = w->ordinal + 1,
                                       .dumpable = prctl(PR_GET_DUMPABLE) == 1,
                                       .daemon = getpid()};
    const int fds[] = {w->channel.shared_fd, w->channel.worker_event, w->channel.daemon_event};
    struct epoll_event watch = {.events = EPOLLRDHUP, .data.u32 = w->ordinal};
    int pair[2];
    w->failed_starts++; /* until it is ready */
    w->retry_ns = workers_now_ns() + LATE_NS;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return false;
    worker_channel_reset(&w->channel);
    (void)worker_ring_sleep(&w->channel.shared->to_daemon);
    bool started = run_program(w, pair[1]);
    close(pair[1]);
    if (!started) {
        close(pair[0]);
        return false;
    }
    w->generation++;
    w->state = WORKER_STARTING;
    w->channel.socket = pair[0];
    w->started_ns = w->seen_ns = workers_now_ns();
    w->seen_head = 0;
    w->cause[0] = '\0';
    memset(w->beat, 0, sizeof(w->beat));
    if (!worker_socket_send(pair[0], &start, sizeof(start), fds, 3, SEND_START_MS) ||
        epoll_ctl(d->epoll_fd, EPOLL_CTL_ADD, pair[0], &watch) != 0)
        worker_kill(w, "GPU %u: its worker cannot be told what to do", w->ordinal);
    workers_arm(d);
    return true;
}

void worker_kill(struct worker *w, const char *format, ...) {
    if (w->state != WORKER_UP && w->state != WORKER_STARTING)
        return;
    if (!w->cause[0]) {
        va_list ap;
        va_start(ap, format);
        vsnprintf(w->cause, sizeof(w->cause), format, ap);
        va_end(ap);
    }
    w->state = WORKER_DYING;
    w->killed_ns = workers_now_ns();
    (void)kill(w->pid, SIGKILL);
    close(w->channel.socket); /* epoll forgets it */
    w->channel.socket = -1;
    workers_arm(w->device);
}

void worker_text_of(char out[WORKER_TEXT_BYTES], const char text[WORKER_TEXT_BYTES]) {
    memcpy(out, text, WORKER_TEXT_BYTES);
    out[WORKER_TEXT_BYTES - 1] = '\0';
}

static void heard_gpu(struct worker *w, const struct worker_record *r) {
    struct device *d = w->device;
    if (d->discovering && r->gpu.ordinal == d->nworkers && r->gpu.ordinal < WORKER_MAX && r->gpu.ordinal > 0)
        worker_init(&d->workers[d->nworkers++], d, r->gpu.ordinal);
    if (d->discovering)
        d->mps = r->gpu.mps != 0;
    struct worker *of = r->gpu.ordinal < d->nworkers ? &d->workers[r->gpu.ordinal] : NULL;
    if (of && !of->known && (d->discovering || of == w)) {
        of->known = true;
        memcpy(of->uuid, r->gpu.uuid, sizeof(of->uuid));
        memcpy(of->name, r->gpu.name, sizeof(of->name));
        of->name[sizeof(of->name) - 1] = '\0';
    } else if (of == w && memcmp(of->uuid, r->gpu.uuid, sizeof(of->uuid)) != 0) {
        worker_kill(w, "GPU %u (%s): another GPU has its number now; restart zipccld", w->ordinal, w->name);
    }
}

static void heard_ready(struct worker *w, const struct worker_record *r) {
    char text[WORKER_TEXT_BYTES], event[2 * WORKER_TEXT_BYTES];
    worker_text_of(text, r->reply.text);
    if (r->reply.result != zipcclSuccess || w->state != WORKER_STARTING) {
        w->reply = *r;
        worker_kill(w, "%s", text);
        return;
    }
    w->state = WORKER_UP;
    w->failed_starts = 0;
    if (w->generation == 1)
        return;
    snprintf(event, sizeof(event), "GPU %u (%s) has a new worker (pid %d)", w->ordinal, w->name, (int)w->pid);
    tell_event(w, false, event);
}

static void heard(struct worker *w, const struct worker_record *r) {
    const char *wrong = NULL;
    switch ((enum worker_record_type)r->type) {
    case WORKER_DONE:
        wrong = worker_job_done(w, r);
        break;
    case WORKER_OPENED:
        worker_gate_opened(w, r);
        break;
    case WORKER_ANSWER:
        wrong = worker_launch_answered(w, r);
        break;
    case WORKER_GROWN:
        wrong = pool_grown(w, r);
        break;
    case WORKER_REPLY:
        w->reply = *r;
        w->reply.reply.text[WORKER_TEXT_BYTES - 1] = '\0';
        if (r->reply.result >= zipcclNumResults)
            wrong = "a result that there is not";
        else if (!worker_errand_answered(w, &w->reply))
            w->answered = r->call;
        break;
    case WORKER_GPU:
        heard_gpu(w, r);
        break;
    case WORKER_READY:
        heard_ready(w, r);
        break;
    case WORKER_FAILED:
        if (!w->cause[0])
            worker_text_of(w->cause, r->reply.text);
        break;
    default:
        wrong = "a record of no kind";
    }
    if (wrong)
        worker_kill(w, "GPU %u (%s): its worker (pid %d) tells nonsense: %s", w->ordinal, w->name, (int)w->pid, wrong);
}

/* All that it has said. */
static void hear(struct worker *w) {
    struct worker_record record;
    bool broken = false;
    while (worker_ring_pop(&w->channel.shared->to_daemon, &record, &broken))
        heard(w, &record);
    if (broken)
        worker_kill(w, "GPU %u (%s): its worker (pid %d) has a broken ring", w->ordinal, w->name, (int)w->pid);
}

void worker_look(struct worker *w) {
    struct worker_ring *ring = &w->channel.shared->to_daemon;
    if (w->state != WORKER_UP && w->state != WORKER_STARTING)
        return;
    worker_ring_wake(ring);
    do {
        hear(w);
    } while (!worker_ring_sleep(ring) && w->state != WORKER_DYING);
    worker_pump(w);
}

static void describe_end(struct worker *w, int status) {
    if (w->cause[0])
        return;
    if (WIFSIGNALED(status))
        snprintf(w->cause, sizeof(w->cause), "GPU %u (%s): its worker (pid %d) was killed by signal %d (%s)",
                 w->ordinal, w->name, (int)w->pid, WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(w->cause, sizeof(w->cause), "GPU %u (%s): its worker (pid %d) ended with code %d", w->ordinal, w->name,
                 (int)w->pid, WEXITSTATUS(status));
}

/* All that it had ends, with the reason. */
static void end_all(struct worker *w, const char *cause) {
    w->why = workers_text(w->device, cause);
    worker_errands_fail(w, w->why);
    worker_gates_fail(w, w->why);
    worker_jobs_fail(w, w->why);
    worker_launches_fail(w, w->why);
    pool_lost(w);
    if (!w->device->discovering) {
        w->restarts++;
        tell_event(w, true, w->why);
    }
}

/* It is no more, and nothing of it touches memory any more. */
static void reaped(struct worker *w, int status) {
    const bool stuck = w->state == WORKER_STUCK;
    if (!stuck)
        hear(w); /* what it said last */
    describe_end(w, status);
    w->state = WORKER_DOWN;
    w->pid = 0;
    uint64_t wait = SOON_NS << (w->failed_starts < 10 ? w->failed_starts : 10);
    w->retry_ns = workers_now_ns() + (wait < LATE_NS ? wait : LATE_NS);
    worker_channel_reset(&w->channel);
    if (!stuck) {
        end_all(w, w->cause);
        return;
    }
    w->why = workers_text(w->device, w->cause);
    scratch_release(w->device);
}

/* It stays in the kernel, and the GPU with it. The daemon's watchdog does not wait for its threads. */
static void give_up(struct worker *w) {
    char text[WORKER_TEXT_BYTES];
    hear(w);
    worker_channel_reset(&w->channel);
    if (!w->cause[0])
        snprintf(w->cause, sizeof(w->cause), "GPU %u (%s): its worker (pid %d) ended", w->ordinal, w->name,
                 (int)w->pid);
    snprintf(text, sizeof(text),
             "%.140s; it was killed, but is not gone after %.1f s: the GPU is out of use until then", w->cause,
             (double)w->device->reap_ns / 1e9);
    w->state = WORKER_STUCK;
    end_all(w, text);
}

static bool reap(struct worker *w) {
    int status = 0;
    pid_t pid = w->device->reap(w->pid, &status, WNOHANG);
    if (pid == 0 || (pid < 0 && errno == EINTR))
        return false;
    reaped(w, pid < 0 ? 0 : status);
    return true;
}

static void seen_alive(struct worker *w, uint64_t now) {
    w->seen_ns = now;
    for (unsigned i = 0; i < WORKER_BEATS; i++)
        w->beat_ns[i] = now;
}

/* Whether it has been in one piece of work for too long, or does not read what it is told. */
static bool hangs(struct worker *w, uint64_t now) {
    uint64_t limit = w->device->timeout_ns;
    struct worker_ring *ring = &w->channel.shared->to_worker;
    uint32_t head = atomic_load(&ring->head);
    bool any = false;
    if (head != w->seen_head || worker_ring_empty(ring)) {
        w->seen_head = head;
        w->seen_ns = now;
    }
    any = now - w->seen_ns > limit;
    for (unsigned i = 0; i < WORKER_BEATS; i++) {
        uint64_t beat = heartbeat_read(&w->channel.shared->beats[i]);
        if (beat != w->beat[i] || !heartbeat_busy(beat)) {
            w->beat[i] = beat;
            w->beat_ns[i] = now;
        }
        any = any || now - w->beat_ns[i] > limit;
    }
    return any;
}

static bool has_work(const struct worker *w) {
    return worker_errands_any(w) || worker_jobs_any(w) || worker_gates_any(w) || worker_launches_any(w) ||
           !worker_ring_empty(&w->channel.shared->to_worker) ||
           heartbeat_busy(heartbeat_read(&w->channel.shared->beats[0]));
}

/* One that works, or waits for a client's stream, is given something to read: a stopped process shows by that alone. */
static void ping(struct worker *w) {
    const struct worker_record r = {.type = WORKER_PING};
    struct worker_ring *ring = &w->channel.shared->to_worker;
    if (has_work(w) && worker_ring_empty(ring) && !worker_ring_push(ring, &r, w->channel.worker_event))
        worker_kill(w, "GPU %u (%s): its worker (pid %d) has a broken ring", w->ordinal, w->name, (int)w->pid);
}

static void tick(struct worker *w, uint64_t now) {
    switch (w->state) {
    case WORKER_DYING:
        if (!reap(w) && now - w->killed_ns > w->device->reap_ns)
            give_up(w);
        break;
    case WORKER_STUCK:
        (void)reap(w);
        break;
    case WORKER_DOWN:
        if (now >= w->retry_ns)
            (void)worker_spawn(w); /* or later */
        break;
    case WORKER_STARTING:
        if (now - w->started_ns > START_NS)
            worker_kill(w, "GPU %u (%s): its worker (pid %d) does not start", w->ordinal, w->name, (int)w->pid);
        break;
    case WORKER_UP:
        if (hangs(w, now))
            worker_kill(w, "GPU %u (%s): its worker (pid %d) was stuck for %.1f s", w->ordinal, w->name, (int)w->pid,
                        (double)w->device->timeout_ns / 1e9);
        else
            ping(w);
        worker_pump(w);
        break;
    }
    worker_errands_tick(w, now);
}

void workers_tick(struct device *d) {
    uint64_t now = workers_now_ns();
    bool late = now - d->ticked_ns > LATE_TICK_NS; /* who did not run himself cannot judge others */
    for (unsigned i = 0; i < d->nworkers; i++) {
        if (late)
            seen_alive(&d->workers[i], now);
        tick(&d->workers[i], now);
    }
    d->ticked_ns = now;
    workers_arm(d);
}

/* The timer ticks fast while a worker is not up, slowly while one works, else not at all. */
void workers_arm(struct device *d) {
    uint64_t want = 0, now = workers_now_ns();
    for (unsigned i = 0; i < d->nworkers; i++) {
        struct worker *w = &d->workers[i];
        bool soon = w->state == WORKER_DOWN && w->retry_ns < now + SLOW_NS;
        if (d->timer_ns == 0) /* what it did meanwhile is not known */
            seen_alive(w, now);
        if (w->state == WORKER_DYING || soon)
            want = FAST_NS;
        else if (want == 0 && (w->state == WORKER_DOWN || w->state == WORKER_STUCK))
            want = SLOW_NS;
        else if (want == 0 && (w->state == WORKER_STARTING || has_work(w)))
            want = SLOW_NS;
    }
    if (want == d->timer_ns)
        return;
    const struct timespec every = {.tv_sec = (time_t)(want / 1000000000), .tv_nsec = (long)(want % 1000000000)};
    const struct itimerspec timer = {.it_interval = every, .it_value = every};
    if (timerfd_settime(d->timer_fd, 0, &timer, NULL) == 0)
        d->timer_ns = want;
}

void worker_step(struct worker *w) {
    if (w->state == WORKER_UP || w->state == WORKER_STARTING)
        worker_wait(w, (int)(FAST_NS / MS));
    else
        (void)usleep((useconds_t)(FAST_NS / 1000));
    tick(w, workers_now_ns());
}

bool worker_await(struct worker *w, const char **why) {
    uint64_t end = workers_now_ns() + WORKER_AWAIT_NS;
    while (w->state != WORKER_UP) {
        uint64_t now = workers_now_ns();
        if (worker_out(w, end) || now > end) {
            *why = w->why ? w->why : "the GPU's worker does not start";
            return false;
        }
        worker_step(w);
    }
    return true;
}

const char *worker_end(struct worker *w) {
    for (unsigned i = 0; w->state == WORKER_DYING && i < END_MS && !reap(w); i++)
        (void)usleep(1000);
    return w->state != WORKER_DYING ? w->why
           : w->cause[0]            ? workers_text(w->device, w->cause)
                                    : "the GPU's worker dies";
}

void worker_dismiss(struct worker *w) {
    if (w->state == WORKER_UP || w->state == WORKER_STARTING)
        (void)shutdown(w->channel.socket, SHUT_WR);
}

/* Gone, or stuck: then the daemon does not wait for it. */
static bool is_over(const struct worker *w) {
    const pid_t pid = w->device->reap(w->pid, &(int){0}, WNOHANG);
    return pid > 0 || (pid < 0 && errno != EINTR) || w->state == WORKER_STUCK ||
           workers_now_ns() - w->killed_ns > w->device->reap_ns;
}

void worker_close(struct worker *w, uint64_t end) {
    struct pollfd gone = {.fd = w->channel.socket, .events = POLLRDHUP};
    uint64_t now = workers_now_ns();
    if (w->state == WORKER_UP || w->state == WORKER_STARTING) {
        worker_dismiss(w);
        (void)poll(&gone, 1, now < end ? (int)((end - now) / MS) : 0);
        worker_kill(w, "%s", ""); /* it has ended, or will not */
    }
    while ((w->state == WORKER_DYING || w->state == WORKER_STUCK) && !is_over(w))
        (void)usleep(1000);
    w->state = WORKER_DOWN;
    worker_launches_free(w);
    worker_errands_free(w);
    pool_close(w);
    worker_channel_close(&w->channel);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Sessions: one connection per process and socket path, read by whoever waits. See internal.h.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "client/lib/internal.h"

#define FLUSH_SLICE_MS 50

pthread_mutex_t client_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t client_changed;
unsigned client_sleepers;

static struct session *sessions;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint64_t spin_ns; /* longest look at the socket before sleeping */

int64_t client_now_ns(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void client_notify(void) {
    if (client_sleepers)
        (void)pthread_cond_broadcast(&client_changed);
}

static void init_cond(void) {
    pthread_condattr_t attr;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&client_changed, &attr);
    (void)pthread_condattr_destroy(&attr);
}

static void before_fork(void) {
    (void)pthread_mutex_lock(&client_lock);
}

static void after_fork_parent(void) {
    (void)pthread_mutex_unlock(&client_lock);
}

/* The child closes its copies of the sockets, or the daemon would not see the parent end. It must not free: the
 * connection's memory is simply left. Only async-signal-safe calls. */
static void after_fork_child(void) {
    for (struct session *s = sessions, *next; s; s = next) {
        next = s->next;
        if (s->conn)
            (void)close(frame_conn_fd(s->conn));
        (void)close(s->wake_fd);
        s->conn = NULL;
        s->wake_fd = -1;
        s->forked = true;
        s->leading = false;
        s->polling = 0;
        s->calls = NULL; /* of threads that are not here */
        s->next = NULL;
    }
    sessions = NULL;
    comms_forked();
    memory_forked();
    staging_forked();
    client_sleepers = 0;
    init_cond();
    (void)pthread_mutex_unlock(&client_lock);
}

static void init_once(void) {
    init_cond();
    spin_ns = connect_spin_us() * 1000;
    (void)pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

zipcclResult_t session_get(struct session **session) {
    const char *path = connect_socket_path();
    char why[CONNECT_WHY_BYTES];
    struct session *s;
    *session = NULL;
    (void)pthread_once(&once, init_once);
    for (s = sessions; s; s = s->next) {
        if (strcmp(s->path, path))
            continue;
        /* Nobody may have looked since the daemon went. */
        s->refs++;
        (void)session_pump(s);
        if (s->conn) {
            *session = s;
            return zipcclSuccess;
        }
        session_put(s);
        break;
    }
    s = calloc(1, sizeof *s);
    if (!s || !(s->path = strdup(path))) {
        free(s);
        return fail_thread(zipcclOutOfMemory, "no memory for a session");
    }
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    zipcclResult_t r = s->wake_fd < 0 ? zipcclSystemError : zipcclSuccess;
    if (r != zipcclSuccess)
        (void)snprintf(why, sizeof why, "eventfd: %s", strerror(errno));
    else
        r = connect_open(path, connect_job(), CLIENT_CONNECT_MS, &s->conn, &s->info, why);
    if (r != zipcclSuccess) {
        if (s->wake_fd >= 0)
            (void)close(s->wake_fd);
        free(s->path);
        free(s);
        return fail_thread(r, "%s", why);
    }
    s->next_id = 2; /* 1 was the hello */
    s->refs = 1;
    s->next = sessions;
    sessions = s;
    *session = s;
    return zipcclSuccess;
}

void session_put(struct session *s) {
    if (--s->refs || s->conn)
        return;
    if (s->wake_fd >= 0)
        (void)close(s->wake_fd);
    free(s->path);
    free(s);
}

void session_wake(struct session *s) {
    if (s->leading) {
        uint64_t one = 1;
        ssize_t n = write(s->wake_fd, &one, sizeof one);
        (void)n; /* full is as good */
    }
    client_notify();
}

void session_die(struct session *s, const char *why) {
    if (!s->conn)
        return;
    (void)snprintf(s->why, sizeof s->why,
                   "zipccld at %.100s is gone (%.200s): see 'systemctl status zipccld' and 'journalctl -u zipccld', "
                   "then make a new communicator",
                   s->path, why);
    for (struct session **p = &sessions; *p; p = &(*p)->next) {
        if (*p == s) {
            *p = s->next;
            break;
        }
    }
    struct frame_conn *conn = s->conn;
    s->conn = NULL;
    for (struct call *c = s->calls; c; c = c->next) {
        if (c->done)
            continue;
        c->result = zipcclDaemonUnavailable;
        (void)snprintf(c->text, sizeof c->text, "%s", s->why);
        c->done = true;
    }
    for (struct zipcclComm *c = s->comms; c; c = c->next)
        comm_fail(c, zipcclDaemonUnavailable, s->why);
    session_wake(s);
    if (s->polling)
        s->grave = conn;
    else
        frame_conn_free(conn);
}

/* poll without the lock; afterwards conn may be gone. */
static int poll_unlocked(struct session *s, struct pollfd *p, nfds_t n, int timeout_ms) {
    s->polling++;
    (void)pthread_mutex_unlock(&client_lock);
    int ready = poll(p, n, timeout_ms);
    (void)pthread_mutex_lock(&client_lock);
    if (!--s->polling && s->grave) {
        frame_conn_free(s->grave);
        s->grave = NULL;
    }
    return ready;
}

bool session_pump(struct session *s) {
    struct frame f;
    bool any = false;
    if (!s->conn)
        return true;
    zipcclResult_t r = frame_conn_wants_write(s->conn) ? frame_conn_flush(s->conn) : zipcclSuccess;
    if (r == zipcclSuccess || r == zipcclInProgress || r == zipcclRemoteError)
        r = frame_conn_read(s->conn);
    /* Frames that came before an end of the stream still count. */
    zipcclResult_t next;
    char why[192];
    (void)snprintf(why, sizeof why, "%s", r == zipcclSuccess || r == zipcclInProgress ? "" : frame_conn_why(s->conn));
    while ((next = frame_conn_next(s->conn, &f)) == zipcclSuccess) {
        request_dispatch(s, &f);
        any = true;
        if (!s->conn)
            return true;
    }
    if (next != zipcclInProgress || (r != zipcclSuccess && r != zipcclInProgress)) {
        session_die(s, next != zipcclInProgress ? frame_conn_why(s->conn) : why);
        return true;
    }
    if (any)
        session_wake(s);
    return any;
}

/* A turn of the leader: sleeps in poll without the lock, then reads. */
static void lead(struct session *s, int timeout_ms) {
    uint64_t drained;
    struct pollfd p[2] = {{.fd = frame_conn_fd(s->conn), .events = POLLIN}, {.fd = s->wake_fd, .events = POLLIN}};
    if (frame_conn_wants_write(s->conn))
        p[0].events |= POLLOUT;
    s->leading = true;
    int n = poll_unlocked(s, p, 2, timeout_ms);
    s->leading = false;
    if (n > 0 && (p[1].revents & POLLIN)) {
        ssize_t got = read(s->wake_fd, &drained, sizeof drained);
        (void)got;
    }
    if (n > 0 && p[0].revents)
        (void)session_pump(s);
}

static void follow(int64_t deadline_ns) {
    client_sleepers++;
    if (deadline_ns < 0) {
        (void)pthread_cond_wait(&client_changed, &client_lock);
    } else {
        struct timespec t = {.tv_sec = deadline_ns / 1000000000, .tv_nsec = deadline_ns % 1000000000};
        (void)pthread_cond_timedwait(&client_changed, &client_lock, &t);
    }
    client_sleepers--;
}

/* Looks at the socket for a while, where that has been worth it; other threads have their turns in between. */
static void spin(struct session *s, bool (*done)(void *arg), void *arg, uint64_t start) {
    uint64_t now = start;
    while (!done(arg) && s->conn && !s->leading) {
        bool came = session_pump(s);
        uint64_t before = now = (uint64_t)client_now_ns();
        if (now - start >= spin_ns || !spin_worth(&s->spin, spin_ns, now))
            break;
        if (came)
            continue;
        (void)pthread_mutex_unlock(&client_lock);
        now = spin_yield();
        (void)pthread_mutex_lock(&client_lock);
        spin_yielded(&s->spin, before, now);
    }
}

zipcclResult_t session_wait(struct session *s, bool (*done)(void *arg), void *arg, int timeout_ms) {
    int64_t start = client_now_ns(), deadline = timeout_ms < 0 ? -1 : start + (int64_t)timeout_ms * 1000000;
    zipcclResult_t r = zipcclSuccess;
    s->refs++; /* it may die meanwhile */
    spin(s, done, arg, (uint64_t)start);
    while (!done(arg) && s->conn) {
        int64_t now = client_now_ns();
        if (deadline >= 0 && now >= deadline) {
            r = zipcclTimeout;
            break;
        }
        if (s->leading)
            follow(deadline);
        else
            lead(s, deadline < 0 ? -1 : (int)((deadline - now) / 1000000 + 1));
    }
    spin_waited(&s->spin, spin_ns, (uint64_t)(client_now_ns() - start));
    /* Leadership passes to a follower, if there is one. */
    client_notify();
    session_put(s);
    return r;
}

zipcclResult_t session_send(struct session *s, uint16_t type, uint32_t id, const void *payload, size_t bytes,
                            const int *fds, uint32_t nfds) {
    if (!s->conn)
        return zipcclDaemonUnavailable;
    zipcclResult_t r = frame_conn_send(s->conn, type, id, payload, bytes, fds, nfds);
    /* What the socket did not take goes out here, since nobody else may be about. */
    while (r == zipcclSuccess && s->conn && frame_conn_wants_write(s->conn)) {
        r = frame_conn_flush(s->conn);
        if (r != zipcclInProgress)
            break;
        struct pollfd p = {.fd = frame_conn_fd(s->conn), .events = POLLOUT | POLLIN};
        s->refs++;
        (void)poll_unlocked(s, &p, 1, FLUSH_SLICE_MS);
        (void)session_pump(s); /* the daemon may be stuck on its own writes */
        bool dead = !s->conn;
        session_put(s);
        if (dead)
            return zipcclDaemonUnavailable;
        r = zipcclSuccess;
    }
    if (r == zipcclRemoteError) {
        /* What the daemon said before it left is worth more than the broken pipe. */
        (void)session_pump(s);
        if (s->conn)
            session_die(s, frame_conn_why(s->conn));
        return zipcclDaemonUnavailable;
    }
    return r;
}

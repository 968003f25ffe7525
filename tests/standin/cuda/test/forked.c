/* SPDX-License-Identifier: Apache-2.0 */
#include "forked.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define SECONDS 100 /* until a case is taken for hung; it ends in far less */

struct child {
    pid_t pid;
    int text; /* what it writes to stderr */
};

static struct child start(forked_fn *fn, int peer, int close_in_child, va_list env) {
    struct child c = {.text = memfd_create("stderr", MFD_CLOEXEC)};
    assert_true(c.text >= 0);
    fflush(NULL);
    c.pid = fork();
    assert_true(c.pid >= 0);
    if (c.pid)
        return c;
    const struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    signal(SIGSEGV, SIG_DFL); /* cmocka's would go on with the next test, here */
    signal(SIGBUS, SIG_DFL);
    dup2(c.text, STDERR_FILENO);
    if (close_in_child >= 0)
        close(close_in_child);
    alarm(SECONDS);
    for (const char *e = va_arg(env, const char *); e; e = va_arg(env, const char *)) {
        char *copy = strdup(e), *value = strchr(copy, '=');
        *value = 0;
        setenv(copy, value + 1, 1);
        free(copy);
    }
    fn(peer);
    exit(0);
}

/* Returns the status; text holds what the child said. */
static int finish(struct child c, char *text, size_t room) {
    int status = -1;
    assert_int_equal(waitpid(c.pid, &status, 0), c.pid);
    const ssize_t n = pread(c.text, text, room - 1, 0);
    text[n > 0 ? n : 0] = 0;
    close(c.text);
    return status;
}

static void must_pass(struct child *c, unsigned n) {
    char text[2][8192];
    int status[2];
    for (unsigned i = 0; i < n; i++)
        status[i] = finish(c[i], text[i], sizeof(text[i]));
    for (unsigned i = 0; i < n; i++)
        if (status[i] != 0)
            fail_msg("child %u of %u ended with status 0x%x:\n%s%s%s", i + 1, n, (unsigned)status[i], text[i],
                     n > 1 ? "the other one:\n" : "", n > 1 ? text[1 - i] : "");
}

static void must_abort(struct child c, const char *want) {
    char text[8192];
    const int status = finish(c, text, sizeof(text));
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT || !strstr(text, want))
        fail_msg("status 0x%x, and not '%s':\n%s", (unsigned)status, want, text);
}

void forked_passes(forked_fn *fn, ...) {
    va_list env;
    va_start(env, fn);
    struct child c = start(fn, -1, -1, env);
    va_end(env);
    must_pass(&c, 1);
}

void forked_aborts(forked_fn *fn, const char *text, ...) {
    va_list env;
    va_start(env, text);
    must_abort(start(fn, -1, -1, env), text);
    va_end(env);
}

void forked_crashes(forked_fn *fn, const char *want, ...) {
    char text[8192];
    va_list env;
    va_start(env, want);
    const int status = finish(start(fn, -1, -1, env), text, sizeof(text));
    va_end(env);
    if (status == 0 || !strstr(text, want))
        fail_msg("status 0x%x, and not '%s':\n%s", (unsigned)status, want, text);
}

static void pair(forked_fn *one, forked_fn *other, struct child c[2], va_list env) {
    int s[2];
    va_list again;
    va_copy(again, env);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, s), 0);
    c[0] = start(one, s[0], s[1], env);
    c[1] = start(other, s[1], s[0], again);
    close(s[0]);
    close(s[1]);
    va_end(again);
}

void forked_pair_passes(forked_fn *one, forked_fn *other, ...) {
    struct child c[2];
    va_list env;
    va_start(env, other);
    pair(one, other, c, env);
    va_end(env);
    must_pass(c, 2);
}

void forked_pair_aborts(forked_fn *one, forked_fn *other, const char *text, ...) {
    struct child c[2];
    char ignored[8192];
    va_list env;
    va_start(env, text);
    pair(one, other, c, env);
    va_end(env);
    must_abort(c[0], text);
    (void)finish(c[1], ignored, sizeof(ignored));
}

void peer_send(int peer, const void *p, size_t bytes) {
    CHECK(send(peer, p, bytes, MSG_NOSIGNAL) == (ssize_t)bytes);
}

void peer_receive(int peer, void *p, size_t bytes) {
    CHECK(recv(peer, p, bytes, MSG_WAITALL) == (ssize_t)bytes);
}

union control {
    struct cmsghdr head;
    char room[CMSG_SPACE(sizeof(int))];
};

void peer_send_fd(int peer, int fd) {
    char byte = 0;
    union control control = {.room = {0}};
    struct iovec v = {&byte, 1};
    struct msghdr m = {
        .msg_iov = &v, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof(control.room)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(fd));
    memcpy(CMSG_DATA(c), &fd, sizeof(fd));
    CHECK(sendmsg(peer, &m, MSG_NOSIGNAL) == 1);
}

int peer_receive_fd(int peer) {
    char byte;
    int fd = -1;
    union control control;
    struct iovec v = {&byte, 1};
    struct msghdr m = {
        .msg_iov = &v, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof(control.room)};
    CHECK(recvmsg(peer, &m, MSG_CMSG_CLOEXEC) == 1);
    const struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    CHECK(c && c->cmsg_type == SCM_RIGHTS);
    memcpy(&fd, CMSG_DATA(c), sizeof(fd));
    return fd;
}

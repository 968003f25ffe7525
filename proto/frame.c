/* SPDX-License-Identifier: Apache-2.0
 *
 * A frame_conn: the parser on a socket, and a bounded queue of what the peer has not taken yet.
 *
 * A small frame is one sendmsg straight from the caller's memory while nothing is queued, and one recvmsg into a buffer
 * that is reused. The queue allocates, but only once a socket is full.
 */
#include "proto/frame.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "proto/parser.h"
#include "proto/wire.h"

struct out_frame {
    struct out_frame *next;
    size_t length; /* header and payload */
    size_t sent;
    uint32_t nfds; /* owned; 0 once the first byte is out */
    int fds[FRAME_MAX_FDS];
    uint8_t bytes[];
};

struct frame_conn {
    int fd;
    bool passes_fds;
    bool ended; /* the peer closed */
    struct frame_parser in;
    struct out_frame *out_first;
    struct out_frame **out_last;
    size_t out_bytes;
    char why[192];
};

static zipcclResult_t fail(struct frame_conn *c, zipcclResult_t result, const char *what, int err) {
    if (err)
        (void)snprintf(c->why, sizeof c->why, "%s: %s", what, strerror(err));
    else
        (void)snprintf(c->why, sizeof c->why, "%s", what);
    return result;
}

struct frame_conn *frame_conn_new(int fd, bool passes_fds) {
    struct frame_conn *c = NULL;
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 || !(c = calloc(1, sizeof *c))) {
        (void)close(fd);
        return NULL;
    }
    c->fd = fd;
    c->passes_fds = passes_fds;
    c->out_last = &c->out_first;
    frame_parser_init(&c->in, passes_fds);
    return c;
}

static void out_frame_free(struct out_frame *o) {
    for (uint32_t i = 0; i < o->nfds; i++)
        (void)close(o->fds[i]);
    free(o);
}

void frame_conn_free(struct frame_conn *c) {
    if (!c)
        return;
    for (struct out_frame *o = c->out_first, *next; o; o = next) {
        next = o->next;
        out_frame_free(o);
    }
    frame_parser_free(&c->in);
    (void)close(c->fd);
    free(c);
}

int frame_conn_fd(const struct frame_conn *c) {
    return c->fd;
}

void frame_conn_limit(struct frame_conn *c, uint32_t payload) {
    c->in.max_payload = payload;
}

const char *frame_conn_why(const struct frame_conn *c) {
    return c->why;
}

bool frame_conn_wants_write(const struct frame_conn *c) {
    return c->out_first != NULL;
}

static zipcclResult_t socket_error(struct frame_conn *c, const char *what, int err) {
    if (err == EPIPE || err == ECONNRESET || err == ENOTCONN || err == ETIMEDOUT)
        return fail(c, zipcclRemoteError, "the peer closed the connection", 0);
    return fail(c, zipcclSystemError, what, err);
}

/* All descriptors of a received message. Those that do not fit were closed by the kernel, which sets MSG_CTRUNC. */
static uint32_t collect_fds(struct msghdr *m, int *fds) {
    uint32_t n = 0;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(m); h; h = CMSG_NXTHDR(m, h)) {
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(h) + i * sizeof fd, sizeof fd);
            if (n < FRAME_MAX_FDS)
                fds[n++] = fd;
            else
                (void)close(fd);
        }
    }
    return n;
}

zipcclResult_t frame_conn_read(struct frame_conn *c) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(FRAME_MAX_FDS * sizeof(int))];
    } control;
    struct iovec iov;
    uint8_t *at;
    int fds[FRAME_MAX_FDS];
    uint32_t nfds = 0;
    if (c->ended)
        return zipcclRemoteError;
    zipcclResult_t r = frame_parser_space(&c->in, &at, &iov.iov_len);
    if (r != zipcclSuccess)
        return r == zipcclInProgress ? r : fail(c, r, c->in.why, 0);
    iov.iov_base = at;
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    if (c->passes_fds) {
        m.msg_control = control.bytes;
        m.msg_controllen = sizeof control.bytes;
    }
    ssize_t n;
    do
        n = recvmsg(c->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK)
            return zipcclInProgress;
        return socket_error(c, "recvmsg", errno);
    }
    if (c->passes_fds)
        nfds = collect_fds(&m, fds);
    if (n == 0) {
        for (uint32_t i = 0; i < nfds; i++)
            (void)close(fds[i]);
        c->ended = true;
        return fail(c, zipcclRemoteError,
                    frame_parser_at_boundary(&c->in) ? "the peer closed the connection" : c->in.why, 0);
    }
    if (m.msg_flags & MSG_CTRUNC) {
        for (uint32_t i = 0; i < nfds; i++)
            (void)close(fds[i]);
        (void)frame_parser_break(&c->in, zipcclLimitExceeded,
                                 "descriptors were lost: more came than a frame may carry, or this process may open "
                                 "no more (RLIMIT_NOFILE)");
        return fail(c, zipcclLimitExceeded, c->in.why, 0);
    }
    r = frame_parser_feed(&c->in, (size_t)n, fds, nfds);
    return r == zipcclSuccess ? r : fail(c, r, c->in.why, 0);
}

zipcclResult_t frame_conn_next(struct frame_conn *c, struct frame *f) {
    zipcclResult_t r = frame_parser_next(&c->in, f);
    return r == zipcclSuccess || r == zipcclInProgress ? r : fail(c, r, c->in.why, 0);
}

/* One sendmsg. The number of bytes that the socket took; 0: none now; -1: *r says why. */
static ssize_t send_some(struct frame_conn *c, struct iovec *iov, size_t niov, const int *fds, uint32_t nfds,
                         zipcclResult_t *r) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(FRAME_MAX_FDS * sizeof(int))];
    } control;
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = niov};
    if (nfds) {
        memset(&control, 0, sizeof control);
        m.msg_control = control.bytes;
        m.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
        struct cmsghdr *h = CMSG_FIRSTHDR(&m);
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(nfds * sizeof(int));
        memcpy(CMSG_DATA(h), fds, nfds * sizeof(int));
    }
    ssize_t n;
    do
        n = sendmsg(c->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK)
            return 0;
        *r = socket_error(c, "sendmsg", errno);
    }
    return n;
}

/* Copies what the socket did not take. The first `sent` bytes are out, with the descriptors where sent > 0. */
static zipcclResult_t enqueue(struct frame_conn *c, const struct frame_header *h, const void *payload, size_t sent,
                              const int *fds) {
    size_t length = sizeof *h + h->length;
    struct out_frame *o = malloc(sizeof *o + length);
    if (!o)
        return fail(c, zipcclOutOfMemory, "no memory to queue a frame", 0);
    o->next = NULL;
    o->length = length;
    o->sent = sent;
    o->nfds = 0;
    for (uint32_t i = 0; !sent && i < h->nfds; i++) {
        int fd = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
        if (fd < 0) {
            zipcclResult_t r = fail(c, zipcclSystemError, "dup of a descriptor to send", errno);
            out_frame_free(o);
            return r;
        }
        o->fds[o->nfds++] = fd;
    }
    memcpy(o->bytes, h, sizeof *h);
    if (h->length)
        memcpy(o->bytes + sizeof *h, payload, h->length);
    *c->out_last = o;
    c->out_last = &o->next;
    c->out_bytes += length - sent;
    return zipcclSuccess;
}

zipcclResult_t frame_conn_send(struct frame_conn *c, uint16_t type, uint32_t id, const void *payload, size_t length,
                               const int *fds, uint32_t nfds) {
    struct frame_header h = {
        .length = (uint32_t)length, .type = type, .nfds = (uint16_t)nfds, .id = id, .magic = FRAME_MAGIC};
    if (length > FRAME_MAX_PAYLOAD || nfds > FRAME_MAX_FDS || (nfds && !c->passes_fds)) {
        (void)snprintf(c->why, sizeof c->why, "frame %s with %zu bytes and %u descriptors is beyond the limits",
                       wire_type_name(type), length, (unsigned)nfds);
        return zipcclLimitExceeded;
    }
    size_t sent = 0;
    if (!c->out_first) {
        struct iovec iov[2] = {{.iov_base = &h, .iov_len = sizeof h},
                               {.iov_base = (void *)(uintptr_t)payload, .iov_len = length}};
        zipcclResult_t r = zipcclSuccess;
        ssize_t n = send_some(c, iov, length ? 2 : 1, fds, nfds, &r);
        if (n < 0)
            return r;
        sent = (size_t)n;
        if (sent == sizeof h + length)
            return zipcclSuccess;
    } else if (c->out_bytes + sizeof h + length > FRAME_OUT_LIMIT) {
        (void)snprintf(c->why, sizeof c->why, "the peer does not read: %zu bytes are queued for it", c->out_bytes);
        return zipcclLimitExceeded;
    }
    return enqueue(c, &h, payload, sent, fds);
}

zipcclResult_t frame_conn_flush(struct frame_conn *c) {
    for (struct out_frame *o; (o = c->out_first);) {
        struct iovec iov = {.iov_base = o->bytes + o->sent, .iov_len = o->length - o->sent};
        zipcclResult_t r = zipcclSuccess;
        ssize_t n = send_some(c, &iov, 1, o->fds, o->nfds, &r);
        if (n < 0)
            return r;
        if (!n)
            return zipcclInProgress;
        for (uint32_t i = 0; i < o->nfds; i++)
            (void)close(o->fds[i]);
        o->nfds = 0;
        o->sent += (size_t)n;
        c->out_bytes -= (size_t)n;
        if (o->sent < o->length)
            return zipcclInProgress;
        c->out_first = o->next;
        if (!c->out_first)
            c->out_last = &c->out_first;
        out_frame_free(o);
    }
    return zipcclSuccess;
}

static int64_t now_ms(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Waits until the socket is ready for one of the events, or the time is up. */
static zipcclResult_t wait_ready(struct frame_conn *c, short events, int64_t deadline) {
    for (;;) {
        int left = -1;
        if (deadline >= 0) {
            int64_t ms = deadline - now_ms();
            left = ms > 0 ? (int)ms : 0;
        }
        struct pollfd p = {.fd = c->fd, .events = events};
        int n = poll(&p, 1, left);
        if (n > 0)
            return zipcclSuccess;
        if (n == 0)
            return fail(c, zipcclTimeout, "no answer in time", 0);
        if (errno != EINTR)
            return fail(c, zipcclSystemError, "poll", errno);
    }
}

zipcclResult_t frame_conn_wait_frame(struct frame_conn *c, struct frame *f, int timeout_ms) {
    int64_t deadline = timeout_ms < 0 ? -1 : now_ms() + timeout_ms;
    for (;;) {
        zipcclResult_t r = frame_conn_next(c, f);
        if (r != zipcclInProgress)
            return r;
        r = frame_conn_read(c);
        if (r == zipcclSuccess)
            continue;
        if (r != zipcclInProgress)
            return r;
        if (c->out_first) {
            r = frame_conn_flush(c);
            if (r != zipcclSuccess && r != zipcclInProgress)
                return r;
        }
        r = wait_ready(c, (short)(POLLIN | (c->out_first ? POLLOUT : 0)), deadline);
        if (r != zipcclSuccess)
            return r;
    }
}

zipcclResult_t frame_conn_wait_flush(struct frame_conn *c, int timeout_ms) {
    int64_t deadline = timeout_ms < 0 ? -1 : now_ms() + timeout_ms;
    for (;;) {
        zipcclResult_t r = frame_conn_flush(c);
        if (r != zipcclInProgress)
            return r;
        r = wait_ready(c, POLLOUT, deadline);
        if (r != zipcclSuccess)
            return r;
    }
}

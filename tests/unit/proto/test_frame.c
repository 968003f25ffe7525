/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames over real sockets: reassembly, descriptors, limits, queueing, ends.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "proto/frame.h"
#include "proto/wire.h"

struct pair {
    int raw; /* the test's end */
    struct frame_conn *conn;
};

static void open_pair(struct pair *p, bool passes_fds) {
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    p->raw = fds[0];
    p->conn = frame_conn_new(fds[1], passes_fds);
    assert_non_null(p->conn);
}

static void close_pair(struct pair *p) {
    if (p->raw >= 0)
        (void)close(p->raw);
    frame_conn_free(p->conn);
}

static size_t build(uint8_t *out, uint16_t type, uint32_t id, const void *payload, uint32_t length, uint16_t nfds) {
    struct frame_header h = {.length = length, .type = type, .nfds = nfds, .id = id, .magic = FRAME_MAGIC};
    memcpy(out, &h, sizeof h);
    if (length)
        memcpy(out + sizeof h, payload, length);
    return sizeof h + length;
}

static void put(int fd, const void *bytes, size_t n, const int *fds, unsigned nfds) {
    char control[CMSG_SPACE(16 * sizeof(int))] __attribute__((aligned(8))) = {0};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = n};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    if (nfds) {
        m.msg_control = control;
        m.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
        struct cmsghdr *h = CMSG_FIRSTHDR(&m);
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(nfds * sizeof(int));
        memcpy(CMSG_DATA(h), fds, nfds * sizeof(int));
    }
    assert_int_equal(sendmsg(fd, &m, MSG_NOSIGNAL), (ssize_t)n);
}

static int count_fds(void) {
    int n = 0;
    for (int i = 0; i < 256; i++)
        n += fcntl(i, F_GETFD) >= 0;
    return n;
}

static int file_with(char mark) {
    int fd = memfd_create("t", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, &mark, 1), 1);
    return fd;
}

static char mark_of(int fd) {
    char c = 0;
    assert_int_equal(pread(fd, &c, 1, 0), 1);
    return c;
}

static void split_everywhere(void **state) {
    (void)state;
    uint8_t bytes[128];
    size_t a = build(bytes, WIRE_OK, 7, "hello", 5, 0);
    size_t n = a + build(bytes + a, WIRE_ERROR, 8, "ab", 2, 0);
    for (size_t cut = 1; cut < n; cut++) {
        struct pair p;
        struct frame f;
        unsigned got = 0;
        open_pair(&p, true);
        for (int half = 0; half < 2; half++) {
            put(p.raw, half ? bytes + cut : bytes, half ? n - cut : cut, NULL, 0);
            assert_int_equal(frame_conn_read(p.conn), zipcclSuccess);
            while (frame_conn_next(p.conn, &f) == zipcclSuccess) {
                assert_int_equal(f.id, 7 + got);
                assert_int_equal(f.length, got ? 2 : 5);
                assert_memory_equal(f.payload, got ? "ab" : "hello", f.length);
                got++;
            }
        }
        assert_int_equal(got, 2);
        close_pair(&p);
    }
}

static void large_in_pieces(void **state) {
    (void)state;
    struct pair p;
    struct frame f;
    size_t length = 200000;
    uint8_t *bytes = malloc(length + 64), *payload = malloc(length);
    for (size_t i = 0; i < length; i++)
        payload[i] = (uint8_t)(i * 7);
    size_t n = build(bytes, WIRE_STATUS_REPLY, 1, payload, (uint32_t)length, 0);
    open_pair(&p, true);
    for (int round = 0; round < 3; round++) {
        for (size_t at = 0; at < n;) {
            size_t step = at < 40 ? 1 : 30011;
            step = step < n - at ? step : n - at;
            put(p.raw, bytes + at, step, NULL, 0);
            at += step;
            zipcclResult_t r;
            while ((r = frame_conn_read(p.conn)) == zipcclSuccess)
                if (at < n)
                    assert_int_equal(frame_conn_next(p.conn, &f), zipcclInProgress);
            assert_int_equal(r, zipcclInProgress);
        }
        assert_int_equal(frame_conn_next(p.conn, &f), zipcclSuccess);
        assert_int_equal(f.length, length);
        assert_memory_equal(f.payload, payload, length);
        /* A frame in hand stays valid while more is read. */
        uint8_t small[32];
        put(p.raw, small, build(small, WIRE_OK, 2, NULL, 0, 0), NULL, 0);
        (void)!frame_conn_read(p.conn);
        assert_memory_equal(f.payload, payload, length);
        assert_int_equal(frame_conn_wait_frame(p.conn, &f, 1000), zipcclSuccess);
        assert_int_equal(f.id, 2);
    }
    close_pair(&p);
    free(bytes);
    free(payload);
}

static void fds_reach_their_frame(void **state) {
    (void)state;
    struct pair p;
    struct frame f;
    uint8_t bytes[256];
    int before = count_fds();
    open_pair(&p, true);
    int x[2] = {file_with('x'), file_with('y')}, z = file_with('z');
    put(p.raw, bytes, build(bytes, WIRE_OK, 1, "..", 2, 0), NULL, 0);
    put(p.raw, bytes, build(bytes, WIRE_BUFFER_REGISTER, 2, "..", 2, 2), x, 2);
    put(p.raw, bytes, build(bytes, WIRE_OK, 3, "..", 2, 0), NULL, 0);
    put(p.raw, bytes, build(bytes, WIRE_BUFFER_REGISTER, 4, "..", 2, 1), &z, 1);
    /* All read before any is taken. */
    while (frame_conn_read(p.conn) == zipcclSuccess)
        ;
    const unsigned want[] = {0, 2, 0, 1};
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(frame_conn_next(p.conn, &f), zipcclSuccess);
        assert_int_equal(f.id, i + 1);
        assert_int_equal(f.nfds, want[i]);
        if (i == 1) {
            assert_int_equal(mark_of(f.fds[0]), 'x');
            assert_int_equal(mark_of(f.fds[1]), 'y');
            assert_true(fcntl(f.fds[0], F_GETFD) & FD_CLOEXEC);
            (void)close(f.fds[0]);
            f.fds[0] = -1; /* taken */
        } else if (i == 3) {
            assert_int_equal(mark_of(f.fds[0]), 'z');
        }
    }
    close_pair(&p);
    (void)close(x[0]);
    (void)close(x[1]);
    (void)close(z);
    assert_int_equal(count_fds(), before);
}

/* Header byte by byte: the descriptor comes with the first. */
static void fd_with_split_header(void **state) {
    (void)state;
    struct pair p;
    struct frame f;
    uint8_t bytes[64];
    int x = file_with('x');
    open_pair(&p, true);
    size_t n = build(bytes, WIRE_BUFFER_REGISTER, 2, "..", 2, 1);
    for (size_t i = 0; i < n; i++) {
        put(p.raw, bytes + i, 1, &x, i == 0);
        assert_int_equal(frame_conn_read(p.conn), zipcclSuccess);
    }
    assert_int_equal(frame_conn_next(p.conn, &f), zipcclSuccess);
    assert_int_equal(f.nfds, 1);
    assert_int_equal(mark_of(f.fds[0]), 'x');
    close_pair(&p);
    (void)close(x);
}

/* Whatever reads and takes says that the stream is broken, and nothing leaks. */
static void expect_broken(bool passes_fds, uint16_t announced, unsigned sent, size_t head, const char *text) {
    struct pair p;
    struct frame f;
    uint8_t bytes[64];
    int before = count_fds(), fds[8];
    for (int i = 0; i < 8; i++)
        fds[i] = file_with('q');
    open_pair(&p, passes_fds);
    size_t n = build(bytes, WIRE_BUFFER_REGISTER, 1, "..", 2, announced);
    if (head) {
        put(p.raw, bytes, head, NULL, 0);
        assert_int_equal(frame_conn_read(p.conn), zipcclSuccess);
    }
    put(p.raw, bytes + head, n - head, fds, sent);
    zipcclResult_t r = frame_conn_read(p.conn);
    if (r == zipcclSuccess)
        r = frame_conn_next(p.conn, &f);
    assert_true(r == zipcclLimitExceeded || r == zipcclInvalidArgument);
    assert_non_null(strstr(frame_conn_why(p.conn), text));
    close_pair(&p);
    for (int i = 0; i < 8; i++)
        (void)close(fds[i]);
    assert_int_equal(count_fds(), before);
}

static void wrong_fds(void **state) {
    (void)state;
    expect_broken(true, 1, 0, 0, "announces 1 descriptors, but 0");
    expect_broken(true, 1, 2, 0, "announces 1 descriptors, but 2");
    expect_broken(true, 0, 1, 0, "no frame announced");
    expect_broken(true, 4, 8, 0, "lost");
    expect_broken(true, 5, 4, 0, "more descriptors than the limit");
    expect_broken(true, 1, 1, 4, "middle of a frame");
    expect_broken(false, 1, 0, 0, "carries none");
}

static void bad_headers(void **state) {
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        struct pair p;
        struct frame f;
        uint8_t bytes[64];
        struct frame_header h = {.type = WIRE_OK, .magic = FRAME_MAGIC};
        open_pair(&p, true);
        /* A good frame before it still comes. */
        put(p.raw, bytes, build(bytes, WIRE_OK, 9, NULL, 0, 0), NULL, 0);
        if (kind == 0)
            h.length = FRAME_MAX_PAYLOAD + 1;
        else if (kind == 1)
            h.magic = 1;
        else
            h.type = 0;
        put(p.raw, &h, sizeof h, NULL, 0);
        while (frame_conn_read(p.conn) == zipcclSuccess)
            ;
        assert_int_equal(frame_conn_next(p.conn, &f), zipcclSuccess);
        assert_int_equal(frame_conn_next(p.conn, &f), kind == 0 ? zipcclLimitExceeded : zipcclInvalidArgument);
        assert_true(*frame_conn_why(p.conn));
        close_pair(&p);
    }
}

static void ends(void **state) {
    (void)state;
    uint8_t bytes[64];
    size_t n = build(bytes, WIRE_OK, 1, "abc", 3, 0);
    for (size_t sent = 0; sent <= n; sent++) {
        struct pair p;
        struct frame f;
        zipcclResult_t r;
        open_pair(&p, true);
        if (sent)
            put(p.raw, bytes, sent, NULL, 0);
        (void)close(p.raw);
        p.raw = -1;
        while ((r = frame_conn_read(p.conn)) == zipcclSuccess)
            ;
        assert_int_equal(r, zipcclRemoteError);
        assert_true((strstr(frame_conn_why(p.conn), "middle") != NULL) == (sent && sent < n));
        assert_int_equal(frame_conn_next(p.conn, &f), sent == n ? zipcclSuccess : zipcclInProgress);
        close_pair(&p);
    }
}

static void queues_and_limits(void **state) {
    (void)state;
    int fds[2], x = file_with('x');
    struct frame f;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    struct frame_conn *writer = frame_conn_new(fds[0], true), *reader = frame_conn_new(fds[1], true);
    size_t length = 100000;
    uint8_t *payload = calloc(1, FRAME_MAX_PAYLOAD + 1);
    uint32_t sent = 0, got = 0;
    zipcclResult_t r;
    for (;;) {
        memcpy(payload, &sent, sizeof sent);
        r = frame_conn_send(writer, WIRE_STATUS_REPLY, sent, payload, length, &x, sent % 3 == 1);
        if (r != zipcclSuccess)
            break;
        sent++;
    }
    assert_int_equal(r, zipcclLimitExceeded);
    assert_non_null(strstr(frame_conn_why(writer), "does not read"));
    assert_true(sent > 80 && sent < 100);
    assert_true(frame_conn_wants_write(writer));
    /* The reader wakes up: all arrives, in order, each with its own descriptor. */
    while (got < sent) {
        (void)!frame_conn_flush(writer);
        r = frame_conn_read(reader);
        assert_true(r == zipcclSuccess || r == zipcclInProgress);
        while (frame_conn_next(reader, &f) == zipcclSuccess) {
            assert_int_equal(f.id, got);
            assert_memory_equal(f.payload, &got, sizeof got);
            assert_int_equal(f.nfds, got % 3 == 1);
            if (f.nfds)
                assert_int_equal(mark_of(f.fds[0]), 'x');
            got++;
        }
    }
    assert_int_equal(frame_conn_wait_flush(writer, 100), zipcclSuccess);
    assert_false(frame_conn_wants_write(writer));
    assert_int_equal(frame_conn_send(writer, WIRE_OK, 0, payload, FRAME_MAX_PAYLOAD + 1, NULL, 0), zipcclLimitExceeded);
    assert_int_equal(frame_conn_wait_frame(reader, &f, 20), zipcclTimeout);
    /* A peer that left is an error, not a signal. */
    frame_conn_free(reader);
    assert_int_equal(frame_conn_send(writer, WIRE_OK, 0, NULL, 0, NULL, 0), zipcclRemoteError);
    frame_conn_free(writer);
    (void)close(x);
    free(payload);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(split_everywhere),      cmocka_unit_test(large_in_pieces),   cmocka_unit_test(wrong_fds),
        cmocka_unit_test(fds_reach_their_frame), cmocka_unit_test(bad_headers),       cmocka_unit_test(ends),
        cmocka_unit_test(fd_with_split_header),  cmocka_unit_test(queues_and_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

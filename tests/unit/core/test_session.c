/* SPDX-License-Identifier: Apache-2.0
 *
 * A real zipccld and raw frames: what clients do wrong gets a clear error, and the daemon lives on.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/message.h"
#include "proto/wire.h"
#include "zipccl.pb-c.h"

static const char *const daemon_path = ZIPCCL_TEST_BIN "/zipccld";
static char dir[64], socket_path[100], log_path[100];
static pid_t daemon_pid;
static const char *current = socket_path; /* where sessions go */

static pid_t daemon_spawn(const char *log, const char *node, const char *path) {
    char socket_set[128];
    snprintf(socket_set, sizeof socket_set, "socket=%s", path);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0644);
        dup2(fd, 1);
        dup2(fd, 2);
        execl(daemon_path, daemon_path, "--set", socket_set, "--set", "fabric=none", "--set", "socket_mode=0666",
              "--set", "join_timeout=500ms", "--set", "op_timeout=500ms", "--set", "max_buffer_bytes=1MiB", "--listen",
              "127.0.0.1:0", "--node-name", node, (char *)NULL);
        _exit(127);
    }
    return pid;
}

static void print_log(const char *path) {
    char text[16384];
    int fd = open(path, O_RDONLY);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text) : 0;
    if (fd >= 0)
        close(fd);
    fprintf(stderr, "---- %s\n%.*s----\n", path, (int)(n > 0 ? n : 0), text);
}

static int dial(const char *path) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    for (int i = 0; i < 500; i++) {
        if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0)
            return fd;
        usleep(10000);
    }
    close(fd);
    return -1;
}

static int setup(void **state) {
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/zipccl-core-XXXXXX");
    if (mkdtemp(dir) == NULL || chmod(dir, 0755) != 0)
        return -1;
    snprintf(socket_path, sizeof socket_path, "%s/s", dir);
    snprintf(log_path, sizeof log_path, "%s/log", dir);
    daemon_pid = daemon_spawn(log_path, "n0", socket_path);
    return daemon_pid > 0 ? 0 : -1;
}

static int failures;

static struct frame_conn *open_at(const char *path) {
    int fd = dial(path);
    assert_true(fd >= 0);
    struct frame_conn *c = frame_conn_new(fd, true);
    assert_non_null(c);
    return c;
}

static struct frame_conn *open_conn(void) {
    return open_at(current);
}

static void send_message(struct frame_conn *c, uint16_t type, const ProtobufCMessage *m, const int *fds, uint32_t n) {
    assert_int_equal(message_send(c, type, 7, m, fds, n), zipcclSuccess);
}

static void send_bytes(struct frame_conn *c, uint16_t type, const void *data, size_t n) {
    assert_int_equal(frame_conn_send(c, type, 7, data, n, NULL, 0), zipcclSuccess);
}

static struct frame expect(struct frame_conn *c, uint16_t type) {
    struct frame f = {0};
    zipcclResult_t rc = frame_conn_wait_frame(c, &f, 3000);
    if (rc != zipcclSuccess)
        fail_msg("no frame: %d, %s", (int)rc, frame_conn_why(c));
    if (f.type != type) {
        ProtobufCMessage *m = NULL;
        const char *why = "";
        if (f.type == WIRE_ERROR && message_unpack(&f, &m, &why) == zipcclSuccess)
            fail_msg("an error came instead of %u: %s", type, ((Zipccl__Error *)m)->text);
        fail_msg("frame %u came instead of %u", f.type, type);
    }
    return f;
}

static void expect_error(struct frame_conn *c, zipcclResult_t result, const char *part) {
    struct frame f = expect(c, WIRE_ERROR);
    ProtobufCMessage *m = NULL;
    const char *why = "";
    assert_int_equal(message_unpack(&f, &m, &why), zipcclSuccess);
    Zipccl__Error *e = (Zipccl__Error *)m;
    if (e->result != (uint32_t)result || strstr(e->text, part) == NULL)
        fail_msg("error %u '%s' instead of %d '%s'", e->result, e->text, (int)result, part);
    message_free(m);
}

static void expect_closed(struct frame_conn *c) {
    struct frame f;
    zipcclResult_t rc = frame_conn_wait_frame(c, &f, 3000);
    assert_true(rc == zipcclRemoteError || rc == zipcclSystemError);
    frame_conn_free(c);
}

static void hello_as(struct frame_conn *c, const char *job, uint32_t min, uint32_t max) {
    Zipccl__Hello h = ZIPCCL__HELLO__INIT;
    h.version_min = min;
    h.version_max = max;
    h.job = (char *)job;
    h.program = "test";
    send_message(c, WIRE_HELLO, &h.base, NULL, 0);
}

static struct frame_conn *session(const char *job) {
    struct frame_conn *c = open_conn();
    hello_as(c, job, WIRE_VERSION_MIN, WIRE_VERSION_MAX);
    (void)expect(c, WIRE_HELLO_REPLY);
    return c;
}

/* The daemon answers a status: it lives. */
static void alive(void) {
    struct frame_conn *c = session("");
    send_bytes(c, WIRE_STATUS, NULL, 0);
    struct frame f = expect(c, WIRE_STATUS_REPLY);
    ProtobufCMessage *m = NULL;
    const char *why = "";
    assert_int_equal(message_unpack(&f, &m, &why), zipcclSuccess);
    assert_string_equal(((Zipccl__Status *)m)->node, "n0");
    message_free(m);
    frame_conn_free(c);
}

static int teardown(void **state) {
    (void)state;
    int status = 0;
    kill(daemon_pid, SIGTERM);
    for (int i = 0; i < 300 && waitpid(daemon_pid, &status, WNOHANG) == 0; i++)
        usleep(10000);
    bool clean = WIFEXITED(status) && WEXITSTATUS(status) == 0 && access(socket_path, F_OK) != 0;
    if (!clean)
        kill(daemon_pid, SIGKILL);
    if (!clean || failures > 0)
        print_log(log_path);
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command) == 0 && clean ? 0 : -1;
}

static void test_hello(void **state) {
    (void)state;
    struct frame_conn *c = open_conn();
    send_bytes(c, WIRE_STATUS, NULL, 0);
    expect_error(c, zipcclInvalidUsage, "first frame must be a hello");
    expect_closed(c);
    c = open_conn();
    hello_as(c, "j", 90, 91);
    expect_error(c, zipcclVersionMismatch, "client speaks 90 to 91");
    expect_closed(c);
    c = session("j");
    hello_as(c, "j", WIRE_VERSION_MIN, WIRE_VERSION_MAX);
    expect_error(c, zipcclInvalidUsage, "second hello");
    expect_closed(c);
    alive();
}

static void test_bad_frames(void **state) {
    (void)state;
    struct frame_conn *c = session("j");
    struct frame_header h = {.length = FRAME_MAX_PAYLOAD + 1, .type = WIRE_STATUS, .magic = FRAME_MAGIC};
    assert_int_equal(write(frame_conn_fd(c), &h, sizeof h), sizeof h);
    expect_error(c, zipcclLimitExceeded, "bad frame");
    expect_closed(c);
    c = session("j");
    h.length = 100;
    assert_int_equal(write(frame_conn_fd(c), &h, sizeof h), sizeof h); /* and no more */
    frame_conn_free(c);
    c = session("j");
    h.magic = 1;
    assert_int_equal(write(frame_conn_fd(c), &h, sizeof h), sizeof h);
    expect_error(c, zipcclInvalidArgument, "bad frame");
    expect_closed(c);
    c = session("j");
    send_bytes(c, 999, NULL, 0);
    expect_error(c, zipcclInvalidArgument, "999"); /* whole and well formed: the session goes on */
    send_bytes(c, WIRE_STATUS, NULL, 0);
    (void)expect(c, WIRE_STATUS_REPLY);
    frame_conn_free(c);
    c = session("j");
    send_bytes(c, WIRE_COMM_INIT, "\xff\xff\xff\xff", 4);
    expect_error(c, zipcclInvalidArgument, "COMM_INIT: ");
    send_bytes(c, WIRE_REQUEST, "x", 1);
    expect_error(c, zipcclInvalidArgument, "a request has 96 bytes");
    struct wire_request r = {.comm = 77, .seq = 1};
    send_bytes(c, WIRE_REQUEST, &r, sizeof r);
    expect_error(c, zipcclInvalidArgument, "unknown communicator");
    frame_conn_free(c);
    alive();
}

static int memory(size_t bytes, bool seal) {
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    if (seal)
        assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    return fd;
}

static void send_register(struct frame_conn *c, int fd, uint64_t bytes, uint32_t nfds) {
    Zipccl__BufferRegister m = ZIPCCL__BUFFER_REGISTER__INIT;
    int fds[4] = {fd, fd, fd, fd};
    m.bytes = bytes;
    send_message(c, WIRE_BUFFER_REGISTER, &m.base, fds, nfds);
}

static uint64_t registered(struct frame_conn *c, int fd, uint64_t bytes) {
    send_register(c, fd, bytes, 1);
    struct frame f = expect(c, WIRE_BUFFER_REGISTER_REPLY);
    ProtobufCMessage *m = NULL;
    const char *why = "";
    assert_int_equal(message_unpack(&f, &m, &why), zipcclSuccess);
    uint64_t id = ((Zipccl__BufferRef *)m)->buffer;
    message_free(m);
    return id;
}

static void test_buffers(void **state) {
    (void)state;
    struct frame_conn *c = session("j");
    int good = memory(65536, true), loose = memory(65536, false);
    send_register(c, loose, 65536, 1);
    expect_error(c, zipcclInvalidArgument, "seal");
    send_register(c, good, 65536, 3);
    expect_error(c, zipcclInvalidArgument, "one descriptor, not 3");
    send_register(c, good, 65536, 0);
    expect_error(c, zipcclInvalidArgument, "one descriptor, not 0");
    send_register(c, good, 1 << 30, 1);
    expect_error(c, zipcclLimitExceeded, "max_buffer_bytes");
    uint64_t id = registered(c, good, 65536);
    Zipccl__BufferRef ref = ZIPCCL__BUFFER_REF__INIT;
    ref.buffer = id;
    send_message(c, WIRE_BUFFER_RELEASE, &ref.base, NULL, 0);
    (void)expect(c, WIRE_OK);
    send_message(c, WIRE_BUFFER_RELEASE, &ref.base, NULL, 0);
    expect_error(c, zipcclInvalidArgument, "unknown buffer");
    close(good);
    close(loose);
    frame_conn_free(c);
    alive();
}

static struct wire_unique_id unique_id(struct frame_conn *c) {
    struct wire_unique_id id;
    send_bytes(c, WIRE_UNIQUE_ID, NULL, 0);
    struct frame f = expect(c, WIRE_UNIQUE_ID_REPLY);
    assert_int_equal(f.length, sizeof id);
    memcpy(&id, f.payload, sizeof id);
    return id;
}

static void send_init(struct frame_conn *c, struct wire_unique_id *id, uint32_t nranks, uint32_t rank) {
    Zipccl__CommInit m = ZIPCCL__COMM_INIT__INIT;
    m.unique_id = (ProtobufCBinaryData){.len = sizeof *id, .data = (uint8_t *)id};
    m.nranks = nranks;
    m.rank = rank;
    send_message(c, WIRE_COMM_INIT, &m.base, NULL, 0);
}

static uint64_t joined(struct frame_conn *c) {
    struct frame f = expect(c, WIRE_COMM_INIT_REPLY);
    ProtobufCMessage *m = NULL;
    const char *why = "";
    assert_int_equal(message_unpack(&f, &m, &why), zipcclSuccess);
    uint64_t comm = ((Zipccl__CommInitReply *)m)->comm;
    message_free(m);
    return comm;
}

static void expect_completion(struct frame_conn *c, zipcclResult_t result, const char *part) {
    struct frame f = expect(c, WIRE_COMPLETION);
    struct wire_completion w;
    char text[600] = "";
    assert_true(f.length >= sizeof w);
    memcpy(&w, f.payload, sizeof w);
    memcpy(text, f.payload + sizeof w, f.length - sizeof w < sizeof text ? f.length - sizeof w : 0);
    if (w.result != (uint32_t)result || strstr(text, part) == NULL)
        fail_msg("completion %u '%s' instead of %d '%s'", w.result, text, (int)result, part);
}

static void test_join_errors(void **state) {
    (void)state;
    struct frame_conn *a = session("j"), *b = session("j");
    struct wire_unique_id id = unique_id(a), other = id;
    send_init(a, &id, 3, 0);
    (void)unique_id(a); /* its answer tells that the join before it was taken */
    send_init(b, &id, 3, 0);
    expect_error(b, zipcclInvalidArgument, "has joined already");
    send_init(b, &id, 4, 1);
    expect_error(b, zipcclInvalidArgument, "says 4 ranks");
    other.nonce++;
    send_init(b, &other, 3, 1);
    expect_error(b, zipcclInvalidArgument, "does not know this unique id");
    struct frame_conn *k = session("k");
    send_init(k, &id, 3, 1);
    expect_error(k, zipcclPermissionDenied, "belongs to job");
    expect_error(a, zipcclTimeout, "ranks 1, 2 did not join within 0.5 s");
    frame_conn_free(a);
    frame_conn_free(b);
    frame_conn_free(k);
    alive();
}

static void test_operations(void **state) {
    (void)state;
    struct frame_conn *c[2] = {session("j"), session("j")};
    struct wire_unique_id id = unique_id(c[0]);
    uint64_t comm[2], buffer[2];
    uint8_t *p[2];
    for (uint32_t i = 0; i < 2; i++)
        send_init(c[i], &id, 2, i);
    for (uint32_t i = 0; i < 2; i++) {
        int fd = memory(65536, true);
        comm[i] = joined(c[i]);
        buffer[i] = registered(c[i], fd, 65536);
        p[i] = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        memset(p[i], 'a' + (int)i, 100);
        close(fd);
    }
    struct wire_request r[2];
    for (uint32_t i = 0; i < 2; i++)
        r[i] = (struct wire_request){.comm = comm[i],
                                     .seq = 1,
                                     .count = 100,
                                     .send_buffer = buffer[i],
                                     .recv_buffer = buffer[i],
                                     .recv_offset = 4096,
                                     .op = zipcclOpAllGather,
                                     .dtype = zipcclUint8,
                                     .codec = zipcclCodecAuto};
    struct wire_request bad = r[0];
    bad.recv_offset = 65536 - 199;
    send_bytes(c[0], WIRE_REQUEST, &bad, sizeof bad);
    expect_completion(c[0], zipcclInvalidArgument, "outside the registered buffer");
    bad = r[0];
    bad.count = UINT64_MAX / 2 + 1;
    bad.dtype = zipcclInt32;
    send_bytes(c[0], WIRE_REQUEST, &bad, sizeof bad);
    expect_completion(c[0], zipcclInvalidArgument, "overflows");
    bad = r[0];
    bad.seq = 5;
    send_bytes(c[0], WIRE_REQUEST, &bad, sizeof bad);
    expect_completion(c[0], zipcclInvalidArgument, "#5 came where #1");
    bad = r[0];
    bad.send_buffer = 12345;
    send_bytes(c[0], WIRE_REQUEST, &bad, sizeof bad);
    expect_completion(c[0], zipcclInvalidArgument, "not registered");
    for (uint32_t i = 0; i < 2; i++)
        send_bytes(c[i], WIRE_REQUEST, &r[i], sizeof r[i]);
    for (uint32_t i = 0; i < 2; i++) {
        expect_completion(c[i], zipcclSuccess, "");
        assert_memory_equal(p[i] + 4096, p[0], 100);
        assert_memory_equal(p[i] + 4196, p[1], 100);
    }
    r[0].seq = r[1].seq = 2;
    r[1].count = 99;
    for (uint32_t i = 0; i < 2; i++)
        send_bytes(c[i], WIRE_REQUEST, &r[i], sizeof r[i]);
    for (uint32_t i = 0; i < 2; i++) {
        (void)expect(c[i], WIRE_COMM_EVENT);
        expect_completion(c[i], zipcclInvalidArgument, "ranks differ in operation #2: count is");
        munmap(p[i], 65536);
        frame_conn_free(c[i]);
    }
    alive();
}

/* Two ranks that joined; rank 0 calls a barrier. */
static void barrier_pair(struct frame_conn *c[2], uint64_t comm[2]) {
    c[0] = session("j");
    c[1] = session("j");
    struct wire_unique_id id = unique_id(c[0]);
    for (uint32_t i = 0; i < 2; i++)
        send_init(c[i], &id, 2, i);
    for (uint32_t i = 0; i < 2; i++)
        comm[i] = joined(c[i]);
    struct wire_request r = {.comm = comm[0], .seq = 1, .op = zipcclOpBarrier, .codec = zipcclCodecAuto};
    send_bytes(c[0], WIRE_REQUEST, &r, sizeof r);
}

static void test_deaths(void **state) {
    (void)state;
    struct frame_conn *c[2];
    uint64_t comm[2];
    barrier_pair(c, comm);
    send_bytes(c[0], WIRE_STATUS, NULL, 0);
    (void)expect(c[0], WIRE_STATUS_REPLY); /* the barrier runs */
    frame_conn_free(c[1]);
    (void)expect(c[0], WIRE_COMM_EVENT);
    expect_completion(c[0], zipcclRemoteError, "died during barrier #1");
    frame_conn_free(c[0]);
    barrier_pair(c, comm);
    (void)expect(c[0], WIRE_COMM_EVENT);
    expect_completion(c[0], zipcclTimeout, "on node n0 ranks 1 have not called it");
    frame_conn_free(c[0]);
    frame_conn_free(c[1]);
    alive();
}

static void test_leave(void **state) {
    (void)state;
    struct frame_conn *c[2] = {session("j"), session("j")};
    uint64_t comm[2];
    for (int round = 0; round < 2; round++) {
        struct wire_unique_id id = unique_id(c[0]);
        Zipccl__CommRef ref = ZIPCCL__COMM_REF__INIT;
        for (uint32_t i = 0; i < 2; i++)
            send_init(c[i], &id, 2, i);
        for (uint32_t i = 0; i < 2; i++)
            comm[i] = joined(c[i]);
        ref.comm = comm[1];
        send_message(c[1], WIRE_COMM_DESTROY, &ref.base, NULL, 0);
        (void)expect(c[1], WIRE_OK);
        if (round == 1) { /* the other rank goes on alone */
            struct wire_request r = {.comm = comm[0], .seq = 1, .op = zipcclOpBarrier, .codec = zipcclCodecAuto};
            send_bytes(c[0], WIRE_REQUEST, &r, sizeof r);
            (void)expect(c[0], WIRE_COMM_EVENT);
            expect_completion(c[0], zipcclInvalidUsage, "has left the communicator");
        }
        ref.comm = comm[0];
        send_message(c[0], WIRE_COMM_DESTROY, &ref.base, NULL, 0);
        (void)expect(c[0], WIRE_OK);
        send_message(c[0], WIRE_COMM_DESTROY, &ref.base, NULL, 0);
        expect_error(c[0], zipcclInvalidArgument, "unknown communicator");
    }
    frame_conn_free(c[0]);
    frame_conn_free(c[1]);
    alive();
}

static void test_second_daemon(void **state) {
    (void)state;
    char log[120], text[4096] = "";
    int status = 0;
    snprintf(log, sizeof log, "%s/second", dir);
    alive();
    pid_t pid = daemon_spawn(log, "n0", socket_path);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    int fd = open(log, O_RDONLY);
    assert_true(read(fd, text, sizeof text - 1) > 0);
    close(fd);
    assert_non_null(strstr(text, "another zipccld already serves"));
    alive();
}

static void test_other_user(void **state) {
    (void)state;
    int status = 0;
    if (getuid() != 0)
        skip();
    struct frame_conn *mine = session("owned");
    pid_t pid = fork();
    if (pid == 0) {
        struct frame f;
        ProtobufCMessage *m = NULL;
        const char *why = "";
        if (setgid(65534) != 0 || setuid(65534) != 0)
            _exit(2);
        struct frame_conn *c = frame_conn_new(dial(socket_path), true);
        hello_as(c, "owned", WIRE_VERSION_MIN, WIRE_VERSION_MAX);
        if (frame_conn_wait_frame(c, &f, 3000) != zipcclSuccess || f.type != WIRE_ERROR ||
            message_unpack(&f, &m, &why) != zipcclSuccess)
            _exit(3);
        const Zipccl__Error *e = (const Zipccl__Error *)m;
        _exit(e->result == zipcclPermissionDenied && strstr(e->text, "belongs to another user") != NULL ? 0 : 4);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    frame_conn_free(mine);
    alive();
}

/* A running operation may end during the drain; then the clients are told, and the daemon ends with 0. */
static void test_drain(void **state) {
    (void)state;
    char path[120], log[120];
    int status = -1;
    struct frame_conn *c[2];
    uint64_t comm[2];
    snprintf(path, sizeof path, "%s/s2", dir);
    snprintf(log, sizeof log, "%s/log2", dir);
    pid_t pid = daemon_spawn(log, "n2", path);
    current = path;
    barrier_pair(c, comm);
    current = socket_path;
    send_bytes(c[0], WIRE_STATUS, NULL, 0);
    (void)expect(c[0], WIRE_STATUS_REPLY);
    kill(pid, SIGTERM);
    usleep(50000);
    struct wire_request r = {.comm = comm[1], .seq = 1, .op = zipcclOpBarrier, .codec = zipcclCodecAuto};
    send_bytes(c[1], WIRE_REQUEST, &r, sizeof r);
    for (uint32_t i = 0; i < 2; i++) {
        expect_completion(c[i], zipcclSuccess, "");
        (void)expect(c[i], WIRE_COMM_EVENT);
        frame_conn_free(c[i]);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_not_equal(access(path, F_OK), 0);
}

/* Two daemons find each other; without a fabric the communicator cannot be, and all ranks are told why. Then the root
 * dies while a rank waits. */
static void test_two_nodes(void **state) {
    (void)state;
    char path[120], log[120];
    snprintf(path, sizeof path, "%s/s1", dir);
    snprintf(log, sizeof log, "%s/log1", dir);
    pid_t pid = daemon_spawn(log, "n1", path);
    struct frame_conn *a = session("j"), *b = open_at(path);
    hello_as(b, "j", WIRE_VERSION_MIN, WIRE_VERSION_MAX);
    (void)expect(b, WIRE_HELLO_REPLY);
    struct wire_unique_id id = unique_id(a);
    send_init(a, &id, 2, 0);
    send_init(b, &id, 2, 1);
    expect_error(a, zipcclInvalidUsage, "has no fabric");
    expect_error(b, zipcclInvalidUsage, "has no fabric");
    id = unique_id(a);
    send_init(a, &id, 3, 0);
    (void)unique_id(a); /* its answer tells that the join before it was taken */
    send_init(b, &id, 3, 0);
    expect_error(b, zipcclInvalidArgument, "has joined already");
    expect_error(a, zipcclTimeout, "ranks 1, 2 did not join");
    id = unique_id(a);
    snprintf(id.root, sizeof id.root, "127.0.0.1:1");
    send_init(a, &id, 2, 0);
    expect_error(a, zipcclRemoteError, "cannot connect to 127.0.0.1:1: Connection refused");
    id = unique_id(b);
    send_init(a, &id, 2, 1);
    usleep(100000);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    expect_error(a, zipcclRemoteError, "node n0 lost node n1");
    frame_conn_free(a);
    frame_conn_free(b);
    alive();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hello),       cmocka_unit_test(test_bad_frames),    cmocka_unit_test(test_buffers),
        cmocka_unit_test(test_join_errors), cmocka_unit_test(test_operations),    cmocka_unit_test(test_deaths),
        cmocka_unit_test(test_leave),       cmocka_unit_test(test_second_daemon), cmocka_unit_test(test_other_user),
        cmocka_unit_test(test_two_nodes),   cmocka_unit_test(test_drain),
    };
    signal(SIGPIPE, SIG_IGN);
    if (setup(NULL) != 0)
        return 1;
    failures = cmocka_run_group_tests(tests, NULL, NULL);
    return teardown(NULL) != 0 || failures > 0;
}

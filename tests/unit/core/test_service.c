/* SPDX-License-Identifier: Apache-2.0
 *
 * A real zipccld under a manager that the test plays: inherited sockets by name, and what it is told by sd_notify.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proto/message.h"
#include "proto/wire.h"
#include "zipccl.pb-c.h"

#define WAIT_MS 10000

static char dir[64], client_path[96], admin_path[96], notify_path[96], log_path[96];
static int notify_fd = -1;

static int bound(const char *path, int type, mode_t mode) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    unlink(path);
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(chmod(path, mode), 0);
    if (type == SOCK_STREAM)
        assert_int_equal(listen(fd, 16), 0);
    return fd;
}

/* Starts zipccld with descriptors from 3 on. names: NULL: no LISTEN_FDS. */
static pid_t spawn(const char *names, const int *fds, int nfds, const char *setting) {
    char text[512], number[16];
    while (recv(notify_fd, text, sizeof text, MSG_DONTWAIT) > 0)
        ; /* of the one before */
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int log = open(log_path, O_WRONLY | O_CREAT | O_APPEND, 0644);
    dup2(log, 1);
    dup2(log, 2);
    int high[4] = {-1, -1, -1, -1};
    for (int i = 0; i < nfds; i++)
        high[i] = fcntl(fds[i], F_DUPFD, 20);
    for (int i = 0; i < nfds; i++)
        dup2(high[i], 3 + i);
    closefrom(3 + nfds);
    if (names != NULL) {
        snprintf(number, sizeof number, "%d", nfds);
        snprintf(text, sizeof text, "%d", (int)getpid());
        setenv("LISTEN_FDS", number, 1);
        setenv("LISTEN_PID", text, 1);
        setenv("LISTEN_FDNAMES", names, 1);
    }
    setenv("NOTIFY_SOCKET", notify_path, 1);
    setenv("WATCHDOG_USEC", "1000000", 1);
    snprintf(text, sizeof text, "socket=%s", client_path);
    execl(ZIPCCL_TEST_BIN "/zipccld", "zipccld", "--set", text, "--set", "fabric=none", "--set", setting, "--listen",
          "127.0.0.1:0", "--node-name", "n0", (char *)NULL);
    _exit(127);
}

static void show_log(void) {
    char text[8192];
    int fd = open(log_path, O_RDONLY);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text) : 0;
    fprintf(stderr, "%.*s", (int)(n > 0 ? n : 0), text);
    close(fd);
}

static uint64_t now_us(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
}

/* Waits for a message with this in it; others pass. */
static void told(const char *part, char *text, size_t size) {
    struct pollfd p = {.fd = notify_fd, .events = POLLIN};
    uint64_t end = now_us() + WAIT_MS * 1000ull;
    snprintf(text, size, "nothing");
    while (now_us() < end && poll(&p, 1, WAIT_MS) > 0) {
        ssize_t n = recv(notify_fd, text, size - 1, 0);
        if (n < 0)
            break;
        text[n] = '\0';
        if (strstr(text, part) != NULL)
            return;
    }
    show_log();
    fail_msg("the manager was not told %s, last: %s", part, text);
}

static void ended(pid_t pid, int code) {
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != code)
        show_log();
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), code);
}

static struct frame_conn *dial(const char *path, const char *job) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    Zipccl__Hello h = ZIPCCL__HELLO__INIT;
    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) != 0) {
        close(fd);
        return NULL;
    }
    struct frame_conn *c = frame_conn_new(fd, true);
    h.version_min = WIRE_VERSION_MIN;
    h.version_max = WIRE_VERSION_MAX;
    h.job = (char *)job;
    h.program = "test";
    zipcclResult_t rc = message_send(c, WIRE_HELLO, 1, &h.base, NULL, 0);
    (void)rc; /* the reply tells */
    return c;
}

/* The type of the next frame; of an error its result. */
static uint16_t next(struct frame_conn *c, uint32_t *result) {
    struct frame f;
    ProtobufCMessage *m = NULL;
    const char *why = "";
    *result = 0;
    if (frame_conn_wait_frame(c, &f, WAIT_MS) != zipcclSuccess)
        return 0;
    if (f.type == WIRE_ERROR && message_unpack(&f, &m, &why) == zipcclSuccess) {
        *result = ((Zipccl__Error *)m)->result;
        message_free(m);
    }
    return f.type;
}

static uint16_t ask(struct frame_conn *c, uint16_t type, const ProtobufCMessage *m, uint32_t *result) {
    zipcclResult_t rc =
        m != NULL ? message_send(c, type, 2, m, NULL, 0) : frame_conn_send(c, type, 2, NULL, 0, NULL, 0);
    return rc == zipcclSuccess ? next(c, result) : 0;
}

static void check_client(void) {
    uint32_t result;
    struct frame_conn *c = dial(client_path, "job");
    assert_non_null(c);
    assert_int_equal(next(c, &result), WIRE_HELLO_REPLY);
    assert_int_equal(ask(c, WIRE_STATUS, NULL, &result), WIRE_STATUS_REPLY);
    assert_int_equal(ask(c, WIRE_UNIQUE_ID, NULL, &result), WIRE_UNIQUE_ID_REPLY);
    frame_conn_free(c);
}

static void check_admin(void) {
    uint32_t result;
    Zipccl__StatsRequest stats = ZIPCCL__STATS_REQUEST__INIT;
    struct wire_request request = {.seq = 1};
    struct frame_conn *c = dial(admin_path, "");
    assert_non_null(c);
    assert_int_equal(next(c, &result), WIRE_HELLO_REPLY);
    assert_int_equal(ask(c, WIRE_STATUS, NULL, &result), WIRE_STATUS_REPLY);
    assert_int_equal(ask(c, WIRE_STATS, &stats.base, &result), WIRE_STATS_REPLY);
    assert_int_equal(ask(c, WIRE_UNIQUE_ID, NULL, &result), WIRE_ERROR);
    assert_int_equal(result, zipcclInvalidUsage);
    assert_int_equal(frame_conn_send(c, WIRE_REQUEST, 3, &request, sizeof request, NULL, 0), zipcclSuccess);
    assert_int_equal(next(c, &result), WIRE_ERROR);
    assert_int_equal(ask(c, WIRE_STATUS, NULL, &result), WIRE_STATUS_REPLY);
    frame_conn_free(c);
    c = dial(admin_path, "job"); /* no trainers here */
    assert_int_equal(next(c, &result), WIRE_ERROR);
    assert_int_equal(result, zipcclInvalidUsage);
    frame_conn_free(c);
}

/* Even where the socket's mode would let them in. */
static void check_admin_stranger(void) {
    int status = -1;
    if (getuid() != 0)
        return;
    pid_t pid = fork();
    if (pid == 0) {
        uint32_t result;
        if (setgid(65534) != 0 || setuid(65534) != 0)
            _exit(2);
        struct frame_conn *c = dial(admin_path, "");
        _exit(c != NULL && next(c, &result) == WIRE_ERROR && result == zipcclPermissionDenied ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void test_life(void **state) {
    (void)state;
    char text[512];
    int fds[2] = {bound(admin_path, SOCK_STREAM, 0666), bound(client_path, SOCK_STREAM, 0660)};
    /* In the backlog before the daemon is there. */
    struct frame_conn *early = dial(client_path, "");
    uint32_t result;
    pid_t pid = spawn("admin:client", fds, 2, "log_level=info");
    told("READY=1", text, sizeof text);
    assert_non_null(strstr(text, "STATUS=0 jobs, 0 communicators"));
    assert_int_equal(next(early, &result), WIRE_HELLO_REPLY);
    check_client();
    check_admin();
    check_admin_stranger();
    told("0 communicators, 1 session", text, sizeof text); /* early */
    told("WATCHDOG=1", text, sizeof text);
    uint64_t first = now_us();
    told("WATCHDOG=1", text, sizeof text);
    assert_in_range(now_us() - first, 300000, 5000000);
    uint64_t before = now_us();
    kill(pid, SIGHUP);
    told("RELOADING=1", text, sizeof text);
    const char *stamp = strstr(text, "MONOTONIC_USEC=");
    assert_non_null(stamp);
    assert_in_range(strtoull(stamp + strlen("MONOTONIC_USEC="), NULL, 10), before, now_us());
    told("READY=1", text, sizeof text);
    kill(pid, SIGTERM);
    told("STOPPING=1", text, sizeof text);
    ended(pid, 0);
    frame_conn_free(early);
    /* The manager's sockets stay, and the next daemon serves them. */
    assert_int_equal(access(client_path, F_OK), 0);
    assert_int_equal(access(admin_path, F_OK), 0);
    pid = spawn("admin:client", fds, 2, "log_level=info");
    check_client();
    check_admin();
    kill(pid, SIGTERM);
    ended(pid, 0);
    close(fds[0]);
    close(fds[1]);
    unlink(client_path);
    unlink(admin_path);
}

static void test_wrong_descriptors(void **state) {
    (void)state;
    int client = bound(client_path, SOCK_STREAM, 0660), null = open("/dev/null", O_RDWR | O_CLOEXEC);
    const int two[2] = {client, client}, file[1] = {null};
    ended(spawn("client:whatever", two, 2, "log_level=info"), 1);
    ended(spawn("client:client", two, 2, "log_level=info"), 1);
    ended(spawn("client", file, 1, "log_level=info"), 1);
    close(client);
    close(null);
    unlink(client_path);
}

/* Without a manager's sockets: the daemon makes the admin socket, and removes it. */
static void test_own_sockets(void **state) {
    (void)state;
    char text[512], setting[128];
    struct stat st;
    snprintf(setting, sizeof setting, "admin_socket=%s", admin_path);
    pid_t pid = spawn(NULL, NULL, 0, setting);
    told("READY=1", text, sizeof text);
    check_client();
    check_admin();
    assert_int_equal(stat(admin_path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    kill(pid, SIGTERM);
    ended(pid, 0);
    assert_int_not_equal(access(client_path, F_OK), 0);
    assert_int_not_equal(access(admin_path, F_OK), 0);
}

static int setup(void **state) {
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/zipccl-service-XXXXXX");
    if (mkdtemp(dir) == NULL || chmod(dir, 0755) != 0)
        return -1;
    snprintf(client_path, sizeof client_path, "%s/client", dir);
    snprintf(admin_path, sizeof admin_path, "%s/admin", dir);
    snprintf(notify_path, sizeof notify_path, "%s/notify", dir);
    snprintf(log_path, sizeof log_path, "%s/log", dir);
    notify_fd = bound(notify_path, SOCK_DGRAM, 0600);
    return 0;
}

static int teardown(void **state) {
    char command[96];
    (void)state;
    close(notify_fd);
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_life),
        cmocka_unit_test(test_wrong_descriptors),
        cmocka_unit_test(test_own_sockets),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

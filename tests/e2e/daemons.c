/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemons of a case.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

static const char *const daemon_path = ZIPCCL_TEST_BIN "/zipccld";

void e2e_set(struct e2e *e, const char *format, ...) {
    va_list args;
    E2E_CHECK(e->nsettings < E2E_MAX_SETTINGS, "%s", format);
    va_start(args, format);
    vsnprintf(e->settings[e->nsettings++], sizeof(e->settings[0]), format, args);
    va_end(args);
}

static bool reachable(const char *socket_path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", socket_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool connected = fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0;
    if (fd >= 0)
        close(fd);
    return connected;
}

static int held_socket(const char *dir, const char *name) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof(address.sun_path), "%s/%s", dir, name);
    E2E_CHECK(fd > 0 && bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0 && listen(fd, 128) == 0, "%s: %s",
              address.sun_path, strerror(errno));
    return fd;
}

const char *e2e_daemon_hold(struct e2e *e, unsigned node) {
    static char dirs[E2E_MAX_NODES][96];
    struct e2e_daemon *d = &e->daemons[node];
    snprintf(dirs[node], sizeof(dirs[node]), "%s/run%u", e->dir, node);
    E2E_CHECK(mkdir(dirs[node], 0755) == 0, "%s: %s", dirs[node], strerror(errno));
    d->held[0] = held_socket(dirs[node], "zipccld.sock");
    d->held[1] = held_socket(dirs[node], "admin.sock");
    return dirs[node];
}

/* What systemd says of them (sd_listen_fds): descriptors from 3 on, their number, their names, for whom. */
static void pass_held(const int held[2]) {
    char pid[16];
    int client = fcntl(held[0], F_DUPFD, 10), admin = fcntl(held[1], F_DUPFD, 10);
    snprintf(pid, sizeof(pid), "%d", (int)getpid());
    if (dup2(client, 3) != 3 || dup2(admin, 4) != 4 || setenv("LISTEN_FDS", "2", 1) || setenv("LISTEN_PID", pid, 1) ||
        setenv("LISTEN_FDNAMES", "client:admin", 1))
        _exit(126);
}

/* held: NULL: the daemon opens its sockets. */
static pid_t spawn(char *const *argv, const char *log, int flags, const int *held) {
    pid_t pid = fork();
    E2E_CHECK(pid >= 0, "%s", strerror(errno));
    if (pid)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int out = open(log, O_WRONLY | O_CREAT | flags, 0644), in = open("/dev/null", O_RDONLY);
    if (out < 0 || in < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0)
        _exit(126);
    if (held)
        pass_held(held);
    closefrom(held ? 5 : 3);
    /* Else NCCL refuses two nodes that share a GPU of one machine. */
    char host[24];
    snprintf(host, sizeof(host), "node%d", (int)getpid());
    setenv("NCCL_HOSTID", host, 1);
    execv(argv[0], argv);
    fprintf(stderr, "%s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

static void launch(struct e2e *e, unsigned node) {
    struct e2e_daemon *d = &e->daemons[node];
    char config[96], own[5][128], *argv[2 * E2E_MAX_SETTINGS + 20];
    int n = 0;
    snprintf(d->name, sizeof(d->name), "node%u", node);
    bool held = d->held[0] > 0;
    snprintf(d->socket, sizeof(d->socket), held ? "%s/run%u/zipccld.sock" : "%s/n%u.sock", e->dir, node);
    snprintf(d->log, sizeof(d->log), "%s/node%u.log", e->dir, node);
    snprintf(config, sizeof(config), "%s/zipccld.conf", e->dir);
    int fd = open(config, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    E2E_CHECK(fd >= 0, "%s: %s", config, strerror(errno));
    close(fd);
    snprintf(own[0], sizeof(own[0]), "node_name=%s", d->name);
    snprintf(own[1], sizeof(own[1]), "socket=%s", d->socket);
    snprintf(own[2], sizeof(own[2]), "listen=127.0.0.1:0");
    snprintf(own[3], sizeof(own[3]), "ucx_tls=tcp"); /* leaves nothing in /dev/shm, whatever happens to the daemon */
    snprintf(own[4], sizeof(own[4]), "metrics_listen="); /* daemons of a machine would want one port */
    argv[n++] = (char *)daemon_path;
    argv[n++] = "--config";
    argv[n++] = config;
    for (unsigned i = 0; i < 5; i++) {
        argv[n++] = "--set";
        argv[n++] = own[i];
    }
    for (unsigned i = 0; i < e->nsettings; i++) {
        argv[n++] = "--set";
        argv[n++] = e->settings[i];
    }
    argv[n] = NULL;
    d->pid = spawn(argv, d->log, O_APPEND, held ? d->held : NULL);
    if (node >= e->ndaemons)
        e->ndaemons = node + 1;
}

static void await_daemon(struct e2e *e, unsigned node) {
    struct e2e_daemon *d = &e->daemons[node];
    double end = e2e_now() + 20 * E2E_SLOW;
    while (!reachable(d->socket)) {
        e2e_daemons_live(e);
        E2E_CHECK(e2e_now() < end, "%s does not listen on %s", d->name, d->socket);
        e2e_sleep(0.005);
    }
}

void e2e_daemon_start(struct e2e *e, unsigned node) {
    launch(e, node);
    await_daemon(e, node);
}

void e2e_daemons(struct e2e *e, unsigned n) {
    fflush(NULL);
    for (unsigned i = 0; i < n; i++)
        launch(e, i);
    for (unsigned i = 0; i < n; i++)
        await_daemon(e, i);
}

void e2e_daemons_live(struct e2e *e) {
    for (unsigned i = 0; i < e->ndaemons; i++) {
        int status;
        pid_t pid = e->daemons[i].pid;
        if (!pid || waitpid(pid, &status, WNOHANG) != pid)
            continue;
        e->daemons[i].pid = 0;
        E2E_FAIL("%s died: %s %d", e->daemons[i].name, WIFSIGNALED(status) ? "signal" : "exit",
                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    }
}

void e2e_daemon_kill(struct e2e *e, unsigned node) {
    struct e2e_daemon *d = &e->daemons[node];
    kill(d->pid, SIGKILL);
    waitpid(d->pid, NULL, 0);
    d->pid = 0;
}

void e2e_daemon_stop(struct e2e *e, unsigned node, double seconds) {
    struct e2e_daemon *d = &e->daemons[node];
    double end = e2e_now() + seconds * E2E_SLOW;
    int status;
    kill(d->pid, SIGTERM);
    while (waitpid(d->pid, &status, WNOHANG) == 0) {
        E2E_CHECK(e2e_now() < end, "%s still runs %.0f s after SIGTERM", d->name, seconds * E2E_SLOW);
        e2e_sleep(0.002);
    }
    d->pid = 0;
    E2E_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s ended with %s %d after SIGTERM", d->name,
              WIFSIGNALED(status) ? "signal" : "exit", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    E2E_CHECK(d->held[0] || access(d->socket, F_OK) < 0, "%s left its socket behind", d->name);
}

int e2e_daemon_run(struct e2e *e, char *output, size_t size, double seconds, const char *const *args) {
    char log[96], *argv[16] = {(char *)daemon_path};
    snprintf(log, sizeof(log), "%s/run.log", e->dir);
    for (int i = 0; i < 14 && args[i]; i++)
        argv[i + 1] = (char *)args[i];
    fflush(NULL);
    pid_t pid = spawn(argv, log, O_TRUNC, NULL);
    double end = e2e_now() + seconds * E2E_SLOW;
    int status, result = -1;
    for (;;) {
        if (waitpid(pid, &status, WNOHANG) == pid) {
            result = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            break;
        }
        if (e2e_now() > end) {
            kill(pid, SIGKILL);
            waitpid(pid, NULL, 0);
            break;
        }
        e2e_sleep(0.002);
    }
    char *text = e2e_read_file(log);
    snprintf(output, size, "%s", text);
    free(text);
    return result;
}

uint64_t e2e_proc_kb(pid_t pid, const char *field) {
    char path[64], line[256];
    uint64_t value = 0;
    size_t length = strlen(field);
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "r");
    E2E_CHECK(f, "%s: %s", path, strerror(errno));
    while (fgets(line, sizeof(line), f))
        if (strncmp(line, field, length) == 0 && line[length] == ':')
            value = strtoull(line + length + 1, NULL, 10);
    fclose(f);
    return value;
}

unsigned e2e_proc_fds(pid_t pid) {
    char path[64];
    unsigned n = 0;
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(path);
    E2E_CHECK(dir, "%s: %s", path, strerror(errno));
    while (readdir(dir))
        n++;
    closedir(dir);
    return n - 2;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Daemons of the benchmark's own.
 */
#include "client/ctl/private_daemons.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/ctl/units.h"
#include "client/lib/admin.h"

#define READY_NS   30000000000u /* a daemon may take this long to come up */
#define END_NS     5000000000u  /* ... to end */
#define PAUSE_US   5000
#define ASK_MS     2000
#define MAX_ARGS   128
#define LOG_TAIL   8192
#define EXIT_NO_GO 127

void private_child(pid_t parent) {
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        (void)signal(signals[i], SIG_DFL);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(EXIT_NO_GO);
}

bool private_daemons_owns(const char *setting) {
    static const char *const keys[] = {"socket", "listen", "advertise", "node_name", NULL};
    for (const char *const *k = keys; *k; k++)
        if (!strncmp(setting, *k, strlen(*k)) && strchr("= ", setting[strlen(*k)]))
            return true;
    return false;
}

void private_find_program(char *out, size_t size) {
    static const char *const places[] = {"zipccld", "../sbin/zipccld"};
    char self[2048];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    char *slash = NULL;
    if (n > 0) {
        self[n] = 0;
        slash = strrchr(self, '/');
    }
    for (size_t i = 0; slash && i < sizeof places / sizeof *places; i++) {
        (void)snprintf(out, size, "%.*s/%s", (int)(slash - self), self, places[i]);
        if (access(out, X_OK) == 0)
            return;
    }
    const char *named = getenv("ZIPCCLD");
    (void)snprintf(out, size, "%s", named && *named ? named : "zipccld");
}

static bool make_directory(struct private_daemons *d, char why[PRIVATE_WHY]) {
    const char *base = getenv("TMPDIR");
    char path[PRIVATE_PATH];
    /* A socket's path is short: a long TMPDIR does not do. */
    if (!base || !*base || strlen(base) > PRIVATE_PATH / 2)
        base = "/tmp";
    (void)snprintf(path, sizeof path, "%s/zipccl-bench-XXXXXX", base);
    if (!mkdtemp(path)) {
        (void)snprintf(why, PRIVATE_WHY, "cannot make %s: %s", path, strerror(errno));
        return false;
    }
    (void)snprintf(d->directory, sizeof d->directory, "%s", path);
    (void)snprintf(path, sizeof path, "%.80s/zipccld.conf", d->directory);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) {
        (void)snprintf(why, PRIVATE_WHY, "%s: %s", path, strerror(errno));
        return false;
    }
    (void)close(fd);
    return true;
}

/* In the child. */
static void become_daemon(const struct private_daemons *d, char **argv, const char *log, pid_t parent) {
    private_child(parent);
    int null = open("/dev/null", O_RDWR), out = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (null < 0 || out < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0 ||
        dup2(out, STDERR_FILENO) < 0)
        _exit(EXIT_NO_GO);
    (void)execvp(d->program, argv);
    dprintf(STDERR_FILENO, "cannot run %s: %s; name it in $ZIPCCLD\n", d->program, strerror(errno));
    _exit(EXIT_NO_GO);
}

static bool launch(struct private_daemons *d, unsigned node, const char *rate, const char *const *settings,
                   size_t nsettings, char why[PRIVATE_WHY]) {
    struct private_daemon *one = &d->daemons[node];
    char directory[PRIVATE_PATH], config[PRIVATE_PATH + 16], own[3][PRIVATE_PATH + 16], link[64];
    char *argv[MAX_ARGS];
    size_t n = 0;
    pid_t parent = getpid();
    memcpy(directory, d->directory, sizeof directory);
    (void)snprintf(one->socket, sizeof one->socket, "%.80s/%u.sock", directory, node);
    (void)snprintf(one->log, sizeof one->log, "%.80s/%u.log", directory, node);
    (void)snprintf(config, sizeof config, "%s/zipccld.conf", directory);
    (void)snprintf(own[0], sizeof own[0], "socket=%s", one->socket);
    (void)snprintf(own[1], sizeof own[1], "listen=127.0.0.1:0");
    (void)snprintf(own[2], sizeof own[2], "node_name=node%u", node);
    (void)snprintf(link, sizeof link, "link_rate=%s", rate);
    argv[n++] = d->program;
    argv[n++] = (char *)"--config";
    argv[n++] = config;
    const char *ours[] = {own[0], own[1], own[2], link, "ucx_tls=tcp", "log_level=warn"};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
        argv[n++] = (char *)"--set";
        argv[n++] = (char *)ours[i];
    }
    for (size_t i = 0; i < nsettings && n + 3 < MAX_ARGS; i++) {
        argv[n++] = (char *)"--set";
        argv[n++] = (char *)settings[i];
    }
    argv[n] = NULL;
    pid_t pid = fork();
    if (pid < 0) {
        (void)snprintf(why, PRIVATE_WHY, "fork: %s", strerror(errno));
        return false;
    }
    if (pid == 0)
        become_daemon(d, argv, one->log, parent);
    one->pid = pid;
    return true;
}

static bool ended_badly(unsigned node, int status, char why[PRIVATE_WHY]) {
    if (WIFSIGNALED(status))
        (void)snprintf(why, PRIVATE_WHY, "the daemon of node %u was ended by signal %d", node, WTERMSIG(status));
    else if (WEXITSTATUS(status))
        (void)snprintf(why, PRIVATE_WHY, "the daemon of node %u ended with code %d", node, WEXITSTATUS(status));
    return WIFSIGNALED(status) || WEXITSTATUS(status);
}

bool private_daemons_alive(struct private_daemons *d, char why[PRIVATE_WHY]) {
    for (unsigned i = 0; i < d->n; i++) {
        int status;
        if (!d->daemons[i].pid || waitpid(d->daemons[i].pid, &status, WNOHANG) != d->daemons[i].pid)
            continue;
        d->daemons[i].pid = 0;
        if (!ended_badly(i, status, why))
            (void)snprintf(why, PRIVATE_WHY, "the daemon of node %u has ended", i);
        return false;
    }
    return true;
}

/* Asks once. */
static bool ready(struct private_daemons *d, unsigned node) {
    struct admin *admin = NULL;
    Zipccl__Status *status = NULL;
    bool ok = access(d->daemons[node].socket, F_OK) == 0 &&
              admin_open(d->daemons[node].socket, ASK_MS, &admin) == zipcclSuccess &&
              admin_status(admin, &status) == zipcclSuccess;
    if (ok && node == 0) {
        d->link_rate_bits = status->link_rate_bits;
        (void)snprintf(d->device, sizeof d->device, "%s", status->device);
        (void)snprintf(d->fabric, sizeof d->fabric, "%s", status->fabric);
    }
    if (status)
        zipccl__status__free_unpacked(status, NULL);
    admin_close(admin);
    return ok;
}

bool private_daemons_start(struct private_daemons *d, unsigned n, const char *rate, const char *const *settings,
                           size_t nsettings, bool (*stop)(void), char why[PRIVATE_WHY]) {
    memset(d, 0, sizeof *d);
    private_find_program(d->program, sizeof d->program);
    if (!make_directory(d, why))
        return false;
    for (d->n = 0; d->n < n; d->n++)
        if (!launch(d, d->n, rate, settings, nsettings, why))
            return false;
    uint64_t end = units_now_ns() + READY_NS;
    for (unsigned i = 0; i < n; i++) {
        while (!ready(d, i)) {
            if (!private_daemons_alive(d, why))
                return false;
            if (stop() || units_now_ns() > end) {
                (void)snprintf(why, PRIVATE_WHY, "the daemon of node %u is not ready", i);
                return false;
            }
            (void)usleep(PAUSE_US);
        }
    }
    return true;
}

void private_daemons_print_logs(const struct private_daemons *d, FILE *out) {
    for (unsigned i = 0; i < d->n; i++) {
        char text[LOG_TAIL];
        FILE *f = fopen(d->daemons[i].log, "re");
        if (!f)
            continue;
        if (fseek(f, -(long)sizeof text, SEEK_END) != 0)
            rewind(f);
        size_t got = fread(text, 1, sizeof text, f);
        (void)fclose(f);
        if (got)
            (void)fprintf(out, "Log of node %u:\n%.*s%s", i, (int)got, text, text[got - 1] == '\n' ? "" : "\n");
    }
}

static void remove_directory(const char *path) {
    DIR *dir = opendir(path);
    struct dirent *e;
    while (dir && (e = readdir(dir)))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            (void)unlinkat(dirfd(dir), e->d_name, 0);
    if (dir)
        (void)closedir(dir);
    (void)rmdir(path);
}

bool private_daemons_stop(struct private_daemons *d, char why[PRIVATE_WHY]) {
    uint64_t end = units_now_ns() + END_NS;
    bool well = true;
    for (unsigned i = 0; i < d->n; i++)
        if (d->daemons[i].pid)
            (void)kill(d->daemons[i].pid, SIGTERM);
    for (unsigned i = 0; i < d->n; i++) {
        struct private_daemon *one = &d->daemons[i];
        int status = 0;
        bool killed = false;
        while (one->pid && waitpid(one->pid, &status, WNOHANG) == 0) {
            if (units_now_ns() > end && !killed) {
                (void)kill(one->pid, SIGKILL);
                killed = true;
            }
            (void)usleep(PAUSE_US);
        }
        if (one->pid && well)
            well = !ended_badly(i, status, why);
        if (killed)
            (void)snprintf(why, PRIVATE_WHY, "the daemon of node %u did not end after SIGTERM", i);
        one->pid = 0;
    }
    if (*d->directory)
        remove_directory(d->directory);
    *d->directory = 0;
    d->n = 0;
    return well;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * doctor: the daemon, its socket, its version, what it serves.
 */
#include <dlfcn.h>
#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/ctl/doctor.h"

static void check_socket(struct doctor *d) {
    struct stat st;
    char remedy[DOCTOR_TEXT];
    if (stat(d->socket, &st) != 0) {
        doctor_add(d, "socket", DOCTOR_FAIL,
                   "systemctl start zipccld; set ZIPCCL_SOCKET to the daemon's socket; mount it into the container",
                   "%s: %s", d->socket, strerror(errno));
        return;
    }
    const struct group *g = getgrgid(st.st_gid);
    const char *group = g ? g->gr_name : "?";
    if (!S_ISSOCK(st.st_mode)) {
        doctor_add(d, "socket", DOCTOR_FAIL, "remove it, and start zipccld", "%s is no socket", d->socket);
    } else if (access(d->socket, R_OK | W_OK) != 0) {
        (void)snprintf(remedy, sizeof remedy, "usermod -aG %s USER, and log in anew; or socket_group in zipccld.conf",
                       group);
        doctor_add(d, "socket", DOCTOR_FAIL, remedy, "uid %u may not open %s (mode %04o, group %s)",
                   (unsigned)geteuid(), d->socket, (unsigned)(st.st_mode & 07777), group);
    } else if (st.st_mode & S_IWOTH) {
        doctor_add(d, "socket", DOCTOR_WARN, "socket_mode = 0660 and socket_group in zipccld.conf",
                   "every user of this node may open %s", d->socket);
    } else {
        doctor_add(d, "socket", DOCTOR_OK, NULL, "%s (mode %04o, group %s)", d->socket, (unsigned)(st.st_mode & 07777),
                   group);
    }
}

static void check_daemon(struct doctor *d) {
    if (!d->connected)
        doctor_add(d, "daemon", DOCTOR_FAIL, "systemctl status zipccld; journalctl -u zipccld", "%.250s", d->why);
    else if (d->status && strcmp(d->status->state, "running") != 0)
        doctor_add(d, "daemon", DOCTOR_WARN, "zipcclctl drain node --cancel", "node %.64s answers, but is %.32s",
                   d->status->node, d->status->state);
    else
        doctor_add(d, "daemon", DOCTOR_OK, NULL, "node %.64s answers (pid %d, uid %u)",
                   d->status ? d->status->node : "?", (int)d->pid, (unsigned)d->uid);
}

/* The library that the loader would give a trainer without settings of its own. */
static void check_library(struct doctor *d) {
    void *library = *d->root ? NULL : dlopen("libzipccl.so.0", RTLD_NOW | RTLD_LOCAL);
    int (*get)(int *) = NULL, version = 0;
    if (!library)
        return;
    *(void **)&get = dlsym(library, "zipcclGetVersion");
    if (get && get(&version) == 0 && d->connected && (unsigned)version != d->version)
        doctor_add(d, "library", DOCTOR_WARN, "install the same release of libzipccl and zipccld, restart the trainers",
                   "libzipccl.so.0 is %d.%d.%d, not of the daemon's release", version / 10000, version / 100 % 100,
                   version % 100);
    else if (get && version)
        doctor_add(d, "library", DOCTOR_OK, NULL, "libzipccl.so.0 is %d.%d.%d", version / 10000, version / 100 % 100,
                   version % 100);
    (void)dlclose(library);
}

static void check_version(struct doctor *d) {
    check_library(d);
    if (!d->connected)
        return;
    if (d->version == d->own_version)
        doctor_add(d, "version", DOCTOR_OK, NULL, "daemon and tools are %u.%u.%u", d->version / 10000,
                   d->version / 100 % 100, d->version % 100);
    else
        doctor_add(d, "version", DOCTOR_WARN, "install the same release of zipccl and libzipccl, restart zipccld",
                   "the daemon is %u.%u.%u, these tools are %u.%u.%u", d->version / 10000, d->version / 100 % 100,
                   d->version % 100, d->own_version / 10000, d->own_version / 100 % 100, d->own_version % 100);
}

static void check_communicators(struct doctor *d) {
    size_t failed = 0;
    const char *error = "";
    for (size_t i = 0; d->status && i < d->status->n_comms; i++) {
        if (strcmp(d->status->comms[i]->state, "failed") != 0)
            continue;
        error = failed++ ? error : d->status->comms[i]->error;
    }
    if (failed)
        doctor_add(d, "communicators", DOCTOR_WARN, "zipcclctl flight JOB; the job's ranks must destroy and join anew",
                   "%zu failed: %.220s", failed, error);
    else if (d->status)
        doctor_add(d, "communicators", DOCTOR_OK, NULL, "%zu, none failed", d->status->n_comms);
}

static void check_refused(struct doctor *d) {
    uint64_t refused = 0;
    for (size_t i = 0; d->status && i < d->status->n_counters; i++)
        if (strcmp(d->status->counters[i]->name, "peers_refused") == 0)
            refused = d->status->counters[i]->value;
    if (refused)
        doctor_add(d, "refused peers", DOCTOR_WARN,
                   "journalctl -u zipccld has each with its reason (another key or release, a clock that is off, a "
                   "stranger); peer_key_file must hold the same key on all nodes",
                   "%" PRIu64 " connections between daemons were refused since the start", refused);
    else if (d->status)
        doctor_add(d, "refused peers", DOCTOR_OK, NULL, "none");
}

const struct doctor_check doctor_daemon_checks[] = {
    {"socket", check_socket, "whether it is there and this user may open it"},
    {"daemon", check_daemon, "whether it answers and takes work"},
    {"version", check_version, "whether daemon, tools and library are of one release"},
    {"communicators", check_communicators, "whether any has failed"},
    {"refused peers", check_refused, "whether other daemons, or strangers, were turned away"},
    {NULL, NULL, NULL},
};

/* SPDX-License-Identifier: Apache-2.0
 *
 * doctor: checks of this node, each a function that adds one line or more. They read the system below a root that a
 * test can make, and what the daemon says where it could be asked.
 */
#ifndef ZIPCCL_CTL_DOCTOR_H
#define ZIPCCL_CTL_DOCTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "zipccl.pb-c.h"

#define DOCTOR_MAX_LINES 64
#define DOCTOR_TEXT      320

enum doctor_level { DOCTOR_OK, DOCTOR_WARN, DOCTOR_FAIL };

struct doctor_line {
    const char *check; /* "memlock" */
    enum doctor_level level;
    char text[DOCTOR_TEXT];
    char remedy[DOCTOR_TEXT]; /* "" where all is well */
};

struct doctor {
    const char *root;   /* in front of /proc, /sys, /dev: "" but in tests */
    const char *socket; /* path */
    bool connected;
    const char *why;  /* where not connected */
    pid_t pid;        /* the daemon's; 0: not seen from here */
    uid_t uid;        /* its user */
    unsigned version; /* ZIPCCL_VERSION_CODE of it, and of this program */
    unsigned own_version;
    const Zipccl__Status *status;      /* NULL: not known */
    const Zipccl__ConfigReply *config; /* NULL: not known */
    struct doctor_line lines[DOCTOR_MAX_LINES];
    size_t n;
};

struct doctor_check {
    const char *name;
    void (*run)(struct doctor *d);
    const char *looks_at; /* for the help and the manual page */
};

/* Tables that end with a name of NULL: doctor_system.c, doctor_daemon.c, doctor_network.c, doctor_gpu.c. */
extern const struct doctor_check doctor_daemon_checks[], doctor_system_checks[], doctor_network_checks[],
    doctor_gpu_checks[];

/* Runs all checks of a table. */
void doctor_run(struct doctor *d, const struct doctor_check *checks);
/* Adds a line; remedy NULL: none. */
void doctor_add(struct doctor *d, const char *check, enum doctor_level level, const char *remedy, const char *format,
                ...) __attribute__((format(printf, 5, 6)));
/* The first line of a file below the root, without its end. False: it cannot be read. */
bool doctor_read(const struct doctor *d, char *text, size_t size, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
bool doctor_exists(const struct doctor *d, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A limit of the daemon, else of this process: "Max open files". UINT64_MAX: unlimited. False: not known. */
bool doctor_limit(const struct doctor *d, const char *name, uint64_t *value);
/* The value of a key of the daemon's configuration; "" where it is not known. */
const char *doctor_config(const struct doctor *d, const char *key);
const char *doctor_level_name(enum doctor_level level);
/* The worst of all lines. */
enum doctor_level doctor_worst(const struct doctor *d);

#endif

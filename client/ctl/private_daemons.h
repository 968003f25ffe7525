/* SPDX-License-Identifier: Apache-2.0
 *
 * Daemons of the benchmark's own: started in a temporary directory, awaited, ended, and nothing left behind.
 */
#ifndef ZIPCCL_CTL_PRIVATE_DAEMONS_H
#define ZIPCCL_CTL_PRIVATE_DAEMONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#define PRIVATE_MAX_DAEMONS 32
#define PRIVATE_PATH        104 /* what a Unix socket's address holds, about */
#define PRIVATE_WHY         256

struct private_daemon {
    pid_t pid; /* 0: not running */
    char socket[PRIVATE_PATH], log[PRIVATE_PATH];
};

struct private_daemons {
    char directory[PRIVATE_PATH]; /* "" before it exists */
    char program[4096];
    struct private_daemon daemons[PRIVATE_MAX_DAEMONS];
    unsigned n;
    uint64_t link_rate_bits; /* as the first one says once it is ready; 0: not capped */
    char device[160], fabric[160];
};

/* Whether a key of --set belongs to the benchmark itself. */
bool private_daemons_owns(const char *setting);

/* Starts n daemons that may send `rate` each, with these settings ("key=value") over ours. `stop` is looked at while
 * it waits. False: why says so; private_daemons_stop is due in both cases. */
bool private_daemons_start(struct private_daemons *d, unsigned n, const char *rate, const char *const *settings,
                           size_t nsettings, bool (*stop)(void), char why[PRIVATE_WHY]);
/* False where one has ended by itself. */
bool private_daemons_alive(struct private_daemons *d, char why[PRIVATE_WHY]);
/* What they have logged. */
void private_daemons_print_logs(const struct private_daemons *d, FILE *out);
/* Ends them and removes the directory. False where one did not end well; why says so. */
bool private_daemons_stop(struct private_daemons *d, char why[PRIVATE_WHY]);

/* zipccld: beside this program, as a build has it, or in ../sbin, as it is installed; else $ZIPCCLD; else by PATH. */
void private_find_program(char *out, size_t size);

/* In a child just forked: signals as usual, and its end when the parent ends. */
void private_child(pid_t parent);

#endif

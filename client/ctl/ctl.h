/* SPDX-License-Identifier: Apache-2.0
 *
 * zipcclctl inside: exit codes, and the one table of commands with the one table of options of each.
 * Help, usage errors, the parser and the completion data are all derived from these tables.
 */
#ifndef ZIPCCL_CTL_H
#define ZIPCCL_CTL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* X(name, value, text for --help) */
#define CTL_EXITS(X)                                                                                                   \
    X(CTL_OK, 0, "done, all well")                                                                                     \
    X(CTL_FAILED, 1, "failed; of analyze and bench: bits differ; of doctor: a check failed")                           \
    X(CTL_USAGE, 2, "wrong usage")                                                                                     \
    X(CTL_DAEMON_DOWN, 3, "zipccld is not reachable")                                                                  \
    X(CTL_DEGRADED, 4, "zipccld answers, but a communicator has failed; of doctor: there are warnings")                \
    X(CTL_TIMEOUT, 5, "no answer in time")                                                                             \
    X(CTL_DENIED, 77, "permission denied")

enum ctl_exit {
#define CTL_EXIT_ENUM(name, value, text) name = value,
    CTL_EXITS(CTL_EXIT_ENUM)
#undef CTL_EXIT_ENUM
};

#define CTL_MAX_OPTIONS 32
#define CTL_MAX_REPEATS 32

struct ctl_option {
    const char *name;    /* without the dashes; NULL ends a table */
    const char *arg;     /* what to call its argument in help; NULL: a flag */
    const char *initial; /* default, shown in help; NULL: none */
    const char *help;
    bool repeats;
};

struct ctl_args;

struct ctl_command {
    const char *name;     /* one or two words; NULL ends the table */
    const char *operands; /* "FILE...", "[FILE...]", NULL: takes none */
    bool needs_operand;
    const char *summary; /* one line */
    const char *details; /* for its --help; may be NULL */
    const struct ctl_option *options;
    enum ctl_exit (*run)(const struct ctl_args *args);
};

/* What was given on the command line. */
struct ctl_args {
    const struct ctl_command *command;
    const char *values[CTL_MAX_OPTIONS]; /* by position in command->options; flags: "" when given */
    const char *repeated[CTL_MAX_REPEATS];
    size_t nrepeated;
    char **operands;
    size_t noperands;
};

extern const struct ctl_command ctl_commands[];

/* Runs what argv asks for: the whole of main. */
enum ctl_exit ctl_main(const struct ctl_command *commands, int argc, char **argv);

/* The value of an option of this command, or its default. NULL: neither. A name outside the table aborts. */
const char *ctl_get(const struct ctl_args *args, const char *name);
/* Whether it was given. */
bool ctl_has(const struct ctl_args *args, const char *name);

/* The nearest of the names to a mistyped word, NULL where none is near. */
const char *ctl_nearest(const char *word, const char *const *names, size_t n);

/* Prints "zipcclctl COMMAND: text" and a hint to stderr; returns CTL_USAGE. */
enum ctl_exit ctl_usage(const struct ctl_args *args, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints "zipcclctl COMMAND: text" to stderr; returns code. */
enum ctl_exit ctl_fail(const struct ctl_args *args, enum ctl_exit code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The commands. */
enum ctl_exit ctl_status(const struct ctl_args *args);
enum ctl_exit ctl_stats(const struct ctl_args *args);
enum ctl_exit ctl_decisions(const struct ctl_args *args);
enum ctl_exit ctl_top(const struct ctl_args *args);
enum ctl_exit ctl_doctor(const struct ctl_args *args);
enum ctl_exit ctl_flight(const struct ctl_args *args);
enum ctl_exit ctl_events(const struct ctl_args *args);
enum ctl_exit ctl_jobs(const struct ctl_args *args);
enum ctl_exit ctl_config_show(const struct ctl_args *args);
enum ctl_exit ctl_config_check(const struct ctl_args *args);
enum ctl_exit ctl_log_level(const struct ctl_args *args);
enum ctl_exit ctl_reload(const struct ctl_args *args);
enum ctl_exit ctl_drain_node(const struct ctl_args *args);
enum ctl_exit ctl_drain_job(const struct ctl_args *args);
enum ctl_exit ctl_job(const struct ctl_args *args);
enum ctl_exit ctl_analyze(const struct ctl_args *args);
enum ctl_exit ctl_bench_codec(const struct ctl_args *args);
enum ctl_exit ctl_bench_collective(const struct ctl_args *args);
enum ctl_exit ctl_simulate(const struct ctl_args *args);

#endif

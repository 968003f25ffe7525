/* SPDX-License-Identifier: Apache-2.0
 *
 * The log: one line on stderr is one event. Under journald lines carry <n> priorities, elsewhere a timestamp.
 * Control characters in what clients sent are replaced, so that no client can forge a line.
 * Any thread may log; the level is set by the loop thread.
 */
#ifndef ZIPCCL_DAEMON_LOG_H
#define ZIPCCL_DAEMON_LOG_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes of the longest text for people, NUL included. */
#define DAEMON_TEXT 512

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG, LOG_NUM_LEVELS };

/* "error", "warn", "info", "debug". */
extern const char *const log_level_names[LOG_NUM_LEVELS + 1];

void log_init(const char *node); /* node is copied and named in every line */
void log_set_level(enum log_level level);
bool log_set_level_name(const char *name); /* false: unknown, nothing changed */
bool log_enabled(enum log_level level);
void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Lines that others can cause as often as they like: LOG_OFTEN_LINES a second, so that they push nothing else out.
 * Zero it; owned by one thread. */
#define LOG_OFTEN_LINES 10u
struct log_often {
    uint64_t since_ns;
    unsigned lines, hidden;
};
/* Whether to log one now. Before the first of a second the count of those left out in the last one is logged: `what`
 * were. */
bool log_often(struct log_often *o, uint64_t now_ns, const char *what);

/* The arguments are not evaluated where the level is off. */
#define log_at(level, ...)                                                                                             \
    do {                                                                                                               \
        if (log_enabled(level))                                                                                        \
            log_write(level, __VA_ARGS__);                                                                             \
    } while (0)
#define log_error(...) log_at(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...)  log_at(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...)  log_at(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_at(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif

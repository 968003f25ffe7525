/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes log lines to stderr, each by one write.
 */
#include "daemon/core/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

const char *const log_level_names[LOG_NUM_LEVELS + 1] = {"error", "warn", "info", "debug", NULL};
static const int log_priorities[LOG_NUM_LEVELS] = {3, 4, 6, 7};

static atomic_int log_level = LOG_LEVEL_INFO;
static bool log_to_journal;
static char log_node[80] = "";

/* systemd says which device and inode its journal stream has; stderr may have been redirected since. */
static bool log_stderr_is_journal(void) {
    const char *stream = getenv("JOURNAL_STREAM");
    unsigned long long dev, ino;
    struct stat st;
    if (stream == NULL || sscanf(stream, "%llu:%llu", &dev, &ino) != 2 || fstat(STDERR_FILENO, &st) != 0)
        return false;
    return (unsigned long long)st.st_dev == dev && (unsigned long long)st.st_ino == ino;
}

void log_init(const char *node) {
    snprintf(log_node, sizeof log_node, "%s", node);
    log_to_journal = log_stderr_is_journal();
}

void log_set_level(enum log_level level) {
    atomic_store_explicit(&log_level, (int)level, memory_order_relaxed);
}

bool log_set_level_name(const char *name) {
    for (int i = 0; i < LOG_NUM_LEVELS; i++) {
        if (strcmp(name, log_level_names[i]) == 0) {
            log_set_level((enum log_level)i);
            return true;
        }
    }
    return false;
}

bool log_enabled(enum log_level level) {
    return (int)level <= atomic_load_explicit(&log_level, memory_order_relaxed);
}

bool log_often(struct log_often *o, uint64_t now_ns, const char *what) {
    if (now_ns - o->since_ns > 1000000000ull) {
        if (o->hidden > 0)
            log_warn("%u more %s", o->hidden, what);
        *o = (struct log_often){.since_ns = now_ns};
    }
    if (o->lines < LOG_OFTEN_LINES) {
        o->lines++;
        return true;
    }
    o->hidden++;
    return false;
}

void log_write(enum log_level level, const char *format, ...) {
    char line[1536];
    int n;
    if (log_to_journal) {
        n = snprintf(line, sizeof line, "<%d>", log_priorities[level]);
    } else {
        struct timespec ts;
        struct tm tm;
        clock_gettime(CLOCK_REALTIME, &ts);
        gmtime_r(&ts.tv_sec, &tm);
        n = (int)strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &tm);
        n += snprintf(line + n, sizeof line - (size_t)n, ".%03ldZ %-5s %s ", ts.tv_nsec / 1000000,
                      log_level_names[level], log_node);
    }
    int start = n;
    va_list ap;
    va_start(ap, format);
    int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, format, ap);
    va_end(ap);
    if (m < 0)
        return;
    n += m;
    if (n > (int)sizeof line - 2)
        n = (int)sizeof line - 2;
    for (int i = start; i < n; i++) {
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
            line[i] = '?';
    }
    line[n++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, (size_t)n);
    (void)written; /* there is nowhere left to complain */
}

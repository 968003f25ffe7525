/* SPDX-License-Identifier: Apache-2.0
 *
 * The gate that every call passes: counts it, injects the errors that were asked for, refuses after a sticky one.
 *
 * ZIPCCL_STANDIN_FAIL="cudaMemcpyAsync:3=700;kernel:1+=719": the third call ends with error 700, from the first on with
 * 719; `*` is every one. "kernel" and "copy" are not calls but what runs in a stream: their errors come later, as on a
 * device. "=kill" in place of a number kills the process there. ZIPCCL_STANDIN_FAIL_FILE names a file of the same text:
 * whenever it changes, counting begins anew. ZIPCCL_STANDIN_COUNT=PATH: the counts of process N stand in PATH.N, a row
 * of 64 bytes for each call, in place; the row `blocking` is the sum of the calls in which the caller's thread waits
 * for the device.
 */
#include "core.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_RULES 32
#define ROW       64
#define MAX_ROWS  256
#define KILL      (-1) /* in place of an error */

struct rule {
    char name[64];
    unsigned from, to; /* which calls, counted from 1 */
    int code;
};
static pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
static struct rule g_rules[MAX_RULES];
static atomic_uint g_nrules;
static unsigned g_arming;
static bool g_ready;
static const char *g_file; /* null: none is watched */
static struct timespec g_changed;
static off_t g_size;
static ino_t g_inode;
static struct standin_site *g_sites;
static char *g_counts; /* the mapped file */
static pid_t g_counts_pid;
static unsigned g_rows;
static struct standin_site g_blocking = {.name = "blocking"};

static const int g_sticky_codes[] = {
    CUDA_ERROR_ECC_UNCORRECTABLE,    CUDA_ERROR_ILLEGAL_ADDRESS,
    CUDA_ERROR_LAUNCH_TIMEOUT,       CUDA_ERROR_ASSERT,
    CUDA_ERROR_HARDWARE_STACK_ERROR, CUDA_ERROR_ILLEGAL_INSTRUCTION,
    CUDA_ERROR_MISALIGNED_ADDRESS,   CUDA_ERROR_INVALID_ADDRESS_SPACE,
    CUDA_ERROR_INVALID_PC,           CUDA_ERROR_LAUNCH_FAILED,
};

void standin_gate_hold(bool hold) {
    if (hold)
        pthread_mutex_lock(&g_lock);
    else
        pthread_mutex_unlock(&g_lock);
}

static void parse(const char *text) {
    unsigned n = 0;
    while (*text && n < MAX_RULES) {
        struct rule *r = &g_rules[n];
        unsigned name = 0;
        char *rest;
        while (*text == ';' || *text == ' ' || *text == '\n')
            text++;
        if (!*text)
            break;
        while (*text && *text != ':' && name + 1 < sizeof(r->name))
            r->name[name++] = *text++;
        r->name[name] = 0;
        bool good = *text == ':';
        text += good;
        if (*text == '*') {
            r->from = 1, r->to = ~0u;
            text++;
        } else {
            r->from = r->to = (unsigned)strtoul(text, &rest, 10);
            text = rest;
        }
        if (*text == '+') {
            r->to = ~0u;
            text++;
        }
        good = good && *text == '=' && r->from;
        if (good && strncmp(text + 1, "kill", 4) == 0) {
            r->code = KILL;
            text += 5;
        } else if (good) {
            r->code = (int)strtol(text + 1, &rest, 10);
            text = rest;
        }
        if (!good || r->code == 0) {
            fprintf(stderr, "standin: cannot read what to inject, from '%s' on\n", r->name);
            abort();
        }
        n++;
    }
    g_arming++;
    atomic_store(&g_nrules, n);
}

static void read_file(void) {
    struct stat s;
    char text[4096];
    if (stat(g_file, &s) != 0 || (s.st_mtim.tv_sec == g_changed.tv_sec && s.st_mtim.tv_nsec == g_changed.tv_nsec &&
                                  s.st_size == g_size && s.st_ino == g_inode))
        return;
    g_changed = s.st_mtim, g_size = s.st_size, g_inode = s.st_ino;
    FILE *f = fopen(g_file, "re");
    if (!f)
        return;
    text[fread(text, 1, sizeof(text) - 1, f)] = 0;
    fclose(f);
    parse(text);
}

static void row_write(const struct standin_site *s) {
    char text[ROW + 1];
    if (!s->row)
        return;
    snprintf(text, sizeof(text), "%-48s%15lu\n", s->name, atomic_load(&s->count));
    memcpy(s->row, text, ROW);
}

static void row_add(struct standin_site *s) {
    if (g_counts && g_rows < MAX_ROWS)
        s->row = g_counts + (size_t)ROW * g_rows++;
}

/* A file of this process: one that was forked begins its own. */
static void count_open(void) {
    const char *path = getenv("ZIPCCL_STANDIN_COUNT");
    char name[512];
    g_counts_pid = getpid();
    g_counts = NULL;
    g_rows = 0;
    if (!path || !*path)
        return;
    snprintf(name, sizeof(name), "%s.%d", path, (int)g_counts_pid);
    const int fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0 || ftruncate(fd, (off_t)ROW * MAX_ROWS) != 0) {
        fprintf(stderr, "standin: cannot write %s\n", name);
        abort();
    }
    g_counts = mmap(NULL, (size_t)ROW * MAX_ROWS, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (g_counts == MAP_FAILED)
        abort();
    memset(g_counts, '\n', (size_t)ROW * MAX_ROWS);
    row_add(&g_blocking);
    row_write(&g_blocking);
    for (struct standin_site *s = g_sites; s; s = s->next)
        row_add(s);
}

static int injected(struct standin_site *site) {
    if (site->arming != g_arming) {
        site->arming = g_arming;
        site->seen = 0;
    }
    site->seen++;
    for (unsigned i = 0; i < atomic_load(&g_nrules); i++)
        if (site->seen >= g_rules[i].from && site->seen <= g_rules[i].to && strcmp(g_rules[i].name, site->name) == 0)
            return g_rules[i].code;
    return 0;
}

static void link_site(struct standin_site *site) {
    struct standin_site *same = g_sites;
    while (same && strcmp(same->name, site->name) != 0)
        same = same->next;
    if (same) {
        site->first = same;
    } else {
        site->next = g_sites;
        g_sites = site;
        row_add(site);
    }
    atomic_store(&site->linked, true);
}

int standin_enter(struct standin_site *site) {
    int code = 0;
    pthread_mutex_lock(&g_lock);
    if (!g_ready) {
        g_ready = true;
        g_file = getenv("ZIPCCL_STANDIN_FAIL_FILE");
        if (getenv("ZIPCCL_STANDIN_FAIL"))
            parse(getenv("ZIPCCL_STANDIN_FAIL"));
    }
    if (g_counts_pid != getpid())
        count_open();
    if (!atomic_load(&site->linked))
        link_site(site);
    if (site->first)
        site = site->first;
    atomic_fetch_add(&site->count, 1);
    row_write(site);
    if (site->blocks) {
        atomic_fetch_add(&g_blocking.count, 1);
        row_write(&g_blocking);
    }
    if (g_file)
        read_file();
    if (atomic_load(&g_nrules))
        code = injected(site);
    if (code == KILL)
        (void)raise(SIGKILL);
    pthread_mutex_unlock(&g_lock);
    const int sticky = standin_failed();
    if (sticky)
        return sticky;
    for (size_t i = 0; code && i < sizeof(g_sticky_codes) / sizeof(g_sticky_codes[0]); i++)
        if (g_sticky_codes[i] == code)
            standin_fail(code);
    return code;
}

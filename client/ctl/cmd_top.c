/* SPDX-License-Identifier: Apache-2.0
 *
 * zipcclctl top: a live table of jobs and their rates. Without a terminal, or with --once, one look.
 */
#include <poll.h>
#include <signal.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/ctl.h"
#include "client/ctl/daemon_view.h"
#include "client/ctl/output.h"
#include "client/ctl/table.h"
#include "client/ctl/top_view.h"
#include "client/ctl/units.h"

#define CTRL_C 3

struct top {
    struct admin *admin;
    Zipccl__Stats *before, *after;
    uint64_t before_ns, after_ns;
    struct top_row rows[TOP_MAX_ROWS];
    size_t n;
    enum top_key key;
    double interval;
};

static volatile sig_atomic_t ended;
static struct termios saved;

static void on_signal(int number) {
    (void)number;
    ended = 1;
}

/* Takes the next look: what was the later one becomes the earlier. */
static zipcclResult_t look(struct top *t) {
    Zipccl__Stats *fresh = NULL;
    zipcclResult_t result = admin_stats(t->admin, NULL, &fresh);
    if (result != zipcclSuccess)
        return result;
    if (t->before)
        zipccl__stats__free_unpacked(t->before, NULL);
    t->before = t->after;
    t->before_ns = t->after_ns;
    t->after = fresh;
    t->after_ns = units_now_ns();
    if (t->before)
        t->n = top_rows(t->before, t->after, (double)(t->after_ns - t->before_ns) / 1e9, t->rows);
    top_sort(t->rows, t->n, t->key);
    return zipcclSuccess;
}

static json_t *top_json(const struct top *t) {
    json_t *jobs = json_array();
    for (size_t i = 0; i < t->n; i++) {
        const struct top_row *r = &t->rows[i];
        (void)json_array_append_new(
            jobs,
            json_pack("{s:o, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "job", output_text(r->job), "uid",
                      (json_int_t)r->uid, "raw_bytes_per_second", output_real(r->raw), "wire_bytes_per_second",
                      output_real(r->wire), "ratio", r->ratio > 0 ? output_real(r->ratio) : json_null(),
                      "operations_per_second", output_real(r->ops), "errors_per_second", output_real(r->errors),
                      "mean_seconds", output_real(r->mean_s), "wait", output_real(r->wait), "encode",
                      output_real(r->encode), "decode", output_real(r->decode)));
    }
    return json_pack("{s:s, s:o, s:o, s:s, s:o}", "schema", "zipccl.top/1", "node", output_text(t->after->node),
                     "seconds", output_real((double)(t->after_ns - t->before_ns) / 1e9), "sort", top_key_name(t->key),
                     "jobs", jobs);
}

static void cell_rate(struct table *table, double bytes) {
    char text[UNITS_TEXT];
    table_cell(table, "%s/s", units_bytes(text, (uint64_t)bytes));
}

static void print_top(const struct top *t) {
    static const char *const head[] = {"job",      "raw",  "wire", "ratio",  "ops/s",
                                       "errors/s", "mean", "wait", "encode", "decode"};
    struct table *table = table_new("lrrrrrrrrr");
    char text[UNITS_TEXT];
    if (!table)
        return;
    for (size_t i = 0; i < sizeof head / sizeof *head; i++)
        table_cell(table, "%s", head[i]);
    for (size_t i = 0; i < t->n; i++) {
        const struct top_row *r = &t->rows[i];
        table_cell(table, "%s", r->job);
        cell_rate(table, r->raw);
        cell_rate(table, r->wire);
        table_cell(table, r->ratio > 0 ? "%.3f" : "-", r->ratio);
        table_cell(table, "%.1f", r->ops);
        table_cell(table, "%.1f", r->errors);
        table_cell(table, "%s", units_seconds(text, r->mean_s));
        table_cell(table, "%.0f%%", 100 * r->wait);
        table_cell(table, "%.0f%%", 100 * r->encode);
        table_cell(table, "%.0f%%", 100 * r->decode);
    }
    printf("node %s, over %s\n", t->after->node, units_seconds(text, (double)(t->after_ns - t->before_ns) / 1e9));
    table_print(table, stdout, 0);
    table_free(table);
}

static void draw(const struct top *t) {
    printf("\033[H\033[J");
    print_top(t);
    printf("\nsorted by %s; keys: r raw, w wire, x ratio, o operations, a waiting, n name; q quit\n",
           top_key_name(t->key));
    (void)fflush(stdout);
}

/* Waits until the next look is due, or a key asks for something. False: quit. */
static bool await_key(struct top *t) {
    uint64_t due = t->after_ns + (uint64_t)(t->interval * 1e9);
    for (uint64_t now = units_now_ns(); now < due && !ended; now = units_now_ns()) {
        struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
        char c = 0;
        if (poll(&in, 1, (int)((due - now) / 1000000) + 1) <= 0)
            continue;
        if (read(STDIN_FILENO, &c, 1) != 1 || c == 'q' || c == CTRL_C)
            return false;
        if (top_key_of(c, &t->key)) {
            top_sort(t->rows, t->n, t->key);
            draw(t);
        }
    }
    return !ended;
}

static zipcclResult_t live(struct top *t) {
    struct termios raw;
    struct sigaction action = {.sa_handler = on_signal};
    if (tcgetattr(STDIN_FILENO, &saved) != 0)
        return zipcclSystemError;
    raw = saved;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO | ISIG);
    (void)sigaction(SIGTERM, &action, NULL);
    (void)sigaction(SIGHUP, &action, NULL);
    (void)tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    zipcclResult_t result = zipcclSuccess;
    do {
        result = look(t);
        if (result == zipcclSuccess && t->before)
            draw(t);
    } while (result == zipcclSuccess && await_key(t));
    (void)tcsetattr(STDIN_FILENO, TCSANOW, &saved);
    return result;
}

/* Two looks, an interval apart. */
static zipcclResult_t once(struct top *t) {
    struct timespec pause = {(time_t)t->interval, (long)((t->interval - (double)(time_t)t->interval) * 1e9)};
    zipcclResult_t result = look(t);
    if (result == zipcclSuccess)
        (void)nanosleep(&pause, NULL);
    return result == zipcclSuccess ? look(t) : result;
}

enum ctl_exit ctl_top(const struct ctl_args *args) {
    static struct top t;
    enum ctl_exit rc = CTL_OK;
    if (!units_parse_number(ctl_get(args, "interval"), 0.05, 3600, &t.interval))
        return ctl_usage(args, "--interval is seconds from 0.05 to 3600, not \"%s\"", ctl_get(args, "interval"));
    if (!top_key_named(ctl_get(args, "sort"), &t.key))
        return ctl_usage(args, "--sort is raw, wire, ratio, ops, wait or name, not \"%s\"", ctl_get(args, "sort"));
    bool json = ctl_has(args, "json");
    bool snapshot = json || ctl_has(args, "once") || !isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO);
    zipcclResult_t result = admin_open(ctl_get(args, "socket"), DAEMON_TIMEOUT_MS, &t.admin);
    if (result == zipcclSuccess)
        result = snapshot ? once(&t) : live(&t);
    if (result != zipcclSuccess)
        rc = daemon_fail(args, t.admin, result);
    else if (json)
        rc = output_json(top_json(&t));
    else if (snapshot)
        print_top(&t);
    if (t.before)
        zipccl__stats__free_unpacked(t.before, NULL);
    if (t.after)
        zipccl__stats__free_unpacked(t.after, NULL);
    admin_close(t.admin);
    return rc;
}

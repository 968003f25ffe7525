/* SPDX-License-Identifier: Apache-2.0
 *
 * Metrics of real daemons: scraped during collectives and read strictly, shown to promtool, and asked for by clients
 * that mean no good.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collect.h"
#include "openmetrics.h"
#include "raw.h"

#define RUN_OPS 400
#define SEEN    1 /* a flag: of half the run */

/* Where a daemon says that its metrics are; it opens its socket before. Skips the case where it was built without. */
static unsigned metrics_port(const struct e2e_daemon *d) {
    static const char said[] = "metrics are at http://127.0.0.1:";
    unsigned port = 0;
    for (double end = e2e_now() + 10 * E2E_SLOW; port == 0 && e2e_now() < end; e2e_sleep(0.01)) {
        char *log = e2e_read_file(d->log), *at = log != NULL ? strstr(log, said) : NULL;
        bool without = log != NULL && strstr(log, "built without libmicrohttpd") != NULL;
        if (at != NULL && strchr(at, '\n') != NULL)
            port = (unsigned)strtoul(at + sizeof said - 1, NULL, 10);
        free(log);
        if (without)
            e2e_skip("zipccld was built without libmicrohttpd");
    }
    E2E_CHECK(port != 0, "%s names no port of metrics", d->name);
    return port;
}

static void read_metrics(unsigned port, bool openmetrics, struct om *om) {
    char *text = om_scrape(port, openmetrics);
    E2E_CHECK(text != NULL, "no metrics from port %u", port);
    bool ok = om_parse(om, text, openmetrics);
    E2E_CHECK(ok, "%s in:\n%s", om->error, text);
    free(text);
}

static void run_rank(struct e2e_rank *r) {
    zipcclComm_t comm = e2e_comm(r);
    struct collect_buffers b;
    collect_buffers_new(&b, r, MEMORY_ZIPCCL, 1 << 20);
    for (int i = 0; i < RUN_OPS; i++) {
        struct collect c = {.op = (zipcclOp_t)(i % 3),
                            .dtype = i % 2 ? zipcclBfloat16 : zipcclUint8,
                            .count = i % 20 ? (size_t)i * 10 : 100000,
                            .root = i % r->nranks,
                            .seq = (uint64_t)i};
        if (i == RUN_OPS / 2)
            e2e_await(r->shared, SEEN);
        collect_run(r, comm, &b, &c);
        if (r->rank == 0)
            atomic_store(&r->shared->flags[0], i + 1);
    }
    collect_buffers_free(&b);
    E2E_OK(NULL, zipcclCommDestroy(comm));
    if (r->rank == 0)
        atomic_store(&r->shared->flags[0], RUN_OPS + 1);
}

/* All counters are there, with the daemon's values; those that reading them changes only grow. */
static void compare_counters(const struct e2e_daemon *d, const struct om *om) {
    Zipccl__Status *status = raw_status(d->socket);
    for (size_t i = 0; i < status->n_counters; i++) {
        char name[128];
        snprintf(name, sizeof name, "zipccl_%s_total", status->counters[i]->name);
        double shown = om_sum(om, name, ""), is = (double)status->counters[i]->value;
        bool moves = strstr(name, "session") != NULL || strstr(name, "frames_received") != NULL;
        E2E_CHECK(om_has(om, name) && (moves ? shown <= is : shown == is), "%s is %g, the daemon has %g", name, shown,
                  is);
    }
    zipccl__status__free_unpacked(status, NULL);
}

static void compare_rows(const struct e2e_daemon *d, const struct om *om) {
    double done = om_sum(om, "zipccl_ops_done_total", "");
    Zipccl__Stats *stats = raw_stats(d->socket);
    double raw = 0, wire = 0, coded = 0;
    for (size_t i = 0; i < stats->n_ops; i++) {
        raw += (double)stats->ops[i]->raw_bytes;
        wire += (double)stats->ops[i]->wire_bytes;
        coded += (double)stats->ops[i]->coded_to_bytes;
    }
    zipccl__stats__free_unpacked(stats, NULL);
    E2E_CHECK(done == RUN_OPS, "%g operations", done);
    E2E_CHECK(om_sum(om, "zipccl_operations_total", "") == done, "rows");
    E2E_CHECK(om_sum(om, "zipccl_operation_duration_seconds_count", "") == done, "histogram");
    E2E_CHECK(om_sum(om, "zipccl_operations_total", "codec=\"top7\"") > 0, "none was coded");
    E2E_CHECK(raw > 0 && om_sum(om, "zipccl_operation_raw_bytes_total", "") == raw, "raw bytes");
    E2E_CHECK(wire > 0 && om_sum(om, "zipccl_operation_wire_bytes_total", "") == wire, "bytes on the wire");
    E2E_CHECK(coded > 0 && om_sum(om, "zipccl_operation_coded_output_bytes_total", "") == coded, "coded bytes");
    E2E_CHECK(om_sum(om, "zipccl_operation_encode_seconds_total", "") > 0, "no time of encoding");
    E2E_CHECK(om_sum(om, "zipccl_operation_seconds_total", "") > 0, "no time");
}

static void case_scrape(struct e2e *e) {
    struct e2e_group g;
    struct om om;
    double last[4] = {0}, before = 0;
    unsigned ports[2], scrapes = 0;
    pool();
    e2e_set(e, "metrics_listen=127.0.0.1:0");
    e2e_set(e, "codec=top7");
    e2e_daemons(e, 2);
    for (unsigned i = 0; i < 2; i++)
        ports[i] = metrics_port(&e->daemons[i]);
    e2e_start(e, &g, "0011", run_rank, NULL);
    int at = 0;
    bool memory = false, ready = false;
    for (double end = e2e_now() + 60 * E2E_SLOW; at <= RUN_OPS; scrapes++) {
        E2E_CHECK(e2e_now() < end, "the ranks do not end");
        at = atomic_load(&g.shared->flags[0]);
        read_metrics(ports[scrapes & 1], scrapes & 2, &om);
        double done = om_sum(&om, "zipccl_ops_done_total", "");
        E2E_CHECK(done >= last[scrapes & 3], "%g operations, then %g", last[scrapes & 3], done);
        last[scrapes & 3] = done;
        memory = memory || om_sum(&om, "zipccl_registered_bytes", "") > 0;
        ready = ready || om_sum(&om, "zipccl_communicators", "state=\"ready\"") == 1;
        before = om_sum(&om, "zipccl_uptime_seconds", "");
        if (memory && ready && done > 0)
            e2e_raise(g.shared, SEEN);
        om_free(&om);
        e2e_sleep(0.01);
    }
    e2e_wait(e, &g, 20);
    e2e_all_passed(e, &g);
    E2E_CHECK(scrapes > 4 && memory && ready, "%u scrapes during the run saw nothing of it", scrapes);
    for (unsigned i = 0; i < 4; i++) {
        e2e_sleep(0.3); /* what was read just now is read again */
        read_metrics(ports[i & 1], i & 2, &om);
        compare_counters(&e->daemons[i & 1], &om);
        compare_rows(&e->daemons[i & 1], &om);
        E2E_CHECK(om_sum(&om, "zipccl_build_info", e->daemons[i & 1].name) == 1, "build info");
        E2E_CHECK(om_sum(&om, "zipccl_uptime_seconds", "") > before, "uptime");
        E2E_CHECK(om_sum(&om, "zipccl_oldest_operation_seconds", "") == 0, "an operation runs");
        om_free(&om);
    }
    e2e_alive(e);
}
E2E_CASE(scrape, 90)

static void promtool(struct e2e *e, const char *what, const char *arguments, const char *input) {
    char command[512], *said;
    snprintf(command, sizeof command, "promtool %s %s < %s > %s/promtool.log 2>&1", what, arguments, input, e->dir);
    int status = system(command);
    snprintf(command, sizeof command, "%s/promtool.log", e->dir);
    said = e2e_read_file(command);
    E2E_CHECK(status == 0, "promtool %s %s: %s", what, arguments, said);
    free(said);
}

static void case_promtool(struct e2e *e) {
    char path[128];
    if (system("command -v promtool >/dev/null 2>&1") != 0)
        e2e_skip("promtool is not installed (Debian: prometheus)");
    pool();
    e2e_set(e, "metrics_listen=127.0.0.1:0");
    e2e_daemons(e, 1);
    unsigned port = metrics_port(&e->daemons[0]);
    struct e2e_group g;
    e2e_start(e, &g, "00", run_rank, NULL);
    e2e_raise(g.shared, SEEN);
    e2e_wait(e, &g, 60);
    e2e_all_passed(e, &g);
    char *text = om_scrape(port, false);
    E2E_CHECK(text != NULL, "no metrics");
    snprintf(path, sizeof path, "%s/metrics", e->dir);
    FILE *out = fopen(path, "w");
    E2E_CHECK(out != NULL && fputs(text, out) >= 0 && fclose(out) == 0, "%s: %s", path, strerror(errno));
    free(text);
    promtool(e, "check metrics", "", path);
    promtool(e, "check rules", ZIPCCL_TEST_CONFIG "/prometheus/zipccl.rules.yml", "/dev/null");
    promtool(e, "check config", ZIPCCL_TEST_CONFIG "/prometheus/prometheus.yml", "/dev/null");
}
E2E_CASE(promtool, 90)

/* Whatever goes on: clients of the daemon are served at once, and the daemon stays small. */
static void still_serves(struct e2e *e, const char *during) {
    double start = e2e_now();
    zipccl__status__free_unpacked(raw_status(e->daemons[0].socket), NULL);
    E2E_CHECK(e2e_now() - start < 0.5 * E2E_SLOW, "status took %.3f s during %s", e2e_now() - start, during);
    e2e_daemons_live(e);
}

/* Until the daemon closes; false: it does not, for that long. */
static bool closes(int fd, double seconds) {
    double end = e2e_now() + seconds * E2E_SLOW;
    char text[4096];
    while (e2e_now() < end) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, 50) == 1 && recv(fd, text, sizeof text, 0) <= 0)
            return true;
    }
    return false;
}

static void say(unsigned port, const void *bytes, size_t size, bool shut, const char *what) {
    int fd = om_connect(port);
    E2E_CHECK(fd >= 0, "%s: %s", what, strerror(errno));
    for (size_t sent = 0; sent < size;) {
        ssize_t n = send(fd, (const char *)bytes + sent, size - sent, MSG_NOSIGNAL);
        if (n <= 0)
            break; /* it need not listen to the end */
        sent += (size_t)n;
    }
    if (shut)
        shutdown(fd, SHUT_WR);
    E2E_CHECK(closes(fd, 13), "%s: the connection stays", what);
    close(fd);
}

static void say_text(unsigned port, const char *text) {
    say(port, text, strlen(text), false, text);
}

static void case_bad_requests(struct e2e *e) {
    static char big[1 << 20];
    char *answer;
    e2e_set(e, "metrics_listen=127.0.0.1:0");
    e2e_daemons(e, 1);
    unsigned port = metrics_port(&e->daemons[0]);
    free(om_scrape(port, true));
    e2e_alive(e);
    unsigned fds = e2e_proc_fds(e->daemons[0].pid);
    uint64_t rss = e2e_proc_kb(e->daemons[0].pid, "VmRSS");
    static const struct {
        const char *request, *answer;
    } polite[] = {
        {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 200 "},
        {"GET /metrics HTTP/1.0\r\n\r\n", "HTTP/1."},
        {"HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 200 "},
        {"GET /../etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 404 "},
        {"DELETE /metrics HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 405 "},
        {"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello", "HTTP/1.1 405 "},
    };
    for (size_t i = 0; i < sizeof polite / sizeof polite[0]; i++) {
        answer = om_http(port, polite[i].request, 10);
        E2E_CHECK(answer != NULL && strncmp(answer, polite[i].answer, strlen(polite[i].answer)) == 0, "%s: %.40s",
                  polite[i].request, answer != NULL ? answer : "nothing");
        free(answer);
    }
    say_text(port, "POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551615\r\n\r\n");
    say_text(port, "GET /metrics HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n");
    say_text(port, "\x16\x03\x01\x02 not TLS\r\n\r\n");
    /* Requests that follow are not answered. */
    for (size_t i = 0; i + 42 < 42000; i += 42)
        memcpy(big + i, "GET /metrics HTTP/1.1\r\nHost: aaaaaaaaa\r\n\r\n", 42);
    say(port, big, 42000 - 42, false, "many requests");
    memset(big, 'a', sizeof big);
    memcpy(big, "GET /", 5);
    say(port, big, sizeof big, false, "a huge address");
    memcpy(big, "GET /metrics HTTP/1.1\r\nX: ", 26);
    say(port, big, sizeof big, false, "a huge header");
    for (size_t i = 24; i + 6 < sizeof big; i += 6)
        memcpy(big + i, "a: b\r\n", 6);
    memcpy(big, "GET /metrics HTTP/1.1 \r\n", 24);
    say(port, big, sizeof big, false, "many headers");
    int random = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    for (unsigned i = 0; i < 60; i++) {
        E2E_CHECK(read(random, big, 5000) == 5000, "urandom");
        say(port, big, 5000, true, "garbage");
        if (i % 20 == 0)
            still_serves(e, "garbage");
    }
    close(random);
    free(om_scrape(port, false));
    e2e_sleep(0.2);
    unsigned after = e2e_proc_fds(e->daemons[0].pid);
    E2E_CHECK(after <= fds + 1, "%u descriptors, then %u", fds, after);
    uint64_t grown = e2e_proc_kb(e->daemons[0].pid, "VmRSS");
    E2E_CHECK(E2E_SANITIZED || grown < rss + 8192, "%llu KiB, then %llu", (unsigned long long)rss,
              (unsigned long long)grown);
    e2e_alive(e);
}
E2E_CASE(bad_requests, 90)

/* Who takes all places, or a byte at a time, is put out; the daemon serves on, and metrics come back. */
static void case_slow(struct e2e *e) {
    enum { SILENT = 64 };
    int silent[SILENT];
    struct om om;
    e2e_set(e, "metrics_listen=127.0.0.1:0");
    e2e_daemons(e, 1);
    unsigned port = metrics_port(&e->daemons[0]);
    for (unsigned i = 0; i < SILENT; i++) {
        silent[i] = om_connect(port);
        E2E_CHECK(silent[i] >= 0, "%s", strerror(errno));
        if (i % 2)
            (void)send(silent[i], "GET /metrics HTTP/1.1\r\nA: ", 26, MSG_NOSIGNAL);
    }
    e2e_sleep(0.1);
    unsigned fds = e2e_proc_fds(e->daemons[0].pid);
    E2E_CHECK(fds < 64, "%u descriptors", fds);
    still_serves(e, "silent connections");
    e2e_alive(e);
    read_metrics(port, true, &om); /* behind all of them, still within its time */
    om_free(&om);
    for (unsigned i = 0; i < SILENT; i++) {
        E2E_CHECK(closes(silent[i], 12), "silent connection %u stays", i);
        close(silent[i]);
    }
    /* A byte at a time, which no time-out of silence ends. */
    int drip = om_connect(port);
    double end = e2e_now() + 14 * E2E_SLOW;
    bool closed = false;
    (void)send(drip, "GET /metrics HTTP/1.1\r\nA: ", 26, MSG_NOSIGNAL);
    while (!closed && e2e_now() < end) {
        closed = send(drip, "a", 1, MSG_NOSIGNAL) != 1 || closes(drip, 0.06 / E2E_SLOW);
        e2e_sleep(0.1);
    }
    E2E_CHECK(closed, "a byte at a time is heard for ever");
    close(drip);
    read_metrics(port, false, &om);
    om_free(&om);
    e2e_alive(e);
    /* The end does not wait for who is still connected. */
    drip = om_connect(port);
    (void)send(drip, "GET /metrics HTTP/1.1\r\nA: ", 26, MSG_NOSIGNAL);
    e2e_sleep(0.05);
    e2e_daemon_stop(e, 0, 3);
    close(drip);
}
E2E_CASE(slow, 90)

/* A port that is taken is no reason not to serve; no address: no port. */
static void case_off(struct e2e *e) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    E2E_CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 1) == 0 &&
                  getsockname(fd, (struct sockaddr *)&address, &length) == 0,
              "%s", strerror(errno));
    e2e_daemons(e, 1);
    char *quiet = e2e_read_file(e->daemons[0].log);
    E2E_CHECK(strstr(quiet, "metrics") == NULL, "%s", quiet);
    free(quiet);
    e2e_set(e, "metrics_listen=127.0.0.1:%u", ntohs(address.sin_port));
    e2e_daemon_start(e, 1);
    e2e_alive(e); /* it is there when it serves */
    char *log = e2e_read_file(e->daemons[1].log);
    E2E_CHECK(strstr(log, "no metrics") != NULL, "%s", log);
    free(log);
    close(fd);
    e2e_daemon_stop(e, 0, 10);
    e2e_daemon_stop(e, 1, 10);
}
E2E_CASE(off, 60)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scrape), cmocka_unit_test(test_promtool), cmocka_unit_test(test_bad_requests),
        cmocka_unit_test(test_slow),   cmocka_unit_test(test_off),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

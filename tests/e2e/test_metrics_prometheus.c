/* SPDX-License-Identifier: Apache-2.0
 *
 * A real Prometheus, where one is installed, scrapes a daemon by the scrape file of config/, loads the rules, and
 * answers every query of the dashboard.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <jansson.h>

#include "collect.h"
#include "openmetrics.h"

#define RUN_SECONDS 8.0

static unsigned free_port(void) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    E2E_CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
                  getsockname(fd, (struct sockaddr *)&address, &length) == 0,
              "%s", strerror(errno));
    close(fd);
    return ntohs(address.sin_port);
}

/* text with every `from` replaced; text is freed. */
static char *replaced(char *text, const char *from, const char *to) {
    size_t n = 0, size = strlen(text) * (strlen(to) + 1) + 1;
    char *out = malloc(size), *at;
    E2E_CHECK(out != NULL, "no memory");
    const char *p = text;
    out[0] = '\0';
    while ((at = strstr(p, from)) != NULL) {
        n += (size_t)snprintf(out + n, size - n, "%.*s%s", (int)(at - p), p, to);
        p = at + strlen(from);
    }
    snprintf(out + n, size - n, "%s", p);
    free(text);
    return out;
}

static void start_prometheus(struct e2e *e, unsigned daemon_port, unsigned port) {
    char path[128], storage[160], config[160], address[64], log[128];
    snprintf(address, sizeof address, "127.0.0.1:%u", daemon_port);
    char *text = e2e_read_file(ZIPCCL_TEST_CONFIG "/prometheus/prometheus.yml");
    text = replaced(text, "127.0.0.1:9464", address);
    text = replaced(text, "15s", "1s");
    text = replaced(text, "zipccl.rules.yml", ZIPCCL_TEST_CONFIG "/prometheus/zipccl.rules.yml");
    snprintf(path, sizeof path, "%s/prometheus.yml", e->dir);
    FILE *out = fopen(path, "w");
    E2E_CHECK(out != NULL && fputs(text, out) >= 0 && fclose(out) == 0, "%s: %s", path, strerror(errno));
    free(text);
    snprintf(config, sizeof config, "--config.file=%s", path);
    snprintf(storage, sizeof storage, "--storage.tsdb.path=%s/tsdb", e->dir);
    snprintf(address, sizeof address, "--web.listen-address=127.0.0.1:%u", port);
    snprintf(log, sizeof log, "%s/prometheus.log", e->dir);
    fflush(NULL);
    pid_t pid = fork();
    E2E_CHECK(pid >= 0, "%s", strerror(errno));
    if (pid > 0)
        return; /* dies with the case */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || dup2(fd, 1) < 0 || dup2(fd, 2) < 0)
        _exit(126);
    closefrom(3);
    execlp("prometheus", "prometheus", config, storage, address, (char *)NULL);
    _exit(127);
}

/* "data" of an answer of Prometheus; NULL: none. */
static json_t *ask(unsigned port, const char *path, const char *query) {
    char request[4096];
    size_t n = (size_t)snprintf(request, sizeof request, "GET %s%s", path, query != NULL ? "?query=" : "");
    for (const char *p = query; p != NULL && *p != '\0' && n < sizeof request - 128; p++)
        n += (size_t)snprintf(request + n, sizeof request - n, isalnum((unsigned char)*p) ? "%c" : "%%%02X",
                              (unsigned char)*p);
    snprintf(request + n, sizeof request - n, " HTTP/1.0\r\nHost: a\r\nConnection: close\r\n\r\n");
    char *answer = om_http(port, request, 10);
    char *body = answer != NULL ? strstr(answer, "\r\n\r\n") : NULL;
    json_t *all = body != NULL ? json_loads(body + 4, 0, NULL) : NULL;
    json_t *data = json_incref(json_object_get(all, "data"));
    bool good = json_string_value(json_object_get(all, "status")) != NULL &&
                strcmp(json_string_value(json_object_get(all, "status")), "success") == 0;
    E2E_CHECK(body == NULL || good, "%s: %s", query != NULL ? query : path, body);
    json_decref(all);
    free(answer);
    return data;
}

static void run_rank(struct e2e_rank *r) {
    zipcclComm_t comm = e2e_comm(r);
    struct collect_buffers b;
    int rounds = *(const int *)r->args;
    collect_buffers_new(&b, r, MEMORY_ZIPCCL, 1 << 20);
    for (int i = 0; i < rounds; i++) {
        struct collect c = {.op = zipcclOpAllGather, .dtype = zipcclBfloat16, .count = 100000, .seq = (uint64_t)i};
        collect_run(r, comm, &b, &c);
        if (i % 8 == 0)
            e2e_sleep(RUN_SECONDS / rounds * 8);
    }
    collect_buffers_free(&b);
    E2E_OK(NULL, zipcclCommDestroy(comm));
}

/* Asks every query; how many had an answer. */
static unsigned ask_all(unsigned port, json_t *node, unsigned *asked) {
    unsigned answered = 0;
    const char *key;
    size_t i;
    json_t *value;
    json_object_foreach(node, key, value) {
        answered += ask_all(port, value, asked);
        if (strcmp(key, "expr") != 0)
            continue;
        char *query = strdup(json_string_value(value));
        query = replaced(query, "$__rate_interval", "30s");
        query = replaced(replaced(query, "$instance", ".*"), "$job", ".*");
        json_t *data = ask(port, "/api/v1/query", query);
        (*asked)++;
        if (json_array_size(json_object_get(data, "result")) > 0)
            answered++;
        else
            printf("no answer to %s\n", query);
        json_decref(data);
        free(query);
    }
    json_array_foreach(node, i, value) answered += ask_all(port, value, asked);
    return answered;
}

static void case_prometheus(struct e2e *e) {
    static const char said[] = "metrics are at http://127.0.0.1:";
    static const char *const main_queries[] = {
        "sum(rate(zipccl_operation_raw_bytes_total[30s])) > 0",
        "sum(rate(zipccl_operation_wire_bytes_total[30s])) > 0",
        "sum by (job) (rate(zipccl_operations_total{job=~\"e2e.*\",op=\"all-gather\"}[30s])) > 0",
        "histogram_quantile(0.99, sum by (le, op) (rate(zipccl_operation_duration_seconds_bucket[30s]))) > 0",
        "max(zipccl_registered_bytes) >= 0",
        "up{job=\"zipccl\"} == 1",
    };
    const int rounds = 200;
    struct e2e_group g;
    unsigned daemon_port = 0, port = free_port(), asked = 0;
    double end;
    if (system("command -v prometheus >/dev/null 2>&1") != 0)
        e2e_skip("prometheus is not installed");
    pool();
    e2e_set(e, "metrics_listen=127.0.0.1:0");
    e2e_set(e, "codec=top7");
    e2e_set(e, "link_rate=10gbit");
    e2e_daemons(e, 2);
    for (end = e2e_now() + 10 * E2E_SLOW; daemon_port == 0 && e2e_now() < end; e2e_sleep(0.01)) {
        char *log = e2e_read_file(e->daemons[0].log), *at = strstr(log, said);
        if (strstr(log, "built without libmicrohttpd") != NULL)
            e2e_skip("zipccld was built without libmicrohttpd");
        daemon_port = at != NULL && strchr(at, '\n') != NULL ? (unsigned)strtoul(at + sizeof said - 1, NULL, 10) : 0;
        free(log);
    }
    start_prometheus(e, daemon_port, port);
    json_t *data = NULL;
    for (end = e2e_now() + 30 * E2E_SLOW; json_array_size(json_object_get(data, "result")) == 0; e2e_sleep(0.2)) {
        E2E_CHECK(e2e_now() < end, "Prometheus does not reach the daemon");
        json_decref(data);
        int fd = om_connect(port);
        data = fd >= 0 ? ask(port, "/api/v1/query", "up{job=\"zipccl\"} == 1") : NULL;
        if (fd >= 0)
            close(fd);
    }
    json_decref(data);
    e2e_start(e, &g, "01", run_rank, &rounds);
    e2e_wait(e, &g, 60);
    e2e_all_passed(e, &g);
    e2e_sleep(2);
    for (size_t i = 0; i < sizeof main_queries / sizeof main_queries[0]; i++) {
        data = ask(port, "/api/v1/query", main_queries[i]);
        E2E_CHECK(json_array_size(json_object_get(data, "result")) > 0, "no answer to %s", main_queries[i]);
        json_decref(data);
    }
    data = ask(port, "/api/v1/rules", NULL);
    json_t *group = json_array_get(json_object_get(data, "groups"), 0);
    char *rules = e2e_read_file(ZIPCCL_TEST_CONFIG "/prometheus/zipccl.rules.yml");
    size_t written = 0;
    for (const char *at = rules; (at = strstr(at, "- alert:")); at++)
        written++;
    free(rules);
    E2E_CHECK(written > 0 && json_array_size(json_object_get(group, "rules")) == written,
              "%zu rules are written, %zu known", written, json_array_size(json_object_get(group, "rules")));
    json_decref(data);
    json_t *dashboard = json_load_file(ZIPCCL_TEST_CONFIG "/grafana/zipccl.json", 0, NULL);
    unsigned answered = ask_all(port, dashboard, &asked);
    json_decref(dashboard);
    printf("%u queries of the dashboard, %u with an answer\n", asked, answered);
    E2E_CHECK(asked > 30 && answered == asked, "%u of %u queries have an answer", answered, asked);
}
E2E_CASE(prometheus, 120)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_prometheus)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

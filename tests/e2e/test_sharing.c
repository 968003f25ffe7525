/* SPDX-License-Identifier: Apache-2.0
 *
 * Jobs that share a link: in the ratio of their weights, also where those change under load; small operations beside
 * large ones; admission limits of a user. What is compared are bytes that the daemon says each job has sent.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "collect.h"

#define BYTES  (16u << 20) /* of an all-gather, per rank */
#define STOP   0           /* flag: the case has seen enough */
#define JOINED 1           /* flag: a rank has its communicator */
#define NEAR   0.10

static int run_ctl(const struct e2e *e, unsigned node, char *out, size_t size, const char *words) {
    char command[400];
    snprintf(command, sizeof command, "%s/zipcclctl %s --socket %s 2>&1", ZIPCCL_TEST_BIN, words,
             e->daemons[node].socket);
    FILE *f = popen(command, "r");
    E2E_CHECK(f != NULL, "%s", command);
    size_t n = fread(out, 1, size - 1, f);
    out[n] = '\0';
    int status = pclose(f);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* A number of a job in status --json of node 0. */
static json_int_t job_number(const struct e2e *e, const char *job, const char *field) {
    static char text[1 << 20];
    json_int_t value = -1;
    json_t *row;
    size_t i;
    E2E_CHECK(run_ctl(e, 0, text, sizeof text, "status --json") == 0, "%s", text);
    json_t *root = json_loads(text, 0, NULL);
    E2E_CHECK(root != NULL, "%s", text);
    json_array_foreach(json_object_get(root, "jobs"), i, row) {
        if (strcmp(json_string_value(json_object_get(row, "job")), job) == 0)
            value = json_integer_value(json_object_get(row, field));
    }
    json_decref(root);
    E2E_CHECK(value >= 0, "no job %s with %s: %s", job, field, text);
    return value;
}

/* On both nodes: an all-gather is as slow as the slower of them. */
static void set_share(const struct e2e *e, const char *words) {
    char text[1024];
    for (unsigned node = 0; node < 2; node++)
        E2E_CHECK(run_ctl(e, node, text, sizeof text, words) == 0, "%s", text);
}

/* Raw all-gathers until told to stop; all ranks stop after the same one. */
static void busy_rank(struct e2e_rank *r) {
    void *send, *recv;
    setenv("ZIPCCL_JOB_ID", r->args, 1);
    zipcclComm_t comm = e2e_comm(r);
    E2E_OK(NULL, zipcclMemAlloc(&send, BYTES));
    E2E_OK(NULL, zipcclMemAlloc(&recv, (size_t)BYTES * (size_t)r->nranks));
    memset(send, r->rank + 1, BYTES);
    if (r->rank == 0)
        e2e_raise(r->shared, JOINED);
    for (uint32_t more = 1; more != 0;) {
        uint32_t *word = send;
        word[0] = r->rank > 0 || atomic_load(&r->shared->flags[STOP]) == 0;
        E2E_OK(comm, zipcclAllGather(send, recv, BYTES, zipcclUint8, comm, NULL));
        more = *(const uint32_t *)recv;
    }
    E2E_OK(NULL, zipcclMemFree(send));
    E2E_OK(NULL, zipcclMemFree(recv));
    E2E_OK(NULL, zipcclCommDestroy(comm));
}

/* Bytes of `a` to those of `b` while both together send `total`. */
static double ratio(const struct e2e *e, const char *a, const char *b, json_int_t total) {
    json_int_t a0 = job_number(e, a, "sent_bytes"), b0 = job_number(e, b, "sent_bytes"), da, db;
    double end = e2e_now() + 60 * E2E_SLOW;
    do {
        e2e_sleep(0.1);
        da = job_number(e, a, "sent_bytes") - a0;
        db = job_number(e, b, "sent_bytes") - b0;
        E2E_CHECK(e2e_now() < end, "only %lld and %lld bytes", (long long)da, (long long)db);
    } while (da + db < total);
    fprintf(stderr, "%s to %s: %.3f\n", a, b, (double)da / (double)db);
    return (double)da / (double)db;
}

static void expect_near(double value, double want) {
    E2E_CHECK(value > want * (1 - NEAR) && value < want * (1 + NEAR), "%.3f, not %.3f", value, want);
}

static void case_weights(struct e2e *e) {
    struct e2e_group a, b;
    char text[1024];
    e2e_set(e, "link_rate=200mbit");
    e2e_set(e, "chunk_bytes=256KiB");
    e2e_set(e, "codec=raw");
    e2e_daemons(e, 2);
    e2e_start(e, &a, "01", busy_rank, "share-a");
    e2e_start(e, &b, "01", busy_rank, "share-b");
    e2e_await(a.shared, JOINED);
    e2e_await(b.shared, JOINED);
    set_share(e, "job share-a set weight=3");
    E2E_CHECK(job_number(e, "share-a", "weight") == 3, "weight");
    (void)ratio(e, "share-a", "share-b", 4 << 20); /* what was under way */
    expect_near(ratio(e, "share-a", "share-b", 48 << 20), 3);
    /* At run time, the other way. */
    set_share(e, "job share-a set weight=1");
    set_share(e, "job share-b set weight=2");
    (void)ratio(e, "share-a", "share-b", 4 << 20);
    expect_near(ratio(e, "share-b", "share-a", 48 << 20), 2);
    set_share(e, "job share-b set priority=low rate=20mbit");
    E2E_CHECK(job_number(e, "share-b", "rate_bits") == 20000000, "rate");
    (void)ratio(e, "share-a", "share-b", 4 << 20);
    double high = ratio(e, "share-a", "share-b", 48 << 20);
    E2E_CHECK(high > 9 && high < 20, "%.3f", high); /* the least is one in 16, the most the rate: one in 10 */
    /* What is not allowed. */
    E2E_CHECK(run_ctl(e, 0, text, sizeof text, "job nobody set weight=2") == 1, "%s", text);
    E2E_CHECK(run_ctl(e, 0, text, sizeof text, "job share-a set weight=0") == 2, "%s", text);
    E2E_CHECK(run_ctl(e, 0, text, sizeof text, "job share-a set rate=10") == 1, "%s", text);
    E2E_CHECK(run_ctl(e, 0, text, sizeof text, "job share-a") == 2, "%s", text);
    e2e_raise(a.shared, STOP);
    e2e_raise(b.shared, STOP);
    e2e_wait(e, &a, 60);
    e2e_wait(e, &b, 60);
    e2e_all_passed(e, &a);
    e2e_all_passed(e, &b);
}
E2E_CASE(weights, 240)

static void refused_rank(struct e2e_rank *r) {
    void *memory = NULL;
    char job[24];
    zipcclUniqueId id;
    snprintf(job, sizeof job, "limit-%d", r->rank);
    setenv("ZIPCCL_JOB_ID", job, 1);
    e2e_meet(r->shared, r->nranks);
    zipcclResult_t result = zipcclGetUniqueId(&id);
    if (result == zipcclSuccess)
        atomic_fetch_add(&r->shared->flags[2], 1);
    else
        E2E_CHECK(strstr(zipcclGetLastError(NULL), "max_jobs_per_user") != NULL, "%s", zipcclGetLastError(NULL));
    if (result == zipcclSuccess) {
        E2E_CHECK(zipcclMemAlloc(&memory, 8 << 20) == zipcclLimitExceeded, "8 MiB of 4");
        E2E_CHECK(strstr(zipcclGetLastError(NULL), "max_buffer_bytes_per_user") != NULL, "%s",
                  zipcclGetLastError(NULL));
    }
    while (atomic_load(&r->shared->flags[2]) < 2)
        e2e_sleep(0.01);
    e2e_sleep(0.3);
    E2E_CHECK(atomic_load(&r->shared->flags[2]) == 2, "%d jobs", atomic_load(&r->shared->flags[2]));
}

static void case_limits_of_a_user(struct e2e *e) {
    struct e2e_group g;
    e2e_set(e, "max_jobs_per_user=2");
    e2e_set(e, "max_buffer_bytes_per_user=4MiB");
    e2e_daemons(e, 1);
    e2e_start(e, &g, "000", refused_rank, NULL);
    e2e_wait(e, &g, 30);
    e2e_all_passed(e, &g);
}
E2E_CASE(limits_of_a_user, 60)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_limits_of_a_user),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

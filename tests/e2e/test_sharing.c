/* SPDX-License-Identifier: Apache-2.0
 *
 * Jobs that share a link: in the ratio of their weights, also where those change and the daemons reload under load;
 * small operations and status beside large ones; many jobs; admission limits of a user. What is compared are bytes that
 * the daemon says each job has sent.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/lib/admin.h"
#include "collect.h"

#define BYTES  (16u << 20) /* of an all-gather, per rank */
#define STOP   0           /* flag: the case has seen enough */
#define JOINED 1           /* flag: a rank has its communicator */
#define NEAR   (E2E_SANITIZED ? 0.10 : 0.05)

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

/* All-gathers until told to stop; all ranks stop after the same one. */
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
        for (int i = 0; i < r->nranks; i++) {
            const uint8_t *part = (const uint8_t *)recv + (size_t)i * BYTES;
            E2E_CHECK(part[4] == i + 1 && part[BYTES / 2] == i + 1 && part[BYTES - 1] == i + 1, "bits of rank %d", i);
        }
    }
    E2E_OK(NULL, zipcclMemFree(send));
    E2E_OK(NULL, zipcclMemFree(recv));
    E2E_OK(NULL, zipcclCommDestroy(comm));
}

/* Bytes of `a` to those of `b` while both together send `total`. */
static double ratio(const struct e2e *e, const char *a, const char *b, json_int_t total) {
    json_int_t a0 = job_number(e, a, "sent_bytes"), b0 = job_number(e, b, "sent_bytes"), da, db;
    double begin = e2e_now(), end = begin + 60 * E2E_SLOW;
    do {
        e2e_sleep(0.1);
        da = job_number(e, a, "sent_bytes") - a0;
        db = job_number(e, b, "sent_bytes") - b0;
        E2E_CHECK(e2e_now() < end, "only %lld and %lld bytes", (long long)da, (long long)db);
    } while (da + db < total);
    fprintf(stderr, "%s to %s: %.3f (%.0f Mbit/s)\n", a, b, (double)da / (double)db,
            (double)(da + db) * 8e-6 / (e2e_now() - begin));
    return (double)da / (double)db;
}

/* In one of a few looks: where the machine has no time for the daemons, nobody waits for the link. */
static void expect_share(const struct e2e *e, const char *a, const char *b, json_int_t total, double want) {
    double value = 0;
    for (unsigned looks = 0; looks < 5; looks++) {
        value = ratio(e, a, b, total);
        if (value > want * (1 - NEAR) && value < want * (1 + NEAR))
            return;
    }
    E2E_CHECK(false, "%.3f, not %.3f", value, want);
}

static void case_weights(struct e2e *e) {
    struct e2e_group groups[4]; /* two of each job: one always has something to send */
    char text[1024];
    const json_int_t start = 4 << 20, look = (E2E_SANITIZED ? 24 : 48) << 20;
    e2e_set(e, "link_rate=%s",
            E2E_SANITIZED ? "100mbit" : "200mbit"); /* what also a busy machine fills: else nobody waits for the link */
    e2e_set(e, "chunk_bytes=256KiB");               /* what is counted at a time */
    e2e_set(e, "codec=raw");
    e2e_daemons(e, 2);
    for (unsigned i = 0; i < 4; i++)
        e2e_start(e, &groups[i], "01", busy_rank, i % 2 ? "share-b" : "share-a");
    for (unsigned i = 0; i < 4; i++)
        e2e_await(groups[i].shared, JOINED);
    set_share(e, "job share-a set weight=3");
    E2E_CHECK(job_number(e, "share-a", "weight") == 3, "weight");
    (void)ratio(e, "share-a", "share-b", start); /* what was under way */
    expect_share(e, "share-a", "share-b", look, 3);
    /* At run time, the other way, and the configuration is read again meanwhile. */
    set_share(e, "job share-a set weight=1");
    set_share(e, "job share-b set weight=2");
    set_share(e, "reload");
    (void)ratio(e, "share-a", "share-b", start);
    expect_share(e, "share-b", "share-a", look, 2);
    set_share(e, "job share-b set priority=low");
    (void)ratio(e, "share-a", "share-b", start);
    double high = 0;
    for (unsigned looks = 0; looks < 5 && (high <= 9 || high >= 20); looks++)
        high = ratio(e, "share-a", "share-b", look);
    E2E_CHECK(high > 9 && high < 20, "%.3f", high); /* one byte in 16, and what the other left */
    set_share(e, "job share-b set priority=high rate=90mbit");
    E2E_CHECK(job_number(e, "share-b", "rate_bits") == 90000000, "rate");
    /* What is not allowed. */
    E2E_CHECK(run_ctl(e, 0, text, sizeof text, "job nobody set weight=2") == 1, "%s", text);
    E2E_CHECK(run_ctl(e, 0, text, sizeof text, "job share-a set weight=0") == 2, "%s", text);
    E2E_CHECK(run_ctl(e, 0, text, sizeof text, "job share-a set rate=10") == 1, "%s", text);
    E2E_CHECK(run_ctl(e, 0, text, sizeof text, "job share-a") == 2, "%s", text);
    for (unsigned i = 0; i < 4; i++)
        e2e_raise(groups[i].shared, STOP);
    for (unsigned i = 0; i < 4; i++) {
        e2e_wait(e, &groups[i], 60);
        e2e_all_passed(e, &groups[i]);
    }
}
E2E_CASE(weights, 240)

#define SMALL_OPS 400
#define IDLE_DONE 3 /* flag: the case may start the large ones */
#define GO_ON     4

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ms; checks the bits. */
static double small_p99(zipcclComm_t comm, int rank, uint8_t *send, uint8_t *recv) {
    static double took[SMALL_OPS];
    for (unsigned i = 0; i < SMALL_OPS; i++) {
        memset(send, (int)(i + 100u * (unsigned)rank) & 0xff, 1024);
        double start = e2e_now();
        E2E_OK(comm, zipcclAllGather(send, recv, 1024, zipcclUint8, comm, NULL));
        took[i] = (e2e_now() - start) * 1e3;
        E2E_CHECK(recv[0] == (i & 0xff) && recv[2047] == ((i + 100) & 0xff), "bits of all-gather %u", i);
    }
    qsort(took, SMALL_OPS, sizeof took[0], compare_doubles);
    return took[SMALL_OPS * 99 / 100];
}

/* Asks node 0 over and over; ms that 99 of 100 answers took at most. */
static double status_p99(const struct e2e *e) {
    enum { ASKED = 200 };
    static double took[ASKED];
    struct admin *admin = NULL;
    E2E_OK(NULL, admin_open(e->daemons[0].socket, 60000, &admin));
    for (unsigned i = 0; i < ASKED; i++) {
        Zipccl__Status *status = NULL;
        double start = e2e_now();
        E2E_OK(NULL, admin_status(admin, &status));
        took[i] = (e2e_now() - start) * 1e3;
        E2E_CHECK(status->n_jobs > 0, "%zu jobs", status->n_jobs);
        zipccl__status__free_unpacked(status, NULL);
        e2e_sleep(0.002);
    }
    admin_close(admin);
    qsort(took, ASKED, sizeof took[0], compare_doubles);
    return took[ASKED * 99 / 100];
}

static void small_rank(struct e2e_rank *r) {
    void *send, *recv;
    setenv("ZIPCCL_JOB_ID", "small", 1);
    zipcclComm_t comm = e2e_comm(r);
    E2E_OK(NULL, zipcclMemAlloc(&send, 1024));
    E2E_OK(NULL, zipcclMemAlloc(&recv, 2048));
    double idle = small_p99(comm, r->rank, send, recv);
    if (r->rank == 0)
        e2e_raise(r->shared, IDLE_DONE);
    e2e_await(r->shared, GO_ON);
    double busy = small_p99(comm, r->rank, send, recv);
    if (r->rank == 0)
        fprintf(stderr, "all-gather of 1 KiB, p99: idle %.3f ms, beside large ones %.3f ms (%.1f times)\n", idle, busy,
                busy / idle);
    E2E_OK(NULL, zipcclMemFree(send));
    E2E_OK(NULL, zipcclMemFree(recv));
    E2E_OK(NULL, zipcclCommDestroy(comm));
}

/* Small operations all end, and status answers, while large ones keep the link full. How long that took is printed,
 * not judged. */
static void case_small_beside_large(struct e2e *e) {
    struct e2e_group large, small;
    char *log, path[112];
    e2e_set(e, "link_rate=1gbit");
    e2e_set(e, "codec=raw");
    e2e_daemons(e, 2);
    e2e_start(e, &small, "01", small_rank, NULL);
    e2e_await(small.shared, IDLE_DONE);
    e2e_start(e, &large, "01", busy_rank, "large");
    e2e_await(large.shared, JOINED);
    e2e_sleep(0.5);
    e2e_raise(small.shared, GO_ON);
    fprintf(stderr, "status under load, p99: %.3f ms\n", status_p99(e));
    e2e_wait(e, &small, 120);
    e2e_all_passed(e, &small);
    E2E_CHECK(job_number(e, "large", "sent_bytes") > 0, "the large ones do not run");
    e2e_raise(large.shared, STOP);
    e2e_wait(e, &large, 60);
    e2e_all_passed(e, &large);
    (void)snprintf(path, sizeof path, "%s/group00-rank0.log", e->dir);
    if (access(path, R_OK) == 0) {
        log = e2e_read_file(path);
        fprintf(stderr, "%s", log);
        free(log);
    }
}
E2E_CASE(small_beside_large, 240)

#define JOBS       (E2E_SANITIZED ? 16u : 64u)
#define MOST_JOBS  64
#define COMMS      8 /* of a job */
#define MANY_BYTES (32u << 10)

static void many_rank(struct e2e_rank *r) {
    zipcclComm_t comms[COMMS];
    uint8_t *send, *recv;
    char job[24];
    snprintf(job, sizeof job, "many-%u", *(const unsigned *)r->args);
    setenv("ZIPCCL_JOB_ID", job, 1);
    for (unsigned c = 0; c < COMMS; c++)
        comms[c] = e2e_comm(r);
    E2E_OK(NULL, zipcclMemAlloc((void **)&send, MANY_BYTES));
    E2E_OK(NULL, zipcclMemAlloc((void **)&recv, 2 * MANY_BYTES));
    if (r->rank == 0)
        e2e_raise(r->shared, JOINED);
    e2e_await(r->shared, GO_ON);
    for (unsigned i = 0; i < 3 * COMMS; i++) {
        memset(send, (int)(i + 100u * (unsigned)r->rank), MANY_BYTES);
        E2E_OK(comms[i % COMMS], zipcclAllGather(send, recv, MANY_BYTES, zipcclUint8, comms[i % COMMS], NULL));
        E2E_CHECK(recv[0] == i && recv[MANY_BYTES] == i + 100, "bits of all-gather %u", i);
    }
    if (r->rank == 0)
        e2e_raise(r->shared, IDLE_DONE);
    e2e_await(r->shared, STOP);
    for (unsigned c = 0; c < COMMS; c++)
        E2E_OK(NULL, zipcclCommDestroy(comms[c]));
    E2E_OK(NULL, zipcclMemFree(send));
    E2E_OK(NULL, zipcclMemFree(recv));
}

/* All of them get on, and the daemon stays small. */
static void case_many_jobs(struct e2e *e) {
    static struct e2e_group groups[MOST_JOBS];
    static unsigned numbers[MOST_JOBS];
    e2e_set(e, "link_rate=10gbit"); /* a communicator's first measurement takes less than with 1 */
    e2e_daemons(e, 2);
    for (unsigned i = 0; i < JOBS; i++) {
        numbers[i] = i;
        e2e_start(e, &groups[i], "01", many_rank, &numbers[i]);
        e2e_await(groups[i].shared, JOINED);
    }
    for (unsigned i = 0; i < JOBS; i++)
        e2e_raise(groups[i].shared, GO_ON);
    for (unsigned i = 0; i < JOBS; i++)
        e2e_await(groups[i].shared, IDLE_DONE);
    uint64_t kb = e2e_proc_kb(e->daemons[0].pid, "RssAnon");
    fprintf(stderr, "%u jobs of %d communicators: %llu MiB\n", JOBS, COMMS, (unsigned long long)kb >> 10);
    E2E_CHECK(E2E_SANITIZED || kb < 200u << 10, "%llu KiB", (unsigned long long)kb);
    for (unsigned i = 0; i < JOBS; i++)
        e2e_raise(groups[i].shared, STOP);
    for (unsigned i = 0; i < JOBS; i++) {
        e2e_wait(e, &groups[i], 60);
        e2e_all_passed(e, &groups[i]);
    }
}
E2E_CASE(many_jobs, 200)

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
        cmocka_unit_test(test_small_beside_large),
        cmocka_unit_test(test_many_jobs),
        cmocka_unit_test(test_limits_of_a_user),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

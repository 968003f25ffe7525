/* SPDX-License-Identifier: Apache-2.0
 *
 * What a daemon takes for sessions, communicators, buffers and operations, it gives back. With ZIPCCL_TEST_SOAK=1 over
 * 10,000 sessions and a million requests.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "collect.h"
#include "raw.h"

static bool soak(void) {
    return getenv("ZIPCCL_TEST_SOAK") != NULL;
}

struct usage {
    uint64_t rss_kb;
    unsigned fds;
};

/* Waits until the daemon serves nobody any more. */
static struct usage settled(struct e2e *e, unsigned node) {
    const struct e2e_daemon *d = &e->daemons[node];
    double end = e2e_now() + 10 * E2E_SLOW;
    for (;;) {
        Zipccl__Status *s = raw_status(d->socket);
        unsigned sessions = s->sessions, comms = (unsigned)s->n_comms;
        uint64_t jobs = 0, bytes = 0;
        for (size_t i = 0; i < s->n_jobs; i++) {
            jobs += s->jobs[i]->sessions + s->jobs[i]->comms;
            bytes += s->jobs[i]->registered_bytes;
        }
        zipccl__status__free_unpacked(s, NULL);
        if (sessions <= 1 && comms == 0 && jobs == 0 && bytes == 0) /* one is ours */
            break;
        E2E_CHECK(e2e_now() < end, "%s: %u sessions, %u communicators, %llu in jobs, %llu bytes left", d->name,
                  sessions, comms, (unsigned long long)jobs, (unsigned long long)bytes);
        e2e_sleep(0.02);
    }
    e2e_sleep(0.1); /* the descriptor of the status session */
    return (struct usage){e2e_proc_kb(d->pid, "VmRSS"), e2e_proc_fds(d->pid)};
}

static void compare(struct e2e *e, unsigned node, struct usage before, const char *what) {
    struct usage after = settled(e, node);
    printf("%s, node%u: %llu to %llu KiB, %u to %u descriptors\n", what, node, (unsigned long long)before.rss_kb,
           (unsigned long long)after.rss_kb, before.fds, after.fds);
    E2E_CHECK(after.fds <= before.fds + 2, "%s: node%u has %u descriptors, had %u", what, node, after.fds, before.fds);
    /* Sanitizers keep freed memory for a while. */
    E2E_CHECK(E2E_SANITIZED || after.rss_kb < before.rss_kb + 4096, "%s: node%u has %llu KiB, had %llu", what, node,
              (unsigned long long)after.rss_kb, (unsigned long long)before.rss_kb);
}

static void case_sessions(struct e2e *e) {
    struct raw_frame f;
    struct usage before = {0};
    e2e_daemons(e, 1);
    for (int i = 0; i < (soak() ? 10000 : 240); i++) {
        char job[32];
        snprintf(job, sizeof(job), "job-%d", i % 5);
        if (i == 40)
            before = settled(e, 0);
        int fd = raw_session(e->daemons[0].socket, job);
        zipcclUniqueId id = raw_unique_id(fd);
        uint64_t comm = raw_comm(fd, &id, 1, 0), buffer = raw_buffer(fd, 65536);
        struct wire_request r = {
            .comm = comm, .seq = 1, .count = 30, .send_buffer = buffer, .recv_buffer = buffer, .dtype = zipcclBfloat16};
        r.codec = zipcclCodecAuto;
        E2E_CHECK(raw_send(fd, WIRE_REQUEST, 5, &r, sizeof(r), NULL, 0), "send");
        if (i % 3)
            raw_expect(fd, &f, WIRE_COMPLETION);
        close(fd);
    }
    compare(e, 0, before, "sessions");
    e2e_alive(e);
}
E2E_CASE(sessions, soak() ? 400 : 40)

static void operations_rank(struct e2e_rank *r) {
    const int *n = r->args;
    zipcclComm_t comm = e2e_comm(r);
    zipcclStream_t stream;
    struct collect_buffers b;
    collect_buffers_new(&b, r, MEMORY_ZIPCCL, 4096);
    E2E_OK(NULL, zipcclStreamCreate(&stream));
    for (int i = 0; i < *n; i++) {
        struct collect c = {.op = (zipcclOp_t)(i % 3),
                            .dtype = i % 2 ? zipcclBfloat16 : zipcclUint8,
                            .count = (size_t)i % 700,
                            .root = i % r->nranks,
                            .seq = (uint64_t)i};
        if (i % 5) {
            collect_run(r, comm, &b, &c);
        } else {
            collect_issue(r, comm, stream, &b, &c);
            E2E_OK(comm, zipcclStreamSynchronize(stream));
            collect_check(r, &b, &c);
        }
    }
    collect_buffers_free(&b);
    E2E_OK(NULL, zipcclStreamDestroy(stream));
    E2E_OK(NULL, zipcclCommDestroy(comm));
}

static void case_operations(struct e2e *e) {
    const int few = 500, many = soak() ? 250000 : E2E_SANITIZED ? 3000 : 10000, seconds = soak() ? 600 : 60;
    pool();
    e2e_daemons(e, 2);
    e2e_ranks(e, "00", operations_rank, &few, 30);
    e2e_ranks(e, "01", operations_rank, &few, 30);
    struct usage before[2] = {settled(e, 0), settled(e, 1)};
    e2e_ranks(e, "00", operations_rank, &many, seconds);
    e2e_ranks(e, "01", operations_rank, &many, seconds);
    compare(e, 0, before[0], "operations");
    compare(e, 1, before[1], "operations");
    E2E_CHECK(raw_counter(e->daemons[0].socket, "ops_done") >= (uint64_t)(2 * many), "%llu operations counted",
              (unsigned long long)raw_counter(e->daemons[0].socket, "ops_done"));
    E2E_CHECK(raw_counter(e->daemons[0].socket, "ops_failed") == 0, "operations failed");
}
E2E_CASE(operations, soak() ? 1200 : 110)

/* Communicators one after another, of one session and across nodes; every third is left by its end. */
static void communicators_rank(struct e2e_rank *r) {
    const int *n = r->args;
    uint16_t send[100] = {0}, recv[100 * E2E_MAX_RANKS];
    for (int i = 0; i < *n; i++) {
        zipcclComm_t comm = e2e_comm(r);
        E2E_OK(comm, zipcclAllGather(send, recv, 100, zipcclBfloat16, comm, NULL));
        /* Rank 0 may be done first: what it aborts must not be under way elsewhere. */
        e2e_meet(r->shared, (i + 1) * r->nranks);
        if (i % 3 == 2 && r->rank == 0)
            E2E_OK(NULL, zipcclCommAbort(comm));
        else
            zipcclCommDestroy(comm);
    }
}

static void case_communicators(struct e2e *e) {
    const int few = 10, many = 60;
    e2e_daemons(e, 2);
    e2e_ranks(e, "00", communicators_rank, &few, 30);
    e2e_ranks(e, "0011", communicators_rank, &few, 30);
    struct usage before[2] = {settled(e, 0), settled(e, 1)};
    e2e_ranks(e, "00", communicators_rank, &many, 50);
    e2e_ranks(e, "0011", communicators_rank, &many, 50);
    compare(e, 0, before[0], "communicators");
    compare(e, 1, before[1], "communicators");
}
E2E_CASE(communicators, 80)

/* Coded operations send fewer bytes than raw ones, and the statistics say so. */
static void coded_rank(struct e2e_rank *r) {
    enum { COUNT = 1 << 20 };
    zipcclComm_t comm = e2e_comm(r);
    void *memory = NULL;
    size_t bytes;
    const uint8_t *gaussian = pool_gaussian(&bytes);
    E2E_OK(NULL, zipcclMemAlloc(&memory, (size_t)r->nranks * COUNT * 2));
    uint8_t *recv = memory;
    for (int codec = zipcclCodecRaw; codec < zipcclNumCodecs; codec++) {
        memset(recv, 0, (size_t)r->nranks * COUNT * 2);
        memcpy(recv + (size_t)r->rank * COUNT * 2, gaussian + r->rank * 4096, COUNT * 2);
        E2E_OK(comm, zipcclCommSetCodec(comm, (zipcclCodec_t)codec));
        E2E_OK(comm, zipcclAllGather(recv + (size_t)r->rank * COUNT * 2, recv, COUNT, zipcclBfloat16, comm, NULL));
        for (int i = 0; i < r->nranks; i++)
            E2E_CHECK(memcmp(recv + (size_t)i * COUNT * 2, gaussian + i * 4096, COUNT * 2) == 0, "rank %d", i);
    }
    E2E_OK(NULL, zipcclMemFree(memory));
    E2E_OK(NULL, zipcclCommDestroy(comm));
}

static void case_coded_bytes(struct e2e *e) {
    unsigned seen = 0;
    pool();
    e2e_daemons(e, 2);
    e2e_ranks(e, "01", coded_rank, NULL, 20);
    Zipccl__Stats *stats = raw_stats(e->daemons[0].socket);
    for (size_t i = 0; i < stats->n_ops; i++) {
        const Zipccl__OpStats *o = stats->ops[i];
        E2E_CHECK(o->codec < zipcclNumCodecs && o->count == 1 && o->errors == 0 && o->raw_bytes == 2 << 20,
                  "codec %u: %llu operations, %llu raw bytes", o->codec, (unsigned long long)o->count,
                  (unsigned long long)o->raw_bytes);
        bool less = o->wire_bytes < o->raw_bytes * 8 / 10;
        E2E_CHECK(less == (o->codec != zipcclCodecRaw), "codec %u: %llu of %llu bytes sent", o->codec,
                  (unsigned long long)o->wire_bytes, (unsigned long long)o->raw_bytes);
        seen |= 1u << o->codec;
    }
    E2E_CHECK(seen == 7, "codecs seen: %x", seen);
    zipccl__stats__free_unpacked(stats, NULL);
}
E2E_CASE(coded_bytes, 40)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sessions),
        cmocka_unit_test(test_operations),
        cmocka_unit_test(test_communicators),
        cmocka_unit_test(test_coded_bytes),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * All-to-all-capped between real ranks: any counts in memory of any kind; counts that are written after the call;
 * counts above the cap; ranks that die.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collect.h"

#define MOST  60000u /* values of a segment */
#define SOON  4.0
#define GUARD COLLECT_GUARD
#define EMPTY 0xa5

static uint64_t hash(uint64_t a, uint64_t b) {
    uint64_t h = (a * 1000003 + b + 1) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 31;
}

/* What every rank knows of an operation without being told: its cap, and how much goes from one to another. */
static size_t cap_of(uint64_t seq) {
    static const size_t caps[] = {0, 1, 100, 5000, 40000, MOST};
    return caps[seq % 6];
}

static uint64_t count_of(uint64_t seq, int from, int to) {
    uint64_t h = hash(seq, (uint64_t)from * 64 + (uint64_t)to), cap = cap_of(seq);
    return h % 4 == 0 ? 0 : h % 4 == 1 ? cap : (h >> 8) % (cap + 1);
}

/* The four buffers of a rank. */
struct buffers {
    struct buffer send, recv, send_counts, recv_counts;
};

static void buffers_new(struct buffers *b, const struct e2e_rank *r, unsigned kind) {
    size_t bytes = (size_t)r->nranks * MOST * 4 + 2 * GUARD, counts = (size_t)r->nranks * sizeof(uint64_t);
    static const enum memory count_kinds[] = {MEMORY_ZIPCCL, MEMORY_FOREIGN, MEMORY_REGISTERED};
    buffer_new(&b->send, (enum memory)(kind % MEMORY_KINDS), bytes);
    buffer_new(&b->recv, (enum memory)(kind / 2 % MEMORY_KINDS), bytes);
    buffer_new(&b->send_counts, count_kinds[kind % 3], counts);
    buffer_new(&b->recv_counts, count_kinds[kind / 3 % 3], counts);
}

static void buffers_free(struct buffers *b) {
    buffer_free(&b->send);
    buffer_free(&b->recv);
    buffer_free(&b->send_counts);
    buffer_free(&b->recv_counts);
}

static uint64_t *counts(const struct buffer *b) {
    return (uint64_t *)(void *)b->data;
}

static zipcclDataType_t dtype_of(uint64_t seq) {
    static const zipcclDataType_t dtypes[] = {zipcclBfloat16, zipcclFloat32, zipcclUint8, zipcclBfloat16};
    return dtypes[hash(seq, 5) % 4];
}

static void prepare(const struct e2e_rank *r, struct buffers *b, uint64_t seq) {
    size_t bytes = (size_t)r->nranks * cap_of(seq) * dtype_size(dtype_of(seq));
    memset(b->recv.data, EMPTY, bytes + 2 * GUARD);
    memset(b->recv_counts.data, 0xff, (size_t)r->nranks * sizeof(uint64_t));
    if (bytes)
        memcpy(b->send.data + GUARD, pool_piece(r->rank, seq, bytes), bytes);
    for (int p = 0; p < r->nranks; p++)
        counts(&b->send_counts)[p] = count_of(seq, r->rank, p);
}

static zipcclResult_t issue(struct buffers *b, uint64_t seq, zipcclComm_t comm, zipcclStream_t stream) {
    return zipcclAllToAllCapped(b->send.data + GUARD, counts(&b->send_counts), b->recv.data + GUARD,
                                counts(&b->recv_counts), cap_of(seq), dtype_of(seq), comm, stream);
}

static void check(const struct e2e_rank *r, const struct buffers *b, uint64_t seq) {
    size_t width = dtype_size(dtype_of(seq)), segment = cap_of(seq) * width, total = segment * (size_t)r->nranks;
    const uint8_t *recv = b->recv.data + GUARD;
    for (int p = 0; p < r->nranks; p++) {
        uint64_t count = count_of(seq, p, r->rank);
        const uint8_t *got = recv + (size_t)p * segment;
        E2E_CHECK(counts(&b->recv_counts)[p] == count, "rank %d, operation %llu: %llu values from rank %d, not %llu",
                  r->rank, (unsigned long long)seq, (unsigned long long)counts(&b->recv_counts)[p], p,
                  (unsigned long long)count);
        if (count)
            E2E_CHECK(memcmp(got, pool_piece(p, seq, total) + (size_t)r->rank * segment, count * width) == 0,
                      "rank %d, operation %llu: other bits from rank %d", r->rank, (unsigned long long)seq, p);
        for (size_t i = count * width; i < segment; i++)
            E2E_CHECK(got[i] == EMPTY, "rank %d, operation %llu: byte %zu behind %llu values of rank %d was touched",
                      r->rank, (unsigned long long)seq, i, (unsigned long long)count, p);
    }
    for (size_t i = 0; i < GUARD; i++)
        E2E_CHECK(b->recv.data[i] == EMPTY && recv[total + i] == EMPTY, "rank %d wrote outside of its buffer", r->rank);
}

static void any_counts_rank(struct e2e_rank *r) {
    static const zipcclCodec_t codecs[] = {zipcclCodecTier, zipcclCodecAuto, zipcclCodecRaw, zipcclCodecTop7};
    zipcclComm_t comm = e2e_comm(r);
    zipcclStream_t stream;
    E2E_OK(NULL, zipcclStreamCreate(&stream));
    for (unsigned kind = 0; kind < 6; kind++) {
        struct buffers b;
        buffers_new(&b, r, kind + (unsigned)r->rank);
        E2E_OK(comm, zipcclCommSetCodec(comm, codecs[kind % 4]));
        for (uint64_t seq = kind * 20; seq < kind * 20 + 20; seq++) {
            prepare(r, &b, seq);
            E2E_OK(comm, issue(&b, seq, comm, seq % 2 ? stream : NULL));
            E2E_OK(comm, zipcclStreamSynchronize(stream));
            check(r, &b, seq);
        }
        buffers_free(&b);
    }
    E2E_OK(NULL, zipcclStreamDestroy(stream));
    E2E_OK(NULL, zipcclCommDestroy(comm));
}

static void case_any_counts(struct e2e *e) {
    pool();
    e2e_set(e, "chunk_bytes=64KiB");
    e2e_daemons(e, 2);
    e2e_ranks(e, "00", any_counts_rank, NULL, 40);
    e2e_ranks(e, "0011", any_counts_rank, NULL, 40);
    e2e_ranks(e, "10100", any_counts_rank, NULL, 40);
}
E2E_CASE(any_counts, 100)

/* Beside other operations in a group, whatever phases those take. */
static void group_rank(struct e2e_rank *r) {
    zipcclComm_t comm = e2e_comm(r);
    struct buffers a, b;
    enum { COUNT = 70000 };
    size_t bytes = (size_t)COUNT * 2, all = bytes * (size_t)r->nranks;
    uint8_t *pairs = malloc(2 * all), *gathered = malloc(all);
    E2E_CHECK(pairs && gathered, "memory");
    buffers_new(&a, r, 0);
    buffers_new(&b, r, 7);
    E2E_OK(comm, zipcclCommSetCodec(comm, zipcclCodecTier));
    for (uint64_t seq = 0; seq < 12; seq++) {
        prepare(r, &a, seq);
        prepare(r, &b, seq + 100);
        memcpy(pairs, pool_piece(r->rank, seq + 500, all), all);
        E2E_OK(comm, zipcclGroupStart());
        E2E_OK(comm, issue(&a, seq, comm, NULL));
        E2E_OK(comm, zipcclAllGather(pairs, gathered, COUNT, zipcclBfloat16, comm, NULL));
        E2E_OK(comm, zipcclAllToAll(pairs, pairs + all, COUNT, zipcclBfloat16, comm, NULL));
        E2E_OK(comm, issue(&b, seq + 100, comm, NULL));
        E2E_OK(comm, zipcclGroupEnd());
        check(r, &a, seq);
        check(r, &b, seq + 100);
        for (int p = 0; p < r->nranks; p++) {
            const uint8_t *theirs = pool_piece(p, seq + 500, all);
            E2E_CHECK(memcmp(gathered + (size_t)p * bytes, theirs, bytes) == 0, "gathered from %d", p);
            E2E_CHECK(memcmp(pairs + all + (size_t)p * bytes, theirs + (size_t)r->rank * bytes, bytes) == 0,
                      "all-to-all from %d", p);
        }
    }
    buffers_free(&a);
    buffers_free(&b);
    free(pairs);
    free(gathered);
    E2E_OK(NULL, zipcclCommDestroy(comm));
}

static void group_case(struct e2e *e, const char *phases) {
    pool();
    e2e_set(e, "chunk_bytes=64KiB");
    e2e_set(e, "verify=on");
    e2e_set(e, "all_to_all_phases=%s", phases);
    e2e_daemons(e, 2);
    e2e_ranks(e, "0011", group_rank, NULL, 40);
}

static void case_groups(struct e2e *e) {
    group_case(e, "stream");
}
E2E_CASE(groups, 50)

static void case_groups_two_phases(struct e2e *e) {
    group_case(e, "two");
}
E2E_CASE(groups_two_phases, 50)

static void case_groups_sizes_first(struct e2e *e) {
    group_case(e, "sizes");
}
E2E_CASE(groups_sizes_first, 50)

/* The even ranks call before their counts are there: they come from the odd neighbour, or the rank itself writes them
 * after the call. Both before the receive that was queued first can end, for the odd ranks send only then. */
static void late_counts_rank(struct e2e_rank *r) {
    zipcclComm_t comm = e2e_comm(r);
    zipcclStream_t stream;
    struct buffers b;
    size_t n = (size_t)r->nranks;
    void *other;
    E2E_OK(NULL, zipcclStreamCreate(&stream));
    buffers_new(&b, r, 0); /* zipcclMemAlloc */
    E2E_OK(NULL, zipcclMemAlloc(&other, n * sizeof(uint64_t)));
    for (uint64_t seq = 0; seq < 30; seq++) {
        bool writes = seq % 2;
        uint64_t *mine = counts(&b.send_counts);
        prepare(r, &b, seq);
        if (r->rank % 2 == 0) {
            for (size_t p = 0; p < n; p++)
                mine[p] = UINT64_MAX; /* would fail */
            E2E_OK(comm, zipcclRecv(writes ? other : mine, n, zipcclUint64, r->rank + 1, comm, stream));
            E2E_OK(comm, issue(&b, seq, comm, stream));
            for (int p = 0; writes && p < r->nranks; p++)
                mine[p] = count_of(seq, r->rank, p);
        }
        e2e_meet(r->shared, (int)(seq + 1) * r->nranks);
        if (r->rank % 2) {
            for (int p = 0; p < r->nranks; p++)
                ((uint64_t *)other)[p] = count_of(seq, r->rank - 1, p);
            E2E_OK(comm, zipcclSend(other, n, zipcclUint64, r->rank - 1, comm, stream));
            E2E_OK(comm, issue(&b, seq, comm, stream));
        }
        E2E_OK(comm, zipcclStreamSynchronize(stream));
        check(r, &b, seq);
    }
    buffers_free(&b);
    E2E_OK(NULL, zipcclMemFree(other));
    E2E_OK(NULL, zipcclStreamDestroy(stream));
    E2E_OK(NULL, zipcclCommDestroy(comm));
}

static void case_late_counts(struct e2e *e) {
    pool();
    e2e_daemons(e, 2);
    e2e_ranks(e, "0011", late_counts_rank, NULL, 30);
    e2e_ranks(e, "0110", late_counts_rank, NULL, 30);
}
E2E_CASE(late_counts, 50)

static void above_cap_rank(struct e2e_rank *r) {
    zipcclComm_t comm = e2e_comm(r);
    struct buffers b;
    buffers_new(&b, r, *(const unsigned *)r->args);
    prepare(r, &b, 3);
    E2E_OK(comm, issue(&b, 3, comm, NULL));
    check(r, &b, 3);
    e2e_meet(r->shared, r->nranks); /* it is over everywhere */
    prepare(r, &b, 9);
    if (r->rank == 1)
        counts(&b.send_counts)[2] = cap_of(9) + 1;
    double start = e2e_now();
    e2e_report(r, issue(&b, 9, comm, NULL), comm, start);
    zipcclCommDestroy(comm);
    buffers_free(&b);
}

static void case_above_cap(struct e2e *e) {
    pool();
    e2e_daemons(e, 2);
    for (unsigned kind = 0; kind < 2; kind++) {
        struct e2e_group g;
        e2e_start(e, &g, kind ? "0101" : "0011", above_cap_rank, &kind);
        e2e_wait(e, &g, 20);
        for (int i = 0; i < g.nranks; i++)
            e2e_expect(&g, i, zipcclInvalidArgument, SOON, "sendcounts[2] of rank 1 is 5001", "max_count, 5000", NULL);
        e2e_all_passed(e, &g);
    }
    e2e_alive(e);
}
E2E_CASE(above_cap, 40)

/* ---- dying ---- */

static void dying_rank(struct e2e_rank *r) {
    bool waits = *(const bool *)r->args;
    zipcclComm_t comm = e2e_comm(r);
    zipcclResult_t rc = zipcclSuccess;
    struct buffers b;
    buffers_new(&b, r, 0);
    prepare(r, &b, 5);
    E2E_OK(comm, issue(&b, 5, comm, NULL));
    e2e_meet(r->shared, r->nranks);
    if (r->rank == 2 && waits) {
        e2e_raise(r->shared, 0);
        e2e_sleep(60 * E2E_SLOW);
    }
    double start = e2e_now(), first = start;
    for (int i = 0; rc == zipcclSuccess && e2e_now() < first + 30 * E2E_SLOW; i++) {
        start = e2e_now();
        rc = issue(&b, 5, comm, NULL);
        if (i == 2)
            e2e_raise(r->shared, 0);
    }
    e2e_report(r, rc, comm, start);
    zipcclCommDestroy(comm);
    buffers_free(&b);
}

static void case_rank_dies(struct e2e *e) {
    pool();
    e2e_daemons(e, 2);
    for (int waits = 0; waits < 2; waits++) {
        struct e2e_group g;
        bool how = waits;
        e2e_start(e, &g, "0011", dying_rank, &how);
        e2e_await(g.shared, 0);
        e2e_sleep(0.05);
        kill(g.pids[2], SIGKILL);
        e2e_wait(e, &g, 20);
        for (int i = 0; i < g.nranks; i++)
            if (i != 2)
                e2e_expect(&g, i, zipcclRemoteError, SOON, "rank 2", NULL);
        e2e_alive(e);
    }
}
E2E_CASE(rank_dies, 40)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_counts),        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_groups_two_phases), cmocka_unit_test(test_groups_sizes_first),
        cmocka_unit_test(test_late_counts),       cmocka_unit_test(test_above_cap),
        cmocka_unit_test(test_rank_dies),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Kinds of memory, streams with many queued operations, communicators side by side, pipelines that wrap, verification.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collect.h"

static const zipcclDataType_t dtypes[] = {zipcclBfloat16, zipcclFloat32, zipcclFloat16, zipcclUint8, zipcclFloat8e4m3};
static const zipcclCodec_t codecs[] = {zipcclCodecTier, zipcclCodecTop7, zipcclCodecRaw, zipcclCodecAuto};

struct plan {
    enum memory memory;
    size_t max_count;
    unsigned rounds;
};

/* A bit of everything, in an order that all ranks know. */
static struct collect pick(unsigned i, int nranks, size_t max_count) {
    static const unsigned parts[] = {1, 1000, 3, 40, 7, 100000, 2};
    struct collect c = {.op = i % 3 == 1 ? zipcclOpBroadcast : zipcclOpAllGather,
                        .dtype = dtypes[i % 5],
                        .count = max_count / parts[i % 7],
                        .root = (int)(i / 3) % nranks,
                        .in_place = i / 2 % 2,
                        .seq = i};
    return c;
}

static void mixture_rank(struct e2e_rank *r) {
    const struct plan *p = r->args;
    zipcclComm_t comm = e2e_comm(r);
    struct collect_buffers b;
    collect_buffers_new(&b, r, p->memory, p->max_count * 4);
    for (unsigned i = 0; i < p->rounds; i++) {
        struct collect c = pick(i, r->nranks, p->max_count);
        E2E_OK(comm, zipcclCommSetCodec(comm, codecs[i / 5 % 4]));
        collect_run(r, comm, &b, &c);
    }
    collect_buffers_free(&b);
    E2E_OK(NULL, zipcclCommDestroy(comm));
}

static void case_memory_kinds(struct e2e *e) {
    pool();
    e2e_daemons(e, 2);
    for (enum memory kind = 0; kind <= MEMORY_MIXED; kind++) {
        struct plan p = {kind, 150000, 35};
        e2e_ranks(e, "00", mixture_rank, &p, 30);
        e2e_ranks(e, "0110", mixture_rank, &p, 30);
    }
}
E2E_CASE(memory_kinds, 50)

/* Chunks of 64 KiB and two slots: every pipeline wraps many times. */
static void case_small_window(struct e2e *e) {
    struct plan p = {MEMORY_ZIPCCL, 700001, 28};
    pool();
    e2e_set(e, "chunk_bytes=64KiB");
    e2e_set(e, "window=1");
    e2e_daemons(e, 3);
    e2e_ranks(e, "01", mixture_rank, &p, 40);
    e2e_ranks(e, "0122", mixture_rank, &p, 40);
    p.memory = MEMORY_MIXED;
    p.rounds = 14;
    e2e_ranks(e, "001", mixture_rank, &p, 40);
}
E2E_CASE(small_window, 55)

/* Nodes that are set up differently agree on a chunk size. */
static void case_unequal_chunks(struct e2e *e) {
    struct plan p = {MEMORY_ZIPCCL, 300001, 21};
    pool();
    e2e_set(e, "chunk_bytes=128KiB");
    e2e_daemons(e, 1);
    e2e_set(e, "chunk_bytes=1MiB");
    e2e_set(e, "window=2");
    e2e_daemon_start(e, 1);
    e2e_ranks(e, "01", mixture_rank, &p, 40);
    e2e_ranks(e, "10", mixture_rank, &p, 40);
}
E2E_CASE(unequal_chunks, 50)

static void case_verify(struct e2e *e) {
    struct plan p = {MEMORY_ZIPCCL, 300001, 35};
    pool();
    e2e_set(e, "verify=on");
    e2e_set(e, "chunk_bytes=128KiB");
    e2e_daemons(e, 3);
    e2e_ranks(e, "01", mixture_rank, &p, 40);
    e2e_ranks(e, "0121", mixture_rank, &p, 40);
}
E2E_CASE(verify, 50)

/* A capped link: pacing must not change a bit, nor stop. */
static void case_capped_link(struct e2e *e) {
    struct plan p = {MEMORY_ZIPCCL, 200001, 21};
    pool();
    e2e_set(e, "link_rate=1gbit");
    e2e_daemons(e, 2);
    e2e_ranks(e, "01", mixture_rank, &p, 40);
}
E2E_CASE(capped_link, 50)

/* Many operations queued before the first is waited for, each with buffers of its own. */
enum { QUEUED = 48 };

static void stream_rank(struct e2e_rank *r) {
    const struct plan *p = r->args;
    zipcclComm_t comm = e2e_comm(r);
    zipcclStream_t stream;
    struct collect_buffers b[QUEUED];
    struct collect c[QUEUED];
    E2E_OK(NULL, zipcclStreamCreate(&stream));
    for (unsigned i = 0; i < QUEUED; i++)
        collect_buffers_new(&b[i], r, i % 5 ? p->memory : MEMORY_FOREIGN, p->max_count * 4);
    for (unsigned round = 0; round < p->rounds; round++) {
        for (unsigned i = 0; i < QUEUED; i++) {
            c[i] = pick(round * QUEUED + i, r->nranks, p->max_count);
            if (i % 8 == 7)
                c[i].op = zipcclOpBarrier;
            collect_issue(r, comm, stream, &b[i], &c[i]);
        }
        if (round % 2) {
            zipcclResult_t rc;
            double end = e2e_now() + 20 * E2E_SLOW;
            while ((rc = zipcclStreamQuery(stream)) == zipcclInProgress && e2e_now() < end)
                e2e_sleep(0.0005);
            E2E_OK(comm, rc);
        }
        E2E_OK(comm, zipcclStreamSynchronize(stream));
        E2E_OK(comm, zipcclStreamQuery(stream));
        for (unsigned i = 0; i < QUEUED; i++)
            collect_check(r, &b[i], &c[i]);
    }
    for (unsigned i = 0; i < QUEUED; i++)
        collect_buffers_free(&b[i]);
    E2E_OK(NULL, zipcclStreamDestroy(stream));
    E2E_OK(NULL, zipcclCommDestroy(comm));
}

static void case_streams(struct e2e *e) {
    struct plan p = {MEMORY_ZIPCCL, 20000, 4};
    pool();
    e2e_daemons(e, 2);
    e2e_ranks(e, "00", stream_rank, &p, 40);
    e2e_ranks(e, "011", stream_rank, &p, 40);
    p.memory = MEMORY_UNALIGNED;
    e2e_ranks(e, "01", stream_rank, &p, 40);
}
E2E_CASE(streams, 50)

/* Two communicators at once; half of the ranks issue on one first, half on the other. */
static void interleaved_rank(struct e2e_rank *r) {
    const struct plan *p = r->args;
    zipcclComm_t comm[2] = {e2e_comm(r), e2e_comm(r)};
    zipcclStream_t stream[2];
    struct collect_buffers b[2];
    for (int k = 0; k < 2; k++) {
        E2E_OK(NULL, zipcclStreamCreate(&stream[k]));
        collect_buffers_new(&b[k], r, p->memory, p->max_count * 4);
    }
    E2E_OK(comm[1], zipcclCommSetCodec(comm[1], zipcclCodecTier));
    for (unsigned i = 0; i < p->rounds; i++) {
        struct collect c[2] = {pick(i, r->nranks, p->max_count), pick(i + 5000, r->nranks, p->max_count)};
        int first = (r->rank + (int)i) % 2;
        for (int k = 0; k < 2; k++)
            collect_issue(r, comm[first ^ k], stream[first ^ k], &b[first ^ k], &c[first ^ k]);
        for (int k = 0; k < 2; k++) {
            E2E_OK(comm[k], zipcclStreamSynchronize(stream[k]));
            collect_check(r, &b[k], &c[k]);
        }
    }
    for (int k = 0; k < 2; k++) {
        collect_buffers_free(&b[k]);
        E2E_OK(NULL, zipcclStreamDestroy(stream[k]));
    }
    /* Destroyed in different orders. */
    E2E_OK(NULL, zipcclCommDestroy(comm[r->rank % 2]));
    E2E_OK(NULL, zipcclCommDestroy(comm[1 - r->rank % 2]));
}

static void case_two_communicators(struct e2e *e) {
    struct plan p = {MEMORY_ZIPCCL, 60000, 60};
    pool();
    e2e_set(e, "chunk_bytes=64KiB");
    e2e_daemons(e, 2);
    e2e_ranks(e, "00", interleaved_rank, &p, 40);
    e2e_ranks(e, "0011", interleaved_rank, &p, 40);
}
E2E_CASE(two_communicators, 50)

/* Two jobs at once on the same daemons. */
static void case_two_jobs(struct e2e *e) {
    struct plan p = {MEMORY_ZIPCCL, 60000, 70}, q = {MEMORY_FOREIGN, 90000, 50};
    struct e2e_group a, b;
    pool();
    e2e_daemons(e, 2);
    e2e_start(e, &a, "01", mixture_rank, &p);
    e2e_start(e, &b, "101", mixture_rank, &q);
    e2e_wait(e, &a, 40);
    e2e_wait(e, &b, 40);
    e2e_all_passed(e, &a);
    e2e_all_passed(e, &b);
}
E2E_CASE(two_jobs, 50)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_kinds),      cmocka_unit_test(test_small_window),
        cmocka_unit_test(test_unequal_chunks),    cmocka_unit_test(test_verify),
        cmocka_unit_test(test_capped_link),       cmocka_unit_test(test_streams),
        cmocka_unit_test(test_two_communicators), cmocka_unit_test(test_two_jobs),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

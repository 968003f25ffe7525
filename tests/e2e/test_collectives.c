/* SPDX-License-Identifier: Apache-2.0
 *
 * All-gather, broadcast and barrier: every dtype, codec, root and layout of ranks, with the counts where things change.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collect.h"

static const size_t counts[] = {0, 1, 7, 511, 512, 513};
static const zipcclCodec_t codecs[] = {zipcclCodecRaw, zipcclCodecTop7, zipcclCodecTier, zipcclCodecAuto};
#define NCOUNTS (sizeof(counts) / sizeof(counts[0]))
#define NCODECS (sizeof(codecs) / sizeof(codecs[0]))

/* Every codec and dtype at every small count and one larger one; the root goes round. */
static void matrix_rank(struct e2e_rank *r) {
    zipcclComm_t comm = e2e_comm(r);
    struct collect_buffers b;
    uint64_t seq = 0;
    collect_buffers_new(&b, r, MEMORY_ZIPCCL, 65537 * 8);
    for (unsigned k = 0; k < NCODECS; k++) {
        E2E_OK(comm, zipcclCommSetCodec(comm, codecs[k]));
        for (int dtype = 0; dtype < zipcclNumTypes; dtype++)
            for (unsigned i = 0; i <= NCOUNTS; i++) {
                if (i == NCOUNTS && E2E_SANITIZED && (dtype + (int)k) % 3)
                    continue;
                struct collect c = {.op = zipcclOpAllGather,
                                    .dtype = (zipcclDataType_t)dtype,
                                    .count = i < NCOUNTS ? counts[i] : 65537,
                                    .in_place = seq / 2 % 2};
                c.seq = seq++;
                collect_run(r, comm, &b, &c);
                c.op = zipcclOpBroadcast;
                c.root = (int)(seq / 2) % r->nranks;
                c.seq = seq++;
                collect_run(r, comm, &b, &c);
            }
    }
    collect_buffers_free(&b);
    E2E_OK(NULL, zipcclCommDestroy(comm));
}

static void layouts(struct e2e *e, unsigned nodes, const char *const *list, e2e_rank_fn fn) {
    pool();
    e2e_daemons(e, nodes);
    for (; *list; list++)
        e2e_ranks(e, *list, fn, NULL, 40);
}

static void case_matrix_one_node(struct e2e *e) {
    layouts(e, 1, (const char *const[]){"0", "00", "000", "0000", NULL}, matrix_rank);
}
E2E_CASE(matrix_one_node, 50)

static void case_matrix_two_nodes(struct e2e *e) {
    layouts(e, 2, (const char *const[]){"01", "0011", "0001", "1010", NULL}, matrix_rank);
}
E2E_CASE(matrix_two_nodes, 50)

static void case_matrix_three_nodes(struct e2e *e) {
    layouts(e, 3, (const char *const[]){"012", "0122", "2011", "210012", NULL}, matrix_rank);
}
E2E_CASE(matrix_three_nodes, 50)

/* Every root, with every codec. */
static void roots_rank(struct e2e_rank *r) {
    static const zipcclDataType_t dtypes[] = {zipcclBfloat16, zipcclFloat32, zipcclFloat8e5m2, zipcclInt64};
    static const size_t sizes[] = {0, 1, 513, 40000};
    zipcclComm_t comm = e2e_comm(r);
    struct collect_buffers b;
    uint64_t seq = 0;
    collect_buffers_new(&b, r, MEMORY_MIXED, 40000 * 8);
    for (unsigned k = 0; k < NCODECS; k++) {
        E2E_OK(comm, zipcclCommSetCodec(comm, codecs[k]));
        for (int root = 0; root < r->nranks; root++)
            for (unsigned d = 0; d < 4; d++)
                for (unsigned i = 0; i < 4; i++) {
                    struct collect c = {.op = zipcclOpBroadcast,
                                        .dtype = dtypes[d],
                                        .count = sizes[i],
                                        .root = root,
                                        .in_place = seq % 2,
                                        .seq = seq};
                    seq++;
                    collect_run(r, comm, &b, &c);
                }
    }
    collect_buffers_free(&b);
    E2E_OK(NULL, zipcclCommDestroy(comm));
}

static void case_every_root(struct e2e *e) {
    layouts(e, 3, (const char *const[]){"000", "0101", "1122", "01222", NULL}, roots_rank);
}
E2E_CASE(every_root, 50)

/* Large operations: several chunks, all pool contents, every codec. */
static void large_rank(struct e2e_rank *r) {
    static const zipcclDataType_t dtypes[] = {zipcclBfloat16, zipcclFloat16, zipcclFloat32, zipcclFloat8e4m3,
                                              zipcclInt32};
    enum { COUNT = 1500001 };
    zipcclComm_t comm = e2e_comm(r);
    struct collect_buffers b;
    uint64_t seq = 1000;
    collect_buffers_new(&b, r, MEMORY_ZIPCCL, COUNT * 4);
    for (unsigned k = 0; k < NCODECS; k++) {
        E2E_OK(comm, zipcclCommSetCodec(comm, codecs[k]));
        for (unsigned d = 0; d < 5; d++) {
            if (E2E_SANITIZED && (d + k) % 2)
                continue;
            struct collect c = {
                .op = zipcclOpAllGather, .dtype = dtypes[d], .count = COUNT, .in_place = d % 2, .seq = seq++};
            collect_run(r, comm, &b, &c);
            c.op = zipcclOpBroadcast;
            c.root = (int)(k + d) % r->nranks;
            c.seq = seq++;
            collect_run(r, comm, &b, &c);
        }
    }
    collect_buffers_free(&b);
    E2E_OK(NULL, zipcclCommDestroy(comm));
}

static void case_large(struct e2e *e) {
    layouts(e, 3, (const char *const[]){"00", "01", "0112", NULL}, large_rank);
}
E2E_CASE(large, 55)

/* No rank leaves a barrier before the last has entered it. */
static void barrier_rank(struct e2e_rank *r) {
    zipcclComm_t comm = e2e_comm(r);
    zipcclStream_t stream;
    E2E_OK(NULL, zipcclStreamCreate(&stream));
    for (int i = 0; i < 60; i++) {
        if ((i + r->rank) % 4 == 0)
            e2e_sleep(0.002 * (r->rank + 1));
        int entered = atomic_fetch_add(&r->shared->counter, 1) + 1;
        if (i % 2) {
            E2E_OK(comm, zipcclBarrier(comm, NULL));
        } else {
            E2E_OK(comm, zipcclBarrier(comm, stream));
            E2E_OK(comm, zipcclStreamSynchronize(stream));
        }
        int now = atomic_load(&r->shared->counter);
        E2E_CHECK(now >= (i + 1) * r->nranks, "round %d: %d entered (%d by then), of %d", i, now, entered,
                  (i + 1) * r->nranks);
    }
    E2E_OK(NULL, zipcclStreamDestroy(stream));
    E2E_OK(NULL, zipcclCommDestroy(comm));
}

static void case_barrier(struct e2e *e) {
    layouts(e, 3, (const char *const[]){"0", "000", "01", "0011", "00122", NULL}, barrier_rank);
}
E2E_CASE(barrier, 50)

/* The properties of a communicator, and what the library says of itself. */
static void facts_rank(struct e2e_rank *r) {
    zipcclComm_t comm = e2e_comm(r);
    int version = 0, count = -1, rank = -1;
    zipcclResult_t error = zipcclInternalError;
    E2E_OK(NULL, zipcclGetVersion(&version));
    E2E_CHECK(version == ZIPCCL_VERSION_CODE, "%d", version);
    E2E_OK(comm, zipcclCommCount(comm, &count));
    E2E_OK(comm, zipcclCommUserRank(comm, &rank));
    E2E_OK(comm, zipcclCommGetAsyncError(comm, &error));
    E2E_CHECK(count == r->nranks && rank == r->rank && error == zipcclSuccess, "%d %d %d", count, rank, (int)error);
    for (int i = -1; i <= zipcclNumResults; i++)
        E2E_CHECK(zipcclGetErrorString((zipcclResult_t)i) != NULL, "%d", i);
    E2E_CHECK(zipcclGetLastError(comm) && zipcclGetLastError(NULL), "no text");
    E2E_OK(NULL, zipcclCommDestroy(comm));
}

static void case_facts(struct e2e *e) {
    layouts(e, 2, (const char *const[]){"0", "0011", NULL}, facts_rank);
}
E2E_CASE(facts, 30)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_facts),
        cmocka_unit_test(test_matrix_one_node),
        cmocka_unit_test(test_matrix_two_nodes),
        cmocka_unit_test(test_matrix_three_nodes),
        cmocka_unit_test(test_every_root),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_barrier),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

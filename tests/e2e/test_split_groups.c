/* SPDX-License-Identifier: Apache-2.0
 *
 * Groups of operations, sends and receives, and communicators split from others, between real daemons.
 */
#include <stdlib.h>
#include <string.h>

#include "collect.h"

enum { COUNT = 3000, MAX_RANKS = 6 };

/* Rank r's value i in round k; small whole numbers, so that every order of summing gives the same. */
static float value(int r, int k, int i) {
    return (float)(r + (k * 7 + i) % 100);
}

static void fill(float *to, int r, int k) {
    for (int i = 0; i < COUNT; i++)
        to[i] = value(r, k, i);
}

/* Ranks of one color in the order of their keys: even and odd ranks, the last first. */
struct half {
    zipcclComm_t comm;
    int ranks[MAX_RANKS], n, me;
};

static struct half split(const struct e2e_rank *r, zipcclComm_t comm) {
    struct half h = {0};
    int n, rank;
    E2E_OK(comm, zipcclCommSplit(comm, r->rank % 2, -r->rank, &h.comm));
    for (int i = r->nranks - 1; i >= 0; i--) {
        if (i % 2 != r->rank % 2)
            continue;
        if (i == r->rank)
            h.me = h.n;
        h.ranks[h.n++] = i;
    }
    E2E_OK(h.comm, zipcclCommCount(h.comm, &n));
    E2E_OK(h.comm, zipcclCommUserRank(h.comm, &rank));
    E2E_CHECK(n == h.n && rank == h.me, "rank %d of %d, not %d of %d", rank, n, h.me, h.n);
    return h;
}

struct places {
    float *mine, *gathered, *sum, *half_sum, *from_root, *exchanged;
};

static struct places places_new(bool shared, void **memory) {
    size_t bytes = sizeof(float) * COUNT * (4 + 2 * MAX_RANKS);
    struct places p;
    if (shared)
        E2E_OK(NULL, zipcclMemAlloc(memory, bytes));
    else
        *memory = malloc(bytes);
    p.mine = *memory;
    p.gathered = p.mine + COUNT;
    p.sum = p.gathered + (size_t)COUNT * MAX_RANKS;
    p.half_sum = p.sum + COUNT;
    p.from_root = p.half_sum + COUNT;
    p.exchanged = p.from_root + COUNT;
    return p;
}

/* Four collectives of two communicators in one group. */
static void collectives(zipcclComm_t comm, const struct half *h, const struct places *p, zipcclStream_t stream) {
    E2E_OK(NULL, zipcclGroupStart());
    E2E_OK(comm, zipcclAllGather(p->mine, p->gathered, COUNT, zipcclFloat32, comm, stream));
    E2E_OK(h->comm, zipcclAllReduce(p->mine, p->half_sum, COUNT, zipcclFloat32, zipcclSum, h->comm, stream));
    E2E_OK(comm, zipcclAllReduce(p->mine, p->sum, COUNT, zipcclFloat32, zipcclSum, comm, stream));
    E2E_OK(h->comm, zipcclBroadcast(p->mine, p->from_root, COUNT, zipcclFloat32, h->n - 1, h->comm, stream));
    E2E_OK(NULL, zipcclGroupEnd());
    E2E_OK(NULL, zipcclStreamSynchronize(stream));
}

/* Everybody to everybody, itself included, by send and receive. */
static void exchange(const struct e2e_rank *r, zipcclComm_t comm, const struct places *p, zipcclStream_t stream) {
    E2E_OK(NULL, zipcclGroupStart());
    for (int i = 0; i < r->nranks; i++) {
        int peer = (r->rank + i) % r->nranks;
        E2E_OK(comm, zipcclSend(p->mine, COUNT, zipcclFloat32, peer, comm, stream));
        E2E_OK(comm, zipcclRecv(p->exchanged + (size_t)peer * COUNT, COUNT, zipcclFloat32, peer, comm, stream));
    }
    E2E_OK(NULL, zipcclGroupEnd());
    E2E_OK(NULL, zipcclStreamSynchronize(stream));
}

static void compare(const struct e2e_rank *r, const struct half *h, const struct places *p, int k) {
    for (int i = 0; i < COUNT; i++) {
        float sum = 0, half = 0;
        for (int q = 0; q < r->nranks; q++) {
            float want = value(q, k, i);
            sum += want;
            half += q % 2 == r->rank % 2 ? want : 0;
            E2E_CHECK(p->gathered[q * COUNT + i] == want, "round %d: gathered %d of rank %d", k, i, q);
            E2E_CHECK(p->exchanged[q * COUNT + i] == want, "round %d: exchanged %d of rank %d", k, i, q);
        }
        E2E_CHECK(p->sum[i] == sum && p->half_sum[i] == half, "round %d: sums of value %d", k, i);
        E2E_CHECK(p->from_root[i] == value(h->ranks[h->n - 1], k, i), "round %d: broadcast value %d", k, i);
    }
}

static void groups_rank(struct e2e_rank *r) {
    zipcclComm_t comm = e2e_comm(r);
    zipcclStream_t stream;
    void *memory[2];
    struct places p[2] = {places_new(false, &memory[0]), places_new(true, &memory[1])};
    struct half h = split(r, comm);
    E2E_OK(NULL, zipcclStreamCreate(&stream));
    for (int k = 0; k < 40; k++) {
        const struct places *now = &p[k / 2 % 2];
        fill(now->mine, r->rank, k);
        collectives(comm, &h, now, k % 2 ? stream : NULL);
        exchange(r, comm, now, k % 2 ? stream : NULL);
        compare(r, &h, now, k);
    }
    E2E_OK(NULL, zipcclCommDestroy(h.comm));
    E2E_OK(NULL, zipcclCommDestroy(comm));
    E2E_OK(NULL, zipcclStreamDestroy(stream));
    free(memory[0]);
    E2E_OK(NULL, zipcclMemFree(memory[1]));
}

static void run(struct e2e *e, unsigned nodes, const char *const *list, e2e_rank_fn fn) {
    pool();
    e2e_daemons(e, nodes);
    for (; *list; list++)
        e2e_ranks(e, *list, fn, NULL, 40);
}

static void case_groups(struct e2e *e) {
    run(e, 3, (const char *const[]){"00", "0011", "01", "01201", NULL}, groups_rank);
}
E2E_CASE(groups, 60)

/* The most that a group may hold, more than one rank may have under way otherwise. */
static void largest_rank(struct e2e_rank *r) {
    enum { PAIRS = 2048 };
    zipcclComm_t comm = e2e_comm(r);
    uint8_t *m = malloc((size_t)2 * PAIRS);
    memset(m, r->rank + 1, PAIRS);
    E2E_OK(NULL, zipcclGroupStart());
    for (int i = 0; i < PAIRS; i++) {
        E2E_OK(comm, zipcclSend(m + i, 1, zipcclUint8, 1 - r->rank, comm, NULL));
        E2E_OK(comm, zipcclRecv(m + PAIRS + i, 1, zipcclUint8, 1 - r->rank, comm, NULL));
    }
    E2E_OK(NULL, zipcclGroupEnd());
    for (int i = 0; i < PAIRS; i++)
        E2E_CHECK(m[PAIRS + i] == 2 - r->rank, "byte %d is %u", i, m[PAIRS + i]);
    free(m);
    E2E_OK(NULL, zipcclCommDestroy(comm));
}

static void case_largest(struct e2e *e) {
    run(e, 2, (const char *const[]){"00", "01", NULL}, largest_rank);
}
E2E_CASE(largest, 60)

/* Some ranks join none; a communicator of a split can be split again, and outlives its parent. */
static void splits_rank(struct e2e_rank *r) {
    zipcclComm_t comm = e2e_comm(r), some, again;
    int n, color = r->rank == 1 ? ZIPCCL_SPLIT_NOCOLOR : 3;
    E2E_OK(comm, zipcclCommSplit(comm, color, 0, &some));
    E2E_OK(comm, zipcclBarrier(comm, NULL));
    E2E_OK(NULL, zipcclCommDestroy(comm));
    E2E_CHECK((some == NULL) == (r->rank == 1), "rank %d", r->rank);
    if (!some)
        return;
    E2E_OK(some, zipcclCommCount(some, &n));
    E2E_CHECK(n == r->nranks - 1, "%d ranks", n);
    E2E_OK(some, zipcclCommSplit(some, r->rank, 0, &again)); /* each its own */
    E2E_OK(again, zipcclCommCount(again, &n));
    E2E_CHECK(n == 1, "%d ranks", n);
    E2E_OK(again, zipcclBarrier(again, NULL));
    E2E_OK(some, zipcclBarrier(some, NULL));
    E2E_OK(NULL, zipcclCommDestroy(some));
    E2E_OK(NULL, zipcclCommDestroy(again));
}

static void case_splits(struct e2e *e) {
    run(e, 2, (const char *const[]){"0000", "0101", NULL}, splits_rank);
}
E2E_CASE(splits, 60)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_largest),
        cmocka_unit_test(test_splits),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

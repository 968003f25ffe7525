/* SPDX-License-Identifier: Apache-2.0
 *
 * Groups, sends and receives, and communicators that are split from others: random choices from fixed seeds, every
 * result compared bit by bit.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "anyop.h"

#define MOST  24u
#define BYTES (96u << 10)

/* The operations of some groups that are under way together. */
struct lot {
    struct any_op ops[MOST];
    struct any_buffers buffers[MOST];
    unsigned n;
};

static void lot_new(struct lot *l, int rank) {
    l->n = 0;
    for (unsigned i = 0; i < MOST; i++)
        any_buffers_new(&l->buffers[i], (enum memory)(i % MEMORY_KINDS),
                        (enum memory)((i / 3 + (unsigned)rank) % MEMORY_KINDS), BYTES);
}

static void lot_free(struct lot *l) {
    for (unsigned i = 0; i < MOST; i++)
        any_buffers_free(&l->buffers[i]);
}

static void lot_issue(struct lot *l, const struct any_world *w, zipcclStream_t stream, const struct any_op *a) {
    E2E_CHECK(l->n < MOST, "too many");
    l->ops[l->n] = *a;
    E2E_OK(w->comm, any_issue(w, stream, a, &l->buffers[l->n]));
    l->n++;
}

static void lot_check(struct lot *l, const struct any_world *w) {
    for (unsigned i = 0; i < l->n; i++)
        any_check(w, &l->ops[i], &l->buffers[i]);
    l->n = 0;
}

/* A message round the ring, both directions. */
static void ring(struct lot *l, const struct any_world *w, zipcclStream_t stream, uint64_t *state, uint64_t seq) {
    int next = (w->rank + 1) % w->nranks, last = (w->rank + w->nranks - 1) % w->nranks;
    struct any_op a = {.op = zipcclOpSend,
                       .dtype = (zipcclDataType_t)(any_random(state) % zipcclNumTypes),
                       .codec = any_random(state) % 2 ? zipcclCodecTier : zipcclCodecAuto,
                       .arm = zipcclArmAuto,
                       .count = any_random(state) % (BYTES / 8),
                       .seq = seq,
                       .root = next};
    bool first = any_random(state) % 2;
    if (first)
        lot_issue(l, w, stream, &a);
    a.op = zipcclOpRecv;
    a.root = last;
    lot_issue(l, w, stream, &a);
    if (first)
        return;
    a.op = zipcclOpSend;
    a.root = next;
    lot_issue(l, w, stream, &a);
}

static void groups_rank(struct e2e_rank *r) {
    struct any_world w;
    struct lot *l = calloc(1, sizeof(*l));
    zipcclStream_t stream;
    uint64_t state = 777 + (uint64_t)r->nranks, seq = 1;
    const char *seed = getenv("ZIPCCL_TEST_SEED");
    state += seed ? strtoull(seed, NULL, 0) * 0x9e3779b97f4a7c15u : 0;
    E2E_CHECK(l, "memory");
    any_world_set(&w, r->args, r->rank, e2e_comm(r));
    E2E_OK(NULL, zipcclStreamCreate(&stream));
    lot_new(l, r->rank);
    for (unsigned round = 0; round < 14; round++) {
        zipcclStream_t s = round % 2 ? stream : NULL;
        unsigned ngroups = round % 4 == 3 ? 4 : 1;
        for (unsigned g = 0; g < ngroups; g++) {
            unsigned n = (unsigned)(any_random(&state) % 4);
            E2E_OK(NULL, zipcclGroupStart());
            E2E_OK(NULL, zipcclGroupStart()); /* nested; sometimes empty */
            for (unsigned i = 0; i < n; i++) {
                struct any_op a = any_draw(&state, &w, BYTES, seq++);
                lot_issue(l, &w, s, &a);
            }
            E2E_OK(w.comm, zipcclGroupEnd());
            if (any_random(&state) % 2)
                ring(l, &w, s, &state, seq++);
            E2E_OK(w.comm, zipcclGroupEnd());
        }
        if (s)
            E2E_OK(w.comm, zipcclStreamSynchronize(s));
        lot_check(l, &w);
    }
    lot_free(l);
    free(l);
    E2E_OK(NULL, zipcclStreamDestroy(stream));
    E2E_OK(NULL, zipcclCommDestroy(w.comm));
}

static void layouts(struct e2e *e, unsigned nodes, const char *const *list, e2e_rank_fn fn) {
    pool();
    e2e_daemons(e, nodes);
    for (; *list; list++)
        e2e_ranks(e, *list, fn, *list, 40);
}

static void case_groups(struct e2e *e) {
    e2e_set(e, "chunk_bytes=64KiB");
    layouts(e, 3, (const char *const[]){"0", "00", "01", "0110", "21002", NULL}, groups_rank);
}
E2E_CASE(groups, 60)

/* ---- all pairs ---- */

#define PAIR_MESSAGES 3

/* Sends and receives between all pairs, each rank in an order of its own. Messages of a pair keep their order. */
static void pairs_rank(struct e2e_rank *r) {
    enum { MOST_MESSAGES = 2 * E2E_MAX_RANKS * PAIR_MESSAGES };
    struct any_world w;
    struct any_buffers *b = calloc(MOST_MESSAGES, sizeof(*b));
    struct any_op *ops = calloc(MOST_MESSAGES, sizeof(*ops));
    zipcclStream_t stream;
    uint64_t state = 99 + (uint64_t)r->rank;
    int next[2 * E2E_MAX_RANKS];
    E2E_CHECK(b && ops, "memory");
    any_world_set(&w, r->args, r->rank, e2e_comm(r));
    E2E_OK(NULL, zipcclStreamCreate(&stream));
    int n = 2 * r->nranks * PAIR_MESSAGES;
    for (int i = 0; i < n; i++)
        any_buffers_new(&b[i], (enum memory)(any_random(&state) % MEMORY_KINDS),
                        (enum memory)(any_random(&state) % MEMORY_KINDS), 20000);
    for (uint64_t round = 0; round < 3; round++) {
        memset(next, 0, sizeof(next));
        E2E_OK(NULL, zipcclGroupStart());
        for (int i = 0; i < n; i++) {
            int way = (int)(any_random(&state) % (uint64_t)(2 * r->nranks));
            while (next[way] == PAIR_MESSAGES)
                way = (way + 1) % (2 * r->nranks);
            bool sends = way % 2;
            int peer = way / 2, from = sends ? r->rank : peer, to = sends ? peer : r->rank;
            uint64_t seq = round * 100000 + (uint64_t)(from * 1000 + to * 10 + next[way]++), pick = seq * 2654435761u;
            ops[i] = (struct any_op){.op = sends ? zipcclOpSend : zipcclOpRecv,
                                     .dtype = (zipcclDataType_t)(pick % zipcclNumTypes),
                                     .codec = zipcclCodecTop7,
                                     .arm = zipcclArmAuto,
                                     .count = pick >> 7 & 3 ? (pick >> 9) % 2400 : 0,
                                     .root = peer,
                                     .seq = seq};
            E2E_OK(w.comm, any_issue(&w, round == 1 ? NULL : stream, &ops[i], &b[i]));
        }
        E2E_OK(w.comm, zipcclGroupEnd());
        E2E_OK(w.comm, zipcclStreamSynchronize(stream));
        for (int i = 0; i < n; i++)
            any_check(&w, &ops[i], &b[i]);
    }
    for (int i = 0; i < n; i++)
        any_buffers_free(&b[i]);
    free(b);
    free(ops);
    E2E_OK(NULL, zipcclStreamDestroy(stream));
    E2E_OK(NULL, zipcclCommDestroy(w.comm));
}

static void case_all_pairs(struct e2e *e) {
    layouts(e, 3, (const char *const[]){"0", "000", "01", "00112", NULL}, pairs_rank);
}
E2E_CASE(all_pairs, 60)

/* Even ranks send in one group what the others receive in two calls, and the other way round; in between an all-to-all
 * that only some put into the group. Ranks must group the same collectives, but not the same sends and receives. */
static void apart_rank(struct e2e_rank *r) {
    struct any_world w;
    struct any_buffers b[5];
    any_world_set(&w, r->args, r->rank, e2e_comm(r));
    for (int i = 0; i < 5; i++)
        any_buffers_new(&b[i], MEMORY_ZIPCCL, MEMORY_UNALIGNED, 8 * BYTES);
    int peer = r->rank ^ 1;
    bool even = r->rank % 2 == 0;
    for (uint64_t round = 0; round < 6; round++) {
        struct any_op ops[5];
        for (uint64_t i = 0; i < 5; i++)
            ops[i] = (struct any_op){.op = (i < 2) == even ? zipcclOpSend : zipcclOpRecv,
                                     .dtype = zipcclBfloat16,
                                     .codec = zipcclCodecTier,
                                     .arm = zipcclArmAuto,
                                     .count = 70000 * (i + 1),
                                     .root = peer,
                                     .seq = round * 10 + i};
        ops[4].op = zipcclOpAllToAll;
        ops[4].count = 30000;
        if (even)
            E2E_OK(NULL, zipcclGroupStart());
        E2E_OK(w.comm, any_issue(&w, NULL, &ops[0], &b[0]));
        E2E_OK(w.comm, any_issue(&w, NULL, &ops[1], &b[1]));
        if (round % 2 == 0)
            E2E_OK(w.comm, any_issue(&w, NULL, &ops[4], &b[4]));
        if (even)
            E2E_OK(NULL, zipcclGroupEnd());
        if (!even)
            E2E_OK(NULL, zipcclGroupStart());
        E2E_OK(w.comm, any_issue(&w, NULL, &ops[2], &b[2]));
        E2E_OK(w.comm, any_issue(&w, NULL, &ops[3], &b[3]));
        if (!even)
            E2E_OK(NULL, zipcclGroupEnd());
        for (int i = 0; i < 5; i++)
            if (i < 4 || round % 2 == 0)
                any_check(&w, &ops[i], &b[i]);
    }
    for (int i = 0; i < 5; i++)
        any_buffers_free(&b[i]);
    E2E_OK(NULL, zipcclCommDestroy(w.comm));
}

static void apart(struct e2e *e, const char *phases) {
    e2e_set(e, "chunk_bytes=64KiB");
    e2e_set(e, "all_to_all_phases=%s", phases);
    layouts(e, 2, (const char *const[]){"00", "01", "0011", "0101", NULL}, apart_rank);
}

static void case_grouped_apart(struct e2e *e) {
    apart(e, "stream");
}
E2E_CASE(grouped_apart, 60)

static void case_grouped_apart_two(struct e2e *e) {
    apart(e, "two");
}
E2E_CASE(grouped_apart_two, 60)

static void case_grouped_apart_sizes(struct e2e *e) {
    apart(e, "sizes");
}
E2E_CASE(grouped_apart_sizes, 60)

/* Messages of one all-to-all reach a rank together with the next one. While codecs are tried, all must decide alike. */
static void trials_rank(struct e2e_rank *r) {
    enum { ROUNDS = 70 };
    struct any_world w;
    struct any_buffers all, one;
    uint64_t state = 5 + (uint64_t)r->rank;
    any_world_set(&w, r->args, r->rank, e2e_comm(r));
    any_buffers_new(&all, MEMORY_ZIPCCL, MEMORY_ZIPCCL, 1 << 20);
    any_buffers_new(&one, MEMORY_ZIPCCL, MEMORY_ZIPCCL, BYTES);
    for (uint64_t round = 0; round <= ROUNDS; round++) {
        struct any_op a = {.op = zipcclOpAllToAll,
                           .dtype = zipcclBfloat16,
                           .codec = zipcclCodecAuto,
                           .arm = zipcclArmAuto,
                           .count = 60000,
                           .seq = round};
        struct any_op m = {.op = r->rank ? zipcclOpRecv : zipcclOpSend,
                           .dtype = zipcclUint8,
                           .codec = zipcclCodecAuto,
                           .arm = zipcclArmAuto,
                           .count = 100,
                           .root = r->rank ^ 1,
                           .seq = 1000 + round - (r->rank == 1)};
        bool message = r->rank < 2 && (r->rank ? round > 0 : round < ROUNDS);
        if (any_random(&state) % 4 == 0)
            e2e_sleep((double)(any_random(&state) % 8) * 1e-3);
        E2E_OK(NULL, zipcclGroupStart());
        E2E_OK(w.comm, any_issue(&w, NULL, &a, &all));
        if (message)
            E2E_OK(w.comm, any_issue(&w, NULL, &m, &one));
        E2E_OK(w.comm, zipcclGroupEnd());
        any_check(&w, &a, &all);
        if (message)
            any_check(&w, &m, &one);
    }
    any_buffers_free(&all);
    any_buffers_free(&one);
    E2E_OK(NULL, zipcclCommDestroy(w.comm));
}

static void case_grouped_trials(struct e2e *e) {
    e2e_set(e, "link_rate=2gbit");
    layouts(e, 3, (const char *const[]){"01", "012", NULL}, trials_rank);
}
E2E_CASE(grouped_trials, 60)

/* ---- limits ---- */

/* The largest group that is allowed, to this rank itself and to the next one; then groups that are larger. */
static void largest_rank(struct e2e_rank *r) {
    enum { HALF = 2048, WORDS = 4 };
    zipcclComm_t comm = e2e_comm(r);
    void *from = NULL, *to = NULL; /* memory of other kinds takes an area of its own for each */
    float *sums = calloc(600, 4);
    int next = (r->rank + 1) % r->nranks, last = (r->rank + r->nranks - 1) % r->nranks;
    E2E_CHECK(sums, "memory");
    E2E_OK(NULL, zipcclMemAlloc(&from, (size_t)HALF * 16));
    E2E_OK(NULL, zipcclMemAlloc(&to, (size_t)HALF * 16));
    uint32_t *send = from, *recv = to;
    for (uint32_t i = 0; i < HALF * WORDS; i++)
        send[i] = i ^ (uint32_t)r->rank << 24;
    E2E_OK(NULL, zipcclGroupStart());
    for (size_t i = 0; i < HALF; i++) {
        E2E_OK(comm, zipcclSend(send + i * WORDS, WORDS, zipcclUint32, next, comm, NULL));
        E2E_OK(comm, zipcclRecv(recv + i * WORDS, WORDS, zipcclUint32, last, comm, NULL));
    }
    E2E_OK(comm, zipcclGroupEnd());
    for (uint32_t i = 0; i < HALF * WORDS; i++)
        E2E_CHECK(recv[i] == (i ^ (uint32_t)last << 24), "value %u is %x", i, recv[i]);
    E2E_OK(NULL, zipcclGroupStart());
    zipcclResult_t rc = zipcclSuccess;
    for (size_t i = 0; i < 2 * HALF + 1; i++)
        rc = i % 2 ? zipcclSend(send, 1, zipcclUint32, next, comm, NULL)
                   : zipcclRecv(recv, 1, zipcclUint32, last, comm, NULL);
    E2E_CHECK(rc == zipcclLimitExceeded && zipcclGroupEnd() == zipcclLimitExceeded, "%s", e2e_result_name((int)rc));
    /* Collectives: 256 are done, 257 are refused. */
    for (int n = 256; n <= 257; n++) {
        E2E_OK(NULL, zipcclGroupStart());
        rc = zipcclSuccess;
        for (int i = 0; i < n; i++) {
            sums[i] = (float)(r->rank + i);
            zipcclResult_t one = zipcclAllReduce(sums + i, sums + i, 1, zipcclFloat32, zipcclSum, comm, NULL);
            rc = rc ? rc : one;
        }
        zipcclResult_t end = zipcclGroupEnd();
        if (n <= 256)
            E2E_OK(comm, end);
        else
            E2E_CHECK(end == zipcclLimitExceeded, "%s", e2e_result_name((int)end));
        for (int i = 0; i < n; i++) {
            float all = (float)(r->nranks * (r->nranks - 1) / 2 + r->nranks * i), own = (float)(r->rank + i);
            E2E_CHECK(sums[i] == (n <= 256 ? all : own), "sum %d of %d is %g", i, n, (double)sums[i]);
        }
    }
    E2E_OK(comm, zipcclBarrier(comm, NULL));
    E2E_OK(NULL, zipcclMemFree(from));
    E2E_OK(NULL, zipcclMemFree(to));
    free(sums);
    E2E_OK(NULL, zipcclCommDestroy(comm));
}

static void case_largest_groups(struct e2e *e) {
    layouts(e, 2, (const char *const[]){"0", "00", "011", NULL}, largest_rank);
}
E2E_CASE(largest_groups, 60)

/* ---- counts that never come again ---- */

/* An all-to-all-v whose counts are new each time, as those of a mixture of experts are. */
static void counts_rank(struct e2e_rank *r) {
    struct any_world w;
    struct any_buffers b;
    const char *const *args = r->args;
    any_world_set(&w, args[0], r->rank, e2e_comm(r));
    any_buffers_new(&b, MEMORY_ZIPCCL, MEMORY_ZIPCCL, BYTES);
    for (uint64_t i = 0; i < (args[1] ? 600 : 60); i++) {
        struct any_op a = {.op = zipcclOpAllToAllv,
                           .dtype = zipcclBfloat16,
                           .codec = i % 3 ? zipcclCodecAuto : zipcclCodecTier,
                           .arm = zipcclArmAuto,
                           .count = 200 + i * 7,
                           .gaps = i % 2,
                           .seq = i};
        E2E_OK(w.comm, any_issue(&w, NULL, &a, &b));
        if (i % 16 == 0)
            any_check(&w, &a, &b);
    }
    any_buffers_free(&b);
    E2E_OK(NULL, zipcclCommDestroy(w.comm));
}

/* The daemon keeps but a few of their plans. */
static void case_counts_of_experts(struct e2e *e) {
    const char *few[] = {"001122", NULL}, *many[] = {"001122", "many"};
    pool();
    e2e_daemons(e, 3);
    e2e_ranks(e, few[0], counts_rank, few, 40);
    uint64_t before = e2e_proc_kb(e->daemons[0].pid, "VmHWM");
    e2e_ranks(e, many[0], counts_rank, many, 40);
    uint64_t after = e2e_proc_kb(e->daemons[0].pid, "VmHWM");
    E2E_CHECK(E2E_SANITIZED || after < before + 8192, "%llu KiB after a few, %llu KiB after many",
              (unsigned long long)before, (unsigned long long)after);
}
E2E_CASE(counts_of_experts, 90)

/* ---- split ---- */

static struct any_world child_of(const struct any_world *parent, zipcclComm_t comm, const int *members, int n) {
    struct any_world w = {.comm = comm, .nranks = n};
    for (int i = 0; i < n; i++) {
        w.node[i] = parent->node[members[i]];
        w.rank = members[i] == parent->rank ? i : w.rank;
    }
    int count = 0, rank = -1;
    E2E_OK(comm, zipcclCommCount(comm, &count));
    E2E_OK(comm, zipcclCommUserRank(comm, &rank));
    E2E_CHECK(count == n && rank == w.rank, "rank %d of %d, expected %d of %d", rank, count, w.rank, n);
    return w;
}

/* Some operations of both at once: on streams of their own, and in one group. */
static void at_once(const struct any_world *a, const struct any_world *b, uint64_t seed) {
    struct lot *x = calloc(1, sizeof(*x)), *y = calloc(1, sizeof(*y));
    zipcclStream_t s, t;
    uint64_t mine = seed * 7919 + 3, theirs = seed * 104729 + (uint64_t)b->nranks;
    E2E_CHECK(x && y, "memory");
    lot_new(x, a->rank);
    lot_new(y, b->rank);
    E2E_OK(NULL, zipcclStreamCreate(&s));
    E2E_OK(NULL, zipcclStreamCreate(&t));
    for (int round = 0; round < 2; round++) {
        if (round)
            E2E_OK(NULL, zipcclGroupStart());
        for (uint64_t i = 0; i < 5; i++) {
            struct any_op op = any_draw(&mine, a, BYTES, i), other = any_draw(&theirs, b, BYTES, i + 50);
            lot_issue(x, a, round ? NULL : s, &op);
            lot_issue(y, b, round ? NULL : t, &other);
        }
        if (round)
            E2E_OK(NULL, zipcclGroupEnd());
        E2E_OK(a->comm, zipcclStreamSynchronize(s));
        E2E_OK(b->comm, zipcclStreamSynchronize(t));
        lot_check(x, a);
        lot_check(y, b);
    }
    E2E_OK(NULL, zipcclStreamDestroy(s));
    E2E_OK(NULL, zipcclStreamDestroy(t));
    lot_free(x);
    lot_free(y);
    free(x);
    free(y);
}

static void split_rank(struct e2e_rank *r) {
    struct any_world w, half, quarter;
    zipcclComm_t comm = NULL, none = (zipcclComm_t)&w;
    int members[E2E_MAX_RANKS], n = 0;
    any_world_set(&w, r->args, r->rank, e2e_comm(r));
    /* Two colors, keys reversed. */
    E2E_OK(w.comm, zipcclCommSplit(w.comm, r->rank % 2, -r->rank, &comm));
    for (int i = r->nranks - 1; i >= 0; i--)
        if (i % 2 == r->rank % 2)
            members[n++] = i;
    half = child_of(&w, comm, members, n);
    at_once(&w, &half, 1);
    /* A split of the split: its first two ranks, by equal keys; the others get none. */
    bool joins = half.rank < 2;
    E2E_OK(half.comm, zipcclCommSplit(half.comm, joins ? 5 : ZIPCCL_SPLIT_NOCOLOR, 9, joins ? &comm : &none));
    E2E_CHECK(joins || none == NULL, "a communicator of no color");
    E2E_CHECK(zipcclCommSplit(w.comm, -2, 0, &none) == zipcclInvalidArgument, "color -2");
    if (joins) {
        int pair[2] = {0, 1};
        quarter = child_of(&half, comm, pair, half.nranks < 2 ? 1 : 2);
        at_once(&quarter, &quarter, 2);
        E2E_OK(NULL, zipcclCommDestroy(quarter.comm));
    }
    /* The parent may go first. */
    if (r->rank % 2)
        E2E_OK(NULL, zipcclCommDestroy(half.comm));
    E2E_OK(NULL, zipcclCommDestroy(w.comm));
    if (r->rank % 2 == 0) {
        E2E_OK(half.comm, zipcclBarrier(half.comm, NULL));
        E2E_OK(NULL, zipcclCommDestroy(half.comm));
    }
}

static void case_split(struct e2e *e) {
    layouts(e, 3, (const char *const[]){"0", "0000", "0011", "012", "01", NULL}, split_rank);
}
E2E_CASE(split, 60)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_all_pairs),
        cmocka_unit_test(test_grouped_apart),
        cmocka_unit_test(test_grouped_apart_two),
        cmocka_unit_test(test_grouped_apart_sizes),
        cmocka_unit_test(test_grouped_trials),
        cmocka_unit_test(test_largest_groups),
        cmocka_unit_test(test_counts_of_experts),
        cmocka_unit_test(test_split),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

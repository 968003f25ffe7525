/* SPDX-License-Identifier: Apache-2.0
 *
 * zipcclCommSplit where NCCL carries the parent: NCCL's communicators of what it makes come of the parent's, on all
 * nodes or on none; the bits of what is sent there; what fails in the middle of a split.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_faults.h"
#include "raw.h"

enum { COUNT = 30000, ALL = 5 };

/* Where all ranks of a split go, and by which keys. */
struct goal {
    int color[ALL], key[ALL];
};

static uint16_t value(int rank, unsigned i, unsigned round) {
    return (uint16_t)(0x3f80u + (i * 7 + round * 13 + (unsigned)rank * 31) % 256);
}

/* All-gathers of this communicator, raw as a whole and coded by messages; from: the members' numbers in the first one.
 */
static void talk(zipcclComm_t comm, const struct gpu_rank *g, const int *from) {
    static uint16_t host[ALL * COUNT];
    uint16_t *memory;
    int n, me;
    E2E_OK(comm, zipcclCommCount(comm, &n));
    E2E_OK(comm, zipcclCommUserRank(comm, &me));
    const size_t bytes = (size_t)n * COUNT * sizeof(*host);
    CUDA_OK(cudaMalloc((void **)&memory, bytes));
    for (unsigned k = 0; k < 2; k++) {
        uint16_t *own = memory + (size_t)me * COUNT;
        for (unsigned i = 0; i < COUNT; i++)
            host[i] = value(from[me], i, k);
        E2E_OK(comm, zipcclCommSetCodec(comm, k ? zipcclCodecTier : zipcclCodecRaw));
        CUDA_OK(cudaMemcpyAsync(own, host, COUNT * sizeof(*host), cudaMemcpyDefault, g->cuda));
        E2E_OK(comm, zipcclAllGather(own, memory, COUNT, zipcclBfloat16, comm, g->stream));
        CUDA_OK(cudaMemcpyAsync(host, memory, bytes, cudaMemcpyDefault, g->cuda));
        CUDA_OK(cudaStreamSynchronize(g->cuda));
        for (unsigned i = 0; i < (unsigned)n * COUNT; i++)
            E2E_CHECK(host[i] == value(from[i / COUNT], i % COUNT, k), "round %u, value %u of rank %d", k, i % COUNT,
                      from[i / COUNT]);
    }
    E2E_OK(NULL, zipcclStreamSynchronize(g->stream));
    E2E_OK(NULL, zipcclCudaForget(memory));
    CUDA_OK(cudaFree(memory));
}

/* The split of a communicator whose members have these numbers; theirs in the new one go to `to`. */
static zipcclComm_t split(zipcclComm_t comm, const int *from, int n, const struct goal *goal, int *to) {
    zipcclComm_t child;
    int me, size, mine;
    E2E_OK(comm, zipcclCommUserRank(comm, &me));
    const int color = goal->color[from[me]];
    E2E_OK(comm, zipcclCommSplit(comm, color, goal->key[from[me]], &child));
    E2E_CHECK((child == NULL) == (color == ZIPCCL_SPLIT_NOCOLOR), "color %d", color);
    if (!child)
        return NULL;
    int members = 0;
    for (int i = 0; i < n; i++) {
        int at = members;
        if (goal->color[from[i]] != color)
            continue;
        for (; at > 0 && goal->key[to[at - 1]] > goal->key[from[i]]; at--)
            to[at] = to[at - 1];
        to[at] = from[i];
        members++;
    }
    E2E_OK(child, zipcclCommCount(child, &size));
    E2E_OK(child, zipcclCommUserRank(child, &mine));
    E2E_CHECK(size == members && to[mine] == from[me], "rank %d of %d", mine, size);
    return child;
}

static int gpu_on_node(const char *layout, int rank) {
    int n = 0;
    for (int i = 0; i < rank; i++)
        n += layout[i] == layout[rank];
    return n;
}

struct job {
    const char *layout;
    bool shared_gpu; /* all ranks of a node use its first one */
};

/* Two new ones; one without rank 2, the only one of its node; of that two more, which outlive all others. */
static void splits_rank(struct e2e_rank *r) {
    static const int all[ALL] = {0, 1, 2, 3, 4};
    static const struct goal two = {{7, 3, 3, 3, 7}, {0, 2, 0, 1, 0}};
    static const struct goal some = {{1, 1, ZIPCCL_SPLIT_NOCOLOR, 1, 1}, {0, 0, 0, 0, 0}};
    static const struct goal again = {{0, 0, 0, 5, 5}, {1, 0, 0, 1, 0}};
    const struct job *job = r->args;
    struct gpu_rank g;
    int in_two[ALL], in_some[ALL], in_again[ALL];
    gpu_rank_begin(&g, job->shared_gpu ? 0 : gpu_on_node(job->layout, r->rank));
    zipcclComm_t comm = e2e_comm(r);
    zipcclComm_t first = split(comm, all, r->nranks, &two, in_two);
    talk(first, &g, in_two);
    zipcclComm_t second = split(comm, all, r->nranks, &some, in_some);
    talk(comm, &g, all);
    zipcclComm_t third = second ? split(second, in_some, 4, &again, in_again) : NULL;
    E2E_OK(NULL, zipcclCommDestroy(comm));
    if (second)
        talk(second, &g, in_some);
    talk(first, &g, in_two);
    E2E_OK(NULL, zipcclCommDestroy(first));
    E2E_OK(NULL, zipcclCommDestroy(second));
    if (third)
        talk(third, &g, in_again);
    E2E_OK(NULL, zipcclCommDestroy(third));
    gpu_rank_end(&g);
}

static void expect(const struct e2e *e, unsigned node, uint64_t n) {
    uint64_t found = raw_counter(e->daemons[node].socket, "nccl_splits");
    E2E_CHECK(found == n, "node %u: %llu were made by splits, not %llu", node, (unsigned long long)found,
              (unsigned long long)n);
}

/* Pools go with the last communicator of NCCL: none is left behind. */
static void expect_no_pools(const struct e2e *e) {
    for (unsigned node = 0; node < e->ndaemons; node++) {
        uint64_t bytes = 1;
        for (double end = e2e_now() + 10 * E2E_SLOW; bytes > 0 && e2e_now() < end; e2e_sleep(0.01)) {
            Zipccl__Status *s = raw_status(e->daemons[node].socket);
            bytes = 0;
            for (size_t i = 0; i < s->n_gpus; i++)
                bytes += s->gpus[i]->pool_bytes;
            zipccl__status__free_unpacked(s, NULL);
        }
        E2E_CHECK(bytes == 0, "node %u: pools of %llu bytes", node, (unsigned long long)bytes);
    }
}

static void start(struct e2e *e, unsigned nodes) {
    e2e_set(e, "device=cuda");
    e2e_set(e, "fabric=nccl");
    e2e_daemons(e, nodes);
}

/* Two jobs at a time on the same GPUs, in whose splits ranks are elsewhere. */
static void case_splits(struct e2e *e) {
    static const struct job jobs[] = {{"01201", false}, {"10210", false}};
    struct e2e_group g[2];
    start(e, 3);
    for (unsigned i = 0; i < 2; i++)
        e2e_start(e, &g[i], jobs[i].layout, splits_rank, &jobs[i]);
    for (unsigned i = 0; i < 2; i++) {
        e2e_wait(e, &g[i], 60);
        e2e_all_passed(e, &g[i]);
    }
    expect(e, 0, 2 * 5);
    expect(e, 1, 2 * 5);
    expect(e, 2, 2 * 1);
    expect_no_pools(e);
}
E2E_CASE(splits, 80)

/* Ranks share a GPU, or one node has it off: then each is made by itself, to the same effect. */
static void case_alone(struct e2e *e) {
    static const struct job shared = {"01201", true}, own = {"01201", false};
    start(e, 3);
    e2e_ranks(e, shared.layout, splits_rank, &shared, 60);
    /* The first two that it makes have a GPU of each node, but their parent has not. */
    for (unsigned node = 0; node < 3; node++)
        expect(e, node, 0);
    e2e_daemon_stop(e, 2, 20);
    e2e_set(e, "nccl_split=off");
    e2e_daemon_start(e, 2);
    e2e_ranks(e, own.layout, splits_rank, &own, 60);
    /* The second one has no rank on that node. */
    for (unsigned node = 0; node < 3; node++)
        expect(e, node, node < 2 ? 2 : 0);
}
E2E_CASE(alone, 80)

/* ---- failures ---- */

enum { FLAG_STOP, FLAG_THERE };

/* A job on the same GPUs. */
static void bystander_rank(struct e2e_rank *r) {
    static const int all[ALL] = {0, 1, 2, 3, 4};
    struct gpu_rank g;
    gpu_rank_begin(&g, *(const int *)r->args);
    zipcclComm_t comm = e2e_comm(r);
    e2e_meet(r->shared, r->nranks);
    for (uint8_t stop = 0; !stop; e2e_sleep(0.002)) {
        talk(comm, &g, all);
        stop = (uint8_t)atomic_load(&r->shared->flags[FLAG_STOP]);
        E2E_OK(comm, zipcclBroadcast(&stop, &stop, 1, zipcclUint8, 0, comm, NULL));
    }
    E2E_OK(NULL, zipcclCommDestroy(comm));
    gpu_rank_end(&g);
}

struct failure {
    int victim; /* a rank that comes to the split and goes no further; -1: none */
};

/* What zipcclCommSplit sends to the other ranks, and nothing behind it. */
static void half_split(struct e2e_rank *r, zipcclComm_t comm) {
    struct {
        int32_t color, key;
    } own = {r->rank / 2, 0}, choices[ALL];
    struct {
        zipcclUniqueId id;
        uint32_t result;
        char why[252];
    } mine = {.result = 0}, ids[ALL];
    E2E_OK(comm, zipcclAllGather(&own, choices, sizeof(own), zipcclUint8, comm, NULL));
    E2E_OK(comm, zipcclAllGather(&mine, ids, sizeof(mine), zipcclUint8, comm, NULL));
    e2e_raise(r->shared, FLAG_THERE);
    for (;;)
        pause();
}

static void failing_rank(struct e2e_rank *r) {
    const struct failure *failure = r->args;
    struct gpu_rank g;
    zipcclComm_t child = NULL;
    gpu_rank_begin(&g, gpu_on_node("0101", r->rank));
    zipcclComm_t comm = e2e_comm(r);
    if (r->rank == failure->victim)
        half_split(r, comm);
    double begun = e2e_now();
    zipcclResult_t error = zipcclCommSplit(comm, r->rank / 2, 0, &child);
    if (error == zipcclSuccess && child) /* the other one's GPU may have been first */
        error = zipcclBarrier(child, NULL);
    e2e_report(r, error, comm, begun);
    if (error == zipcclSuccess) {
        E2E_OK(NULL, zipcclCommDestroy(child));
        E2E_OK(NULL, zipcclCommDestroy(comm));
    } else { /* of either */
        (void)zipcclCommAbort(child);
        (void)zipcclCommAbort(comm);
    }
    gpu_rank_end(&g);
}

/* All ranks but the victim have an error, soon, with all texts in it; the others go on, and so does the next job. */
static void expect_errors(struct e2e *e, struct e2e_group *g, int victim, const char *a, const char *b) {
    for (int rank = 0; rank < g->nranks; rank++) {
        if (rank == victim)
            continue;
        const struct e2e_report *report = &g->shared->reports[rank];
        e2e_wait_rank(e, g, rank, 10);
        E2E_CHECK(report->result > 0, "rank %d: %s", rank, e2e_result_name(report->result));
        E2E_CHECK(e2e_mentions(report->text, a) && e2e_mentions(report->text, b), "rank %d: %s", rank, report->text);
    }
}

static void next_job(struct e2e *e) {
    struct e2e_group g;
    static const struct failure none = {-1};
    e2e_start(e, &g, "0101", failing_rank, &none);
    e2e_wait(e, &g, 20);
    for (int rank = 0; rank < g.nranks; rank++)
        E2E_CHECK(g.shared->reports[rank].result == zipcclSuccess, "rank %d: %s", rank, g.shared->reports[rank].text);
    e2e_all_passed(e, &g);
}

static void tell(int fd, uint64_t comm, uint32_t number, bool good) {
    Zipccl__CommSplit m = ZIPCCL__COMM_SPLIT__INIT;
    struct raw_frame f;
    m.comm = comm;
    m.split = number;
    E2E_CHECK(raw_message(fd, WIRE_COMM_SPLIT, number, &m.base, NULL, 0), "send");
    if (good)
        raw_expect(fd, &f, WIRE_OK);
    else
        raw_expect_error(fd, zipcclInvalidUsage, "counted");
}

/* What clients say of splits is checked, and what waits for others is bounded, and goes with them. */
static void wrong_numbers(struct e2e *e) {
    int fds[3];
    uint64_t comm = 0;
    for (unsigned i = 0; i < 3; i++)
        fds[i] = raw_session(e->daemons[i / 2].socket, "numbers");
    zipcclUniqueId id = raw_unique_id(fds[0]);
    for (uint32_t rank = 0; rank < 3; rank++) {
        Zipccl__CommInit init = ZIPCCL__COMM_INIT__INIT;
        init.unique_id = (ProtobufCBinaryData){sizeof(id), (uint8_t *)&id};
        init.nranks = 3;
        init.rank = rank;
        E2E_CHECK(raw_message(fds[rank], WIRE_COMM_INIT, 3, &init.base, NULL, 0), "send");
    }
    for (unsigned i = 0; i < 3; i++) {
        struct raw_frame f;
        raw_expect(fds[i], &f, WIRE_COMM_INIT_REPLY);
        Zipccl__CommInitReply *reply = zipccl__comm_init_reply__unpack(NULL, f.header.length, f.payload);
        E2E_CHECK(reply, "reply");
        comm = i == 0 ? reply->comm : comm;
        zipccl__comm_init_reply__free_unpacked(reply, NULL);
    }
    tell(fds[0], comm + 1, 7, true); /* not known: it may have been left */
    tell(fds[0], comm, 2, false);
    tell(fds[0], comm, 0, false);
    for (uint32_t i = 1; i <= 4; i++)
        tell(fds[0], comm, i, true);
    tell(fds[0], comm, 4, true);  /* twice */
    tell(fds[0], comm, 5, false); /* rank 1 has come to none */
    for (unsigned i = 0; i < 3; i++)
        close(fds[i]);
    raw_nothing_left(e);
}

/* A trainer, or the daemon of its node, ends when all others have come to the split. */
static void case_deaths(struct e2e *e) {
    static const struct failure last = {3};
    static const int gpus[2] = {0, 1};
    struct e2e_group g, others[2];
    start(e, 2);
    wrong_numbers(e);
    for (unsigned i = 0; i < 2; i++)
        e2e_start(e, &others[i], "01", bystander_rank, &gpus[i]);
    e2e_start(e, &g, "0101", failing_rank, &last);
    e2e_await(g.shared, FLAG_THERE);
    e2e_sleep(0.05);
    E2E_CHECK(kill(g.pids[3], SIGKILL) == 0, "kill");
    expect_errors(e, &g, 3, "split from failed", "rank 3 (pid");
    next_job(e);
    for (unsigned i = 0; i < 2; i++) {
        e2e_raise(others[i].shared, FLAG_STOP);
        e2e_wait(e, &others[i], 20);
        e2e_all_passed(e, &others[i]);
    }
    e2e_start(e, &g, "0101", failing_rank, &last);
    e2e_await(g.shared, FLAG_THERE);
    e2e_sleep(0.05);
    e2e_daemon_kill(e, 1);
    expect_errors(e, &g, 3, "", "node|zipccld");
    E2E_CHECK(kill(g.pids[3], SIGKILL) == 0, "kill");
    e2e_daemon_start(e, 1);
    next_job(e);
}
E2E_CASE(deaths, 80)

/* An error of ncclCommSplit itself; a worker that dies of it. */
static void case_errors(struct e2e *e) {
    static const char *const errors[] = {"3", "kill"};
    static const struct failure none = {-1};
    gpu_counted_daemons(e);
    next_job(e);
    for (unsigned i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
        struct e2e_group g;
        gpu_arm(e, "ncclCommSplit", errors[i]);
        e2e_start(e, &g, "0101", failing_rank, &none);
        expect_errors(e, &g, -1, "", "split");
        gpu_arm(e, NULL, NULL);
        next_job(e);
        expect_no_pools(e);
        e2e_daemons_live(e);
    }
}
E2E_CASE(errors, 80)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_splits), cmocka_unit_test(test_alone),
                                       cmocka_unit_test(test_deaths), cmocka_unit_test(test_errors)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

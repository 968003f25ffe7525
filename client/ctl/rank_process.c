/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank of bench collective.
 */
#include "client/ctl/rank_process.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/bench_data.h"
#include "client/ctl/units.h"
#include "client/lib/admin.h"
#include "kernels/dtype.h"
#include "proto/op.h"

#define ADMIN_MS    10000
#define SPINS       200 /* looks at the meeting place before the processor goes to others */
#define ID_PAUSE_US 500
#define POISON      0xa5
#define FILE_SHIFT  4096 /* so that ranks differ where a file's length divides the size */
#define SMALL_BYTES (64u << 10)
#define ROOT        0

struct rank {
    const struct ranks *r;
    struct rank_shared *shared;
    unsigned rank, node;
    uint64_t meetings;
    zipcclComm_t comm;
    struct admin *admin; /* of the first rank of a node: it counts bytes */
    void *send, *recv;
    size_t size; /* index */
    uint64_t bytes, count, arrives;
};

struct snapshot {
    uint64_t count[zipcclNumCodecs], wire[zipcclNumCodecs], raw[zipcclNumCodecs];
};

static int fail(struct rank *me, const char *what, const char *why) {
    int fine = RANK_FINE;
    if (atomic_compare_exchange_strong(&me->shared->trouble, &fine, RANK_WRITES_WHY)) {
        (void)snprintf(me->shared->why, sizeof me->shared->why, "rank %u: %s: %.400s", me->rank, what, why);
        atomic_store(&me->shared->trouble, RANK_TOLD_WHY);
    }
    return -1;
}

static int fail_zipccl(struct rank *me, const char *what) {
    return fail(me, what, zipcclGetLastError(me->comm));
}

/* All ranks leave it as nearly together as the machine lets them: they look at memory, they do not sleep. */
static int meet(struct rank *me) {
    uint64_t all = ++me->meetings * me->r->nranks;
    atomic_fetch_add(&me->shared->met, 1);
    for (unsigned spins = 0; atomic_load(&me->shared->met) < all; spins++) {
        if (atomic_load(&me->shared->trouble) != RANK_FINE)
            return -1;
        if (spins >= SPINS)
            (void)sched_yield();
    }
    return 0;
}

static int take_snapshot(struct rank *me, struct snapshot *s) {
    Zipccl__Stats *stats = NULL;
    memset(s, 0, sizeof *s);
    if (!me->admin)
        return 0;
    if (admin_stats(me->admin, NULL, &stats) != zipcclSuccess)
        return fail(me, "statistics", admin_why(me->admin));
    for (size_t i = 0; i < stats->n_ops; i++) {
        const Zipccl__OpStats *o = stats->ops[i];
        if (o->op != (uint32_t)me->r->plan.op || o->codec >= zipcclNumCodecs)
            continue;
        s->count[o->codec] += o->count;
        s->wire[o->codec] += o->wire_bytes;
        s->raw[o->codec] += o->raw_bytes;
    }
    zipccl__stats__free_unpacked(stats, NULL);
    return 0;
}

static void count_bytes(struct rank *me, unsigned arm, const struct snapshot *before, const struct snapshot *after) {
    struct rank_bytes *b = &me->shared->sizes[me->size].bytes[arm][me->node];
    for (unsigned c = 0; me->admin && c < zipcclNumCodecs; c++) {
        if (after->count[c] == before->count[c])
            continue;
        b->count += after->count[c] - before->count[c];
        b->wire += after->wire[c] - before->wire[c];
        b->raw += after->raw[c] - before->raw[c];
        b->codec = (zipcclCodec_t)c;
    }
}

static zipcclResult_t operate(struct rank *me) {
    const struct ranks_plan *plan = &me->r->plan;
    switch (plan->op) {
    case zipcclOpAllGather:
        return zipcclAllGather(me->send, me->recv, me->count, plan->dtype, me->comm, NULL);
    case zipcclOpBroadcast:
        return zipcclBroadcast(me->send, me->recv, me->count, plan->dtype, ROOT, me->comm, NULL);
    default:
        return zipcclBarrier(me->comm, NULL);
    }
}

/* One operation of one arm. In the first and the last round, outside of the timing: buffers are overwritten before,
 * bits compared and bytes counted after. stamp NULL: it warms up. */
static int one_round(struct rank *me, unsigned arm, struct rank_stamp *stamp, bool checked) {
    const struct ranks_plan *plan = &me->r->plan;
    struct snapshot before, after;
    if (checked && me->recv)
        memset(me->recv, POISON, me->arrives);
    if (checked && take_snapshot(me, &before))
        return -1;
    if (zipcclCommSetCodec(me->comm, arm == RANKS_RAW ? zipcclCodecRaw : plan->codec) != zipcclSuccess ||
        zipcclBarrier(me->comm, NULL) != zipcclSuccess)
        return fail_zipccl(me, "barrier");
    if (meet(me))
        return -1;
    uint64_t start = units_now_ns();
    zipcclResult_t result = operate(me);
    uint64_t end = units_now_ns();
    if (result != zipcclSuccess)
        return fail_zipccl(me, op_name((unsigned)plan->op));
    if (stamp)
        stamp[me->rank] = (struct rank_stamp){start, end};
    if (checked && me->recv && memcmp(me->recv, me->r->values, me->arrives) != 0)
        atomic_store(&me->shared->sizes[me->size].differs, true);
    if (checked && take_snapshot(me, &after))
        return -1;
    if (checked)
        count_bytes(me, arm, &before, &after);
    return 0;
}

static uint32_t default_warmup(uint64_t bytes) {
    return bytes <= SMALL_BYTES ? 100 : 8; /* past the trial in which the daemon compares raw and coded */
}

/* pair_ns: what a round of both arms takes. */
static uint32_t rounds_for(const struct ranks *r, uint64_t pair_ns) {
    if (r->plan.iters)
        return r->plan.iters;
    uint64_t rounds = pair_ns ? RANK_AUTO_NS / pair_ns : 0;
    return rounds < RANK_AUTO_LEAST ? RANK_AUTO_LEAST : rounds > RANK_AUTO_ITERS ? RANK_AUTO_ITERS : (uint32_t)rounds;
}

static int run_rounds(struct rank *me) {
    const struct ranks *r = me->r;
    struct rank_size *size = &me->shared->sizes[me->size];
    uint32_t warmup = r->plan.has_warmup ? r->plan.warmup : default_warmup(me->bytes);
    uint64_t pair_ns = 0;
    for (uint32_t i = 0; i < warmup; i++) {
        uint64_t start = units_now_ns();
        for (unsigned arm = 0; arm < r->plan.arms; arm++)
            if (one_round(me, arm, NULL, false))
                return -1;
        pair_ns = units_now_ns() - start;
    }
    if (me->rank == 0)
        atomic_store(&size->rounds, rounds_for(r, pair_ns));
    if (meet(me))
        return -1;
    uint32_t rounds = atomic_load(&size->rounds);
    for (uint32_t i = 0; i < rounds; i++) {
        for (unsigned arm = 0; arm < r->plan.arms; arm++)
            if (one_round(me, arm, rank_stamp_at(r, me->size, arm, i), i == 0 || i + 1 == rounds))
                return -1;
        if (me->rank == 0)
            atomic_store(&me->shared->round, i + 1);
    }
    return 0;
}

static void fill(const struct rank *me) {
    const struct ranks_plan *plan = &me->r->plan;
    bool gathers = plan->op == zipcclOpAllGather;
    uint8_t *mine = me->r->values + (gathers ? me->rank * me->bytes : 0);
    if (!gathers && me->rank != ROOT)
        return;
    if (plan->tensor)
        bench_repeat(mine, me->bytes, plan->tensor, me->rank * (me->bytes + FILE_SHIFT));
    else
        bench_gauss(mine, me->bytes, plan->dtype, me->size * RANKS_MAX + me->rank + 1);
    memcpy(me->send, mine, me->bytes);
}

static int run_size(struct rank *me) {
    const struct ranks_plan *plan = &me->r->plan;
    me->bytes = plan->sizes[me->size];
    me->count = me->bytes / dtype_get(plan->dtype)->bytes;
    me->arrives = plan->op == zipcclOpAllGather ? me->bytes * me->r->nranks : me->bytes;
    if (me->r->values) {
        if (zipcclMemAlloc(&me->send, me->bytes) != zipcclSuccess ||
            zipcclMemAlloc(&me->recv, me->arrives) != zipcclSuccess)
            return fail(me, "memory", zipcclGetLastError(NULL));
        fill(me);
    }
    if (me->rank == 0) {
        atomic_store(&me->shared->round, 0);
        atomic_store(&me->shared->size, (unsigned)me->size);
    }
    /* Nobody compares before all have filled, nobody fills again before all have compared. */
    int rc = meet(me) || run_rounds(me) || meet(me) ? -1 : 0;
    if (me->send)
        (void)zipcclMemFree(me->send);
    if (me->recv)
        (void)zipcclMemFree(me->recv);
    me->send = me->recv = NULL;
    return rc;
}

static int join(struct rank *me) {
    struct rank_shared *shared = me->shared;
    if (me->rank == 0) {
        if (zipcclGetUniqueId(&shared->id) != zipcclSuccess)
            return fail(me, "unique id", zipcclGetLastError(NULL));
        atomic_store(&shared->has_id, true);
    }
    while (!atomic_load(&shared->has_id)) {
        if (atomic_load(&shared->trouble) != RANK_FINE)
            return -1;
        (void)usleep(ID_PAUSE_US);
    }
    if (zipcclCommInitRank(&me->comm, (int)me->r->nranks, shared->id, (int)me->rank) != zipcclSuccess)
        return fail(me, "join", zipcclGetLastError(NULL));
    if (me->rank % me->r->plan.per_node == 0 &&
        admin_open(me->r->daemons->daemons[me->node].socket, ADMIN_MS, &me->admin) != zipcclSuccess)
        return fail(me, "statistics", admin_why(me->admin));
    return 0;
}

int rank_run(const struct ranks *r, unsigned rank) {
    struct rank me = {.r = r, .shared = r->shared, .rank = rank, .node = rank / r->plan.per_node};
    int rc;
    if (setenv("ZIPCCL_SOCKET", r->daemons->daemons[me.node].socket, 1) != 0 ||
        setenv("ZIPCCL_JOB_ID", "bench", 1) != 0)
        rc = fail(&me, "environment", "no memory");
    else
        rc = join(&me);
    for (me.size = 0; me.size < r->plan.nsizes && !rc; me.size++)
        rc = run_size(&me);
    admin_close(me.admin);
    if (me.comm && !rc && zipcclCommDestroy(me.comm) != zipcclSuccess)
        rc = fail(&me, "leave", zipcclGetLastError(NULL));
    return rc ? 1 : 0;
}

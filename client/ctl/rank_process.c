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
#include "client/ctl/reference.h"
#include "client/ctl/units.h"
#include "client/lib/admin.h"
#include "kernels/dtype.h"
#include "proto/op.h"

#define ADMIN_MS        10000
#define SPINS           200 /* looks at the meeting place before the processor goes to others */
#define ID_PAUSE_US     500
#define POISON          0xa5
#define FILE_SHIFT      4096 /* so that ranks differ where a file's length divides the size */
#define WARMUP_FIRST    8u
#define WARMUP_SWITCHER 3u
#define WARMUP_LEAST    12u
#define WARMUP_MOST     200u
#define WARMUP_NS       4000000000u
#define ROOT            ((int)LAYOUT_ROOT)

struct rank {
    const struct ranks *r;
    struct rank_shared *shared;
    unsigned rank, node;
    uint64_t meetings;
    zipcclComm_t comm;
    struct admin *admin; /* of the first rank of a node: it counts bytes */
    void *send, *recv;
    size_t size; /* index */
    struct layout layout;
    size_t stride;
    uint64_t sends, arrives; /* bytes */
    size_t *counts;          /* v operations: all counts; all-to-all-v: to send, then to receive */
    zipcclRedOp_t redop;
};

/* Of all operations but barriers, by codec. */
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
        if (o->op == zipcclOpBarrier || o->codec >= zipcclNumCodecs)
            continue;
        s->count[o->codec] += o->count;
        s->wire[o->codec] += o->wire_bytes;
        s->raw[o->codec] += o->raw_bytes;
    }
    zipccl__stats__free_unpacked(stats, NULL);
    return 0;
}

/* An operation of pairs may count as many on its node, in several codecs: the one that sent most is told. */
static void count_bytes(struct rank *me, unsigned arm, const struct snapshot *before, const struct snapshot *after) {
    struct rank_bytes *b = &me->shared->sizes[me->size].bytes[arm][me->node];
    uint64_t most = 0;
    bool any = false;
    for (unsigned c = 0; me->admin && c < zipcclNumCodecs; c++) {
        uint64_t wire = after->wire[c] - before->wire[c];
        if (after->count[c] == before->count[c])
            continue;
        b->wire += wire;
        b->raw += after->raw[c] - before->raw[c];
        if (!any || wire > most)
            b->codec = (zipcclCodec_t)c;
        most = wire > most ? wire : most;
        any = true;
    }
    b->count += any;
}

static zipcclResult_t exchange_pairs(struct rank *me) {
    const struct ranks_plan *plan = &me->r->plan;
    int to = (int)layout_partner(&me->layout, me->rank), from = (int)layout_source(&me->layout, me->rank);
    zipcclResult_t r = zipcclGroupStart();
    if (r != zipcclSuccess)
        return r;
    r = zipcclSend(me->send, me->layout.count, plan->dtype, to, me->comm, NULL);
    if (r == zipcclSuccess)
        r = zipcclRecv(me->recv, me->layout.count, plan->dtype, from, me->comm, NULL);
    zipcclResult_t ended = zipcclGroupEnd();
    return r == zipcclSuccess ? ended : r;
}

static zipcclResult_t operate(struct rank *me) {
    const struct ranks_plan *plan = &me->r->plan;
    const zipcclDataType_t t = plan->dtype;
    size_t count = me->layout.count;
    switch (plan->op) {
    case zipcclOpAllGather:
        return zipcclAllGather(me->send, me->recv, count, t, me->comm, NULL);
    case zipcclOpAllGatherv:
        return zipcclAllGatherv(me->send, me->recv, me->counts, t, me->comm, NULL);
    case zipcclOpBroadcast:
        return zipcclBroadcast(me->send, me->recv, count, t, ROOT, me->comm, NULL);
    case zipcclOpAllReduce:
        return zipcclAllReduce(me->send, me->recv, count, t, me->redop, me->comm, NULL);
    case zipcclOpReduce:
        return zipcclReduce(me->send, me->recv, count, t, me->redop, ROOT, me->comm, NULL);
    case zipcclOpReduceScatter:
        return zipcclReduceScatter(me->send, me->recv, count, t, me->redop, me->comm, NULL);
    case zipcclOpReduceScatterv:
        return zipcclReduceScatterv(me->send, me->recv, me->counts, t, me->redop, me->comm, NULL);
    case zipcclOpAllToAll:
        return zipcclAllToAll(me->send, me->recv, count, t, me->comm, NULL);
    case zipcclOpAllToAllv:
        return zipcclAllToAllv(me->send, me->counts, NULL, me->recv, me->counts + me->r->nranks, NULL, t, me->comm,
                               NULL);
    case zipcclOpAllToAllCapped: /* full segments */
        return zipcclAllToAllCapped(me->send, (uint64_t *)me->counts, me->recv, (uint64_t *)me->counts + me->r->nranks,
                                    count, t, me->comm, NULL);
    case zipcclOpGather:
        return zipcclGather(me->send, me->recv, count, t, ROOT, me->comm, NULL);
    case zipcclOpScatter:
        return zipcclScatter(me->send, me->recv, count, t, ROOT, me->comm, NULL);
    case zipcclOpSend:
    case zipcclOpRecv:
        return exchange_pairs(me);
    default:
        return zipcclBarrier(me->comm, NULL);
    }
}

/* Whether `bytes` of what arrived from `at` on are those of a rank. Moves `at`. */
static bool came_from(const struct rank *me, unsigned rank, uint64_t offset, uint64_t bytes, uint64_t *at) {
    const uint8_t *sent = me->r->values + rank * me->stride + offset, *got = (const uint8_t *)me->recv + *at;
    *at += bytes;
    return !bytes || memcmp(got, sent, bytes) == 0;
}

static bool moved_right(const struct rank *me) {
    const struct layout *l = &me->layout;
    uint64_t at = 0;
    bool ok = true;
    switch (l->op) {
    case zipcclOpBroadcast:
        return came_from(me, LAYOUT_ROOT, 0, l->bytes, &at);
    case zipcclOpScatter:
        return came_from(me, LAYOUT_ROOT, me->rank * l->bytes, l->bytes, &at);
    case zipcclOpSend:
        return came_from(me, layout_source(l, me->rank), 0, l->bytes, &at);
    case zipcclOpAllToAll:
    case zipcclOpAllToAllv:
    case zipcclOpAllToAllCapped:
        for (unsigned from = 0; from < l->nranks; from++)
            ok = came_from(me, from, layout_part_at(l, from, me->rank) * l->width,
                           layout_part(l, from, me->rank) * l->width, &at) &&
                 ok;
        return ok;
    default: /* gathers */
        for (unsigned from = 0; from < l->nranks; from++)
            ok = came_from(me, from, 0, layout_send_bytes(l, from), &at) && ok;
        return ok;
    }
}

static struct reference reference_of(const struct rank *me) {
    const struct ranks_plan *plan = &me->r->plan;
    return (struct reference){.dtype = plan->dtype,
                              .redop = plan->redop,
                              .nodes = plan->nodes,
                              .per_node = plan->per_node,
                              .values = me->r->values,
                              .stride = me->stride};
}

static enum ranks_bits reduced_right(const struct rank *me) {
    const struct layout *l = &me->layout;
    struct reference ref = reference_of(me);
    bool scatters = l->op == zipcclOpReduceScatter || l->op == zipcclOpReduceScatterv;
    uint64_t first = scatters ? layout_part_at(l, 0, me->rank) : 0;
    if (memcmp(me->recv, me->r->results + first * l->width, me->arrives) == 0)
        return RANKS_EQUAL;
    /* The ring has an order of its own. */
    if (me->r->plan.way != zipcclArmRing || !reference_near(&ref, first, me->arrives / l->width, me->recv))
        return RANKS_DIFFER;
    return RANKS_NEAR;
}

static void check(struct rank *me) {
    atomic_int *worst = &me->shared->sizes[me->size].bits;
    if (!me->arrives)
        return;
    int bits = (int)(op_reduces(me->layout.op) ? reduced_right(me) : moved_right(me) ? RANKS_EQUAL : RANKS_DIFFER);
    int old = atomic_load(worst);
    while (bits > old && !atomic_compare_exchange_weak(worst, &old, bits))
        ;
}

/* The last rank comes late. It keeps its processor: a sleep would end when the system likes. */
static void be_late(const struct rank *me, uint64_t ns) {
    uint64_t end = units_now_ns() + ns;
    while (me->rank + 1 == me->r->nranks && units_now_ns() < end)
        (void)sched_yield();
}

/* One operation of one arm. In the first and the last round, outside of the timing: buffers are overwritten before,
 * bits compared and bytes counted after. stamp NULL: it warms up. */
static int one_round(struct rank *me, unsigned arm, uint64_t late_ns, struct rank_stamp *stamp, bool checked) {
    const struct ranks_plan *plan = &me->r->plan;
    struct snapshot before, after;
    if (checked && me->recv)
        memset(me->recv, POISON, me->arrives);
    /* Nobody of the node is still in the round before. */
    if (checked && (meet(me) || take_snapshot(me, &before)))
        return -1;
    if (zipcclCommSetCodec(me->comm, plan->picks[arm].codec) != zipcclSuccess ||
        zipcclCommSetArm(me->comm, plan->picks[arm].way) != zipcclSuccess ||
        zipcclBarrier(me->comm, NULL) != zipcclSuccess)
        return fail_zipccl(me, "barrier");
    if (meet(me))
        return -1;
    if (late_ns)
        be_late(me, late_ns);
    uint64_t start = units_now_ns();
    zipcclResult_t result = operate(me);
    uint64_t end = units_now_ns();
    if (result != zipcclSuccess)
        return fail_zipccl(me, op_name((unsigned)plan->op));
    if (stamp)
        stamp[me->rank] = (struct rank_stamp){start, end};
    if (!checked)
        return 0;
    check(me);
    /* All ranks of the node have sent what they send. */
    if (meet(me) || take_snapshot(me, &after))
        return -1;
    count_bytes(me, arm, &before, &after);
    return 0;
}

/* Rounds before the timed ones, after the first few: past the trials in which the daemon compares codecs, as far as
 * they end in a bearable time. */
static uint32_t more_warmup(const struct ranks *r, uint64_t pair_ns) {
    bool chooses = r->plan.arms > 1 && r->plan.codec == zipcclCodecAuto;
    chooses = chooses || (op_reduces(r->plan.op) && r->plan.way == zipcclArmAuto);
    if (r->plan.has_warmup || r->plan.switcher || !chooses)
        return 0;
    uint64_t rounds = WARMUP_NS / (pair_ns ? pair_ns : 1);
    return rounds < WARMUP_LEAST ? WARMUP_LEAST : rounds > WARMUP_MOST ? WARMUP_MOST : (uint32_t)rounds;
}

/* pair_ns: what a round of both arms takes. */
static uint32_t rounds_for(const struct ranks *r, uint64_t pair_ns) {
    if (r->plan.iters)
        return r->plan.iters;
    uint64_t rounds = pair_ns ? (r->plan.switcher ? RANK_SWITCHER_NS : RANK_AUTO_NS) / pair_ns : 0;
    uint32_t least = r->plan.switcher ? RANK_SWITCHER_LEAST : RANK_AUTO_LEAST;
    return rounds < least ? least : rounds > RANK_AUTO_ITERS ? RANK_AUTO_ITERS : (uint32_t)rounds;
}

/* With the switcher, at random: an operation finds caches as the one before it left them. Alike on all ranks. */
static void order_of(const struct ranks_plan *plan, uint32_t round, unsigned order[RANKS_MAX_ARMS]) {
    uint64_t random = (round + 1) * 0x9e3779b97f4a7c15u;
    for (unsigned i = 0; i < plan->arms; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        unsigned j = plan->switcher ? (unsigned)(random >> 40) % (i + 1) : i;
        order[i] = order[j];
        order[j] = i;
    }
}

/* All timed rounds of all arms; the second pass is the one with a late rank. */
static int run_pass(struct rank *me, unsigned pass, uint32_t rounds) {
    const struct ranks *r = me->r;
    struct rank_size *size = &me->shared->sizes[me->size];
    unsigned order[RANKS_MAX_ARMS] = {0};
    for (uint32_t i = 0; i < rounds; i++) {
        order_of(&r->plan, i, order);
        for (unsigned turn = 0; turn < r->plan.arms; turn++) {
            unsigned arm = order[turn];
            uint64_t late_ns = pass ? atomic_load(&size->late_ns[arm]) : 0;
            bool checked = i == 0 || i + 1 == rounds;
            if (one_round(me, arm, late_ns, rank_stamp_at(r, me->size, pass * r->plan.arms + arm, i), checked))
                return -1;
        }
        if (me->rank == 0)
            atomic_store(&me->shared->round, pass * rounds + i + 1);
    }
    return 0;
}

/* What the operation took without lateness sets how late the last rank is to be. */
static int set_lateness(struct rank *me, uint32_t rounds) {
    const struct ranks *r = me->r;
    double *us = calloc(rounds, sizeof *us);
    if (!us)
        return fail(me, "lateness", "no memory");
    for (unsigned arm = 0; arm < r->plan.arms; arm++) {
        for (uint32_t i = 0; i < rounds; i++)
            us[i] = rank_stamp_us(r, rank_stamp_at(r, me->size, arm, i), false);
        atomic_store(&me->shared->sizes[me->size].late_ns[arm],
                     (uint64_t)(units_median(us, rounds) * 1e3 * r->plan.imbalance));
    }
    free(us);
    return 0;
}

static int warm_up(struct rank *me, uint32_t rounds, uint64_t *pair_ns) {
    for (uint32_t i = 0; i < rounds; i++) {
        uint64_t start = units_now_ns();
        /* auto's first operations are among the timed ones */
        for (unsigned arm = 0; arm < me->r->plan.arms - me->r->plan.switcher; arm++)
            if (one_round(me, arm, 0, NULL, false))
                return -1;
        *pair_ns = units_now_ns() - start;
    }
    return 0;
}

static uint32_t first_warmup(const struct ranks *r) {
    return r->plan.has_warmup ? r->plan.warmup : r->plan.switcher ? WARMUP_SWITCHER : WARMUP_FIRST;
}

static int run_rounds(struct rank *me) {
    const struct ranks *r = me->r;
    struct rank_size *size = &me->shared->sizes[me->size];
    uint64_t pair_ns = 0;
    if (warm_up(me, first_warmup(r), &pair_ns))
        return -1;
    if (me->rank == 0)
        atomic_store(&size->rounds, more_warmup(r, pair_ns));
    if (meet(me) || warm_up(me, atomic_load(&size->rounds), &pair_ns) || meet(me))
        return -1;
    if (me->rank == 0)
        atomic_store(&size->rounds, rounds_for(r, pair_ns));
    if (meet(me))
        return -1;
    uint32_t rounds = atomic_load(&size->rounds);
    if (run_pass(me, 0, rounds))
        return -1;
    if (r->variants == r->plan.arms)
        return 0;
    if (meet(me) || (me->rank == 0 && set_lateness(me, rounds)) || meet(me))
        return -1;
    return run_pass(me, 1, rounds);
}

static void fill(const struct rank *me) {
    const struct ranks_plan *plan = &me->r->plan;
    uint8_t *mine = me->r->values + me->rank * me->stride;
    if (!me->sends)
        return;
    if (plan->tensor)
        bench_repeat(mine, me->sends, plan->tensor, me->rank * (me->sends + FILE_SHIFT));
    else
        bench_gauss(mine, me->sends, plan->dtype, me->size * RANKS_MAX + me->rank + 1);
    memcpy(me->send, mine, me->sends);
}

/* What all are to reduce to; each rank works out a share, for all. */
static void foresee(const struct rank *me) {
    struct reference ref = reference_of(me);
    uint64_t n = me->sends / me->layout.width, first = n * me->rank / me->r->nranks;
    uint64_t end = n * (me->rank + 1) / me->r->nranks;
    reference_reduce(&ref, first, end - first, me->r->results + first * me->layout.width);
}

/* What the API wants as arrays. */
static bool set_counts(struct rank *me) {
    const struct layout *l = &me->layout;
    me->counts = calloc((size_t)2 * l->nranks, sizeof *me->counts);
    for (unsigned i = 0; me->counts && i < l->nranks; i++) {
        me->counts[i] = layout_part(l, l->op == zipcclOpAllToAllv ? me->rank : 0, i);
        me->counts[l->nranks + i] = layout_part(l, i, me->rank);
    }
    return me->counts;
}

static int run_size(struct rank *me) {
    me->layout = ranks_layout(&me->r->plan, me->size);
    me->stride = rank_stride(&me->layout);
    me->sends = layout_send_bytes(&me->layout, me->rank);
    me->arrives = layout_recv_bytes(&me->layout, me->rank);
    if (!set_counts(me))
        return fail(me, "counts", "no memory");
    if (zipcclMemAlloc(&me->send, me->sends) != zipcclSuccess ||
        zipcclMemAlloc(&me->recv, me->arrives) != zipcclSuccess)
        return fail(me, "memory", zipcclGetLastError(NULL));
    fill(me);
    if (me->rank == 0) {
        atomic_store(&me->shared->round, 0);
        atomic_store(&me->shared->size, (unsigned)me->size);
    }
    int rc = 0;
    if (me->r->results) {
        rc = meet(me);
        if (!rc)
            foresee(me);
    }
    /* Nobody compares before all have filled, nobody fills again before all have compared. */
    rc = rc || meet(me) || run_rounds(me) || meet(me) ? -1 : 0;
    (void)zipcclMemFree(me->send);
    (void)zipcclMemFree(me->recv);
    free(me->counts);
    me->send = me->recv = NULL;
    return rc;
}

/* What holds for all operations of the run. */
static int pin(struct rank *me) {
    const struct ranks_plan *plan = &me->r->plan;
    uint64_t scalar = reference_scalar(plan->dtype);
    me->redop = plan->redop;
    if (plan->redop == zipcclPreMulSum &&
        zipcclRedOpCreatePreMulSum(&me->redop, &scalar, plan->dtype, me->comm) != zipcclSuccess)
        return fail_zipccl(me, "reduction");
    return 0;
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
    return pin(me);
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

/* SPDX-License-Identifier: Apache-2.0
 *
 * zipcclctl-mpi: one rank of bench collective --peer openmpi, started by mpirun. The same operation, sizes and counts
 * as zipccl's ranks, timed in the same way: all ranks are on one machine, share a clock and meet in shared memory.
 *
 * Arguments: OP DTYPE NODES RANKS_PER_NODE ROWS|- WARMUP SIZE:ROUNDS,... MEETING RESULT. The first rank writes a line
 * "p50 p99 least" (microseconds) for each size to RESULT.
 */
#include <fcntl.h>
#include <mpi.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/ctl/bench_data.h"
#include "client/ctl/chunks.h"
#include "client/ctl/layout.h"
#include "client/ctl/units.h"
#include "kernels/dtype.h"
#include "proto/op.h"

#define SPINS 200

struct peer_rank {
    zipcclOp_t op;
    zipcclDataType_t dtype;
    unsigned nodes, per_node, nranks, rank;
    struct rows rows;
    atomic_uint_fast64_t *met;
    uint64_t meetings;
    struct layout layout;
    MPI_Datatype type;
    MPI_Op sum;
    void *send, *recv;
    int *counts, *at, *recv_counts, *recv_at;
};

static int fail(const char *what) {
    (void)fprintf(stderr, "zipcclctl-mpi: %s\n", what);
    return 1;
}

/* As zipccl's ranks meet. */
static void meet(struct peer_rank *me) {
    uint64_t all = ++me->meetings * me->nranks;
    atomic_fetch_add(me->met, 1);
    for (unsigned spins = 0; atomic_load(me->met) < all; spins++)
        if (spins >= SPINS)
            (void)sched_yield();
}

/* MPI knows no BF16: the sum that users add to it, rounded at each step. */
static void sum_bf16(void *in, void *inout, int *n, MPI_Datatype *type) {
    const uint16_t *restrict a = in;
    uint16_t *restrict b = inout;
    (void)type;
    for (int i = 0; i < *n; i++) {
        uint32_t x = (uint32_t)a[i] << 16, y = (uint32_t)b[i] << 16;
        float fx, fy;
        memcpy(&fx, &x, sizeof fx);
        memcpy(&fy, &y, sizeof fy);
        fx += fy;
        memcpy(&x, &fx, sizeof x);
        b[i] = (uint16_t)((x + 0x7fff + (x >> 16 & 1)) >> 16);
    }
}

static bool set_types(struct peer_rank *me) {
    bool reduces = op_reduces(me->op);
    me->sum = MPI_SUM;
    switch (me->dtype) {
    case zipcclBfloat16:
        me->type = MPI_UINT16_T;
        return !reduces || MPI_Op_create(sum_bf16, 1, &me->sum) == MPI_SUCCESS;
    case zipcclFloat32:
        me->type = MPI_FLOAT;
        return true;
    case zipcclFloat64:
        me->type = MPI_DOUBLE;
        return true;
    case zipcclInt32:
        me->type = MPI_INT32_T;
        return true;
    case zipcclInt64:
        me->type = MPI_INT64_T;
        return true;
    case zipcclUint8:
        me->type = MPI_UINT8_T;
        return true;
    default: /* only moved: what counts is the width */
        me->type = dtype_get(me->dtype)->bytes == 1   ? MPI_UINT8_T
                   : dtype_get(me->dtype)->bytes == 2 ? MPI_UINT16_T
                   : dtype_get(me->dtype)->bytes == 4 ? MPI_UINT32_T
                                                      : MPI_UINT64_T;
        return !reduces;
    }
}

static int operate(struct peer_rank *me) {
    const struct layout *l = &me->layout;
    int n = (int)l->count, root = (int)LAYOUT_ROOT, me_too = (int)me->rank;
    MPI_Comm world = MPI_COMM_WORLD;
    switch (l->op) {
    case zipcclOpAllGather:
        return MPI_Allgather(me->send, n, me->type, me->recv, n, me->type, world);
    case zipcclOpAllGatherv:
        return MPI_Allgatherv(me->send, me->counts[me_too], me->type, me->recv, me->counts, me->at, me->type, world);
    case zipcclOpBroadcast:
        return MPI_Bcast(me->rank == LAYOUT_ROOT ? me->send : me->recv, n, me->type, root, world);
    case zipcclOpAllReduce:
        return MPI_Allreduce(me->send, me->recv, n, me->type, me->sum, world);
    case zipcclOpReduce:
        return MPI_Reduce(me->send, me->recv, n, me->type, me->sum, root, world);
    case zipcclOpReduceScatter: /* the function without block has the ring */
    case zipcclOpReduceScatterv:
        return MPI_Reduce_scatter(me->send, me->recv, me->counts, me->type, me->sum, world);
    case zipcclOpAllToAll:
    case zipcclOpAllToAllCapped:
        return MPI_Alltoall(me->send, n, me->type, me->recv, n, me->type, world);
    case zipcclOpAllToAllv:
        return MPI_Alltoallv(me->send, me->counts, me->at, me->type, me->recv, me->recv_counts, me->recv_at, me->type,
                             world);
    case zipcclOpGather:
        return MPI_Gather(me->send, n, me->type, me->recv, n, me->type, root, world);
    case zipcclOpScatter:
        return MPI_Scatter(me->send, n, me->type, me->recv, n, me->type, root, world);
    case zipcclOpSend:
        return MPI_Sendrecv(me->send, n, me->type, (int)layout_partner(l, me->rank), 0, me->recv, n, me->type,
                            (int)layout_source(l, me->rank), 0, world, MPI_STATUS_IGNORE);
    default:
        return MPI_Barrier(world);
    }
}

static bool set_counts(struct peer_rank *me) {
    const struct layout *l = &me->layout;
    int to = 0, from = 0;
    me->counts = calloc((size_t)4 * me->nranks, sizeof(int));
    if (!me->counts)
        return false;
    me->at = me->counts + me->nranks;
    me->recv_counts = me->at + me->nranks;
    me->recv_at = me->recv_counts + me->nranks;
    for (unsigned i = 0; i < me->nranks; i++) {
        me->counts[i] = (int)layout_part(l, me->rank, i);
        me->at[i] = to;
        to += me->counts[i];
        me->recv_counts[i] = (int)layout_part(l, i, me->rank);
        me->recv_at[i] = from;
        from += me->recv_counts[i];
    }
    return true;
}

/* The rounds of one size: first and last stamps of all ranks go to the first one, outside of the timing. */
static int run_rounds(struct peer_rank *me, uint32_t warmup, uint32_t rounds, FILE *out) {
    double *us = calloc(rounds, sizeof *us);
    int rc = us ? 0 : fail("no memory");
    for (uint32_t i = 0; i < warmup + rounds && !rc; i++) {
        (void)MPI_Barrier(MPI_COMM_WORLD);
        meet(me);
        uint64_t start = units_now_ns();
        rc = operate(me) == MPI_SUCCESS ? 0 : fail("the operation failed");
        /* The earliest start is the latest negative one. */
        int64_t mine[2] = {-(int64_t)start, (int64_t)units_now_ns()}, last[2] = {0, 0};
        meet(me);
        (void)MPI_Reduce(mine, last, 2, MPI_INT64_T, MPI_MAX, 0, MPI_COMM_WORLD);
        if (i >= warmup)
            us[i - warmup] = (double)(last[0] + last[1]) / 1e3;
    }
    if (!rc && me->rank == 0) {
        double p50 = units_median(us, rounds);
        (void)fprintf(out, "%.3f %.3f %.3f\n", p50, units_percentile(us, rounds, 0.99), us[0]);
        (void)fflush(out);
    }
    free(us);
    return rc;
}

static int run_size(struct peer_rank *me, uint64_t bytes, uint32_t warmup, uint32_t rounds, FILE *out) {
    me->layout = layout_make(me->op, me->nodes, me->per_node, dtype_get(me->dtype)->bytes, bytes, &me->rows);
    uint64_t sends = layout_send_bytes(&me->layout, me->rank), arrives = layout_recv_bytes(&me->layout, me->rank);
    int rc = 0;
    if (sends / me->layout.width > INT32_MAX || arrives / me->layout.width > INT32_MAX)
        return fail("more values than an int of MPI counts");
    me->send = chunks_alloc(sends ? sends : 1);
    me->recv = chunks_alloc(arrives ? arrives : 1);
    if (!me->send || !me->recv || !set_counts(me))
        rc = fail("no memory");
    if (!rc)
        bench_gauss(me->send, sends, me->dtype, me->rank + 1);
    if (!rc)
        rc = run_rounds(me, warmup, rounds, out);
    free(me->send);
    free(me->recv);
    free(me->counts);
    me->counts = NULL;
    return rc;
}

static bool set_up(struct peer_rank *me, char **argv, uint64_t *warmup) {
    char why[ROWS_WHY];
    uint64_t nodes, per_node;
    int rank, nranks, fd = open(argv[8], O_RDWR | O_CLOEXEC);
    if (MPI_Comm_rank(MPI_COMM_WORLD, &rank) != MPI_SUCCESS || MPI_Comm_size(MPI_COMM_WORLD, &nranks) != MPI_SUCCESS ||
        fd < 0 || !op_from_name(argv[1], &me->op) || !dtype_from_name(argv[2], &me->dtype) ||
        !units_parse_count(argv[3], 1, 1024, &nodes) || !units_parse_count(argv[4], 1, 1024, &per_node) ||
        !units_parse_count(argv[6], 0, UINT32_MAX, warmup) || (uint64_t)nranks != nodes * per_node)
        return false;
    void *shared = mmap(NULL, sizeof *me->met, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (void)close(fd);
    me->met = shared;
    me->nodes = (unsigned)nodes;
    me->per_node = (unsigned)per_node;
    me->nranks = (unsigned)nranks;
    me->rank = (unsigned)rank;
    return shared != MAP_FAILED && rows_load(strcmp(argv[5], "-") != 0 ? argv[5] : NULL, &me->rows, why) &&
           set_types(me);
}

static int run(char **argv) {
    struct peer_rank me = {0};
    uint64_t warmup;
    int rc = 0;
    if (!set_up(&me, argv, &warmup))
        return fail("wrong arguments, or a type that OpenMPI cannot do");
    FILE *out = me.rank == 0 ? fopen(argv[9], "we") : NULL;
    if (me.rank == 0 && !out)
        return fail("cannot write the result");
    for (char *at = argv[7]; *at && !rc;) {
        char *end;
        uint64_t bytes = strtoull(at, &end, 10), rounds = *end == ':' ? strtoull(end + 1, &end, 10) : 0;
        if (!rounds || rounds > UINT32_MAX || (*end && *end != ','))
            rc = fail("wrong sizes");
        else
            rc = run_size(&me, bytes, (uint32_t)warmup, (uint32_t)rounds, out);
        at = *end ? end + 1 : end;
    }
    if (out && fclose(out) != 0)
        rc = fail("cannot write the result");
    rows_free(&me.rows);
    return rc;
}

int main(int argc, char **argv) {
    if (argc != 10)
        return fail("is started by zipcclctl bench collective --peer openmpi");
    if (MPI_Init(NULL, NULL) != MPI_SUCCESS)
        return fail("MPI_Init failed");
    int rc = run(argv);
    if (rc)
        (void)MPI_Abort(MPI_COMM_WORLD, rc);
    (void)MPI_Finalize();
    return rc;
}

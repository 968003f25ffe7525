/* SPDX-License-Identifier: Apache-2.0
 *
 * Every operation of libzipccl against a scripted daemon: the frames, staging, in place, and bad arguments.
 */
#include "operations.h"

#define N     3 /* ranks; this one is in the middle */
#define RANK  1
#define ELEMS 100

struct bench {
    struct fake f;
    zipcclComm_t c;
    int32_t *shared;
};

static int setup(void **state) {
    struct bench *b = calloc(1, sizeof *b);
    void *p;
    fake_start(&b->f, FAKE_GOOD);
    b->c = join(N, RANK);
    OK(zipcclMemAlloc(&p, 1 << 16));
    b->shared = p;
    *state = b;
    return 0;
}

static int teardown(void **state) {
    struct bench *b = *state;
    OK(zipcclCommDestroy(b->c));
    OK(zipcclMemFree(b->shared));
    fake_stop(&b->f);
    free(b);
    return 0;
}

/* The frame of the last operation, but for its time. */
static void frame_is(const struct bench *b, struct wire_request want) {
    struct wire_request q = b->f.last;
    want.comm = q.comm;
    want.seq = q.seq;
    want.client_ns = q.client_ns;
    want.send_buffer = want.send_offset != 0; /* the first buffer that was registered, never at its start */
    want.recv_buffer = want.recv_offset != 0;
    assert_memory_equal(&q, &want, sizeof q);
}

static void counts_are(const struct bench *b, size_t n, const uint64_t *want) {
    assert_int_equal(b->f.ncounts, n);
    if (n)
        assert_memory_equal(b->f.counts, want, n * sizeof *want);
}

#define FRAME(...) frame_is(b, (struct wire_request){.dtype = zipcclInt32, .codec = zipcclCodecTop7, __VA_ARGS__})

static void frames(void **state) {
    struct bench *b = *state;
    zipcclComm_t c = b->c;
    int32_t *s = b->shared + 1, *d = b->shared + 1000, two = 2;
    static const size_t counts[] = {5, 0, 7}, sdispls[] = {1, 10, 20}, rcounts[] = {1, 2, 3}, rdispls[] = {6, 3, 0};
    zipcclRedOp_t pre;
    OK(zipcclCommSetCodec(c, zipcclCodecTop7));
    OK(zipcclAllReduce(s, d, 9, zipcclInt32, zipcclMax, c, NULL));
    FRAME(.op = zipcclOpAllReduce, .count = 9, .send_offset = 4, .recv_offset = 4000, .redop = zipcclMax,
          .arm = zipcclArmAuto);
    assert_int_equal(b->f.last.seq, 1);
    OK(zipcclCommSetArm(c, zipcclArmHierarchical));
    OK(zipcclReduce(s, d, 9, zipcclInt32, zipcclAvg, RANK, c, NULL));
    FRAME(.op = zipcclOpReduce, .count = 9, .send_offset = 4, .recv_offset = 4000, .redop = zipcclAvg, .root = RANK,
          .arm = zipcclArmHierarchical);
    OK(zipcclReduce(s, NULL, 9, zipcclInt32, zipcclAvg, 2, c, NULL));
    FRAME(.op = zipcclOpReduce, .count = 9, .send_offset = 4, .redop = zipcclAvg, .root = 2,
          .arm = zipcclArmHierarchical);
    OK(zipcclRedOpCreatePreMulSum(&pre, &two, zipcclInt32, c));
    OK(zipcclReduceScatter(s, d, 9, zipcclInt32, pre, c, NULL));
    FRAME(.op = zipcclOpReduceScatter, .count = 9, .send_offset = 4, .recv_offset = 4000, .redop = zipcclPreMulSum,
          .scalar = 2, .arm = zipcclArmHierarchical);
    OK(zipcclCommSetArm(c, zipcclArmRing));
    OK(zipcclReduceScatterv(s, NULL, counts, zipcclInt32, zipcclMin, c, NULL));
    FRAME(.op = zipcclOpReduceScatterv, .send_offset = 4, .redop = zipcclMin, .arm = zipcclArmRing);
    counts_are(b, 3, (const uint64_t[]){5, 0, 7});
    OK(zipcclAllGatherv(NULL, d, counts, zipcclInt32, c, NULL));
    FRAME(.op = zipcclOpAllGatherv, .recv_offset = 4000);
    counts_are(b, 3, (const uint64_t[]){5, 0, 7});
    OK(zipcclAllToAll(s, d, 9, zipcclInt32, c, NULL));
    FRAME(.op = zipcclOpAllToAll, .count = 9, .send_offset = 4, .recv_offset = 4000);
    counts_are(b, 0, NULL);
    OK(zipcclAllToAllv(s, counts, sdispls, d, rcounts, rdispls, zipcclInt32, c, NULL));
    FRAME(.op = zipcclOpAllToAllv, .send_offset = 4, .recv_offset = 4000);
    counts_are(b, 12, (const uint64_t[]){5, 0, 7, 1, 0, 20, 1, 2, 3, 6, 3, 0});
    OK(zipcclAllToAllv(s, counts, NULL, d, rcounts, NULL, zipcclInt32, c, NULL));
    counts_are(b, 12, (const uint64_t[]){5, 0, 7, 0, 5, 5, 1, 2, 3, 0, 1, 3});
    uint64_t *sc = (uint64_t *)(void *)(b->shared + 2000), *rc = sc + N;
    sc[RANK] = 3;
    OK(zipcclAllToAllCapped(s, sc, d, rc, 9, zipcclInt32, c, NULL));
    FRAME(.op = zipcclOpAllToAllCapped, .max_count = 9, .send_offset = 4, .recv_offset = 4000);
    counts_are(b, 4, (const uint64_t[]){1, 8000, 1, 8000 + N * sizeof *sc});
    OK(zipcclGather(s, d, 9, zipcclInt32, RANK, c, NULL));
    FRAME(.op = zipcclOpGather, .count = 9, .send_offset = 4, .recv_offset = 4000, .root = RANK);
    OK(zipcclGather(s, NULL, 9, zipcclInt32, 0, c, NULL));
    FRAME(.op = zipcclOpGather, .count = 9, .send_offset = 4);
    OK(zipcclScatter(s, d, 9, zipcclInt32, RANK, c, NULL));
    FRAME(.op = zipcclOpScatter, .count = 9, .send_offset = 4, .recv_offset = 4000, .root = RANK);
    OK(zipcclScatter(NULL, d, 9, zipcclInt32, 0, c, NULL));
    FRAME(.op = zipcclOpScatter, .count = 9, .recv_offset = 4000);
    OK(zipcclSend(s, 9, zipcclInt32, 2, c, NULL));
    FRAME(.op = zipcclOpSend, .count = 9, .send_offset = 4, .root = 2);
    OK(zipcclRecv(d, 9, zipcclInt32, 2, c, NULL));
    FRAME(.op = zipcclOpRecv, .count = 9, .recv_offset = 4000, .root = 2);
    assert_int_equal(b->f.last.seq, atomic_load(&b->f.ops));
    assert_int_equal(atomic_load(&b->f.registered), 1);
    /* Arms and reductions are of reductions alone. */
    OK(zipcclBroadcast(NULL, d, 9, zipcclInt32, 2, c, NULL));
    FRAME(.op = zipcclOpBroadcast, .count = 9, .recv_offset = 4000, .root = 2);
}

/* Of ELEMS values at most: to send, then what came. */
static uint64_t capped_counts[2 * N] = {ELEMS, ELEMS / 2, 0};

/* One operation on N * ELEMS values at most, from send to recv. */
static zipcclResult_t call(const struct bench *b, zipcclOp_t op, int root, const int32_t *send, int32_t *recv,
                           zipcclStream_t stream) {
    static const size_t counts[N] = {ELEMS, ELEMS / 2, ELEMS / 4}, displs[N] = {200, 100, 0},
                        rcounts[N] = {ELEMS / 2, ELEMS / 2, ELEMS / 2};
    switch (op) {
    case zipcclOpAllGather:
        return zipcclAllGather(send, recv, ELEMS, zipcclInt32, b->c, stream);
    case zipcclOpBroadcast:
        return zipcclBroadcast(send, recv, ELEMS, zipcclInt32, root, b->c, stream);
    case zipcclOpAllReduce:
        return zipcclAllReduce(send, recv, ELEMS, zipcclInt32, zipcclSum, b->c, stream);
    case zipcclOpReduce:
        return zipcclReduce(send, recv, ELEMS, zipcclInt32, zipcclSum, root, b->c, stream);
    case zipcclOpReduceScatter:
        return zipcclReduceScatter(send, recv, ELEMS, zipcclInt32, zipcclSum, b->c, stream);
    case zipcclOpReduceScatterv:
        return zipcclReduceScatterv(send, recv, counts, zipcclInt32, zipcclSum, b->c, stream);
    case zipcclOpAllGatherv:
        return zipcclAllGatherv(send, recv, counts, zipcclInt32, b->c, stream);
    case zipcclOpAllToAll:
        return zipcclAllToAll(send, recv, ELEMS, zipcclInt32, b->c, stream);
    case zipcclOpAllToAllv:
        return zipcclAllToAllv(send, counts, displs, recv, rcounts, displs, zipcclInt32, b->c, stream);
    case zipcclOpAllToAllCapped:
        return zipcclAllToAllCapped(send, capped_counts, recv, capped_counts + N, ELEMS, zipcclInt32, b->c, stream);
    case zipcclOpGather:
        return zipcclGather(send, recv, ELEMS, zipcclInt32, root, b->c, stream);
    case zipcclOpScatter:
        return zipcclScatter(send, recv, ELEMS, zipcclInt32, root, b->c, stream);
    case zipcclOpSend:
        return zipcclSend(send, ELEMS, zipcclInt32, 2, b->c, stream);
    case zipcclOpRecv:
        return zipcclRecv(recv, ELEMS, zipcclInt32, 2, b->c, stream);
    default:
        return zipcclInternalError;
    }
}

/* How many values it sends and receives on this rank, and where the inner buffer lies in the outer one. */
struct extent {
    size_t send, recv, own;
    bool in_place;
};

static struct extent extent_of(zipcclOp_t op, bool is_root) {
    switch (op) {
    case zipcclOpAllGather:
        return (struct extent){ELEMS, N * ELEMS, RANK * ELEMS, true};
    case zipcclOpBroadcast:
        return (struct extent){is_root ? ELEMS : 0, ELEMS, 0, is_root};
    case zipcclOpAllReduce:
        return (struct extent){ELEMS, ELEMS, 0, true};
    case zipcclOpReduce:
        return (struct extent){ELEMS, is_root ? ELEMS : 0, 0, is_root};
    case zipcclOpReduceScatter:
        return (struct extent){N * ELEMS, ELEMS, RANK * ELEMS, true};
    case zipcclOpReduceScatterv:
        return (struct extent){ELEMS + ELEMS / 2 + ELEMS / 4, ELEMS / 2, ELEMS, true};
    case zipcclOpAllGatherv:
        return (struct extent){ELEMS / 2, ELEMS + ELEMS / 2 + ELEMS / 4, ELEMS, true};
    case zipcclOpAllToAll:
    case zipcclOpAllToAllv:
    case zipcclOpAllToAllCapped:
        return (struct extent){N * ELEMS, N * ELEMS, 0, false};
    case zipcclOpGather:
        return (struct extent){ELEMS, is_root ? N * ELEMS : 0, RANK * ELEMS, is_root};
    case zipcclOpScatter:
        return (struct extent){is_root ? N * ELEMS : 0, ELEMS, RANK * ELEMS, is_root};
    case zipcclOpSend:
        return (struct extent){ELEMS, 0, 0, false};
    default:
        return (struct extent){0, ELEMS, 0, false};
    }
}

#define HOLE 0x11111111

/* Value i of what arrives where sent value k is k + 1; HOLE: it keeps what it had. */
static int32_t arrives(zipcclOp_t op, bool is_root, size_t i) {
    switch (op) {
    case zipcclOpAllGather:
    case zipcclOpGather:
        return (int32_t)(i % ELEMS) + 1;
    case zipcclOpBroadcast:
        return is_root ? (int32_t)i + 1 : 0x5a5a5a5a;
    case zipcclOpAllReduce:
    case zipcclOpReduce:
        return N * ((int32_t)i + 1);
    case zipcclOpReduceScatter:
    case zipcclOpReduceScatterv:
        return N * (RANK * ELEMS + (int32_t)i + 1);
    case zipcclOpAllGatherv:
        return (int32_t)((i < ELEMS ? i : i - ELEMS < ELEMS / 2 ? i - ELEMS : i - ELEMS - ELEMS / 2) % (ELEMS / 2)) + 1;
    case zipcclOpAllToAll:
        return RANK * ELEMS + (int32_t)(i % ELEMS) + 1;
    case zipcclOpAllToAllv:
        return i % ELEMS < ELEMS / 2 ? 100 + (int32_t)(i % ELEMS) + 1 : HOLE;
    case zipcclOpAllToAllCapped:
        return i % ELEMS < ELEMS / 2 ? RANK * ELEMS + (int32_t)(i % ELEMS) + 1 : HOLE;
    case zipcclOpScatter:
        return is_root ? RANK * ELEMS + (int32_t)i + 1 : 0x5a5a5a5a;
    default:
        return 0x5a5a5a5a;
    }
}

enum where { SHARED, PLAIN, PLAIN_TO_SHARED, SHARED_TO_PLAIN, IN_PLACE_SHARED, IN_PLACE_PLAIN, NUM_WHERE };

static void memory_of(struct bench *b, zipcclOp_t op, bool is_root, enum where where, zipcclStream_t stream) {
    struct extent e = extent_of(op, is_root);
    bool in_place = where == IN_PLACE_SHARED || where == IN_PLACE_PLAIN;
    size_t outer = e.send > e.recv ? e.send : e.recv;
    int32_t *plain = malloc(((size_t)2 * N * ELEMS + 3) * sizeof *plain), *send, *recv;
    if (in_place && !e.in_place) {
        free(plain);
        return;
    }
    send = where == SHARED || where == SHARED_TO_PLAIN || where == IN_PLACE_SHARED ? b->shared : plain;
    recv = where == SHARED || where == PLAIN_TO_SHARED || where == IN_PLACE_SHARED ? b->shared + 1000
                                                                                   : plain + (size_t)N * ELEMS + 1;
    if (in_place && e.send > e.recv)
        recv = send + e.own;
    else if (in_place)
        send = recv + e.own;
    for (size_t i = 0; i < e.recv; i++)
        recv[i] = HOLE;
    for (size_t i = 0; i < e.send; i++)
        send[i] = (int32_t)i + 1;
    int32_t *guards[2] = {(in_place && send < recv ? send : recv) - 1, NULL};
    guards[1] = guards[0] + 1 + (in_place ? outer : e.recv);
    if (e.recv && where != IN_PLACE_SHARED && (where == PLAIN || where == SHARED_TO_PLAIN) && !in_place)
        *guards[0] = 77;
    *guards[1] = 77;
    OK(call(b, op, is_root ? RANK : 0, e.send ? send : NULL, e.recv ? recv : NULL, stream));
    OK(zipcclStreamSynchronize(stream));
    for (size_t i = 0; i < e.recv; i++)
        if (recv[i] != arrives(op, is_root, i))
            fail_msg("op %d, root %d, where %d: value %zu is %d, not %d", (int)op, is_root, (int)where, i, recv[i],
                     arrives(op, is_root, i));
    assert_int_equal(*guards[1], 77);
    for (size_t i = 0; i < e.send && !in_place; i++)
        assert_int_equal(send[i], i + 1);
    /* What is sent in place stays, but where the result lies. */
    for (size_t i = 0; i < e.send && in_place && e.send > e.recv; i++)
        if (i < e.own || i >= e.own + e.recv)
            assert_int_equal(send[i], i + 1);
    free(plain);
}

static void memory(void **state) {
    struct bench *b = *state;
    zipcclStream_t stream;
    OK(zipcclStreamCreate(&stream));
    for (int op = 0; op < zipcclNumOps; op++)
        for (int where = 0; where < NUM_WHERE && op != zipcclOpBarrier; where++)
            for (int is_root = 0; is_root < 2; is_root++) {
                memory_of(b, (zipcclOp_t)op, is_root, (enum where)where, NULL);
                memory_of(b, (zipcclOp_t)op, is_root, (enum where)where, stream);
            }
    OK(zipcclStreamDestroy(stream));
}

/* Where values and counts lie: each in shared memory or not. */
static void capped_memory(void **state) {
    struct bench *b = *state;
    static int32_t plain[2][N * ELEMS];
    static uint64_t plain_counts[2][N];
    uint64_t *shared_counts = (uint64_t *)(void *)(b->shared + 4000);
    zipcclStream_t stream;
    OK(zipcclStreamCreate(&stream));
    for (unsigned kind = 0; kind < 16; kind++) {
        int32_t *s = kind & 1 ? b->shared : plain[0], *d = kind & 2 ? b->shared + 1000 : plain[1];
        uint64_t *sc = kind & 4 ? shared_counts : plain_counts[0], *rc = kind & 8 ? shared_counts + N : plain_counts[1];
        for (int i = 0; i < N * ELEMS; i++) {
            s[i] = i + 1;
            d[i] = HOLE;
        }
        memset(rc, 0xff, N * sizeof *rc);
        memcpy(sc, (const uint64_t[N]){ELEMS, 0, 1}, N * sizeof *sc);
        sc[RANK] = kind * 2;
        OK(zipcclAllToAllCapped(s, sc, d, rc, ELEMS, zipcclInt32, b->c, kind % 3 ? stream : NULL));
        OK(zipcclStreamSynchronize(stream));
        for (uint32_t i = 0; i < N * ELEMS; i++)
            assert_int_equal(d[i], i % ELEMS < kind * 2 ? (int32_t)(RANK * ELEMS + i % ELEMS + 1) : HOLE);
        for (int i = 0; i < N; i++)
            assert_int_equal(rc[i], kind * 2);
    }
    /* Two at once on one array of received counts: each goes by its own. */
    shared_counts[RANK] = 7;
    memcpy(plain_counts[0], (const uint64_t[N]){5, 5, 5}, N * sizeof(uint64_t));
    for (int i = 0; i < N * ELEMS; i++)
        plain[0][i] = b->shared[i] = plain[1][i] = HOLE;
    int32_t *more = malloc(N * ELEMS * sizeof *more);
    memset(more, 0, N * ELEMS * sizeof *more);
    for (int i = 0; i < N * ELEMS; i++)
        b->shared[i] = i + 1;
    atomic_store(&b->f.mode, FAKE_HOLD);
    OK(zipcclAllToAllCapped(b->shared, shared_counts, plain[1], shared_counts + N, ELEMS, zipcclInt32, b->c, stream));
    OK(zipcclAllToAllCapped(b->shared, plain_counts[0], more, shared_counts + N, ELEMS, zipcclInt32, b->c, stream));
    plain_counts[0][RANK] = 6; /* was read at the call */
    shared_counts[RANK] = 8;   /* is read when it runs */
    atomic_store(&b->f.release, true);
    OK(zipcclStreamSynchronize(stream));
    for (uint32_t i = 0; i < N * ELEMS; i++) {
        assert_int_equal(plain[1][i], i % ELEMS < 8 ? (int32_t)(RANK * ELEMS + i % ELEMS + 1) : HOLE);
        assert_int_equal(more[i], i % ELEMS < 5 ? (int32_t)(RANK * ELEMS + i % ELEMS + 1) : 0);
    }
    for (int i = 0; i < N; i++)
        assert_int_equal(shared_counts[N + i], 5);
    /* What one receives is what the next one goes by: it must wait for the copy. */
    atomic_store(&b->f.mode, FAKE_GOOD);
    shared_counts[RANK] = 4;
    OK(zipcclAllToAllCapped(b->shared, shared_counts, plain[1], plain_counts[1], ELEMS, zipcclInt32, b->c, stream));
    OK(zipcclAllToAllCapped(b->shared, plain_counts[1], more, shared_counts + N, ELEMS, zipcclInt32, b->c, stream));
    OK(zipcclStreamSynchronize(stream));
    assert_int_equal(shared_counts[N], 4);
    free(more);
    OK(zipcclStreamDestroy(stream));
}

static void registered_memory(void **state) {
    struct bench *b = *state;
    int32_t *m = malloc((size_t)N * ELEMS * sizeof *m);
    void *handle;
    OK(zipcclMemRegister(m, (size_t)N * ELEMS * sizeof *m, &handle));
    unsigned before = atomic_load(&b->f.registered);
    for (int i = 0; i < N * ELEMS; i++)
        m[i] = i + 1;
    OK(zipcclReduceScatter(m, m + RANK * ELEMS, ELEMS, zipcclInt32, zipcclSum, b->c, NULL));
    assert_int_equal(b->f.last.recv_offset, RANK * ELEMS * sizeof *m);
    for (int i = 0; i < N * ELEMS; i++)
        assert_int_equal(m[i], i / ELEMS == RANK ? N * (i + 1) : i + 1);
    OK(zipcclAllReduce(m, m, ELEMS, zipcclInt32, zipcclSum, b->c, NULL));
    for (int i = 0; i < ELEMS; i++)
        assert_int_equal(m[i], N * (i + 1));
    assert_int_equal(atomic_load(&b->f.registered), before);
    OK(zipcclMemDeregister(handle));
    free(m);
}

static void nothing(void **state) {
    struct bench *b = *state;
    zipcclComm_t c = b->c;
    static const size_t zero[N] = {0}, displs[N] = {SIZE_MAX, 5, 7};
    uint64_t none[N] = {0}, got[N] = {9, 9, 9};
    OK(zipcclAllReduce(NULL, NULL, 0, zipcclFloat32, zipcclSum, c, NULL));
    OK(zipcclReduce(NULL, NULL, 0, zipcclFloat32, zipcclSum, RANK, c, NULL));
    OK(zipcclReduceScatter(NULL, NULL, 0, zipcclFloat32, zipcclSum, c, NULL));
    OK(zipcclReduceScatterv(NULL, NULL, zero, zipcclFloat32, zipcclSum, c, NULL));
    OK(zipcclAllGatherv(NULL, NULL, zero, zipcclFloat32, c, NULL));
    OK(zipcclAllToAll(NULL, NULL, 0, zipcclFloat32, c, NULL));
    OK(zipcclAllToAllv(NULL, zero, displs, NULL, zero, displs, zipcclFloat32, c, NULL));
    OK(zipcclAllToAllCapped(NULL, none, NULL, got, 0, zipcclFloat32, c, NULL));
    OK(zipcclGather(NULL, NULL, 0, zipcclFloat32, RANK, c, NULL));
    OK(zipcclScatter(NULL, NULL, 0, zipcclFloat32, RANK, c, NULL));
    OK(zipcclSend(NULL, 0, zipcclFloat32, 0, c, NULL));
    OK(zipcclRecv(NULL, 0, zipcclFloat32, 0, c, NULL));
    assert_int_equal(atomic_load(&b->f.ops), 12);
    assert_int_equal(atomic_load(&b->f.registered), 3); /* the counts were staged */
    assert_memory_equal(got, none, sizeof got);
}

static void bad_arguments(void **state) {
    struct bench *b = *state;
    zipcclComm_t c = b->c;
    int32_t m[N * 8] = {0};
    static const size_t huge[N] = {1, SIZE_MAX - 1, 3}, counts[N] = {2, 2, 2}, displs[N] = {0, 1, 4},
                        far[N] = {SIZE_MAX - 1, 0, 0}, large[N] = {1, (size_t)1 << 61, 1};
    FAILS(zipcclAllReduce(NULL, m, 1, zipcclInt32, zipcclSum, c, NULL), c, zipcclInvalidArgument, "rank 1 of 3",
          "zipcclAllReduce: sendbuff is NULL");
    FAILS(zipcclAllReduce(m, NULL, 1, zipcclInt32, zipcclSum, c, NULL), c, zipcclInvalidArgument, "recvbuff is NULL");
    FAILS(zipcclAllReduce(m, m + 1, 2, zipcclInt32, zipcclSum, c, NULL), c, zipcclInvalidArgument, "overlaps recvbuff",
          "not equal");
    FAILS(zipcclAllReduce(m, m, SIZE_MAX / 4, zipcclInt32, zipcclSum, c, NULL), c, zipcclInvalidArgument, "too large");
    FAILS(zipcclAllReduce(m, m, 1, zipcclInt32, (zipcclRedOp_t)99, c, NULL), c, zipcclInvalidArgument,
          "reduction 99 does not exist");
    FAILS(zipcclAllReduce(m, m, 1, zipcclInt32, zipcclPreMulSum, c, NULL), c, zipcclInvalidArgument,
          "zipcclRedOpCreatePreMulSum");
    FAILS(zipcclReduce(m, NULL, 1, zipcclInt32, zipcclSum, RANK, c, NULL), c, zipcclInvalidArgument,
          "recvbuff is NULL, but rank 1 receives 4 bytes");
    FAILS(zipcclReduce(m, m, 1, zipcclInt32, zipcclSum, N, c, NULL), c, zipcclInvalidArgument,
          "root 3 is not a rank of 3");
    FAILS(zipcclReduceScatter(m, m, 2, zipcclInt32, zipcclSum, c, NULL), c, zipcclInvalidArgument, "recvbuff",
          "not its part of rank 1");
    FAILS(zipcclReduceScatter(m, m, SIZE_MAX / 8, zipcclInt32, zipcclSum, c, NULL), c, zipcclInvalidArgument,
          "recvcount");
    FAILS(zipcclReduceScatterv(m, m, NULL, zipcclInt32, zipcclSum, c, NULL), c, zipcclInvalidArgument,
          "counts is NULL");
    FAILS(zipcclAllGatherv(m, m, huge, zipcclInt32, c, NULL), c, zipcclInvalidArgument, "counts[1]", "too large");
    FAILS(zipcclAllGatherv(m, m, large, zipcclInt32, c, NULL), c, zipcclInvalidArgument, "counts[1]", "too large");
    FAILS(zipcclAllGatherv(m, m, counts, zipcclInt32, c, NULL), c, zipcclInvalidArgument, "not its part of rank 1");
    FAILS(zipcclAllToAll(m, m, 1, zipcclInt32, c, NULL), c, zipcclInvalidArgument, "overlaps", "use two buffers");
    FAILS(zipcclAllToAllv(m, NULL, NULL, m, counts, NULL, zipcclInt32, c, NULL), c, zipcclInvalidArgument,
          "sendcounts is NULL");
    FAILS(zipcclAllToAllv(m, counts, NULL, m, NULL, NULL, zipcclInt32, c, NULL), c, zipcclInvalidArgument,
          "recvcounts is NULL");
    FAILS(zipcclAllToAllv(m, counts, far, m, counts, NULL, zipcclInt32, c, NULL), c, zipcclInvalidArgument,
          "sendcounts[0]", "too large");
    FAILS(zipcclAllToAllv(m, counts, NULL, m + 12, counts, displs, zipcclInt32, c, NULL), c, zipcclInvalidArgument,
          "ranks 0 and 1", "recvdispls");
    FAILS(zipcclAllToAllv(m, counts, NULL, m + 5, counts, NULL, zipcclInt32, c, NULL), c, zipcclInvalidArgument,
          "overlaps");
    FAILS(zipcclAllToAllv(m, counts, NULL, NULL, counts, NULL, zipcclInt32, c, NULL), c, zipcclInvalidArgument,
          "recvbuff is NULL");
    uint64_t few[2 * N + 1] = {0};
    FAILS(zipcclAllToAllCapped(m, NULL, m + 12, few, 1, zipcclInt32, c, NULL), c, zipcclInvalidArgument,
          "sendcounts is NULL");
    FAILS(zipcclAllToAllCapped(m, few, m + 12, NULL, 1, zipcclInt32, c, NULL), c, zipcclInvalidArgument,
          "recvcounts is NULL");
    FAILS(zipcclAllToAllCapped(m, (uint64_t *)(void *)((char *)few + 4), m + 12, few + N + 1, 1, zipcclInt32, c, NULL),
          c, zipcclInvalidArgument, "sendcounts is not aligned");
    FAILS(zipcclAllToAllCapped(m, few, m + 12, few + N - 1, 1, zipcclInt32, c, NULL), c, zipcclInvalidArgument,
          "recvcounts overlaps sendcounts");
    FAILS(zipcclAllToAllCapped(m, few, few + N, few + N, 1, zipcclInt32, c, NULL), c, zipcclInvalidArgument,
          "recvcounts overlaps recvbuff");
    FAILS(zipcclAllToAllCapped(m, few, few, few + N, 1, zipcclInt32, c, NULL), c, zipcclInvalidArgument,
          "sendcounts overlaps recvbuff");
    FAILS(zipcclAllToAllCapped(few + N, few, m, few + N, 1, zipcclInt32, c, NULL), c, zipcclInvalidArgument,
          "recvcounts overlaps sendbuff");
    FAILS(zipcclAllToAllCapped(m, few, m + 2, few + N, 1, zipcclInt32, c, NULL), c, zipcclInvalidArgument,
          "overlaps recvbuff");
    FAILS(zipcclAllToAllCapped(m, few, m + 12, few + N, SIZE_MAX / 8, zipcclInt32, c, NULL), c, zipcclInvalidArgument,
          "max_count", "too large");
    FAILS(zipcclGather(m, m, 1, zipcclInt32, RANK, c, NULL), c, zipcclInvalidArgument, "not its part of rank 1");
    FAILS(zipcclGather(m, m, 1, zipcclInt32, -1, c, NULL), c, zipcclInvalidArgument, "root -1");
    FAILS(zipcclScatter(m, m, 1, zipcclInt32, RANK, c, NULL), c, zipcclInvalidArgument, "not its part of rank 1");
    FAILS(zipcclScatter(NULL, m, 1, zipcclInt32, RANK, c, NULL), c, zipcclInvalidArgument, "sendbuff is NULL");
    FAILS(zipcclSend(m, 1, zipcclInt32, 3, c, NULL), c, zipcclInvalidArgument, "peer 3 is not a rank of 3");
    FAILS(zipcclSend(m, 1, zipcclInt32, RANK, c, NULL), c, zipcclInvalidUsage, "wait for itself", "group");
    FAILS(zipcclRecv(NULL, 1, zipcclInt32, 0, c, NULL), c, zipcclInvalidArgument, "recvbuff is NULL");
    FAILS(zipcclRecv(m, 1, (zipcclDataType_t)12, 0, c, NULL), c, zipcclInvalidArgument, "dtype 12");
    FAILS(zipcclRecv(m, 1, zipcclInt32, 0, c, (zipcclStream_t)(void *)m), c, zipcclInvalidArgument, "stream");
    FAILS(zipcclAllToAll(m, m, 1, zipcclInt32, NULL, NULL), NULL, zipcclInvalidArgument,
          "zipcclAllToAll: comm is NULL");
    FAILS(zipcclCommSetArm(c, (zipcclArm_t)7), c, zipcclInvalidArgument, "arm 7");
    /* To the last byte of zipcclMemAlloc memory, not beyond. */
    int32_t *end = b->shared + (1 << 14);
    FAILS(zipcclAllToAllCapped(m, few, m + 12, (uint64_t *)(void *)(end - 2), 1, zipcclInt32, c, NULL), c,
          zipcclInvalidArgument, "16 bytes behind the end");
    OK(zipcclAllReduce(end - 4, end - 4, 4, zipcclInt32, zipcclSum, c, NULL));
    FAILS(zipcclAllToAllv(m, counts, NULL, end - 5, counts, NULL, zipcclInt32, c, NULL), c, zipcclInvalidArgument,
          "4 bytes behind the end");
    assert_int_equal(atomic_load(&b->f.ops), 1);
    assert_int_equal(b->f.last.seq, 1); /* what was refused took no number */
}

static void too_many_ranks(void **state) {
    struct bench *b = *state;
    enum { MANY = 33000 };
    zipcclComm_t c = join(MANY, 0);
    size_t *counts = calloc(MANY, sizeof *counts);
    FAILS(zipcclAllToAllv(NULL, counts, NULL, NULL, counts, NULL, zipcclInt8, c, NULL), c, zipcclLimitExceeded,
          "33000 ranks do not fit", "at most 32764 ranks");
    OK(zipcclAllGatherv(NULL, NULL, counts, zipcclInt8, c, NULL));
    assert_int_equal(b->f.ncounts, MANY);
    free(counts);
    OK(zipcclCommDestroy(c));
}

static void premulsum(void **state) {
    struct bench *b = *state;
    zipcclComm_t c = b->c, other = join(2, 0);
    zipcclRedOp_t op, op2, theirs;
    float half = 0.5f, m[4] = {1, 2, 3, 4};
    uint8_t three = 3;
    OK(zipcclRedOpCreatePreMulSum(&op, &half, zipcclFloat32, c));
    OK(zipcclRedOpCreatePreMulSum(&op2, &three, zipcclUint8, c));
    OK(zipcclRedOpCreatePreMulSum(&theirs, &half, zipcclFloat32, other));
    assert_true(op > zipcclNumRedOps && op < zipcclMaxRedOp && op != op2 && op != theirs);
    OK(zipcclAllReduce(m, m, 4, zipcclFloat32, op, c, NULL));
    for (int i = 0; i < 4; i++)
        assert_true(m[i] == (float)N * half * (float)(i + 1));
    assert_int_equal(b->f.last.redop, zipcclPreMulSum);
    uint8_t bytes[2] = {1, 2};
    OK(zipcclAllReduce(bytes, bytes, 1, zipcclUint8, op2, c, NULL));
    assert_int_equal(b->f.last.scalar, 3);
    FAILS(zipcclAllReduce(m, m, 4, zipcclFloat32, theirs, c, NULL), c, zipcclInvalidArgument, "another communicator");
    FAILS(zipcclAllReduce(m, m, 4, zipcclBfloat16, op, c, NULL), c, zipcclInvalidArgument, "made for float32",
          "dtype is bfloat16");
    OK(zipcclCommSetArm(c, zipcclArmFlat));
    FAILS(zipcclAllReduce(m, m, 4, zipcclFloat32, op, c, NULL), c, zipcclInvalidArgument, "flat", "zipcclCommSetArm");
    OK(zipcclAllReduce(m, m, 4, zipcclFloat32, zipcclSum, c, NULL));
    OK(zipcclCommSetArm(c, zipcclArmAuto));
    /* In a group the scalar is read at the call. */
    OK(zipcclGroupStart());
    OK(zipcclAllReduce(m, m, 4, zipcclFloat32, op, c, NULL));
    OK(zipcclRedOpDestroy(op, c));
    OK(zipcclGroupEnd());
    assert_int_equal(b->f.last.redop, zipcclPreMulSum);
    FAILS(zipcclAllReduce(m, m, 4, zipcclFloat32, op, c, NULL), c, zipcclInvalidArgument, "destroyed");
    FAILS(zipcclRedOpDestroy(op, c), c, zipcclInvalidArgument, "was destroyed");
    FAILS(zipcclRedOpDestroy(zipcclSum, c), c, zipcclInvalidArgument, "reduction 0");
    FAILS(zipcclRedOpDestroy(op, NULL), NULL, zipcclInvalidArgument, "comm is NULL");
    FAILS(zipcclRedOpCreatePreMulSum(NULL, &half, zipcclFloat32, c), c, zipcclInvalidArgument, "op is NULL");
    FAILS(zipcclRedOpCreatePreMulSum(&op, NULL, zipcclFloat32, c), c, zipcclInvalidArgument, "scalar is NULL");
    OK(zipcclCommDestroy(other)); /* frees its own */
}

static void expect_split(struct bench *b, unsigned number, bool joins) {
    assert_int_equal(atomic_load(&b->f.split), number);
    assert_int_equal(atomic_load(&b->f.split_joins), joins);
}

static void split(void **state) {
    struct bench *b = *state;
    zipcclComm_t c = b->c, half = c, none = c;
    int n, rank;
    /* All ranks of the fake choose alike. */
    OK(zipcclCommSplit(c, 4, 9, &half));
    OK(zipcclCommCount(half, &n));
    OK(zipcclCommUserRank(half, &rank));
    assert_int_equal(n, N);
    assert_int_equal(rank, RANK);
    assert_int_equal(atomic_load(&b->f.ops), 2);
    expect_split(b, 1, true);
    OK(zipcclBarrier(half, NULL));
    assert_int_equal(b->f.last.seq, 1);
    OK(zipcclCommDestroy(half));
    OK(zipcclCommSplit(c, ZIPCCL_SPLIT_NOCOLOR, 0, &none));
    assert_null(none);
    expect_split(b, 2, false);
    FAILS(zipcclCommSplit(c, -2, 0, &none), c, zipcclInvalidArgument, "color -2");
    FAILS(zipcclCommSplit(c, 0, 0, NULL), c, zipcclInvalidArgument, "newcomm is NULL");
    OK(zipcclGroupStart());
    FAILS(zipcclCommSplit(c, 0, 0, &none), c, zipcclInvalidUsage, "group");
    OK(zipcclGroupEnd());
    /* An operation that fails, then a parent that works as before. */
    atomic_store(&b->f.mode, FAKE_FAIL_OP);
    FAILS(zipcclCommSplit(c, 0, 0, &none), c, zipcclInvalidArgument, "zipcclCommSplit", "ranks differ");
    assert_null(none);
    atomic_store(&b->f.mode, FAKE_GOOD);
    expect_split(b, 2, false); /* not all ranks came to it */
    OK(zipcclCommSplit(c, 0, 0, &half));
    expect_split(b, 3, true);
    OK(zipcclCommDestroy(half));
    OK(zipcclBarrier(c, NULL));
}

/* Alone it leads its color. */
static void split_without_id(void **state) {
    struct bench *b = *state;
    zipcclComm_t c = join(1, 0), none = c;
    atomic_store(&b->f.mode, FAKE_NO_ID);
    FAILS(zipcclCommSplit(c, 0, 0, &none), c, zipcclLimitExceeded, "rank 0, which leads color 0", "too many ids");
    assert_null(none);
    expect_split(b, 1, false);
    atomic_store(&b->f.mode, FAKE_GOOD);
    OK(zipcclCommSplit(c, 0, 0, &none));
    expect_split(b, 2, true);
    OK(zipcclCommDestroy(none));
    OK(zipcclCommDestroy(c));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(frames, setup, teardown),
        cmocka_unit_test_setup_teardown(memory, setup, teardown),
        cmocka_unit_test_setup_teardown(capped_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(registered_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(bad_arguments, setup, teardown),
        cmocka_unit_test_setup_teardown(too_many_ranks, setup, teardown),
        cmocka_unit_test_setup_teardown(premulsum, setup, teardown),
        cmocka_unit_test_setup_teardown(split, setup, teardown),
        cmocka_unit_test_setup_teardown(split_without_id, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

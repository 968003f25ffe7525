/* SPDX-License-Identifier: Apache-2.0 */
#include "anyop.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/op.h"
#include "reference.h"

#define UNTOUCHED 0x5c

uint64_t any_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state * 0x2545f4914f6cdd1du >> 11;
}

static uint64_t hash(uint64_t a, uint64_t b, uint64_t c) {
    uint64_t h = (a * 1000003 + b) * 1000003 + c + 1;
    h *= 0x9e3779b97f4a7c15u;
    h ^= h >> 31;
    h *= 0xbf58476d1ce4e5b9u;
    return h ^ h >> 29;
}

void any_buffers_new(struct any_buffers *b, enum memory send, enum memory recv, size_t bytes) {
    memset(b, 0, sizeof(*b));
    buffer_new(&b->send, send, bytes + 2 * COLLECT_GUARD + 64);
    buffer_new(&b->recv, recv, bytes + 2 * COLLECT_GUARD + 64);
}

void any_buffers_free(struct any_buffers *b) {
    buffer_free(&b->send);
    buffer_free(&b->recv);
}

void any_world_set(struct any_world *w, const char *layout, int rank, zipcclComm_t comm) {
    *w = (struct any_world){.comm = comm, .rank = rank, .nranks = (int)strlen(layout)};
    for (int i = 0; i < w->nranks; i++)
        w->node[i] = layout[i] - '0';
}

size_t any_count(const struct any_op *a, int from, int to) {
    uint64_t h = hash(a->seq, (uint64_t)from, (uint64_t)to);
    if (h % 3 == 0)
        return 0;
    return h % 5 == 0 ? a->count : (h >> 8) % (a->count + 1) / (h % 7 == 0 ? 1 : 16);
}

static int most_of_a_node(const struct any_world *w) {
    int most = 0;
    for (int i = 0; i < w->nranks; i++) {
        int n = 0;
        for (int k = 0; k < w->nranks; k++)
            n += w->node[k] == w->node[i];
        most = n > most ? n : most;
    }
    return most;
}

static bool spans(const struct any_world *w) {
    for (int i = 1; i < w->nranks; i++)
        if (w->node[i] != w->node[0])
            return true;
    return false;
}

static void draw_reduction(uint64_t *state, const struct any_world *w, struct any_op *a) {
    static const zipcclArm_t arms[] = {zipcclArmAuto, zipcclArmHierarchical, zipcclArmFlat, zipcclArmRing};
    a->redop = (zipcclRedOp_t)(any_random(state) % zipcclNumRedOps);
    a->arm = arms[any_random(state) % 4];
    if (a->arm == zipcclArmFlat && (a->redop == zipcclPreMulSum || (spans(w) && most_of_a_node(w) > 2)))
        a->arm = zipcclArmHierarchical;
}

struct any_op any_draw(uint64_t *state, const struct any_world *w, size_t bytes, uint64_t seq) {
    static const zipcclOp_t ops[] = {zipcclOpAllGather, zipcclOpBroadcast,  zipcclOpReduceScatter, zipcclOpAllReduce,
                                     zipcclOpReduce,    zipcclOpAllToAll,   zipcclOpAllToAllv,     zipcclOpGather,
                                     zipcclOpScatter,   zipcclOpAllGatherv, zipcclOpReduceScatterv};
    static const zipcclCodec_t codecs[] = {zipcclCodecRaw, zipcclCodecTop7, zipcclCodecTier, zipcclCodecAuto};
    static const size_t counts[] = {0, 1, 2, 3, 7, 63, 511, 512, 513, 4097};
    struct any_op a = {.op = ops[any_random(state) % (sizeof(ops) / sizeof(ops[0]))],
                       .dtype = (zipcclDataType_t)(any_random(state) % zipcclNumTypes),
                       .codec = codecs[any_random(state) % 4],
                       .arm = zipcclArmAuto,
                       .root = (int)(any_random(state) % (uint64_t)w->nranks),
                       .in_place = any_random(state) % 2,
                       .gaps = any_random(state) % 2,
                       .seq = seq};
    size_t most = bytes / (dtype_size(a.dtype) * (size_t)w->nranks) / 2;
    size_t kind = any_random(state) % 16, odd = any_random(state);
    a.count = kind < 10 ? counts[kind] : odd % (most / (kind == 15 ? 1 : 8) + 1);
    a.count = a.count < most ? a.count : most;
    if (op_reduces(a.op))
        draw_reduction(state, w, &a);
    return a;
}

const char *any_name(const struct any_op *a, char text[160]) {
    snprintf(text, 160, "#%llu: %s, dtype %d, %s, arm %s, codec %d, count %zu, root %d, %s place%s",
             (unsigned long long)a->seq, op_name(a->op), (int)a->dtype, op_reduces(a->op) ? redop_name(a->redop) : "-",
             arm_name(a->arm), (int)a->codec, a->count, a->root, a->in_place ? "in" : "out of",
             a->gaps ? ", gaps" : "");
    return text;
}

/* ---- what goes where ---- */

/* Values that each rank gives and takes; in place: where the inner buffer lies in the outer one. */
struct extent {
    size_t send, recv, own;
    bool apart; /* never in place */
};

/* Parts of an all-to-all-v; returns the values up to the end of the last. */
static size_t parts(const struct any_world *w, const struct any_op *a, bool sends, size_t *counts, size_t *displs) {
    size_t at = 0, end = 0;
    for (int p = 0; p < w->nranks; p++) {
        counts[p] = sends ? any_count(a, w->rank, p) : any_count(a, p, w->rank);
        if (a->gaps && counts[p])
            at += hash(a->seq, (uint64_t)p, sends) % 3;
        displs[p] = at;
        at += counts[p];
        end = counts[p] ? at : end;
    }
    return end;
}

static struct extent extent_of(const struct any_world *w, const struct any_op *a) {
    size_t n = (size_t)w->nranks, me = (size_t)w->rank, c = a->count, all = 0, before = 0, counts[E2E_MAX_RANKS],
           displs[E2E_MAX_RANKS];
    bool root = w->rank == a->root;
    for (int i = 0; i < w->nranks; i++) {
        before += i < w->rank ? any_count(a, i, 0) : 0;
        all += any_count(a, i, 0);
    }
    switch (a->op) {
    case zipcclOpAllGather:
        return (struct extent){c, n * c, me * c, false};
    case zipcclOpBroadcast:
        return (struct extent){root ? c : 0, c, 0, false};
    case zipcclOpReduceScatter:
        return (struct extent){n * c, c, me * c, false};
    case zipcclOpAllReduce:
        return (struct extent){c, c, 0, false};
    case zipcclOpReduce:
        return (struct extent){c, root ? c : 0, 0, false};
    case zipcclOpAllToAll:
        return (struct extent){n * c, n * c, 0, true};
    case zipcclOpAllToAllv:
        return (struct extent){parts(w, a, true, counts, displs), parts(w, a, false, counts, displs), 0, true};
    case zipcclOpGather:
        return (struct extent){c, root ? n * c : 0, me * c, !root};
    case zipcclOpScatter:
        return (struct extent){root ? n * c : 0, c, me * c, !root};
    case zipcclOpAllGatherv:
        return (struct extent){any_count(a, w->rank, 0), all, before, false};
    case zipcclOpReduceScatterv:
        return (struct extent){all, any_count(a, w->rank, 0), before, false};
    case zipcclOpSend:
        return (struct extent){c, 0, 0, true};
    case zipcclOpRecv:
        return (struct extent){0, c, 0, true};
    default:
        return (struct extent){0};
    }
}

/* ---- data ---- */

/* Whether a sum's bits depend on its roundings in another way than the reference's: then the data has none. */
static bool must_be_exact(const struct any_op *a) {
    return op_reduces(a->op) && a->arm == zipcclArmRing;
}

/* What a rank sends, `values` of them; a pointer that is good until the next call with this rank. */
static const uint8_t *data_of(const struct any_op *a, int rank, size_t values) {
    static uint8_t *exact[E2E_MAX_RANKS];
    static size_t capacity[E2E_MAX_RANKS];
    size_t size = dtype_size(a->dtype);
    bool floats = a->dtype >= zipcclFloat16;
    if (!must_be_exact(a) || !floats)
        return pool_piece(rank, a->seq, values * size);
    if (capacity[rank] < values * size) {
        free(exact[rank]);
        exact[rank] = malloc(capacity[rank] = values * size);
        E2E_CHECK(exact[rank], "%zu", values * size);
    }
    for (size_t i = 0; i < values; i++) { /* a sum of 8 of these is exact in every dtype, and so is a product */
        double x = (double)(hash(i, (uint64_t)rank, a->seq) % 2) + (a->redop == zipcclProd ? 1 : 0);
        uint64_t bits = reference_round(a->dtype, x);
        memcpy(exact[rank] + i * size, &bits, size);
    }
    return exact[rank] ? exact[rank] : pool();
}

static uint64_t scalar_of(const struct any_op *a, int rank) {
    if (a->dtype < zipcclFloat16)
        return (uint64_t)rank + 3;
    if (must_be_exact(a))
        return reference_round(a->dtype, 2.0);
    return reference_round(a->dtype, (double)(float)(0.3 * (rank % 3 ? rank : -1) + 0.04));
}

/* The values that a rank hands over, as the reference wants them. */
static size_t given(const struct any_world *w, const struct any_op *a, int rank) {
    struct any_world other = *w;
    other.rank = rank;
    return extent_of(&other, a).send;
}

/* ---- issue ---- */

static uint8_t *place(struct buffer *b, const struct any_op *a, uint64_t salt, size_t bytes) {
    size_t shift = hash(a->seq, salt, 77) % 3 * dtype_size(a->dtype);
    E2E_CHECK(bytes + shift + 2 * COLLECT_GUARD <= b->capacity, "%zu bytes", bytes);
    memset(b->data, UNTOUCHED, bytes + shift + 2 * COLLECT_GUARD);
    return b->data + COLLECT_GUARD + shift;
}

/* Where a place in one of the buffers is for the operation. */
static uint8_t *there(const struct any_buffers *b, uint8_t *p) {
    if (!b->there_send)
        return p;
    bool in_send = p >= b->send.data && p < b->send.data + b->send.capacity;
    return in_send ? b->there_send + (p - b->send.data) : b->there_recv + (p - b->recv.data);
}

static zipcclResult_t call(const struct any_world *w, zipcclStream_t stream, const struct any_op *a,
                           const struct any_buffers *b) {
    uint8_t *give = there(b, b->from), *take = there(b, b->to);
    size_t counts[E2E_MAX_RANKS], send[E2E_MAX_RANKS], recv[E2E_MAX_RANKS], from[E2E_MAX_RANKS], to[E2E_MAX_RANKS];
    zipcclRedOp_t redop = a->redop == zipcclPreMulSum ? b->made : a->redop;
    for (int i = 0; i < w->nranks; i++)
        counts[i] = any_count(a, i, 0);
    switch (a->op) {
    case zipcclOpAllGather:
        return zipcclAllGather(give, take, a->count, a->dtype, w->comm, stream);
    case zipcclOpBroadcast:
        return zipcclBroadcast(give, take, a->count, a->dtype, a->root, w->comm, stream);
    case zipcclOpReduceScatter:
        return zipcclReduceScatter(give, take, a->count, a->dtype, redop, w->comm, stream);
    case zipcclOpAllReduce:
        return zipcclAllReduce(give, take, a->count, a->dtype, redop, w->comm, stream);
    case zipcclOpReduce:
        return zipcclReduce(give, take, a->count, a->dtype, redop, a->root, w->comm, stream);
    case zipcclOpAllToAll:
        return zipcclAllToAll(give, take, a->count, a->dtype, w->comm, stream);
    case zipcclOpAllToAllv:
        (void)parts(w, a, true, send, from);
        (void)parts(w, a, false, recv, to);
        return zipcclAllToAllv(give, send, a->gaps ? from : NULL, take, recv, a->gaps ? to : NULL, a->dtype, w->comm,
                               stream);
    case zipcclOpGather:
        return zipcclGather(give, take, a->count, a->dtype, a->root, w->comm, stream);
    case zipcclOpScatter:
        return zipcclScatter(give, take, a->count, a->dtype, a->root, w->comm, stream);
    case zipcclOpAllGatherv:
        return zipcclAllGatherv(give, take, counts, a->dtype, w->comm, stream);
    case zipcclOpReduceScatterv:
        return zipcclReduceScatterv(give, take, counts, a->dtype, redop, w->comm, stream);
    case zipcclOpSend:
        return zipcclSend(give, a->count, a->dtype, a->root, w->comm, stream);
    case zipcclOpRecv:
        return zipcclRecv(take, a->count, a->dtype, a->root, w->comm, stream);
    default:
        return zipcclInternalError;
    }
}

zipcclResult_t any_issue(const struct any_world *w, zipcclStream_t stream, const struct any_op *a,
                         struct any_buffers *b) {
    struct extent x = extent_of(w, a);
    size_t size = dtype_size(a->dtype), bytes = x.send * size;
    uint64_t scalar = scalar_of(a, w->rank);
    bool in_place = a->in_place && !x.apart, outer_is_recv = x.recv > x.send || !op_reduces(a->op);
    if (a->op == zipcclOpScatter || a->op == zipcclOpReduceScatterv || a->op == zipcclOpReduceScatter)
        outer_is_recv = false;
    b->from = place(&b->send, a, 1, bytes);
    b->to = place(&b->recv, a, 2, x.recv * size);
    if (in_place && outer_is_recv)
        b->from = b->to + x.own * size;
    else if (in_place)
        b->to = b->from + x.own * size;
    if (bytes)
        memcpy(b->from, data_of(a, w->rank, x.send), bytes);
    E2E_OK(w->comm, zipcclCommSetCodec(w->comm, a->codec));
    E2E_OK(w->comm, zipcclCommSetArm(w->comm, a->arm));
    b->made = zipcclSum;
    if (op_reduces(a->op) && a->redop == zipcclPreMulSum)
        E2E_OK(w->comm, zipcclRedOpCreatePreMulSum(&b->made, &scalar, a->dtype, w->comm));
    if (b->carry)
        b->carry(b);
    return call(w, stream, a, b);
}

/* ---- check ---- */

static void wrong(const struct any_world *w, const struct any_op *a, const char *what, size_t i, uint64_t got,
                  uint64_t expected) {
    char text[160];
    E2E_FAIL("rank %d of %d, %s: %s %zu is %llx, not %llx", w->rank, w->nranks, any_name(a, text), what, i,
             (unsigned long long)got, (unsigned long long)expected);
}

static void same(const struct any_world *w, const struct any_op *a, const uint8_t *got, const uint8_t *expected,
                 size_t bytes) {
    if (bytes == 0 || memcmp(got, expected, bytes) == 0)
        return;
    size_t i = 0;
    while (got[i] == expected[i])
        i++;
    wrong(w, a, "byte", i, got[i], expected[i]);
}

static void check_sum(const struct any_world *w, const struct any_op *a, const uint8_t *got, size_t first, size_t n) {
    struct reference ref = {.dtype = a->dtype, .redop = a->redop, .nranks = w->nranks, .node = w->node};
    size_t size = dtype_size(a->dtype);
    for (int i = 0; i < w->nranks; i++) {
        ref.inputs[i] = data_of(a, i, given(w, a, i));
        ref.scalars[i] = scalar_of(a, i);
    }
    for (size_t i = 0; i < n; i++) {
        uint64_t expected = reference_value(&ref, first + i), value = 0;
        memcpy(&value, got + i * size, size);
        if (value != expected)
            wrong(w, a, "value", i, value, expected);
    }
}

/* One part of what moved: `n` values that rank `from` gave at `at`. */
static void check_part(const struct any_world *w, const struct any_op *a, size_t to, int from, size_t at, size_t n,
                       const uint8_t *got) {
    size_t size = dtype_size(a->dtype);
    same(w, a, got + to * size, data_of(a, from, given(w, a, from)) + at * size, n * size);
}

static void check_all_to_all_v(const struct any_world *w, const struct any_op *a, const uint8_t *got) {
    size_t counts[E2E_MAX_RANKS], displs[E2E_MAX_RANKS], theirs[E2E_MAX_RANKS], from[E2E_MAX_RANKS], at = 0;
    size_t size = dtype_size(a->dtype);
    (void)parts(w, a, false, counts, displs);
    for (int p = 0; p < w->nranks; p++) {
        struct any_world other = *w;
        other.rank = p;
        (void)parts(&other, a, true, theirs, from);
        check_part(w, a, displs[p], p, from[w->rank], counts[p], got);
        for (size_t i = at; counts[p] && i < displs[p] * size; i++) /* the gap before it */
            if (got[i] != UNTOUCHED)
                wrong(w, a, "byte of a gap", i, got[i], UNTOUCHED);
        at = counts[p] ? (displs[p] + counts[p]) * size : at;
    }
}

static void check_result(const struct any_world *w, const struct any_op *a, const uint8_t *got, struct extent x) {
    size_t at = 0;
    switch (a->op) {
    case zipcclOpAllReduce:
    case zipcclOpReduce:
        check_sum(w, a, got, 0, x.recv);
        break;
    case zipcclOpReduceScatter:
    case zipcclOpReduceScatterv:
        check_sum(w, a, got, x.own, x.recv);
        break;
    case zipcclOpAllToAllv:
        check_all_to_all_v(w, a, got);
        break;
    case zipcclOpAllToAll:
        for (int p = 0; p < w->nranks; p++)
            check_part(w, a, (size_t)p * a->count, p, (size_t)w->rank * a->count, a->count, got);
        break;
    case zipcclOpBroadcast:
        check_part(w, a, 0, a->root, 0, a->count, got);
        break;
    case zipcclOpScatter:
        check_part(w, a, 0, a->root, x.own, a->count, got);
        break;
    case zipcclOpRecv: { /* the sender's piece of the pool */
        same(w, a, got, pool_piece(a->root, a->seq, a->count * dtype_size(a->dtype)), a->count * dtype_size(a->dtype));
        break;
    }
    default: /* gathers */
        for (int p = 0; x.recv > 0 && p < w->nranks; p++) {
            size_t n = a->op == zipcclOpAllGatherv ? any_count(a, p, 0) : a->count;
            check_part(w, a, at, p, 0, n, got);
            at += n;
        }
    }
}

void any_check(const struct any_world *w, const struct any_op *a, struct any_buffers *b) {
    struct extent x = extent_of(w, a);
    size_t size = dtype_size(a->dtype);
    bool in_place = a->in_place && !x.apart;
    if (a->op != zipcclOpSend)
        check_result(w, a, b->to, x);
    if (!in_place) {
        same(w, a, b->from, data_of(a, w->rank, x.send), x.send * size);
        for (size_t i = 0; i < COLLECT_GUARD; i++)
            if (b->to[-1 - (ptrdiff_t)i] != UNTOUCHED || b->to[x.recv * size + i] != UNTOUCHED)
                wrong(w, a, "byte around the result", i, 0, UNTOUCHED);
    }
    if (b->made != zipcclSum)
        E2E_OK(w->comm, zipcclRedOpDestroy(b->made, w->comm));
    b->made = zipcclSum;
}

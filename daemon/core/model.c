/* SPDX-License-Identifier: Apache-2.0
 *
 * The formulas of the time model.
 */
#include "daemon/core/model.h"

#include <string.h>

#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "proto/op.h"

#define STEP_NS       20000u /* queues and wake-ups of encode and decode */
#define CHUNK_LEAST   (64u << 10)
#define MOST_CHUNKS   8u
#define SLOWEST       16u
#define SHARED        3u /* times as slow is coding beside a link that takes what it gets */
#define NS_PER_SECOND 1000000000u
#define LINK_BYTES    (8u << 10) /* an operation of less says nothing about the link */

static uint64_t times(uint64_t a, uint64_t b) {
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX / 4 : product;
}

static uint64_t plus(uint64_t a, uint64_t b) {
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX / 4 : sum;
}

static uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* Nanoseconds for bytes at a rate; a rate of 0 is not known and costs nothing. */
static uint64_t at_rate(uint64_t bytes, uint64_t bps) {
    if (bps == 0)
        return 0;
    uint64_t whole = times(bytes / bps, NS_PER_SECOND), rest = bytes % bps;
    while (rest > UINT64_MAX / NS_PER_SECOND) {
        rest >>= 1;
        bps >>= 1;
    }
    return plus(whole, rest * NS_PER_SECOND / bps);
}

/* What the busiest node does, in bytes of values. */
struct load {
    uint64_t wire, encode, decode, reduce;
    uint32_t steps;
};

static struct load load_of(const struct model_shape *s, const struct model_op *op) {
    uint64_t b = op->bytes, nodes = s->nnodes, others = s->nnodes - 1, away = s->nranks - s->most;
    uint64_t sent, received, copies = op_reduces(op->op) && op->arm == zipcclArmFlat ? s->most : 1;
    switch (op->op) {
    case zipcclOpAllGather:
    case zipcclOpAllGatherv:
        sent = times(b, s->most * others);
        received = times(b, s->nranks - s->least);
        return (struct load){larger(sent, received), times(b, s->most), received, 0, 1};
    case zipcclOpReduceScatter:
    case zipcclOpReduceScatterv:
        sent = times(b, (s->nranks - s->least) * copies);
        received = times(b, s->most * others * copies);
        return (struct load){larger(sent, received), sent, received, times(b, (uint64_t)s->nranks * s->most), 1};
    case zipcclOpAllReduce:
        sent = times(b / nodes, others);
        return (struct load){times(sent, copies + 1), plus(times(sent, copies), b / nodes), times(sent, copies + 1),
                             times(b, s->most), 2};
    case zipcclOpReduce:
        return (struct load){times(b, copies), times(b, copies), times(b, copies), times(b, s->most), 2};
    case zipcclOpAllToAll:
    case zipcclOpAllToAllCapped: /* at its cap */
        sent = times(b, larger(s->most * away, (uint64_t)s->least * (s->nranks - s->least)));
        return (struct load){sent, sent, sent, 0, 1};
    case zipcclOpAllToAllv: /* b: what a rank sends to other nodes */
        return (struct load){times(b, s->most), times(b, s->most), times(b, s->most), 0, 1};
    case zipcclOpGather:
    case zipcclOpScatter:
        sent = times(b, s->nranks - s->least);
        return (struct load){sent, sent, sent, 0, 1};
    default:
        return (struct load){b, b, b, 0, 1};
    }
}

void model_init(struct model *m) {
    static const struct {
        uint8_t dtype;
        uint16_t tier, top7;
    } ordinary[] = {
        {zipcclBfloat16, 700, 740},    {zipcclFloat16, 900, 940},    {zipcclFloat32, 890, 920},
        {zipcclFloat8e4m3, 920, 1000}, {zipcclFloat8e5m2, 780, 860},
    };
    memset(m, 0, sizeof *m);
    for (unsigned c = 0; c < zipcclNumCodecs; c++) {
        for (unsigned t = 0; t < zipcclNumTypes; t++)
            m->fraction[c][t] = MODEL_WHOLE;
    }
    for (unsigned i = 0; i < sizeof ordinary / sizeof *ordinary; i++) {
        m->fraction[zipcclCodecTier][ordinary[i].dtype] = ordinary[i].tier;
        m->fraction[zipcclCodecTop7][ordinary[i].dtype] = ordinary[i].top7;
    }
}

struct model_shape model_shape_of(const struct plan_topology *t, uint32_t *members) {
    struct model_shape s = {.nranks = t->nranks, .nnodes = t->nnodes, .least = UINT32_MAX};
    memset(members, 0, t->nnodes * sizeof *members);
    for (uint32_t r = 0; r < t->nranks; r++)
        members[t->rank_node[r]]++;
    for (uint32_t n = 0; n < t->nnodes; n++) {
        s.most = members[n] > s.most ? members[n] : s.most;
        s.least = members[n] < s.least ? members[n] : s.least;
    }
    return s;
}

uint64_t model_wire(const struct model_shape *shape, const struct model_op *op) {
    if (shape->nnodes < 2 || op->op == zipcclOpBarrier)
        return 0;
    return load_of(shape, op).wire;
}

static uint64_t chunks_of(const struct load *load) {
    uint64_t chunks = load->wire / CHUNK_LEAST;
    return chunks < 1 ? 1 : chunks > MOST_CHUNKS ? MOST_CHUNKS : chunks;
}

/* All but the link's time. */
static uint64_t work_of(const struct model *m, const struct model_op *op, const struct load *load, uint64_t *fixed) {
    uint64_t work = at_rate(load->reduce, 2 * m->decode_bps);
    *fixed = times(load->steps, m->latency_ns);
    if (op->codec != zipcclCodecRaw) {
        work = plus(work, plus(at_rate(load->encode, m->encode_bps), at_rate(load->decode, m->decode_bps)));
        *fixed = plus(*fixed, 2ull * load->steps * STEP_NS);
    }
    *fixed = plus(*fixed, work / chunks_of(load));
    return work;
}

static uint64_t coded_wire(const struct model *m, const struct model_op *op, const struct load *load) {
    uint64_t coded = times(load->wire / MODEL_WHOLE, m->fraction[op->codec][op->dtype]);
    return plus(coded, load->wire % MODEL_WHOLE * m->fraction[op->codec][op->dtype] / MODEL_WHOLE);
}

static uint64_t predict(const struct model *m, const struct model_shape *shape, const struct model_op *op, bool apart) {
    if (shape->nnodes < 2)
        return 1;
    struct load load = load_of(shape, op);
    uint64_t fixed, work = work_of(m, op, &load, &fixed);
    uint64_t link = at_rate(coded_wire(m, op, &load), m->link_bps);
    if (!apart)
        return plus(plus(fixed, larger(link, work)), 1);
    return plus(plus(fixed, plus(link, op->codec != zipcclCodecRaw && m->unpaced ? times(work, SHARED) : work)), 1);
}

uint64_t model_predict(const struct model *m, const struct model_shape *shape, const struct model_op *op) {
    return predict(m, shape, op, false);
}

uint64_t model_predict_apart(const struct model *m, const struct model_shape *shape, const struct model_op *op) {
    return predict(m, shape, op, true);
}

uint64_t model_link_from(const struct model *m, const struct model_shape *shape, const struct model_op *op,
                         uint64_t ns) {
    struct load load = load_of(shape, op);
    uint64_t fixed;
    (void)work_of(m, op, &load, &fixed);
    if (shape->nnodes < 2 || op->codec != zipcclCodecRaw || load.wire < LINK_BYTES || ns <= fixed + fixed / 4)
        return 0;
    /* Kilobytes a microsecond are enough: bytes times 1e9 would overflow. */
    uint64_t us = (ns - fixed) / 1000;
    return us == 0 || load.wire > UINT64_MAX / 1000000 ? 0 : load.wire * 1000000 / us;
}

/* rate * num / den, at most most and at least a part of it. */
static uint64_t scaled_rate(uint64_t rate, uint64_t num, uint64_t den, uint64_t most) {
    while (num > UINT32_MAX || den > UINT32_MAX) {
        num >>= 1;
        den >>= 1;
    }
    uint64_t r = rate > UINT64_MAX / (num + 1) ? rate / (den + 1) * num : rate * num / (den ? den : 1);
    return r > most ? most : larger(r, most / SLOWEST + 1);
}

void model_correct_codec(struct model *m, const struct model *start, const struct model_shape *shape,
                         const struct model_op *op, uint64_t ns) {
    struct load load = load_of(shape, op);
    uint64_t fixed, work = work_of(m, op, &load, &fixed), chunks = chunks_of(&load);
    fixed -= work / chunks;
    if (shape->nnodes < 2 || op->codec == zipcclCodecRaw || load.wire < LINK_BYTES || work == 0 || ns <= fixed)
        return;
    /* ns = fixed + work + work / chunks */
    uint64_t took = (ns - fixed) / (chunks + 1) * chunks;
    if (took <= at_rate(coded_wire(m, op, &load), m->link_bps))
        return;
    m->encode_bps = scaled_rate(m->encode_bps, work, took, start->encode_bps);
    m->decode_bps = scaled_rate(m->decode_bps, work, took, start->decode_bps);
}

bool model_may_code(const struct model *m, const struct model_shape *shape, const struct model_op *op) {
    return model_wire(shape, op) >= MODEL_MIN_BYTES && codec_supports(zipcclCodecTier, op->dtype) && m->link_bps != 0 &&
           m->encode_bps != 0 && m->decode_bps != 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated link. Its formula is not the model's: work hides behind the link in part alone, and codecs are slower
 * than they were when nothing else ran.
 */
#include "switcher_sim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "proto/op.h"

void sim_init(struct sim *s, double gbits, uint32_t nodes, uint32_t ranks_per_node) {
    memset(s, 0, sizeof *s);
    s->shape = (struct model_shape){nodes * ranks_per_node, nodes, ranks_per_node, ranks_per_node};
    s->world = (struct sim_world){.link_bps = gbits * 1.25e8,
                                  .latency_ns = 30e3,
                                  .encode_bps = 1.1e9,
                                  .decode_bps = 1.3e9,
                                  .overlap = 0.7,
                                  .noise = 0.05,
                                  .node_skew = 0.02,
                                  .ratio = {1, 1.42, 1.47}};
    model_init(&s->model);
    s->model.link_bps = (uint64_t)(s->world.link_bps * 0.95);
    s->model.latency_ns = 25000;
    s->model.encode_bps = 1500000000;
    s->model.decode_bps = 1600000000;
    s->random = 88172645463325253ull;
    for (uint32_t n = 0; n < nodes; n++)
        switcher_init(&s->nodes[n], &s->model, &s->shape, SWITCH_NODE_KINDS);
}

void sim_free(struct sim *s) {
    for (uint32_t n = 0; n < SIM_NODES; n++)
        switcher_free(&s->nodes[n]);
}

double sim_uniform(struct sim *s) {
    s->random ^= s->random << 13;
    s->random ^= s->random >> 7;
    s->random ^= s->random << 17;
    return (double)(s->random >> 11) * 0x1p-53;
}

double sim_true_ns(const struct sim *s, const struct switch_want *want, zipcclArm_t arm, zipcclCodec_t codec) {
    const struct sim_world *w = &s->world;
    struct model_op op = {.op = want->op, .dtype = want->dtype, .arm = arm, .bytes = want->bytes};
    double wire = (double)model_wire(&s->shape, &op), sum = (double)(want->bytes * s->shape.most) / w->decode_bps * 1e9;
    double work = 0, fixed = w->latency_ns + 2000.0 * (double)s->shape.nranks;
    if (op_reduces(want->op) && arm == zipcclArmHierarchical && s->shape.most > 1)
        fixed += 12e3 + sum / 4;
    if (codec != zipcclCodecRaw) {
        work = wire / w->encode_bps * 1e9 + wire / w->decode_bps * 1e9;
        work *= codec == zipcclCodecTop7 ? 0.9 : 1;
        fixed += 60e3;
    }
    double link = wire / w->ratio[codec] / w->link_bps * 1e9, hidden = work * w->overlap;
    return fixed + (link > hidden ? link : hidden) + work * (1 - w->overlap) * (wire > 1e6 ? 0.3 : 1);
}

double sim_run(struct sim *s, const struct switch_want *want, struct switch_choice *choice) {
    struct switch_choice first = {0};
    uint32_t word = 0;
    for (uint32_t n = 0; n < s->shape.nnodes; n++) {
        assert_true(switcher_choose(&s->nodes[n], want, choice));
        if (n == 0)
            first = *choice;
        assert_int_equal(choice->arm, first.arm);
        assert_int_equal(choice->codec, first.codec);
        word = report_combine(word, choice->report);
    }
    s->report = word;
    double ns = sim_true_ns(s, want, first.arm, first.codec);
    double noise = 1 + s->world.noise * (2 * sim_uniform(s) - 1);
    if (s->world.outliers > 0 && sim_uniform(s) < s->world.outliers)
        noise *= 3;
    double from = (double)want->bytes, to = from / s->world.ratio[first.codec];
    bool coded = first.codec != zipcclCodecRaw;
    for (uint32_t n = 0; n < s->shape.nnodes; n++) {
        double mine = ns * noise * (1 + s->world.node_skew * (2 * sim_uniform(s) - 1));
        switcher_done(&s->nodes[n], (uint64_t)mine, coded ? (uint64_t)from : 0, coded ? (uint64_t)to : 0, word);
    }
    return ns;
}

double sim_best_ns(const struct sim *s, const struct switch_want *want) {
    static const zipcclCodec_t codecs[] = {zipcclCodecRaw, zipcclCodecTop7, zipcclCodecTier};
    double best = 1e30;
    for (unsigned a = zipcclArmFlat; a <= (unsigned)zipcclArmHierarchical; a++) {
        if (a == zipcclArmFlat && !want->flat)
            continue;
        for (unsigned c = 0; c < 3; c++) {
            double ns = sim_true_ns(s, want, (zipcclArm_t)a, codecs[c]);
            best = ns < best ? ns : best;
        }
    }
    return best;
}

struct switch_want sim_want(zipcclOp_t op, uint64_t bytes) {
    return (struct switch_want){.op = op,
                                .dtype = zipcclBfloat16,
                                .codec = zipcclCodecAuto,
                                .arm = op_reduces(op) ? zipcclArmAuto : zipcclArmHierarchical,
                                .full = true,
                                .bytes = bytes};
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The time model: how long an operation takes with an arm and a codec, from numbers that all nodes have agreed on. In
 * integers, so that all nodes compute the same. Pure.
 *
 * The busiest node, with b the bytes of one rank's values as the API counts them (-v: their mean), R ranks, N nodes, M
 * ranks on the fullest node:
 *
 *   operation         on the wire                encoded          decoded            steps
 *   all-gather        bM(N-1), or b(R-least)     bM               b(R-least)         1
 *   broadcast         b                          b                b                  1   (a chain, pipelined)
 *   reduce-scatter    b(R-M), or bM(N-1)         sent             received           1
 *   all-reduce        2b(N-1)/N                  half of sent+b/N  received          2
 *   reduce            b                          b                b                  2
 *   flat              contributions times the greatest number of ranks of a node
 *   all-to-all        bM(R-M)                    sent             received           1
 *   gather, scatter   b(R-M) at the root         as sent          as sent            1
 *   send              b                          b                b                  1
 *
 *   time = steps * latency + max(wire * f / link, work) + work / chunks + coded steps * a constant
 *   work = encoded / encode rate + decoded / decode rate + reduced / (2 * decode rate)
 *
 * f: coded size by raw size. What is coded travels while more is coded, but for the first chunk: work / chunks. Workers
 * and link never overlap as well as that, so coding is a little worse than the model says: trials tell (switcher.h).
 */
#ifndef ZIPCCL_DAEMON_MODEL_H
#define ZIPCCL_DAEMON_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/plan/plan.h"
#include "zipccl_types.h"

#define MODEL_MIN_BYTES (2u << 10) /* on the wire: below it nothing is coded */
#define MODEL_WHOLE     1024u      /* a fraction of 1 */

/* What the nodes agreed on at the communicator's creation, corrected by what all of them have measured since. */
struct model {
    uint64_t link_bps;   /* bytes a second between nodes: the least of cap and measurement over all nodes */
    bool unpaced;        /* no cap holds it: who codes may take from the link what moves the bytes */
    uint64_t latency_ns; /* one way */
    uint64_t encode_bps; /* bytes of values a second, least of all nodes */
    uint64_t decode_bps;
    uint16_t fraction[zipcclNumCodecs][zipcclNumTypes]; /* coded size by raw size, of MODEL_WHOLE */
};

/* How the ranks lie on the nodes. */
struct model_shape {
    uint32_t nranks, nnodes;
    uint32_t most, least; /* ranks of a node */
};

struct model_op {
    zipcclOp_t op;
    zipcclDataType_t dtype;
    zipcclArm_t arm;
    zipcclCodec_t codec;
    uint64_t bytes; /* b above */
};

/* Fractions that ordinary tensors have. */
void model_init(struct model *model);
struct model_shape model_shape_of(const struct plan_topology *topology, uint32_t *members);
/* Bytes of values that the busiest node sends or receives; 0: nothing crosses nodes. */
uint64_t model_wire(const struct model_shape *shape, const struct model_op *op);
/* Nanoseconds, at least 1. */
uint64_t model_predict(const struct model *model, const struct model_shape *shape, const struct model_op *op);
/* The same where coding and link share the processors, so that neither hides behind the other; where no cap leaves
 * processors idle, coding is slower too than it was alone. */
uint64_t model_predict_apart(const struct model *model, const struct model_shape *shape, const struct model_op *op);
/* The link rate at which the model would have predicted ns for a raw operation; 0: it says nothing about the link. */
uint64_t model_link_from(const struct model *model, const struct model_shape *shape, const struct model_op *op,
                         uint64_t ns);
/* Where a coded operation that took ns was held up by coding, not by the link: sets the codec's rates to those at which
 * the model would have predicted ns, at most those of `start` and at least a sixteenth of them. */
void model_correct_codec(struct model *model, const struct model *start, const struct model_shape *shape,
                         const struct model_op *op, uint64_t ns);
/* Whether an operation of this kind may be coded at all: crosses nodes, coded dtype, enough bytes, link known. */
bool model_may_code(const struct model *model, const struct model_shape *shape, const struct model_op *op);

#endif

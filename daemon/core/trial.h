/* SPDX-License-Identifier: Apache-2.0
 *
 * Trials: where the model says that coding pays, the clock decides. The first operations of a kind (dtype and size
 * class) of a communicator are run raw and coded in turn; each node times its own, all nodes tell each other (in the
 * headers of the messages of one operation), and from the next one on all take what was faster on the slowest node.
 * Repeated now and then.
 *
 * Nodes choose alike because all see the same operations in the same order, and the same reports: only operations in
 * which every node hears from every other one take part. Pure but for its state; owned by a communicator, loop thread.
 */
#ifndef ZIPCCL_DAEMON_TRIAL_H
#define ZIPCCL_DAEMON_TRIAL_H

#include <stdbool.h>
#include <stdint.h>

#include "zipccl_types.h"

#define TRIAL_OPS    7u   /* coded, raw, thrice; the first two only warm up; then one raw that carries the reports */
#define TRIAL_REPEAT 512u /* operations of the kind after which it is tried again */

struct trial_kind {
    uint32_t n;          /* operations so far, since the last trial began */
    bool coded;          /* what the last trial said */
    uint64_t best_ns[2]; /* raw, coded; 0: none yet */
};

struct trial {
    struct trial_kind kinds[zipcclNumTypes][64]; /* by dtype and log2 of bytes */
};

/* Two times in one word, for a message header: 16 bits each (5 exponent, 11 mantissa), ordered as the times are. */
uint32_t trial_pack(uint64_t raw_ns, uint64_t coded_ns);
/* The greater of each half. */
uint32_t trial_worst(uint32_t a, uint32_t b);

/* The codec of the next operation of the kind, where the model says `modelled` (not raw), and the report to send with
 * it (0: none). Followed by trial_done for it. */
zipcclCodec_t trial_choose(const struct trial_kind *kind, zipcclCodec_t modelled, uint32_t *report);
/* It took ns with that codec; worst: the greatest of all nodes' reports, this node's included. */
void trial_done(struct trial_kind *kind, bool coded, uint64_t ns, uint32_t worst);

struct trial_kind *trial_find(struct trial *trial, zipcclDataType_t dtype, uint64_t bytes);

#endif

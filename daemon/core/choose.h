/* SPDX-License-Identifier: Apache-2.0
 *
 * Which codec an operation takes. A pure function of values that all nodes of a communicator have agreed on, so that
 * all choose alike without asking each other. Coding must pay by a serial model (no overlap assumed), with a margin:
 * when in doubt, raw.
 */
#ifndef ZIPCCL_DAEMON_CHOOSE_H
#define ZIPCCL_DAEMON_CHOOSE_H

#include <stdint.h>

#include "daemon/plan/plan.h"
#include "zipccl_types.h"

struct choose_link {
    uint64_t link_bps;   /* bytes a second between nodes: the least of cap and measurement over all nodes */
    uint64_t latency_ns; /* one way */
    uint64_t encode_bps; /* bytes of values a second, least of all nodes */
    uint64_t decode_bps;
};

/* The codec for an operation whose ranks asked for `wanted` (auto: choose). Pinned codecs are kept where the dtype
 * allows coding, and the operation crosses nodes. */
zipcclCodec_t choose_codec(const struct choose_link *link, zipcclCodec_t wanted, zipcclOp_t op, zipcclDataType_t dtype,
                           uint64_t count, const struct plan_topology *topology);

#endif

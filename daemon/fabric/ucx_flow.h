/* SPDX-License-Identifier: Apache-2.0
 *
 * What a flow has to send and has sent (fabric_ops.flow_bytes): counted by ucx for its own sends, and by the fabric
 * above it for messages that go another way.
 */
#ifndef ZIPCCL_DAEMON_FABRIC_UCX_FLOW_H
#define ZIPCCL_DAEMON_FABRIC_UCX_FLOW_H

#include "daemon/fabric/fabric.h"

/* flow may be NULL; f: of fabric_ucx. What was begun has to end before the flow is forgotten. */
void ucx_flow_begin(struct fabric_flow *flow, uint64_t bytes);
void ucx_flow_end(struct fabric *f, struct fabric_flow *flow, uint64_t bytes, bool success);
/* Whether it has a rate of its own. flow may be NULL. */
bool ucx_flow_has_rate(const struct fabric_flow *flow);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Between the parts of the switcher: switcher.c, the machine; switcher_candidates.c, who takes part;
 * switcher_recall.c, what an earlier one learned; switcher_text.c, for people.
 */
#ifndef ZIPCCL_DAEMON_SWITCHER_IMPL_H
#define ZIPCCL_DAEMON_SWITCHER_IMPL_H

#include "daemon/core/switcher.h"

#define SWITCH_ANY_BYTES (4u << 20) /* that a kind without size class is judged by */

/* Lists the candidates of a want with the model's times, and which of them take part in trials. */
uint32_t switcher_candidates(const struct model *model, const struct model_shape *shape, const struct switch_want *want,
                             struct switch_candidate out[SWITCH_CANDIDATES]);
/* The one with the least predicted time of those that take part; coded must gain enough where `sure`, for no trial will
 * correct it. */
uint32_t switcher_predicted(const struct switch_candidate *c, uint32_t n, bool sure);
struct model_op switcher_model_op(const struct switch_want *want, const struct switch_candidate *c, uint64_t bytes);
/* log2 class of a number of bytes. */
uint8_t switcher_class(uint64_t bytes);

/* A kind whose candidates were made begins as it is recalled, if it is. */
void switcher_recall_kind(const struct switcher *s, struct switch_kind *kind);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Between the parts of the switcher: switcher.c, kinds, reports and alarms; switcher_race.c, who is measured and who is
 * in force; switcher_candidates.c, who takes part; switcher_text.c, for people.
 */
#ifndef ZIPCCL_DAEMON_SWITCHER_IMPL_H
#define ZIPCCL_DAEMON_SWITCHER_IMPL_H

#include "daemon/core/switcher.h"

#define SWITCH_ANY_BYTES (4u << 20) /* that a kind without size class is judged by */

/* Lists the candidates of a want with the model's times, and which of them take part in trials. */
uint32_t switcher_candidates(const struct model *model, const struct model_shape *shape, const struct switch_want *want,
                             struct switch_candidate out[SWITCH_CANDIDATES]);
/* The one with the least careful time of those that take part: coding that only pays where it hides behind the link
 * must show first that it does. */
uint32_t switcher_predicted(const struct switch_candidate *c, uint32_t n);
struct model_op switcher_model_op(const struct switch_want *want, const struct switch_candidate *c, uint64_t bytes);

#define RACE_ONE 1024 /* a ratio of 1; the budget in operations */

/* Forgets what was measured and fills the budget; keep: the youngest times of the one in force still hold. */
void race_reset(struct switch_kind *k, uint32_t keep);
/* The candidate of the next operation. */
uint32_t race_next(const struct switch_kind *k);
/* An operation with candidate i begins. */
void race_started(struct switch_kind *k, uint32_t i);
/* Candidate i took ns on the worst node. Returns the ratio by which it is in force from now on; 0: all is as it was. */
uint32_t race_sample(struct switch_kind *k, uint32_t i, uint64_t ns);
/* Time of candidate i by the one in force, as far as is known; RACE_ONE: as fast. */
uint32_t race_ratio(const struct switch_kind *k, uint32_t i);
/* Others that may be measured, and those of them that were. */
void race_seen(const struct switch_kind *k, uint32_t *others, uint32_t *seen);

/* log2 class of a number of bytes. */
uint8_t switcher_class(uint64_t bytes);

#endif

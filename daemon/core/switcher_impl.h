/* SPDX-License-Identifier: Apache-2.0
 *
 * Between the parts of the switcher: switcher.c, kinds, reports and alarms; switcher_race.c, who is measured and who is
 * in force; switcher_candidates.c, who takes part; switcher_expect.c, what is expected of who was not measured;
 * switcher_recall.c, what an earlier one learned; switcher_text.c, for people.
 */
#ifndef ZIPCCL_DAEMON_SWITCHER_IMPL_H
#define ZIPCCL_DAEMON_SWITCHER_IMPL_H

#include "daemon/core/switcher.h"

#define SWITCH_ANY_BYTES (4u << 20) /* that a kind without size class is judged by */

#define MODEL_LINK_BYTES (256u << 10) /* an operation of less also takes time for other things than its bytes */

/* Lists the candidates of a want with the model's times, and which of them take part in trials. */
uint32_t switcher_candidates(const struct model *model, const struct model_shape *shape, const struct switch_want *want,
                             struct switch_candidate out[SWITCH_CANDIDATES]);
/* The one with the least careful time of those that take part: coding that only pays where it hides behind the link
 * must show first that it does. */
uint32_t switcher_predicted(const struct switch_candidate *c, uint32_t n);
struct model_op switcher_model_op(const struct switch_want *want, const struct switch_candidate *c, uint64_t bytes);

#define RACE_ONE     1024 /* a ratio of 1; the budget in operations */
#define RACE_MOST    (8u * RACE_ONE)
#define RECENT_LEAST 2u /* times of the one in force before others are measured */

/* Forgets what was measured and fills the budget, as far as the kind is eager; keep: the youngest times of the one in
 * force still hold. */
void race_reset(struct switch_kind *k, uint32_t keep);
/* The candidate of the next operation. */
uint32_t race_next(const struct switch_kind *k);
/* An operation with candidate i begins. */
void race_started(struct switch_kind *k, uint32_t i);
/* Candidate i took ns on the worst node. Returns the ratio by which it is in force from now on; 0: all is as it was. */
uint32_t race_sample(struct switch_kind *k, uint32_t i, uint64_t ns);
/* Time of candidate i by the one in force, as far as is known; RACE_ONE: as fast. */
uint32_t race_ratio(const struct switch_kind *k, uint32_t i);
/* The same, as low as it may be. */
uint32_t race_low(const struct switch_kind *k, uint32_t i);
/* a / b, of RACE_ONE; 1 to RACE_MOST. */
uint32_t race_ratio_of(uint64_t a, uint64_t b);
/* What the one in force took of late; 0: not known. */
uint64_t race_recent_ns(const struct switch_kind *k);
/* Others that may be measured, and those of them that were. */
void race_seen(const struct switch_kind *k, uint32_t *others, uint32_t *seen);

/* log2 class of a number of bytes. */
uint8_t switcher_class(uint64_t bytes);

/* What is known of a kind near to another one. */
struct switch_source {
    uint32_t apart; /* size classes */
    uint8_t size;
    uint32_t n; /* the first one is in force */
    struct {
        uint8_t arm, codec;
        uint32_t ratio, low; /* to the one in force */
    } of[SWITCH_CANDIDATES];
};

/* What an earlier switcher learned of the kind, or of one near to it. */
bool switcher_recall_near(const struct switcher *s, const struct switch_kind *k, struct switch_source *out);
/* A kind whose candidates were made: who is in force at first, and what is expected of the others. */
void switcher_expect(const struct switcher *s, struct switch_kind *k);
/* What the model says now; of a kind that nothing else is known of, that and what was measured since is expected. */
void switcher_expect_again(const struct switcher *s, struct switch_kind *k);
/* The model as it is for this kind. */
struct model switcher_model_for(const struct switcher *s, const struct switch_kind *k);

#endif

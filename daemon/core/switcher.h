/* SPDX-License-Identifier: Apache-2.0
 *
 * The switcher: with which arm and codec an operation runs. The model proposes, the clock decides.
 *
 * Operations are of a kind: operation, dtype, size class (log2 of the bytes), what is pinned. A kind has candidates,
 * and goes round:
 *
 * - trial: every candidate twice in turns (at first with two warm-ups), once more where the model thought better of
 *   another one; then the best on the worst node is chosen
 * - fine: the best, where others were about as fast, against these 8 and, closer still, 16 more times in turns; then
 *   the best is chosen again
 * - chosen: in force, until the times leave what was measured (three operations in a row took over 1.3 times or under
 *   0.75 times as long: the link, or the data, changed), until a node asks for it (its cap changed), or for
 *   SWITCH_REPEAT operations: then the next trial
 *
 * Where a trial after an alarm chooses the same again, the next alarm must wait: 16 operations, then 32... 4096. What
 * is worse than others by far, as the model says or as was measured, takes no part. A kind with one candidate has no
 * trials, but alarms: then the model is corrected by what was measured, and the candidates are made anew.
 *
 * All nodes choose alike, because everything that decides is agreed: numbers of the communicator's creation, and the
 * times of all nodes, which travel in the headers of the next operation of the kind (report.h). So only operations in
 * which every node hears from every other one take part; the others follow a kind near to them (switcher_follow). What
 * followers see changes in switcher_done alone.
 *
 * The same machine serves the nodes of a communicator (collectives) and its ranks (all-to-all). Times of one kind are
 * scaled to the class's size by the model. Samples of a candidate are judged by the mean of their lower half. Pure but
 * for its state; no clock, no I/O; memory is taken once, at the first operation.
 */
#ifndef ZIPCCL_DAEMON_SWITCHER_H
#define ZIPCCL_DAEMON_SWITCHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/core/model.h"
#include "daemon/core/report.h"
#include "zipccl_types.h"

#define SWITCH_CANDIDATES 5u    /* of a kind, at most */
#define SWITCH_SAMPLES    24u   /* of a candidate that are kept: the least */
#define SWITCH_REPEAT     1024u /* operations of a kind after which it is tried again */
#define SWITCH_NODE_KINDS 64u   /* kinds of a communicator; beyond, the one used longest ago is dropped */
#define SWITCH_RANK_KINDS 16u
#define SWITCH_NO_SIZE    UINT8_MAX
#define SWITCH_WHY        160u

/* What is to be decided. */
struct switch_want {
    zipcclOp_t op;
    zipcclDataType_t dtype;
    zipcclCodec_t codec; /* pinned, or auto */
    zipcclArm_t arm;     /* of a reduction: pinned, or auto */
    bool flat;           /* a reduction that the flat arm can do, and might do as fast */
    bool any_size;       /* kinds have no size class: sizes differ by rank (all-to-all-v) */
    bool full;           /* every node hears from every other one */
    uint64_t bytes;      /* as in model.h */
};

struct switch_choice {
    zipcclArm_t arm;
    zipcclCodec_t codec;
    uint32_t report; /* to send with it */
    bool follows;    /* a kind of this operation: */
    zipcclOp_t leader;
};

struct switch_candidate {
    uint8_t arm, codec;
    bool kept; /* takes part in trials */
    uint64_t predicted_ns;
    uint64_t agreed_ns; /* on the worst node, in the last trial; 0: none */
    uint64_t least_ns;  /* on the best node, of late: what alarms are judged by; 0: not known */
    uint64_t base_ns;   /* the same when it was chosen */
    uint64_t own_ns;    /* best of this node since the last trial began; 0: none */
    uint32_t nsamples;
    uint16_t worst[SWITCH_SAMPLES], least[SWITCH_SAMPLES]; /* report codes, ascending */
};

enum switch_phase { SWITCH_CHOSEN, SWITCH_TRIAL, SWITCH_FINE };

struct switch_kind {
    struct switch_want want; /* that made it; bytes: of the class */
    uint8_t size;            /* SWITCH_NO_SIZE: any */
    uint64_t wire;           /* bytes on the wire of the class's size */
    uint64_t link_bps;       /* as this kind's raw operations measured it; 0: they did not */
    struct switch_candidate candidates[SWITCH_CANDIDATES];
    uint32_t ncandidates, chosen;
    bool decided; /* followers may look at it */

    enum switch_phase phase;
    uint32_t stage, step, warm, total; /* of a trial: the first `warm` do not count; after `total` one more brings the
                                        * last report */
    uint32_t tried[SWITCH_CANDIDATES], ntried;
    bool after_alarm, again;          /* the first stage is repeated */
    uint8_t before_arm, before_codec; /* chosen before the trial */

    uint64_t ops, chosen_at; /* operations; the one from which the choice is in force */
    uint64_t in_force, hold; /* operations since then; before an alarm may come */
    uint32_t slow, fast;     /* in a row */
    uint64_t late_ns[3];     /* least times of the last operations, youngest first */
    uint32_t trials, alarms;
    bool raise; /* alarm with the next operation */

    uint32_t now, last; /* candidates of the operation under way and of the one before */
    bool now_counts, last_counts, has_last;
    uint32_t word; /* this node's report of the last operation */
    uint64_t now_bytes, used;
    uint64_t coded_from, coded_to; /* of this node, of late */
};

/* What was learned of a kind (switcher_recall.c). Bytes alone: it is kept in files (profile.h). */
struct switch_prior {
    uint8_t op, dtype, size, codec, arm, flat; /* the kind, as in switch_want */
    uint8_t chosen_arm, chosen_codec;
    uint8_t nlosers; /* that were slower by far */
    struct {
        uint8_t arm, codec;
    } losers[SWITCH_CANDIDATES - 1];
    uint8_t reserved[3]; /* 0 */
};
_Static_assert(sizeof(struct switch_prior) == 20, "switch_prior layout");

struct switcher {
    struct model start, model; /* as created; as corrected by agreed times */
    struct model_shape shape;
    struct switch_kind *kinds; /* capacity + 1; NULL: not yet */
    uint32_t nkinds, capacity;
    uint32_t current;
    uint64_t clock;
    bool open; /* an operation is under way */
    const struct switch_prior *priors;
    uint32_t npriors;
};

void switcher_init(struct switcher *s, const struct model *model, const struct model_shape *shape, uint32_t capacity);
void switcher_free(struct switcher *s);

/* Kinds begin as an earlier switcher left them; after init, before the first operation, alike on all nodes. The priors
 * stay the caller's, and live as long as the switcher. */
void switcher_recall(struct switcher *s, const struct switch_prior *priors, uint32_t n);
/* What there is to be recalled, at most max; how many. */
uint32_t switcher_learned(const struct switcher *s, struct switch_prior *out, uint32_t max);

/* The choice for the next operation, which is one with `full`. Followed by switcher_done. False: no memory. */
ZIPCCL_MUST_CHECK bool switcher_choose(struct switcher *s, const struct switch_want *want,
                                       struct switch_choice *choice);
/* That operation took ns here, and encoded so many bytes here; word: report_combine of the reports of all. */
void switcher_done(struct switcher *s, uint64_t ns, uint64_t coded_from, uint64_t coded_to, uint32_t word);
/* The choice for an operation that takes no part: that of the nearest kind that is decided, else the model's. With
 * `started` alone: by the numbers of the creation, which are the same at any time. */
struct switch_choice switcher_follow(const struct switcher *s, const struct switch_want *want, bool started);
/* Something changed here: the next operation of every kind tells all nodes to try again. */
void switcher_alarm(struct switcher *s);

/* For people: "tier: 412 us measured against raw 598 us". */
void switcher_why(const struct switcher *s, const struct switch_kind *kind, char *text, size_t size);
/* "trial, operation 3 of 9"; "in force since operation 12, next trial at 1036". */
void switcher_phase_text(const struct switch_kind *kind, char *text, size_t size);

#endif

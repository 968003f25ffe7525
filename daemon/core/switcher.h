/* SPDX-License-Identifier: Apache-2.0
 *
 * The switcher: with which arm and codec an operation runs. The model proposes, the clock decides.
 *
 * Operations are of a kind: operation, dtype, size class (log2 of the bytes), what is pinned. A kind has candidates, of
 * which one is in force: at first the one that the model says is best. Others are measured beside it, one operation at
 * a time with one in force in between, and each is known by the ratio of its time to those about it, so that a machine
 * that is slower for a while tells nothing. The more often it was measured, the smaller the lead that puts it in force;
 * raw, which costs no processor, needs an eighth of it.
 *
 * Measuring costs what the measured one is slower. It is paid before it is done, from budgets that operations fill:
 * some thousandths of each, more of the first ones. So the whole stays within a percent or so of the best, what is
 * slower by far is measured once in hundreds of operations, and what is close as often as it takes to tell it apart.
 *
 * What one that was not measured will cost is expected (switcher_expect.c): by the ratios of a kind near to it, of this
 * communicator or an earlier one, carried over by the model; else by the model and the time of the one in force.
 *
 * An alarm (three operations in a row took over 1.3 times or under 0.75 times as long as usual: the link, or the data,
 * changed; or a node asks for it, as its cap changed) forgets what was measured, and fills the budget with half an
 * operation's time. Where times vary a lot, it takes more in a row, and farther off. Where it changed nothing, the next
 * alarm must wait: 16 operations, then 32... 4096.
 *
 * All nodes choose alike, because everything that decides is agreed: numbers of the communicator's creation, and the
 * times of all nodes, which travel in the headers of the next operation of the kind (report.h). So only operations in
 * which every node hears from every other one take part; the others follow a kind near to them (switcher_follow). What
 * followers see changes in switcher_done alone.
 *
 * The same machine serves the nodes of a communicator (collectives) and its ranks (all-to-all). Times of one kind are
 * scaled to the class's size by the model. Pure but for its state; no clock, no I/O; memory is taken once, at the first
 * operation.
 */
#ifndef ZIPCCL_DAEMON_SWITCHER_H
#define ZIPCCL_DAEMON_SWITCHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/core/model.h"
#include "daemon/core/report.h"
#include "zipccl_types.h"

#define SWITCH_CANDIDATES 5u  /* of a kind, at most */
#define SWITCH_SAMPLES    15u /* of a candidate that are kept: the youngest */
#define SWITCH_RECENT     5u  /* times of the one in force that others are compared with */
#define SWITCH_NODE_KINDS 64u /* kinds of a communicator; beyond, the one used longest ago is dropped */
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
    bool kept;                         /* may be measured */
    bool known;                        /* a kind near to it has measured it */
    uint64_t predicted_ns, careful_ns; /* careful: where nothing overlaps */
    uint64_t expect_ns, hope_ns;     /* until it is measured: its time, and as short as that may be; scale of a kind */
    uint64_t agreed_ns;              /* by what all nodes measured; 0: not measured */
    uint64_t own_ns;                 /* best of this node since the last alarm; 0: none */
    uint32_t nsamples;               /* since the last alarm */
    bool doubted, unlikely;          /* the first one was far slower, or better, than expected: the second one tells */
    int32_t purse;                   /* its own budget, for when it does not look better; as credit */
    uint16_t ratios[SWITCH_SAMPLES]; /* to the one in force, RACE_ONE: as fast; a ring */
    uint32_t middle;                 /* of all samples, once there are more than are kept; of RACE_FINE * RACE_ONE */
};

/* Trial: what may be measured was not yet, and the budget lasts for it. */
enum switch_phase { SWITCH_CHOSEN, SWITCH_TRIAL };

struct switch_kind {
    struct switch_want want; /* that made it; bytes: of the class */
    uint8_t size;            /* SWITCH_NO_SIZE: any */
    uint64_t wire;           /* bytes on the wire of the class's size */
    uint64_t link_bps;       /* as this kind's raw operations measured it; 0: they did not */
    struct switch_candidate candidates[SWITCH_CANDIDATES];
    uint32_t ncandidates, chosen; /* chosen: in force */
    bool decided;                 /* followers may look at it */

    enum switch_phase phase;
    bool known;                        /* what is expected is by a kind near to it, not by the model alone */
    bool eager;                        /* since an alarm: others are measured at once */
    uint32_t epoch, calm;              /* the switcher's when it was measured; its operations since, until that holds */
    int32_t credit;                    /* the budget, of RACE_ONE for an operation's time */
    uint64_t recent_ns[SWITCH_RECENT]; /* of the one in force on the worst node, youngest first */
    uint32_t nrecent;
    uint32_t noise, nnoise; /* how much they vary, of late, of RACE_ONE; times that tell */
    bool waits;             /* a measured one, for the next time of the one in force */
    uint32_t waiting;
    bool paid, from_purse; /* it was measured on purpose; who paid for that */
    uint64_t waiting_ns;
    uint16_t usual[4]; /* least times of the one in force, as codes, until usual_ns is known */
    uint32_t nusual;
    uint64_t usual_ns, base_ns; /* on the best node, of late: what alarms are judged by; when it was learned */

    uint64_t ops, chosen_at;          /* operations; the one from which the choice is in force */
    uint64_t since, hold;             /* operations since the last alarm; before the next one may come */
    uint32_t slow, fast;              /* in a row */
    uint8_t before_arm, before_codec; /* chosen at the last alarm */
    bool after_alarm;
    uint32_t trials, alarms;
    bool raise; /* alarm with the next operation */

    uint32_t now, last; /* candidates of the operation under way and of the one before */
    bool has_last;
    uint32_t word; /* this node's report of the last operation */
    uint64_t now_bytes, used;
    uint64_t coded_from, coded_to; /* of this node, of late */
};

/* What was learned of a kind (switcher_recall.c). Bytes alone: it is kept in files (profile.h). */
struct switch_prior {
    uint8_t op, dtype, size, codec, arm, flat; /* the kind, as in switch_want */
    uint8_t chosen_arm, chosen_codec;
    struct {
        uint8_t arm, codec;
        uint16_t ratio; /* of its time to the chosen one's, of 1024 */
    } others[SWITCH_CANDIDATES - 1];
    uint8_t nothers;     /* that were measured */
    uint8_t reserved[3]; /* 0 */
};
_Static_assert(sizeof(struct switch_prior) == 28, "switch_prior layout");

struct switcher {
    struct model start, model; /* as created; as corrected by agreed times */
    struct model_shape shape;
    struct switch_kind *kinds; /* capacity + 1; NULL: not yet */
    uint32_t nkinds, capacity;
    uint32_t current;
    uint64_t clock;
    uint32_t epoch; /* alarms of all kinds */
    bool open;      /* an operation is under way */
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
/* "measuring: 1 of 2 others seen"; "in force since operation 12". */
void switcher_phase_text(const struct switch_kind *kind, char *text, size_t size);

#endif

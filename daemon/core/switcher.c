/* SPDX-License-Identifier: Apache-2.0
 *
 * The machine of the switcher: trials, choices, alarms. See switcher.h.
 */
#include "daemon/core/switcher.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/core/switcher_impl.h"
#include "proto/op.h"

#define SLOW_PERCENT  130u
#define FAST_PERCENT  75u
#define IN_A_ROW      3u
#define NOISE_PERCENT 300u /* by so much more where times vary by as much as they are, */
#define NOISE_ROW     42u  /* and so many more in a row */
#define LEARN_SAMPLES 4u   /* that tell the usual time of the one in force */
#define DRIFT_LEAST   80u  /* percent of what was learned, within which the usual time may move */
#define DRIFT_MOST    125u
#define DRIFT_SHARE   16u
#define HOLD_FIRST    16u
#define HOLD_MOST     4096u
#define HOLD_BACK     4u /* an alarm that changed something was worth it */
#define SAME          (RACE_ONE * 112 / 100)
#define CALM          4u /* operations without an alarm: the ratios of before another kind's alarm hold */
#define EAGER_MOST    64u
#define TRIAL_MOST    12u /* operations */
#define NEAR_CLASSES  3u  /* followers look so far */

void switcher_init(struct switcher *s, const struct model *model, const struct model_shape *shape, uint32_t capacity) {
    switcher_free(s);
    s->start = s->model = *model;
    s->shape = *shape;
    s->capacity = capacity;
}

void switcher_free(struct switcher *s) {
    free(s->kinds);
    *s = (struct switcher){0};
}

/* Whether a is more than percent % of b. */
static bool over(uint64_t a, uint64_t b, uint32_t percent) {
    return a / percent > b / 100 || (a / percent == b / 100 && a * 100 > b * percent);
}

/* Candidates by what is known now; the choice stays where it is still one of them. */
static void make_candidates(const struct switcher *s, struct switch_kind *k) {
    struct switch_candidate old[SWITCH_CANDIDATES];
    uint32_t nold = k->ncandidates, before = k->chosen;
    memcpy(old, k->candidates, sizeof old);
    struct model model = switcher_model_for(s, k);
    k->ncandidates = switcher_candidates(&model, &s->shape, &k->want, k->candidates);
    k->chosen = switcher_predicted(k->candidates, k->ncandidates);
    for (uint32_t i = 0; i < k->ncandidates; i++) {
        struct switch_candidate *c = &k->candidates[i];
        for (uint32_t j = 0; j < nold; j++) {
            if (old[j].arm != c->arm || old[j].codec != c->codec)
                continue;
            c->agreed_ns = old[j].agreed_ns;
            if (j == before && c->kept)
                k->chosen = i;
        }
    }
}

/* What a raw operation took tells how fast the link is now: to others of its kind, and, where it was large, to all. */
static void correct_link(struct switcher *s, struct switch_kind *k, const struct switch_candidate *c, uint64_t ns) {
    struct model_op op = switcher_model_op(&k->want, c, k->want.bytes);
    uint64_t bps = ns > 0 ? model_link_from(&s->model, &s->shape, &op, ns) : 0;
    if (bps == 0)
        return;
    k->link_bps = bps;
    if (k->size != SWITCH_NO_SIZE && k->wire >= MODEL_LINK_BYTES)
        s->model.link_bps = bps;
}

/* Coding shares its processors and memory with the rest, so it may be slower than when it was measured alone. Told by
 * a coded operation beside a raw one, which knows the link; one is in force and took ns, the other waits. */
static void correct_codec(struct switcher *s, const struct switch_kind *k, uint64_t ns) {
    const struct switch_candidate *c = &k->candidates[k->chosen], *other = &k->candidates[k->waiting];
    if (k->size == SWITCH_NO_SIZE || k->wire < MODEL_LINK_BYTES ||
        (c->codec == zipcclCodecRaw) == (other->codec == zipcclCodecRaw))
        return;
    bool coded_waits = c->codec == zipcclCodecRaw;
    struct model_op op = switcher_model_op(&k->want, coded_waits ? other : c, k->want.bytes);
    struct model model = switcher_model_for(s, k);
    ns = coded_waits ? k->waiting_ns : ns;
    model_correct_codec(&model, &s->start, &s->shape, &op, ns);
    s->model.encode_bps = (3 * s->model.encode_bps + model.encode_bps) / 4; /* one bad time is one of many */
    s->model.decode_bps = (3 * s->model.decode_bps + model.decode_bps) / 4;
}

/* The usual time of what is in force is learned anew. */
static void forget_usual(struct switch_kind *k) {
    k->nusual = 0;
    k->usual_ns = k->base_ns = 0;
    k->slow = k->fast = 0;
}

/* Measures all that are kept, as far as the budget goes. keep: as in race_reset. */
static void start_trial(struct switch_kind *k, uint32_t keep) {
    uint32_t others, seen;
    race_reset(k, keep);
    race_seen(k, &others, &seen);
    for (uint32_t i = 0; i < k->ncandidates; i++)
        k->candidates[i].own_ns = 0;
    k->since = 0;
    k->phase = others > 0 ? SWITCH_TRIAL : SWITCH_CHOSEN;
    k->trials += others > 0;
    k->before_arm = k->candidates[k->chosen].arm;
    k->before_codec = k->candidates[k->chosen].codec;
}

/* Whether what was in force before the last alarm is as good as what is now, or about. */
static bool same_as_before(const struct switch_kind *k) {
    for (uint32_t i = 0; i < k->ncandidates; i++) {
        const struct switch_candidate *c = &k->candidates[i];
        if (c->arm == k->before_arm && c->codec == k->before_codec)
            return race_ratio(k, i) <= SAME;
    }
    return false;
}

/* Another one is in force, as fast as ratio says: a change of the link is noticed at once. */
static void put_in_force(struct switch_kind *k, uint32_t ratio) {
    k->chosen_at = k->ops + 1;
    k->usual_ns = k->usual_ns / RACE_ONE * ratio;
    k->base_ns = k->base_ns / RACE_ONE * ratio;
    k->nusual = 0;
    k->slow = k->fast = 0;
    if (!same_as_before(k))
        k->hold /= HOLD_BACK;
}

/* told: a node asked for it, so what was measured before says nothing. */
static void alarm(struct switcher *s, struct switch_kind *k, bool told) {
    const struct switch_candidate *c = &k->candidates[k->chosen];
    uint32_t chosen = k->chosen;
    uint8_t arm = c->arm, codec = c->codec;
    if (!told && c->codec == zipcclCodecRaw && k->nrecent > 0)
        correct_link(s, k, c, k->recent_ns[0]);
    k->alarms++;
    k->epoch = ++s->epoch;
    k->known = false;
    k->eager = true;
    if (k->after_alarm && same_as_before(k))
        k->hold = k->hold == 0 ? HOLD_FIRST : k->hold < HOLD_MOST ? 2 * k->hold : HOLD_MOST;
    else
        k->hold /= HOLD_BACK;
    k->after_alarm = true;
    make_candidates(s, k);
    switcher_expect_again(s, k);
    c = &k->candidates[k->chosen];
    bool other = k->chosen != chosen || c->arm != arm || c->codec != codec;
    start_trial(k, told || other ? 0 : IN_A_ROW);
    forget_usual(k);
    if (other)
        k->chosen_at = k->ops;
}

/* Compares an agreed time of the one in force with what is usual; true: for too long it was another. */
static bool watch(struct switch_kind *k, uint16_t code) {
    uint64_t ns = report_ns(code);
    if (ns == 0)
        return false;
    if (k->nusual < LEARN_SAMPLES) {
        uint32_t n = k->nusual++;
        for (; n > 0 && k->usual[n - 1] > code; n--)
            k->usual[n] = k->usual[n - 1];
        k->usual[n] = code;
        uint64_t learned = k->nusual == LEARN_SAMPLES ? (report_ns(k->usual[1]) + report_ns(k->usual[2])) / 2 : 0;
        /* What is far from what was to be expected is for an alarm, which may have to wait. */
        if (learned > 0 && (k->usual_ns == 0 || (!over(learned, k->usual_ns, SLOW_PERCENT) &&
                                                 !over(k->usual_ns, learned, 10000 / FAST_PERCENT))))
            k->usual_ns = k->base_ns = learned;
    }
    if (k->usual_ns == 0)
        return false;
    /* Where times vary, three in a row are far off by chance every hundred operations. */
    const uint32_t wider = k->noise * NOISE_PERCENT / RACE_ONE, row = IN_A_ROW + k->noise * NOISE_ROW / RACE_ONE;
    k->slow = over(ns, k->usual_ns, SLOW_PERCENT + wider) ? k->slow + 1 : 0;
    k->fast = over(k->usual_ns, ns, 10000 / FAST_PERCENT + wider) ? k->fast + 1 : 0;
    if (k->slow == 0 && k->fast == 0) {
        uint64_t low = k->base_ns / 100 * DRIFT_LEAST, high = k->base_ns / 100 * DRIFT_MOST;
        k->usual_ns = k->usual_ns - k->usual_ns / DRIFT_SHARE + ns / DRIFT_SHARE;
        k->usual_ns = k->usual_ns < low ? low : k->usual_ns > high ? high : k->usual_ns;
    }
    return (k->slow >= row || k->fast >= row) && k->since >= k->hold;
}

/* A trial ends where all that may be measured was, or the budget is used up. After an alarm the model's link is likely
 * to be another one: what it says stays without weight until all were seen, or for long. */
static void end_trial(struct switcher *s, struct switch_kind *k) {
    uint32_t others, seen;
    race_seen(k, &others, &seen);
    if (k->eager && (seen >= others || k->since >= EAGER_MOST))
        k->eager = false;
    if (k->phase != SWITCH_TRIAL || (seen < others && k->since < TRIAL_MOST))
        return;
    k->phase = SWITCH_CHOSEN;
    switcher_expect_again(s, k);
}

/* What all nodes say of the operation before this one. */
static void take_report(struct switcher *s, struct switch_kind *k, uint32_t word) {
    struct report r = report_unpack(word);
    bool alarmed = false;
    if (k->has_last) {
        struct switch_candidate *c = &k->candidates[k->last];
        if (r.parts > 0 && c->codec != zipcclCodecRaw) {
            uint16_t *f = &s->model.fraction[c->codec][k->want.dtype];
            *f = (uint16_t)((3u * *f + r.parts * MODEL_WHOLE / REPORT_PARTS + 2) / 4);
        }
        bool in_force = k->last == k->chosen;
        if (r.worst > 0 && r.least > 0) {
            if (c->codec == zipcclCodecRaw && (k->phase == SWITCH_TRIAL || !in_force))
                correct_link(s, k, c, report_ns(r.least));
            if (in_force && k->waits)
                correct_codec(s, k, report_ns(r.worst));
            uint32_t ratio = race_sample(k, k->last, report_ns(r.worst));
            if (ratio > 0)
                put_in_force(k, ratio);
            if (k->phase == SWITCH_TRIAL)
                switcher_expect_again(s, k);
        }
        alarmed = in_force && watch(k, r.least);
        if (k->epoch != s->epoch && in_force && ++k->calm >= CALM)
            k->epoch = s->epoch;
        k->calm = k->epoch != s->epoch ? k->calm : 0;
    }
    if (alarmed || r.alarm) {
        alarm(s, k, r.alarm);
        k->has_last = false; /* this one ran before the alarm was heard: its candidate may be gone */
        k->word = 0;
    }
}

/* Time of the class's size: sizes within a class differ by up to two. */
static uint64_t scale(const struct switcher *s, const struct switch_kind *k, uint64_t ns) {
    const struct switch_candidate *c = &k->candidates[k->now];
    if (k->now_bytes == 0 || ns == 0 || k->now_bytes == k->want.bytes)
        return k->now_bytes ? ns : 0;
    struct model_op here = switcher_model_op(&k->want, c, k->now_bytes), whole = here;
    whole.bytes = k->want.bytes;
    uint64_t of_class = model_predict(&s->model, &s->shape, &whole);
    double scaled = (double)ns * (double)of_class / (double)model_predict(&s->model, &s->shape, &here);
    return scaled < 1 ? 1 : scaled > 1e15 ? (uint64_t)1e15 : (uint64_t)scaled; /* local: need not be exact */
}

static void drop_oldest(struct switcher *s) {
    uint32_t oldest = 0;
    for (uint32_t i = 1; i < s->nkinds; i++) {
        if (s->kinds[i].used < s->kinds[oldest].used)
            oldest = i;
    }
    s->kinds[oldest] = s->kinds[--s->nkinds];
}

void switcher_done(struct switcher *s, uint64_t ns, uint64_t coded_from, uint64_t coded_to, uint32_t word) {
    if (!s->open)
        return;
    s->open = false;
    struct switch_kind *k = &s->kinds[s->current];
    struct switch_candidate *c = &k->candidates[k->now];
    uint64_t scaled = scale(s, k, ns);
    uint32_t now = k->now;
    if (scaled > 0 && (c->own_ns == 0 || scaled < c->own_ns))
        c->own_ns = scaled;
    if (coded_from > 0) {
        k->coded_from = k->coded_from - k->coded_from / 4 + coded_from / 4;
        k->coded_to = k->coded_to - k->coded_to / 4 + coded_to / 4;
    }
    k->word = report_pack(false, scaled, coded_from, coded_to);
    k->ops++;
    k->since++;
    uint32_t alarms = k->alarms;
    take_report(s, k, word);
    if (k->alarms == alarms) {
        k->last = now;
        k->has_last = true;
        end_trial(s, k);
        k->decided = k->decided || k->phase == SWITCH_CHOSEN;
    }
    if (s->nkinds > s->capacity)
        drop_oldest(s);
}

static bool same_kind(const struct switch_kind *k, const struct switch_want *w, uint8_t size) {
    return k->want.op == w->op && k->want.dtype == w->dtype && k->size == size && k->want.codec == w->codec &&
           k->want.arm == w->arm && k->want.flat == w->flat;
}

static uint8_t size_of(const struct switch_want *w) {
    return w->any_size ? SWITCH_NO_SIZE : switcher_class(w->bytes);
}

static struct switch_kind *new_kind(struct switcher *s, const struct switch_want *w) {
    struct switch_kind *k = &s->kinds[s->nkinds++];
    *k = (struct switch_kind){.want = *w, .size = size_of(w)};
    k->want.bytes = w->any_size ? SWITCH_ANY_BYTES : w->bytes > 0 ? 1ull << k->size : 0;
    make_candidates(s, k);
    switcher_expect(s, k);
    struct model_op op = switcher_model_op(&k->want, &k->candidates[0], k->want.bytes);
    k->wire = model_wire(&s->shape, &op);
    k->epoch = s->epoch;
    start_trial(k, 0);
    return k;
}

bool switcher_choose(struct switcher *s, const struct switch_want *want, struct switch_choice *choice) {
    struct switch_kind *k = NULL;
    if (s->kinds == NULL) {
        s->kinds = calloc(s->capacity + 1, sizeof *s->kinds);
        if (s->kinds == NULL)
            return false;
    }
    for (uint32_t i = 0; i < s->nkinds && k == NULL; i++) {
        if (same_kind(&s->kinds[i], want, size_of(want)))
            k = &s->kinds[i];
    }
    if (k == NULL)
        k = new_kind(s, want);
    k->used = ++s->clock;
    k->now_bytes = want->bytes;
    k->now = race_next(k);
    race_started(k, k->now);
    s->current = (uint32_t)(k - s->kinds);
    s->open = true;
    *choice = (struct switch_choice){.arm = (zipcclArm_t)k->candidates[k->now].arm,
                                     .codec = (zipcclCodec_t)k->candidates[k->now].codec,
                                     .report = report_combine(k->word, report_pack(k->raise, 0, 0, 0))};
    k->raise = false;
    return true;
}

/* How near a kind is to what a follower wants, 0: the same; UINT32_MAX: not at all. */
static uint32_t distance(const struct switch_kind *k, const struct switch_want *w, uint64_t wire) {
    uint32_t a = switcher_class(k->wire), b = switcher_class(wire), apart = a > b ? a - b : b - a;
    if (!k->decided || k->want.dtype != w->dtype || k->want.codec != w->codec || k->want.arm != w->arm ||
        op_reduces(k->want.op) != op_reduces(w->op) || apart > NEAR_CLASSES)
        return UINT32_MAX;
    if (w->any_size || k->want.any_size)
        return w->any_size && k->want.any_size ? 0 : UINT32_MAX;
    return 2 * apart + (k->want.op != w->op);
}

struct switch_choice switcher_follow(const struct switcher *s, const struct switch_want *want, bool started) {
    struct switch_candidate own[SWITCH_CANDIDATES];
    struct switch_want w = *want;
    if (w.any_size) /* sizes differ by rank, the choice may not */
        w.bytes = SWITCH_ANY_BYTES;
    uint32_t n = switcher_candidates(started ? &s->start : &s->model, &s->shape, &w, own), least = UINT32_MAX;
    const struct switch_candidate *best = &own[switcher_predicted(own, n)];
    struct model_op op = switcher_model_op(&w, &own[0], w.bytes);
    uint64_t wire = model_wire(&s->shape, &op);
    zipcclOp_t leader = w.op;
    for (uint32_t i = 0; i < s->nkinds && n > 1 && !started; i++) {
        const struct switch_kind *k = &s->kinds[i];
        const struct switch_candidate *c = &k->candidates[k->chosen];
        uint32_t d = distance(k, &w, wire);
        if (d >= least || (c->arm == zipcclArmFlat && !w.flat))
            continue;
        least = d;
        best = c;
        leader = k->want.op;
    }
    return (struct switch_choice){.arm = (zipcclArm_t)best->arm,
                                  .codec = (zipcclCodec_t)best->codec,
                                  .follows = least != UINT32_MAX,
                                  .leader = leader};
}

void switcher_alarm(struct switcher *s) {
    for (uint32_t i = 0; i < s->nkinds; i++)
        s->kinds[i].raise = true;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The machine of the switcher: trials, choices, alarms. See switcher.h.
 */
#include "daemon/core/switcher.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/core/switcher_impl.h"
#include "proto/op.h"

#define WARM_UPS         2u
#define SURPRISE_PERCENT 103u /* predicted over that of another one: measured again */
#define LEARN_SAMPLES    4u   /* that tell the usual time of a candidate without trial */
#define STAGES           3u   /* of a trial */
#define SAME_PERCENT     112u /* of the best: about as good */
#define SLOW_PERCENT     130u
#define FAST_PERCENT     75u
#define IN_A_ROW         3u
#define DRIFT_LEAST      80u /* percent of what was measured, within which the usual time may move */
#define DRIFT_MOST       125u
#define DRIFT_SHARE      16u
#define HOLD_FIRST       16u
#define HOLD_MOST        4096u
#define LOSER_TIMES      2u           /* measured over twice the chosen: no part in the next scheduled trial */
#define LINK_BYTES       (256u << 10) /* an operation of less also takes time for other things than its bytes */
#define NEAR_CLASSES     3u           /* followers look so far */

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

/* Mean of the lower half of samples; 0: there are none. */
static uint64_t lower_half(const uint16_t *codes, uint32_t n) {
    uint32_t half = (n + 1) / 2;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < half; i++)
        sum += report_ns(codes[i]);
    return half ? sum / half : 0;
}

static void insert(uint16_t codes[SWITCH_SAMPLES], uint32_t n, uint16_t code) {
    if (n == SWITCH_SAMPLES) {
        if (code >= codes[n - 1])
            return;
        n--;
    }
    for (; n > 0 && codes[n - 1] > code; n--)
        codes[n] = codes[n - 1];
    codes[n] = code;
}

static void add_sample(struct switch_candidate *c, const struct report *r) {
    if (r->worst == 0 || r->least == 0)
        return;
    insert(c->worst, c->nsamples, r->worst);
    insert(c->least, c->nsamples, r->least);
    if (c->nsamples < SWITCH_SAMPLES)
        c->nsamples++;
}

static void forget_samples(struct switch_candidate *c) {
    c->nsamples = 0;
    c->own_ns = 0;
}

/* The rounds of each stage of a trial, and who takes part in the next one: those within so many percent of the best, at
 * most so many. Close candidates cost little and are hard to tell apart. */
static const struct { uint32_t rounds, close, most; } stages[STAGES] = {{2, SAME_PERCENT, 3}, {8, 105, 2}, {16, 0, 0}};

static void start_stage(struct switch_kind *k, uint32_t stage, uint32_t warm) {
    k->phase = stage == 0 ? SWITCH_TRIAL : SWITCH_FINE;
    k->stage = stage;
    k->step = 0;
    k->warm = warm;
    k->total = warm + stages[stage].rounds * k->ntried;
    k->slow = k->fast = 0;
}

static void in_force(struct switch_kind *k) {
    k->phase = SWITCH_CHOSEN;
    k->slow = k->fast = 0;
    memset(k->late_ns, 0, sizeof k->late_ns);
}

/* A trial of all that are kept; where one is, it is chosen without. */
static void start_trial(struct switch_kind *k, uint32_t warm) {
    k->ntried = 0;
    k->before_arm = k->candidates[k->chosen].arm;
    k->before_codec = k->candidates[k->chosen].codec;
    for (uint32_t i = 0; i < k->ncandidates; i++) {
        forget_samples(&k->candidates[i]);
        if (k->candidates[i].kept)
            k->tried[k->ntried++] = i;
    }
    k->in_force = 0;
    k->again = false;
    if (k->ntried > 1) {
        k->trials++;
        start_stage(k, 0, warm);
        return;
    }
    k->candidates[k->chosen].least_ns = 0; /* learned anew */
    k->chosen_at = k->ops;
    in_force(k);
}

static struct model model_for(const struct switcher *s, const struct switch_kind *k) {
    struct model model = s->model;
    model.link_bps = k->link_bps > 0 ? k->link_bps : model.link_bps;
    return model;
}

/* Candidates by what is known now; the choice stays where it is still one of them. */
static void make_candidates(const struct switcher *s, struct switch_kind *k) {
    struct switch_candidate old[SWITCH_CANDIDATES];
    uint32_t nold = k->ncandidates, before = k->chosen;
    memcpy(old, k->candidates, sizeof old);
    struct model model = model_for(s, k);
    k->ncandidates = switcher_candidates(&model, &s->shape, &k->want, k->candidates);
    k->chosen = switcher_predicted(k->candidates, k->ncandidates, false);
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
    if (k->size != SWITCH_NO_SIZE && k->wire >= LINK_BYTES)
        s->model.link_bps = bps;
}

static void double_hold(struct switch_kind *k) {
    k->hold = k->hold == 0 ? HOLD_FIRST : k->hold < HOLD_MOST ? 2 * k->hold : HOLD_MOST;
}

static void alarm(struct switcher *s, struct switch_kind *k) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < IN_A_ROW; i++)
        sum += k->late_ns[i];
    if (k->late_ns[IN_A_ROW - 1] > 0 && k->phase == SWITCH_CHOSEN)
        correct_link(s, k, &k->candidates[k->chosen], sum / IN_A_ROW);
    k->alarms++;
    k->after_alarm = true;
    make_candidates(s, k);
    start_trial(k, 0);
    if (k->phase == SWITCH_CHOSEN)
        double_hold(k);
}

/* Now and then everything is tried again, but for what was slower by far. */
static void repeat(struct switcher *s, struct switch_kind *k) {
    k->after_alarm = false;
    k->hold = 0;
    make_candidates(s, k);
    uint64_t best = k->candidates[k->chosen].agreed_ns;
    for (uint32_t i = 0; i < k->ncandidates && best > 0; i++) {
        struct switch_candidate *c = &k->candidates[i];
        if (i != k->chosen && c->agreed_ns / LOSER_TIMES > best)
            c->kept = false;
    }
    start_trial(k, 0);
}

/* The best of those tried by what the worst node measured. */
static uint32_t best_tried(struct switch_kind *k) {
    uint32_t best = SWITCH_CANDIDATES, raw = SWITCH_CANDIDATES;
    for (uint32_t i = 0; i < k->ntried; i++) {
        struct switch_candidate *c = &k->candidates[k->tried[i]];
        c->agreed_ns = lower_half(c->worst, c->nsamples);
        c->least_ns = c->base_ns = lower_half(c->least, c->nsamples);
        if (c->agreed_ns == 0)
            continue;
        if (best == SWITCH_CANDIDATES || c->agreed_ns < k->candidates[best].agreed_ns)
            best = k->tried[i];
        if (c->codec == zipcclCodecRaw && (raw == SWITCH_CANDIDATES || c->agreed_ns < k->candidates[raw].agreed_ns))
            raw = k->tried[i];
    }
    if (best == SWITCH_CANDIDATES) /* nobody had a time */
        return k->chosen;
    if (raw != SWITCH_CANDIDATES && k->candidates[raw].agreed_ns <= k->candidates[best].agreed_ns)
        best = raw;
    return best;
}

/* Whether the trial changed nothing: what was chosen before is the best, or about as good. */
static bool same_as_before(const struct switch_kind *k, const struct switch_candidate *best) {
    for (uint32_t i = 0; i < k->ntried; i++) {
        const struct switch_candidate *c = &k->candidates[k->tried[i]];
        if (c->arm == k->before_arm && c->codec == k->before_codec)
            return c->agreed_ns > 0 && !over(c->agreed_ns, best->agreed_ns, SAME_PERCENT);
    }
    return false;
}

/* Whether the model thinks better of a candidate than of the best: a few times may have been unlucky. */
static bool is_surprise(const struct switch_kind *k, uint32_t best, uint32_t i) {
    return over(k->candidates[best].predicted_ns, k->candidates[i].predicted_ns, SURPRISE_PERCENT);
}

static bool has_surprise(const struct switch_kind *k, uint32_t best) {
    for (uint32_t i = 0; i < k->ntried; i++) {
        if (is_surprise(k, best, k->tried[i]))
            return true;
    }
    return false;
}

/* Who goes on to the next stage. Returns how many. */
static uint32_t keep_close(struct switch_kind *k, uint32_t best) {
    const struct switch_candidate *c = k->candidates;
    uint32_t n = 0;
    for (uint32_t i = 0; i < k->ntried; i++) {
        uint32_t t = k->tried[i];
        if (t == best || (c[t].agreed_ns > 0 && !over(c[t].agreed_ns, c[best].agreed_ns, stages[k->stage].close)))
            k->tried[n++] = t;
    }
    while (n > stages[k->stage].most) { /* without the slowest */
        uint32_t worst = k->tried[0] == best ? 1 : 0;
        for (uint32_t i = worst + 1; i < n; i++) {
            if (k->tried[i] != best && c[k->tried[i]].agreed_ns > c[k->tried[worst]].agreed_ns)
                worst = i;
        }
        memmove(&k->tried[worst], &k->tried[worst + 1], (n - worst - 1) * sizeof k->tried[0]);
        n--;
    }
    return n;
}

/* Who is measured again: the best, what is close to it, and surprises. */
static uint32_t keep_surprises(struct switch_kind *k, uint32_t best) {
    const struct switch_candidate *c = k->candidates;
    uint32_t n = 0;
    for (uint32_t i = 0; i < k->ntried; i++) {
        uint32_t t = k->tried[i];
        bool close = c[t].agreed_ns > 0 && !over(c[t].agreed_ns, c[best].agreed_ns, SAME_PERCENT);
        if (t == best || close || is_surprise(k, best, t))
            k->tried[n++] = t;
    }
    return n;
}

/* By the link as it is now known. */
static void predict_again(const struct switcher *s, struct switch_kind *k) {
    struct model model = model_for(s, k);
    for (uint32_t i = 0; i < k->ncandidates; i++) {
        struct model_op op = switcher_model_op(&k->want, &k->candidates[i], k->want.bytes);
        k->candidates[i].predicted_ns = model_predict(&model, &s->shape, &op);
    }
}

static void decide(struct switcher *s, struct switch_kind *k) {
    uint32_t best = best_tried(k), n;
    const struct switch_candidate *c = k->candidates;
    k->chosen_at = k->ops + 1;
    k->chosen = best;
    k->decided = true;
    if (k->stage == 0) {
        for (uint32_t i = 0; i < k->ntried; i++) {
            if (c[k->tried[i]].codec == zipcclCodecRaw)
                correct_link(s, k, &c[k->tried[i]], c[k->tried[i]].least_ns);
        }
        predict_again(s, k);
        if (!k->again && has_surprise(k, best)) {
            k->again = true;
            k->ntried = keep_surprises(k, best);
            start_stage(k, 0, 0); /* adds to the samples */
            return;
        }
        if (k->after_alarm && same_as_before(k, &c[best]))
            double_hold(k);
        else
            k->hold = 0;
    }
    n = k->stage + 1 < STAGES ? keep_close(k, best) : 0;
    if (n < 2) {
        in_force(k);
        return;
    }
    k->ntried = n;
    start_stage(k, k->stage + 1, 0);
}

/* Compares an agreed time with what is usual; true: for too long it was another. */
static bool watch(struct switch_kind *k, struct switch_candidate *c, uint64_t ns) {
    if (ns == 0)
        return false;
    memmove(&k->late_ns[1], &k->late_ns[0], (IN_A_ROW - 1) * sizeof k->late_ns[0]);
    k->late_ns[0] = ns;
    if (c->least_ns == 0)
        return false;
    k->slow = over(ns, c->least_ns, SLOW_PERCENT) ? k->slow + 1 : 0;
    k->fast = over(c->least_ns, ns, 10000 / FAST_PERCENT) ? k->fast + 1 : 0;
    if (k->slow == 0 && k->fast == 0) {
        uint64_t low = c->base_ns / 100 * DRIFT_LEAST, high = c->base_ns / 100 * DRIFT_MOST;
        c->least_ns = c->least_ns - c->least_ns / DRIFT_SHARE + ns / DRIFT_SHARE;
        c->least_ns = c->least_ns < low ? low : c->least_ns > high ? high : c->least_ns;
    }
    return k->slow >= IN_A_ROW || k->fast >= IN_A_ROW;
}

/* What all nodes say of the operation before this one; true: an alarm. */
static bool take_report(struct switcher *s, struct switch_kind *k, uint32_t word) {
    struct report r = report_unpack(word);
    if (!k->has_last)
        return r.alarm;
    struct switch_candidate *c = &k->candidates[k->last];
    if (r.parts > 0 && c->codec != zipcclCodecRaw) {
        uint16_t *f = &s->model.fraction[c->codec][k->want.dtype];
        *f = (uint16_t)((3u * *f + r.parts * MODEL_WHOLE / REPORT_PARTS + 2) / 4);
    }
    bool learns = k->phase == SWITCH_CHOSEN && k->last == k->chosen && c->least_ns == 0;
    if (k->last_counts || learns)
        add_sample(c, &r);
    if (learns && c->nsamples >= LEARN_SAMPLES)
        c->least_ns = c->base_ns = lower_half(c->least, c->nsamples);
    if (k->phase == SWITCH_TRIAL)
        return r.alarm;
    return (watch(k, c, report_ns(r.least)) && k->in_force >= k->hold) || r.alarm;
}

/* Time of the class's size: sizes within a class differ by up to two. */
static uint64_t scale(const struct switcher *s, const struct switch_kind *k, uint64_t ns) {
    const struct switch_candidate *c = &k->candidates[k->now];
    if (k->now_bytes == 0 || ns == 0 || k->now_bytes == k->want.bytes)
        return k->now_bytes ? ns : 0;
    struct model_op here = switcher_model_op(&k->want, c, k->now_bytes);
    uint64_t predicted = model_predict(&s->model, &s->shape, &here);
    double scaled = (double)ns * (double)c->predicted_ns / (double)predicted;
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
    bool alarmed = take_report(s, k, word);
    uint64_t scaled = scale(s, k, ns);
    struct switch_candidate *c = &k->candidates[k->now];
    if (scaled > 0 && (c->own_ns == 0 || scaled < c->own_ns))
        c->own_ns = scaled;
    k->word = report_pack(false, scaled, coded_from, coded_to);
    if (coded_from > 0) {
        k->coded_from = k->coded_from - k->coded_from / 4 + coded_from / 4;
        k->coded_to = k->coded_to - k->coded_to / 4 + coded_to / 4;
    }
    k->last = k->now;
    k->last_counts = k->now_counts;
    k->has_last = true;
    k->ops++;
    if (k->phase == SWITCH_CHOSEN || k->phase == SWITCH_FINE)
        k->in_force++;
    if (alarmed) {
        alarm(s, k);
        k->has_last = false; /* it ran before the alarm was heard: its candidate may be gone */
        k->word = 0;
    } else if (k->phase != SWITCH_CHOSEN && k->step++ == k->total) {
        decide(s, k);
    } else if (k->phase == SWITCH_CHOSEN) {
        k->decided = true;
        if (k->in_force >= SWITCH_REPEAT) {
            repeat(s, k);
            k->has_last = false;
            k->word = 0;
        }
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
    switcher_recall_kind(s, k);
    struct model_op op = switcher_model_op(&k->want, &k->candidates[0], k->want.bytes);
    k->wire = model_wire(&s->shape, &op);
    start_trial(k, WARM_UPS);
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
    k->now = k->chosen;
    k->now_counts = k->phase != SWITCH_CHOSEN && k->step >= k->warm && k->step < k->total;
    if (k->phase != SWITCH_CHOSEN && k->step < k->total)
        k->now = k->tried[(k->step < k->warm ? k->step : k->step - k->warm) % k->ntried];
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
    const struct switch_candidate *best = &own[switcher_predicted(own, n, true)];
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

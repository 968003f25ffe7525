/* SPDX-License-Identifier: Apache-2.0
 *
 * The race of a kind's candidates: who is measured, at what cost, and who is in force. See switcher.h.
 *
 * In whole numbers, so that all nodes work out the same.
 */
#include <string.h>

#include "daemon/core/switcher_impl.h"

#define CREDIT_FIRST (RACE_ONE * 5 / 100)
#define CREDIT_EAGER (RACE_ONE * 45 / 100)
#define CREDIT_MOST  RACE_ONE
#define CREDIT_KEPT  (RACE_ONE / 4)
#define RATE         2  /* of RACE_ONE, that every operation adds to the budget, */
#define PURSE_RATE   1  /* and to that of each other candidate */
#define EARLY_RATE   10 /* for the first operations */
#define EARLY        50u
#define UNSEEN_RATE  8 /* for the first operations: all that were not measured share it */
#define UNSEEN       300u
#define FEE          (RACE_ONE / 100) /* of measuring what may be as fast */
#define PURSE_MOST   (8 * RACE_ONE)
#define OVER_MOST    (RACE_ONE * 30 / 100) /* charged beyond what was expected: one bad time is not to use up all */
#define SURPRISE_NUM 5u                    /* a first time of over 5/4 of what was expected may be an accident */
#define SURPRISE_DEN 4u
#define UNLIKELY     (RACE_ONE * 9u / 8) /* one that should be so slow, by what is known or in noise, must win twice */
#define NOISY        (RACE_ONE / 16u)
#define NOISE_MOST   (RACE_ONE * 3 / 10)
#define NOISE_OF     32u /* times that it is the mean of, weighted to the last ones */
#define LEAD_NOISE   2u  /* a ratio varies by about so much more than the width of the middle of times */
#define RAW_LEAD     8u  /* raw asks for so much less of a lead, once it has */
#define RAW_FROM     4u  /* so many samples: coding that does not pay must not be done, also where noise hides it */
#define RACE_FINE    64u /* of the middle of many samples */
#define MIDDLE_STEP  4u  /* of noise by samples */
#define MIDDLE_MOST  256u
#define MIDDLE_APART 4u /* of noise: the samples that are kept tell of something else; but at least */
#define MIDDLE_LEAST (RACE_ONE / 50)
#define MIDDLE_KEPT  64u                   /* samples that still count when another one is in force */
#define GUESS_MOST   (RACE_ONE * 30 / 100) /* what is asked for one that was never measured */
/* Percent: those in force before and after differ so much that what is between tells nothing. */
#define BREAK_SLOW 130u
#define BREAK_FAST 75u

/* By how often it was measured: the lead, of RACE_ONE, that puts it in force; how much better than it looks it may be,
 * when who is measured next is chosen; and how much of the noise is left, one by the root of the samples. */
static const struct {
    uint32_t samples, lead, hope, noise;
} steps[] = {
    {0, RACE_ONE, 512, 1024}, {1, 133, 307, 1024}, {2, 82, 154, 724}, {3, 61, 82, 591},  {4, 46, 51, 512},
    {6, 36, 41, 418},         {8, 26, 31, 362},    {11, 15, 20, 309}, {16, 10, 15, 256}, {32, 6, 10, 181},
    {64, 6, 7, 128},          {128, 6, 5, 91},     {256, 6, 4, 64},
};
#define STEPS (sizeof steps / sizeof *steps)

static size_t step_of(uint32_t samples) {
    size_t i = STEPS - 1;
    while (steps[i].samples > samples)
        i--;
    return i;
}

static uint32_t larger(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

void race_reset(struct switch_kind *k, uint32_t keep) {
    for (uint32_t i = 0; i < k->ncandidates; i++) {
        k->candidates[i].nsamples = 0;
        k->candidates[i].purse = 0;
    }
    k->nrecent = k->nrecent < keep ? k->nrecent : keep;
    k->credit = k->eager ? CREDIT_EAGER : CREDIT_FIRST;
    k->waits = k->paid = false;
}

static uint32_t sort_recent(const struct switch_kind *k, uint64_t sorted[SWITCH_RECENT]) {
    for (uint32_t i = 0; i < k->nrecent; i++) {
        uint32_t j = i;
        for (; j > 0 && sorted[j - 1] > k->recent_ns[i]; j--)
            sorted[j] = sorted[j - 1];
        sorted[j] = k->recent_ns[i];
    }
    return k->nrecent;
}

/* The lower middle one: what disturbs, makes times longer. */
uint64_t race_recent_ns(const struct switch_kind *k) {
    uint64_t sorted[SWITCH_RECENT] = {0};
    uint32_t n = sort_recent(k, sorted);
    return n ? sorted[(n - 1) / 2] : 0;
}

uint32_t race_ratio_of(uint64_t a, uint64_t b) {
    while (a > UINT64_MAX / RACE_ONE) {
        a >>= 1;
        b >>= 1;
    }
    uint64_t r = b ? a * RACE_ONE / b : RACE_MOST;
    return r > RACE_MOST ? RACE_MOST : r ? (uint32_t)r : 1;
}

/* How much times vary: the width of the middle ones of the last five, of RACE_ONE. */
static uint32_t width(const struct switch_kind *k) {
    uint64_t sorted[SWITCH_RECENT] = {0};
    uint32_t n = sort_recent(k, sorted);
    if (n < SWITCH_RECENT)
        return 0;
    uint32_t wide = race_ratio_of(sorted[n - 2], sorted[1]) - RACE_ONE;
    return wide < NOISE_MOST ? wide : NOISE_MOST;
}

/* The same of late: five times that lie close together by chance do not make a sample of a noisy kind worth more. */
static uint32_t noise(const struct switch_kind *k) {
    return larger(width(k), k->noise);
}

/* The lower middle of the samples that are kept. */
static uint32_t window_ratio(const struct switch_candidate *c) {
    uint16_t sorted[SWITCH_SAMPLES] = {0};
    uint32_t n = c->nsamples < SWITCH_SAMPLES ? c->nsamples : SWITCH_SAMPLES;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = i;
        for (; j > 0 && sorted[j - 1] > c->ratios[i]; j--)
            sorted[j] = sorted[j - 1];
        sorted[j] = c->ratios[i];
    }
    return sorted[(n - 1) / 2];
}

/* Of all samples: of many ones, as where times vary by a third those that are kept do not tell apart what is 5 % apart.
 */
static uint32_t measured_ratio(const struct switch_candidate *c) {
    return c->nsamples > SWITCH_SAMPLES ? c->middle / RACE_FINE : window_ratio(c);
}

/* Samples beyond those that are kept move the middle by steps that become smaller, as wide as the noise and the number
 * of samples let it be wrong. Where the kept ones are elsewhere by more than noise, things have changed. */
static void move_middle(const struct switch_kind *k, struct switch_candidate *c, uint32_t ratio) {
    const uint32_t window = window_ratio(c) * RACE_FINE, wide = noise(k);
    if (c->nsamples <= SWITCH_SAMPLES) {
        c->middle = window;
        return;
    }
    const uint32_t n = c->nsamples < MIDDLE_MOST ? c->nsamples : MIDDLE_MOST;
    const uint32_t step = larger((uint32_t)((uint64_t)c->middle * wide * MIDDLE_STEP / (n * RACE_ONE)), 1);
    if (ratio * RACE_FINE > c->middle)
        c->middle += step;
    else if (ratio * RACE_FINE < c->middle)
        c->middle -= step;
    const uint32_t apart = window > c->middle ? window - c->middle : c->middle - window;
    const uint64_t most = (uint64_t)c->middle * larger(wide * MIDDLE_APART, MIDDLE_LEAST) / RACE_ONE;
    if (apart > most) {
        c->middle = window;
        c->nsamples = SWITCH_SAMPLES;
    }
}

/* Of one that was not measured, that takes ns by what is expected: from one that was, best from one that is coded as it
 * is coded. */
static uint32_t expected(const struct switch_kind *k, uint32_t i, uint64_t ns) {
    const struct switch_candidate *c = &k->candidates[i], *like = &k->candidates[k->chosen];
    uint32_t by = RACE_ONE;
    for (uint32_t j = 0; j < k->ncandidates; j++) {
        const struct switch_candidate *o = &k->candidates[j];
        if (j != k->chosen && o->nsamples > 0 && (o->codec == zipcclCodecRaw) == (c->codec == zipcclCodecRaw) &&
            (like->codec == zipcclCodecRaw) != (c->codec == zipcclCodecRaw)) {
            like = o;
            by = measured_ratio(o);
            break;
        }
    }
    uint64_t r = (uint64_t)by * race_ratio_of(ns, like->expect_ns) / RACE_ONE;
    return r > RACE_MOST ? RACE_MOST : r ? (uint32_t)r : 1;
}

uint32_t race_ratio(const struct switch_kind *k, uint32_t i) {
    const struct switch_candidate *c = &k->candidates[i];
    if (i == k->chosen)
        return RACE_ONE;
    return c->nsamples > 0 ? measured_ratio(c) : expected(k, i, c->expect_ns);
}

uint32_t race_low(const struct switch_kind *k, uint32_t i) {
    const struct switch_candidate *c = &k->candidates[i];
    if (i == k->chosen)
        return RACE_ONE;
    if (c->nsamples == 0)
        return expected(k, i, c->hope_ns);
    size_t step = step_of(c->nsamples);
    uint32_t ratio = measured_ratio(c), hope = larger(steps[step].hope, width(k) * steps[step].noise / RACE_ONE);
    return ratio > hope ? ratio - hope : 1;
}

/* What measuring it is expected to cost. */
static int32_t price(const struct switch_kind *k, uint32_t i) {
    uint32_t ratio = race_ratio(k, i), over = ratio > RACE_ONE ? ratio - RACE_ONE : 0;
    if (k->eager && k->candidates[i].nsamples == 0 && over > GUESS_MOST)
        over = GUESS_MOST;
    return (int32_t)over + FEE;
}

/* Whether nothing coded, or nothing raw, was measured, while the other is in force. What the model says of one by the
 * other is worth little after an alarm: the link may be another. */
static bool other_side_unknown(const struct switch_kind *k) {
    bool raw = k->candidates[k->chosen].codec == zipcclCodecRaw;
    for (uint32_t i = 0; i < k->ncandidates; i++) {
        if ((k->candidates[i].codec == zipcclCodecRaw) != raw && k->candidates[i].nsamples > 0)
            return false;
    }
    return true;
}

/* Its ratio, as good as it may be; under RACE_ONE: it may be better than the one in force. */
static int64_t hoped(const struct switch_kind *k, uint32_t i) {
    const struct switch_candidate *c = &k->candidates[i];
    bool raw = k->candidates[k->chosen].codec == zipcclCodecRaw;
    bool other_side = (c->codec == zipcclCodecRaw) != raw && other_side_unknown(k);
    if (!k->eager || c->nsamples > 0)
        return race_low(k, i);
    return (int64_t)race_ratio(k, i) - RACE_ONE / 2 - (other_side ? RACE_ONE : 0);
}

/* What of the budget is there for one that may be as good: where nobody needs it, also for one that is likely to lose.
 */
static int32_t credit_for(const struct switch_kind *k, int64_t ratio) {
    if (ratio < RACE_ONE)
        return k->credit;
    return k->since < 2 * EARLY ? 0 : k->credit - CREDIT_KEPT;
}

uint32_t race_next(const struct switch_kind *k) {
    uint32_t best = k->chosen;
    int64_t best_ratio = INT64_MAX;
    /* One in force goes between: the one before is not yet known, and times are compared with those about them. */
    if (k->nrecent < RECENT_LEAST || k->waits || (k->has_last && k->last != k->chosen))
        return k->chosen;
    for (uint32_t i = 0; i < k->ncandidates; i++) {
        const struct switch_candidate *c = &k->candidates[i];
        if (i == k->chosen || !c->kept)
            continue;
        int64_t ratio = hoped(k, i);
        if ((price(k, i) <= c->purse || price(k, i) <= credit_for(k, ratio)) && ratio < best_ratio) {
            best_ratio = ratio;
            best = i;
        }
    }
    return best;
}

static int32_t *payer(struct switch_kind *k, uint32_t i) {
    return k->from_purse ? &k->candidates[i].purse : &k->credit;
}

/* What was in force when its operation began was not measured on purpose, and costs the budget nothing. */
static void charge(struct switch_kind *k, uint32_t i, int32_t what) {
    if (k->paid)
        *payer(k, i) -= what;
    k->paid = false;
}

void race_started(struct switch_kind *k, uint32_t i) {
    if (i != k->chosen) {
        k->from_purse = price(k, i) > credit_for(k, hoped(k, i));
        *payer(k, i) -= price(k, i);
        k->paid = true;
    }
    k->credit += k->since < EARLY ? EARLY_RATE : RATE;
    k->credit = k->credit > CREDIT_MOST ? CREDIT_MOST : k->credit;
    uint32_t others, seen;
    race_seen(k, &others, &seen);
    int32_t share = others > seen ? UNSEEN_RATE / (int32_t)(others - seen) : 0;
    for (uint32_t j = 0; j < k->ncandidates; j++) {
        struct switch_candidate *c = &k->candidates[j];
        if (j == k->chosen || !c->kept || c->purse >= PURSE_MOST)
            continue;
        c->purse += c->nsamples == 0 && k->since < UNSEEN && share > PURSE_RATE ? share : PURSE_RATE;
    }
}

/* Who was in force is known by how it lost; the others' ratios are to the new one now. */
static void put_in_force(struct switch_kind *k, uint32_t i, uint32_t lead) {
    uint32_t before = k->chosen;
    for (uint32_t j = 0; j < k->ncandidates; j++) {
        struct switch_candidate *c = &k->candidates[j];
        uint32_t n = c->nsamples < SWITCH_SAMPLES ? c->nsamples : SWITCH_SAMPLES;
        for (uint32_t s = 0; s < n && j != i; s++)
            c->ratios[s] = (uint16_t)race_ratio_of(c->ratios[s], lead);
        if (j != i)
            c->middle = RACE_FINE * race_ratio_of(c->middle / RACE_FINE, lead);
    }
    for (uint32_t r = 0; r < k->nrecent; r++)
        k->recent_ns[r] = k->recent_ns[r] / RACE_ONE * lead;
    struct switch_candidate *old = &k->candidates[before], *own = &k->candidates[i];
    if (own->nsamples > SWITCH_SAMPLES) {
        for (uint32_t s = 0; s < SWITCH_SAMPLES; s++)
            old->ratios[s] = (uint16_t)race_ratio_of(RACE_ONE, own->ratios[s]);
        old->nsamples = own->nsamples < MIDDLE_KEPT ? own->nsamples : MIDDLE_KEPT;
        old->middle = RACE_FINE * race_ratio_of(RACE_ONE, lead);
    } else {
        old->nsamples = 1;
        old->ratios[0] = (uint16_t)race_ratio_of(RACE_ONE, lead);
    }
    own->nsamples = 0;
    k->chosen = i;
}

/* What is far from what was expected counts in full where it came twice. */
static void add_sample(struct switch_kind *k, uint32_t i, uint32_t ratio) {
    struct switch_candidate *c = &k->candidates[i];
    uint32_t likely = race_ratio(k, i);
    bool surprise = ratio / SURPRISE_NUM > likely / SURPRISE_DEN;
    if (c->nsamples == 0) {
        c->doubted = surprise && !k->eager;
        c->unlikely = likely > UNLIKELY && (c->known || noise(k) > NOISY) && !k->eager;
        ratio = c->doubted ? ((ratio < 2 * likely ? ratio : 2 * likely) + 3 * likely) / 4 : ratio;
    } else if (c->nsamples == 1 && c->doubted && ratio > likely) {
        c->ratios[0] = (uint16_t)ratio;
    }
    c->ratios[c->nsamples++ % SWITCH_SAMPLES] = (uint16_t)ratio;
    move_middle(k, c, ratio);
}

/* Of the one measured before last, now that those in force before it and after it are known. */
static uint32_t judge(struct switch_kind *k, uint64_t before, uint64_t after) {
    uint32_t i = k->waiting;
    struct switch_candidate *c = &k->candidates[i];
    int32_t cost = price(k, i) - FEE;
    if (before == 0)
        return 0;
    uint32_t ratio = race_ratio_of(k->waiting_ns, before);
    if (after / BREAK_SLOW > before / 100 || after / BREAK_FAST < before / 100) {
        /* Something changed meanwhile: it is what it is by both, else it is not known. */
        uint32_t other = race_ratio_of(k->waiting_ns, after), most = ratio > other ? ratio : other;
        uint32_t least = ratio < other ? ratio : other;
        if (k->hold > 0 || (most >= RACE_ONE && least <= RACE_ONE)) {
            charge(k, i, -cost / 2);
            return 0;
        }
        ratio = most < RACE_ONE ? most : least;
    }
    /* What it did cost, in place of what was expected. */
    int32_t over = ratio > RACE_ONE ? (int32_t)ratio - RACE_ONE - cost : -cost;
    charge(k, i, over < OVER_MOST ? over : OVER_MOST);
    add_sample(k, i, ratio);
    ratio = measured_ratio(c);
    c->agreed_ns = before / RACE_ONE * ratio;
    if ((k->hold > 0 || c->unlikely) && c->nsamples <= 2) { /* times jump: one sample may be an accident */
        uint16_t first = c->ratios[0], second = c->nsamples > 1 ? c->ratios[1] : RACE_ONE;
        ratio = first > second ? first : second;
    }
    size_t step = step_of(c->nsamples);
    uint32_t lead = larger(steps[step].lead, LEAD_NOISE * noise(k) * steps[step].noise / RACE_ONE);
    if (c->codec == zipcclCodecRaw && c->nsamples >= RAW_FROM)
        lead /= RAW_LEAD;
    if (!c->kept || ratio >= RACE_ONE || RACE_ONE - ratio < lead)
        return 0;
    put_in_force(k, i, ratio);
    return ratio;
}

uint32_t race_sample(struct switch_kind *k, uint32_t i, uint64_t ns) {
    uint64_t before = race_recent_ns(k);
    if (i != k->chosen) {
        k->waits = true;
        k->waiting = i;
        k->waiting_ns = ns;
        return 0;
    }
    memmove(&k->recent_ns[1], &k->recent_ns[0], (SWITCH_RECENT - 1) * sizeof k->recent_ns[0]);
    k->recent_ns[0] = ns;
    k->nrecent += k->nrecent < SWITCH_RECENT;
    if (k->nrecent == SWITCH_RECENT) {
        k->nnoise += k->nnoise < NOISE_OF;
        k->noise = (k->noise * (k->nnoise - 1) + width(k)) / k->nnoise;
    }
    k->candidates[i].agreed_ns = race_recent_ns(k);
    bool waits = k->waits;
    k->waits = false;
    return waits ? judge(k, before, ns) : 0;
}

void race_seen(const struct switch_kind *k, uint32_t *others, uint32_t *seen) {
    *others = *seen = 0;
    for (uint32_t i = 0; i < k->ncandidates; i++) {
        if (i == k->chosen || !k->candidates[i].kept)
            continue;
        *others += 1;
        *seen += k->candidates[i].nsamples > 0;
    }
}

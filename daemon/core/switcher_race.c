/* SPDX-License-Identifier: Apache-2.0
 *
 * The race of a kind's candidates: who is measured, at what cost, and who is in force. See switcher.h.
 *
 * In whole numbers, so that all nodes work out the same.
 */
#include <string.h>

#include "daemon/core/switcher_impl.h"

#define CREDIT_FIRST (RACE_ONE * 45 / 100)
#define CREDIT_MOST  RACE_ONE
#define RATE         2               /* of RACE_ONE, that every operation adds to the budget, */
#define PURSE_RATE   1               /* and to that of each other candidate */
#define FEE          (RACE_ONE / 50) /* of measuring what may be as fast */
#define PURSE_MOST   (8 * RACE_ONE)
#define OVER_MOST    (2u * RACE_ONE)
#define NOISE_MOST   (RACE_ONE * 3 / 10)
#define GUESS_MOST   (RACE_ONE * 30 / 100) /* what is asked for one that was never measured */
#define RATIO_MOST   (8u * RACE_ONE)
/* Percent: those in force before and after differ so much that what is between tells nothing. */
#define BREAK_SLOW   130u
#define BREAK_FAST   75u
#define RECENT_LEAST 2u /* times of the one in force before others are measured */

/* By how often it was measured: the lead, of RACE_ONE, that puts it in force; how much better than it looks it may be,
 * when who is measured next is chosen; and how much of the noise is left, one by the root of the samples. */
static const struct {
    uint32_t samples, lead, hope, noise;
} steps[] = {
    {0, RACE_ONE, 512, 1024}, {1, 133, 307, 1024}, {2, 82, 154, 724}, {3, 61, 82, 591},  {4, 46, 51, 512},
    {6, 36, 41, 418},         {8, 26, 31, 362},    {11, 15, 20, 309}, {16, 10, 15, 256}, {32, 6, 10, 181},
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
    k->credit = CREDIT_FIRST;
    k->waits = false;
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
static uint64_t recent_ns(const struct switch_kind *k) {
    uint64_t sorted[SWITCH_RECENT] = {0};
    uint32_t n = sort_recent(k, sorted);
    return n ? sorted[(n - 1) / 2] : 0;
}

static uint32_t ratio_of(uint64_t a, uint64_t b) {
    while (a > UINT64_MAX / RACE_ONE) {
        a >>= 1;
        b >>= 1;
    }
    uint64_t r = b ? a * RACE_ONE / b : RATIO_MOST;
    return r > RATIO_MOST ? RATIO_MOST : r ? (uint32_t)r : 1;
}

/* How much times vary: the width of the middle ones of the last five, of RACE_ONE. */
static uint32_t noise(const struct switch_kind *k) {
    uint64_t sorted[SWITCH_RECENT] = {0};
    uint32_t n = sort_recent(k, sorted);
    if (n < SWITCH_RECENT)
        return 0;
    uint32_t wide = ratio_of(sorted[n - 2], sorted[1]) - RACE_ONE;
    return wide < NOISE_MOST ? wide : NOISE_MOST;
}

/* The lower middle of the samples. */
static uint32_t measured_ratio(const struct switch_candidate *c) {
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

uint32_t race_ratio(const struct switch_kind *k, uint32_t i) {
    const struct switch_candidate *c = &k->candidates[i], *like = &k->candidates[k->chosen];
    if (i == k->chosen)
        return RACE_ONE;
    if (c->nsamples > 0)
        return measured_ratio(c);
    /* By the model, from one that was measured: best from one that is coded as it is coded. */
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
    uint64_t r = (uint64_t)by * ratio_of(c->predicted_ns, like->predicted_ns) / RACE_ONE;
    return r > RATIO_MOST ? RATIO_MOST : r ? (uint32_t)r : 1;
}

/* What measuring it is expected to cost. */
static int32_t price(const struct switch_kind *k, uint32_t i) {
    uint32_t ratio = race_ratio(k, i), over = ratio > RACE_ONE ? ratio - RACE_ONE : 0;
    if (k->candidates[i].nsamples == 0 && over > GUESS_MOST)
        over = GUESS_MOST;
    return (int32_t)over + FEE;
}

/* Whether nothing coded, or nothing raw, was measured, while the other is in force. What the model says of one by the
 * other is worth little: the link may be another. */
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
    size_t step = step_of(c->nsamples);
    uint32_t hope = larger(steps[step].hope, noise(k) * steps[step].noise / RACE_ONE);
    return (int64_t)race_ratio(k, i) - hope - (other_side ? RACE_ONE : 0);
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
        if (price(k, i) <= (ratio < RACE_ONE ? k->credit : c->purse) && ratio < best_ratio) {
            best_ratio = ratio;
            best = i;
        }
    }
    return best;
}

static int32_t *payer(struct switch_kind *k, uint32_t i) {
    return k->from_purse ? &k->candidates[i].purse : &k->credit;
}

void race_started(struct switch_kind *k, uint32_t i) {
    if (i != k->chosen) {
        k->from_purse = hoped(k, i) >= RACE_ONE;
        *payer(k, i) -= price(k, i);
    }
    k->credit = k->credit + RATE > CREDIT_MOST ? CREDIT_MOST : k->credit + RATE;
    for (uint32_t j = 0; j < k->ncandidates; j++) {
        struct switch_candidate *c = &k->candidates[j];
        if (j != k->chosen && c->kept && c->purse < PURSE_MOST)
            c->purse += PURSE_RATE;
    }
}

/* Who was in force is known by how it lost; the others' ratios are to the new one now. */
static void put_in_force(struct switch_kind *k, uint32_t i, uint32_t lead) {
    uint32_t before = k->chosen;
    for (uint32_t j = 0; j < k->ncandidates; j++) {
        struct switch_candidate *c = &k->candidates[j];
        uint32_t n = c->nsamples < SWITCH_SAMPLES ? c->nsamples : SWITCH_SAMPLES;
        for (uint32_t s = 0; s < n && j != i; s++)
            c->ratios[s] = (uint16_t)ratio_of(c->ratios[s], lead);
    }
    for (uint32_t r = 0; r < k->nrecent; r++)
        k->recent_ns[r] = k->recent_ns[r] / RACE_ONE * lead;
    k->candidates[before].nsamples = 1;
    k->candidates[before].ratios[0] = (uint16_t)ratio_of(RACE_ONE, lead);
    k->candidates[i].nsamples = 0;
    k->chosen = i;
}

/* Of the one measured before last, now that those in force before it and after it are known. */
static uint32_t judge(struct switch_kind *k, uint64_t before, uint64_t after) {
    uint32_t i = k->waiting;
    struct switch_candidate *c = &k->candidates[i];
    int32_t expected = price(k, i) - FEE;
    if (before == 0)
        return 0;
    uint32_t ratio = ratio_of(k->waiting_ns, before);
    if (after / BREAK_SLOW > before / 100 || after / BREAK_FAST < before / 100) {
        /* Something changed meanwhile: it is what it is by both, else it is not known. */
        uint32_t other = ratio_of(k->waiting_ns, after), most = ratio > other ? ratio : other;
        uint32_t least = ratio < other ? ratio : other;
        if (k->hold > 0 || (most >= RACE_ONE && least <= RACE_ONE)) {
            *payer(k, i) += expected / 2;
            return 0;
        }
        ratio = most < RACE_ONE ? most : least;
    }
    /* What it did cost, in place of what was expected; one bad time is not to use up all. */
    uint32_t over = ratio > RACE_ONE ? ratio - RACE_ONE : 0;
    *payer(k, i) += expected - (int32_t)(over < OVER_MOST ? over : OVER_MOST);
    c->ratios[c->nsamples++ % SWITCH_SAMPLES] = (uint16_t)ratio;
    ratio = measured_ratio(c);
    c->agreed_ns = before / RACE_ONE * ratio;
    if (k->hold > 0 && c->nsamples <= 2) { /* times jump: one sample may have been taken in another time */
        uint16_t first = c->ratios[0], second = c->nsamples > 1 ? c->ratios[1] : RACE_ONE;
        ratio = first > second ? first : second;
    }
    size_t step = step_of(c->nsamples);
    uint32_t lead = larger(steps[step].lead, noise(k) * steps[step].noise / RACE_ONE);
    if (!c->kept || ratio >= RACE_ONE || RACE_ONE - ratio < lead)
        return 0;
    put_in_force(k, i, ratio);
    return ratio;
}

uint32_t race_sample(struct switch_kind *k, uint32_t i, uint64_t ns) {
    uint64_t before = recent_ns(k);
    if (i != k->chosen) {
        k->waits = true;
        k->waiting = i;
        k->waiting_ns = ns;
        return 0;
    }
    memmove(&k->recent_ns[1], &k->recent_ns[0], (SWITCH_RECENT - 1) * sizeof k->recent_ns[0]);
    k->recent_ns[0] = ns;
    k->nrecent += k->nrecent < SWITCH_RECENT;
    k->candidates[i].agreed_ns = recent_ns(k);
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

/* SPDX-License-Identifier: Apache-2.0
 *
 * What is expected of candidates that were not measured: who is in force at first, and what a look at another one will
 * cost. Best by the ratios of a kind near to it, of this communicator or of an earlier one; else by the model, of whose
 * numbers the link's is the surer one. What was measured of the one in force corrects it.
 */
#include "daemon/core/switcher_impl.h"

#define NEAR        3u              /* size classes */
#define LINK_DOUBT  8u              /* one by this: as much may the link be faster than it was measured */
#define CODEC_DOUBT 3u              /* one by this: as much may the codec be faster */
#define ARM_DOUBT   4u              /* one by this: so much less may another arm take */
#define APART_DOUBT (RACE_ONE / 50) /* for each size class */
#define BETTER      (RACE_ONE * 97 / 100)

struct model switcher_model_for(const struct switcher *s, const struct switch_kind *k) {
    struct model model = s->model;
    if (k->link_bps > 0 && (k->wire >= MODEL_LINK_BYTES || k->alarms > 0))
        model.link_bps = k->link_bps;
    return model;
}

/* The codec hides behind the link in part, if that leaves it processors. */
static uint64_t likely_ns(const struct model *m, const struct model_shape *shape, const struct switch_kind *k,
                          const struct switch_candidate *c) {
    struct model_op op = switcher_model_op(&k->want, c, k->want.bytes);
    uint64_t apart = model_predict_apart(m, shape, &op);
    return m->unpaced ? apart : model_predict(m, shape, &op) / 2 + apart / 2 + 1;
}

static void by_model(const struct switcher *s, struct switch_kind *k) {
    struct model model = switcher_model_for(s, k), fast = model;
    fast.link_bps += fast.link_bps / LINK_DOUBT;
    fast.encode_bps += fast.encode_bps / CODEC_DOUBT;
    fast.decode_bps += fast.decode_bps / CODEC_DOUBT;
    for (uint32_t i = 0; i < k->ncandidates; i++) {
        struct switch_candidate *c = &k->candidates[i];
        struct model_op op = switcher_model_op(&k->want, c, k->want.bytes);
        c->predicted_ns = model_predict(&model, &s->shape, &op);
        c->careful_ns = model_predict_apart(&model, &s->shape, &op);
        if (k->known)
            continue;
        c->expect_ns = likely_ns(&model, &s->shape, k, c);
        c->hope_ns = model_predict(&fast, &s->shape, &op);
        if (c->arm != k->candidates[k->chosen].arm && c->expect_ns - c->expect_ns / ARM_DOUBT < c->hope_ns)
            c->hope_ns = c->expect_ns - c->expect_ns / ARM_DOUBT;
    }
}

/* One that is coded is in force and took so long: others that are coded are to it as the model says, but what is raw
 * takes what the link takes. If that were faster than is known, the coded one would have shown it. */
static void by_coded(const struct switcher *s, struct switch_kind *k, uint64_t took) {
    const struct switch_candidate chosen = k->candidates[k->chosen];
    uint16_t fraction = s->model.fraction[chosen.codec][k->want.dtype];
    uint64_t most = took / (fraction ? fraction : MODEL_WHOLE) * MODEL_WHOLE;
    for (uint32_t i = 0; i < k->ncandidates; i++) {
        struct switch_candidate *c = &k->candidates[i];
        if (c->codec == zipcclCodecRaw) {
            c->expect_ns = c->expect_ns < most ? c->expect_ns : most;
            c->hope_ns = c->expect_ns - c->expect_ns / LINK_DOUBT;
            continue;
        }
        c->expect_ns = took / RACE_ONE * race_ratio_of(c->expect_ns, chosen.expect_ns) + 1;
        c->hope_ns = took / RACE_ONE * race_ratio_of(c->hope_ns, chosen.expect_ns) + 1;
    }
}

void switcher_expect_again(const struct switcher *s, struct switch_kind *k) {
    by_model(s, k);
    if (!k->known && k->candidates[k->chosen].codec != zipcclCodecRaw && k->nrecent >= RECENT_LEAST)
        by_coded(s, k, race_recent_ns(k));
}

static uint32_t difference(uint32_t a, uint32_t b) {
    return a > b ? a - b : b - a;
}

/* The nearest kind of the same operation and dtype; of two that are as near, the larger one. */
static const struct switch_kind *near_kind(const struct switcher *s, const struct switch_kind *k) {
    const struct switch_kind *best = NULL;
    for (uint32_t i = 0; i < s->nkinds; i++) {
        const struct switch_kind *q = &s->kinds[i];
        if (q == k || q->want.op != k->want.op || q->want.dtype != k->want.dtype || q->want.codec != k->want.codec ||
            q->want.arm != k->want.arm || q->want.flat != k->want.flat || !q->decided || q->epoch != s->epoch ||
            q->size == SWITCH_NO_SIZE || k->size == SWITCH_NO_SIZE || difference(q->size, k->size) > NEAR)
            continue;
        uint32_t apart = difference(q->size, k->size), least = best ? difference(best->size, k->size) : NEAR + 1;
        if (apart < least || (apart == least && q->size > best->size))
            best = q;
    }
    return best;
}

static void add_source(struct switch_source *from, const struct switch_kind *q, uint32_t i) {
    from->of[from->n].arm = q->candidates[i].arm;
    from->of[from->n].codec = q->candidates[i].codec;
    from->of[from->n].ratio = race_ratio(q, i);
    from->of[from->n++].low = race_low(q, i);
}

static bool from_kind(const struct switcher *s, const struct switch_kind *k, struct switch_source *from) {
    const struct switch_kind *q = near_kind(s, k);
    if (q == NULL)
        return false;
    *from = (struct switch_source){.apart = difference(q->size, k->size), .size = q->size};
    add_source(from, q, q->chosen);
    for (uint32_t i = 0; i < q->ncandidates; i++) {
        if (i != q->chosen && (q->candidates[i].nsamples > 0 || q->known))
            add_source(from, q, i);
    }
    return true;
}

static uint32_t find(const struct switch_kind *k, uint8_t arm, uint8_t codec) {
    for (uint32_t i = 0; i < k->ncandidates; i++) {
        if (k->candidates[i].arm == arm && k->candidates[i].codec == codec)
            return i;
    }
    return k->ncandidates;
}

/* A ratio of the source, carried to this kind by the model: by how much it says that both differ. */
static uint32_t carry(uint32_t ratio, uint64_t here, uint64_t here_chosen, uint64_t there, uint64_t there_chosen) {
    uint64_t r = (uint64_t)ratio * race_ratio_of(here, here_chosen) / race_ratio_of(there, there_chosen);
    return r > RACE_MOST ? RACE_MOST : r ? (uint32_t)r : 1;
}

/* One that the source does not know of is to those of its side (raw, or coded) as the model says. */
static void by_known(struct switch_kind *k, uint32_t i) {
    struct switch_candidate *c = &k->candidates[i];
    for (uint32_t j = 0; j < k->ncandidates && !c->known; j++) {
        const struct switch_candidate *o = &k->candidates[j];
        if (!o->known || (o->codec == zipcclCodecRaw) != (c->codec == zipcclCodecRaw))
            continue;
        uint64_t ratio = race_ratio_of(c->predicted_ns + c->careful_ns, o->predicted_ns + o->careful_ns);
        uint64_t hope = race_ratio_of(c->hope_ns, c->expect_ns);
        c->expect_ns = o->expect_ns / RACE_ONE * ratio + 1;
        c->hope_ns = c->expect_ns / RACE_ONE * hope + 1;
        return;
    }
}

static void by_source(const struct switcher *s, struct switch_kind *k, const struct switch_source *from) {
    uint32_t chosen = find(k, from->of[0].arm, from->of[0].codec), best = chosen;
    if (chosen == k->ncandidates || !k->candidates[chosen].kept)
        return; /* the model does not think of it here */
    struct switch_kind there = {.want = k->want};
    there.want.bytes = from->apart > 0 ? 1ull << from->size : k->want.bytes;
    uint64_t there_chosen = likely_ns(&s->model, &s->shape, &there, &k->candidates[chosen]);
    uint64_t here_chosen = likely_ns(&s->model, &s->shape, k, &k->candidates[chosen]);
    uint32_t best_ratio = BETTER, best_doubt = 0;
    k->known = true;
    for (uint32_t j = 1; j < from->n; j++) {
        uint32_t i = find(k, from->of[j].arm, from->of[j].codec);
        if (i == k->ncandidates)
            continue;
        struct switch_candidate *c = &k->candidates[i];
        uint64_t here_ns = likely_ns(&s->model, &s->shape, k, c);
        uint64_t there_ns = likely_ns(&s->model, &s->shape, &there, c);
        uint32_t ratio = carry(from->of[j].ratio, here_ns, here_chosen, there_ns, there_chosen);
        uint32_t low = carry(from->of[j].low, here_ns, here_chosen, there_ns, there_chosen);
        uint32_t doubt = difference(ratio, from->of[j].ratio) / 2 + from->apart * APART_DOUBT;
        c->known = true;
        c->expect_ns = here_chosen / RACE_ONE * ratio + 1;
        c->hope_ns = low > doubt ? here_chosen / RACE_ONE * (low - doubt) + 1 : 1;
        if (c->kept && ratio + doubt < best_ratio) {
            best = i;
            best_ratio = ratio + doubt;
            best_doubt = doubt;
        }
    }
    k->candidates[chosen].expect_ns = here_chosen;
    k->candidates[chosen].hope_ns = here_chosen / RACE_ONE * (RACE_ONE > best_doubt ? RACE_ONE - best_doubt : 1) + 1;
    k->candidates[chosen].known = true;
    for (uint32_t i = 0; i < k->ncandidates; i++)
        by_known(k, i);
    k->chosen = best;
}

void switcher_expect(const struct switcher *s, struct switch_kind *k) {
    struct switch_source live = {0}, earlier = {0};
    bool lives = from_kind(s, k, &live), recalled = switcher_recall_near(s, k, &earlier);
    by_model(s, k);
    if (recalled && (!lives || earlier.apart < live.apart))
        by_source(s, k, &earlier);
    else if (lives)
        by_source(s, k, &live);
}

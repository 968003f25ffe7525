/* SPDX-License-Identifier: Apache-2.0
 *
 * Which receive a send meets: a hash table of the ends that have not met yet, so that it stays small where plans are
 * loaded node by node.
 */
#include <stdio.h>
#include <stdlib.h>

#include "daemon/plan/simulate_impl.h"

#define FIRST_BUCKETS 1024u

static uint32_t hash_of(const struct sim_end *e) {
    uint64_t h = ((uint64_t)e->from << 32 | e->to) * 0x9e3779b97f4a7c15ull;
    h ^= h >> 29;
    h = (h + ((uint64_t)e->item << 32 | e->tag)) * 0xbf58476d1ce4e5b9ull;
    return (uint32_t)(h >> 32) ^ (uint32_t)h;
}

static bool same_key(const struct sim_end *a, const struct sim_end *b) {
    return a->from == b->from && a->to == b->to && a->item == b->item && a->tag == b->tag && a->exchange == b->exchange;
}

/* Room for one more end. */
static bool grow_ends(struct sim_match *m) {
    if (m->nends < m->cap || (m->cap > 0 && m->free != SIM_NONE))
        return true;
    uint32_t cap = m->cap ? m->cap * 2 : FIRST_BUCKETS;
    struct sim_end *ends = cap > m->cap ? realloc(m->ends, (size_t)cap * sizeof(*ends)) : NULL;
    if (!ends)
        return false;
    if (m->cap == 0)
        m->free = SIM_NONE;
    m->ends = ends;
    m->cap = cap;
    return true;
}

/* Twice the buckets where there are as many ends. */
static bool grow_buckets(struct sim_match *m) {
    uint32_t old = m->buckets ? m->nbuckets : 0, n = old ? old * 2 : FIRST_BUCKETS;
    if (m->open < old)
        return true;
    uint32_t *buckets = malloc((size_t)n * sizeof(*buckets));
    if (!buckets)
        return false;
    for (uint32_t i = 0; i < n; i++)
        buckets[i] = SIM_NONE;
    for (uint32_t i = 0; i < old; i++) {
        for (uint32_t at = m->buckets[i], next; at != SIM_NONE; at = next) {
            uint32_t h = hash_of(&m->ends[at]) & (n - 1);
            next = m->ends[at].next;
            m->ends[at].next = buckets[h];
            buckets[h] = at;
        }
    }
    free(m->buckets);
    m->buckets = buckets;
    m->nbuckets = n;
    return true;
}

static void tell_twice(struct sim *s, const struct sim_end *end, uint32_t other) {
    char text[SIMULATE_WHY / 2];
    sim_describe(s, end->step, text, sizeof(text));
    (void)snprintf(s->why, SIMULATE_WHY, "%s: step %u of that plan has the same tag", text, other);
}

static void tell_differ(struct sim *s, const struct sim_end *a, const struct sim_end *b) {
    char one[SIMULATE_WHY / 3], two[SIMULATE_WHY / 3];
    sim_describe(s, a->step, one, sizeof(one));
    sim_describe(s, b->step, two, sizeof(two));
    (void)snprintf(s->why, SIMULATE_WHY, "%s meets %s: they differ in values, codec or part", one, two);
}

bool sim_match_add(struct sim *s, const struct sim_end *end, uint32_t *partner, bool *clash) {
    struct sim_match *m = &s->match;
    *partner = SIM_NONE;
    *clash = false;
    if (!grow_ends(m) || !grow_buckets(m))
        return false;
    uint32_t *link = &m->buckets[hash_of(end) & (m->nbuckets - 1)], *head = link;
    while (*link != SIM_NONE && !same_key(&m->ends[*link], end))
        link = &m->ends[*link].next;
    if (*link == SIM_NONE) {
        uint32_t at = m->free;
        if (at != SIM_NONE)
            m->free = m->ends[at].next;
        else
            at = m->nends++;
        m->ends[at] = *end;
        m->ends[at].next = *head;
        *head = at;
        m->open++;
        return true;
    }
    struct sim_end *other = &m->ends[*link];
    if (other->send == end->send) {
        const struct sim_part *part = &s->parts[s->nparts - 1];
        tell_twice(s, end, other->step >= part->first_step ? other->step - part->first_step : other->step);
        *clash = true;
        return true;
    }
    if (other->count != end->count || other->codec != end->codec || other->part != end->part) {
        tell_differ(s, end, other);
        *clash = true;
        return true;
    }
    *partner = other->step;
    uint32_t at = *link;
    *link = other->next;
    other->next = m->free;
    m->free = at;
    m->open--;
    return true;
}

uint32_t sim_match_left(const struct sim *s) {
    const struct sim_match *m = &s->match;
    uint32_t least = SIM_NONE;
    for (uint32_t i = 0; m->open > 0 && i < m->nbuckets; i++) {
        for (uint32_t at = m->buckets[i]; at != SIM_NONE; at = m->ends[at].next) {
            if (m->ends[at].step < least)
                least = m->ends[at].step;
        }
    }
    return least;
}

void sim_match_free(struct sim *s) {
    free(s->match.ends);
    free(s->match.buckets);
    s->match = (struct sim_match){0};
}

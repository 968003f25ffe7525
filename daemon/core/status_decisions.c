/* SPDX-License-Identifier: Apache-2.0
 *
 * The decisions of the switchers as a message: for every kind of operations what was chosen, why, and what every arm
 * was predicted and measured to take.
 */
#include <stdio.h>
#include <string.h>

#include "daemon/core/arena.h"
#include "daemon/core/comm.h"
#include "daemon/core/daemon.h"
#include "daemon/core/session.h"
#include "daemon/core/status.h"
#include "kernels/codec.h"
#include "proto/op.h"

#define MAX_DECISIONS 384u /* the reply must fit a frame: beyond these the rest is left out */
#define PHASE_TEXT    96

static Zipccl__Decision *add(struct arena *a, Zipccl__Stats *m, const struct comm *c, const struct switch_want *w) {
    Zipccl__Decision *d = m->n_decisions < MAX_DECISIONS ? arena_take(a, sizeof *d) : NULL;
    if (d == NULL)
        return NULL;
    zipccl__decision__init(d);
    d->job = c->job->name;
    d->uid = c->job->uid;
    d->comm = c->key;
    d->op = w->op;
    d->dtype = w->dtype;
    d->any_size = w->any_size;
    d->reduces = op_reduces(w->op);
    d->pinned_codec = w->codec;
    d->pinned_arm = d->reduces ? w->arm : zipcclArmAuto;
    m->decisions[m->n_decisions++] = d;
    return d;
}

static void add_arms(struct arena *a, Zipccl__Decision *d, const struct switch_kind *k) {
    d->arms = arena_take(a, k->ncandidates * sizeof *d->arms);
    for (uint32_t i = 0; d->arms != NULL && i < k->ncandidates; i++) {
        const struct switch_candidate *c = &k->candidates[i];
        Zipccl__DecisionArm *arm = arena_take(a, sizeof *arm);
        if (arm == NULL)
            return;
        zipccl__decision_arm__init(arm);
        arm->arm = c->arm;
        arm->codec = c->codec;
        arm->tried = c->kept;
        arm->predicted_ns = c->predicted_ns;
        arm->measured_ns = c->agreed_ns;
        arm->own_ns = c->own_ns;
        d->arms[d->n_arms++] = arm;
    }
}

static void add_kind(struct arena *a, Zipccl__Stats *m, const struct comm *c, const struct switcher *s,
                     const struct switch_kind *k, uint32_t rank) {
    Zipccl__Decision *d = add(a, m, c, &k->want);
    char why[SWITCH_WHY], phase[PHASE_TEXT];
    if (d == NULL)
        return;
    switcher_why(s, k, why, sizeof why);
    switcher_phase_text(k, phase, sizeof phase);
    d->rank = rank;
    d->size_bytes = k->size != SWITCH_NO_SIZE ? k->want.bytes : 0;
    d->takes_part = true;
    d->arm = k->candidates[k->chosen].arm;
    d->codec = k->candidates[k->chosen].codec;
    d->why = arena_text(a, why);
    d->phase = arena_text(a, phase);
    d->ops = k->ops;
    d->trials = k->trials;
    d->alarms = k->alarms;
    d->coded_from_bytes = k->coded_from;
    d->coded_to_bytes = k->coded_to;
    add_arms(a, d, k);
}

static void add_note(struct arena *a, Zipccl__Stats *m, const struct comm *c, const struct comm_note *n) {
    Zipccl__Decision *d = add(a, m, c, &n->want);
    const struct switch_choice *choice = &n->choice;
    const char *codec = codec_name(choice->codec);
    char why[SWITCH_WHY];
    if (d == NULL)
        return;
    if (c->nnodes < 2)
        snprintf(why, sizeof why, "raw: one node, nothing crosses a link");
    else if (n->want.codec != zipcclCodecAuto)
        snprintf(why, sizeof why, "%s: pinned by the ranks or the configuration", codec);
    else if (choice->follows)
        snprintf(why, sizeof why, "%s: as %s of about the same size", codec, op_name(choice->leader));
    else if (op_is_pairwise(n->want.op))
        snprintf(why, sizeof why, "%s: the model says so, by what was measured when the communicator began", codec);
    else
        snprintf(why, sizeof why, "%s: the model says so, no operation near to it was measured", codec);
    d->size_bytes = n->want.any_size || n->want.bytes == 0 ? 0 : 1ull << n->size;
    d->arm = choice->arm;
    d->codec = choice->codec;
    d->why = arena_text(a, why);
    d->phase = (char *)"takes no part in measuring";
    d->ops = n->ops;
}

static void add_switcher(struct arena *a, Zipccl__Stats *m, const struct comm *c, const struct switcher *s,
                         uint32_t rank) {
    for (uint32_t i = 0; i < s->nkinds; i++)
        add_kind(a, m, c, s, &s->kinds[i], rank);
}

void status_decisions(struct daemon *d, const char *job, struct arena *a, Zipccl__Stats *m) {
    m->decisions = arena_take(a, MAX_DECISIONS * sizeof *m->decisions);
    list_for_each(l, &d->comms) {
        struct comm *c = list_entry(l, struct comm, link);
        if (m->decisions == NULL || c->state != COMM_READY || (job[0] != '\0' && strcmp(job, c->job->name) != 0))
            continue;
        add_switcher(a, m, c, &c->switcher, 0);
        for (uint32_t i = 0; i < c->nmembers; i++)
            add_switcher(a, m, c, &c->members[i]->switcher, c->members[i]->rank + 1);
        for (uint32_t i = 0; i < COMM_NOTES; i++) {
            if (c->notes[i].ops > 0)
                add_note(a, m, c, &c->notes[i]);
        }
    }
}

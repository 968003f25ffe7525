/* SPDX-License-Identifier: Apache-2.0
 *
 * The link clock: a message leaves when the link, at its rate, would have put its last byte on the wire. Pure: the
 * caller says what time it is.
 *
 * The clock moves by wire times, not by when somebody looked, so lateness does not add up. Which message begins is
 * decided when the link is free for it. Small ones have a clock of their own, so that they do not wait behind bulk; the
 * time that they take is added to the clock of bulk, so that the sum keeps to the rate, and while bulk waits they get
 * half of the link at most.
 */
#ifndef ZIPCCL_DAEMON_PACE_H
#define ZIPCCL_DAEMON_PACE_H

#include "daemon/flow/flow.h"

struct pace {
    struct flow_sched sched;
    struct {
        struct flow_item *current; /* on the wire: has begun, not left */
        uint64_t start, due;       /* of it */
        uint64_t free;             /* when the next one may begin */
    } lane[FLOW_LANES];
};

void pace_init(struct pace *p, uint64_t rate_bits);
void pace_set(struct pace *p, uint64_t rate_bits); /* 0: no rate, all may leave at once */
void pace_add(struct pace *p, struct flow *flow, enum flow_lane lane, struct flow_item *item);
/* A message, or the piece of `taken` bytes of one, whose time has come; NULL where none has, *due is then when to ask
 * again (UINT64_MAX: nothing waits). */
struct flow_item *pace_take(struct pace *p, uint64_t now, uint64_t *due);
bool pace_waits(const struct pace *p);
/* Takes out what matches, also what has begun; the link is then free as if that never had. */
void pace_remove(struct pace *p, bool (*match)(const struct flow_item *item, const void *arg), const void *arg,
                 void (*take)(struct flow_item *item, void *to), void *to);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * A scripted zipccld of one thread, for tests of the library. It plays a node on which every rank of a communicator
 * sends the same data as this one: an all-gather repeats the caller's part, a sum is n times its values (int32, float32
 * and uint8; others are copied). What comes from elsewhere alone (a receive, a part of a rank that has other counts) is
 * 0x5a or a repetition of the caller's own. Operations of a group run when the last one has come.
 */
#ifndef ZIPCCL_TESTS_FAKE_DAEMON_H
#define ZIPCCL_TESTS_FAKE_DAEMON_H

#include <stdatomic.h>

#include "proto/wire.h"

enum fake_mode {
    FAKE_GOOD,
    FAKE_REFUSE,      /* the hello, with an error */
    FAKE_VERSION,     /* answers the hello with protocol 99 */
    FAKE_HOLD,        /* completes operations only once `release` is set */
    FAKE_CLOSE_ON_OP, /* closes at the first operation */
    FAKE_FAIL_OP,     /* each operation fails, with a text */
    FAKE_EVENT_ON_OP, /* the communicator fails at the first operation */
    FAKE_NO_ID,       /* gives no unique ids */
    FAKE_SILENT       /* answers neither operations nor that a communicator is left */
};

#define FAKE_COUNTS 64

struct fake {
    _Atomic int mode;
    atomic_bool release, stop;
    atomic_uint ops, registered, released, left;
    atomic_uint split; /* the latest one that a rank came to */
    atomic_bool split_joins;
    struct wire_request last;     /* valid once ops says so */
    uint64_t counts[FAKE_COUNTS]; /* behind it: the first ones */
    unsigned ncounts;
    struct wire_request first; /* since the test has set ops to 0 */
    unsigned more;             /* requests with WIRE_GROUP_MORE since then */
    char path[100];
    int listener;
    unsigned long thread;
};

void fake_start(struct fake *f, enum fake_mode mode); /* and sets ZIPCCL_SOCKET */
void fake_stop(struct fake *f);

#endif

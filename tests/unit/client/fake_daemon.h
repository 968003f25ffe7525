/* SPDX-License-Identifier: Apache-2.0
 *
 * A scripted zipccld of one thread, for tests of the library. It plays a node on which every rank of a communicator
 * sends the same data as this one: an all-gather repeats the caller's part.
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
    FAKE_SILENT       /* answers neither operations nor that a communicator is left */
};

struct fake {
    _Atomic int mode;
    atomic_bool release, stop;
    atomic_uint ops, registered, released, left;
    struct wire_request last; /* valid once ops says so */
    char path[100];
    int listener;
    unsigned long thread;
};

void fake_start(struct fake *f, enum fake_mode mode); /* and sets ZIPCCL_SOCKET */
void fake_stop(struct fake *f);

#endif

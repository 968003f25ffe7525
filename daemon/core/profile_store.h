/* SPDX-License-Identifier: Apache-2.0
 *
 * The state directory: profiles that outlive the daemon, a file each.
 *
 * All are read at the start and kept in memory, so the loop never waits for a disk; what is new is written by a thread
 * of the pool, into a file of another name that then takes the place of the old one. Belongs to the loop thread.
 */
#ifndef ZIPCCL_DAEMON_PROFILE_STORE_H
#define ZIPCCL_DAEMON_PROFILE_STORE_H

#include <uv.h>

#include "daemon/core/profile.h"

#define PROFILE_STORE_MAX 64u /* beyond, the one used longest ago goes */

struct profile_entry {
    struct profile profile;
    uint64_t used;
    bool dirty; /* is to be written */
};

struct profile_store {
    uv_loop_t *loop;
    int dir; /* -1: none, nothing is kept */
    struct profile_entry *entries;
    uint32_t n;
    uint64_t clock;
    uv_work_t work;
    bool writing;
    struct profile written; /* by the thread that writes */
    uint64_t remove;        /* its key, of a file that goes; 0: none */
    int error;              /* errno of the last write, 0: fine */
    bool told;              /* of an error */
};

/* path "": systemd's STATE_DIRECTORY, and where that is not set, none. Whatever is wrong is logged, and nothing is
 * kept. */
void profile_store_open(struct profile_store *s, uv_loop_t *loop, const char *path);
/* Of these nodes; NULL: none. Valid until the next put. */
const struct profile *profile_store_find(struct profile_store *s, uint64_t key);
void profile_store_put(struct profile_store *s, const struct profile *p);
/* After the loop has run out: everything is written. Fine on one that never opened. */
void profile_store_close(struct profile_store *s);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * The descriptors of this process, counted: what a device leaves open shows. After cmocka.h.
 */
#ifndef ZIPCCL_TESTS_WORKER_FDS_H
#define ZIPCCL_TESTS_WORKER_FDS_H

#include <dirent.h>

static inline unsigned count_fds(void) {
    unsigned n = 0;
    DIR *dir = opendir("/proc/self/fd");
    assert_non_null(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

#endif

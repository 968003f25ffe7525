/* SPDX-License-Identifier: Apache-2.0
 *
 * The GPUs of this process itself: what a worker process gives its GPU to, and tests of the fabric alone.
 */
#ifndef ZIPCCL_DAEMON_FABRIC_NCCL_HERE_H
#define ZIPCCL_DAEMON_FABRIC_NCCL_HERE_H

#include "daemon/fabric/nccl_launch.h"
#include "daemon/fabric/nccl_library.h"

struct nccl_here {
    struct nccl_library library;
};

#endif

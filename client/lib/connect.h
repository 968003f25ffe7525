/* SPDX-License-Identifier: Apache-2.0
 *
 * How a process gets a connection to zipccld that has said hello: shared by the library and zipcclctl.
 */
#ifndef ZIPCCL_CLIENT_CONNECT_H
#define ZIPCCL_CLIENT_CONNECT_H

#include <stddef.h>
#include <stdint.h>

#include "proto/frame.h"

#define CONNECT_DEFAULT_SOCKET "/run/zipccl/zipccld.sock"
#define CONNECT_WHY_BYTES      512

/* What the daemon said in its hello. */
struct connect_info {
    uint32_t version; /* of the protocol */
    uint64_t features;
    uint64_t session;
    uint64_t max_buffer_bytes; /* 0: no limit known */
    unsigned daemon;           /* its ZIPCCL_VERSION_CODE */
    char node[256];
};

/* $ZIPCCL_SOCKET, else the default. Never NULL. */
const char *connect_socket_path(void);
/* $ZIPCCL_JOB_ID, else $SLURM_JOB_ID, else "default". Never NULL. */
const char *connect_job(void);

/* $ZIPCCL_SPIN_US, how long to look at the socket before sleeping, else the default. */
uint64_t connect_spin_us(void);

/* Connects, says hello for `job` and takes the answer, all within timeout_ms. The caller frees *conn. Where it fails,
 * why (CONNECT_WHY_BYTES) says what to do about it. */
ZIPCCL_MUST_CHECK zipcclResult_t connect_open(const char *path, const char *job, int timeout_ms,
                                              struct frame_conn **conn, struct connect_info *info, char *why);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames: the unit of every zipccl socket, client to daemon (Unix) and daemon to daemon (TCP).
 *
 * A frame is a 16-byte header {length, type, fds, id, magic} and a payload. Limits are checked on the header, before
 * anything is allocated. Descriptors travel by SCM_RIGHTS with the first byte of their frame, on Unix sockets alone.
 *
 * A frame_conn belongs to one thread. It owns the socket from frame_conn_init on, and closes it, with the
 * descriptors that nobody took, in frame_conn_close.
 */
#ifndef ZIPCCL_PROTO_FRAME_H
#define ZIPCCL_PROTO_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "zipccl_types.h"

#define FRAME_MAGIC       0x5a43u /* "CZ" */
#define FRAME_MAX_PAYLOAD (1u << 20)
#define FRAME_MAX_FDS     4u
#define FRAME_OUT_LIMIT   (8u << 20) /* queued bytes after which a peer that does not read is given up */

/* On the wire, little endian. */
struct frame_header {
    uint32_t length; /* of the payload */
    uint16_t type;   /* enum wire_type */
    uint16_t nfds;
    uint32_t id; /* of the request; its reply carries the same */
    uint16_t magic;
    uint16_t reserved; /* 0 */
};

/* A received frame; payload and fds belong to the frame_conn and are valid until the next frame_conn_next.
 * Who wants a descriptor takes it: sets fds[i] to -1. The payload is not aligned: copy structs out of it. */
struct frame {
    uint16_t type;
    uint32_t id;
    uint32_t length;
    const uint8_t *payload;
    uint32_t nfds;
    int *fds;
};

struct frame_conn; /* see frame.c */

/* fd: connected, made non-blocking here. passes_fds: a Unix socket. NULL on no memory (fd is then closed). */
struct frame_conn *frame_conn_new(int fd, bool passes_fds);
void frame_conn_free(struct frame_conn *c); /* NULL is fine */
int frame_conn_fd(const struct frame_conn *c);
/* Frames that are read from here on have at most so many bytes of payload (FRAME_MAX_PAYLOAD before). */
void frame_conn_limit(struct frame_conn *c, uint32_t payload);

/* Checks a header alone (pure; fuzzed). why: a static text for people where it fails. */
ZIPCCL_MUST_CHECK bool frame_header_check(const struct frame_header *h, bool passes_fds, const char **why);

/* Reads what the socket has, up to a bounded amount. zipcclSuccess: bytes came; zipcclInProgress: nothing there now;
 * zipcclRemoteError: the peer closed (a truncated frame says so in frame_conn_why); zipcclSystemError.
 * Excess descriptors are closed and make the connection fail with zipcclLimitExceeded. */
ZIPCCL_MUST_CHECK zipcclResult_t frame_conn_read(struct frame_conn *c);
/* Takes the next whole frame that was read. zipcclSuccess: *f is set; zipcclInProgress: none complete;
 * zipcclLimitExceeded or zipcclInvalidArgument: the stream is broken, close it. */
ZIPCCL_MUST_CHECK zipcclResult_t frame_conn_next(struct frame_conn *c, struct frame *f);

/* Sends a frame, or queues what the socket does not take now (then frame_conn_wants_write is true). fds are duplicated
 * by the kernel, or here when queued: the caller keeps its own. zipcclLimitExceeded where the peer does not read. */
ZIPCCL_MUST_CHECK zipcclResult_t frame_conn_send(struct frame_conn *c, uint16_t type, uint32_t id, const void *payload,
                                                 size_t length, const int *fds, uint32_t nfds);
bool frame_conn_wants_write(const struct frame_conn *c);
/* Sends what is queued; zipcclInProgress: some is left. */
ZIPCCL_MUST_CHECK zipcclResult_t frame_conn_flush(struct frame_conn *c);

/* Why the last call failed, for people. */
const char *frame_conn_why(const struct frame_conn *c);

/* Blocking helpers for clients: wait up to timeout_ms (-1: for ever) for the socket. zipcclTimeout. */
ZIPCCL_MUST_CHECK zipcclResult_t frame_conn_wait_frame(struct frame_conn *c, struct frame *f, int timeout_ms);
ZIPCCL_MUST_CHECK zipcclResult_t frame_conn_wait_flush(struct frame_conn *c, int timeout_ms);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * The parsing half of a frame_conn: bytes and descriptors in, frames out. It knows no socket, so it can be fuzzed.
 *
 * Descriptors are attributed by position. Linux hands them over with the recvmsg that holds the first byte of their
 * frame, and never lets one recvmsg hold the descriptors of two sends. So the descriptors of one feed belong to the
 * one frame that begins within it and announces exactly as many; anything else breaks the stream.
 *
 * Ownership: descriptors that were fed belong to the parser until somebody takes them from a frame (fds[i] = -1).
 */
#ifndef ZIPCCL_PROTO_PARSER_H
#define ZIPCCL_PROTO_PARSER_H

#include "proto/frame.h"

#define PARSER_BASE_BYTES  (32u << 10) /* of the buffer while no larger frame is under way */
#define PARSER_FD_BACKLOG  16u         /* descriptors of whole frames that nobody fetched yet */
#define PARSER_HEADER_SIZE sizeof(struct frame_header)

struct frame_parser {
    bool passes_fds;
    uint32_t max_payload;
    uint8_t *data;
    size_t capacity;
    size_t start; /* first byte not given out */
    size_t end;
    size_t held; /* bytes at start that the last frame occupies; freed by the next call of frame_parser_next */
    size_t scan; /* where the next unchecked header begins; may lie beyond end */
    zipcclResult_t broken; /* once set, nothing more is fed; whole frames before the fault are still given out */
    char why[160];
    int claimed[PARSER_FD_BACKLOG + FRAME_MAX_FDS]; /* descriptors of checked frames, in order */
    uint32_t nclaimed;
    int fresh[FRAME_MAX_FDS]; /* descriptors whose frame's header is not complete yet */
    uint32_t nfresh;
    size_t fresh_end;       /* behind the bytes that they came with */
    int out[FRAME_MAX_FDS]; /* of the frame given out last */
    uint32_t nout;
};

void frame_parser_init(struct frame_parser *p, bool passes_fds);
/* Closes all descriptors that nobody took. */
void frame_parser_free(struct frame_parser *p);

/* Where to put the next bytes. zipcclInProgress: no room until frames are fetched. zipcclOutOfMemory. */
ZIPCCL_MUST_CHECK zipcclResult_t frame_parser_space(struct frame_parser *p, uint8_t **at, size_t *room);
/* n bytes were put there, and these descriptors came with them. Fails where the stream is broken by descriptors;
 * a bad header is reported by frame_parser_next, after the good frames before it. */
ZIPCCL_MUST_CHECK zipcclResult_t frame_parser_feed(struct frame_parser *p, size_t n, const int *fds, uint32_t nfds);
/* As frame_conn_next. */
ZIPCCL_MUST_CHECK zipcclResult_t frame_parser_next(struct frame_parser *p, struct frame *f);
/* At the end of the stream: true where it ended between two frames; else why says what was cut. */
bool frame_parser_at_boundary(struct frame_parser *p);
/* Breaks the stream, with a text. */
zipcclResult_t frame_parser_break(struct frame_parser *p, zipcclResult_t result, const char *why);

#endif

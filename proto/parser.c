/* SPDX-License-Identifier: Apache-2.0
 *
 * Reassembly of frames from a byte stream, and of whose descriptors are whose. See parser.h.
 */
#include "proto/parser.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/wire.h"

static void close_all(int *fds, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (fds[i] >= 0)
            (void)close(fds[i]);
}

void frame_parser_init(struct frame_parser *p, bool passes_fds) {
    memset(p, 0, sizeof *p);
    p->passes_fds = passes_fds;
    p->max_payload = FRAME_MAX_PAYLOAD;
}

void frame_parser_free(struct frame_parser *p) {
    close_all(p->claimed, p->nclaimed);
    close_all(p->fresh, p->nfresh);
    close_all(p->out, p->nout);
    free(p->data);
    memset(p, 0, sizeof *p);
}

bool frame_header_check(const struct frame_header *h, bool passes_fds, const char **why) {
    *why = NULL;
    if (h->magic != FRAME_MAGIC || h->reserved)
        *why = "not a zipccl frame (bad magic): the peer speaks another protocol";
    else if (h->length > FRAME_MAX_PAYLOAD)
        *why = "frame payload is larger than the limit";
    else if (h->nfds > FRAME_MAX_FDS)
        *why = "frame announces more descriptors than the limit";
    else if (h->nfds && !passes_fds)
        *why = "frame announces descriptors on a socket that carries none";
    else if (!h->type)
        *why = "frame has no type";
    return !*why;
}

zipcclResult_t frame_parser_break(struct frame_parser *p, zipcclResult_t result, const char *why) {
    if (p->broken == zipcclSuccess) {
        p->broken = result;
        (void)snprintf(p->why, sizeof p->why, "%s", why);
    }
    return p->broken;
}

/* Room for the frame under way, at the front of the buffer. Only while no frame is held, since bytes move. */
static zipcclResult_t make_room(struct frame_parser *p) {
    size_t have = p->end - p->start, need = PARSER_BASE_BYTES;
    if (p->scan > p->end && p->scan - p->start > need)
        need = p->scan - p->start;
    if (p->start) {
        memmove(p->data, p->data + p->start, have);
        p->scan -= p->start;
        p->fresh_end -= p->nfresh ? p->start : 0;
        p->start = 0;
        p->end = have;
    }
    /* Keep a large buffer only while a large frame is under way. */
    if (need > p->capacity || (!have && p->capacity > PARSER_BASE_BYTES)) {
        uint8_t *grown = realloc(p->data, need);
        if (!grown)
            return frame_parser_break(p, zipcclOutOfMemory, "no memory for a frame");
        p->data = grown;
        p->capacity = need;
    }
    return zipcclSuccess;
}

zipcclResult_t frame_parser_space(struct frame_parser *p, uint8_t **at, size_t *room) {
    *at = NULL;
    *room = 0;
    if (p->broken != zipcclSuccess)
        return p->broken;
    if (p->nclaimed >= PARSER_FD_BACKLOG)
        return zipcclInProgress;
    if (!p->held) {
        bool large_idle = p->start == p->end && p->capacity > PARSER_BASE_BYTES && p->scan == p->end;
        bool will_not_fit = p->scan > p->end && p->scan > p->capacity;
        if (p->start == p->end && !large_idle && p->capacity) {
            p->scan -= p->start;
            p->fresh_end -= p->nfresh ? p->start : 0;
            p->start = p->end = 0;
        } else if (!p->capacity || large_idle || will_not_fit || p->end == p->capacity) {
            zipcclResult_t r = make_room(p);
            if (r != zipcclSuccess)
                return r;
        }
    }
    *at = p->data + p->end;
    *room = p->capacity - p->end;
    return *room ? zipcclSuccess : zipcclInProgress;
}

/* Descriptors whose bytes have all been looked at, and which no frame announced. */
static bool orphaned(const struct frame_parser *p) {
    return p->nfresh && p->scan >= p->fresh_end;
}

/* Checks the headers that are complete now, and gives each frame its descriptors. */
static void scan_headers(struct frame_parser *p) {
    while (p->broken == zipcclSuccess && !orphaned(p) && p->scan < p->end && p->end - p->scan >= PARSER_HEADER_SIZE) {
        struct frame_header h;
        const char *why;
        memcpy(&h, p->data + p->scan, sizeof h);
        bool fine = frame_header_check(&h, p->passes_fds, &why);
        if (fine && h.length > p->max_payload)
            why = "frame payload is larger than the limit for what may come now";
        if (why) {
            bool limit = h.magic == FRAME_MAGIC && !h.reserved && (h.length > p->max_payload || h.nfds);
            (void)frame_parser_break(p, limit ? zipcclLimitExceeded : zipcclInvalidArgument, why);
            (void)snprintf(p->why, sizeof p->why, "%s (type %u, %u bytes, %u descriptors)", why, (unsigned)h.type,
                           (unsigned)h.length, (unsigned)h.nfds);
            return;
        }
        if (h.nfds) {
            if (h.nfds != p->nfresh) {
                (void)snprintf(p->why, sizeof p->why, "frame %s announces %u descriptors, but %u came with it",
                               wire_type_name(h.type), (unsigned)h.nfds, (unsigned)p->nfresh);
                p->broken = p->nfresh > h.nfds ? zipcclLimitExceeded : zipcclInvalidArgument;
                return;
            }
            memcpy(p->claimed + p->nclaimed, p->fresh, h.nfds * sizeof *p->fresh);
            p->nclaimed += h.nfds;
            p->nfresh = 0;
        }
        p->scan += PARSER_HEADER_SIZE + h.length;
    }
}

zipcclResult_t frame_parser_feed(struct frame_parser *p, size_t n, const int *fds, uint32_t nfds) {
    uint32_t keep = nfds <= FRAME_MAX_FDS ? nfds : FRAME_MAX_FDS;
    if (p->broken != zipcclSuccess || nfds > FRAME_MAX_FDS || (nfds && p->nfresh)) {
        for (uint32_t i = 0; i < nfds; i++)
            (void)close(fds[i]);
        return frame_parser_break(p, zipcclLimitExceeded, "more descriptors came than a frame may carry");
    }
    size_t from = p->end;
    p->end += n;
    if (keep) {
        memcpy(p->fresh, fds, keep * sizeof *fds);
        p->nfresh = keep;
        p->fresh_end = p->end;
        /* A frame whose first byte came earlier cannot be theirs. */
        if (p->scan < from)
            return frame_parser_break(p, zipcclLimitExceeded, "descriptors came in the middle of a frame's header");
    }
    scan_headers(p);
    if (p->broken == zipcclSuccess && orphaned(p))
        return frame_parser_break(p, zipcclLimitExceeded, "descriptors came that no frame announced");
    return zipcclSuccess;
}

zipcclResult_t frame_parser_next(struct frame_parser *p, struct frame *f) {
    memset(f, 0, sizeof *f);
    close_all(p->out, p->nout);
    p->nout = 0;
    p->start += p->held;
    p->held = 0;
    struct frame_header h;
    /* Below scan every header has been checked. */
    if (p->start < p->scan && p->end - p->start >= PARSER_HEADER_SIZE) {
        memcpy(&h, p->data + p->start, sizeof h);
        if (p->end - p->start >= PARSER_HEADER_SIZE + h.length) {
            memcpy(p->out, p->claimed, h.nfds * sizeof *p->out);
            p->nout = h.nfds;
            p->nclaimed -= h.nfds;
            memmove(p->claimed, p->claimed + h.nfds, p->nclaimed * sizeof *p->claimed);
            p->held = PARSER_HEADER_SIZE + h.length;
            *f = (struct frame){.type = h.type,
                                .id = h.id,
                                .length = h.length,
                                .payload = p->data + p->start + PARSER_HEADER_SIZE,
                                .nfds = h.nfds,
                                .fds = p->out};
            return zipcclSuccess;
        }
    }
    return p->broken != zipcclSuccess ? p->broken : zipcclInProgress;
}

bool frame_parser_at_boundary(struct frame_parser *p) {
    if (p->scan == p->end)
        return true;
    if (p->scan < p->end)
        (void)snprintf(p->why, sizeof p->why, "the peer closed in the middle of a frame: %zu of %zu header bytes came",
                       p->end - p->scan, PARSER_HEADER_SIZE);
    else
        (void)snprintf(p->why, sizeof p->why, "the peer closed in the middle of a frame: %zu bytes are missing",
                       p->scan - p->end);
    return false;
}

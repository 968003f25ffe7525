/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes, in pieces of any size, into the frame parser. The first byte chooses the pieces and the kind of socket.
 */
#include <stdlib.h>
#include <string.h>

#include "proto/parser.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct frame_parser p;
    struct frame f;
    if (!size)
        return 0;
    size_t piece = 1 + (data[0] & 63u) * (data[0] & 63u), at = 1, out = 0;
    volatile uint8_t sum = 0;
    frame_parser_init(&p, data[0] & 64);
    for (;;) {
        uint8_t *to;
        size_t room, n = size - at < piece ? size - at : piece;
        zipcclResult_t r = frame_parser_space(&p, &to, &room);
        if (r == zipcclSuccess && n) {
            n = n < room ? n : room;
            memcpy(to, data + at, n);
            at += n;
            r = frame_parser_feed(&p, n, NULL, 0);
        }
        bool fed = r == zipcclSuccess && n, took = false;
        while ((r = frame_parser_next(&p, &f)) == zipcclSuccess) {
            took = true;
            /* No descriptors were fed, so no frame may have any; no frame is longer than what came. */
            if (f.nfds || f.length > FRAME_MAX_PAYLOAD || (out += sizeof(struct frame_header) + f.length) > at)
                abort();
            for (uint32_t i = 0; i < f.length; i++)
                sum ^= f.payload[i];
            if (data[0] & 128)
                break;
        }
        if (!fed && !took)
            break;
    }
    (void)frame_parser_at_boundary(&p);
    (void)sum;
    frame_parser_free(&p);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Every message of the control protocols: unpacking and checks. The first byte is the frame type.
 */
#include <stdlib.h>
#include <string.h>

#include "proto/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ProtobufCMessage *m;
    const char *why;
    if (!size || size - 1 > FRAME_MAX_PAYLOAD)
        return 0;
    struct frame f = {.type = data[0], .length = (uint32_t)(size - 1), .payload = data + 1};
    zipcclResult_t r = message_unpack(&f, &m, &why);
    if ((r == zipcclSuccess) != (m != NULL) || (r != zipcclSuccess && !*why))
        abort();
    if (!m)
        return 0;
    /* What was accepted can be packed again. */
    size_t n = protobuf_c_message_get_packed_size(m);
    uint8_t *again = malloc(n ? n : 1);
    if (again && protobuf_c_message_pack(m, again) != n)
        abort();
    free(again);
    message_free(m);
    return 0;
}

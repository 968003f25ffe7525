/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of what is on the wire, all from the tables of wire.h and zipccl_types.h.
 */
#include "proto/wire.h"

#include "proto/result.h"

const char *wire_type_name(unsigned type) {
    switch (type) {
#define WIRE_NAME(name, value, payload)                                                                                \
    case value:                                                                                                        \
        return &#name[5]; /* without WIRE_ */
        WIRE_TYPES(WIRE_NAME)
#undef WIRE_NAME
    default:
        return "?";
    }
}

const char *result_string(zipcclResult_t result) {
    switch ((int)result) {
#define RESULT_TEXT(name, value, text)                                                                                 \
    case value:                                                                                                        \
        return text;
        ZIPCCL_RESULTS(RESULT_TEXT)
#undef RESULT_TEXT
    default:
        return "unknown result";
    }
}

const char *result_name(zipcclResult_t result) {
    switch ((int)result) {
#define RESULT_NAME(name, value, text)                                                                                 \
    case value:                                                                                                        \
        return #name;
        ZIPCCL_RESULTS(RESULT_NAME)
#undef RESULT_NAME
    default:
        return "?";
    }
}

zipcclResult_t result_from_wire(unsigned value) {
    return value > zipcclSuccess && value < zipcclNumResults ? (zipcclResult_t)value : zipcclInternalError;
}

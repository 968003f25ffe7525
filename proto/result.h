/* SPDX-License-Identifier: Apache-2.0
 *
 * Names and texts of results, for people.
 */
#ifndef ZIPCCL_PROTO_RESULT_H
#define ZIPCCL_PROTO_RESULT_H

#include "zipccl_types.h"

/* "invalid argument"; never NULL, also for a value that a newer peer sent. */
const char *result_string(zipcclResult_t result);
/* "zipcclInvalidArgument". */
const char *result_name(zipcclResult_t result);
/* A result from the wire: an unknown value, or a success where there can be none, becomes zipcclInternalError. */
zipcclResult_t result_from_wire(unsigned value);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * The inputs of the CPU codec's tests (tests/unit/kernels/chunks.h, which is C) for tests in C++.
 */
#ifndef ZIPCCL_TESTS_SIMT_CODEC_INPUTS_H
#define ZIPCCL_TESTS_SIMT_CODEC_INPUTS_H

#include <stddef.h>
#include <stdint.h>

#include "zipccl_types.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifndef INPUTS_C /* chunks.h has them */
enum inputs_kind {
    IN_RANDOM,
    IN_NARROW,
    IN_ZERO,
    IN_CONST,
    IN_MANY_ZEROS,
    IN_ALTERNATING,
    IN_COUNTER,
    IN_SPECIAL,
    NUM_INPUTS
};
#endif

void inputs_fill(uint8_t *p, zipcclDataType_t t, size_t count, unsigned kind, uint64_t seed);
uint64_t inputs_near(zipcclDataType_t t, unsigned spread, unsigned centre, uint64_t *s);
uint64_t inputs_random(uint64_t *s);

#ifdef __cplusplus
}
#endif

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/kernels/chunks.h"

#define INPUTS_C
#include "inputs.h"

void inputs_fill(uint8_t *p, zipcclDataType_t t, size_t count, unsigned kind, uint64_t seed) {
    fill(p, t, count, (enum input)kind, seed);
}

uint64_t inputs_near(zipcclDataType_t t, unsigned spread, unsigned centre, uint64_t *s) {
    return value_near(t, spread, centre, s);
}

uint64_t inputs_random(uint64_t *s) {
    return next_random(s);
}

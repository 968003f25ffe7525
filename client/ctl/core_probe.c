/* SPDX-License-Identifier: Apache-2.0
 *
 * The probe: a chain of multiplications that waits for each step, and then additions that do not. Chains of several
 * turns run at once as far as the processor looks ahead: with all of its window some three of them, with half one or
 * two.
 */
#include "client/ctl/core_probe.h"

#include <stdint.h>

#include "client/ctl/units.h"

enum { TURNS = 400, CHAINS = 6 };

static double g_least;

double core_probe(void) {
    uint64_t x[CHAINS] = {0};
    const uint64_t start = units_now_ns();
    for (uint64_t t = 0; t < TURNS; t++) {
        uint64_t y = t;
        /* The asm keeps the compiler from joining operations; volatile keeps their order. */
#define TIMES4(what) what what what what
#define MULTIPLY                                                                                                       \
    y *= 0x9e3779b97f4a7c15u;                                                                                          \
    __asm__ volatile("" : "+r"(y));
#define ADD(k)                                                                                                         \
    x[k]++;                                                                                                            \
    __asm__ volatile("" : "+r"(x[k]));
        TIMES4(TIMES4(MULTIPLY))
        TIMES4(MULTIPLY MULTIPLY)
        TIMES4(TIMES4(ADD(0) ADD(1) ADD(2) ADD(3) ADD(4) ADD(5)))
#undef TIMES4
#undef MULTIPLY
#undef ADD
    }
    const double ns = (double)(units_now_ns() - start);
    if (g_least == 0 || ns < g_least)
        g_least = ns;
    return ns;
}

double core_probe_least(void) {
    return g_least;
}

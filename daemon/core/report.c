/* SPDX-License-Identifier: Apache-2.0
 *
 * Packs, combines and unpacks reports.
 */
#include "daemon/core/report.h"

#define MANTISSA_BITS  8u
#define TIME_BITS      13u
#define TIME_MASK      ((1u << TIME_BITS) - 1)
#define FRACTION_SHIFT 26u
#define FRACTION_MASK  31u
#define ALARM          (1u << 31)

uint16_t report_code(uint64_t ns) {
    uint32_t exponent = 0;
    while (ns >> (MANTISSA_BITS + 1) && exponent < 31) {
        ns >>= 1;
        exponent++;
    }
    if (ns >> (MANTISSA_BITS + 1))
        return TIME_MASK;
    uint32_t mantissa = ns > 1u << MANTISSA_BITS ? (uint32_t)ns - (1u << MANTISSA_BITS) : 0, code;
    code = exponent << MANTISSA_BITS | mantissa;
    return (uint16_t)(code ? code : 1);
}

uint64_t report_ns(uint16_t code) {
    uint64_t mantissa = (1u << MANTISSA_BITS) + (code & ((1u << MANTISSA_BITS) - 1));
    return code ? mantissa << (code >> MANTISSA_BITS) : 0;
}

uint32_t report_pack(bool alarm, uint64_t ns, uint64_t coded_from, uint64_t coded_to) {
    uint32_t word = alarm ? ALARM : 0, parts = 0;
    if (coded_from > 0) {
        uint64_t unit = coded_from / REPORT_PARTS + 1;
        parts = coded_to / unit >= REPORT_PARTS ? REPORT_PARTS : (uint32_t)(coded_to / unit) + 1;
        parts = parts > REPORT_PARTS ? REPORT_PARTS : parts;
    }
    word |= parts << FRACTION_SHIFT;
    if (ns > 0) {
        uint32_t code = report_code(ns);
        word |= code << TIME_BITS | (TIME_MASK + 1 - code);
    }
    return word;
}

struct report report_unpack(uint32_t word) {
    struct report r = {.alarm = (word & ALARM) != 0, .parts = (uint16_t)(word >> FRACTION_SHIFT & FRACTION_MASK)};
    uint32_t least = word & TIME_MASK;
    r.worst = (uint16_t)(word >> TIME_BITS & TIME_MASK);
    r.least = least ? (uint16_t)(TIME_MASK + 1 - least) : 0;
    return r;
}

static uint32_t greater(uint32_t a, uint32_t b, uint32_t mask) {
    return (a & mask) > (b & mask) ? a & mask : b & mask;
}

uint32_t report_combine(uint32_t a, uint32_t b) {
    return ((a | b) & ALARM) | greater(a, b, FRACTION_MASK << FRACTION_SHIFT) | greater(a, b, TIME_MASK << TIME_BITS) |
           greater(a, b, TIME_MASK);
}

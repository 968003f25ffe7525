/* SPDX-License-Identifier: Apache-2.0
 *
 * The report: a word that travels in every message header of an operation. By it the nodes (or ranks) tell each other
 * how long the operation of the same kind before this one took, so that at its end all know the same times.
 *
 *   bit 31        alarm: measure all candidates anew
 *   bits 30..26   coded size in 31sts of the raw one, rounded up; 0: nothing was coded
 *   bits 25..13   time, as a float of 5 bits exponent and 8 bits mantissa; 0: none
 *   bits 12..0    8192 less the same time; 0: none
 *
 * Words are combined field by field by the greater, so a combined word holds the longest time and the shortest one, and
 * 0 is neutral. Order does not matter. Pure.
 */
#ifndef ZIPCCL_DAEMON_REPORT_H
#define ZIPCCL_DAEMON_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#define REPORT_PARTS 31u /* of a fraction */

struct report {
    bool alarm;
    uint16_t parts;        /* coded size, REPORT_PARTS: as large as the raw one; 0: not known */
    uint16_t worst, least; /* times as codes, ordered as the times are; 0: none */
};

/* A time as a code of 13 bits and back (within 0.4 %; at least 256 ns, at most 1,097 s). */
uint16_t report_code(uint64_t ns);
uint64_t report_ns(uint16_t code);

uint32_t report_pack(bool alarm, uint64_t ns, uint64_t coded_from, uint64_t coded_to);
struct report report_unpack(uint32_t word);
uint32_t report_combine(uint32_t a, uint32_t b);

#endif

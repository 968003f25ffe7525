/* SPDX-License-Identifier: Apache-2.0
 *
 * Does somebody else use this core just now? A virtual processor is mostly one of two threads of a core. While the
 * other one works, each may look ahead over half as many instructions, and a codec loses more by that than memcpy does.
 */
#ifndef ZIPCCL_CTL_CORE_PROBE_H
#define ZIPCCL_CTL_CORE_PROBE_H

/* A core is shared where its probe takes this much longer than the least one that was seen. (On Zen 4: alone 0.1 %
 * longer at most, shared 40 %.) */
#define CORE_PROBE_SHARED 1.1

/* Nanoseconds for a fixed piece of work, about 10,000; not exact. One thread. */
double core_probe(void);

/* The least one so far in this process; 0: none yet. */
double core_probe_least(void);

#endif

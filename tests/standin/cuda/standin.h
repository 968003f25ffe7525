/* SPDX-License-Identifier: Apache-2.0
 *
 * The stand-in's inside, for the other stand-ins of tests/standin: functions in a stream's order, memory look-up, the
 * gate of every call (count, injected errors, sticky errors), the checker. All live in its libcuda.so.1.
 */
#ifndef ZIPCCL_TESTS_STANDIN_H
#define ZIPCCL_TESTS_STANDIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STANDIN_EXPORT __attribute__((visibility("default")))

/* ---- the gate ---- */

/* A call, as it is counted and injected by name. A static instance for each place; places of one name count as one. */
struct standin_site {
    const char *name;
    bool blocks; /* the caller's thread waits in it for the device: counted as such */
    atomic_ulong count;
    unsigned seen, arming; /* calls since the injector was armed; which arming */
    atomic_bool linked;
    char *row;                  /* in the count file */
    struct standin_site *first; /* of this name; null: this one */
    struct standin_site *next;
};
/* Counts the call. Returns 0, or the error with which the call must end: an injected one, or a sticky one. */
STANDIN_EXPORT int standin_enter(struct standin_site *site);
#define STANDIN_ENTER_AS(error, call, waits)                                                                           \
    do {                                                                                                               \
        static struct standin_site site_ = {.name = (call), .blocks = (waits)};                                        \
        (error) = standin_enter(&site_);                                                                               \
    } while (0)
#define STANDIN_ENTER(error, call) STANDIN_ENTER_AS(error, call, false)

/* The sticky error, or 0. What blocks in a stream must look at it now and then. */
STANDIN_EXPORT int standin_failed(void);
/* Makes an error sticky: no call succeeds any more, and nothing that is queued runs. */
STANDIN_EXPORT void standin_fail(int code);
/* What is done on this thread after the process began to end: nothing may be touched then. */
STANDIN_EXPORT bool standin_ending(void);
/* A rule of the real library was broken: says so and aborts; with ZIPCCL_STANDIN_CHECK=report it returns `code`. */
STANDIN_EXPORT int standin_rule(int code, const char *rule, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- memory ---- */
enum standin_kind { STANDIN_DEVICE, STANDIN_IMPORT, STANDIN_VMM, STANDIN_POOL, STANDIN_HOST, STANDIN_REGISTERED };
struct standin_range {
    enum standin_kind kind;
    int device;
    void *base;
    size_t bytes;
    uint64_t id; /* unique in the process */
};
/* The allocation that p points into. False: none. */
STANDIN_EXPORT bool standin_find(const void *p, struct standin_range *range);
/* Where the CPU finds what a device has at p: whatever copies or computes in a device's place goes through it. The same
 * address, but with ZIPCCL_STANDIN_SEPARATE=1, where the host faults on a device's addresses, as it does on a real one.
 */
STANDIN_EXPORT void *standin_view(const void *p);

/* ---- streams ---- */
struct standin_use { /* memory that queued work reads or writes; to free it before is against the rules */
    const void *at;
    size_t bytes;
};
#define STANDIN_USES 8
/* Runs fn(copy of arg) when everything that was put on the stream before has ended; the stream goes on when it returns.
 * `stream` is a cudaStream_t, null for the legacy stream of the current device. Refused while a graph is captured. */
STANDIN_EXPORT int standin_enqueue(void *stream, void (*fn)(void *), const void *arg, size_t bytes,
                                   const struct standin_use *uses, unsigned nuses);
STANDIN_EXPORT int standin_stream_device(void *stream, int *device);
STANDIN_EXPORT int standin_current_device(void);
STANDIN_EXPORT int standin_device_count(void);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * What the device of the workers does in its time, waited for: for tests, which have nothing else to do meanwhile.
 */
#ifndef ZIPCCL_TESTS_WORKER_WAITED_H
#define ZIPCCL_TESTS_WORKER_WAITED_H

#include <poll.h>

#include "daemon/worker/worker.h"

struct waited {
    struct device_call call; /* first */
    bool over;
    zipcclResult_t result;
    const char *why;
};

static inline void waited_done(struct device_call *call, zipcclResult_t result, const char *why) {
    struct waited *w = (struct waited *)call;
    w->over = true;
    w->result = result;
    w->why = why;
}

static inline zipcclResult_t waited_for(struct device *d, struct waited *w, const char **why) {
    struct pollfd p = {.fd = device_workers.fd(d), .events = POLLIN};
    while (!w->over) {
        (void)poll(&p, 1, 1000);
        device_workers.poll(d);
    }
    *why = w->why;
    return w->result;
}

static inline zipcclResult_t waited_import(struct device *d, const struct device_import *import,
                                           struct device_memory *out, const char **why) {
    struct waited w = {.call.done = waited_done};
    struct device_import in = *import;
    in.call = &w.call;
    zipcclResult_t result = device_workers.import(d, &in, out, why);
    return result == zipcclInProgress ? waited_for(d, &w, why) : result;
}

static inline void waited_release(struct device *d, struct device_memory *memory) {
    struct waited w = {.call.done = waited_done};
    const char *why;
    if (!device_workers.release(d, memory, &w.call))
        (void)waited_for(d, &w, &why);
}

static inline zipcclResult_t waited_stream_open(struct device *d, const uint8_t *uuid, const uint8_t *events,
                                                unsigned n, struct device_stream **stream, const char **why) {
    struct waited w = {.call.done = waited_done};
    zipcclResult_t result = device_workers.stream_open(d, uuid, events, n, &w.call, stream, why);
    return result == zipcclInProgress ? waited_for(d, &w, why) : result;
}

static inline void waited_stream_close(struct device *d, struct device_stream *stream) {
    struct waited w = {.call.done = waited_done};
    const char *why;
    if (!device_workers.stream_close(stream, &w.call))
        (void)waited_for(d, &w, &why);
}

#endif

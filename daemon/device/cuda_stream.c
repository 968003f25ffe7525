/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams of clients: events that they record, opened here, and who waits for them.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/device/cuda.h"

zipcclResult_t cuda_stream_open(struct device *d, const uint8_t *uuid, const uint8_t *events, unsigned n,
                                struct device_call *call, struct device_stream **stream, const char **why) {
    (void)call;
    struct cuda_gpu *gpu = cuda_gpu_of_uuid(d, uuid);
    *stream = NULL;
    *why = "zipccld does not see that GPU (CUDA_VISIBLE_DEVICES, NVIDIA_VISIBLE_DEVICES of its unit or container)";
    if (!gpu)
        return zipcclInvalidArgument;
    zipcclResult_t result = cuda_gpu_ready(gpu, why);
    if (result != zipcclSuccess)
        return result;
    struct device_stream *s = calloc(1, sizeof(*s) + n * sizeof(s->events[0]));
    *why = "no memory";
    if (!s)
        return zipcclOutOfMemory;
    s->device = d;
    s->gpu = gpu;
    while (s->n < n) {
        cudaIpcEventHandle_t handle;
        _Static_assert(sizeof(handle) == DEVICE_IPC_BYTES, "size of an IPC handle");
        memcpy(&handle, events + (size_t)s->n * sizeof(handle), sizeof(handle));
        cudaError_t e = cudaIpcOpenEventHandle(&s->events[s->n], handle);
        if (e != cudaSuccess) {
            (void)cudaGetLastError();
            *why = cuda_gpu_check(gpu, e, "opening an IPC event") ? gpu->why : cudaGetErrorString(e);
            (void)cuda_stream_close(s, NULL);
            return cuda_result(e);
        }
        s->n++;
    }
    *stream = s;
    return zipcclSuccess;
}

static void remove_gates(struct cuda_gate **list, const struct device_stream *s, struct cuda_gate **spare) {
    for (struct cuda_gate **p = list; *p;) {
        struct cuda_gate *g = *p;
        if (g->stream != s) {
            p = &g->next;
            continue;
        }
        *p = g->next;
        g->next = *spare;
        *spare = g;
    }
}

bool cuda_stream_close(struct device_stream *s, struct device_call *call) {
    (void)call;
    struct device *d = s->device;
    pthread_mutex_lock(&d->lock);
    remove_gates(&d->gates, s, &d->spare_gates);
    remove_gates(&d->opened, s, &d->spare_gates);
    pthread_mutex_unlock(&d->lock);
    (void)cudaSetDevice(s->gpu->ordinal);
    for (unsigned i = 0; i < s->n; i++)
        (void)cudaEventDestroy(s->events[i]);
    (void)cudaGetLastError();
    free(s);
    return true;
}

zipcclResult_t cuda_stream_gate(struct device_stream *s, unsigned i, const struct device_gate *gate) {
    struct device *d = s->device;
    if (i >= s->n)
        return zipcclInvalidArgument;
    pthread_mutex_lock(&d->lock);
    struct cuda_gate *g = d->spare_gates;
    if (g)
        d->spare_gates = g->next;
    else
        g = malloc(sizeof(*g));
    if (g) {
        *g = (struct cuda_gate){.stream = s, .event = s->events[i], .gate = *gate};
        struct cuda_gate **end = &d->gates;
        while (*end)
            end = &(*end)->next;
        *end = g;
        pthread_cond_signal(&d->wake);
    }
    pthread_mutex_unlock(&d->lock);
    return g ? zipcclSuccess : zipcclOutOfMemory;
}

bool cuda_gates_look(struct device *d) {
    struct cuda_gate **end = &d->opened;
    bool any = false;
    while (*end)
        end = &(*end)->next;
    for (struct cuda_gate **p = &d->gates; *p;) {
        struct cuda_gate *g = *p;
        cudaError_t e = atomic_load(&g->stream->gpu->failed) ? cudaErrorUnknown : cudaEventQuery(g->event);
        if (e == cudaErrorNotReady) {
            p = &g->next;
            continue;
        }
        if (e != cudaSuccess)
            (void)cuda_gpu_check(g->stream->gpu, e, "waiting for a trainer's stream");
        g->result = e == cudaSuccess ? zipcclSuccess : zipcclUnhandledDeviceError;
        *p = g->next;
        g->next = NULL;
        *end = g;
        end = &g->next;
        any = true;
    }
    return any;
}

void cuda_gates_run(struct device *d) {
    for (;;) {
        pthread_mutex_lock(&d->lock);
        struct cuda_gate *g = d->opened;
        struct device_gate gate = {0};
        zipcclResult_t result = zipcclSuccess;
        const char *why = NULL;
        if (g) {
            d->opened = g->next;
            gate = g->gate;
            result = g->result;
            why = result != zipcclSuccess && atomic_load(&g->stream->gpu->failed) ? g->stream->gpu->why : NULL;
            g->next = d->spare_gates;
            d->spare_gates = g;
        }
        pthread_mutex_unlock(&d->lock);
        if (!g)
            return;
        gate.opened(&gate, result, why); /* may close streams */
    }
}

void cuda_gates_free(struct device *d) {
    struct cuda_gate **lists[] = {&d->gates, &d->opened, &d->spare_gates};
    for (unsigned i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        while (*lists[i]) {
            struct cuda_gate *g = *lists[i];
            *lists[i] = g->next;
            free(g);
        }
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Stream capture, for work of one stream: kernels, copies and fills between device and page-locked memory, host
 * functions. Whatever else meets a capturing stream is refused, and breaks the capture, as on a device.
 */
#include "core.h"

#include <stdlib.h>

int standin_capture_forbids(struct CUstream_st *s) {
    s->capture->broken = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

int standin_capture_begin(void *stream) {
    int e = 0;
    pthread_mutex_lock(&standin_lock);
    struct CUstream_st *s = standin_stream(stream);
    if (!s)
        e = CUDA_ERROR_INVALID_HANDLE;
    else if (s == standin_devices[s->device].legacy)
        e = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    else if (s->capture)
        e = CUDA_ERROR_ILLEGAL_STATE;
    if (e == 0) {
        s->capture = calloc(1, sizeof(*s->capture));
        if (!s->capture)
            abort();
        s->capture->last = &s->capture->first;
        s->capture->device = s->device;
    }
    pthread_mutex_unlock(&standin_lock);
    return e;
}

int standin_capture_end(void *stream, void **graph) {
    int e = 0;
    pthread_mutex_lock(&standin_lock);
    struct CUstream_st *s = standin_stream(stream);
    struct standin_graph *g = s ? s->capture : NULL;
    if (!s)
        e = CUDA_ERROR_INVALID_HANDLE;
    else if (!g)
        e = CUDA_ERROR_ILLEGAL_STATE;
    else if (g->broken)
        e = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (s)
        s->capture = NULL;
    pthread_mutex_unlock(&standin_lock);
    *graph = e == 0 ? g : NULL;
    if (e && g)
        (void)standin_graph_destroy(g);
    return e;
}

int standin_capturing(void *stream, int *status) {
    int e = 0;
    pthread_mutex_lock(&standin_lock);
    const struct CUstream_st *s = standin_stream(stream);
    if (!s)
        e = CUDA_ERROR_INVALID_HANDLE;
    else
        *status = !s->capture          ? cudaStreamCaptureStatusNone
                  : s->capture->broken ? cudaStreamCaptureStatusInvalidated
                                       : cudaStreamCaptureStatusActive;
    pthread_mutex_unlock(&standin_lock);
    return e;
}

static struct standin_op *op_copy(const struct standin_op *op) {
    struct standin_op *c = standin_op_new(op->run, op->drop, op->class, op->arg, op->bytes);
    c->graphable = true;
    return c;
}

int standin_graph_clone(void *graph, void **copy) {
    const struct standin_graph *g = graph;
    struct standin_graph *c = calloc(1, sizeof(*c));
    if (!c)
        abort();
    c->last = &c->first;
    c->device = g->device;
    for (const struct standin_op *op = g->first; op; op = op->next) {
        *c->last = op_copy(op);
        c->last = &(*c->last)->next;
    }
    *copy = c;
    return 0;
}

int standin_graph_launch(void *graph, void *stream) {
    const struct standin_graph *g = graph;
    int e = 0;
    for (const struct standin_op *op = g->first; op && e == 0; op = op->next)
        e = standin_push(stream, op_copy(op));
    return e;
}

int standin_graph_destroy(void *graph) {
    struct standin_graph *g = graph;
    while (g->first) {
        struct standin_op *op = g->first;
        g->first = op->next;
        free(op); /* what may be captured owns nothing */
    }
    free(g);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies and fills in a stream's order. Pageable host memory behaves as the real one does: what is read from it is read
 * before the call returns, what is written to it is there when the call returns, so that such a copy blocks.
 */
#include "core.h"

#include <stdlib.h>
#include <string.h>

struct copy {
    void *to;
    const void *from;
    size_t bytes;
    void *owned; /* what was read from pageable memory */
};

static void copy_run(void *arg) {
    const struct copy *c = arg;
    memmove(standin_view(c->to), standin_view(c->from), c->bytes);
}

static void copy_drop(void *arg) {
    free(((struct copy *)arg)->owned);
}

enum side { SIDE_DEVICE, SIDE_LOCKED, SIDE_PAGEABLE, SIDE_WRONG };

/* Whose memory p is; wrong where the range leaves its allocation. */
static enum side side_of(const void *p, size_t bytes) {
    struct standin_range r;
    if (!standin_find(p, &r))
        return SIDE_PAGEABLE;
    if (bytes > r.bytes - (size_t)((const char *)p - (char *)r.base))
        return SIDE_WRONG;
    return r.kind == STANDIN_HOST || r.kind == STANDIN_REGISTERED ? SIDE_LOCKED : SIDE_DEVICE;
}

static bool fits(enum side s, bool device) {
    return s != SIDE_WRONG && (device ? s != SIDE_PAGEABLE : s != SIDE_DEVICE);
}

int standin_copy(void *to, const void *from, size_t bytes, int kind, void *stream, bool wait) {
    struct copy c = {to, from, bytes, NULL};
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault)
        return cudaErrorInvalidMemcpyDirection;
    if (bytes == 0)
        return 0;
    const enum side t = side_of(to, bytes), f = side_of(from, bytes);
    if (kind != cudaMemcpyDefault && (!fits(t, kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) ||
                                      !fits(f, kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice)))
        return CUDA_ERROR_INVALID_VALUE;
    if (t == SIDE_WRONG || f == SIDE_WRONG)
        return CUDA_ERROR_INVALID_VALUE;
    if (!wait && (t == SIDE_PAGEABLE || f == SIDE_PAGEABLE)) {
        int e;
        STANDIN_ENTER_AS(e, "copy(pageable)", true);
        if (e)
            return e;
    }
    if (!wait && f == SIDE_PAGEABLE) {
        c.owned = malloc(bytes);
        if (!c.owned)
            return CUDA_ERROR_OUT_OF_MEMORY;
        memcpy(c.owned, from, bytes);
        c.from = c.owned;
    }
    struct standin_op *op = standin_op_new(copy_run, copy_drop, STANDIN_OP_COPY, &c, sizeof(c));
    op->graphable = !wait && f != SIDE_PAGEABLE && t != SIDE_PAGEABLE;
    pthread_mutex_lock(&standin_lock);
    standin_op_use(op, to);
    standin_op_use(op, from);
    pthread_mutex_unlock(&standin_lock);
    const int e = standin_push(stream, op);
    return e == 0 && (wait || t == SIDE_PAGEABLE) ? standin_stream_sync(stream) : e;
}

struct fill {
    void *to;
    size_t bytes;
    int value;
};

static void fill_run(void *arg) {
    const struct fill *f = arg;
    memset(standin_view(f->to), f->value, f->bytes);
}

int standin_set(void *to, int value, size_t bytes, void *stream, bool wait) {
    const struct fill f = {to, bytes, value};
    const enum side s = side_of(to, bytes);
    if (bytes == 0)
        return 0;
    if (s == SIDE_PAGEABLE || s == SIDE_WRONG)
        return CUDA_ERROR_INVALID_VALUE;
    struct standin_op *op = standin_op_new(fill_run, NULL, STANDIN_OP_COPY, &f, sizeof(f));
    op->graphable = true;
    pthread_mutex_lock(&standin_lock);
    standin_op_use(op, to);
    pthread_mutex_unlock(&standin_lock);
    const int e = standin_push(stream, op);
    return e == 0 && wait && s == SIDE_LOCKED ? standin_stream_sync(stream) : e;
}

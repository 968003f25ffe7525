/* SPDX-License-Identifier: Apache-2.0
 *
 * Waits for a word in memory, and writes of one, in a stream's order. Nobody wakes such a wait: it looks, and sleeps
 * longer and longer, up to a twentieth of a millisecond.
 */
#include "core.h"

#include <string.h>
#include <time.h>

struct word {
    void *at;
    uint64_t value;
    unsigned flags, bytes;
};

static bool holds(const struct word *w) {
    const bool wide = w->bytes == 8;
    const void *at = standin_view(w->at);
    const uint64_t now = wide ? __atomic_load_n((const uint64_t *)at, __ATOMIC_ACQUIRE)
                              : __atomic_load_n((const uint32_t *)at, __ATOMIC_ACQUIRE);
    const uint64_t mask = wide ? ~0ull : 0xffffffffull;
    switch (w->flags & 3u) {
    case CU_STREAM_WAIT_VALUE_EQ:
        return now == w->value;
    case CU_STREAM_WAIT_VALUE_AND:
        return (now & w->value) != 0;
    case CU_STREAM_WAIT_VALUE_NOR:
        return (~(now | w->value) & mask) != 0;
    default:
        return wide ? (int64_t)(now - w->value) >= 0 : (int32_t)((uint32_t)now - (uint32_t)w->value) >= 0;
    }
}

static void wait_run(void *arg) {
    const struct word *w = arg;
    struct timespec pause = {0, 1000};
    while (!holds(w) && standin_failed() == 0 && !standin_ending()) {
        nanosleep(&pause, NULL);
        if (pause.tv_nsec < 50000)
            pause.tv_nsec += 1000;
    }
}

static void write_run(void *arg) {
    const struct word *w = arg;
    void *at = standin_view(w->at);
    if (w->bytes == 8)
        __atomic_store_n((uint64_t *)at, w->value, __ATOMIC_SEQ_CST);
    else
        __atomic_store_n((uint32_t *)at, (uint32_t)w->value, __ATOMIC_SEQ_CST);
}

static int word_push(void *stream, const struct word *w, void (*run)(void *)) {
    if ((uintptr_t)w->at % w->bytes)
        return CUDA_ERROR_INVALID_VALUE;
    struct standin_op *op = standin_op_new(run, NULL, STANDIN_OP_ORDER, w, sizeof(*w));
    pthread_mutex_lock(&standin_lock);
    standin_op_use(op, w->at);
    const bool known = op->nuses;
    pthread_mutex_unlock(&standin_lock);
    if (!known) { /* neither device memory nor registered */
        standin_op_free(op);
        return CUDA_ERROR_INVALID_VALUE;
    }
    return standin_push(stream, op);
}

int standin_wait_value(void *stream, const void *at, uint64_t value, unsigned flags, unsigned bytes) {
    const struct word w = {(void *)(uintptr_t)at, value, flags, bytes};
    return word_push(stream, &w, wait_run);
}

int standin_write_value(void *stream, void *at, uint64_t value, unsigned bytes) {
    const struct word w = {at, value, 0, bytes};
    return word_push(stream, &w, write_run);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Executors of several nodes in one process.
 */
#include "world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "kernels/dtype.h"

static uint64_t g_key = 1;

double seconds(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

void open_comms(struct world *w) {
    struct plan_topology t = {w->nranks, w->nnodes, w->rank_node};
    for (uint32_t n = 0; n < w->nnodes; n++)
        assert_int_equal(exec_comm_new(w->executor[n], g_key, n, &t, w->peers[n], 0, 0, 0, &w->comm[n]), zipcclSuccess);
    g_key++;
}

void close_comms(struct world *w) {
    for (uint32_t n = 0; n < w->nnodes; n++) {
        exec_comm_free(w->comm[n]);
        w->comm[n] = NULL;
    }
}

void open_world(struct world *w, const struct fabric_ops *ops, uint32_t nnodes, uint32_t nranks, size_t inline_bytes,
                uint64_t chunk, uint32_t window, bool verify) {
    memset(w, 0, sizeof(*w));
    w->ops = ops;
    w->nnodes = nnodes;
    w->nranks = nranks;
    for (uint32_t r = 0; r < nranks; r++)
        w->rank_node[r] = r < nnodes ? r : (r * 5) % nnodes;
    for (uint32_t n = 0; n < nnodes; n++) {
        struct device_config dc = {.workers = 2, .inline_bytes = inline_bytes};
        struct fabric_config fc = {0};
        const char *why;
        assert_int_equal(device_host.open(&dc, &w->device[n], &why), zipcclSuccess);
        if (nnodes > 1)
            assert_int_equal(ops->open(&fc, &w->fabric[n], &why), zipcclSuccess);
        struct executor_config ec = {.device_ops = &device_host,
                                     .device = w->device[n],
                                     .fabric_ops = nnodes > 1 ? ops : NULL,
                                     .fabric = w->fabric[n],
                                     .chunk_bytes = chunk,
                                     .window = window,
                                     .verify = verify};
        assert_int_equal(executor_new(&ec, &w->executor[n]), zipcclSuccess);
    }
    for (uint32_t n = 0; n < nnodes && nnodes > 1; n++) {
        for (uint32_t p = 0; p < nnodes; p++) {
            size_t bytes;
            if (p == n)
                continue;
            if (ops == &fabric_fake) {
                w->peers[n][p] = fake_peer(w->fabric[p]);
                continue;
            }
            const void *address = ops->address(w->fabric[p], &bytes);
            static const struct fabric_tokens tokens = {{7}, {7}};
            assert_int_equal(ops->connect(w->fabric[n], address, bytes, &tokens, &w->peers[n][p]), zipcclSuccess);
        }
    }
    open_comms(w);
}

void close_world(struct world *w) {
    close_comms(w);
    for (uint32_t n = 0; n < w->nnodes; n++) {
        if (w->fabric[n])
            w->ops->close(w->fabric[n]);
    }
    for (uint32_t n = 0; n < w->nnodes; n++) {
        executor_free(w->executor[n]);
        device_host.close(w->device[n]);
    }
}

void poll_world(struct world *w) {
    for (uint32_t n = 0; n < w->nnodes; n++) {
        device_host.poll(w->device[n]);
        if (w->fabric[n])
            w->ops->poll(w->fabric[n]);
    }
}

void done(void *arg, const struct exec_result *result) {
    struct outcome *o = arg;
    o->done++;
    o->result = *result;
    snprintf(o->text, sizeof(o->text), "%s", result->text);
    o->result.text = o->text;
}

void start_node(struct world *w, uint32_t n, const struct plan_op *op) {
    struct exec_args a = {.ops = op, .nops = 1, .seq = w->seq, .done = done, .arg = &w->out[n]};
    memset(&w->out[n], 0, sizeof(w->out[n]));
    assert_int_equal(exec_op_start(w->comm[n], &a, &w->op[n]), zipcclSuccess);
}

void arrive_node(struct world *w, uint32_t n) {
    uint32_t local = 0;
    for (uint32_t r = 0; r < w->nranks; r++) {
        struct exec_buffers buffers = {.send = w->send[r], .recv = w->recv[r]};
        if (w->rank_node[r] == n)
            exec_op_arrive(w->op[n], local++, &buffers);
    }
}

void wait_node(struct world *w, uint32_t n) {
    double end = seconds() + WAIT;
    while (!w->out[n].done && seconds() < end)
        poll_world(w);
    assert_int_equal(w->out[n].done, 1);
}

/* Values like those of a trained network: small exponents' range, some zeros. */
void fill(uint8_t *p, zipcclDataType_t dtype, size_t count, unsigned seed) {
    const struct dtype_info *info = dtype_get(dtype);
    uint32_t x = seed * 2654435761u + 1;
    for (size_t i = 0; i < count; i++) {
        x = x * 1664525u + 1013904223u;
        float v = ((float)(x >> 9) / 8388608.0f - 0.5f) * ((x & 7) ? 0.02f : 0.0f);
        if (dtype == zipcclBfloat16)
            memcpy(p + 2 * i, (uint8_t *)&v + 2, 2);
        else if (dtype == zipcclFloat32)
            memcpy(p + 4 * i, &v, 4);
        else
            for (unsigned k = 0; k < info->bytes; k++)
                p[i * info->bytes + k] = (uint8_t)(x >> (8 + 8 * (k & 1)) & 0x9f);
    }
}

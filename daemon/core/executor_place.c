/* SPDX-License-Identifier: Apache-2.0
 *
 * Where coded chunks and partial results lie: in the pool of the GPU that works on them, where the fabric carries them
 * from there, else in host memory.
 *
 * That GPU is the one of the local rank whom the step serves that writes them, where all its buffers lie on one; of a
 * rank that has not come yet, where those of its last operation did. An operation asks once for each rank and keeps to
 * the answer, so that all that one piece of work touches lies on one GPU; plans where it would not are seen when they
 * are made. With `verify` the processor reads chunks, so they stay in host memory.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/core/executor_impl.h"

#define LEAST_BYTES ((size_t)32 << 10) /* less goes through the processor's memory faster */
#define UNKNOWN     (-2)
#define HOST        (-1)

struct writers {
    uint16_t *of_slot, *of_values; /* the local rank whom the last writer served */
};

static uint16_t *writer_of(const struct writers *w, struct plan_ref ref) {
    return ref.space == PLAN_SLOT ? &w->of_slot[ref.index] : ref.space == PLAN_VALUES ? &w->of_values[ref.index] : NULL;
}

static bool reads_own(const struct writers *w, const struct plan *plan, const struct plan_step *st) {
    const uint16_t *writer = writer_of(w, st->src);
    bool own = !writer || *writer == st->local;
    for (uint32_t i = 0; st->kind == PLAN_REDUCE && i < st->ninputs; i++) {
        writer = writer_of(w, plan->inputs[st->first_input + i].ref);
        own = own && (!writer || *writer == st->local);
    }
    return own;
}

bool exec_place_fits(const struct plan *plan) {
    struct writers w = {calloc((size_t)plan->nslots + 1, sizeof(uint16_t)),
                        calloc((size_t)plan->nvalues + 1, sizeof(uint16_t))};
    bool fits = w.of_slot && w.of_values;
    for (uint32_t i = 0; fits && i < plan->nsteps; i++) {
        const struct plan_step *st = &plan->steps[i];
        uint16_t *writer = writer_of(&w, st->dst);
        fits = st->local < plan->nlocal && (st->kind == PLAN_SEND || reads_own(&w, plan, st));
        if (writer)
            *writer = st->local;
    }
    free(w.of_slot);
    free(w.of_values);
    return fits;
}

/* Whether GPUs have a say in this communicator at all. */
static bool has_pools(const struct exec_comm *comm) {
    const struct executor_config *config = &comm->executor->config;
    return comm->topology.nnodes > 1 && !config->verify && config->device_ops->alloc_on && config->device_ops->gpu_of &&
           config->fabric_ops->takes_gpu;
}

static uint32_t rank_of(const struct exec_op *op, uint32_t local) {
    return op->entry->nops ? op->comm->local_rank[local] : op->entry->rank;
}

void exec_place_start(struct exec_op *op) {
    const bool pools = op->entry->one_gpu && has_pools(op->comm);
    for (uint32_t i = 0; i < op->plan->nlocal; i++)
        op->gpus[i] = pools ? UNKNOWN : HOST;
}

void exec_place_arrive(struct exec_op *op, uint32_t local, const struct exec_buffers *buffers, uint32_t n) {
    const struct executor_config *config = &op->comm->executor->config;
    int gpu = UNKNOWN;
    if (!has_pools(op->comm))
        return;
    for (uint32_t i = 0; i < 2 * n && gpu != HOST; i++) {
        const void *buffer = i % 2 ? buffers[i / 2].recv : buffers[i / 2].send;
        int here = buffer ? config->device_ops->gpu_of(config->device, buffer) : gpu;
        gpu = gpu == UNKNOWN || gpu == here ? here : HOST;
    }
    op->comm->rank_gpu[rank_of(op, local)] = (int8_t)(gpu == UNKNOWN ? HOST : gpu);
}

static int gpu_of_step(struct exec_op *op, const struct plan_step *st, size_t bytes) {
    const struct executor_config *config = &op->comm->executor->config;
    int8_t *gpu = &op->gpus[st->local];
    if (*gpu == UNKNOWN) {
        *gpu = op->comm->rank_gpu[rank_of(op, st->local)];
        if (*gpu >= 0 && !config->fabric_ops->takes_gpu(config->fabric, op->comm->key, (unsigned)*gpu))
            *gpu = HOST;
    }
    return bytes > LEAST_BYTES ? *gpu : HOST;
}

bool exec_place(struct exec_op *op, const struct plan_step *st, struct exec_memory *m, size_t bytes) {
    const struct executor_config *config = &op->comm->executor->config;
    const int gpu = gpu_of_step(op, st, bytes);
    if (m->base && m->gpu == gpu)
        return true;
    exec_place_free(op->comm, m, bytes);
    m->gpu = (int8_t)gpu;
    if (gpu >= 0)
        m->base = config->device_ops->alloc_on(config->device, (unsigned)gpu, bytes);
    if (!m->base)
        m->base = config->device_ops->alloc(config->device, bytes);
    return m->base != NULL;
}

void exec_place_free(const struct exec_comm *comm, struct exec_memory *m, size_t bytes) {
    const struct executor_config *config = &comm->executor->config;
    if (m->base)
        config->device_ops->free(config->device, m->base, bytes);
    *m = (struct exec_memory){.gpu = HOST};
}

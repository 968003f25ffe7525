/* SPDX-License-Identifier: Apache-2.0
 *
 * Pools: memory of GPUs that is the daemon's, for coded chunks and partial results on their way between kernels and
 * NCCL. The worker of a GPU makes slabs of it, and the daemon, which has nothing but addresses of them, cuts blocks.
 *
 * Nobody waits for a slab: who finds no room takes other memory, and more is asked for, up to the bound; later ones
 * find it. Slabs are kept as long as the GPU has a communicator of NCCL, since each of those was told of them; the last
 * one's end gives them back to the trainers.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/worker/supervisor.h"

#define SLAB_BYTES ((size_t)64 << 20)
#define GRANULE    ((size_t)2 << 20) /* of a GPU's memory */
#define BLOCK      ((size_t)4096)
#define RETRY_NS   10000000000ull

static size_t round_up(size_t bytes, size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

static void tell(struct worker *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void tell(struct worker *w, const char *format, ...) {
    char text[2 * WORKER_TEXT_BYTES];
    const struct device_event event = {.kind = DEVICE_EVENT_POOL, .text = text};
    va_list ap;
    if (w->pool.told || !w->device->config.event)
        return;
    w->pool.told = true;
    va_start(ap, format);
    vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    w->device->config.event(w->device->config.event_arg, &event);
}

/* It is in no list any more. */
static void slab_drop(struct device *d, struct slab *slab) {
    struct memory *m = slab->memory;
    if (m) {
        memory_untell(d, m);
        ranges_remove(&d->ranges, &m->range);
        if (m->range.base)
            munmap(m->range.base, m->range.bytes);
    }
    extents_close(&slab->gaps);
    free(m);
    free(slab);
}

static void take_out(struct slab **list, const struct slab *slab) {
    while (*list && *list != slab)
        list = &(*list)->next;
    if (*list)
        *list = slab->next;
}

static struct slab *slab_new(struct worker *w, size_t bytes) {
    struct slab *slab = calloc(1, sizeof(*slab));
    struct memory *m = slab ? calloc(1, sizeof(*m)) : NULL;
    if (!m) {
        free(slab);
        return NULL;
    }
    slab->memory = m;
    *m = (struct memory){
        .kind = DEVICE_MEMORY_CUDA_OWN, .slab = slab, .home = w, .home_generation = w->generation, .fd = -1};
    void *base = memory_reserve(bytes);
    if (base) {
        m->range = (struct range){base, bytes};
        if (extents_open(&slab->gaps, bytes) && ranges_add(&w->device->ranges, &m->range))
            return slab;
    }
    slab_drop(w->device, slab);
    return NULL;
}

/* How much is asked for, so that a block of so many bytes fits. 0: that is more than there may be. */
static size_t slab_size(const struct worker *w, size_t block) {
    const size_t limit = w->device->config.gpu_pool_bytes / GRANULE * GRANULE;
    const size_t left = limit > w->pool.bytes ? limit - w->pool.bytes : 0;
    size_t each = round_up(limit / POOL_SLABS, GRANULE), least = round_up(block, GRANULE);
    each = each > SLAB_BYTES ? each : SLAB_BYTES;
    each = each > least ? each : least;
    if (w->pool.numbers == UINT64_MAX)
        return 0;
    return each <= left ? each : least <= left ? left : 0;
}

static void grow(struct worker *w, size_t block) {
    struct pool *p = &w->pool;
    const size_t bytes = p->asked ? 0 : slab_size(w, block);
    if (p->asked)
        return; /* it may have room enough */
    if (bytes == 0) {
        if (w->device->config.gpu_pool_bytes > 0)
            tell(w,
                 "GPU %u (%s): its pool of %zu MiB (gpu_pool) is full: coded chunks go through pinned host memory, "
                 "which is slower",
                 w->ordinal, w->name, (size_t)(w->device->config.gpu_pool_bytes >> 20));
        return;
    }
    if (w->state != WORKER_UP || w->errands.head || workers_now_ns() < p->retry_ns ||
        worker_ring_room(&w->channel.shared->to_worker) == 0)
        return; /* the next one that misses it asks */
    struct slab *slab = slab_new(w, bytes);
    if (!slab)
        return;
    while (p->numbers >> slab->number & 1)
        slab->number++;
    if (!memory_tell(w, slab->memory)) {
        slab_drop(w->device, slab);
        return;
    }
    p->asked = true;
    p->numbers |= 1ull << slab->number;
    p->bytes += bytes;
    slab->next = p->slabs;
    p->slabs = slab;
}

void *pool_alloc(struct device *d, unsigned gpu, size_t bytes) {
    struct worker *w = gpu < d->nworkers ? &d->workers[gpu] : NULL;
    if (!w || bytes == 0 || bytes > d->config.gpu_pool_bytes) {
        if (w)
            w->pool.missed += bytes;
        return NULL;
    }
    const size_t block = round_up(bytes, BLOCK);
    for (struct slab *s = w->pool.slabs; s; s = s->next) {
        size_t offset = s->ready ? extents_take(&s->gaps, block) : SIZE_MAX;
        if (offset == SIZE_MAX)
            continue;
        s->used += block;
        w->pool.used += block;
        return s->memory->range.base + offset;
    }
    w->pool.missed += bytes;
    grow(w, block);
    return NULL;
}

/* Also of one that is lost: its addresses are kept until then. */
void pool_free(struct device *d, struct memory *m, void *ptr, size_t bytes) {
    struct slab *slab = m->slab;
    struct worker *w = m->home;
    const size_t block = round_up(bytes, BLOCK);
    extents_give(&slab->gaps, (size_t)((uint8_t *)ptr - m->range.base), block);
    slab->used -= block;
    if (!memory_dead(m) && m->home_generation == w->generation) {
        w->pool.used -= block;
        if (w->pool.used == 0)
            pool_rest(w);
    } else if (slab->used == 0) {
        take_out(&w->pool.dead, slab);
        take_out(&w->pool.slabs, slab);
        slab_drop(d, slab);
    }
}

const char *pool_grown(struct worker *w, const struct worker_record *r) {
    struct pool *p = &w->pool;
    struct slab *slab = p->slabs;
    while (slab && (slab->ready || (uintptr_t)slab->memory->range.base != r->grown.base))
        slab = slab->next;
    if (!slab || r->grown.result >= zipcclNumResults)
        return "memory that it was not asked for";
    p->asked = false;
    if (r->grown.result == zipcclSuccess) {
        slab->ready = true;
        slab->aliased = r->grown.aliased != 0;
        if (slab->aliased)
            worker_launches_register(w, slab);
        pool_rest(w); /* what asked for it may be gone */
        return NULL;
    }
    char text[WORKER_TEXT_BYTES];
    worker_text_of(text, r->grown.text);
    tell(w, "GPU %u (%s): no memory for its pool (gpu_pool): %.160s; coded chunks go through pinned host memory",
         w->ordinal, w->name, text);
    p->retry_ns = workers_now_ns() + RETRY_NS;
    p->bytes -= slab->memory->range.bytes;
    p->numbers &= ~(1ull << slab->number);
    take_out(&p->slabs, slab);
    memset(slab->memory->known, 0, sizeof(slab->memory->known)); /* the worker has forgotten it */
    slab_drop(w->device, slab);
    return NULL;
}

void pool_rest(struct worker *w) {
    struct pool *p = &w->pool;
    if (!p->slabs || p->used > 0 || p->asked || w->state != WORKER_UP || !worker_launches_idle(w))
        return;
    while (p->slabs) {
        struct slab *slab = p->slabs;
        p->slabs = slab->next;
        slab_drop(w->device, slab);
    }
    p->bytes = 0;
    p->numbers = 0;
    p->told = false;
}

void pool_lost(struct worker *w) {
    struct pool *p = &w->pool;
    while (p->slabs) {
        struct slab *slab = p->slabs;
        p->slabs = slab->next;
        if (slab->used == 0) {
            slab_drop(w->device, slab);
            continue;
        }
        slab->next = p->dead;
        p->dead = slab;
    }
    *p = (struct pool){.dead = p->dead, .missed = p->missed};
}

void pool_close(struct worker *w) {
    struct slab **lists[] = {&w->pool.slabs, &w->pool.dead};
    for (unsigned i = 0; i < 2; i++) {
        while (*lists[i]) {
            struct slab *slab = *lists[i];
            *lists[i] = slab->next;
            slab_drop(w->device, slab);
        }
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Staging: shared memory that stands in for memory which the daemon cannot see. Kept for reuse, by size class, since
 * making and registering it costs far more than a copy.
 */
#include <sys/mman.h>
#include <unistd.h>

#include "client/lib/internal.h"

#define SMALLEST_CLASS   ((size_t)64 << 10)
#define IDLE_BYTES_LIMIT ((size_t)1 << 30) /* kept beyond the newest one */

static struct region *idle; /* newest first */
static size_t idle_bytes;

/* Four classes for each doubling: at most a quarter is wasted. */
static size_t size_class(size_t bytes) {
    size_t step = SMALLEST_CLASS / 4;
    if (bytes <= SMALLEST_CLASS)
        return SMALLEST_CLASS;
    while (bytes / 8 >= step && step < SIZE_MAX / 16)
        step *= 2;
    return bytes > SIZE_MAX - step ? bytes : (bytes + step - 1) / step * step;
}

zipcclResult_t staging_take(size_t bytes, struct region **region) {
    size_t size = size_class(bytes);
    for (struct region **p = &idle, *r; (r = *p); p = &r->next) {
        if (r->bytes != size)
            continue;
        *p = r->next;
        idle_bytes -= r->bytes;
        *region = r;
        return zipcclSuccess;
    }
    (void)pthread_mutex_unlock(&client_lock);
    zipcclResult_t result = region_new(size, region);
    (void)pthread_mutex_lock(&client_lock);
    if (result == zipcclSuccess)
        (*region)->kind = REGION_STAGING;
    return result;
}

/* The mappings are shared with the parent, which goes on staging in them. */
void staging_forked(void) {
    for (const struct region *r = idle; r; r = r->next) {
        (void)munmap(r->base, r->bytes);
        (void)close(r->fd);
    }
    idle = NULL;
    idle_bytes = 0;
}

void staging_give(struct region *region) {
    if (region->kind == REGION_REGISTERED) {
        region->pins--;
        if (region->closed && !region->pins)
            region_free(region);
        return;
    }
    region->next = idle;
    idle = region;
    idle_bytes += region->bytes;
    while (idle_bytes > IDLE_BYTES_LIMIT && idle->next) {
        struct region **p = &idle;
        while ((*p)->next)
            p = &(*p)->next;
        struct region *oldest = *p;
        *p = NULL;
        idle_bytes -= oldest->bytes;
        region_free(oldest);
    }
}

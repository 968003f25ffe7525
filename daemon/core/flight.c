/* SPDX-License-Identifier: Apache-2.0
 *
 * The ring of a job's operations. See flight.h.
 */
#include "daemon/core/flight.h"

#include <stddef.h>

static uint32_t at(uint64_t id) {
    return (uint32_t)(id % FLIGHT_OPS);
}

struct flight_op *flight_begin(struct flight *f) {
    if (f == NULL)
        return NULL;
    uint64_t id = ++f->last;
    f->ops[at(id)] = (struct flight_op){.id = id};
    if (f->where[at(id)][0] != '\0') /* a page that nobody wrote to takes no memory */
        f->where[at(id)][0] = '\0';
    return &f->ops[at(id)];
}

struct flight_op *flight_get(struct flight *f, uint64_t id) {
    if (f == NULL || id == 0 || f->ops[at(id)].id != id)
        return NULL;
    return &f->ops[at(id)];
}

char *flight_where(struct flight *f, const struct flight_op *op) {
    return f->where[at(op->id)];
}

uint64_t flight_first(const struct flight *f, uint32_t most) {
    uint64_t n = most == 0 || most > FLIGHT_OPS ? FLIGHT_OPS : most;
    return f->last > n ? f->last - n + 1 : 1;
}

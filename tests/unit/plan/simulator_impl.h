/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the simulator: the engine (simulator.c), what collectives must give (sim_collective.c), exchanges
 * (sim_exchange.c).
 */
#ifndef ZIPCCL_TESTS_PLAN_SIMULATOR_IMPL_H
#define ZIPCCL_TESTS_PLAN_SIMULATOR_IMPL_H

#include "simulator.h"

#define SIM_NONE UINT32_MAX

/* What values are: a hash of the expression that made them, and where the contributions lay in the send buffers. */
struct content {
    uint64_t expr, from;
};

struct extent {
    uint64_t offset, bytes;
    struct content content; /* of its first byte; from grows with the offset */
};

/* The buffers of one rank in one operation. */
struct memory {
    struct extent *list; /* what was written to the receive buffer: disjoint */
    uint32_t n, cap;
    uint64_t leaf; /* what the send buffer holds */
    uint64_t send_bytes, recv_bytes;
    bool in_place;
    int64_t alias; /* in place: byte s of the send buffer is byte s + alias of the receive buffer */
};

/* A slot or scratch. */
struct cell {
    struct content content;
    uint64_t bytes;
    uint32_t item, writer; /* SIM_NONE: none yet */
    uint32_t readers_left;
    bool half; /* the static part alone */
};

enum sim_phase { WAITING, READY, ACTIVE, SENT, DONE };

/* One plan: a node's, or a rank's. */
struct unit {
    struct plan *plan;
    uint32_t node;
    uint32_t nbuffers;
    struct memory *memory;       /* by buffer index */
    uint64_t *actual;            /* by item: values that a capped transfer moves; NULL: none is capped */
    const zipcclRedOp_t *redops; /* by item; NULL: nothing is reduced */
    uint32_t *waiting;
    uint8_t *phase;
    struct cell *slots, *values;
    uint32_t *readers;                     /* by step that writes a slot or scratch */
    uint32_t *partner_unit, *partner_step; /* of a send or receive */
    uint32_t late_arrival;                 /* step */
};

struct pending {
    uint32_t unit, step;
};

struct sim {
    struct unit *units;
    uint32_t nunits;
    const struct sim_options *options;
    unsigned seed;
    struct pending *ready, *active; /* active: a pair stands there once, by its send */
    uint32_t nready, nactive;
    struct sim_result *result;
    /* The channel of a message: equal on both sides, unlike for messages that must not meet. */
    void (*channel)(const struct sim *sim, uint32_t unit, uint32_t step, uint64_t key[2]);
    /* Whether the step has to end before the late rank arrives. */
    bool (*independent)(const struct sim *sim, uint32_t unit, uint32_t step);
    const void *user;
    const char *why;
};

bool sim_fail(struct sim *sim, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Expressions. */
enum expr_kind { EXPR_LEAF = 1, EXPR_SCALED, EXPR_COMBINE, EXPR_ROUND, EXPR_FINAL };
struct value {
    uint64_t expr;
    bool exact; /* of the dtype: rounding it changes nothing */
    bool none;
};
uint64_t expr_mix(enum expr_kind kind, uint64_t a, uint64_t b);
struct value expr_combine(struct value total, struct value more);
struct value expr_round(struct value value);
static inline uint64_t expr_leaf(uint32_t buffer, uint32_t rank) {
    return expr_mix(EXPR_LEAF, buffer, rank);
}

/* The plans are there: sets up the rest, runs everything, checks that all has ended. */
bool sim_run(struct sim *sim);
/* Whether the receive buffer holds `bytes` of expr at offset, with contributions from `from`. */
bool sim_holds(const struct memory *memory, uint64_t offset, uint64_t bytes, struct content content);
uint64_t sim_written(const struct memory *memory);
void sim_free(struct sim *sim);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulator's clock: how steps start, take their resources, and end.
 *
 * A message between nodes: its send is posted after o of the loop; with its receive posted too and the handshake over
 * (or at once where it is eager) it queues for the link out; its head reaches the other node's link in after L, where
 * it waits for those that came before; with its last byte there, the receive ends after o of that node's loop.
 */
#include "daemon/plan/simulate.h"

#include <stdio.h>
#include <string.h>

#include "daemon/plan/simulate_impl.h"

#define CODEC_RUN      8u /* as the host device: codec steps in a row while a copy waits */
#define PROGRESS_EVERY 65536u

enum event_type {
    EVENT_END,  /* the step ends */
    EVENT_WORK, /* its worker is free again, and it ends */
    EVENT_LOOP, /* the loop is done with it: a send is posted, a receive ends */
    EVENT_GO,   /* the handshake is over: the send queues for the link */
    EVENT_LEFT, /* its last byte has left */
    EVENT_HEAD, /* its first byte has reached the other node */
    EVENT_CAME  /* receive: the last byte is there */
};

/* A receive whose message came before it was posted: among the values of enum sim_state, but not for others. */
#define STATE_EARLY (SIM_DONE + 1)

/* What happens at one time is in the order of the steps' numbers on their nodes: the same from each node's place. */
static bool at(struct sim *s, uint64_t when, enum event_type type, uint32_t step) {
    uint64_t local = step - s->nodes[sim_node_of(s, step)].first_step;
    return sim_heap_push(&s->heap, &(struct sim_event){when, local << 8 | type, step, type});
}

static void push(struct sim *s, struct sim_queue *q, uint32_t step) {
    s->steps[step].waiting = SIM_NONE;
    if (q->head == SIM_NONE)
        q->head = step;
    else
        s->steps[q->tail].waiting = step;
    q->tail = step;
}

static uint32_t pop(struct sim *s, struct sim_queue *q) {
    uint32_t step = q->head;
    q->head = s->steps[step].waiting;
    return step;
}

static const struct sim_shape *shape(const struct sim *s, uint32_t step) {
    return &s->shapes[s->steps[step].shape];
}

static void complete(struct sim *s, uint32_t step) {
    struct sim_step *st = &s->steps[step];
    st->state = SIM_DONE;
    s->ndone++;
    for (uint32_t i = st->first_next; i < st[1].first_next; i++) {
        if (--s->steps[s->next[i]].waiting == 0)
            push(s, &s->ready, s->next[i]);
    }
}

static bool dispatch(struct sim *s, struct sim_node *node) {
    while (node->idle > 0 && (node->codec.head != SIM_NONE || node->copy.head != SIM_NONE)) {
        struct sim_queue *q = &node->codec;
        if (q->head == SIM_NONE || (node->copy.head != SIM_NONE && node->codec_run >= CODEC_RUN))
            q = &node->copy;
        node->codec_run = q == &node->codec ? node->codec_run + 1 : 0;
        uint32_t step = pop(s, q);
        uint64_t busy = shape(s, step)->busy_ps;
        node->idle--;
        node->worker_busy_ps += busy;
        s->bytes[SIMULATE_INSIDE] += shape(s, step)->local_bytes;
        if (!at(s, s->now_ps + busy, EVENT_WORK, step))
            return false;
    }
    return true;
}

/* Puts the next message on the link out. */
static bool transmit(struct sim *s, struct sim_node *node) {
    if (node->sending || node->egress.head == SIM_NONE)
        return true;
    uint32_t step = pop(s, &node->egress);
    const struct sim_shape *sh = shape(s, step);
    uint64_t from = node->egress_free_ps > s->now_ps ? node->egress_free_ps : s->now_ps;
    node->sending = true;
    node->egress_free_ps = from + sh->busy_ps + s->gap_ps;
    node->sent_bytes += sh->wire_bytes;
    node->link_busy_ps += sh->busy_ps;
    s->bytes[SIMULATE_BETWEEN] += sh->wire_bytes;
    s->messages++;
    return at(s, from + sh->busy_ps, EVENT_LEFT, step) && at(s, from + s->latency_ps, EVENT_HEAD, step);
}

static bool enqueue(struct sim *s, uint32_t step) {
    struct sim_node *node = &s->nodes[sim_node_of(s, step)];
    s->steps[step].state = SIM_MOVING;
    push(s, &node->egress, step);
    return transmit(s, node);
}

/* Both ends of a message inside a node are posted: a copy. */
static bool copy_inside(struct sim *s, uint32_t send) {
    struct sim_node *node = &s->nodes[sim_node_of(s, send)];
    s->steps[send].state = SIM_MOVING;
    push(s, &node->copy, send);
    return dispatch(s, node);
}

static bool post_send(struct sim *s, uint32_t step) {
    bool met = s->steps[s->steps[step].partner].state == SIM_POSTED;
    s->steps[step].state = SIM_POSTED;
    if (shape(s, step)->local)
        return !met || copy_inside(s, step);
    if (shape(s, step)->eager)
        return enqueue(s, step);
    return !met || at(s, s->now_ps + s->handshake_ps, EVENT_GO, step);
}

/* The step queues for o of its node's loop: a send to be posted, a receive whose message has come. */
static bool take_loop(struct sim *s, uint32_t step) {
    struct sim_node *node = &s->nodes[sim_node_of(s, step)];
    push(s, &node->loop, step);
    node->loop_busy_ps += s->overhead_ps;
    return node->loop.head != step || at(s, s->now_ps + s->overhead_ps, EVENT_LOOP, step);
}

static bool take_in(struct sim *s, uint32_t step) {
    s->steps[step].state = SIM_MOVING;
    return take_loop(s, step);
}

static bool post_recv(struct sim *s, uint32_t step) {
    struct sim_step *st = &s->steps[step], *send = &s->steps[st->partner];
    bool early = st->state == STATE_EARLY;
    st->state = SIM_POSTED;
    if (send->state == SIM_POSTED) {
        return shape(s, step)->local ? copy_inside(s, st->partner)
                                     : at(s, s->now_ps + s->handshake_ps, EVENT_GO, st->partner);
    }
    if (send->state == SIM_LEFT && !at(s, s->now_ps + s->latency_ps, EVENT_END, st->partner))
        return false;
    return !early || take_in(s, step);
}

static bool start_work(struct sim *s, uint32_t step, bool copy) {
    struct sim_node *node = &s->nodes[sim_node_of(s, step)];
    push(s, copy ? &node->copy : &node->codec, step);
    return dispatch(s, node);
}

static bool start(struct sim *s, uint32_t step) {
    const struct sim_shape *sh = shape(s, step);
    switch ((enum plan_kind)sh->kind) {
    case PLAN_ARRIVE:
        if (!s->options->arrive) {
            complete(s, step);
            return true;
        }
        return at(s, cost_ps(s->options->arrive[s->steps[step].partner]), EVENT_END, step);
    case PLAN_SEND:
        return sh->local ? post_send(s, step) : take_loop(s, step);
    case PLAN_RECV:
        return post_recv(s, step);
    case PLAN_COPY:
        if (!sh->nothing)
            return start_work(s, step, true);
        complete(s, step);
        return true;
    default:
        return start_work(s, step, false);
    }
}

static bool run_ready(struct sim *s) {
    while (s->ready.head != SIM_NONE) {
        if (!start(s, pop(s, &s->ready)))
            return false;
    }
    return true;
}

/* The last byte has left: the link takes the next message after g. */
static bool left(struct sim *s, uint32_t step) {
    struct sim_step *st = &s->steps[step];
    struct sim_node *node = &s->nodes[sim_node_of(s, step)];
    uint8_t other = s->steps[st->partner].state;
    if (shape(s, step)->eager && (other == SIM_WAITING || other == STATE_EARLY))
        st->state = SIM_LEFT;
    else
        complete(s, step);
    node->sending = false;
    return transmit(s, node);
}

static bool head_came(struct sim *s, uint32_t step) {
    uint32_t recv = s->steps[step].partner;
    struct sim_node *node = &s->nodes[sim_node_of(s, recv)];
    uint64_t from = node->ingress_free_ps > s->now_ps ? node->ingress_free_ps : s->now_ps;
    node->ingress_free_ps = from + shape(s, step)->busy_ps;
    return at(s, node->ingress_free_ps, EVENT_CAME, recv);
}

static bool worked(struct sim *s, uint32_t step) {
    struct sim_node *node = &s->nodes[sim_node_of(s, step)];
    node->idle++;
    complete(s, step);
    if (shape(s, step)->kind == PLAN_SEND)
        complete(s, s->steps[step].partner);
    return dispatch(s, node);
}

static bool looped(struct sim *s, uint32_t step) {
    struct sim_node *node = &s->nodes[sim_node_of(s, step)];
    (void)pop(s, &node->loop);
    uint32_t next = node->loop.head;
    if (next != SIM_NONE && !at(s, s->now_ps + s->overhead_ps, EVENT_LOOP, next))
        return false;
    if (shape(s, step)->kind == PLAN_SEND)
        return post_send(s, step);
    complete(s, step);
    return true;
}

static bool handle(struct sim *s, const struct sim_event *e) {
    switch ((enum event_type)e->type) {
    case EVENT_END:
        complete(s, e->step);
        return true;
    case EVENT_WORK:
        return worked(s, e->step);
    case EVENT_LOOP:
        return looped(s, e->step);
    case EVENT_GO:
        return enqueue(s, e->step);
    case EVENT_LEFT:
        return left(s, e->step);
    case EVENT_HEAD:
        return head_came(s, e->step);
    case EVENT_CAME:
        if (s->steps[e->step].state == SIM_POSTED)
            return take_in(s, e->step);
        s->steps[e->step].state = STATE_EARLY;
        return true;
    }
    return false;
}

/* Names a step that never ends: one that waits for its other end, if there is one. */
static void tell_deadlock(struct sim *s) {
    char text[SIMULATE_WHY / 3], other[SIMULATE_WHY / 3];
    uint32_t stuck = SIM_NONE;
    for (uint32_t i = 0; i < s->nsteps; i++) {
        bool posted = s->steps[i].state == SIM_POSTED || s->steps[i].state == SIM_LEFT;
        if (s->steps[i].state != SIM_DONE && (posted || stuck == SIM_NONE))
            stuck = i;
        if (posted)
            break;
    }
    sim_describe(s, stuck, text, sizeof(text));
    int n = snprintf(s->why, SIMULATE_WHY, "deadlock: %llu of %u steps never end. %s",
                     (unsigned long long)(s->nsteps - s->ndone), s->nsteps, text);
    bool message = shape(s, stuck)->kind == PLAN_SEND || shape(s, stuck)->kind == PLAN_RECV;
    if (message && s->steps[stuck].state != SIM_WAITING && n > 0 && n < SIMULATE_WHY) {
        uint32_t partner = s->steps[stuck].partner;
        sim_describe(s, partner, other, sizeof(other));
        (void)snprintf(s->why + n, SIMULATE_WHY - (size_t)n, " waits for %s, which waits for %u steps", other,
                       s->steps[partner].waiting);
    }
}

static enum simulate_end run(struct sim *s) {
    const struct cost *cost = s->options->cost;
    s->ready = (struct sim_queue){SIM_NONE, SIM_NONE};
    s->overhead_ps = cost_ps(cost->overhead_s);
    s->gap_ps = cost_ps(cost->gap_s);
    s->latency_ps = cost_ps(cost->latency_s);
    s->handshake_ps = cost_ps(cost->handshake_s);
    for (uint32_t n = 0; n < s->nodes_held; n++) {
        struct sim_node *node = &s->nodes[n];
        node->idle = cost->workers ? cost->workers : 1;
        node->codec = node->copy = node->egress = node->loop = s->ready;
    }
    for (uint32_t i = 0; i < s->nsteps; i++) {
        /* One at a time, so that nothing that becomes ready meanwhile is taken for a step that waits for none. */
        if (s->steps[i].waiting == 0 && s->steps[i].state == SIM_WAITING)
            push(s, &s->ready, i);
    }
    if (!run_ready(s))
        return SIMULATE_NO_MEMORY;
    uint64_t events = 0;
    while (s->heap.n > 0) {
        struct sim_event e = sim_heap_pop(&s->heap);
        s->now_ps = e.at_ps;
        if (!handle(s, &e) || !run_ready(s))
            return SIMULATE_NO_MEMORY;
        if (++events % PROGRESS_EVERY == 0 && s->options->progress)
            s->options->progress(0.3 + 0.7 * (double)s->ndone / s->nsteps, s->options->progress_arg);
    }
    s->result->events = events;
    if (s->ndone == s->nsteps)
        return SIMULATE_OK;
    tell_deadlock(s);
    return SIMULATE_DEADLOCK;
}

static void add_up(struct sim *s) {
    struct simulate_result *r = s->result;
    uint64_t times = s->folded ? s->source->nnodes : 1, first = 0;
    for (uint32_t i = 0; s->options->arrive && i < s->source->nranks; i++) {
        uint64_t when = cost_ps(s->options->arrive[i]);
        first = i == 0 || when < first ? when : first;
    }
    uint64_t span = s->now_ps - (first < s->now_ps ? first : s->now_ps);
    r->seconds = (double)span / 1e12;
    for (unsigned l = 0; l < SIMULATE_NUM_LINKS; l++)
        r->bytes[l] = s->bytes[l] * times;
    r->messages = s->messages * times;
    r->steps = s->nsteps * times;
    for (uint32_t n = 0; n < s->nodes_held && span > 0; n++) {
        const struct sim_node *node = &s->nodes[n];
        double link = (double)node->link_busy_ps / (double)span;
        double loop = (double)node->loop_busy_ps / (double)span;
        double work =
            (double)node->worker_busy_ps / (double)span / (s->options->cost->workers ? s->options->cost->workers : 1);
        r->busiest_bytes = node->sent_bytes > r->busiest_bytes ? node->sent_bytes : r->busiest_bytes;
        r->link_busy = link > r->link_busy ? link : r->link_busy;
        r->loop_busy = loop > r->loop_busy ? loop : r->loop_busy;
        r->worker_busy = work > r->worker_busy ? work : r->worker_busy;
    }
}

enum simulate_end simulate_run(const struct simulate_source *source, const struct simulate_options *options,
                               struct simulate_result *result, char why[SIMULATE_WHY]) {
    struct sim s = {.source = source, .options = options, .result = result, .why = why};
    bool folded;
    why[0] = '\0';
    *result = (struct simulate_result){0};
    enum simulate_end end = sim_fold(&s, &folded);
    if (end == SIMULATE_OK)
        end = sim_load(&s);
    if (end == SIMULATE_OK)
        end = run(&s);
    if (end == SIMULATE_OK)
        add_up(&s);
    if (end == SIMULATE_NO_MEMORY)
        (void)snprintf(why, SIMULATE_WHY, "out of memory; take fewer nodes, a smaller size or larger chunks");
    else if (end != SIMULATE_OK && why[0] == '\0')
        (void)snprintf(why, SIMULATE_WHY, "node 0: the operation cannot be planned so");
    sim_unload(&s);
    return end;
}

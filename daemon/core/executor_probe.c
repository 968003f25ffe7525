/* SPDX-License-Identifier: Apache-2.0
 *
 * The probe: what the link between nodes gives. Every node sends to the next of the ring and answers the one before it,
 * all at once, as collectives do. First empty messages, for the round trip; then growing ones, each until its answer is
 * back, up to the first that takes long enough to be measured well, which is repeated; at last a message that says
 * there are no more.
 */
#include "daemon/core/executor_impl.h"

#include <stdlib.h>
#include <time.h>

#define PINGS       5u
#define FIRST_BYTES ((uint64_t)256 << 10)
#define LAST_BYTES  ((uint64_t)4 << 20)
#define LONG_ENOUGH 3000000u /* ns */
#define REPEATS     3u       /* of the last size: the best counts, for others disturb */
#define PROBE_SEQ   UINT32_MAX
#define TAG_ANSWER  0x80000000u
#define FLAG_END    2u

struct exec_probe {
    struct exec_probe *next; /* orphans */
    struct executor *executor;
    struct exec_comm *comm; /* NULL: freed */
    uint64_t key, max_bytes;
    uint32_t node, from, to; /* ring neighbours */
    struct fabric_peer *from_peer, *to_peer;
    uint8_t *out, *in;              /* max_bytes each */
    struct probe_message *messages; /* under way */
    unsigned under_way;
    bool sent_all, got_all;
    zipcclResult_t result;
    uint32_t round, repeats;
    uint64_t size, started, rtt, bps;
    void (*done)(void *arg, zipcclResult_t result, uint64_t bps, uint64_t latency_ns);
    void *arg;
};

struct probe_message {
    struct probe_message *next, **at; /* of the probe's */
    struct exec_probe *probe;
    union {
        struct fabric_send send;
        struct fabric_recv recv;
    };
};

static uint64_t now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void drop_message(struct probe_message *m) {
    *m->at = m->next;
    if (m->next)
        m->next->at = m->at;
    m->probe->under_way--;
    free(m);
}

/* Messages are left where the fabric was closed before it told of them. */
static void free_probe(struct exec_probe *p) {
    const struct executor_config *config = &p->executor->config;
    for (struct probe_message *m = p->messages, *next; m; m = next) {
        next = m->next;
        free(m);
    }
    if (p->out)
        config->device_ops->free(config->device, p->out, p->max_bytes);
    if (p->in)
        config->device_ops->free(config->device, p->in, p->max_bytes);
    free(p);
}

static void stop(struct exec_probe *p, zipcclResult_t result) {
    const struct executor_config *config = &p->executor->config;
    if (p->result)
        return;
    p->result = result;
    config->fabric_ops->abort(config->fabric, p->key);
    if (p->comm)
        p->comm->aborted = true;
}

/* Ends the probe when nothing is left to wait for. */
static void check_end(struct exec_probe *p) {
    if (p->under_way > 0 || !(p->result || (p->sent_all && p->got_all)))
        return;
    if (!p->comm) {
        struct exec_probe **at = &p->executor->orphans;
        while (*at != p)
            at = &(*at)->next;
        *at = p->next;
        free_probe(p);
        return;
    }
    p->comm->probe = NULL;
    void (*done)(void *, zipcclResult_t, uint64_t, uint64_t) = p->done;
    void *arg = p->arg;
    zipcclResult_t result = p->result;
    uint64_t bps = p->bps, latency = p->rtt / 2;
    free_probe(p);
    done(arg, result, result ? 0 : bps, result ? 0 : latency);
}

static struct probe_message *new_message(struct exec_probe *p) {
    struct probe_message *m = p->result ? NULL : calloc(1, sizeof(*m));
    if (m) {
        m->probe = p;
        m->next = p->messages;
        m->at = &p->messages;
        if (m->next)
            m->next->at = &m->next;
        p->messages = m;
        p->under_way++;
    } else {
        stop(p, zipcclOutOfMemory);
    }
    return m;
}

static void sent(struct fabric_send *send, zipcclResult_t result) {
    struct probe_message *m = send->arg;
    struct exec_probe *p = m->probe;
    drop_message(m);
    if (result)
        stop(p, result);
    check_end(p);
}

static void send_message(struct exec_probe *p, bool back, uint32_t tag, uint64_t bytes, uint8_t flags) {
    const struct executor_config *config = &p->executor->config;
    struct probe_message *m = new_message(p);
    if (!m)
        return;
    m->send.peer = back ? p->from_peer : p->to_peer;
    m->send.header = (struct fabric_header){
        .comm = p->key, .node = p->node, .seq = PROBE_SEQ, .tag = tag, .op = UINT8_MAX, .flags = flags, .count = bytes};
    m->send.iov[0] = (struct fabric_iov){p->out, bytes};
    m->send.niov = bytes > 0;
    m->send.done = sent;
    m->send.arg = m;
    config->fabric_ops->send(config->fabric, &m->send);
}

static void receive(struct exec_probe *p, bool back, uint32_t tag, uint64_t capacity,
                    void (*done)(struct fabric_recv *, zipcclResult_t)) {
    const struct executor_config *config = &p->executor->config;
    struct probe_message *m = new_message(p);
    if (!m)
        return;
    m->recv.peer = back ? p->to_peer : p->from_peer;
    m->recv.comm = p->key;
    m->recv.node = back ? p->to : p->from;
    m->recv.seq = PROBE_SEQ;
    m->recv.tag = tag;
    m->recv.buffer = capacity ? p->in : NULL;
    m->recv.capacity = capacity;
    m->recv.done = done;
    m->recv.arg = m;
    config->fabric_ops->recv(config->fabric, &m->recv);
}

static void answered(struct fabric_recv *recv, zipcclResult_t result);

static void next_round(struct exec_probe *p) {
    receive(p, true, p->round | TAG_ANSWER, 0, answered);
    p->started = now_ns();
    send_message(p, false, p->round, p->size, 0);
}

static void answered(struct fabric_recv *recv, zipcclResult_t result) {
    struct probe_message *m = recv->arg;
    struct exec_probe *p = m->probe;
    uint64_t took = now_ns() - p->started;
    drop_message(m);
    if (result) {
        stop(p, result);
    } else if (!p->result) {
        bool last = false;
        p->round++;
        if (p->size == 0) {
            p->rtt = took < p->rtt ? took : p->rtt;
            if (p->round >= PINGS)
                p->size = FIRST_BYTES < p->max_bytes ? FIRST_BYTES : p->max_bytes;
        } else {
            /* The answer's way is not part of the transfer; keep the estimate sane where it is most of the time. */
            uint64_t transfer = took > 2 * p->rtt ? took - p->rtt : took / 2 + 1;
            uint64_t bps = (uint64_t)((double)p->size * 1e9 / (double)transfer);
            bool enough = took >= LONG_ENOUGH || p->size >= p->max_bytes || p->repeats > 0;
            p->bps = p->repeats == 0 || bps > p->bps ? bps : p->bps;
            if (enough)
                last = ++p->repeats >= REPEATS;
            else
                p->size = p->size * 4 < p->max_bytes ? p->size * 4 : p->max_bytes;
        }
        if (last) {
            p->sent_all = true;
            send_message(p, false, p->round, 0, FLAG_END);
        } else {
            next_round(p);
        }
    }
    check_end(p);
}

static void asked(struct fabric_recv *recv, zipcclResult_t result) {
    struct probe_message *m = recv->arg;
    struct exec_probe *p = m->probe;
    bool end = recv->header.flags & FLAG_END;
    uint32_t tag = recv->tag;
    drop_message(m);
    if (result) {
        stop(p, result);
    } else if (end) {
        p->got_all = true;
    } else if (!p->result) {
        receive(p, false, tag + 1, p->max_bytes, asked);
        send_message(p, true, tag | TAG_ANSWER, 0, 0);
    }
    check_end(p);
}

void exec_comm_probe(struct exec_comm *comm, uint64_t bytes,
                     void (*done)(void *arg, zipcclResult_t result, uint64_t bps, uint64_t latency_ns), void *arg) {
    struct executor *e = comm->executor;
    uint32_t nodes = comm->topology.nnodes;
    if (nodes < 2 || comm->probe || comm->aborted) {
        done(arg, nodes < 2 || comm->probe ? zipcclInvalidUsage : zipcclAborted, 0, 0);
        return;
    }
    struct exec_probe *p = calloc(1, sizeof(*p));
    if (!p) {
        done(arg, zipcclOutOfMemory, 0, 0);
        return;
    }
    p->executor = e;
    p->comm = comm;
    p->key = comm->key;
    p->max_bytes = bytes > LAST_BYTES || bytes == 0 ? LAST_BYTES : bytes;
    p->node = comm->node;
    p->to = (comm->node + 1) % nodes;
    p->from = (comm->node + nodes - 1) % nodes;
    p->to_peer = comm->peers[p->to];
    p->from_peer = comm->peers[p->from];
    p->rtt = UINT64_MAX;
    p->done = done;
    p->arg = arg;
    p->out = e->config.device_ops->alloc(e->config.device, p->max_bytes);
    p->in = e->config.device_ops->alloc(e->config.device, p->max_bytes);
    comm->probe = p;
    if (p->out && p->in) {
        receive(p, false, 0, p->max_bytes, asked);
        next_round(p);
    } else {
        stop(p, zipcclOutOfMemory);
    }
    check_end(p);
}

void exec_probe_orphan(struct exec_comm *comm) {
    struct exec_probe *p = comm->probe;
    comm->probe = NULL;
    stop(p, zipcclAborted);
    p->comm = NULL;
    p->next = p->executor->orphans;
    p->executor->orphans = p;
}

void exec_probe_free_all(struct executor *e) {
    while (e->orphans) {
        struct exec_probe *p = e->orphans;
        e->orphans = p->next;
        free_probe(p);
    }
}

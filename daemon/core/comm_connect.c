/* SPDX-License-Identifier: Apache-2.0
 *
 * From the table of ranks to the first operation: every node connects its fabric, probes the link and reports ready;
 * the root agrees on numbers and says go. The root's own part takes the same path, without a socket.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/comm.h"
#include "daemon/core/comm_secret.h"
#include "daemon/core/daemon.h"
#include "daemon/core/log.h"
#include "daemon/core/peer.h"
#include "daemon/core/session.h"
#include "proto/result.h"

#define JOIN_PROBE_BYTES (1u << 20)
#define JOIN_PROBE_LEAST (64u << 10)

static void join_go(struct comm *c, const Zipccl__Peer__PeerGo *m);
static void join_node_ready(struct comm *c, uint32_t i, const Zipccl__Peer__PeerReady *m);

static int join_by_rank(const void *a, const void *b) {
    uint32_t x = (*(struct comm_member *const *)a)->rank, y = (*(struct comm_member *const *)b)->rank;
    return (x > y) - (x < y);
}

/* This node is connected and has measured. */
static void join_ready(struct comm *c, uint64_t bps, uint64_t latency_ns) {
    Zipccl__Peer__PeerReady ready = ZIPCCL__PEER__PEER_READY__INIT;
    ready.key = c->key;
    ready.measured_bps = bps;
    ready.latency_ns = latency_ns;
    if (!c->is_root)
        peer_send(c->root_link, WIRE_PEER_READY, &ready.base);
    else
        join_node_ready(c, c->node, &ready);
}

static void join_probed(void *arg, zipcclResult_t result, uint64_t bps, uint64_t latency_ns) {
    struct comm *c = arg;
    const char *why = result != zipcclSuccess ? exec_comm_why(c->exec) : NULL;
    c->probing = false;
    if (c->state != COMM_CONNECTING)
        return;
    if (result == zipcclSuccess) {
        join_ready(c, bps, latency_ns);
        return;
    }
    char text[DAEMON_TEXT];
    snprintf(text, sizeof text, "node %s could not measure its link to the other nodes: %s",
             c->daemon->config.node_name, why != NULL ? why : result_string(result));
    if (comm_follows(result) && why == NULL)
        comm_fail_soon(c, result, text);
    else
        comm_fail(c, NULL, result, "%s", text);
}

/* Takes over the table; false: it contradicts itself, or what this node knows. */
static bool join_topology(struct comm *c, const Zipccl__Peer__PeerTable *m) {
    struct daemon *d = c->daemon;
    uint32_t seen = 0;
    c->rank_node = malloc(c->nranks * sizeof *c->rank_node);
    if (c->rank_node == NULL || m->n_nodes > c->nranks)
        return false;
    memset(c->rank_node, 0xff, c->nranks * sizeof *c->rank_node);
    if (!c->is_root) {
        c->nodes = calloc(m->n_nodes, sizeof *c->nodes);
        if (c->nodes == NULL)
            return false;
        c->nnodes = (uint32_t)m->n_nodes;
    }
    for (uint32_t i = 0; i < m->n_nodes; i++) {
        const Zipccl__Peer__PeerNode *n = m->nodes[i];
        if (!c->is_root)
            snprintf(c->nodes[i].name, sizeof c->nodes[i].name, "%.63s", n->node);
        if (n->instance.len == sizeof d->instance && memcmp(n->instance.data, d->instance, sizeof d->instance) == 0)
            c->node = i;
        for (size_t j = 0; j < n->n_ranks; j++) {
            if (n->ranks[j] >= c->nranks || c->rank_node[n->ranks[j]] != UINT32_MAX)
                return false;
            c->rank_node[n->ranks[j]] = i;
            c->ranks[n->ranks[j]].node = i;
            seen++;
        }
        if (n->n_ranks > c->most_ranks)
            c->most_ranks = (uint32_t)n->n_ranks;
    }
    if (seen != c->nranks || c->node == COMM_NO_NODE || m->nodes[c->node]->n_ranks != c->nmembers)
        return false;
    qsort(c->members, c->nmembers, sizeof *c->members, join_by_rank);
    for (uint32_t i = 0; i < c->nmembers; i++) {
        c->members[i]->local = i;
        if (c->rank_node[c->members[i]->rank] != c->node)
            return false;
    }
    c->topology = (struct plan_topology){.nranks = c->nranks, .nnodes = c->nnodes, .rank_node = c->rank_node};
    return true;
}

/* Members that were refused alone leave a hole; the executor counts those that are there. */
static void join_compact(struct comm *c) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->nmembers; i++) {
        if (c->members[i]->session != NULL)
            c->members[n++] = c->members[i];
        else
            free(c->members[i]);
    }
    c->nmembers = n;
}

void comm_connect_apply(struct comm *c, const Zipccl__Peer__PeerTable *m) {
    struct daemon *d = c->daemon;
    c->state = COMM_CONNECTING;
    join_compact(c);
    if (!join_topology(c, m)) {
        comm_fail(c, NULL, zipcclInternalError, "node %s cannot use the root's table of ranks", d->config.node_name);
        return;
    }
    c->link_rate_bits = m->link_rate_bits;
    model_init(&c->model);
    c->model.encode_bps = m->encode_bps;
    c->model.decode_bps = m->decode_bps;
    c->phases = m->phases <= PLAN_SIZES_FIRST ? (enum plan_phases)m->phases : PLAN_STREAM;
    c->codec = m->codec < zipcclNumCodecs ? (zipcclCodec_t)m->codec : zipcclCodecAuto;
    c->arm = m->arm < zipcclNumArms ? (zipcclArm_t)m->arm : zipcclArmAuto;
    if (c->nnodes > 1 && d->fabric_ops == NULL) {
        comm_fail(c, NULL, zipcclInvalidUsage,
                  "the communicator spans %u nodes, and node %s has no fabric (fabric = none)", c->nnodes,
                  d->config.node_name);
        return;
    }
    c->peers = calloc(c->nnodes, sizeof *c->peers);
    if (c->peers == NULL) {
        comm_fail(c, NULL, zipcclOutOfMemory, "node %s: out of memory", d->config.node_name);
        return;
    }
    for (uint32_t i = 0; i < c->nnodes; i++) {
        const ProtobufCBinaryData *address = &m->nodes[i]->fabric;
        if (i == c->node)
            continue;
        struct fabric_tokens tokens;
        comm_secret_tokens(m->secret.data, &m->nodes[c->node]->fabric, address, &tokens);
        zipcclResult_t rc = address->len > 0
                                ? d->fabric_ops->connect(d->fabric, address->data, address->len, &tokens, &c->peers[i])
                                : zipcclInvalidUsage;
        if (rc != zipcclSuccess) {
            c->peers[i] = NULL;
            comm_fail(c, NULL, rc, "node %s cannot connect to node %s: %s", d->config.node_name, c->nodes[i].name,
                      address->len > 0 ? result_string(rc) : "that node has no fabric (fabric = none)");
            return;
        }
    }
    uint8_t *gpus = malloc(c->nmembers);
    for (uint32_t i = 0; gpus != NULL && i < c->nmembers; i++)
        gpus[i] = c->members[i]->gpu;
    zipcclResult_t rc = zipcclOutOfMemory;
    c->fabric_key = comm_secret_number(m->secret.data);
    c->split_waits = comm_split_waits(c);
    if (gpus != NULL)
        rc = exec_comm_new(d->executor, c->fabric_key, c->node, &c->topology, c->peers, m->chunk_bytes, gpus,
                           (c->split_waits ? EXEC_SPLIT : 0) | (comm_split_told(c) ? EXEC_SPLITS : 0), &c->exec);
    free(gpus);
    if (rc != zipcclSuccess) {
        c->exec = NULL;
        comm_fail(c, NULL, rc, "node %s cannot set up the communicator: %s", d->config.node_name, result_string(rc));
        return;
    }
    exec_comm_set_flow(c->exec, c->job->flow, c->job->workers);
    comm_split_connected(c);
    if (c->nnodes == 1) {
        join_ready(c, 0, 0);
        return;
    }
    /* On a slow link less is measured, so that it takes tens of milliseconds at most. All nodes compute the same. */
    uint64_t bytes = JOIN_PROBE_BYTES;
    if (c->link_rate_bits != 0 && c->link_rate_bits / 8 / 50 < bytes)
        bytes = c->link_rate_bits / 8 / 50;
    c->probing = true;
    exec_comm_probe(c->exec, bytes > JOIN_PROBE_LEAST ? bytes : JOIN_PROBE_LEAST, join_probed, c);
}

void comm_peer_table(struct peer_link *link, const Zipccl__Peer__PeerTable *m) {
    struct comm *c = comm_find(link->daemon, m->key);
    if (c != NULL && c->root_link == link && c->state == COMM_JOINING)
        comm_connect_apply(c, m);
}

/* Node i is ready; the last one lets all go. */
static void join_node_ready(struct comm *c, uint32_t i, const Zipccl__Peer__PeerReady *m) {
    Zipccl__Peer__PeerGo go = ZIPCCL__PEER__PEER_GO__INIT;
    c->nodes[i].ready = true;
    c->nodes[i].measured_bps = m->measured_bps;
    c->nodes[i].latency_ns = m->latency_ns;
    go.key = c->key;
    go.link_bps = UINT64_MAX;
    for (uint32_t n = 0; n < c->nnodes; n++) {
        const struct comm_node *node = &c->nodes[n];
        uint64_t bps = node->measured_bps, cap = node->link_rate_bits / 8;
        if (!node->ready)
            return;
        if (cap != 0 && (bps == 0 || cap < bps))
            bps = cap;
        if (bps != 0 && bps < go.link_bps)
            go.link_bps = bps;
        go.latency_ns = node->latency_ns > go.latency_ns ? node->latency_ns : go.latency_ns;
    }
    comm_profile_offer(c, go.link_bps, &go.profile);
    for (uint32_t n = 0; n < c->nnodes && c->state == COMM_CONNECTING; n++) {
        if (c->nodes[n].link != NULL)
            peer_send(c->nodes[n].link, WIRE_PEER_GO, &go.base);
    }
    if (c->state == COMM_CONNECTING)
        join_go(c, &go);
}

void comm_peer_ready(struct peer_link *link, const Zipccl__Peer__PeerReady *m) {
    struct comm *c = comm_find(link->daemon, m->key);
    for (uint32_t i = 0; c != NULL && c->is_root && c->state == COMM_CONNECTING && i < c->nnodes; i++) {
        if (c->nodes[i].link == link) {
            join_node_ready(c, i, m);
            break;
        }
    }
}

static void join_go(struct comm *c, const Zipccl__Peer__PeerGo *m) {
    Zipccl__CommInitReply reply = ZIPCCL__COMM_INIT_REPLY__INIT;
    const char *why = "";
    c->model.link_bps = m->link_bps;
    c->model.unpaced = c->link_rate_bits == 0 || m->link_bps < c->link_rate_bits / 32 * 3; /* far from its cap */
    c->model.latency_ns = m->latency_ns;
    if (!comm_profile_take(c, &m->profile, &why)) {
        comm_fail(c, NULL, zipcclInternalError, "node %s cannot use the root's profile: %s",
                  c->daemon->config.node_name, why);
        return;
    }
    if (!comm_choices_init(c)) {
        comm_fail(c, NULL, zipcclOutOfMemory, "node %s: out of memory", c->daemon->config.node_name);
        return;
    }
    c->daemon->stats.counters[STATS_comms_created]++;
    log_info("communicator ready (comm=%016" PRIx64 " job=%s nranks=%u nnodes=%u local=%u link_MBps=%" PRIu64
             " latency_us=%" PRIu64 ")",
             c->key, c->job->name, c->nranks, c->nnodes, c->nmembers, c->nnodes > 1 ? m->link_bps / 1000000 : 0,
             m->latency_ns / 1000);
    events_add(c->daemon->events, EVENT_COMM_READY, c->job->name, c->key, "%u ranks on %u nodes, %u here", c->nranks,
               c->nnodes, c->nmembers);
    c->state = COMM_READY;
    reply.nnodes = c->nnodes;
    reply.local_ranks = c->nmembers;
    reply.node = c->node;
    for (uint32_t i = 0; i < c->nmembers && c->state == COMM_READY; i++) {
        struct comm_member *member = c->members[i];
        reply.comm = member->handle;
        member->state = MEMBER_IN;
        session_send_message(member->session, WIRE_COMM_INIT_REPLY, member->reply_id, &reply.base);
    }
}

void comm_peer_go(struct peer_link *link, const Zipccl__Peer__PeerGo *m) {
    struct comm *c = comm_find(link->daemon, m->key);
    if (c != NULL && c->root_link == link && c->state == COMM_CONNECTING && !c->probing)
        join_go(c, m);
}

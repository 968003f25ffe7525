/* SPDX-License-Identifier: Apache-2.0
 *
 * Rendezvous: how ranks find each other by a unique id.
 *
 * The root collects joins; when all are there it sends the table, and comm_connect.c goes on.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "daemon/core/comm.h"
#include "daemon/core/comm_secret.h"
#include "daemon/core/daemon.h"
#include "daemon/core/log.h"
#include "daemon/core/peer.h"
#include "daemon/core/session.h"
#include "proto/result.h"

void comm_unique_id(struct session *s, uint32_t reply) {
    struct daemon *d = s->daemon;
    struct wire_unique_id wire = {.magic = WIRE_UNIQUE_ID_MAGIC};
    uint32_t same = 0;
    struct list *oldest = NULL;
    char why[DAEMON_TEXT];
    if (s->job == NULL) {
        session_error(s, reply, zipcclInvalidUsage, "this session named no job: it cannot make a unique id");
        return;
    }
    if (drain_why(d, s->job, why, sizeof why) != NULL) {
        session_error(s, reply, zipcclDaemonUnavailable, "%s", why);
        return;
    }
    struct comm_id *id = calloc(1, sizeof *id);
    if (id == NULL || getrandom(&wire.key, sizeof wire.key, 0) != sizeof wire.key ||
        getrandom(&wire.nonce, sizeof wire.nonce, 0) != sizeof wire.nonce) {
        free(id);
        session_error(s, reply, zipcclOutOfMemory, "no memory for a unique id");
        return;
    }
    list_for_each(l, &d->ids) {
        if (list_entry(l, struct comm_id, link)->job->uid != s->uid)
            continue;
        same++;
        oldest = oldest != NULL ? oldest : l;
    }
    if (same >= COMM_MAX_IDS) { /* ids that nobody used: the oldest is forgotten */
        struct comm_id *old = list_entry(oldest, struct comm_id, link);
        list_del(&old->link);
        job_put(old->job);
        free(old);
        d->nids--;
    }
    id->key = wire.key;
    id->nonce = wire.nonce;
    id->made_ns = daemon_now_ns();
    id->job = s->job;
    job_ref(id->job);
    list_add_tail(&d->ids, &id->link);
    d->nids++;
    snprintf(wire.root, sizeof wire.root, "%s", d->advertise);
    session_send(s, WIRE_UNIQUE_ID_REPLY, reply, &wire, sizeof wire);
}

/* The root's communicator for a key: there already, or begun now by its unique id. */
static struct comm *comm_root_get(struct daemon *d, uint64_t key, uint64_t nonce, uint32_t nranks,
                                  zipcclResult_t *result, char *why, size_t size) {
    struct comm *c = comm_find(d, key);
    if (c != NULL && c->is_root && c->nonce == nonce)
        return c;
    list_for_each_safe(l, &d->ids) {
        struct comm_id *id = list_entry(l, struct comm_id, link);
        if (id->key != key || id->nonce != nonce)
            continue;
        if (drain_why(d, id->job, why, size) != NULL) {
            *result = zipcclDaemonUnavailable;
            return NULL;
        }
        if (d->ncomms >= d->config.max_comms) {
            *result = zipcclLimitExceeded;
            snprintf(why, size, "node %s has %u communicators, the most that are allowed (max_comms)",
                     d->config.node_name, d->ncomms);
            return NULL;
        }
        uint32_t of_user = job_usage(d, id->job->uid).comms;
        if (of_user >= d->config.max_comms_per_user) {
            *result = zipcclLimitExceeded;
            snprintf(why, size,
                     "user %u has %u communicators on node %s, the most that are allowed "
                     "(max_comms_per_user)",
                     id->job->uid, of_user, d->config.node_name);
            return NULL;
        }
        c = comm_new(d, key, nonce, id->job, nranks, true);
        if (c == NULL) {
            *result = zipcclOutOfMemory;
            snprintf(why, size, "node %s: out of memory", d->config.node_name);
            return NULL;
        }
        list_del(&id->link);
        d->nids--;
        job_put(id->job);
        free(id);
        return c;
    }
    *result = zipcclInvalidArgument;
    snprintf(why, size,
             "node %s does not know this unique id: its communicator has ended or failed, or zipccld was "
             "restarted since the id was made",
             d->config.node_name);
    return NULL;
}

struct join_request {
    struct peer_link *link; /* NULL: a local rank */
    uint32_t nranks, rank, pid;
    const char *job;
    uid_t uid;
    const Zipccl__Peer__PeerJoin *wire; /* NULL: local */
};

static zipcclResult_t join_check(const struct comm *c, const struct join_request *r, char *why, size_t size) {
    char who[120];
    if (c->state == COMM_FAILED) {
        snprintf(why, size, "%s", c->text);
        return c->error;
    }
    if (r->uid != c->job->uid) {
        snprintf(why, size, "rank %u belongs to user %u, the communicator to user %u", r->rank, r->uid, c->job->uid);
        return zipcclPermissionDenied;
    }
    if (strcmp(r->job, c->job->name) != 0) {
        snprintf(why, size, "rank %u belongs to job '%s', the communicator to job '%s'", r->rank, r->job, c->job->name);
        return zipcclPermissionDenied;
    }
    if (r->nranks != c->nranks) {
        snprintf(why, size, "rank %u says %u ranks, those that joined before said %u", r->rank, r->nranks, c->nranks);
        return zipcclInvalidArgument;
    }
    if (r->rank >= c->nranks) {
        snprintf(why, size, "rank %u is not below the number of ranks, %u", r->rank, c->nranks);
        return zipcclInvalidArgument;
    }
    if (c->ranks[r->rank].in) {
        comm_describe_rank(c, r->rank, who, sizeof who);
        snprintf(why, size, "%s has joined already: each rank joins once", who);
        return zipcclInvalidArgument;
    }
    if (c->state != COMM_JOINING) {
        snprintf(why, size, "all ranks of the communicator have joined already");
        return zipcclInvalidArgument;
    }
    return zipcclSuccess;
}

static bool join_copy(uint8_t **to, size_t *bytes, const void *from, size_t n) {
    *to = malloc(n > 0 ? n : 1);
    if (*to == NULL)
        return false;
    if (n > 0)
        memcpy(*to, from, n);
    *bytes = n;
    return true;
}

/* The node of a join in the root's list; COMM_NO_NODE: no memory. */
static uint32_t join_node(struct comm *c, const struct join_request *r) {
    struct daemon *d = c->daemon;
    for (uint32_t i = 0; i < c->nnodes; i++) {
        if (c->nodes[i].link == r->link)
            return i;
    }
    struct comm_node *nodes = realloc(c->nodes, (c->nnodes + 1) * sizeof *nodes);
    if (nodes == NULL)
        return COMM_NO_NODE;
    c->nodes = nodes;
    struct comm_node *n = &nodes[c->nnodes];
    *n = (struct comm_node){.link = r->link};
    if (r->link != NULL) {
        snprintf(n->name, sizeof n->name, "%s", r->link->node);
        snprintf(n->listen, sizeof n->listen, "%s", r->link->listen);
        memcpy(n->instance, r->link->instance, sizeof n->instance);
        n->link_rate_bits = r->wire->link_rate_bits;
        n->encode_bps = r->wire->encode_bps;
        n->decode_bps = r->wire->decode_bps;
        n->chunk_bytes = r->wire->chunk_bytes;
        snprintf(n->fabric_name, sizeof n->fabric_name, "%s", r->wire->fabric_name);
        if (!join_copy(&n->fabric, &n->fabric_bytes, r->wire->fabric.data, r->wire->fabric.len))
            return COMM_NO_NODE;
        r->link->ncomms++;
    } else {
        size_t bytes = 0;
        const void *address = d->fabric_ops != NULL ? d->fabric_ops->address(d->fabric, &bytes) : NULL;
        snprintf(n->name, sizeof n->name, "%s", d->config.node_name);
        snprintf(n->listen, sizeof n->listen, "%s", d->advertise);
        memcpy(n->instance, d->instance, sizeof n->instance);
        n->link_rate_bits = d->config.link_rate;
        n->encode_bps = d->encode_bps;
        n->decode_bps = d->decode_bps;
        n->chunk_bytes = (uint32_t)d->config.chunk_bytes;
        snprintf(n->fabric_name, sizeof n->fabric_name, "%s", d->fabric_ops != NULL ? d->fabric_ops->name : "");
        if (!join_copy(&n->fabric, &n->fabric_bytes, address, bytes))
            return COMM_NO_NODE;
    }
    return c->nnodes++;
}

/* False, with the communicator failed: two nodes would not understand each other. One with none is told elsewhere. */
static bool join_same_fabric(struct comm *c) {
    const struct comm_node *first = NULL;
    for (uint32_t i = 0; i < c->nnodes; i++) {
        const struct comm_node *n = &c->nodes[i];
        if (n->fabric_bytes == 0)
            continue;
        first = first != NULL ? first : n;
        if (strcmp(n->fabric_name, first->fabric_name) == 0)
            continue;
        comm_fail(c, NULL, zipcclInvalidUsage,
                  "node %s sends by %s and node %s by %s: set the same fabric in the configuration of both",
                  first->name, first->fabric_name, n->name, n->fabric_name);
        return false;
    }
    return true;
}

/* All ranks are there: puts the nodes in the order of their least rank, tells all, and takes part. */
static void join_complete(struct comm *c) {
    Zipccl__Peer__PeerTable table = ZIPCCL__PEER__PEER_TABLE__INIT;
    struct comm_node *sorted = calloc(c->nnodes, sizeof *sorted);
    uint32_t *position = malloc(c->nnodes * sizeof *position);
    Zipccl__Peer__PeerNode *nodes = calloc(c->nnodes, sizeof *nodes), **pointers = calloc(c->nnodes, sizeof *pointers);
    uint32_t *lists = malloc(c->nranks * sizeof *lists), placed = 0, at = 0;
    uint8_t secret[COMM_SECRET_BYTES];
    if (sorted == NULL || position == NULL || nodes == NULL || pointers == NULL || lists == NULL) {
        comm_fail(c, NULL, zipcclOutOfMemory, "node %s: out of memory", c->daemon->config.node_name);
        goto out;
    }
    memset(position, 0xff, c->nnodes * sizeof *position);
    for (uint32_t r = 0; r < c->nranks; r++) {
        if (c->ranks[r].node >= c->nnodes) {
            comm_fail(c, NULL, zipcclInternalError, "rank %u joined on no known node", r);
            goto out;
        }
        uint32_t *p = &position[c->ranks[r].node];
        if (*p == UINT32_MAX) {
            sorted[placed] = c->nodes[c->ranks[r].node];
            *p = placed++;
        }
        c->ranks[r].node = *p;
    }
    memcpy(c->nodes, sorted, c->nnodes * sizeof *sorted);
    if (!join_same_fabric(c))
        goto out;
    table.key = c->key;
    table.encode_bps = table.decode_bps = UINT64_MAX;
    table.chunk_bytes = UINT32_MAX;
    table.codec = (uint32_t)c->codec;
    table.phases = (uint32_t)c->phases;
    comm_secret_make(secret);
    table.secret = (ProtobufCBinaryData){.len = sizeof secret, .data = secret};
    table.arm = (uint32_t)c->arm;
    for (uint32_t i = 0; i < c->nnodes; i++) {
        struct comm_node *n = &c->nodes[i];
        Zipccl__Peer__PeerNode *w = pointers[i] = &nodes[i];
        zipccl__peer__peer_node__init(w);
        w->node = n->name;
        w->listen = n->listen;
        w->instance = (ProtobufCBinaryData){.len = sizeof n->instance, .data = n->instance};
        w->fabric = (ProtobufCBinaryData){.len = n->fabric_bytes, .data = n->fabric};
        w->ranks = &lists[at];
        for (uint32_t r = 0; r < c->nranks; r++) {
            if (c->ranks[r].node == i)
                lists[at++] = r;
        }
        w->n_ranks = (size_t)(&lists[at] - w->ranks);
        if (n->link_rate_bits != 0 && (table.link_rate_bits == 0 || n->link_rate_bits < table.link_rate_bits))
            table.link_rate_bits = n->link_rate_bits;
        table.encode_bps = n->encode_bps < table.encode_bps ? n->encode_bps : table.encode_bps;
        table.decode_bps = n->decode_bps < table.decode_bps ? n->decode_bps : table.decode_bps;
        table.chunk_bytes = n->chunk_bytes < table.chunk_bytes ? n->chunk_bytes : table.chunk_bytes;
    }
    table.n_nodes = c->nnodes;
    table.nodes = pointers;
    c->state = COMM_CONNECTING;
    for (uint32_t i = 0; i < c->nnodes && c->state == COMM_CONNECTING; i++) {
        if (c->nodes[i].link != NULL)
            peer_send(c->nodes[i].link, WIRE_PEER_TABLE, &table.base);
    }
    if (c->state == COMM_CONNECTING && c->nmembers > 0)
        comm_connect_apply(c, &table);
out:
    comm_secret_wipe(secret);
    free(sorted);
    free(position);
    free(nodes);
    free(pointers);
    free(lists);
}

/* At the root: a rank joins. */
static zipcclResult_t join_accept(struct comm *c, const struct join_request *r, char *why, size_t size) {
    zipcclResult_t rc = join_check(c, r, why, size);
    if (rc != zipcclSuccess)
        return rc;
    uint32_t node = join_node(c, r);
    if (node == COMM_NO_NODE) {
        snprintf(why, size, "node %s: out of memory", c->daemon->config.node_name);
        return zipcclOutOfMemory;
    }
    c->ranks[r->rank] = (struct comm_rank){.in = true, .node = node, .pid = r->pid};
    c->nin++;
    return zipcclSuccess;
}

/* A join of this node to a root elsewhere. */
static void join_announce(struct comm *c, struct comm_member *m) {
    struct daemon *d = c->daemon;
    Zipccl__Peer__PeerJoin join = ZIPCCL__PEER__PEER_JOIN__INIT;
    char device[128] = "";
    size_t bytes = 0;
    const void *address = d->fabric_ops != NULL ? d->fabric_ops->address(d->fabric, &bytes) : NULL;
    d->device_ops->describe(d->device, device, sizeof device);
    join.key = c->key;
    join.nonce = c->nonce;
    join.nranks = c->nranks;
    join.rank = m->rank;
    join.job = c->job->name;
    join.uid = c->job->uid;
    join.pid = (uint32_t)m->pid;
    join.fabric = (ProtobufCBinaryData){.len = bytes, .data = (uint8_t *)address};
    join.fabric_name = (char *)(d->fabric_ops != NULL ? d->fabric_ops->name : "none");
    join.link_rate_bits = d->config.link_rate;
    join.encode_bps = d->encode_bps;
    join.decode_bps = d->decode_bps;
    join.chunk_bytes = (uint32_t)d->config.chunk_bytes;
    join.device = device;
    m->announced = true;
    peer_send(c->root_link, WIRE_PEER_JOIN, &join.base);
}

void comm_link_up(struct peer_link *link) {
    list_for_each_safe(l, &link->daemon->comms) {
        struct comm *c = list_entry(l, struct comm, link);
        for (uint32_t i = 0; c->root_link == link && c->state == COMM_JOINING && i < c->nmembers; i++) {
            if (!c->members[i]->announced && c->members[i]->session != NULL)
                join_announce(c, c->members[i]);
        }
    }
}

/* parent: what it is split from, or NULL. */
static void join(struct session *s, uint32_t reply, const Zipccl__CommInit *m, const struct comm *parent) {
    struct daemon *d = s->daemon;
    struct wire_unique_id id;
    zipcclResult_t rc = zipcclInternalError;
    char why[DAEMON_TEXT] = "";
    if (drain_why(d, s->job, why, sizeof why) != NULL) {
        session_error(s, reply, zipcclDaemonUnavailable, "%s", why);
        return;
    }
    memcpy(&id, m->unique_id.data, sizeof id); /* the length was checked when it was unpacked */
    if (id.magic != WIRE_UNIQUE_ID_MAGIC || memchr(id.root, '\0', sizeof id.root) == NULL) {
        session_error(s, reply, zipcclInvalidArgument, "this is not a unique id of zipccl");
        return;
    }
    struct join_request r = {
        .nranks = m->nranks, .rank = m->rank, .pid = (uint32_t)s->pid, .job = s->job->name, .uid = s->uid};
    struct comm *c;
    if (strcmp(id.root, d->advertise) == 0) {
        c = comm_root_get(d, id.key, id.nonce, m->nranks, &rc, why, sizeof why);
        if (c == NULL || (rc = join_accept(c, &r, why, sizeof why)) != zipcclSuccess) {
            session_error(s, reply, rc, "%s", why);
            return;
        }
    } else {
        c = comm_find(d, id.key);
        if (c == NULL && d->ncomms >= d->config.max_comms) {
            session_error(s, reply, zipcclLimitExceeded,
                          "node %s has %u communicators, the most that are allowed (max_comms)", d->config.node_name,
                          d->ncomms);
            return;
        }
        uint32_t of_user = job_usage(d, s->uid).comms;
        if (c == NULL && of_user >= d->config.max_comms_per_user) {
            session_error(s, reply, zipcclLimitExceeded,
                          "user %u has %u communicators on node %s, the most that are allowed (max_comms_per_user)",
                          s->uid, of_user, d->config.node_name);
            return;
        }
        if (c == NULL && (c = comm_new(d, id.key, id.nonce, s->job, m->nranks, false)) != NULL) {
            c->root_link = peer_dial(d, id.root);
            if (c->root_link == NULL) {
                comm_fail(c, NULL, zipcclSystemError, "cannot dial the communicator's root at '%s'", id.root);
                session_error(s, reply, zipcclSystemError, "%s", c->text);
                return;
            }
            c->root_link->ncomms++;
        }
        if (c == NULL || c->nonce != id.nonce || c->is_root) { /* is_root: the id names another daemon */
            session_error(s, reply, c == NULL ? zipcclOutOfMemory : zipcclInvalidArgument, "%s",
                          c == NULL ? "out of memory" : "the unique id does not match the communicator's");
            return;
        }
        if ((rc = join_check(c, &r, why, sizeof why)) != zipcclSuccess) {
            session_error(s, reply, rc, "%s", why);
            return;
        }
        c->ranks[m->rank].in = true;
        c->ranks[m->rank].node = COMM_NO_NODE;
        c->nin++;
    }
    int gpu = m->device.len == DEVICE_UUID_BYTES && d->device_ops->gpu_number != NULL
                  ? d->device_ops->gpu_number(d->device, m->device.data)
                  : -1;
    struct comm_member *member = comm_member_new(c, s, m->rank, reply);
    if (member == NULL) {
        session_error(s, reply, zipcclLimitExceeded, "this session has %u communicators, the most that are allowed",
                      s->comms.used);
        comm_fail(c, NULL, zipcclLimitExceeded, "rank %u could not join on node %s", m->rank, d->config.node_name);
        return;
    }
    member->gpu = gpu >= 0 && gpu < EXEC_NO_GPU ? (uint8_t)gpu : EXEC_NO_GPU;
    c->split_of = parent != NULL ? parent->key : 0;
    log_debug("rank joins (comm=%016" PRIx64 " job=%s rank=%u pid=%d)", c->key, c->job->name, m->rank, (int)s->pid);
    if (c->root_link != NULL && c->root_link->state == PEER_UP)
        join_announce(c, member);
    else if (c->is_root && c->nin == c->nranks)
        join_complete(c);
}

void comm_init(struct session *s, uint32_t reply, const Zipccl__CommInit *m) {
    struct wire_unique_id id;
    struct comm *parent = NULL;
    const char *why;
    if (s->job == NULL) {
        session_error(s, reply, zipcclInvalidUsage, "this session named no job: it cannot join a communicator");
        return;
    }
    memcpy(&id, m->unique_id.data, sizeof id);
    if (m->parent != 0 && !comm_split_come(s, m->parent, m->split, id.key, &parent, &why)) {
        session_error(s, reply, zipcclInvalidUsage, "%s", why);
        return;
    }
    join(s, reply, m, parent);
    if (parent != NULL)
        comm_split_look(parent); /* it may have been refused */
}

void comm_peer_join(struct peer_link *link, const Zipccl__Peer__PeerJoin *m) {
    struct daemon *d = link->daemon;
    zipcclResult_t rc = zipcclInternalError;
    char why[DAEMON_TEXT] = "";
    struct join_request r = {
        .link = link, .nranks = m->nranks, .rank = m->rank, .pid = m->pid, .job = m->job, .uid = m->uid, .wire = m};
    struct comm *c = comm_root_get(d, m->key, m->nonce, m->nranks, &rc, why, sizeof why);
    if (c != NULL)
        rc = join_accept(c, &r, why, sizeof why);
    if (c == NULL || rc != zipcclSuccess) {
        Zipccl__Peer__PeerAbort refuse = ZIPCCL__PEER__PEER_ABORT__INIT;
        refuse.key = m->key;
        refuse.result = (uint32_t)rc;
        refuse.text = why;
        refuse.refused = m->rank + 1;
        log_info("join refused: %s (comm=%016" PRIx64 " job=%s rank=%u peer=%s)", why, m->key, m->job, m->rank,
                 peer_name(link));
        peer_send(link, WIRE_PEER_ABORT, &refuse.base);
        return;
    }
    if (c->nin == c->nranks)
        join_complete(c);
}

void comm_peer_abort(struct peer_link *link, const Zipccl__Peer__PeerAbort *m) {
    struct comm *c = comm_find(link->daemon, m->key);
    bool takes_part = c != NULL && c->root_link == link;
    for (uint32_t i = 0; c != NULL && c->is_root && i < c->nnodes; i++)
        takes_part = takes_part || c->nodes[i].link == link;
    if (!takes_part)
        return;
    if (m->refused == 0 || c->state != COMM_JOINING) {
        /* What ended its messages may be what fails here, but waits for its last steps: that is the cause. */
        if (c->state != COMM_FAILED && comm_follows((zipcclResult_t)m->result) && comm_ops_failing(c, false))
            return;
        comm_fail(c, link, (zipcclResult_t)m->result, "%s", m->text);
        return;
    }
    uint32_t waiting = 0;
    for (uint32_t i = 0; i < c->nmembers; i++) {
        struct comm_member *member = c->members[i];
        if (member->rank == m->refused - 1 && member->session != NULL) {
            struct session *s = member->session;
            c->ranks[member->rank].in = false;
            c->nin--;
            comm_member_gone(member);
            session_error(s, member->reply_id, (zipcclResult_t)m->result, "%s", m->text);
        }
        waiting += member->session != NULL;
    }
    if (waiting == 0 && c->state == COMM_JOINING)
        comm_fail(c, link, (zipcclResult_t)m->result, "%s", m->text);
}

void comm_peer_leave(struct peer_link *link, const Zipccl__Peer__PeerLeave *m) {
    struct comm *c = comm_find(link->daemon, m->key);
    if (c == NULL || c->state != COMM_READY || m->rank >= c->nranks)
        return;
    uint32_t node = c->ranks[m->rank].node;
    if (c->root_link == link || (c->is_root && node < c->nnodes && c->nodes[node].link == link))
        comm_ops_left(c, m->rank, m->ops);
}

void comm_join_timeout(struct comm *c) {
    struct daemon *d = c->daemon;
    struct comm_names missing = {0};
    char number[96];
    double seconds = (double)d->config.join_timeout / 1000.0;
    if (!c->is_root) {
        comm_fail(c, NULL, zipcclTimeout, "node %s, the communicator's root, did not complete the join within %g s",
                  peer_name(c->root_link), seconds);
        return;
    }
    if (c->state == COMM_CONNECTING) {
        for (uint32_t i = 0; i < c->nnodes; i++) {
            if (!c->nodes[i].ready)
                comm_names_add(&missing, c->nodes[i].name);
        }
        comm_fail(c, NULL, zipcclTimeout, "all ranks joined, but nodes %s were not connected within %g s",
                  comm_names_end(&missing), seconds);
        return;
    }
    uint32_t count = 0;
    for (uint32_t r = 0; r < c->nranks; r++) {
        if (c->ranks[r].in)
            continue;
        count++;
        snprintf(number, sizeof number, "%u", r);
        comm_names_add(&missing, number);
    }
    comm_fail(c, NULL, zipcclTimeout, "rank%s %s did not join within %g s", count == 1 ? "" : "s",
              comm_names_end(&missing), seconds);
}

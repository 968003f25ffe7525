/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of a communicator on this node: creation, failure, leaving, the end.
 */
#include "daemon/core/comm.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/daemon.h"
#include "daemon/core/log.h"
#include "daemon/core/peer.h"
#include "daemon/core/session.h"
#include "proto/op.h"
#include "proto/result.h"

/* The links are read before each tick, so a daemon that was late itself has heard what came. With a tick of 100 ms this
 * is 100 to 200 ms. */
#define CAUSE_TICKS 1u

const char *comm_state_name(enum comm_state state) {
    static const char *const names[] = {"joining", "joining", "ready", "ready", "closing", "failed"};
    return names[state];
}

void comm_names_add(struct comm_names *n, const char *name) {
    int wrote = snprintf(n->text + n->used, sizeof n->text - n->used, "%s%s", n->listed > 0 ? ", " : "", name);
    if (wrote < 0 || (size_t)wrote + 24 >= sizeof n->text - n->used || n->more > 0) {
        n->text[n->used] = '\0';
        n->more++;
        return;
    }
    n->used += (size_t)wrote;
    n->listed++;
}

const char *comm_names_end(struct comm_names *n) {
    if (n->more > 0)
        snprintf(n->text + n->used, sizeof n->text - n->used, " and %u more", n->more);
    return n->text;
}

struct comm *comm_find(struct daemon *d, uint64_t key) {
    list_for_each(l, &d->comms) {
        struct comm *c = list_entry(l, struct comm, link);
        if (c->key == key)
            return c;
    }
    return NULL;
}

struct comm *comm_new(struct daemon *d, uint64_t key, uint64_t nonce, struct job *job, uint32_t nranks, bool is_root) {
    struct comm *c = calloc(1, sizeof *c);
    if (c == NULL)
        return NULL;
    c->ranks = calloc(nranks, sizeof *c->ranks);
    if (c->ranks == NULL) {
        free(c);
        return NULL;
    }
    c->daemon = d;
    c->key = key;
    c->nonce = nonce;
    c->job = job;
    job_ref(job);
    job->ncomms++;
    c->nranks = nranks;
    c->is_root = is_root;
    c->node = COMM_NO_NODE;
    c->seq = 1;
    c->left_after = UINT64_MAX;
    c->codec = d->codec;
    c->arm = d->arm;
    c->phases = d->phases;
    c->state = COMM_JOINING;
    list_init(&c->splits);
    /* Elsewhere than at the root the deadline is a safety net: the root's text is the better one. */
    c->join_deadline_ns = daemon_now_ns() + (d->config.join_timeout + (is_root ? 0 : 2000)) * 1000000ull;
    list_add_tail(&d->comms, &c->link);
    d->ncomms++;
    events_add(d->events, EVENT_COMM_NEW, job->name, key, "%u ranks%s", nranks, is_root ? ", made here" : "");
    return c;
}

struct comm_member *comm_member_new(struct comm *c, struct session *s, uint32_t rank, uint32_t reply_id) {
    struct comm_member **members = realloc(c->members, (c->nmembers + 1) * sizeof *members);
    struct comm_member *m = calloc(1, sizeof *m);
    if (members != NULL)
        c->members = members;
    if (members == NULL || m == NULL || (m->handle = handles_add(&s->comms, m)) == 0) {
        free(m);
        return NULL;
    }
    m->comm = c;
    m->session = s;
    m->rank = rank;
    m->pid = s->pid;
    m->reply_id = reply_id;
    m->next_seq = 1;
    list_add_tail(&s->members, &m->link);
    c->members[c->nmembers++] = m;
    c->present++;
    return m;
}

void comm_member_gone(struct comm_member *m) {
    if (m->session == NULL)
        return;
    (void)handles_remove(&m->session->comms, m->handle);
    list_del(&m->link);
    m->session = NULL;
    m->handle = 0;
    m->comm->present--;
}

void comm_describe_rank(const struct comm *c, uint32_t rank, char *text, size_t size) {
    const struct comm_member *m = NULL;
    const char *node = NULL;
    for (uint32_t i = 0; i < c->nmembers; i++) {
        if (c->members[i]->rank == rank)
            m = c->members[i];
    }
    if (m != NULL)
        node = c->daemon->config.node_name;
    else if (rank < c->nranks && c->rank_node != NULL && c->rank_node[rank] < c->nnodes)
        node = c->nodes[c->rank_node[rank]].name;
    else if (rank < c->nranks && c->ranks[rank].in && c->ranks[rank].node < c->nnodes)
        node = c->nodes[c->ranks[rank].node].name;
    if (m != NULL)
        snprintf(text, size, "rank %u (pid %d on node %s)", rank, (int)m->pid, node);
    else if (node != NULL)
        snprintf(text, size, "rank %u (on node %s)", rank, node);
    else
        snprintf(text, size, "rank %u", rank);
}

/* Of a failed communicator: answers the ranks that destroy it, once nothing of its last operation is under way. Until
 * then their buffers may be written; after the answer they never are. */
void comm_answer_leaving(struct comm *c) {
    for (uint32_t i = 0; i < c->nmembers && !comm_ops_running(c); i++) {
        if (c->members[i]->session != NULL && c->members[i]->state == MEMBER_LEAVING)
            comm_leave_done(c->members[i]);
    }
}

/* To all nodes that take part, but the one that it came from. */
static void comm_tell_abort(struct comm *c, const struct peer_link *origin) {
    Zipccl__Peer__PeerAbort abort = ZIPCCL__PEER__PEER_ABORT__INIT;
    abort.key = c->key;
    abort.result = (uint32_t)c->error;
    abort.text = c->text;
    if (c->root_link != NULL && c->root_link != origin)
        peer_send(c->root_link, WIRE_PEER_ABORT, &abort.base);
    for (uint32_t i = 0; c->is_root && i < c->nnodes; i++) {
        if (c->nodes[i].link != NULL && c->nodes[i].link != origin)
            peer_send(c->nodes[i].link, WIRE_PEER_ABORT, &abort.base);
    }
}

void comm_fail(struct comm *c, struct peer_link *origin, zipcclResult_t result, const char *format, ...) {
    struct daemon *d = c->daemon;
    va_list ap;
    if (c->state == COMM_FAILED)
        return;
    bool orderly = c->nleft == c->nranks && list_empty(&c->splits); /* nobody is left who could be hurt */
    va_start(ap, format);
    vsnprintf(c->text, sizeof c->text, format, ap);
    va_end(ap);
    comm_flight_look(c);
    c->error = result;
    c->state = COMM_FAILED;
    if (orderly)
        return;
    events_add(d->events, EVENT_COMM_FAILED, c->job->name, c->key, "%s (%s)", c->text, result_string(result));
    d->stats.counters[STATS_comms_failed]++;
    log_warn("communicator failed: %s (result=%d comm=%016" PRIx64 " job=%s nranks=%u)", c->text, (int)result, c->key,
             c->job->name, c->nranks);
    /* Clients first: they wait. */
    Zipccl__CommEvent event = ZIPCCL__COMM_EVENT__INIT;
    event.result = (uint32_t)result;
    event.text = c->text;
    for (uint32_t i = 0; i < c->nmembers; i++) {
        struct comm_member *m = c->members[i];
        if (m->session == NULL)
            continue;
        if (m->state == MEMBER_JOINING) {
            struct session *s = m->session;
            comm_member_gone(m); /* the client never got its handle */
            session_error(s, m->reply_id, result, "%s", c->text);
        } else {
            event.comm = m->handle;
            session_send_message(m->session, WIRE_COMM_EVENT, 0, &event.base);
        }
    }
    comm_tell_abort(c, origin);
    comm_split_fail(c);
    comm_ops_fail(c);
    comm_answer_leaving(c);
    /* Also where nothing runs here: other nodes may wait with messages of the next operation. */
    if (c->exec != NULL)
        exec_comm_abort(c->exec);
}

void comm_fail_soon(struct comm *c, zipcclResult_t result, const char *text) {
    if (c->state == COMM_FAILED || (c->state == COMM_FAILING && (result == zipcclAborted || c->error == result)))
        return;
    if (c->state != COMM_FAILING)
        c->ticks = CAUSE_TICKS;
    c->state = COMM_FAILING;
    c->error = result;
    snprintf(c->text, sizeof c->text, "%s", text);
}

/* What fails here tells so, though a step of it may take long; and nobody waits longer for what others know. */
static void tell_failing(struct comm *c) {
    char text[DAEMON_TEXT];
    if (comm_ops_failing(c, true) && c->state == COMM_FAILED)
        return;
    if (c->state != COMM_FAILING || c->ticks-- > 0)
        return;
    memcpy(text, c->text, sizeof text);
    comm_fail(c, NULL, c->error, "%s", text);
}

/* The rank's destroy is answered; its handle is gone. */
void comm_leave_done(struct comm_member *m) {
    struct comm *c = m->comm;
    struct session *s = m->session;
    uint32_t id = m->reply_id;
    m->state = MEMBER_LEFT;
    comm_member_gone(m);
    session_send(s, WIRE_OK, id, NULL, 0);
    if (c->state != COMM_READY && c->state != COMM_CLOSING)
        return;
    if (!c->is_root) {
        Zipccl__Peer__PeerLeave leave = ZIPCCL__PEER__PEER_LEAVE__INIT;
        leave.key = c->key;
        leave.rank = m->rank;
        leave.ops = m->called;
        peer_send(c->root_link, WIRE_PEER_LEAVE, &leave.base);
    }
    comm_ops_left(c, m->rank, m->called);
}

/* Fails what runs where a rank that left has not called it, and never will. */
static void fail_unmet(struct comm *c) {
    char who[120], what[48] = "";
    if (c->op_active && c->seq > c->left_after)
        comm_ops_current(c, what, sizeof what);
    for (uint32_t i = 0; i < c->nmembers && what[0] == '\0'; i++) {
        const struct comm_pending *p = comm_exchange_unmet(c->members[i]);
        if (p != NULL)
            snprintf(what, sizeof what, "%s #%" PRIu64, op_name(p->request.op), p->number);
    }
    if (what[0] == '\0')
        return;
    comm_describe_rank(c, c->left_rank, who, sizeof who);
    comm_fail(c, NULL, zipcclInvalidUsage, "%s left the communicator before %s", who, what);
}

/* A rank, here or elsewhere, called `ops` operations and left. */
void comm_ops_left(struct comm *c, uint32_t rank, uint64_t ops) {
    if (c->ranks[rank].left)
        return;
    c->ranks[rank].left = true;
    c->nleft++;
    if (ops < c->left_after) {
        c->left_after = ops;
        c->left_rank = rank;
    }
    if (c->is_root) {
        Zipccl__Peer__PeerLeave leave = ZIPCCL__PEER__PEER_LEAVE__INIT;
        leave.key = c->key;
        leave.rank = rank;
        leave.ops = ops;
        for (uint32_t i = 0; i < c->nnodes; i++) {
            if (c->nodes[i].link != NULL && i != c->ranks[rank].node)
                peer_send(c->nodes[i].link, WIRE_PEER_LEAVE, &leave.base);
        }
    }
    if (c->nleft == c->nranks) {
        log_debug("communicator ends (comm=%016" PRIx64 " job=%s)", c->key, c->job->name);
        c->state = COMM_CLOSING;
    } else {
        fail_unmet(c);
    }
}

void comm_destroy(struct session *s, uint32_t id, uint64_t handle) {
    struct comm_member *m = handles_get(&s->comms, handle);
    if (m == NULL || m->state == MEMBER_JOINING) {
        session_error(s, id, zipcclInvalidArgument, "unknown communicator %#" PRIx64, handle);
        return;
    }
    if (m->state == MEMBER_LEAVING) {
        session_error(s, id, zipcclInvalidUsage, "rank %u is being destroyed already", m->rank);
        return;
    }
    m->reply_id = id;
    m->state = MEMBER_LEAVING;
    if (m->group_open)
        comm_fail(m->comm, NULL, zipcclInvalidUsage, "rank %u left the communicator in the middle of a group", m->rank);
    else if (m->comm->state == COMM_FAILED)
        comm_answer_leaving(m->comm);
    else if (m->count == 0)
        comm_leave_done(m); /* else when its last operation is done */
}

void comm_abort(struct session *s, uint32_t id, uint64_t handle) {
    struct comm_member *m = handles_get(&s->comms, handle);
    if (m == NULL || m->state == MEMBER_JOINING) {
        session_error(s, id, zipcclInvalidArgument, "unknown communicator %#" PRIx64, handle);
        return;
    }
    struct comm *c = m->comm;
    char who[120];
    comm_describe_rank(c, m->rank, who, sizeof who);
    if (m->state == MEMBER_LEAVING) /* a destroy of another thread: it is answered too */
        session_send(s, WIRE_OK, m->reply_id, NULL, 0);
    m->reply_id = id;
    m->state = MEMBER_LEAVING;
    comm_fail(c, NULL, zipcclAborted, "%s aborted the communicator", who);
    comm_answer_leaving(c); /* it may have failed before */
}

void comm_session_gone(struct session *s) {
    char what[48];
    /* Failing a communicator may detach further members of this session. */
    while (!list_empty(&s->members)) {
        struct comm_member *m = list_entry(s->members.next, struct comm_member, link);
        struct comm *c = m->comm;
        uint32_t rank = m->rank;
        pid_t pid = m->pid;
        comm_ops_current(c, what, sizeof what);
        comm_member_gone(m);
        const char *node = c->daemon->config.node_name;
        if (c->state == COMM_JOINING || c->state == COMM_CONNECTING)
            comm_fail(c, NULL, zipcclRemoteError, "rank %u (pid %d on node %s) died before the communicator was ready",
                      rank, (int)pid, node);
        else if (what[0] != '\0')
            comm_fail(c, NULL, zipcclRemoteError, "rank %u (pid %d on node %s) died during %s", rank, (int)pid, node,
                      what);
        else
            comm_fail(c, NULL, zipcclRemoteError, "rank %u (pid %d on node %s) died without leaving the communicator",
                      rank, (int)pid, node);
    }
}

static void comm_member_free(struct comm_member *m) {
    free(m->queue);
    free(m->leases);
    free(m->transfers);
    free(m->numbers);
    free(m->calls);
    free(m->buffers);
    switcher_free(&m->switcher);
    free(m->sent);
    free(m->received);
    free(m);
}

static void comm_free(struct comm *c) {
    struct daemon *d = c->daemon;
    comm_profile_learn(c);
    comm_split_free(c);
    if (c->exec != NULL)
        exec_comm_free(c->exec);
    for (uint32_t i = 0; i < c->nnodes; i++) {
        if (c->peers != NULL && c->peers[i] != NULL)
            d->fabric_ops->disconnect(d->fabric, c->peers[i]);
        if (c->nodes[i].link != NULL)
            c->nodes[i].link->ncomms--;
        free(c->nodes[i].fabric);
    }
    if (c->root_link != NULL)
        c->root_link->ncomms--;
    for (uint32_t i = 0; i < c->nmembers; i++) {
        comm_member_free(c->members[i]);
    }
    list_del(&c->link);
    d->ncomms--;
    c->job->ncomms--;
    job_put(c->job);
    free(c->members);
    free(c->ranks);
    free(c->nodes);
    free(c->rank_node);
    free(c->peers);
    switcher_free(&c->switcher);
    free(c->profile);
    free(c);
}

void comm_reap(struct daemon *d) {
    list_for_each_safe(l, &d->comms) {
        struct comm *c = list_entry(l, struct comm, link);
        if ((c->state == COMM_FAILED || c->state == COMM_CLOSING) && c->present == 0 && !comm_ops_running(c) &&
            !c->probing && list_empty(&c->splits))
            comm_free(c);
    }
}

/* An id that nobody used, of a job without sessions, must not keep the job. */
static void comm_expire_ids(struct daemon *d, uint64_t now_ns) {
    list_for_each_safe(l, &d->ids) {
        struct comm_id *id = list_entry(l, struct comm_id, link);
        if (id->job->nsessions > 0 || now_ns < id->made_ns + COMM_ID_LIFE_NS)
            continue;
        list_del(&id->link);
        job_put(id->job);
        free(id);
        d->nids--;
    }
}

void comm_tick(struct daemon *d, uint64_t now_ns) {
    uint64_t limit = d->config.op_timeout * 1000000ull;
    char what[48], number[16];
    comm_expire_ids(d, now_ns);
    list_for_each_safe(l, &d->comms) {
        struct comm *c = list_entry(l, struct comm, link);
        if ((c->state == COMM_JOINING || c->state == COMM_CONNECTING) && now_ns > c->join_deadline_ns)
            comm_join_timeout(c);
        if (c->state == COMM_READY || c->state == COMM_FAILING)
            tell_failing(c);
        comm_split_look(c); /* a rank may have left, or what it was to join may have ended */
        uint64_t since = comm_ops_since(c);
        if (c->state != COMM_READY || since == UINT64_MAX || limit == 0 || now_ns - since < limit)
            continue;
        struct comm_names ranks = {0}, nodes = {0};
        comm_ops_current(c, what, sizeof what);
        for (uint32_t i = 0; i < c->nmembers; i++) {
            snprintf(number, sizeof number, "%u", c->members[i]->rank);
            if (c->op_active && !c->members[i]->arrived)
                comm_names_add(&ranks, number);
        }
        for (uint32_t i = 0; i < c->nnodes; i++) {
            if (i != c->node)
                comm_names_add(&nodes, c->nodes[i].name);
        }
        double seconds = (double)d->config.op_timeout / 1000.0;
        if (ranks.listed > 0)
            comm_fail(c, NULL, zipcclTimeout, "%s timed out after %g s: on node %s ranks %s have not called it", what,
                      seconds, d->config.node_name, comm_names_end(&ranks));
        else if (c->op_active)
            comm_fail(c, NULL, zipcclTimeout,
                      "%s timed out after %g s: all ranks on node %s have called it; it waits for nodes %s", what,
                      seconds, d->config.node_name, comm_names_end(&nodes));
        else
            comm_fail(c, NULL, zipcclTimeout,
                      "%s timed out after %g s: it waits for other ranks, which have not called it or differ in it",
                      what, seconds);
    }
}

void comm_link_lost(struct peer_link *link, const char *why) {
    list_for_each_safe(l, &link->daemon->comms) {
        struct comm *c = list_entry(l, struct comm, link);
        bool uses = c->root_link == link;
        for (uint32_t i = 0; !uses && c->is_root && i < c->nnodes; i++)
            uses = c->nodes[i].link == link;
        if (!uses || c->state == COMM_FAILED)
            continue;
        if (c->state == COMM_CLOSING)
            continue; /* all have left */
        comm_fail(c, link, zipcclRemoteError, "node %s lost node %s: %s", c->daemon->config.node_name, peer_name(link),
                  why);
    }
}

bool comm_drain(struct daemon *d, bool now) {
    bool left = false;
    list_for_each_safe(l, &d->comms) {
        struct comm *c = list_entry(l, struct comm, link);
        if (c->state != COMM_FAILED && c->state != COMM_CLOSING) {
            if (now || (c->state != COMM_READY && c->state != COMM_FAILING) || comm_ops_idle(c))
                comm_fail(c, NULL, zipcclDaemonUnavailable, "zipccld on node %s is shutting down", d->config.node_name);
        }
        left = left || (c->state != COMM_FAILED && c->state != COMM_CLOSING) || comm_ops_running(c) || c->probing ||
               !list_empty(&c->splits);
    }
    return !left;
}

void comm_drop_ids(struct daemon *d) {
    list_for_each_safe(l, &d->ids) {
        struct comm_id *id = list_entry(l, struct comm_id, link);
        list_del(&id->link);
        job_put(id->job);
        free(id);
    }
    d->nids = 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The UCX fabric as the loop sees it: open, close, orders to the progress thread, completions.
 *
 * Peers stay connected after their last disconnect, for most come back; one that failed is replaced by the next
 * connect.
 */
#include "daemon/fabric/ucx.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <ucs/debug/log_def.h>
#include <unistd.h>

#define DEFAULT_TLS "tcp,self"

uint64_t ucx_now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

void ucx_wake(int fd) {
    uint64_t one = 1;
    ssize_t n;
    do {
        n = write(fd, &one, sizeof(one));
    } while (n < 0 && errno == EINTR);
}

/* UCX prints what we report by results; its words would only alarm. */
static ucs_log_func_rc_t quiet_log(const char *file, unsigned line, const char *function, ucs_log_level_t level,
                                   const ucs_log_component_config_t *component, const char *message, va_list ap) {
    (void)file;
    (void)line;
    (void)function;
    (void)component;
    (void)message;
    (void)ap;
    return level == UCS_LOG_LEVEL_FATAL ? UCS_LOG_FUNC_RC_CONTINUE : UCS_LOG_FUNC_RC_STOP;
}

static void silence(void) {
    if (!getenv("UCX_LOG_LEVEL"))
        ucs_log_push_handler(quiet_log);
}

static const char *configure(const struct fabric_config *config, ucp_config_t *ucp) {
    if (ucp_config_modify(ucp, "TLS", config->tls && *config->tls ? config->tls : DEFAULT_TLS) != UCS_OK)
        return "UCX does not take the list of transports";
    if (config->net_devices && *config->net_devices &&
        ucp_config_modify(ucp, "NET_DEVICES", config->net_devices) != UCS_OK)
        return "UCX does not take the list of network devices";
    /* Refinements: a version of UCX that does not know one runs without. */
    static const struct { const char *name, *value; } more[] = {{"KEEPALIVE_INTERVAL", "5s"}};
    for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++)
        (void)ucp_config_modify(ucp, more[i].name, more[i].value);
    return NULL;
}

static zipcclResult_t open_worker(struct fabric *f, const struct fabric_config *config, const char **why) {
    ucp_config_t *ucp = NULL;
    if (ucp_config_read(NULL, NULL, &ucp) != UCS_OK) {
        *why = "UCX cannot read its configuration";
        return zipcclSystemError;
    }
    *why = configure(config, ucp);
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP};
    ucs_status_t status = *why ? UCS_ERR_INVALID_PARAM : ucp_init(&params, ucp, &f->context);
    ucp_config_release(ucp);
    if (status != UCS_OK) {
        f->context = NULL;
        if (!*why)
            *why = "UCX does not start: no such transport or device?";
        return zipcclInvalidArgument;
    }
    ucp_worker_params_t wp = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                              .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    ucp_am_handler_param_t message = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                                                    UCP_AM_HANDLER_PARAM_FIELD_ARG,
                                      .id = UCX_AM_MESSAGE,
                                      .cb = ucx_on_message,
                                      .arg = f};
    ucp_am_handler_param_t hello = message;
    hello.id = UCX_AM_HELLO;
    hello.cb = ucx_on_hello;
    ucp_am_handler_param_t ask = message;
    ask.id = UCX_AM_ASK;
    ask.cb = ucx_on_ask;
    ucp_am_handler_param_t piece = message;
    piece.id = UCX_AM_PIECE;
    piece.cb = ucx_on_piece;
    *why = "UCX cannot set up its worker";
    if (ucp_worker_create(f->context, &wp, &f->worker) != UCS_OK) {
        f->worker = NULL;
        return zipcclSystemError;
    }
    if (ucp_worker_set_am_recv_handler(f->worker, &message) != UCS_OK ||
        ucp_worker_set_am_recv_handler(f->worker, &hello) != UCS_OK ||
        ucp_worker_set_am_recv_handler(f->worker, &ask) != UCS_OK ||
        ucp_worker_set_am_recv_handler(f->worker, &piece) != UCS_OK ||
        ucp_worker_get_efd(f->worker, &f->ucx_fd) != UCS_OK ||
        ucp_worker_get_address(f->worker, &f->address, &f->address_bytes) != UCS_OK)
        return zipcclSystemError;
    *why = NULL;
    return zipcclSuccess;
}

static void ucx_close(struct fabric *f) {
    if (f->started) {
        pthread_mutex_lock(&f->order_lock);
        f->stop = true;
        pthread_mutex_unlock(&f->order_lock);
        ucx_wake(f->order_fd);
        pthread_join(f->thread, NULL);
    }
    ucx_drop_early(f);
    if (f->address)
        ucp_worker_release_address(f->worker, f->address);
    if (f->worker)
        ucp_worker_destroy(f->worker);
    if (f->context)
        ucp_cleanup(f->context);
    /* Of what is still queued only orders are ours. */
    struct ucx_link *link;
    while ((link = ucx_queue_pop(&f->orders))) {
        if (link->kind == UCX_FLOW_END)
            free(((struct ucx_order *)(void *)link)->owner);
        if (link->kind != UCX_SEND && link->kind != UCX_RECV)
            free(link);
    }
    ucx_flow_free_all(f);
    ucx_piece_free_all(f);
    while (f->peers) {
        struct fabric_peer *peer = f->peers;
        f->peers = peer->next;
        free(peer);
    }
    if (f->order_fd >= 0)
        close(f->order_fd);
    if (f->done_fd >= 0)
        close(f->done_fd);
    pthread_mutex_destroy(&f->order_lock);
    pthread_mutex_destroy(&f->done_lock);
    free(f);
}

static zipcclResult_t ucx_open(const struct fabric_config *config, struct fabric **fabric, const char **why) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    *fabric = NULL;
    *why = "out of memory";
    struct fabric *f = calloc(1, sizeof(*f));
    if (!f)
        return zipcclOutOfMemory;
    pthread_once(&once, silence);
    f->ucx_fd = f->order_fd = f->done_fd = -1;
    ucx_queue_init(&f->orders);
    ucx_queue_init(&f->done);
    ucx_queue_init(&f->finished);
    pace_init(&f->pace, config->link_rate_bits);
    flow_init(&f->flow);
    pthread_mutex_init(&f->order_lock, NULL);
    pthread_mutex_init(&f->done_lock, NULL);
    snprintf(f->describe, sizeof(f->describe), "ucx %s: %s", ucp_get_version_string(),
             config->tls && *config->tls ? config->tls : DEFAULT_TLS);
    zipcclResult_t result = open_worker(f, config, why);
    if (result)
        goto fail;
    result = zipcclSystemError;
    *why = "no descriptors or threads left";
    f->order_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    f->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (f->order_fd < 0 || f->done_fd < 0)
        goto fail;
    sigset_t all, before; /* signals belong to the loop */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    f->started = pthread_create(&f->thread, NULL, ucx_progress_main, f) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!f->started)
        goto fail;
    pthread_setname_np(f->thread, "zipccl-fabric");
    *why = NULL;
    *fabric = f;
    return zipcclSuccess;
fail:
    ucx_close(f);
    return result;
}

void ucx_order_push(struct fabric *f, struct ucx_link *link, enum ucx_kind kind) {
    link->kind = kind;
    pthread_mutex_lock(&f->order_lock);
    ucx_queue_push(&f->orders, link);
    pthread_mutex_unlock(&f->order_lock);
    if (atomic_exchange(&f->sleeping, false))
        ucx_wake(f->order_fd);
}

static zipcclResult_t order_value(struct fabric *f, enum ucx_kind kind, uint64_t value) {
    struct ucx_order *o = calloc(1, sizeof(*o));
    if (!o)
        return zipcclOutOfMemory;
    o->value = value;
    ucx_order_push(f, &o->link, kind);
    return zipcclSuccess;
}

static zipcclResult_t order_peer(struct fabric *f, enum ucx_kind kind, struct fabric_peer *peer, const uint8_t *token) {
    struct ucx_order *o = calloc(1, sizeof(*o));
    if (!o)
        return zipcclOutOfMemory;
    o->peer = peer;
    memcpy(o->token, token, sizeof(o->token));
    ucx_order_push(f, &o->link, kind);
    return zipcclSuccess;
}

static const void *ucx_address(const struct fabric *f, size_t *bytes) {
    *bytes = f->address_bytes;
    return f->address;
}

static zipcclResult_t ucx_connect(struct fabric *f, const void *address, size_t bytes,
                                  const struct fabric_tokens *tokens, struct fabric_peer **out) {
    *out = NULL;
    if (bytes == 0 || !address)
        return zipcclInvalidArgument;
    for (struct fabric_peer *p = f->peers; p; p = p->next) {
        if (p->address_bytes == bytes && memcmp(p->address, address, bytes) == 0 && !atomic_load(&p->failed)) {
            zipcclResult_t result = order_peer(f, UCX_EXPECT, p, tokens->expect);
            if (result)
                return result;
            p->refs++;
            *out = p;
            return zipcclSuccess;
        }
    }
    struct fabric_peer *peer = calloc(1, sizeof(*peer) + bytes);
    if (!peer)
        return zipcclOutOfMemory;
    peer->fabric = f;
    peer->refs = 1;
    atomic_init(&peer->failed, false);
    peer->address_bytes = bytes;
    memcpy(peer->address, address, bytes);
    memcpy(peer->show, tokens->show, sizeof(peer->show));
    zipcclResult_t result = order_peer(f, UCX_CONNECT, peer, tokens->expect);
    if (result) {
        free(peer);
        return result;
    }
    peer->next = f->peers;
    f->peers = peer;
    *out = peer;
    return zipcclSuccess;
}

static void ucx_disconnect(struct fabric *f, struct fabric_peer *peer) {
    (void)f;
    if (peer->refs > 0)
        peer->refs--;
}

/* Those of a message that it announces are counted by who carries it. */
static size_t counted_bytes(const struct fabric_send *send) {
    return send->carried ? 0 : ucx_send_bytes(send);
}

static void ucx_send(struct fabric *f, struct fabric_send *send) {
    ucx_flow_begin(send->flow, counted_bytes(send));
    ucx_order_push(f, &ucx_send_of(send)->link, UCX_SEND);
}

static void ucx_recv(struct fabric *f, struct fabric_recv *recv) {
    ucx_order_push(f, ucx_recv_link(recv), UCX_RECV);
}

/* Also forget: a communicator that is over has nothing left to abort, and late messages are dropped alike. */
static void ucx_abort(struct fabric *f, uint64_t comm) {
    zipcclResult_t ignored = order_value(f, UCX_KILL_COMM, comm);
    (void)ignored;
}

static void ucx_set_link_rate(struct fabric *f, uint64_t bits) {
    zipcclResult_t ignored = order_value(f, UCX_RATE, bits);
    (void)ignored;
}

static int ucx_get_fd(const struct fabric *f) {
    return f->done_fd;
}

static void ucx_poll(struct fabric *f) {
    uint64_t count;
    ssize_t n = read(f->done_fd, &count, sizeof(count));
    (void)n; /* nothing to read: the list says what there is */
    pthread_mutex_lock(&f->done_lock);
    struct ucx_link *link = f->done.head;
    ucx_queue_init(&f->done);
    pthread_mutex_unlock(&f->done_lock);
    while (link) {
        struct ucx_link *next = link->next; /* done may free or reuse it */
        zipcclResult_t result = (zipcclResult_t)link->result;
        if (link->kind == UCX_SEND) {
            struct fabric_send *send = ucx_send_from(link);
            ucx_flow_end(f, send->flow, counted_bytes(send), result == zipcclSuccess);
            send->done(send, result);
        } else {
            struct fabric_recv *recv = ucx_recv_from(link);
            recv->done(recv, result);
        }
        link = next;
    }
}

static const struct heartbeat *ucx_heartbeat(const struct fabric *f) {
    return &f->heartbeat;
}

static void ucx_describe(const struct fabric *f, char *text, size_t size) {
    snprintf(text, size, "%s", f->describe);
}

static void ucx_counters(const struct fabric *f, uint64_t *sent_bytes, uint64_t *received_bytes) {
    *sent_bytes = atomic_load_explicit(&f->sent_bytes, memory_order_relaxed);
    *received_bytes = atomic_load_explicit(&f->received_bytes, memory_order_relaxed);
}

const struct fabric_ops fabric_ucx = {
    .name = "ucx",
    .open = ucx_open,
    .close = ucx_close,
    .address = ucx_address,
    .connect = ucx_connect,
    .disconnect = ucx_disconnect,
    .send = ucx_send,
    .recv = ucx_recv,
    .abort = ucx_abort,
    .forget = ucx_abort,
    .set_link_rate = ucx_set_link_rate,
    .flow_open = ucx_flow_open,
    .flow_set = ucx_flow_set,
    .flow_close = ucx_flow_close,
    .flow_bytes = ucx_flow_bytes,
    .fd = ucx_get_fd,
    .poll = ucx_poll,
    .describe = ucx_describe,
    .heartbeat = ucx_heartbeat,
    .counters = ucx_counters,
};

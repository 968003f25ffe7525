/* SPDX-License-Identifier: Apache-2.0
 *
 * Serves metrics over HTTP, by libmicrohttpd driven from the daemon's loop: its epoll descriptor is polled by libuv, so
 * that all of it runs on the loop thread and nothing waits.
 *
 * Bounds: HTTP_MAX_CONNECTIONS, each with HTTP_MEMORY bytes and HTTP_LIFE_NS to be done, less where others wait for its
 * place; one answer a connection; a text is made at most every HTTP_FRESH_NS and shared by all who read it, and at most
 * HTTP_MAX_TEXTS exist.
 */
#include "daemon/core/metrics.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/config.h"
#include "daemon/core/daemon.h"
#include "daemon/core/log.h"

#ifdef ZIPCCL_HAVE_MICROHTTPD
#    include <arpa/inet.h>
#    include <microhttpd.h>
#    include <netdb.h>
#    include <netinet/in.h>
#    include <sys/socket.h>
#    include <unistd.h>

#    define HTTP_MAX_CONNECTIONS 16u
#    define HTTP_MEMORY          (16u << 10)
#    define HTTP_MAX_TEXTS       4u
#    define HTTP_FRESH_NS        200000000ull
#    define HTTP_LIFE_NS         10000000000ull
#    define HTTP_CROWDED_NS      500000000ull /* of a connection while all places are taken */
#    define HTTP_TICK_MS         250
#    define HTTP_IDLE_S          10u

struct http_text {
    struct metrics_http *http;
    struct metrics_text text;
};

struct http_connection {
    int fd; /* -1: free */
    uint64_t since_ns;
};

struct metrics_http {
    struct daemon *daemon;
    struct MHD_Daemon *server;
    uv_poll_t poll;
    uv_timer_t timer, tick;
    bool freed; /* a place; MHD sees to its listener, which it let alone while all were taken, when it runs next */
    unsigned closing; /* handles that are not closed yet */
    struct http_connection connections[HTTP_MAX_CONNECTIONS];
    unsigned nconnections, ntexts;
    struct {
        struct MHD_Response *response; /* NULL: none yet */
        uint64_t made_ns;
    } fresh[2]; /* by whether it is OpenMetrics */
};

static void http_text_free(void *arg) {
    struct http_text *t = arg;
    t->http->ntexts--;
    metrics_text_free(&t->text);
    free(t);
}

static struct MHD_Response *http_render(struct metrics_http *m, bool openmetrics) {
    struct http_text *t = m->ntexts < HTTP_MAX_TEXTS ? calloc(1, sizeof *t) : NULL;
    struct MHD_Response *response = NULL;
    struct metrics_view view;
    if (t == NULL)
        return NULL;
    t->http = m;
    t->text.openmetrics = openmetrics;
    m->ntexts++;
    metrics_gather(m->daemon, &view);
    metrics_render(&view, &t->text);
    if (!t->text.failed)
        response =
            MHD_create_response_from_buffer_with_free_callback_cls(t->text.used, t->text.data, http_text_free, t);
    if (response == NULL) {
        http_text_free(t);
        return NULL;
    }
    const char *type = openmetrics ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                                   : "text/plain; version=0.0.4; charset=utf-8";
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    return response;
}

/* NULL: too many texts are being read, or no memory. */
static struct MHD_Response *http_metrics(struct metrics_http *m, bool openmetrics) {
    uint64_t now_ns = daemon_now_ns();
    struct MHD_Response **response = &m->fresh[openmetrics].response;
    if (*response != NULL && now_ns - m->fresh[openmetrics].made_ns < HTTP_FRESH_NS)
        return *response;
    if (*response != NULL)
        MHD_destroy_response(*response); /* who reads it holds it */
    *response = http_render(m, openmetrics);
    m->fresh[openmetrics].made_ns = now_ns;
    return *response;
}

static enum MHD_Result http_say(struct MHD_Connection *connection, unsigned status, const char *text) {
    struct MHD_Response *response =
        MHD_create_response_from_buffer(strlen(text), (void *)(uintptr_t)text, MHD_RESPMEM_PERSISTENT);
    if (response == NULL)
        return MHD_NO;
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, "text/plain; charset=utf-8");
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
        (void)MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    enum MHD_Result queued = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return queued;
}

static enum MHD_Result http_request(void *arg, struct MHD_Connection *connection, const char *url, const char *method,
                                    const char *version, const char *upload, size_t *upload_bytes, void **request) {
    struct metrics_http *m = arg;
    (void)version;
    (void)upload;
    (void)upload_bytes;
    (void)request;
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return http_say(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "Only GET and HEAD.\n");
    if (strcmp(url, "/") == 0)
        return http_say(connection, MHD_HTTP_OK, "zipccld: metrics are at /metrics\n");
    if (strcmp(url, "/metrics") != 0)
        return http_say(connection, MHD_HTTP_NOT_FOUND, "Nothing here: metrics are at /metrics\n");
    const char *accept = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_ACCEPT);
    struct MHD_Response *response = http_metrics(m, metrics_wants_openmetrics(accept));
    if (response == NULL)
        return http_say(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "Too many readers, or no memory: try again.\n");
    return MHD_queue_response(connection, MHD_HTTP_OK, response);
}

/* MHD's own time-out is of silence alone; this one also ends who sends or reads a byte at a time. MHD sees the end of
 * the connection and closes it. */
static void http_tick(uv_timer_t *timer) {
    struct metrics_http *m = timer->data;
    uint64_t now_ns = daemon_now_ns();
    uint64_t most_ns = m->nconnections == HTTP_MAX_CONNECTIONS ? HTTP_CROWDED_NS : HTTP_LIFE_NS;
    for (unsigned i = 0; i < HTTP_MAX_CONNECTIONS; i++) {
        struct http_connection *c = &m->connections[i];
        if (c->fd >= 0 && now_ns - c->since_ns >= most_ns)
            (void)shutdown(c->fd, SHUT_RDWR);
    }
}

static void http_connection(void *arg, struct MHD_Connection *connection, void **place,
                            enum MHD_ConnectionNotificationCode code) {
    struct metrics_http *m = arg;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        struct http_connection *c = *place;
        if (c != NULL) {
            c->fd = -1;
            m->freed = true;
            if (--m->nconnections == 0)
                (void)uv_timer_stop(&m->tick);
        }
        return;
    }
    for (unsigned i = 0; i < HTTP_MAX_CONNECTIONS && info != NULL; i++) {
        struct http_connection *c = &m->connections[i];
        if (c->fd >= 0)
            continue;
        *c = (struct http_connection){.fd = info->connect_fd, .since_ns = daemon_now_ns()};
        *place = c;
        if (m->nconnections++ == 0)
            (void)uv_timer_start(&m->tick, http_tick, HTTP_TICK_MS, HTTP_TICK_MS);
        return;
    }
}

static void http_timer(uv_timer_t *timer);

static void http_work(struct metrics_http *m) {
    MHD_UNSIGNED_LONG_LONG wait_ms;
    m->freed = false;
    (void)MHD_run(m->server);
    if (m->freed)
        (void)uv_timer_start(&m->timer, http_timer, 0, 0);
    else if (MHD_get_timeout(m->server, &wait_ms) == MHD_YES)
        (void)uv_timer_start(&m->timer, http_timer, wait_ms, 0);
    else
        (void)uv_timer_stop(&m->timer);
}

static void http_timer(uv_timer_t *timer) {
    http_work(timer->data);
}

static void http_ready(uv_poll_t *poll, int status, int events) {
    (void)status;
    (void)events;
    http_work(poll->data);
}

/* A socket that listens; its address as text. -1: the reason is logged. */
static int http_listen(const char *where, char *text, size_t size) {
    char host[96], service[8];
    unsigned port;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    struct sockaddr_storage bound;
    socklen_t length = sizeof bound;
    int fd = -1, one = 1;
    if (!config_split_hostport(where, host, sizeof host, &port))
        return -1;
    snprintf(service, sizeof service, "%u", port);
    int rc = getaddrinfo(host, service, &hints, &found);
    if (rc != 0) {
        log_warn("metrics_listen: cannot resolve '%s': %s; no metrics", host, gai_strerror(rc));
        return -1;
    }
    fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0)
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (fd < 0 || bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, 64) != 0 ||
        getsockname(fd, (struct sockaddr *)&bound, &length) != 0 ||
        getnameinfo((struct sockaddr *)&bound, length, host, sizeof host, service, sizeof service,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        log_warn("metrics_listen: cannot listen on %s: %s; no metrics", where, strerror(errno));
        if (fd >= 0)
            close(fd);
        fd = -1;
    } else {
        snprintf(text, size, strchr(host, ':') != NULL ? "[%s]:%s" : "%s:%s", host, service);
    }
    freeaddrinfo(found);
    return fd;
}

static struct MHD_Daemon *http_serve(struct metrics_http *m, int fd) {
    /* Without a thread, and without a log: what clients do wrong is their affair. */
    return MHD_start_daemon(MHD_USE_EPOLL, 0, NULL, NULL, http_request, m, MHD_OPTION_LISTEN_SOCKET, (MHD_socket)fd,
                            MHD_OPTION_CONNECTION_LIMIT, HTTP_MAX_CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT,
                            HTTP_IDLE_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HTTP_MEMORY,
                            MHD_OPTION_NOTIFY_CONNECTION, http_connection, m, MHD_OPTION_END);
}

struct metrics_http *metrics_http_open(struct daemon *d) {
    char where[128] = "";
    if (d->config.metrics_listen[0] == '\0')
        return NULL;
    struct metrics_http *m = calloc(1, sizeof *m);
    int fd = m != NULL ? http_listen(d->config.metrics_listen, where, sizeof where) : -1;
    if (fd < 0) {
        free(m);
        return NULL;
    }
    m->daemon = d;
    for (unsigned i = 0; i < HTTP_MAX_CONNECTIONS; i++)
        m->connections[i].fd = -1;
    m->server = http_serve(m, fd);
    const union MHD_DaemonInfo *info =
        m->server != NULL ? MHD_get_daemon_info(m->server, MHD_DAEMON_INFO_EPOLL_FD) : NULL;
    if (info == NULL || uv_poll_init(&d->loop, &m->poll, info->epoll_fd) != 0) {
        log_warn("metrics_listen: libmicrohttpd does not start; no metrics");
        if (m->server != NULL)
            MHD_stop_daemon(m->server);
        else
            close(fd);
        free(m);
        return NULL;
    }
    (void)uv_timer_init(&d->loop, &m->timer); /* these cannot fail */
    (void)uv_timer_init(&d->loop, &m->tick);
    m->poll.data = m->timer.data = m->tick.data = m;
    (void)uv_poll_start(&m->poll, UV_READABLE, http_ready);
    log_info("metrics are at http://%s/metrics", where);
    return m;
}

static void http_closed(uv_handle_t *handle) {
    struct metrics_http *m = handle->data;
    if (--m->closing == 0)
        free(m);
}

void metrics_http_close(struct metrics_http *m) {
    if (m == NULL)
        return;
    m->closing = 3;
    uv_close((uv_handle_t *)&m->poll, http_closed);
    uv_close((uv_handle_t *)&m->timer, http_closed);
    uv_close((uv_handle_t *)&m->tick, http_closed);
    MHD_stop_daemon(m->server); /* its connections, too */
    for (unsigned i = 0; i < 2; i++) {
        if (m->fresh[i].response != NULL)
            MHD_destroy_response(m->fresh[i].response);
    }
}
#else
struct metrics_http *metrics_http_open(struct daemon *d) {
    if (d->config.metrics_listen[0] != '\0')
        log_info("no metrics: this zipccld was built without libmicrohttpd");
    return NULL;
}

void metrics_http_close(struct metrics_http *m) {
    (void)m;
}
#endif

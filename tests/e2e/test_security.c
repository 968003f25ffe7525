/* SPDX-License-Identifier: Apache-2.0
 *
 * Who may talk to a daemon as a daemon: keys that fit and do not, impostors, secrets in logs; what the daemon
 * itself may do once it has dropped root; and what trainers of other users may not.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "collect.h"
#include "impostor.h"
#include "kernels/format.h"
#include "peer.pb-c.h"
#include "raw.h"

#define KEY_A "a3f19c5e770b42d8961ed4085bc27fa3a3f19c5e770b42d8961ed4085bc27f01"
#define KEY_B "5be0cd19137e2179a54ff53a3c6ef372510e527f9b05688c1f83d9abfb41bd6b"

static const uint8_t key_a[32] = {0xa3, 0xf1, 0x9c, 0x5e, 0x77, 0x0b, 0x42, 0xd8, 0x96, 0x1e, 0xd4,
                                  0x08, 0x5b, 0xc2, 0x7f, 0xa3, 0xa3, 0xf1, 0x9c, 0x5e, 0x77, 0x0b,
                                  0x42, 0xd8, 0x96, 0x1e, 0xd4, 0x08, 0x5b, 0xc2, 0x7f, 0x01};

static void write_key(const struct e2e *e, const char *name, const char *digits) {
    char path[96];
    snprintf(path, sizeof(path), "%s/%s", e->dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    E2E_CHECK(fd >= 0 && write(fd, digits, strlen(digits)) == (ssize_t)strlen(digits), "%s: %s", path, strerror(errno));
    close(fd);
}

/* Starts a node with this key file ("" none), beside what was set before. */
static void start_with(struct e2e *e, unsigned node, const char *name) {
    unsigned before = e->nsettings;
    if (name[0] != '\0')
        e2e_set(e, "peer_key_file=%s/%s", e->dir, name);
    e2e_daemon_start(e, node);
    e->nsettings = before;
}

static bool log_has(const struct e2e *e, unsigned node, const char *what) {
    char *text = e2e_read_file(e->daemons[node].log);
    bool has = strstr(text, what) != NULL;
    free(text);
    return has;
}

/* What is logged soon. */
static void expect_log(const struct e2e *e, unsigned node, const char *what) {
    double end = e2e_now() + 5 * E2E_SLOW;
    while (!log_has(e, node, what)) {
        E2E_CHECK(e2e_now() < end, "the log of node %u does not say '%s'", node, what);
        e2e_sleep(0.01);
    }
}

static char *listen_of(const struct e2e *e, unsigned node) {
    Zipccl__Status *status = raw_status(e->daemons[node].socket);
    char *listen = strdup(status->listen);
    zipccl__status__free_unpacked(status, NULL);
    return listen;
}

static void joining_rank(struct e2e_rank *r) {
    zipcclUniqueId id = e2e_id(r);
    zipcclComm_t comm = NULL;
    double start = e2e_now();
    zipcclResult_t rc = zipcclCommInitRank(&comm, r->nranks, id, r->rank);
    e2e_report(r, rc, NULL, start);
    if (rc == zipcclSuccess)
        zipcclCommDestroy(comm);
}

/* A join between two nodes fails, on the one that dials at once, with a text that names the cause; both logs do. */
static void expect_strangers(struct e2e *e, const char *rank_says, const char *root_log, const char *other_log) {
    struct e2e_group g;
    e2e_start(e, &g, "01", joining_rank, NULL);
    e2e_wait_rank(e, &g, 1, 20);
    e2e_expect(&g, 1, zipcclRemoteError, 10, rank_says, NULL);
    kill(g.pids[0], SIGKILL); /* it would wait until the join times out */
    e2e_wait(e, &g, 20);
    expect_log(e, 0, root_log);
    expect_log(e, 1, other_log);
}

static void case_keys(struct e2e *e) {
    write_key(e, "a", KEY_A "\n");
    write_key(e, "b", KEY_B);
    start_with(e, 0, "a");
    start_with(e, 1, "b");
    expect_strangers(e, "key differs", "key differs", "key differs");
    E2E_CHECK(raw_counter(e->daemons[0].socket, "peers_refused") > 0, "node 0 counts no refusal");
    char line[192];
    snprintf(line, sizeof(line), "%s/zipcclctl events --socket %s | grep -q 'peer-refused.*key differs'",
             ZIPCCL_TEST_BIN, e->daemons[0].socket);
    E2E_CHECK(system(line) == 0, "no event tells of it");
    e2e_daemon_stop(e, 1, 10);
    start_with(e, 1, "");
    expect_strangers(e, "it wants a key, and this node has none", "it has no key, and this node wants one",
                     "it wants a key, and this node has none");
    e2e_daemon_stop(e, 0, 10);
    start_with(e, 0, "");
    e2e_daemon_stop(e, 1, 10);
    start_with(e, 1, "a");
    expect_strangers(e, "it has no key, and this node wants one", "it wants a key, and this node has none",
                     "it has no key, and this node wants one");
    /* The same key. */
    e2e_daemon_stop(e, 0, 10);
    start_with(e, 0, "a");
    e2e_alive(e);
}
E2E_CASE(keys, 60)

/* Fails where one of the texts has these bytes in it: as they are, or as hexadecimal digits in either order. */
static void expect_secret(const char *what, const char *text, size_t n, const uint8_t *bytes, size_t size) {
    char digits[2][80] = {"", ""};
    for (size_t i = 0; i < size && i < 39; i++) {
        sprintf(digits[0] + 2 * i, "%02x", bytes[i]);
        sprintf(digits[1] + 2 * i, "%02x", bytes[size - 1 - i]);
    }
    E2E_CHECK(memmem(text, n, bytes, size) == NULL, "%s has a secret in it", what);
    for (unsigned i = 0; i < 2; i++)
        E2E_CHECK(strcasestr(text, digits[i]) == NULL, "%s has a secret in it: %s", what, digits[i]);
}

static void telling_rank(struct e2e_rank *r) {
    zipcclUniqueId id = e2e_id(r);
    zipcclComm_t comm = NULL;
    E2E_OK(NULL, zipcclCommInitRank(&comm, r->nranks, id, r->rank));
    E2E_OK(comm, zipcclBarrier(comm, NULL));
    memcpy(r->shared->reports[r->rank].text, &id, sizeof(id));
    e2e_raise(r->shared, r->rank);
    e2e_await(r->shared, 2); /* the case has looked */
    zipcclCommDestroy(comm);
}

/* Neither the key nor a communicator's nonce is told by a log, status, configuration, event, statistics or record. */
static void case_secrets_stay(struct e2e *e) {
    static const uint16_t asks[] = {WIRE_STATUS, WIRE_CONFIG, WIRE_STATS, WIRE_EVENTS};
    static struct raw_frame reply;
    struct e2e_group g;
    struct wire_unique_id id;
    e2e_set(e, "log_level=debug");
    write_key(e, "a", KEY_A "\n");
    write_key(e, "b", KEY_B "\n");
    start_with(e, 0, "a");
    start_with(e, 1, "a");
    start_with(e, 2, "b");
    e2e_start(e, &g, "01", telling_rank, NULL);
    e2e_await(g.shared, 0);
    e2e_await(g.shared, 1);
    memcpy(&id, g.shared->reports[0].text, sizeof(id));
    E2E_CHECK(id.magic == WIRE_UNIQUE_ID_MAGIC && id.nonce != 0, "no unique id");
    for (unsigned node = 0; node < 2; node++) {
        int fd = raw_session(e->daemons[node].socket, "curious");
        for (unsigned i = 0; i < sizeof(asks) / sizeof(asks[0]); i++) {
            raw_send(fd, asks[i], 5, NULL, 0, NULL, 0);
            E2E_CHECK(raw_next(fd, &reply, 10) == 1 && reply.header.type != WIRE_ERROR, "type %u", asks[i]);
            reply.payload[reply.header.length] = '\0';
            for (uint32_t j = 0; j < reply.header.length; j++) /* texts in it, as one */
                reply.payload[j] = reply.payload[j] == '\0' ? ' ' : reply.payload[j];
            expect_secret("a reply", (char *)reply.payload, reply.header.length, key_a, sizeof(key_a));
            expect_secret("a reply", (char *)reply.payload, reply.header.length, (uint8_t *)&id.nonce, 8);
        }
        close(fd);
    }
    e2e_raise(g.shared, 2);
    e2e_wait(e, &g, 20);
    e2e_all_passed(e, &g);
    e2e_start(e, &g, "02", joining_rank, NULL); /* and what is said of a key that differs */
    e2e_wait_rank(e, &g, 1, 20);
    e2e_expect(&g, 1, zipcclRemoteError, 10, "key differs", NULL);
    kill(g.pids[0], SIGKILL);
    e2e_wait(e, &g, 20);
    for (unsigned node = 0; node < 3; node++) {
        char *text = e2e_read_file(e->daemons[node].log);
        E2E_CHECK(strstr(text, "debug") != NULL, "the log of node %u is not one of debugging", node);
        expect_secret("a log", text, strlen(text), key_a, sizeof(key_a));
        expect_secret("a log", text, strlen(text), (uint8_t *)&id.nonce, 8);
        free(text);
    }
}
E2E_CASE(secrets_stay, 60)

/* With a key, nobody gets in who does not hold it, however he tries. */
static void case_impostors(struct e2e *e) {
    static struct impostor p, q;
    uint8_t bytes[4096] = {0};
    e2e_set(e, "peer_timeout=1s");
    write_key(e, "a", KEY_A "\n");
    start_with(e, 0, "a");
    start_with(e, 1, "a");
    char *listen = listen_of(e, 0);
    /* Who knows the key gets an answer that is sealed. */
    E2E_CHECK(impostor_connect(&p, listen, key_a) == PEER_AUTH_DONE, "%s", p.auth.why);
    E2E_CHECK(impostor_hello(&p) && impostor_next(&p, &q.answer, 5) == 1 && q.answer.header.type == WIRE_PEER_HELLO,
              "no hello");
    /* Without, or with another one. */
    E2E_CHECK(impostor_connect(&q, listen, NULL) == PEER_AUTH_FAILED, "without a key");
    raw_expect_closed(q.fd);
    close(q.fd);
    memset(bytes, 7, 32);
    E2E_CHECK(impostor_connect(&q, listen, bytes) == PEER_AUTH_FAILED, "with another key");
    raw_expect_closed(q.fd);
    close(q.fd);
    /* What another one said before. */
    int fd = raw_connect_tcp(listen);
    raw_send(fd, WIRE_PEER_AUTH, 0, p.offer.payload, p.offer.header.length, NULL, 0);
    E2E_CHECK(raw_next(fd, &q.answer, 5) == 1, "no answer");
    raw_send(fd, WIRE_PEER_AUTH, 0, p.proof.payload, p.proof.header.length, NULL, 0);
    raw_expect_closed(fd);
    close(fd);
    expect_log(e, 0, "a handshake was replayed");
    /* Half a handshake, a whole one without the hello, frames that are not sealed, or sealed twice the same. */
    fd = raw_connect_tcp(listen);
    raw_send(fd, WIRE_PEER_AUTH, 0, p.offer.payload, 30, NULL, 0);
    raw_expect_closed(fd);
    close(fd);
    fd = raw_connect_tcp(listen);
    raw_send(fd, WIRE_PEER_AUTH, 0, p.offer.payload, p.offer.header.length, NULL, 0);
    shutdown(fd, SHUT_WR);
    raw_expect_closed(fd);
    close(fd);
    E2E_CHECK(impostor_connect(&q, listen, key_a) == PEER_AUTH_DONE, "%s", q.auth.why);
    raw_send(q.fd, WIRE_PEER_HELLO, 0, bytes, 100, NULL, 0);
    raw_expect_closed(q.fd);
    close(q.fd);
    expect_log(e, 0, "not sealed by it");
    E2E_CHECK(impostor_connect(&q, listen, key_a) == PEER_AUTH_DONE && impostor_hello(&q), "%s", q.auth.why);
    q.auth.out.number--;
    impostor_send(&q, WIRE_PEER_PING, NULL, 0);
    raw_expect_closed(q.fd);
    close(q.fd);
    /* A frame that is larger than any before the hello; nothing is kept for it. */
    fd = raw_connect_tcp(listen);
    raw_send(fd, WIRE_PEER_AUTH, 0, bytes, sizeof(bytes), NULL, 0);
    raw_expect_closed(fd);
    close(fd);
    expect_log(e, 0, "larger than the limit for what may come now");
    /* A daemon of another release: what it codes could not be read, so that is said before anything is sent. */
    E2E_CHECK(impostor_connect(&q, listen, key_a) == PEER_AUTH_DONE && impostor_hello_with(&q, 0, 0), "%s", q.auth.why);
    raw_expect_closed(q.fd);
    close(q.fd);
    expect_log(e, 0, "formats of coded chunks do not match: node impostor has 1, node node0 2; install one release");
    E2E_CHECK(impostor_connect(&q, listen, key_a) == PEER_AUTH_DONE && impostor_hello_with(&q, ZFMT_VERSION, 0), "%s",
              q.auth.why);
    raw_expect_closed(q.fd);
    close(q.fd);
    expect_log(e, 0, "protocols between daemons do not match: node impostor has 1, node node0 2; install one release");
    close(p.fd);
    e2e_alive(e);
    free(listen);
}
E2E_CASE(impostors, 60)

/* One that says a byte now and then does not count as alive for ever. */
static void case_slow_peer(struct e2e *e) {
    struct frame_header h = {.length = 72, .type = WIRE_PEER_AUTH, .magic = FRAME_MAGIC};
    uint8_t bytes[sizeof(h) + 72] = {0};
    e2e_set(e, "peer_timeout=1s");
    e2e_daemons(e, 2);
    char *listen = listen_of(e, 0);
    memcpy(bytes, &h, sizeof(h));
    int fd = raw_connect_tcp(listen);
    size_t sent = 0;
    double start = e2e_now();
    while (sent < sizeof(bytes) - 1 && raw_bytes(fd, &bytes[sent], 1, NULL, 0)) {
        sent++;
        e2e_sleep(0.1);
    }
    E2E_CHECK(sent < sizeof(bytes) - 1, "it still listens after %.1f s", e2e_now() - start);
    raw_expect_closed(fd);
    close(fd);
    expect_log(e, 0, "it has not greeted within");
    e2e_alive(e);
    free(listen);
}
E2E_CASE(slow_peer, 60)

/* The first address that is not of the loopback; false: there is none. */
static bool other_address(struct sockaddr_in *found) {
    struct ifaddrs *all = NULL;
    bool ok = false;
    E2E_CHECK(getifaddrs(&all) == 0, "%s", strerror(errno));
    for (const struct ifaddrs *i = all; i && !ok; i = i->ifa_next) {
        ok = i->ifa_addr && i->ifa_addr->sa_family == AF_INET && (i->ifa_flags & IFF_UP) &&
             !(i->ifa_flags & IFF_LOOPBACK);
        if (ok)
            memcpy(found, i->ifa_addr, sizeof(*found));
    }
    freeifaddrs(all);
    return ok;
}

/* Without a key a daemon takes daemons of its own machine alone, unless it is told otherwise. */
static void case_no_key(struct e2e *e) {
    static struct impostor p;
    struct sockaddr_in from, to = {.sin_family = AF_INET};
    if (!other_address(&from))
        e2e_skip("this machine has the loopback alone");
    for (unsigned node = 0; node < 2; node++) {
        if (node == 1)
            e2e_set(e, "peer_auth=none");
        e2e_daemon_start(e, node);
        char *listen = listen_of(e, node);
        E2E_CHECK(impostor_connect(&p, listen, NULL) == PEER_AUTH_DONE, "%s", p.auth.why);
        close(p.fd);
        /* From another address the daemon cannot tell whether it is this machine. */
        to.sin_port = htons((uint16_t)strtoul(strrchr(listen, ':') + 1, NULL, 10));
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        from.sin_port = 0;
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        E2E_CHECK(bind(fd, (struct sockaddr *)&from, sizeof(from)) == 0, "%s", strerror(errno));
        E2E_CHECK(connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0, "%s", strerror(errno));
        raw_send(fd, WIRE_PEER_AUTH, 0, p.offer.payload, p.offer.header.length, NULL, 0);
        E2E_CHECK(raw_next(fd, &p.answer, 5) == 1 && p.answer.header.type == WIRE_PEER_AUTH, "no answer");
        E2E_CHECK(p.answer.payload[2] == (node == 0 ? PEER_AUTH_REFUSE : PEER_AUTH_ANSWER), "node %u answers with %u",
                  node, p.answer.payload[2]);
        if (node == 0) {
            raw_expect_closed(fd);
            expect_log(e, node, "it is on another machine");
        }
        expect_log(e, node, node == 0 ? "no peer_key_file: " : "peer_auth = none: ");
        close(fd);
        free(listen);
    }
    e2e_alive(e);
}
E2E_CASE(no_key, 60)

/* An interface in place of an address. */
static void case_interface(struct e2e *e) {
    char output[4096], socket[128];
    e2e_set(e, "listen=lo:0");
    e2e_daemons(e, 2);
    char *listen = listen_of(e, 0);
    E2E_CHECK(strncmp(listen, "127.0.0.1:", 10) == 0, "it listens on %s", listen);
    e2e_alive(e);
    free(listen);
    snprintf(socket, sizeof(socket), "socket=%s/x.sock", e->dir);
    const char *const args[] = {"--set", socket, "--set", "metrics_listen=", "--set", "listen=zipccl-none:0", NULL};
    int code = e2e_daemon_run(e, output, sizeof(output), 20, args);
    E2E_CHECK(code == 1 && strstr(output, "zipccl-none") != NULL, "exit %d: %s", code, output);
}
E2E_CASE(interface, 60)

static void expect_status(pid_t pid, const char *line) {
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    char *text = e2e_read_file(path);
    E2E_CHECK(strstr(text, line) != NULL, "no '%s' in %s", line, text);
    free(text);
}

/* Root starts it, and it is root no more. */
static void case_drops_root(struct e2e *e) {
    char line[96], output[4096], socket[128], user[64];
    struct stat st;
    const struct passwd *nobody = getpwnam("nobody");
    if (geteuid() != 0 || nobody == NULL)
        e2e_skip("needs root, and a user 'nobody'");
    const struct group *group = getgrnam("daemon");
    E2E_CHECK(group != NULL, "no group 'daemon'");
    uid_t uid = nobody->pw_uid;
    gid_t gid = group->gr_gid;
    E2E_CHECK(chown(e->dir, uid, gid) == 0, "%s", strerror(errno));
    e2e_set(e, "user=nobody");
    e2e_set(e, "group=daemon");
    write_key(e, "a", KEY_A "\n"); /* root's: it is read before */
    start_with(e, 0, "a");
    start_with(e, 1, "a");
    pid_t pid = e->daemons[0].pid;
    snprintf(line, sizeof(line), "\nUid:\t%u\t%u\t%u\t%u\n", uid, uid, uid, uid);
    expect_status(pid, line);
    snprintf(line, sizeof(line), "\nGid:\t%u\t%u\t%u\t%u\n", gid, gid, gid, gid);
    expect_status(pid, line);
    expect_status(pid, "\nCapEff:\t0000000000000000\n");
    expect_status(pid, "\nCapPrm:\t0000000000000000\n");
    expect_status(pid, "\nCapBnd:\t0000000000000000\n");
    expect_status(pid, "\nNoNewPrivs:\t1\n");
    /* What may not be dumped is root's in /proc, whoever runs it. */
    snprintf(line, sizeof(line), "/proc/%d/environ", (int)pid);
    E2E_CHECK(stat(line, &st) == 0 && st.st_uid == 0, "%s is of user %u", line, st.st_uid);
    e2e_alive(e);
    e2e_daemon_stop(e, 1, 10); /* its socket, and the lock, can be removed by whom it is now */
    /* Users that there are not, or that are root. */
    snprintf(socket, sizeof(socket), "socket=%s/x.sock", e->dir);
    for (unsigned i = 0; i < 2; i++) {
        snprintf(user, sizeof(user), "user=%s", i == 0 ? "no-such-user" : "root");
        const char *const args[] = {"--set", socket, "--set", "metrics_listen=", "--set", "listen=127.0.0.1:0",
                                    "--set", user,   NULL};
        int code = e2e_daemon_run(e, output, sizeof(output), 10, args);
        E2E_CHECK(code == 1 && strstr(output, "user:") != NULL, "exit %d: %s", code, output);
    }
}
E2E_CASE(drops_root, 60)

/* ---- other users ---- */

struct foreign {
    zipcclUniqueId id;
    uint64_t comm, buffer;
    char job[32];
    zipcclUniqueId only_there; /* of a job that node 0 alone knows */
    bool elsewhere;            /* this rank is not on node 0 */
};

static void become_nobody(void) {
    E2E_CHECK(setgroups(0, NULL) == 0 && setgid(65534) == 0 && setuid(65534) == 0, "%s", strerror(errno));
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static void join_by(int fd, const zipcclUniqueId *id) {
    Zipccl__CommInit init = ZIPCCL__COMM_INIT__INIT;
    init.unique_id = (ProtobufCBinaryData){sizeof(*id), (uint8_t *)(uintptr_t)id};
    init.nranks = 2;
    init.rank = 1;
    E2E_CHECK(raw_message(fd, WIRE_COMM_INIT, 9, &init.base, NULL, 0), "send");
}

static void foreign_rank(struct e2e_rank *r) {
    const struct foreign *f = r->args;
    zipcclComm_t comm = NULL;
    zipcclUniqueId id;
    become_nobody();
    /* Its job, by name. */
    setenv("ZIPCCL_JOB_ID", f->job, 1);
    zipcclResult_t rc = zipcclGetUniqueId(&id);
    E2E_CHECK(rc == zipcclPermissionDenied && e2e_mentions(zipcclGetLastError(NULL), f->job), "%s: %s",
              e2e_result_name((int)rc), zipcclGetLastError(NULL));
    /* Its communicator, by a stolen id, from a job of our own. */
    setenv("ZIPCCL_JOB_ID", "mine", 1);
    double start = e2e_now();
    rc = zipcclCommInitRank(&comm, 2, f->id, 1);
    e2e_report(r, rc, NULL, start);
    E2E_CHECK(rc == zipcclPermissionDenied, "%s: %s", e2e_result_name((int)rc), zipcclGetLastError(NULL));
    /* Its handles. */
    int fd = raw_session(r->socket, "mine");
    Zipccl__CommRef ref = ZIPCCL__COMM_REF__INIT;
    ref.comm = f->comm;
    raw_message(fd, WIRE_COMM_ABORT, 2, &ref.base, NULL, 0);
    raw_expect_error(fd, -1, "communicator|comm");
    raw_message(fd, WIRE_COMM_DESTROY, 3, &ref.base, NULL, 0);
    raw_expect_error(fd, -1, "communicator|comm");
    Zipccl__BufferRef buffer = ZIPCCL__BUFFER_REF__INIT;
    buffer.buffer = f->buffer;
    raw_message(fd, WIRE_BUFFER_RELEASE, 4, &buffer.base, NULL, 0);
    raw_expect_error(fd, -1, "buffer");
    close(fd);
    /* Its job's name, where nobody has it. */
    if (f->elsewhere) {
        fd = raw_session(r->socket, "there");
        join_by(fd, &f->only_there);
        raw_expect_error(fd, zipcclPermissionDenied, "user");
        close(fd);
    }
}

static void case_other_user(struct e2e *e) {
    if (geteuid() != 0)
        e2e_skip("needs root, to become another user");
    struct raw_frame frame;
    struct foreign f = {.job = "victim"};
    e2e_set(e, "socket_mode=0666");
    e2e_set(e, "join_timeout=4s");
    e2e_daemons(e, 2);
    int fd = raw_session(e->daemons[0].socket, f.job), other = raw_session(e->daemons[1].socket, f.job);
    zipcclUniqueId own = raw_unique_id(fd);
    f.comm = raw_comm(fd, &own, 1, 0);
    f.buffer = raw_buffer(fd, 8192);
    f.id = raw_unique_id(fd);
    Zipccl__CommInit init = ZIPCCL__COMM_INIT__INIT;
    init.unique_id = (ProtobufCBinaryData){sizeof(f.id), (uint8_t *)&f.id};
    init.nranks = 2;
    E2E_CHECK(raw_message(fd, WIRE_COMM_INIT, 8, &init.base, NULL, 0), "send");
    e2e_ranks(e, "0", foreign_rank, &f, 10);
    int there = raw_session(e->daemons[0].socket, "there");
    f.only_there = raw_unique_id(there);
    f.elsewhere = true;
    e2e_ranks(e, "1", foreign_rank, &f, 10);
    close(there);
    /* Not even the owner, from another job. */
    for (unsigned node = 0; node < 2; node++) {
        int own_other = raw_session(e->daemons[node].socket, "another");
        join_by(own_other, &f.id);
        raw_expect_error(own_other, zipcclPermissionDenied, "job");
        close(own_other);
    }
    /* The owner's rank still waits, or was told that the other never came. */
    int rc = raw_next(fd, &frame, 10);
    E2E_CHECK(rc == 1 && frame.header.type == WIRE_ERROR, "the owner's join ended with %d, type %u", rc,
              frame.header.type);
    /* The owner's other communicator works. */
    struct wire_request r = {.comm = f.comm, .seq = 1, .op = zipcclOpBarrier, .codec = zipcclCodecAuto};
    E2E_CHECK(raw_send(fd, WIRE_REQUEST, 5, &r, sizeof(r), NULL, 0), "send");
    raw_expect(fd, &frame, WIRE_COMPLETION);
    close(fd);
    close(other);
    e2e_alive(e);
}
E2E_CASE(other_user, 60)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_other_user), cmocka_unit_test(test_keys),       cmocka_unit_test(test_secrets_stay),
        cmocka_unit_test(test_impostors),  cmocka_unit_test(test_slow_peer),  cmocka_unit_test(test_no_key),
        cmocka_unit_test(test_interface),  cmocka_unit_test(test_drops_root),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Nodes, communicators and messages of tests of the NCCL fabric.
 */
#include "fabric_node.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const struct fabric_tokens same_token = {.show = {1, 2, 3}, .expect = {1, 2, 3}};
uint64_t fabric_node_link_rate;

void open_node(struct node *node, struct rank *rank) {
    struct ranks_shared *shared = rank->shared;
    /* lo: others come and go, where something else on the machine makes bridges. */
    const struct nccl_gpus gpus = {&nccl_gpus_here, &node->here};
    struct fabric_config config = {.link_rate_bits = fabric_node_link_rate, .net_devices = "lo", .gpus = &gpus};
    const char *why = NULL;
    size_t bytes;
    *node = (struct node){.rank = rank};
    if (fabric_nccl.open(&config, &node->fabric, &why))
        fprintf(stderr, "%s\n", why);
    CHECK(node->fabric != NULL);
    const void *address = fabric_nccl.address(node->fabric, &bytes);
    CHECK(bytes <= sizeof(shared->address[0].text));
    memcpy(shared->address[rank->rank].text, address, bytes);
    atomic_store(&shared->address[rank->rank].bytes, bytes);
    for (int i = 0; i < rank->nranks; i++) {
        while (atomic_load(&shared->address[i].bytes) == 0)
            usleep(200);
        if (i != rank->rank)
            CHECK(fabric_nccl.connect(node->fabric, shared->address[i].text, atomic_load(&shared->address[i].bytes),
                                      &same_token, &node->peers[i]) == zipcclSuccess);
    }
}

void close_node(struct node *node) {
    ranks_meet(node->rank, 0);
    fabric_nccl.close(node->fabric);
}

void join_gpus(struct node *node, uint64_t key, int from, int to, uint32_t gpus) {
    const struct fabric_join join = {.comm = key,
                                     .node = (uint32_t)(node->rank->rank - from),
                                     .nnodes = (uint32_t)(to - from + 1),
                                     .gpus = gpus,
                                     .peers = node->peers + from};
    CHECK(fabric_nccl.join(node->fabric, &join) == zipcclSuccess);
}

void join(struct node *node, uint64_t key, int from, int to) {
    join_gpus(node, key, from, to, 1u << node->rank->rank);
}

uint8_t group_gpu(const struct node *node, const struct group *g, unsigned local) {
    const unsigned me = (unsigned)node->rank->rank;
    return (uint8_t)(GPUS * me + (g->crossed && me % 2 ? GPUS - 1 - local : local));
}

void join_group(struct node *node, const struct group *g, struct fabric_join how) {
    const uint32_t nnodes = (uint32_t)(g->to - g->from + 1);
    uint32_t rank_node[GPUS * MAX];
    uint8_t rank_gpus[GPUS], n = 0;
    how.comm = g->key;
    how.node = (uint32_t)(node->rank->rank - g->from);
    how.nnodes = nnodes;
    how.peers = node->peers + g->from;
    how.rank_node = rank_node;
    how.rank_gpus = rank_gpus;
    for (unsigned l = 0; l < GPUS; l++) {
        if (!(g->locals >> l & 1))
            continue;
        rank_gpus[n] = group_gpu(node, g, l);
        how.gpus |= 1u << rank_gpus[n++];
        for (uint32_t i = 0; i < nnodes; i++)
            rank_node[how.nranks++] = g->backwards ? nnodes - 1 - i : i;
    }
    CHECK(fabric_nccl.join(node->fabric, &how) == zipcclSuccess);
}

void turn(struct node *node, int ms) {
    struct pollfd fd = {.fd = fabric_nccl.fd(node->fabric), .events = POLLIN};
    poll(&fd, 1, ms);
    fabric_nccl.poll(node->fabric);
}

void idle(struct node *node, double seconds) {
    for (double end = ranks_now() + seconds; ranks_now() < end;)
        turn(node, 1);
}

void meet(struct node *node, int step, int n) {
    atomic_int *met = &node->rank->shared->step[step];
    atomic_fetch_add(met, 1);
    while (atomic_load(met) < n)
        turn(node, 1);
}

/* Time in which all ranks were stopped, as a debugger or a scheduler of machines does, does not count. */
bool wait_until(struct node *node, const zipcclResult_t *result, double seconds) {
    double before = ranks_now();
    while (*result == PENDING && seconds > 0) {
        turn(node, 20);
        double now = ranks_now();
        seconds -= now - before < 0.1 ? now - before : 0.1;
        before = now;
    }
    return *result != PENDING;
}

bool wait_for(struct node *node, const struct message *m, double seconds) {
    return wait_until(node, &m->result, seconds);
}

void allocate(struct message *m, enum memory memory, size_t bytes) {
    void *p = NULL;
    *m = (struct message){.memory = memory, .bytes = bytes};
    if (memory == DEVICE)
        CHECK(cudaMalloc(&p, bytes + 1) == cudaSuccess);
    else if (memory == PINNED)
        CHECK(cudaHostAlloc(&p, bytes + 1, 0) == cudaSuccess);
    else
        p = malloc(bytes + 1);
    m->data = p;
}

void release(struct message *m) {
    if (m->memory == DEVICE)
        CHECK(cudaFree(m->data) == cudaSuccess);
    else if (m->memory == PINNED)
        CHECK(cudaFreeHost(m->data) == cudaSuccess);
    else
        free(m->data);
}

static uint8_t value(uint32_t seed, size_t i) {
    return (uint8_t)((i * 2654435761u + seed * 40503u) >> 13);
}

void fill(struct message *m, uint32_t seed) {
    uint8_t *bytes = malloc(m->bytes + 1);
    for (size_t i = 0; i < m->bytes; i++)
        bytes[i] = value(seed, i);
    CHECK(m->bytes == 0 || cudaMemcpy(m->data, bytes, m->bytes, cudaMemcpyDefault) == cudaSuccess);
    free(bytes);
}

void compare(const struct message *m, uint32_t seed) {
    uint8_t *bytes = malloc(m->bytes + 1);
    CHECK(m->bytes == 0 || cudaMemcpy(bytes, m->data, m->bytes, cudaMemcpyDefault) == cudaSuccess);
    for (size_t i = 0; i < m->bytes; i++)
        CHECK(bytes[i] == value(seed, i));
    free(bytes);
}

void sent(struct fabric_send *send, zipcclResult_t result) {
    static unsigned ended;
    struct message *m = send->arg;
    m->result = result;
    m->place = ended++;
}

void received(struct fabric_recv *recv, zipcclResult_t result) {
    ((struct message *)recv->arg)->result = result;
}

void start_send(struct node *node, struct message *m, uint64_t key, int from, int to, uint32_t tag) {
    size_t first = tag % 2 ? m->bytes / 3 : m->bytes;
    m->result = PENDING;
    m->send = (struct fabric_send){.peer = node->peers[to],
                                   .flow = m->flow,
                                   .header = {.comm = key,
                                              .node = (uint32_t)(node->rank->rank - from),
                                              .channel = (uint32_t)(to - from + 1),
                                              .tag = tag,
                                              .flags = 1,
                                              .count = m->bytes},
                                   .iov = {{m->data, first}, {m->data + first, m->bytes - first}},
                                   .niov = first < m->bytes ? 2 : m->bytes > 0,
                                   .done = sent,
                                   .arg = m};
    fabric_nccl.send(node->fabric, &m->send);
}

void start_recv(struct node *node, struct message *m, uint64_t key, int from, int by, uint32_t tag) {
    m->result = PENDING;
    m->recv = (struct fabric_recv){.peer = node->peers[by],
                                   .comm = key,
                                   .node = (uint32_t)(by - from),
                                   .channel = (uint32_t)(node->rank->rank - from + 1),
                                   .tag = tag,
                                   .buffer = m->data,
                                   .capacity = m->bytes,
                                   .done = received,
                                   .arg = m};
    fabric_nccl.recv(node->fabric, &m->recv);
}

void talk(struct node *node, uint64_t key, int from, uint32_t tag) {
    struct message out, in;
    int peer = node->rank->rank == from ? from + 1 : from;
    allocate(&out, DEVICE, 100000);
    allocate(&in, DEVICE, 100000);
    fill(&out, tag);
    start_send(node, &out, key, from, peer, tag);
    start_recv(node, &in, key, from, peer, tag);
    CHECK(wait_for(node, &in, WAIT) && in.result == zipcclSuccess);
    CHECK(wait_for(node, &out, WAIT) && out.result == zipcclSuccess);
    compare(&in, tag);
    release(&in);
    release(&out);
}

void run(int n, int (*fn)(struct rank *rank)) {
    assert_int_equal(ranks_run(n, fn, NULL, 0), 0);
}

void run_with(int n, int (*fn)(struct rank *rank), const char *variable, const char *value) {
    setenv(variable, value, 1);
    int end = ranks_run(n, fn, NULL, 0);
    unsetenv(variable);
    if (end != 0)
        fail_msg("%s=%s: end %d", variable, value, end);
}

void run_failing(int n, int (*fn)(struct rank *rank), const char *const *faults, size_t nfaults) {
    for (size_t i = 0; i < nfaults; i++)
        run_with(n, fn, "RANK_0_FAIL", faults[i]);
}

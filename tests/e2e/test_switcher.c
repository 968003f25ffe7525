/* SPDX-License-Identifier: Apache-2.0
 *
 * The switcher on real links: codes on a slow one, stops when the cap is lifted, and tells why.
 */
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "collect.h"

#define BYTES  (1u << 20)
#define FIRST  50  /* operations until all has settled */
#define SECOND 120 /* until it has again: 20 of a quiet machine, as the test of the switcher shows */
#define MORE   4   /* times that so many are added where others use the processors */

/* Of the ranks: FIRST are done, after k times SECOND. Of the case: go on, enough. */
enum { FLAG_FIRST, FLAG_DONE, FLAG_ON = FLAG_DONE + MORE, FLAG_ENOUGH = FLAG_ON + MORE, FLAGS };
_Static_assert(FLAGS < E2E_FLAGS, "flags");

static const struct {
    zipcclOp_t op;
    const char *name;
} ops[] = {
    {zipcclOpAllGather, "all-gather"},
    {zipcclOpAllReduce, "all-reduce"},
    {zipcclOpAllToAll, "all-to-all"},
};

struct task {
    unsigned op; /* of ops */
};

static void issue(zipcclComm_t comm, zipcclOp_t op, const void *send, void *recv, size_t count, int nranks) {
    if (op == zipcclOpAllGather)
        E2E_OK(comm, zipcclAllGather(send, recv, count, zipcclBfloat16, comm, NULL));
    else if (op == zipcclOpAllReduce)
        E2E_OK(comm, zipcclAllReduce(send, recv, count, zipcclBfloat16, zipcclSum, comm, NULL));
    else
        E2E_OK(comm, zipcclAllToAll(send, recv, count / (size_t)nranks, zipcclBfloat16, comm, NULL));
}

static void rank_fn(struct e2e_rank *r) {
    const struct task *task = r->args;
    zipcclComm_t comm = e2e_comm(r);
    void *send, *recv;
    size_t have;
    const uint8_t *values = pool_gaussian(&have);
    E2E_OK(NULL, zipcclMemAlloc(&send, BYTES));
    E2E_OK(NULL, zipcclMemAlloc(&recv, (size_t)BYTES * (size_t)r->nranks));
    memcpy(send, values, BYTES < have ? BYTES : have);
    for (unsigned i = 0; i < FIRST; i++)
        issue(comm, ops[task->op].op, send, recv, BYTES / 2, r->nranks);
    e2e_meet(r->shared, r->nranks);
    e2e_raise(r->shared, FLAG_FIRST);
    for (int k = 0; k < MORE; k++) {
        e2e_await(r->shared, FLAG_ON + k);
        if (atomic_load(&r->shared->flags[FLAG_ENOUGH]))
            break;
        for (unsigned i = 0; i < SECOND; i++)
            issue(comm, ops[task->op].op, send, recv, BYTES / 2, r->nranks);
        e2e_meet(r->shared, (2 + k) * r->nranks);
        e2e_raise(r->shared, FLAG_DONE + k);
    }
    e2e_await(r->shared, FLAG_ENOUGH);
    E2E_OK(NULL, zipcclMemFree(send));
    E2E_OK(NULL, zipcclMemFree(recv));
    E2E_OK(NULL, zipcclCommDestroy(comm));
}

/* The answer of zipcclctl decisions --json, checked and complete; freed by json_decref. */
static json_t *decisions(const struct e2e *e, unsigned node) {
    char command[256];
    json_error_t error;
    snprintf(command, sizeof command, "%s/zipcclctl decisions --json --socket %s", ZIPCCL_TEST_BIN,
             e->daemons[node].socket);
    FILE *out = popen(command, "r");
    E2E_CHECK(out != NULL, "%s", command);
    json_t *root = json_loadf(out, 0, &error);
    int rc = pclose(out);
    E2E_CHECK(root != NULL && rc == 0, "%s: exit %d: %s", command, rc, root ? "" : error.text);
    E2E_CHECK(strcmp(json_string_value(json_object_get(root, "schema")), "zipccl.decisions/1") == 0, "schema");
    return root;
}

/* Under a sanitizer the codec is too slow to be chosen. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#    define CODES_AT_SPEED 0
#else
#    define CODES_AT_SPEED 1
#endif

/* Whether the daemon chose a codec for the operation, or raw. Tier is faster than top7 by so little that on a busy
 * machine either may have won. */
static bool is_coded(const struct e2e *e, unsigned node, const char *op) {
    json_t *root = decisions(e, node), *row;
    size_t i, found = 0;
    bool coded = false;
    char *all = json_dumps(root, JSON_INDENT(1));
    json_array_foreach(json_object_get(root, "decisions"), i, row) {
        if (strcmp(json_string_value(json_object_get(row, "op")), op) != 0)
            continue;
        found++;
        const char *codec = json_string_value(json_object_get(row, "codec"));
        coded = strcmp(codec, "raw") != 0;
        E2E_CHECK(strstr(json_string_value(json_object_get(row, "why")), codec) != NULL, "%s", all);
        E2E_CHECK(json_array_size(json_object_get(row, "arms")) >= 3, "%s", all);
    }
    E2E_CHECK(found == 1, "%s: %zu times in %s", op, found, all);
    free(all);
    json_decref(root);
    return coded;
}

static void write_rate(const struct e2e *e, const char *rate) {
    char path[96];
    snprintf(path, sizeof path, "%s/zipccld.conf", e->dir);
    FILE *f = fopen(path, "w");
    E2E_CHECK(f != NULL, "%s", path);
    fprintf(f, "[zipccld]\nlink_rate = %s\n", rate);
    E2E_CHECK(fclose(f) == 0, "%s", path);
}

static void set_rate(struct e2e *e, const char *rate) {
    write_rate(e, rate);
    for (unsigned i = 0; i < e->ndaemons; i++)
        kill(e->daemons[i].pid, SIGHUP);
}

static void settles(struct e2e *e, unsigned op) {
    struct task task = {op};
    struct e2e_group g;
    pool();
    set_rate(e, "200mbit");
    e2e_daemons(e, 2);
    e2e_start(e, &g, "01", rank_fn, &task);
    e2e_await(g.shared, FLAG_FIRST);
    for (unsigned node = 0; node < 2; node++)
        E2E_CHECK(is_coded(e, node, ops[op].name) || !CODES_AT_SPEED, "node %u: raw on a slow link", node);
    set_rate(e, "0");
    e2e_sleep(0.3);
    bool coded = true;
    int k = 0;
    for (; coded && k < MORE; k++) {
        e2e_raise(g.shared, FLAG_ON + k);
        e2e_await(g.shared, FLAG_DONE + k);
        coded = is_coded(e, 0, ops[op].name);
        E2E_CHECK(is_coded(e, 1, ops[op].name) == coded, "the nodes have chosen differently");
    }
    E2E_CHECK(!coded || !CODES_AT_SPEED, "coded without a cap");
    e2e_raise(g.shared, FLAG_ENOUGH);
    if (k < MORE)
        e2e_raise(g.shared, FLAG_ON + k);
    e2e_wait(e, &g, 30);
    e2e_all_passed(e, &g);
}

static void case_all_gather_settles(struct e2e *e) {
    settles(e, 0);
}
E2E_CASE(all_gather_settles, 60)

static void case_all_reduce_settles(struct e2e *e) {
    settles(e, 1);
}
E2E_CASE(all_reduce_settles, 60)

static void case_all_to_all_settles(struct e2e *e) {
    settles(e, 2);
}
E2E_CASE(all_to_all_settles, 60)

/* What the configuration pins is kept, and shown as pinned. */
static void pinned_rank(struct e2e_rank *r) {
    zipcclComm_t comm = e2e_comm(r);
    static uint16_t values[4096], sums[4096];
    E2E_OK(comm, zipcclAllReduce(values, sums, 4096, zipcclBfloat16, zipcclSum, comm, NULL));
    e2e_meet(r->shared, r->nranks);
    e2e_raise(r->shared, 0);
    e2e_await(r->shared, 1);
    E2E_OK(NULL, zipcclCommDestroy(comm));
}

static void case_arm_of_configuration(struct e2e *e) {
    static const char *const arms[] = {"ring", "flat"};
    for (unsigned i = 0; i < 2; i++) {
        struct e2e_group g;
        e2e_set(e, "arm=%s", arms[i]);
        e2e_daemons(e, 2);
        e2e_start(e, &g, "0101", pinned_rank, NULL);
        e2e_await(g.shared, 0);
        json_t *root = decisions(e, 1), *row = json_array_get(json_object_get(root, "decisions"), 0);
        E2E_CHECK(row != NULL, "no decision");
        E2E_CHECK(strcmp(json_string_value(json_object_get(row, "arm")), arms[i]) == 0, "not %s", arms[i]);
        E2E_CHECK(strcmp(json_string_value(json_object_get(row, "pinned_arm")), arms[i]) == 0, "not %s", arms[i]);
        json_decref(root);
        e2e_raise(g.shared, 1);
        e2e_wait(e, &g, 10);
        e2e_all_passed(e, &g);
        e2e_daemon_stop(e, 0, 10);
        e2e_daemon_stop(e, 1, 10);
        e->nsettings = 0;
    }
}
E2E_CASE(arm_of_configuration, 40)

/* Every operation in an order that all ranks know, alone and in groups, while the cap jumps on one node or the other: a
 * node that chose otherwise than the rest would fail the communicator. */
#define MIXED       900
#define SIDES       6
#define MIXED_GROUP 4
#define MIXED_BYTES (90000ull * 4 * E2E_MAX_RANKS)

static uint64_t next(uint64_t *state) {
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return *state >> 33;
}

struct mixed {
    zipcclComm_t comm;
    int rank, nranks;
    uint8_t *send, *recv;
    size_t counts[E2E_MAX_RANKS], sends[E2E_MAX_RANKS], recvs[E2E_MAX_RANKS], at[E2E_MAX_RANKS];
};

/* What ranks a and b exchange in an uneven all-to-all. */
static size_t between(uint64_t seed, int a, int b) {
    return (seed * 2654435761u + (uint64_t)a * 40503u + (uint64_t)b * 9176u) % 90000;
}

/* Operation k of a group: those of a group run side by side, so each writes where no other one does. */
static void mixed_one(struct mixed *m, uint64_t *state, unsigned k) {
    uint8_t *recv = m->recv + k * MIXED_BYTES;
    unsigned which = (unsigned)next(state) % 12;
    size_t n = (size_t)(m->nranks), count = (3000 + next(state) % 3000) << next(state) % 5;
    uint64_t seed = next(state);
    int root = (int)(next(state) % n), last = (root + 1) % m->nranks;
    zipcclDataType_t dtype = next(state) % 4 ? zipcclBfloat16 : zipcclFloat32;
    zipcclComm_t c = m->comm;
    for (size_t p = 0; p < n; p++) {
        m->counts[p] = between(seed, (int)p, 0) / 2;
        m->sends[p] = between(seed, m->rank, (int)p);
        m->recvs[p] = between(seed, (int)p, m->rank);
        m->at[p] = p * 90000;
    }
    if (which < 3)
        E2E_OK(c, zipcclAllGather(m->send, recv, count, dtype, c, NULL));
    else if (which == 3)
        E2E_OK(c, zipcclAllReduce(m->send, recv, count, dtype, zipcclSum, c, NULL));
    else if (which == 4)
        E2E_OK(c, zipcclReduceScatter(m->send, recv, count / n, dtype, zipcclAvg, c, NULL));
    else if (which == 5)
        E2E_OK(c, zipcclBroadcast(m->send, recv, count, dtype, root, c, NULL));
    else if (which == 6)
        E2E_OK(c, zipcclAllToAll(m->send, recv, count / n, dtype, c, NULL));
    else if (which == 7)
        E2E_OK(c, zipcclAllToAllv(m->send, m->sends, m->at, recv, m->recvs, m->at, dtype, c, NULL));
    else if (which == 8)
        E2E_OK(c, zipcclGather(m->send, recv, count / n, dtype, root, c, NULL));
    else if (which == 9)
        E2E_OK(c, zipcclReduce(m->send, recv, count, dtype, zipcclMax, root, c, NULL));
    else if (which == 10)
        E2E_OK(c, zipcclAllGatherv(m->send, recv, m->counts, dtype, c, NULL));
    else if (m->rank == root)
        E2E_OK(c, zipcclSend(m->send, count, dtype, last, c, NULL));
    else if (m->rank == last)
        E2E_OK(c, zipcclRecv(recv, count, dtype, root, c, NULL));
}

static void mixed_rank(struct e2e_rank *r) {
    struct mixed m = {.comm = e2e_comm(r), .rank = r->rank, .nranks = r->nranks};
    uint64_t state = 12345;
    size_t have;
    const uint8_t *values = pool_gaussian(&have);
    E2E_OK(NULL, zipcclMemAlloc((void **)&m.send, MIXED_BYTES));
    E2E_OK(NULL, zipcclMemAlloc((void **)&m.recv, MIXED_GROUP * MIXED_BYTES));
    for (size_t at = 0; at < MIXED_BYTES; at += have)
        memcpy(m.send + at, values, MIXED_BYTES - at < have ? MIXED_BYTES - at : have);
    for (unsigned i = 0; i < MIXED; i++) {
        unsigned members = next(&state) % 8 ? 1 : 2 + (unsigned)next(&state) % (MIXED_GROUP - 1);
        if (members > 1)
            E2E_OK(m.comm, zipcclGroupStart());
        for (unsigned k = 0; k < members; k++)
            mixed_one(&m, &state, k);
        if (members > 1)
            E2E_OK(m.comm, zipcclGroupEnd());
        if (i % (MIXED / SIDES) == 0 && r->rank == 0)
            e2e_raise(r->shared, (int)(i / (MIXED / SIDES)));
    }
    E2E_OK(NULL, zipcclMemFree(m.send));
    E2E_OK(NULL, zipcclMemFree(m.recv));
    E2E_OK(NULL, zipcclCommDestroy(m.comm));
}

static void case_all_choose_alike(struct e2e *e) {
    static const char *const rates[SIDES] = {"1gbit", "300mbit", "0", "200mbit", "10gbit", "500mbit"};
    struct e2e_group g;
    pool();
    set_rate(e, "500mbit");
    e2e_daemons(e, 3);
    e2e_start(e, &g, "011202", mixed_rank, NULL);
    for (int i = 0; i < SIDES; i++) {
        e2e_await(g.shared, i);
        write_rate(e, rates[i]);
        kill(e->daemons[i % 3].pid, SIGHUP);
    }
    e2e_wait(e, &g, 100);
    e2e_all_passed(e, &g);
    json_decref(decisions(e, 0));
}
E2E_CASE(all_choose_alike, 120)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_gather_settles), cmocka_unit_test(test_all_reduce_settles),
        cmocka_unit_test(test_all_to_all_settles), cmocka_unit_test(test_arm_of_configuration),
        cmocka_unit_test(test_all_choose_alike),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

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
#define FIRST  50 /* operations until all has settled */
#define SECOND 20 /* within which it must settle again */

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
    e2e_raise(r->shared, 0);
    e2e_await(r->shared, 1);
    for (unsigned i = 0; i < SECOND; i++)
        issue(comm, ops[task->op].op, send, recv, BYTES / 2, r->nranks);
    e2e_meet(r->shared, 2 * r->nranks);
    e2e_raise(r->shared, 2);
    e2e_await(r->shared, 3);
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

/* Fails unless the daemon chose this codec for the operation. */
static void expect_codec(const struct e2e *e, unsigned node, const char *op, const char *codec) {
    json_t *root = decisions(e, node), *row;
    size_t i, found = 0;
    char *all = json_dumps(root, JSON_INDENT(1));
    json_array_foreach(json_object_get(root, "decisions"), i, row) {
        if (strcmp(json_string_value(json_object_get(row, "op")), op) != 0)
            continue;
        found++;
        E2E_CHECK(strcmp(json_string_value(json_object_get(row, "codec")), codec) == 0, "%s on node %u: not %s: %s", op,
                  node, codec, all);
        E2E_CHECK(strstr(json_string_value(json_object_get(row, "why")), codec) != NULL, "%s", all);
        E2E_CHECK(json_array_size(json_object_get(row, "arms")) >= 3, "%s", all);
    }
    E2E_CHECK(found > 0, "no %s in %s", op, all);
    free(all);
    json_decref(root);
}

static void set_rate(struct e2e *e, const char *rate) {
    char path[96];
    snprintf(path, sizeof path, "%s/zipccld.conf", e->dir);
    FILE *f = fopen(path, "w");
    E2E_CHECK(f != NULL, "%s", path);
    fprintf(f, "[zipccld]\nlink_rate = %s\n", rate);
    E2E_CHECK(fclose(f) == 0, "%s", path);
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
    e2e_await(g.shared, 0);
    for (unsigned node = 0; node < 2; node++)
        expect_codec(e, node, ops[op].name, "tier");
    set_rate(e, "0");
    e2e_sleep(0.3);
    e2e_raise(g.shared, 1);
    e2e_await(g.shared, 2);
    for (unsigned node = 0; node < 2; node++)
        expect_codec(e, node, ops[op].name, "raw");
    e2e_raise(g.shared, 3);
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

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_gather_settles),
        cmocka_unit_test(test_all_reduce_settles),
        cmocka_unit_test(test_all_to_all_settles),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

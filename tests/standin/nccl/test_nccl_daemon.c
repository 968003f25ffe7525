/* SPDX-License-Identifier: Apache-2.0
 *
 * zipccld with fabric = nccl on the stand-ins, buffers in host memory: it works, refuses nodes of another fabric, and
 * says why where there is no NCCL.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness.h"

#define COUNT 100000

static void gather_rank(struct e2e_rank *r) {
    zipcclComm_t comm = e2e_comm(r);
    int32_t *in = malloc(COUNT * sizeof(*in)), *out = malloc(2 * COUNT * sizeof(*out));
    for (int i = 0; i < COUNT; i++)
        in[i] = r->rank * COUNT + i;
    E2E_OK(comm, zipcclAllGather(in, out, COUNT, zipcclInt32, comm, NULL));
    E2E_OK(comm, zipcclStreamSynchronize(NULL));
    for (int i = 0; i < 2 * COUNT; i++)
        E2E_CHECK(out[i] == i, "value %d is %d", i, out[i]);
    free(in);
    free(out);
    E2E_OK(NULL, zipcclCommDestroy(comm));
}

static void case_host(struct e2e *e) {
    e2e_set(e, "device=cuda");
    e2e_set(e, "fabric=nccl");
    e2e_daemons(e, 2);
    e2e_ranks(e, "01", gather_rank, NULL, 60);
    e2e_ranks(e, "01", gather_rank, NULL, 60);
    e2e_daemon_stop(e, 0, 10);
    e2e_daemon_stop(e, 1, 10);
}
E2E_CASE(host, 100)

static void refused_rank(struct e2e_rank *r) {
    zipcclComm_t comm = NULL;
    double start = e2e_now();
    e2e_report(r, zipcclCommInitRank(&comm, r->nranks, e2e_id(r), r->rank), comm, start);
}

static void case_mixed(struct e2e *e) {
    struct e2e_group g;
    e2e_set(e, "device=cuda");
    e2e_set(e, "fabric=ucx");
    e2e_daemon_start(e, 0);
    e2e_set(e, "fabric=nccl");
    e2e_daemon_start(e, 1);
    e2e_start(e, &g, "01", refused_rank, NULL);
    e2e_wait(e, &g, 60);
    for (int i = 0; i < 2; i++)
        e2e_expect(&g, i, zipcclInvalidUsage, 20, "node0", "node1", "ucx", "nccl", "same fabric", NULL);
}
E2E_CASE(mixed, 100)

static void check_refused(struct e2e *e, const char *device, const char *why) {
    char text[4096], socket[128];
    snprintf(socket, sizeof(socket), "socket=%s/alone.sock", e->dir);
    const char *const args[] = {
        "--set",           device, "--set", "fabric=nccl", "--set", socket, "--set", "listen=127.0.0.1:0", "--set",
        "metrics_listen=", NULL};
    E2E_CHECK(e2e_daemon_run(e, text, sizeof(text), 20, args) != 0, "%s", text);
    E2E_CHECK(strstr(text, why) && strstr(text, "fabric = auto"), "%s", text);
}

/* An old NCCL, and no GPU: only what was asked for by name ends the daemon. */
static void case_missing(struct e2e *e) {
    setenv("ZIPCCL_STANDIN_NCCL_VERSION", "21000", 1);
    check_refused(e, "device=cuda", "older than 2.14");
    e2e_set(e, "device=cuda");
    e2e_set(e, "fabric=auto");
    e2e_daemons(e, 1);
    unsetenv("ZIPCCL_STANDIN_NCCL_VERSION");
    check_refused(e, "device=host", "device = cuda");
}
E2E_CASE(missing, 60)

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_host), cmocka_unit_test(test_mixed),
                                       cmocka_unit_test(test_missing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * What outlives a daemon: the profiles of its state directory.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "collect.h"
#include "raw.h"

#define USED "begins with what an earlier communicator of these nodes learned"

/* Operations enough that every candidate was measured; bits are checked. */
static void learning_rank(struct e2e_rank *r) {
    enum { COUNT = 32768, OPS = 60 };
    zipcclComm_t comm = e2e_comm(r);
    void *memory = NULL;
    E2E_OK(NULL, zipcclMemAlloc(&memory, (size_t)r->nranks * COUNT * 2));
    uint16_t *recv = memory;
    for (unsigned i = 0; i < OPS; i++) {
        for (unsigned v = 0; v < COUNT; v++)
            recv[(size_t)r->rank * COUNT + v] = (uint16_t)(0x3f80u + v % 97 + i + (unsigned)r->rank);
        E2E_OK(comm, zipcclAllGather(recv + (size_t)r->rank * COUNT, recv, COUNT, zipcclBfloat16, comm, NULL));
        for (unsigned v = 0; v < (unsigned)r->nranks * COUNT; v++)
            E2E_CHECK(recv[v] == (uint16_t)(0x3f80u + v % COUNT % 97 + i + v / COUNT), "operation %u, value %u", i, v);
    }
    zipcclCommDestroy(comm);
    zipcclMemFree(memory);
}

static unsigned profiles(const struct e2e *e, char *path, size_t size) {
    char dir[96];
    unsigned n = 0;
    snprintf(dir, sizeof(dir), "%s/state", e->dir);
    DIR *d = opendir(dir);
    E2E_CHECK(d, "%s: %s", dir, strerror(errno));
    for (const struct dirent *f; (f = readdir(d));) {
        if (strncmp(f->d_name, "profile-", 8) != 0)
            continue;
        n++;
        snprintf(path, size, "%s/%s", dir, f->d_name);
    }
    closedir(d);
    return n;
}

static unsigned used(const struct e2e *e, unsigned node) {
    return (unsigned)raw_counter(e->daemons[node].socket, "profiles_used");
}

static void stop(struct e2e *e) {
    e2e_daemon_stop(e, 0, 20);
    e2e_daemon_stop(e, 1, 20);
}

static void case_profiles(struct e2e *e) {
    char dir[96], path[192];
    snprintf(dir, sizeof(dir), "%s/state", e->dir);
    E2E_CHECK(mkdir(dir, 0700) == 0, "%s", strerror(errno));
    e2e_set(e, "state_directory=%s", dir); /* of both: only the root's counts */
    e2e_set(e, "link_rate=200mbit");       /* so that the link is measured about the same each time */
    e2e_daemons(e, 2);
    e2e_ranks(e, "01", learning_rank, NULL, 60);
    E2E_CHECK(used(e, 0) == 0 && used(e, 1) == 0, "a profile was used before there was one");
    stop(e);
    E2E_CHECK(profiles(e, path, sizeof(path)) == 1, "%u profiles", profiles(e, path, sizeof(path)));
    /* Another daemon of the same node goes on with it, and so do the other nodes: the root tells them. The measured
     * link is about the same or it is not; then it is not used, and learned anew. */
    unsigned tries = 0;
    do {
        e2e_daemons(e, 2);
        e2e_ranks(e, "01", learning_rank, NULL, 60);
        E2E_CHECK(used(e, 0) == used(e, 1), "node 0 used %u, node 1 %u", used(e, 0), used(e, 1));
        tries += used(e, 0) == 0 ? 1 : 10;
        if (tries < 10)
            stop(e);
    } while (tries < 10);
    E2E_CHECK(used(e, 0) == 1, "no profile was used");
    char *log = e2e_read_file(e->daemons[1].log);
    E2E_CHECK(strstr(log, USED), "node 1 says nothing of it");
    free(log);
    /* Other nodes, or ranks that lie otherwise, have nothing to do with it. */
    e2e_ranks(e, "011", learning_rank, NULL, 60);
    E2E_CHECK(used(e, 0) == 1, "a profile of other nodes was used");
    stop(e);
    E2E_CHECK(profiles(e, path, sizeof(path)) == 2, "%u profiles", profiles(e, path, sizeof(path)));
    /* A broken one is ignored. */
    E2E_CHECK(truncate(path, 100) == 0, "%s", strerror(errno));
    e2e_daemon_start(e, 0);
    log = e2e_read_file(e->daemons[0].log);
    E2E_CHECK(strstr(log, "is ignored: it has another size"), "node 0 says nothing of a broken profile");
    free(log);
}
E2E_CASE(profiles, 120)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_profiles)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

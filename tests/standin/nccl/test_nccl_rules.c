/* SPDX-License-Identifier: Apache-2.0
 *
 * The checker of the NCCL stand-in: each rule is broken once, and the process ends with the rule's name.
 */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "ranks.h"

static int *buffer_of(size_t ints) {
    void *p = NULL;
    CHECK(cudaMalloc(&p, ints * sizeof(int)) == cudaSuccess);
    return p;
}

/* What is broken is seen here, on the stream, or by the other rank. */
static int stay(void) {
    sleep(20);
    return 3;
}

static int other_count(struct rank *r) {
    ncclComm_t comm = ranks_comm(r, 0);
    int *p = buffer_of(4);
    ncclAllReduce(p, p, r->rank ? 2 : 1, ncclInt32, ncclSum, comm, r->stream);
    return stay();
}

static int other_collective(struct rank *r) {
    ncclComm_t comm = ranks_comm(r, 0);
    int *p = buffer_of(4);
    if (r->rank)
        ncclAllReduce(p, p, 1, ncclInt32, ncclSum, comm, r->stream);
    else
        ncclAllGather(p, p, 1, ncclInt32, comm, r->stream);
    return stay();
}

static int other_dtype(struct rank *r) {
    ncclComm_t comm = ranks_comm(r, 0);
    int *p = buffer_of(4);
    if (r->rank)
        ncclSend(p, 1, ncclInt32, 0, comm, r->stream);
    else
        ncclRecv(p, 1, ncclFloat32, 1, comm, r->stream);
    return stay();
}

static int own_unmatched(struct rank *r) {
    ncclComm_t comm = ranks_comm(r, 0);
    ncclSend(buffer_of(1), 1, ncclInt32, 0, comm, r->stream);
    return stay();
}

static void *use(void *arg) {
    int count;
    for (double end = ranks_now() + 20; ranks_now() < end;)
        ncclCommCount(arg, &count);
    return NULL;
}

static int two_threads(struct rank *r) {
    ncclComm_t comm = ranks_comm(r, 0);
    pthread_t thread;
    pthread_create(&thread, NULL, use, comm);
    use(comm);
    return 3;
}

static int after_abort(struct rank *r) {
    ncclComm_t comm = ranks_comm(r, 0);
    int count;
    CHECK(ncclCommAbort(comm) == ncclSuccess);
    ncclCommCount(comm, &count);
    return 3;
}

static int after_destroy(struct rank *r) {
    ncclComm_t comm = ranks_comm(r, 0);
    CHECK(ncclCommDestroy(comm) == ncclSuccess);
    ncclCommDestroy(comm);
    return 3;
}

static int after_finalize(struct rank *r) {
    ncclComm_t comm = ranks_comm(r, 0);
    int *p = buffer_of(1);
    CHECK(ncclCommFinalize(comm) == ncclSuccess);
    ncclAllReduce(p, p, 1, ncclInt32, ncclSum, comm, r->stream);
    return 3;
}

static int no_comm(struct rank *r) {
    int count, other = r->rank;
    ncclCommCount((ncclComm_t)(void *)&other, &count);
    return 3;
}

static int init_in_group(struct rank *r) {
    ncclComm_t comm = ranks_comm(r, 0), second;
    int *p = buffer_of(1);
    ncclGroupStart();
    ncclAllReduce(p, p, 1, ncclInt32, ncclSum, comm, r->stream);
    ncclCommInitRank(&second, 1, ranks_id(r, 1), 0);
    return 3;
}

static int abort_in_group(struct rank *r) {
    ncclComm_t comm = ranks_comm(r, 0);
    int *p = buffer_of(1);
    ncclGroupStart();
    ncclAllReduce(p, p, 1, ncclInt32, ncclSum, comm, r->stream);
    ncclCommAbort(comm);
    return 3;
}

static int host_pointer(struct rank *r) {
    ncclComm_t comm = ranks_comm(r, 0);
    int *p = malloc(4);
    ncclAllReduce(p, p, 1, ncclInt32, ncclSum, comm, r->stream);
    return 3;
}

static int past_the_end(struct rank *r) {
    ncclComm_t comm = ranks_comm(r, 0);
    int *p = buffer_of(4);
    ncclAllReduce(p + 1, p + 1, 1 << 22, ncclInt32, ncclSum, comm, r->stream);
    return 3;
}

/* Nobody sends: the receive stays. */
static int receiving(struct rank *r, bool own, bool registered) {
    ncclComm_t comm = ranks_comm(r, 0);
    void *p = NULL, *handle = NULL;
    CHECK(own ? ncclMemAlloc(&p, 64) == ncclSuccess : cudaMalloc(&p, 64) == cudaSuccess);
    if (r->rank)
        return stay();
    CHECK(ncclCommRegister(comm, p, 64, &handle) == ncclSuccess);
    CHECK(ncclRecv(p, 1, ncclInt32, 1, comm, r->stream) == ncclSuccess);
    if (registered)
        ncclCommDeregister(comm, handle);
    else if (own)
        ncclMemFree(p);
    else
        cudaFree(p);
    return 3;
}

static int free_own(struct rank *r) {
    return receiving(r, true, false);
}

static int free_cuda(struct rank *r) {
    return receiving(r, false, false);
}

static int deregister(struct rank *r) {
    return receiving(r, true, true);
}

/* One end of a message is registered. */
static int one_end(struct rank *r) {
    ncclComm_t comm = ranks_comm(r, 0);
    int *p = buffer_of(4);
    void *handle = NULL;
    if (r->rank == 0) {
        CHECK(ncclCommRegister(comm, p, 4 * sizeof(int), &handle) == ncclSuccess);
        ncclSend(p + 1, 1, ncclInt32, 1, comm, r->stream);
    } else {
        ncclRecv(p, 1, ncclInt32, 0, comm, r->stream);
    }
    return stay();
}

static int not_split(struct rank *r) {
    ncclComm_t comm = ranks_comm(r, 0), part;
    int *p = buffer_of(4);
    if (r->rank)
        ncclAllReduce(p, p, 1, ncclInt32, ncclSum, comm, r->stream);
    else
        ncclCommSplit(comm, 0, 0, &part, NULL);
    return stay();
}

static int busy_split(struct rank *r) {
    ncclComm_t comm = ranks_comm(r, 0), part;
    int *p = buffer_of(4);
    if (r->rank)
        return stay();
    ncclRecv(p, 1, ncclInt32, 1, comm, r->stream);
    ncclCommSplit(comm, 0, 0, &part, NULL);
    return 3;
}

static int kept_handle(struct rank *r) {
    ncclComm_t comm = ranks_comm(r, 0);
    void *handle = NULL;
    CHECK(ncclCommRegister(comm, buffer_of(4), 16, &handle) == ncclSuccess);
    ncclCommDestroy(comm);
    return 3;
}

static int freed_before(struct rank *r) {
    ncclComm_t comm = ranks_comm(r, 0);
    void *handle = NULL, *p = buffer_of(4);
    CHECK(ncclCommRegister(comm, p, 16, &handle) == ncclSuccess);
    CHECK(cudaFree(p) == cudaSuccess);
    ncclCommDeregister(comm, handle);
    return 3;
}

/* A handle is one communicator's. */
static int others_handle(struct rank *r) {
    ncclComm_t a = ranks_comm(r, 0), b = ranks_comm(r, 1);
    void *handle = NULL;
    CHECK(ncclCommRegister(a, buffer_of(4), 16, &handle) == ncclSuccess);
    CHECK(ncclCommDeregister(b, handle) == ncclInvalidArgument);
    CHECK(ncclCommDeregister(a, handle) == ncclSuccess && ncclCommDestroy(a) == ncclSuccess);
    return ncclCommDestroy(b) == ncclSuccess ? 0 : 3;
}

static int new_call(struct rank *r) {
    ncclComm_t comm = ranks_comm(r, 0);
    int *p = buffer_of(1);
    ncclAlltoAll(p, p, 1, ncclInt32, comm, r->stream);
    return 3;
}

static void expect(int n, int (*fn)(struct rank *), const char *rule) {
    char text[4096], line[96];
    snprintf(line, sizeof(line), "rule broken: %s: ", rule);
    int end = ranks_run(n, fn, text, sizeof(text));
    if (end != 256 + SIGABRT || !strstr(text, line))
        fail_msg("rule %s: end %d, stderr: %s", rule, end, text);
}

static void test_rules(void **state) {
    (void)state;
    expect(2, other_count, "order of calls");
    expect(2, other_collective, "order of calls");
    expect(2, other_dtype, "order of calls");
    expect(1, own_unmatched, "order of calls");
    expect(1, two_threads, "one thread");
    expect(1, after_abort, "use after abort");
    expect(1, after_destroy, "use after destroy");
    expect(1, after_finalize, "use after finalize");
    expect(1, no_comm, "communicator");
    expect(1, init_in_group, "call in a group");
    expect(1, abort_in_group, "call in a group");
    expect(1, host_pointer, "memory");
    expect(1, past_the_end, "memory");
    expect(2, free_own, "buffer in use");
    expect(2, deregister, "buffer in use");
    expect(2, one_end, "registered at both ends");
    expect(2, not_split, "order of calls");
    expect(2, busy_split, "split of an idle parent");
    expect(1, kept_handle, "registered memory");
    expect(1, freed_before, "registered memory");
}

static void test_handles(void **state) {
    (void)state;
    char text[4096];
    assert_int_equal(ranks_run(1, others_handle, text, sizeof(text)), 0);
}

/* The CUDA stand-in's checker knows what this library has on streams. */
static void test_free_cuda(void **state) {
    (void)state;
    char text[4096];
    assert_int_equal(ranks_run(2, free_cuda, text, sizeof(text)), 256 + SIGABRT);
}

static void test_version(void **state) {
    (void)state;
    setenv("ZIPCCL_STANDIN_NCCL_VERSION", "22703", 1);
    expect(1, new_call, "feature by version");
    unsetenv("ZIPCCL_STANDIN_NCCL_VERSION");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rules), cmocka_unit_test(test_handles),
                                       cmocka_unit_test(test_free_cuda), cmocka_unit_test(test_version)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The NCCL stand-in by itself: data, order, failure.
 */
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

#define OK(call) CHECK((call) == ncclSuccess)

static void *device_memory(size_t bytes) {
    void *p = NULL;
    CHECK(cudaMalloc(&p, bytes) == cudaSuccess);
    return p;
}

static void to_device(void *p, const void *data, size_t bytes) {
    CHECK(cudaMemcpy(p, data, bytes, cudaMemcpyHostToDevice) == cudaSuccess);
}

static void from_device(void *data, const void *p, size_t bytes) {
    CHECK(cudaMemcpy(data, p, bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
}

static void finish(struct rank *r) {
    CHECK(cudaStreamSynchronize(r->stream) == cudaSuccess);
}

static uint8_t value(int from, int to, size_t i) {
    return (uint8_t)((i * 2654435761u + (unsigned)(from * 31 + to * 7)) >> 11);
}

/* Everybody to everybody, itself too, two messages each. */
static int messages(struct rank *r) {
    static const size_t sizes[] = {0, 1, 4099, 300001};
    ncclComm_t comm = ranks_comm(r, 0);
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        size_t n = sizes[s], all = 2 * n * (size_t)r->nranks;
        uint8_t *host = malloc(all + 1), *out = device_memory(all + 1), *in = device_memory(all + 1);
        for (int to = 0; to < r->nranks; to++)
            for (size_t i = 0; i < 2 * n; i++)
                host[2 * n * (size_t)to + i] = value(r->rank, to, i);
        to_device(out, host, all);
        OK(ncclGroupStart());
        for (int p = 0; p < r->nranks; p++) {
            for (size_t k = 0; k < 2; k++) {
                OK(ncclSend(out + (2 * (size_t)p + k) * n, n, ncclUint8, p, comm, r->stream));
                OK(ncclRecv(in + (2 * (size_t)p + k) * n, n, ncclUint8, p, comm, r->stream));
            }
        }
        OK(ncclGroupEnd());
        finish(r);
        from_device(host, in, all);
        for (int p = 0; p < r->nranks; p++)
            for (size_t i = 0; i < 2 * n; i++)
                CHECK(host[2 * n * (size_t)p + i] == value(p, r->rank, i));
        free(host);
        cudaFree(out);
        cudaFree(in);
    }
    OK(ncclCommFinalize(comm));
    OK(ncclCommDestroy(comm));
    return 0;
}

static void test_messages(void **state) {
    (void)state;
    assert_int_equal(ranks_run(1, messages, NULL, 0), 0);
    assert_int_equal(ranks_run(3, messages, NULL, 0), 0);
}

/* Rank r holds r * 1000 + i. */
static int collectives(struct rank *r) {
    enum { N = 500 };
    ncclComm_t comm = ranks_comm(r, 0);
    int n = r->nranks, *in = device_memory(N * 8 * sizeof(int)), *out = device_memory(N * 8 * sizeof(int)), got[N * 8],
        fill[N * 8];
    for (int i = 0; i < N * 8; i++)
        fill[i] = r->rank * 100000 + i;
    to_device(in, fill, sizeof(fill));
#define RUN(call)                                                                                                      \
    OK(call);                                                                                                          \
    finish(r);                                                                                                         \
    from_device(got, out, sizeof(got));
    RUN(ncclAllGather(in, out, N, ncclInt32, comm, r->stream))
    for (int i = 0; i < N * n; i++)
        CHECK(got[i] == i / N * 100000 + i % N);
    RUN(ncclReduceScatter(in, out, N, ncclInt32, ncclSum, comm, r->stream))
    for (int i = 0; i < N; i++)
        CHECK(got[i] == n * (n - 1) / 2 * 100000 + n * (N * r->rank + i));
    RUN(ncclAllReduce(in, out, N, ncclInt32, ncclMax, comm, r->stream))
    for (int i = 0; i < N; i++)
        CHECK(got[i] == (n - 1) * 100000 + i);
    RUN(ncclBroadcast(in, out, N, ncclInt32, 1, comm, r->stream))
    for (int i = 0; i < N; i++)
        CHECK(got[i] == 100000 + i);
    RUN(ncclReduce(in, out, N, ncclInt32, ncclMin, n - 1, comm, r->stream))
    for (int i = 0; i < N && r->rank == n - 1; i++)
        CHECK(got[i] == i);
    RUN(ncclAlltoAll(in, out, N, ncclInt32, comm, r->stream))
    for (int i = 0; i < N * n; i++)
        CHECK(got[i] == i / N * 100000 + N * r->rank + i % N);
    RUN(ncclGather(in, out, N, ncclInt32, 0, comm, r->stream))
    for (int i = 0; i < N * n && r->rank == 0; i++)
        CHECK(got[i] == i / N * 100000 + i % N);
    RUN(ncclScatter(in, out, N, ncclInt32, 2, comm, r->stream))
    for (int i = 0; i < N; i++)
        CHECK(got[i] == 200000 + N * r->rank + i);
    /* In place, and two in a group. */
    to_device(out, fill, sizeof(fill));
    OK(ncclGroupStart());
    OK(ncclAllReduce(out, out, N, ncclInt32, ncclSum, comm, r->stream));
    OK(ncclBcast(out + N, N, ncclInt32, 0, comm, r->stream));
    RUN(ncclGroupEnd())
    for (int i = 0; i < N; i++)
        CHECK(got[i] == n * (n - 1) / 2 * 100000 + n * i && got[N + i] == N + i);
    OK(ncclCommDestroy(comm));
    cudaFree(in);
    cudaFree(out);
    return 0;
}

/* 1.5 and 2 and so on are exact in every float type here. */
static int dtypes(struct rank *r) {
    static const struct {
        ncclDataType_t dtype;
        size_t bytes;
        uint64_t in[3], sum, average;
    } cases[] = {
        {ncclFloat64,
         8,
         {0x3ff8000000000000, 0x4000000000000000, 0xbfe0000000000000},
         0x4008000000000000,
         0x3ff0000000000000},
        {ncclFloat32, 4, {0x3fc00000, 0x40000000, 0xbf000000}, 0x40400000, 0x3f800000},
        {ncclFloat16, 2, {0x3e00, 0x4000, 0xb800}, 0x4200, 0x3c00},
        {ncclBfloat16, 2, {0x3fc0, 0x4000, 0xbf00}, 0x4040, 0x3f80},
        {ncclFloat8e4m3, 1, {0x3c, 0x40, 0xb0}, 0x44, 0x38},
        {ncclFloat8e5m2, 1, {0x3e, 0x40, 0xb8}, 0x42, 0x3c},
        {ncclFloat16, 2, {0x0001, 0x0002, 0x0003}, 0x0006, 0x0002}, /* denormals */
        {ncclFloat16, 2, {0x7bff, 0x7bff, 0x7bff}, 0x7c00, 0x7bff}, /* the sum overflows */
        {ncclInt8, 1, {0xff, 3, 4}, 6, 2},
        {ncclUint8, 1, {1, 3, 5}, 9, 3},
        {ncclUint32, 4, {1, 0x7ffffffe, 7}, 0x80000006, 0x2aaaaaac},
        {ncclInt64, 8, {UINT64_MAX, 3, 4}, 6, 2},
        {ncclUint64, 8, {1, 3, 5}, 9, 3},
    };
    ncclComm_t comm = ranks_comm(r, 0);
    uint64_t *in = device_memory(8), *out = device_memory(8);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t got = 0;
        to_device(in, &cases[i].in[r->rank], 8);
        OK(ncclAllReduce(in, out, 1, cases[i].dtype, ncclSum, comm, r->stream));
        finish(r);
        from_device(&got, out, cases[i].bytes);
        CHECK(got == cases[i].sum);
        OK(ncclAllReduce(in, out, 1, cases[i].dtype, ncclAvg, comm, r->stream));
        finish(r);
        from_device(&got, out, cases[i].bytes);
        CHECK(got == cases[i].average);
    }
    OK(ncclCommDestroy(comm));
    cudaFree(in);
    cudaFree(out);
    return 0;
}

static void test_collectives(void **state) {
    (void)state;
    assert_int_equal(ranks_run(3, collectives, NULL, 0), 0);
    assert_int_equal(ranks_run(3, dtypes, NULL, 0), 0);
}

static ncclResult_t settle(ncclComm_t comm) {
    ncclResult_t state = ncclInProgress;
    for (double end = ranks_now() + 20; state == ncclInProgress && ranks_now() < end; usleep(200))
        OK(ncclCommGetAsyncError(comm, &state));
    return state;
}

static int nonblocking(struct rank *r) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm = NULL, half = NULL;
    int n = 0, *buffer = device_memory(4);
    config.blocking = 0;
    ncclUniqueId id = ranks_id(r, 0);
    if (r->rank == 0) {
        CHECK(ncclCommInitRankConfig(&comm, r->nranks, id, r->rank, &config) == ncclInProgress);
        CHECK(ncclCommCount(comm, &n) == ncclInvalidArgument); /* nobody else is there */
        CHECK(ncclAllReduce(buffer, buffer, 1, ncclInt32, ncclSum, comm, r->stream) == ncclInvalidArgument);
        ranks_meet(r, 0);
    } else {
        ranks_meet(r, 0);
        CHECK(ncclCommInitRankConfig(&comm, r->nranks, id, r->rank, &config) == ncclInProgress);
    }
    CHECK(settle(comm) == ncclSuccess);
    int one = 1, rank, device;
    to_device(buffer, &one, 4);
    CHECK(ncclAllReduce(buffer, buffer, 1, ncclInt32, ncclSum, comm, r->stream) == ncclInProgress);
    CHECK(ncclAllReduce(buffer, buffer, 1, ncclInt32, ncclSum, comm, r->stream) == ncclInvalidArgument);
    CHECK(settle(comm) == ncclSuccess);
    finish(r);
    from_device(&one, buffer, 4);
    CHECK(one == r->nranks);
    /* The even ranks, backwards; the last rank not at all. */
    int color = r->rank == r->nranks - 1 ? NCCL_SPLIT_NOCOLOR : r->rank % 2;
    CHECK(ncclCommSplit(comm, color, -r->rank, &half, NULL) == ncclInProgress);
    CHECK(settle(comm) == ncclSuccess);
    CHECK((half == NULL) == (color == NCCL_SPLIT_NOCOLOR));
    if (half) {
        CHECK(settle(half) == ncclSuccess);
        OK(ncclCommCount(half, &n));
        OK(ncclCommUserRank(half, &rank));
        OK(ncclCommCuDevice(half, &device));
        CHECK(n == (color == 0 ? 2 : 1) && rank == (r->rank == 0 ? 1 : 0) && device == r->rank);
        to_device(buffer, &r->rank, 4);
        CHECK(ncclAllReduce(buffer, buffer, 1, ncclInt32, ncclSum, half, r->stream) == ncclInProgress);
        CHECK(settle(half) == ncclSuccess);
        finish(r);
        from_device(&one, buffer, 4);
        CHECK(one == (color == 0 ? 2 : 1));
        OK(ncclCommDestroy(half));
    }
    CHECK(ncclCommFinalize(comm) == ncclInProgress);
    CHECK(settle(comm) == ncclSuccess);
    OK(ncclCommDestroy(comm));
    cudaFree(buffer);
    return 0;
}

static void test_nonblocking(void **state) {
    (void)state;
    assert_int_equal(ranks_run(4, nonblocking, NULL, 0), 0);
}

static int init_refused(struct rank *r) {
    ncclComm_t comm = NULL;
    ncclUniqueId id = ranks_id(r, 0), wrong;
    ncclConfig_t config;
    memset(&wrong, 1, sizeof(wrong));
    memset(&config, 0, sizeof(config));
    CHECK(ncclCommInitRank(&comm, 2, wrong, r->rank) == ncclInvalidArgument);
    CHECK(ncclCommInitRank(&comm, 2, id, 2) == ncclInvalidArgument);
    CHECK(ncclCommInitRankConfig(&comm, 2, id, r->rank, &config) == ncclInvalidArgument);
    cudaSetDevice(0);
    CHECK(ncclCommInitRank(&comm, 2, id, r->rank) == ncclInvalidUsage && comm == NULL);
    CHECK(strstr(ncclGetLastError(NULL), "Duplicate GPU"));
    setenv("NCCL_HOSTID", r->rank ? "b" : "a", 1); /* two hosts */
    OK(ncclCommInitRank(&comm, 2, ranks_id(r, 1), r->rank));
    OK(ncclCommDestroy(comm));
    return 0;
}

static void test_init_refused(void **state) {
    (void)state;
    assert_int_equal(ranks_run(2, init_refused, NULL, 0), 0);
}

/* Two communicators on one stream, in this order on rank 0, and in the same or the other one on rank 1. */
static int two_comms(struct rank *r, bool swap) {
    ncclComm_t a = ranks_comm(r, 0), b = ranks_comm(r, 1);
    int *buffer = device_memory(8);
    ncclComm_t first = swap && r->rank ? b : a, second = swap && r->rank ? a : b;
    OK(ncclAllReduce(buffer, buffer, 1, ncclInt32, ncclSum, first, r->stream));
    OK(ncclAllReduce(buffer + 1, buffer + 1, 1, ncclInt32, ncclSum, second, r->stream));
    CHECK(ranks_idle(r, swap ? 0.3 : 20) == !swap);
    ranks_meet(r, 0);
    OK(ncclCommAbort(a));
    OK(ncclCommAbort(b));
    CHECK(ranks_idle(r, 20));
    cudaFree(buffer);
    return 0;
}

static int same_order(struct rank *r) {
    return two_comms(r, false);
}

static int other_order(struct rank *r) {
    return two_comms(r, true);
}

static void test_order(void **state) {
    (void)state;
    assert_int_equal(ranks_run(2, same_order, NULL, 0), 0);
    assert_int_equal(ranks_run(2, other_order, NULL, 0), 0);
}

/* A send is not over before it is received; an abort ends it, and the stream goes on with another communicator. */
static int abort_one(struct rank *r) {
    ncclComm_t a = ranks_comm(r, 0), b = ranks_comm(r, 1);
    int *buffer = device_memory(8), one = 1;
    to_device(buffer, &one, 4);
    if (r->rank == 0) {
        OK(ncclSend(buffer, 1, ncclInt32, 1, a, r->stream));
        CHECK(!ranks_idle(r, 0.1));
    }
    ranks_meet(r, 0);
    OK(ncclAllReduce(buffer, buffer, 1, ncclInt32, ncclSum, b, r->stream));
    ranks_meet(r, 1);
    OK(r->rank == 0 && ncclGetErrorString(ncclRemoteError) ? ncclCommRevoke(a, 0) : ncclSuccess);
    OK(ncclCommAbort(a));
    finish(r);
    from_device(&one, buffer, 4);
    CHECK(one == 2);
    OK(ncclCommDestroy(b));
    cudaFree(buffer);
    return 0;
}

static int peer_dies(struct rank *r) {
    ncclComm_t comm = ranks_comm(r, 0);
    int *buffer = device_memory(8);
    ncclResult_t state = ncclSuccess;
    if (r->rank == 1) {
        ranks_meet(r, 0);
        _exit(0); /* as a kill: no call ends the communicator */
    }
    OK(ncclRecv(buffer, 1, ncclInt32, 1, comm, r->stream));
    OK(ncclCommGetAsyncError(comm, &state));
    CHECK(state == ncclSuccess);
    ranks_meet(r, 0);
    for (double end = ranks_now() + 10; state == ncclSuccess && ranks_now() < end; usleep(500))
        OK(ncclCommGetAsyncError(comm, &state));
    CHECK(state == ncclRemoteError);
    CHECK(!ranks_idle(r, 0.1)); /* what is on the stream stays there */
    OK(ncclCommAbort(comm));
    CHECK(ranks_idle(r, 20));
    cudaFree(buffer);
    return 0;
}

static void test_failure(void **state) {
    (void)state;
    assert_int_equal(ranks_run(2, abort_one, NULL, 0), 0);
    assert_int_equal(ranks_run(2, peer_dies, NULL, 0), 0);
}

static int injection(struct rank *r) {
    ncclComm_t comm = ranks_comm(r, 0);
    int *buffer = device_memory(8);
    ncclResult_t state = ncclSuccess;
    OK(ncclGroupStart());
    OK(ncclSend(buffer, 1, ncclInt32, 0, comm, r->stream));
    CHECK(ncclSend(buffer, 1, ncclInt32, 0, comm, r->stream) == ncclInternalError);
    CHECK(ncclGroupEnd() == ncclInternalError); /* and nothing of the group runs */
    CHECK(ranks_idle(r, 0));
    OK(ncclAllReduce(buffer, buffer, 1, ncclInt32, ncclSum, comm, r->stream));
    for (double end = ranks_now() + 10; state == ncclSuccess && ranks_now() < end; usleep(500))
        OK(ncclCommGetAsyncError(comm, &state));
    CHECK(state == ncclRemoteError);
    OK(ncclCommAbort(comm));
    CHECK(ranks_idle(r, 20)); /* an abort does not wait for the stream */
    cudaFree(buffer);
    return 0;
}

static void test_injection(void **state) {
    (void)state;
    setenv("ZIPCCL_STANDIN_FAIL", "ncclSend:2=3;nccl:1=6", 1);
    int end = ranks_run(1, injection, NULL, 0);
    unsetenv("ZIPCCL_STANDIN_FAIL");
    assert_int_equal(end, 0);
}

static int memory(struct rank *r) {
    ncclComm_t comm = ranks_comm(r, 0);
    int version = 0;
    void *p = NULL, *handle = NULL;
    OK(ncclGetVersion(&version));
    CHECK(version == 21905);
    OK(ncclMemAlloc(&p, 1000));
    OK(ncclCommRegister(comm, p, 1000, &handle));
    OK(ncclAllReduce(p, p, 250, ncclInt32, ncclSum, comm, r->stream));
    finish(r);
    OK(ncclCommDeregister(comm, handle));
    CHECK(ncclCommDeregister(comm, handle) == ncclInvalidArgument);
    OK(ncclMemFree(p));
    CHECK(ncclMemFree(&version) == ncclInvalidArgument);
    CHECK(ncclGroupEnd() == ncclInvalidUsage);
    CHECK(ncclSend(&version, 1, ncclInt32, 7, comm, r->stream) == ncclInvalidArgument);
    CHECK(ncclAllReduce(NULL, NULL, 1, ncclInt32, ncclSum, NULL, r->stream) == ncclInvalidArgument);
    OK(ncclCommDestroy(comm));
    return 0;
}

static void test_memory(void **state) {
    (void)state;
    setenv("ZIPCCL_STANDIN_NCCL_VERSION", "21905", 1);
    int end = ranks_run(1, memory, NULL, 0);
    unsetenv("ZIPCCL_STANDIN_NCCL_VERSION");
    assert_int_equal(end, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages),     cmocka_unit_test(test_collectives), cmocka_unit_test(test_nonblocking),
        cmocka_unit_test(test_init_refused), cmocka_unit_test(test_order),       cmocka_unit_test(test_failure),
        cmocka_unit_test(test_injection),    cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Raw arms as NCCL's own collectives: two jobs on both GPUs of two nodes, in whose orders of ranks the nodes alternate;
 * the bits of data movement, and of the ring those that the stand-in documents (tests/standin/nccl/reduce.c); what goes
 * by messages instead, and ranks that disagree.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_buffers.h"
#include "raw.h"
#include "reference.h"

enum { RANKS = 4, COUNT = 5003, ROUNDS = 10 };

struct job {
    const char *layout;
    bool native;
};

static int local_index(const char *layout, int rank) {
    int n = 0;
    for (int i = 0; i < rank; i++)
        n += layout[i] == layout[rank];
    return n;
}

/* Value i of a rank: sums of them depend on the order and on each rounding. */
static uint64_t value(zipcclDataType_t dtype, int rank, size_t i, unsigned round) {
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u + (uint64_t)rank * 0xd1b54a32d192ed03u + round;
    x ^= x >> 29;
    return reference_round(dtype, ldexp((double)(x % 4001) - 2000, (int)(x >> 40 & 7) - 6));
}

/* Around the ring, from the rank behind the one where it ends. */
static uint64_t ring_sum(zipcclDataType_t dtype, int last, size_t i, unsigned round) {
    float sum = 0;
    uint64_t bits = 0;
    for (int k = 1; k <= RANKS; k++) {
        float x = (float)reference_decode(dtype, value(dtype, (last + k) % RANKS, i, round));
        sum = k == 1 ? x : sum + x;
        bits = reference_round(dtype, (double)sum);
        sum = (float)reference_decode(dtype, bits);
    }
    return bits;
}

static size_t put(uint8_t *to, zipcclDataType_t dtype, uint64_t bits) {
    size_t size = dtype == zipcclFloat32 ? 4 : 2;
    memcpy(to, &bits, size);
    return size;
}

static const zipcclOp_t ops[] = {zipcclOpAllGather, zipcclOpBroadcast, zipcclOpReduceScatter, zipcclOpAllReduce,
                                 zipcclOpReduce};

static uint64_t expected(zipcclOp_t op, zipcclDataType_t dtype, int rank, int root, size_t i, unsigned round) {
    switch (op) {
    case zipcclOpAllGather:
        return value(dtype, (int)(i / COUNT), i % COUNT, round);
    case zipcclOpBroadcast:
        return value(dtype, root, i, round);
    case zipcclOpReduceScatter:
        return ring_sum(dtype, rank, (size_t)rank * COUNT + i, round);
    case zipcclOpAllReduce:
        return ring_sum(dtype, (int)(i / ((COUNT + RANKS - 1) / RANKS)), i, round);
    default:
        return ring_sum(dtype, root, i, round);
    }
}

static zipcclResult_t issue(zipcclOp_t op, const void *send, void *recv, zipcclDataType_t dtype, int root,
                            zipcclComm_t comm, zipcclStream_t stream) {
    switch (op) {
    case zipcclOpAllGather:
        return zipcclAllGather(send, recv, COUNT, dtype, comm, stream);
    case zipcclOpBroadcast:
        return zipcclBroadcast(send, recv, COUNT, dtype, root, comm, stream);
    case zipcclOpReduceScatter:
        return zipcclReduceScatter(send, recv, COUNT, dtype, zipcclSum, comm, stream);
    case zipcclOpAllReduce:
        return zipcclAllReduce(send, recv, COUNT, dtype, zipcclSum, comm, stream);
    default:
        return zipcclReduce(send, recv, COUNT, dtype, zipcclSum, root, comm, stream);
    }
}

/* One operation, in place every other time. */
static void one(const struct e2e_rank *r, const struct gpu_rank *g, zipcclComm_t comm, zipcclOp_t op, unsigned round,
                uint8_t *send, uint8_t *recv, bool check) {
    const zipcclDataType_t dtype = round % 2 ? zipcclBfloat16 : zipcclFloat32;
    const size_t size = dtype == zipcclFloat32 ? 4 : 2, n = COUNT * size;
    const int root = (int)round % RANKS;
    uint8_t *host = calloc(RANKS, n), *from = send, *to = recv;
    for (size_t i = 0, at = 0; i < (size_t)RANKS * COUNT; i++)
        at += put(host + at, dtype, value(dtype, r->rank, i, round));
    if (round / 2 % 2 && op == zipcclOpAllGather)
        from = recv + (size_t)r->rank * n;
    else if (round / 2 % 2)
        to = op == zipcclOpReduceScatter ? send + (size_t)r->rank * n : send;
    CUDA_OK(cudaMemsetAsync(recv, 0xff, RANKS * n, g->cuda));
    CUDA_OK(cudaMemcpyAsync(from, host, op == zipcclOpReduceScatter ? RANKS * n : n, cudaMemcpyDefault, g->cuda));
    E2E_OK(comm, issue(op, from, to, dtype, root, comm, g->stream));
    const size_t bytes = op == zipcclOpAllGather ? RANKS * n : op == zipcclOpReduce && r->rank != root ? 0 : n;
    CUDA_OK(cudaMemcpyAsync(host, to, bytes, cudaMemcpyDefault, g->cuda));
    CUDA_OK(cudaStreamSynchronize(g->cuda));
    for (size_t i = 0; check && i < bytes / size; i++) {
        uint64_t got = 0, want = expected(op, dtype, r->rank, root, i, round);
        memcpy(&got, host + i * size, size);
        E2E_CHECK(got == want, "operation %d, round %u, value %zu: %llx, expected %llx", (int)op, round, i,
                  (unsigned long long)got, (unsigned long long)want);
    }
    free(host);
}

static void raw_rank(struct e2e_rank *r) {
    const struct job *job = r->args;
    struct gpu_rank g;
    struct gpu_memory memory[2];
    gpu_rank_begin(&g, local_index(job->layout, r->rank));
    zipcclComm_t comm = e2e_comm(r);
    E2E_OK(comm, zipcclCommSetCodec(comm, zipcclCodecRaw));
    E2E_OK(comm, zipcclCommSetArm(comm, zipcclArmRing));
    for (unsigned i = 0; i < 2; i++)
        gpu_memory_new(&memory[i], i ? GPU_VMM : GPU_MALLOC, (size_t)RANKS * COUNT * sizeof(float), g.cuda);
    for (unsigned i = 0; i < ROUNDS; i++) {
        zipcclOp_t op = ops[i % 5];
        one(r, &g, comm, op, i, memory[0].base, memory[1].base,
            job->native || op == zipcclOpAllGather || op == zipcclOpBroadcast);
    }
    E2E_OK(NULL, zipcclStreamSynchronize(g.stream));
    E2E_OK(NULL, zipcclCommDestroy(comm));
    for (unsigned i = 0; i < 2; i++)
        gpu_memory_free(&memory[i], g.cuda);
    gpu_rank_end(&g);
}

static void expect_native(const struct e2e *e, uint64_t n) {
    for (unsigned node = 0; node < 2; node++) {
        uint64_t found = raw_counter(e->daemons[node].socket, "native_collectives");
        E2E_CHECK(found == n, "node %u: %llu collectives were NCCL's, not %llu", node, (unsigned long long)found,
                  (unsigned long long)n);
    }
}

static void start(struct e2e *e) {
    e2e_set(e, "device=cuda");
    e2e_set(e, "fabric=nccl");
    e2e_set(e, "chunk_bytes=64KiB");
    e2e_daemons(e, 2);
}

static void case_two_jobs(struct e2e *e) {
    static const struct job jobs[] = {{"0011", true}, {"1010", true}};
    struct e2e_group g[2];
    start(e);
    for (unsigned i = 0; i < 2; i++)
        e2e_start(e, &g[i], jobs[i].layout, raw_rank, &jobs[i]);
    for (unsigned i = 0; i < 2; i++) {
        e2e_wait(e, &g[i], 60);
        e2e_all_passed(e, &g[i]);
    }
    expect_native(e, 2 * ROUNDS);
    for (unsigned node = 0; node < 2; node++) {
        char line[256], output[65536];
        unsigned found = 0;
        snprintf(line, sizeof(line), "%s/zipcclctl flight e2e-two_jobs-0 --json --socket %s 2>&1", ZIPCCL_TEST_BIN,
                 e->daemons[node].socket);
        FILE *f = popen(line, "r");
        E2E_CHECK(f, "%s", line);
        output[fread(output, 1, sizeof(output) - 1, f)] = '\0';
        E2E_CHECK(pclose(f) == 0, "%s: %s", line, output);
        for (const char *at = output; (at = strstr(at, "\"native\": true")); at++)
            found++;
        E2E_CHECK(found == ROUNDS, "%u operations were NCCL's: %s", found, output);
    }
}
E2E_CASE(two_jobs, 80)

/* Where one node has it off, all go by messages. */
static void case_off(struct e2e *e) {
    static const struct job job = {"0101", false};
    start(e);
    e2e_daemon_stop(e, 1, 20);
    e2e_set(e, "nccl_native=off");
    e2e_daemon_start(e, 1);
    e2e_ranks(e, job.layout, raw_rank, &job, 60);
    expect_native(e, 0);
}
E2E_CASE(off, 80)

/* One rank has memory that cannot be shared: messages, and the nodes ask less and less often; then again NCCL. */
static void staged_rank(struct e2e_rank *r) {
    const struct job *job = r->args;
    struct gpu_rank g;
    struct gpu_memory memory[4];
    gpu_rank_begin(&g, local_index(job->layout, r->rank));
    zipcclComm_t comm = e2e_comm(r);
    E2E_OK(comm, zipcclCommSetCodec(comm, zipcclCodecRaw));
    for (unsigned i = 0; i < 4; i++)
        gpu_memory_new(&memory[i], i >= 2 && r->rank == 2 ? GPU_HOST : GPU_MALLOC,
                       (size_t)RANKS * COUNT * sizeof(float), g.cuda);
    /* Refused: 0, 1, 3, 7; then 8 to 14 do not ask. */
    for (unsigned i = 0; i < 24; i++)
        one(r, &g, comm, i % 2 ? zipcclOpBroadcast : zipcclOpAllGather, i, memory[i < 10 ? 2 : 0].base,
            memory[i < 10 ? 3 : 1].base, true);
    E2E_OK(NULL, zipcclStreamSynchronize(g.stream));
    E2E_OK(NULL, zipcclCommDestroy(comm));
    for (unsigned i = 0; i < 4; i++)
        gpu_memory_free(&memory[i], g.cuda);
    gpu_rank_end(&g);
}

static void case_staged(struct e2e *e) {
    static const struct job job = {"0101", false};
    start(e);
    e2e_ranks(e, job.layout, staged_rank, &job, 60);
    expect_native(e, 9);
}
E2E_CASE(staged, 80)

/* Groups go by messages; node 0 has some where node 1 has none, and the other way round. */
static void grouped_rank(struct e2e_rank *r) {
    enum { N = 1000 };
    struct gpu_rank g;
    struct gpu_memory m;
    uint32_t values[4 * N];
    gpu_rank_begin(&g, 0);
    zipcclComm_t comm = e2e_comm(r);
    E2E_OK(comm, zipcclCommSetCodec(comm, zipcclCodecRaw));
    gpu_memory_new(&m, GPU_MALLOC, sizeof(values), g.cuda);
    for (unsigned i = 0; i < 12; i++) {
        const bool group = (i % 4 == 1 && r->rank == 0) || (i % 4 == 3 && r->rank == 1);
        for (unsigned k = 0; k < 4 * N; k++)
            values[k] = k / N % 2 == (unsigned)r->rank ? i * 100000 + k : 0;
        CUDA_OK(cudaMemcpyAsync(m.base, values, sizeof(values), cudaMemcpyDefault, g.cuda));
        if (group)
            E2E_OK(comm, zipcclGroupStart());
        for (unsigned k = 0; k < 2; k++) {
            uint32_t *recv = (uint32_t *)(void *)m.base + (size_t)k * 2 * N;
            E2E_OK(comm, zipcclAllGather(recv + (size_t)r->rank * N, recv, N, zipcclUint32, comm, g.stream));
        }
        if (group)
            E2E_OK(comm, zipcclGroupEnd());
        CUDA_OK(cudaMemcpyAsync(values, m.base, sizeof(values), cudaMemcpyDefault, g.cuda));
        CUDA_OK(cudaStreamSynchronize(g.cuda));
        for (unsigned k = 0; k < 4 * N; k++)
            E2E_CHECK(values[k] == i * 100000 + k, "round %u, value %u is %u", i, k, values[k]);
    }
    E2E_OK(NULL, zipcclStreamSynchronize(g.stream));
    E2E_OK(NULL, zipcclCommDestroy(comm));
    gpu_memory_free(&m, g.cuda);
    gpu_rank_end(&g);
}

static void case_grouped(struct e2e *e) {
    start(e);
    e2e_ranks(e, "01", grouped_rank, NULL, 60);
    E2E_CHECK(raw_counter(e->daemons[0].socket, "native_collectives") > 0, "none was NCCL's");
}
E2E_CASE(grouped, 80)

/* The last rank calls something else. */
static void bad_rank(struct e2e_rank *r) {
    const int what = *(const int *)r->args;
    struct gpu_rank g;
    struct gpu_memory m;
    gpu_rank_begin(&g, 0);
    zipcclComm_t comm = e2e_comm(r);
    const bool other = r->rank == (what % 2 ? 0 : 1);
    E2E_OK(comm, zipcclCommSetCodec(comm, other && what < 2 ? zipcclCodecTier : zipcclCodecRaw));
    E2E_OK(comm, zipcclCommSetArm(comm, zipcclArmRing));
    gpu_memory_new(&m, GPU_MALLOC, (size_t)2 * COUNT * sizeof(float), g.cuda);
    uint8_t *recv = m.base + COUNT * sizeof(float);
    double begun = e2e_now();
    zipcclResult_t result;
    if (other && what >= 4)
        result = zipcclAllReduce(m.base, recv, 100, zipcclFloat32, zipcclSum, comm, g.stream);
    else
        result = zipcclAllGather(m.base, recv, other && what >= 2 ? 1000 : 100, zipcclFloat32, comm, g.stream);
    CUDA_OK(cudaStreamSynchronize(g.cuda));
    if (result == zipcclSuccess)
        E2E_OK(NULL, zipcclCommGetAsyncError(comm, &result));
    e2e_report(r, result, comm, begun);
    (void)zipcclCommAbort(comm);
    (void)zipcclStreamDestroy(g.stream); /* it has the error too */
    gpu_memory_free(&m, g.cuda);
}

static void case_mismatch(struct e2e *e) {
    static const char *const texts[] = {"coded tier", "coded tier", "1000", "1000", "all-reduce", "all-reduce"};
    start(e);
    for (int what = 0; what < 6; what++) {
        struct e2e_group g;
        e2e_start(e, &g, "01", bad_rank, &what);
        e2e_wait(e, &g, 20);
        for (int rank = 0; rank < 2; rank++)
            e2e_expect(&g, rank, zipcclInvalidArgument, 5, "#1: node", " sends ", "this node expects", texts[what],
                       NULL);
        e2e_all_passed(e, &g);
    }
}
E2E_CASE(mismatch, 80)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_two_jobs), cmocka_unit_test(test_off),
                                       cmocka_unit_test(test_staged), cmocka_unit_test(test_grouped),
                                       cmocka_unit_test(test_mismatch)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

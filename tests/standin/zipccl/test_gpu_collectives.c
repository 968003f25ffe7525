/* SPDX-License-Identifier: Apache-2.0
 *
 * Every operation on memory of GPUs of every kind, in CUDA streams, between daemons that work on the GPUs: the bits of
 * data movement, and the sums of reference.h. Nobody waits on the host between an operation and what follows it in the
 * stream.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_buffers.h"

#define BYTES        (96u << 10)
#define CHUNKS_COUNT 37000u

struct plan_of_case {
    const char *layout;
    unsigned n; /* operations */
};

static const zipcclDataType_t floats[] = {zipcclBfloat16, zipcclFloat16, zipcclFloat32, zipcclFloat8e4m3,
                                          zipcclFloat8e5m2};
#define FLOATS (sizeof(floats) / sizeof(floats[0]))

/* The kernels that the stand-in has are of these: all that are coded, and one that is not. */
static zipcclDataType_t dtype_of(const struct any_op *a) {
    return a->dtype % (FLOATS + 1) == FLOATS ? zipcclInt32 : floats[a->dtype % (FLOATS + 1)];
}

static int local_index(const char *layout, int rank) {
    int n = 0;
    for (int i = 0; i < rank; i++)
        n += layout[i] == layout[rank];
    return n;
}

/* Operations in flight at once, in one stream; each has its buffers. */
#define FLIGHT 3

static void stream_rank(struct e2e_rank *r) {
    const struct plan_of_case *p = r->args;
    struct any_world w;
    struct gpu_rank g;
    struct gpu_buffers b[FLIGHT];
    struct any_op a[FLIGHT];
    char text[160];
    uint64_t state = 88172645463325252u + (uint64_t)(p->layout[0] + 31 * p->layout[r->nranks - 1] + 977 * r->nranks);
    gpu_rank_begin(&g, local_index(p->layout, r->rank));
    any_world_set(&w, p->layout, r->rank, e2e_comm(r));
    for (unsigned i = 0; i < p->n; i += FLIGHT) {
        for (unsigned k = 0; k < FLIGHT; k++) {
            enum gpu_kind send = (enum gpu_kind)((i / FLIGHT + k + (unsigned)r->rank) % GPU_KINDS);
            enum gpu_kind recv = (enum gpu_kind)((i / FLIGHT + 2 * k) % GPU_KINDS);
            gpu_buffers_new(&b[k], &g, send, recv, BYTES);
            a[k] = any_draw(&state, &w, BYTES, i + k);
            a[k].dtype = dtype_of(&a[k]);
            a[k].count = a[k].count % (BYTES / 8 / (size_t)r->nranks);
            fprintf(stderr, "%s, memory %d and %d\n", any_name(&a[k], text), (int)send, (int)recv);
            E2E_OK(w.comm, any_issue(&w, g.stream, &a[k], &b[k].any));
            gpu_fetch(&b[k]);
        }
        CUDA_OK(cudaStreamSynchronize(g.cuda)); /* not zipccl's: the stream alone must tell */
        E2E_OK(NULL, zipcclStreamSynchronize(g.stream));
        for (unsigned k = 0; k < FLIGHT; k++) {
            any_check(&w, &a[k], &b[k].any);
            gpu_buffers_free(&b[k]);
        }
    }
    E2E_OK(NULL, zipcclCommDestroy(w.comm));
    gpu_rank_end(&g);
}

static void run(struct e2e *e, unsigned nodes, const char *const *layouts, unsigned n) {
    pool();
    e2e_set(e, "device=cuda");
    e2e_set(e, "chunk_bytes=64KiB");
    e2e_daemons(e, nodes);
    for (; *layouts; layouts++) {
        struct plan_of_case p = {*layouts, n};
        e2e_ranks(e, *layouts, stream_rank, &p, 100);
    }
}

static void case_one_node(struct e2e *e) {
    run(e, 1, (const char *const[]){"0", "00", NULL}, 24);
}
E2E_CASE(one_node, 100)

/* On a link with a rate, which holds for what NCCL carries too. */
static void case_two_nodes(struct e2e *e) {
    e2e_set(e, "verify=on");
    e2e_set(e, "link_rate=2gbit");
    run(e, 2, (const char *const[]){"01", "0011", NULL}, 30);
}
E2E_CASE(two_nodes, 100)

/* Calls whose names begin so, of a process. */
static unsigned long calls(const struct e2e *e, pid_t pid, const char *name) {
    char path[128], row[65] = "", found[65];
    unsigned long all = 0, n;
    snprintf(path, sizeof(path), "%s/count.%d", e->dir, (int)pid);
    FILE *f = fopen(path, "r");
    E2E_CHECK(f, "%s", path);
    while (fread(row, 64, 1, f) == 1) {
        if (sscanf(row, "%64s %lu", found, &n) == 2 && strncmp(found, name, strlen(name)) == 0)
            all += n;
    }
    fclose(f);
    return all;
}

/* What only GPUs can have done: the workers have launched kernels; and which fabric carried the values. The daemon
 * itself has made no call of CUDA or NCCL. */
static void check_launches(const struct e2e *e, unsigned node, bool nccl) {
    const pid_t daemon = e->daemons[node].pid;
    unsigned long sends = 0;
    char path[128];
    for (unsigned i = 0; i < 2; i++) {
        pid_t worker = gpu_worker(daemon, i);
        E2E_CHECK(worker, "node %u, GPU %u has no worker", node, i);
        unsigned long found = calls(e, worker, "cudaLaunchKernel");
        E2E_CHECK(found > 30, "node %u, GPU %u: %lu kernels were launched", node, i, found);
        sends += calls(e, worker, "ncclSend");
    }
    E2E_CHECK((sends > 20) == nccl, "node %u has sent %lu messages by NCCL", node, sends);
    snprintf(path, sizeof(path), "%s/count.%d", e->dir, (int)daemon);
    E2E_CHECK(access(path, F_OK) != 0, "the daemon of node %u has called CUDA or NCCL", node);
}

/* Two daemons whose calls are counted. */
static void start_counted(struct e2e *e) {
    char path[96];
    snprintf(path, sizeof(path), "%s/count", e->dir);
    setenv("ZIPCCL_STANDIN_COUNT", path, 1);
    e2e_daemons(e, 2);
    unsetenv("ZIPCCL_STANDIN_COUNT");
}

#ifdef ZIPCCL_HAVE_NCCL
#    define WITH_NCCL true
#else
#    define WITH_NCCL false
#endif

/* Two jobs at once, each with a rank on both GPUs of both nodes. */
static void case_two_jobs(struct e2e *e) {
    struct plan_of_case p[2] = {{"0011", 45}, {"1100", 45}};
    struct e2e_group g[2];
    pool();
    e2e_set(e, "device=cuda");
    e2e_set(e, "chunk_bytes=64KiB");
    start_counted(e);
    for (unsigned i = 0; i < 2; i++)
        e2e_start(e, &g[i], p[i].layout, stream_rank, &p[i]);
    for (unsigned i = 0; i < 2; i++)
        e2e_wait(e, &g[i], 100);
    for (unsigned i = 0; i < 2; i++)
        e2e_all_passed(e, &g[i]);
    for (unsigned node = 0; node < 2 && gpu_standin(); node++)
        check_launches(e, node, WITH_NCCL);
}
E2E_CASE(two_jobs, 130)

/* The operations of training in several chunks, on two GPUs of each of two nodes: values of each dtype are moved, and
 * reduced, by either codec; at last raw. */
static void chunks_rank(struct e2e_rank *r) {
    static const zipcclOp_t moves[] = {zipcclOpAllGather, zipcclOpAllToAll};
    static const zipcclOp_t reductions[] = {zipcclOpReduceScatter, zipcclOpAllReduce};
    struct any_world w;
    struct gpu_rank g;
    struct gpu_buffers b;
    gpu_rank_begin(&g, local_index("0011", r->rank));
    any_world_set(&w, "0011", r->rank, e2e_comm(r));
    gpu_buffers_new(&b, &g, GPU_MALLOC, GPU_MALLOC, (size_t)4 * CHUNKS_COUNT * sizeof(float));
    for (unsigned i = 0; i < 4 * FLOATS + 4; i++) {
        const bool coded = i < 4 * FLOATS;
        struct any_op a = {.op = (coded ? i < 2 * FLOATS : i % 4 < 2) ? moves[i % 2] : reductions[i % 2],
                           .dtype = floats[i % FLOATS],
                           .codec = !coded           ? zipcclCodecRaw
                                    : i / FLOATS % 2 ? zipcclCodecTop7
                                                     : zipcclCodecTier,
                           .arm = zipcclArmHierarchical,
                           .redop = i % 2 ? zipcclSum : zipcclAvg,
                           .count = CHUNKS_COUNT * (floats[i % FLOATS] >= zipcclFloat8e4m3 ? 2 : 1),
                           .seq = i};
        E2E_OK(w.comm, any_issue(&w, g.stream, &a, &b.any));
        gpu_fetch(&b);
        CUDA_OK(cudaStreamSynchronize(g.cuda));
        any_check(&w, &a, &b.any);
    }
    E2E_OK(NULL, zipcclStreamSynchronize(g.stream));
    gpu_buffers_free(&b);
    E2E_OK(NULL, zipcclCommDestroy(w.comm));
    gpu_rank_end(&g);
}

static void run_chunks(struct e2e *e, const char *fabric) {
    pool();
    e2e_set(e, "device=cuda");
    e2e_set(e, "chunk_bytes=64KiB");
    e2e_set(e, "fabric=%s", fabric);
    start_counted(e);
    e2e_ranks(e, "0011", chunks_rank, NULL, 100);
    for (unsigned node = 0; node < 2 && gpu_standin(); node++)
        check_launches(e, node, strcmp(fabric, "ucx") != 0);
}

#ifdef ZIPCCL_HAVE_NCCL
static void case_chunks(struct e2e *e) {
    run_chunks(e, "auto"); /* NCCL */
}
E2E_CASE(chunks, 110)
#endif

static void case_chunks_ucx(struct e2e *e) {
    run_chunks(e, "ucx");
}
E2E_CASE(chunks_ucx, 110)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_node), cmocka_unit_test(test_two_nodes),
                                       cmocka_unit_test(test_two_jobs),
#ifdef ZIPCCL_HAVE_NCCL
                                       cmocka_unit_test(test_chunks),
#endif
                                       cmocka_unit_test(test_chunks_ucx)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

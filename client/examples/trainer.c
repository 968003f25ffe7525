/* SPDX-License-Identifier: Apache-2.0
 *
 * A stand-in for a trainer: all-gathers every tensor file of a directory, each rank owning a shard, raw and compressed
 * in turn, compares all bits, and lets rank 0 print what it took.
 *
 *   trainer DIRECTORY ID_FILE RANK NRANKS [HOLD]
 *
 * With HOLD, the ranks stay connected after the table until the file HOLD.go exists; HOLD.ready says that they wait.
 */
#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <zipccl.h>

#include "client/lib/admin.h"

#define ROUNDS    5
#define MAX_RANKS 64
#define WAIT_US   10000
#define WAIT_MAX  6000 /* times WAIT_US: a minute */

enum arm { RAW, ZIPPED, NUM_ARMS };

/* What a rank tells the others about one tensor; gathered as 8-byte integers. */
struct report {
    uint64_t ns[NUM_ARMS][ROUNDS];
    uint64_t equal;
};

struct trainer {
    int rank, nranks;
    zipcclComm_t comm;
    struct admin *admin; /* rank 0: bytes on the wire come from the daemon's statistics */
    struct report *mine, *all;
    bool all_equal;
};

/* One tensor as all ranks see it. */
struct work {
    const char *name;
    zipcclDataType_t dtype;
    size_t bytes, count, shard; /* of the file; values and bytes of a rank's shard */
    char *expected;             /* the file, and zeros up to nranks shards */
    void *send, *recv;
    uint64_t raw, wire; /* bytes of the compressed rounds together */
};

static int failed(const struct trainer *t, const char *what) {
    (void)fprintf(stderr, "trainer rank %d: %s: %s\n", t->rank, what, zipcclGetLastError(t->comm));
    return -1;
}

static uint64_t now_ns(void) {
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static size_t dtype_of(const char *name, zipcclDataType_t *dtype) {
    const char *dot = strrchr(name, '.');
    *dtype = dot && !strcmp(dot, ".f32") ? zipcclFloat32 : zipcclBfloat16;
    return !dot ? 0 : !strcmp(dot, ".bf16") ? 2 : !strcmp(dot, ".f32") ? 4 : 0;
}

static int is_tensor(const struct dirent *e) {
    zipcclDataType_t dtype;
    return dtype_of(e->d_name, &dtype) != 0;
}

/* Adds to the sums what this node has sent so far, times sign: what it would have sent uncoded, and what it sent. */
static void count_wire(const struct trainer *t, struct work *w, uint64_t sign) {
    Zipccl__Stats *stats = NULL;
    if (!t->admin || admin_stats(t->admin, getenv("ZIPCCL_JOB_ID"), &stats) != zipcclSuccess)
        return;
    for (size_t i = 0; i < stats->n_ops; i++) {
        w->raw += sign * stats->ops[i]->raw_bytes;
        w->wire += sign * stats->ops[i]->wire_bytes;
    }
    zipccl__stats__free_unpacked(stats, NULL);
}

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* An operation takes as long as its slowest rank; of the rounds the median. */
static double median_ms(const struct trainer *t, enum arm arm) {
    uint64_t slowest[ROUNDS] = {0};
    for (int i = 0; i < ROUNDS; i++)
        for (int r = 0; r < t->nranks; r++)
            if (t->all[r].ns[arm][i] > slowest[i])
                slowest[i] = t->all[r].ns[arm][i];
    const int middle = ROUNDS / 2;
    qsort(slowest, ROUNDS, sizeof *slowest, ascending);
    return (double)slowest[middle] / 1e6;
}

static void print_line(const struct trainer *t, const struct work *w, bool equal) {
    double raw_ms = median_ms(t, RAW), zipped_ms = median_ms(t, ZIPPED);
    printf("%-24s %10zu %10llu %6.3f %8.2f %8.2f %8.2fx  %s\n", w->name, w->bytes,
           (unsigned long long)(w->wire / ROUNDS), w->wire ? (double)w->raw / (double)w->wire : 1.0, raw_ms, zipped_ms,
           raw_ms / zipped_ms, equal ? "equal" : "DIFFER");
    (void)fflush(stdout);
}

/* One all-gather of one arm from a common start; the bits are compared after the clock has stopped. */
static int one_round(struct trainer *t, struct work *w, enum arm arm, int round) {
    bool counted = arm == ZIPPED && round >= 0; /* the round before 0 warms up */
    memset(w->recv, 0xa5, w->shard * (size_t)t->nranks);
    if (counted)
        count_wire(t, w, (uint64_t)-1);
    if (zipcclCommSetCodec(t->comm, arm == RAW ? zipcclCodecRaw : zipcclCodecTier) != zipcclSuccess ||
        zipcclBarrier(t->comm, NULL) != zipcclSuccess)
        return failed(t, "barrier");
    uint64_t start = now_ns();
    if (zipcclAllGather(w->send, w->recv, w->count, w->dtype, t->comm, NULL) != zipcclSuccess)
        return failed(t, "all-gather");
    uint64_t end = now_ns();
    if (round >= 0)
        t->mine->ns[arm][round] = end - start;
    if (memcmp(w->recv, w->expected, w->shard * (size_t)t->nranks) != 0)
        t->mine->equal = 0;
    if (counted)
        count_wire(t, w, 1);
    return 0;
}

static int load(const struct trainer *t, const char *directory, struct work *w) {
    char path[4096];
    long size = 0;
    size_t width = dtype_of(w->name, &w->dtype), nranks = (size_t)t->nranks;
    (void)snprintf(path, sizeof path, "%s/%s", directory, w->name);
    FILE *f = fopen(path, "rb");
    if (!f || width == 0 || nranks == 0 || fseek(f, 0, SEEK_END) != 0 || (size = ftell(f)) <= 0 ||
        fseek(f, 0, SEEK_SET) != 0)
        goto bad;
    w->bytes = (size_t)size;
    w->count = (w->bytes / width + nranks - 1) / nranks;
    w->shard = w->count * width;
    w->expected = calloc(nranks, w->shard);
    if (!w->expected || fread(w->expected, 1, w->bytes, f) != w->bytes)
        goto bad;
    (void)fclose(f);
    if (zipcclMemAlloc(&w->send, w->shard) != zipcclSuccess ||
        zipcclMemAlloc(&w->recv, w->shard * nranks) != zipcclSuccess)
        return failed(t, "memory");
    memcpy(w->send, w->expected + (size_t)t->rank * w->shard, w->shard);
    return 0;
bad:
    perror(path);
    if (f)
        (void)fclose(f);
    return -1;
}

static int one_tensor(struct trainer *t, const char *directory, const char *name) {
    struct work w = {.name = name};
    bool equal = true;
    int rc = load(t, directory, &w);
    t->mine->equal = 1;
    for (int round = -1; round < ROUNDS && !rc; round++)
        for (int arm = 0; arm < NUM_ARMS && !rc; arm++)
            rc = one_round(t, &w, (enum arm)arm, round);
    if (!rc && zipcclAllGather(t->mine, t->all, sizeof *t->mine / sizeof(uint64_t), zipcclUint64, t->comm, NULL) !=
                   zipcclSuccess)
        rc = failed(t, "gather reports");
    for (int r = 0; r < t->nranks && !rc; r++)
        equal = equal && t->all[r].equal;
    t->all_equal = t->all_equal && equal;
    if (!rc && t->rank == 0)
        print_line(t, &w, equal);
    if (w.send)
        (void)zipcclMemFree(w.send);
    if (w.recv)
        (void)zipcclMemFree(w.recv);
    free(w.expected);
    return rc;
}

static bool wait_for(const char *path) {
    for (int i = 0; i < WAIT_MAX; i++) {
        if (access(path, F_OK) == 0)
            return true;
        (void)usleep(WAIT_US);
    }
    return false;
}

/* Rank 0 makes the id, the others read it. The file appears whole, by rename. */
static int share_id(const struct trainer *t, const char *path, zipcclUniqueId *id) {
    char temporary[4096];
    FILE *f;
    bool ok;
    if (t->rank != 0) {
        f = wait_for(path) ? fopen(path, "rb") : NULL;
        ok = f && fread(id, sizeof *id, 1, f) == 1;
        return f && fclose(f) == 0 && ok ? 0 : -1;
    }
    if (zipcclGetUniqueId(id) != zipcclSuccess)
        return -1;
    (void)snprintf(temporary, sizeof temporary, "%s.new", path);
    f = fopen(temporary, "wb");
    ok = f && fwrite(id, sizeof *id, 1, f) == 1;
    return f && fclose(f) == 0 && ok && rename(temporary, path) == 0 ? 0 : -1;
}

static void hold(const struct trainer *t, const char *prefix) {
    char path[4096];
    (void)snprintf(path, sizeof path, "%s.ready", prefix);
    FILE *f = t->rank == 0 ? fopen(path, "wb") : NULL;
    if (f)
        (void)fclose(f);
    (void)snprintf(path, sizeof path, "%s.go", prefix);
    (void)wait_for(path);
}

int main(int argc, char **argv) {
    struct trainer t = {.all_equal = true};
    struct dirent **names = NULL;
    zipcclUniqueId id;
    int n = 0, rc = 1;
    if (argc < 5 || (t.rank = atoi(argv[3])) < 0 || (t.nranks = atoi(argv[4])) < 1 || t.nranks > MAX_RANKS ||
        t.rank >= t.nranks) {
        (void)fprintf(stderr, "usage: trainer DIRECTORY ID_FILE RANK NRANKS [HOLD]\n");
        return 2;
    }
    t.mine = calloc(1, sizeof *t.mine);
    t.all = calloc((size_t)t.nranks, sizeof *t.all);
    n = scandir(argv[1], &names, is_tensor, alphasort);
    if (!t.mine || !t.all || n < 1) {
        (void)fprintf(stderr, "trainer: no tensors in %s\n", argv[1]);
        goto out;
    }
    if (share_id(&t, argv[2], &id) || zipcclCommInitRank(&t.comm, t.nranks, id, t.rank) != zipcclSuccess) {
        (void)failed(&t, "join");
        goto out;
    }
    if (t.rank == 0) {
        if (admin_open(NULL, 5000, &t.admin) != zipcclSuccess) {
            (void)fprintf(stderr, "trainer: no statistics: %s\n", admin_why(t.admin));
            goto out;
        }
        printf("%-24s %10s %10s %6s %8s %8s %9s  %s\n", "tensor", "bytes", "wire bytes", "ratio", "raw ms", "zip ms",
               "speed-up", "bits");
    }
    for (int i = 0; i < n; i++)
        if (one_tensor(&t, argv[1], names[i]->d_name))
            goto out;
    if (argc > 5)
        hold(&t, argv[5]);
    rc = t.all_equal ? 0 : 1;
out:
    for (int i = 0; i < n; i++)
        free(names[i]);
    free(names);
    admin_close(t.admin);
    if (t.comm && zipcclCommDestroy(t.comm) != zipcclSuccess)
        rc = 1;
    free(t.mine);
    free(t.all);
    return rc;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The ranks of bench collective as their parent sees them: started, watched, and what they left in shared memory.
 */
#include "client/ctl/collective_ranks.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/ctl/rank_process.h"
#include "kernels/dtype.h"
#include "proto/op.h"

static void *share(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

struct layout ranks_layout(const struct ranks_plan *plan, size_t size) {
    return layout_make(plan->op, plan->nodes, plan->per_node, dtype_get(plan->dtype)->bytes, plan->sizes[size],
                       plan->rows);
}

size_t rank_stride(const struct layout *l) {
    uint64_t most = 0;
    for (unsigned i = 0; i < l->nranks; i++) {
        uint64_t bytes = layout_send_bytes(l, i);
        most = bytes > most ? bytes : most;
    }
    return most;
}

static bool map_all(struct ranks *r) {
    const struct ranks_plan *plan = &r->plan;
    for (size_t i = 0; i < plan->nsizes; i++) {
        struct layout l = ranks_layout(plan, i);
        size_t stride = rank_stride(&l);
        r->values_bytes = stride * r->nranks > r->values_bytes ? stride * r->nranks : r->values_bytes;
        if (op_reduces(plan->op))
            r->results_bytes = stride > r->results_bytes ? stride : r->results_bytes;
    }
    r->capacity = plan->iters ? plan->iters : RANK_AUTO_ITERS;
    r->variants = plan->arms * (plan->imbalance > 0 ? 2 : 1);
    r->stamps_bytes = plan->nsizes * r->variants * r->capacity * r->nranks * sizeof *r->stamps;
    r->shared = share(sizeof *r->shared);
    r->stamps = share(r->stamps_bytes);
    if (r->values_bytes)
        r->values = share(r->values_bytes);
    if (r->results_bytes)
        r->results = share(r->results_bytes);
    return r->shared && r->stamps && (r->values || !r->values_bytes) && (r->results || !r->results_bytes);
}

struct ranks *ranks_start(const struct ranks_plan *plan, const struct private_daemons *daemons, char why[RANKS_WHY]) {
    struct ranks *r = calloc(1, sizeof *r);
    pid_t parent = getpid();
    if (!r) {
        (void)snprintf(why, RANKS_WHY, "out of memory");
        return NULL;
    }
    r->plan = *plan;
    r->daemons = daemons;
    r->nranks = plan->nodes * plan->per_node;
    if (!map_all(r)) {
        (void)snprintf(why, RANKS_WHY, "no memory for %.1f MiB of values: %s",
                       (double)(r->values_bytes + r->results_bytes) / 0x1p20, strerror(errno));
        ranks_stop(r);
        return NULL;
    }
    (void)fflush(NULL); /* or the children would write it again */
    for (unsigned i = 0; i < r->nranks; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            private_child(parent);
            _exit(rank_run(r, i));
        }
        if (pid < 0) {
            (void)snprintf(why, RANKS_WHY, "fork: %s", strerror(errno));
            ranks_stop(r);
            return NULL;
        }
        r->pids[i] = pid;
    }
    return r;
}

static double done_share(const struct ranks *r) {
    unsigned size = atomic_load(&r->shared->size);
    uint32_t rounds = atomic_load(&r->shared->sizes[size].rounds), round = atomic_load(&r->shared->round);
    rounds *= r->variants / r->plan.arms;
    double within = rounds ? (double)round / rounds : 0;
    return ((double)size + (within < 1 ? within : 1)) / (double)r->plan.nsizes;
}

enum ranks_state ranks_poll(struct ranks *r, double *share_done, char why[RANKS_WHY]) {
    bool running = false;
    *share_done = done_share(r);
    for (unsigned i = 0; i < r->nranks; i++) {
        int status;
        if (!r->pids[i])
            continue;
        if (waitpid(r->pids[i], &status, WNOHANG) != r->pids[i]) {
            running = true;
            continue;
        }
        r->pids[i] = 0;
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            continue;
        if (WIFSIGNALED(status))
            (void)snprintf(why, RANKS_WHY, "rank %u was ended by signal %d%s", i, WTERMSIG(status),
                           WTERMSIG(status) == SIGKILL ? ": out of memory?" : "");
        else if (atomic_load(&r->shared->trouble) == RANK_TOLD_WHY)
            (void)snprintf(why, RANKS_WHY, "%s", r->shared->why);
        else
            (void)snprintf(why, RANKS_WHY, "rank %u ended with code %d", i, WEXITSTATUS(status));
        return RANKS_FAILED;
    }
    return running ? RANKS_RUN : RANKS_DONE;
}

static void take_bytes(const struct ranks *r, size_t size, unsigned arm, struct ranks_arm_result *out) {
    for (unsigned n = 0; n < r->plan.nodes; n++) {
        const struct rank_bytes *b = &r->shared->sizes[size].bytes[arm][n];
        uint64_t wire = b->count ? b->wire / b->count : 0;
        out->all_wire_bytes += wire;
        if (n == 0 || wire > out->wire_bytes) {
            out->wire_bytes = wire;
            out->raw_bytes = b->count ? b->raw / b->count : 0;
            out->codec = b->codec;
        }
    }
}

double rank_stamp_us(const struct ranks *r, const struct rank_stamp *s, bool after) {
    uint64_t first = s->start_ns, last = s->start_ns, end = s->end_ns;
    for (unsigned k = 1; k < r->nranks; k++) {
        first = s[k].start_ns < first ? s[k].start_ns : first;
        last = s[k].start_ns > last ? s[k].start_ns : last;
        end = s[k].end_ns > end ? s[k].end_ns : end;
    }
    /* A broadcast's root may be done before the last has called. */
    return (double)(int64_t)(end - (after ? last : first)) / 1e3;
}

static bool take_times(const struct ranks *r, size_t size, unsigned variant, uint32_t rounds, struct ranks_times *out) {
    out->us = calloc(rounds ? rounds : 1, sizeof *out->us);
    out->after_us = calloc(rounds ? rounds : 1, sizeof *out->after_us);
    for (uint32_t i = 0; out->us && out->after_us && i < rounds; i++) {
        const struct rank_stamp *s = rank_stamp_at(r, size, variant, i);
        out->us[i] = rank_stamp_us(r, s, false);
        out->after_us[i] = rank_stamp_us(r, s, true);
    }
    return out->us && out->after_us;
}

bool ranks_take(const struct ranks *r, size_t size, struct ranks_result *result) {
    const struct rank_size *shared = &r->shared->sizes[size];
    memset(result, 0, sizeof *result);
    result->rounds = atomic_load(&shared->rounds);
    result->bits = (enum ranks_bits)atomic_load(&shared->bits);
    for (unsigned arm = 0; arm < r->plan.arms; arm++) {
        struct ranks_arm_result *out = &result->arms[arm];
        bool ok = take_times(r, size, arm, result->rounds, &out->even);
        if (ok && r->plan.imbalance > 0)
            ok = take_times(r, size, r->plan.arms + arm, result->rounds, &out->late);
        if (!ok) {
            ranks_result_free(result);
            return false;
        }
        out->late_us = (double)atomic_load(&shared->late_ns[arm]) / 1e3;
        take_bytes(r, size, arm, out);
    }
    return true;
}

static void times_free(struct ranks_times *t) {
    free(t->us);
    free(t->after_us);
    memset(t, 0, sizeof *t);
}

void ranks_result_free(struct ranks_result *result) {
    for (unsigned arm = 0; arm < RANKS_MAX_ARMS; arm++) {
        times_free(&result->arms[arm].even);
        times_free(&result->arms[arm].late);
    }
}

void ranks_stop(struct ranks *r) {
    if (!r)
        return;
    for (unsigned i = 0; i < r->nranks; i++)
        if (r->pids[i])
            (void)kill(r->pids[i], SIGKILL);
    for (unsigned i = 0; i < r->nranks; i++)
        while (r->pids[i] && waitpid(r->pids[i], NULL, 0) < 0 && errno == EINTR)
            ;
    if (r->shared)
        (void)munmap(r->shared, sizeof *r->shared);
    if (r->stamps)
        (void)munmap(r->stamps, r->stamps_bytes);
    if (r->values)
        (void)munmap(r->values, r->values_bytes);
    if (r->results)
        (void)munmap(r->results, r->results_bytes);
    free(r);
}

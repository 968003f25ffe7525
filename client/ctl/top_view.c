/* SPDX-License-Identifier: Apache-2.0
 *
 * Rates of jobs. See top_view.h.
 */
#include "client/ctl/top_view.h"

#include <stdlib.h>
#include <string.h>

struct sums {
    uint64_t raw, wire, count, errors, total_ns, wait_ns, encode_ns, decode_ns;
};

static struct sums sums_of(const Zipccl__Stats *s, const char *job, uint32_t uid) {
    struct sums sum = {0};
    for (size_t i = 0; i < s->n_ops; i++) {
        const Zipccl__OpStats *o = s->ops[i];
        if (o->uid != uid || strcmp(o->job, job) != 0)
            continue;
        sum.raw += o->raw_bytes;
        sum.wire += o->wire_bytes;
        sum.count += o->count;
        sum.errors += o->errors;
        sum.total_ns += o->total_ns;
        sum.wait_ns += o->wait_ns;
        sum.encode_ns += o->encode_ns;
        sum.decode_ns += o->decode_ns;
    }
    return sum;
}

static double grown(uint64_t before, uint64_t after) {
    return (double)(after >= before ? after - before : after);
}

static double part(double a, double b) {
    return b > 0 ? a / b : 0;
}

static bool known(const struct top_row *rows, size_t n, const Zipccl__OpStats *o) {
    for (size_t i = 0; i < n; i++)
        if (rows[i].uid == o->uid && !strcmp(rows[i].job, o->job))
            return true;
    return false;
}

size_t top_rows(const Zipccl__Stats *before, const Zipccl__Stats *after, double seconds,
                struct top_row rows[TOP_MAX_ROWS]) {
    size_t n = 0;
    for (size_t i = 0; i < after->n_ops && n < TOP_MAX_ROWS; i++) {
        const Zipccl__OpStats *o = after->ops[i];
        if (known(rows, n, o))
            continue;
        struct sums a = sums_of(before, o->job, o->uid), b = sums_of(after, o->job, o->uid);
        double time = grown(a.total_ns, b.total_ns), raw = grown(a.raw, b.raw), wire = grown(a.wire, b.wire);
        rows[n++] = (struct top_row){.job = o->job,
                                     .uid = o->uid,
                                     .raw = part(raw, seconds),
                                     .wire = part(wire, seconds),
                                     .ops = part(grown(a.count, b.count), seconds),
                                     .errors = part(grown(a.errors, b.errors), seconds),
                                     .ratio = part(raw, wire),
                                     .wait = part(grown(a.wait_ns, b.wait_ns), time),
                                     .encode = part(grown(a.encode_ns, b.encode_ns), time),
                                     .decode = part(grown(a.decode_ns, b.decode_ns), time),
                                     .mean_s = part(time / 1e9, grown(a.count, b.count))};
    }
    return n;
}

static double value_of(const struct top_row *r, enum top_key key) {
    switch (key) {
    case TOP_RAW:
        return r->raw;
    case TOP_WIRE:
        return r->wire;
    case TOP_RATIO:
        return r->ratio;
    case TOP_OPS:
        return r->ops;
    case TOP_WAIT:
        return r->wait;
    case TOP_NAME:
    case TOP_NUM_KEYS:
        break;
    }
    return 0;
}

static int compare(const void *pa, const void *pb, void *arg) {
    const struct top_row *a = pa, *b = pb;
    double x = value_of(a, *(enum top_key *)arg), y = value_of(b, *(enum top_key *)arg);
    if (x < y || x > y)
        return x < y ? 1 : -1;
    return strcmp(a->job, b->job);
}

void top_sort(struct top_row *rows, size_t n, enum top_key key) {
    qsort_r(rows, n, sizeof *rows, compare, &key);
}

bool top_key_of(char c, enum top_key *key) {
    static const char keys[] = {
#define TOP_LETTER(name, letter, text) letter,
        TOP_KEYS(TOP_LETTER)
#undef TOP_LETTER
    };
    for (size_t i = 0; i < sizeof keys; i++) {
        if (keys[i] == c) {
            *key = (enum top_key)i;
            return true;
        }
    }
    return false;
}

const char *top_key_name(enum top_key key) {
    static const char *const names[] = {
#define TOP_TEXT(name, letter, text) text,
        TOP_KEYS(TOP_TEXT)
#undef TOP_TEXT
    };
    return names[key];
}

bool top_key_named(const char *name, enum top_key *key) {
    for (unsigned i = 0; i < TOP_NUM_KEYS; i++) {
        if (!strcmp(name, top_key_name((enum top_key)i))) {
            *key = (enum top_key)i;
            return true;
        }
    }
    return false;
}

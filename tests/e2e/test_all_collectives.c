/* SPDX-License-Identifier: Apache-2.0
 *
 * Every operation, dtype, reduction, arm and codec, on memory of every kind, in random choices from fixed seeds. Data
 * movement must give the bits of the input, and sums those of the rule in zipccl_types.h (reference.h).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "anyop.h"

#define BYTES (768u << 10)

struct plan_of_case {
    const char *layout;
    unsigned n; /* operations */
};

static void random_rank(struct e2e_rank *r) {
    const struct plan_of_case *p = r->args;
    struct any_world w;
    struct any_buffers b[MEMORY_KINDS];
    zipcclStream_t stream;
    char text[160];
    const char *seed = getenv("ZIPCCL_TEST_SEED"); /* other choices than those of every day */
    uint64_t state = 88172645463325252u + (uint64_t)(p->layout[0] + 31 * p->layout[r->nranks - 1] + 977 * r->nranks);
    state += seed ? strtoull(seed, NULL, 0) * 0x9e3779b97f4a7c15u : 0;
    any_world_set(&w, p->layout, r->rank, e2e_comm(r));
    E2E_OK(NULL, zipcclStreamCreate(&stream));
    for (int k = 0; k < MEMORY_KINDS; k++)
        any_buffers_new(&b[k], (enum memory)k, (enum memory)((k + r->rank) % MEMORY_KINDS), BYTES);
    for (uint64_t i = 0; i < p->n; i++) {
        struct any_op a = any_draw(&state, &w, BYTES, i);
        struct any_buffers *mine = &b[(i * 7 + (uint64_t)r->rank) % MEMORY_KINDS];
        bool later = any_random(&state) % 3 == 0;
        fprintf(stderr, "%s\n", any_name(&a, text));
        E2E_OK(w.comm, any_issue(&w, later ? stream : NULL, &a, mine));
        if (later)
            E2E_OK(w.comm, zipcclStreamSynchronize(stream));
        any_check(&w, &a, mine);
    }
    for (int k = 0; k < MEMORY_KINDS; k++)
        any_buffers_free(&b[k]);
    E2E_OK(NULL, zipcclStreamDestroy(stream));
    E2E_OK(NULL, zipcclCommDestroy(w.comm));
}

static void run(struct e2e *e, unsigned nodes, const char *const *layouts, unsigned n) {
    pool();
    e2e_daemons(e, nodes);
    for (; *layouts; layouts++) {
        struct plan_of_case p = {*layouts, n};
        e2e_ranks(e, *layouts, random_rank, &p, 60);
    }
}

static void case_one_node(struct e2e *e) {
    run(e, 1, (const char *const[]){"0", "00", "000", "00000000", NULL}, 120);
}
E2E_CASE(one_node, 90)

static void case_two_nodes(struct e2e *e) {
    e2e_set(e, "chunk_bytes=64KiB");
    run(e, 2, (const char *const[]){"01", "0011", "10001", "01010101", NULL}, 120);
}
E2E_CASE(two_nodes, 90)

static void case_many_nodes(struct e2e *e) {
    e2e_set(e, "chunk_bytes=64KiB");
    e2e_set(e, "window=2");
    e2e_set(e, "verify=on");
    run(e, 4, (const char *const[]){"210", "0123", "33120", "00112233", NULL}, 120);
}
E2E_CASE(many_nodes, 90)

/* A slow link, on which coding pays; coded chunks of an all-to-all in two phases. */
static void case_two_phases(struct e2e *e) {
    e2e_set(e, "chunk_bytes=64KiB");
    e2e_set(e, "link_rate=400mbit");
    e2e_set(e, "all_to_all_phases=two");
    run(e, 2, (const char *const[]){"01", "0110", NULL}, 120);
}
E2E_CASE(two_phases, 90)

static void case_sizes_first(struct e2e *e) {
    e2e_set(e, "chunk_bytes=64KiB");
    e2e_set(e, "codec=tier");
    e2e_set(e, "all_to_all_phases=sizes");
    run(e, 3, (const char *const[]){"012", "0110", NULL}, 80);
}
E2E_CASE(sizes_first, 90)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_node),   cmocka_unit_test(test_two_nodes),   cmocka_unit_test(test_many_nodes),
        cmocka_unit_test(test_two_phases), cmocka_unit_test(test_sizes_first),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * What whoever reaches the port of a fabric can do to it: hellos without the token are not heard, and messages of
 * communicators that this node does not know take a bounded amount of memory. Without a network: the handlers alone.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/fabric/ucx.h"

#define LATER (UINT64_MAX - 1)

static const char address[] = "an address";

static struct fabric *new_fabric(void) {
    struct fabric *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    ucx_queue_init(&f->finished);
    pace_init(&f->pace, 0);
    flow_init(&f->flow);
    return f;
}

static void free_fabric(struct fabric *f) {
    ucx_drop_all(f);
    ucx_drop_early(f);
    free(f);
}

static struct fabric_peer *new_peer(struct fabric *f) {
    struct fabric_peer *p = calloc(1, sizeof(*p) + sizeof(address));
    assert_non_null(p);
    p->fabric = f;
    p->address_bytes = sizeof(address);
    memcpy(p->address, address, sizeof(address));
    return p;
}

static void hello(struct fabric *f, const void *from, size_t bytes, uint8_t token, size_t token_bytes) {
    uint8_t shown[32] = {token};
    ucp_am_recv_param_t param = {0};
    assert_int_equal(ucx_on_hello(f, shown, token_bytes, (void *)(uintptr_t)from, bytes, &param), UCS_OK);
}

static void expect(struct fabric *f, struct fabric_peer *p, uint8_t token) {
    uint8_t shown[FABRIC_TOKEN_BYTES] = {token};
    ucx_expect(f, p, shown);
}

static void test_tokens(void **state) {
    (void)state;
    struct fabric *f = new_fabric();
    struct fabric_peer *p = new_peer(f);
    f->live = p;
    p->wait_ns = LATER;
    expect(f, p, 1);
    for (unsigned i = 0; i < 4; i++) {
        hello(f, address, sizeof(address), 2, FABRIC_TOKEN_BYTES); /* another token */
        hello(f, address, sizeof(address), 1, 8);                  /* none */
        hello(f, "elsewhere", 9, 1, FABRIC_TOKEN_BYTES);           /* another address */
    }
    assert_int_equal(p->hellos, 0);
    assert_int_equal(p->wait_ns, LATER);
    hello(f, address, sizeof(address), 1, FABRIC_TOKEN_BYTES);
    assert_int_equal(p->wait_ns, LATER);
    hello(f, address, sizeof(address), 1, FABRIC_TOKEN_BYTES);
    assert_int_equal(p->hellos, 2);
    assert_int_equal(p->wait_ns, 1); /* it is connected to at once */
    /* What was not expected is remembered: a communicator that this node hears of later may bring the token. */
    p->hellos = 0;
    p->wait_ns = LATER;
    expect(f, p, 3); /* nobody has shown it */
    assert_int_equal(p->hellos, 0);
    assert_int_equal(p->wait_ns, LATER);
    expect(f, p, 2);
    assert_int_equal(p->hellos, 4);
    assert_int_equal(p->wait_ns, 1);
    /* The last tokens are expected, so many that none is lost that is under way. */
    p->hellos = 0;
    for (uint8_t i = 0; i < UCX_TOKENS; i++)
        expect(f, p, (uint8_t)(100 + i));
    for (uint8_t i = 0; i < UCX_TOKENS; i++)
        hello(f, address, sizeof(address), (uint8_t)(100 + i), FABRIC_TOKEN_BYTES);
    assert_int_equal(p->hellos, UCX_TOKENS);
    hello(f, address, sizeof(address), 2, FABRIC_TOKEN_BYTES);
    assert_int_equal(p->hellos, UCX_TOKENS);
    free_fabric(f);
    free(p);
}

static void test_hellos_are_bounded(void **state) {
    (void)state;
    struct fabric *f = new_fabric();
    uint8_t large[5000] = {0};
    for (unsigned i = 0; i < 3000; i++)
        hello(f, &i, sizeof(i), (uint8_t)i, FABRIC_TOKEN_BYTES);
    assert_true(f->nearly > 0 && f->nearly <= 1024);
    unsigned before = f->nearly;
    ucx_drop_early(f);
    f->nearly = 0;
    hello(f, large, sizeof(large), 1, FABRIC_TOKEN_BYTES);
    assert_int_equal(f->nearly, 0);
    assert_true(before > 0);
    free_fabric(f);
}

static void message(struct fabric *f, uint64_t comm, uint32_t tag, const void *data, size_t bytes) {
    struct fabric_header h = {.comm = comm, .node = 1, .seq = 1, .tag = tag, .count = bytes};
    ucp_am_recv_param_t param = {0};
    assert_int_equal(ucx_on_message(f, &h, sizeof(h), (void *)(uintptr_t)data, bytes, &param), UCS_OK);
}

static void test_messages_are_bounded(void **state) {
    (void)state;
    struct fabric *f = new_fabric();
    struct fabric_peer *p = new_peer(f);
    size_t bytes = 8192;
    uint8_t *data = calloc(1, bytes), got[64] = {0};
    assert_non_null(data);
    /* One that is only early: it is found once the communicator is known, and counts no more. */
    message(f, 7, 3, "early", 6);
    assert_int_equal(f->nstrange, 1);
    size_t early = f->strange_bytes;
    assert_true(early > 6);
    for (uint64_t i = 0; i < 20000; i++)
        message(f, 1000 + i % 500, (uint32_t)i, data, bytes);
    assert_true(f->strange_bytes <= (size_t)64 << 20);
    assert_true(f->strange_bytes > (size_t)32 << 20);
    assert_null(ucx_comm_find(f, 7)); /* the oldest went first */
    ucx_drop_all(f);
    assert_int_equal(f->strange_bytes, 0);
    message(f, 7, 3, "early", 6);
    for (uint64_t i = 0; i < 5000; i++)
        message(f, 1000 + i, 0, data, 1);
    assert_true(f->nstrange <= 1024);
    message(f, 8, 3, "early", 6);
    struct fabric_recv recv = {.peer = p, .comm = 8, .node = 1, .seq = 1, .tag = 3, .buffer = got, .capacity = 64};
    unsigned before = f->nstrange;
    ucx_post(f, &recv);
    assert_int_equal(recv.bytes, 6);
    assert_string_equal((char *)got, "early");
    assert_non_null(f->finished.head);
    assert_int_equal(f->nstrange, before - 1);
    /* One that alone wants more than all may have does not push the others out for nothing, nor grow. */
    size_t taken = f->strange_bytes;
    ucx_drop_all(f);
    for (uint64_t i = 0; i < 20000; i++)
        message(f, 9, (uint32_t)i, data, bytes);
    assert_int_equal(f->nstrange, 1);
    assert_true(f->strange_bytes <= (size_t)64 << 20 && taken > 0);
    /* A known one is bounded by itself. */
    assert_non_null(ucx_comm_get(f, 9));
    assert_int_equal(f->strange_bytes, 0);
    ucx_kill_comm(f, 9);
    assert_int_equal(f->nstrange, 0);
    free(data);
    free_fabric(f);
    free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_hellos_are_bounded),
        cmocka_unit_test(test_messages_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

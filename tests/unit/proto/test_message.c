/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages: round trip, checks, and what a hostile peer may send.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "peer.pb-c.h"
#include "proto/message.h"
#include "proto/result.h"
#include "proto/wire.h"
#include "zipccl.pb-c.h"

static void round_trip(void **state) {
    (void)state;
    int fds[2];
    struct frame f;
    ProtobufCMessage *m;
    const char *why;
    Zipccl__Hello hello = ZIPCCL__HELLO__INIT;
    Zipccl__Error error = ZIPCCL__ERROR__INIT;
    char job[] = "job-7", text[5001];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    struct frame_conn *a = frame_conn_new(fds[0], true), *b = frame_conn_new(fds[1], true);
    hello.version_min = hello.version_max = 1;
    hello.job = job;
    assert_int_equal(message_send(a, WIRE_HELLO, 5, &hello.base, NULL, 0), zipcclSuccess);
    assert_int_equal(frame_conn_wait_frame(b, &f, 1000), zipcclSuccess);
    assert_int_equal(f.id, 5);
    assert_int_equal(message_unpack(&f, &m, &why), zipcclSuccess);
    assert_string_equal(((Zipccl__Hello *)m)->job, "job-7");
    message_free(m);
    /* Larger than the buffer on the stack. */
    memset(text, 'e', 5000);
    text[5000] = 0;
    error.result = zipcclTimeout;
    error.text = text;
    assert_int_equal(message_send(a, WIRE_ERROR, 6, &error.base, NULL, 0), zipcclSuccess);
    assert_int_equal(frame_conn_wait_frame(b, &f, 1000), zipcclSuccess);
    assert_int_equal(message_unpack(&f, &m, &why), zipcclSuccess);
    assert_string_equal(((Zipccl__Error *)m)->text, text);
    message_free(m);
    frame_conn_free(a);
    frame_conn_free(b);
}

static zipcclResult_t unpack_bytes(uint16_t type, const uint8_t *bytes, size_t n) {
    struct frame f = {.type = type, .length = (uint32_t)n, .payload = bytes};
    ProtobufCMessage *m;
    const char *why;
    zipcclResult_t r = message_unpack(&f, &m, &why);
    if (r != zipcclSuccess)
        assert_true(*why);
    message_free(m);
    return r;
}

static void hostile(void **state) {
    (void)state;
    /* Many empty submessages: two bytes each on the wire, hundreds in memory. */
    size_t n = 1u << 20;
    uint8_t *bytes = malloc(n);
    for (size_t i = 0; i < n; i += 2) {
        bytes[i] = 11 << 3 | 2; /* Status.comms */
        bytes[i + 1] = 0;
    }
    assert_int_equal(unpack_bytes(WIRE_STATUS_REPLY, bytes, n), zipcclInvalidArgument);
    assert_int_equal(unpack_bytes(WIRE_STATUS_REPLY, bytes, 100), zipcclSuccess);
    /* Each of them far below the limit, all of them over it. */
    assert_int_equal(unpack_bytes(WIRE_STATUS_REPLY, bytes, MESSAGE_MAX_MEMORY / 32), zipcclInvalidArgument);
    free(bytes);
    const uint8_t cut[] = {4 << 3 | 2, 200, 'a'};
    assert_int_equal(unpack_bytes(WIRE_HELLO, cut, sizeof cut), zipcclInvalidArgument);
    assert_int_equal(unpack_bytes(WIRE_HELLO, cut, 0), zipcclInvalidArgument); /* no versions */
    assert_int_equal(unpack_bytes(WIRE_OK, cut, 0), zipcclInvalidArgument);    /* carries none */
    const uint8_t escape[] = {1 << 3, 1, 2 << 3, 1, 4 << 3 | 2, 1, 0x1b};
    assert_int_equal(unpack_bytes(WIRE_HELLO, escape, sizeof escape), zipcclInvalidArgument);
    assert_int_equal(unpack_bytes(WIRE_HELLO, escape, 4), zipcclSuccess);
    assert_int_equal(unpack_bytes(WIRE_COMM_INIT, escape, 0), zipcclInvalidArgument);
    assert_int_equal(unpack_bytes(WIRE_BUFFER_REGISTER, escape, 0), zipcclInvalidArgument);
}

static zipcclResult_t repack(uint16_t type, const ProtobufCMessage *m) {
    uint8_t bytes[4096];
    assert_true(protobuf_c_message_get_packed_size(m) <= sizeof bytes);
    return unpack_bytes(type, bytes, protobuf_c_message_pack(m, bytes));
}

/* Memory and streams of GPUs: sizes of what names them. */
static void gpus(void **state) {
    (void)state;
    uint8_t bytes[64] = {1};
    Zipccl__BufferRegister b = ZIPCCL__BUFFER_REGISTER__INIT;
    b.bytes = 4096;
    assert_int_equal(repack(WIRE_BUFFER_REGISTER, &b.base), zipcclSuccess);
    b.device = (ProtobufCBinaryData){16, bytes};
    assert_int_equal(repack(WIRE_BUFFER_REGISTER, &b.base), zipcclInvalidArgument); /* a memfd has no GPU */
    b.kind = 1;
    assert_int_equal(repack(WIRE_BUFFER_REGISTER, &b.base), zipcclInvalidArgument); /* no handle */
    b.handle = (ProtobufCBinaryData){64, bytes};
    assert_int_equal(repack(WIRE_BUFFER_REGISTER, &b.base), zipcclSuccess);
    b.kind = 2;
    assert_int_equal(repack(WIRE_BUFFER_REGISTER, &b.base), zipcclInvalidArgument); /* it comes by descriptor */
    b.handle.len = 0;
    assert_int_equal(repack(WIRE_BUFFER_REGISTER, &b.base), zipcclSuccess);
    b.kind = 3;
    assert_int_equal(repack(WIRE_BUFFER_REGISTER, &b.base), zipcclInvalidArgument);
    ProtobufCBinaryData events[2] = {{64, bytes}, {64, bytes}};
    Zipccl__StreamAttach s = ZIPCCL__STREAM_ATTACH__INIT;
    s.device = (ProtobufCBinaryData){16, bytes};
    assert_int_equal(repack(WIRE_STREAM_ATTACH, &s.base), zipcclInvalidArgument); /* no events */
    s.events = events;
    s.n_events = 2;
    assert_int_equal(repack(WIRE_STREAM_ATTACH, &s.base), zipcclSuccess);
    events[1].len = 63;
    assert_int_equal(repack(WIRE_STREAM_ATTACH, &s.base), zipcclInvalidArgument);
    events[1].len = 64;
    s.device.len = 15;
    assert_int_equal(repack(WIRE_STREAM_ATTACH, &s.base), zipcclInvalidArgument);
    Zipccl__StreamRef none = ZIPCCL__STREAM_REF__INIT;
    assert_int_equal(repack(WIRE_STREAM_DETACH, &none.base), zipcclInvalidArgument);
}

/* What joins a communicator: who acts on it copies by these sizes, and indexes by these ranks. */
static void joins(void **state) {
    (void)state;
    static uint8_t bytes[8192];
    static char text[] = "node", none[] = "", escape[] = "\x1b";
    Zipccl__CommInit init = ZIPCCL__COMM_INIT__INIT;
    const ProtobufCBinaryData id = {sizeof(struct wire_unique_id), bytes};
    init.unique_id = id;
    init.nranks = 4;
    init.rank = 3;
    assert_int_equal(repack(WIRE_COMM_INIT, &init.base), zipcclSuccess);
    init.unique_id.len--;
    assert_int_equal(repack(WIRE_COMM_INIT, &init.base), zipcclInvalidArgument);
    init.unique_id = id;
    init.device = (ProtobufCBinaryData){15, bytes};
    assert_int_equal(repack(WIRE_COMM_INIT, &init.base), zipcclInvalidArgument);
    init.device.len = 0;
    init.rank = 4;
    assert_int_equal(repack(WIRE_COMM_INIT, &init.base), zipcclInvalidArgument);
    init.nranks = 65537;
    assert_int_equal(repack(WIRE_COMM_INIT, &init.base), zipcclInvalidArgument);

    Zipccl__Peer__PeerHello hello = ZIPCCL__PEER__PEER_HELLO__INIT;
    hello.version_min = hello.version_max = 1;
    hello.node = text;
    hello.instance = (ProtobufCBinaryData){16, bytes};
    assert_int_equal(repack(WIRE_PEER_HELLO, &hello.base), zipcclSuccess);
    hello.instance.len = 15;
    assert_int_equal(repack(WIRE_PEER_HELLO, &hello.base), zipcclInvalidArgument);
    hello.instance.len = 16;
    hello.node = none;
    assert_int_equal(repack(WIRE_PEER_HELLO, &hello.base), zipcclInvalidArgument);

    Zipccl__Peer__PeerJoin join = ZIPCCL__PEER__PEER_JOIN__INIT;
    join.nranks = 2;
    assert_int_equal(repack(WIRE_PEER_JOIN, &join.base), zipcclSuccess);
    join.rank = 2;
    assert_int_equal(repack(WIRE_PEER_JOIN, &join.base), zipcclInvalidArgument);
    join.rank = 1;
    join.fabric_name = escape;
    assert_int_equal(repack(WIRE_PEER_JOIN, &join.base), zipcclInvalidArgument);

    Zipccl__Peer__PeerAbort failure = ZIPCCL__PEER__PEER_ABORT__INIT;
    assert_int_equal(repack(WIRE_PEER_ABORT, &failure.base), zipcclInvalidArgument); /* an error that is none */
}

/* The table of nodes and ranks: right, and with one thing wrong. */
static void tables(void **state) {
    (void)state;
    static uint8_t bytes[32];
    static char text[] = "node", escape[] = "\x1b";
    for (unsigned wrong = 0; wrong < 9; wrong++) {
        uint32_t ranks[2][2] = {{0, 2}, {1, 3}};
        Zipccl__Peer__PeerNode nodes[2], *list[2] = {&nodes[0], &nodes[1]};
        Zipccl__Peer__PeerTable table = ZIPCCL__PEER__PEER_TABLE__INIT;
        const char *why;
        for (unsigned i = 0; i < 2; i++) {
            zipccl__peer__peer_node__init(&nodes[i]);
            nodes[i].node = nodes[i].listen = text;
            nodes[i].instance = (ProtobufCBinaryData){16, bytes};
            nodes[i].ranks = ranks[i];
            nodes[i].n_ranks = 2;
        }
        table.nodes = list;
        table.n_nodes = 2;
        table.secret = (ProtobufCBinaryData){32, bytes};
        if (wrong == 1)
            table.n_nodes = 0;
        else if (wrong == 2)
            table.secret.len = 31;
        else if (wrong == 3)
            nodes[1].instance.len = 17;
        else if (wrong == 4)
            nodes[1].n_ranks = 0;
        else if (wrong == 5)
            ranks[1][1] = 4;
        else if (wrong == 6)
            ranks[0][0] = UINT32_MAX;
        else if (wrong == 7)
            nodes[0].listen = escape;
        else if (wrong == 8)
            nodes[0].fabric.len = 4097; /* only counted */
        assert_int_equal(message_check(WIRE_PEER_TABLE, &table.base, &why), wrong == 0);
    }
}

/* What goes into terminals: nothing that a terminal takes for a command, nothing that turns the text around. */
static void printable(void **state) {
    static const char *const bad[] = {"a\x1b[2J",
                                      "\x7f",
                                      "\xc2\x9b"
                                      "2J",
                                      "\x9b"
                                      "2J",
                                      "\xff",
                                      "\xe2\x80\xae",
                                      "\xe2\x81\xa6",
                                      "\xc3"};
    static const char *const good[] = {"", "job 7", "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", "\xc2\xa0"};
    Zipccl__Hello hello = ZIPCCL__HELLO__INIT;
    const char *why = "";
    (void)state;
    hello.version_min = hello.version_max = 1;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        hello.job = (char *)(uintptr_t)bad[i];
        assert_false(message_check(WIRE_HELLO, &hello.base, &why));
        assert_non_null(strstr(why, "not printable"));
    }
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        hello.job = (char *)(uintptr_t)good[i];
        assert_true(message_check(WIRE_HELLO, &hello.base, &why));
    }
}

static void names(void **state) {
    (void)state;
    assert_string_equal(wire_type_name(WIRE_COMM_INIT), "COMM_INIT");
    assert_string_equal(wire_type_name(9999), "?");
    assert_string_equal(result_string(zipcclTimeout), "timed out");
    assert_string_equal(result_name(zipcclTimeout), "zipcclTimeout");
    assert_string_equal(result_string((zipcclResult_t)77), "unknown result");
    assert_int_equal(result_from_wire(0), zipcclInternalError);
    assert_int_equal(result_from_wire(4000), zipcclInternalError);
    assert_int_equal(result_from_wire(zipcclAborted), zipcclAborted);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip), cmocka_unit_test(hostile), cmocka_unit_test(gpus),  cmocka_unit_test(names),
        cmocka_unit_test(printable),  cmocka_unit_test(joins),   cmocka_unit_test(tables)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The handshake between daemons, the sealing of their frames, and the file of the key.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/core/comm_secret.h"
#include "daemon/core/config.h"
#include "daemon/core/peer_auth.h"
#include "daemon/core/peer_key.h"

struct packet {
    uint8_t bytes[PEER_AUTH_MAX_BYTES];
    size_t n;
};

struct pair {
    struct peer_auth dialler, listener;
    enum peer_auth_result dialler_result, listener_result;
    struct packet offer, answer, proof, refusal;
};

static const uint8_t key_a[32] = "the first of two keys, 32 bytes.", key_b[32] = "the other of two keys, 32 bytes.";

/* Changes a packet on its way. NULL: nothing. */
typedef void (*change_fn)(struct pair *p, int step, struct packet *packet);

/* Both sides to their ends; key NULL: none. */
static void run(struct pair *p, const uint8_t *dialler_key, const uint8_t *listener_key, change_fn change) {
    struct packet on_way, none;
    memset(p, 0, sizeof *p);
    peer_auth_begin(&p->dialler, true, dialler_key != NULL, dialler_key, p->offer.bytes, &p->offer.n);
    peer_auth_begin(&p->listener, false, listener_key != NULL, listener_key, none.bytes, &none.n);
    assert_int_equal(none.n, 0);
    on_way = p->offer;
    if (change != NULL)
        change(p, 0, &on_way);
    p->listener_result = peer_auth_take(&p->listener, on_way.bytes, on_way.n, p->answer.bytes, &p->answer.n);
    assert_true(p->answer.n > 0); /* what it takes, or why it does not */
    on_way = p->answer;
    if (change != NULL)
        change(p, 1, &on_way);
    p->dialler_result = peer_auth_take(&p->dialler, on_way.bytes, on_way.n, p->proof.bytes, &p->proof.n);
    if (p->listener_result != PEER_AUTH_GOES_ON || p->proof.n == 0)
        return;
    on_way = p->proof;
    if (change != NULL)
        change(p, 2, &on_way);
    p->listener_result = peer_auth_take(&p->listener, on_way.bytes, on_way.n, p->refusal.bytes, &p->refusal.n);
}

static bool both_done(const struct pair *p) {
    return p->dialler_result == PEER_AUTH_DONE && p->listener_result == PEER_AUTH_DONE;
}

static void assert_carries(struct peer_seal *from, struct peer_seal *to, const char *text) {
    uint8_t sealed[256], plain[256];
    size_t n = strlen(text);
    peer_seal(from, 44, text, n, sealed);
    assert_null(n > 3 ? memmem(sealed, n + PEER_SEAL_BYTES, text, n) : NULL);
    assert_true(peer_unseal(to, 44, sealed, n + PEER_SEAL_BYTES, plain));
    assert_memory_equal(plain, text, n);
}

static void test_same_key(void **state) {
    (void)state;
    const uint8_t *keys[] = {key_a, NULL};
    for (unsigned i = 0; i < 2; i++) {
        struct pair p, other;
        run(&p, keys[i], keys[i], NULL);
        assert_true(both_done(&p));
        assert_int_equal(p.refusal.n, 0);
        for (unsigned j = 0; j < 3; j++) {
            assert_carries(&p.dialler.out, &p.listener.in, "from the dialler");
            assert_carries(&p.listener.out, &p.dialler.in, "from the listener");
            assert_carries(&p.listener.out, &p.dialler.in, "");
        }
        /* Neither a direction nor a connection shares keys with another. */
        run(&other, keys[i], keys[i], NULL);
        assert_memory_not_equal(p.dialler.out.key, p.dialler.in.key, 32);
        assert_memory_not_equal(p.dialler.out.key, other.dialler.out.key, 32);
        /* The shared key is not kept longer than it is wanted. */
        assert_true(sodium_is_zero(p.dialler.key, 32) && sodium_is_zero(p.listener.key, 32));
        assert_true(sodium_is_zero(p.dialler.secret, 32) && sodium_is_zero(p.listener.secret, 32));
    }
}

/* Both sides fail, and both say why. */
static void assert_refused(const uint8_t *dialler_key, const uint8_t *listener_key, const char *dialler_says,
                           const char *listener_says) {
    struct pair p;
    run(&p, dialler_key, listener_key, NULL);
    assert_int_equal(p.dialler_result, PEER_AUTH_FAILED);
    assert_int_equal(p.listener_result, PEER_AUTH_FAILED);
    assert_non_null(strstr(p.dialler.why, dialler_says));
    assert_non_null(strstr(p.listener.why, listener_says));
}

static void test_wrong_key(void **state) {
    (void)state;
    assert_refused(key_a, key_b, "key differs", "key differs");
    assert_refused(key_a, NULL, "it has no key", "this node has none");
    assert_refused(NULL, key_a, "this node has none", "it has no key");
}

/* One that has no key takes nobody from elsewhere, and says so to whom it refuses. */
static void test_stranger(void **state) {
    (void)state;
    struct peer_auth dialler, listener;
    struct packet offer, reply, none;
    peer_auth_begin(&dialler, true, true, key_a, offer.bytes, &offer.n);
    peer_auth_begin(&listener, false, false, NULL, none.bytes, &none.n);
    listener.refuses = PEER_REFUSE_STRANGER;
    assert_int_equal(peer_auth_take(&listener, offer.bytes, offer.n, reply.bytes, &reply.n), PEER_AUTH_FAILED);
    assert_non_null(strstr(listener.why, "another machine"));
    assert_int_equal(peer_auth_take(&dialler, reply.bytes, reply.n, none.bytes, &none.n), PEER_AUTH_FAILED);
    assert_int_equal(none.n, 0);
    assert_non_null(strstr(dialler.why, "another machine"));
    /* As the dialler, it says so in place of an offer. */
    peer_auth_begin(&dialler, true, false, NULL, offer.bytes, &offer.n);
    peer_auth_refuse(&dialler, PEER_REFUSE_STRANGER, offer.bytes, &offer.n);
    assert_non_null(strstr(dialler.why, "another machine"));
    peer_auth_begin(&listener, false, true, key_a, none.bytes, &none.n);
    assert_int_equal(peer_auth_take(&listener, offer.bytes, offer.n, reply.bytes, &reply.n), PEER_AUTH_FAILED);
    assert_int_equal(reply.n, 0);
    assert_non_null(strstr(listener.why, "it takes no daemon of another machine"));
}

static int flip_step, flip_bit;

static void flip(struct pair *p, int step, struct packet *packet) {
    (void)p;
    if (step == flip_step && (size_t)flip_bit < 8 * packet->n)
        packet->bytes[flip_bit / 8] ^= (uint8_t)(1u << flip_bit % 8);
}

/* Whichever bit is changed on its way, one side notices. */
static void test_every_bit(void **state) {
    (void)state;
    static const int bytes[] = {72, 104, 40};
    struct pair p;
    for (flip_step = 0; flip_step < 3; flip_step++) {
        for (flip_bit = 0; flip_bit < 8 * bytes[flip_step]; flip_bit++) {
            run(&p, key_a, key_a, flip);
            /* The versions in the head of the last packet mean nothing. */
            if (flip_step == 2 && flip_bit / 8 >= 4 && flip_bit / 8 < 6)
                continue;
            /* X25519 does not look at the topmost bit of a public key; the proofs do. */
            assert_false(both_done(&p));
        }
    }
}

static size_t cut_to;

static void cut(struct pair *p, int step, struct packet *packet) {
    (void)p;
    if (step == flip_step)
        packet->n = cut_to;
}

static void test_every_length(void **state) {
    (void)state;
    static const size_t bytes[] = {72, 104, 40};
    struct pair p;
    for (flip_step = 0; flip_step < 3; flip_step++) {
        for (cut_to = 0; cut_to <= PEER_AUTH_MAX_BYTES; cut_to++) {
            run(&p, key_a, key_a, cut);
            assert_int_equal(both_done(&p), cut_to == bytes[flip_step]);
        }
    }
}

static void test_replay(void **state) {
    (void)state;
    struct pair p;
    struct peer_auth again;
    struct packet reply, none;
    run(&p, key_a, key_a, NULL);
    assert_true(both_done(&p));
    /* A dialler that was recorded, played to the same listener later. */
    peer_auth_begin(&again, false, true, key_a, none.bytes, &none.n);
    assert_int_equal(peer_auth_take(&again, p.offer.bytes, p.offer.n, reply.bytes, &reply.n), PEER_AUTH_GOES_ON);
    assert_int_equal(peer_auth_take(&again, p.proof.bytes, p.proof.n, reply.bytes, &reply.n), PEER_AUTH_FAILED);
    assert_non_null(strstr(again.why, "replayed"));
    /* A listener. */
    peer_auth_begin(&again, true, true, key_a, none.bytes, &none.n);
    assert_int_equal(peer_auth_take(&again, p.answer.bytes, p.answer.n, reply.bytes, &reply.n), PEER_AUTH_FAILED);
    assert_non_null(strstr(again.why, "key differs"));
    /* A dialler's own words back at it, and a listener's. */
    peer_auth_begin(&again, true, true, key_a, none.bytes, &none.n);
    assert_int_equal(peer_auth_take(&again, none.bytes, none.n, reply.bytes, &reply.n), PEER_AUTH_FAILED);
    peer_auth_begin(&again, false, true, key_a, none.bytes, &none.n);
    assert_int_equal(peer_auth_take(&again, p.offer.bytes, p.offer.n, reply.bytes, &reply.n), PEER_AUTH_GOES_ON);
    memcpy(p.proof.bytes + 8, reply.bytes + 72, 32);
    assert_int_equal(peer_auth_take(&again, p.proof.bytes, p.proof.n, reply.bytes, &reply.n), PEER_AUTH_FAILED);
}

static unsigned offer_min, offer_max;

static void other_versions(struct pair *p, int step, struct packet *packet) {
    (void)p;
    if (step == 0) {
        packet->bytes[4] = (uint8_t)offer_min;
        packet->bytes[5] = (uint8_t)offer_max;
    }
}

static void zero_public_key(struct pair *p, int step, struct packet *packet) {
    (void)p;
    if (step == 0)
        memset(packet->bytes + 40, 0, 32);
}

static void test_versions(void **state) {
    (void)state;
    struct pair p;
    offer_min = 2;
    offer_max = 9;
    run(&p, key_a, key_a, other_versions);
    assert_int_equal(p.listener_result, PEER_AUTH_FAILED);
    assert_non_null(strstr(p.listener.why, "version"));
    assert_non_null(strstr(p.dialler.why, "version"));
    offer_min = offer_max = 0;
    run(&p, key_a, key_a, other_versions);
    assert_int_equal(p.listener_result, PEER_AUTH_FAILED);
    /* A newer one that speaks ours, too, gets it; where that is a lie on the way, the proofs differ. */
    offer_min = 1;
    offer_max = 9;
    run(&p, key_a, key_a, other_versions);
    assert_int_equal(p.answer.bytes[4], 1);
    assert_int_equal(p.answer.bytes[5], 1);
    assert_int_equal(p.dialler_result, PEER_AUTH_FAILED);
    run(&p, key_a, key_a, zero_public_key);
    assert_int_equal(p.listener_result, PEER_AUTH_FAILED);
    assert_non_null(strstr(p.listener.why, "no sense"));
}

static void test_seal(void **state) {
    (void)state;
    struct pair p;
    uint8_t one[64], two[64], plain[64];
    run(&p, key_a, key_a, NULL);
    struct peer_seal *out = &p.dialler.out, *in = &p.listener.in;
    peer_seal(out, 41, "one", 3, one);
    peer_seal(out, 41, "two", 3, two);
    const size_t n = 3 + PEER_SEAL_BYTES;
    assert_false(peer_unseal(in, 41, two, n, plain)); /* before its time */
    assert_false(peer_unseal(in, 42, one, n, plain)); /* of another type */
    for (size_t i = 0; i < n; i++) {
        assert_false(peer_unseal(in, 41, one, i, plain)); /* cut */
        one[i] ^= 0x10;
        assert_false(peer_unseal(in, 41, one, n, plain)); /* changed */
        one[i] ^= 0x10;
    }
    assert_true(peer_unseal(in, 41, one, n, plain));
    assert_false(peer_unseal(in, 41, one, n, plain));            /* again */
    assert_false(peer_unseal(&p.dialler.in, 41, two, n, plain)); /* to its sender */
    assert_true(peer_unseal(in, 41, two, n, plain));
    assert_memory_equal(plain, "two", 3);
}

static void test_key_text(void **state) {
    (void)state;
    static const char *const bad[] = {"",
                                      " ",
                                      "ab",
                                      "00112233445566778899aabbccddeeff00112233445566778899aabbccddeef",
                                      "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff0",
                                      "00112233445566778899aabbccddeefg00112233445566778899aabbccddeeff",
                                      "00112233445566778899aabbccddeeff 0112233445566778899aabbccddeeff",
                                      "0000000000000000000000000000000000000000000000000000000000000000"};
    static const char digits[] = " 00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF\r\n";
    uint8_t key[PEER_KEY_BYTES];
    const char *why;
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(peer_key_parse(bad[i], strlen(bad[i]), key, &why));
        assert_non_null(strstr(why, "--new-key"));
    }
    assert_true(peer_key_parse(digits, sizeof digits - 1, key, &why));
    for (unsigned i = 0; i < PEER_KEY_BYTES; i++)
        assert_int_equal(key[i], 0x11 * (i % 16));
    /* What the program prints is taken, and is another one each time. */
    char text[2][128];
    for (unsigned i = 0; i < 2; i++) {
        FILE *f = tmpfile();
        assert_non_null(f);
        assert_true(peer_key_print(f));
        rewind(f);
        assert_non_null(fgets(text[i], sizeof text[i], f));
        assert_true(peer_key_parse(text[i], strlen(text[i]), key, &why));
        fclose(f);
    }
    assert_string_not_equal(text[0], text[1]);
}

static zipcclResult_t open_key(struct peer_key *k, const char *path, const char *auth) {
    struct config c;
    config_defaults(&c);
    snprintf(c.peer_key_file, sizeof c.peer_key_file, "%s", path);
    snprintf(c.peer_auth, sizeof c.peer_auth, "%s", auth);
    return peer_key_open(k, &c);
}

static void test_key_file(void **state) {
    (void)state;
    static const char digits[] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\n";
    char dir[] = "/tmp/zipccl-key-XXXXXX", path[64], fifo[64], large[200];
    struct peer_key k;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/key", dir);
    snprintf(fifo, sizeof fifo, "%s/fifo", dir);
    assert_int_not_equal(open_key(&k, path, "auto"), zipcclSuccess); /* it is missing */
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, digits, sizeof digits - 1), sizeof digits - 1);
    assert_int_equal(open_key(&k, path, "auto"), zipcclSuccess);
    assert_int_equal(k.key[31], 0xff);
    assert_false(k.local_only);
    peer_key_close(&k);
    static const mode_t modes[] = {0640, 0604, 0620, 0601, 0777};
    for (unsigned i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        assert_int_equal(fchmod(fd, modes[i]), 0);
        assert_int_not_equal(open_key(&k, path, "key"), zipcclSuccess);
        assert_null(k.key);
    }
    assert_int_equal(fchmod(fd, 0400), 0);
    assert_int_equal(open_key(&k, path, "key"), zipcclSuccess);
    peer_key_close(&k);
    if (geteuid() == 0) { /* of another user */
        assert_int_equal(fchown(fd, 12345, 0), 0);
        assert_int_not_equal(open_key(&k, path, "key"), zipcclSuccess);
        assert_int_equal(fchown(fd, 0, 0), 0);
    }
    memset(large, '\n', sizeof large);
    assert_int_equal(write(fd, large, sizeof large), sizeof large);
    assert_int_not_equal(open_key(&k, path, "key"), zipcclSuccess);
    assert_int_equal(ftruncate(fd, 30), 0);
    assert_int_not_equal(open_key(&k, path, "key"), zipcclSuccess);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_not_equal(open_key(&k, fifo, "key"), zipcclSuccess); /* and does not wait for it */
    assert_int_not_equal(open_key(&k, dir, "key"), zipcclSuccess);
    close(fd);
    /* None. */
    assert_int_equal(open_key(&k, "", "auto"), zipcclSuccess);
    assert_true(k.key == NULL && k.local_only);
    assert_int_equal(open_key(&k, "", "none"), zipcclSuccess);
    assert_true(k.key == NULL && !k.local_only);
    unlink(path);
    unlink(fifo);
    rmdir(dir);
}

/* Tokens of two nodes fit each other, and nobody else's. */
static void test_comm_secret(void **state) {
    (void)state;
    uint8_t secret[2][COMM_SECRET_BYTES];
    char bytes[] = "abcabcd";
    ProtobufCBinaryData a = {3, (uint8_t *)bytes}, b = {4, (uint8_t *)bytes + 3}, c = {7, (uint8_t *)bytes};
    struct fabric_tokens at_a, at_b, other;
    comm_secret_make(secret[0]);
    comm_secret_make(secret[1]);
    assert_int_not_equal(comm_secret_number(secret[0]), comm_secret_number(secret[1]));
    comm_secret_tokens(secret[0], &a, &b, &at_a);
    comm_secret_tokens(secret[0], &b, &a, &at_b);
    assert_memory_equal(at_a.show, at_b.expect, FABRIC_TOKEN_BYTES);
    assert_memory_equal(at_b.show, at_a.expect, FABRIC_TOKEN_BYTES);
    assert_memory_not_equal(at_a.show, at_a.expect, FABRIC_TOKEN_BYTES);
    comm_secret_tokens(secret[1], &a, &b, &other);
    assert_memory_not_equal(at_a.show, other.show, FABRIC_TOKEN_BYTES);
    comm_secret_tokens(secret[0], &a, &c, &other);
    assert_memory_not_equal(at_a.show, other.show, FABRIC_TOKEN_BYTES);
    comm_secret_wipe(secret[0]);
    assert_true(sodium_is_zero(secret[0], sizeof secret[0]));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_key),  cmocka_unit_test(test_wrong_key),    cmocka_unit_test(test_stranger),
        cmocka_unit_test(test_every_bit), cmocka_unit_test(test_every_length), cmocka_unit_test(test_replay),
        cmocka_unit_test(test_versions),  cmocka_unit_test(test_seal),         cmocka_unit_test(test_key_text),
        cmocka_unit_test(test_key_file),  cmocka_unit_test(test_comm_secret),
    };
    if (sodium_init() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

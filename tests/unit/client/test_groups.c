/* SPDX-License-Identifier: Apache-2.0
 *
 * Groups of operations against a scripted daemon.
 */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "operations.h"

static int setup(void **state) {
    struct fake *f = calloc(1, sizeof *f);
    fake_start(f, FAKE_GOOD);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    fake_stop(*state);
    free(*state);
    return 0;
}

/* Nothing is sent before the outermost end; then all in order, marked but the last. */
static void nesting(void **state) {
    struct fake *f = *state;
    zipcclComm_t c = join(2, 0);
    uint8_t a[4] = "abc", b[2][8], d[4];
    size_t counts[2] = {4, 4};
    OK(zipcclGroupStart());
    OK(zipcclGroupEnd()); /* an empty one */
    OK(zipcclGroupStart());
    OK(zipcclAllGather(a, b[0], 4, zipcclUint8, c, NULL));
    OK(zipcclGroupStart());
    OK(zipcclAllGatherv(a, b[1], counts, zipcclUint8, c, NULL));
    counts[0] = counts[1] = 77; /* was read already */
    OK(zipcclGroupEnd());
    OK(zipcclBroadcast(NULL, d, 4, zipcclUint8, 1, c, NULL));
    (void)usleep(20000);
    assert_int_equal(atomic_load(&f->ops), 0);
    OK(zipcclGroupEnd());
    assert_int_equal(atomic_load(&f->ops), 3);
    assert_int_equal(f->first.flags, WIRE_GROUP_MORE);
    assert_int_equal(f->first.seq, 1);
    assert_int_equal(f->more, 2);
    assert_int_equal(f->last.flags, 0);
    assert_int_equal(f->last.seq, 3);
    assert_memory_equal(b[0] + 4, "abc", 4);
    assert_memory_equal(b[1] + 4, "abc", 4);
    assert_int_equal(d[3], 0x5a);
    FAILS(zipcclGroupEnd(), NULL, zipcclInvalidUsage, "zipcclGroupStart");
    /* One alone is no group. */
    OK(zipcclGroupStart());
    OK(zipcclSend(a, 4, zipcclUint8, 1, c, NULL));
    OK(zipcclGroupEnd());
    assert_int_equal(f->last.flags, 0);
    OK(zipcclCommDestroy(c));
}

static void to_itself(void **state) {
    struct fake *f = *state;
    zipcclComm_t c = join(2, 1);
    uint8_t a[4] = "abc", b[4];
    OK(zipcclGroupStart());
    OK(zipcclSend(a, 4, zipcclUint8, 1, c, NULL));
    OK(zipcclRecv(b, 4, zipcclUint8, 1, c, NULL));
    OK(zipcclGroupEnd());
    assert_int_equal(f->last.root, 1);
    OK(zipcclCommDestroy(c));
}

static void error_in_the_middle(void **state) {
    struct fake *f = *state;
    zipcclComm_t c = join(2, 0), c2;
    zipcclStream_t s;
    zipcclUniqueId id = {{0}};
    uint8_t a[4] = "abc", b[8];
    OK(zipcclStreamCreate(&s));
    OK(zipcclGroupStart());
    OK(zipcclAllGather(a, b, 4, zipcclUint8, c, NULL));
    FAILS(zipcclAllGather(NULL, b, 4, zipcclUint8, c, NULL), c, zipcclInvalidArgument, "sendbuff is NULL");
    OK(zipcclAllGather(a, b, 4, zipcclUint8, c, NULL));
    FAILS(zipcclAllGather(a, b, 4, zipcclUint8, c, s), c, zipcclInvalidUsage, "another stream");
    FAILS(zipcclGroupEnd(), NULL, zipcclInvalidArgument, "nothing was issued", "sendbuff is NULL", "rank 0 of 2");
    OK(zipcclGroupStart());
    FAILS(zipcclBarrier(c, NULL), c, zipcclInvalidUsage, "zipcclBarrier: not inside a group");
    FAILS(zipcclCommInitRank(&c2, 2, id, 0), NULL, zipcclInvalidUsage, "zipcclCommInitRank: not inside a group");
    FAILS(zipcclCommDestroy(c), NULL, zipcclInvalidUsage, "was not freed");
    OK(zipcclAllGather(a, b, 4, zipcclUint8, c, s));
    FAILS(zipcclStreamDestroy(s), NULL, zipcclInvalidUsage, "zipcclGroupEnd first");
    FAILS(zipcclGroupEnd(), NULL, zipcclInvalidUsage, "zipcclBarrier");
    /* Memory that ends too early is only known at the end; then nothing is issued either. */
    void *p;
    OK(zipcclMemAlloc(&p, 4096));
    OK(zipcclGroupStart());
    OK(zipcclAllGather(a, b, 4, zipcclUint8, c, NULL));
    OK(zipcclAllGather(p, (uint8_t *)p + 4092, 4, zipcclUint8, c, NULL));
    FAILS(zipcclGroupEnd(), c, zipcclInvalidArgument, "behind the end");
    OK(zipcclMemFree(p));
    assert_int_equal(atomic_load(&f->ops), 0);
    /* The next one begins anew. */
    OK(zipcclGroupStart());
    OK(zipcclAllGather(a, b, 4, zipcclUint8, c, NULL));
    OK(zipcclAllGather(a, b, 4, zipcclUint8, c, NULL));
    OK(zipcclGroupEnd());
    assert_int_equal(f->first.seq, 1);
    assert_int_equal(f->last.seq, 2);
    /* All fail at the daemon: the first is told. */
    atomic_store(&f->mode, FAKE_FAIL_OP);
    OK(zipcclGroupStart());
    OK(zipcclAllGather(a, b, 4, zipcclUint8, c, NULL));
    OK(zipcclSend(a, 4, zipcclUint8, 1, c, NULL));
    FAILS(zipcclGroupEnd(), c, zipcclInvalidArgument, "all-gather #3 of 4 uint8: ranks differ");
    /* The communicator fails, or is freed, before the end. */
    atomic_store(&f->mode, FAKE_EVENT_ON_OP);
    assert_int_equal(zipcclBarrier(c, NULL), zipcclRemoteError);
    OK(zipcclGroupStart());
    OK(zipcclAllGather(a, b, 4, zipcclUint8, c, NULL));
    FAILS(zipcclGroupEnd(), c, zipcclRemoteError, "node-b died");
    OK(zipcclGroupStart());
    OK(zipcclAllGather(a, b, 4, zipcclUint8, c, NULL));
    OK(zipcclCommAbort(c));
    FAILS(zipcclGroupEnd(), NULL, zipcclInvalidUsage, "was freed");
    OK(zipcclStreamDestroy(s));
}

static void two_communicators(void **state) {
    struct fake *f = *state;
    zipcclComm_t c[2] = {join(2, 0), join(3, 1)};
    zipcclStream_t s;
    uint8_t a[4] = "abc", b[2][12], d[2][12];
    OK(zipcclStreamCreate(&s));
    for (int k = 0; k < 3; k++) { /* without a stream, with one for both, with one for the second */
        atomic_store(&f->ops, 0);
        memset(b, 0, sizeof b);
        memset(d, 0, sizeof d);
        OK(zipcclGroupStart());
        for (int i = 0; i < 2; i++)
            OK(zipcclAllGather(a, b[i], 4, zipcclUint8, c[i], k == 1 || (k == 2 && i) ? s : NULL));
        for (int i = 0; i < 2; i++)
            OK(zipcclAllGather(a, d[i], 4, zipcclUint8, c[i], k == 1 || (k == 2 && i) ? s : NULL));
        OK(zipcclGroupEnd());
        if (k != 1)
            assert_memory_equal(d[0] + 4, "abc", 4);
        OK(zipcclStreamSynchronize(s));
        assert_int_equal(atomic_load(&f->ops), 4);
        assert_int_equal(f->more, 2); /* one a communicator */
        assert_int_equal(f->last.seq, 2 * k + 2);
        for (int i = 0; i < 2; i++) {
            assert_memory_equal(b[i] + 4, "abc", 4);
            assert_memory_equal(d[i] + 4, "abc", 4);
        }
    }
    /* One is aborted while the other's operations go on in the same stream. */
    atomic_store(&f->mode, FAKE_SILENT);
    OK(zipcclGroupStart());
    for (int i = 0; i < 2; i++)
        OK(zipcclAllGather(a, b[i], 4, zipcclUint8, c[i], s));
    OK(zipcclGroupEnd());
    while (atomic_load(&f->ops) < 6)
        (void)usleep(1000);
    atomic_store(&f->mode, FAKE_GOOD);
    OK(zipcclCommAbort(c[1]));
    assert_int_equal(zipcclStreamQuery(s), zipcclInProgress);
    OK(zipcclCommAbort(c[0]));
    assert_int_equal(zipcclStreamSynchronize(s), zipcclAborted);
    OK(zipcclStreamDestroy(s));
}

static void streams(void **state) {
    struct fake *f = *state;
    zipcclComm_t c = join(2, 0);
    zipcclStream_t s;
    uint8_t a[4] = "abc", b[8] = "", d[2][8];
    OK(zipcclStreamCreate(&s));
    atomic_store(&f->mode, FAKE_HOLD);
    OK(zipcclGroupStart());
    OK(zipcclAllGather(a, b, 4, zipcclUint8, c, s));
    OK(zipcclAllGather(a, d[0], 4, zipcclUint8, c, s));
    OK(zipcclGroupEnd());
    assert_int_equal(zipcclStreamQuery(s), zipcclInProgress);
    atomic_store(&f->release, true);
    OK(zipcclStreamSynchronize(s));
    assert_memory_equal(b + 4, "abc", 4);
    /* A group that reads what the stream is still to write. */
    atomic_store(&f->mode, FAKE_GOOD);
    memset(b, 0, sizeof b);
    OK(zipcclAllGather(a, b, 4, zipcclUint8, c, s));
    OK(zipcclGroupStart());
    OK(zipcclAllGather(a, d[0], 4, zipcclUint8, c, s));
    OK(zipcclAllGather(b + 4, d[1], 4, zipcclUint8, c, s));
    OK(zipcclGroupEnd());
    OK(zipcclStreamSynchronize(s));
    assert_memory_equal(d[1] + 4, "abc", 4);
    /* A stream tells which operation failed. */
    atomic_store(&f->mode, FAKE_FAIL_OP);
    OK(zipcclSend(a, 4, zipcclUint8, 1, c, s));
    FAILS(zipcclStreamSynchronize(s), NULL, zipcclInvalidArgument, "rank 0 of 2: send #6: ranks differ");
    OK(zipcclCommDestroy(c));
    OK(zipcclStreamDestroy(s));
}

static void most(void **state) {
    struct fake *f = *state;
    zipcclComm_t c = join(2, 0);
    void *p;
    OK(zipcclMemAlloc(&p, 4096));
    OK(zipcclGroupStart());
    for (unsigned i = 0; i < WIRE_MAX_GROUP; i++)
        OK(zipcclSend(p, 4, zipcclUint8, 1, c, NULL));
    OK(zipcclGroupEnd());
    assert_int_equal(atomic_load(&f->ops), WIRE_MAX_GROUP);
    assert_int_equal(f->more, WIRE_MAX_GROUP - 1);
    OK(zipcclGroupStart());
    for (unsigned i = 0; i < WIRE_MAX_GROUP; i++)
        OK(zipcclSend(p, 4, zipcclUint8, 1, c, NULL));
    FAILS(zipcclSend(p, 4, zipcclUint8, 1, c, NULL), c, zipcclLimitExceeded, "at most 4096");
    FAILS(zipcclGroupEnd(), NULL, zipcclLimitExceeded, "nothing was issued");
    assert_int_equal(atomic_load(&f->ops), WIRE_MAX_GROUP);
    OK(zipcclCommDestroy(c));
    OK(zipcclMemFree(p));
}

struct filler {
    zipcclComm_t comm;
    zipcclStream_t stream;
    zipcclResult_t result;
};

/* A group of 100, behind 950 operations that are under way. */
static void *end_group(void *arg) {
    struct filler *x = arg;
    zipcclResult_t r = zipcclGroupStart();
    for (int i = 0; i < 100 && r == zipcclSuccess; i++)
        r = zipcclSend(NULL, 0, zipcclUint8, 1, x->comm, x->stream);
    x->result = r == zipcclSuccess ? zipcclGroupEnd() : r;
    return NULL;
}

static void waits_for_room(void **state) {
    struct fake *f = *state;
    struct filler x;
    pthread_t t;
    for (int aborted = 0; aborted < 2; aborted++) {
        atomic_store(&f->mode, FAKE_HOLD);
        atomic_store(&f->release, false);
        atomic_store(&f->ops, 0);
        x.comm = join(2, 0);
        OK(zipcclStreamCreate(&x.stream));
        for (int i = 0; i < 950; i++)
            OK(zipcclBarrier(x.comm, x.stream));
        assert_int_equal(pthread_create(&t, NULL, end_group, &x), 0);
        (void)usleep(50000);
        assert_int_equal(atomic_load(&f->ops), 950);
        if (aborted)
            OK(zipcclCommAbort(x.comm));
        else
            atomic_store(&f->release, true);
        (void)pthread_join(t, NULL);
        assert_int_equal(x.result, aborted ? zipcclAborted : zipcclSuccess);
        assert_int_equal(zipcclStreamSynchronize(x.stream), aborted ? zipcclAborted : zipcclSuccess);
        if (!aborted)
            OK(zipcclCommDestroy(x.comm));
        OK(zipcclStreamDestroy(x.stream));
    }
}

struct pair {
    zipcclComm_t comms[2];
    zipcclResult_t result;
};

static void *end_pair(void *arg) {
    struct pair *x = arg;
    zipcclResult_t r = zipcclGroupStart();
    for (int i = 0; i < 4 && r == zipcclSuccess; i++)
        r = zipcclSend(NULL, 0, zipcclUint8, 1, x->comms[i % 2], NULL);
    x->result = r == zipcclSuccess ? zipcclGroupEnd() : r;
    return NULL;
}

/* A thread waits for both; the abort of one must not wait for the other. */
static void abort_while_waiting(void **state) {
    struct fake *f = *state;
    struct pair x = {.comms = {join(2, 0), join(2, 0)}};
    pthread_t t;
    atomic_store(&f->mode, FAKE_SILENT);
    assert_int_equal(pthread_create(&t, NULL, end_pair, &x), 0);
    while (atomic_load(&f->ops) < 4)
        (void)usleep(1000);
    atomic_store(&f->mode, FAKE_GOOD);
    OK(zipcclCommAbort(x.comms[1]));
    OK(zipcclCommAbort(x.comms[0]));
    (void)pthread_join(t, NULL);
    assert_int_equal(x.result, zipcclAborted);
}

/* A child that inherits an open group issues nothing of it. */
static void fork_in_a_group(void **state) {
    struct fake *f = *state;
    zipcclComm_t c = join(2, 0);
    int status;
    OK(zipcclGroupStart());
    OK(zipcclSend(NULL, 0, zipcclUint8, 1, c, NULL));
    pid_t child = fork();
    if (!child)
        _exit(zipcclGroupEnd() == zipcclInvalidUsage && strstr(zipcclGetLastError(c), "parent") &&
                      zipcclCommDestroy(c) == zipcclSuccess
                  ? 0
                  : 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(atomic_load(&f->ops), 0);
    OK(zipcclGroupEnd());
    assert_int_equal(atomic_load(&f->ops), 1);
    OK(zipcclCommDestroy(c));
}

/* Another thread's group is its own. */
static void *other_thread(void *arg) {
    zipcclResult_t r = zipcclBarrier(arg, NULL);
    return (void *)(uintptr_t)r;
}

static void threads(void **state) {
    struct fake *f = *state;
    zipcclComm_t c = join(2, 0), c2 = join(2, 0);
    pthread_t t;
    void *r;
    OK(zipcclGroupStart());
    OK(zipcclSend(NULL, 0, zipcclUint8, 1, c, NULL));
    assert_int_equal(pthread_create(&t, NULL, other_thread, c2), 0);
    (void)pthread_join(t, &r);
    OK((zipcclResult_t)(uintptr_t)r);
    assert_int_equal(atomic_load(&f->ops), 1);
    OK(zipcclGroupEnd());
    assert_int_equal(atomic_load(&f->ops), 2);
    OK(zipcclCommDestroy(c));
    OK(zipcclCommDestroy(c2));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nesting, setup, teardown),
        cmocka_unit_test_setup_teardown(to_itself, setup, teardown),
        cmocka_unit_test_setup_teardown(error_in_the_middle, setup, teardown),
        cmocka_unit_test_setup_teardown(two_communicators, setup, teardown),
        cmocka_unit_test_setup_teardown(streams, setup, teardown),
        cmocka_unit_test_setup_teardown(most, setup, teardown),
        cmocka_unit_test_setup_teardown(waits_for_room, setup, teardown),
        cmocka_unit_test_setup_teardown(abort_while_waiting, setup, teardown),
        cmocka_unit_test_setup_teardown(fork_in_a_group, setup, teardown),
        cmocka_unit_test_setup_teardown(threads, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * libzipccl against a scripted daemon: what goes right, and what each failure looks like to the caller.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/lib/admin.h"
#include "client/lib/connect.h"
#include "fake_daemon.h"
#include "proto/spin.h"
#include "zipccl.h"

#define OK(call) assert_int_equal(call, zipcclSuccess)

static double now(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static zipcclComm_t join(int nranks, int rank) {
    zipcclUniqueId id;
    zipcclComm_t c;
    OK(zipcclGetUniqueId(&id));
    OK(zipcclCommInitRank(&c, nranks, id, rank));
    return c;
}

static void spin_setting(void **state) {
    static const struct {
        const char *text;
        uint64_t us;
    } cases[] = {{"0", 0},
                 {"120", 120},
                 {"99999999999999999999999", SPIN_MAX_US},
                 {"", SPIN_DEFAULT_US},
                 {"-1", SPIN_DEFAULT_US},
                 {"5us", SPIN_DEFAULT_US}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(setenv("ZIPCCL_SPIN_US", cases[i].text, 1), 0);
        assert_int_equal(connect_spin_us(), cases[i].us);
    }
    assert_int_equal(unsetenv("ZIPCCL_SPIN_US"), 0);
    assert_int_equal(connect_spin_us(), SPIN_DEFAULT_US);
}

static void no_daemon(void **state) {
    (void)state;
    zipcclUniqueId id;
    assert_int_equal(setenv("ZIPCCL_SOCKET", "/tmp/zipccl-none.sock", 1), 0);
    assert_int_equal(zipcclGetUniqueId(&id), zipcclDaemonUnavailable);
    assert_non_null(strstr(zipcclGetLastError(NULL), "/tmp/zipccl-none.sock"));
    assert_non_null(strstr(zipcclGetLastError(NULL), "systemctl status zipccld"));
    assert_non_null(strstr(zipcclGetLastError(NULL), "ZIPCCL_SOCKET"));
}

static void hello_refused(void **state) {
    (void)state;
    struct fake f;
    zipcclUniqueId id;
    fake_start(&f, FAKE_REFUSE);
    assert_int_equal(zipcclGetUniqueId(&id), zipcclPermissionDenied);
    assert_non_null(strstr(zipcclGetLastError(NULL), "another user"));
    atomic_store(&f.mode, FAKE_VERSION);
    assert_int_equal(zipcclGetUniqueId(&id), zipcclVersionMismatch);
    assert_non_null(strstr(zipcclGetLastError(NULL), "99"));
    atomic_store(&f.mode, FAKE_GOOD);
    OK(zipcclGetUniqueId(&id));
    fake_stop(&f);
}

static void admin(void **state) {
    (void)state;
    struct fake f;
    struct admin *a;
    Zipccl__Status *s;
    fake_start(&f, FAKE_GOOD);
    OK(admin_open(f.path, 1000, &a));
    OK(admin_status(a, &s));
    assert_string_equal(s->node, "node-a");
    zipccl__status__free_unpacked(s, NULL);
    fake_stop(&f);
    assert_int_equal(admin_status(a, &s), zipcclDaemonUnavailable);
    assert_true(*admin_why(a));
    admin_close(a);
    assert_int_equal(admin_open(f.path, 100, &a), zipcclDaemonUnavailable);
    admin_close(a);
}

static void shared_memory(void **state) {
    (void)state;
    struct fake f;
    void *p;
    fake_start(&f, FAKE_GOOD);
    zipcclComm_t c = join(2, 1);
    OK(zipcclMemAlloc(&p, 8192));
    uint8_t *m = p;
    memset(m, 7, 10);
    for (int i = 0; i < 100; i++)
        OK(zipcclAllGather(m, m + 100, 10, zipcclUint8, c, NULL));
    assert_int_equal(m[119], 7);
    assert_int_equal(f.last.seq, 100);
    assert_int_equal(f.last.recv_offset, 100);
    /* In place, to the last byte of the memory; one byte more is refused. */
    memset(m + 8192 - 16, 9, 16);
    OK(zipcclAllGather(m + 8192 - 16, m + 8192 - 32, 16, zipcclUint8, c, NULL));
    assert_int_equal(m[8192 - 32], 9);
    assert_int_equal(zipcclAllGather(m, m + 8192 - 31, 16, zipcclUint8, c, NULL), zipcclInvalidArgument);
    assert_non_null(strstr(zipcclGetLastError(c), "1 bytes behind the end"));
    assert_int_equal(atomic_load(&f.registered), 1);
    OK(zipcclCommDestroy(c));
    OK(zipcclMemFree(m));
    assert_int_equal(zipcclMemFree(m), zipcclInvalidArgument);
    OK(zipcclMemAlloc(&p, 0));
    OK(zipcclMemFree(p));
    assert_int_equal(zipcclMemAlloc(&p, SIZE_MAX - 5), zipcclOutOfMemory);
    fake_stop(&f);
}

static void foreign_memory(void **state) {
    (void)state;
    struct fake f;
    void *shared, *handle;
    fake_start(&f, FAKE_GOOD);
    zipcclComm_t c = join(3, 1);
    OK(zipcclMemAlloc(&shared, 1 << 20));
    uint8_t *mem = malloc(1 << 20), *big = shared;
    for (size_t n = 1; n < 100000; n = n * 3 + 1) {
        uint8_t *send = mem + 1, *recv = mem + 1 + n + 3; /* unaligned */
        for (size_t i = 0; i < n; i++)
            send[i] = (uint8_t)(i * 31 + n);
        recv[3 * n] = 0xee;
        OK(zipcclAllGather(send, recv, n, zipcclUint8, c, NULL));
        for (int r = 0; r < 3; r++)
            assert_memory_equal(recv + (size_t)r * n, send, n);
        assert_int_equal(recv[3 * n], 0xee);
        /* In place. */
        memset(recv, 0, 3 * n);
        memcpy(recv + n, send, n);
        OK(zipcclAllGather(recv + n, recv, n, zipcclUint8, c, NULL));
        assert_memory_equal(recv, send, n);
        assert_memory_equal(recv + 2 * n, send, n);
        /* Mixed. */
        memset(big, 0, 3 * n);
        OK(zipcclAllGather(send, big, n, zipcclUint8, c, NULL));
        assert_memory_equal(big + 2 * n, send, n);
        memset(recv, 0, 3 * n);
        OK(zipcclAllGather(big, recv, n, zipcclUint8, c, NULL));
        assert_memory_equal(recv + 2 * n, send, n);
        /* Broadcast from here, in place and not, and from elsewhere. */
        memset(recv, 0, n);
        OK(zipcclBroadcast(send, recv, n, zipcclUint8, 1, c, NULL));
        assert_memory_equal(recv, send, n);
        OK(zipcclBroadcast(recv, recv, n, zipcclUint8, 1, c, NULL));
        assert_memory_equal(recv, send, n);
        OK(zipcclBroadcast(NULL, recv, n, zipcclUint8, 0, c, NULL));
        assert_int_equal(recv[n - 1], 0x5a);
        assert_int_equal(f.last.send_buffer, 0);
    }
    /* Staging is reused: no registration for a size that was there. */
    unsigned before = atomic_load(&f.registered);
    for (int i = 0; i < 10; i++)
        OK(zipcclAllGather(mem, mem + 1000, 1000, zipcclUint8, c, NULL));
    assert_int_equal(atomic_load(&f.registered), before);
    OK(zipcclMemRegister(mem, 4000, &handle));
    assert_int_equal(atomic_load(&f.registered), before + 1);
    memset(mem, 3, 1000);
    OK(zipcclAllGather(mem, mem + 1000, 1000, zipcclUint8, c, NULL));
    assert_int_equal(mem[3999], 3);
    assert_int_equal(f.last.recv_offset, 1000);
    OK(zipcclMemDeregister(handle));
    assert_int_equal(zipcclMemDeregister(handle), zipcclInvalidArgument);
    OK(zipcclCommDestroy(c));
    OK(zipcclMemFree(shared));
    free(mem);
    fake_stop(&f);
}

static void bad_arguments(void **state) {
    (void)state;
    struct fake f;
    uint8_t b[64];
    int n;
    zipcclComm_t c2;
    zipcclUniqueId id;
    fake_start(&f, FAKE_GOOD);
    zipcclComm_t c = join(2, 0);
    OK(zipcclCommCount(c, &n));
    assert_int_equal(n, 2);
    OK(zipcclAllGather(NULL, NULL, 0, zipcclFloat32, c, NULL));
    OK(zipcclBroadcast(NULL, NULL, 0, zipcclFloat32, 0, c, NULL));
    OK(zipcclBarrier(c, NULL));
    assert_int_equal(atomic_load(&f.ops), 3);
    assert_int_equal(zipcclAllGather(NULL, b, 1, zipcclUint8, c, NULL), zipcclInvalidArgument);
    assert_non_null(strstr(zipcclGetLastError(c), "sendbuff is NULL"));
    assert_int_equal(zipcclAllGather(b, b + 1, 2, zipcclUint8, c, NULL), zipcclInvalidArgument);
    assert_int_equal(zipcclAllGather(b, b, 1, (zipcclDataType_t)55, c, NULL), zipcclInvalidArgument);
    assert_non_null(strstr(zipcclGetLastError(c), "dtype 55"));
    assert_int_equal(zipcclAllGather(b, b, SIZE_MAX / 4, zipcclFloat64, c, NULL), zipcclInvalidArgument);
    assert_int_equal(zipcclBroadcast(b, b, 1, zipcclUint8, 2, c, NULL), zipcclInvalidArgument);
    assert_non_null(strstr(zipcclGetLastError(c), "root 2"));
    assert_int_equal(zipcclBarrier(NULL, NULL), zipcclInvalidArgument);
    assert_int_equal(zipcclCommSetCodec(c, (zipcclCodec_t)9), zipcclInvalidArgument);
    OK(zipcclCommSetCodec(c, zipcclCodecTop7));
    OK(zipcclBarrier(c, NULL));
    assert_int_equal(f.last.codec, zipcclCodecTop7);
    memset(&id, 0, sizeof id);
    assert_int_equal(zipcclCommInitRank(&c2, 2, id, 0), zipcclInvalidArgument);
    assert_int_equal(zipcclCommInitRank(&c2, 2, id, 2), zipcclInvalidArgument);
    OK(zipcclCommDestroy(c));
    fake_stop(&f);
}

static void streams(void **state) {
    (void)state;
    struct fake f;
    zipcclStream_t s;
    fake_start(&f, FAKE_HOLD);
    zipcclComm_t c = join(2, 0);
    OK(zipcclStreamCreate(&s));
    OK(zipcclStreamQuery(s));
    uint8_t a[8] = "abcdefg", b[16] = "", d[4][16];
    OK(zipcclAllGather(a, b, 8, zipcclUint8, c, s));
    for (int i = 0; i < 3; i++)
        OK(zipcclAllGather(a, d[i], 8, zipcclUint8, c, s));
    assert_int_equal(zipcclStreamQuery(s), zipcclInProgress);
    atomic_store(&f.release, true);
    OK(zipcclStreamSynchronize(s));
    OK(zipcclStreamQuery(s));
    assert_memory_equal(b + 8, "abcdefg", 8);
    assert_memory_equal(d[2] + 8, "abcdefg", 8);
    /* One reads what the other wrote, in memory that is copied. */
    atomic_store(&f.mode, FAKE_GOOD);
    memset(b, 0, sizeof b);
    memset(d, 0, sizeof d);
    OK(zipcclAllGather(a, b, 8, zipcclUint8, c, s));
    OK(zipcclAllGather(b + 8, d[3], 8, zipcclUint8, c, s));
    /* Another communicator on the same stream. */
    zipcclComm_t c2 = join(2, 0);
    OK(zipcclAllGather(d[3], d[0], 8, zipcclUint8, c2, s));
    OK(zipcclStreamSynchronize(s));
    assert_memory_equal(d[0] + 8, "abcdefg", 8);
    /* An error is told once; destroy with operations left finishes them. */
    atomic_store(&f.mode, FAKE_FAIL_OP);
    OK(zipcclBarrier(c, s));
    assert_int_equal(zipcclStreamSynchronize(s), zipcclInvalidArgument);
    OK(zipcclStreamSynchronize(s));
    atomic_store(&f.mode, FAKE_GOOD);
    memset(b, 0, sizeof b);
    OK(zipcclAllGather(a, b, 8, zipcclUint8, c, s));
    OK(zipcclCommDestroy(c));
    assert_memory_equal(b + 8, "abcdefg", 8);
    OK(zipcclStreamDestroy(s));
    OK(zipcclCommDestroy(c2));
    fake_stop(&f);
}

static void failures(void **state) {
    (void)state;
    struct fake f;
    zipcclResult_t e;
    fake_start(&f, FAKE_FAIL_OP);
    zipcclComm_t c = join(4, 2);
    assert_int_equal(zipcclBarrier(c, NULL), zipcclInvalidArgument);
    assert_string_equal(zipcclGetLastError(c), "rank 2 of 4: barrier #1: ranks differ in count");
    OK(zipcclCommGetAsyncError(c, &e));
    OK(e);
    atomic_store(&f.mode, FAKE_EVENT_ON_OP);
    assert_int_equal(zipcclBarrier(c, NULL), zipcclRemoteError);
    assert_non_null(strstr(zipcclGetLastError(c), "rank 3 on node-b died"));
    OK(zipcclCommGetAsyncError(c, &e));
    assert_int_equal(e, zipcclRemoteError);
    assert_int_equal(zipcclBarrier(c, NULL), zipcclRemoteError);
    OK(zipcclCommDestroy(c));
    /* The daemon goes in the middle of a wait. */
    atomic_store(&f.mode, FAKE_CLOSE_ON_OP);
    c = join(4, 2);
    double t = now();
    assert_int_equal(zipcclBarrier(c, NULL), zipcclDaemonUnavailable);
    assert_true(now() - t < 1);
    assert_non_null(strstr(zipcclGetLastError(c), "systemctl"));
    assert_int_equal(zipcclBarrier(c, NULL), zipcclDaemonUnavailable);
    OK(zipcclCommDestroy(c));
    /* And a new one works, with memory from before. */
    atomic_store(&f.mode, FAKE_GOOD);
    c = join(1, 0);
    OK(zipcclBarrier(c, NULL));
    OK(zipcclCommDestroy(c));
    fake_stop(&f);
}

static void memory_outlives_daemon(void **state) {
    (void)state;
    struct fake f, g;
    void *p;
    fake_start(&f, FAKE_GOOD);
    OK(zipcclMemAlloc(&p, 4096));
    fake_stop(&f);
    fake_start(&g, FAKE_GOOD);
    zipcclComm_t c = join(2, 0);
    memset(p, 5, 8);
    OK(zipcclAllGather(p, (uint8_t *)p + 64, 8, zipcclUint8, c, NULL));
    assert_int_equal(((uint8_t *)p)[79], 5);
    assert_int_equal(atomic_load(&g.registered), 1);
    OK(zipcclCommDestroy(c));
    OK(zipcclMemFree(p));
    fake_stop(&g);
}

static void *barrier_thread(void *arg) {
    zipcclResult_t r = zipcclBarrier(arg, NULL);
    return (void *)(uintptr_t)r;
}

static void abort_while_waiting(void **state) {
    (void)state;
    struct fake f;
    pthread_t t[3];
    void *r;
    fake_start(&f, FAKE_HOLD);
    zipcclComm_t c[3];
    for (int i = 0; i < 3; i++) {
        c[i] = join(2, 0);
        assert_int_equal(pthread_create(&t[i], NULL, barrier_thread, c[i]), 0);
    }
    while (atomic_load(&f.ops) < 3)
        (void)usleep(1000);
    OK(zipcclCommAbort(c[1])); /* the fake ends all that it holds */
    for (int i = 0; i < 3; i++) {
        (void)pthread_join(t[i], &r);
        assert_int_equal((uintptr_t)r, zipcclAborted);
    }
    OK(zipcclCommDestroy(c[0]));
    OK(zipcclCommDestroy(c[2]));
    fake_stop(&f);
}

static void *many(void *arg) {
    zipcclComm_t c = arg;
    uint8_t a[16], b[32];
    for (int i = 0; i < 200; i++) {
        memset(a, i, sizeof a);
        if (zipcclAllGather(a, b, 16, zipcclUint8, c, NULL) != zipcclSuccess || b[31] != (uint8_t)i)
            return c;
    }
    return NULL;
}

static void threads(void **state) {
    (void)state;
    struct fake f;
    pthread_t t[4];
    zipcclComm_t c[4];
    void *bad;
    fake_start(&f, FAKE_GOOD);
    for (int i = 0; i < 4; i++)
        c[i] = join(2, 1);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, many, c[i]), 0);
    for (int i = 0; i < 4; i++) {
        (void)pthread_join(t[i], &bad);
        assert_null(bad);
        OK(zipcclCommDestroy(c[i]));
    }
    fake_stop(&f);
}

static void fork_is_refused(void **state) {
    (void)state;
    struct fake f;
    int status;
    fake_start(&f, FAKE_GOOD);
    zipcclComm_t c = join(2, 0);
    pid_t child = fork();
    if (!child) {
        zipcclResult_t r = zipcclBarrier(c, NULL);
        bool told = strstr(zipcclGetLastError(c), "parent") != NULL;
        _exit(r == zipcclInvalidUsage && told && zipcclCommDestroy(c) == zipcclSuccess ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    OK(zipcclBarrier(c, NULL)); /* the parent's still works */
    OK(zipcclCommDestroy(c));
    fake_stop(&f);
}

/* A process of its own: gathers from plain and from registered memory. */
static bool gather_in_child(uint8_t *plain, uint8_t *registered, size_t n) {
    struct fake g;
    zipcclUniqueId id;
    zipcclComm_t c;
    fake_start(&g, FAKE_GOOD);
    bool ok = zipcclGetUniqueId(&id) == zipcclSuccess && zipcclCommInitRank(&c, 2, id, 0) == zipcclSuccess;
    memset(plain, 9, n);
    memset(registered, 9, n);
    for (int i = 0; i < 3; i++) {
        ok = ok && zipcclAllGather(plain, plain + n, n, zipcclUint8, c, NULL) == zipcclSuccess && plain[3 * n - 1] == 9;
        ok = ok && zipcclAllGather(registered, registered + n, n, zipcclUint8, c, NULL) == zipcclSuccess &&
             registered[3 * n - 1] == 9;
    }
    ok = ok && zipcclCommDestroy(c) == zipcclSuccess;
    fake_stop(&g);
    return ok;
}

static void fork_stages_apart(void **state) {
    (void)state;
#if defined(__SANITIZE_THREAD__)
    print_message("skipped: the child starts a thread, which TSan does not allow after a fork\n");
    skip();
#endif
    enum { N = 1000 };
    struct fake f;
    zipcclStream_t s;
    void *handle;
    int go[2], status;
    uint8_t *plain = malloc((size_t)3 * N), *registered = malloc((size_t)3 * N), byte = 0;
    fake_start(&f, FAKE_GOOD);
    zipcclComm_t c = join(2, 0);
    OK(zipcclMemRegister(registered, (size_t)3 * N, &handle));
    OK(zipcclStreamCreate(&s));
    memset(plain, 7, N);
    memset(registered, 7, N);
    /* Leaves staging in the cache, and an operation that is done but not finished. */
    OK(zipcclAllGather(plain, plain + N, N, zipcclUint8, c, NULL));
    OK(zipcclAllGather(plain, plain + N, N, zipcclUint8, c, s));
    assert_int_equal(pipe(go), 0);
    pid_t child = fork();
    if (!child) {
        bool ok = read(go[0], &byte, 1) == 1;
        ok = ok && zipcclStreamSynchronize(s) == zipcclInvalidUsage; /* and nothing of the parent's is copied */
        _exit(ok && gather_in_child(plain, registered, N) && zipcclMemDeregister(handle) == zipcclSuccess ? 0 : 1);
    }
    OK(zipcclStreamSynchronize(s));
    atomic_store(&f.mode, FAKE_HOLD);
    memset(plain + N, 0, (size_t)2 * N);
    memset(registered + N, 0, (size_t)2 * N);
    OK(zipcclAllGather(plain, plain + N, N, zipcclUint8, c, s));
    OK(zipcclAllGather(registered, registered + N, N, zipcclUint8, c, s));
    assert_int_equal(write(go[1], &byte, 1), 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    atomic_store(&f.release, true);
    OK(zipcclStreamSynchronize(s));
    for (int i = 0; i < 3 * N; i++) {
        assert_int_equal(plain[i], 7);
        assert_int_equal(registered[i], 7);
    }
    OK(zipcclStreamDestroy(s));
    OK(zipcclCommDestroy(c));
    OK(zipcclMemDeregister(handle));
    (void)close(go[0]);
    (void)close(go[1]);
    free(plain);
    free(registered);
    fake_stop(&f);
}

static void *destroy_thread(void *arg) {
    return (void *)(uintptr_t)zipcclCommDestroy(arg);
}

static void abort_while_destroying(void **state) {
    (void)state;
    struct fake f;
    zipcclStream_t s;
    pthread_t t;
    void *r;
    fake_start(&f, FAKE_HOLD);
    zipcclComm_t c = join(2, 0);
    OK(zipcclStreamCreate(&s));
    OK(zipcclBarrier(c, s));
    assert_int_equal(pthread_create(&t, NULL, destroy_thread, c), 0);
    (void)usleep(50000);
    assert_int_equal(zipcclCommDestroy(c), zipcclInvalidUsage);
    OK(zipcclCommAbort(c));
    (void)pthread_join(t, &r);
    OK((zipcclResult_t)(uintptr_t)r);
    assert_int_equal(atomic_load(&f.left), 1);
    assert_int_equal(zipcclCommAbort(c), zipcclInvalidArgument);
    assert_int_equal(zipcclCommDestroy(c), zipcclInvalidArgument);
    assert_int_equal(zipcclStreamSynchronize(s), zipcclAborted);
    OK(zipcclStreamDestroy(s));
    fake_stop(&f);
}

struct queue {
    zipcclComm_t comm;
    zipcclStream_t stream;
};

static void *queue_thread(void *arg) {
    const struct queue *q = arg;
    for (int i = 0; i < 2500; i++)
        if (zipcclBarrier(q->comm, q->stream) != zipcclSuccess)
            return arg;
    return NULL;
}

static void long_queue(void **state) {
    (void)state;
    struct fake f;
    struct queue q;
    pthread_t t;
    void *bad;
    fake_start(&f, FAKE_HOLD);
    OK(zipcclStreamCreate(&q.stream));
    for (int aborted = 0; aborted < 2; aborted++) {
        q.comm = join(2, 0);
        atomic_store(&f.ops, 0);
        atomic_store(&f.release, false);
        assert_int_equal(pthread_create(&t, NULL, queue_thread, &q), 0);
        while (atomic_load(&f.ops) < 1000)
            (void)usleep(1000);
        (void)usleep(30000);
        assert_int_equal(atomic_load(&f.ops), 1000); /* more than 1024 would be refused */
        if (aborted)
            OK(zipcclCommAbort(q.comm));
        else
            atomic_store(&f.release, true);
        (void)pthread_join(t, &bad);
        assert_int_equal(bad != NULL, aborted);
        assert_int_equal(zipcclStreamSynchronize(q.stream), aborted ? zipcclAborted : zipcclSuccess);
        assert_int_equal(atomic_load(&f.ops), aborted ? 1000 : 2500);
        if (!aborted)
            OK(zipcclCommDestroy(q.comm));
    }
    OK(zipcclStreamDestroy(q.stream));
    fake_stop(&f);
}

/* The daemon may still write what a failed operation used: it is not used again, and a leave without an answer says
 * so. */
static void silent_daemon(void **state) {
    (void)state;
    struct fake f;
    uint8_t m[300];
    void *handle;
    fake_start(&f, FAKE_EVENT_ON_OP);
    zipcclComm_t c = join(2, 0), c2 = join(2, 0);
    OK(zipcclMemRegister(m, sizeof m, &handle));
    memset(m, 4, 100);
    assert_int_equal(zipcclAllGather(m, m + 100, 100, zipcclUint8, c, NULL), zipcclRemoteError);
    uint64_t before = f.last.recv_buffer;
    atomic_store(&f.mode, FAKE_GOOD);
    OK(zipcclAllGather(m, m + 100, 100, zipcclUint8, c2, NULL));
    assert_true(f.last.recv_buffer != before);
    assert_int_equal(m[299], 4);
    OK(zipcclMemDeregister(handle));
    atomic_store(&f.mode, FAKE_SILENT);
    assert_int_equal(zipcclCommDestroy(c), zipcclTimeout);
    assert_non_null(strstr(zipcclGetLastError(NULL), "did not answer"));
    atomic_store(&f.mode, FAKE_GOOD);
    OK(zipcclCommDestroy(c2));
    fake_stop(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spin_setting),
        cmocka_unit_test(no_daemon),
        cmocka_unit_test(hello_refused),
        cmocka_unit_test(admin),
        cmocka_unit_test(shared_memory),
        cmocka_unit_test(foreign_memory),
        cmocka_unit_test(bad_arguments),
        cmocka_unit_test(streams),
        cmocka_unit_test(failures),
        cmocka_unit_test(threads),
        cmocka_unit_test(memory_outlives_daemon),
        cmocka_unit_test(fork_is_refused),
        cmocka_unit_test(abort_while_waiting),
        cmocka_unit_test(fork_stages_apart),
        cmocka_unit_test(abort_while_destroying),
        cmocka_unit_test(long_queue),
        cmocka_unit_test(silent_daemon),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

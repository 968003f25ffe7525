/* SPDX-License-Identifier: Apache-2.0
 *
 * zipcclctl bench collective, end to end: what it prints, how it ends, and that it leaves nothing behind.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROGRAM  ZIPCCL_TEST_BIN "/zipcclctl"
#define TENSOR   ZIPCCL_TEST_DATA "/tensors/weight_qkv_s0160.bf16"
#define MAX_ARGS 32
#define MAX_TEXT 65536
#define PAUSE_US 2000

/* Each test has a directory of its own, where the program's temporary directory must not stay. */
struct place {
    char tmp[64], text[MAX_TEXT];
};

static int setup(void **state) {
    struct place *p = calloc(1, sizeof *p);
    if (!p)
        return -1;
    snprintf(p->tmp, sizeof p->tmp, "/tmp/zipccl-ctl-XXXXXX");
    *state = p;
    return mkdtemp(p->tmp) && setenv("TMPDIR", p->tmp, 1) == 0 ? 0 : -1;
}

static int teardown(void **state) {
    struct place *p = *state;
    int rc = rmdir(p->tmp); /* fails where something is left */
    free(p);
    return rc;
}

/* How many entries of the directory are there, of the program's or others. */
static unsigned entries(const char *path) {
    unsigned n = 0;
    struct dirent *e;
    DIR *dir = opendir(path);
    assert_non_null(dir);
    while ((e = readdir(dir)))
        n += e->d_name[0] != '.';
    closedir(dir);
    return n;
}

/* Starts the program; what it prints on `stream` comes from the pipe. */
static pid_t start(int stream, int *from, va_list ap) {
    char *argv[MAX_ARGS] = {(char *)PROGRAM, (char *)"bench", (char *)"collective"};
    int fds[2], n = 3;
    while (n < MAX_ARGS - 1 && (argv[n] = va_arg(ap, char *)))
        n++;
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(fds[1], stream);
        execv(PROGRAM, argv);
        _exit(126);
    }
    close(fds[1]);
    *from = fds[0];
    return pid;
}

static int run(struct place *p, int stream, ...) {
    va_list ap;
    size_t used = 0;
    ssize_t n;
    int fd, status;
    va_start(ap, stream);
    pid_t pid = start(stream, &fd, ap);
    va_end(ap);
    while ((n = read(fd, p->text + used, MAX_TEXT - 1 - used)) > 0)
        used += (size_t)n;
    p->text[used] = 0;
    close(fd);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(entries(p->tmp), 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static json_t *parse(const struct place *p) {
    json_error_t error;
    json_t *root = json_loads(p->text, 0, &error);
    if (!root)
        fail_msg("%s: %s", error.text, p->text);
    return root;
}

static double number(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    if (!json_is_number(v))
        fail_msg("%s is no number", key);
    return json_number_value(v);
}

static void test_two_nodes(void **state) {
    struct place *p = *state;
    assert_int_equal(run(p, STDOUT_FILENO, "--nodes", "2", "--ranks-per-node", "2", "--size", "1MiB", "--iters", "3",
                         "--codec", "tier", "--link-rate", "1gbit", "--file", TENSOR, "--json", NULL),
                     0);
    json_t *root = parse(p), *raw = json_object_get(root, "raw"), *zipped = json_object_get(root, "zipped");
    assert_string_equal(json_string_value(json_object_get(root, "op")), "all-gather");
    assert_int_equal(number(root, "nodes"), 2);
    assert_int_equal(number(root, "ranks"), 4);
    assert_int_equal(number(root, "bytes_per_rank"), 1 << 20);
    assert_true(json_is_true(json_object_get(root, "exact")));
    assert_true(number(root, "speedup") > 0);
    assert_true(number(raw, "ms") > 0 && number(zipped, "ms") > 0);
    /* 4 MiB arrive; bus = alg * 3/4. */
    double alg = 4 * 0x1p20 / number(raw, "ms") * 1e3 / 1e9;
    assert_true(number(raw, "bus_gbps") > alg * 0.74 && number(raw, "bus_gbps") < alg * 0.76);
    assert_int_equal(number(raw, "wire_bytes"), 2 << 20);
    assert_string_equal(json_string_value(json_object_get(raw, "codec")), "raw");
    assert_string_equal(json_string_value(json_object_get(zipped, "codec")), "tier");
    assert_true(number(zipped, "ratio") > 1.3);
    assert_true(number(zipped, "wire_bytes") < (2 << 20) / 1.3);
    /* 2 MiB at 125 MB/s; the cap must hold. */
    assert_true(number(root, "theory_ms") > 16.7 && number(root, "theory_ms") < 16.8);
    assert_true(number(raw, "min_us") > 0.98 * 16777);
    json_decref(root);
}

static void test_one_node_sizes(void **state) {
    struct place *p = *state;
    assert_int_equal(run(p, STDOUT_FILENO, "--nodes=1", "--op=broadcast", "--size=1KiB,64KiB", "--iters=20",
                         "--dtype=fp32", "--json", NULL),
                     0);
    json_t *root = parse(p), *results = json_object_get(root, "results");
    assert_true(number(root, "pingpong_us") > 0);
    assert_int_equal(json_array_size(results), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *one = json_array_get(results, i);
        assert_true(json_is_true(json_object_get(one, "exact")));
        assert_int_equal(number(one, "rounds"), 20);
        assert_int_equal(number(one, "bytes_per_rank"), i ? 65536 : 1024);
        assert_true(number(one, "p50_us") > 0 && number(one, "p99_us") >= number(one, "p50_us"));
        assert_int_equal(number(json_object_get(one, "raw"), "wire_bytes"), 0);
    }
    json_decref(root);
}

/* auto beside what is pinned: every arm with its own time, and the sums of the rounds. */
static void test_switcher(void **state) {
    struct place *p = *state;
    assert_int_equal(run(p, STDOUT_FILENO, "--switcher", "--op=all-reduce", "--size=64KiB,128KiB", "--iters=6",
                         "--link-rate=200mbit", "--json", NULL),
                     0);
    json_t *root = parse(p), *one, *us;
    size_t i;
    const char *name;
    json_array_foreach(json_object_get(root, "results"), i, one) {
        const json_t *s = json_object_get(one, "switcher"), *pinned = json_object_get(s, "pinned_p50_us");
        double least = 1e12;
        assert_string_equal(json_string_value(json_object_get(one, "bits")), "equal");
        assert_int_equal(json_object_size(pinned), 5);
        json_object_foreach((json_t *)pinned, name, us) {
            least = json_number_value(us) < least ? json_number_value(us) : least;
            assert_true(json_number_value(us) > 0);
        }
        assert_true(number(pinned, json_string_value(json_object_get(s, "best"))) == least);
        assert_true(number(s, "auto_p50_us") > 0 && number(s, "settled") > 0 && number(s, "settled_error") >= 0);
        assert_true(number(s, "first") == number(s, "whole")); /* six rounds are all among the first */
    }
    assert_int_equal(i, 2);
    json_decref(root);
    assert_int_equal(run(p, STDERR_FILENO, "--switcher", "--codec=tier", NULL), 2);
    assert_int_equal(run(p, STDERR_FILENO, "--switcher", "--op=barrier", NULL), 2);
    assert_int_equal(run(p, STDERR_FILENO, "--switcher", "--dtype=int32", NULL), 2);
    assert_non_null(strstr(p->text, "int32 is not coded"));
}

static void test_barrier(void **state) {
    struct place *p = *state;
    assert_int_equal(run(p, STDOUT_FILENO, "--op", "barrier", "--iters", "5", "--json", NULL), 0);
    json_t *root = parse(p);
    assert_true(json_is_null(json_object_get(root, "zipped")));
    assert_true(number(root, "p50_us") > 0);
    json_decref(root);
}

/* Every operation moves or sums the right bits; what a node sends is what it must. */
static void test_every_operation(void **state) {
    static const struct {
        const char *op, *more;
        unsigned wire;
        double factor;
        bool sums; /* the flat arm, which auto may take, sends more */
    } cases[] = {
        {"broadcast", "--dtype=fp32", 65536, 1, false},
        {"reduce-scatter", "--redop=avg", 32768, 0.75, true},
        {"all-reduce", "--redop=sum", 65536, 1.5, true},
        {"reduce", "--dtype=int32", 65536, 1, true},
        {"all-to-all", "--dtype=e4m3", 65536, 0.75, false},
        {"gather", "--imbalance=0.5", 131072, 0.75, false},
        {"scatter", "--dtype=fp16", 131072, 0.75, false},
        {"send", "--dtype=bf16", 131072, 1, false},
        {"all-gather-v", "--dtype=bf16", 0, 0.75, false},
        {"reduce-scatter-v", "--redop=premulsum", 0, 0.75, false},
        {"all-to-all-v", "--rows=" ZIPCCL_TEST_DATA "/tensors/manifest.json", 0, 0.75, false},
    };
    struct place *p = *state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(run(p, STDOUT_FILENO, "--op", cases[i].op, cases[i].more, "--size", "64KiB", "--iters", "3",
                             "--warmup", "2", cases[i].sums ? "--arm=hierarchical" : "--timeout=100", "--json", NULL),
                         0);
        json_t *root = parse(p), *raw = json_object_get(root, "raw");
        assert_string_equal(json_string_value(json_object_get(root, "op")), cases[i].op);
        assert_string_equal(json_string_value(json_object_get(root, "bits")), "equal");
        if (cases[i].wire)
            assert_int_equal(number(raw, "wire_bytes"), cases[i].wire);
        else
            assert_true(number(raw, "wire_bytes") > 0);
        double factor = number(raw, "bus_gbps") / number(raw, "alg_gbps");
        assert_true(factor > cases[i].factor * 0.999 && factor < cases[i].factor * 1.001);
        const json_t *late = json_object_get(raw, "late");
        assert_int_equal(late != NULL, i == 5);
        if (late) {
            assert_true(number(late, "by_us") > 0.49 * number(raw, "p50_us"));
            assert_true(number(late, "total_us") >= number(late, "by_us"));
            assert_true(number(late, "total_us") >= number(late, "after_last_call_us"));
        }
        json_decref(root);
    }
}

/* A ring rounds in an order of its own. */
static void test_ring(void **state) {
    struct place *p = *state;
    assert_int_equal(
        run(p, STDOUT_FILENO, "--op=all-reduce", "--arm=ring", "--size=64KiB", "--iters=2", "--json", NULL), 0);
    json_t *root = parse(p);
    assert_string_equal(json_string_value(json_object_get(root, "wanted_arm")), "ring");
    assert_string_not_equal(json_string_value(json_object_get(root, "bits")), "DIFFER");
    json_decref(root);
}

static void test_openmpi(void **state) {
    struct place *p = *state;
    if (access(PROGRAM "-mpi", X_OK) != 0)
        skip();
    assert_int_equal(run(p, STDOUT_FILENO, "--op=reduce-scatter", "--ranks-per-node=1", "--size=1MiB", "--iters=3",
                         "--link-rate=1gbit", "--peer=openmpi", "--json", NULL),
                     0);
    json_t *root = parse(p), *peer = json_object_get(root, "openmpi");
    assert_true(number(peer, "p50_us") >= number(peer, "min_us"));
    assert_non_null(strstr(json_string_value(json_object_get(peer, "algorithm")), "reduce_scatter"));
    /* Shaped as root, else computed: the bytes of half a buffer take 4.2 ms. */
    const json_t *computed = json_object_get(peer, "computed_us");
    if (geteuid() != 0)
        assert_true(json_number_value(computed) > 4190);
    json_decref(root);
}

static void test_wrong_usage(void **state) {
    struct place *p = *state;
    assert_int_equal(run(p, STDERR_FILENO, "--op", "all-nonsense", NULL), 2);
    assert_int_equal(run(p, STDERR_FILENO, "--size", "3", NULL), 2);
    assert_int_equal(run(p, STDERR_FILENO, "--nodes", "0", NULL), 2);
    assert_int_equal(run(p, STDERR_FILENO, "--nodes", "32", "--ranks-per-node", "3", NULL), 2);
    assert_int_equal(run(p, STDERR_FILENO, "--set", "socket=/tmp/x", NULL), 2);
    assert_int_equal(run(p, STDERR_FILENO, "--set", "verify", NULL), 2);
    assert_int_equal(run(p, STDERR_FILENO, "--file", "/nonexistent", NULL), 1);
    static const char *const wrong[][2] = {
        {"--op=all-gather", "--redop=sum"}, {"--op=broadcast", "--arm=ring"},    {"--op=all-reduce", "--redop=mean"},
        {"--op=all-reduce", "--arm=tree"},  {"--op=all-gather", "--phases=two"}, {"--op=all-to-all", "--phases=three"},
        {"--op=all-to-all", "--rows=x"},    {"--op=send", "--imbalance=-1"},     {"--op=send", "--peer=nccl"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(run(p, STDERR_FILENO, wrong[i][0], wrong[i][1], NULL), 2);
    assert_int_equal(run(p, STDERR_FILENO, "--op=all-to-all-v", "--rows=/nonexistent", NULL), 1);
}

static void test_daemon_refuses(void **state) {
    struct place *p = *state;
    assert_int_equal(run(p, STDERR_FILENO, "--set", "no_such_key=1", NULL), 1);
    assert_non_null(strstr(p->text, "Log of node"));
    assert_non_null(strstr(p->text, "no_such_key"));
}

static void test_rank_fails(void **state) {
    struct place *p = *state;
    assert_int_equal(run(p, STDERR_FILENO, "--size", "1MiB", "--set", "max_buffer_bytes=64KiB", NULL), 1);
    assert_non_null(strstr(p->text, "rank "));
}

static void test_timeout(void **state) {
    struct place *p = *state;
    assert_int_equal(run(p, STDERR_FILENO, "--size", "16MiB", "--link-rate", "10mbit", "--timeout", "2", NULL), 5);
}

static pid_t start_args(int stream, int *from, ...) {
    va_list ap;
    va_start(ap, from);
    pid_t pid = start(stream, from, ap);
    va_end(ap);
    return pid;
}

static void test_interrupt(void **state) {
    static const int signals[] = {SIGINT, SIGTERM};
    struct place *p = *state;
    for (size_t i = 0; i < 2; i++) {
        char text[256];
        int fd, status;
        pid_t pid = start_args(STDERR_FILENO, &fd, "--size", "16MiB", "--link-rate", "10mbit", NULL);
        while (entries(p->tmp) == 0)
            usleep(PAUSE_US);
        usleep(i * 500 * 1000); /* while daemons start; while ranks run */
        kill(pid, signals[i]);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == signals[i]);
        assert_int_equal(entries(p->tmp), 0);
        /* The pipe ends: no child of its is left. */
        while (read(fd, text, sizeof text) > 0)
            ;
        close(fd);
    }
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_every_operation), TEST(test_ring),       TEST(test_openmpi),  TEST(test_two_nodes),
        TEST(test_one_node_sizes),  TEST(test_barrier),    TEST(test_switcher), TEST(test_wrong_usage),
        TEST(test_daemon_refuses),  TEST(test_rank_fails), TEST(test_timeout),  TEST(test_interrupt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * mpirun, its namespaces and its end.
 */
#include "client/ctl/peer_mpi.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/ctl/units.h"
#include "kernels/dtype.h"
#include "proto/op.h"

#define MAX_ARGS  64
#define MAX_TEXT  4096
#define WARMUP    4
#define POLL_US   5000
#define END_NS    5000000000u /* mpirun may take to end after SIGTERM */
#define MTU_BYTES 1514.0      /* of which... */
#define PAYLOAD   1448.0      /* ... these are TCP's payload */

/* One run; strings live as long as it. */
struct run {
    char directory[64], prefix[16], subnet[24];
    char meeting[80], result[80], log[80], agent[80];
    char sizes[MAX_TEXT], hosts[MAX_TEXT], number[4][24], network[32], helper[MAX_TEXT];
    bool namespaces;
};

/* N namespaces on a bridge; $4: bits a second of each one's way out, 0: as it comes. Bursts below 128 kB would slow a
 * link that is used both ways; BBR is unsteady on shaped links. */
static const char set_up_script[] =
    "set -e\n"
    "prefix=$1 nodes=$2 net=$3 rate=$4\n"
    "ip link add $prefix-br type bridge\n"
    "ip addr add $net.254/24 dev $prefix-br\n"
    "ip link set $prefix-br up\n"
    "i=0\n"
    "while [ $i -lt $nodes ]; do\n"
    "  ip netns add $prefix-$i\n"
    "  ip link add $prefix-v$i type veth peer name eth0 netns $prefix-$i\n"
    "  ip link set $prefix-v$i master $prefix-br up\n"
    "  ip -n $prefix-$i addr add $net.$((i + 1))/24 dev eth0\n"
    "  ip -n $prefix-$i link set eth0 up\n"
    "  ip -n $prefix-$i link set lo up\n"
    "  if [ $rate -gt 0 ]; then\n"
    "    tc -n $prefix-$i qdisc add dev eth0 root tbf rate ${rate}bit burst 256kb latency 20ms\n"
    "    ip -n $prefix-$i route change $net.0/24 dev eth0 src $net.$((i + 1)) congctl cubic || true\n"
    "  fi\n"
    "  i=$((i + 1))\n"
    "done\n";
static const char tear_down_script[] = "i=0\n"
                                       "while [ $i -lt $2 ]; do ip netns del $1-$i; i=$((i + 1)); done\n"
                                       "ip link del $1-br\n";
/* What mpirun calls in place of ssh: address, then the command. A host name of its own makes it a node of its own. */
static const char agent_script[] = "#!/bin/sh\n"
                                   "node=$((${1##*.} - 1)); shift\n"
                                   "exec ip netns exec %s-$node unshare --uts sh -c \"hostname %s-$node; $*\"\n";

static pid_t start(char *const *argv, const char *log) {
    pid_t parent = getpid(), pid = fork();
    if (pid != 0)
        return pid;
    private_child(parent);
    (void)setpgid(0, 0); /* the end reaches all that it starts */
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    int out = log ? open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : null;
    if (null < 0 || out < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0 ||
        dup2(out, STDERR_FILENO) < 0)
        _exit(127);
    (void)setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    (void)setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    (void)execvp(argv[0], argv);
    _exit(127);
}

/* Waits; ends it where stop says so. Its exit code, -1 where it was stopped or has none. */
static int await(pid_t pid, bool (*stop)(void)) {
    uint64_t end = 0;
    int status;
    if (pid < 0)
        return -1;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (stop && !end && stop()) {
            (void)kill(pid, SIGTERM); /* mpirun ends its ranks */
            end = units_now_ns() + END_NS;
        } else if (end && units_now_ns() > end) {
            (void)kill(-pid, SIGKILL);
        }
        (void)usleep(POLL_US);
    }
    return !end && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int script(const char *text, const char *a, const char *b, const char *c, const char *d, const char *log) {
    char *argv[] = {(char *)"sh", (char *)"-c", (char *)text, (char *)"sh", (char *)a,
                    (char *)b,    (char *)c,    (char *)d,    NULL};
    return await(start(argv, log), NULL);
}

static bool write_file(const char *path, mode_t mode, const char *text, size_t bytes) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    bool ok = fd >= 0 && write(fd, text, bytes) == (ssize_t)bytes;
    return fd >= 0 && close(fd) == 0 && ok;
}

/* Beside this program; in the build as installed. */
static bool find_helper(struct run *run) {
    ssize_t n = readlink("/proc/self/exe", run->helper, sizeof run->helper - 32);
    char *slash = NULL;
    if (n > 0) {
        run->helper[n] = 0;
        slash = strrchr(run->helper, '/');
    }
    if (!slash)
        return false;
    (void)snprintf(slash, 32, "/zipcclctl-mpi");
    return access(run->helper, X_OK) == 0;
}

static bool make_place(struct run *run, char why[PEER_WHY]) {
    char text[512];
    uint64_t zero = 0;
    (void)snprintf(run->directory, sizeof run->directory, "/tmp/zipccl-mpi-XXXXXX");
    if (!mkdtemp(run->directory)) {
        (void)snprintf(why, PEER_WHY, "cannot make %s: %s", run->directory, strerror(errno));
        return false;
    }
    (void)snprintf(run->meeting, sizeof run->meeting, "%s/meeting", run->directory);
    (void)snprintf(run->result, sizeof run->result, "%s/result", run->directory);
    (void)snprintf(run->log, sizeof run->log, "%s/log", run->directory);
    (void)snprintf(run->agent, sizeof run->agent, "%s/agent", run->directory);
    (void)snprintf(run->prefix, sizeof run->prefix, "zb%d", (int)getpid() % 10000000);
    (void)snprintf(run->subnet, sizeof run->subnet, "10.213.%d", (int)getpid() % 256);
    (void)snprintf(run->network, sizeof run->network, "%s.0/24", run->subnet);
    int n = snprintf(text, sizeof text, agent_script, run->prefix, run->prefix);
    if (write_file(run->meeting, 0600, (const char *)&zero, sizeof zero) &&
        write_file(run->agent, 0700, text, (size_t)n))
        return true;
    (void)snprintf(why, PEER_WHY, "cannot write to %s: %s", run->directory, strerror(errno));
    return false;
}

static void remove_place(const struct run *run) {
    (void)unlink(run->meeting);
    (void)unlink(run->result);
    (void)unlink(run->log);
    (void)unlink(run->agent);
    (void)rmdir(run->directory);
}

/* The ring, where OpenMPI has one: its own choice is not always the best here. */
static const char *ring_of(zipcclOp_t op, const char **value) {
    switch (op) {
    case zipcclOpAllGather:
        *value = "4";
        return "coll_tuned_allgather_algorithm";
    case zipcclOpAllGatherv:
        *value = "3";
        return "coll_tuned_allgatherv_algorithm";
    case zipcclOpAllReduce:
        *value = "4";
        return "coll_tuned_allreduce_algorithm";
    case zipcclOpReduceScatter:
    case zipcclOpReduceScatterv:
        *value = "3";
        return "coll_tuned_reduce_scatter_algorithm";
    case zipcclOpReduce: /* it has none, but a pipeline; its own choice is the slowest here */
        *value = "3";
        return "coll_tuned_reduce_algorithm";
    default:
        return NULL;
    }
}

static void list_sizes(struct run *run, const struct ranks_plan *plan, const struct ranks_result *zipccl) {
    size_t used = 0;
    for (size_t i = 0; i < plan->nsizes && used < sizeof run->sizes; i++)
        used += (size_t)snprintf(run->sizes + used, sizeof run->sizes - used, "%s%llu:%u", i ? "," : "",
                                 (unsigned long long)plan->sizes[i], zipccl[i].rounds);
    used = 0;
    for (unsigned i = 0; i < plan->nodes && used < sizeof run->hosts; i++)
        used += (size_t)snprintf(run->hosts + used, sizeof run->hosts - used, "%s%s.%u:%u", i ? "," : "", run->subnet,
                                 i + 1, plan->per_node);
}

/* --mca name value */
static size_t mca(char **argv, size_t n, const char *name, const char *value) {
    argv[n++] = (char *)"--mca";
    argv[n++] = (char *)name;
    argv[n++] = (char *)value;
    return n;
}

static int run_mpi(struct run *run, const struct ranks_plan *plan, const char *rows_path, bool (*stop)(void)) {
    char *argv[MAX_ARGS];
    const char *value = NULL, *name = ring_of(plan->op, &value);
    size_t n = 0;
    (void)snprintf(run->number[0], sizeof run->number[0], "%u", plan->nodes);
    (void)snprintf(run->number[1], sizeof run->number[1], "%u", plan->per_node);
    (void)snprintf(run->number[2], sizeof run->number[2], "%u", plan->has_warmup ? plan->warmup : WARMUP);
    (void)snprintf(run->number[3], sizeof run->number[3], "%u", plan->nodes * plan->per_node);
    argv[n++] = (char *)"mpirun";
    argv[n++] = (char *)"-n";
    argv[n++] = run->number[3];
    argv[n++] = (char *)"--oversubscribe";
    argv[n++] = (char *)"--bind-to";
    argv[n++] = (char *)"none";
    n = mca(argv, n, "mpi_yield_when_idle", "1");
    n = mca(argv, n, "pml", "ob1");
    if (name) {
        n = mca(argv, n, "coll_tuned_use_dynamic_rules", "1");
        n = mca(argv, n, name, value);
        if (plan->op == zipcclOpReduce)
            n = mca(argv, n, "coll_tuned_reduce_algorithm_segmentsize", "65536");
    }
    if (run->namespaces) {
        n = mca(argv, n, "btl", "tcp,vader,self");
        n = mca(argv, n, "plm", "rsh");
        n = mca(argv, n, "plm_rsh_agent", run->agent);
        n = mca(argv, n, "btl_tcp_if_include", run->network);
        n = mca(argv, n, "oob_tcp_if_include", run->network);
        argv[n++] = (char *)"-H";
        argv[n++] = run->hosts;
    } else {
        n = mca(argv, n, "btl", plan->nodes > 1 ? "tcp,self" : "tcp,vader,self");
        n = mca(argv, n, "btl_tcp_if_include", "lo");
    }
    argv[n++] = run->helper;
    argv[n++] = (char *)op_name((unsigned)plan->op);
    argv[n++] = (char *)dtype_get(plan->dtype)->name;
    argv[n++] = run->number[0];
    argv[n++] = run->number[1];
    argv[n++] = (char *)(rows_path ? rows_path : "-");
    argv[n++] = run->number[2];
    argv[n++] = run->sizes;
    argv[n++] = run->meeting;
    argv[n++] = run->result;
    argv[n] = NULL;
    return await(start(argv, run->log), stop);
}

static bool read_results(const struct run *run, const struct ranks_plan *plan, const struct ranks_result *zipccl,
                         struct peer_mpi *peer) {
    char line[256];
    size_t n = 0;
    FILE *f = fopen(run->result, "re");
    if (!f)
        return false;
    while (n < plan->nsizes && fgets(line, sizeof line, f)) {
        struct peer_result *r = &peer->results[n];
        char *at = line;
        double *const numbers[] = {&r->p50_us, &r->p99_us, &r->least_us};
        for (size_t i = 0; i < 3; i++)
            *numbers[i] = strtod(at, &at);
        if (r->p50_us <= 0)
            break;
        r->rounds = zipccl[n++].rounds;
    }
    (void)fclose(f);
    return n == plan->nsizes;
}

static void log_tail(const struct run *run, char why[PEER_WHY], const char *what) {
    char text[PEER_WHY / 2];
    size_t got = 0;
    FILE *f = fopen(run->log, "re");
    if (f && fseek(f, -(long)(sizeof text - 1), SEEK_END) != 0)
        rewind(f);
    if (f) {
        got = fread(text, 1, sizeof text - 1, f);
        (void)fclose(f);
    }
    text[got] = 0;
    (void)snprintf(why, PEER_WHY, "%s%s%s", what, got ? ": " : "", text);
}

/* A ring's bytes out of a node are what the least that it must send says, but where each rank's whole buffer goes
 * round: then every rank of the node is on the way, and the bytes of one link are those of all but one part. */
static double between_nodes(const struct ranks_plan *plan, size_t size) {
    struct layout l = ranks_layout(plan, size);
    double n = l.nranks;
    switch (l.op) {
    case zipcclOpAllGather:
        return (double)l.bytes * (n - 1);
    case zipcclOpAllGatherv:
        return (double)layout_recv_bytes(&l, 0) * (n - 1) / n;
    case zipcclOpReduceScatter:
    case zipcclOpReduceScatterv:
        return (double)layout_send_bytes(&l, 0) * (n - 1) / n;
    case zipcclOpAllReduce:
        return 2 * (double)l.bytes * (n - 1) / n;
    default:
        return layout_must_send(&l);
    }
}

static void compute(const struct ranks_plan *plan, uint64_t rate, struct peer_mpi *peer) {
    for (size_t i = 0; rate && plan->nodes > 1 && peer->link == PEER_LOOPBACK && i < plan->nsizes; i++) {
        double link_us = between_nodes(plan, i) * 8e6 / (double)rate;
        peer->results[i].computed_us = link_us > peer->results[i].p50_us ? link_us : peer->results[i].p50_us;
    }
}

/* Namespaces, where they can be had. */
static void set_up_nodes(struct run *run, const struct ranks_plan *plan, uint64_t rate, struct peer_mpi *peer) {
    char nodes[24], bits[24];
    (void)snprintf(nodes, sizeof nodes, "%u", plan->nodes);
    (void)snprintf(bits, sizeof bits, "%.0f", (double)rate * MTU_BYTES / PAYLOAD);
    peer->link = plan->nodes > 1 ? PEER_LOOPBACK : PEER_ONE_NODE;
    if (plan->nodes < 2 || geteuid() != 0)
        return;
    if (script(set_up_script, run->prefix, nodes, run->subnet, bits, NULL) == 0) {
        run->namespaces = true;
        peer->link = rate ? PEER_SHAPED : PEER_NAMESPACES;
    } else {
        (void)script(tear_down_script, run->prefix, nodes, "", "", NULL);
    }
}

bool peer_mpi_can(zipcclOp_t op, zipcclDataType_t dtype) {
    return !op_reduces(op) || dtype == zipcclBfloat16 || dtype == zipcclFloat32 || dtype == zipcclFloat64 ||
           dtype == zipcclInt32 || dtype == zipcclInt64 || dtype == zipcclUint8;
}

bool peer_mpi_run(const struct ranks_plan *plan, const struct ranks_result *zipccl, const char *rows_path,
                  uint64_t link_rate_bits, bool (*stop)(void), struct peer_mpi *peer, char why[PEER_WHY]) {
    struct run *run = calloc(1, sizeof *run);
    const char *value = NULL, *name = ring_of(plan->op, &value);
    char nodes[24];
    bool ok = false;
    memset(peer, 0, sizeof *peer);
    peer->results = calloc(plan->nsizes, sizeof *peer->results);
    if (!run || !peer->results) {
        (void)snprintf(why, PEER_WHY, "out of memory");
    } else if (!find_helper(run)) {
        (void)snprintf(why, PEER_WHY,
                       "no zipcclctl-mpi beside zipcclctl: install openmpi-bin and libopenmpi-dev, and build again");
    } else if (make_place(run, why)) {
        list_sizes(run, plan, zipccl);
        set_up_nodes(run, plan, link_rate_bits, peer);
        int rc = run_mpi(run, plan, rows_path, stop);
        ok = rc == 0 && read_results(run, plan, zipccl, peer);
        if (!ok)
            log_tail(run, why, rc == 127 ? "cannot run mpirun: install openmpi-bin" : "OpenMPI failed");
        if (run->namespaces) {
            (void)snprintf(nodes, sizeof nodes, "%u", plan->nodes);
            (void)script(tear_down_script, run->prefix, nodes, "", "", NULL);
        }
        remove_place(run);
        compute(plan, link_rate_bits, peer);
        (void)snprintf(peer->algorithm, sizeof peer->algorithm, "%s%s%s", name ? name : "its own choice",
                       name ? " " : "", name ? value : "");
    }
    free(run);
    return ok;
}

void peer_mpi_free(struct peer_mpi *peer) {
    free(peer->results);
    peer->results = NULL;
}

const char *peer_mpi_method(const struct peer_mpi *peer) {
    switch (peer->link) {
    case PEER_SHAPED:
        return "each node a network namespace, shared memory inside, TCP between, shaped by tbf to the same payload a "
               "second";
    case PEER_NAMESPACES:
        return "each node a network namespace, shared memory inside, TCP between";
    case PEER_LOOPBACK:
        return "TCP over loopback between all ranks, not capped (as root: nodes in namespaces, shaped)";
    default:
        return "shared memory";
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * zipcclctl doctor on systems that are made up: files below a root, messages of a daemon.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/ctl/doctor.h"

static char root[64];

/* A file below the root, with its directories. */
static void put(const char *path, const char *text) {
    char full[256];
    (void)snprintf(full, sizeof full, "%s%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        (void)mkdir(full, 0755);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    (void)fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static const struct doctor_line *line_of(const struct doctor *d, const char *check) {
    for (size_t i = 0; i < d->n; i++)
        if (!strcmp(d->lines[i].check, check))
            return &d->lines[i];
    return NULL;
}

static void expect(const struct doctor *d, const char *check, enum doctor_level level, const char *says) {
    const struct doctor_line *line = line_of(d, check);
    if (!line || line->level != level || !strstr(line->text, says) || (level == DOCTOR_OK) != !*line->remedy)
        fail_msg("%s: %s %s", check, line ? doctor_level_name(line->level) : "no line", line ? line->text : "");
}

static int make_root(void **state) {
    (void)state;
    (void)snprintf(root, sizeof root, "/tmp/zipccl-doctor-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int drop_root(void **state) {
    char command[128];
    (void)state;
    (void)snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}

static void bad_system(void **state) {
    static struct doctor d;
    (void)state;
    put("/proc/7/limits", "Limit                     Soft Limit           Hard Limit           Units\n"
                          "Max open files            1024                 4096                 files\n"
                          "Max locked memory         65536                65536                bytes\n");
    put("/proc/self/uid_map", "         0     100000      65536\n");
    put("/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n");
    put("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
    put("/sys/devices/system/node/node0/x", "");
    put("/sys/devices/system/node/node1/x", "");
    put("/proc/sys/kernel/numa_balancing", "1\n");
    put("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
    put("/etc/systemd/logind.conf", "[Login]\n#RemoveIPC=yes\n");
    d = (struct doctor){.root = root, .connected = true, .pid = 7, .uid = 1000};
    doctor_run(&d, doctor_system_checks);
    expect(&d, "memlock", DOCTOR_WARN, "64 KiB");
    expect(&d, "open files", DOCTOR_WARN, "1024");
    expect(&d, "/dev/shm", DOCTOR_FAIL, "there is none");
    expect(&d, "user namespace", DOCTOR_WARN, "100000");
    expect(&d, "clock", DOCTOR_WARN, "hpet");
    expect(&d, "huge pages", DOCTOR_WARN, "off");
    expect(&d, "numa", DOCTOR_WARN, "2 nodes");
    expect(&d, "governor", DOCTOR_WARN, "powersave");
    expect(&d, "RemoveIPC", DOCTOR_WARN, "uid 1000");
    assert_int_equal(doctor_worst(&d), DOCTOR_FAIL);
    /* A daemon that this PID namespace does not show. */
    Zipccl__Status gpus = ZIPCCL__STATUS__INIT;
    gpus.device = (char *)(uintptr_t) "cuda: 1 GPU";
    put("/proc/self/mounts", "proc /proc proc rw,nosuid,hidepid=invisible 0 0\n");
    d = (struct doctor){.root = root, .connected = true, .status = &gpus, .uid = 999};
    doctor_run(&d, doctor_system_checks);
    expect(&d, "namespaces", DOCTOR_WARN, "this shell: pid");
    expect(&d, "/proc", DOCTOR_WARN, "uid 999");
    /* Host memory needs neither. */
    gpus.device = (char *)(uintptr_t) "host: 2 workers";
    d.n = 0;
    doctor_run(&d, doctor_system_checks);
    expect(&d, "namespaces", DOCTOR_OK, "this shell: pid");
    expect(&d, "/proc", DOCTOR_OK, "hidepid");
}

static void good_system(void **state) {
    static struct doctor d;
    (void)state;
    put("/proc/7/limits", "Max open files            65536                65536                files\n"
                          "Max locked memory         unlimited            unlimited            bytes\n");
    put("/proc/self/uid_map", "         0          0 4294967295\n");
    put("/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n");
    put("/proc/sys/kernel/numa_balancing", "0\n");
    put("/proc/self/mounts", "proc /proc proc rw,nosuid 0 0\n");
    put("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
    put("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n");
    put("/etc/systemd/logind.conf", "[Login]\nRemoveIPC=no\n");
    d = (struct doctor){.root = root, .connected = true, .pid = 7, .uid = 1000};
    doctor_run(&d, doctor_system_checks);
    expect(&d, "memlock", DOCTOR_OK, "not limited");
    expect(&d, "open files", DOCTOR_OK, "65536");
    expect(&d, "user namespace", DOCTOR_OK, "not mapped");
    expect(&d, "namespaces", DOCTOR_OK, "");
    expect(&d, "/proc", DOCTOR_OK, "no hidepid");
    expect(&d, "clock", DOCTOR_OK, "tsc");
    expect(&d, "numa", DOCTOR_OK, "2 nodes");
    expect(&d, "huge pages", DOCTOR_OK, "madvise");
    expect(&d, "governor", DOCTOR_OK, "performance");
    expect(&d, "RemoveIPC", DOCTOR_OK, "off");
}

static Zipccl__ConfigKey keys[4], *pkeys[] = {&keys[0], &keys[1], &keys[2], &keys[3]};
static Zipccl__ConfigReply config = ZIPCCL__CONFIG_REPLY__INIT;
static Zipccl__Status status = ZIPCCL__STATUS__INIT;

static void network_of(struct doctor *d, const char *tls, const char *devices, uint64_t rate, const char *listen) {
    const char *const pairs[4][2] = {
        {"ucx_tls", tls}, {"ucx_net_devices", devices}, {"advertise", ""}, {"fabric", "ucx"}};
    for (size_t i = 0; i < 4; i++) {
        zipccl__config_key__init(&keys[i]);
        keys[i].name = (char *)(uintptr_t)pairs[i][0];
        keys[i].value = (char *)(uintptr_t)pairs[i][1];
    }
    config.keys = pkeys;
    config.n_keys = 4;
    status.link_rate_bits = rate;
    status.listen = (char *)(uintptr_t)listen;
    *d = (struct doctor){.root = root, .connected = true, .config = &config, .status = &status};
    doctor_run(d, doctor_network_checks);
}

static void network(void **state) {
    static struct doctor d;
    (void)state;
    put("/sys/class/net/lo/speed", "1\n");
    put("/sys/class/net/eth0/speed", "10000\n");
    put("/sys/class/net/eth0/operstate", "up\n");
    put("/sys/class/net/eth1/operstate", "down\n");
    put("/sys/class/net/eth1/speed", "-1\n");
    network_of(&d, "tcp", "eth0", 0, "10.0.0.1:18515");
    expect(&d, "transports", DOCTOR_OK, "tcp");
    expect(&d, "net devices", DOCTOR_OK, "eth0");
    expect(&d, "link rate", DOCTOR_OK, "10 Gbit/s");
    expect(&d, "listen", DOCTOR_OK, "10.0.0.1");
    expect(&d, "peers", DOCTOR_OK, "0");
    network_of(&d, "rc,tcp", "eth7", 40000000000ull, "127.0.0.1:18515");
    expect(&d, "transports", DOCTOR_FAIL, "no InfiniBand");
    expect(&d, "net devices", DOCTOR_FAIL, "eth7");
    expect(&d, "listen", DOCTOR_WARN, "127.0.0.1");
    network_of(&d, "", "eth1", 0, "0.0.0.0:18515");
    expect(&d, "net devices", DOCTOR_FAIL, "eth1 is down");
    expect(&d, "listen", DOCTOR_WARN, "all networks");
    network_of(&d, "tcp", "", 40000000000ull, "10.0.0.1:18515");
    expect(&d, "link rate", DOCTOR_WARN, "never reached");
    network_of(&d, "tcp", "", 40000000ull, "10.0.0.1:18515");
    expect(&d, "link rate", DOCTOR_WARN, "Mbit");
    put("/sys/class/infiniband/mlx5_0/x", "");
    network_of(&d, "tcp", "mlx5_0:1", 0, "10.0.0.1:18515");
    expect(&d, "transports", DOCTOR_WARN, "does not use it");
    expect(&d, "net devices", DOCTOR_OK, "mlx5_0:1");
    network_of(&d, "rc_x,tcp", "", 0, "10.0.0.1:18515");
    expect(&d, "transports", DOCTOR_OK, "rc_x");
}

static void gpus(void **state) {
    static struct doctor d = {.root = root};
    (void)state;
    doctor_run(&d, doctor_gpu_checks);
    expect(&d, "gpu driver", DOCTOR_OK, "host memory");
    put("/proc/driver/nvidia/gpus/0000:01:00.0/information", "");
    put("/dev/nvidiactl", "");
    d.n = 0;
    (void)unsetenv("CUDA_MPS_PIPE_DIRECTORY");
    (void)setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", 1);
    (void)unsetenv("PYTORCH_ALLOC_CONF");
    (void)setenv("CUDA_VISIBLE_DEVICES", "MIG-1", 1);
    doctor_run(&d, doctor_gpu_checks);
    expect(&d, "gpu driver", DOCTOR_FAIL, "no libcuda");
    expect(&d, "gpu devices", DOCTOR_FAIL, "nvidia-uvm");
    expect(&d, "mps", DOCTOR_WARN, "take turns");
    expect(&d, "allocator", DOCTOR_WARN, "expandable");
    expect(&d, "mig", DOCTOR_WARN, "MIG");
    assert_null(line_of(&d, "gpus served")); /* not known without a daemon */
    (void)setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync", 1);
    zipccl__status__init(&status);
    status.device = (char *)(uintptr_t) "host: 2 workers";
    d = (struct doctor){.root = root, .connected = true, .status = &status};
    doctor_run(&d, doctor_gpu_checks);
    expect(&d, "allocator", DOCTOR_WARN, "cudaMallocAsync");
    expect(&d, "gpus served", DOCTOR_WARN, "1 GPUs");
    status.device = (char *)(uintptr_t) "cuda: 1 GPU";
    d.n = 0;
    doctor_run(&d, doctor_gpu_checks);
    expect(&d, "gpus served", DOCTOR_OK, "cuda: 1 GPU");
    status.device = (char *)(uintptr_t) "cuda: 1 of 2 GPUs failed: GPU 1 at all-gather #3";
    d.n = 0;
    doctor_run(&d, doctor_gpu_checks);
    expect(&d, "gpus served", DOCTOR_FAIL, "GPU 1 at");
    status.device = (char *)(uintptr_t) "host: 2 workers";
    d.config = &config;
    d.n = 0;
    zipccl__config_reply__init(&config);
    zipccl__config_key__init(&keys[0]);
    keys[0].name = (char *)(uintptr_t) "device";
    keys[0].value = (char *)(uintptr_t) "host";
    config.keys = pkeys;
    config.n_keys = 1;
    doctor_run(&d, doctor_gpu_checks);
    expect(&d, "gpus served", DOCTOR_OK, "device = host");
}

static void no_daemon(void **state) {
    static struct doctor d = {.root = root, .socket = "/nonexistent/s", .why = "not reachable"};
    (void)state;
    doctor_run(&d, doctor_daemon_checks);
    expect(&d, "socket", DOCTOR_FAIL, "/nonexistent/s");
    expect(&d, "daemon", DOCTOR_FAIL, "not reachable");
    d.n = 0;
    for (unsigned i = 0; i < 2 * DOCTOR_MAX_LINES; i++)
        doctor_add(&d, "x", DOCTOR_OK, NULL, "%u", i);
    assert_int_equal(d.n, DOCTOR_MAX_LINES);
    /* Another release. */
    d = (struct doctor){.root = root, .socket = root, .connected = true, .version = 200, .own_version = 100};
    doctor_run(&d, doctor_daemon_checks);
    expect(&d, "version", DOCTOR_WARN, "0.2.0");
    expect(&d, "socket", DOCTOR_FAIL, "no socket");
}

static void refused_peers(void **state) {
    static struct doctor d;
    (void)state;
    Zipccl__Counter counter = ZIPCCL__COUNTER__INIT, *counters = &counter;
    Zipccl__Status said = ZIPCCL__STATUS__INIT;
    counter.name = (char *)(uintptr_t) "peers_refused";
    said.node = said.state = (char *)(uintptr_t) "running";
    said.counters = &counters;
    said.n_counters = 1;
    d = (struct doctor){.root = root, .socket = root, .connected = true, .status = &said};
    doctor_run(&d, doctor_daemon_checks);
    expect(&d, "refused peers", DOCTOR_OK, "none");
    d.n = 0;
    counter.value = 17;
    doctor_run(&d, doctor_daemon_checks);
    expect(&d, "refused peers", DOCTOR_WARN, "17");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_system), cmocka_unit_test(good_system), cmocka_unit_test(network),
        cmocka_unit_test(gpus),       cmocka_unit_test(no_daemon),   cmocka_unit_test(refused_peers),
    };
    return cmocka_run_group_tests(tests, make_root, drop_root);
}

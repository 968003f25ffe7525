/* SPDX-License-Identifier: Apache-2.0
 *
 * doctor: limits, shared memory, namespaces, clock, pages, NUMA, governor.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "client/ctl/doctor.h"
#include "client/ctl/units.h"

#define LOCKED_LEAST (64u << 20)
#define SHM_LEAST    (256u << 20) /* containers get 64 MiB where nobody asks */
#define FILES_SPARE  512u         /* beside one for each session */
#define USERS_FROM   1000u        /* uids of people */

static void check_memlock(struct doctor *d) {
    uint64_t limit = 0;
    char text[UNITS_TEXT];
    if (!doctor_limit(d, "Max locked memory", &limit))
        doctor_add(d, "memlock", DOCTOR_WARN, "mount /proc", "the limit of locked memory cannot be read");
    else if (limit < LOCKED_LEAST)
        doctor_add(d, "memlock", DOCTOR_WARN,
                   "LimitMEMLOCK=infinity in the unit, ulimit -l unlimited in a shell, --ulimit memlock=-1 for a "
                   "container",
                   "%s may be locked: InfiniBand and RoCE register buffers, which locks them",
                   units_bytes(text, limit));
    else if (limit == UINT64_MAX)
        doctor_add(d, "memlock", DOCTOR_OK, NULL, "locked memory is not limited");
    else
        doctor_add(d, "memlock", DOCTOR_OK, NULL, "%s may be locked", units_bytes(text, limit));
}

static void check_files(struct doctor *d) {
    uint64_t limit = 0, sessions = strtoull(doctor_config(d, "max_sessions"), NULL, 10);
    uint64_t need = (sessions ? sessions : 1024) + FILES_SPARE;
    if (!doctor_limit(d, "Max open files", &limit))
        return;
    if (limit < need)
        doctor_add(d, "open files", DOCTOR_WARN, "LimitNOFILE=65536 in the unit, or a smaller max_sessions",
                   "%llu files may be open, max_sessions and the rest want %llu", (unsigned long long)limit,
                   (unsigned long long)need);
    else
        doctor_add(d, "open files", DOCTOR_OK, NULL, "%llu files may be open", (unsigned long long)limit);
}

static void check_shm(struct doctor *d) {
    char path[256], size[UNITS_TEXT], left[UNITS_TEXT];
    struct statvfs v;
    struct stat st;
    (void)snprintf(path, sizeof path, "%s/dev/shm", d->root);
    if (stat(path, &st) != 0 || statvfs(path, &v) != 0) {
        doctor_add(d, "/dev/shm", DOCTOR_FAIL, "mount -t tmpfs -o mode=1777 tmpfs /dev/shm",
                   "there is none: NCCL and UCX put shared memory there");
        return;
    }
    uint64_t all = (uint64_t)v.f_blocks * v.f_frsize, free_bytes = (uint64_t)v.f_bavail * v.f_frsize;
    units_bytes(size, all);
    units_bytes(left, free_bytes);
    if ((st.st_mode & 07777) != 01777)
        doctor_add(d, "/dev/shm", DOCTOR_WARN, "chmod 1777 /dev/shm", "its mode is %04o, not 1777",
                   (unsigned)(st.st_mode & 07777));
    if (all < SHM_LEAST)
        doctor_add(d, "/dev/shm", DOCTOR_WARN, "--shm-size=8g or --ipc=host for a container; mount -o remount,size=50%",
                   "it holds %s: too little for NCCL and UCX beside zipccl", size);
    else if (free_bytes < all / 10)
        doctor_add(d, "/dev/shm", DOCTOR_WARN, "look for what dead programs left: ls -l /dev/shm", "%s of %s are left",
                   left, size);
    else
        doctor_add(d, "/dev/shm", DOCTOR_OK, NULL, "%s, %s are free", size, left);
}

/* Whether this process and the daemon are in the same namespace; unknown counts as the same. */
static bool same_namespace(const struct doctor *d, const char *name) {
    char path[256], own[64], other[64];
    (void)snprintf(path, sizeof path, "%s/proc/self/ns/%s", d->root, name);
    ssize_t n = readlink(path, own, sizeof own - 1);
    (void)snprintf(path, sizeof path, "%s/proc/%d/ns/%s", d->root, (int)d->pid, name);
    ssize_t m = readlink(path, other, sizeof other - 1);
    return n <= 0 || m <= 0 || (n == m && !memcmp(own, other, (size_t)n));
}

/* Memory of the host goes by descriptors through the socket, whatever the namespaces; that of GPUs needs two in common.
 * Mounts and networks of their own do no harm: units and containers have them. */
static void check_namespaces(struct doctor *d) {
    char map[128];
    bool gpus = d->status && !strncmp(d->status->device, "cuda", 4);
    if (!d->connected)
        return;
    bool pid = d->pid && same_namespace(d, "pid"), ipc = !d->pid || same_namespace(d, "ipc");
    if (gpus && (!pid || !ipc))
        doctor_add(d, "namespaces", DOCTOR_WARN,
                   "--ipc=host --pid=host for the container; gpu.conf for the unit (PrivateIPC=no)",
                   "GPU memory cannot be shared: the daemon has other namespaces than this shell:%s%s",
                   ipc ? "" : " ipc", pid ? "" : " pid");
    else if (gpus)
        doctor_add(d, "namespaces", DOCTOR_OK, NULL, "the daemon's ipc and pid are those of this shell");
    else
        doctor_add(d, "namespaces", DOCTOR_OK, NULL, "no matter for buffers in host memory%s%s%s",
                   pid && ipc ? "" : "; the daemon has others than this shell:", ipc ? "" : " ipc", pid ? "" : " pid");
    unsigned long long inside, outside, count;
    if (doctor_read(d, map, sizeof map, "/proc/self/uid_map") &&
        sscanf(map, "%llu %llu %llu", &inside, &outside, &count) == 3 &&
        (inside != 0 || outside != 0 || count != 4294967295ull))
        doctor_add(d, "user namespace", DOCTOR_WARN,
                   "run trainers and daemon in the same user namespace; socket_group must exist in both",
                   "users are mapped here: the daemon sees uid %llu as %llu", inside, outside);
    else
        doctor_add(d, "user namespace", DOCTOR_OK, NULL, "users are not mapped");
}

/* With hidepid the daemon's user does not see the processes of others, by whose start it tells memory of a process
 * from that of a later one with the same number. */
static void check_proc(struct doctor *d) {
    char path[256], line[512];
    bool hides = false;
    (void)snprintf(path, sizeof path, "%s/proc/self/mounts", d->root);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        hides = hides || (strstr(line, " /proc proc ") && strstr(line, "hidepid=") && !strstr(line, "hidepid=0"));
    if (f)
        (void)fclose(f);
    if (hides && d->status && !strncmp(d->status->device, "cuda", 4) && d->uid != 0)
        doctor_add(
            d, "/proc", DOCTOR_WARN, "hidepid=0, or gid=GROUP at the mount of /proc and SupplementaryGroups=GROUP",
            "it is mounted with hidepid: zipccld (uid %u) does not see the trainers' processes, which sharing GPU "
            "memory needs",
            (unsigned)d->uid);
    else
        doctor_add(d, "/proc", DOCTOR_OK, NULL, "%s", hides ? "hidepid is set, which does no harm here" : "no hidepid");
}

static void check_clock(struct doctor *d) {
    char source[64];
    if (!doctor_read(d, source, sizeof source, "/sys/devices/system/clocksource/clocksource0/current_clocksource"))
        return;
    if (!strcmp(source, "hpet") || !strcmp(source, "acpi_pm") || !strcmp(source, "jiffies"))
        doctor_add(d, "clock", DOCTOR_WARN, "look in dmesg why tsc is not used; tsc=reliable where that is sound",
                   "the clock is %s: each look at it is a system call or slower", source);
    else
        doctor_add(d, "clock", DOCTOR_OK, NULL, "%s", source);
}

static void check_huge_pages(struct doctor *d) {
    char text[128];
    if (!doctor_read(d, text, sizeof text, "/sys/kernel/mm/transparent_hugepage/enabled"))
        return;
    if (strstr(text, "[never]"))
        doctor_add(d, "huge pages", DOCTOR_WARN, "echo madvise >/sys/kernel/mm/transparent_hugepage/enabled",
                   "transparent huge pages are off: large buffers miss the TLB often");
    else
        doctor_add(d, "huge pages", DOCTOR_OK, NULL, "transparent huge pages: %s", text);
}

static void check_numa(struct doctor *d) {
    unsigned nodes = 0;
    char balancing[16] = "0";
    while (nodes < 1024 && doctor_exists(d, "/sys/devices/system/node/node%u", nodes))
        nodes++;
    (void)doctor_read(d, balancing, sizeof balancing, "/proc/sys/kernel/numa_balancing");
    if (nodes > 1 && strcmp(balancing, "0") != 0)
        doctor_add(d, "numa", DOCTOR_WARN, "sysctl kernel.numa_balancing=0",
                   "%u nodes, and the kernel moves pages between them while they are sent", nodes);
    else
        doctor_add(d, "numa", DOCTOR_OK, NULL, "%u node%s", nodes ? nodes : 1, nodes > 1 ? "s" : "");
}

static void check_governor(struct doctor *d) {
    char governor[64], driver[64] = "";
    if (!doctor_read(d, governor, sizeof governor, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")) {
        doctor_add(d, "governor", DOCTOR_OK, NULL, "the processor's clock is not set by this kernel");
        return;
    }
    (void)doctor_read(d, driver, sizeof driver, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver");
    if (!strcmp(governor, "powersave") || !strcmp(governor, "conservative"))
        doctor_add(d, "governor", DOCTOR_WARN, "cpupower frequency-set -g performance",
                   "%s (%s): the codec waits for the clock to rise", governor, driver);
    else
        doctor_add(d, "governor", DOCTOR_OK, NULL, "%s", governor);
}

/* logind removes what a user has in /dev/shm when the last session ends, NCCL's files too. */
static void check_remove_ipc(struct doctor *d) {
    char path[256], line[256];
    bool kept = false;
    if (!d->connected || d->uid < USERS_FROM || !doctor_exists(d, "/etc/systemd/logind.conf"))
        return;
    (void)snprintf(path, sizeof path, "%s/etc/systemd/logind.conf", d->root);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        kept = kept || !strncmp(line, "RemoveIPC=no", 12);
    if (f)
        (void)fclose(f);
    if (kept)
        doctor_add(d, "RemoveIPC", DOCTOR_OK, NULL, "off");
    else
        doctor_add(d, "RemoveIPC", DOCTOR_WARN, "run zipccld as a system user, or RemoveIPC=no in logind.conf",
                   "the daemon runs as uid %u: logind removes shared memory of people who log out", (unsigned)d->uid);
}

const struct doctor_check doctor_system_checks[] = {
    {"memlock", check_memlock, "how much memory may be locked, as InfiniBand needs"},
    {"open files", check_files, "whether max_sessions fit"},
    {"/dev/shm", check_shm, "size, room and mode"},
    {"namespaces", check_namespaces, "whether GPU memory can be shared with this shell, or container; mapped users"},
    {"/proc", check_proc, "whether the daemon sees the trainers' processes"},
    {"clock", check_clock, "the kernel's clock source"},
    {"huge pages", check_huge_pages, "whether large buffers get large pages"},
    {"numa", check_numa, "nodes, and whether pages wander between them"},
    {"governor", check_governor, "whether the processor's clock is held down"},
    {"RemoveIPC", check_remove_ipc, "whether logind removes shared memory of the daemon's user"},
    {NULL, NULL, NULL},
};

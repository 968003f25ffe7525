/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of configuration keys, and what is printed from it.
 */
#include <string.h>

#include "daemon/core/config.h"
#include "daemon/core/log.h"
#include "daemon/core/units.h"
#include "daemon/flow/flow.h"
#include "proto/spin.h"

#define FIELD(name) offsetof(struct config, name), sizeof(((struct config *)0)->name)
#define SECONDS     1000ull
#define DAY         (86400ull * SECONDS)

static const char *const config_devices[] = {"auto", "host", "cuda", NULL};
static const char *const config_fabrics[] = {"auto", "ucx", "nccl", "none", NULL};
static const char *const config_auths[] = {"auto", "key", "none", NULL};
static const char *const config_codecs[] = {"auto", "raw", "top7", "tier", NULL};
static const char *const config_arms[] = {"auto", "hierarchical", "flat", "ring", NULL};
static const char *const config_phases[] = {"stream", "two", "sizes", NULL};

static const char *const config_priorities[] = {"high", "normal", "low", NULL};

/* name, type, default, min, max, allowed, field, reload, doc */
const struct config_key config_keys[] = {
    {"node_name", CONFIG_STRING, "", 0, 0, NULL, FIELD(node_name), false,
     "Name of this node in errors, logs and status. Empty: the host's name."},
    {"socket", CONFIG_STRING, "/run/zipccl/zipccld.sock", 1, 0, NULL, FIELD(socket), false,
     "Unix socket where clients connect. A lock file of the same name with .lock lies beside it."},
    {"socket_mode", CONFIG_MODE, "0660", 0, 0777, NULL, FIELD(socket_mode), false, "Mode of the socket, octal."},
    {"socket_group", CONFIG_STRING, "", 0, 0, NULL, FIELD(socket_group), false,
     "Group that owns the socket. Empty: the daemon's own group."},
    {"admin_socket", CONFIG_STRING, "", 0, 0, NULL, FIELD(admin_socket), false,
     "Unix socket for administration alone: status and commands, for root and the daemon's user, mode 0600.\n"
     "Empty: none, unless systemd passes one."},
    {"listen", CONFIG_HOSTPORT, "0.0.0.0:18515", 1, 0, NULL, FIELD(listen), false,
     "host:port where other daemons connect. host may be the name of an interface: its first address. Port 0: any\n"
     "free one, see zipcclctl status."},
    {"advertise", CONFIG_STRING, "", 0, 0, NULL, FIELD(advertise), false,
     "host or host:port that other daemons dial. Empty: listen's host, or the primary address where that is a\n"
     "wildcard, with listen's port."},
    {"peer_key_file", CONFIG_STRING, "", 0, 0, NULL, FIELD(peer_key_file), false,
     "File with the key that all daemons of the cluster share (zipccld --new-key prints one), which nobody but its\n"
     "owner, the daemon's user or root, may read. Links between daemons are authenticated and encrypted by it; the\n"
     "data that travels over the fabric is not encrypted. Empty: none, see peer_auth."},
    {"peer_auth", CONFIG_CHOICE, "auto", 0, 0, config_auths, FIELD(peer_auth), false,
     "Which daemons this one talks to. key: those that hold the key of peer_key_file. none: all that reach it. auto:\n"
     "key where there is a peer_key_file, else those of this machine alone."},
    {"user", CONFIG_STRING, "", 0, 0, NULL, FIELD(user), false,
     "User that a daemon which root started becomes, with that user's groups and without any capability, before it\n"
     "opens its sockets; their folders must be that user's. Empty: it stays who it is."},
    {"group", CONFIG_STRING, "", 0, 0, NULL, FIELD(group), false, "Group that goes with user. Empty: the user's own."},
    {"state_directory", CONFIG_STRING, "", 0, 0, NULL, FIELD(state_directory), false,
     "Folder where the daemon keeps what its communicators learned of their nodes: which codec and arm was the "
     "fastest\n"
     "of each kind of operations. The next communicator of the same nodes begins with it. Empty: systemd's state\n"
     "directory, and without one nothing is kept."},
    {"metrics_listen", CONFIG_HOSTPORT, "127.0.0.1:9464", 0, 0, NULL, FIELD(metrics_listen), false,
     "host:port where Prometheus reads metrics, at /metrics. Whoever reaches it reads the names of all jobs. Where "
     "the\n"
     "port is taken, the daemon says so and runs without. Port 0: any free one, named in the log. Empty: no metrics."},
    {"device", CONFIG_CHOICE, "auto", 0, 0, config_devices, FIELD(device), false,
     "Where buffers live and codecs run. auto: on the node's GPUs, where it has some and CUDA's runtime, else on the\n"
     "host. cuda: the same, but the daemon does not start without a GPU. Host memory is served in any case."},
    {"workers", CONFIG_UINT, "0", 0, 1024, NULL, FIELD(workers), false,
     "Worker threads of the host device. 0: chosen from the processors."},
    {"gpu_sms", CONFIG_UINT, "0", 0, 1024, NULL, FIELD(gpu_sms), false,
     "Multiprocessors of a GPU that a kernel of the daemon may take, so that the trainers' kernels have the rest. 0: "
     "all."},
    {"gpu_pool", CONFIG_SIZE, "1GiB", 0, 1ull << 40, NULL, FIELD(gpu_pool), false,
     "The most memory of each GPU that the daemon takes for coded chunks and partial results that NCCL carries. It is\n"
     "taken as it is needed, and given back when no communicator is left. What finds no room lies in pinned host\n"
     "memory, which is slower. 0: all of it does."},
    {"worker_timeout", CONFIG_DURATION, "10s", 100, DAY, NULL, FIELD(worker_timeout), false,
     "How long the worker process of a GPU may be in one piece of work before it is ended, with the GPU's jobs, and\n"
     "started again. Less than the unit's WatchdogSec."},
    {"busy_poll", CONFIG_UINT, "50", 0, SPIN_MAX_US, NULL, FIELD(busy_poll), true,
     "Microseconds for which the daemon looks for the next request before it sleeps. Only while requests follow each\n"
     "other about as fast, and others want the processor little: an idle daemon uses none. 0: it sleeps at once."},
    {"fabric", CONFIG_CHOICE, "auto", 0, 0, config_fabrics, FIELD(fabric), false,
     "How data travels between nodes, the same on all of them. nccl: values in GPU memory by NCCL, all else by UCX.\n"
     "auto: nccl where the device is a GPU and the library is found, else ucx. none: this daemon serves communicators\n"
     "of one node alone."},
    {"nccl_native", CONFIG_BOOL, "on", 0, 0, NULL, FIELD(nccl_native), false,
     "Where fabric is nccl and every rank has a GPU of its own, raw all-gathers and broadcasts, and reductions with "
     "the\n"
     "arm ring, go as NCCL's own collectives. Off on one node, or verify on: not in communicators with that node."},
    {"nccl_split", CONFIG_BOOL, "on", 0, 0, NULL, FIELD(nccl_split), false,
     "Where fabric is nccl and every rank has a GPU of its own, what zipcclCommSplit makes is made by ncclCommSplit\n"
     "for NCCL too (2.18.1). Off on one node: not of communicators with that node."},
    {"ucx_tls", CONFIG_STRING, "", 0, 0, NULL, FIELD(ucx_tls), false, "UCX_TLS. Empty: UCX chooses."},
    {"ucx_net_devices", CONFIG_STRING, "", 0, 0, NULL, FIELD(ucx_net_devices), false,
     "UCX_NET_DEVICES. Empty: all devices."},
    {"link_rate", CONFIG_RATE, "0", 0, 100000000000000ull, NULL, FIELD(link_rate), true,
     "Greatest rate at which this node sends to all others together: 1gbit, 100mbit, 10Gbit/s. 0: not capped.\n"
     "Where it is set, 8 kbit/s or more."},
    {"codec", CONFIG_CHOICE, "auto", 0, 0, config_codecs, FIELD(codec), false,
     "Codec of operations whose ranks pin none. auto: coded where that is faster on the link, else raw. The value of\n"
     "the node that made the unique id counts for all nodes of a communicator."},
    {"arm", CONFIG_CHOICE, "auto", 0, 0, config_arms, FIELD(arm), false,
     "How operations that reduce move their data, where the ranks pin no arm. auto: what is fastest of hierarchical "
     "and\nflat, which give the same bits; ring gives others, in NCCL's manner. flat is taken where it can be, else\n"
     "hierarchical. The value of the node that made the unique id counts."},
    {"all_to_all_phases", CONFIG_CHOICE, "stream", 0, 0, config_phases, FIELD(all_to_all_phases), false,
     "How coded chunks of all-to-all, gather, scatter, send and receive travel. stream: one message a chunk. "
     "two:\n"
     "parts of known size first, the rest behind them. sizes: nothing before all sizes are known; for\n"
     "comparison. The value of the node that made the unique id counts."},
    {"chunk_bytes", CONFIG_SIZE, "4MiB", 64u << 10, 64u << 20, NULL, FIELD(chunk_bytes), false,
     "Greatest piece that is coded and sent alone. The least of all nodes counts."},
    {"window", CONFIG_UINT, "4", 1, 64, NULL, FIELD(window), false, "Chunks under way per peer and direction."},
    {"verify", CONFIG_BOOL, "off", 0, 0, NULL, FIELD(verify), false,
     "Hash every message that this node sends; the receiver checks it before it decodes."},
    {"join_timeout", CONFIG_DURATION, "60s", 100, DAY, NULL, FIELD(join_timeout), true,
     "How long a communicator waits for its ranks to join."},
    {"op_timeout", CONFIG_DURATION, "0", 0, DAY, NULL, FIELD(op_timeout), true,
     "How long an operation may take from its first local call to its end before the communicator fails. 0: for ever."},
    {"peer_timeout", CONFIG_DURATION, "5s", 500, DAY, NULL, FIELD(peer_timeout), true,
     "How long another daemon may be silent, or take to answer a first connection, before it counts as gone."},
    {"drain_timeout", CONFIG_DURATION, "10s", 0, DAY, NULL, FIELD(drain_timeout), true,
     "How long running operations may take to end after SIGTERM."},
    {"log_level", CONFIG_CHOICE, "info", 0, 0, log_level_names, FIELD(log_level), true, "What is logged."},
    {"job_weight", CONFIG_UINT, "1", 1, FLOW_MAX_WEIGHT, NULL, FIELD(job_weight), true,
     "Share of a job that begins: jobs that wait for the link, or for workers, get it in the ratio of their weights.\n"
     "zipcclctl job changes one that runs. On the link it takes effect where that has a rate."},
    {"job_priority", CONFIG_CHOICE, "normal", 0, 0, config_priorities, FIELD(job_priority), true,
     "Of a job that begins. A higher one goes first; a lower one that waits gets one byte in 16 at least."},
    {"job_rate", CONFIG_RATE, "0", 0, 100000000000000ull, NULL, FIELD(job_rate), true,
     "Greatest rate at which a job that begins may send from this node. 0: not capped. Else 8 kbit/s or more."},
    {"max_sessions", CONFIG_UINT, "1024", 1, 100000, NULL, FIELD(max_sessions), true, "Client connections."},
    {"max_sessions_per_user", CONFIG_UINT, "512", 1, 100000, NULL, FIELD(max_sessions_per_user), true,
     "Client connections of one user."},
    {"max_jobs", CONFIG_UINT, "256", 1, 100000, NULL, FIELD(max_jobs), true, "Jobs that have sessions."},
    {"max_jobs_per_user", CONFIG_UINT, "256", 1, 100000, NULL, FIELD(max_jobs_per_user), true, "Jobs of one user."},
    {"max_comms", CONFIG_UINT, "1024", 1, 100000, NULL, FIELD(max_comms), true,
     "Communicators, those still joining included."},
    {"max_comms_per_user", CONFIG_UINT, "1024", 1, 100000, NULL, FIELD(max_comms_per_user), true,
     "Communicators of one user's jobs."},
    {"max_buffer_bytes", CONFIG_SIZE, "64GiB", 4096, 1ull << 50, NULL, FIELD(max_buffer_bytes), true,
     "Memory that one session may register."},
    {"max_buffer_bytes_per_user", CONFIG_SIZE, "1TiB", 4096, 1ull << 50, NULL, FIELD(max_buffer_bytes_per_user), true,
     "Memory that all sessions of one user may register together."},
};
const size_t config_num_keys = sizeof config_keys / sizeof config_keys[0];
_Static_assert(sizeof config_keys / sizeof config_keys[0] <= CONFIG_MAX_KEYS, "too many keys");

void config_value(const struct config *config, const struct config_key *key, char *text, size_t size) {
    const char *field = (const char *)config + key->offset;
    uint64_t number = 0;
    if (key->size == sizeof number)
        memcpy(&number, field, sizeof number);
    switch (key->type) {
    case CONFIG_STRING:
    case CONFIG_CHOICE:
    case CONFIG_HOSTPORT:
        snprintf(text, size, "%s", field);
        break;
    case CONFIG_BOOL:
        snprintf(text, size, "%s", *(const bool *)field ? "on" : "off");
        break;
    case CONFIG_UINT:
        snprintf(text, size, "%llu", (unsigned long long)number);
        break;
    case CONFIG_MODE:
        snprintf(text, size, "%04llo", (unsigned long long)number);
        break;
    case CONFIG_SIZE:
        units_print_size(text, size, number);
        break;
    case CONFIG_DURATION:
        units_print_duration(text, size, number);
        break;
    case CONFIG_RATE:
        units_print_rate(text, size, number);
        break;
    }
}

void config_print(FILE *out) {
    fprintf(out, "# zipccld configuration. Every key is shown with its default.\n"
                 "# Check a changed file with: zipccld --check-config --config FILE\n"
                 "# Keys marked (reload) change on SIGHUP, the others at the next start.\n"
                 "[" CONFIG_SECTION "]\n");
    for (size_t i = 0; i < config_num_keys; i++) {
        const struct config_key *key = &config_keys[i];
        fprintf(out, "\n# ");
        for (const char *p = key->doc; *p != '\0'; p++)
            fputs(*p == '\n' ? "\n# " : (char[]){*p, '\0'}, out);
        if (key->allowed != NULL) {
            fprintf(out, "\n# One of:");
            for (const char *const *a = key->allowed; *a != NULL; a++)
                fprintf(out, "%s %s", a == key->allowed ? "" : ",", *a);
            fputc('.', out);
        }
        fprintf(out, "%s\n#%s =%s%s\n", key->reload ? " (reload)" : "", key->name, key->fallback[0] != '\0' ? " " : "",
                key->fallback);
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * THE table: every command of zipcclctl with its options. Help and completion follow from it.
 */
#include <stddef.h>

#include "client/ctl/ctl.h"
#include "kernels/codec.h"

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)
#define OPTION_JSON                                                                                                    \
    { "json", NULL, NULL, "JSON for programs, on one object", false }
#define OPTION_SOCKET                                                                                                  \
    { "socket", "PATH", NULL, "the daemon's socket; else $ZIPCCL_SOCKET, else the usual one", false }
#define OPTION_END                                                                                                     \
    { NULL, NULL, NULL, NULL, false }

static const struct ctl_option status_options[] = {OPTION_SOCKET, OPTION_JSON, OPTION_END};

static const struct ctl_option stats_options[] = {
    OPTION_SOCKET,
    {"job", "JOB", NULL, "this job alone", false},
    {"explain", NULL, NULL, "and which arms and codecs were chosen, and why, as decisions does", false},
    OPTION_JSON,
    OPTION_END,
};

static const struct ctl_option decisions_options[] = {
    OPTION_SOCKET,
    {"job", "JOB", NULL, "this job alone", false},
    OPTION_JSON,
    OPTION_END,
};

static const struct ctl_option top_options[] = {
    OPTION_SOCKET,
    {"interval", "SECONDS", "1", "time from look to look, over which rates are taken", false},
    {"sort", "KEY", "raw", "raw, wire, ratio, ops, wait or name", false},
    {"once", NULL, NULL, "print one table and end, as without a terminal", false},
    OPTION_JSON,
    OPTION_END,
};

static const struct ctl_option flight_options[] = {
    OPTION_SOCKET,
    {"last", "N", NULL, "the youngest N operations; else 32, with --json all that are kept", false},
    OPTION_JSON,
    OPTION_END,
};

static const struct ctl_option events_options[] = {
    OPTION_SOCKET,
    {"follow", NULL, NULL, "go on with what happens from now on, until interrupted", false},
    {"after", "ID", "0", "events younger than this one", false},
    {"json", NULL, NULL, "JSON for programs, on one object; with --follow an object a line", false},
    OPTION_END,
};

static const struct ctl_option drain_options[] = {
    OPTION_SOCKET,
    {"timeout", "SECONDS", "30", "what still runs then is ended with an error", false},
    {"cancel", NULL, NULL, "take work again", false},
    OPTION_JSON,
    OPTION_END,
};

static const struct ctl_option plain_options[] = {OPTION_SOCKET, OPTION_JSON, OPTION_END};
static const struct ctl_option check_options[] = {OPTION_JSON, OPTION_END};
static const struct ctl_option job_options[] = {OPTION_SOCKET, OPTION_JSON, OPTION_END};

static const struct ctl_option analyze_options[] = {
    {"dtype", "TYPE", NULL, "type of raw values: bf16, fp16, fp32, e4m3...; else by extension, else bf16", false},
    {"link-gbps", "GBIT", "1", "rate of the link between nodes, Gbit/s, for the speed-up", false},
    OPTION_JSON,
    OPTION_END,
};

static const struct ctl_option bench_codec_options[] = {
    {"size", "SIZE[,SIZE]", "1MiB,64MiB", "bytes of values; with --device cuda 1 MiB to 4 GiB", false},
    {"device", "DEVICE", "cpu", "cpu, or cuda: the first GPU", false},
    {"codec", "CODEC", NULL, "tier or top7 alone", false},
    {"isa", "ISA", NULL, "scalar, avx2 or avx512 alone", false},
    {"dtype", "TYPE", NULL, "type of raw files, and of the Gaussian values made without files", false},
    {"min-time", "SECONDS", "1", "time at least spent on each codec, instruction set and size", false},
    {"no-peers", NULL, NULL, "leave out Huff0, zstd and lz4", false},
    OPTION_JSON,
    OPTION_END,
};

static const struct ctl_option bench_collective_options[] = {
    {"op", "OP", "all-gather", "any operation: all-reduce, all-to-all-v, send (a pair exchange)...", false},
    {"nodes", "N", "2", "daemons to start on this machine", false},
    {"ranks-per-node", "N", "2", "trainer processes of each", false},
    {"size", "SIZE[,SIZE]", "64MiB", "bytes of values: what each rank gives; of a scatter, receives", false},
    {"link-rate", "RATE", "none", "what each daemon may send a second, as 1gbit; none: no cap", false},
    {"dtype", "TYPE", NULL, "type of the values; else by the file's extension, else bf16", false},
    {"file", "FILE", NULL, "values to send, repeated to size; else Gaussian, sigma 0.02", false},
    {"codec", "CODEC", "auto", "of the zipped arm: auto, tier, top7 or raw", false},
    {"redop", "OP", "sum", "of reductions: sum, prod, max, min, avg or premulsum (by 0.5; integers by 2)", false},
    {"arm", "ARM", "auto", "of reductions: ring, flat, hierarchical or auto", false},
    {"rows", "FILE", NULL, "of v operations: rows per expert, JSON or a list a line; else a training step's", false},
    {"phases", "PHASES", NULL, "of all-to-all: stream, two (static parts first) or sizes (all sizes first)", false},
    {"imbalance", "F", NULL, "measure also with the last rank late by F times the operation's time", false},
    {"peer", "PEER", NULL, "openmpi: the same through OpenMPI, after it, for as many rounds", false},
    {"switcher", NULL, NULL, "auto in turn with every pinned choice: what choosing costs", false},
    {"iters", "N", NULL, "timed rounds; else as many as fit 2 s (--switcher: 20 s), 5 to 2000", false},
    {"warmup", "N", NULL, "rounds before them; else until trials have ended", false},
    {"set", "KEY=VALUE", NULL, "a key of the daemons' configuration", true},
    {"timeout", "SECONDS", "300", "give up after this long", false},
    OPTION_JSON,
    OPTION_END,
};

static const struct ctl_option simulate_options[] = {
    {"op", "OP", "reduce-scatter", "operation", false},
    {"nodes", "N", "16", "nodes", false},
    {"ranks-per-node", "N", "8", "ranks of each", false},
    {"size", "SIZE", "256MiB", "bytes of values: what each rank gives; of a scatter, receives", false},
    {"dtype", "TYPE", "bf16", "type of the values", false},
    {"arm", "ARM", "all", "of what reduces: ring, flat or hierarchical alone", false},
    {"codec", "CODEC", "all", "tier or top7 beside raw, or raw alone", false},
    {"root", "RANK", "0", "of broadcast, reduce, gather, scatter", false},
    {"link-gbps", "GBIT", "400", "of each node to the others, each way, Gbit/s as all rates here", false},
    {"intra-gbps", "GBIT", "3600", "copies and reductions inside a node, of one worker", false},
    {"reduce-gbps", "GBIT", NULL, "reductions; else as --intra-gbps", false},
    {"codec-gbps", "ENC[/DEC]", "2400/4000", "encode and decode, in values, of one worker", false},
    {"encode-gbps", "GBIT", NULL, "encode alone", false},
    {"decode-gbps", "GBIT", NULL, "decode alone", false},
    {"ratio", "[TOP7/]TIER", NULL,
     "bytes of values / coded bytes; else the usual: of BF16 by tier " TEXT(CODEC_USUAL_RATIO) ", as of weights",
     false},
    {"workers", "N", NULL, "steps of work at once on a node; else as many as ranks", false},
    {"latency-us", "US", "5", "L: from node to node", false},
    {"overhead-us", "US", "1", "o: of the daemon's loop, for each send and each receive", false},
    {"gap-us", "US", "0.2", "g: between messages on a link", false},
    {"step-us", "US", "3", "of each step of work: queues, a kernel's launch", false},
    {"chunk", "SIZE", "4MiB", "chunk_bytes of the daemons", false},
    {"window", "N", "4", "window of the daemons", false},
    {"phases", "PHASES", "stream", "of exchanges: stream, two (static parts first) or sizes (all sizes first)", false},
    {"imbalance", "TIME", NULL, "ranks arrive within this time, as 5ms, each at a time of its own", false},
    {"late", "RANK=TIME", NULL, "this rank arrives so late", true},
    {"plot", "FILE.svg", NULL, "draw speed-up against size and ranks", false},
    OPTION_JSON,
    OPTION_END,
};

const struct ctl_command ctl_commands[] = {
    {"status", NULL, false, "What this node's daemon is doing now.", "Exit code 4 says that a communicator has failed.",
     status_options, ctl_status},
    {"stats", NULL, false, "What it has done: operations, bytes, ratios, times.",
     "One row for each job, operation, type and codec. wait, encode and decode are shares of the operations' time:\n"
     "from the first to the last local arrival, and worker time (over 100 % where several workers ran). p50 and p99 "
     "are\n"
     "right to a sixteenth.",
     stats_options, ctl_stats},
    {"decisions", NULL, false, "Which arm and codec operations take, and why.",
     "One row for each kind of operations of a communicator: operation, type, size class (+: up to twice as much).\n"
     "Below, for each arm and codec that came into question, the time that the model predicts, what the slowest node\n"
     "measured of late, and the best time of this node since the last alarm.",
     decisions_options, ctl_decisions},
    {"top", NULL, false, "A live table of jobs: bytes, ratio, operations a second, time by phase.",
     "Keys sort: r raw, w wire, x ratio, o operations, a waiting, n name; q ends it. wait, encode and decode as in "
     "stats.",
     top_options, ctl_top},
    {"flight", "JOB", true, "The last operations of a job: what hung, and where.",
     "The daemon keeps the last 4,096 of each job, also for a while after it has ended. called: ranks of this node "
     "that\n"
     "have called it; wait: from the first call to the last. where says of what is under way, or failed, what it "
     "waited\n"
     "for: ranks of this node that have not called it, else the other node, else the work here. Exchanges "
     "(all-to-all,\n"
     "gather, scatter, send, receive) have a line for each rank, a group one line; bytes are counts times type.",
     flight_options, ctl_flight},
    {"events", NULL, false, "What happened on this node: jobs, communicators, peers, reloads, drains.",
     "The daemon keeps the last 1,024, with ids that only grow while it runs.", events_options, ctl_events},
    {"jobs", NULL, false, "Whose jobs this node serves, and what each holds.", NULL, plain_options, ctl_jobs},
    {"config show", NULL, false, "The configuration that the daemon runs with.", NULL, plain_options, ctl_config_show},
    {"config check", "[FILE]", false, "Whether a configuration file is good; every error of it.",
     "Runs zipccld --check-config, on /etc/zipccl/zipccld.conf where no file is named. Exit code 1 says that it is "
     "not.",
     check_options, ctl_config_check},
    {"doctor", NULL, false, "What of this node is known to make trouble, each with the remedy.",
     "Looks at the daemon and its socket, limits, shared memory, namespaces, clock, pages, NUMA, governor, "
     "transports,\n"
     "network devices and their speed, and at GPUs where there is a driver. Limits are the daemon's where this user "
     "may\n"
     "see them, else this shell's. Exit code 0: all is well; 4: warnings; 1: a check failed; 3: the daemon is down.",
     plain_options, ctl_doctor},
    {"log level", "LEVEL", true, "Change what the daemon logs: error, warn, info or debug.",
     "For root and the daemon's own user. It lasts until the next reload or start.", plain_options, ctl_log_level},
    {"reload", NULL, false, "Have the daemon read its configuration again, and say what changed.",
     "For root and the daemon's own user. A bad file is refused as a whole.", plain_options, ctl_reload},
    {"drain node", NULL, false, "Let running operations end, and take no new ones, until --cancel.",
     "For root and the daemon's own user. Communicators end as they become idle, with an error that names the drain;\n"
     "new jobs and communicators are refused. The daemon lives on. Waits until nothing runs: exit code 5 where that\n"
     "takes 5 s longer than --timeout.",
     drain_options, ctl_drain_node},
    {"drain job", "JOB", true, "The same for one job.",
     "For root and the daemon's own user. It ends with the job's last session.", drain_options, ctl_drain_job},
    {"job", "NAME set KEY=VALUE...", true, "Changes how a job shares this node with others, at once.",
     "  weight=N      1 to 1000: jobs that wait for the link, or for workers, get it in this ratio\n"
     "  priority=P    high, normal or low: the higher first; a lower one that waits gets one byte in 16 at least\n"
     "  rate=RATE     as 200mbit, what the job may send a second from this node; 0 or none: no cap\n\n"
     "For root and the user of zipccld. On the link weight and priority take effect where that has a rate "
     "(link_rate).\n"
     "Other nodes have shares of their own. What a job has now: zipcclctl status.",
     job_options, ctl_job},
    {"analyze", "FILE...", true, "How well tensors compress: every codec, bit for bit.",
     "Codes each tensor with every codec in chunks of 4 MiB, decodes it and compares the bits.\n"
     "Files are raw little-endian values (.bf16 .f16 .f32 .e4m3 .e5m2) or .safetensors.\n\n"
     "  limit    T / (R + H): T bits a value, R of them sign and mantissa, H the entropy of the exponents of the\n"
     "           whole tensor. Codecs that follow a tensor block by block can pass it.\n"
     "  ratio    bytes of values / coded bytes, headers counted.\n"
     "  speed-up of an all-gather between nodes at --link-gbps, as a pipeline of encode, send and decode with one "
     "core\n"
     "           each: (V/L) / (max(V/(ratio*L), V/encode, V/decode) + c/encode + c/decode), where V is the tensor's\n"
     "           bytes, L the link's bytes a second, c = min(V, 4 MiB); encode and decode as measured here on this\n"
     "           tensor; the best codec, and 1 where none pays (zipccl then sends raw).",
     analyze_options, ctl_analyze},
    {"bench codec", "[FILE...]", false, "Speed of the codec beside memcpy, and beside others' codecs.",
     "One thread. GB/s are 1e9 bytes of values a second. memcpy and all codecs are measured in the same rounds, one\n"
     "after the other; medians, and in JSON also the best. The bits are compared in the first and the last round.\n"
     "Without files the values are Gaussian, sigma 0.02. Over 4 MiB values go chunk by chunk, each chunk to a place\n"
     "of its own. Peers (BF16 alone) code the exponents, 128 Ki values at a time, and copy sign and mantissa; the\n"
     "time to take values apart and put them together is theirs.\n"
     "--device cuda: by events on the GPU, after rounds that do not count, beside a copy on the same GPU; the first\n"
     "64 MiB of values are repeated to size. Without a GPU, or in a build without CUDA, it says so and exits with 1.",
     bench_codec_options, ctl_bench_codec},
    {"bench collective", NULL, false, "A collective between daemons of its own on this machine, raw against zipped.",
     "Starts daemons in a temporary directory, forks the ranks, and runs one operation raw and one zipped in turn, "
     "each\n"
     "after a barrier. A round's time is from the first start to the last end over all ranks. In the first and the "
     "last\n"
     "round receive buffers are overwritten before and all bits compared after, outside of the timing.\n\n"
     "  alg, bus   1e9 bytes a second as in nccl-tests, from p50: alg = bytes / time, where the bytes are all ranks' "
     "of\n"
     "             gathers and scatters, else one rank's; bus = alg * (n-1)/n of gathers, scatters, reduce-scatter "
     "and\n"
     "             all-to-all, 2(n-1)/n of all-reduce, 1 of broadcast, reduce and send.\n"
     "  wire bytes what the node that sends most sends in one operation, by its statistics; ratio: uncoded to sent.\n"
     "  link time  what the capped link needs: raw, for the least that a node must send; zipped, for what it sent.\n"
     "  bits       data that moves is compared with what was sent, sums with a scalar reference of zipcclRedOp_t's "
     "rule;\n"
     "             near: a ring's sums of floats, which round in an order of their own, within its roundings.\n\n"
     "An operation that shares a buffer out rounds --size down. Counts of v operations follow --rows: experts are "
     "dealt "
     "out\n"
     "to ranks in order, and --size is what a rank gives (all-gather-v: on average). In send, rank r sends to r + "
     "n/2.\n"
     "With --imbalance, a second table: total, from the first call; after last call, from the late rank's call.\n"
     "--switcher runs auto and every pinned codec (and arm) in turn, in an order of chance, auto from its first "
     "operation\n"
     "on, and compares auto with the best pinned choice: settled, by the second half of the rounds; whole, by all.\n"
     "--peer openmpi (wants openmpi-bin, and libopenmpi-dev when zipccl is built) forces OpenMPI's ring where it has "
     "one,\n"
     "for reduce its pipeline.\n"
     "As root its nodes are network namespaces, with --link-rate shaped to the same payload a second; else the "
     "comparison\n"
     "under --link-rate is computed from its bytes, and marked so. BF16 sums are a user's operation there.\n"
     "With --nodes 1 the run also measures a bare round trip between two processes over a Unix socket.\n"
     "zipccld is looked for beside zipcclctl and in ../sbin, then in $ZIPCCLD, then in PATH.",
     bench_collective_options, ctl_bench_collective},
    {"simulate", NULL, false, "An operation on a cluster of any size: its plans, under a cost model.",
     "Runs the plans of all nodes under LogGP with links that are shared, and compares arms and codecs. Speed-up is\n"
     "over the fastest raw arm. A plan that deadlocks or has a send without a receive is named: node, step, peer, "
     "tag.\n\n"
     "  --size     as in bench collective: of reduce-scatter and all-to-all the whole input of a rank, which is "
     "rounded\n"
     "             down to whole shares.\n"
     "  a node sends  the node that sends most; between, inside nodes: all bytes over links and over copies.\n"
     "  link, loop, workers: how busy those of the busiest node are; loop: o for each message.\n\n"
     "Over 2 million steps, one node is simulated for all where their plans are alike turned round the circle of "
     "nodes\n"
     "(all-gather, reduce-scatter, all-reduce, all-to-all; not with a root, --late or --imbalance): so 8192 ranks "
     "fit.\n"
     "Else some 110 million steps can be held, in 4 GiB. What is larger is refused.\n"
     "The network between the links is taken to be without limit, and nothing to vary.",
     simulate_options, ctl_simulate},
    {NULL, NULL, false, NULL, NULL, NULL, NULL},
};

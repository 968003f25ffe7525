/* SPDX-License-Identifier: Apache-2.0
 *
 * The configuration: one table of keys is the parser, the documentation and --print-config.
 *
 * Strict: an unknown key, a duplicate, a value that does not parse or is out of range is an error that names
 * file:line, key, value and what is allowed; all errors of a file are listed. A struct config holds no pointer and may
 * be copied. struct config_errors belongs to the caller and is freed by config_errors_free.
 */
#ifndef ZIPCCL_DAEMON_CONFIG_H
#define ZIPCCL_DAEMON_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "zipccl_types.h"

#define CONFIG_SECTION   "zipccld"
#define CONFIG_MAX_BYTES (1u << 20) /* of a file */
#define CONFIG_MAX_KEYS  64u
#define CONFIG_PATH      "/etc/zipccl/zipccld.conf"

struct config {
    char node_name[64];
    char socket[104]; /* fits sun_path */
    uint64_t socket_mode;
    char socket_group[64];
    char admin_socket[104];
    char listen[96];
    char advertise[96];
    char peer_auth[16];
    char peer_key_file[128];
    char metrics_listen[96];
    char user[64];
    char group[64];
    char state_directory[104];
    char device[16];
    uint64_t workers;
    uint64_t gpu_sms;        /* 0: all */
    uint64_t gpu_pool;       /* bytes of each GPU */
    uint64_t worker_timeout; /* ms */
    uint64_t busy_poll;      /* us, 0: off */
    char fabric[16];
    bool nccl_native;
    bool nccl_split;
    char ucx_tls[128];
    char ucx_net_devices[128];
    uint64_t link_rate; /* bits a second */
    char codec[16];
    char arm[16];
    char all_to_all_phases[16];
    uint64_t chunk_bytes;
    uint64_t window;
    bool verify;
    uint64_t join_timeout; /* all timeouts: ms, 0: off */
    uint64_t op_timeout;
    uint64_t peer_timeout;
    uint64_t drain_timeout;
    char log_level[16];
    uint64_t job_weight;
    char job_priority[16];
    uint64_t job_rate; /* bits a second */
    uint64_t max_sessions;
    uint64_t max_sessions_per_user;
    uint64_t max_jobs;
    uint64_t max_jobs_per_user;
    uint64_t max_comms;
    uint64_t max_comms_per_user;
    uint64_t max_buffer_bytes;
    uint64_t max_buffer_bytes_per_user;
};

enum config_type {
    CONFIG_STRING,
    CONFIG_CHOICE, /* a string, one of allowed */
    CONFIG_BOOL,
    CONFIG_UINT,
    CONFIG_MODE, /* octal */
    CONFIG_SIZE,
    CONFIG_DURATION,
    CONFIG_RATE,
    CONFIG_HOSTPORT
};

struct config_key {
    const char *name;
    enum config_type type;
    const char *fallback;       /* the default, as text */
    uint64_t min, max;          /* numbers, in the field's unit */
    const char *const *allowed; /* CONFIG_CHOICE, NULL-terminated */
    size_t offset, size;        /* of the field in struct config */
    bool reload;                /* SIGHUP applies a change */
    const char *doc;
};

extern const struct config_key config_keys[];
extern const size_t config_num_keys;

struct config_errors {
    char **lines;
    size_t count;
};

void config_defaults(struct config *config);
/* Reads text (a file's bytes, not NUL-terminated) over *config. name: for messages. False: errors were added. */
bool config_parse(struct config *config, const char *name, const char *text, size_t bytes,
                  struct config_errors *errors);
bool config_load(struct config *config, const char *path, struct config_errors *errors);
/* "key=value"; origin is named in messages ("--set"). */
bool config_set(struct config *config, const char *origin, const char *assignment, struct config_errors *errors);
/* Checks that involve several keys. */
bool config_check(const struct config *config, struct config_errors *errors);
/* Every key, commented out, with its documentation and default. */
void config_print(FILE *out);
/* The value of a key as text. */
void config_value(const struct config *config, const struct config_key *key, char *text, size_t size);
/* Splits "host:port" or "[v6]:port". */
bool config_split_hostport(const char *text, char *host, size_t host_size, unsigned *port);

void config_errors_add(struct config_errors *errors, const char *format, ...) __attribute__((format(printf, 2, 3)));
void config_errors_print(const struct config_errors *errors, FILE *out);
void config_errors_free(struct config_errors *errors);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * zipccld: options, then the daemon. Exit codes: 0 ok, 1 failed, 2 wrong usage or configuration.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/core/admin.h"
#include "daemon/core/config.h"
#include "daemon/core/daemon.h"
#include "daemon/core/man.h"
#include "daemon/core/peer_key.h"
#include "daemon/core/privileges.h"
#include "daemon/worker/worker.h"
#include "zipccl.h"

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };
#define MAIN_MAX_SETTINGS 256

/* X(long name, letter, argument, configuration key or NULL, help) */
#define MAIN_OPTIONS(X)                                                                                                \
    X("config", 'c', "FILE", NULL, "read this file (default: " CONFIG_PATH ", where it exists)")                       \
    X("check-config", 'C', NULL, NULL, "check the configuration, print 'ok' or all errors, and exit")                  \
    X("print-config", 'p', NULL, NULL, "print every key with documentation and default, and exit")                     \
    X("socket", 's', "PATH", "socket", "same as --set socket=PATH")                                                    \
    X("listen", 'l', "HOST:PORT", "listen", "same as --set listen=HOST:PORT")                                          \
    X("node-name", 'n', "NAME", "node_name", "same as --set node_name=NAME")                                           \
    X("log-level", 'L', "LEVEL", "log_level", "same as --set log_level=LEVEL")                                         \
    X("set", 'S', "KEY=VALUE", NULL, "set a key over the file; may be repeated, the last one counts")                  \
    X("new-key", 'K', NULL, NULL, "print a new key for peer_key_file, and exit")                                       \
    X("man", 'M', NULL, NULL, "print the manual page zipccld(8), and exit")                                            \
    X("version", 'V', NULL, NULL, "print the version, and exit")                                                       \
    X("help", 'h', NULL, NULL, "print this, and exit")

static const struct main_option main_options[] = {
#define MAIN_OPTION(name, letter, argument, key, help) {name, letter, argument, key, help},
    MAIN_OPTIONS(MAIN_OPTION)
#undef MAIN_OPTION
};
#define MAIN_NUM_OPTIONS (sizeof main_options / sizeof main_options[0])

static void main_help(FILE *out) {
    fprintf(out, "Usage: zipccld [OPTION]...\nRuns compressed collectives for the trainers of this node.\n\n");
    for (size_t i = 0; i < MAIN_NUM_OPTIONS; i++) {
        const struct main_option *o = &main_options[i];
        char left[48];
        snprintf(left, sizeof left, "-%c, --%s%s%s", o->letter, o->name, o->argument != NULL ? " " : "",
                 o->argument != NULL ? o->argument : "");
        fprintf(out, "  %-26s %s\n", left, o->help);
    }
    fprintf(out, "\nKeys (--print-config explains them):\n ");
    size_t column = 1;
    for (size_t i = 0; i < config_num_keys; i++) {
        column += strlen(config_keys[i].name) + 1;
        if (column > 78) {
            fprintf(out, "\n ");
            column = 2 + strlen(config_keys[i].name);
        }
        fprintf(out, " %s", config_keys[i].name);
    }
    fprintf(out, "\n\nAdmin requests (zipcclctl; root and the daemon's own user):\n");
    for (size_t i = 0; i < admin_num_commands; i++)
        fprintf(out, "  %-26s %s\n", admin_commands[i].name, admin_commands[i].does);
    fprintf(out, "\nSignals: SIGTERM or SIGINT drains and ends, a second one ends at once; SIGHUP reloads the "
                 "configuration.\nExit codes: 0 ok, 1 failed, 2 wrong usage or configuration.\n");
}

struct main_args {
    const char *config_path;
    bool check, print, new_key, man, version, help;
    char *settings[MAIN_MAX_SETTINGS]; /* key=value, owned */
    unsigned nsettings;
};

static bool main_add_setting(struct main_args *args, const char *key, const char *value) {
    char *text = NULL;
    if (args->nsettings == MAIN_MAX_SETTINGS) {
        fprintf(stderr, "zipccld: more than %d settings\n", MAIN_MAX_SETTINGS);
        return false;
    }
    if (asprintf(&text, "%s%s%s", key != NULL ? key : "", key != NULL ? "=" : "", value) < 0)
        return false;
    args->settings[args->nsettings++] = text;
    return true;
}

static bool main_parse(struct main_args *args, int argc, char **argv) {
    struct option options[MAIN_NUM_OPTIONS + 1] = {{0}};
    char letters[MAIN_NUM_OPTIONS * 2 + 1];
    size_t n = 0;
    int c;
    for (size_t i = 0; i < MAIN_NUM_OPTIONS; i++) {
        const struct main_option *o = &main_options[i];
        options[i] = (struct option){o->name, o->argument != NULL ? required_argument : no_argument, NULL, o->letter};
        letters[n++] = (char)o->letter;
        if (o->argument != NULL)
            letters[n++] = ':';
    }
    letters[n] = '\0';
    while ((c = getopt_long(argc, argv, letters, options, NULL)) != -1) {
        const struct main_option *o = NULL;
        for (size_t i = 0; i < MAIN_NUM_OPTIONS; i++) {
            if (main_options[i].letter == c)
                o = &main_options[i];
        }
        if (o == NULL)
            return false; /* getopt has said why */
        if (c == 'c')
            args->config_path = optarg;
        args->check = args->check || c == 'C';
        args->print = args->print || c == 'p';
        args->new_key = args->new_key || c == 'K';
        args->man = args->man || c == 'M';
        args->version = args->version || c == 'V';
        args->help = args->help || c == 'h';
        if ((o->key != NULL || c == 'S') && !main_add_setting(args, o->key, optarg))
            return false;
    }
    if (optind < argc) {
        fprintf(stderr, "zipccld: unexpected argument '%s'\n", argv[optind]);
        return false;
    }
    return true;
}

/* File, then settings. All errors are printed. */
static bool main_configure(struct main_args *args, struct config *config) {
    struct config_errors errors = {0};
    bool ok = true;
    config_defaults(config);
    if (args->config_path == NULL && access(CONFIG_PATH, F_OK) == 0)
        args->config_path = CONFIG_PATH;
    if (args->config_path != NULL)
        ok = config_load(config, args->config_path, &errors);
    for (unsigned i = 0; i < args->nsettings; i++)
        ok = config_set(config, "--set", args->settings[i], &errors) && ok;
    ok = config_check(config, &errors) && ok;
    config_errors_print(&errors, stderr);
    config_errors_free(&errors);
    return ok;
}

/* What the configuration names on this node: users, groups, the key. */
static bool main_check_node(const struct config *config) {
    bool good = privileges_check(config);
    good = peer_key_check(config) && good;
    if (good)
        printf("ok\n");
    return good;
}

static int main_run(const struct main_args *args, const struct config *config) {
    struct daemon daemon;
    struct daemon_options options = {
        .config = *config,
        .config_path = args->config_path,
        .settings = args->settings,
        .nsettings = args->nsettings,
    };
    if (daemon_start(&daemon, &options) != zipcclSuccess)
        return EXIT_FAILED;
    daemon_run(&daemon);
    daemon_stop(&daemon);
    return EXIT_OK;
}

int main(int argc, char **argv) {
    struct main_args args = {0};
    struct config config;
    int code = EXIT_OK;
    int worker_fd;
    /* Not for people: how zipccld starts the worker of a GPU. */
    if (argc == 2 && sscanf(argv[1], "--worker=%d", &worker_fd) == 1)
        return worker_run(worker_fd);
    if (!main_parse(&args, argc, argv)) {
        fprintf(stderr, "Try 'zipccld --help'.\n");
        code = EXIT_USAGE;
    } else if (args.help) {
        main_help(stdout);
    } else if (args.man) {
        man_print(main_options, MAIN_NUM_OPTIONS, stdout);
    } else if (args.version) {
        printf("zipccld %d.%d.%d\n", ZIPCCL_MAJOR, ZIPCCL_MINOR, ZIPCCL_PATCH);
    } else if (args.new_key) {
        code = peer_key_print(stdout) ? EXIT_OK : EXIT_FAILED;
    } else if (args.print) {
        config_print(stdout);
    } else if (!main_configure(&args, &config)) {
        code = EXIT_USAGE;
    } else if (args.check) {
        code = main_check_node(&config) ? EXIT_OK : EXIT_USAGE;
    } else {
        code = main_run(&args, &config);
    }
    for (unsigned i = 0; i < args.nsettings; i++)
        free(args.settings[i]);
    return code;
}

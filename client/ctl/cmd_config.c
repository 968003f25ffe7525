/* SPDX-License-Identifier: Apache-2.0
 *
 * zipcclctl config show: the configuration that the daemon runs with. zipcclctl config check: whether a file is good,
 * as zipccld itself says.
 */
#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/ctl/ctl.h"
#include "client/ctl/daemon_view.h"
#include "client/ctl/output.h"
#include "client/ctl/private_daemons.h"
#include "client/ctl/table.h"

#define DEFAULT_FILE "/etc/zipccl/zipccld.conf"
#define MAX_OUTPUT   65536

static json_t *config_json(const Zipccl__ConfigReply *c) {
    json_t *keys = json_object();
    for (size_t i = 0; i < c->n_keys; i++)
        (void)json_object_set_new(keys, c->keys[i]->name,
                                  json_pack("{s:o, s:o, s:b}", "value", output_text(c->keys[i]->value), "default",
                                            output_text(c->keys[i]->fallback), "reload", (int)c->keys[i]->reload));
    return json_pack("{s:s, s:o, s:o, s:o}", "schema", "zipccl.config/1", "node", output_text(c->node), "file",
                     output_text(c->path), "keys", keys);
}

static void print_config(const Zipccl__ConfigReply *c) {
    struct table *t = table_new("llll");
    if (!t)
        return;
    printf("node %s, %s\n", c->node, *c->path ? c->path : "no file");
    table_cell(t, "key");
    table_cell(t, "value");
    table_cell(t, "default");
    table_cell(t, "changes");
    for (size_t i = 0; i < c->n_keys; i++) {
        table_cell(t, "%s", c->keys[i]->name);
        table_cell(t, "%s", c->keys[i]->value);
        table_cell(t, "%s", c->keys[i]->fallback);
        table_cell(t, "%s", c->keys[i]->reload ? "on reload" : "at start");
    }
    table_print(t, stdout, 0);
    table_free(t);
}

enum ctl_exit ctl_config_show(const struct ctl_args *args) {
    struct admin *admin = NULL;
    Zipccl__ConfigReply *config = NULL;
    enum ctl_exit rc = CTL_OK;
    zipcclResult_t result = admin_open(ctl_get(args, "socket"), DAEMON_TIMEOUT_MS, &admin);
    if (result == zipcclSuccess)
        result = admin_config(admin, &config);
    if (result != zipcclSuccess)
        rc = daemon_fail(args, admin, result);
    else if (ctl_has(args, "json"))
        rc = output_json(config_json(config));
    else
        print_config(config);
    if (config)
        zipccl__config_reply__free_unpacked(config, NULL);
    admin_close(admin);
    return rc;
}

/* Runs zipccld --check-config on the file; what it says is in text. -1: it could not be run, errno says why. */
static int run_check(const char *program, const char *file, char text[MAX_OUTPUT]) {
    int ends[2], status = 0;
    size_t used = 0;
    ssize_t n;
    if (pipe(ends) != 0)
        return -1;
    pid_t pid = fork();
    if (pid == 0) {
        if (dup2(ends[1], 1) >= 0 && dup2(ends[1], 2) >= 0) {
            (void)close(ends[0]);
            (void)execlp(program, program, "--check-config", "--config", file, (char *)NULL);
        }
        _exit(127);
    }
    (void)close(ends[1]);
    while (pid > 0 && used + 1 < MAX_OUTPUT && (n = read(ends[0], text + used, MAX_OUTPUT - 1 - used)) != 0) {
        if (n < 0 && errno != EINTR)
            break;
        used += n > 0 ? (size_t)n : 0;
    }
    (void)close(ends[0]);
    text[used] = 0;
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (pid < 0)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static json_t *check_json(const char *file, int code, char *text) {
    json_t *errors = json_array();
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line && code; line = strtok_r(NULL, "\n", &rest))
        (void)json_array_append_new(errors, output_text(line));
    return json_pack("{s:s, s:o, s:b, s:o}", "schema", "zipccl.config.check/1", "file", output_text(file), "ok",
                     code == 0, "errors", errors);
}

enum ctl_exit ctl_config_check(const struct ctl_args *args) {
    static char text[MAX_OUTPUT];
    char program[4096];
    const char *file = args->noperands ? args->operands[0] : DEFAULT_FILE;
    if (args->noperands > 1)
        return ctl_usage(args, "takes one file");
    private_find_program(program, sizeof program);
    int code = run_check(program, file, text);
    if (code < 0 || code > 2)
        return ctl_fail(args, CTL_FAILED, "cannot run %.200s: set $ZIPCCLD to its path", program);
    if (ctl_has(args, "json")) {
        enum ctl_exit rc = output_json(check_json(file, code, text));
        return rc == CTL_OK && code ? CTL_FAILED : rc;
    }
    (void)fputs(text, code ? stderr : stdout);
    return code ? CTL_FAILED : CTL_OK;
}

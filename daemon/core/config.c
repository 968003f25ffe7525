/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the configuration file and single assignments into struct config, by the table of keys.
 */
#include "daemon/core/config.h"

#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/core/units.h"

/* Enough for a person; a hostile file must not fill the memory. */
#define CONFIG_MAX_ERRORS 100u

void config_errors_add(struct config_errors *errors, const char *format, ...) {
    char *line = NULL;
    va_list ap;
    if (errors->count >= CONFIG_MAX_ERRORS)
        return;
    char **lines = realloc(errors->lines, (errors->count + 1) * sizeof *lines);
    if (lines == NULL)
        return;
    errors->lines = lines;
    va_start(ap, format);
    if (vasprintf(&line, format, ap) < 0)
        line = NULL;
    va_end(ap);
    if (line == NULL)
        return;
    for (char *p = line; *p != '\0'; p++) { /* what the file said may not speak to a terminal */
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            *p = '?';
    }
    errors->lines[errors->count++] = line;
}

void config_errors_print(const struct config_errors *errors, FILE *out) {
    for (size_t i = 0; i < errors->count; i++)
        fprintf(out, "%s\n", errors->lines[i]);
}

void config_errors_free(struct config_errors *errors) {
    for (size_t i = 0; i < errors->count; i++)
        free(errors->lines[i]);
    free(errors->lines);
    *errors = (struct config_errors){0};
}

bool config_split_hostport(const char *text, char *host, size_t host_size, unsigned *port) {
    const char *colon = strrchr(text, ':');
    uint64_t number;
    if (colon == NULL || !units_parse_uint(colon + 1, &number) || number > 65535)
        return false;
    const char *start = text, *end = colon;
    if (*start == '[') {
        start++;
        end--;
        if (end <= start || *end != ']')
            return false;
    } else if (memchr(start, ':', (size_t)(end - start)) != NULL) {
        return false; /* an IPv6 address without brackets: which colon is the port's? */
    }
    size_t n = (size_t)(end - start);
    if (n == 0 || n >= host_size || memchr(start, ' ', n) != NULL)
        return false;
    memcpy(host, start, n);
    host[n] = '\0';
    *port = (unsigned)number;
    return true;
}

static bool config_parse_mode(const char *text, uint64_t *mode) {
    uint64_t v = 0;
    size_t n = strlen(text);
    if (n == 0 || n > 5)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '7')
            return false;
        v = v * 8 + (uint64_t)(text[i] - '0');
    }
    *mode = v;
    return true;
}

/* What a key takes, for error messages. */
static void config_allowed(const struct config_key *key, char *text, size_t size) {
    char low[32], high[32];
    struct config limits;
    size_t n = 0;
    static const char *const kinds[] = {
        [CONFIG_STRING] = "text",
        [CONFIG_CHOICE] = "",
        [CONFIG_BOOL] = "on or off",
        [CONFIG_UINT] = "a whole number",
        [CONFIG_MODE] = "an octal mode",
        [CONFIG_SIZE] = "a size such as 64KiB",
        [CONFIG_DURATION] = "a duration such as 500ms or 60s",
        [CONFIG_RATE] = "a rate such as 100mbit or 10Gbit/s",
        [CONFIG_HOSTPORT] = "host:port",
    };
    if (key->type == CONFIG_CHOICE) {
        n = (size_t)snprintf(text, size, "one of");
        for (const char *const *a = key->allowed; *a != NULL && n < size; a++)
            n += (size_t)snprintf(text + n, size - n, "%s %s", a == key->allowed ? "" : ",", *a);
        return;
    }
    if (key->type == CONFIG_STRING) {
        snprintf(text, size, "%stext of at most %zu bytes", key->min > 0 ? "non-empty " : "", key->size - 1);
        return;
    }
    if (key->type == CONFIG_BOOL || key->type == CONFIG_HOSTPORT) {
        snprintf(text, size, "%s%s", kinds[key->type],
                 key->type == CONFIG_HOSTPORT && key->min == 0 ? ", or nothing" : "");
        return;
    }
    memcpy((char *)&limits + key->offset, &key->min, sizeof key->min);
    config_value(&limits, key, low, sizeof low);
    memcpy((char *)&limits + key->offset, &key->max, sizeof key->max);
    config_value(&limits, key, high, sizeof high);
    snprintf(text, size, "%s from %s to %s", kinds[key->type], low, high);
}

/* Parses value into the key's field. */
static bool config_assign(struct config *config, const struct config_key *key, const char *value) {
    char *field = (char *)config + key->offset;
    uint64_t number = 0;
    bool ok = false;
    char host[96];
    unsigned port;
    switch (key->type) {
    case CONFIG_CHOICE:
        for (const char *const *a = key->allowed; *a != NULL; a++)
            ok = ok || strcmp(*a, value) == 0;
        break;
    case CONFIG_HOSTPORT:
        ok = (value[0] == '\0' && key->min == 0) || config_split_hostport(value, host, sizeof host, &port);
        break;
    case CONFIG_STRING:
        ok = strlen(value) >= key->min;
        break;
    case CONFIG_BOOL:
        return units_parse_bool(value, (bool *)field);
    case CONFIG_UINT:
        ok = units_parse_uint(value, &number);
        break;
    case CONFIG_MODE:
        ok = config_parse_mode(value, &number);
        break;
    case CONFIG_SIZE:
        ok = units_parse_size(value, &number);
        break;
    case CONFIG_DURATION:
        ok = units_parse_duration(value, &number);
        break;
    case CONFIG_RATE:
        /* Below a byte a millisecond the pacing has nothing to count. */
        ok = units_parse_rate(value, &number) && (number == 0 || number >= 8000);
        break;
    }
    if (!ok)
        return false;
    if (key->type == CONFIG_CHOICE || key->type == CONFIG_HOSTPORT || key->type == CONFIG_STRING) {
        size_t bytes = strlen(value) + 1;
        if (bytes > key->size)
            return false;
        memset(field, 0, key->size);
        memcpy(field, value, bytes);
        return true;
    }
    if (number < key->min || number > key->max)
        return false;
    memcpy(field, &number, sizeof number);
    return true;
}

static const struct config_key *config_find(const char *name) {
    for (size_t i = 0; i < config_num_keys; i++) {
        if (strcmp(config_keys[i].name, name) == 0)
            return &config_keys[i];
    }
    return NULL;
}

/* where: "file:12" or "--set". */
static const struct config_key *config_apply(struct config *config, const char *where, const char *name,
                                             const char *value, struct config_errors *errors) {
    char allowed[256];
    const struct config_key *key = config_find(name);
    if (key == NULL) {
        config_errors_add(errors, "%s: unknown key '%s' (zipccld --print-config lists all)", where, name);
        return NULL;
    }
    if (!config_assign(config, key, value)) {
        config_allowed(key, allowed, sizeof allowed);
        config_errors_add(errors, "%s: %s: bad value '%s', allowed: %s", where, name, value, allowed);
    }
    return key;
}

void config_defaults(struct config *config) {
    memset(config, 0, sizeof *config);
    for (size_t i = 0; i < config_num_keys; i++) {
        if (!config_assign(config, &config_keys[i], config_keys[i].fallback))
            abort(); /* the table is wrong; a unit test reads it */
    }
}

struct config_reader {
    struct config *config;
    const char *name;
    const char *p, *end;
    int line; /* of the line handed out last; this inih tells its handler none */
    int seen[CONFIG_MAX_KEYS];
    struct config_errors *errors;
};

/* Hands inih one line. A longer one than it takes is an error, and skipped: inih would read its rest as a new line. */
static char *config_read_line(char *text, int size, void *arg) {
    struct config_reader *r = arg;
    for (;;) {
        if (r->p == r->end)
            return NULL;
        const char *newline = memchr(r->p, '\n', (size_t)(r->end - r->p));
        const char *stop = newline != NULL ? newline + 1 : r->end;
        size_t n = (size_t)(stop - r->p);
        const char *start = r->p;
        r->p = stop;
        r->line++;
        if (memchr(start, '\0', n) != NULL) {
            config_errors_add(r->errors, "%s:%d: a NUL byte", r->name, r->line);
        } else if (n >= (size_t)size) {
            config_errors_add(r->errors, "%s:%d: line of %zu bytes, at most %d are allowed", r->name, r->line, n,
                              size - 1);
        } else {
            memcpy(text, start, n);
            text[n] = '\0';
            return text;
        }
        /* An empty line keeps inih's count of lines right. */
        text[0] = '\n';
        text[1] = '\0';
        return text;
    }
}

static int config_handle(void *arg, const char *section, const char *name, const char *value) {
    struct config_reader *r = arg;
    char where[512];
    snprintf(where, sizeof where, "%.480s:%d", r->name, r->line);
    if (section[0] != '\0' && strcmp(section, CONFIG_SECTION) != 0) {
        config_errors_add(r->errors, "%s: key '%s' in unknown section [%s], allowed: [" CONFIG_SECTION "]", where, name,
                          section);
        return 1;
    }
    const struct config_key *key = config_apply(r->config, where, name, value, r->errors);
    if (key != NULL) {
        int *seen = &r->seen[key - config_keys];
        if (*seen != 0)
            config_errors_add(r->errors, "%s: key '%s' is already set in line %d", where, name, *seen);
        else
            *seen = r->line;
    }
    return 1;
}

bool config_parse(struct config *config, const char *name, const char *text, size_t bytes,
                  struct config_errors *errors) {
    size_t before = errors->count;
    struct config_reader reader = {.config = config, .name = name, .p = text, .end = text + bytes, .errors = errors};
    int rc = ini_parse_stream(config_read_line, &reader, config_handle, &reader);
    if (rc > 0)
        config_errors_add(errors, "%s:%d: neither 'key = value' nor a [section]", name, rc);
    else if (rc < 0)
        config_errors_add(errors, "%s: out of memory", name);
    return errors->count == before;
}

bool config_load(struct config *config, const char *path, struct config_errors *errors) {
    bool ok = false;
    struct stat st;
    char *text = NULL;
    size_t have = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0) {
        config_errors_add(errors, "%s: %s", path, strerror(errno));
        goto out;
    }
    if (!S_ISREG(st.st_mode) || st.st_size > (off_t)CONFIG_MAX_BYTES) {
        config_errors_add(errors, "%s: not a regular file of at most %u bytes", path, CONFIG_MAX_BYTES);
        goto out;
    }
    text = malloc((size_t)st.st_size + 1);
    if (text == NULL) {
        config_errors_add(errors, "%s: out of memory", path);
        goto out;
    }
    while (have < (size_t)st.st_size) {
        ssize_t n = read(fd, text + have, (size_t)st.st_size - have);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            config_errors_add(errors, "%s: %s", path, strerror(errno));
            goto out;
        }
        if (n == 0)
            break;
        have += (size_t)n;
    }
    ok = config_parse(config, path, text, have, errors);
out:
    free(text);
    if (fd >= 0)
        close(fd);
    return ok;
}

bool config_set(struct config *config, const char *origin, const char *assignment, struct config_errors *errors) {
    size_t before = errors->count;
    char name[64];
    const char *eq = strchr(assignment, '=');
    size_t n = eq != NULL ? (size_t)(eq - assignment) : 0;
    while (n > 0 && assignment[n - 1] == ' ')
        n--;
    if (n == 0 || n >= sizeof name) {
        config_errors_add(errors, "%s: '%s' is not key=value", origin, assignment);
        return false;
    }
    memcpy(name, assignment, n);
    name[n] = '\0';
    for (eq++; *eq == ' ';)
        eq++;
    (void)config_apply(config, origin, name, eq, errors);
    return errors->count == before;
}

bool config_check(const struct config *config, struct config_errors *errors) {
    size_t before = errors->count;
    char host[96];
    unsigned port;
    if (config->socket[0] != '/')
        config_errors_add(errors, "socket: '%s' is not an absolute path", config->socket);
    if (strlen(config->socket) > sizeof config->socket - 6)
        config_errors_add(errors, "socket: '%s' is too long, at most %zu bytes", config->socket,
                          sizeof config->socket - 6);
    if (config->admin_socket[0] != '\0') {
        if (config->admin_socket[0] != '/' || strlen(config->admin_socket) > sizeof config->admin_socket - 6)
            config_errors_add(errors, "admin_socket: '%s' is not an absolute path of at most %zu bytes",
                              config->admin_socket, sizeof config->admin_socket - 6);
        if (strcmp(config->admin_socket, config->socket) == 0)
            config_errors_add(errors, "admin_socket: '%s' is the clients' socket already", config->admin_socket);
    }
    if (config->advertise[0] != '\0' && strchr(config->advertise, ':') != NULL &&
        !config_split_hostport(config->advertise, host, sizeof host, &port))
        config_errors_add(errors, "advertise: bad value '%s', allowed: host or host:port", config->advertise);
    if (config->peer_key_file[0] != '\0' && config->peer_key_file[0] != '/')
        config_errors_add(errors, "peer_key_file: '%s' is not an absolute path", config->peer_key_file);
    if (config->state_directory[0] != '\0' && config->state_directory[0] != '/')
        config_errors_add(errors, "state_directory: '%s' is not an absolute path", config->state_directory);
    if (strcmp(config->peer_auth, "key") == 0 && config->peer_key_file[0] == '\0')
        config_errors_add(errors, "peer_auth: 'key' wants a peer_key_file");
    if (strcmp(config->peer_auth, "none") == 0 && config->peer_key_file[0] != '\0')
        config_errors_add(errors, "peer_auth: 'none' contradicts peer_key_file");
    if (config->group[0] != '\0' && config->user[0] == '\0')
        config_errors_add(errors, "group: '%s' without a user", config->group);
    return errors->count == before;
}

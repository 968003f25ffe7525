/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads metrics line by line and trusts nothing.
 */
#include "openmetrics.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <math.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define OM_MAX_FAMILIES 256

struct reader {
    struct om *om;
    bool openmetrics;
    char families[OM_MAX_FAMILIES][96]; /* all so far; the last is the current one */
    unsigned nfamilies, line;
    char type[16];
    bool help, unit, sampled;
    /* of the histogram under way */
    double bound, below;
    char series[512];
};

static bool fail(struct reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool fail(struct reader *r, const char *format, ...) {
    va_list args;
    int n = snprintf(r->om->error, sizeof r->om->error, "line %u: ", r->line);
    va_start(args, format);
    vsnprintf(r->om->error + n, sizeof r->om->error - (size_t)n, format, args);
    va_end(args);
    return false;
}

static bool ends(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static size_t name_length(const char *p, bool label) {
    size_t n = 0;
    while (isalpha((unsigned char)p[n]) || p[n] == '_' || (p[n] == ':' && !label) ||
           (n > 0 && isdigit((unsigned char)p[n])))
        n++;
    return n;
}

/* "# WHAT family rest" */
static bool read_meta(struct reader *r, const char *line) {
    char what[8], name[96];
    int at = 0;
    if (sscanf(line, "# %7s %95s %n", what, name, &at) != 2 || at == 0 || name[name_length(name, false)] != '\0')
        return fail(r, "not a line of metadata: %s", line);
    const char *rest = line + at;
    const char *current = r->nfamilies > 0 ? r->families[r->nfamilies - 1] : "";
    if (strcmp(what, "TYPE") == 0) {
        for (unsigned i = 0; i < r->nfamilies; i++) {
            if (strcmp(r->families[i], name) == 0)
                return fail(r, "family %s comes twice", name);
        }
        if (r->nfamilies == OM_MAX_FAMILIES)
            return fail(r, "too many families");
        bool known = strcmp(rest, "counter") == 0 || strcmp(rest, "gauge") == 0 || strcmp(rest, "histogram") == 0 ||
                     (r->openmetrics && strcmp(rest, "info") == 0);
        if (!known)
            return fail(r, "type %s of %s", rest, name);
        if (r->openmetrics == ends(name, "_total") && strcmp(rest, "counter") == 0)
            return fail(r, "counter %s: _total belongs to %s", name, r->openmetrics ? "samples" : "the family");
        snprintf(r->families[r->nfamilies++], sizeof r->families[0], "%s", name);
        snprintf(r->type, sizeof r->type, "%s", rest);
        r->help = r->unit = r->sampled = false;
        r->series[0] = '\0';
        return true;
    }
    if (strcmp(current, name) != 0 || r->sampled)
        return fail(r, "%s of %s is not where its family begins", what, name);
    if (strcmp(what, "UNIT") == 0) {
        if (r->unit || !r->openmetrics || *rest == '\0' || !ends(name, rest) ||
            name[strlen(name) - strlen(rest) - 1] != '_')
            return fail(r, "unit %s of %s", rest, name);
        r->unit = true;
        return true;
    }
    if (strcmp(what, "HELP") != 0 || r->help || *rest == '\0')
        return fail(r, "%s of %s", what, name);
    r->help = true;
    return true;
}

/* From behind the brace to behind its end; NULL: failed. le: its value, or "". */
static const char *read_labels(struct reader *r, const char *p, char *le, size_t size) {
    const char *names[16];
    size_t lengths[16];
    unsigned n = 0;
    for (;;) {
        size_t length = name_length(p, true), used = 0;
        if (length == 0 || n == 16 || p[length] != '=' || p[length + 1] != '"') {
            fail(r, "label at '%s'", p);
            return NULL;
        }
        for (unsigned i = 0; i < n; i++) {
            if (lengths[i] == length && memcmp(names[i], p, length) == 0) {
                fail(r, "label twice: %s", p);
                return NULL;
            }
        }
        bool is_le = length == 2 && memcmp(p, "le", 2) == 0;
        names[n] = p;
        lengths[n++] = length;
        for (p += length + 2; *p != '"'; p++) {
            if (*p == '\0' || (*p == '\\' && *++p != '\\' && *p != '"' && *p != 'n') || (unsigned char)*p < 0x20) {
                fail(r, "value of a label");
                return NULL;
            }
            if (is_le && used + 1 < size)
                le[used++] = *p;
        }
        if (is_le)
            le[used] = '\0';
        p++;
        if (*p == '}')
            return p + 1;
        if (*p++ != ',') {
            fail(r, "behind a label");
            return NULL;
        }
    }
}

static bool read_histogram(struct reader *r, const char *suffix, const char *labels, const char *le, double value) {
    char series[512];
    snprintf(series, sizeof series, "%s", labels);
    char *cut = strstr(series, "le=\"");
    if (cut != NULL)
        *(cut > series ? cut - 1 : cut) = '\0'; /* le comes last */
    if (strcmp(suffix, "_bucket") == 0) {
        double bound = strcmp(le, "+Inf") == 0 ? INFINITY : strtod(le, NULL);
        if (*le == '\0' || (strcmp(series, r->series) == 0 && (bound <= r->bound || value < r->below)))
            return fail(r, "bucket le=%s of %s", le, labels);
        snprintf(r->series, sizeof r->series, "%s", series);
        r->bound = bound;
        r->below = value;
        return true;
    }
    if (strcmp(series, r->series) != 0 || !isinf(r->bound))
        return fail(r, "%s without all buckets", suffix);
    if (strcmp(suffix, "_count") == 0 && value != r->below)
        return fail(r, "count differs from the last bucket");
    return true;
}

static bool read_sample(struct reader *r, const char *line) {
    const char *family = r->nfamilies > 0 ? r->families[r->nfamilies - 1] : "";
    size_t length = name_length(line, false), base = strlen(family);
    char name[128], suffix[32], le[64] = "", *end;
    const char *labels = line + length, *p = labels;
    if (length == 0 || length >= sizeof name || base == 0 || strncmp(line, family, base) != 0 || length < base ||
        length - base >= sizeof suffix)
        return fail(r, "sample of another family than %s: %s", family, line);
    snprintf(name, sizeof name, "%.*s", (int)length, line);
    snprintf(suffix, sizeof suffix, "%s", name + base);
    bool histogram = strcmp(r->type, "histogram") == 0;
    const char *wanted = !r->openmetrics || strcmp(r->type, "gauge") == 0 ? ""
                         : strcmp(r->type, "counter") == 0                ? "_total"
                                                                          : "_info";
    if (histogram ? strcmp(suffix, "_bucket") != 0 && strcmp(suffix, "_sum") != 0 && strcmp(suffix, "_count") != 0
                  : strcmp(suffix, wanted) != 0)
        return fail(r, "%s is no sample of a %s %s", name, r->type, family);
    if (!r->help)
        return fail(r, "%s has no help", family);
    if (*p == '{' && (p = read_labels(r, p + 1, le, sizeof le)) == NULL)
        return false;
    size_t nlabels = *labels == '{' ? (size_t)(p - labels) - 2 : 0;
    if (*p != ' ' || p[1] == '\0' || isspace((unsigned char)p[1]))
        return fail(r, "no value: %s", line);
    double value = strtod(p + 1, &end);
    if (end == p + 1 || *end != '\0' || !isfinite(value) || value < 0)
        return fail(r, "value of %s", line);
    struct om_sample *grown = realloc(r->om->samples, (r->om->n + 1) * sizeof *grown);
    if (grown == NULL)
        return fail(r, "no memory");
    r->om->samples = grown;
    r->om->samples[r->om->n++] =
        (struct om_sample){.name = strdup(name), .labels = strndup(labels + 1, nlabels), .value = value};
    r->sampled = true;
    return !histogram || read_histogram(r, suffix, r->om->samples[r->om->n - 1].labels, le, value);
}

static int by_series(const void *a, const void *b) {
    const struct om_sample *x = a, *y = b;
    int names = strcmp(x->name, y->name);
    return names != 0 ? names : strcmp(x->labels, y->labels);
}

bool om_parse(struct om *om, const char *text, bool openmetrics) {
    struct reader r = {.om = om, .openmetrics = openmetrics};
    bool ended = false, ok = true;
    *om = (struct om){0};
    char *copy = strdup(text), *p = copy;
    for (r.line = 1; ok && p != NULL && *p != '\0'; r.line++) {
        char *end = strchr(p, '\n');
        if (end == NULL || end == p || ended) {
            ok = fail(&r, end == NULL ? "has no end" : end == p ? "is empty" : "behind the end");
            break;
        }
        *end = '\0';
        if (openmetrics && strcmp(p, "# EOF") == 0)
            ended = true;
        else
            ok = *p == '#' ? read_meta(&r, p) : read_sample(&r, p);
        p = end + 1;
    }
    free(copy);
    if (ok && openmetrics && !ended)
        ok = fail(&r, "no # EOF");
    if (ok && om->n > 0)
        qsort(om->samples, om->n, sizeof *om->samples, by_series);
    for (size_t i = 1; ok && i < om->n; i++) {
        if (by_series(&om->samples[i - 1], &om->samples[i]) == 0)
            ok = fail(&r, "%s{%s} comes twice", om->samples[i].name, om->samples[i].labels);
    }
    return ok;
}

void om_free(struct om *om) {
    for (size_t i = 0; i < om->n; i++) {
        free(om->samples[i].name);
        free(om->samples[i].labels);
    }
    free(om->samples);
    om->samples = NULL;
    om->n = 0;
}

bool om_has(const struct om *om, const char *name) {
    for (size_t i = 0; i < om->n; i++) {
        if (strcmp(om->samples[i].name, name) == 0)
            return true;
    }
    return false;
}

double om_sum(const struct om *om, const char *name, const char *labels) {
    double sum = 0;
    for (size_t i = 0; i < om->n; i++) {
        if (strcmp(om->samples[i].name, name) == 0 && strstr(om->samples[i].labels, labels) != NULL)
            sum += om->samples[i].value;
    }
    return sum;
}

int om_connect(unsigned port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

char *om_http(unsigned port, const char *request, double seconds) {
    struct timeval wait = {.tv_sec = (time_t)seconds, .tv_usec = (suseconds_t)(fmod(seconds, 1) * 1e6)};
    size_t have = 0, size = 1 << 16;
    char *text = malloc(size);
    int fd = om_connect(port);
    ssize_t n = -1;
    if (fd < 0 || text == NULL)
        goto out;
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    if (send(fd, request, strlen(request), MSG_NOSIGNAL) != (ssize_t)strlen(request))
        goto out;
    while ((n = recv(fd, text + have, size - have - 1, 0)) > 0) {
        have += (size_t)n;
        if (size - have > 1)
            continue;
        char *grown = realloc(text, size *= 2);
        if (grown == NULL)
            break;
        text = grown;
    }
out:
    if (fd >= 0)
        close(fd);
    if (n != 0 || have == 0) {
        free(text);
        return NULL;
    }
    text[have] = '\0';
    return text;
}

char *om_scrape(unsigned port, bool openmetrics) {
    /* As Prometheus asks. */
    const char *request = openmetrics
                              ? "GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: application/openmetrics-text;version="
                                "1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1\r\n\r\n"
                              : "GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: text/plain;version=0.0.4\r\n\r\n";
    const char *type = openmetrics ? "\r\nContent-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"
                                   : "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n";
    char *answer = om_http(port, request, 10);
    char *body = answer != NULL ? strstr(answer, "\r\n\r\n") : NULL, *text = NULL;
    if (body != NULL && strncmp(answer, "HTTP/1.1 200 ", 13) == 0) {
        const char *head = strstr(answer, type), *length = strstr(answer, "\r\nContent-Length: ");
        if (head != NULL && head < body && length != NULL && strtoul(length + 18, NULL, 10) == strlen(body + 4))
            text = strdup(body + 4);
    }
    free(answer);
    return text;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * What the checks of doctor share. See doctor.h.
 */
#include "client/ctl/doctor.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH 512

void doctor_run(struct doctor *d, const struct doctor_check *checks) {
    for (; checks->name; checks++)
        checks->run(d);
}

void doctor_add(struct doctor *d, const char *check, enum doctor_level level, const char *remedy, const char *format,
                ...) {
    va_list ap;
    if (d->n == DOCTOR_MAX_LINES)
        return;
    struct doctor_line *line = &d->lines[d->n++];
    line->check = check;
    line->level = level;
    (void)snprintf(line->remedy, sizeof line->remedy, "%s", remedy ? remedy : "");
    va_start(ap, format);
    (void)vsnprintf(line->text, sizeof line->text, format, ap);
    va_end(ap);
}

static void path_of(const struct doctor *d, char path[PATH], const char *format, va_list ap) {
    int n = snprintf(path, PATH, "%s", d->root);
    if (n >= 0 && n < PATH)
        (void)vsnprintf(path + n, (size_t)(PATH - n), format, ap);
}

bool doctor_read(const struct doctor *d, char *text, size_t size, const char *format, ...) {
    char path[PATH];
    va_list ap;
    va_start(ap, format);
    path_of(d, path, format, ap);
    va_end(ap);
    FILE *f = fopen(path, "re");
    bool ok = f && fgets(text, (int)size, f);
    if (f)
        (void)fclose(f);
    if (ok)
        text[strcspn(text, "\n")] = 0;
    return ok;
}

bool doctor_exists(const struct doctor *d, const char *format, ...) {
    char path[PATH];
    va_list ap;
    va_start(ap, format);
    path_of(d, path, format, ap);
    va_end(ap);
    return access(path, F_OK) == 0;
}

bool doctor_limit(const struct doctor *d, const char *name, uint64_t *value) {
    char path[PATH], line[256];
    bool found = false;
    if (d->pid > 0)
        (void)snprintf(path, sizeof path, "%s/proc/%d/limits", d->root, (int)d->pid);
    FILE *f = d->pid > 0 ? fopen(path, "re") : NULL;
    if (!f) { /* another user's: ours is the best guess */
        (void)snprintf(path, sizeof path, "%s/proc/self/limits", d->root);
        f = fopen(path, "re");
    }
    while (f && !found && fgets(line, sizeof line, f)) {
        size_t n = strlen(name);
        if (strncmp(line, name, n) != 0)
            continue;
        const char *soft = line + n + strspn(line + n, " ");
        *value = !strncmp(soft, "unlimited", 9) ? UINT64_MAX : strtoull(soft, NULL, 10);
        found = true;
    }
    if (f)
        (void)fclose(f);
    return found;
}

const char *doctor_config(const struct doctor *d, const char *key) {
    for (size_t i = 0; d->config && i < d->config->n_keys; i++)
        if (!strcmp(d->config->keys[i]->name, key))
            return d->config->keys[i]->value;
    return "";
}

const char *doctor_level_name(enum doctor_level level) {
    return level == DOCTOR_OK ? "ok" : level == DOCTOR_WARN ? "warn" : "fail";
}

enum doctor_level doctor_worst(const struct doctor *d) {
    enum doctor_level worst = DOCTOR_OK;
    for (size_t i = 0; i < d->n; i++)
        worst = d->lines[i].level > worst ? d->lines[i].level : worst;
    return worst;
}

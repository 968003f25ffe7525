/* SPDX-License-Identifier: Apache-2.0
 *
 * Files of profiles: profile-KEY, KEY in 16 hexadecimal digits.
 */
#include "daemon/core/profile_store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/core/log.h"

#define STORE_MAX_FILES 4096u /* names that are looked at */
#define STORE_NAME      48u
#define STORE_PARTIAL   ".new"

static void store_name(char name[STORE_NAME], uint64_t key) {
    snprintf(name, STORE_NAME, "profile-%016" PRIx64, key);
}

/* True where the name is one of ours, but for what comes behind it. */
static bool store_key(const char *name, uint64_t *key, const char **behind) {
    char again[STORE_NAME];
    if (sscanf(name, "profile-%16" SCNx64, key) != 1)
        return false;
    store_name(again, *key);
    size_t n = strlen(again);
    *behind = name + n;
    return strncmp(again, name, n) == 0;
}

/* Reads a file. False: *why says why not. */
static bool store_read(int dir, const char *name, struct profile *p, uint64_t *age, const char **why) {
    uint8_t bytes[sizeof *p + 1];
    struct stat st;
    size_t have = 0;
    ssize_t n = 1;
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) != 0) {
        *why = strerror(errno);
        if (fd >= 0)
            close(fd);
        return false;
    }
    *why = S_ISREG(st.st_mode) ? NULL : "it is no regular file";
    while (*why == NULL && n > 0 && have < sizeof bytes) {
        n = read(fd, bytes + have, sizeof bytes - have);
        if (n > 0)
            have += (size_t)n;
    }
    if (n < 0)
        *why = strerror(errno);
    close(fd);
    *age = (uint64_t)st.st_mtim.tv_sec;
    return *why == NULL && profile_read(bytes, have, p, why);
}

static int store_by_age(const void *a, const void *b) {
    uint64_t x = ((const struct profile_entry *)a)->used, y = ((const struct profile_entry *)b)->used;
    return (x < y) - (x > y);
}

/* Reads all, and keeps the youngest. */
static void store_load(struct profile_store *s, const char *path) {
    uint32_t names = 0;
    int fd = openat(s->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (dir == NULL) {
        log_warn("state_directory: %s: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return;
    }
    for (const struct dirent *e; names < STORE_MAX_FILES && (e = readdir(dir)) != NULL; names++) {
        struct profile_entry *at = &s->entries[s->n];
        const char *why = NULL, *behind = NULL;
        uint64_t key;
        if (!store_key(e->d_name, &key, &behind))
            continue;
        if (strcmp(behind, STORE_PARTIAL) == 0)
            (void)unlinkat(s->dir, e->d_name, 0); /* what a write that was cut off has left */
        if (behind[0] != '\0')
            continue;
        if (store_read(s->dir, e->d_name, &at->profile, &at->used, &why) && at->profile.key != key)
            why = "it is another one's";
        if (why != NULL) {
            log_warn("profile %s/%s is ignored: %s", path, e->d_name, why);
            continue;
        }
        if (++s->n <= PROFILE_STORE_MAX)
            continue;
        char name[STORE_NAME];
        qsort(s->entries, s->n, sizeof *s->entries, store_by_age);
        store_name(name, s->entries[--s->n].profile.key);
        (void)unlinkat(s->dir, name, 0);
    }
    closedir(dir);
    /* From the oldest to the youngest. */
    qsort(s->entries, s->n, sizeof *s->entries, store_by_age);
    for (uint32_t i = s->n; i-- > 0;)
        s->entries[i].used = ++s->clock;
    log_info("%u profiles of earlier communicators (state_directory=%s)", s->n, path);
}

void profile_store_open(struct profile_store *s, uv_loop_t *loop, const char *path) {
    *s = (struct profile_store){.loop = loop, .dir = -1};
    const char *from_manager = getenv("STATE_DIRECTORY");
    if (path[0] == '\0')
        path = from_manager != NULL ? from_manager : "";
    if (path[0] == '\0')
        return;
    s->dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->dir < 0) {
        log_warn("state_directory: %s: %s; nothing that is learned is kept", path, strerror(errno));
        return;
    }
    s->entries = calloc(PROFILE_STORE_MAX + 1, sizeof *s->entries);
    if (s->entries == NULL) {
        log_warn("state_directory: out of memory");
        profile_store_close(s);
        return;
    }
    store_load(s, path);
}

const struct profile *profile_store_find(struct profile_store *s, uint64_t key) {
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->entries[i].profile.key != key)
            continue;
        s->entries[i].used = ++s->clock;
        return &s->entries[i].profile;
    }
    return NULL;
}

/* 0, or errno. */
static int store_write(int dir, const struct profile *p) {
    char name[STORE_NAME], partial[STORE_NAME + 8];
    store_name(name, p->key);
    snprintf(partial, sizeof partial, "%s" STORE_PARTIAL, name);
    (void)unlinkat(dir, partial, 0);
    int fd = openat(dir, partial, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return errno;
    errno = EIO; /* of a short write */
    bool ok = write(fd, p, sizeof *p) == (ssize_t)sizeof *p && fsync(fd) == 0;
    int error = ok ? 0 : errno;
    if (close(fd) != 0 && ok)
        error = errno;
    if (error == 0 && renameat(dir, partial, dir, name) != 0)
        error = errno;
    if (error == 0 && fsync(dir) != 0)
        error = errno;
    if (error != 0)
        (void)unlinkat(dir, partial, 0);
    return error;
}

/* On a thread of the pool. */
static void store_work(uv_work_t *work) {
    struct profile_store *s = work->data;
    char name[STORE_NAME];
    store_name(name, s->remove);
    if (s->remove != 0)
        (void)unlinkat(s->dir, name, 0);
    s->error = store_write(s->dir, &s->written);
}

static void store_next(struct profile_store *s);

static void store_done(uv_work_t *work, int status) {
    struct profile_store *s = work->data;
    s->writing = false;
    s->remove = 0;
    if (status == 0 && s->error != 0 && !s->told) {
        log_warn("a profile cannot be written to state_directory: %s", strerror(s->error));
        s->told = true;
    }
    store_next(s);
}

static void store_next(struct profile_store *s) {
    for (uint32_t i = 0; i < s->n && !s->writing; i++) {
        if (!s->entries[i].dirty)
            continue;
        s->entries[i].dirty = false;
        s->written = s->entries[i].profile;
        s->work.data = s;
        s->writing = uv_queue_work(s->loop, &s->work, store_work, store_done) == 0;
    }
}

void profile_store_put(struct profile_store *s, const struct profile *p) {
    struct profile_entry *at = NULL, *oldest = NULL;
    if (s->dir < 0)
        return;
    for (uint32_t i = 0; i < s->n && at == NULL; i++) {
        if (s->entries[i].profile.key == p->key)
            at = &s->entries[i];
        if (oldest == NULL || s->entries[i].used < oldest->used)
            oldest = &s->entries[i];
    }
    if (at != NULL && memcmp(&at->profile, p, sizeof *p) == 0)
        return;
    if (at == NULL && s->n < PROFILE_STORE_MAX) {
        at = &s->entries[s->n++];
    } else if (at == NULL) {
        at = oldest;
        if (!s->writing) /* else its file goes when too many are found at the next start */
            s->remove = oldest->profile.key;
    }
    at->profile = *p;
    at->used = ++s->clock;
    at->dirty = true;
    store_next(s);
}

void profile_store_close(struct profile_store *s) {
    if (s->loop == NULL)
        return;
    if (s->dir >= 0)
        close(s->dir);
    free(s->entries);
    *s = (struct profile_store){.dir = -1};
}

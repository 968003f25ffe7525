/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensor files for the commands, mapped, as a list of tensors.
 */
#include "client/ctl/tensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/ctl/safetensors.h"
#include "kernels/codec.h"
#include "kernels/dtype.h"

bool tensor_dtype_from_name(const char *name, zipcclDataType_t *dtype) {
    char fp8[32];
    (void)snprintf(fp8, sizeof fp8, "fp8_%.20s", name);
    return dtype_from_name(name, dtype) || dtype_from_name(fp8, dtype);
}

char *tensor_escape(const char *text) {
    char *out = malloc(4 * strlen(text) + 1), *o = out;
    if (!out)
        return NULL;
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if (*p < 0x20 || *p >= 0x7f || *p == '"' || *p == '\\')
            o += sprintf(o, "\\x%02x", *p);
        else
            *o++ = (char)*p;
    }
    *o = 0;
    return out;
}

static bool map_file(struct tensor_list *list, const char *path, char why[256]) {
    struct tensor_file *file = &list->files[list->nfiles];
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool ok = false;
    if (fd < 0 || fstat(fd, &st) < 0) {
        (void)snprintf(why, 256, "%.180s: %s", path, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        (void)snprintf(why, 256, "%.180s: not a regular file", path);
    } else if (st.st_size == 0) {
        (void)snprintf(why, 256, "%.180s: is empty", path);
    } else {
        file->size = (size_t)st.st_size;
        file->map = mmap(NULL, file->size, PROT_READ, MAP_PRIVATE, fd, 0);
        ok = file->map != MAP_FAILED;
        if (ok)
            list->nfiles++;
        else
            (void)snprintf(why, 256, "%.180s: cannot map: %s", path, strerror(errno));
    }
    if (fd >= 0)
        (void)close(fd);
    return ok;
}

static struct tensor *add(struct tensor_list *list) {
    struct tensor *tensors = realloc(list->tensors, (list->n + 1) * sizeof *tensors);
    if (!tensors)
        return NULL;
    list->tensors = tensors;
    memset(&tensors[list->n], 0, sizeof *tensors);
    return &tensors[list->n++];
}

static bool no_memory(char why[256]) {
    (void)snprintf(why, 256, "out of memory");
    return false;
}

static bool add_raw(struct tensor_list *list, const char *path, const zipcclDataType_t *wanted, char why[256]) {
    const struct tensor_file *file = &list->files[list->nfiles - 1];
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path, *dot = strrchr(base, '.');
    zipcclDataType_t dtype = zipcclBfloat16;
    if (wanted)
        dtype = *wanted;
    else if (dot && !tensor_dtype_from_name(dot + 1, &dtype))
        dtype = zipcclBfloat16;
    const struct dtype_info *info = dtype_get(dtype);
    struct tensor *t = add(list);
    if (!t || !info)
        return no_memory(why);
    if (file->size % info->bytes) {
        (void)snprintf(why, 256, "%.180s: %zu bytes are no whole number of %s values", path, file->size, info->name);
        return false;
    }
    t->name = tensor_escape(base);
    (void)snprintf(t->dtype_name, sizeof t->dtype_name, "%s", info->name);
    t->dtype = dtype;
    t->coded = codec_supports(zipcclCodecTier, dtype);
    t->count = file->size / info->bytes;
    t->bytes = file->size;
    t->values = file->map;
    return t->name || no_memory(why);
}

static bool add_safetensors(struct tensor_list *list, const char *path, char why[256]) {
    const struct tensor_file *file = &list->files[list->nfiles - 1];
    struct safetensors s;
    char reason[SAFETENSORS_WHY];
    zipcclResult_t rc = safetensors_parse(file->map, file->size, &s, reason);
    if (rc != zipcclSuccess) {
        (void)snprintf(why, 256, "%.100s: %.150s", path, rc == zipcclOutOfMemory ? "out of memory" : reason);
        return false;
    }
    bool ok = true;
    for (size_t i = 0; i < s.n && ok; i++) {
        const struct safetensors_entry *e = &s.entries[i];
        const struct dtype_info *info = e->coded ? dtype_get(e->zipccl_dtype) : NULL;
        struct tensor *t = add(list);
        ok = t && (t->name = tensor_escape(e->name));
        if (!ok)
            break;
        (void)snprintf(t->dtype_name, sizeof t->dtype_name, "%s", info ? info->name : e->dtype);
        t->dtype = e->coded ? e->zipccl_dtype : zipcclUint8;
        t->coded = e->coded;
        t->count = e->count;
        t->bytes = e->bytes;
        t->values = (const char *)file->map + e->begin;
    }
    safetensors_free(&s);
    return ok || no_memory(why);
}

bool tensor_list_open(struct tensor_list *list, char *const *paths, size_t n, const zipcclDataType_t *dtype,
                      char why[256]) {
    static const char extension[] = ".safetensors";
    memset(list, 0, sizeof *list);
    list->files = calloc(n ? n : 1, sizeof *list->files);
    if (!list->files)
        return no_memory(why);
    for (size_t i = 0; i < n; i++) {
        size_t length = strlen(paths[i]), tail = sizeof extension - 1;
        if (!map_file(list, paths[i], why))
            return false;
        if (length > tail && !strcmp(paths[i] + length - tail, extension)) {
            if (!add_safetensors(list, paths[i], why))
                return false;
        } else if (!add_raw(list, paths[i], dtype, why)) {
            return false;
        }
    }
    return true;
}

void tensor_list_free(struct tensor_list *list) {
    for (size_t i = 0; i < list->n; i++)
        free(list->tensors[i].name);
    for (size_t i = 0; i < list->nfiles; i++)
        (void)munmap(list->files[i].map, list->files[i].size);
    free(list->tensors);
    free(list->files);
    memset(list, 0, sizeof *list);
}

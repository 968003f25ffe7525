/* SPDX-License-Identifier: Apache-2.0
 *
 * A strict reader of .safetensors headers.
 */
#include "client/ctl/safetensors.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/codec.h"
#include "kernels/dtype.h"

#define MAX_DEPTH 8 /* of brackets; a header needs 3. Bounds the recursion of the JSON parser */

/* Types that zipccl does not name, but whose size is needed for the check. bits 0 ends. */
static const struct {
    const char *name;
    unsigned bits;
} other_types[] = {
    {"BOOL", 8}, {"I16", 16}, {"U16", 16}, {"F8_E8M0", 8}, {"C64", 64}, {"I64", 64}, {"U64", 64}, {NULL, 0},
};

static zipcclResult_t bad(char why[SAFETENSORS_WHY], const char *format, ...) __attribute__((format(printf, 2, 3)));
static zipcclResult_t bad(char why[SAFETENSORS_WHY], const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    (void)vsnprintf(why, SAFETENSORS_WHY, format, ap);
    va_end(ap);
    return zipcclCorruptData;
}

/* Whether a name of the file may stand in an error. */
static bool printable(const char *s) {
    while (*s > 0x20 && *s < 0x7f)
        s++;
    return *s == 0;
}

/* Brackets inside strings do not count. */
static bool too_deep(const char *text, size_t n) {
    int depth = 0;
    bool string = false;
    for (size_t i = 0; i < n; i++) {
        if (string) {
            if (text[i] == '\\')
                i++;
            else if (text[i] == '"')
                string = false;
        } else if (text[i] == '"') {
            string = true;
        } else if (text[i] == '{' || text[i] == '[') {
            if (++depth > MAX_DEPTH)
                return true;
        } else if (text[i] == '}' || text[i] == ']') {
            depth--;
        }
    }
    return false;
}

static bool as_size(const json_t *value, uint64_t *out) {
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

/* The size in bytes of a value of this type; names of the table of dtypes as they stand in these files. */
static bool type_of(const char *name, struct safetensors_entry *e, unsigned *bytes) {
    for (unsigned d = 0; d < zipcclNumTypes; d++) {
        const struct dtype_info *info = dtype_get(d);
        if (info && info->safetensors && !strcmp(info->safetensors, name)) {
            e->zipccl_dtype = (zipcclDataType_t)d;
            e->coded = codec_supports(zipcclCodecTier, e->zipccl_dtype);
            *bytes = info->bytes;
            return true;
        }
    }
    for (size_t i = 0; other_types[i].name; i++) {
        if (!strcmp(other_types[i].name, name)) {
            *bytes = other_types[i].bits / 8;
            return true;
        }
    }
    return false;
}

static zipcclResult_t read_entry(const json_t *tensor, uint64_t data_bytes, struct safetensors_entry *e,
                                 char why[SAFETENSORS_WHY]) {
    const json_t *dtype = json_object_get(tensor, "dtype"), *shape = json_object_get(tensor, "shape");
    const json_t *offsets = json_object_get(tensor, "data_offsets");
    uint64_t begin, end;
    unsigned bytes;
    if (!json_is_object(tensor) || json_object_size(tensor) != 3 || !json_is_string(dtype) || !json_is_array(shape) ||
        !json_is_array(offsets) || json_array_size(offsets) != 2)
        return bad(why, "a tensor must have dtype, shape and two data_offsets, and nothing else");
    if (!type_of(json_string_value(dtype), e, &bytes))
        return bad(why, "a tensor has the dtype \"%.40s\", which is not known here",
                   printable(json_string_value(dtype)) ? json_string_value(dtype) : "?");
    e->count = 1;
    for (size_t i = 0; i < json_array_size(shape); i++) {
        uint64_t extent;
        if (!as_size(json_array_get(shape, i), &extent) || __builtin_mul_overflow(e->count, extent, &e->count))
            return bad(why, "a tensor's shape is not a list of sizes");
    }
    if (__builtin_mul_overflow(e->count, (uint64_t)bytes, &e->bytes))
        return bad(why, "a tensor's shape is too large");
    if (!as_size(json_array_get(offsets, 0), &begin) || !as_size(json_array_get(offsets, 1), &end) || begin > end ||
        end > data_bytes)
        return bad(why, "a tensor's data_offsets are outside of the file: is it cut short?");
    if (end - begin != e->bytes)
        return bad(why, "a tensor's data_offsets hold %llu bytes, its dtype and shape need %llu",
                   (unsigned long long)(end - begin), (unsigned long long)e->bytes);
    e->begin = begin;
    e->dtype = strdup(json_string_value(dtype));
    return e->dtype ? zipcclSuccess : zipcclOutOfMemory;
}

static int by_begin(const void *a, const void *b) {
    const struct safetensors_entry *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty ones first */
}

/* The format forbids holes and overlaps; both could hide data. */
static zipcclResult_t check_cover(const struct safetensors *s, uint64_t data_bytes, char why[SAFETENSORS_WHY]) {
    uint64_t at = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (s->entries[i].begin != at)
            return bad(why, "tensors %s at byte %llu of the data",
                       s->entries[i].begin < at ? "overlap" : "leave a hole", (unsigned long long)at);
        at += s->entries[i].bytes;
    }
    if (at != data_bytes)
        return bad(why, "%llu bytes after the last tensor", (unsigned long long)(data_bytes - at));
    return zipcclSuccess;
}

static zipcclResult_t read_metadata(const json_t *metadata, char why[SAFETENSORS_WHY]) {
    void *at;
    if (!json_is_object(metadata))
        return bad(why, "__metadata__ is not an object");
    for (at = json_object_iter((json_t *)metadata); at; at = json_object_iter_next((json_t *)metadata, at))
        if (!json_is_string(json_object_iter_value(at)))
            return bad(why, "__metadata__ holds something other than text");
    return zipcclSuccess;
}

zipcclResult_t safetensors_parse(const void *file, size_t size, struct safetensors *out, char why[SAFETENSORS_WHY]) {
    const uint8_t *bytes = file;
    const char *text = (const char *)bytes + 8;
    uint64_t length = 0, data_bytes;
    zipcclResult_t rc = zipcclCorruptData;
    json_error_t error;
    json_t *header = NULL, *tensor;
    void *at;
    memset(out, 0, sizeof *out);
    why[0] = 0;
    if (size < 8)
        return bad(why, "shorter than 8 bytes");
    for (unsigned i = 0; i < 8; i++)
        length |= (uint64_t)bytes[i] << (8 * i);
    if (length > SAFETENSORS_MAX_HEADER)
        return bad(why, "no .safetensors file: its first 8 bytes would be a header length of %llu",
                   (unsigned long long)length);
    if (length > size - 8)
        return bad(why, "the header's %llu bytes are more than the file has: is it cut short?",
                   (unsigned long long)length);
    data_bytes = size - 8 - length;
    if (!length || text[0] != '{')
        return bad(why, "no .safetensors file: its header does not begin with {");
    if (too_deep(text, length))
        return bad(why, "the header's brackets are too deep");
    header = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    if (!header)
        return bad(why, "the header is not JSON: byte %d", error.position);
    out->entries = calloc(json_object_size(header) + 1, sizeof *out->entries);
    if (!out->entries) {
        rc = zipcclOutOfMemory;
        goto out;
    }
    for (at = json_object_iter(header); at; at = json_object_iter_next(header, at)) {
        struct safetensors_entry *e = &out->entries[out->n];
        tensor = json_object_iter_value(at);
        if (!strcmp(json_object_iter_key(at), "__metadata__")) {
            rc = read_metadata(tensor, why);
        } else {
            out->n++; /* so that an entry half read is freed */
            rc = read_entry(tensor, data_bytes, e, why);
            if (rc == zipcclSuccess && !(e->name = strdup(json_object_iter_key(at))))
                rc = zipcclOutOfMemory;
        }
        if (rc != zipcclSuccess)
            goto out;
    }
    if (out->n)
        qsort(out->entries, out->n, sizeof *out->entries, by_begin);
    rc = check_cover(out, data_bytes, why);
    for (size_t i = 0; i < out->n; i++)
        out->entries[i].begin += 8 + length;
out:
    json_decref(header);
    if (rc != zipcclSuccess)
        safetensors_free(out);
    return rc;
}

void safetensors_free(struct safetensors *s) {
    for (size_t i = 0; i < s->n; i++) {
        free(s->entries[i].name);
        free(s->entries[i].dtype);
    }
    free(s->entries);
    memset(s, 0, sizeof *s);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The codecs as rows of a table, and all that is common to every instruction set: bounds, the chunk's header and
 * tables, the order of groups, and the checks of untrusted chunks. The loops are in kernels/cpu.
 */
#include "kernels/codec.h"

#include <string.h>
#include <strings.h>

#include "kernels/codec_reader.h"
#include "kernels/cpu/ops.h"
#include "kernels/dtype.h"
#include "kernels/layout.h"
#include "kernels/model.h"

/* A full group's inputs and outputs. */
struct group_io {
    enum layout_kind kind;
    unsigned blocks; /* full ones */
    bool stream;
    size_t dynamic_left; /* bytes from this group's dynamic part on; decode alone */
    struct model_window window;
    struct zfmt_block *heads;
};

/* A codec that writes chunks. Both functions move the escapes of one group. */
struct coder {
    unsigned planes; /* code planes of its coded body */
    uint8_t usual;   /* the mode of most blocks */
    /* Bit m: mode m is allowed in a full block, in a short one, with a base. */
    uint8_t full_modes, short_modes, based_modes;
    /* Returns the bytes of the bodies; sets the counts and the bytes of the dynamic part. */
    size_t (*encode)(const struct group_io *io, const uint8_t *src, uint8_t *body, uint8_t *dynamic,
                     struct zfmt_group *group, size_t *dynamic_bytes);
    size_t (*dynamic_size)(const struct zfmt_group *group);
    bool (*decode)(const struct group_io *io, const struct zfmt_block *heads, const struct zfmt_group *group,
                   const uint8_t *body, const uint8_t *dynamic, uint8_t *dst);
    bool (*counts_ok)(const struct zfmt_group *group, size_t values);
};

struct codec_row {
    const char *name;
    const struct coder *coder; /* NULL: raw */
};

/* The n raw bytes of a group's dynamic part for loops that take up to `most`, as many as hostile planes announce: a
 * copy where the chunk does not have so much behind them. */
static const uint8_t *raw_of(const struct group_io *io, const uint8_t *dynamic, size_t raw, size_t n, size_t most,
                             uint8_t *page) {
    if (raw + most + OPS_SLOP <= io->dynamic_left)
        return dynamic + raw;
    memcpy(page, dynamic + raw, n);
    return page;
}

/* A group's last n escapes and zeros behind them, `room` bytes in all: at most OPS_SLOP zeros. */
static void put_raw(uint8_t *dynamic, uint8_t *escapes, size_t n, size_t room) {
    memset(escapes + n, 0, OPS_SLOP);
    memcpy(dynamic, escapes, room);
}

/* ---- tier ---- */

static size_t tier_dynamic_size(const struct zfmt_group *g) {
    return g->n[0] ? layout_tier_dynamic(g).size : 0;
}

static bool tier_counts_ok(const struct zfmt_group *g, size_t values) {
    size_t most = values;
    for (unsigned t = 0; t < ZFMT_TIERS; t++) {
        if (g->n[t] > most)
            return false;
        most = g->n[t];
    }
    return true;
}

static size_t tier_encode(const struct group_io *io, const uint8_t *src, uint8_t *body, uint8_t *dynamic,
                          struct zfmt_group *g, size_t *dynamic_bytes) {
    _Alignas(64) uint8_t one[OPS_ESCAPES], two[OPS_ESCAPES];
    const struct cpu_ops *ops = cpu_ops_current();
    unsigned n1 = 0;
    size_t bytes = io->blocks ? ops->tier_encode(io->kind, src, io->blocks, io->heads, body, one, &n1, io->stream) : 0;
    *dynamic_bytes = 0;
    if (!n1)
        return bytes;
    uint8_t *last = one;
    struct layout_dynamic l = {{{0}}, 0, 0};
    layout_add_tier(&l, 2, n1);
    const unsigned n2 = ops->compact(2, one, n1, dynamic + l.planes[2][0], dynamic + l.planes[2][1], two);
    layout_add_tier(&l, 3, n2);
    const unsigned n3 = ops->compact(3, two, n2, dynamic + l.planes[3][0], dynamic + l.planes[3][1], one);
    layout_end_tiers(&l, n3);
    unsigned n4 = n3;
    struct layout_dynamic with = l;
    layout_add_tier(&with, 4, n3);
    layout_end_tiers(&with, 0);
    if (with.size < l.size) { /* it can pay */
        n4 = ops->compact(4, one, n3, dynamic + with.planes[4][0], dynamic + with.planes[4][1], two);
        layout_end_tiers(&with, n4);
        if (with.size < l.size) {
            l = with;
            last = two;
        } else {
            n4 = n3;
        }
    }
    put_raw(dynamic + l.raw, last, n4, l.size - l.raw);
    g->n[0] = (uint16_t)n1;
    g->n[1] = (uint16_t)n2;
    g->n[2] = (uint16_t)n3;
    g->n[3] = (uint16_t)n4;
    *dynamic_bytes = l.size;
    return bytes;
}

static bool tier_decode(const struct group_io *io, const struct zfmt_block *heads, const struct zfmt_group *g,
                        const uint8_t *body, const uint8_t *dynamic, uint8_t *dst) {
    _Alignas(64) uint8_t one[OPS_ESCAPES], two[OPS_ESCAPES];
    const struct cpu_ops *ops = cpu_ops_current();
    if (g->n[0]) {
        const struct layout_dynamic l = layout_tier_dynamic(g);
        const bool fourth = layout_has_tier4(g);
        const uint8_t *in = raw_of(io, dynamic, l.raw, g->n[3], g->n[fourth ? 2 : 1], fourth ? two : one);
        if (fourth) {
            if (ops->expand(4, dynamic + l.planes[4][0], dynamic + l.planes[4][1], g->n[2], in, one) != g->n[3])
                return false;
            in = one;
        }
        if (ops->expand(3, dynamic + l.planes[3][0], dynamic + l.planes[3][1], g->n[1], in, two) != g->n[2] ||
            ops->expand(2, dynamic + l.planes[2][0], dynamic + l.planes[2][1], g->n[0], two, one) != g->n[1])
            return false;
    }
    return ops->tier_decode(io->kind, heads, io->blocks, body, one, dst, io->stream) == g->n[0];
}

static const struct coder g_tier = {.planes = 2,
                                    .usual = ZFMT_TIER,
                                    .full_modes = 1u << ZFMT_ZERO | 1u << ZFMT_CONST | 1u << ZFMT_TIER |
                                                  1u << ZFMT_TIER_ZERO | 1u << ZFMT_RAW,
                                    .short_modes = 1u << ZFMT_ZERO | 1u << ZFMT_RAW,
                                    .based_modes = 1u << ZFMT_TIER | 1u << ZFMT_TIER_ZERO,
                                    .encode = tier_encode,
                                    .dynamic_size = tier_dynamic_size,
                                    .decode = tier_decode,
                                    .counts_ok = tier_counts_ok};

/* ---- top7 ---- */

static size_t top7_dynamic_size(const struct zfmt_group *g) {
    return layout_align(g->n[0], ZFMT_ALIGN);
}

static bool top7_counts_ok(const struct zfmt_group *g, size_t values) {
    return g->n[0] <= values && g->n[1] == 0 && g->n[2] == 0 && g->n[3] == 0;
}

static size_t top7_encode(const struct group_io *io, const uint8_t *src, uint8_t *body, uint8_t *dynamic,
                          struct zfmt_group *g, size_t *dynamic_bytes) {
    _Alignas(64) uint8_t one[OPS_ESCAPES];
    unsigned n1 = 0;
    size_t bytes = io->blocks ? cpu_ops_current()->top7_encode(io->kind, src, io->blocks, io->heads, body, one, &n1,
                                                               io->stream, io->window)
                              : 0;
    g->n[0] = (uint16_t)n1;
    *dynamic_bytes = layout_align(n1, ZFMT_ALIGN);
    put_raw(dynamic, one, n1, *dynamic_bytes);
    return bytes;
}

static bool top7_decode(const struct group_io *io, const struct zfmt_block *heads, const struct zfmt_group *g,
                        const uint8_t *body, const uint8_t *dynamic, uint8_t *dst) {
    _Alignas(64) uint8_t one[OPS_ESCAPES];
    const uint8_t *const in = raw_of(io, dynamic, 0, g->n[0], (size_t)io->blocks * ZFMT_BLOCK, one);
    return cpu_ops_current()->top7_decode(io->kind, heads, io->blocks, body, in, dst, io->stream, io->window) ==
           g->n[0];
}

static const struct coder g_top7 = {.planes = 3,
                                    .usual = ZFMT_TOP7,
                                    .full_modes = 1u << ZFMT_RAW | 1u << ZFMT_TOP7,
                                    .short_modes = 1u << ZFMT_RAW,
                                    .encode = top7_encode,
                                    .dynamic_size = top7_dynamic_size,
                                    .decode = top7_decode,
                                    .counts_ok = top7_counts_ok};

/* ---- the table ---- */

static const struct codec_row g_codecs[zipcclNumCodecs] = {
    [zipcclCodecRaw] = {"raw", NULL},
    [zipcclCodecTop7] = {"top7", &g_top7},
    [zipcclCodecTier] = {"tier", &g_tier},
};

const char *codec_name(zipcclCodec_t codec) {
    if (codec == zipcclCodecAuto)
        return "auto";
    return (unsigned)codec < zipcclNumCodecs ? g_codecs[codec].name : NULL;
}

bool codec_from_name(const char *name, zipcclCodec_t *codec) {
    if (!name)
        return false;
    if (strcasecmp(name, "auto") == 0) {
        *codec = zipcclCodecAuto;
        return true;
    }
    for (unsigned i = 0; i < zipcclNumCodecs; i++) {
        if (strcasecmp(name, g_codecs[i].name) == 0) {
            *codec = (zipcclCodec_t)i;
            return true;
        }
    }
    return false;
}

bool codec_supports(zipcclCodec_t codec, zipcclDataType_t dtype) {
    if ((unsigned)codec >= zipcclNumCodecs || !dtype_get(dtype))
        return false;
    return codec == zipcclCodecRaw || layout_kind_of(dtype) != NUM_KINDS;
}

struct codec_sizes codec_bound(zipcclCodec_t codec, zipcclDataType_t dtype, size_t count) {
    struct codec_sizes s = {0, 0};
    if (!codec_supports(codec, dtype) || count > ZFMT_MAX_COUNT)
        return s;
    const struct coder *c = g_codecs[codec].coder;
    if (!c) {
        s.static_bytes = count * dtype_get(dtype)->bytes;
        return s;
    }
    enum layout_kind kind = layout_kind_of(dtype);
    struct layout_tables t = layout_tables_of(count);
    s.static_bytes = layout_align(t.bodies + layout_align(count * layout_bytes(kind), ZFMT_BODY_ALIGN), ZFMT_ALIGN);
    s.dynamic_bytes =
        t.groups *
        layout_align((size_t)layout_budget(kind, c->planes) * ZFMT_GROUP_BLOCKS + LAYOUT_ROUNDING, ZFMT_ALIGN);
    return s;
}

/* ---- encode ---- */

/* The last block, of fewer than 512 values: zero where the codec has it and all bits are 0, else raw. */
static size_t encode_short(const struct coder *c, const uint8_t *src, size_t bytes, struct zfmt_block *head,
                           uint8_t *body) {
    bool zero = (c->short_modes & 1u << ZFMT_ZERO) != 0;
    for (size_t i = 0; zero && i < bytes; i++)
        zero = src[i] == 0;
    *head = (struct zfmt_block){zero ? ZFMT_ZERO : ZFMT_RAW, 0};
    if (zero)
        return 0;
    size_t padded = layout_align(bytes, ZFMT_BODY_ALIGN);
    memcpy(body, src, bytes);
    memset(body + bytes, 0, padded - bytes);
    return padded;
}

static void encode_chunk(zipcclCodec_t codec, zipcclDataType_t dtype, const uint8_t *src, size_t count,
                         uint8_t *static_part, uint8_t *dynamic, unsigned flags, struct codec_sizes *sizes) {
    const struct coder *c = g_codecs[codec].coder;
    struct group_io io = {.kind = layout_kind_of(dtype), .stream = (flags & CODEC_STREAMING) != 0};
    const size_t bytes = layout_bytes(io.kind);
    const struct layout_tables t = layout_tables_of(count);
    if (codec == zipcclCodecTop7)
        io.window = model_window_of(io.kind, src, count);
    memset(static_part, 0, t.heads);
    memset(static_part + t.heads + t.blocks * sizeof(struct zfmt_block), 0,
           t.table - t.heads - t.blocks * sizeof(struct zfmt_block));
    memset(static_part + t.table + t.groups * sizeof(struct zfmt_group), 0,
           t.bodies - t.table - t.groups * sizeof(struct zfmt_group));
    struct zfmt_header h = {.magic = ZFMT_MAGIC,
                            .version = ZFMT_VERSION,
                            .codec = (uint8_t)codec,
                            .dtype = (uint8_t)dtype,
                            .count = count,
                            .base = io.window.base,
                            .zero = io.window.zero};
    uint8_t *body = static_part + t.bodies;
    size_t dynamic_at = 0;
    for (size_t g = 0; g < t.groups; g++) {
        const size_t left = count - g * ZFMT_GROUP, values = left < ZFMT_GROUP ? left : ZFMT_GROUP;
        struct zfmt_group group = {.body = (uint32_t)((size_t)(body - static_part - t.bodies) / ZFMT_BODY_ALIGN),
                                   .dynamic = (uint32_t)(dynamic_at / ZFMT_ALIGN)};
        size_t grown = 0;
        io.blocks = (unsigned)(values / ZFMT_BLOCK);
        io.heads = (struct zfmt_block *)(void *)(static_part + t.heads) + g * ZFMT_GROUP_BLOCKS;
        body += c->encode(&io, src, body, dynamic + dynamic_at, &group, &grown);
        src += (size_t)io.blocks * ZFMT_BLOCK * bytes;
        dynamic_at += grown;
        const size_t rest = values % ZFMT_BLOCK;
        if (rest)
            body += encode_short(c, src, rest * bytes, io.heads + io.blocks, body);
        memcpy(static_part + t.table + g * sizeof(group), &group, sizeof(group));
    }
    const size_t end = (size_t)(body - static_part);
    h.static_bytes = layout_align(end, ZFMT_ALIGN);
    h.dynamic_bytes = dynamic_at;
    memset(body, 0, h.static_bytes - end);
    memcpy(static_part, &h, sizeof(h));
    sizes->static_bytes = h.static_bytes;
    sizes->dynamic_bytes = dynamic_at;
}

zipcclResult_t codec_encode(zipcclCodec_t codec, zipcclDataType_t dtype, const void *src, size_t count,
                            void *static_part, void *dynamic_part, unsigned flags, struct codec_sizes *sizes) {
    if (!codec_supports(codec, dtype) || count > ZFMT_MAX_COUNT)
        return zipcclInvalidArgument;
    if (g_codecs[codec].coder) {
        encode_chunk(codec, dtype, src, count, static_part, dynamic_part, flags, sizes);
        return zipcclSuccess;
    }
    sizes->static_bytes = count * dtype_get(dtype)->bytes;
    sizes->dynamic_bytes = 0;
    if (count)
        memcpy(static_part, src, sizes->static_bytes);
    return zipcclSuccess;
}

/* ---- decode ---- */

static bool all_zero(const uint8_t *p, size_t n) {
    uint8_t any = 0;
    for (size_t i = 0; i < n; i++)
        any |= p[i];
    return any == 0;
}

static bool header_ok(const struct zfmt_header *h, zipcclCodec_t codec, zipcclDataType_t dtype, size_t count) {
    const struct codec_sizes bound = codec_bound(codec, dtype, count);
    if (h->magic != ZFMT_MAGIC || h->version != ZFMT_VERSION || h->codec != codec || h->dtype != dtype ||
        h->count != count || !all_zero(h->reserved, sizeof(h->reserved)))
        return false;
    if (codec == zipcclCodecTop7 ? h->zero > 1 : h->base != 0 || h->zero != 0)
        return false;
    return h->static_bytes >= layout_tables_of(count).bodies && h->static_bytes <= bound.static_bytes &&
           h->dynamic_bytes <= bound.dynamic_bytes && h->static_bytes % ZFMT_ALIGN == 0 &&
           h->dynamic_bytes % ZFMT_ALIGN == 0;
}

zipcclResult_t codec_peek(zipcclCodec_t codec, zipcclDataType_t dtype, size_t count, const void *header,
                          size_t header_bytes, struct codec_sizes *sizes) {
    if (!codec_supports(codec, dtype) || count > ZFMT_MAX_COUNT)
        return zipcclInvalidArgument;
    if (!g_codecs[codec].coder) {
        *sizes = codec_bound(codec, dtype, count);
        return zipcclSuccess;
    }
    struct zfmt_header h;
    if (header_bytes < sizeof(h))
        return zipcclCorruptData;
    memcpy(&h, header, sizeof(h));
    if (!header_ok(&h, codec, dtype, count))
        return zipcclCorruptData;
    sizes->static_bytes = h.static_bytes;
    sizes->dynamic_bytes = h.dynamic_bytes;
    return zipcclSuccess;
}

static bool mode_ok(const struct coder *c, struct zfmt_block head, bool full) {
    return head.mode < ZFMT_NUM_MODES && ((full ? c->full_modes : c->short_modes) >> head.mode & 1) &&
           (head.base == 0 || (full && c->based_modes >> head.mode & 1));
}

/* Checks the modes of a group's blocks and adds up their bodies. */
static bool bodies_of(const struct coder *c, const struct group_io *io, const struct zfmt_block *heads, size_t rest,
                      size_t *full, size_t *last) {
    *full = *last = 0;
    /* Most groups have one mode alone; this loop becomes a few vectors, the other one's branches cost a tenth of all.
     */
    uint8_t other = 0, base = 0;
    for (unsigned b = 0; b < io->blocks; b++) {
        other |= heads[b].mode ^ c->usual;
        base |= heads[b].base;
    }
    if (!other && mode_ok(c, (struct zfmt_block){c->usual, base}, true))
        *full = io->blocks * layout_body(io->kind, c->usual);
    else
        for (unsigned b = 0; b < io->blocks; b++) {
            if (!mode_ok(c, heads[b], true))
                return false;
            *full += layout_body(io->kind, heads[b].mode);
        }
    if (!rest)
        return true;
    if (!mode_ok(c, heads[io->blocks], false))
        return false;
    *last = heads[io->blocks].mode == ZFMT_RAW ? layout_align(rest * layout_bytes(io->kind), ZFMT_BODY_ALIGN) : 0;
    return true;
}

/* Decodes the next `groups` groups; with the last one goes the check of the end. */
static zipcclResult_t decode_groups(const struct coder *c, const struct zfmt_header *h, enum layout_kind kind,
                                    const uint8_t *static_part, const uint8_t *dynamic, uint8_t *dst, unsigned flags,
                                    struct codec_progress *at, size_t groups) {
    const size_t count = h->count, bytes = layout_bytes(kind);
    const struct layout_tables t = layout_tables_of(count);
    struct group_io io = {.kind = kind,
                          .stream = (flags & CODEC_STREAMING) != 0 && (uintptr_t)dst % 64 == 0,
                          .window = {h->base, h->zero}};
    const size_t end = at->group + groups;
    size_t body_at = at->body, dynamic_at = at->dynamic;
    for (size_t g = at->group; g < end; g++) {
        const size_t left = count - g * ZFMT_GROUP, values = left < ZFMT_GROUP ? left : ZFMT_GROUP;
        const size_t rest = values % ZFMT_BLOCK;
        struct zfmt_block heads[ZFMT_GROUP_BLOCKS];
        struct zfmt_group group;
        size_t full, last;
        io.blocks = (unsigned)(values / ZFMT_BLOCK);
        memcpy(heads, static_part + t.heads + g * sizeof(heads),
               ((size_t)io.blocks + (rest != 0)) * sizeof(struct zfmt_block));
        memcpy(&group, static_part + t.table + g * sizeof(group), sizeof(group));
        if (!bodies_of(c, &io, heads, rest, &full, &last) || full + last > h->static_bytes - body_at)
            return zipcclCorruptData;
        if (!c->counts_ok(&group, values) || group.body != (body_at - t.bodies) / ZFMT_BODY_ALIGN ||
            group.dynamic != dynamic_at / ZFMT_ALIGN)
            return zipcclCorruptData;
        const size_t grown = c->dynamic_size(&group);
        if (grown > h->dynamic_bytes - dynamic_at)
            return zipcclCorruptData;
        io.dynamic_left = h->dynamic_bytes - dynamic_at;
        if (!c->decode(&io, heads, &group, static_part + body_at, dynamic + dynamic_at, dst))
            return zipcclCorruptData;
        dst += (size_t)io.blocks * ZFMT_BLOCK * bytes;
        if (rest && last)
            memcpy(dst, static_part + body_at + full, rest * bytes);
        else if (rest)
            memset(dst, 0, rest * bytes);
        dst += rest * bytes;
        body_at += full + last;
        dynamic_at += grown;
    }
    *at = (struct codec_progress){end, body_at, dynamic_at};
    if (end < t.groups)
        return zipcclSuccess;
    const bool whole = layout_align(body_at, ZFMT_ALIGN) == h->static_bytes && dynamic_at == h->dynamic_bytes;
    return whole ? zipcclSuccess : zipcclCorruptData;
}

zipcclResult_t codec_decode(zipcclCodec_t codec, zipcclDataType_t dtype, const void *static_part, size_t static_bytes,
                            const void *dynamic_part, size_t dynamic_bytes, void *dst, size_t count, unsigned flags) {
    struct codec_sizes sizes;
    zipcclResult_t r = codec_peek(codec, dtype, count, static_part, static_bytes, &sizes);
    if (r != zipcclSuccess)
        return r;
    if (sizes.static_bytes != static_bytes || sizes.dynamic_bytes != dynamic_bytes)
        return zipcclCorruptData;
    if (!g_codecs[codec].coder) {
        if (count)
            memcpy(dst, static_part, static_bytes);
        return zipcclSuccess;
    }
    struct zfmt_header h;
    memcpy(&h, static_part, sizeof(h));
    const struct layout_tables t = layout_tables_of(count);
    struct codec_progress at = {0, t.bodies, 0};
    return decode_groups(g_codecs[codec].coder, &h, layout_kind_of(dtype), static_part, dynamic_part, dst, flags, &at,
                         t.groups);
}

/* ---- a group at a time ---- */

zipcclResult_t codec_reader_open(struct codec_reader *r, zipcclCodec_t codec, zipcclDataType_t dtype,
                                 const void *static_part, size_t static_bytes, const void *dynamic_part,
                                 size_t dynamic_bytes, size_t count) {
    struct codec_sizes sizes;
    const zipcclResult_t result = codec_peek(codec, dtype, count, static_part, static_bytes, &sizes);
    if (result != zipcclSuccess)
        return result;
    if (sizes.static_bytes != static_bytes || sizes.dynamic_bytes != dynamic_bytes)
        return zipcclCorruptData;
    *r = (struct codec_reader){
        .codec = codec, .dtype = dtype, .count = count, .static_part = static_part, .dynamic_part = dynamic_part};
    if (!g_codecs[codec].coder)
        return zipcclSuccess;
    memcpy(&r->header, static_part, sizeof(r->header));
    r->at.body = layout_tables_of(count).bodies;
    /* Without a group its end is checked here. */
    return count ? zipcclSuccess
                 : decode_groups(g_codecs[codec].coder, &r->header, layout_kind_of(dtype), static_part, dynamic_part,
                                 NULL, 0, &r->at, 0);
}

zipcclResult_t codec_reader_next(struct codec_reader *r, void *dst, size_t *values) {
    const size_t start = r->at.group * ZFMT_GROUP, left = r->count > start ? r->count - start : 0;
    *values = 0;
    if (left == 0)
        return zipcclSuccess;
    const size_t n = left < ZFMT_GROUP ? left : ZFMT_GROUP;
    if (g_codecs[r->codec].coder) {
        const zipcclResult_t result = decode_groups(g_codecs[r->codec].coder, &r->header, layout_kind_of(r->dtype),
                                                    r->static_part, r->dynamic_part, dst, 0, &r->at, 1);
        if (result != zipcclSuccess)
            return result;
    } else {
        const size_t bytes = dtype_get(r->dtype)->bytes;
        memcpy(dst, r->static_part + start * bytes, n * bytes);
        r->at.group++;
    }
    *values = n;
    return zipcclSuccess;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Sizes inside a coded chunk, derived from kernels/format.h: planes of a dtype, bodies of a mode, tables, groups.
 * Inline arithmetic alone; the instruction-set loops and codec.c share it, so the layout exists once.
 */
#ifndef ZIPCCL_KERNELS_LAYOUT_H
#define ZIPCCL_KERNELS_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/format.h"
#include "zipccl_types.h"

/* The dtypes that the codec splits. */
enum layout_kind { KIND_BF16 = 0, KIND_FP16, KIND_FP32, KIND_E4M3, KIND_E5M2, NUM_KINDS };

static inline size_t layout_align(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

/* NUM_KINDS for a dtype that is not split. */
static inline enum layout_kind layout_kind_of(unsigned dtype) {
    switch (dtype) {
    case zipcclBfloat16:
        return KIND_BF16;
    case zipcclFloat16:
        return KIND_FP16;
    case zipcclFloat32:
        return KIND_FP32;
    case zipcclFloat8e4m3:
        return KIND_E4M3;
    case zipcclFloat8e5m2:
        return KIND_E5M2;
    default:
        return NUM_KINDS;
    }
}

/* Bytes of a value. */
static inline unsigned layout_bytes(enum layout_kind k) {
    return k == KIND_FP32 ? 4 : k == KIND_BF16 || k == KIND_FP16 ? 2 : 1;
}

static inline unsigned layout_byte_planes(enum layout_kind k) {
    return k == KIND_FP32 ? 3 : k == KIND_BF16 || k == KIND_FP16 ? 1 : 0;
}

static inline unsigned layout_bit_planes(enum layout_kind k) {
    return k == KIND_E4M3 ? 4 : k == KIND_FP16 || k == KIND_E5M2 ? 3 : 0;
}

static inline size_t layout_raw_body(enum layout_kind k) {
    return (size_t)ZFMT_BLOCK * layout_bytes(k);
}

/* A body with this many code planes. */
static inline size_t layout_coded_body(enum layout_kind k, unsigned code_planes) {
    return (size_t)ZFMT_PLANE * (code_planes + layout_bit_planes(k)) + (size_t)ZFMT_BLOCK * layout_byte_planes(k);
}

/* Bytes of the body of a full block; mode < ZFMT_NUM_MODES. */
static inline size_t layout_body(enum layout_kind k, unsigned mode) {
    switch (mode) {
    case ZFMT_CONST:
        return ZFMT_BODY_ALIGN;
    case ZFMT_TIER:
    case ZFMT_TIER_ZERO:
        return layout_coded_body(k, 2);
    case ZFMT_RAW:
        return layout_raw_body(k);
    case ZFMT_TOP7:
        return layout_coded_body(k, 3);
    default:
        return 0;
    }
}

/* The most bytes of dynamic part that a coded block may cost: what it saves, less the margin. */
static inline unsigned layout_budget(enum layout_kind k, unsigned code_planes) {
    return (unsigned)(layout_raw_body(k) - layout_coded_body(k, code_planes)) - ZFMT_TIER_MARGIN;
}

/* Where the arrays of a tier group's dynamic part lie. */
struct layout_dynamic {
    size_t planes[ZFMT_TIERS + 1][2]; /* [t]: planes 0 and 1 of tier t >= 2; tier 4's where the group has it */
    size_t raw, size;
};

/* Bytes of a plane of n codes. */
static inline size_t layout_plane(size_t n) {
    return layout_align((n + 7) / 8, ZFMT_ARRAY_ALIGN);
}

/* A group has its tier 4 where some of tier 3's escapes are hits of it. */
static inline bool layout_has_tier4(const struct zfmt_group *g) {
    return g->n[3] != g->n[2];
}

/* Tier t, of which n escapes come in: its planes follow what is there. */
static inline void layout_add_tier(struct layout_dynamic *l, unsigned t, size_t n) {
    const size_t plane = layout_plane(n);
    l->planes[t][0] = l->raw;
    l->planes[t][1] = l->raw + plane;
    l->raw += 2 * plane;
}

/* n escapes go raw, behind all tiers. */
static inline void layout_end_tiers(struct layout_dynamic *l, size_t n) {
    l->size = layout_align(l->raw + n, ZFMT_ALIGN);
}

static inline struct layout_dynamic layout_tier_dynamic(const struct zfmt_group *g) {
    struct layout_dynamic l = {{{0}}, 0, 0};
    for (unsigned t = 2; t <= (layout_has_tier4(g) ? ZFMT_TIERS : 3); t++)
        layout_add_tier(&l, t, g->n[t - 2]);
    layout_end_tiers(&l, g->n[ZFMT_TIERS - 1]);
    return l;
}

/* The most that the arrays of a group's dynamic part grow by rounding: bits to bytes, and each to its alignment. */
enum { LAYOUT_ROUNDING = (2 * (ZFMT_TIERS - 1) + 1) * (ZFMT_ARRAY_ALIGN + 1) };

/* Offsets and counts of a chunk's tables. */
struct layout_tables {
    size_t blocks, groups, heads, table, bodies;
};

static inline struct layout_tables layout_tables_of(size_t count) {
    struct layout_tables t;
    t.blocks = (count + ZFMT_BLOCK - 1) / ZFMT_BLOCK;
    t.groups = (count + ZFMT_GROUP - 1) / ZFMT_GROUP;
    t.heads = sizeof(struct zfmt_header);
    t.table = t.heads + layout_align(t.blocks * sizeof(struct zfmt_block), ZFMT_ALIGN);
    t.bodies = t.table + layout_align(t.groups * sizeof(struct zfmt_group), ZFMT_ALIGN);
    return t;
}

#endif

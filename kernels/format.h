/* SPDX-License-Identifier: Apache-2.0
 *
 * The wire format of coded chunks as C structures: docs/format.md, section by section.
 * Included by the CPU codec and by CUDA code alike, so it holds constants and layouts alone.
 */
#ifndef ZIPCCL_KERNELS_FORMAT_H
#define ZIPCCL_KERNELS_FORMAT_H

#include <stdint.h>

#define ZFMT_MAGIC        0x3143435au /* "ZCC1" */
#define ZFMT_VERSION      2u
#define ZFMT_BLOCK        512u /* values */
#define ZFMT_GROUP_BLOCKS 64u
#define ZFMT_GROUP        (ZFMT_BLOCK * ZFMT_GROUP_BLOCKS) /* values */
#define ZFMT_PLANE        (ZFMT_BLOCK / 8u)                /* bytes of one bit plane of a block */
#define ZFMT_ALIGN        128u                             /* parts, tables, dynamic groups */
#define ZFMT_BODY_ALIGN   64u
#define ZFMT_ARRAY_ALIGN  16u          /* arrays inside a group's dynamic part */
#define ZFMT_MAX_COUNT    (1ull << 31) /* values of a chunk */
#define ZFMT_TIERS        4u           /* of codec tier */
#define ZFMT_TIER_MARGIN  16u          /* bytes that tier must save against raw */

enum zfmt_mode {
    ZFMT_ZERO = 0,
    ZFMT_CONST = 1,
    ZFMT_TIER = 2,
    ZFMT_TIER_ZERO = 3,
    ZFMT_RAW = 4,
    ZFMT_TOP7 = 5,
    ZFMT_NUM_MODES = 6
};

struct zfmt_header {
    uint32_t magic;
    uint16_t version;
    uint8_t codec; /* zipcclCodec_t */
    uint8_t dtype; /* zipcclDataType_t */
    uint64_t count;
    uint64_t static_bytes;
    uint64_t dynamic_bytes;
    uint8_t base; /* top7 alone, else 0 */
    uint8_t zero; /* top7 alone, else 0 */
    uint8_t reserved[94];
};

struct zfmt_block {
    uint8_t mode; /* enum zfmt_mode */
    uint8_t base; /* tier modes alone, else 0 */
};

struct zfmt_group {
    uint32_t body;          /* units of ZFMT_BODY_ALIGN */
    uint32_t dynamic;       /* units of ZFMT_ALIGN */
    uint16_t n[ZFMT_TIERS]; /* escapes of tiers 1 to 4 */
};

#ifdef __cplusplus
#    define ZFMT_ASSERT(c, m) static_assert(c, m)
#else
#    define ZFMT_ASSERT(c, m) _Static_assert(c, m)
#endif
ZFMT_ASSERT(sizeof(struct zfmt_header) == 128, "header layout");
ZFMT_ASSERT(sizeof(struct zfmt_block) == 2, "block header layout");
ZFMT_ASSERT(sizeof(struct zfmt_group) == 16, "group layout");

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Others' coders on the exponents of BF16 values. A block is {size of the coded exponents, 0: as they are; rest plane;
 * exponents}.
 */
#include "client/ctl/peers.h"

#include <stdlib.h>
#include <string.h>

#include "client/ctl/planes.h"

#ifdef HAVE_ZSTD
#    include <zstd.h>
#endif
#ifdef HAVE_LZ4
#    include <lz4.h>
#endif

#define EXTRA          1024 /* over n, more than any of the coders' bounds for incompressible input needs */
#define HUFF_WORK      16384
#define HUFF_TABLE_LOG 11 /* as zstd uses */
#define HUFF_DTABLE    (1 + (1 << 12))

struct scratch {
    uint8_t exponents[PEERS_BLOCK + EXTRA];
    _Alignas(64) uint8_t work[HUFF_WORK];
    uint32_t dtable[HUFF_DTABLE];
    _Alignas(64) uint8_t lz4_state[16 * 1024 + 64];
#ifdef HAVE_ZSTD
    ZSTD_CCtx *cctx;
    ZSTD_DCtx *dctx;
#endif
};

#ifdef HAVE_HUFF0
/* Inside libzstd.a without a public header; signatures of 1.5.4 to 1.5.7 (the build checks the version). */
size_t HUF_compress4X_repeat(void *dst, size_t dst_size, const void *src, size_t src_size, unsigned max_symbol,
                             unsigned table_log, void *work, size_t work_size, size_t *table, int *repeat, int flags);
size_t HUF_decompress4X_hufOnly_wksp(uint32_t *dtable, void *dst, size_t dst_size, const void *src, size_t src_size,
                                     void *work, size_t work_size, int flags);
unsigned HUF_isError(size_t code);

static int huff_flags(void) {
#    ifdef __x86_64__
    return __builtin_cpu_supports("bmi2") ? 1 : 0; /* HUF_flags_bmi2 */
#    else
    return 0;
#    endif
}

static size_t huff_encode(void *scratch, const uint8_t *from, size_t n, uint8_t *to, size_t capacity) {
    struct scratch *s = scratch;
    size_t size = HUF_compress4X_repeat(to, capacity, from, n, 255, HUFF_TABLE_LOG, s->work, sizeof s->work, NULL, NULL,
                                        huff_flags());
    return HUF_isError(size) || size >= n ? 0 : size;
}

static bool huff_decode(void *scratch, const uint8_t *from, size_t size, uint8_t *to, size_t n) {
    struct scratch *s = scratch;
    if (size == 1) { /* all the same byte */
        memset(to, from[0], n);
        return true;
    }
    s->dtable[0] = 12u * 0x01000001u;
    size_t got = HUF_decompress4X_hufOnly_wksp(s->dtable, to, n, from, size, s->work, sizeof s->work, huff_flags());
    return !HUF_isError(got) && got == n;
}
#endif

#ifdef HAVE_ZSTD
static size_t zstd_encode(void *scratch, const uint8_t *from, size_t n, uint8_t *to, size_t capacity) {
    struct scratch *s = scratch;
    size_t size = ZSTD_compressCCtx(s->cctx, to, capacity, from, n, 1);
    return ZSTD_isError(size) || size >= n ? 0 : size;
}

static bool zstd_decode(void *scratch, const uint8_t *from, size_t size, uint8_t *to, size_t n) {
    struct scratch *s = scratch;
    size_t got = ZSTD_decompressDCtx(s->dctx, to, n, from, size);
    return !ZSTD_isError(got) && got == n;
}
#endif

#ifdef HAVE_LZ4
static size_t lz4_encode(void *scratch, const uint8_t *from, size_t n, uint8_t *to, size_t capacity) {
    struct scratch *s = scratch;
    int size = LZ4_compress_fast_extState(s->lz4_state, (const char *)from, (char *)to, (int)n, (int)capacity, 1);
    return size <= 0 || (size_t)size >= n ? 0 : (size_t)size;
}

static bool lz4_decode(void *scratch, const uint8_t *from, size_t size, uint8_t *to, size_t n) {
    (void)scratch;
    return LZ4_decompress_safe((const char *)from, (char *)to, (int)size, (int)n) == (int)n;
}
#endif

const struct peer peers[] = {
#ifdef HAVE_HUFF0
    {"huff0", huff_encode, huff_decode},
#endif
#ifdef HAVE_ZSTD
    {"zstd-1", zstd_encode, zstd_decode},
#endif
#ifdef HAVE_LZ4
    {"lz4", lz4_encode, lz4_decode},
#endif
    {NULL, NULL, NULL},
};

void *peers_scratch_new(void) {
    struct scratch *s = aligned_alloc(64, (sizeof *s + 63) / 64 * 64);
    if (!s)
        return NULL;
    memset(s, 0, sizeof *s);
#ifdef HAVE_LZ4
    if ((size_t)LZ4_sizeofState() > sizeof s->lz4_state) {
        free(s);
        return NULL;
    }
#endif
#ifdef HAVE_ZSTD
    s->cctx = ZSTD_createCCtx();
    s->dctx = ZSTD_createDCtx();
    if (!s->cctx || !s->dctx) {
        peers_scratch_free(s);
        return NULL;
    }
#endif
    return s;
}

void peers_scratch_free(void *scratch) {
#ifdef HAVE_ZSTD
    struct scratch *s = scratch;
    if (s) {
        (void)ZSTD_freeCCtx(s->cctx);
        (void)ZSTD_freeDCtx(s->dctx);
    }
#endif
    free(scratch);
}

size_t peers_bound(size_t count) {
    return (count + PEERS_BLOCK - 1) / PEERS_BLOCK * (sizeof(uint32_t) + EXTRA) + 2 * count;
}

size_t peers_encode(const struct peer *peer, void *scratch, const void *values, size_t count, uint8_t *coded) {
    struct scratch *s = scratch;
    const uint8_t *from = values;
    uint8_t *to = coded;
    for (size_t done = 0; done < count; done += PEERS_BLOCK) {
        size_t n = count - done < PEERS_BLOCK ? count - done : PEERS_BLOCK;
        uint8_t *rest = to + sizeof(uint32_t), *exponents = rest + n;
        planes_split(from + 2 * done, s->exponents, rest, n);
        uint32_t size = (uint32_t)peer->encode(s, s->exponents, n, exponents, n + EXTRA);
        if (!size)
            memcpy(exponents, s->exponents, n);
        memcpy(to, &size, sizeof size);
        to = exponents + (size ? size : n);
    }
    return (size_t)(to - coded);
}

bool peers_decode(const struct peer *peer, void *scratch, const uint8_t *coded, void *values, size_t count) {
    struct scratch *s = scratch;
    uint8_t *to = values;
    for (size_t done = 0; done < count; done += PEERS_BLOCK) {
        size_t n = count - done < PEERS_BLOCK ? count - done : PEERS_BLOCK;
        const uint8_t *rest = coded + sizeof(uint32_t), *exponents = rest + n;
        uint32_t size;
        memcpy(&size, coded, sizeof size);
        if (size && !peer->decode(s, exponents, size, s->exponents, n))
            return false;
        planes_merge(size ? s->exponents : exponents, rest, to + 2 * done, n);
        coded = exponents + (size ? size : n);
    }
    return true;
}

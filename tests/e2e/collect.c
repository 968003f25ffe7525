/* SPDX-License-Identifier: Apache-2.0 */
#include "collect.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MIB              (1u << 20)
#define GAUSSIAN_OFFSET  (1u * MIB)
#define GAUSSIAN_BYTES   (3u * MIB)
#define FP32_OFFSET      (4u * MIB)
#define REAL_OFFSET      (5u * MIB)
#define REAL_BYTES       (5u * MIB)
#define SPECIAL_OFFSET   (10u * MIB)
#define ZERO_OFFSET      (11u * MIB)
#define PATCHWORK_OFFSET (12u * MIB)
#define PATCH            4096u
#define UNTOUCHED        0xa5

static uint8_t *pool_bytes;
static uint64_t rng = 0x243f6a8885a308d3u;

static uint64_t next_random(void) {
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return rng;
}

/* A sum of uniforms is Gaussian enough. */
static float next_gaussian(void) {
    uint64_t a = next_random();
    float sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (float)((a >> (16 * i)) & 0xffff) / 65536.0f - 0.5f;
    return sum * 0.035f;
}

static void put_bf16(uint8_t *to, size_t bytes) {
    for (size_t i = 0; i + 2 <= bytes; i += 2) {
        float f = next_gaussian();
        uint32_t bits;
        memcpy(&bits, &f, sizeof(bits));
        to[i] = (uint8_t)(bits >> 16);
        to[i + 1] = (uint8_t)(bits >> 24);
    }
}

static void put_real(uint8_t *to, size_t bytes) {
    static const char *const files[] = {"grad_qkv_s0160.bf16", "grad_emb_s0160.bf16", "grad_o_s0160.f32",
                                        "moe_dispatch_s0160.bf16", "grad_expert_s0160.bf16"};
    size_t done = 0;
    for (unsigned i = 0; i < sizeof(files) / sizeof(files[0]) && done < bytes; i++) {
        char path[512];
        snprintf(path, sizeof(path), "%s/tensors/%s", ZIPCCL_TEST_DATA, files[i]);
        FILE *f = fopen(path, "r");
        if (!f)
            continue;
        done += fread(to + done, 1, bytes - done < MIB ? bytes - done : MIB, f);
        fclose(f);
    }
    put_bf16(to + done, bytes - done); /* where the files are not there */
}

/* NaNs with payloads, both zeros, denormals, infinities, the extremes; as BF16, FP16, FP32 and FP64. */
static void put_special(uint8_t *to, size_t bytes) {
    static const uint16_t special16[] = {0x0000, 0x8000, 0x7f80, 0xff80, 0x7fc0, 0x7f81, 0xffff, 0x0001, 0x807f,
                                         0x7f7f, 0x7c00, 0xfc00, 0x7e00, 0x7c01, 0x03ff, 0x8001, 0x7bff};
    static const uint32_t special32[] = {0x00000000, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00001,
                                         0x7f800001, 0xffffffff, 0x00000001, 0x807fffff, 0x7f7fffff};
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t v = next_random(), pick = v >> 32;
        uint16_t four[4];
        uint32_t two[2];
        switch (i / 2048 % 4) {
        case 0:
        case 1:
            for (int k = 0; k < 4; k++)
                four[k] = special16[(pick >> (8 * k)) % (sizeof(special16) / sizeof(special16[0]))];
            memcpy(to + i, four, 8);
            break;
        case 2:
            for (int k = 0; k < 2; k++)
                two[k] = special32[(pick >> (8 * k)) % (sizeof(special32) / sizeof(special32[0]))];
            memcpy(to + i, two, 8);
            break;
        default: /* NaNs of FP64 with any payload, infinities among them */
            v |= 0x7ff0000000000000u;
            memcpy(to + i, &v, 8);
        }
    }
}

const uint8_t *pool(void) {
    if (pool_bytes)
        return pool_bytes;
    uint8_t *p = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    E2E_CHECK(p != MAP_FAILED, "%s", strerror(errno));
    (void)madvise(p, POOL_BYTES, MADV_HUGEPAGE);
    for (size_t i = 0; i < GAUSSIAN_OFFSET; i += 8) {
        uint64_t v = next_random();
        memcpy(p + i, &v, 8);
    }
    put_bf16(p + GAUSSIAN_OFFSET, GAUSSIAN_BYTES);
    for (size_t i = FP32_OFFSET; i < REAL_OFFSET; i += 4) {
        float f = next_gaussian();
        memcpy(p + i, &f, 4);
    }
    put_real(p + REAL_OFFSET, REAL_BYTES);
    put_special(p + SPECIAL_OFFSET, MIB);
    memset(p + ZERO_OFFSET, 0, MIB);
    for (size_t i = PATCHWORK_OFFSET; i < POOL_BYTES; i += PATCH)
        memcpy(p + i, p + next_random() % (PATCHWORK_OFFSET / PATCH) * PATCH, PATCH);
    return pool_bytes = p;
}

const uint8_t *pool_gaussian(size_t *bytes) {
    *bytes = GAUSSIAN_BYTES;
    return pool() + GAUSSIAN_OFFSET;
}

const uint8_t *pool_piece(int rank, uint64_t seq, size_t bytes) {
    uint64_t h = (seq * 16 + (uint64_t)rank + 1) * 0x9e3779b97f4a7c15u;
    h ^= h >> 29;
    E2E_CHECK(bytes <= POOL_BYTES, "%zu bytes", bytes);
    return pool() + (h % (POOL_BYTES - bytes + 1) & ~(uint64_t)15);
}

size_t dtype_size(zipcclDataType_t dtype) {
    static const uint8_t sizes[zipcclNumTypes] = {
        [zipcclInt8] = 1,    [zipcclUint8] = 1,    [zipcclInt32] = 4,      [zipcclUint32] = 4,
        [zipcclInt64] = 8,   [zipcclUint64] = 8,   [zipcclFloat16] = 2,    [zipcclFloat32] = 4,
        [zipcclFloat64] = 8, [zipcclBfloat16] = 2, [zipcclFloat8e4m3] = 1, [zipcclFloat8e5m2] = 1,
    };
    return sizes[dtype];
}

void buffer_new(struct buffer *b, enum memory kind, size_t capacity) {
    *b = (struct buffer){.kind = kind, .capacity = capacity};
    if (kind == MEMORY_ZIPCCL) {
        void *p = NULL;
        E2E_OK(NULL, zipcclMemAlloc(&p, capacity));
        E2E_CHECK(p && (uintptr_t)p % 4096 == 0, "%p", p);
        b->base = b->data = p;
        return;
    }
    b->base = malloc(capacity + 16);
    E2E_CHECK(b->base, "%zu", capacity);
    b->data = b->base + (kind == MEMORY_UNALIGNED ? 3 : 0);
    if (kind == MEMORY_REGISTERED)
        E2E_OK(NULL, zipcclMemRegister(b->data, capacity, &b->handle));
}

void buffer_free(struct buffer *b) {
    if (b->kind == MEMORY_REGISTERED)
        E2E_OK(NULL, zipcclMemDeregister(b->handle));
    if (b->kind == MEMORY_ZIPCCL)
        E2E_OK(NULL, zipcclMemFree(b->base));
    else
        free(b->base);
}

void collect_buffers_new(struct collect_buffers *b, const struct e2e_rank *r, enum memory kind, size_t bytes) {
    enum memory send = kind, recv = kind;
    if (kind == MEMORY_MIXED) {
        send = (enum memory)(r->rank % MEMORY_KINDS);
        recv = (enum memory)((r->rank + 1 + r->node) % MEMORY_KINDS);
    }
    buffer_new(&b->send, send, bytes + 2 * COLLECT_GUARD);
    buffer_new(&b->recv, recv, (size_t)r->nranks * bytes + 2 * COLLECT_GUARD);
}

void collect_buffers_free(struct collect_buffers *b) {
    buffer_free(&b->send);
    buffer_free(&b->recv);
}

void collect_issue(const struct e2e_rank *r, zipcclComm_t comm, zipcclStream_t stream, struct collect_buffers *b,
                   const struct collect *c) {
    size_t bytes = c->count * dtype_size(c->dtype);
    size_t total = c->op == zipcclOpAllGather ? bytes * (size_t)r->nranks : bytes;
    uint8_t *send = b->send.data + COLLECT_GUARD, *recv = b->recv.data + COLLECT_GUARD;
    bool sends = c->op == zipcclOpAllGather || r->rank == c->root;
    if (c->op == zipcclOpBarrier) {
        E2E_OK(comm, zipcclBarrier(comm, stream));
        return;
    }
    E2E_CHECK(total + 2 * COLLECT_GUARD <= b->recv.capacity, "%zu", total);
    memset(recv - COLLECT_GUARD, UNTOUCHED, total + 2 * COLLECT_GUARD);
    if (c->in_place)
        send = recv + (c->op == zipcclOpAllGather ? bytes * (size_t)r->rank : 0);
    if (sends && bytes)
        memcpy(send, pool_piece(r->rank, c->seq, bytes), bytes);
    if (c->op == zipcclOpAllGather)
        E2E_OK(comm, zipcclAllGather(send, recv, c->count, c->dtype, comm, stream));
    else
        E2E_OK(comm, zipcclBroadcast(sends ? send : NULL, recv, c->count, c->dtype, c->root, comm, stream));
}

static void check_piece(const struct e2e_rank *r, const struct collect *c, const uint8_t *got, int from, size_t bytes) {
    const uint8_t *expected = pool_piece(from, c->seq, bytes);
    if (memcmp(got, expected, bytes) == 0)
        return;
    size_t i = 0;
    while (got[i] == expected[i])
        i++;
    E2E_FAIL("rank %d of %d: operation %llu (op %d, dtype %d, count %zu, root %d, %s place): byte %zu of %zu from rank "
             "%d is %02x, not %02x",
             r->rank, r->nranks, (unsigned long long)c->seq, (int)c->op, (int)c->dtype, c->count, c->root,
             c->in_place ? "in" : "out of", i, bytes, from, got[i], expected[i]);
}

void collect_check(const struct e2e_rank *r, const struct collect_buffers *b, const struct collect *c) {
    size_t bytes = c->count * dtype_size(c->dtype);
    const uint8_t *recv = b->recv.data + COLLECT_GUARD;
    size_t total = bytes;
    if (c->op == zipcclOpBarrier)
        return;
    if (c->op == zipcclOpAllGather) {
        total *= (size_t)r->nranks;
        for (int from = 0; from < r->nranks; from++)
            check_piece(r, c, recv + bytes * (size_t)from, from, bytes);
    } else {
        check_piece(r, c, recv, c->root, bytes);
    }
    for (size_t i = 0; i < COLLECT_GUARD; i++)
        E2E_CHECK(recv[-1 - (ptrdiff_t)i] == UNTOUCHED && recv[total + i] == UNTOUCHED,
                  "rank %d: operation %llu wrote outside of its buffer", r->rank, (unsigned long long)c->seq);
    if (!c->in_place && (c->op == zipcclOpAllGather || r->rank == c->root))
        E2E_CHECK(memcmp(b->send.data + COLLECT_GUARD, pool_piece(r->rank, c->seq, bytes), bytes) == 0,
                  "rank %d: the send buffer was changed", r->rank);
}

void collect_run(const struct e2e_rank *r, zipcclComm_t comm, struct collect_buffers *b, const struct collect *c) {
    collect_issue(r, comm, NULL, b, c);
    collect_check(r, b, c);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Measures at start how fast the device codes: a few milliseconds on Gaussian bf16, spread over the workers.
 */
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/daemon.h"
#include "daemon/core/log.h"
#include "kernels/codec.h"

#define CALIBRATE_JOBS   4u
#define CALIBRATE_VALUES (256u << 10) /* a job: 512 KiB */
#define CALIBRATE_ROUNDS 3

struct calibrate {
    struct device_job jobs[CALIBRATE_JOBS];
    unsigned left;
    bool failed;
};

static void calibrate_done(struct device_job *job) {
    struct calibrate *c = job->arg;
    c->left--;
    c->failed = c->failed || job->result != zipcclSuccess;
}

/* Values as gradients have them: Gaussian, by a fixed sequence (Box-Muller). */
static void calibrate_fill(uint16_t *values, size_t n) {
    uint64_t state = 0x9e3779b97f4a7c15ull;
    for (size_t i = 0; i < n; i++) {
        double u[2];
        float f;
        uint32_t bits;
        for (int k = 0; k < 2; k++) {
            state = state * 6364136223846793005ull + 1442695040888963407ull;
            u[k] = ((double)(state >> 11) + 1.0) * 0x1p-53;
        }
        f = (float)(0.02 * sqrt(-2.0 * log(u[0])) * cos(6.283185307179586 * u[1]));
        memcpy(&bits, &f, sizeof bits);
        values[i] = (uint16_t)(bits >> 16);
    }
}

/* Runs all jobs; nanoseconds, 0 where one failed. */
static uint64_t calibrate_round(const struct device_ops *ops, struct device *device, struct calibrate *c) {
    struct pollfd fd = {.fd = ops->fd(device), .events = POLLIN};
    uint64_t start = daemon_now_ns();
    c->left = CALIBRATE_JOBS;
    for (unsigned i = 0; i < CALIBRATE_JOBS; i++) {
        if (ops->submit(device, &c->jobs[i]))
            calibrate_done(&c->jobs[i]);
    }
    while (c->left > 0) {
        (void)poll(&fd, 1, 100);
        ops->poll(device);
    }
    return c->failed ? 0 : daemon_now_ns() - start + 1;
}

void calibrate_run(const struct device_ops *ops, struct device *device, uint64_t *encode_bps, uint64_t *decode_bps) {
    const uint64_t bytes = CALIBRATE_JOBS * CALIBRATE_VALUES * 2ull;
    struct codec_sizes bound = codec_bound(zipcclCodecTier, zipcclBfloat16, CALIBRATE_VALUES);
    size_t area = CALIBRATE_VALUES * 4u + bound.static_bytes + bound.dynamic_bytes;
    uint8_t *memory = ops->alloc(device, area * CALIBRATE_JOBS);
    struct calibrate c = {0};
    uint64_t best[2] = {UINT64_MAX, UINT64_MAX};
    *encode_bps = *decode_bps = 1000000000ull; /* modest: coding is chosen on slow links alone */
    if (memory == NULL) {
        log_warn("no memory to measure the codec: modest rates are assumed");
        return;
    }
    calibrate_fill((uint16_t *)(void *)memory, CALIBRATE_VALUES);
    for (int round = 0; round < CALIBRATE_ROUNDS * 2 && !c.failed; round++) {
        bool decode = round % 2 == 1;
        for (unsigned i = 0; i < CALIBRATE_JOBS; i++) {
            uint8_t *base = memory + i * area, *fixed = base + CALIBRATE_VALUES * 4u;
            struct codec_sizes made = {c.jobs[i].out_static, c.jobs[i].out_dynamic};
            if (i > 0 && round == 0)
                memcpy(base, memory, CALIBRATE_VALUES * 2u);
            c.jobs[i] = (struct device_job){.codec = zipcclCodecTier,
                                            .dtype = zipcclBfloat16,
                                            .count = CALIBRATE_VALUES,
                                            .done = calibrate_done,
                                            .arg = &c};
            if (decode) {
                c.jobs[i].work = DEVICE_DECODE;
                c.jobs[i].src = fixed;
                c.jobs[i].src_static = made.static_bytes;
                c.jobs[i].src_dynamic = fixed + bound.static_bytes;
                c.jobs[i].src_dynamic_bytes = made.dynamic_bytes;
                c.jobs[i].dst = base + CALIBRATE_VALUES * 2u;
            } else {
                c.jobs[i].work = DEVICE_ENCODE;
                c.jobs[i].src = base;
                c.jobs[i].dst = fixed;
                c.jobs[i].dst_dynamic = fixed + bound.static_bytes;
            }
        }
        uint64_t ns = calibrate_round(ops, device, &c);
        if (ns != 0 && ns < best[decode])
            best[decode] = ns;
    }
    if (c.failed || best[0] == UINT64_MAX || best[1] == UINT64_MAX) {
        log_warn("the codec could not be measured: modest rates are assumed");
    } else {
        *encode_bps = (uint64_t)((double)bytes * 1e9 / (double)best[0]);
        *decode_bps = (uint64_t)((double)bytes * 1e9 / (double)best[1]);
    }
    ops->free(device, memory, area * CALIBRATE_JOBS);
}

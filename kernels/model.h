/* SPDX-License-Identifier: Apache-2.0
 *
 * THE encoder rule: which mode and base a block gets, and which window a top7 chunk gets. CPU and GPU encoders
 * follow it to the bit, so it is stateless: a function of the 512 values (tier) or of the chunk's values (top7),
 * in integers alone. Below, e is a value's exponent byte, budget = layout_budget (368 bytes for BF16).
 *
 * tier, full blocks:
 *  1. All values the same bits: zero where these bits are 0, else const. (Then n1 of step 3 is 0.)
 *  2. The block is 8 rows of 64 values. Over the rows 0, 2, 4 and 6: M[i] = max e of column i; S = sum of
 *     max(e, M[i] - 12) (M[i] - 12 not below 0). The guess is base = min(255, (S + 488) / 256), that is
 *     floor(mean + 1.906). n1 counts the escapes of tier 1 with it.
 *  3. n1 <= min(160, budget * 2 / 3): mode tier, base. (n1 * 3/2 bounds the dynamic bytes, so tier is sure to pay.)
 *  4. n2, n3 count the escapes of tiers 2 and 3 for the base of step 2. Their price in quarter bytes is
 *     n1 + n2 + 4 * n3. z <= 32 and price <= 4 * budget: mode tier, base, where z = count of e = 0.
 *  5. The sample is the values 72 * j + k, 0 <= j, k < 8, of which y have e = 0. Q = the exponent of rank
 *     (64 - y + 1) / 2 from the sample's top (the median of the nonzero e; 0 where there are none).
 *     Raw where z + count of (e - Q + 8) mod 256 < 16 is under 512 - budget * 2 / 3: no base can pay then. Else
 *     h[k] = count of e = Q - 8 + k, 0 <= k < 16, e >= 1. Candidates are the bases Q - 8 + k within 0..255, first
 *     tier in ascending base, then tier-zero in ascending base; their n1, n2, n3 follow from h and z alone (an
 *     exponent outside of h counts as an escape). The first one with the least price wins, with price <= 4 * budget;
 *     otherwise the block is raw.
 *  A short block is zero where all bits are 0, else raw.
 *
 * top7, chunk: sample i (0 <= i < 512) begins at value i * q + ((i * 40503 mod 65536) * q >> 16) with
 *  q = count / 512 and has 4 values (fewer at the end of the chunk); a chunk of fewer than 2048 values is its own
 * sample. H is the histogram of the sample's exponents. zero = 1 where 16 * H[0] >= sample size and H[0] is not the
 * whole sample. The base is the lowest one with the most hits: H[base] + ... + H[base - 6], or, with zero = 1, over
 *  base .. base - 5 without exponent 0; 6 (5) <= base <= 254.
 * top7, full blocks: n1 <= budget (304 bytes for BF16): mode top7, else raw. A short block is raw.
 */
#ifndef ZIPCCL_KERNELS_MODEL_H
#define ZIPCCL_KERNELS_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/layout.h"
#include "zipccl_types.h"

#define MODEL_FLOOR      12u  /* M - FLOOR is the least exponent in the mean */
#define MODEL_MEAN       256u /* values in the mean */
#define MODEL_BIAS       488u /* MODEL_MEAN * 1.906 */
#define MODEL_ACCEPT     160u
#define MODEL_FEW_ZEROS  32u
#define MODEL_COUNTS     16u /* exponents Q - 8 .. Q + 7 */
#define MODEL_COUNTS_LOW 8u
#define MODEL_PLACES     512u /* of a top7 sample */
#define MODEL_PLACE      4u   /* values at each */
#define MODEL_ZERO_SHARE 16u
#define MODEL_WINDOW     7u

/* What step 5 has counted in a block. */
struct model_counts {
    unsigned zeros;              /* z */
    unsigned median;             /* Q */
    uint16_t hits[MODEL_COUNTS]; /* h */
};

struct model_window {
    uint8_t base;
    uint8_t zero;
};

/* Step 2. */
static inline unsigned model_guess(unsigned sum) {
    unsigned base = (sum + MODEL_BIAS) / MODEL_MEAN;
    return base < 255 ? base : 255;
}

/* Step 3's bound on n1. */
static inline unsigned model_accept(unsigned budget) {
    unsigned sure = budget * 2 / 3;
    return sure < MODEL_ACCEPT ? sure : MODEL_ACCEPT;
}

/* Quarter bytes of dynamic part. */
static inline unsigned model_price(unsigned n1, unsigned n2, unsigned n3) {
    return n1 + n2 + 4 * n3;
}

/* Step 5's condition: tier can pay only where most values are zeros or near the median. */
static inline int model_hopeful(unsigned near, unsigned zeros, unsigned budget) {
    return near + zeros + budget * 2 / 3 >= ZFMT_BLOCK;
}

/* Step 5's choice. */
struct zfmt_block model_choose(const struct model_counts *c, unsigned budget);

/* The window of a top7 chunk; src holds count values of the kind. */
struct model_window model_window_of(enum layout_kind kind, const void *src, size_t count);

/* The base of the window for N(0, sigma^2), as the paper gives it: sigma2 = log2(sigma) in 1/256, biased exponent.
 * For a caller that knows sigma and has no values yet; the encoder samples. */
uint8_t model_window_of_sigma(int log2_sigma_256);

/* Adds the exponents of count values to a histogram. */
void model_histogram(enum layout_kind kind, const void *src, size_t count, uint64_t histogram[256]);

/* Entropy in bits per value of a histogram, 0 where it is empty. */
double model_exponent_entropy(const uint64_t histogram[256]);

/* The best ratio of a coder that leaves the remainder bits as they are: T / (R + H). */
double model_limit_ratio(enum layout_kind kind, double entropy);

#endif

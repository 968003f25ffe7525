/* SPDX-License-Identifier: Apache-2.0
 *
 * run.cpp with the faults of ZIP_PLANT in the kernels, of one codec and dtype alone.
 */
#define ZIP_PLANTED
#define ZIP_CASES(X) X(tier, zipcclCodecTier, bf16, zipcclBfloat16)
#include "run.cpp"

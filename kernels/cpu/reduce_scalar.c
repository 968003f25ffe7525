/* SPDX-License-Identifier: Apache-2.0
 *
 * Reductions on any processor.
 */
#include "kernels/cpu/reduce_passes.h"

const struct reduce_passes reduce_passes_scalar[zipcclNumTypes] = REDUCE_TABLE(NULL, NULL, NULL, NULL, NULL);

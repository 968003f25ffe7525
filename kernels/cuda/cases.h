/* SPDX-License-Identifier: Apache-2.0
 *
 * ZIP_CASES(X) lists the codecs and dtypes that have kernels; a test that wants a few may define it.
 */
#ifndef ZIPCCL_KERNELS_CUDA_CASES_H
#define ZIPCCL_KERNELS_CUDA_CASES_H

/* X(codec name, codec, dtype name, dtype) */
#define ZIP_CASES_OF(X, name, codec)                                                                                   \
    X(name, codec, bf16, zipcclBfloat16)                                                                               \
    X(name, codec, fp16, zipcclFloat16)                                                                                \
    X(name, codec, fp32, zipcclFloat32)                                                                                \
    X(name, codec, e4m3, zipcclFloat8e4m3)                                                                             \
    X(name, codec, e5m2, zipcclFloat8e5m2)
#ifdef ZIP_CASES
#    define ZIP_CASES_FEW
#else
#    define ZIP_CASES(X) ZIP_CASES_OF(X, tier, zipcclCodecTier) ZIP_CASES_OF(X, top7, zipcclCodecTop7)
#endif

#endif

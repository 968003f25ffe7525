/* SPDX-License-Identifier: Apache-2.0
 *
 * Which instruction set the codec runs on: what the processor and the system support, and $ZIPCCL_ISA.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/codec.h"
#include "kernels/cpu/ops.h"

#if defined(__x86_64__)
#    include <cpuid.h>
#endif

static const char *const g_names[CODEC_NUM_ISAS] = {"scalar", "avx2", "avx512"};
static atomic_int g_current = -1;

const char *codec_isa_name(enum codec_isa isa) {
    return (unsigned)isa < CODEC_NUM_ISAS ? g_names[isa] : NULL;
}

#if defined(__x86_64__)
static enum codec_isa best_isa(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE) || !(c & bit_AVX) || !(c & bit_POPCNT) || !(c & bit_F16C))
        return CODEC_ISA_SCALAR;
    unsigned xcr0, xcr0_high;
    __asm__ volatile("xgetbv" : "=a"(xcr0), "=d"(xcr0_high) : "c"(0));
    (void)xcr0_high;
    if ((xcr0 & 0x6) != 0x6) /* the system keeps xmm and ymm */
        return CODEC_ISA_SCALAR;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & bit_AVX2) || !(b & bit_BMI) || !(b & bit_BMI2))
        return CODEC_ISA_SCALAR;
    const unsigned ebx = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
    const unsigned ecx = bit_AVX512VBMI | bit_AVX512VBMI2 | bit_GFNI;
    if ((b & ebx) == ebx && (c & ecx) == ecx && (xcr0 & 0xe6) == 0xe6) /* and opmask, zmm */
        return CODEC_ISA_AVX512;
    return CODEC_ISA_AVX2;
}
#else
static enum codec_isa best_isa(void) {
    return CODEC_ISA_SCALAR;
}
#endif

bool codec_isa_available(enum codec_isa isa) {
    return (unsigned)isa < CODEC_NUM_ISAS && isa <= best_isa();
}

static enum codec_isa choose(void) {
    const char *name = getenv("ZIPCCL_ISA");
    if (!name || !*name)
        return best_isa();
    for (unsigned i = 0; i < CODEC_NUM_ISAS; i++) {
        if (strcmp(name, g_names[i]) == 0 && codec_isa_available((enum codec_isa)i))
            return (enum codec_isa)i;
    }
    fprintf(stderr, "zipccl: ZIPCCL_ISA=%s is unknown or not available on this processor, ignored\n", name);
    return best_isa();
}

enum codec_isa codec_isa_current(void) {
    int isa = atomic_load_explicit(&g_current, memory_order_relaxed);
    if (isa < 0) {
        int unset = -1;
        isa = (int)choose();
        atomic_compare_exchange_strong(&g_current, &unset, isa);
        isa = atomic_load(&g_current);
    }
    return (enum codec_isa)isa;
}

bool codec_isa_force(enum codec_isa isa) {
    if (!codec_isa_available(isa))
        return false;
    atomic_store(&g_current, (int)isa);
    return true;
}

const struct cpu_ops *cpu_ops_current(void) {
    switch (codec_isa_current()) {
#if defined(__x86_64__)
    case CODEC_ISA_AVX512:
        return &cpu_ops_avx512;
    case CODEC_ISA_AVX2:
        return &cpu_ops_avx2;
#endif
    default:
        return &cpu_ops_scalar;
    }
}

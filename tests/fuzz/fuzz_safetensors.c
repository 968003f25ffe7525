/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes are a .safetensors file that is read in full, or a file that is refused with a reason.
 */
#include <stdint.h>
#include <stdlib.h>

#include "client/ctl/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct safetensors s;
    char why[SAFETENSORS_WHY];
    if (safetensors_parse(data, size, &s, why) != zipcclSuccess) {
        if (!why[0])
            abort();
        return 0;
    }
    for (size_t i = 0; i < s.n; i++)
        if (s.entries[i].begin > size || s.entries[i].bytes > size - s.entries[i].begin || !s.entries[i].name)
            abort();
    safetensors_free(&s);
    return 0;
}

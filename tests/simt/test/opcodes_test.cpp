/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs every row of opcodes.txt through the translated kernel and compares the bits.
 */
#include "opcodes_rows.h"
#include "ptx_rt.h"

int main() {
    constexpr size_t n = sizeof kRows / sizeof kRows[0];
    static uint64_t out[n];
    int bad = 0;
    ptx::launch("opcodes", dim3(1), dim3(32), 0, &out[0]);
    for (size_t i = 0; i < n; i++)
        if (out[i] != kRows[i].value) {
            printf("opcodes.txt:%d: %s gives 0x%llx, not 0x%llx\n", kRows[i].line, kRows[i].what,
                   static_cast<unsigned long long>(out[i]), kRows[i].value);
            bad++;
        }
    printf("%zu rows, %d wrong\n", n, bad);
    return bad != 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * With ZIPCCL_STANDIN_SEPARATE=1, device memory has addresses that fault on the host, in calls of the kernel too: so
 * a program that touches what only a device may touch is found out, and a kernel that touches host memory which is not
 * page-locked. No address is given twice.
 */
#include "core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define WINDOW (256ul << 30)

struct standin_window standin_window;
static uintptr_t g_next;

void standin_window_open(void) {
    const char *separate = getenv("ZIPCCL_STANDIN_SEPARATE");
    if (!separate || strcmp(separate, "1") != 0)
        return;
    void *m = mmap(NULL, 2 * WINDOW, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m == MAP_FAILED) {
        perror("standin: no addresses for device memory");
        abort();
    }
    standin_window = (struct standin_window){(uintptr_t)m, WINDOW, WINDOW};
    g_next = (uintptr_t)m;
    standin_fault_handler();
}

void *standin_view(const void *p) {
    const uintptr_t a = (uintptr_t)p;
    return (void *)(a - standin_window.base < standin_window.bytes ? a + standin_window.shift : a);
}

void *standin_window_take(size_t bytes, size_t align) {
    const uintptr_t at = (g_next + align - 1) / align * align;
    if (bytes > standin_window.bytes || at - standin_window.base > standin_window.bytes - bytes)
        return NULL;
    g_next = at + bytes;
    return (void *)at;
}

void standin_window_give(void *device, size_t bytes) {
    if (mmap(standin_view(device), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) ==
        MAP_FAILED)
        abort();
}

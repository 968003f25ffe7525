/* SPDX-License-Identifier: Apache-2.0
 *
 * Is there a GPU? Exit 0: yes. 77: no driver library, or the driver says so (34 a stub, 35 too old for the runtime, 100
 * no device). Every other answer is a fault of the machine, exit 1, so that a broken GPU does not look like none.
 */
#include <dlfcn.h>
#include <stdio.h>

int main(void) {
    void *const lib = dlopen("libcuda.so.1", RTLD_NOW);
    if (!lib) {
        printf("skipped: no device: %s\n", dlerror());
        return 77;
    }
    int (*init)(unsigned) = NULL;
    int (*count)(int *) = NULL;
    *(void **)&init = dlsym(lib, "cuInit");
    *(void **)&count = dlsym(lib, "cuDeviceGetCount");
    if (!init || !count) {
        printf("libcuda.so.1 has no cuInit or cuDeviceGetCount\n");
        return 1;
    }
    int devices = 0, r = init(0);
    if (r == 0)
        r = count(&devices);
    if (r == 34 || r == 35 || r == 100 || (r == 0 && devices == 0)) {
        printf("skipped: no device: the driver answers %d\n", r);
        return 77;
    }
    if (r != 0)
        printf("the driver answers %d\n", r);
    return r != 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds the CUDA driver. See cuda_api.h.
 */
#include "client/lib/cuda_api.h"

#include <dlfcn.h>

static struct cuda_api table;
static bool loaded;

static bool find(void *library, const char *name, void *function) {
    void *found = dlsym(library, name);
    *(void **)function = found;
    return found;
}

const struct cuda_api *cuda_api(void) {
    return loaded ? &table : 0;
}

const struct cuda_api *cuda_api_load(const char **why) {
    struct cuda_api a = {0};
    if (loaded)
        return &table;
    *why = "there is no CUDA driver (libcuda.so.1) in this process";
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return 0;
    const struct {
        const char *name;
        void *function;
    } needed[] = {{"cuCtxGetCurrent", &a.ctx_get_current},
                  {"cuCtxSetCurrent", &a.ctx_set_current},
                  {"cuCtxGetDevice", &a.ctx_get_device},
                  {"cuDeviceGet", &a.device_get},
                  {"cuGetErrorString", &a.get_error_string},
                  {"cuEventCreate", &a.event_create},
                  {"cuEventDestroy_v2", &a.event_destroy},
                  {"cuEventRecord", &a.event_record},
                  {"cuEventQuery", &a.event_query},
                  {"cuIpcGetEventHandle", &a.ipc_get_event},
                  {"cuIpcGetMemHandle", &a.ipc_get_memory},
                  {"cuPointerGetAttribute", &a.pointer_get},
                  {"cuMemGetAddressRange_v2", &a.range_get},
                  {"cuMemHostRegister_v2", &a.host_register},
                  {"cuMemHostUnregister", &a.host_unregister},
                  {"cuMemHostGetDevicePointer_v2", &a.host_device_pointer},
                  {"cuMemcpyAsync", &a.copy},
                  {"cuStreamIsCapturing", &a.is_capturing},
                  {"cuStreamQuery", &a.stream_query},
                  {"cuStreamSynchronize", &a.stream_synchronize},
                  {"cuLaunchHostFunc", &a.launch_host}};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        if (find(library, needed[i].name, needed[i].function))
            continue;
        *why = "the CUDA driver of this node is too old (CUDA 11.1 or later is needed)";
        return 0;
    }
    if (!find(library, "cuDeviceGetUuid_v2", &a.device_get_uuid) &&
        !find(library, "cuDeviceGetUuid", &a.device_get_uuid)) {
        *why = "the CUDA driver of this node is too old (CUDA 11.1 or later is needed)";
        return 0;
    }
    (void)find(library, "cuStreamWaitValue32_v2", &a.wait_value);
    if (!find(library, "cuMemRetainAllocationHandle", &a.retain_handle) ||
        !find(library, "cuMemExportToShareableHandle", &a.export_handle) ||
        !find(library, "cuMemRelease", &a.release_handle))
        a.retain_handle = 0;
    table = a;
    loaded = true;
    return &table;
}

const char *cuda_api_text(int error) {
    const char *text = 0;
    if (!loaded || table.get_error_string(error, &text) != CUDA_OK || !text)
        return "unknown error of CUDA";
    return text;
}

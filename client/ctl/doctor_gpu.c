/* SPDX-License-Identifier: Apache-2.0
 *
 * doctor: GPUs, where there is a driver: version, devices, MPS, what trainers' settings do to sharing memory.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/doctor.h"

#define DRIVER_LEAST 11010 /* before 11.1 a memory handle could be opened once in a process alone */

/* GPUs of the node, also those that this process may not use. */
static unsigned gpus_of(const struct doctor *d) {
    char path[256];
    unsigned n = 0;
    (void)snprintf(path, sizeof path, "%s/proc/driver/nvidia/gpus", d->root);
    DIR *dir = opendir(path);
    for (const struct dirent *e; dir && (e = readdir(dir));)
        n += e->d_name[0] != '.';
    if (dir)
        (void)closedir(dir);
    return n;
}

/* cuInit makes no context: nothing of a GPU is taken. */
static void ask_driver(struct doctor *d, void *library) {
    int (*init)(unsigned) = NULL, (*get_version)(int *) = NULL, (*count)(int *) = NULL;
    int version = 0, devices = 0;
    *(void **)&init = dlsym(library, "cuInit");
    *(void **)&get_version = dlsym(library, "cuDriverGetVersion");
    *(void **)&count = dlsym(library, "cuDeviceGetCount");
    if (!init || !get_version || !count || get_version(&version) != 0) {
        doctor_add(d, "gpu driver", DOCTOR_FAIL, "install the driver anew", "libcuda.so.1 is not CUDA's");
        return;
    }
    int rc = init(0);
    if (rc != 0 || count(&devices) != 0) {
        doctor_add(d, "gpu driver", DOCTOR_FAIL,
                   "nvidia-smi; for a container the NVIDIA runtime; DeviceAllow in the unit",
                   "libcuda is there, but cuInit fails (%d)", rc);
        return;
    }
    if (version < DRIVER_LEAST)
        doctor_add(d, "gpu driver", DOCTOR_FAIL, "a driver of CUDA 11.1 or later", "the driver speaks CUDA %d.%d",
                   version / 1000, version % 1000 / 10);
    else
        doctor_add(d, "gpu driver", DOCTOR_OK, NULL, "CUDA %d.%d, %d devices", version / 1000, version % 1000 / 10,
                   devices);
    unsigned all = gpus_of(d);
    if (devices >= 0 && (unsigned)devices < all)
        doctor_add(d, "gpus visible", DOCTOR_WARN, "let daemon and trainers see all GPUs: NVIDIA_VISIBLE_DEVICES=all",
                   "%d of %u GPUs: CUDA IPC does not work between containers that see one each", devices, all);
}

static void check_driver(struct doctor *d) {
    void *library = *d->root ? NULL : dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library)
        ask_driver(d, library); /* never closed: the driver keeps threads */
    else if (gpus_of(d) > 0)
        doctor_add(d, "gpu driver", DOCTOR_FAIL, "install libcuda1, or mount it into the container",
                   "the kernel has %u GPUs, but there is no libcuda.so.1", gpus_of(d));
    else
        doctor_add(d, "gpu driver", DOCTOR_OK, NULL, "no NVIDIA driver: buffers are in host memory");
}

/* GPUs that the daemon does not use: their memory is refused, or copied by the trainers. */
static void check_served(struct doctor *d) {
    unsigned all = gpus_of(d);
    if (!d->status || all == 0)
        return;
    if (strstr(d->status->device, "failed"))
        doctor_add(d, "gpus served", DOCTOR_FAIL, "dmesg for Xid; restart zipccld when the other jobs may end",
                   "%.250s", d->status->device);
    else if (!strncmp(d->status->device, "cuda", 4))
        doctor_add(d, "gpus served", DOCTOR_OK, NULL, "%.250s", d->status->device);
    else if (!strcmp(doctor_config(d, "device"), "host"))
        doctor_add(d, "gpus served", DOCTOR_OK, NULL, "none, as device = host says");
    else
        doctor_add(d, "gpus served", DOCTOR_WARN,
                   "journalctl -u zipccld says why at its start; the package zipccl-cuda, the drop-in gpu.conf, "
                   "NVIDIA_VISIBLE_DEVICES=all for a container",
                   "the node has %u GPUs, but zipccld serves host memory alone", all);
}

static void check_nodes(struct doctor *d) {
    static const char *const nodes[] = {"nvidiactl", "nvidia-uvm", "nvidia0"};
    if (gpus_of(d) == 0)
        return;
    for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++)
        if (!doctor_exists(d, "/dev/%s", nodes[i]))
            doctor_add(d, "gpu devices", DOCTOR_FAIL,
                       "nvidia-modprobe -u -c 0; DeviceAllow of nvidia, nvidia-uvm, nvidiactl, nvidia-caps in the unit",
                       "/dev/%s does not exist here", nodes[i]);
}

static void check_mps(struct doctor *d) {
    const char *pipes = getenv("CUDA_MPS_PIPE_DIRECTORY");
    if (gpus_of(d) == 0)
        return;
    pipes = pipes && *pipes ? pipes : "/tmp/nvidia-mps";
    if (doctor_exists(d, "%s/control", pipes))
        doctor_add(d, "mps", DOCTOR_OK, NULL, "the control pipe is in %.200s", pipes);
    else
        doctor_add(d, "mps", DOCTOR_WARN, "nvidia-cuda-mps-control -d, and the same pipe directory for all",
                   "no MPS: the kernels of daemon and trainer take turns on a GPU, they do not overlap");
}

static void check_settings(struct doctor *d) {
    static const char *const names[] = {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = getenv(names[i]);
        if (value && strstr(value, "expandable_segments:True"))
            doctor_add(d, "allocator", DOCTOR_WARN, "expandable_segments:False, or buffers of zipcclMemAlloc",
                       "%s has expandable segments, which have no CUDA IPC handle: such tensors are copied", names[i]);
        if (value && strstr(value, "cudaMallocAsync"))
            doctor_add(d, "allocator", DOCTOR_WARN, "backend:native, or buffers of zipcclMemAlloc",
                       "%s takes memory from cudaMallocAsync, which has no CUDA IPC handle: such tensors are copied",
                       names[i]);
    }
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (visible && strstr(visible, "MIG-"))
        doctor_add(d, "mig", DOCTOR_WARN, "MIG slices are for tests: give training whole GPUs",
                   "CUDA_VISIBLE_DEVICES names MIG slices: no direct copies between them");
}

const struct doctor_check doctor_gpu_checks[] = {
    {"gpu driver", check_driver, "whether it is new enough, and all GPUs are seen"},
    {"gpus served", check_served, "whether the daemon uses the node's GPUs"},
    {"gpu devices", check_nodes, "device files"},
    {"mps", check_mps, "whether kernels of two processes can overlap"},
    {"allocator, mig", check_settings, "settings of this shell that keep GPU memory from being shared"},
    {NULL, NULL, NULL},
};

/* SPDX-License-Identifier: Apache-2.0
 *
 * What a device module shows to the daemon that loads it: one function, which gives its operations, or NULL where the
 * two were not built from the same headers.
 */
#ifndef ZIPCCL_DAEMON_DEVICE_MODULE_H
#define ZIPCCL_DAEMON_DEVICE_MODULE_H

#include "daemon/device/device.h"

#define DEVICE_MODULE_SYMBOL "zipccl_device_module"
typedef const struct device_ops *device_module_fn(size_t ops_bytes, size_t job_bytes);

#endif

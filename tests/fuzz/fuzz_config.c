/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the configuration parser: any bytes give a configuration in range, or errors.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "daemon/core/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct config c;
    struct config_errors e = {0};
    config_defaults(&c);
    bool ok = config_parse(&c, "fuzz", (const char *)data, size, &e);
    ok = config_check(&c, &e) && ok;
    if (ok != (e.count == 0))
        abort();
    for (size_t i = 0; ok && i < config_num_keys; i++) {
        const struct config_key *key = &config_keys[i];
        uint64_t value = 0;
        if (key->type < CONFIG_UINT)
            continue;
        if (key->type == CONFIG_HOSTPORT)
            continue;
        __builtin_memcpy(&value, (const char *)&c + key->offset, sizeof value);
        if (value < key->min || value > key->max)
            abort();
    }
    config_errors_free(&e);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The manual page zipccld(8), from the tables of options, configuration keys and admin requests.
 */
#ifndef ZIPCCL_DAEMON_MAN_H
#define ZIPCCL_DAEMON_MAN_H

#include <stddef.h>
#include <stdio.h>

struct main_option {
    const char *name;
    int letter;
    const char *argument, *key, *help; /* argument, key: or NULL */
};

void man_print(const struct main_option *options, size_t n, FILE *out);

#endif

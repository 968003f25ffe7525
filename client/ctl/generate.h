/* SPDX-License-Identifier: Apache-2.0
 *
 * From the table of commands: the manual page and the completion of shells.
 */
#ifndef ZIPCCL_CTL_GENERATE_H
#define ZIPCCL_CTL_GENERATE_H

#include "client/ctl/ctl.h"

/* What ctl_main answers to "--NAME": "man", "completion-bash", "completion-zsh". False: nothing of that name. */
bool generate_print(const char *name, const struct ctl_command *commands, FILE *out);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * A progress bar on stderr: only where stderr is a terminal, and gone when it is done.
 */
#ifndef ZIPCCL_CTL_PROGRESS_H
#define ZIPCCL_CTL_PROGRESS_H

/* Draws share (0 to 1) and what is being done; at most ten times a second. */
void progress_show(double share, const char *what);
void progress_clear(void);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * What two processes that wake each other over a Unix socket take at least: the floor of a small operation.
 */
#ifndef ZIPCCL_CTL_PINGPONG_H
#define ZIPCCL_CTL_PINGPONG_H

/* The median of round trips of 64 bytes between two processes with blocking calls, in microseconds; negative where it
 * could not be measured. */
double pingpong_us(void);

#endif

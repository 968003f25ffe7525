/* SPDX-License-Identifier: Apache-2.0
 *
 * What the switchers of a daemon chose, for people and for programs: zipcclctl decisions, and stats --explain.
 */
#ifndef ZIPCCL_CTL_DECISIONS_H
#define ZIPCCL_CTL_DECISIONS_H

#include <jansson.h>
#include <stdio.h>

#include "zipccl.pb-c.h"

/* An array of objects; NULL on no memory. */
json_t *decisions_json(const Zipccl__Stats *s);
void decisions_print(const Zipccl__Stats *s, FILE *out);

#endif

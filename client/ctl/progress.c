/* SPDX-License-Identifier: Apache-2.0
 *
 * A progress bar on stderr: only where stderr is a terminal, and gone when it is done.
 */
#include "client/ctl/progress.h"

#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "client/ctl/units.h"

#define BAR         24
#define INTERVAL_NS 100000000u

static bool drawn;
static uint64_t last_ns;

void progress_show(double share, const char *what) {
    uint64_t now = units_now_ns();
    if (!isatty(STDERR_FILENO) || (drawn && now - last_ns < INTERVAL_NS))
        return;
    int full = (int)(share * BAR);
    (void)fprintf(stderr, "\r\033[K[%.*s%*s] %3.0f%% %s", full, "########################", BAR - full, "", share * 100,
                  what);
    (void)fflush(stderr);
    drawn = true;
    last_ns = now;
}

void progress_clear(void) {
    if (drawn)
        (void)fprintf(stderr, "\r\033[K");
    drawn = false;
}

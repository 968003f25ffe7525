/* SPDX-License-Identifier: Apache-2.0
 *
 * A bare round trip over a Unix socket.
 */
#include "client/ctl/pingpong.h"

#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/ctl/private_daemons.h"
#include "client/ctl/units.h"

#define BYTES  64
#define WARMUP 1000
#define ROUNDS 20000

static bool receive(int fd, char *to) {
    size_t got = 0;
    while (got < BYTES) {
        ssize_t n = read(fd, to + got, BYTES - got);
        if (n <= 0)
            return false;
        got += (size_t)n;
    }
    return true;
}

static bool play(int fd, double *us) {
    char ball[BYTES] = {0};
    for (int i = -WARMUP; i < ROUNDS; i++) {
        uint64_t start = units_now_ns();
        if (write(fd, ball, BYTES) != BYTES || !receive(fd, ball))
            return false;
        if (i >= 0)
            us[i] = (double)(units_now_ns() - start) / 1e3;
    }
    return true;
}

double pingpong_us(void) {
    int fds[2];
    double median = -1, *us = malloc(ROUNDS * sizeof *us);
    pid_t parent = getpid();
    if (!us || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
        free(us);
        return -1;
    }
    pid_t pid = fork();
    if (pid == 0) {
        char ball[BYTES];
        private_child(parent);
        (void)close(fds[0]);
        while (receive(fds[1], ball) && write(fds[1], ball, BYTES) == BYTES)
            ;
        _exit(0);
    }
    (void)close(fds[1]);
    if (pid > 0 && play(fds[0], us))
        median = units_median(us, ROUNDS);
    (void)close(fds[0]);
    if (pid > 0)
        (void)waitpid(pid, NULL, 0);
    free(us);
    return median;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * A worker without a GPU, for tests of the daemon's side: it answers all calls, and does with jobs what the environment
 * variable FAKE_WORKER says. What goes wrong does so for GPU 0 of two.
 */
#ifndef ZIPCCL_TESTS_FAKE_WORKER_H
#define ZIPCCL_TESTS_FAKE_WORKER_H

/* works, slot, sizes, result, ring, dies, stops, failed, unready, exits, refuses; of calls: mute, late (three at once),
 * denies; of NCCL's commands: no-launch (dies), fails, wrong; asked for memory of the GPU: no-memory, one-address,
 * other-memory (says that it made another one) */
#define FAKE_WORKER "FAKE_WORKER"

int fake_worker_run(int fd);

#endif

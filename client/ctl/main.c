/* SPDX-License-Identifier: Apache-2.0
 *
 * zipcclctl: what operators and engineers see of zipccl.
 */
#include "client/ctl/ctl.h"

int main(int argc, char **argv) {
    return (int)ctl_main(ctl_commands, argc, argv);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * A program of somebody else: built against the packages, not against this tree.
 */
#include <stdio.h>
#include <zipccl.h>

int main(void) {
    zipcclUniqueId id;
    int version = 0;
    if (zipcclGetVersion(&version) != zipcclSuccess)
        return 1;
    zipcclResult_t rc = zipcclGetUniqueId(&id); /* asks the daemon */
    printf("version %d, unique id: %s\n", version, zipcclGetErrorString(rc));
    return rc == zipcclSuccess ? 0 : 1;
}

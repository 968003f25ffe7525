/* SPDX-License-Identifier: Apache-2.0
 *
 * From root to the configured user: groups, group, user, capabilities; each step is checked, and the way back tried.
 *
 * No capability is kept: what root's would be wanted for, memory that a NIC registers, is a limit, raised before.
 */
#include "daemon/core/privileges.h"

#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <pwd.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/core/config.h"
#include "daemon/core/log.h"

static zipcclResult_t privileges_fail(const char *what) {
    log_error("cannot drop privileges: %s: %s", what, strerror(errno));
    return zipcclSystemError;
}

/* Nothing that this process executes may have a capability either. */
static void privileges_empty_bounds(void) {
    for (unsigned long cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
        (void)prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
    (void)prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
}

static bool privileges_none_left(void) {
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct caps[_LINUX_CAPABILITY_U32S_3] = {{0}};
    if (syscall(SYS_capset, &head, caps) != 0 || syscall(SYS_capget, &head, caps) != 0)
        return false;
    for (unsigned i = 0; i < _LINUX_CAPABILITY_U32S_3; i++) {
        if ((caps[i].effective | caps[i].permitted | caps[i].inheritable) != 0)
            return false;
    }
    return true;
}

static zipcclResult_t privileges_become(const struct config *config) {
    struct rlimit locked = {RLIM_INFINITY, RLIM_INFINITY};
    uid_t uid[3] = {0};
    gid_t gid[3] = {0};
    errno = 0;
    const struct passwd *user = getpwnam(config->user);
    if (user == NULL) {
        log_error("user: there is no user '%s'", config->user);
        return zipcclInvalidArgument;
    }
    uid_t to = user->pw_uid;
    gid_t group = user->pw_gid;
    if (config->group[0] != '\0') {
        const struct group *named = getgrnam(config->group);
        if (named == NULL) {
            log_error("group: there is no group '%s'", config->group);
            return zipcclInvalidArgument;
        }
        group = named->gr_gid;
    }
    if (to == 0) {
        log_error("user: '%s' is root: leave it empty to stay root", config->user);
        return zipcclInvalidArgument;
    }
    if (setrlimit(RLIMIT_MEMLOCK, &locked) != 0)
        log_warn("cannot raise the limit of locked memory: %s", strerror(errno));
    privileges_empty_bounds();
    if (initgroups(config->user, group) != 0)
        return privileges_fail("initgroups");
    if (setresgid(group, group, group) != 0)
        return privileges_fail("setresgid");
    if (setresuid(to, to, to) != 0)
        return privileges_fail("setresuid");
    if (getresuid(&uid[0], &uid[1], &uid[2]) != 0 || getresgid(&gid[0], &gid[1], &gid[2]) != 0 || uid[0] != to ||
        uid[1] != to || uid[2] != to || gid[0] != group || gid[1] != group || gid[2] != group)
        return privileges_fail("the kernel did not take all of them");
    if (!privileges_none_left())
        return privileges_fail("capabilities are left");
    if (setuid(0) == 0 || setgid(0) == 0) {
        log_error("cannot drop privileges: root can be had again");
        return zipcclSystemError;
    }
    log_info("runs as user %s (uid=%u gid=%u), without capabilities", config->user, to, group);
    return zipcclSuccess;
}

bool privileges_check(const struct config *config) {
    const struct passwd *user = config->user[0] != '\0' ? getpwnam(config->user) : NULL;
    bool good = true;
    if (config->user[0] != '\0' && (user == NULL || user->pw_uid == 0)) {
        log_error(user == NULL ? "user: there is no user '%s'" : "user: '%s' is root: leave it empty to stay root",
                  config->user);
        good = false;
    }
    if (config->group[0] != '\0' && getgrnam(config->group) == NULL) {
        log_error("group: there is no group '%s'", config->group);
        good = false;
    }
    if (config->socket_group[0] != '\0' && getgrnam(config->socket_group) == NULL) {
        log_error("socket_group: there is no group '%s'", config->socket_group);
        good = false;
    }
    return good;
}

zipcclResult_t privileges_drop(const struct config *config, bool secret) {
    zipcclResult_t rc = zipcclSuccess;
    bool drops = config->user[0] != '\0' && geteuid() == 0;
    if (drops)
        rc = privileges_become(config);
    else if (config->user[0] != '\0')
        log_info("user: not started by root, stays user %u", geteuid());
    if (rc != zipcclSuccess)
        return rc;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return privileges_fail("PR_SET_NO_NEW_PRIVS");
    if ((drops || secret) && prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0)
        return privileges_fail("PR_SET_DUMPABLE");
    return zipcclSuccess;
}

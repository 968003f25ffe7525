/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads peer_key_file, after checks that nobody else can have read or written it.
 */
#include "daemon/core/peer_key.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/core/config.h"
#include "daemon/core/log.h"

#define KEY_DIGITS    (2u * PEER_KEY_BYTES)
#define KEY_MAX_BYTES 128u /* of the file */

static bool key_is_space(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

bool peer_key_parse(const char *text, size_t bytes, uint8_t key[PEER_KEY_BYTES], const char **why) {
    size_t got = 0;
    *why = NULL;
    while (bytes > 0 && key_is_space(text[bytes - 1]))
        bytes--;
    for (; bytes > 0 && key_is_space(*text); bytes--)
        text++;
    if (bytes != KEY_DIGITS || sodium_hex2bin(key, PEER_KEY_BYTES, text, bytes, NULL, &got, NULL) != 0 ||
        got != PEER_KEY_BYTES)
        *why = "not a key: 64 hexadecimal digits are (zipccld --new-key prints one)";
    else if (sodium_is_zero(key, PEER_KEY_BYTES))
        *why = "a key of zeros is none (zipccld --new-key prints one)";
    if (*why != NULL)
        sodium_memzero(key, PEER_KEY_BYTES);
    return *why == NULL;
}

/* The file of an open descriptor may hold a secret; logs where not. check: on behalf of a daemon that will be another
 * user, as far as root can say. */
static bool key_file_safe(const char *path, int fd, bool check) {
    struct stat st;
    if (fstat(fd, &st) != 0) {
        log_error("peer_key_file: %s: %s", path, strerror(errno));
        return false;
    }
    if (!S_ISREG(st.st_mode) || st.st_size > (off_t)KEY_MAX_BYTES) {
        log_error("peer_key_file: %s is not a regular file of at most %u bytes", path, KEY_MAX_BYTES);
        return false;
    }
    if ((st.st_mode & 077) != 0) {
        log_error("peer_key_file: %s has mode %04o: others than its owner may use it (chmod 600)", path,
                  (unsigned)st.st_mode & 07777);
        return false;
    }
    if (st.st_uid != geteuid() && st.st_uid != 0 && !(check && geteuid() == 0)) {
        log_error("peer_key_file: %s belongs to user %u, not to the daemon's (%u) or root", path, st.st_uid, geteuid());
        return false;
    }
    return true;
}

static zipcclResult_t key_read(struct peer_key *k, const char *path, bool check) {
    char text[KEY_MAX_BYTES + 1];
    const char *why = NULL;
    size_t have = 0;
    ssize_t n = 1;
    /* A fifo must not block the start; the checks are of what was opened, not of the path. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0) {
        log_error("peer_key_file: %s: %s", path, strerror(errno));
        return zipcclInvalidArgument;
    }
    bool ok = key_file_safe(path, fd, check);
    while (ok && n > 0 && have < sizeof text) {
        n = read(fd, text + have, sizeof text - have);
        if (n < 0 && errno == EINTR)
            n = 1;
        else if (n > 0)
            have += (size_t)n;
    }
    if (n < 0) {
        log_error("peer_key_file: %s: %s", path, strerror(errno));
        ok = false;
    }
    close(fd);
    if (ok && (k->key = sodium_malloc(PEER_KEY_BYTES)) == NULL) {
        log_error("peer_key_file: no memory for the key");
        ok = false;
    }
    if (ok && !peer_key_parse(text, have, k->key, &why)) {
        log_error("peer_key_file: %s: %s", path, why);
        ok = false;
    }
    sodium_memzero(text, sizeof text);
    if (!ok)
        peer_key_close(k);
    else
        (void)sodium_mprotect_readonly(k->key);
    return ok ? zipcclSuccess : zipcclInvalidArgument;
}

zipcclResult_t peer_key_open(struct peer_key *k, const struct config *config) {
    *k = (struct peer_key){NULL, false};
    if (sodium_init() < 0) {
        log_error("libsodium does not start: no source of random numbers?");
        return zipcclSystemError;
    }
    if (config->peer_key_file[0] != '\0')
        return key_read(k, config->peer_key_file, false);
    if (strcmp(config->peer_auth, "none") == 0) {
        log_warn("peer_auth = none: whoever reaches the port of daemons may take part as one");
        return zipcclSuccess;
    }
    k->local_only = true;
    log_info("no peer_key_file: daemons of this machine alone may connect, and are not asked for a key");
    return zipcclSuccess;
}

bool peer_key_check(const struct config *config) {
    struct peer_key k = {NULL, false};
    bool good = config->peer_key_file[0] == '\0' ||
                (sodium_init() >= 0 && key_read(&k, config->peer_key_file, true) == zipcclSuccess);
    peer_key_close(&k);
    return good;
}

void peer_key_close(struct peer_key *k) {
    if (k->key != NULL)
        sodium_free(k->key);
    k->key = NULL;
}

bool peer_key_print(FILE *out) {
    uint8_t key[PEER_KEY_BYTES];
    char text[KEY_DIGITS + 1];
    if (sodium_init() < 0)
        return false;
    randombytes_buf(key, sizeof key);
    bool ok = fprintf(out, "%s\n", sodium_bin2hex(text, sizeof text, key, sizeof key)) > 0 && fflush(out) == 0;
    sodium_memzero(key, sizeof key);
    sodium_memzero(text, sizeof text);
    return ok;
}

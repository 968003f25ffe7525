/* SPDX-License-Identifier: Apache-2.0
 *
 * doctor: fabric, network devices, rates, addresses, other daemons.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/doctor.h"
#include "client/ctl/units.h"

#define NAME 64

static bool lists(const char *list, const char *word) {
    size_t n = strlen(word);
    for (const char *p = strstr(list, word); p; p = strstr(p + 1, word))
        if ((p == list || p[-1] == ',') && (!p[n] || p[n] == ',' || p[n] == '_'))
            return true;
    return false;
}

static bool has_infiniband(const struct doctor *d) {
    char path[256];
    (void)snprintf(path, sizeof path, "%s/sys/class/infiniband", d->root);
    DIR *dir = opendir(path);
    bool any = false;
    for (const struct dirent *e; dir && (e = readdir(dir));)
        any = any || e->d_name[0] != '.';
    if (dir)
        (void)closedir(dir);
    return any;
}

static void check_transports(struct doctor *d) {
    const char *tls = doctor_config(d, "ucx_tls");
    if (!d->config)
        return;
    bool wants = lists(tls, "rc") || lists(tls, "dc") || lists(tls, "ud") || lists(tls, "ib");
    bool has = has_infiniband(d);
    if (!strcmp(doctor_config(d, "fabric"), "none"))
        doctor_add(d, "transports", DOCTOR_OK, NULL, "no fabric: this daemon serves one node alone");
    else if (wants && !has)
        doctor_add(d, "transports", DOCTOR_FAIL,
                   "ucx_tls = tcp; or load the driver (ibv_devinfo), --device /dev/infiniband",
                   "ucx_tls = %.100s, but this node has no InfiniBand or RoCE device", tls);
    else if (!wants && has && *tls)
        doctor_add(d, "transports", DOCTOR_WARN, "ucx_tls = rc,tcp",
                   "this node has InfiniBand or RoCE, but ucx_tls = %.100s does not use it", tls);
    else
        doctor_add(d, "transports", DOCTOR_OK, NULL, "ucx_tls %.100s; %.120s", *tls ? tls : "not set: UCX chooses",
                   d->status ? d->status->fabric : "");
}

/* Bits a second of a network device; 0: not known. */
static uint64_t speed_of(const struct doctor *d, const char *name) {
    char text[32];
    long long mbit = doctor_read(d, text, sizeof text, "/sys/class/net/%s/speed", name) ? strtoll(text, NULL, 10) : 0;
    return mbit > 0 ? (uint64_t)mbit * 1000000u : 0;
}

static void check_named(struct doctor *d, const char *name) {
    char state[32] = "";
    bool port = strchr(name, ':') != NULL;
    char device[NAME];
    (void)snprintf(device, sizeof device, "%.*s", (int)strcspn(name, ":"), name);
    bool net = doctor_exists(d, "/sys/class/net/%s", device);
    if (!net && !doctor_exists(d, "/sys/class/infiniband/%s", device)) {
        doctor_add(d, "net devices", DOCTOR_FAIL, "ip link and ucx_info -d list them; mend ucx_net_devices",
                   "ucx_net_devices names %s, which this node does not have", device);
        return;
    }
    if (net && !port && doctor_read(d, state, sizeof state, "/sys/class/net/%s/operstate", device) &&
        (!strcmp(state, "down") || !strcmp(state, "lowerlayerdown")))
        doctor_add(d, "net devices", DOCTOR_FAIL, "ip link set DEVICE up; look at the cable and the switch", "%s is %s",
                   device, state);
    else
        doctor_add(d, "net devices", DOCTOR_OK, NULL, "%s is there", name);
}

static void check_devices(struct doctor *d) {
    char list[256], *rest = NULL;
    (void)snprintf(list, sizeof list, "%s", doctor_config(d, "ucx_net_devices"));
    for (char *name = strtok_r(list, ",", &rest); name; name = strtok_r(NULL, ",", &rest)) {
        if (strcmp(name, "all") != 0 && strlen(name) < NAME && !strchr(name, '/'))
            check_named(d, name);
    }
}

/* The fastest device of those named, else of all that are no loopback. */
static uint64_t fastest(const struct doctor *d, char name[NAME]) {
    const char *named = doctor_config(d, "ucx_net_devices");
    char path[256];
    uint64_t best = 0;
    name[0] = 0;
    (void)snprintf(path, sizeof path, "%s/sys/class/net", d->root);
    DIR *dir = opendir(path);
    for (const struct dirent *e; dir && (e = readdir(dir));) {
        if (e->d_name[0] == '.' || !strcmp(e->d_name, "lo") || (*named && !lists(named, e->d_name)))
            continue;
        uint64_t speed = speed_of(d, e->d_name);
        if (speed > best) {
            best = speed;
            (void)snprintf(name, NAME, "%.63s", e->d_name);
        }
    }
    if (dir)
        (void)closedir(dir);
    return best;
}

static void check_rate(struct doctor *d) {
    char name[NAME], speed[UNITS_TEXT], rate[UNITS_TEXT];
    uint64_t best = fastest(d, name), cap = d->status ? d->status->link_rate_bits : 0;
    if (!d->status)
        return;
    units_rate(speed, best);
    units_rate(rate, cap);
    if (cap && best && cap > best)
        doctor_add(d, "link rate", DOCTOR_WARN, "link_rate = 0, or what the device can send",
                   "link_rate is %s, but %s sends %s: the cap is never reached, and the codec choice believes it", rate,
                   name, speed);
    else if (cap && best && cap < best / 100)
        doctor_add(d, "link rate", DOCTOR_WARN, "link_rate: were Mbit meant to be Gbit?",
                   "link_rate is %s, less than a hundredth of what %s sends (%s)", rate, name, speed);
    else if (cap)
        doctor_add(d, "link rate", DOCTOR_OK, NULL, "capped at %s%s%s", rate, best ? "; the device sends " : "",
                   best ? speed : "");
    else
        doctor_add(d, "link rate", DOCTOR_OK, NULL, "not capped%s%s", best ? "; the device sends " : "",
                   best ? speed : "");
}

static void check_address(struct doctor *d) {
    const char *listen = d->status ? d->status->listen : "", *advertise = doctor_config(d, "advertise");
    if (!*listen || !strcmp(doctor_config(d, "fabric"), "none"))
        return;
    if (!strncmp(listen, "127.", 4) || !strncmp(listen, "[::1]", 5))
        doctor_add(d, "listen", DOCTOR_WARN, "listen = ADDRESS:18515, of the cluster's own network",
                   "%.100s: daemons of other nodes cannot connect", listen);
    else if ((!strncmp(listen, "0.0.0.0:", 8) || !strncmp(listen, "[::]:", 5)) && !*advertise)
        doctor_add(d, "listen", DOCTOR_WARN, "listen and advertise: the address in the cluster's own network",
                   "%.100s: all networks may connect, and others dial the first address of this node", listen);
    else
        doctor_add(d, "listen", DOCTOR_OK, NULL, "%.100s%s%.100s", listen, *advertise ? ", advertised as " : "",
                   advertise);
}

static void check_peers(struct doctor *d) {
    size_t bad = 0;
    const Zipccl__PeerStatus *first = NULL;
    for (size_t i = 0; d->status && i < d->status->n_peers; i++) {
        if (!strcmp(d->status->peers[i]->state, "up"))
            continue;
        first = bad++ ? first : d->status->peers[i];
    }
    if (first)
        doctor_add(d, "peers", DOCTOR_WARN, "is zipccld running there; does a firewall stop TCP to that port?",
                   "%zu of %zu are not up; %.64s at %.100s is %.20s", bad, d->status->n_peers, first->node,
                   first->address, first->state);
    else if (d->status)
        doctor_add(d, "peers", DOCTOR_OK, NULL, "%zu, all up", d->status->n_peers);
}

const struct doctor_check doctor_network_checks[] = {
    {"transports", check_transports, "ucx_tls against the devices that there are"},
    {"net devices", check_devices, "whether those of ucx_net_devices exist and are up"},
    {"link rate", check_rate, "link_rate against the speed of the device"},
    {"listen", check_address, "whether other nodes can connect, and only they"},
    {"peers", check_peers, "links to other daemons"},
    {NULL, NULL, NULL},
};

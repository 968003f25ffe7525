/* SPDX-License-Identifier: Apache-2.0
 *
 * zipcclctl doctor: what of this node is known to make trouble, each with the remedy.
 */
#include "client/ctl/ctl.h"
#include "client/ctl/daemon_view.h"
#include "client/ctl/doctor.h"
#include "client/ctl/output.h"
#include "client/include/zipccl.h"

static json_t *doctor_json(const struct doctor *d) {
    json_t *lines = json_array();
    for (size_t i = 0; i < d->n; i++) {
        const struct doctor_line *l = &d->lines[i];
        (void)json_array_append_new(lines, json_pack("{s:s, s:s, s:o, s:o}", "check", l->check, "level",
                                                     doctor_level_name(l->level), "text", output_text(l->text),
                                                     "remedy", *l->remedy ? output_text(l->remedy) : json_null()));
    }
    return json_pack("{s:s, s:o, s:s, s:o}", "schema", "zipccl.doctor/1", "socket", output_text(d->socket), "worst",
                     doctor_level_name(doctor_worst(d)), "checks", lines);
}

static void print_doctor(const struct doctor *d) {
    for (size_t i = 0; i < d->n; i++) {
        const struct doctor_line *l = &d->lines[i];
        printf("%-4s  %-15s %s\n", doctor_level_name(l->level), l->check, l->text);
        if (*l->remedy)
            printf("      %-15s -> %s\n", "", l->remedy);
    }
}

enum ctl_exit ctl_doctor(const struct ctl_args *args) {
    static struct doctor d;
    struct admin *admin = NULL;
    Zipccl__Status *status = NULL;
    Zipccl__ConfigReply *config = NULL;
    d.root = "";
    d.own_version = ZIPCCL_VERSION_CODE;
    zipcclResult_t result = admin_open(ctl_get(args, "socket"), DAEMON_TIMEOUT_MS, &admin);
    if (result == zipcclSuccess)
        result = admin_status(admin, &status);
    if (result == zipcclSuccess && admin_config(admin, &config) != zipcclSuccess)
        config = NULL; /* an older daemon: what needs it is left out */
    d.connected = result == zipcclSuccess;
    d.why = admin_why(admin);
    d.socket = admin_socket(admin);
    d.version = admin_version(admin);
    d.status = status;
    d.config = config;
    (void)admin_peer(admin, &d.pid, &d.uid);
    doctor_run(&d, doctor_daemon_checks);
    doctor_run(&d, doctor_system_checks);
    doctor_run(&d, doctor_network_checks);
    doctor_run(&d, doctor_gpu_checks);
    enum ctl_exit rc = CTL_OK;
    if (ctl_has(args, "json"))
        rc = output_json(doctor_json(&d));
    else
        print_doctor(&d);
    if (rc == CTL_OK && !d.connected)
        rc = daemon_exit(result);
    else if (rc == CTL_OK && doctor_worst(&d) != DOCTOR_OK)
        rc = doctor_worst(&d) == DOCTOR_FAIL ? CTL_FAILED : CTL_DEGRADED;
    if (status)
        zipccl__status__free_unpacked(status, NULL);
    if (config)
        zipccl__config_reply__free_unpacked(config, NULL);
    admin_close(admin);
    return rc;
}

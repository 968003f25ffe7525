/* SPDX-License-Identifier: Apache-2.0
 *
 * zipcclctl events: what happened on this node; --follow asks again and again for what is new.
 */
#include <time.h>

#include "client/ctl/ctl.h"
#include "client/ctl/daemon_view.h"
#include "client/ctl/output.h"
#include "client/ctl/units.h"

#define SCHEMA    "zipccl.events/1"
#define FOLLOW_MS 250

static json_t *event_json(const Zipccl__Event *e) {
    char key[24];
    (void)snprintf(key, sizeof key, "%016llx", (unsigned long long)e->comm);
    return json_pack("{s:I, s:o, s:o, s:o, s:o, s:o}", "id", (json_int_t)e->id, "time",
                     output_real((double)e->time_ns / 1e9), "kind", output_text(e->kind), "job", output_text(e->job),
                     "communicator", e->comm ? json_string(key) : json_null(), "text", output_text(e->text));
}

static json_t *events_json(const Zipccl__Events *events) {
    json_t *all = json_array();
    for (size_t i = 0; i < events->n_events; i++)
        (void)json_array_append_new(all, event_json(events->events[i]));
    return json_pack("{s:s, s:o, s:I, s:o}", "schema", SCHEMA, "node", output_text(events->node), "last",
                     (json_int_t)events->last, "events", all);
}

/* Texts name jobs and programs, which come from clients. */
static void print_text(const char *text) {
    for (const unsigned char *p = (const unsigned char *)text; *p; p++)
        (void)putchar(*p < 0x20 || *p == 0x7f ? '?' : *p);
}

static void print_event(const Zipccl__Event *e) {
    char clock[32] = "?";
    time_t at = (time_t)(e->time_ns / 1000000000u);
    struct tm tm;
    if (localtime_r(&at, &tm))
        (void)strftime(clock, sizeof clock, "%Y-%m-%d %H:%M:%S", &tm);
    printf("%6llu  %s.%03u  %-11s ", (unsigned long long)e->id, clock, (unsigned)(e->time_ns / 1000000 % 1000),
           e->kind);
    if (e->comm)
        printf(" %08llx", (unsigned long long)(e->comm & 0xffffffffu));
    if (*e->job) {
        printf(" ");
        print_text(e->job);
    }
    printf("  ");
    print_text(e->text);
    printf("\n");
}

/* Of --follow with --json: an object a line, so that a reader need not wait for an end. */
static enum ctl_exit print_line(const Zipccl__Event *e) {
    json_t *event = event_json(e);
    if (!event || json_object_set_new(event, "schema", json_string(SCHEMA)) != 0 ||
        json_dumpf(event, stdout, JSON_COMPACT | JSON_REAL_PRECISION(15)) != 0) {
        json_decref(event);
        return CTL_FAILED;
    }
    json_decref(event);
    return putchar('\n') == EOF ? CTL_FAILED : CTL_OK;
}

static enum ctl_exit follow(const struct ctl_args *args, struct admin *admin, uint64_t after) {
    const struct timespec pause = {0, FOLLOW_MS * 1000000};
    enum ctl_exit rc = CTL_OK;
    while (rc == CTL_OK) {
        Zipccl__Events *events = NULL;
        zipcclResult_t result = admin_events(admin, after, &events);
        if (result != zipcclSuccess)
            return daemon_fail(args, admin, result);
        if (events->n_events && after && events->events[0]->id > after + 1)
            (void)fprintf(stderr, "zipcclctl events: %llu events came and went unseen\n",
                          (unsigned long long)(events->events[0]->id - after - 1));
        for (size_t i = 0; i < events->n_events && rc == CTL_OK; i++) {
            after = events->events[i]->id;
            if (ctl_has(args, "json"))
                rc = print_line(events->events[i]);
            else
                print_event(events->events[i]);
        }
        bool all = after >= events->last;
        zipccl__events__free_unpacked(events, NULL);
        if (fflush(stdout) != 0)
            rc = CTL_FAILED;
        if (all)
            (void)nanosleep(&pause, NULL);
    }
    return rc;
}

static enum ctl_exit show(const struct ctl_args *args, struct admin *admin, uint64_t after) {
    Zipccl__Events *events = NULL;
    enum ctl_exit rc = CTL_OK;
    bool more = true;
    json_t *root = NULL;
    while (more && rc == CTL_OK) {
        zipcclResult_t result = admin_events(admin, after, &events);
        if (result != zipcclSuccess) {
            json_decref(root);
            return daemon_fail(args, admin, result);
        }
        if (!root)
            root = events_json(events);
        else
            for (size_t i = 0; i < events->n_events; i++)
                (void)json_array_append_new(json_object_get(root, "events"), event_json(events->events[i]));
        for (size_t i = 0; i < events->n_events; i++) {
            after = events->events[i]->id;
            if (!ctl_has(args, "json"))
                print_event(events->events[i]);
        }
        more = events->n_events > 0 && after < events->last;
        zipccl__events__free_unpacked(events, NULL);
    }
    if (ctl_has(args, "json"))
        return output_json(root);
    json_decref(root);
    return rc;
}

enum ctl_exit ctl_events(const struct ctl_args *args) {
    struct admin *admin = NULL;
    enum ctl_exit rc;
    uint64_t after = 0;
    if (!units_parse_count(ctl_get(args, "after"), 0, UINT64_MAX / 2, &after))
        return ctl_usage(args, "--after is an id, not \"%s\"", ctl_get(args, "after"));
    zipcclResult_t result = admin_open(ctl_get(args, "socket"), DAEMON_TIMEOUT_MS, &admin);
    if (result != zipcclSuccess)
        rc = daemon_fail(args, admin, result);
    else if (ctl_has(args, "follow"))
        rc = follow(args, admin, after);
    else
        rc = show(args, admin, after);
    admin_close(admin);
    return rc;
}

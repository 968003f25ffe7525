/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls: what a worker must have done before the daemon goes on, at its start and at its end; a worker that does not
 * answer in time is killed. What clients wait for is no call, but an errand (errands.c).
 */
#include <poll.h>

#include "daemon/worker/supervisor.h"

void worker_wait(struct worker *w, int ms) {
    struct pollfd fds[] = {{.fd = w->channel.daemon_event, .events = POLLIN},
                           {.fd = w->channel.socket, .events = POLLRDHUP}};
    if (poll(fds, 2, ms) <= 0)
        fds[0].revents = fds[1].revents = 0;
    if (fds[0].revents)
        worker_event_read(w->channel.daemon_event);
    worker_look(w);
    if (fds[1].revents & (POLLRDHUP | POLLHUP | POLLERR))
        worker_kill(w, "%s", "");
}

static bool lives(const struct worker *w) {
    return w->state == WORKER_UP || w->state == WORKER_STARTING;
}

bool worker_push(struct worker *w, const struct worker_record *record) {
    uint64_t end = 0;
    while (lives(w)) {
        if (worker_ring_push(&w->channel.shared->to_worker, record, w->channel.worker_event))
            return true;
        uint64_t now = workers_now_ns();
        end = end ? end : now + w->device->timeout_ns;
        if (now > end)
            worker_kill(w, "GPU %u (%s): its worker (pid %d) takes nothing any more", w->ordinal, w->name, (int)w->pid);
        else
            worker_wait(w, 1);
    }
    return false;
}

zipcclResult_t worker_call(struct worker *w, struct worker_record *record, uint64_t ns, const char **why) {
    struct device *d = w->device;
    uint64_t end = workers_now_ns() + ns;
    uint32_t call = record->call = ++w->calls ? w->calls : ++w->calls;
    bool told = worker_push(w, record);
    while (told && lives(w) && w->answered != call) {
        if (workers_now_ns() > end)
            worker_kill(w, "GPU %u (%s): its worker (pid %d) does not answer", w->ordinal, w->name, (int)w->pid);
        else
            worker_wait(w, 100);
    }
    if (!told || w->answered != call) {
        *why = worker_end(w);
        return zipcclUnhandledDeviceError;
    }
    zipcclResult_t result = (zipcclResult_t)w->reply.reply.result;
    if (result != zipcclSuccess)
        *why = workers_text(d, w->reply.reply.text);
    return result;
}

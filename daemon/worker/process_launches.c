/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL in a worker: its launching side of the GPU, what the daemon asks of it, and its answers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "daemon/worker/process.h"

#ifdef ZIPCCL_HAVE_NCCL
#    include "daemon/fabric/nccl_here.h"

/* False: *why. */
static bool load(struct process *p, int *version, const char **why) {
    static struct nccl_here here;
    *version = here.library.version;
    if (p->launches.gpus)
        return true;
    p->launches.owner = &here;
    if (nccl_gpus_here.open(&here, version, why) != zipcclSuccess)
        return false;
    p->launches.gpus = &nccl_gpus_here;
    return true;
}
#else
static bool load(struct process *p, int *version, const char **why) {
    (void)p;
    (void)version;
    *why = "this zipccld was built without NCCL";
    return false;
}
#endif

#define CAUSE_MS 100u /* for the device to find what NCCL has met */

void process_nccl(struct process *p, const struct worker_record *r) {
    const char *why = NULL;
    int version = 0;
    bool good = load(p, &version, &why);
    process_reply(p, r->call, good ? zipcclSuccess : zipcclSystemError, why, (uint64_t[2]){(uint64_t)version, 0});
}

static void tell(struct process *p, uint32_t number, const struct nccl_answer *answer) {
    struct worker_record r = {
        .type = WORKER_ANSWER,
        .answer = {
            .comm = answer->comm, .number = number, .result = (uint32_t)answer->result, .unique = answer->unique}};
    if (answer->result != zipcclSuccess)
        snprintf(r.answer.text, sizeof(r.answer.text), "%s", answer->why ? answer->why : "");
    process_tell(p, &r);
}

static void refuse(struct process *p, zipcclResult_t result, const char *why) {
    const struct nccl_command *c = &p->launches.command;
    tell(p, (uint32_t)c->id, &(struct nccl_answer){.comm = c->comm, .what = c->what, .result = result, .why = why});
}

/* At the first command. False: *why. */
static bool open_launcher(struct process *p, const char **why) {
    int version;
    if (p->launches.launcher)
        return true;
    if (!load(p, &version, why))
        return false;
    *why = "no memory, no descriptors, or no threads left";
    if (p->launches.wake < 0)
        p->launches.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (p->launches.wake >= 0)
        p->launches.launcher = p->launches.gpus->launcher(p->launches.owner, p->own_gpu, p->launches.wake);
    return p->launches.launcher != NULL;
}

static void start(struct process *p) {
    const char *why = NULL;
    p->launches.filling = false;
    if (p->launches.refused != zipcclSuccess)
        refuse(p, p->launches.refused, p->launches.why);
    else if (!open_launcher(p, &why) || !p->launches.gpus->ask(p->launches.launcher, &p->launches.command))
        refuse(p, zipcclSystemError, why ? why : "no memory");
}

void process_launch(struct process *p, const struct worker_record *r) {
    struct nccl_command *c = &p->launches.command;
    if (p->launches.filling || r->launch.number == WORKER_UNASKED || r->launch.nops > NCCL_MAX_OPS ||
        r->launch.what >= NCCL_FAILED || (r->launch.what == NCCL_COPY && r->launch.nops != 2) ||
        (r->launch.what == NCCL_COLLECTIVE && r->launch.nops > 2) ||
        (r->launch.what == NCCL_ENROLL && r->launch.nops != 1))
        process_broken("a launch");
    c->comm = r->launch.comm;
    c->id = r->launch.number;
    c->what = r->launch.what;
    c->nops = 0;
    c->rank = r->launch.rank;
    c->nranks = r->launch.nranks;
    c->unique = r->launch.unique;
    p->launches.missing = r->launch.nops;
    p->launches.refused = zipcclSuccess;
    p->launches.filling = true;
    if (p->launches.missing == 0)
        start(p);
}

/* What was refused once stays so. */
static void refuse_later(struct process *p, zipcclResult_t result, const char *why) {
    if (p->launches.refused != zipcclSuccess)
        return;
    p->launches.refused = result;
    p->launches.why = why;
}

void process_ops(struct process *p, const struct worker_record *r) {
    struct nccl_command *c = &p->launches.command;
    if (!p->launches.filling)
        process_broken("operations of no launch");
    for (unsigned i = 0; i < WORKER_OPS_EACH && p->launches.missing > 0; i++, p->launches.missing--) {
        struct nccl_op *op = &c->ops[c->nops++];
        zipcclResult_t result = zipcclSuccess;
        const char *why = NULL;
        *op = r->ops[i];
        if ((op->kind & ~NCCL_OP_REGISTERED) > NCCL_OP_RECV)
            process_broken("an operation of no kind");
        const bool registered = op->kind & NCCL_OP_REGISTERED;
        const void *here =
            (registered ? worker_translate_alias : worker_translate)(p, op->address, op->bytes, &result, &why);
        op->address = (uintptr_t)here;
        if (!here)
            refuse_later(p, result, why);
        else if (!p->ops->reach(p->device, here))
            refuse_later(p, zipcclOutOfMemory, "host memory cannot be pinned for the GPU (ulimit -l)");
    }
    if (c->what == NCCL_COPY && p->launches.missing == 0 && c->ops[0].bytes != c->ops[1].bytes)
        process_broken("a copy of two lengths");
    if (p->launches.missing == 0)
        start(p);
}

/* The GPU works no more: the process is of no use then. */
static void end_if_unable(struct process *p, const struct nccl_answer *answer) {
    if (answer->what != NCCL_LOOK || answer->result != zipcclUnhandledDeviceError)
        return;
    /* What failed, the device knows, or will in a moment. */
    for (unsigned i = 0; i < CAUSE_MS; i++) {
        p->ops->poll(p->device);
        process_end_if_failed(p);
        (void)usleep(1000);
    }
    process_failed(p, "NCCL's launching side finds the GPU failed");
}

/* Why a communicator failed is asked of the GPU. */
static void look(struct process *p, const struct nccl_answer *answer) {
    const struct nccl_command command = {.id = WORKER_UNASKED, .what = NCCL_LOOK};
    if (answer->what == NCCL_LOOK || answer->result == zipcclSuccess || answer->result == zipcclAborted ||
        answer->result == zipcclRemoteError || answer->what == NCCL_ENROLL || p->launches.looking)
        return;
    p->launches.looking = p->launches.gpus->ask(p->launches.launcher, &command);
}

static void tell_answer(struct process *p, const struct nccl_answer *answer) {
    tell(p, answer->what == NCCL_FAILED ? WORKER_UNASKED : (uint32_t)answer->id, answer);
}

/* Until the GPU has said: where it has failed this process ends of that, with the reason, and not the answer. */
static void hold(struct process *p, const struct nccl_answer *answer) {
    if (p->launches.nheld == p->launches.held_room) {
        const uint32_t room = p->launches.held_room ? 2 * p->launches.held_room : 16;
        struct nccl_answer *held = realloc(p->launches.held, room * sizeof(*held));
        if (!held)
            process_broken("more answers than there is memory for");
        p->launches.held = held;
        p->launches.held_room = room;
    }
    p->launches.held[p->launches.nheld++] = *answer;
}

void process_launches_hear(struct process *p) {
    struct nccl_answer answer;
    uint64_t count;
    if (!p->launches.launcher)
        return;
    ssize_t n = read(p->launches.wake, &count, sizeof(count));
    (void)n; /* nothing to read: there is none */
    while (p->launches.gpus->hear(p->launches.launcher, &answer)) {
        end_if_unable(p, &answer);
        if (answer.what == NCCL_LOOK && answer.id == WORKER_UNASKED) {
            p->launches.looking = false;
            for (uint32_t i = 0; i < p->launches.nheld; i++)
                tell_answer(p, &p->launches.held[i]);
            p->launches.nheld = 0;
            continue;
        }
        look(p, &answer);
        if (p->launches.looking)
            hold(p, &answer);
        else
            tell_answer(p, &answer);
    }
}

void process_launch_end(struct process *p, const struct worker_record *r) {
    (void)r;
    if (p->launches.launcher)
        p->launches.gpus->launcher_end(p->launches.launcher);
}

void process_launches_close(struct process *p) {
    if (!p->launches.launcher)
        return;
    p->launches.gpus->launcher_end(p->launches.launcher);
    p->launches.gpus->launcher_close(p->launches.launcher);
    p->launches.launcher = NULL;
    p->launches.looking = false;
    free(p->launches.held);
    p->launches.held = NULL;
    p->launches.nheld = p->launches.held_room = 0;
}

void process_launch_close(struct process *p, const struct worker_record *r) {
    process_launches_close(p);
    process_reply(p, r->call, zipcclSuccess, NULL, NULL);
}

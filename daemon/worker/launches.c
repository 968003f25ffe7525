/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL's launching sides, as the daemon has them: commands of the fabric on their way to the workers, and answers.
 *
 * A command is kept here until its answer is heard: so one that finds no room in the ring waits, and all are answered
 * when the worker is lost, its communicators as failed ones. Commands are used again; the next worker does not know the
 * communicators of the last one, and is not asked about them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/worker/supervisor.h"
#include "daemon/worker/worker.h"

#define CLOSE_NS 10000000000ull

struct launch {
    struct launch *next;
    uint32_t number;
    bool told; /* and not answered */
    struct nccl_answer answer;
    struct nccl_command command;
};

struct launch_queue {
    struct launch *head, **tail;
};

/* A communicator, from the command that makes it to its last one. */
struct launch_comm {
    struct launch_comm *next;
    uint64_t comm;
    bool made;
    uint64_t registered;    /* a bit for each slab that NCCL knows as its */
    struct launch *failure; /* to tell of it; NULL: it is told */
};

struct nccl_launcher {
    struct worker *worker;
    int wake;
    struct launch_queue waiting, answered;
    struct launch **all; /* by number */
    uint32_t n, capacity, told;
    struct launch *spare;
    struct launch_comm *comms;
};

static void queue_init(struct launch_queue *q) {
    q->head = NULL;
    q->tail = &q->head;
}

static void queue_push(struct launch_queue *q, struct launch *launch) {
    launch->next = NULL;
    *q->tail = launch;
    q->tail = &launch->next;
}

static struct launch *queue_pop(struct launch_queue *q) {
    struct launch *launch = q->head;
    if (launch && !(q->head = launch->next))
        q->tail = &q->head;
    return launch;
}

static struct launch *take(struct nccl_launcher *l) {
    struct launch *launch = l->spare;
    if (launch) {
        l->spare = launch->next;
        return launch;
    }
    if (l->n == l->capacity) {
        uint32_t capacity = l->capacity ? 2 * l->capacity : 16;
        struct launch **grown = realloc((void *)l->all, capacity * sizeof(struct launch *));
        if (!grown)
            return NULL;
        l->all = grown;
        l->capacity = capacity;
    }
    launch = malloc(sizeof(*launch));
    if (!launch)
        return NULL;
    launch->number = l->n;
    launch->told = false;
    return l->all[l->n++] = launch;
}

static void put(struct nccl_launcher *l, struct launch *launch) {
    launch->next = l->spare;
    l->spare = launch;
}

static void answer(struct nccl_launcher *l, struct launch *launch, zipcclResult_t result, const char *why) {
    const bool first = !l->answered.head;
    uint64_t one = 1;
    ssize_t n;
    l->told -= launch->told;
    launch->told = false;
    launch->answer.result = result;
    launch->answer.why = why;
    queue_push(&l->answered, launch);
    do {
        n = first ? write(l->wake, &one, sizeof(one)) : 0;
    } while (n < 0 && errno == EINTR);
}

/* ---- communicators ---- */

static struct launch_comm **find_comm(struct nccl_launcher *l, uint64_t comm) {
    struct launch_comm **at = &l->comms;
    while (*at && (*at)->comm != comm)
        at = &(*at)->next;
    return at;
}

static bool add_comm(struct nccl_launcher *l, uint64_t comm) {
    struct launch_comm *c = malloc(sizeof(*c));
    struct launch *failure = c ? take(l) : NULL;
    if (!failure) {
        free(c);
        return false;
    }
    failure->answer = (struct nccl_answer){.comm = comm, .what = NCCL_FAILED};
    *c = (struct launch_comm){.next = l->comms, .comm = comm, .failure = failure};
    l->comms = c;
    return true;
}

static void remove_comm(struct nccl_launcher *l, uint64_t comm) {
    struct launch_comm **at = find_comm(l, comm), *c = *at;
    if (!c)
        return;
    *at = c->next;
    if (c->failure)
        put(l, c->failure);
    free(c);
}

static void fail_comm(struct nccl_launcher *l, struct launch_comm *c, zipcclResult_t result, const char *why) {
    struct launch *failure = c->failure;
    c->failure = NULL;
    if (failure)
        answer(l, failure, result, why);
}

/* ---- slabs ---- */

/* One that finds no memory is not registered, and used as others are. */
static void register_slab(struct nccl_launcher *l, const struct launch_comm *c, const struct slab *slab) {
    struct launch *launch = slab->ready && slab->aliased ? take(l) : NULL;
    if (!launch)
        return;
    launch->answer = (struct nccl_answer){.comm = c->comm, .id = slab->number, .what = NCCL_ENROLL};
    launch->command.comm = c->comm;
    launch->command.id = slab->number;
    launch->command.what = NCCL_ENROLL;
    launch->command.nops = 1;
    launch->command.rank = launch->command.nranks = 0;
    launch->command.ops[0] = (struct nccl_op){.address = (uintptr_t)slab->memory->range.base,
                                              .bytes = slab->memory->range.bytes,
                                              .kind = NCCL_OP_SEND | NCCL_OP_REGISTERED};
    queue_push(&l->waiting, launch);
}

/* The fabric does not hear of it: it is told by what is registered. */
static void registered(struct nccl_launcher *l, struct launch *launch, zipcclResult_t result) {
    struct launch_comm *c = *find_comm(l, launch->answer.comm);
    l->told -= launch->told;
    launch->told = false;
    if (c && result == zipcclSuccess)
        c->registered |= 1ull << launch->answer.id;
    put(l, launch);
}

/* The communicator that a command makes; 0: none. */
static uint64_t made_by(const struct nccl_command *command) {
    return command->what == NCCL_MAKE ? command->comm : command->what == NCCL_SPLIT ? command->branch.comm : 0;
}

static void end_launch(struct nccl_launcher *l, struct launch *launch, zipcclResult_t result, const char *why) {
    const uint64_t made = made_by(&launch->command);
    struct launch_comm *c = made ? *find_comm(l, made) : NULL;
    if (launch->answer.what == NCCL_ENROLL) {
        registered(l, launch, result);
        return;
    }
    answer(l, launch, result, why);
    if (!c || result != zipcclSuccess)
        return;
    c->made = true;
    for (const struct slab *s = l->worker->pool.slabs; s; s = s->next)
        register_slab(l, c, s);
}

/* ---- to the worker ---- */

/* Why it cannot be told: of its addresses. NULL: it can. */
static const char *check_memory(const struct worker *w, const struct nccl_command *command) {
    for (uint32_t i = 0; i < command->nops; i++) {
        const struct nccl_op *op = &command->ops[i];
        const struct memory *m = memory_of(w->device, (const void *)(uintptr_t)op->address);
        if (!m || op->bytes > m->range.bytes - (op->address - (uintptr_t)m->range.base))
            return "a GPU's worker cannot reach all memory of the operation";
        if (memory_dead(m))
            return memory_dead(m);
        if (m->slab && m->home != w)
            return "a GPU's worker cannot reach another one's pool";
    }
    return NULL;
}

/* All memory that it names is made known to the worker. False: that has to wait, or it dies. */
static bool tell_memory(struct worker *w, const struct nccl_command *command) {
    for (uint32_t i = 0; i < command->nops; i++) {
        struct memory *m = memory_of(w->device, (const void *)(uintptr_t)command->ops[i].address);
        if (m && !memory_tell(w, m))
            return false;
    }
    return true;
}

static bool tell(struct worker *w, const struct launch *launch) {
    const struct nccl_command *command = &launch->command;
    struct worker_record r = {.type = WORKER_LAUNCH,
                              .launch = {.comm = command->comm,
                                         .number = launch->number,
                                         .what = command->what,
                                         .nops = command->nops,
                                         .rank = command->rank,
                                         .nranks = command->nranks,
                                         .unique = command->unique}};
    bool told = worker_push(w, &r);
    for (uint32_t i = 0; told && i < command->nops; i += WORKER_OPS_EACH) {
        uint32_t here = command->nops - i < WORKER_OPS_EACH ? command->nops - i : WORKER_OPS_EACH;
        r = (struct worker_record){.type = WORKER_OPS};
        memcpy(r.ops, &command->ops[i], here * sizeof(r.ops[0]));
        told = worker_push(w, &r);
    }
    return told;
}

/* Records that it may take, its memory among them. */
static unsigned room_for(const struct nccl_command *command) {
    return 2 + command->nops + command->nops / WORKER_OPS_EACH;
}
_Static_assert(2 + NCCL_MAX_OPS + NCCL_MAX_OPS / WORKER_OPS_EACH <= WORKER_RING_RECORDS, "the longest fits");

void worker_launches_pump(struct worker *w) {
    struct nccl_launcher *l = w->launcher;
    while (l && w->state == WORKER_UP && l->waiting.head &&
           worker_ring_room(&w->channel.shared->to_worker) >= room_for(&l->waiting.head->command)) {
        const char *why = check_memory(w, &l->waiting.head->command);
        if (!why && !tell_memory(w, &l->waiting.head->command))
            return;
        struct launch *launch = queue_pop(&l->waiting);
        if (why) {
            end_launch(l, launch, zipcclUnhandledDeviceError, why);
            continue;
        }
        launch->told = true;
        l->told++;
        if (!tell(w, launch))
            return; /* it is answered when the worker is reaped */
    }
}

static bool launches_ask(struct nccl_launcher *l, const struct nccl_command *command) {
    struct worker *w = l->worker;
    const bool ends = command->what == NCCL_ABORT || command->what == NCCL_LEAVE;
    const bool known = *find_comm(l, command->comm) != NULL;
    const bool launches =
        command->what == NCCL_LAUNCH || command->what == NCCL_COLLECTIVE || command->what == NCCL_SPLIT;
    const uint64_t made = known || !launches ? made_by(command) : 0;
    struct launch *launch = take(l);
    if (!launch)
        return false;
    launch->answer = (struct nccl_answer){.comm = command->comm, .id = command->id, .what = command->what};
    if (made && !*find_comm(l, made) && !add_comm(l, made)) {
        put(l, launch);
        return false;
    }
    if (ends)
        remove_comm(l, command->comm);
    if (!known && (ends || command->what == NCCL_REVOKE || launches)) {
        /* It went with its worker. */
        answer(l, launch, launches ? zipcclAborted : zipcclSuccess, NULL);
        return true;
    }
    if (worker_out(w, workers_now_ns() + WORKER_AWAIT_NS)) {
        answer(l, launch, zipcclUnhandledDeviceError, w->why);
        return true;
    }
    memcpy(&launch->command, command, nccl_command_bytes(command));
    queue_push(&l->waiting, launch);
    worker_pump(w);
    return true;
}

/* ---- from the worker ---- */

const char *worker_launch_answered(struct worker *w, const struct worker_record *r) {
    struct nccl_launcher *l = w->launcher;
    char text[WORKER_TEXT_BYTES];
    if (!l || r->answer.result >= zipcclNumResults)
        return "an answer to nothing";
    const zipcclResult_t result = (zipcclResult_t)r->answer.result;
    worker_text_of(text, r->answer.text);
    const char *why = result != zipcclSuccess && text[0] ? workers_text(w->device, text) : NULL;
    if (r->answer.number == WORKER_UNASKED) {
        struct launch_comm *c = *find_comm(l, r->answer.comm);
        if (c) /* else it was ended meanwhile */
            fail_comm(l, c, result != zipcclSuccess ? result : zipcclInternalError, why);
        return NULL;
    }
    if (r->answer.number >= l->n || !l->all[r->answer.number]->told)
        return "an answer to nothing";
    struct launch *launch = l->all[r->answer.number];
    if (launch->answer.what == NCCL_MAKE_ID)
        launch->answer.unique = r->answer.unique;
    end_launch(l, launch, result, why);
    pool_rest(w);
    return NULL;
}

bool worker_launches_idle(const struct worker *w) {
    const struct nccl_launcher *l = w->launcher;
    return !l || (!l->comms && l->told == 0 && !l->waiting.head);
}

void worker_launches_register(struct worker *w, const struct slab *slab) {
    for (struct launch_comm *c = w->launcher ? w->launcher->comms : NULL; c; c = c->next) {
        if (c->made)
            register_slab(w->launcher, c, slab);
    }
}

bool worker_launches_any(const struct worker *w) {
    return w->launcher && (w->launcher->told > 0 || w->launcher->waiting.head);
}

void worker_launches_fail(struct worker *w, const char *why) {
    struct nccl_launcher *l = w->launcher;
    struct launch *launch;
    if (!l)
        return;
    while (l->comms) {
        fail_comm(l, l->comms, zipcclUnhandledDeviceError, why);
        remove_comm(l, l->comms->comm);
    }
    for (uint32_t i = 0; i < l->n; i++) {
        if (l->all[i]->told)
            end_launch(l, l->all[i], zipcclUnhandledDeviceError, why);
    }
    while ((launch = queue_pop(&l->waiting)) != NULL)
        end_launch(l, launch, zipcclUnhandledDeviceError, why);
}

static bool launches_hear(struct nccl_launcher *l, struct nccl_answer *out) {
    struct launch *launch = queue_pop(&l->answered);
    if (!launch)
        return false;
    *out = launch->answer;
    put(l, launch);
    return true;
}

/* ---- lives ---- */

static struct nccl_launcher *launches_open(void *owner, uint32_t gpu, int wake) {
    struct device *d = owner;
    struct worker *w = gpu < d->nworkers ? &d->workers[gpu] : NULL;
    struct nccl_launcher *l = w && !w->launcher ? calloc(1, sizeof(*l)) : NULL;
    if (!l)
        return NULL;
    l->worker = w;
    l->wake = wake;
    queue_init(&l->waiting);
    queue_init(&l->answered);
    return w->launcher = l;
}

static void launches_end(struct nccl_launcher *l) {
    const struct worker_record r = {.type = WORKER_LAUNCH_END};
    queue_init(&l->waiting);
    if (l->worker->state == WORKER_UP)
        (void)worker_push(l->worker, &r);
}

void worker_launches_free(struct worker *w) {
    struct nccl_launcher *l = w->launcher;
    if (!l)
        return;
    w->launcher = NULL;
    while (l->comms)
        remove_comm(l, l->comms->comm);
    for (uint32_t i = 0; i < l->n; i++)
        free(l->all[i]);
    free((void *)l->all);
    free(l);
}

static void launches_close(struct nccl_launcher *l) {
    struct worker *w = l->worker;
    struct worker_record r = {.type = WORKER_LAUNCH_CLOSE};
    const char *why;
    if (w->state == WORKER_UP)
        (void)worker_call(w, &r, CLOSE_NS, &why); /* one that dies of it launches nothing either */
    worker_launches_free(w);
}

/* ---- the GPUs ---- */

/* All workers run the same libraries: the first one that there is tells of them. */
static zipcclResult_t gpus_open(void *owner, int *version, const char **why) {
    struct device *d = owner;
    struct worker_record r = {.type = WORKER_NCCL};
    *why = "no GPU has a worker";
    for (unsigned i = 0; i < d->nworkers; i++) {
        struct worker *w = &d->workers[i];
        if (!worker_await(w, why))
            continue;
        zipcclResult_t result = worker_call(w, &r, d->timeout_ns, why);
        *version = (int)w->reply.reply.value[0];
        return result;
    }
    return zipcclUnhandledDeviceError;
}

static void gpus_close(void *owner) {
    (void)owner; /* what workers have loaded goes with them */
}

static enum nccl_place gpus_place(void *owner, const void *ptr, uint32_t *gpu) {
    const struct memory *m = memory_of(owner, ptr);
    if (m && m->home) {
        *gpu = m->home->ordinal;
        return NCCL_PLACE_GPU;
    }
    return m && m->scratch ? NCCL_PLACE_PINNED : NCCL_PLACE_HOST; /* clients' is not worth pinning for this */
}

static bool gpus_registered(void *owner, uint64_t comm, const void *memory) {
    const struct memory *m = memory_of(owner, memory);
    struct nccl_launcher *l = m && m->slab ? m->home->launcher : NULL;
    const struct launch_comm *c = l && !memory_dead(m) ? *find_comm(l, comm) : NULL;
    return c && (c->registered >> m->slab->number & 1);
}

static void *gpus_alloc(void *owner, size_t bytes) {
    return workers_alloc(owner, bytes);
}

static void gpus_free(void *owner, void *memory, size_t bytes) {
    workers_free(owner, memory, bytes);
}

const struct nccl_gpus_ops nccl_gpus_workers = {
    .open = gpus_open,
    .close = gpus_close,
    .place = gpus_place,
    .registered = gpus_registered,
    .alloc = gpus_alloc,
    .free = gpus_free,
    .launcher = launches_open,
    .launcher_end = launches_end,
    .launcher_close = launches_close,
    .ask = launches_ask,
    .hear = launches_hear,
};

/* SPDX-License-Identifier: Apache-2.0
 *
 * The launching side of a GPU: its thread, and the records that pass between it and the loop.
 */
#include "daemon/fabric/nccl_launcher.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define LOOK_NS 20000 /* while something is under way; ten times that after a while without an end */
#define LOOKS   50u

uint64_t nccl_now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

struct nccl_task *nccl_task_new(const struct nccl_command *command) {
    size_t bytes = nccl_command_bytes(command);
    struct nccl_task *task = malloc(offsetof(struct nccl_task, command) + bytes);
    if (!task)
        return NULL;
    memset(task, 0, offsetof(struct nccl_task, command));
    memcpy(&task->command, command, bytes);
    task->answer.comm = command->comm;
    task->answer.id = command->id;
    task->answer.what = command->what;
    return task;
}

void nccl_task_answer(struct nccl_launcher *l, struct nccl_task *task, zipcclResult_t result) {
    uint64_t one = 1;
    ssize_t n;
    task->answer.result = result;
    pthread_mutex_lock(&l->lock);
    bool first = !l->answers.head;
    nccl_tasks_push(&l->answers, task);
    pthread_mutex_unlock(&l->lock);
    do {
        n = first ? write(l->wake, &one, sizeof(one)) : 0;
    } while (n < 0 && errno == EINTR);
}

bool nccl_launcher_hear(struct nccl_launcher *l, struct nccl_answer *answer) {
    pthread_mutex_lock(&l->lock);
    struct nccl_task *task = nccl_tasks_pop(&l->answers);
    pthread_mutex_unlock(&l->lock);
    if (!task)
        return false;
    *answer = task->answer;
    free(task);
    return true;
}

bool nccl_launcher_ask(struct nccl_launcher *l, const struct nccl_command *command) {
    struct nccl_task *task = nccl_task_new(command);
    if (!task)
        return false;
    pthread_mutex_lock(&l->lock);
    nccl_tasks_push(&l->orders, task);
    pthread_cond_signal(&l->some);
    pthread_mutex_unlock(&l->lock);
    return true;
}

static void wait_for_more(struct nccl_launcher *l, unsigned looks) {
    struct timespec until;
    if (!nccl_launch_is_busy(l)) {
        pthread_cond_wait(&l->some, &l->lock);
        return;
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += looks < LOOKS ? LOOK_NS : 10 * LOOK_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&l->some, &l->lock, &until);
}

/* looks: in vain, since something ended. False: it is to end. */
static bool take_orders(struct nccl_launcher *l, unsigned looks) {
    struct nccl_tasks orders;
    struct nccl_task *task;
    nccl_tasks_init(&orders);
    pthread_mutex_lock(&l->lock);
    if (!l->orders.head && !l->stop && looks > 0)
        wait_for_more(l, looks);
    while ((task = nccl_tasks_pop(&l->orders)))
        nccl_tasks_push(&orders, task);
    bool go = !l->stop;
    pthread_mutex_unlock(&l->lock);
    while ((task = nccl_tasks_pop(&orders)))
        nccl_launch_take(l, task);
    return go;
}

void nccl_launcher_streams(struct nccl_launcher *l) {
    const struct nccl_library *n = l->library;
    if (l->stream)
        return;
    if (n->cudaSetDevice(l->gpu) != cudaSuccess ||
        n->cudaStreamCreateWithPriority(&l->stream, cudaStreamNonBlocking, 0) != cudaSuccess)
        l->stream = NULL;
    if (l->stream && n->cudaStreamCreateWithPriority(&l->copy_stream, cudaStreamNonBlocking, 0) != cudaSuccess) {
        (void)n->cudaStreamDestroy(l->stream);
        l->stream = l->copy_stream = NULL;
    }
}

static void close_streams(struct nccl_launcher *l) {
    while (l->nspare_events > 0)
        (void)l->library->cudaEventDestroy(l->spare_events[--l->nspare_events]);
    if (l->stream)
        (void)l->library->cudaStreamDestroy(l->stream);
    if (l->copy_stream)
        (void)l->library->cudaStreamDestroy(l->copy_stream);
}

static void *launcher_main(void *arg) {
    struct nccl_launcher *l = arg;
    unsigned looks = 0;
    prctl(PR_SET_TIMERSLACK, 1000ul); /* ns */
    nccl_launcher_streams(l);
    while (take_orders(l, looks))
        looks = nccl_launch_run(l) ? 0 : looks + 1;
    nccl_launch_end(l);
    close_streams(l);
    return NULL;
}

struct nccl_launcher *nccl_launcher_open(const struct nccl_library *library, int gpu, int wake) {
    pthread_condattr_t attributes;
    struct nccl_launcher *l = calloc(1, sizeof(*l));
    sigset_t all, before; /* signals belong to the loop */
    char name[16];
    if (!l)
        return NULL;
    l->library = library;
    l->gpu = gpu;
    l->wake = wake;
    struct nccl_tasks *queues[] = {&l->orders,  &l->answers, &l->waiting, &l->flying,
                                   &l->copying, &l->leaving, &l->in_doubt};
    for (size_t i = 0; i < sizeof(queues) / sizeof(queues[0]); i++)
        nccl_tasks_init(queues[i]);
    pthread_mutex_init(&l->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&l->some, &attributes);
    pthread_condattr_destroy(&attributes);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(&l->thread, NULL, launcher_main, l) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!started) {
        pthread_cond_destroy(&l->some);
        pthread_mutex_destroy(&l->lock);
        free(l);
        return NULL;
    }
    snprintf(name, sizeof(name), "zipccl-nccl-%d", gpu);
    pthread_setname_np(l->thread, name);
    return l;
}

void nccl_launcher_end(struct nccl_launcher *l) {
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_signal(&l->some);
    pthread_mutex_unlock(&l->lock);
}

void nccl_launcher_close(struct nccl_launcher *l) {
    struct nccl_answer lost;
    pthread_join(l->thread, NULL);
    while (nccl_launcher_hear(l, &lost))
        ;
    pthread_cond_destroy(&l->some);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

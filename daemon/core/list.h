/* SPDX-License-Identifier: Apache-2.0
 *
 * Intrusive doubly linked lists. A head and a link are the same struct; an empty link points at itself.
 * The list owns nothing.
 */
#ifndef ZIPCCL_DAEMON_LIST_H
#define ZIPCCL_DAEMON_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *next, *prev;
};

static inline void list_init(struct list *l) {
    l->next = l->prev = l;
}

static inline bool list_empty(const struct list *l) {
    return l->next == l;
}

static inline void list_add_tail(struct list *head, struct list *l) {
    l->prev = head->prev;
    l->next = head;
    head->prev->next = l;
    head->prev = l;
}

/* Safe on a link that is in no list. */
static inline void list_del(struct list *l) {
    l->prev->next = l->next;
    l->next->prev = l->prev;
    list_init(l);
}

#define list_entry(l, type, member) ((type *)((char *)(l)-offsetof(type, member)))
#define list_for_each(pos, head)    for (struct list *pos = (head)->next; pos != (head); pos = pos->next)
/* The body may remove pos. */
#define list_for_each_safe(pos, head)                                                                                  \
    for (struct list *pos = (head)->next, *pos##_next = pos->next; pos != (head);                                      \
         pos = pos##_next, pos##_next = pos->next)

#endif

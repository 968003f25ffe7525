/* SPDX-License-Identifier: Apache-2.0
 *
 * What an operation is doing: found by a look at all steps under way, so that the steps themselves need not tell.
 */
#include "daemon/core/executor_impl.h"

static void note(struct exec_where *w, const struct exec_work *work) {
    const struct plan_step *st = exec_step_of(work);
    bool exchange = work->op->entry->nops == 0;
    switch ((enum plan_kind)st->kind) {
    case PLAN_SEND:
        if (w->sends++ == 0)
            w->send_node = st->peer;
        break;
    case PLAN_RECV:
        if (w->recvs++ == 0) {
            w->recv_node = st->peer;
            w->recv_rank = exchange ? exec_item_of(work)->peer : EXEC_NO_RANK;
        }
        break;
    case PLAN_ENCODE:
        w->encodes++;
        break;
    default:
        w->others++;
        break;
    }
}

void exec_op_where(const struct exec_op *op, struct exec_where *w) {
    *w = (struct exec_where){.send_node = 0, .recv_rank = EXEC_NO_RANK};
    for (const struct exec_slab *s = op->comm->executor->slabs; s; s = s->next)
        for (size_t i = 0; i < sizeof(s->work) / sizeof(s->work[0]); i++)
            if (s->work[i].op == op)
                note(w, &s->work[i]);
    if (!op->native || op->nactive == 0)
        return;
    w->recv_node = op->whole.waits_for;
    w->native = op->whole.launched                                 ? EXEC_NATIVE
                : op->whole.waits_for >= op->comm->topology.nnodes ? EXEC_NATIVE_WAITS
                : op->whole.waits_for != op->comm->node            ? EXEC_NATIVE_WAITS_NODE
                                                                   : EXEC_NATIVE_WAITS;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Large messages on a link with a rate go in pieces, each when its time on the link has come: as a whole, a message
 * would keep this thread, and the receiver's, busy for milliseconds at a time, and what is small would wait for that.
 *
 * A piece goes only after the receiver has allowed its message, so its receive is posted: it is copied to its place,
 * and one whose receive has ended since is dropped. Pieces fit into one segment of TCP, so UCX copies nothing together.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/fabric/ucx.h"

struct piece_header {
    struct fabric_header message;
    uint64_t offset, bytes; /* of the piece; of the message */
};

/* While UCX has it: headers and lists have to stay where they are. */
struct ucx_piece {
    struct ucx_piece *next; /* of the spare ones */
    struct fabric_send *send;
    struct piece_header header;
    ucp_dt_iov_t iov[2];
};

/* NULL: no memory. It is returned to the spare ones. */
static struct ucx_piece *piece_get(struct fabric *f) {
    if (!f->spare)
        f->spare = calloc(1, sizeof(*f->spare));
    struct ucx_piece *piece = f->spare;
    if (piece)
        f->spare = piece->next;
    return piece;
}

void ucx_piece_free_all(struct fabric *f) {
    while (f->spare) {
        struct ucx_piece *piece = f->spare;
        f->spare = piece->next;
        free(piece);
    }
}

static void end_if_idle(struct fabric *f, struct fabric_send *send) {
    struct ucx_send *s = ucx_send_of(send);
    if (s->pieces > 0 || s->waits)
        return;
    if (s->result == zipcclSuccess)
        atomic_fetch_add_explicit(&f->sent_bytes, ucx_send_bytes(send), memory_order_relaxed);
    ucx_finish(f, &s->link, (zipcclResult_t)s->result);
}

static void piece_sent(void *request, ucs_status_t status, void *user_data) {
    struct ucx_piece *piece = user_data;
    struct fabric_send *send = piece->send;
    struct ucx_send *s = ucx_send_of(send);
    struct fabric *f = send->peer->fabric;
    if (request)
        ucp_request_free(request);
    piece->next = f->spare;
    f->spare = piece;
    s->pieces--;
    if (status != UCS_OK && s->result == zipcclSuccess)
        s->result = zipcclRemoteError;
    end_if_idle(f, send);
}

/* The part [offset, offset + bytes) of a message's one or two parts; how many it lies in. */
static unsigned cut(const struct fabric_send *send, uint64_t offset, uint64_t bytes, ucp_dt_iov_t *iov) {
    unsigned n = 0;
    for (unsigned i = 0; i < send->niov && bytes > 0; i++) {
        uint64_t size = send->iov[i].bytes, left = offset < size ? size - offset : 0;
        uint64_t here = left < bytes ? left : bytes;
        if (here > 0)
            iov[n++] = (ucp_dt_iov_t){(char *)(uintptr_t)send->iov[i].base + offset, here};
        offset = offset < size ? 0 : offset - size;
        bytes -= here;
    }
    return n;
}

static void issue(struct fabric_send *send, struct ucx_piece *piece, uint64_t bytes) {
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                                                 UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_DATATYPE,
                                 .flags = UCP_AM_SEND_FLAG_EAGER,
                                 .datatype = ucp_dt_make_contig(1),
                                 .cb.send = piece_sent,
                                 .user_data = piece};
    unsigned n = cut(send, piece->header.offset, bytes, piece->iov);
    const void *buffer = piece->iov[0].buffer;
    size_t count = bytes;
    if (n > 1) {
        param.datatype = ucp_dt_make_iov();
        buffer = piece->iov;
        count = n;
    }
    ucs_status_ptr_t request =
        ucp_am_send_nbx(send->peer->bulk, UCX_AM_PIECE, &piece->header, sizeof(piece->header), buffer, count, &param);
    if (request == NULL || UCS_PTR_IS_ERR(request))
        piece_sent(NULL, request ? UCS_PTR_STATUS(request) : UCS_OK, piece);
}

void ucx_piece_issue(struct fabric *f, struct fabric_send *send) {
    struct ucx_send *s = ucx_send_of(send);
    uint64_t total = ucx_send_bytes(send), offset = total - s->item.bytes - s->item.taken;
    struct ucx_piece *piece = NULL;
    s->waits = flow_item_waits(&s->item);
    if (s->result == zipcclSuccess && atomic_load(&send->peer->failed))
        s->result = zipcclRemoteError;
    if (s->result == zipcclSuccess && !(piece = piece_get(f)))
        s->result = zipcclOutOfMemory;
    if (!piece) {
        end_if_idle(f, send);
        return;
    }
    s->pieces++;
    *piece = (struct ucx_piece){.send = send, .header = {send->header, offset, total}};
    issue(send, piece, s->item.taken);
}

void ucx_piece_drop(struct fabric *f, struct fabric_send *send, zipcclResult_t result) {
    struct ucx_send *s = ucx_send_of(send);
    s->waits = false;
    if (s->result == zipcclSuccess)
        s->result = (uint8_t)result;
    end_if_idle(f, send);
}

static void end_receive(struct fabric *f, struct ucx_link **posted, zipcclResult_t result) {
    struct ucx_link *link = *posted;
    *posted = link->next;
    ucx_finish(f, link, result);
}

ucs_status_t ucx_on_piece(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                          const ucp_am_recv_param_t *param) {
    struct fabric *f = arg;
    struct piece_header h;
    if (header_bytes != sizeof(h) || param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)
        return UCS_OK; /* dropped, as all below */
    memcpy(&h, header, sizeof(h));
    struct ucx_comm *c = ucx_comm_find(f, h.message.comm);
    struct ucx_link **posted = c && !c->dead ? ucx_find_posted(c, &h.message) : NULL;
    if (!posted)
        return UCS_OK;
    struct fabric_recv *recv = ucx_recv_from(*posted);
    size_t *got = &ucx_recv_of(recv)->got;
    if (*got == 0) {
        recv->header = h.message;
        recv->bytes = h.bytes;
    }
    if (h.bytes > recv->capacity) {
        end_receive(f, posted, zipcclLimitExceeded);
        return UCS_OK;
    }
    if (h.bytes != recv->bytes || h.offset > h.bytes || bytes > h.bytes - h.offset || bytes == 0 ||
        bytes > h.bytes - *got)
        return UCS_OK;
    memcpy((char *)recv->buffer + h.offset, data, bytes);
    *got += bytes;
    if (*got < h.bytes)
        return UCS_OK;
    atomic_fetch_add_explicit(&f->received_bytes, h.bytes, memory_order_relaxed);
    end_receive(f, posted, zipcclSuccess);
    return UCS_OK;
}

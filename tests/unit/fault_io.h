/*
 * A backend that lies: wraps another and makes reads short, interrupted, wrong or late. Linked into
 * waste-reader-fault (the backends' create functions are replaced at link time), told what to do by
 * WASTE_FAULT, a list like "eio=17,short=5000":
 *
 *     short=N    every read is cut to at most N bytes
 *     eintr=N    every Nth read ends with EINTR (eagain=N likewise)
 *     busy=N     the first N reads end with EINTR and EAGAIN in turn
 *     eio=K      read number K (from 1) ends with EIO; badcrc=K: with one bit flipped
 *     eioall=1   every read does
 *     nodirect=1 EINVAL as long as the file is open with O_DIRECT; latedirect=1: not yet at the
 *                first read, by which the backend is tried out
 *     full=N     every Nth read finds the backend full
 *     uring=E    creating io_uring fails with errno E
 */
#ifndef WASTE_TESTS_FAULT_IO_H
#define WASTE_TESTS_FAULT_IO_H

#include "reader/io.h"

/* Takes `inner` over. */
struct waste_io *fault_io_create(struct waste_io *inner, const struct waste_io_setup *setup,
                                 const char *plan);

#endif

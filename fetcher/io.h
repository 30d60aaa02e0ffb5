/* Files and messages of waste-fetch. */
#ifndef WASTE_FETCHER_IO_H
#define WASTE_FETCHER_IO_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Prints "waste-fetch: ..." as one line on stderr; control characters are escaped. Only the first
 * call of a process prints, from whatever thread: what ends a run is said once, and decides its
 * exit code. Returns -1. */
int waste_fetch_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same of wrong use: what the command line says, or a path in it, will not do. */
int waste_fetch_refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* "cannot open PATH: ...": wrong use if the path will not do, a failure if the machine does not. */
int waste_fetch_cannot(const char *what, const char *path, int error);

/* Of what was said first (options.h); WASTE_EXIT_FAILED if nothing was. */
int waste_fetch_exit_code(void);

/* One finding of a list: every call prints. */
void waste_fetch_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* io_json.c: one object on stdout, and away with it. 0, or -1 with the reason printed. */
int waste_fetch_print_json(json_t *object);
/* io_json.c: any text as JSON. A path may hold bytes that are no UTF-8, they become U+FFFD. A new
 * reference. */
json_t *waste_io_json(const char *text);

/* Locks an open directory until it is closed; false: another process has it, or, if not `shared`,
 * shares it. File systems without locks (some network ones) let everybody in. */
bool waste_io_lock(int dir, bool shared);

/* The whole of it, at `off`; 0 or -errno. */
int waste_io_pwrite(int fd, const void *data, size_t n, uint64_t off);

/* Writes dir/name whole, replacing it atomically; it is on the disk on return. Prints and returns
 * -1 if that fails. */
int waste_io_write_file(int dir, const char *name, const void *data, size_t n);

/* The same without a word: 0 or -errno. */
int waste_io_replace_file(int dir, const char *name, const void *data, size_t n);

/* dir/name whole, with a NUL behind it, malloc'd. 0, -EFBIG (more than `most` bytes), -EINVAL (no
 * regular file) or -errno. */
int waste_io_read_file(int dir, const char *name, size_t most, char **out, size_t *bytes);

#endif

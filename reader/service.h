/*
 * The reader's service: takes demand, prefetch and embedding requests out of shared memory, keeps
 * reads going, sleeps when there is nothing to do. One thread.
 */
#ifndef WASTE_READER_SERVICE_H
#define WASTE_READER_SERVICE_H

#include "reader/banks.h"
#include "reader/cache.h"
#include "reader/embed.h"
#include "reader/fetch.h"
#include "reader/io_drives.h"
#include "reader/prefault.h"
#include "reader/usage.h"

struct waste_service {
    struct waste_shm shm;
    const char *dir;
    const char *usage_dir, *usage_name; /* where what is learned is kept; NULL: nowhere */
    int cache_fd, event_fd;
    uint8_t *cache_base;
    uint64_t cache_bytes;
    struct waste_banks banks;
    struct waste_embed embed;
    struct waste_cache cache;
    struct waste_io_setup setup;
    struct waste_io *io;
    struct waste_fetch fetch;
    struct waste_prefault prefault;
    int usage_fd; /* of usage_dir, while it can be written to; else -1 */
    struct waste_usage usage;
    uint32_t usage_next; /* entry to warm the cache with */
    struct waste_usage_saver saver;
    uint64_t saved_ns, saved_records;
    struct waste_want *want;              /* a record of the ring, copied before it is believed */
    uint64_t bad_demands, bad_prefetches; /* records that made no sense */
    uint64_t healed_seen, heals;
    uint64_t repairs; /* rings that made no sense */
};

/*
 * Opens files and backend, takes over the cache. shm, dir, usage_dir and usage_name, cache_fd,
 * event_fd, cache_base and cache_bytes are set by the caller. 0 or -errno with `err`; -EINVAL and
 * the like are the configuration's fault.
 */
int waste_service_init(struct waste_service *s, struct waste_error *err);
void waste_service_finish(struct waste_service *s);

/* Serves until the stage record says stop and no read is in flight. 0, or -errno: the backend
 * broke. */
int waste_service_run(struct waste_service *s);

/* The supervisor wants this process to end. */
bool waste_service_stopping(const struct waste_service *s);

#endif

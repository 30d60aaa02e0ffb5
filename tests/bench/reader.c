/*
 * The reader alone against the drive: its service (the code of waste-reader, a thread of this
 * process) is asked for random experts, a layer at a time, as compute asks; right before and after
 * every round the same drive is read raw, at several depths. What counts is the ratio.
 *
 *     reader-bench MODEL [rounds [layers a round [slots [depth]]]]
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "fetcher/disk.h"
#include "reader/service.h"
#include "shm/segment.h"

enum { LEVELS = 4 };

static double now_s(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static int die(const char *what, const char *why)
{
    fprintf(stderr, "reader-bench: %s: %s\n", what, why);
    exit(1);
}

struct rig {
    struct waste_model *model;
    struct waste_service s;
    pthread_t thread;
    uint64_t step, random;
    uint32_t moe[WASTE_MAX_LAYERS], moe_count;
};

static uint64_t next_random(struct rig *r)
{
    r->random ^= r->random << 13;
    r->random ^= r->random >> 7;
    r->random ^= r->random << 17;
    return r->random;
}

static void *serve(void *arg)
{
    struct rig *r = arg;
    waste_service_run(&r->s);
    return NULL;
}

static void create(struct rig *r, const char *dir, uint32_t slots, uint32_t depth)
{
    struct waste_mapping control, cache;
    struct waste_error err;
    const struct waste_options options = {.threads = 1, .verify = 1, .ctx = 64, .io_depth = depth};
    int fd;

    if (waste_container_open(dir, &r->model, &err) < 0)
        die("container", err.text);
    for (uint32_t l = 0; l < r->model->config.layers; l++)
        if (waste_model_layer(r->model, l)->is_moe)
            r->moe[r->moe_count++] = l;
    if (slots == 0)
        slots = r->moe_count * r->model->config.top_k;
    uint64_t bytes = waste_control_bytes(r->model, slots);
    if (waste_segment_create(WASTE_SEG_CONTROL, bytes, &fd) < 0 ||
        waste_segment_map(fd, WASTE_SEG_CONTROL, true, &control) < 0)
        die("control", "no memory");
    waste_control_init(control.base, bytes, r->model, slots, &options, getpid(), &r->s.shm);
    if (waste_segment_create(WASTE_SEG_CACHE, (uint64_t)slots * r->model->expert.record_bytes,
                             &r->s.cache_fd) < 0 ||
        waste_segment_map(r->s.cache_fd, WASTE_SEG_CACHE, true, &cache) < 0)
        die("cache", "no memory");
    r->s.dir = dir;
    r->s.cache_base = cache.base;
    r->s.cache_bytes = cache.bytes;
    r->s.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r->random = (uint64_t)(now_s() * 1e9) | 1;
    if (waste_service_init(&r->s, &err) < 0)
        die("reader", err.text);
    if (pthread_create(&r->thread, NULL, serve, r) != 0)
        die("reader", "no thread");
}

static void end(struct rig *r)
{
    atomic_store(&r->s.shm.control->stage[WASTE_STAGE_READER].stop, 1);
    waste_bell_ring_fd(&r->s.shm.control->reader_bell, r->s.event_fd);
    pthread_join(r->thread, NULL);
    waste_service_finish(&r->s);
}

static void wait_expert(struct rig *r, uint32_t layer, uint32_t expert)
{
    const struct waste_shm *shm = &r->s.shm;
    struct waste_bell *bell = &shm->control->compute_bell;
    for (;;) {
        uint32_t seq = waste_bell_seq(bell);
        uint32_t slot = atomic_load_explicit(
            &shm->directory[layer * r->model->config.experts + expert], memory_order_acquire);
        if (slot != WASTE_SLOT_NONE &&
            waste_slot_pin(&shm->slot[slot], waste_slot_key(layer, expert))) {
            waste_slot_unpin(&shm->slot[slot]);
            return;
        }
        waste_bell_wait(bell, seq, 100000000, 0);
    }
}

/* One layer's demand and all of its experts; *first is when the first of them was there. */
static void layer(struct rig *r, uint32_t at, double *first)
{
    uint32_t top_k = r->model->config.top_k, chosen = 0;
    struct waste_want *want;
    while (!(want = waste_ring_claim(r->s.shm.demand)))
        usleep(10);
    want->step = r->step;
    want->layer = at;
    want->count = top_k;
    uint32_t expert[WASTE_WANT_MIN];
    while (chosen < top_k) {
        uint32_t e = (uint32_t)(next_random(r) % r->model->config.experts), i = 0;
        while (i < chosen && expert[i] != e)
            i++;
        if (i == chosen)
            expert[chosen++] = e;
    }
    memcpy(want->expert, expert, top_k * sizeof(*expert));
    double start = now_s();
    waste_ring_publish(r->s.shm.demand);
    waste_bell_ring_fd(&r->s.shm.control->reader_bell, r->s.event_fd);
    for (uint32_t i = 0; i < top_k; i++) {
        wait_expert(r, at, expert[i]);
        if (i == 0)
            *first += now_s() - start;
    }
}

/* What the reader's thread has computed so far: says what a busy machine cannot hide. */
static double reader_cpu(const struct rig *r)
{
    struct timespec ts = {0};
    clockid_t clock;
    if (pthread_getcpuclockid(r->thread, &clock) == 0)
        clock_gettime(clock, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static uint64_t counter(const struct rig *r, enum waste_counter id)
{
    return atomic_load(&r->s.shm.control->counter[id]);
}

static double best_of_raw(struct waste_disk *disk)
{
    struct waste_disk_rate rate;
    struct waste_error err;
    double best = 0;
    for (uint32_t i = 0; i < LEVELS; i++) {
        if (waste_disk_measure(disk, 2u << i, 0.1, &rate, &err) < 0)
            die("disk", err.text);
        double gb = (double)rate.bytes / rate.seconds / 1e9;
        printf("  %2u: %.2f", 2u << i, gb);
        best = gb > best ? gb : best;
    }
    return best;
}

/* The same in batches, as layers come: so many at once, and the next when all are there. */
static double raw_batches(struct waste_disk *disk, uint32_t top_k, int batches)
{
    struct waste_disk_rate rate;
    struct waste_error err;
    double bytes = 0, seconds = 0;
    for (int i = 0; i < batches; i++) {
        if (waste_disk_measure(disk, top_k, 0, &rate, &err) < 0)
            die("disk", err.text);
        bytes += (double)rate.bytes;
        seconds += rate.seconds;
    }
    return bytes / seconds / 1e9;
}

int main(int argc, char **argv)
{
    static struct rig r;
    static struct waste_disk disk;
    struct waste_error err;
    if (argc < 2)
        die("usage", "reader-bench MODEL [rounds [layers a round [slots [depth]]]]");
    int rounds = argc > 2 ? atoi(argv[2]) : 5, layers = argc > 3 ? atoi(argv[3]) : 26;
    create(&r, argv[1], argc > 4 ? (uint32_t)atoi(argv[4]) : 0,
           argc > 5 ? (uint32_t)atoi(argv[5]) : 0);
    uint32_t size = (r.model->expert.record_bytes + 4095) / 4096 * 4096;
    if (waste_disk_open(&disk, r.s.banks.fd, r.s.banks.count, size, &err) < 0)
        die("disk", err.text);
    uint32_t drives;
    const struct waste_io_drive *drive = waste_io_drives_list(r.s.io, &drives);
    for (uint32_t i = 0; i < drives; i++)
        printf("drive %s: depth %u, %.2f GB/s measured at the start\n", drive[i].drive.name,
               drive[i].depth, (double)drive[i].bytes_per_s / 1e9);
    for (int n = 0; n < rounds; n++) {
        printf("raw, GB/s at depth");
        double before = best_of_raw(&disk), first = 0;
        uint32_t top_k = r.model->config.top_k;
        double batches =
            raw_batches(&disk, top_k < WASTE_DISK_DEPTH ? top_k : WASTE_DISK_DEPTH, layers);
        uint64_t bytes = counter(&r, WASTE_C_BYTES_READ);
        uint64_t reads = counter(&r, WASTE_C_READS);
        double cpu = reader_cpu(&r), start = now_s();
        for (int l = 0; l < layers; l++)
            layer(&r, r.moe[(uint32_t)l % r.moe_count], &first), r.step += l % 26 == 25;
        double seconds = now_s() - start;
        double gb = (double)(counter(&r, WASTE_C_BYTES_READ) - bytes) / seconds / 1e9;
        printf(", in batches %.2f; reader %.2f GB/s, %.2f of the best, %.2f of batches; first "
               "expert after %.2f ms, all after %.2f; "
               "CPU %.2f ms a record\n",
               batches, gb, gb / before, gb / batches, first / layers * 1e3, seconds / layers * 1e3,
               (reader_cpu(&r) - cpu) * 1e3 / (double)(counter(&r, WASTE_C_READS) - reads));
        fflush(stdout);
        r.step++;
    }
    waste_disk_close(&disk);
    end(&r);
    return 0;
}

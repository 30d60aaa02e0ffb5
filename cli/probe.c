#include "cli/probe.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cli/supervisor_int.h"
#include "compute/kernels.h"

enum { THREADS_MAX = 64, DISK_DEPTH = 8, ROUNDS = 5 };
#define MEMORY_BYTES (UINT64_C(128) << 20) /* a thread's: more than the caches hold */
#define ARITHMETIC (UINT64_C(1) << 30)     /* multiply-adds of a thread's round */
#define DISK_NS (WASTE_SECOND_NS / 2)

struct memory_job {
    const uint64_t *from;
    uint64_t words, sum;
};

static void *read_memory(void *arg)
{
    struct memory_job *job = arg;
    uint64_t sum[8] = {0};

    for (uint64_t i = 0; i + 8 <= job->words; i += 8)
        for (int k = 0; k < 8; k++)
            sum[k] += job->from[i + (uint64_t)k];
    for (int k = 0; k < 8; k++)
        job->sum += sum[k];
    return NULL;
}

/* Runs one thread an element; the first failed pthread_create ends the list. Seconds. */
static double run_all(void *(*work)(void *), void *jobs, size_t stride, uint32_t count)
{
    pthread_t thread[THREADS_MAX];
    uint32_t started = 0;
    int64_t start = waste_now_ns();

    while (started < count &&
           pthread_create(&thread[started], NULL, work, (char *)jobs + started * stride) == 0)
        started++;
    for (uint32_t i = 0; i < started; i++)
        pthread_join(thread[i], NULL);
    return started == count ? (double)(waste_now_ns() - start) / 1e9 : 1e30;
}

double waste_probe_memory(uint32_t threads)
{
    struct memory_job job[THREADS_MAX];
    double best = 0;

    if (threads > THREADS_MAX)
        threads = THREADS_MAX;
    uint64_t bytes = MEMORY_BYTES * threads;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return 0;
    madvise(memory, bytes, MADV_HUGEPAGE);
    memset(memory, 1, bytes);
    for (int round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < threads; i++)
            job[i] = (struct memory_job){
                .from = (const uint64_t *)((const char *)memory + i * MEMORY_BYTES),
                .words = MEMORY_BYTES / 8,
            };
        double seconds = run_all(read_memory, job, sizeof(job[0]), threads);
        if ((double)bytes / seconds > best)
            best = (double)bytes / seconds;
    }
    munmap(memory, bytes);
    return best;
}

struct arithmetic_job {
    struct waste_kernels kernels;
    uint64_t done;
};

static void *multiply_and_add(void *arg)
{
    struct arithmetic_job *job = arg;
    float sink[WASTE_TILE] = {0};

    job->done = job->kernels.multiply_adds(sink, ARITHMETIC);
    return NULL;
}

double waste_probe_multiply_adds(uint32_t threads)
{
    struct arithmetic_job job[THREADS_MAX];
    double best = 0;

    if (threads > THREADS_MAX)
        threads = THREADS_MAX;
    for (uint32_t i = 0; i < threads; i++)
        if (!waste_kernels_init(&job[i].kernels, getenv("WASTE_CPU")))
            return 0;
    for (int round = 0; round < ROUNDS; round++) {
        double done = 0;
        double seconds = run_all(multiply_and_add, job, sizeof(job[0]), threads);
        for (uint32_t i = 0; i < threads; i++)
            done += (double)job[i].done;
        if (done / seconds > best)
            best = done / seconds;
    }
    return best;
}

struct disk_job {
    const char *dir;
    const struct waste_model *model;
    uint64_t seed, bytes;
    int64_t until_ns;
};

static uint64_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

/* A MoE layer's bank, opened past the page cache. */
static int open_bank(const struct disk_job *job, uint32_t layer)
{
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/%s", job->dir,
             waste_model_layer(job->model, layer)->bank.file);
    return open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
}

static void *read_disk(void *arg)
{
    struct disk_job *job = arg;
    const struct waste_config *config = &job->model->config;
    size_t size = job->model->expert.record_bytes;
    void *buffer = NULL;

    if (posix_memalign(&buffer, 4096, size) != 0)
        return NULL;
    while (waste_now_ns() < job->until_ns) {
        uint32_t layer = (uint32_t)(next_random(&job->seed) % config->layers);
        if (!waste_model_layer(job->model, layer)->is_moe)
            continue;
        int fd = open_bank(job, layer);
        if (fd < 0)
            break;
        for (int i = 0; i < 16; i++) {
            uint64_t expert = next_random(&job->seed) % config->experts;
            ssize_t n = pread(fd, buffer, size, (off_t)(expert * size));
            if (n > 0)
                job->bytes += (uint64_t)n;
        }
        close(fd);
    }
    free(buffer);
    return NULL;
}

double waste_probe_disk(const char *dir, const struct waste_model *model)
{
    struct disk_job job[DISK_DEPTH];
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < DISK_DEPTH; i++)
        job[i] = (struct disk_job){
            .dir = dir,
            .model = model,
            .seed = i + 1,
            .until_ns = waste_now_ns() + DISK_NS,
        };
    double seconds = run_all(read_disk, job, sizeof(job[0]), DISK_DEPTH);
    for (uint32_t i = 0; i < DISK_DEPTH; i++)
        bytes += job[i].bytes;
    return (double)bytes / seconds;
}

uint64_t waste_probe_token_bytes(const struct waste_model *model)
{
    uint64_t bytes = 0;

    for (uint32_t i = 1; i < model->tensor_count; i++) {
        const struct waste_tensor *t = waste_model_tensor(model, i);
        if (i != model->tensor[WASTE_M_EMBED])
            bytes += t->payload_bytes + (uint64_t)2 * t->rows * t->groups;
    }
    for (uint32_t i = 0; i < model->config.layers; i++)
        if (waste_model_layer(model, i)->is_moe)
            bytes += (uint64_t)model->config.top_k * model->expert.crc_end;
    return bytes;
}

uint64_t waste_probe_prefill_multiply_adds(const struct waste_model *model, uint64_t tokens)
{
    const struct waste_config *c = &model->config;
    uint64_t each = 0, head = 0, pairs = tokens * (tokens + 1) / 2;

    for (uint32_t i = 1; i < model->tensor_count; i++) {
        const struct waste_tensor *t = waste_model_tensor(model, i);
        uint64_t cells = (uint64_t)t->rows * t->cols;
        if (i == model->tensor[WASTE_M_LM_HEAD])
            head = cells;
        else if (i != model->tensor[WASTE_M_EMBED] && t->rows > 1)
            each += cells;
    }
    for (uint32_t i = 0; i < c->layers; i++)
        if (waste_model_layer(model, i)->is_moe)
            each += UINT64_C(3) * c->top_k * c->expert_inner * c->expert_width;
    each += UINT64_C(3) * c->kda_layers * c->kda_heads * c->kda_dim * c->kda_dim;
    return tokens * each + head +
           pairs * c->mla_layers * c->mla_heads * (c->nope_dim + c->rope_dim + c->v_dim);
}

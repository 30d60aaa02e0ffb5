/*
 * How fast each kernel is: cycles and bytes a second out of cache on one core, the ratio to C
 * there, and from memory on all cores, as a share of what a plain read by the same threads gives in
 * the same run. Best of a few passes each, for machines that do other things as well.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#ifndef TEST_NO_CRC
#include <libdeflate.h>
#endif

#include "compute/kernels_int.h"
#include "tests/kernels/kernels_test.h"

enum {
    POOL_BYTES = 192 << 20, /* more than caches hold */
    SCRATCH_FLOATS = 1 << 16,
    MAX_THREADS = 16,
    PASSES = 5,
    SHARING = 8, /* experts of a layer that use one set of tables */
};

/* What one thread works with besides the pool. */
struct worker {
    uint32_t id, threads;
    float *a, *b, *c, *acc; /* SCRATCH_FLOATS each */
    void *tables;
};

/*
 * A case works on unit `unit` of `bytes` bytes each. Units of a pass lie one behind the other in
 * the pool. `split`: all threads work on every unit, each on its part; else units are dealt out.
 */
struct bench_case {
    const char *name;
    void (*run)(const struct waste_kernels *k, const struct bench_case *c, uint8_t *unit,
                uint32_t number, const struct worker *w);
    uint32_t fmt, rows, cols;
    bool split, from_memory;
    double traffic; /* bytes moved for each byte of the unit, 1 where it is only read */
};

static uint8_t *pool;
static void *preps[2][WASTE_FMT_COUNT]; /* of the level, and of C */
static uint16_t *unit_scales;
static double clock_hz;

double test_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A chain of dependent additions takes a cycle each. */
static double measure_clock(void)
{
    double best = 0;
    for (int pass = 0; pass < 20; pass++) {
        uint64_t x = 0, n = 400000;
        double start = test_now();
        for (uint64_t i = 0; i < n / 8; i++) {
#pragma GCC unroll 8
            for (int j = 0; j < 8; j++) {
                x += i;
                __asm__ volatile("" : "+r"(x));
            }
        }
        double hz = (double)n / (test_now() - start);
        best = hz > best ? hz : best;
    }
    return best;
}

static size_t unit_bytes(const struct bench_case *c)
{
    uint32_t groups = (c->cols + 127) / 128;
    switch (c->fmt) {
    case WASTE_FMT_Q8G:
        return (size_t)c->rows * groups * 128;
    case WASTE_FMT_Q4G:
        return (size_t)c->rows * groups * 64;
    case WASTE_FMT_Q3G:
        return (size_t)c->rows * (groups * 48 + 1);
    case WASTE_FMT_VQ3R:
    case WASTE_FMT_VQ2R:
    case WASTE_FMT_VQ4P:
        return (size_t)c->rows * (c->cols / 8) * (c->fmt == WASTE_FMT_VQ2R ? 2 : 3);
    default:
        return (size_t)c->rows * c->cols * 4;
    }
}

static struct waste_matrix matrix_of(const struct bench_case *c, uint8_t *unit)
{
    uint32_t groups = c->fmt == WASTE_FMT_F32 ? 0 : (c->cols + 127) / 128;
    return (struct waste_matrix){.data = unit,
                                 .scales = unit_scales,
                                 .row_bytes = unit_bytes(c) / c->rows,
                                 .rows = c->rows,
                                 .cols = c->cols,
                                 .groups = groups,
                                 .fmt = c->fmt};
}

static void run_matvec(const struct waste_kernels *k, const struct bench_case *c, uint8_t *unit,
                       uint32_t number, const struct worker *w)
{
    struct waste_matrix m = matrix_of(c, unit);
    k->matvec[c->fmt](w->c, &m, w->a, w->b, c->rows * w->id / w->threads,
                      c->rows * (w->id + 1) / w->threads);
}

static void run_axpy_rows(const struct waste_kernels *k, const struct bench_case *c, uint8_t *unit,
                          uint32_t number, const struct worker *w)
{
    struct waste_matrix m = matrix_of(c, unit);
    k->axpy_rows[c->fmt](w->c, &m, w->a, 0, c->rows);
}

/* A thread takes a range of positions of every matrix; tables are made anew for each. */
static void run_vq(const struct waste_kernels *k, const struct bench_case *c, uint8_t *unit,
                   uint32_t number, const struct worker *w)
{
    const void *prep = preps[strcmp(k->level, "c") == 0][c->fmt];
    uint32_t positions = c->cols / 8, blocks = positions / WASTE_VQ_BLOCK;
    for (uint32_t b = blocks * w->id / w->threads; b < blocks * (w->id + 1) / w->threads; b++) {
        k->vq_tables[c->fmt](w->tables, prep, w->a + b * WASTE_VQ_BLOCK * 8, WASTE_VQ_BLOCK);
        k->vq_apply[c->fmt](w->acc, w->tables, unit + 48, c->rows, positions, b * WASTE_VQ_BLOCK,
                            WASTE_VQ_BLOCK, NULL);
    }
}

/* SHARING matrices of one x and one set of books. */
static void run_vq_shared(const struct waste_kernels *k, const struct bench_case *c, uint8_t *unit,
                          uint32_t number, const struct worker *w)
{
    const void *prep = preps[strcmp(k->level, "c") == 0][c->fmt];
    uint32_t rows = c->rows / SHARING, positions = c->cols / 8;
    uint32_t blocks = positions / WASTE_VQ_BLOCK;
    uint32_t index_bytes = waste_vq_shape(c->fmt).index_bytes;
    for (uint32_t b = blocks * w->id / w->threads; b < blocks * (w->id + 1) / w->threads; b++) {
        k->vq_tables[c->fmt](w->tables, prep, w->a + b * WASTE_VQ_BLOCK * 8, WASTE_VQ_BLOCK);
        for (uint32_t i = 0; i < SHARING; i++) {
            const uint8_t *index = unit + 48 + i * (unit_bytes(c) / SHARING);
            size_t next = (size_t)b * WASTE_VQ_BLOCK * WASTE_ROW_BLOCK * index_bytes;
            k->vq_apply[c->fmt](w->acc, w->tables, index, rows, positions, b * WASTE_VQ_BLOCK,
                                WASTE_VQ_BLOCK,
                                i + 1 < SHARING ? index + unit_bytes(c) / SHARING + next : NULL);
        }
    }
}

static void run_vq_tables(const struct waste_kernels *k, const struct bench_case *c, uint8_t *unit,
                          uint32_t number, const struct worker *w)
{
    const void *prep = preps[strcmp(k->level, "c") == 0][c->fmt];
    for (uint32_t p = 0; p < c->cols / 8; p += WASTE_VQ_BLOCK)
        k->vq_tables[c->fmt](w->tables, prep, w->a + p * 8, WASTE_VQ_BLOCK);
}

/* A unit is one head's state, read and written to the other bank (the pool's second half). */
static void run_kda(const struct waste_kernels *k, const struct bench_case *c, uint8_t *unit,
                    uint32_t number, const struct worker *w)
{
    const float *s_in = (const float *)unit;
    float *s_out = (float *)(pool + POOL_BYTES / 2 + number * unit_bytes(c));
    k->kda_step(w->c, s_out, s_in, w->a, w->a + 128, w->a + 256, w->b, 0.5f, c->cols);
}

static void run_scores(const struct waste_kernels *k, const struct bench_case *c, uint8_t *unit,
                       uint32_t number, const struct worker *w)
{
    k->mla_scores(w->c, c->rows, w->a, 32, (const float *)unit, c->cols, c->cols, c->rows);
}

static void run_queries(const struct waste_kernels *k, const struct bench_case *c, uint8_t *unit,
                        uint32_t number, const struct worker *w)
{
    k->mla_queries(w->c, (const float *)unit, c->cols, c->rows, c->cols, 0.1f, (float)c->cols);
}

/* The latents alone, of rows that have the rope part as well. */
static void run_mix(const struct waste_kernels *k, const struct bench_case *c, uint8_t *unit,
                    uint32_t number, const struct worker *w)
{
    enum { ROPE = 64 };
    k->mla_mix(w->c, c->cols - ROPE, w->a, c->rows, 32, (const float *)unit, c->cols - ROPE,
               c->cols, c->rows);
}

#ifndef TEST_NO_CRC
static void run_crc(const struct waste_kernels *k, const struct bench_case *c, uint8_t *unit,
                    uint32_t number, const struct worker *w)
{
    w->c[0] = (float)libdeflate_crc32(0, unit, unit_bytes(c));
}
#endif

#define VECTOR_CASE(name, call)                                                                    \
    static void run_##name(const struct waste_kernels *k, const struct bench_case *c,              \
                           uint8_t *unit, uint32_t number, const struct worker *w)                 \
    {                                                                                              \
        const float *x = (const float *)unit;                                                      \
        uint32_t n = c->cols;                                                                      \
        call;                                                                                      \
    }
static const struct waste_act silu = {WASTE_ACTIVATION_SILU, 0, 0};
static const struct waste_act situ = {WASTE_ACTIVATION_SITU, 4, 25};
VECTOR_CASE(dot, w->c[0] += k->dot(w->a, x, n))
VECTOR_CASE(norm, w->c[0] += k->sum_squares(x, n); k->scale_mul(w->c, x, 0.1f, w->a, n))
VECTOR_CASE(axpy, k->axpy(w->c, 0.1f, x, n))
VECTOR_CASE(add, k->add(w->c, x, n))
VECTOR_CASE(scale, k->scale((float *)(void *)unit, 1.0f, n); (void)x)
VECTOR_CASE(silu, k->glu(w->c, x, w->a, n, &silu))
VECTOR_CASE(situ, k->glu(w->c, x, w->a, n, &situ))
VECTOR_CASE(sigmoid, k->sigmoid(w->c, x, n))
VECTOR_CASE(conv, k->conv_silu(w->c, x, w->a, w->b, n, n, 4))
VECTOR_CASE(decay, k->kda_decay(w->c, x, w->a, 1.0f, false, 0, n))
VECTOR_CASE(softmax, memcpy(w->c, x, n * 4); w->b[0] = k->softmax_part(w->c, n, w->b + 1))
VECTOR_CASE(prepare, k->prepare(w->c, x, n))
VECTOR_CASE(top_k, waste_top_k((uint32_t *)(void *)w->b, w->c + n, x, w->a, n, 8, w->acc); (void)k)

static const struct bench_case cases[] = {
    {"vq3r 1024x2304", run_vq, WASTE_FMT_VQ3R, 1024, 2304, true, true, 1},
    {"vq3r 2304x1024", run_vq, WASTE_FMT_VQ3R, 2304, 1024, true, true, 1},
    {"vq3r 8 x 1024x2304", run_vq_shared, WASTE_FMT_VQ3R, 8192, 2304, true, true, 1},
    {"vq3r 3072x3584", run_vq, WASTE_FMT_VQ3R, 3072, 3584, true, true, 1},
    {"vq2r 1024x2304", run_vq, WASTE_FMT_VQ2R, 1024, 2304, true, true, 1},
    {"vq4p 1024x2304", run_vq, WASTE_FMT_VQ4P, 1024, 2304, true, true, 1},
    {"vq3r tables, 288 pos", run_vq_tables, WASTE_FMT_VQ3R, 64, 2304, false, false, 1},
    {"vq4p tables, 288 pos", run_vq_tables, WASTE_FMT_VQ4P, 64, 2304, false, false, 1},
    {"q4g 2048x2304", run_matvec, WASTE_FMT_Q4G, 2048, 2304, true, true, 1},
    {"q8g 2048x2304", run_matvec, WASTE_FMT_Q8G, 2048, 2304, true, true, 1},
    {"q3g 2048x2304", run_matvec, WASTE_FMT_Q3G, 2048, 2304, true, true, 1},
    {"f32 256x2304", run_matvec, WASTE_FMT_F32, 256, 2304, true, true, 1},
    {"q4g rows 128x512", run_axpy_rows, WASTE_FMT_Q4G, 128, 512, false, true, 1},
    {"q8g rows 128x512", run_axpy_rows, WASTE_FMT_Q8G, 128, 512, false, true, 1},
    {"kda_step 128", run_kda, WASTE_FMT_F32, 128, 128, false, true, 2},
    {"mla_queries 32x576", run_queries, WASTE_FMT_F32, 32, 576, false, false, 1},
    {"mla_scores 192x576x32", run_scores, WASTE_FMT_F32, 192, 576, false, true, 1},
    {"mla_mix 192x512x32", run_mix, WASTE_FMT_F32, 192, 576, false, true, 1},
    {"conv_silu 4096", run_conv, WASTE_FMT_F32, 1, 4096, false, false, 1},
    {"kda_decay 4096", run_decay, WASTE_FMT_F32, 1, 4096, false, false, 1},
    {"norm 2304", run_norm, WASTE_FMT_F32, 1, 2304, false, false, 1},
    {"silu 1024", run_silu, WASTE_FMT_F32, 1, 1024, false, false, 1},
    {"situ 1024", run_situ, WASTE_FMT_F32, 1, 1024, false, false, 1},
    {"sigmoid 4096", run_sigmoid, WASTE_FMT_F32, 1, 4096, false, false, 1},
    {"softmax_part 4096", run_softmax, WASTE_FMT_F32, 1, 4096, false, false, 1},
    {"prepare 2304", run_prepare, WASTE_FMT_F32, 1, 2304, false, false, 1},
    {"dot 2304", run_dot, WASTE_FMT_F32, 1, 2304, false, false, 1},
    {"axpy 2304", run_axpy, WASTE_FMT_F32, 1, 2304, false, false, 1},
    {"add 2304", run_add, WASTE_FMT_F32, 1, 2304, false, false, 1},
    {"scale 512", run_scale, WASTE_FMT_F32, 1, 512, false, false, 1},
    {"top_k 8 of 256", run_top_k, WASTE_FMT_F32, 1, 256, false, false, 1},
#ifndef TEST_NO_CRC
    {"crc32 (libdeflate)", run_crc, WASTE_FMT_F32, 1, 666624, false, true, 1},
#endif
};

/* The ceiling: reading the same memory and doing nothing with it. */
static void read_plainly(const uint8_t *p, size_t bytes)
{
    typedef uint64_t block __attribute__((vector_size(16)));
    block a = {0}, b = a, c = a, d = a;
    for (size_t i = 0; i < bytes; i += 64) {
        const block *v = (const block *)(const void *)(p + i);
        a ^= v[0], b ^= v[1], c ^= v[2], d ^= v[3];
        __builtin_prefetch(p + i + 2048, 0, 0);
    }
    a ^= b ^ c ^ d;
    __asm__ volatile("" : "+m"(a));
}

/* One pass: threads run it at the same time, thread 0 takes the time. */
static struct {
    const struct waste_kernels *kernels;
    const struct bench_case *now; /* NULL: the plain read */
    uint32_t units, threads;
    _Atomic uint32_t arrived, round;
    _Atomic bool quit;
    double seconds[MAX_THREADS]; /* each written by its thread before it arrives */
} bench;

/* Spins: all threads are pinned to their own CPUs. Acquire and release pair with each other. */
static void wait_for_all(void)
{
    uint32_t round = atomic_load_explicit(&bench.round, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&bench.arrived, 1, memory_order_acq_rel) + 1 == bench.threads) {
        atomic_store_explicit(&bench.arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&bench.round, round + 1, memory_order_release);
        return;
    }
    while (atomic_load_explicit(&bench.round, memory_order_acquire) == round)
        sched_yield();
}

static void pass(const struct worker *w)
{
    const struct bench_case *c = bench.now;
    size_t bytes = c != NULL ? (unit_bytes(c) + 63) / 64 * 64 : 0;
    size_t part = POOL_BYTES / bench.threads / 64 * 64;
    double start = test_now();
    if (c == NULL)
        read_plainly(pool + part * w->id, part);
    for (uint32_t u = 0; c != NULL && u < bench.units; u++)
        if (c->split || u % w->threads == w->id)
            c->run(bench.kernels, c, pool + u * bytes, u, w);
    bench.seconds[w->id] = test_now() - start;
}

static void *worker_main(void *argument)
{
    const struct worker *w = argument;
    for (;;) {
        wait_for_all();
        if (atomic_load_explicit(&bench.quit, memory_order_acquire))
            return NULL;
        pass(w);
        wait_for_all();
    }
}

/* The slowest thread's time. */
static double timed_pass(const struct worker *w)
{
    double slowest = 0;
    wait_for_all();
    pass(w);
    wait_for_all();
    for (uint32_t t = 0; t < bench.threads; t++)
        slowest = bench.seconds[t] > slowest ? bench.seconds[t] : slowest;
    return slowest;
}

/* Seconds a unit on one core, the unit cached; enough repetitions for the clock. */
static double time_cached(const struct waste_kernels *k, const struct bench_case *c,
                          const struct worker *w)
{
    double best = 1e9, total = 0;
    uint32_t repeat = 1;
    for (int i = 0; i < 40 && total < 0.15; i++) {
        double start = test_now();
        for (uint32_t r = 0; r < repeat; r++)
            c->run(k, c, pool, 0, w);
        double seconds = test_now() - start;
        total += seconds;
        best = seconds / repeat < best ? seconds / repeat : best;
        if (seconds < 2e-4)
            repeat *= 2;
    }
    return best;
}

static void prepare_data(struct worker *workers, uint32_t threads, const struct waste_kernels *k,
                         const struct waste_kernels *c)
{
    static const uint32_t fmts[] = {WASTE_FMT_VQ3R, WASTE_FMT_VQ2R, WASTE_FMT_VQ4P};
    pool =
        mmap(NULL, POOL_BYTES + 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pool == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    madvise(pool, POOL_BYTES, MADV_HUGEPAGE);
    for (size_t i = 0; i < POOL_BYTES; i += 4) { /* good as bytes and as small floats */
        uint32_t v = (uint32_t)test_random();
        v = (v & 0x807fffff) | (126 + (v >> 24 & 1)) << 23;
        memcpy(pool + i, &v, 4);
    }
    unit_scales = aligned_alloc(64, 2048 * 18 * 2);
    for (size_t i = 0; i < 2048 * 18; i++)
        unit_scales[i] = 0x2000;
    for (uint32_t t = 0; t < threads; t++) {
        struct worker *w = &workers[t];
        float **vectors[] = {&w->a, &w->b, &w->c, &w->acc};
        w->id = t;
        w->threads = threads;
        for (size_t v = 0; v < 4; v++) {
            *vectors[v] = aligned_alloc(64, SCRATCH_FLOATS * sizeof(float));
            for (size_t i = 0; i < SCRATCH_FLOATS; i++)
                (*vectors[v])[i] = 0.5f * test_gauss();
        }
        w->tables = aligned_alloc(64, 1 << 18);
    }
    float *books = aligned_alloc(64, 768 * 8 * sizeof(float));
    for (size_t i = 0; i < 768 * 8; i++)
        books[i] = test_gauss();
    for (size_t f = 0; f < sizeof fmts / sizeof *fmts; f++)
        for (int is_c = 0; is_c < 2; is_c++) {
            const struct waste_kernels *which = is_c ? c : k;
            size_t bytes = which->vq_prep_bytes(fmts[f]);
            preps[is_c][fmts[f]] = aligned_alloc(64, (bytes + 63) / 64 * 64);
            which->vq_prep[fmts[f]](preps[is_c][fmts[f]], books);
        }
}

static void bench_case_print(const struct bench_case *c, const struct waste_kernels *k,
                             const struct waste_kernels *c_level, const struct worker *workers,
                             bool json, bool first)
{
    struct worker alone = workers[0];
    alone.threads = 1;
    double bytes = (double)unit_bytes(c), cached = time_cached(k, c, &alone);
    double reference = time_cached(c_level, c, &alone), memory = 1e9, plain = 1e9;
    bench.now = c;
    bench.units = (uint32_t)((double)POOL_BYTES / c->traffic / ((bytes + 63) / 64 * 64));
    for (int i = 0; c->from_memory && i < PASSES; i++) {
        bench.now = NULL;
        double read = timed_pass(workers);
        bench.now = c;
        double seconds = timed_pass(workers);
        plain = read < plain ? read : plain;
        memory = seconds < memory ? seconds : memory;
    }
    double rate = bytes * bench.units * c->traffic / memory, ceiling = POOL_BYTES / plain;
    if (json) {
        printf("%s\n    {\"kernel\": \"%s\", \"cycles\": %.0f, \"cached_bytes_per_s\": %.0f, "
               "\"times_c\": %.2f, \"memory_bytes_per_s\": %.0f, \"read_bytes_per_s\": %.0f}",
               first ? "" : ",", c->name, cached * clock_hz, bytes / cached, reference / cached,
               c->from_memory ? rate : 0, c->from_memory ? ceiling : 0);
        return;
    }
    printf("| %-22s | %9.0f | %6.1f | %6.1f |", c->name, cached * clock_hz, bytes / cached * 1e-9,
           reference / cached);
    if (c->from_memory)
        printf(" %6.1f | %6.1f | %4.0f %% |\n", rate * 1e-9, ceiling * 1e-9, 100 * rate / ceiling);
    else
        printf("      - |      - |      - |\n");
    fflush(stdout);
}

int test_bench(const char *level, bool json, const char *only)
{
    struct waste_kernels k, c_level;
    struct worker workers[MAX_THREADS];
    pthread_t threads[MAX_THREADS];
    cpu_set_t allowed, one;
    uint32_t count = 0;
    if (!waste_kernels_init(&k, level) || !waste_kernels_init(&c_level, "c") ||
        sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return 1;
    int cpus[MAX_THREADS];
    for (int cpu = 0; cpu < CPU_SETSIZE && count < MAX_THREADS; cpu++)
        if (CPU_ISSET(cpu, &allowed))
            cpus[count++] = cpu;
    prepare_data(workers, count, &k, &c_level);
    clock_hz = measure_clock();
    bench.kernels = &k;
    bench.threads = count;
    for (uint32_t t = 0; t < count; t++) {
        pthread_t self = pthread_self();
        if (t > 0 && pthread_create(&threads[t], NULL, worker_main, &workers[t]) != 0)
            return 1;
        CPU_ZERO(&one);
        CPU_SET(cpus[t], &one);
        pthread_setaffinity_np(t > 0 ? threads[t] : self, sizeof one, &one);
    }
    if (json)
        printf("{\"level\": \"%s\", \"threads\": %u, \"clock_hz\": %.0f, \"kernels\": [", k.level,
               count, clock_hz);
    else
        printf(
            "level %s, %u threads, %.2f GHz\n\n"
            "| kernel                 |    cycles |   GB/s |    x C |   GB/s |   read |  share |\n"
            "|------------------------|-----------|--------|--------|--------|--------|--------|\n",
            k.level, count, clock_hz * 1e-9);
    bool first = true;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (only != NULL && strstr(cases[i].name, only) == NULL)
            continue;
        bench_case_print(&cases[i], &k, &c_level, workers, json, first);
        first = false;
    }
    if (json)
        printf("\n]");
    test_bench_batch(&k, clock_hz, json, only);
    if (json)
        printf("}\n");
    atomic_store_explicit(&bench.quit, true, memory_order_release); /* pairs with worker_main */
    wait_for_all();
    for (uint32_t t = 1; t < count; t++)
        pthread_join(threads[t], NULL);
    return 0;
}

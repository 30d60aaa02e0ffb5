/* shm_stress [--threads] [--scale F] [--seed N] [--watchdog S] TEST...: see stress.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/stress/stress.h"

static const struct {
    const char *name;
    int (*run)(void);
    bool processes_only; /* there is nobody to kill among threads */
} tests[] = {
    {"ring", stress_ring, false},
    {"bell", stress_bell, false},
    {"eventfd", stress_eventfd, false},
    {"slots", stress_slots, false},
    {"hot-slot", stress_hot_slot, false},
    {"log", stress_log, false},
    {"kill-ring", stress_kill_ring, true},
    {"kill-slots", stress_kill_slots, true},
    {"kill-log", stress_kill_log, true},
    {"kill-commit", stress_kill_commit, true},
    {"kill-embed", stress_kill_embed, true},
};

static int run(const char *name)
{
    for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
        if (strcmp(tests[i].name, name) != 0)
            continue;
        if (tests[i].processes_only && stress_options.threads) {
            printf("%s: skipped, kills processes\n", name);
            return 77;
        }
        return tests[i].run();
    }
    fprintf(stderr, "no test %s\n", name);
    return 2;
}

int main(int argc, char **argv)
{
    int i = 1, ret = 0;

    setvbuf(stdout, NULL, _IOLBF, 0);
    stress_options.seed = (uint64_t)time(NULL);
    for (; i < argc && strncmp(argv[i], "--", 2) == 0; i++) {
        if (strcmp(argv[i], "--threads") == 0)
            stress_options.threads = true;
        else if (i + 1 < argc && strcmp(argv[i], "--scale") == 0)
            stress_options.scale = strtod(argv[++i], NULL);
        else if (i + 1 < argc && strcmp(argv[i], "--seed") == 0)
            stress_options.seed = strtoull(argv[++i], NULL, 10);
        else if (i + 1 < argc && strcmp(argv[i], "--watchdog") == 0)
            stress_options.watchdog_s = atoi(argv[++i]);
        else
            return fprintf(stderr, "unknown option %s\n", argv[i]), 2;
    }
    if (i == argc)
        return fprintf(stderr, "which test?\n"), 2;
    printf("--seed %lu\n", stress_options.seed);
    for (; i < argc && ret == 0; i++)
        ret = run(argv[i]);
    return ret;
}

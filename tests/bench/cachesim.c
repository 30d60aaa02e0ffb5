/*
 * cachesim: which share of a recorded trace's experts a cache would have had.
 *
 * How it counts: the cache starts empty, every demand counts. A layer's experts are demanded at
 * once; those in memory are hits; then the others get slots, and all must be in memory at the same
 * time, so none of them is a victim. The halves are the tokens of the one run, not runs of their
 * own. The optimum knows the future (Belady's) under the same rules.
 */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/cachesim.h"

enum { MOST_SIZES = 32 };

struct options {
    bool json, in_slots;
    double size[MOST_SIZES];
    uint32_t sizes;
    bool policy[POLICIES];
};

static void usage(FILE *out)
{
    fputs("usage: cachesim [--json] [--sizes W,W... | --slots N,N...] [--policy NAME,NAME...] "
          "TRACE...\n"
          "  --sizes   cache sizes in working sets: experts a token touches (0.5,1,2,4)\n"
          "  --slots   cache sizes in experts\n"
          "  --policy  lru, lfu, lfu-forgetful (forgets what it evicts), decayed (halves every 8\n"
          "            tokens, remembers), waste (the reader's), optimum; all\n"
          "  TRACE     JSON lines, one a token: {\"layers\": [[ids], ...]}\n",
          out);
}

static bool parse_sizes(struct options *o, char *list, bool in_slots)
{
    o->in_slots = in_slots;
    o->sizes = 0;
    for (char *end, *at = list; *at; at = *end ? end + 1 : end) {
        double size = strtod(at, &end);
        if (o->sizes == MOST_SIZES || end == at || (*end && *end != ',') || !(size > 0) ||
            size > 1e6)
            return false;
        o->size[o->sizes++] = size;
    }
    return o->sizes > 0;
}

static bool parse_policies(struct options *o, char *list)
{
    memset(o->policy, 0, sizeof(o->policy));
    for (char *name = strtok(list, ","); name; name = strtok(NULL, ",")) {
        uint32_t p = 0;
        while (p < POLICIES && strcmp(policy_name[p], name) != 0)
            p++;
        if (p == POLICIES)
            return false;
        o->policy[p] = true;
    }
    return true;
}

static bool parse(struct options *o, int argc, char **argv)
{
    static const struct option names[] = {
        {"json", no_argument, NULL, 'j'},        {"sizes", required_argument, NULL, 'w'},
        {"slots", required_argument, NULL, 's'}, {"policy", required_argument, NULL, 'p'},
        {"help", no_argument, NULL, 'h'},        {NULL, 0, NULL, 0}};
    *o = (struct options){.size = {0.5, 1, 2, 4}, .sizes = 4};
    for (uint32_t p = 0; p < POLICIES; p++)
        o->policy[p] = true;
    for (int c; (c = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        if (c == 'h') {
            usage(stdout);
            exit(0);
        }
        bool good = c == 'j'   ? (o->json = true)
                    : c == 'w' ? parse_sizes(o, optarg, false)
                    : c == 's' ? parse_sizes(o, optarg, true)
                    : c == 'p' ? parse_policies(o, optarg)
                               : false;
        if (!good)
            return false;
    }
    return optind < argc;
}

static double percent(uint64_t part, uint64_t all)
{
    return all ? 100.0 * (double)part / (double)all : 0;
}

static void print_one(const struct options *o, const char *path, double size, uint32_t slots,
                      enum policy p, const struct result *r)
{
    double whole = percent(r->hits[0] + r->hits[1], r->demands[0] + r->demands[1]);
    double first = percent(r->hits[0], r->demands[0]), second = percent(r->hits[1], r->demands[1]);
    if (o->json)
        printf("{\"trace\": \"%s\", \"size\": %g, \"slots\": %u, \"policy\": \"%s\", "
               "\"hits\": %.3f, \"first_half\": %.3f, \"second_half\": %.3f}\n",
               path, size, slots, policy_name[p], whole, first, second);
    else
        printf("%8g %8u  %-14s %6.1f %6.1f %6.1f\n", size, slots, policy_name[p], whole, first,
               second);
}

static int run_trace(const struct options *o, const char *path)
{
    struct trace t;
    char error[512];
    int rc = 0;
    if (trace_read(path, &t, error, sizeof(error)) < 0) {
        fprintf(stderr, "cachesim: %s\n", error);
        return 1;
    }
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (!o->json)
        printf("%s: %u tokens, %u layers, %g experts a token; hits in percent\n"
               "    size    slots  policy           whole  1st half  2nd\n",
               name, t.tokens, t.layers, t.working_set);
    for (uint32_t i = 0; rc == 0 && i < o->sizes; i++) {
        double slots = floor(o->in_slots ? o->size[i] : o->size[i] * t.working_set);
        if (slots < t.top_k) {
            fprintf(stderr, "cachesim: %s: %g slots, a layer needs %u\n", name, slots, t.top_k);
            rc = 1;
        }
        for (uint32_t p = 0; rc == 0 && p < POLICIES; p++) {
            struct result r;
            if (!o->policy[p])
                continue;
            if (simulate(&t, p, (uint32_t)slots, &r) == 0) {
                print_one(o, name, o->size[i], (uint32_t)slots, p, &r);
            } else {
                fprintf(stderr, "cachesim: out of memory\n");
                rc = 1;
            }
        }
    }
    trace_free(&t);
    return rc;
}

int main(int argc, char **argv)
{
    struct options o;
    if (!parse(&o, argc, argv)) {
        usage(stderr);
        return 2;
    }
    for (int i = optind; i < argc; i++)
        if (run_trace(&o, argv[i]) != 0)
            return 1;
    return 0;
}

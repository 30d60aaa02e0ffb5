/* waste-fetch: makes containers. One table of commands. */
#include <stdio.h>
#include <string.h>

#include "fetcher/fetch.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} commands[] = {
    {"synth", waste_fetch_synth, "write a container of any shape with random weights"},
    {"diskbench", waste_fetch_diskbench, "what a drive gives at the size of expert records"},
};

static int usage(FILE *to, int code)
{
    fprintf(to, "usage: waste-fetch COMMAND ...\n\n");
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        fprintf(to, "  %-10s %s\n", commands[i].name, commands[i].help);
    fprintf(to, "\nwaste-fetch COMMAND --help tells the rest; --version prints the version\n");
    return code;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return usage(stderr, 2);
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help"))
        return usage(stdout, 0);
    if (!strcmp(argv[1], "--version")) {
        puts("waste-fetch " WASTE_VERSION);
        return 0;
    }
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        if (!strcmp(argv[1], commands[i].name)) {
            argv[1] = argv[0]; /* getopt names it */
            return commands[i].run(argc - 1, argv + 1);
        }
    }
    fprintf(stderr, "waste-fetch: no command %s: waste-fetch --help lists them\n", argv[1]);
    return 2;
}

/* waste-docs bash|zsh|man: completion and the man page of waste-run. */
#include "options/docs.h"
#include "cli/options.h"

int main(int argc, char **argv)
{
    return waste_docs_main(&waste_run_program, argc, argv);
}

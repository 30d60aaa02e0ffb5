/* waste-fetch-docs bash|zsh|man: completion and the man page of waste-fetch. */
#include "fetcher/options.h"
#include "options/docs.h"

int main(int argc, char **argv)
{
    return waste_docs_main(&waste_fetch_program, argc, argv);
}

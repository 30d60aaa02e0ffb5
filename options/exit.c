/* What the exit codes mean: one table for --help, the man pages and the README. */
#include <errno.h>

#include "options/options.h"

const struct waste_exit_text waste_exit_texts[WASTE_EXIT_TEXTS] = {
    {"0", "done; verify: the container is whole"},
    {"1",
     "failed: reading, writing, the network, no room, no such pipeline; what is damaged or does\n"
     "not belong together (verify, seal, merge, convert, get --check)"},
    {"2", "wrong use: an option, an argument or a path that will not do; of waste-run, also a\n"
          "container or a conversation it cannot load; verify: cannot say"},
    {"3", "run, chat: all was answered, but the conversation is not saved (--session)"},
    {"128+N", "a second signal ended it at once: 130, 143, 129"},
};

int waste_exit_of_path(int error)
{
    bool machine = error == EIO || error == ENOSPC || error == EDQUOT || error == ENOMEM ||
                   error == EMFILE || error == ENFILE;

    return machine ? WASTE_EXIT_FAILED : WASTE_EXIT_USAGE;
}

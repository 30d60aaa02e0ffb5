#include "cli/hang.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PROC_BYTES = 2048, STACK_FRAMES = 4 };

/* A file of /proc/PID as one string; empty when it cannot be read. */
static void read_proc(pid_t pid, const char *name, char out[PROC_BYTES])
{
    char path[64];
    ssize_t n = -1;

    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        n = read(fd, out, PROC_BYTES - 1);
        close(fd);
    }
    out[n > 0 ? n : 0] = '\0';
}

static const char *state_name(char letter)
{
    switch (letter) {
    case 'R':
        return "running";
    case 'S':
        return "asleep";
    case 'D':
        return "waiting for a device";
    case 'T':
        return "stopped";
    case 't':
        return "held by a debugger";
    case 'Z':
        return "dead";
    default:
        return "in no known state";
    }
}

/* The letter behind the program's name, which may hold anything. */
static char state_of(pid_t pid)
{
    char stat[PROC_BYTES];

    read_proc(pid, "stat", stat);
    const char *end = strrchr(stat, ')');
    return end != NULL && end[1] == ' ' ? end[2] : '?';
}

static size_t add(char *out, size_t room, size_t at, const char *text)
{
    int n = at < room ? snprintf(out + at, room - at, "%s", text) : 0;

    return at + (n > 0 ? (size_t)n : 0);
}

/* "[<0>] futex_wait+0x5c/0x90" a line: the names. */
static size_t add_stack(char *out, size_t room, size_t at, char *stack)
{
    char *save = NULL;
    int frames = 0;

    for (char *line = strtok_r(stack, "\n", &save); line != NULL && frames < STACK_FRAMES;
         line = strtok_r(NULL, "\n", &save)) {
        char *name = strchr(line, ']');
        if (name == NULL || name[1] != ' ')
            continue;
        name += 2;
        name[strcspn(name, "+ ")] = '\0';
        at = add(out, room, at, frames++ == 0 ? ", stack " : " < ");
        at = add(out, room, at, name);
    }
    return at;
}

void waste_hang_describe(const struct waste_stage *record, pid_t pid, char *out, size_t room)
{
    /* relaxed, all: a look at what the stage said last */
    uint32_t activity = atomic_load_explicit(&record->activity, memory_order_relaxed);
    uint32_t layer = atomic_load_explicit(&record->layer, memory_order_relaxed);
    uint64_t step = atomic_load_explicit(&record->step, memory_order_relaxed);
    char text[PROC_BYTES], part[64];

    int n = snprintf(out, room, "%s, step %" PRIu64 ", layer %u; process %s",
                     activity < WASTE_ACT_COUNT ? waste_activity_name[activity] : "insane", step,
                     layer, state_name(state_of(pid)));
    size_t at = n > 0 ? (size_t)n : 0;
    read_proc(pid, "wchan", text);
    if (text[0] != '\0' && strcmp(text, "0") != 0) {
        at = add(out, room, at, " in ");
        at = add(out, room, at, text);
    }
    read_proc(pid, "syscall", text);
    if (text[0] >= '0' && text[0] <= '9') {
        snprintf(part, sizeof(part), ", system call %d", atoi(text));
        at = add(out, room, at, part);
    }
    read_proc(pid, "stack", text);
    add_stack(out, room, at, text);
}

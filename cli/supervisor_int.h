/* Shared by supervisor.c, its deaths (mourn.c) and the control socket. */
#ifndef WASTE_CLI_SUPERVISOR_INT_H
#define WASTE_CLI_SUPERVISOR_INT_H

#include <pthread.h>

#include "cli/control_socket.h"
#include "cli/pressure.h"
#include "cli/supervisor.h"

enum { WASTE_DEATHS_MAX = 5 };
#define WASTE_SECOND_NS INT64_C(1000000000)
#define WASTE_DEATHS_NS (10 * WASTE_SECOND_NS)
#define WASTE_GIVE_WAY_NS (WASTE_SECOND_NS / 20) /* for the reader to give pages back */

enum waste_life { WASTE_LIFE_IDLE, WASTE_LIFE_ALIVE, WASTE_LIFE_BROKEN, WASTE_LIFE_TIRED };

/* Deaths of one stage, the newest last. */
struct waste_deaths {
    struct {
        int64_t when_ns; /* without what was busy until then */
        uint64_t request, commit;
    } at[WASTE_DEATHS_MAX];
    uint32_t count;
    int64_t busy_ns; /* all its processes together */
};

/* Notes a death. True when it was the fifth at one commit word of one request, within 10 s that
 * the stage was idle: however long a start or a step takes, the fifth death in it is the last.
 * busy_ns: how long the dead process was at work, or hung. */
bool waste_deaths_add(struct waste_deaths *d, int64_t now_ns, int64_t busy_ns, uint64_t request,
                      uint64_t commit);

struct waste_child {
    enum waste_life life;
    pid_t pid;
    int pidfd;
    uint32_t incarnation; /* counts attempts to start it too */
    bool started;         /* once at least */
    int64_t born_ns;
    bool polite;             /* asked to exit; its death is no accident */
    bool killed;             /* SIGKILL is on its way */
    bool expected;           /* killed to end a request; not counted either */
    int64_t polite_until_ns; /* then SIGKILL */
    uint64_t heartbeat;      /* as last seen; only its changes matter */
    int64_t heartbeat_ns;    /* when it changed, by our clock */
    int64_t gone_ns;       /* its predecessor's last sign of life; 0: it has none, or runs again */
    int64_t not_before_ns; /* when the next process may start: the cache gives way first */
    uint64_t log_start;    /* lines in its log when this process started */
    struct waste_deaths deaths;
    char reason[WASTE_ERROR_TEXT]; /* BROKEN, TIRED */
};

enum { WASTE_SUPERVISOR_NOTES = 16 }; /* lines that wait for the supervisor's thread at most */

struct waste_supervisor {
    struct waste_pipeline *p;
    const struct waste_programs *programs;
    struct waste_supervisor_options options;
    pthread_t thread;
    int wake_fd;
    _Atomic uint32_t quit; /* waste_supervisor_stop */

    /* the thread's own */
    struct waste_child child[WASTE_STAGE_COUNT];
    struct waste_control_socket *socket;
    bool stopping;
    int64_t stop_until_ns;
    int64_t last_look_ns;
    struct waste_pressure pressure;
    uint32_t budget_slots; /* what the budget allows now; pressure may allow less */
    uint64_t budget_bytes;
    int64_t pressure_ns; /* last looked at */
    uint64_t oom_kills,
        oom_kills_now; /* of the whole machine: at the last look but one, and then */
    uint64_t seen_seq; /* newest request that gave tired stages another chance */

    pthread_mutex_t lock; /* of those below, between our own threads */
    int failure;
    struct waste_error failure_text;
    /* For the log, oldest first. */
    struct {
        enum waste_log_level level;
        struct waste_error line;
    } note[WASTE_SUPERVISOR_NOTES];
    uint32_t notes;
    struct waste_prefix *prefix; /* gives way to a smaller budget; NULL: nothing is kept */
};

int64_t waste_now_ns(void);

/* waste-run's own log; only the supervisor's thread writes it. */
static inline struct waste_log *waste_supervisor_log(struct waste_supervisor *s)
{
    return &s->p->shm.control->log[WASTE_STAGE_COUNT];
}

/* Reaps `stage`, whose pidfd is readable, repairs, and decides what becomes of it. */
void waste_supervisor_mourn(struct waste_supervisor *s, enum waste_stage_id stage);

/* Notes that a stage died after busy_ns at work, or could not be started. `starved`: for want of
 * memory; then the cache gives way, and while it can the failure does not count. True: it has
 * failed too often at this step. */
bool waste_supervisor_fails_again(struct waste_supervisor *s, enum waste_stage_id stage,
                                  int64_t busy_ns, bool starved);

/* Sets what waste_supervisor_failure() says, from the stages' lives. */
void waste_supervisor_publish_failure(struct waste_supervisor *s);

/* The thread's start; and every turn: the cache gives way when the machine wants memory. */
void waste_supervisor_budget_init(struct waste_supervisor *s);
void waste_supervisor_look_at_memory(struct waste_supervisor *s);
/* A stage was killed for want of memory, or could not be started: the cache gives way at once.
 * False: it is as small as it can be. */
bool waste_supervisor_give_way(struct waste_supervisor *s);

/* For the control socket. The cache's size changes while it is used; `bytes` may be
 * WASTE_BUDGET_MAX. 0 or -EINVAL with err;
 * *slots and *total_bytes: what it comes to. */
int waste_supervisor_budget(struct waste_supervisor *s, uint64_t bytes, uint32_t *slots,
                            uint64_t *total_bytes, struct waste_error *err);

/* For the control socket. Asks the stages in `mask` to exit and come back; err says why one cannot.
 */
int waste_supervisor_ask_restart(struct waste_supervisor *s, uint32_t mask,
                                 struct waste_error *err);
/* The stage runs as a later process than `incarnation`. 1 yes, 0 not yet, -1 it will not (err). */
int waste_supervisor_restarted(struct waste_supervisor *s, enum waste_stage_id stage,
                               uint32_t incarnation, struct waste_error *err);

#endif

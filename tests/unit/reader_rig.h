/*
 * A pipeline for the reader's tests: the segments waste-run would make, the reader as a real child
 * process, and the part of compute that asks for experts.
 */
#ifndef WASTE_TESTS_READER_RIG_H
#define WASTE_TESTS_READER_RIG_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "reader/container.h"
#include "shm/control.h"
#include "shm/segment.h"

struct reader_rig {
    const char *dir;
    struct waste_model *model;
    struct waste_mapping control, cache;
    struct waste_shm shm;
    int fd[WASTE_SEG_COUNT];
    int event;
    const char *program; /* waste-reader, unless set to another before rig_start */
    const char *fault;   /* WASTE_FAULT, see fault_io.h */
    pid_t pid;           /* of the reader; 0: none */
    uint64_t step;
};

void rig_create(struct reader_rig *r, const char *dir, uint32_t slots, enum waste_io_mode io,
                bool verify);
void rig_destroy(struct reader_rig *r);

/* Starts the program; with `wait`, returns when it is RUNNING. */
void rig_start(struct reader_rig *r, bool wait);
/* Waits for its end; the exit code, or -signal. */
int rig_reap(struct reader_rig *r);
/* Asks it to stop and waits. */
int rig_stop(struct reader_rig *r);
/* What waste-run does after a reader's death: empties slots in READING. */
uint32_t rig_repair(struct reader_rig *r);

/* Posts a demand record and returns at once. */
void rig_demand(struct reader_rig *r, uint32_t layer, const uint32_t *expert, uint32_t count);
void rig_prefetch(struct reader_rig *r, uint64_t step, uint32_t layer, const uint32_t *expert,
                  uint32_t count);
/* Waits until this expert can be pinned (true: pinned, *slot) or has FAILED (false). */
bool rig_wait(struct reader_rig *r, uint32_t layer, uint32_t expert, uint32_t *slot);
/* The slot's bytes are the file's. */
bool rig_same_as_file(struct reader_rig *r, uint32_t slot, uint32_t layer, uint32_t expert);
/* Demands, waits, compares with the file, unpins all of them and settles. */
void rig_check_experts(struct reader_rig *r, uint32_t layer, const uint32_t *expert,
                       uint32_t count);

/* Waits until the reader has taken every record. (An expert can be pinned before the record that
 * asks for it is even looked at.) */
void rig_settle(struct reader_rig *r);
/* The backends this machine allows, io_uring or not. */
uint32_t rig_io_modes(enum waste_io_mode mode[2]);
int64_t rig_now_ns(void);
/* Waits for `word` to become `value`. */
void rig_wait_word(_Atomic uint32_t *word, uint32_t value);
uint64_t rig_counter(struct reader_rig *r, enum waste_counter id);
/* The reader's log has a line of at least this level with this text in it. */
bool rig_logged(struct reader_rig *r, enum waste_log_level level, const char *text);

#endif

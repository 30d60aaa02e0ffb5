/*
 * Saves a conversation in the background: a thread that watches the commit word, takes the state
 * out while compute goes on, and writes it to a file (snapshot.h).
 *
 * The client's thread says what the conversation is (begin, rest); the autosave thread never writes
 * to the segment. A save that fails says so once and is tried again later: the reply goes on, and
 * the older file stays.
 */
#ifndef WASTE_CLI_AUTOSAVE_H
#define WASTE_CLI_AUTOSAVE_H

#include "cli/pipeline.h"
#include "cli/supervisor.h"

struct waste_autosave;

/*
 * `every`: at most so many tokens are computed again after a death, if a save takes no longer than
 * half of them. 0: 64, unless that would write more than 32 MB a second. keep_old: the file that is there may become PATH.old. `warn` is called from any
 * thread. Takes waste_autosave_bytes of memory. 0 or -errno with err.
 */
int waste_autosave_start(struct waste_pipeline *p, struct waste_supervisor *supervisor,
                         const char *path, uint32_t every, bool keep_old,
                         void (*warn)(const char *text), struct waste_autosave **out,
                         struct waste_error *err);

/* What it takes, beyond the pipeline: for the plan. */
uint64_t waste_autosave_bytes(const struct waste_model *model);

/* The text that goes with what follows; taken over (malloc'd), used from the next begin or rest. */
void waste_autosave_describe(struct waste_autosave *a, char *text, size_t bytes);

/* A request is about to be posted: its prompt is in the log up to prompt_end. */
void waste_autosave_begin(struct waste_autosave *a, uint32_t epoch, uint32_t prompt_end,
                          bool generates);

/* No request runs; `known` tokens are in the log (0: the text alone is to be saved, and no state).
 * Saved as soon as possible. */
void waste_autosave_rest(struct waste_autosave *a, uint32_t epoch, uint32_t known);

/* Before the segment's state is replaced: waits until nothing of it is being read. Nothing is saved
 * until the next begin or rest. */
void waste_autosave_pause(struct waste_autosave *a);

/* Tokens whose state is in the file; 0: none was written. */
uint32_t waste_autosave_saved(struct waste_autosave *a);

/* Saves what is not saved yet, ends the thread, frees. NULL is fine. 0, or -errno if the file is
 * not what the conversation is. */
int waste_autosave_finish(struct waste_autosave *a);

#endif

/* The store of states: what is found, what goes when there is no room, and files that lie. */
#include "tests/unit/cm.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/prefix_int.h"

enum { LAYERS = 2, ROW = 8, BANK = 512, MOST = 64, STRIDE = MOST * ROW };

static const struct waste_snapshot_shape shape = {
    .fingerprint = 77, .bank_bytes = BANK, .mla_layers = LAYERS, .row_bytes = ROW, .vocab = 1000};

struct world {
    char dir[64], text[256];
    unsigned notes;
    struct waste_prefix *store;
    struct waste_prefix_options options;
};

static void note(void *arg, enum waste_log_level level, const char *text)
{
    struct world *w = arg;

    w->notes++;
    snprintf(w->text, sizeof(w->text), "%s", text);
}

static void open_store(struct world *w)
{
    struct waste_error err;

    assert_int_equal(waste_prefix_create(&w->options, &w->store, &err), 0);
}

static void reopen(struct world *w)
{
    waste_prefix_destroy(w->store);
    open_store(w);
}

static void make(struct world *w, uint64_t memory, uint64_t disk)
{
    memset(w, 0, sizeof(*w));
    snprintf(w->dir, sizeof(w->dir), "/tmp/waste-prefix-XXXXXX");
    assert_non_null(mkdtemp(w->dir));
    w->options = (struct waste_prefix_options){.shape = shape,
                                               .dir = w->dir,
                                               .memory_bytes = memory,
                                               .disk_bytes = disk,
                                               .note = note,
                                               .arg = w};
    open_store(w);
}

static unsigned files(const struct world *w)
{
    DIR *dir = opendir(w->dir);
    unsigned count = 0;
    struct dirent *e;

    while ((e = readdir(dir)) != NULL)
        count += e->d_name[0] != '.';
    closedir(dir);
    return count;
}

static void gone(struct world *w)
{
    char command[100];

    waste_prefix_destroy(w->store);
    snprintf(command, sizeof(command), "rm -r %s", w->dir);
    assert_int_equal(system(command), 0);
}

/* Conversation `which`: its tokens, and a state that says which it is and how long. */
static void tokens(uint32_t which, uint32_t ids[MOST])
{
    for (uint32_t i = 0; i < MOST; i++)
        ids[i] = i < 4 ? i : (which * 31 + i) % 1000; /* all begin alike */
}

struct state {
    char bank[BANK], rows[LAYERS * STRIDE];
};

static void fill(struct state *s, uint32_t which, uint32_t position)
{
    memset(s, 0x5a, sizeof(*s));
    for (uint32_t i = 0; i < BANK; i++)
        s->bank[i] = (char)(which * 7 + position * 3 + i);
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t i = 0; i < position * ROW; i++)
            s->rows[l * STRIDE + i] = (char)(which + l * 11 + i);
}

static struct waste_snapshot_place place(struct state *s)
{
    return (struct waste_snapshot_place){.bank = s->bank, .rows = s->rows, .layer_stride = STRIDE};
}

static void keep_kind(struct world *w, uint32_t which, uint32_t position, bool lived, bool lasting)
{
    uint32_t ids[MOST];
    struct state s;
    struct waste_prefix_state state = {
        .ids = ids, .position = position, .place = place(&s), .lived = lived, .lasting = lasting};

    tokens(which, ids);
    fill(&s, which, position);
    waste_prefix_keep(w->store, &state);
}

static void keep(struct world *w, uint32_t which, uint32_t position, bool lasting)
{
    keep_kind(w, which, position, true, lasting);
}

/* The position found for the first `count` tokens, cut at `cut` if it is not 0, whose state must be
 * that of conversation `of`. */
static uint32_t find_cut(struct world *w, uint32_t which, uint32_t of, uint32_t count, uint32_t cut)
{
    struct waste_prefix_hit hit;
    uint32_t ids[MOST];
    struct state got, want;
    struct waste_snapshot_place to = place(&got);
    struct waste_prefix_prompt prompt = {.ids = ids, .count = count, .cut = &cut, .cuts = cut != 0};

    tokens(which, ids);
    memset(&got, 0x5a, sizeof(got));
    waste_prefix_find(w->store, &prompt, &hit);
    if (hit.position == 0)
        return 0;
    uint32_t position = hit.position;
    assert_true(position < count);
    if (!waste_prefix_load(w->store, &hit, &to))
        return UINT32_MAX;
    fill(&want, of, position);
    assert_memory_equal(&got, &want, sizeof(got));
    return position;
}

static uint32_t find_of(struct world *w, uint32_t which, uint32_t of, uint32_t count)
{
    return find_cut(w, which, of, count, 0);
}

static uint32_t find(struct world *w, uint32_t which, uint32_t count)
{
    return find_of(w, which, which, count);
}

static const uint64_t plenty = 1 << 20;

static void the_longest_beginning_is_found(void **state)
{
    struct world w;

    make(&w, plenty, 0);
    keep(&w, 1, 10, false);
    keep(&w, 1, 20, false);
    keep(&w, 2, 30, false);
    assert_int_equal(find(&w, 1, 64), 20);
    assert_int_equal(find(&w, 1, 21), 20);
    assert_int_equal(find(&w, 1, 20), 10); /* one token at least is to be computed */
    assert_int_equal(find(&w, 1, 10), 0);
    assert_int_equal(find(&w, 2, 64), 30);
    assert_int_equal(find(&w, 3, 64), 0); /* begins alike and goes on otherwise */
    keep(&w, 3, 4, false);
    assert_int_equal(find_of(&w, 1, 3, 9), 4); /* four tokens are all of them alike */
    gone(&w);
}

static void what_lasts_is_found_by_another_process(void **state)
{
    struct world w;

    make(&w, plenty, plenty);
    keep(&w, 1, 10, true);
    keep(&w, 1, 20, false);
    reopen(&w);
    assert_int_equal(files(&w), 1);
    assert_int_equal(find(&w, 1, 64), 10);
    /* kept in memory at first, wished for on disk later */
    keep(&w, 2, 20, false);
    keep(&w, 2, 20, true);
    reopen(&w);
    assert_int_equal(find(&w, 2, 64), 20);
    /* there is no memory at all */
    w.options.memory_bytes = 0;
    reopen(&w);
    keep(&w, 3, 15, true);
    assert_int_equal(find(&w, 3, 64), 15);
    keep(&w, 4, 15, false);
    assert_int_equal(find(&w, 4, 64), 0);
    /* other weights */
    w.options.shape.fingerprint++;
    reopen(&w);
    assert_int_equal(find(&w, 3, 64), 0);
    w.options.shape.fingerprint--;
    /* other arithmetic */
    w.options.arithmetic++;
    reopen(&w);
    assert_int_equal(find(&w, 3, 64), 0);
    keep(&w, 3, 12, true);
    assert_int_equal(find(&w, 3, 64), 12);
    gone(&w);
}

/* What a prompt's chunks have left is for prompts that are cut at the same place. */
static void what_was_computed_serves_who_is_cut_there(void **state)
{
    struct world w;

    make(&w, plenty, plenty);
    keep_kind(&w, 1, 20, false, true);
    keep_kind(&w, 1, 10, false, true);
    for (int again = 0; again < 2; again++) {
        assert_int_equal(find(&w, 1, 64), 0);
        assert_int_equal(find_cut(&w, 1, 1, 64, 15), 0);
        assert_int_equal(find_cut(&w, 1, 1, 64, 10), 10);
        assert_int_equal(find_cut(&w, 1, 1, 64, 20), 20);
        assert_int_equal(find_cut(&w, 1, 1, 20, 20), 0);
        reopen(&w);
    }
    /* the same tokens with a reply in them are another state */
    keep_kind(&w, 1, 20, true, true);
    for (int again = 0; again < 2; again++) {
        assert_int_equal(find(&w, 1, 64), 20);
        assert_int_equal(find_cut(&w, 1, 1, 64, 10), 20);
        reopen(&w);
        assert_int_equal(files(&w), 3);
    }
    gone(&w);
}

static void memory_keeps_what_was_used_last(void **state)
{
    struct world w;

    make(&w, 3 * waste_prefix_bytes(&shape, 10), 0);
    w.options.dir = NULL;
    reopen(&w);
    keep(&w, 1, 10, false);
    keep(&w, 2, 10, false);
    keep(&w, 3, 10, false);
    assert_int_equal(find(&w, 1, 64), 10); /* used now */
    keep(&w, 4, 10, false);
    assert_int_equal(find(&w, 2, 64), 0);
    assert_int_equal(find(&w, 1, 64), 10);
    assert_int_equal(find(&w, 3, 64), 10);
    assert_int_equal(find(&w, 4, 64), 10);
    keep(&w, 5, 60, false); /* more than three of them */
    assert_true(waste_prefix_bytes(&shape, 60) < 3 * waste_prefix_bytes(&shape, 10));
    assert_int_equal(find(&w, 5, 64), 60);
    keep(&w, 5, 60, false);
    assert_int_equal(find(&w, 5, 64), 60);
    gone(&w);
}

static void a_smaller_limit_is_kept_at_once(void **state)
{
    uint32_t ids[MOST];
    struct waste_prefix_hit hit;
    struct waste_prefix_prompt prompt = {.ids = ids, .count = 64};
    struct world w;
    struct state got, want;
    struct waste_snapshot_place to = place(&got);

    make(&w, plenty, 0);
    w.options.dir = NULL;
    reopen(&w);
    for (uint32_t i = 1; i <= 3; i++)
        keep(&w, i, 10, false);
    waste_prefix_limit(w.store, 2 * waste_prefix_bytes(&shape, 10));
    assert_int_equal(find(&w, 1, 64), 0);
    assert_int_equal(find(&w, 2, 64), 10);
    assert_int_equal(find(&w, 3, 64), 10);
    /* between finding and putting back it stays, and goes with the next */
    tokens(2, ids);
    waste_prefix_find(w.store, &prompt, &hit);
    assert_int_equal(hit.position, 10);
    waste_prefix_limit(w.store, 0);
    memset(&got, 0x5a, sizeof(got));
    assert_true(waste_prefix_load(w.store, &hit, &to));
    fill(&want, 2, 10);
    assert_memory_equal(&got, &want, sizeof(got));
    assert_int_equal(find(&w, 3, 64), 0);
    assert_int_equal(find(&w, 2, 64), 0);
    keep(&w, 2, 10, false);
    assert_int_equal(find(&w, 2, 64), 0);
    waste_prefix_limit(w.store, plenty);
    keep(&w, 2, 10, false);
    assert_int_equal(find(&w, 2, 64), 10);
    gone(&w);
}

static void what_leaves_memory_goes_to_the_disk(void **state)
{
    struct world w;

    make(&w, 2 * waste_prefix_bytes(&shape, 10), plenty);
    for (uint32_t i = 1; i <= 3; i++) {
        keep(&w, i, 10, false);
        for (int wait = 0; wait < 5000 && files(&w) + 1 < i; wait++)
            usleep(10000); /* the writer's thread */
    }
    for (uint32_t i = 1; i <= 3; i++)
        assert_int_equal(find(&w, i, 64), 10);
    gone(&w);
}

static void the_disk_keeps_what_was_used_last(void **state)
{
    uint32_t ids[MOST];
    struct world w;
    struct stat st;
    char path[PATH_MAX];
    uint64_t each = 0;

    make(&w, 0, plenty);
    for (uint32_t i = 1; i <= 4; i++) {
        struct waste_prefix_key key = {.fingerprint = 77, .position = 10, .lived = true};
        struct timespec old[2] = {{.tv_sec = 1000 + i}, {.tv_sec = 1000 + i}};
        keep(&w, i, 10, true);
        tokens(i, ids);
        for (uint32_t k = 0; k < 10; k++)
            key.hash = waste_prefix_hash(key.hash, ids[k]);
        waste_prefix_path(w.dir, &key, path);
        assert_int_equal(stat(path, &st), 0);
        if ((uint64_t)st.st_size > each)
            each = (uint64_t)st.st_size;
        assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
    }
    assert_int_equal(find(&w, 1, 64), 10); /* used now */
    waste_prefix_disk_trim(w.dir, 2 * each);
    assert_int_equal(files(&w), 2);
    assert_int_equal(find(&w, 1, 64), 10);
    assert_int_equal(find(&w, 4, 64), 10);
    assert_int_equal(find(&w, 2, 64), 0);
    /* one that is larger than all that is allowed is not written */
    w.options.disk_bytes = 100;
    reopen(&w);
    keep(&w, 5, 10, true);
    assert_int_equal(find(&w, 5, 64), 0);
    gone(&w);
}

/* What a dead writer left goes, and nothing that is not the store's. */
static void leftovers_are_removed(void **state)
{
    const char *const names[] = {"a.prefix.new", "b.prefix.new", "mine.txt"};
    struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    char path[PATH_MAX];
    struct world w;

    make(&w, 0, plenty);
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof(path), "%s/%s", w.dir, names[i]);
        close(open(path, O_CREAT | O_WRONLY, 0600));
        if (i != 1)
            utimensat(AT_FDCWD, path, old, 0);
    }
    waste_prefix_disk_trim(w.dir, 0);
    assert_int_equal(files(&w), 2);
    snprintf(path, sizeof(path), "%s/%s", w.dir, names[0]);
    assert_int_equal(access(path, F_OK), -1);
    gone(&w);
}

static void only_file(const struct world *w, char path[PATH_MAX])
{
    DIR *dir = opendir(w->dir);
    struct dirent *e;

    while ((e = readdir(dir)) != NULL)
        if (e->d_name[0] != '.')
            snprintf(path, PATH_MAX, "%s/%s", w->dir, e->d_name);
    closedir(dir);
}

static void files_that_lie_are_removed_or_not_believed(void **state)
{
    struct waste_prefix_key key = {.fingerprint = 77, .position = 20, .lived = true};
    uint32_t ids[MOST];
    char path[PATH_MAX], other[PATH_MAX];
    struct world w;
    struct stat st;

    make(&w, 0, plenty);
    keep(&w, 1, 20, true);
    keep(&w, 1, 10, true);
    only_file(&w, path);
    /* the name of other tokens: found by it, told apart by what is in it */
    tokens(2, ids);
    for (uint32_t k = 0; k < 20; k++)
        key.hash = waste_prefix_hash(key.hash, ids[k]);
    waste_prefix_path(w.dir, &key, other);
    tokens(1, ids);
    for (key.hash = 0, key.position = 0; key.position < 20; key.position++)
        key.hash = waste_prefix_hash(key.hash, ids[key.position]);
    waste_prefix_path(w.dir, &key, path);
    assert_int_equal(link(path, other), 0);
    assert_int_equal(find(&w, 2, 64), 0);
    assert_int_equal(w.notes, 0);
    unlink(other);
    /* damage: said, removed, and the shorter one serves */
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, st.st_size - 1), 0);
    assert_int_equal(find(&w, 1, 64), 10);
    assert_int_equal(w.notes, 1);
    assert_non_null(strstr(w.text, path));
    assert_int_equal(access(path, F_OK), -1);
    gone(&w);
}

/* What the checksums of a file that was found do not tell: its state does not unpack. */
static void a_state_that_does_not_unpack_is_removed(void **state)
{
    struct waste_prefix_hit hit;
    struct state got;
    struct waste_snapshot_place to = place(&got);
    uint32_t ids[MOST];
    char path[PATH_MAX];
    struct world w;

    make(&w, 0, plenty);
    keep(&w, 1, 20, true);
    only_file(&w, path);
    tokens(1, ids);
    waste_prefix_find(w.store, &(struct waste_prefix_prompt){.ids = ids, .count = 64}, &hit);
    assert_int_equal(hit.position, 20);
    assert_int_equal(truncate(path, 200), 0);
    assert_false(waste_prefix_load(w.store, &hit, &to));
    assert_int_equal(w.notes, 1);
    assert_int_equal(access(path, F_OK), -1);
    /* and is written anew */
    keep(&w, 1, 20, true);
    assert_int_equal(find(&w, 1, 64), 20);
    gone(&w);
}

static void a_directory_that_cannot_be_written_is_said_once(void **state)
{
    struct world w;

    make(&w, plenty, plenty);
    char *dir = strdup(w.dir);
    w.options.dir = "/nonexistent/store";
    reopen(&w);
    keep(&w, 1, 10, true);
    keep(&w, 2, 10, true);
    assert_int_equal(find(&w, 1, 64), 10); /* memory serves */
    w.options.dir = dir;
    reopen(&w);
    assert_int_equal(w.notes, 1);
    free(dir);
    w.options.dir = NULL;
    gone(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_longest_beginning_is_found),
        cmocka_unit_test(what_lasts_is_found_by_another_process),
        cmocka_unit_test(what_was_computed_serves_who_is_cut_there),
        cmocka_unit_test(memory_keeps_what_was_used_last),
        cmocka_unit_test(a_smaller_limit_is_kept_at_once),
        cmocka_unit_test(what_leaves_memory_goes_to_the_disk),
        cmocka_unit_test(the_disk_keeps_what_was_used_last),
        cmocka_unit_test(leftovers_are_removed),
        cmocka_unit_test(files_that_lie_are_removed_or_not_believed),
        cmocka_unit_test(a_state_that_does_not_unpack_is_removed),
        cmocka_unit_test(a_directory_that_cannot_be_written_is_said_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

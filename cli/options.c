#include "cli/options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cli/options_int.h"
#include "cli/units.h"
#include "shm/control.h"

enum { MAX_DISTANCE = 2, MAX_WORD = 40 };

static size_t min3(size_t a, size_t b, size_t c)
{
    size_t ab = a < b ? a : b;

    return ab < c ? ab : c;
}

/* Levenshtein distance; words longer than MAX_WORD are far from everything. */
static size_t distance(const char *a, const char *b)
{
    size_t row[MAX_WORD + 1];
    size_t la = strlen(a), lb = strlen(b);

    if (la > MAX_WORD || lb > MAX_WORD)
        return MAX_WORD;
    for (size_t j = 0; j <= lb; j++)
        row[j] = j;
    for (size_t i = 1; i <= la; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= lb; j++) {
            size_t above = row[j];
            row[j] = min3(above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = above;
        }
    }
    return row[lb];
}

const char *waste_args_nearest(const char *word, const char *const *names, size_t count)
{
    const char *best = NULL;
    size_t best_distance = MAX_DISTANCE + 1;

    for (size_t i = 0; i < count; i++) {
        size_t d = distance(word, names[i]);
        if (d < best_distance && d < strlen(names[i])) {
            best = names[i];
            best_distance = d;
        }
    }
    return best;
}

/* Of several options with this name, the command's own. */
static const struct waste_option *find_option(enum waste_command command, const char *name,
                                              size_t length)
{
    const struct waste_option *found = NULL;

    for (size_t i = 0; i < waste_option_count; i++) {
        const struct waste_option *o = &waste_option_table[i];
        if (strlen(o->name) == length && memcmp(o->name, name, length) == 0 &&
            (found == NULL || (o->commands >> command & 1)))
            found = o;
    }
    return found;
}

/* The longest option `word` begins with: --temperature is --temp to others. */
static const char *option_within(const char *word)
{
    const char *best = NULL;

    for (size_t i = 0; i < waste_option_count; i++) {
        const char *name = waste_option_table[i].name;
        size_t length = strlen(name);
        if (length > 4 && strncmp(word, name, length) == 0 &&
            (best == NULL || length > strlen(best)))
            best = name;
    }
    return best;
}

static int unknown_option(const char *argument, size_t length, FILE *err)
{
    const char *names[64];
    char word[MAX_WORD + 1] = "";
    size_t count = 0;

    for (; count < waste_option_count && count < 64; count++)
        names[count] = waste_option_table[count].name;
    if (length <= MAX_WORD)
        memcpy(word, argument, length);
    const char *near = waste_args_nearest(word, names, count);
    if (near == NULL)
        near = option_within(word);
    fprintf(err, "waste-run: unknown option '%.*s'", (int)length, argument);
    if (near != NULL)
        fprintf(err, ", did you mean '%s'?", near);
    fputc('\n', err);
    return 2;
}

static int bad_value(const struct waste_option *o, const char *value, const char *why, FILE *err)
{
    fprintf(err, "waste-run: option %s: '%.80s' %s\n", o->name, value, why);
    return 2;
}

static int out_of_range(const struct waste_option *o, const char *value, FILE *err)
{
    fprintf(err, "waste-run: option %s: '%.80s' is outside %.10g to %.10g\n", o->name, value,
            o->min, o->max);
    return 2;
}

/* The words that are allowed are those of `argument`, with | between them. */
static int set_choice(const struct waste_option *o, uint32_t *out, const char *value, FILE *err)
{
    char list[160] = "is none of ";
    size_t at = strlen(list);
    uint32_t which = 0;

    for (const char *word = o->argument; word != NULL && at < sizeof(list); which++) {
        size_t length = strcspn(word, "|");

        if (strlen(value) == length && memcmp(word, value, length) == 0) {
            *out = (uint32_t)o->min + which;
            return 0;
        }
        at += (size_t)snprintf(list + at, sizeof(list) - at, "%s%.*s", which > 0 ? ", " : "",
                               (int)length, word);
        word = word[length] == '|' ? word + length + 1 : NULL;
    }
    return bad_value(o, value, list, err);
}
_Static_assert(WASTE_IO_AUTO == 0 && WASTE_IO_URING == 1 && WASTE_IO_PREAD == 2, "--io");
_Static_assert(WASTE_THINK_SHOW == 1 && WASTE_THINK_HIDE == 2 && WASTE_THINK_OFF == 3, "--think");

/* Numbers of every kind. */
static int set_number(void *field, const struct waste_option *o, const char *value, FILE *err)
{
    double number = 0;
    uint64_t whole = 0;
    int rc;

    if (o->kind == WASTE_OPT_FLOAT)
        rc = waste_units_parse_float(value, &number);
    else if (o->kind == WASTE_OPT_SIZE)
        rc = waste_units_parse_size(value, &whole);
    else
        rc = waste_units_parse_u64(value, &whole);
    if (rc == -EINVAL)
        return bad_value(o, value,
                         o->kind == WASTE_OPT_SIZE    ? "is no size (for example 46G, 512M, 1.5GiB)"
                         : o->kind == WASTE_OPT_FLOAT ? "is no number"
                                                      : "is no whole number",
                         err);
    if (o->kind != WASTE_OPT_FLOAT)
        number = (double)whole;
    if (rc != 0 || number < o->min || number > o->max)
        return out_of_range(o, value, err);
    if (o->kind == WASTE_OPT_FLOAT)
        *(double *)field = number;
    else if (o->kind == WASTE_OPT_U32)
        *(uint32_t *)field = (uint32_t)whole;
    else
        *(uint64_t *)field = whole;
    return 0;
}

static int set_value(struct waste_args *args, const struct waste_option *o, const char *value,
                     FILE *err)
{
    void *field = (char *)args + o->offset;

    switch (o->kind) {
    case WASTE_OPT_FLAG:
        *(bool *)field = true;
        return 0;
    case WASTE_OPT_UNFLAG:
        *(bool *)field = false;
        return 0;
    case WASTE_OPT_STRING:
        *(const char **)field = value;
        return 0;
    case WASTE_OPT_CHOICE:
        return set_choice(o, field, value, err);
    case WASTE_OPT_CPUS:
        if (waste_units_parse_cpus(value, field, WASTE_CPU_WORDS) != 0)
            return bad_value(o, value, "is no list of CPUs (for example 0-3,8)", err);
        return 0;
    case WASTE_OPT_IDS: {
        uint32_t *ids, count;
        if (waste_units_parse_ids(value, &ids, &count) != 0)
            return bad_value(o, value, "is no list of token ids (for example 1,2,3)", err);
        free(args->ids);
        args->ids = ids;
        args->ids_count = count;
        args->ids_text = value;
        return 0;
    }
    case WASTE_OPT_SEED:
        args->seed_given = true;
        return set_number(field, o, value, err);
    default:
        return set_number(field, o, value, err);
    }
}

/* One option at argv[*at]; moves *at past a value it takes. Notes it in `given`. */
static int parse_option(struct waste_args *args, int argc, char **argv, int *at, uint64_t *given,
                        FILE *err)
{
    const char *argument = argv[*at];
    const char *equals = argument[1] == '-' ? strchr(argument, '=') : NULL;
    size_t length = equals != NULL ? (size_t)(equals - argument) : strlen(argument);
    const struct waste_option *o = find_option(args->command, argument, length);

    if (o == NULL)
        return unknown_option(argument, length, err);
    *given |= UINT64_C(1) << (o - waste_option_table);
    if (o->argument == NULL) {
        if (equals != NULL) {
            fprintf(err, "waste-run: option %s takes no value\n", o->name);
            return 2;
        }
        return set_value(args, o, NULL, err);
    }
    const char *value = equals != NULL ? equals + 1 : *at + 1 < argc ? argv[++*at] : NULL;
    if (value == NULL) {
        fprintf(err, "waste-run: option %s needs %s\n", o->name, o->argument);
        return 2;
    }
    return set_value(args, o, value, err);
}

const struct waste_option *waste_args_option(enum waste_command command, const char *name)
{
    return find_option(command, name, strlen(name));
}

int waste_args_set(struct waste_args *args, const char *name, const char *value, FILE *err)
{
    const struct waste_option *o = find_option(args->command, name, strlen(name));

    if (o == NULL)
        return unknown_option(name, strlen(name), err);
    if (!(o->commands >> args->command & 1)) {
        fprintf(err, "waste-run: option %s does not belong to '%s'\n", o->name,
                waste_command_table[args->command].name);
        return 2;
    }
    return set_value(args, o, value, err);
}

const char *waste_command_name(enum waste_command command)
{
    return waste_command_table[command].name;
}

/* The command that the first word may have been meant for, when it was taken for a model. */
static const char *command_meant(const struct waste_args *args)
{
    const char *names[WASTE_COMMAND_COUNT];

    for (int c = 0; c < WASTE_COMMAND_COUNT; c++)
        names[c] = waste_command_table[c].name;
    if (args->named || args->positional_count == 0)
        return NULL;
    return waste_args_nearest(args->positional[0], names, WASTE_COMMAND_COUNT);
}

/* Ends a line of error; it may all come of a misspelt command. */
static int wrong_use(const struct waste_args *args, FILE *err)
{
    const char *meant = command_meant(args);

    if (meant != NULL)
        fprintf(err, "; did you mean '%s' by '%.80s'?", meant, args->positional[0]);
    fputc('\n', err);
    return 2;
}

static int add_positional(struct waste_args *args, const char *word, FILE *err)
{
    if (args->positional_count == 0 && !args->named) {
        if (strcmp(word, "help") == 0) {
            args->help = true;
            return 0;
        }
        for (int c = 0; c < WASTE_COMMAND_COUNT; c++) {
            if (strcmp(word, waste_command_table[c].name) == 0) {
                args->command = (enum waste_command)c;
                args->named = true;
                return 0;
            }
        }
    }
    if (args->positional_count >= waste_command_table[args->command].most) {
        fprintf(err, "waste-run: unexpected argument '%.80s' after '%.80s'%s", word,
                args->positional_count > 0 ? args->positional[args->positional_count - 1]
                                           : waste_command_table[args->command].name,
                args->positional_count == 2 ? " (quote a text of several words)" : "");
        return wrong_use(args, err);
    }
    args->positional[args->positional_count++] = word;
    return 0;
}

/* Every option given belongs to the command. */
static int check_options(const struct waste_args *args, uint64_t given, FILE *err)
{
    for (size_t i = 0; i < waste_option_count; i++) {
        const struct waste_option *o = &waste_option_table[i];
        if ((given >> i & 1) && !(o->commands >> args->command & 1)) {
            fprintf(err, "waste-run: option %s does not belong to '%s'", o->name,
                    waste_command_table[args->command].name);
            return wrong_use(args, err);
        }
    }
    return 0;
}

void waste_args_defaults(struct waste_args *args)
{
    *args = (struct waste_args){
        .command = WASTE_CMD_RUN,
        .n = 512,
        .top_p = 1,
        .lookahead = WASTE_LOOKAHEAD_DEFAULT,
        .hang_seconds = 10,
        .top = 10,
        .tokens = 32,
    };
}

int waste_args_parse(struct waste_args *args, int argc, char **argv, FILE *err)
{
    waste_args_defaults(args);
    return waste_args_parse_onto(args, argc, argv, err);
}

int waste_args_parse_onto(struct waste_args *args, int argc, char **argv, FILE *err)
{
    uint64_t given = 0;
    bool options_over = false;

    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        int rc;
        if (!options_over && strcmp(a, "--") == 0) {
            options_over = true;
            continue;
        }
        if (!options_over && a[0] == '-' && a[1] != '\0')
            rc = parse_option(args, argc, argv, &i, &given, err);
        else
            rc = add_positional(args, a, err);
        if (rc != 0)
            return rc;
    }
    if (args->help || args->version)
        return 0;
    if (args->positional_count < waste_command_table[args->command].least) {
        if (!args->named)
            fprintf(err, "waste-run: no model given, see waste-run --help\n");
        else
            fprintf(err, "waste-run: %s needs %s\n", waste_command_table[args->command].name,
                    waste_command_table[args->command].positionals);
        return 2;
    }
    return check_options(args, given, err);
}

void waste_args_finish(struct waste_args *args)
{
    free(args->ids);
    free(args->config_text);
    args->ids = NULL;
    args->config_text = NULL;
}

uint32_t waste_options_io(uint32_t io, bool *direct)
{
    _Static_assert(WASTE_IO_AUTO == 0 && WASTE_IO_URING == 1 && WASTE_IO_PREAD == 2,
                   "the order of the words after --io");
    *direct = io > WASTE_IO_PREAD;
    return *direct ? io - WASTE_IO_PREAD : io;
}

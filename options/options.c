#include "options/options.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#include "options/units.h"

enum { MAX_DISTANCE = 2, MAX_WORD = 40, MAX_NAMES = 64 };

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

const char *waste_line_nearest(const char *word, const char *const *names, size_t count)
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

const char *waste_line_nearest_command(const struct waste_program *p, const char *word)
{
    const char *names[MAX_NAMES];

    for (int c = 0; c < p->command_count; c++)
        names[c] = p->commands[c].name;
    return waste_line_nearest(word, names, (size_t)p->command_count);
}

/* Of several options with this name, the command's own. */
static const struct waste_option *find_option(const struct waste_program *p, int command,
                                              const char *name, size_t length)
{
    const struct waste_option *found = NULL;

    for (size_t i = 0; i < p->option_count; i++) {
        const struct waste_option *o = &p->options[i];
        if (strlen(o->name) == length && memcmp(o->name, name, length) == 0 &&
            (found == NULL || waste_option_belongs(o, command)))
            found = o;
    }
    return found;
}

const struct waste_option *waste_line_option(const struct waste_program *p, int command,
                                             const char *name)
{
    return find_option(p, command, name, strlen(name));
}

/* The longest option `word` begins with: --temperature is --temp to others. */
static const char *option_within(const struct waste_program *p, const char *word)
{
    const char *best = NULL;

    for (size_t i = 0; i < p->option_count; i++) {
        const char *name = p->options[i].name;
        size_t length = strlen(name);
        if (length > 4 && strncmp(word, name, length) == 0 &&
            (best == NULL || length > strlen(best)))
            best = name;
    }
    return best;
}

static int unknown_option(const struct waste_program *p, const char *argument, size_t length,
                          FILE *err)
{
    const char *names[MAX_NAMES];
    char word[MAX_WORD + 1] = "";
    size_t count = 0;

    for (; count < p->option_count && count < MAX_NAMES; count++)
        names[count] = p->options[count].name;
    if (length <= MAX_WORD)
        memcpy(word, argument, length);
    const char *near = waste_line_nearest(word, names, count);
    if (near == NULL)
        near = option_within(p, word);
    fprintf(err, "%s: unknown option '%.*s'", p->name, (int)length, argument);
    if (near != NULL)
        fprintf(err, ", did you mean '%s'?", near);
    fputc('\n', err);
    return 2;
}

static int bad_value(const struct waste_program *p, const struct waste_option *o, const char *value,
                     const char *why, FILE *err)
{
    fprintf(err, "%s: option %s: '%.80s' %s\n", p->name, o->name, value, why);
    return 2;
}

static int out_of_range(const struct waste_program *p, const struct waste_option *o,
                        const char *value, FILE *err)
{
    fprintf(err, "%s: option %s: '%.80s' is outside %.10g to %.10g\n", p->name, o->name, value,
            o->min, o->max);
    return 2;
}

/* The words that are allowed are those of `argument`, with | between them; in either case, since
 * VQ3R is what a container calls vq3r. */
static int set_choice(const struct waste_program *p, const struct waste_option *o, uint32_t *out,
                      const char *value, FILE *err)
{
    char list[160] = "is none of ";
    size_t at = strlen(list);
    uint32_t which = 0;

    for (const char *word = o->argument; word != NULL && at < sizeof(list); which++) {
        size_t length = strcspn(word, "|");

        if (strlen(value) == length && strncasecmp(word, value, length) == 0) {
            *out = (uint32_t)o->min + which;
            return 0;
        }
        at += (size_t)snprintf(list + at, sizeof(list) - at, "%s%.*s", which > 0 ? ", " : "",
                               (int)length, word);
        word = word[length] == '|' ? word + length + 1 : NULL;
    }
    return bad_value(p, o, value, list, err);
}

/* Numbers of every kind. */
static int set_number(const struct waste_program *p, void *field, const struct waste_option *o,
                      const char *value, FILE *err)
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
        return bad_value(p, o, value,
                         o->kind == WASTE_OPT_SIZE    ? "is no size (for example 46G, 512M, 1.5GiB)"
                         : o->kind == WASTE_OPT_FLOAT ? "is no number"
                                                      : "is no whole number",
                         err);
    if (o->kind != WASTE_OPT_FLOAT)
        number = (double)whole;
    if (rc != 0 || number < o->min || number > o->max)
        return out_of_range(p, o, value, err);
    if (o->kind == WASTE_OPT_FLOAT)
        *(double *)field = number;
    else if (o->kind == WASTE_OPT_U32)
        *(uint32_t *)field = (uint32_t)whole;
    else
        *(uint64_t *)field = whole;
    return 0;
}

static int add_string(const struct waste_program *p, const struct waste_option *o,
                      struct waste_strings *list, const char *value, FILE *err)
{
    if (list->count == WASTE_STRINGS)
        return bad_value(p, o, value, "is one too many", err);
    list->text[list->count++] = value;
    return 0;
}

static int set_value(const struct waste_program *p, void *args, const struct waste_option *o,
                     const char *value, FILE *err)
{
    void *field = (char *)args + o->offset;
    const char *why;

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
    case WASTE_OPT_STRINGS:
        return add_string(p, o, field, value, err);
    case WASTE_OPT_CHOICE:
        return set_choice(p, o, field, value, err);
    case WASTE_OPT_U32:
    case WASTE_OPT_U64:
    case WASTE_OPT_FLOAT:
    case WASTE_OPT_SIZE:
        return set_number(p, field, o, value, err);
    default:
        why = p->set(args, o, value);
        return why == NULL ? 0 : bad_value(p, o, value, why, err);
    }
}

/* One option at argv[*at]; moves *at past a value it takes. Notes it in `given`. */
static int parse_option(const struct waste_program *p, void *args, int argc, char **argv, int *at,
                        uint64_t *given, FILE *err)
{
    const struct waste_line *line = args;
    const char *argument = argv[*at];
    const char *equals = argument[1] == '-' ? strchr(argument, '=') : NULL;
    size_t length = equals != NULL ? (size_t)(equals - argument) : strlen(argument);
    const struct waste_option *o = find_option(p, line->command, argument, length);

    if (o == NULL)
        return unknown_option(p, argument, length, err);
    if (!p->implied && !line->named && o->commands != UINT32_MAX) {
        fprintf(err, "%s: option %s stands before its command\n", p->name, o->name);
        return 2;
    }
    *given |= UINT64_C(1) << (o - p->options);
    if (o->argument == NULL) {
        if (equals != NULL) {
            fprintf(err, "%s: option %s takes no value\n", p->name, o->name);
            return 2;
        }
        return set_value(p, args, o, NULL, err);
    }
    const char *value = equals != NULL ? equals + 1 : *at + 1 < argc ? argv[++*at] : NULL;
    if (value == NULL) {
        fprintf(err, "%s: option %s needs %s\n", p->name, o->name, o->argument);
        return 2;
    }
    return set_value(p, args, o, value, err);
}

int waste_line_set(const struct waste_program *p, void *args, const char *name, const char *value,
                   FILE *err)
{
    const struct waste_line *line = args;
    const struct waste_option *o = waste_line_option(p, line->command, name);

    if (o == NULL)
        return unknown_option(p, name, strlen(name), err);
    if (!waste_option_belongs(o, line->command)) {
        fprintf(err, "%s: option %s does not belong to '%s'\n", p->name, o->name,
                p->commands[line->command].name);
        return 2;
    }
    return set_value(p, args, o, value, err);
}

/* Ends a line of error; it may all come of a misspelt command. */
static int wrong_use(const struct waste_program *p, const struct waste_line *line, FILE *err)
{
    const char *meant = line->named || line->positional_count == 0
                            ? NULL
                            : waste_line_nearest_command(p, line->positional[0]);

    if (meant != NULL)
        fprintf(err, "; did you mean '%s' by '%.80s'?", meant, line->positional[0]);
    fputc('\n', err);
    return 2;
}

static int unknown_command(const struct waste_program *p, const char *word, FILE *err)
{
    const char *near = waste_line_nearest_command(p, word);

    fprintf(err, "%s: no command '%.80s'", p->name, word);
    if (near != NULL)
        fprintf(err, ", did you mean '%s'?\n", near);
    else
        fprintf(err, ": %s --help lists them\n", p->name);
    return 2;
}

static int too_many(const struct waste_program *p, const struct waste_line *line, const char *word,
                    FILE *err)
{
    const struct waste_command_info *c = &p->commands[line->command];
    bool text = strstr(c->positionals, "| -]") != NULL;

    fprintf(err, "%s: unexpected argument '%.80s' after '%.80s'%s", p->name, word,
            line->positional_count > 0 ? line->positional[line->positional_count - 1] : c->name,
            text ? " (quote a text of several words)" : "");
    return wrong_use(p, line, err);
}

static int add_positional(const struct waste_program *p, struct waste_line *line, const char *word,
                          FILE *err)
{
    if (line->positional_count == 0 && !line->named) {
        if (strcmp(word, "help") == 0) {
            line->help = true;
            return 0;
        }
        for (int c = 0; c < p->command_count; c++) {
            if (strcmp(word, p->commands[c].name) == 0) {
                line->command = c;
                line->named = true;
                return 0;
            }
        }
        if (!p->implied)
            return unknown_command(p, word, err);
    }
    if (line->positional_count >= p->commands[line->command].most)
        return too_many(p, line, word, err);
    line->positional[line->positional_count++] = word;
    return 0;
}

/* Every option given belongs to the command. */
static int check_options(const struct waste_program *p, const struct waste_line *line,
                         uint64_t given, FILE *err)
{
    for (size_t i = 0; i < p->option_count; i++) {
        const struct waste_option *o = &p->options[i];
        if ((given >> i & 1) && !waste_option_belongs(o, line->command)) {
            fprintf(err, "%s: option %s does not belong to '%s'", p->name, o->name,
                    p->commands[line->command].name);
            return wrong_use(p, line, err);
        }
    }
    return 0;
}

static int check_words(const struct waste_program *p, const struct waste_line *line, FILE *err)
{
    const struct waste_command_info *c = &p->commands[line->command];

    if (!line->named && !p->implied) {
        fprintf(err, "%s: no command given, see %s --help\n", p->name, p->name);
        return 2;
    }
    if (line->positional_count >= c->least)
        return 0;
    if (!line->named)
        fprintf(err, "%s: nothing to %s, see %s --help\n", p->name, c->name, p->name);
    else
        fprintf(err, "%s: %s needs %s\n", p->name, c->name, c->positionals);
    return 2;
}

int waste_line_parse(const struct waste_program *p, void *args, int argc, char **argv, FILE *err)
{
    struct waste_line *line = args;
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
            rc = parse_option(p, args, argc, argv, &i, &given, err);
        else
            rc = add_positional(p, line, a, err);
        if (rc != 0)
            return rc;
    }
    if (line->help || line->version)
        return 0;
    int rc = check_words(p, line, err);
    return rc == 0 ? check_options(p, line, given, err) : rc;
}

#include "cli/config.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "cli/options.h"

enum { FILE_BYTES = 1 << 16, NAME_BYTES = 40 };

static const char prefix[] = "waste-run: ";

/* What `name` without its dashes is called on the command line. */
static void with_dashes(const char *name, char out[NAME_BYTES + 3])
{
    snprintf(out, NAME_BYTES + 3, "%s%.*s", name[0] != '\0' && name[1] == '\0' ? "-" : "--",
             NAME_BYTES, name);
}

/* A flag takes yes or no. -1: neither. */
static int yes_or_no(const char *value)
{
    static const char *const words[] = {"no", "false", "off", "0", "yes", "true", "on", "1"};

    for (int i = 0; i < 8; i++)
        if (strcmp(value, words[i]) == 0)
            return i >= 4;
    return -1;
}

/* One setting; what is said of it begins with where it is from. */
static int apply(struct waste_args *args, const char *where, const char *name, const char *value,
                 FILE *err)
{
    const struct waste_option *o = waste_line_option(&waste_run_program, args->line.command, name);
    char *said = NULL;
    size_t bytes = 0;
    FILE *catcher;
    int rc;

    if (o != NULL && !(o->commands >> args->line.command & 1))
        return 0;
    if (o != NULL && o->argument == NULL) {
        int yes = yes_or_no(value);

        if (yes < 0) {
            fprintf(err, "%s%s: '%.80s' is neither yes nor no\n", prefix, where, value);
            return 2;
        }
        *(bool *)((char *)args + o->offset) = (o->kind == WASTE_OPT_FLAG) == (yes == 1);
        return 0;
    }
    catcher = open_memstream(&said, &bytes);
    if (catcher == NULL) {
        fprintf(err, "%sout of memory\n", prefix);
        return 2;
    }
    rc = waste_line_set(&waste_run_program, args, name, value, catcher);
    fclose(catcher);
    if (rc != 0)
        fprintf(err, "%s%s: %s", prefix, where, said + strlen(prefix));
    free(said);
    return rc;
}

static char *trim(char *text)
{
    size_t end;

    text += strspn(text, " \t\r");
    end = strlen(text);
    while (end > 0 && strchr(" \t\r", text[end - 1]) != NULL)
        text[--end] = '\0';
    return text;
}

/* `name = value`, or with white space between; in place. */
static int apply_line(struct waste_args *args, const char *where, char *line, FILE *err)
{
    char name[NAME_BYTES + 3], *value;
    size_t length;

    line = trim(line);
    if (*line == '\0' || *line == '#')
        return 0;
    length = strcspn(line, " \t=");
    value = line + length;
    value += strspn(value, " \t");
    value += *value == '=';
    if (length == 0 || length > NAME_BYTES || *value == '\0') {
        fprintf(err, "%s%s: not 'name = value'\n", prefix, where);
        return 2;
    }
    line[length] = '\0';
    with_dashes(line, name);
    return apply(args, where, name, trim(value), err);
}

static bool config_path(char out[PATH_MAX])
{
    const char *base = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");

    if (base != NULL && *base == '/')
        return snprintf(out, PATH_MAX, "%s/waste/config", base) < PATH_MAX;
    return home != NULL && *home == '/' &&
           snprintf(out, PATH_MAX, "%s/.config/waste/config", home) < PATH_MAX;
}

static int apply_file(struct waste_args *args, FILE *err)
{
    char path[PATH_MAX], where[PATH_MAX + 24], *text, *next;
    int rc = 0, number = 0;
    size_t bytes;
    FILE *f;

    if (!config_path(path))
        return 0;
    f = fopen(path, "rbe");
    if (f == NULL && (errno == ENOENT || errno == ENOTDIR))
        return 0;
    if (f == NULL) {
        fprintf(err, "%scannot read %s: %s\n", prefix, path, strerror(errno));
        return 2;
    }
    /* values point into it for as long as the arguments live */
    text = args->config_text = malloc(FILE_BYTES + 1);
    bytes = text != NULL ? fread(text, 1, FILE_BYTES + 1, f) : 0;
    if (text == NULL || ferror(f) || bytes > FILE_BYTES) {
        fprintf(err, "%scannot read %s: %s\n", prefix, path,
                text == NULL         ? "out of memory"
                : bytes > FILE_BYTES ? "more than 65536 bytes"
                                     : strerror(errno));
        rc = 2;
    } else {
        text[bytes] = '\0';
        if (memchr(text, '\0', bytes) != NULL) {
            fprintf(err, "%s%s: holds a zero byte\n", prefix, path);
            rc = 2;
        }
    }
    fclose(f);
    for (char *line = rc == 0 ? text : NULL; line != NULL && rc == 0; line = next) {
        next = strchr(line, '\n');
        if (next != NULL)
            *next++ = '\0';
        snprintf(where, sizeof(where), "%s:%d", path, ++number);
        rc = apply_line(args, where, line, err);
    }
    return rc;
}

/* WASTE_TOP_P for --top-p. */
static int apply_environment(struct waste_args *args, FILE *err)
{
    int rc = 0;

    for (size_t i = 0; i < waste_run_program.option_count && rc == 0; i++) {
        const struct waste_option *o = &waste_run_program.options[i];
        const char *value, *name = o->name + strspn(o->name, "-");
        char variable[NAME_BYTES + 8] = "WASTE_";
        size_t at = strlen(variable);

        for (; *name != '\0' && at < sizeof(variable) - 1; name++)
            variable[at++] = *name == '-' ? '_' : (char)toupper((unsigned char)*name);
        variable[at] = '\0';
        value = getenv(variable);
        if (o->help != NULL && value != NULL && *value != '\0' &&
            (o->commands >> args->line.command & 1))
            rc = apply(args, variable, o->name, value, err);
    }
    return rc;
}

int waste_args_load(struct waste_args *args, int argc, char **argv, FILE *err)
{
    struct waste_args alone;
    int rc = waste_args_parse(&alone, argc, argv, err);

    if (rc != 0 || alone.line.help || alone.line.version) {
        *args = alone;
        return rc;
    }
    waste_args_defaults(args);
    args->line.command = alone.line.command;
    waste_args_finish(&alone);
    rc = apply_file(args, err);
    if (rc == 0)
        rc = apply_environment(args, err);
    args->line.help = args->line.version = false;
    args->line.command = WASTE_CMD_RUN;
    return rc == 0 ? waste_args_parse_onto(args, argc, argv, err) : rc;
}

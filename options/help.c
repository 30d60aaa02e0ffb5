/* --help, made of the tables and of what each command has to say for itself. */
#include <string.h>

#include "options/options.h"

static void help_options(const struct waste_program *p, FILE *out, uint32_t commands)
{
    fputs("\noptions:\n", out);
    for (size_t i = 0; i < p->option_count; i++) {
        const struct waste_option *o = &p->options[i];
        char left[64];
        if (o->help == NULL || (o->commands & commands) == 0)
            continue;
        snprintf(left, sizeof(left), "%s %s", o->name, o->argument != NULL ? o->argument : "");
        if (strlen(left) > 22) /* its own line */
            fprintf(out, "  %s\n  %-22s %s\n", left, "", o->help);
        else
            fprintf(out, "  %-22s %s\n", left, o->help);
    }
}

static void help_command(const struct waste_program *p, FILE *out, int command)
{
    const struct waste_command_info *c = &p->commands[command];

    fprintf(out, "usage: %s %s %s%s[options]\n%s\n\n%s", p->name, c->name, c->positionals,
            *c->positionals != '\0' ? " " : "", c->summary, p->texts[command].about);
    help_options(p, out, UINT32_C(1) << command);
    fprintf(out, "\nexamples:\n%s", p->texts[command].examples);
}

/* "usage: NAME" before the first line of the synopsis, blanks and the name before the others. */
static void help_synopsis(const struct waste_program *p, FILE *out)
{
    const char *before = "usage:";

    for (const char *at = p->synopsis; *at != '\0'; before = "      ") {
        size_t length = strcspn(at, "\n");
        fprintf(out, "%s %s %.*s\n", before, p->name, (int)length, at);
        at += length + (at[length] == '\n');
    }
}

/* The code, and its lines one under the other. */
static void help_exit(FILE *out, const struct waste_exit_text *e)
{
    const char *code = e->code;

    for (const char *at = e->text; *at != '\0'; code = "") {
        size_t length = strcspn(at, "\n");
        fprintf(out, "  %-7s %.*s\n", code, (int)length, at);
        at += length + (at[length] == '\n');
    }
}

void waste_line_help(const struct waste_program *p, FILE *out, int command)
{
    if (command != p->command_count) {
        help_command(p, out, command);
        return;
    }
    help_synopsis(p, out);
    fprintf(out, "%s\n\ncommands:\n", p->summary);
    for (int i = 0; i < p->command_count; i++) {
        char left[48];
        snprintf(left, sizeof(left), "%s %s", p->commands[i].name, p->commands[i].positionals);
        fprintf(out, "  %-28s %s\n", left, p->commands[i].summary);
    }
    /* without an implied command there are those of any command only */
    if (p->implied)
        help_options(p, out, UINT32_MAX);
    fprintf(out, "\n%s\nexit codes:\n", p->notes);
    for (int i = 0; i < WASTE_EXIT_TEXTS; i++)
        help_exit(out, &waste_exit_texts[i]);
    fprintf(out, "\nexamples:\n%s", p->examples);
}

#include "options/docs.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* What an argument of this name is completed with. */
static bool is_file(const char *argument)
{
    return strcmp(argument, "FILE") == 0 || strcmp(argument, "DIR") == 0 ||
           strcmp(argument, "SRC") == 0;
}

static bool is_choice(const struct waste_option *o)
{
    return o->kind == WASTE_OPT_CHOICE;
}

/* a|b|c as "a b c". */
static void put_words(const char *choices)
{
    for (; *choices != '\0'; choices++)
        putchar(*choices == '|' ? ' ' : *choices);
}

/* waste-run as it may stand in the name of a shell function. */
static void put_function(const struct waste_program *p)
{
    putchar('_');
    for (const char *c = p->name; *c != '\0'; c++)
        putchar(isalnum((unsigned char)*c) ? *c : '_');
}

static void put_commands(const struct waste_program *p, char between)
{
    for (int c = 0; c < p->command_count; c++) {
        if (c > 0)
            putchar(between);
        fputs(p->commands[c].name, stdout);
    }
}

/* The commands an option belongs to, with `between`. */
static void put_owners(const struct waste_program *p, const struct waste_option *o,
                       const char *between)
{
    bool first = true;

    for (int c = 0; c < p->command_count; c++) {
        if (!waste_option_belongs(o, c))
            continue;
        printf("%s%s", first ? "" : between, p->commands[c].name);
        first = false;
    }
}

/* Options of this name, and whether this is the first of them. */
static int namesakes(const struct waste_program *p, size_t which, bool *first)
{
    int count = 0;

    *first = true;
    for (size_t i = 0; i < p->option_count; i++) {
        if (p->options[i].help == NULL || strcmp(p->options[i].name, p->options[which].name) != 0)
            continue;
        *first &= count > 0 || i == which;
        count++;
    }
    return count;
}

/* ---- bash ---- */

static void bash_options(const struct waste_program *p, int command)
{
    printf("        %s) options=\"", p->commands[command].name);
    for (size_t i = 0; i < p->option_count; i++)
        if (p->options[i].help != NULL && waste_option_belongs(&p->options[i], command))
            printf("%s ", p->options[i].name);
    puts("\" ;;");
}

/* What follows the option: its words, files, or nothing to offer. */
static void bash_value(const struct waste_option *o)
{
    if (is_choice(o)) {
        printf("COMPREPLY=($(compgen -W \"");
        put_words(o->argument);
        printf("\" -- \"$cur\")); return 0 ;;\n");
    } else {
        puts(is_file(o->argument) ? "COMPREPLY=($(compgen -f -- \"$cur\")); return 0 ;;"
                                  : "return 0 ;;");
    }
}

/* One case for each name that takes a value, by command where several options share the name. */
static void bash_values(const struct waste_program *p)
{
    for (size_t i = 0; i < p->option_count; i++) {
        const struct waste_option *o = &p->options[i];
        bool first;

        if (o->help == NULL)
            continue;
        int count = namesakes(p, i, &first);
        if (count == 1 && o->argument != NULL) {
            printf("        %s) ", o->name);
            bash_value(o);
        }
        if (count == 1 || !first)
            continue;
        printf("        %s) case $command in\n", o->name);
        for (size_t k = i; k < p->option_count; k++) {
            const struct waste_option *other = &p->options[k];
            if (other->argument == NULL || strcmp(other->name, o->name) != 0)
                continue;
            printf("            ");
            put_owners(p, other, "|");
            printf(") ");
            bash_value(other);
        }
        puts("            esac ;;");
    }
}

/* The arguments of commands that have words of their own. */
static void bash_arguments(const struct waste_program *p)
{
    for (int c = 0; c < p->command_count; c++)
        if (p->texts[c].words != NULL)
            printf("    [ \"$command\" = %s ] && COMPREPLY=($(compgen -W \"%s\" -- \"$cur\")) && "
                   "return 0\n",
                   p->commands[c].name, p->texts[c].words);
}

static void bash(const struct waste_program *p)
{
    printf("# bash completion of %s; written at build time, not by hand\n", p->name);
    put_function(p);
    printf("() {\n"
           "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
           "    local command=%s named= options= word i\n"
           "    COMPREPLY=()\n"
           "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
           "        case ${COMP_WORDS[i]} in\n"
           "        ",
           p->implied ? p->commands[0].name : "");
    put_commands(p, '|');
    puts(") command=${COMP_WORDS[i]} named=1; break ;;\n"
         "        esac\n"
         "    done\n"
         "    case $prev in");
    bash_values(p);
    puts("    esac\n"
         "    case $command in");
    for (int c = 0; c < p->command_count; c++)
        bash_options(p, c);
    puts("    esac\n"
         "    case $cur in\n"
         "        -*) COMPREPLY=($(compgen -W \"${options:---help --version}\" -- \"$cur\")); "
         "return 0 ;;\n"
         "    esac");
    bash_arguments(p);
    if (p->implied)
        puts("    COMPREPLY=($(compgen -f -- \"$cur\"))");
    else
        puts("    [ -z \"$named\" ] || COMPREPLY=($(compgen -f -- \"$cur\"))");
    printf("    [ -n \"$named\" ] || COMPREPLY+=($(compgen -W \"");
    put_commands(p, ' ');
    printf("\" -- \"$cur\"))\n"
           "    return 0\n"
           "}\n"
           "complete -o filenames -F ");
    put_function(p);
    printf(" %s\n", p->name);
}

/* ---- zsh ---- */

/* Text within '...' and [...] of an _arguments specification. */
static void put_zsh(const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '\'')
            fputs("'\\'", stdout);
        else if (strchr("[]:\\", *text) != NULL)
            putchar('\\');
        putchar(*text);
    }
}

static void zsh_option(const struct waste_option *o)
{
    printf(" \\\n            '%s%s[", o->kind == WASTE_OPT_STRINGS ? "*" : "", o->name);
    put_zsh(o->help);
    putchar(']');
    if (o->argument != NULL && is_choice(o)) {
        printf(":%s:(", "word");
        put_words(o->argument);
        putchar(')');
    } else if (o->argument != NULL) {
        putchar(':');
        put_zsh(o->argument);
        printf(":%s", is_file(o->argument) ? "_files" : "");
    }
    putchar('\'');
}

static void zsh(const struct waste_program *p)
{
    printf("#compdef %s\n"
           "# written at build time, not by hand\n"
           "_%s() {\n"
           "    local command=%s word\n"
           "    local -a commands\n"
           "    commands=(\n",
           p->name, p->name, p->implied ? p->commands[0].name : "");
    for (int c = 0; c < p->command_count; c++) {
        printf("        '%s:", p->commands[c].name);
        put_zsh(p->commands[c].summary);
        puts("'");
    }
    puts("    )\n"
         "    for word in ${words[2,CURRENT-1]}; do\n"
         "        if [[ -n ${(M)commands:#${word}:*} ]]; then command=$word; break; fi\n"
         "    done\n"
         "    case $command in");
    for (int c = 0; c < p->command_count; c++) {
        printf("        %s) _arguments", p->commands[c].name);
        for (size_t i = 0; i < p->option_count; i++)
            if (p->options[i].help != NULL && waste_option_belongs(&p->options[i], c))
                zsh_option(&p->options[i]);
        puts(" \\\n            '1: :{ _describe command commands; _files }' \\\n"
             "            '*: :_files' ;;");
    }
    if (!p->implied)
        puts("        *) _describe command commands ;;");
    printf("    esac\n"
           "}\n"
           "_%s \"$@\"\n",
           p->name);
}

/* ---- man ---- */

/* Text that roff leaves as it is. */
static void put_roff(const char *text)
{
    bool line_begins = true;

    for (; *text != '\0'; text++) {
        if (line_begins && (*text == '.' || *text == '\''))
            fputs("\\&", stdout);
        line_begins = *text == '\n';
        if (*text == '\\')
            fputs("\\e", stdout);
        else if (*text == '-')
            fputs("\\-", stdout);
        else
            putchar(*text);
    }
}

static void put_roff_upper(const char *text)
{
    for (; *text != '\0'; text++)
        if (*text == '-')
            fputs("\\-", stdout);
        else
            putchar(toupper((unsigned char)*text));
}

static void man_option(const struct waste_program *p, size_t i)
{
    const struct waste_option *o = &p->options[i];
    bool first;

    fputs(".TP\n.B ", stdout);
    put_roff(o->name);
    if (o->argument != NULL) {
        fputs(" \\fI", stdout);
        put_roff(o->argument);
        fputs("\\fR", stdout);
    }
    if (namesakes(p, i, &first) > 1) {
        printf("\\fR (");
        put_owners(p, o, ", ");
        putchar(')');
    }
    putchar('\n');
    put_roff(o->help);
    putchar('\n');
}

static void man_command(const struct waste_program *p, int c)
{
    printf(".SS ");
    put_roff(p->commands[c].name);
    printf(" ");
    put_roff(p->commands[c].positionals);
    putchar('\n');
    put_roff(p->texts[c].about);
    printf(".PP\nOptions:");
    for (size_t i = 0, n = 0; i < p->option_count; i++) {
        const struct waste_option *o = &p->options[i];

        if (o->help == NULL || !waste_option_belongs(o, c))
            continue;
        fputs(n++ > 0 ? ", " : " ", stdout);
        put_roff(o->name);
    }
    puts(".\n.PP\n.nf");
    put_roff(p->texts[c].examples);
    puts(".fi");
}

/* Each line of the synopsis after the program's name. */
static void man_synopsis(const struct waste_program *p)
{
    for (const char *at = p->synopsis; *at != '\0';) {
        size_t length = strcspn(at, "\n");
        char line[128];

        snprintf(line, sizeof(line), "%.*s", (int)length, at);
        fputs(at == p->synopsis ? ".B " : ".br\n.B ", stdout);
        put_roff(p->name);
        putchar('\n');
        put_roff(line);
        putchar('\n');
        at += length + (at[length] == '\n');
    }
}

static void man(const struct waste_program *p)
{
    fputs(".TH ", stdout);
    put_roff_upper(p->name);
    puts(" 1 \"\" \"waste " WASTE_VERSION "\" \"User Commands\"\n.SH NAME");
    put_roff(p->name);
    fputs(" \\- ", stdout);
    put_roff(p->summary);
    puts("\n.SH SYNOPSIS");
    man_synopsis(p);
    puts(".SH COMMANDS");
    for (int c = 0; c < p->command_count; c++)
        man_command(p, c);
    puts(".SH OPTIONS");
    for (size_t i = 0; i < p->option_count; i++)
        if (p->options[i].help != NULL)
            man_option(p, i);
    puts(".SH EXIT STATUS");
    for (int i = 0; i < WASTE_EXIT_TEXTS; i++) {
        printf(".TP\n.B %s\n", waste_exit_texts[i].code);
        put_roff(waste_exit_texts[i].text);
        putchar('\n');
    }
    fputs(p->man_notes, stdout);
}

int waste_docs_main(const struct waste_program *p, int argc, char **argv)
{
    const char *what = argc == 2 ? argv[1] : "";

    if (strcmp(what, "bash") == 0)
        bash(p);
    else if (strcmp(what, "zsh") == 0)
        zsh(p);
    else if (strcmp(what, "man") == 0)
        man(p);
    else
        return 2;
    return fflush(stdout) == 0 && !ferror(stdout) ? 0 : 1;
}

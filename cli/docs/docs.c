/*
 * Writes what is made of the tables of commands and options at build time:
 *     waste-docs bash|zsh|man
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "cli/options_int.h"

static bool belongs(const struct waste_option *o, int command)
{
    return o->commands >> command & 1;
}

/* What an argument of this name is completed with. */
static bool is_file(const char *argument)
{
    return strcmp(argument, "FILE") == 0 || strcmp(argument, "DIR") == 0;
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

/* ---- bash ---- */

static void bash_options(int command)
{
    printf("        %s) options=\"", waste_command_table[command].name);
    for (size_t i = 0; i < waste_option_count; i++)
        if (waste_option_table[i].help != NULL && belongs(&waste_option_table[i], command))
            printf("%s ", waste_option_table[i].name);
    puts("\" ;;");
}

/* One case for each option that takes a value: its words, files, or nothing to offer. */
static void bash_values(void)
{
    for (size_t i = 0; i < waste_option_count; i++) {
        const struct waste_option *o = &waste_option_table[i];

        if (o->argument == NULL || o->help == NULL)
            continue;
        /* the render command has a flag of a name that elsewhere takes a value */
        printf("        %s) ", o->name);
        if (strcmp(o->name, "--ids") == 0)
            printf("[ \"$command\" = render ] || return 0 ;;\n");
        else if (is_choice(o)) {
            printf("COMPREPLY=($(compgen -W \"");
            put_words(o->argument);
            puts("\" -- \"$cur\")); return 0 ;;");
        } else {
            puts(is_file(o->argument) ? "COMPREPLY=($(compgen -f -- \"$cur\")); return 0 ;;"
                                      : "return 0 ;;");
        }
    }
}

static void bash(void)
{
    puts("# bash completion of waste-run; written by waste-docs, not by hand\n"
         "_waste_run() {\n"
         "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
         "    local command=run named= options= word i\n"
         "    COMPREPLY=()\n"
         "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
         "        case ${COMP_WORDS[i]} in");
    printf("        ");
    for (int c = 0; c < WASTE_COMMAND_COUNT; c++)
        printf("%s%s", c > 0 ? "|" : "", waste_command_table[c].name);
    puts(") command=${COMP_WORDS[i]} named=1; break ;;\n"
         "        esac\n"
         "    done\n"
         "    case $prev in");
    bash_values();
    puts("    esac\n"
         "    case $command in");
    for (int c = 0; c < WASTE_COMMAND_COUNT; c++)
        bash_options(c);
    puts("    esac\n"
         "    case $cur in\n"
         "        -*) COMPREPLY=($(compgen -W \"$options\" -- \"$cur\")); return 0 ;;\n"
         "    esac");
    printf(
        "    [ \"$command\" = restart ] && COMPREPLY=($(compgen -W \"reader compute router all\" "
        "-- \"$cur\")) && return 0\n"
        "    COMPREPLY=($(compgen -f -- \"$cur\"))\n"
        "    [ -n \"$named\" ] || COMPREPLY+=($(compgen -W \"");
    for (int c = 0; c < WASTE_COMMAND_COUNT; c++)
        printf("%s%s", c > 0 ? " " : "", waste_command_table[c].name);
    puts("\" -- \"$cur\"))\n"
         "    return 0\n"
         "}\n"
         "complete -o filenames -F _waste_run waste-run");
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
    printf(" \\\n            '%s[", o->name);
    put_zsh(o->help);
    putchar(']');
    if (o->argument != NULL && is_choice(o)) {
        printf(":%s:(", "word");
        put_words(o->argument);
        putchar(')');
    } else if (o->argument != NULL) {
        printf(":%s:%s", o->argument, is_file(o->argument) ? "_files" : "");
    }
    putchar('\'');
}

static void zsh(void)
{
    puts("#compdef waste-run\n"
         "# written by waste-docs, not by hand\n"
         "_waste-run() {\n"
         "    local command=run word\n"
         "    local -a commands\n"
         "    commands=(");
    for (int c = 0; c < WASTE_COMMAND_COUNT; c++) {
        printf("        '%s:", waste_command_table[c].name);
        put_zsh(waste_command_table[c].summary);
        puts("'");
    }
    puts("    )\n"
         "    for word in ${words[2,CURRENT-1]}; do\n"
         "        if [[ -n ${(M)commands:#${word}:*} ]]; then command=$word; break; fi\n"
         "    done\n"
         "    case $command in");
    for (int c = 0; c < WASTE_COMMAND_COUNT; c++) {
        printf("        %s) _arguments", waste_command_table[c].name);
        for (size_t i = 0; i < waste_option_count; i++)
            if (waste_option_table[i].help != NULL && belongs(&waste_option_table[i], c))
                zsh_option(&waste_option_table[i]);
        puts(" \\\n            '1: :{ _describe command commands; _files }' \\\n"
             "            '*: :_files' ;;");
    }
    puts("    esac\n"
         "}\n"
         "_waste-run \"$@\"");
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

static void man_option(const struct waste_option *o)
{
    fputs(".TP\n.B ", stdout);
    put_roff(o->name);
    if (o->argument != NULL) {
        fputs(" \\fI", stdout);
        put_roff(o->argument);
        fputs("\\fR", stdout);
    }
    putchar('\n');
    put_roff(o->help);
    putchar('\n');
}

static void man_command(int c)
{
    printf(".SS ");
    put_roff(waste_command_table[c].name);
    printf(" ");
    put_roff(waste_command_table[c].positionals);
    putchar('\n');
    put_roff(waste_command_texts[c].about);
    printf(".PP\nOptions:");
    for (size_t i = 0, n = 0; i < waste_option_count; i++) {
        const struct waste_option *o = &waste_option_table[i];

        if (o->help == NULL || !belongs(o, c))
            continue;
        fputs(n++ > 0 ? ", " : " ", stdout);
        put_roff(o->name);
    }
    puts(".\n.PP\n.nf");
    put_roff(waste_command_texts[c].examples);
    puts(".fi");
}

static void man(void)
{
    puts(".TH WASTE\\-RUN 1 \"\" \"waste " WASTE_VERSION "\" \"User Commands\"\n"
         ".SH NAME\n"
         "waste\\-run \\- run mixture\\-of\\-experts models larger than memory\n"
         ".SH SYNOPSIS\n"
         ".B waste\\-run\n"
         "\\fIMODEL\\fR [\\fIPROMPT\\fR | \\-] [\\fIoptions\\fR]\n"
         ".br\n"
         ".B waste\\-run\n"
         "\\fICOMMAND\\fR [\\fIarguments\\fR] [\\fIoptions\\fR]\n"
         ".SH COMMANDS");
    for (int c = 0; c < WASTE_COMMAND_COUNT; c++)
        man_command(c);
    puts(".SH OPTIONS");
    for (size_t i = 0; i < waste_option_count; i++)
        if (waste_option_table[i].help != NULL)
            man_option(&waste_option_table[i]);
    puts(
        ".SH ENVIRONMENT\n"
        "Every option has a variable: \\fBWASTE_TOP_P\\fR is \\-\\-top\\-p. Flags take yes or no.\n"
        "The command line counts first, then the environment, then the file below.\n"
        ".TP\n.B NO_COLOR\nno colours, if it is set and not empty\n"
        ".SH FILES\n"
        ".TP\n.I ~/.config/waste/config\n"
        "options of the same names, one a line: \\fBtemp = 0.6\\fR. A line that begins with # is "
        "a\n"
        "comment. $XDG_CONFIG_HOME is respected.\n"
        ".SH EXIT STATUS\n"
        "0 done, 1 failed, 2 usage or bad configuration.");
}

int main(int argc, char **argv)
{
    const char *what = argc == 2 ? argv[1] : "";

    if (strcmp(what, "bash") == 0)
        bash();
    else if (strcmp(what, "zsh") == 0)
        zsh();
    else if (strcmp(what, "man") == 0)
        man();
    else
        return 2;
    return fflush(stdout) == 0 && !ferror(stdout) ? 0 : 1;
}

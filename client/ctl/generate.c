/* SPDX-License-Identifier: Apache-2.0
 *
 * The manual page zipcclctl(1), and completion for bash and zsh, all from the table of commands.
 */
#include "client/ctl/generate.h"

#include <string.h>

/* Text for roff: no dash becomes a hyphen, no line a request. */
static void roff(FILE *out, const char *text) {
    bool start = true;
    for (; *text; text++) {
        if (start && (*text == '.' || *text == '\'' || *text == ' '))
            (void)fputs("\\&", out);
        start = *text == '\n';
        if (*text == '-')
            (void)fputs("\\-", out);
        else if (*text == '\\')
            (void)fputs("\\e", out);
        else
            (void)fputc(*text, out);
    }
}

static void man_option(const struct ctl_option *o, FILE *out) {
    (void)fprintf(out, ".TP\n.B ");
    roff(out, "--");
    roff(out, o->name);
    if (o->arg) {
        (void)fputs(" \\fI", out);
        roff(out, o->arg);
        (void)fputs("\\fR", out);
        if (o->repeats)
            (void)fputs("...", out);
    }
    (void)fputc('\n', out);
    roff(out, o->help);
    if (o->initial) {
        (void)fputs(" (default ", out);
        roff(out, o->initial);
        (void)fputc(')', out);
    }
    (void)fputc('\n', out);
}

static void man_command(const struct ctl_command *c, FILE *out) {
    (void)fputs(".SS ", out);
    roff(out, c->name);
    if (c->operands) {
        (void)fputc(' ', out);
        roff(out, c->operands);
    }
    (void)fputc('\n', out);
    roff(out, c->summary);
    (void)fputc('\n', out);
    for (const struct ctl_option *o = c->options; o->name; o++)
        man_option(o, out);
    if (c->details) { /* they have tables, set by hand */
        (void)fputs(".PP\n.nf\n", out);
        roff(out, c->details);
        (void)fputs("\n.fi\n", out);
    }
}

static void print_man(const struct ctl_command *commands, FILE *out) {
    (void)fputs(".\\\" SPDX-License-Identifier: Apache-2.0\n"
                ".\\\" Made from client/ctl/commands.c by config/generate.sh\n"
                ".TH ZIPCCLCTL 1\n.SH NAME\nzipcclctl \\- what zipccld does, and what it can do\n"
                ".SH SYNOPSIS\n.B zipcclctl\n.I COMMAND\n[\\fIOPTION\\fR]... [\\fIOPERAND\\fR]...\n"
                ".SH DESCRIPTION\nShows what the zipccld of this node does, has it change, and measures and predicts "
                "what it can do.\nAn option may be written \\-\\-name value or \\-\\-name=value.\n.SH COMMANDS\n",
                out);
    for (const struct ctl_command *c = commands; c->name; c++)
        man_command(c, out);
    (void)fputs(".SH EXIT STATUS\n", out);
#define MAN_EXIT(name, value, text) (void)fprintf(out, ".TP\n.B %d\n%s\n", value, text);
    CTL_EXITS(MAN_EXIT)
#undef MAN_EXIT
    (void)fputs(".SH ENVIRONMENT\n.TP\n.B ZIPCCL_SOCKET\nthe daemon's socket, where \\-\\-socket is not given\n"
                ".TP\n.B ZIPCCLD\nthe daemon's program, where it is not beside zipcclctl\n"
                ".SH SEE ALSO\n.BR zipccld (8)\n",
                out);
}

/* The first word of a command's name. */
static int first_word(const struct ctl_command *c) {
    return (int)strcspn(c->name, " ");
}

static bool same_family(const struct ctl_command *a, const struct ctl_command *b) {
    return first_word(a) == first_word(b) && !strncmp(a->name, b->name, (size_t)first_word(a));
}

static bool first_of_family(const struct ctl_command *commands, const struct ctl_command *c) {
    for (const struct ctl_command *p = commands; p < c; p++)
        if (same_family(p, c))
            return false;
    return true;
}

/* Second words of a family, a blank before each; nothing for a command of one word. */
static void second_words(const struct ctl_command *commands, const struct ctl_command *of, FILE *out) {
    for (const struct ctl_command *c = commands; c->name; c++)
        if (c->name[first_word(c)] && same_family(c, of))
            (void)fprintf(out, " %s", c->name + first_word(c) + 1);
}

static void print_bash(const struct ctl_command *commands, FILE *out) {
    (void)fputs("# SPDX-License-Identifier: Apache-2.0\n"
                "# Made from client/ctl/commands.c by config/generate.sh\n"
                "_zipcclctl() {\n"
                "    local word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} second='' options=''\n"
                "    COMPREPLY=()\n"
                "    if [ \"$COMP_CWORD\" = 1 ]; then\n        mapfile -t COMPREPLY < <(compgen -W '",
                out);
    for (const struct ctl_command *c = commands; c->name; c++)
        if (first_of_family(commands, c))
            (void)fprintf(out, "%.*s ", first_word(c), c->name);
    (void)fputs("--help --version' -- \"$word\")\n        return\n    fi\n    case $command in\n", out);
    for (const struct ctl_command *c = commands; c->name; c++) {
        if (!c->name[first_word(c)] || !first_of_family(commands, c))
            continue;
        (void)fprintf(out, "    %.*s) second='", first_word(c), c->name);
        second_words(commands, c, out);
        (void)fputs("' ;;\n", out);
    }
    (void)fputs("    esac\n    if [ -n \"$second\" ]; then\n        if [ \"$COMP_CWORD\" = 2 ]; then\n"
                "            mapfile -t COMPREPLY < <(compgen -W \"$second\" -- \"$word\")\n            return\n"
                "        fi\n        command=\"$command ${COMP_WORDS[2]}\"\n    fi\n    case $command in\n",
                out);
    for (const struct ctl_command *c = commands; c->name; c++) {
        (void)fprintf(out, "    '%s') options='", c->name);
        for (const struct ctl_option *o = c->options; o->name; o++)
            (void)fprintf(out, "--%s ", o->name);
        (void)fputs("--help' ;;\n", out);
    }
    (void)fputs("    esac\n    if [[ $word == -* ]]; then\n"
                "        mapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"$word\")\n    else\n"
                "        mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n    fi\n}\n"
                "complete -o filenames -F _zipcclctl zipcclctl\n",
                out);
}

/* Inside quotes of zsh, in a list of "name:text" or "--name[text]". */
static void zsh(FILE *out, const char *text) {
    for (; *text; text++) {
        if (*text == '\'')
            (void)fputs("'\\''", out);
        else if (strchr("[]:\\", *text))
            (void)fprintf(out, "\\%c", *text);
        else
            (void)fputc(*text, out);
    }
}

static void print_zsh(const struct ctl_command *commands, FILE *out) {
    (void)fputs("#compdef zipcclctl\n# SPDX-License-Identifier: Apache-2.0\n"
                "# Made from client/ctl/commands.c by config/generate.sh\n"
                "_zipcclctl() {\n    local -a commands\n    commands=(\n",
                out);
    for (const struct ctl_command *c = commands; c->name; c++) {
        if (!first_of_family(commands, c))
            continue;
        (void)fprintf(out, "        '%.*s:", first_word(c), c->name);
        if (c->name[first_word(c)])
            second_words(commands, c, out);
        else
            zsh(out, c->summary);
        (void)fputs("'\n", out);
    }
    (void)fputs("    )\n    if (( CURRENT == 2 )); then\n        _describe command commands\n        return\n    fi\n"
                "    local name=$words[2]\n    case $name in\n",
                out);
    for (const struct ctl_command *c = commands; c->name; c++) {
        if (!c->name[first_word(c)] || !first_of_family(commands, c))
            continue;
        (void)fprintf(out, "    %.*s)\n        if (( CURRENT == 3 )); then\n            compadd", first_word(c),
                      c->name);
        second_words(commands, c, out);
        (void)fputs("\n            return\n        fi\n        name=\"$name $words[3]\" ;;\n", out);
    }
    (void)fputs("    esac\n    case $name in\n", out);
    for (const struct ctl_command *c = commands; c->name; c++) {
        (void)fprintf(out, "    '%s')\n        _arguments", c->name);
        for (const struct ctl_option *o = c->options; o->name; o++) {
            (void)fprintf(out, " \\\n            '%s--%s%s[", o->repeats ? "*" : "", o->name, o->arg ? "=" : "");
            zsh(out, o->help);
            (void)fputc(']', out);
            if (o->arg) {
                (void)fputc(':', out);
                zsh(out, o->arg);
                (void)fputs(":_files", out);
            }
            (void)fputc('\'', out);
        }
        (void)fputs(" \\\n            '*:operand:_files' ;;\n", out);
    }
    (void)fputs("    esac\n}\n_zipcclctl \"$@\"\n", out);
}

bool generate_print(const char *name, const struct ctl_command *commands, FILE *out) {
    if (!strcmp(name, "man"))
        print_man(commands, out);
    else if (!strcmp(name, "completion-bash"))
        print_bash(commands, out);
    else if (!strcmp(name, "completion-zsh"))
        print_zsh(commands, out);
    else
        return false;
    return true;
}

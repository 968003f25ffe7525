/* SPDX-License-Identifier: Apache-2.0
 *
 * From the tables of commands and options to parsing, help, usage errors and completion data.
 */
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"
#include "client/ctl/generate.h"
#include "client/include/zipccl.h"

#define MAX_WORD     64
#define MAX_COMMANDS 32

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

/* Levenshtein distance; words longer than MAX_WORD are far from everything. */
static size_t distance(const char *a, const char *b) {
    size_t na = strlen(a), nb = strlen(b), row[MAX_WORD + 1];
    if (na > MAX_WORD || nb > MAX_WORD)
        return SIZE_MAX;
    for (size_t j = 0; j <= nb; j++)
        row[j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t above = row[j];
            row[j] = least(least(row[j] + 1, row[j - 1] + 1), diagonal + (a[i - 1] != b[j - 1]));
            diagonal = above;
        }
    }
    return row[nb];
}

const char *ctl_nearest(const char *word, const char *const *names, size_t n) {
    size_t best = SIZE_MAX;
    const char *nearest = NULL;
    for (size_t i = 0; i < n; i++) {
        size_t d = distance(word, names[i]);
        if (d < best) {
            best = d;
            nearest = names[i];
        }
    }
    return best <= 1 + strlen(word) / 4 ? nearest : NULL;
}

static void complain(const struct ctl_args *args, const char *format, va_list ap) {
    (void)fprintf(stderr, "zipcclctl%s%s: ", args && args->command ? " " : "",
                  args && args->command ? args->command->name : "");
    (void)vfprintf(stderr, format, ap);
    (void)fputc('\n', stderr);
}

enum ctl_exit ctl_usage(const struct ctl_args *args, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    complain(args, format, ap);
    va_end(ap);
    if (args && args->command)
        (void)fprintf(stderr, "Try: zipcclctl %s --help\n", args->command->name);
    else
        (void)fprintf(stderr, "Try: zipcclctl --help\n");
    return CTL_USAGE;
}

enum ctl_exit ctl_fail(const struct ctl_args *args, enum ctl_exit code, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    complain(args, format, ap);
    va_end(ap);
    return code;
}

static int option_index(const struct ctl_command *command, const char *name, size_t length) {
    for (int i = 0; command->options[i].name; i++)
        if (strlen(command->options[i].name) == length && !memcmp(command->options[i].name, name, length))
            return i;
    return -1;
}

const char *ctl_get(const struct ctl_args *args, const char *name) {
    int i = option_index(args->command, name, strlen(name));
    if (i < 0) /* the command asks for an option that its table lacks: a bug, found by the first run */
        abort();
    return args->values[i] ? args->values[i] : args->command->options[i].initial;
}

bool ctl_has(const struct ctl_args *args, const char *name) {
    int i = option_index(args->command, name, strlen(name));
    if (i < 0)
        abort();
    return args->values[i] != NULL;
}

static void print_exits(FILE *out) {
    (void)fprintf(out, "\nExit codes:\n");
#define CTL_EXIT_HELP(name, value, text) (void)fprintf(out, "  %-3d %s\n", value, text);
    CTL_EXITS(CTL_EXIT_HELP)
#undef CTL_EXIT_HELP
}

static void help_global(const struct ctl_command *commands, FILE *out) {
    (void)fprintf(out, "Usage: zipcclctl COMMAND [OPTION]... [OPERAND]...\n"
                       "Shows what zipccl does, and measures what it can do.\n\nCommands:\n");
    for (const struct ctl_command *c = commands; c->name; c++)
        (void)fprintf(out, "  %-18s %s\n", c->name, c->summary);
    (void)fprintf(out, "\n  zipcclctl COMMAND --help   explains a command\n"
                       "  zipcclctl --version        prints the version\n"
                       "  zipcclctl --table          prints this table for programs\n"
                       "  zipcclctl --man, --completion-bash, --completion-zsh   print what is made from it\n");
    print_exits(out);
}

static void help_command(const struct ctl_command *c, FILE *out) {
    (void)fprintf(out, "Usage: zipcclctl %s [OPTION]...%s%s\n%s\n\nOptions:\n", c->name, c->operands ? " " : "",
                  c->operands ? c->operands : "", c->summary);
    for (const struct ctl_option *o = c->options; o->name; o++) {
        char left[MAX_WORD];
        (void)snprintf(left, sizeof left, "--%s%s%s%s", o->name, o->arg ? " " : "", o->arg ? o->arg : "",
                       o->repeats ? "..." : "");
        (void)fprintf(out, "  %-24s %s", left, o->help);
        if (o->initial)
            (void)fprintf(out, " (default %s)", o->initial);
        (void)fputc('\n', out);
    }
    (void)fprintf(out, "  %-24s this text\n", "--help");
    if (c->details)
        (void)fprintf(out, "\n%s\n", c->details);
    print_exits(out);
}

/* One line a command or option: command, kind, name, argument, help. */
static void print_table(const struct ctl_command *commands, FILE *out) {
    for (const struct ctl_command *c = commands; c->name; c++) {
        (void)fprintf(out, "%s\tcommand\t\t%s\t%s\n", c->name, c->operands ? c->operands : "", c->summary);
        for (const struct ctl_option *o = c->options; o->name; o++)
            (void)fprintf(out, "%s\toption\t--%s\t%s\t%s\n", c->name, o->name, o->arg ? o->arg : "", o->help);
    }
}

/* Finds the command in argv[1..]; *words is how many of them its name took. */
static const struct ctl_command *find_command(const struct ctl_command *commands, int argc, char **argv, int *words) {
    for (const struct ctl_command *c = commands; c->name; c++) {
        const char *space = strchr(c->name, ' ');
        if (!space) {
            *words = 1;
            if (!strcmp(argv[1], c->name))
                return c;
        } else if (argc > 2) {
            size_t first = (size_t)(space - c->name);
            *words = 2;
            if (strlen(argv[1]) == first && !memcmp(argv[1], c->name, first) && !strcmp(argv[2], space + 1))
                return c;
        }
    }
    return NULL;
}

static enum ctl_exit unknown_command(const struct ctl_command *commands, int argc, char **argv) {
    const char *names[MAX_COMMANDS];
    size_t n = 0, length = strlen(argv[1]);
    char word[2 * MAX_WORD], family[MAX_WORD * 4] = "";
    for (const struct ctl_command *c = commands; c->name && n < MAX_COMMANDS; c++) {
        names[n++] = c->name;
        if (!strncmp(c->name, argv[1], length) && c->name[length] == ' ') {
            size_t used = strlen(family);
            (void)snprintf(family + used, sizeof family - used, "%s\"%s\"", used ? " or " : "", c->name);
        }
    }
    (void)snprintf(word, sizeof word, "%s%s%s", argv[1], *family && argc > 2 ? " " : "",
                   *family && argc > 2 ? argv[2] : "");
    const char *near = ctl_nearest(word, names, n);
    if (near)
        return ctl_usage(NULL, "no command \"%s\"; did you mean \"%s\"?", word, near);
    if (*family)
        return ctl_usage(NULL, "\"%s\" is not complete: %s", argv[1], family);
    return ctl_usage(NULL, "no command \"%s\"", word);
}

static enum ctl_exit unknown_option(const struct ctl_args *args, const char *word) {
    const char *names[CTL_MAX_OPTIONS];
    size_t n = 0;
    for (const struct ctl_option *o = args->command->options; o->name && n < CTL_MAX_OPTIONS; o++)
        names[n++] = o->name;
    const char *near = ctl_nearest(word + 2, names, n);
    if (near)
        return ctl_usage(args, "no option %s; did you mean --%s?", word, near);
    return ctl_usage(args, "no option %s", word);
}

/* One "--name", "--name=value" or "--name value"; *i moves past a value of its own. */
static enum ctl_exit parse_option(struct ctl_args *args, int argc, char **argv, int *i) {
    const char *word = argv[*i], *name = word + 2, *equals = strchr(name, '=');
    size_t length = equals ? (size_t)(equals - name) : strlen(name);
    int at = option_index(args->command, name, length);
    if (at < 0)
        return unknown_option(args, word);
    const struct ctl_option *o = &args->command->options[at];
    const char *value = "";
    if (!o->arg && equals)
        return ctl_usage(args, "--%s takes no value", o->name);
    if (o->arg) {
        if (!equals && *i + 1 >= argc)
            return ctl_usage(args, "--%s needs %s", o->name, o->arg);
        value = equals ? equals + 1 : argv[++*i];
    }
    if (o->repeats) {
        if (args->nrepeated == CTL_MAX_REPEATS)
            return ctl_usage(args, "--%s at most %d times", o->name, CTL_MAX_REPEATS);
        args->repeated[args->nrepeated++] = value;
    } else if (args->values[at]) {
        return ctl_usage(args, "--%s is given twice", o->name);
    }
    args->values[at] = value;
    return CTL_OK;
}

enum ctl_exit ctl_main(const struct ctl_command *commands, int argc, char **argv) {
    struct ctl_args args = {0};
    int words = 0;
    bool only_operands = false;
    if (argc < 2) {
        help_global(commands, stderr);
        return CTL_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        help_global(commands, stdout);
        return CTL_OK;
    }
    if (!strcmp(argv[1], "--version")) {
        printf("zipcclctl %d.%d.%d\n", ZIPCCL_MAJOR, ZIPCCL_MINOR, ZIPCCL_PATCH);
        return CTL_OK;
    }
    if (!strcmp(argv[1], "--table")) {
        print_table(commands, stdout);
        return CTL_OK;
    }
    if (!strncmp(argv[1], "--", 2) && generate_print(argv[1] + 2, commands, stdout))
        return CTL_OK;
    args.command = find_command(commands, argc, argv, &words);
    if (!args.command)
        return unknown_command(commands, argc, argv);
    args.operands = argv; /* operands move to the front, over words that were read already */
    for (int i = 1 + words; i < argc; i++) {
        if (only_operands || argv[i][0] != '-' || !argv[i][1]) {
            args.operands[args.noperands++] = argv[i];
        } else if (!strcmp(argv[i], "--")) {
            only_operands = true;
        } else if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            help_command(args.command, stdout);
            return CTL_OK;
        } else if (argv[i][1] != '-') {
            return ctl_usage(&args, "no option %s; options have two dashes", argv[i]);
        } else {
            enum ctl_exit rc = parse_option(&args, argc, argv, &i);
            if (rc != CTL_OK)
                return rc;
        }
    }
    if (args.noperands && !args.command->operands)
        return ctl_usage(&args, "takes no operand, got \"%s\"", args.operands[0]);
    if (!args.noperands && args.command->needs_operand)
        return ctl_usage(&args, "needs %s", args.command->operands);
    enum ctl_exit rc = args.command->run(&args);
    if (fflush(stdout) != 0 && rc == CTL_OK)
        rc = ctl_fail(&args, CTL_FAILED, "cannot write to standard output");
    return rc;
}

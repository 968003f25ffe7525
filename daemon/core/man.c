/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints the manual page. See man.h.
 */
#include "daemon/core/man.h"

#include <stdbool.h>

#include "daemon/core/admin.h"
#include "daemon/core/config.h"

/* Text for roff: no dash becomes a hyphen, no line a request. */
static void roff(FILE *out, const char *text) {
    bool start = true;
    for (; *text != '\0'; text++) {
        if (start && (*text == '.' || *text == '\''))
            fputs("\\&", out);
        start = *text == '\n';
        if (*text == '-')
            fputs("\\-", out);
        else if (*text == '\\')
            fputs("\\e", out);
        else
            fputc(*text, out);
    }
}

static void man_key(const struct config_key *key, FILE *out) {
    fprintf(out, ".TP\n.B %s\n", key->name);
    roff(out, key->doc);
    if (key->allowed != NULL) {
        fputs(" One of:", out);
        for (const char *const *a = key->allowed; *a != NULL; a++) {
            fputs(a == key->allowed ? " " : ", ", out);
            roff(out, *a);
        }
        fputc('.', out);
    }
    fputs("\nDefault: ", out);
    roff(out, key->fallback[0] != '\0' ? key->fallback : "empty");
    fprintf(out, ". %s\n", key->reload ? "Changes on reload." : "Changes at the next start.");
}

void man_print(const struct main_option *options, size_t n, FILE *out) {
    fputs(".\\\" SPDX-License-Identifier: Apache-2.0\n"
          ".\\\" Made from the tables of daemon/core by config/generate.sh\n"
          ".TH ZIPCCLD 8\n.SH NAME\nzipccld \\- compressed collectives for the trainers of a node\n"
          ".SH SYNOPSIS\n.B zipccld\n[\\fIOPTION\\fR]...\n"
          ".SH DESCRIPTION\nOne runs on each node. Trainers reach it through libzipccl and a Unix socket.\n"
          ".SH OPTIONS\n",
          out);
    for (size_t i = 0; i < n; i++) {
        fprintf(out, ".TP\n.BR \\-%c , \\~ \\-\\-", options[i].letter);
        roff(out, options[i].name);
        if (options[i].argument != NULL)
            fprintf(out, " \" \\fI%s\\fR\"", options[i].argument);
        fputc('\n', out);
        roff(out, options[i].help);
        fputc('\n', out);
    }
    fputs(".SH CONFIGURATION\nLines \"key = value\" in the section [" CONFIG_SECTION "] of the file; an error in any "
          "refuses it as a whole.\n",
          out);
    for (size_t i = 0; i < config_num_keys; i++)
        man_key(&config_keys[i], out);
    fputs(".SH ADMIN REQUESTS\nRoot and the user as which zipccld runs may ask, through zipcclctl:\n", out);
    for (size_t i = 0; i < admin_num_commands; i++)
        fprintf(out, ".TP\n.B %s\n%s\n", admin_commands[i].name, admin_commands[i].does);
    fputs(".SH SIGNALS\nSIGTERM or SIGINT drains and ends, a second one ends at once; SIGHUP reads the configuration "
          "again.\n.SH EXIT STATUS\n0 ok, 1 failed, 2 wrong usage or configuration.\n"
          ".SH FILES\n" CONFIG_PATH "\n.SH SEE ALSO\n.BR zipcclctl (1)\n",
          out);
}

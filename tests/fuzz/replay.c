/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a fuzz target over the files of its corpus, and over mutations of them, without libFuzzer:
 * so every test run covers what fuzzing found, with any compiler.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUTATIONS        200
#define REPLAY_MAX_INPUT (1u << 20)

static uint64_t rng = 0x9e3779b97f4a7c15u;

static uint64_t next_random(void) {
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return rng;
}

static void run_one(const uint8_t *data, size_t size) {
    /* An exact copy on the heap, so that a sanitizer sees each overrun. */
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy)
        exit(2);
    memcpy(copy, data, size);
    (void)LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static void mutate_and_run(uint8_t *data, size_t size) {
    for (int i = 0; i < MUTATIONS && size; i++) {
        size_t at = next_random() % size;
        uint8_t old = data[at];
        size_t cut = next_random() % 4 ? size : next_random() % size;
        data[at] = (uint8_t)next_random();
        run_one(data, cut);
        if (next_random() % 2)
            data[at] = old;
    }
}

int main(int argc, char **argv) {
    static uint8_t data[REPLAY_MAX_INPUT];
    size_t files = 0;
    if (argc != 2) {
        (void)fprintf(stderr, "usage: %s CORPUS_DIR\n", argv[0]);
        return 2;
    }
    DIR *dir = opendir(argv[1]);
    if (!dir) {
        perror(argv[1]);
        return 1;
    }
    for (struct dirent *e; (e = readdir(dir));) {
        char path[4096];
        if (e->d_name[0] == '.')
            continue;
        (void)snprintf(path, sizeof path, "%s/%s", argv[1], e->d_name);
        FILE *f = fopen(path, "rb");
        if (!f)
            continue;
        size_t size = fread(data, 1, sizeof data, f);
        (void)fclose(f);
        run_one(data, size);
        mutate_and_run(data, size);
        files++;
    }
    (void)closedir(dir);
    printf("%zu inputs, %d mutations each\n", files, MUTATIONS);
    return files ? 0 : 1;
}

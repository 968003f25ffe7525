/* SPDX-License-Identifier: Apache-2.0
 *
 * Profiles: what is learned is found again, by a new switcher and by a new daemon; and what is no profile is not used.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/core/profile_store.h"
#include "tests/unit/executor/switcher_sim.h"

#define MIB (1ull << 20)

static struct sim g_sim;
static char g_dir[] = "/tmp/zipccl-profile-XXXXXX";

/* What is in force for a want. */
static const struct switch_candidate *in_force(const struct switcher *s, const struct switch_want *w) {
    for (uint32_t i = 0; i < s->nkinds; i++) {
        if (s->kinds[i].want.op == w->op && s->kinds[i].want.bytes == w->bytes)
            return &s->kinds[i].candidates[s->kinds[i].chosen];
    }
    return NULL;
}

/* A new switcher begins where the old one was, on all nodes alike. */
static void test_recall(void **state) {
    (void)state;
    static const zipcclOp_t ops[] = {zipcclOpAllGather, zipcclOpReduceScatter, zipcclOpAllReduce};
    struct switch_prior learned[PROFILE_PRIORS], again[PROFILE_PRIORS];
    struct switch_choice choice;
    struct switch_want want[3];
    sim_init(&g_sim, 1, 3, 1);
    for (unsigned k = 0; k < 3; k++) {
        want[k] = sim_want(ops[k], MIB << k);
        for (unsigned i = 0; i < 300; i++)
            (void)sim_run(&g_sim, &want[k], &choice);
    }
    uint32_t n = switcher_learned(&g_sim.nodes[0], learned, PROFILE_PRIORS);
    assert_int_equal(n, 3);
    assert_int_equal(switcher_learned(&g_sim.nodes[2], again, PROFILE_PRIORS), 3);
    assert_memory_equal(learned, again, sizeof learned[0] * 3); /* all have learned the same */
    assert_int_equal(switcher_learned(&g_sim.nodes[0], again, 2), 2);
    sim_free(&g_sim);
    /* Whatever the model would begin with: the last kind that it considers is asked for. */
    for (unsigned k = 0; k < 3; k++) {
        sim_init(&g_sim, 1, 3, 1);
        (void)sim_run(&g_sim, &want[k], &choice);
        const struct switch_kind *kind = &g_sim.nodes[0].kinds[0];
        for (uint32_t i = 0; i < kind->ncandidates; i++) {
            if (!kind->candidates[i].kept)
                continue;
            learned[k].chosen_arm = kind->candidates[i].arm;
            learned[k].chosen_codec = kind->candidates[i].codec;
        }
        learned[k].nothers = 0;
        sim_free(&g_sim);
    }
    sim_init(&g_sim, 1, 3, 1);
    for (unsigned i = 0; i < 3; i++)
        switcher_recall(&g_sim.nodes[i], learned, n);
    for (unsigned k = 0; k < 3; k++) {
        (void)sim_run(&g_sim, &want[k], &choice);
        for (unsigned i = 0; i < 3; i++) {
            const struct switch_candidate *c = in_force(&g_sim.nodes[i], &want[k]);
            assert_non_null(c);
            assert_int_equal(c->codec, learned[k].chosen_codec);
            assert_int_equal(c->arm, learned[k].chosen_arm);
        }
    }
    /* It is where they begin, no more: the clock goes on to decide. */
    for (unsigned i = 0; i < 300; i++)
        (void)sim_run(&g_sim, &want[0], &choice);
    assert_int_equal(switcher_learned(&g_sim.nodes[0], again, PROFILE_PRIORS) >= 1, 1);
    sim_free(&g_sim);
}

/* What was slower by far is not measured at first, what the model does not know of is not taken up. */
static void test_recall_others(void **state) {
    (void)state;
    struct switch_choice choice;
    struct switch_want want = sim_want(zipcclOpAllGather, 4 * MIB);
    struct switch_prior prior = {
        .op = zipcclOpAllGather,
        .dtype = (uint8_t)want.dtype,
        .size = 22,
        .codec = (uint8_t)want.codec,
        .arm = (uint8_t)want.arm,
        .chosen_arm = (uint8_t)want.arm,
        .chosen_codec = zipcclCodecTier,
        .nothers = 2,
        .others = {{(uint8_t)want.arm, zipcclCodecRaw, 1500}, {(uint8_t)want.arm, zipcclCodecTop7, 2100}}};
    sim_init(&g_sim, 1, 2, 1);
    for (unsigned i = 0; i < 2; i++)
        switcher_recall(&g_sim.nodes[i], &prior, 1);
    for (unsigned i = 0; i < 50; i++) {
        (void)sim_run(&g_sim, &want, &choice);
        assert_int_equal(choice.codec, zipcclCodecTier);
    }
    /* They are remembered as such, though nobody measured them. */
    struct switch_prior again;
    assert_int_equal(switcher_learned(&g_sim.nodes[0], &again, 1), 1);
    assert_int_equal(again.nothers, 2);
    assert_in_range(again.others[0].ratio, 1490, 1510);
    assert_in_range(again.others[1].ratio, 2080, 2120);
    sim_free(&g_sim);
    sim_init(&g_sim, 1, 2, 1);
    prior.chosen_arm = zipcclArmFlat;
    for (unsigned i = 0; i < 2; i++)
        switcher_recall(&g_sim.nodes[i], &prior, 1);
    (void)sim_run(&g_sim, &want, &choice);
    const struct switch_kind *k = &g_sim.nodes[0].kinds[0];
    uint32_t kept = 0;
    for (uint32_t i = 0; i < k->ncandidates; i++)
        kept += k->candidates[i].kept;
    assert_true(kept > 1);
    sim_free(&g_sim);
}

static void make(struct profile *p, uint64_t key, uint32_t n, uint8_t first_size) {
    struct switch_prior learned[PROFILE_PRIORS];
    struct model model;
    model_init(&model);
    memset(learned, 0, sizeof learned);
    for (uint32_t i = 0; i < n; i++)
        learned[i] = (struct switch_prior){.op = (uint8_t)(i % zipcclNumOps),
                                           .dtype = (uint8_t)(i / zipcclNumOps),
                                           .size = first_size,
                                           .codec = zipcclCodecAuto,
                                           .arm = zipcclArmAuto};
    profile_make(p, NULL, key, 1000000000, &model, learned, n);
}

static void test_every_byte(void **state) {
    (void)state;
    struct profile p, out;
    const char *why;
    make(&p, 7, 30, 20);
    assert_true(profile_read(&p, sizeof p, &out, &why));
    assert_memory_equal(&p, &out, sizeof p);
    uint8_t *bytes = (uint8_t *)&p;
    for (size_t i = 0; i < sizeof p; i++) {
        bytes[i] ^= 0x41;
        assert_false(profile_read(bytes, sizeof p, &out, &why));
        assert_non_null(why);
        bytes[i] ^= 0x41;
        assert_false(profile_read(bytes, i, &out, &why));
    }
}

/* Numbers that are out of range are seen even where the hash is right: whoever wrote it. */
static void test_ranges(void **state) {
    (void)state;
    struct profile p, out;
    struct model model;
    const char *why;
    model_init(&model);
    for (unsigned i = 0; i < 12; i++) {
        struct switch_prior prior = {.codec = zipcclCodecAuto, .arm = zipcclArmAuto};
        uint64_t link = i == 11 ? 0 : 1000;
        uint8_t *fields[] = {
            &prior.op,         &prior.dtype,      &prior.size,         &prior.codec,   &prior.arm,
            &prior.flat,       &prior.chosen_arm, &prior.chosen_codec, &prior.nothers, &prior.others[0].codec,
            &prior.reserved[2]};
        if (i < 11)
            *fields[i] = 200;
        if (i == 9)
            prior.nothers = 1;
        profile_make(&p, NULL, 1, link, &model, &prior, 1);
        assert_false(profile_read(&p, sizeof p, &out, &why));
        assert_non_null(strstr(why, i == 11 ? "number" : "choice"));
    }
}

static void test_merge(void **state) {
    (void)state;
    struct profile first, second, all;
    struct model model;
    make(&first, 7, 60, 20);
    make(&second, 7, 30, 21);
    model_init(&model);
    model.fraction[zipcclCodecTier][zipcclBfloat16] = 333;
    profile_make(&all, &first, 7, 1000000000, &model, second.priors, 30);
    assert_int_equal(all.npriors, PROFILE_PRIORS); /* the new ones, and as many of the old ones as there is room for */
    assert_memory_equal(all.priors, second.priors, 30 * sizeof all.priors[0]);
    assert_memory_equal(&all.priors[30], first.priors, 50 * sizeof all.priors[0]);
    profile_make(&second, &all, 7, 1000000000, &model, second.priors, 30); /* the same again */
    assert_memory_equal(&second, &all, sizeof all);
    model_init(&model);
    profile_apply(&all, &model);
    assert_int_equal(model.fraction[zipcclCodecTier][zipcclBfloat16], 333);
    assert_true(profile_fits(&all, 1000000000) && profile_fits(&all, 1200000000) && profile_fits(&all, 850000000));
    assert_false(profile_fits(&all, 1300000000) || profile_fits(&all, 700000000) || profile_fits(&all, 0));
}

static unsigned count_files(void) {
    unsigned n = 0;
    DIR *dir = opendir(g_dir);
    assert_non_null(dir);
    for (const struct dirent *e; (e = readdir(dir));)
        n += e->d_name[0] != '.';
    closedir(dir);
    return n;
}

static void put_file(const char *name, const void *bytes, size_t n) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", g_dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && write(fd, bytes, n) == (ssize_t)n);
    close(fd);
}

static void close_store(struct profile_store *s, uv_loop_t *loop) {
    assert_int_equal(uv_run(loop, UV_RUN_DEFAULT), 0);
    profile_store_close(s);
}

static void test_store(void **state) {
    (void)state;
    uv_loop_t loop;
    struct profile_store s;
    struct profile p;
    assert_int_equal(uv_loop_init(&loop), 0);
    profile_store_open(&s, &loop, g_dir);
    assert_null(profile_store_find(&s, 1));
    for (uint64_t key = 1; key <= 10; key++) {
        make(&p, key, (uint32_t)key, 20);
        profile_store_put(&s, &p);
        make(&p, key, (uint32_t)key, 21); /* the last one counts, though the first may be under way */
        profile_store_put(&s, &p);
    }
    close_store(&s, &loop);
    assert_int_equal(count_files(), 10);
    /* What others put there, and what a write that was cut off left, is not used. */
    make(&p, 100, 5, 20);
    put_file("profile-0000000000000065", &p, sizeof p);     /* of another key */
    put_file("profile-0000000000000066", &p, sizeof p - 1); /* cut */
    put_file("profile-0000000000000064.new", &p, sizeof p);
    put_file("profile-64", &p, sizeof p);
    put_file("notes", "hello", 5);
    p.npriors++;
    put_file("profile-0000000000000064", &p, sizeof p); /* changed */
    char path[128];
    snprintf(path, sizeof path, "%s/profile-0000000000000067", g_dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    profile_store_open(&s, &loop, g_dir);
    for (uint64_t key = 1; key <= 10; key++) {
        const struct profile *found = profile_store_find(&s, key);
        assert_non_null(found);
        make(&p, key, (uint32_t)key, 21);
        assert_memory_equal(found, &p, sizeof p);
    }
    for (uint64_t key = 100; key <= 103; key++)
        assert_null(profile_store_find(&s, key));
    assert_int_equal(count_files(), 16); /* what was cut off is gone, the others are left alone */
    /* There are never more than so many. */
    for (uint64_t key = 1000; key < 1000 + PROFILE_STORE_MAX + 8; key++) {
        make(&p, key, 3, 20);
        profile_store_put(&s, &p);
        assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    }
    assert_non_null(profile_store_find(&s, 1000 + PROFILE_STORE_MAX + 7));
    assert_null(profile_store_find(&s, 1));
    close_store(&s, &loop);
    assert_int_equal(count_files(), PROFILE_STORE_MAX + 6);
    /* No directory, and one that is no directory. */
    profile_store_open(&s, &loop, "/nonexistent/zipccl");
    profile_store_put(&s, &p);
    assert_null(profile_store_find(&s, p.key));
    close_store(&s, &loop);
    snprintf(path, sizeof path, "%s/notes", g_dir);
    profile_store_open(&s, &loop, path);
    assert_int_equal(s.dir, -1);
    close_store(&s, &loop);
    assert_int_equal(uv_loop_close(&loop), 0);
}

static int make_dir(void **state) {
    (void)state;
    return mkdtemp(g_dir) != NULL ? 0 : -1;
}

static int remove_dir(void **state) {
    (void)state;
    DIR *dir = opendir(g_dir);
    for (const struct dirent *e; dir != NULL && (e = readdir(dir));)
        (void)unlinkat(dirfd(dir), e->d_name, 0);
    if (dir != NULL)
        closedir(dir);
    return rmdir(g_dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recall),     cmocka_unit_test(test_recall_others),
        cmocka_unit_test(test_every_byte), cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_merge),      cmocka_unit_test_setup_teardown(test_store, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// READDIR and READDIRPLUS.
#include "client.h"

#include <stdio.h>
#include <stdlib.h>

#define NAMES 300
static const char zero[NFS3_COOKIEVERFSIZE];

struct seen {
    int times[NAMES], dot, dotdot, strange;
};

static void name_of(int i, char *name, size_t room) {
    // Of all lengths up to some sixty.
    snprintf(name, room, "%03d-%.*s", i, i % 57, "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz0123456789");
}

static void note(struct seen *seen, const struct entry *entry) {
    char name[128];
    int i = atoi(entry->name);
    if (strcmp(entry->name, ".") == 0) seen->dot++;
    else if (strcmp(entry->name, "..") == 0) seen->dotdot++;
    else {
        name_of(i, name, sizeof name);
        if (i >= 0 && i < NAMES && strcmp(entry->name, name) == 0) seen->times[i]++;
        else seen->strange++;
    }
}

static bool each_once(const struct seen *seen) {
    for (int i = 0; i < NAMES; i++)
        if (seen->times[i] != 1) return false;
    return seen->dot == 1 && seen->dotdot == 1;
}

// Lists a directory in pieces, `plus` or not; between two pieces, `meddle` may change it.
static void list(H dir, bool plus, uint32_t dircount, uint32_t count, void (*meddle)(H dir, int round), struct seen *seen) {
    const char *what = plus ? "READDIRPLUS" : "READDIR";
    char verifier[NFS3_COOKIEVERFSIZE];
    memcpy(verifier, zero, sizeof verifier);
    cookie3 cookie = 0;
    int rounds = 0, told = 0, handles = 0;
    bool in_bounds = true;
    memset(seen, 0, sizeof *seen);
    for (;; rounds++) {
        R r = plus ? read_dir_plus(dir, cookie, verifier, dircount, count) : read_dir(dir, cookie, verifier, count);
        if (r->lost || r->status != NFS3_OK || rounds > 2000) {
            check(false, "%s of %u bytes, piece %d: %s", what, count, rounds, r->lost ? r->lost : status_name(r->status));
            return;
        }
        in_bounds &= r->listing_bytes <= count;
        memcpy(verifier, r->verifier, sizeof verifier);
        for (size_t i = 0; i < r->entries_len; i++) {
            struct entry *entry = &r->entries[i];
            note(seen, entry);
            cookie = entry->cookie;
            told += plus && entry->attr.attributes_follow && entry->attr.post_op_attr_u.attributes.fileid == entry->fileid;
            handles += plus && entry->has_handle;
        }
        if (r->eof) break;
        if (!check(r->entries_len > 0, "%s: a piece that is not the last has an entry", what)) return;
        if (meddle) meddle(dir, rounds);
    }
    check(in_bounds, "%s of %u bytes: no piece is larger", what, count);
    if (plus && !meddle) promise(told >= NAMES + 1 && handles >= NAMES + 1, "%s tells attributes and handles", what);
}

static void test_pieces(H dir) {
    static const uint32_t counts[] = {256, 512, 1000, 4096, 65536, 1 << 20};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        struct seen seen;
        list(dir, false, 0, counts[i], NULL, &seen);
        check(each_once(&seen) && !seen.strange, "READDIR of %u bytes gives every name once", counts[i]);
        // With attributes and handles, an entry may need more.
        uint32_t count = counts[i] < 512 ? 512 : counts[i];
        list(dir, true, counts[i] / 4, count, NULL, &seen);
        check(each_once(&seen) && !seen.strange, "READDIRPLUS of %u bytes, %u of names, gives every name once", count,
              counts[i] / 4);
    }
}

static void test_entries(H dir) {
    R r = read_dir(dir, 0, zero, 1 << 16);
    OK(r, "at once");
    fattr3 now = attr_of(dir);
    check(r->attr.attributes_follow && same_attr(&r->attr.post_op_attr_u.attributes, &now), "READDIR tells the attributes");
    char verifier[NFS3_COOKIEVERFSIZE];
    memcpy(verifier, r->verifier, sizeof verifier);
    size_t len = r->entries_len;
    struct entry *entries = calloc(len, sizeof *entries);
    need(entries != NULL, "memory");
    memcpy(entries, r->entries, len * sizeof *entries);
    int right = 0, resumed = 0, tried = 0;
    for (size_t i = 0; i < len; i += 7) {
        tried++;
        r = lookup(dir, entries[i].name);
        right += !r->lost && r->status == NFS3_OK && attr_of(&r->handle).fileid == entries[i].fileid;
        r = read_dir(dir, entries[i].cookie, verifier, 4096);
        bool last = i + 1 == len;
        resumed += !r->lost && r->status == NFS3_OK &&
                   (last ? r->entries_len == 0 && r->eof
                         : r->entries_len > 0 && strcmp(r->entries[0].name, entries[i + 1].name) == 0);
    }
    check(right == tried, "the numbers are those of the files: %d of %d", right, tried);
    check(resumed == tried, "any cookie can be gone on from: %d of %d", resumed, tried);
    r = read_dir_plus(dir, 0, zero, 8192, 1 << 16);
    OK(r, "of much at once");
    tried = right = 0;
    R plus = r;
    for (size_t i = 0; i < plus->entries_len && i < 20; i++) {
        if (!plus->entries[i].has_handle || !plus->entries[i].attr.attributes_follow) continue;
        tried++;
        if (strcmp(plus->entries[i].name, "..") == 0) {
            right++;
            continue;
        }
        fattr3 a = attr_of(&plus->entries[i].handle);
        right += same_attr(&a, &plus->entries[i].attr.post_op_attr_u.attributes);
    }
    check(right == tried, "the attributes and handles are those of the files: %d of %d", right, tried);

    // Cookies that are none.
    char other[NFS3_COOKIEVERFSIZE];
    memcpy(other, verifier, sizeof other);
    other[3] ^= 0x55;
    PROMISED(read_dir(dir, entries[10].cookie, other, 4096), "with another verifier", NFS3ERR_BAD_COOKIE);
    PROMISED(read_dir_plus(dir, entries[10].cookie, other, 1024, 4096), "with another verifier", NFS3ERR_BAD_COOKIE);
    // Too little for one entry.
    EXPECT(read_dir(dir, 0, zero, 8), "of 8 bytes", NFS3ERR_TOOSMALL);
    EXPECT(read_dir(dir, 0, zero, 0), "of no bytes", NFS3ERR_TOOSMALL);
    EXPECT(read_dir_plus(dir, 0, zero, 8, 8), "of 8 bytes", NFS3ERR_TOOSMALL);
    EXPECT(read_dir_plus(dir, 0, zero, 1024, 100), "of 100 bytes", NFS3ERR_TOOSMALL);
    PROMISED(read_dir(dir, 1ULL << 63, verifier, 4096), "with a cookie that no reply gave", NFS3_OK, NFS3ERR_BAD_COOKIE);
    free(entries);
}

// Takes away every other name that is divisible by three, behind and before where the listing is, and makes others.
static void meddle(H dir, int round) {
    char name[128];
    for (int i = round * 3; i < NAMES && i < round * 3 + 3; i++) {
        if (i % 3) continue;
        name_of(round % 2 ? NAMES - 3 - i : i, name, sizeof name);
        remove_file(dir, name);
        snprintf(name, sizeof name, "new-%d", round);
        create(dir, name, GUARDED, set_nothing());
    }
}

void test_listing(void) {
    part("listing");
    struct handle empty = new_dir(&top, "empty", 0755), dir = new_dir(&top, "listed", 0755);
    R r = read_dir(&empty, 0, zero, 4096);
    OK(r, "of an empty directory");
    bool dots = r->entries_len == 2 && r->eof && strcmp(r->entries[0].name, ".") == 0 && strcmp(r->entries[1].name, "..") == 0;
    promise(dots, "an empty directory has . and .. alone");
    if (dots)
        check(r->entries[0].fileid == attr_of(&empty).fileid && r->entries[1].fileid == attr_of(&top).fileid,
              "their numbers are right");
    char name[128];
    for (int i = 0; i < NAMES; i++) {
        name_of(i, name, sizeof name);
        new_file(&dir, name, "");
    }
    test_pieces(&dir);
    test_entries(&dir);
    struct seen seen;
    list(&dir, false, 0, 512, meddle, &seen);
    bool stayed = true, twice = false;
    for (int i = 0; i < NAMES; i++) {
        if (i % 3) stayed &= seen.times[i] == 1;
        twice |= seen.times[i] > 1;
    }
    check(stayed && !twice, "names that stay are listed once while others come and go");
    EXPECT(remove_dir(&top, "empty"), "of the empty directory", NFS3_OK);
    EXPECT(read_dir(&empty, 0, zero, 4096), "of a directory that was removed", NFS3ERR_STALE);
}

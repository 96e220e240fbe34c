// READ, WRITE, COMMIT.
#include "client.h"

#include <stdio.h>
#include <stdlib.h>

static bool holds(H file, uint64_t offset, const char *wanted, size_t len) {
    R r = read_from(file, offset, (uint32_t)len);
    return !r->lost && r->status == NFS3_OK && r->data_len == len && r->count == len && memcmp(r->data, wanted, len) == 0;
}

static void test_read(H dir) {
    struct handle file = new_file(dir, "ten", "0123456789");
    R r = read_from(&file, 0, 10);
    OK(r, "of all");
    check(r->count == 10 && r->data_len == 10 && memcmp(r->data, "0123456789", 10) == 0, "the content is there");
    check(r->eof, "a READ up to the end says so");
    fattr3 now = attr_of(&file);
    check(r->attr.attributes_follow && same_attr(&r->attr.post_op_attr_u.attributes, &now), "READ tells the attributes");
    r = read_from(&file, 0, 9);
    check(r->count == 9 && !r->eof, "a READ that ends before the end does not");
    r = read_from(&file, 4, 100);
    check(r->count == 6 && r->eof && memcmp(r->data, "456789", 6) == 0, "a READ over the end is short and says so");
    r = read_from(&file, 10, 10);
    check(!r->lost && r->status == NFS3_OK && r->count == 0 && r->eof, "a READ at the end has nothing and says so");
    r = read_from(&file, 1000000, 10);
    check(!r->lost && r->status == NFS3_OK && r->count == 0 && r->eof, "a READ past the end, too");
    r = read_from(&file, 3, 0);
    check(!r->lost && r->status == NFS3_OK && r->count == 0, "a READ of nothing succeeds");
    EXPECT(read_from(dir, 0, 10), "of a directory", NFS3ERR_INVAL, NFS3ERR_ISDIR);
}

static void test_write(H dir) {
    struct handle file = new_file(dir, "file", "");
    fattr3 before = attr_of(&file);
    char verifier[NFS3_WRITEVERFSIZE];
    R r = write_to(&file, 0, "unstable", 8, UNSTABLE);
    OK(r, "UNSTABLE");
    check(r->count == 8, "all of it is written");
    check_wcc("WRITE", &r->wcc, &before, &file);
    memcpy(verifier, r->verifier, sizeof verifier);
    promise(memcmp(verifier, "\0\0\0\0\0\0\0\0", 8) != 0, "the verifier says something");
    before = attr_of(&file);
    r = write_to(&file, 8, "data-sync", 9, DATA_SYNC);
    OK(r, "DATA_SYNC");
    check(r->committed >= DATA_SYNC, "committed is DATA_SYNC at least");
    check(memcmp(verifier, r->verifier, sizeof verifier) == 0, "the verifier is the same");
    check_wcc("WRITE DATA_SYNC", &r->wcc, &before, &file);
    r = write_to(&file, 17, "file-sync", 9, FILE_SYNC);
    OK(r, "FILE_SYNC");
    check(r->committed == FILE_SYNC, "committed is FILE_SYNC");
    check(memcmp(verifier, r->verifier, sizeof verifier) == 0, "the verifier is the same");
    check(holds(&file, 0, "unstabledata-syncfile-sync", 26), "all of it is there");
    struct handle other = new_file(dir, "other", "");
    r = write_to(&other, 0, "x", 1, UNSTABLE);
    check(memcmp(verifier, r->verifier, sizeof verifier) == 0, "another file has the same verifier");

    before = attr_of(&file);
    r = write_to(&file, 5, "", 0, FILE_SYNC);
    OK(r, "of nothing");
    check(r->count == 0 && attr_of(&file).size == before.size, "it writes nothing");
    r = write_to(&file, 1000000, "end", 3, FILE_SYNC);
    OK(r, "far past the end");
    char zeros[4096] = {0};
    check(attr_of(&file).size == 1000003 && holds(&file, 500000, zeros, sizeof zeros) && holds(&file, 1000000, "end", 3),
          "the hole is zeros");
    promise(attr_of(&file).used < 500000, "and takes no room");
    OK(write_to(&file, 2, "OVER", 4, FILE_SYNC), "over what is there");
    check(holds(&file, 0, "unOVERledata", 12), "it changes these bytes alone");
    fattr3 after = attr_of(&file);
    promise(later(after.mtime, before.mtime) && later(after.ctime, before.ctime), "mtime and ctime move");
    r = write_lying(&file, 4, "eight by", 8);
    promise(r->lost || r->status == NFS3ERR_INVAL, "WRITE whose count is not its length is refused");
    r = write_lying(&file, 100, "short", 5);
    promise(r->lost || r->status == NFS3ERR_INVAL, "WRITE whose count is more than its length is refused");
    check(holds(&file, 0, "unOVERledata", 12), "nothing was written");
    EXPECT(write_to(dir, 0, "x", 1, FILE_SYNC), "of a directory", NFS3ERR_INVAL, NFS3ERR_ISDIR);
}

static void test_commit(H dir) {
    struct handle file = new_file(dir, "committed", "");
    R r = write_to(&file, 0, "some text", 9, UNSTABLE);
    char verifier[NFS3_WRITEVERFSIZE];
    memcpy(verifier, r->verifier, sizeof verifier);
    static const struct {
        uint64_t offset;
        uint32_t count;
        const char *what;
    } ranges[] = {
        {0, 0, "of all"},
        {0, 9, "of just that"},
        {4, 0, "from the middle to the end"},
        {1 << 30, 0, "from past the end"},
        {1 << 30, 4096, "of a range past the end"},
        {0, 4294967295U, "of more than there is"},
        {1ULL << 62, 4294967295U, "of a range far away"},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        fattr3 before = attr_of(&file);
        r = commit(&file, ranges[i].offset, ranges[i].count);
        OK(r, ranges[i].what);
        check(memcmp(r->verifier, verifier, sizeof verifier) == 0, "the verifier is that of the WRITE");
        check_wcc("COMMIT", &r->wcc, &before, &file);
    }
    struct handle untouched = new_file(dir, "untouched", "");
    OK(commit(&untouched, 0, 0), "of a file that was never written");
    check(holds(&file, 0, "some text", 9), "all of it is there");
}

static void test_large(H dir) {
    R r = fsinfo(&export_root);
    OK(r, "of the root");
    uint32_t wtmax = r->fsinfo.wtmax, rtmax = r->fsinfo.rtmax;
    uint32_t most = wtmax < 4 << 20 ? wtmax : 4 << 20;
    // The library takes no reply of more than about a mebibyte.
    uint32_t at_once = rtmax < 1 << 20 ? rtmax : 1 << 20;
    char *bytes = malloc(2 * (size_t)most);
    need(bytes != NULL, "memory");
    for (size_t i = 0; i < 2 * (size_t)most; i++) bytes[i] = (char)(i * 7 + (i >> 8) * 13 + (i >> 16));
    struct handle file = new_file(dir, "large", "");
    r = write_to(&file, 0, bytes, most, FILE_SYNC);
    OK(r, "of as much as wtmax says");
    check(r->count == most, "all of %u bytes is written", most);
    r = read_from(&file, 0, at_once);
    OK(r, "of as much as rtmax says");
    check(r->count == at_once && memcmp(r->data, bytes, at_once) == 0, "all of %u bytes is read", at_once);
    r = write_to(&file, 1, bytes + 1, most, UNSTABLE);
    OK(r, "of as much as wtmax says, at an odd place");
    OK(commit(&file, 0, 0), "of it");
    check(holds(&file, 1, bytes + 1, at_once), "it is there");
    if (rtmax <= 1 << 20) {
        r = read_from(&file, 0, rtmax + 4096);
        OK(r, "of more than rtmax says");
        check(r->count > 0 && r->count <= rtmax && r->data_len == r->count, "gives rtmax at most: %u", r->count);
    }
    free(bytes);
}

// Many calls at a time: in any order, all of them are done.
struct piece {
    int *waiting;
    int wrong;
};
static void got_piece(struct rpc_context *rpc, int status, void *data, void *private_data) {
    (void)rpc;
    struct piece *piece = private_data;
    --*piece->waiting;
    WRITE3res *res = data;
    piece->wrong += status != RPC_STATUS_SUCCESS || res->status != NFS3_OK || res->WRITE3res_u.resok.count != 1000;
}

static void test_crowd(H dir) {
    enum { PIECES = 256, LEN = 1000 };
    struct handle file = new_file(dir, "crowd", "");
    static char bytes[PIECES * LEN];
    for (int i = 0; i < PIECES * LEN; i++) bytes[i] = (char)(i / LEN * 31 + i);
    int waiting = PIECES;
    struct piece piece = {&waiting, 0};
    for (int n = 0; n < PIECES; n++) {
        int i = n * 77 % PIECES;
        WRITE3args args = {.file = fh(&file), .offset = (uint64_t)i * LEN, .count = LEN, .stable = (stable_how)(i % 3)};
        args.data.data_len = LEN;
        args.data.data_val = bytes + i * LEN;
        need(rpc_nfs3_write_async(nfs.rpc, got_piece, &args, &piece) == 0, "a call that is sent");
    }
    check(work_while(&nfs, &waiting) && piece.wrong == 0, "%d WRITEs at a time are all done", PIECES);
    OK(commit(&file, 0, 0), "of them");
    check(attr_of(&file).size == PIECES * LEN && holds(&file, 0, bytes, sizeof bytes), "all of them are there");
}

void test_data(void) {
    part("data");
    struct handle dir = new_dir(&top, "data", 0755);
    test_read(&dir);
    test_write(&dir);
    test_commit(&dir);
    test_large(&dir);
    test_crowd(&dir);
}

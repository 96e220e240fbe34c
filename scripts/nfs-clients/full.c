// A volume without room, and a file with all the links that it can have.
#include "client.h"

#include <stdio.h>
#include <stdlib.h>

// How often something may succeed on a full volume: a directory or a table of inodes may have room left.
#define TRIES 20000

static struct handle dir, file;

// Writes until there is no room, in pieces that become smaller.
static uint64_t fill(H to) {
    uint64_t offset = 0;
    static char bytes[1 << 20];
    memset(bytes, 'f', sizeof bytes);
    for (uint32_t len = sizeof bytes; len > 0; len /= 4) {
        R r;
        for (;;) {
            r = write_to(to, offset, bytes, len, FILE_SYNC);
            need(!r->lost, "an answer to every WRITE");
            if (r->status != NFS3_OK) break;
            need(r->count > 0 && r->count <= len, "a WRITE that succeeds and writes something");
            offset += r->count;
        }
        if (r->status != NFS3ERR_NOSPC) EXPECT(r, "to a full volume", NFS3ERR_NOSPC);
    }
    return offset;
}

static R full_create(int i, const char *name) { return (void)i, create(&dir, name, GUARDED, set_nothing()); }
static R full_mkdir(int i, const char *name) { return (void)i, make_dir(&dir, name, set_nothing()); }
static R full_mknod(int i, const char *name) { return (void)i, make_node(&dir, name, NF3FIFO, 0, 0, set_nothing()); }
static R full_link(int i, const char *name) { return (void)i, link_to(&file, &dir, name); }
static R full_symlink(int i, const char *name) {
    static char target[1001];
    memset(target, 't', 1000);
    return (void)i, make_symlink(&dir, name, target, set_nothing());
}
// From a name that needs little room to one that needs much.
static R full_rename(int i, const char *name) {
    char old[32];
    snprintf(old, sizeof old, "s%d", i);
    return rename_to(&dir, old, &dir, name);
}

static void until_full(const char *what, R (*call)(int, const char *)) {
    char name[256];
    R r = NULL;
    for (int i = 0; i < TRIES; i++) {
        // Long names, so that the directory needs room.
        snprintf(name, sizeof name, "%s-%06d-%0230d", what, i, 0);
        r = call(i, name);
        if (r->lost || r->status != NFS3_OK) break;
    }
    EXPECT(r, "on a full volume", NFS3ERR_NOSPC);
}

void test_full_volume(void) {
    part("full volume");
    struct mounted m = mnt(options.small);
    need(!m.lost && m.status == MNT3_OK, "the small export can be mounted");
    struct handle root = m.handle;
    dir = new_dir(&root, top_name, 0755);
    file = new_file(&dir, "fills", "");
    R r = fsstat(&root);
    OK(r, "before");
    // Root may have what others may not.
    uint64_t room = r->fsstat.fbytes;
    char name[32];
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof name, "s%d", i);
        new_file(&dir, name, "");
    }
    // From files that are there to longer names: first of all, while nothing else has taken the last room in the directory.
    uint64_t written = fill(&file);
    check(written <= room && written > room / 2, "what fits is what was free: %llu of %llu", (unsigned long long)written,
          (unsigned long long)room);
    check(attr_of(&file).size == written, "the file has what was acknowledged, and no more");
    until_full("rename", full_rename);
    until_full("create", full_create);
    until_full("directory", full_mkdir);
    until_full("symlink", full_symlink);
    until_full("fifo", full_mknod);
    until_full("link", full_link);
    EXPECT(write_to(&file, written + (1 << 20), "x", 1, UNSTABLE), "behind a hole, UNSTABLE", NFS3ERR_NOSPC);
    EXPECT(create_exclusive(&dir, "exclusive", "verifier"), "exclusive on a full volume", NFS3_OK, NFS3ERR_NOSPC);
    r = fsstat(&root);
    OK(r, "of a full volume");
    promise(r->fsstat.abytes < room / 16, "little is free, it says: %llu of %llu", (unsigned long long)r->fsstat.abytes,
            (unsigned long long)room);
    r = read_from(&file, written - 4, 100);
    check(!r->lost && r->count == 4 && r->eof && memcmp(r->data, "ffff", 4) == 0, "what was written is there");

    // Room can be made.
    OK(setattr(&file, set_size_to(1000), NULL), "of a shorter size on a full volume");
    OK(remove_file(&dir, "s299"), "on a full volume");
    OK(create(&dir, "again", GUARDED, set_nothing()), "when there is room again");
    r = write_to(&file, 1000, "room", 4, FILE_SYNC);
    OK(r, "when there is room again");
    OK(commit(&file, 0, 0), "of it");
    r = fsstat(&root);
    check(r->fsstat.abytes > room / 2, "what was cut off is free");
}

// ---------------------------------------------------------------- links

#define AT_ONCE 128

struct crowd {
    int waiting;  // calls without an answer
    int allowed;  // to stop waiting at
    int done, wrong;
};

static void got_link(struct rpc_context *rpc, int status, void *data, void *private_data) {
    (void)rpc;
    struct crowd *crowd = private_data;
    crowd->waiting--, crowd->allowed--;
    if (status == RPC_STATUS_SUCCESS && ((LINK3res *)data)->status == NFS3_OK) crowd->done++;
    else crowd->wrong++;
}

static void link_many(H to, H in_dir, uint32_t count) {
    struct crowd crowd = {0};
    for (uint32_t i = 0; i < count; i++) {
        char name[16];
        snprintf(name, sizeof name, "%x", i);
        LINK3args args = {.file = fh(to), .link = {.dir = fh(in_dir), .name = name}};
        need(rpc_nfs3_link_async(nfs.rpc, got_link, &args, &crowd) == 0, "a call that is sent");
        crowd.waiting++;
        crowd.allowed = crowd.waiting - AT_ONCE;
        need(work_while(&nfs, &crowd.allowed), "answers to LINKs");
    }
    need(work_while(&nfs, &crowd.waiting), "answers to the last LINKs");
    check(crowd.wrong == 0 && crowd.done == (int)count, "%d links to a file, %d at a time", crowd.done, AT_ONCE);
}

void test_links(void) {
    part("links");
    struct handle in = new_dir(&top, "links", 0755);
    struct handle linked = new_file(&in, "linked", "linked");
    R r = pathconf_of(&linked);
    OK(r, "of a file");
    uint32_t most = r->pathconf.linkmax;
    check(most >= 8, "a file may have %u links", most);
    if (options.few_links) return;
    if (!promise(most <= 100000, "at most 100,000 links can be made")) return;
    link_many(&linked, &in, most - 1);
    check(attr_of(&linked).nlink == most, "the file has as many links as linkmax says");
    EXPECT(link_to(&linked, &in, "one-more"), "over linkmax", NFS3ERR_MLINK);
    EXPECT(lookup(&in, "one-more"), "of the one too many", NFS3ERR_NOENT);
    OK(remove_file(&in, "0"), "of one of them");
    OK(link_to(&linked, &in, "one-more"), "instead of one that was removed");
    OK(rename_to(&in, "1", &in, "2"), "of one name over another of the same file");
    OK(rename_to(&in, "1", &in, "renamed"), "of one of them");
    check(attr_of(&linked).nlink == most, "the file has as many links as before");
}

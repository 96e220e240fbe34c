// The errors that many procedures share: handles that are none, exports that are read only, other exports, permissions, names that
// are too long, files that are no directories.
#include "client.h"

#include <stdio.h>
#include <stdlib.h>

static const char zero[NFS3_COOKIEVERFSIZE];

// Every place of every procedure where a handle stands.
static struct handle good_dir, good_file;
static R as_getattr(H h) { return getattr(h); }
static R as_setattr(H h) { return setattr(h, set_mode_to(0600), NULL); }
static R as_lookup(H h) { return lookup(h, "name"); }
static R as_access(H h) { return access_to(h, ACCESS3_READ); }
static R as_readlink(H h) { return read_link(h); }
static R as_read(H h) { return read_from(h, 0, 10); }
static R as_write(H h) { return write_to(h, 0, "x", 1, FILE_SYNC); }
static R as_create(H h) { return create(h, "new", GUARDED, set_nothing()); }
static R as_create_unchecked(H h) { return create(h, "new", UNCHECKED, set_nothing()); }
static R as_create_exclusive(H h) { return create_exclusive(h, "new", "verifier"); }
static R as_mkdir(H h) { return make_dir(h, "new", set_nothing()); }
static R as_symlink(H h) { return make_symlink(h, "new", "target", set_nothing()); }
static R as_mknod(H h) { return make_node(h, "new", NF3FIFO, 0, 0, set_nothing()); }
static R as_remove(H h) { return remove_file(h, "name"); }
static R as_rmdir(H h) { return remove_dir(h, "name"); }
static R as_rename_from(H h) { return rename_to(h, "name", &good_dir, "new"); }
static R as_rename_to(H h) { return rename_to(&good_dir, "there", h, "new"); }
static R as_link_file(H h) { return link_to(h, &good_dir, "new"); }
static R as_link_dir(H h) { return link_to(&good_file, h, "new"); }
static R as_readdir(H h) { return read_dir(h, 0, zero, 4096); }
static R as_readdirplus(H h) { return read_dir_plus(h, 0, zero, 1024, 4096); }
static R as_fsstat(H h) { return fsstat(h); }
static R as_fsinfo(H h) { return fsinfo(h); }
static R as_pathconf(H h) { return pathconf_of(h); }
static R as_commit(H h) { return commit(h, 0, 0); }


static const struct place {
    R (*call)(H);
    bool of_dirs;
} places[] = {
    {as_getattr, false},
    {as_setattr, false},
    {as_lookup, true},
    {as_access, false},
    {as_readlink, false},
    {as_read, false},
    {as_write, false},
    {as_create, true},
    {as_create_unchecked, true},
    {as_create_exclusive, true},
    {as_mkdir, true},
    {as_symlink, true},
    {as_mknod, true},
    {as_remove, true},
    {as_rmdir, true},
    {as_rename_from, true},
    {as_rename_to, true},
    {as_link_file, false},
    {as_link_dir, true},
    {as_readdir, true},
    {as_readdirplus, true},
    {as_fsstat, false},
    {as_fsinfo, false},
    {as_pathconf, false},
    {as_commit, false},
};
#define PLACES (sizeof places / sizeof places[0])

static void test_handles(void) {
    // Of a file and of a directory that were removed.
    struct handle file = new_file(&good_dir, "goes", "text"), dir = new_dir(&good_dir, "goes-too", 0755);
    new_file(&good_dir, "there", "");
    OK(remove_file(&good_dir, "goes"), "of a file");
    OK(remove_dir(&good_dir, "goes-too"), "of a directory");
    // What comes next may get the same inode, not the same handle.
    new_file(&good_dir, "next", "");
    new_dir(&good_dir, "next-dir", 0755);
    for (size_t i = 0; i < PLACES; i++) {
        EXPECT(places[i].call(&file), "with the handle of a file that was removed", NFS3ERR_STALE);
        EXPECT(places[i].call(&dir), "with the handle of a directory that was removed", NFS3ERR_STALE);
    }
    // Garbled ones. The RFC does not ask that every bit counts.
    struct handle last = good_file, first = good_file, middle = good_file, cut = good_file, none = {0}, wild = {.len = NFS3_FHSIZE};
    last.bytes[last.len - 1] ^= 1;
    first.bytes[0] ^= 1;
    middle.bytes[middle.len / 2] ^= 1;
    cut.len--;
    memset(wild.bytes, 0xff, sizeof wild.bytes);
    for (size_t i = 0; i < PLACES; i++) {
        PROMISED(places[i].call(&last), "with the last bit of the handle flipped", NFS3ERR_BADHANDLE, NFS3ERR_STALE);
        PROMISED(places[i].call(&first), "with a bit of its first byte flipped", NFS3ERR_BADHANDLE, NFS3ERR_STALE);
        PROMISED(places[i].call(&middle), "with a bit in its middle flipped", NFS3ERR_BADHANDLE, NFS3ERR_STALE);
        EXPECT(places[i].call(&cut), "with a handle that is a byte short", NFS3ERR_BADHANDLE, NFS3ERR_STALE);
        EXPECT(places[i].call(&none), "with an empty handle", NFS3ERR_BADHANDLE, NFS3ERR_STALE);
        EXPECT(places[i].call(&wild), "with a handle of ones", NFS3ERR_BADHANDLE, NFS3ERR_STALE);
    }
    EXPECT(lookup(&good_dir, "new"), "of what none of them made", NFS3ERR_NOENT);
    check(strcmp(read_from(&good_file, 0, 10)->data, "good") == 0, "none of them wrote");
}

static void test_not_directories(void) {
    for (size_t i = 0; i < PLACES; i++)
        if (places[i].of_dirs) EXPECT(places[i].call(&good_file), "with a file for a directory", NFS3ERR_NOTDIR);
}

static void test_permissions(void) {
    struct handle closed = new_dir(&good_dir, "closed", 0700);
    new_file(&closed, "name", "");
    struct handle secret = new_file(&closed, "secret", "text");
    OK(setattr(&secret, set_mode_to(0600), NULL), "of a mode");
    OK(setattr(&good_dir, set_mode_to(0777), NULL), "of a mode");
    as(1000, 1000);
    new_file(&good_dir, "there-too", "");
    for (size_t i = 0; i < PLACES; i++)
        if (places[i].of_dirs) EXPECT(places[i].call(&closed), "by a stranger", NFS3ERR_ACCES);
    EXPECT(read_from(&secret, 0, 10), "by a stranger", NFS3ERR_ACCES);
    EXPECT(write_to(&secret, 0, "x", 1, FILE_SYNC), "by a stranger", NFS3ERR_ACCES);
    EXPECT(setattr(&secret, set_size_to(0), NULL), "of the size by a stranger", NFS3ERR_ACCES);
    EXPECT(setattr(&secret, set_mode_to(0666), NULL), "of the mode by a stranger", NFS3ERR_PERM);
    sattr3 times = set_nothing();
    times.mtime.set_it = SET_TO_SERVER_TIME;
    EXPECT(setattr(&secret, times, NULL), "of a time to now by a stranger", NFS3ERR_ACCES, NFS3ERR_PERM);
    times.mtime.set_it = SET_TO_CLIENT_TIME;
    EXPECT(setattr(&secret, times, NULL), "of a time by a stranger", NFS3ERR_PERM, NFS3ERR_ACCES);
    as(0, 0);
    OK(setattr(&closed, set_mode_to(0711), NULL), "of a mode");
    as(1000, 1000);
    OK(lookup(&closed, "name"), "by a stranger who may search");
    EXPECT(read_dir(&closed, 0, zero, 4096), "by a stranger who may only search", NFS3ERR_ACCES);
    as(0, 0);
    check(strcmp(read_from(&secret, 0, 10)->data, "text") == 0 && attr_of(&secret).mode == 0600, "the file is as it was");
}

static void test_names_in(void) {
    struct handle dir = new_dir(&good_dir, "of-names", 0755);
    struct handle there = new_file(&dir, "there", "");
    char name[301];
    memset(name, 'n', 300);
    name[300] = 0;
    const nfsstat3 too_long = NFS3ERR_NAMETOOLONG;
    EXPECT(lookup(&dir, name), "of a name of 300 bytes", too_long);
    EXPECT(create(&dir, name, UNCHECKED, set_nothing()), "of a name of 300 bytes", too_long);
    EXPECT(create_exclusive(&dir, name, "verifier"), "exclusive, of a name of 300 bytes", too_long);
    EXPECT(make_dir(&dir, name, set_nothing()), "of a name of 300 bytes", too_long);
    EXPECT(make_symlink(&dir, name, "target", set_nothing()), "of a name of 300 bytes", too_long);
    EXPECT(make_node(&dir, name, NF3FIFO, 0, 0, set_nothing()), "of a name of 300 bytes", too_long);
    EXPECT(remove_file(&dir, name), "of a name of 300 bytes", too_long);
    EXPECT(remove_dir(&dir, name), "of a name of 300 bytes", too_long);
    EXPECT(rename_to(&dir, name, &dir, "x"), "of a name of 300 bytes", too_long);
    EXPECT(rename_to(&dir, "there", &dir, name), "to a name of 300 bytes", too_long);
    EXPECT(link_to(&there, &dir, name), "to a name of 300 bytes", too_long);
    // Names that never are any.
    static const char *const no_names[] = {"", "a/b", "/", "there/"};
    for (int i = 0; i < 4; i++) {
        const char *no = no_names[i];
#define REFUSED NFS3ERR_INVAL, NFS3ERR_ACCES, NFS3ERR_NOENT, NFS3ERR_EXIST
        EXPECT(lookup(&dir, no), "of what is no name", REFUSED);
        EXPECT(create(&dir, no, GUARDED, set_nothing()), "of what is no name", REFUSED);
        EXPECT(make_dir(&dir, no, set_nothing()), "of what is no name", REFUSED);
        EXPECT(make_symlink(&dir, no, "target", set_nothing()), "of what is no name", REFUSED);
        EXPECT(make_node(&dir, no, NF3FIFO, 0, 0, set_nothing()), "of what is no name", REFUSED);
        EXPECT(remove_file(&dir, no), "of what is no name", REFUSED);
        EXPECT(remove_dir(&dir, no), "of what is no name", REFUSED);
        EXPECT(rename_to(&dir, "there", &dir, no), "to what is no name", REFUSED);
        EXPECT(rename_to(&dir, no, &dir, "x"), "of what is no name", REFUSED);
        EXPECT(link_to(&there, &dir, no), "to what is no name", REFUSED);
    }
    for (int i = 0; i < 2; i++) {
        const char *dots = i ? ".." : ".";
#define NO_DOTS NFS3ERR_EXIST, NFS3ERR_INVAL, NFS3ERR_ISDIR
        EXPECT(create(&dir, dots, GUARDED, set_nothing()), "of . or ..", NO_DOTS);
        EXPECT(create(&dir, dots, UNCHECKED, set_nothing()), "unchecked, of . or ..", NO_DOTS);
        EXPECT(create_exclusive(&dir, dots, "verifier"), "exclusive, of . or ..", NO_DOTS);
        EXPECT(make_dir(&dir, dots, set_nothing()), "of . or ..", NO_DOTS);
        EXPECT(make_symlink(&dir, dots, "target", set_nothing()), "of . or ..", NO_DOTS);
        EXPECT(make_node(&dir, dots, NF3FIFO, 0, 0, set_nothing()), "of . or ..", NO_DOTS);
        EXPECT(link_to(&there, &dir, dots), "to . or ..", NO_DOTS);
    }
    R r = read_dir(&dir, 0, zero, 4096);
    check(r->entries_len == 3, "none of them is there: %zu entries", r->entries_len);
}

static void test_read_only(void) {
    struct mounted m = mnt(options.read_only);
    need(!m.lost && m.status == MNT3_OK, "the read-only export can be mounted");
    R r = lookup(&m.handle, top_name);
    struct handle parent = r->handle;
    r = lookup(&parent, "errors");
    struct handle dir = r->handle;
    r = lookup(&dir, "good");
    struct handle file = r->handle;
    need(r->has_handle, "the directory of the test, through the read-only export");
    check(strcmp(read_from(&file, 0, 10)->data, "good") == 0, "it can be read");
    const nfsstat3 rofs = NFS3ERR_ROFS;
    EXPECT(setattr(&file, set_mode_to(0600), NULL), "on a read-only export", rofs);
    EXPECT(setattr(&file, set_size_to(0), NULL), "of the size on a read-only export", rofs);
    EXPECT(write_to(&file, 0, "x", 1, UNSTABLE), "on a read-only export", rofs);
    EXPECT(create(&dir, "new", GUARDED, set_nothing()), "on a read-only export", rofs);
    EXPECT(create(&dir, "new", UNCHECKED, set_nothing()), "unchecked on a read-only export", rofs);
    EXPECT(create_exclusive(&dir, "new", "verifier"), "exclusive on a read-only export", rofs);
    EXPECT(make_dir(&dir, "new", set_nothing()), "on a read-only export", rofs);
    EXPECT(make_symlink(&dir, "new", "target", set_nothing()), "on a read-only export", rofs);
    EXPECT(make_node(&dir, "new", NF3FIFO, 0, 0, set_nothing()), "on a read-only export", rofs);
    EXPECT(remove_file(&dir, "good"), "on a read-only export", rofs);
    EXPECT(remove_dir(&dir, "closed"), "on a read-only export", rofs);
    EXPECT(rename_to(&dir, "good", &dir, "better"), "on a read-only export", rofs);
    EXPECT(link_to(&file, &dir, "new"), "on a read-only export", rofs);
    r = access_to(&file, ACCESS3_READ | ACCESS3_MODIFY | ACCESS3_EXTEND);
    check(r->access == ACCESS3_READ, "ACCESS on a read-only export grants no change");
    EXPECT(commit(&file, 0, 0), "on a read-only export", NFS3_OK, rofs);
}

static void test_other_exports(void) {
    struct mounted squashed = mnt(options.squashed), small = mnt(options.small);
    need(!squashed.lost && !small.lost && small.status == MNT3_OK, "the other exports can be mounted");
    check(attr_of(&small.handle).fsid != attr_of(&export_root).fsid, "another export's files have another fsid");
    const nfsstat3 xdev = NFS3ERR_XDEV;
    EXPECT(rename_to(&good_dir, "good", &small.handle, "x"), "to another export", xdev);
    EXPECT(rename_to(&small.handle, "x", &good_dir, "y"), "from another export", xdev, NFS3ERR_NOENT);
    EXPECT(link_to(&good_file, &small.handle, "x"), "to another export", xdev);
    if (attr_of(&squashed.handle).fsid != attr_of(&export_root).fsid) {
        EXPECT(rename_to(&good_dir, "good", &squashed.handle, "x"), "to another export of the same volume", xdev, NFS3ERR_ACCES);
        EXPECT(link_to(&good_file, &squashed.handle, "x"), "to another export of the same volume", xdev, NFS3ERR_ACCES);
    }
    OK(lookup(&good_dir, "good"), "of what stays");
}

void test_errors(void) {
    part("errors");
    good_dir = new_dir(&top, "errors", 0755);
    good_file = new_file(&good_dir, "good", "good");
    test_handles();
    test_not_directories();
    test_permissions();
    test_names_in();
    test_read_only();
    test_other_exports();
}

// GETATTR, SETATTR, ACCESS.
#include "client.h"

#include <stdlib.h>
#include <time.h>

#define OWNER 1000
#define STRANGER 1001
#define ALL_ACCESS (ACCESS3_READ | ACCESS3_LOOKUP | ACCESS3_MODIFY | ACCESS3_EXTEND | ACCESS3_DELETE | ACCESS3_EXECUTE)

static bool is_now(nfstime3 t) { return labs((long)time(NULL) - (long)t.seconds) < 600; }

static sattr3 set_times_to(nfstime3 atime, nfstime3 mtime) {
    sattr3 set = set_nothing();
    set.atime.set_it = set.mtime.set_it = SET_TO_CLIENT_TIME;
    set.atime.set_atime_u.atime = atime;
    set.mtime.set_mtime_u.mtime = mtime;
    return set;
}

static void test_setattr(H dir) {
    struct handle file = new_file(dir, "attributes", "0123456789");
    fattr3 a = attr_of(&file);
    check(a.type == NF3REG && a.mode == 0644 && a.nlink == 1 && a.size == 10, "a new file's type, mode, links and size");
    check(a.uid == 0 && a.gid == 0, "its owner is its creator");
    check(is_now(a.mtime) && is_now(a.ctime) && is_now(a.atime), "its times are now");

    R r = setattr(&file, set_mode_to(0751), NULL);
    OK(r, "of the mode");
    check_wcc("SETATTR", &r->wcc, &a, &file);
    fattr3 b = attr_of(&file);
    check(b.mode == 0751 && b.size == a.size && b.uid == a.uid, "the mode is set, and nothing else");
    promise(later(b.ctime, a.ctime) && same_time(b.mtime, a.mtime), "ctime moves, mtime does not");

    OK(setattr(&file, set_mode_to(0107640), NULL), "of a mode with the bits of a type in it");
    check((attr_of(&file).mode & ~07777U) == 0 || attr_of(&file).mode == 0107640, "leaves the type alone");
    OK(setattr(&file, set_mode_to(06751), NULL), "of set-user-id and set-group-id");
    check(attr_of(&file).mode == 06751, "they are set");

    OK(setattr(&file, set_size_to(4), NULL), "of a shorter size");
    OK(setattr(&file, set_size_to(12), NULL), "of a longer size");
    r = read_from(&file, 0, 100);
    check(r->data_len == 12 && memcmp(r->data, "0123\0\0\0\0\0\0\0\0", 12) == 0, "what was cut off comes back as zeros");
    a = attr_of(&file);
    check(a.size == 12 && !later(b.mtime, a.mtime), "the size is set and mtime is not older");

    OK(setattr(&file, set_owner_to(OWNER, OWNER + 5), NULL), "of owner and group by root");
    a = attr_of(&file);
    check(a.uid == OWNER && a.gid == OWNER + 5, "they are set");

    nfstime3 then = {1000000000, 123456789}, before = {3, 999999999};
    OK(setattr(&file, set_times_to(then, before), NULL), "of both times");
    a = attr_of(&file);
    check(same_time(a.atime, then) && same_time(a.mtime, before), "they are exactly those");
    sattr3 set = set_nothing();
    set.mtime.set_it = SET_TO_SERVER_TIME;
    OK(setattr(&file, set, NULL), "of mtime to the server's");
    a = attr_of(&file);
    check(is_now(a.mtime) && same_time(a.atime, then), "mtime is now, atime is left");
    nfstime3 far = {4294967295U, 999999999};
    OK(setattr(&file, set_times_to(far, far), NULL), "of the last time that the protocol has");
    check(same_time(attr_of(&file).mtime, far), "it is set");
    nfstime3 wild = {1, 2000000000};
    EXPECT(setattr(&file, set_times_to(wild, then), NULL), "of a time with two thousand million nanoseconds", NFS3ERR_INVAL);
    OK(setattr(&file, set_nothing(), NULL), "of nothing");

    // The guard.
    a = attr_of(&file);
    nfstime3 other = a.ctime;
    other.nseconds ^= 1;
    r = setattr(&file, set_mode_to(0600), &other);
    EXPECT(r, "under a guard that does not hold", NFS3ERR_NOT_SYNC);
    b = attr_of(&file);
    check(same_attr(&a, &b), "changes nothing");
    OK(setattr(&file, set_mode_to(0600), &a.ctime), "under a guard that holds");
    check(attr_of(&file).mode == 0600, "changes the mode");

    // Directories.
    struct handle sub = new_dir(dir, "sub", 0700);
    OK(setattr(&sub, set_mode_to(01777), NULL), "of a directory's mode");
    a = attr_of(&sub);
    check(a.type == NF3DIR && a.mode == 01777 && a.nlink == 2, "it is set");
    EXPECT(setattr(&sub, set_size_to(0), NULL), "of a directory's size", NFS3ERR_INVAL, NFS3ERR_ISDIR);
    R fifo = make_node(dir, "fifo", NF3FIFO, 0, 0, set_nothing());
    EXPECT(setattr(&fifo->handle, set_size_to(0), NULL), "of a fifo's size", NFS3ERR_INVAL);
}

static uint32_t granted(H object, uint32_t uid, uint32_t wanted) {
    as(uid, uid);
    R r = access_to(object, wanted);
    as(0, 0);
    if (r->lost || r->status != NFS3_OK) return 0x80000000;
    return r->access;
}

static void test_access(H dir) {
    struct handle file = new_file(dir, "private", "text");
    OK(setattr(&file, set_owner_to(OWNER, OWNER), NULL), "of an owner");
    OK(setattr(&file, set_mode_to(0640), NULL), "of a mode");
    uint32_t read_write = ACCESS3_READ | ACCESS3_MODIFY | ACCESS3_EXTEND;
    check((granted(&file, OWNER, ALL_ACCESS) & (read_write | ACCESS3_EXECUTE)) == read_write,
          "the owner may read and write, not execute");
    check((granted(&file, STRANGER, ALL_ACCESS) & (read_write | ACCESS3_EXECUTE)) == 0, "a stranger may nothing");
    check((granted(&file, 0, ALL_ACCESS) & read_write) == read_write, "root may read and write");
    check(granted(&file, OWNER, ACCESS3_READ) == ACCESS3_READ, "nothing is granted that was not asked for");
    check(granted(&file, OWNER, 0) == 0, "a request for no rights is granted none");
    as(OWNER, OWNER);
    OK(read_from(&file, 0, 4), "by the owner");
    OK(write_to(&file, 0, "TEXT", 4, FILE_SYNC), "by the owner");
    // A client that has opened a file may go on when its mode changes, and a client that may run a program may read it: the
    // server cannot tell the cases apart (section 4.4 of the RFC).
    OK(setattr(&file, set_mode_to(0), NULL), "of the mode by the owner");
    OK(read_from(&file, 0, 4), "by the owner, whatever the mode");
    OK(write_to(&file, 0, "text", 4, FILE_SYNC), "by the owner, whatever the mode");
    OK(setattr(&file, set_mode_to(0711), NULL), "of the mode by the owner");
    as(STRANGER, STRANGER);
    OK(read_from(&file, 0, 4), "by a stranger who may execute");
    EXPECT(write_to(&file, 0, "x", 1, FILE_SYNC), "by a stranger who may execute", NFS3ERR_ACCES);
    as(0, 0);

    struct handle sub = new_dir(dir, "shared", 0711);
    check(granted(&sub, STRANGER, ALL_ACCESS) == ACCESS3_LOOKUP, "a user that may only search a directory may look names up");
    check((granted(&sub, 0, ALL_ACCESS) & ~(uint32_t)ACCESS3_EXECUTE) == (ALL_ACCESS & ~(uint32_t)ACCESS3_EXECUTE),
          "root may do everything with a directory");
    // What is granted is what is done.
    OK(setattr(&sub, set_mode_to(0777), NULL), "of a mode");
    as(STRANGER, STRANGER);
    R r = create(&sub, "a-strangers", GUARDED, set_mode_to(0600));
    OK(r, "by a stranger, in a directory that is open to all");
    if (r->has_handle) check(attr_of(&r->handle).uid == STRANGER, "the file is the stranger's");
    as(0, 0);
    OK(setattr(&sub, set_mode_to(01777), NULL), "of the sticky bit");
    as(OWNER, OWNER);
    EXPECT(remove_file(&sub, "a-strangers"), "of another's file in a sticky directory", NFS3ERR_ACCES, NFS3ERR_PERM);
    as(0, 0);
}

static void test_squash(void) {
    struct mounted m = mnt(options.squashed);
    need(!m.lost && m.status == MNT3_OK, "the squashed export can be mounted");
    R r = lookup(&m.handle, top_name);
    need(!r->lost && r->status == NFS3_OK, "the directory of the test, through the squashed export");
    struct handle same = r->handle;
    EXPECT(create(&same, "roots", GUARDED, set_nothing()), "by root that is nobody here, in root's directory", NFS3ERR_ACCES);
    new_dir(&top, "open", 0777);
    r = lookup(&same, "open");
    struct handle there = r->handle;
    r = create(&there, "nobodys", GUARDED, set_mode_to(0600));
    OK(r, "by root that is nobody here, in everybody's directory");
    struct handle file = r->handle;
    fattr3 a = attr_of(&file);
    check(a.uid == 65534 && a.gid == 65534, "the file is nobody's: %u:%u", a.uid, a.gid);
    as(OWNER, OWNER);
    r = write_to(&file, 0, "x", 1, FILE_SYNC);
    OK(r, "by another user, who is nobody here, too");
    as(0, 0);
    EXPECT(setattr(&file, set_owner_to(0, 0), NULL), "of an owner by nobody", NFS3ERR_PERM);
}

void test_attributes(void) {
    part("attributes");
    struct handle dir = new_dir(&top, "attributes", 0755);
    fattr3 a = attr_of(&export_root);
    check(a.type == NF3DIR && a.nlink >= 2 && a.fileid != 0, "the root is a directory");
    test_setattr(&dir);
    test_access(&dir);
    test_squash();
}

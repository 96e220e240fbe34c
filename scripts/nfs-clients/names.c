// LOOKUP, READLINK, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, LINK.
#include "client.h"

#include <stdio.h>
#include <stdlib.h>

static bool same_attr_as(const post_op_attr *told, H object) {
    fattr3 now = attr_of(object);
    return told->attributes_follow && same_attr(&told->post_op_attr_u.attributes, &now);
}

// What all procedures that make something promise.
static void check_made(const char *what, R r, const fattr3 *dir_before, H dir, const char *name) {
    if (!OK(r, what)) return;
    wcc_data wcc = r->wcc;
    post_op_attr attr = r->attr;
    if (!promise(r->has_handle, "%s: the reply has the handle", what)) return;
    struct handle made = r->handle;
    check(same_attr_as(&attr, &made), "%s: the attributes told are the new object's", what);
    check_wcc(what, &wcc, dir_before, dir);
    fattr3 dir_now = attr_of(dir);
    promise(later(dir_now.mtime, dir_before->mtime) && later(dir_now.ctime, dir_before->ctime),
            "%s: the directory's times move", what);
    R found = lookup(dir, name);
    OK(found, "of the new name");
    if (found->has_handle) check(attr_of(&found->handle).fileid == attr_of(&made).fileid, "%s: the name leads to it", what);
}

static void test_create(H dir) {
    fattr3 before = attr_of(dir);
    sattr3 set = set_mode_to(0640);
    set.size = set_size_to(5).size;
    R r = create(dir, "unchecked", UNCHECKED, set);
    struct handle file = r->handle;
    check_made("CREATE unchecked", r, &before, dir, "unchecked");
    fattr3 a = attr_of(&file);
    check(a.mode == 0640 && a.size == 5 && a.type == NF3REG, "its mode and size are as asked for");
    OK(write_to(&file, 0, "hello", 5, FILE_SYNC), "of five bytes");
    r = create(dir, "unchecked", UNCHECKED, set_mode_to(0600));
    OK(r, "unchecked, of a file that is there");
    if (r->has_handle) check(attr_of(&r->handle).fileid == a.fileid, "it is the same file");
    check(attr_of(&file).size == 5, "its content is left");
    r = create(dir, "unchecked", UNCHECKED, set_size_to(0));
    OK(r, "unchecked with size 0, of a file that is there");
    check(attr_of(&file).size == 0, "it is empty now");

    before = attr_of(dir);
    r = create(dir, "guarded", GUARDED, set_mode_to(0604));
    file = r->handle;
    check_made("CREATE guarded", r, &before, dir, "guarded");
    check(attr_of(&file).mode == 0604, "its mode is as asked for");
    before = attr_of(dir);
    r = create(dir, "guarded", GUARDED, set_nothing());
    EXPECT(r, "guarded, of a file that is there", NFS3ERR_EXIST);
    check_wcc("CREATE that fails", &r->wcc, &before, dir);

    before = attr_of(dir);
    r = create_exclusive(dir, "exclusive", "verifier");
    file = r->handle;
    check_made("CREATE exclusive", r, &before, dir, "exclusive");
    a = attr_of(&file);
    r = create_exclusive(dir, "exclusive", "verifier");
    OK(r, "exclusive, with the same verifier");
    if (r->has_handle) check(attr_of(&r->handle).fileid == a.fileid, "it is the same file");
    EXPECT(create_exclusive(dir, "exclusive", "verifieR"), "exclusive, with another verifier", NFS3ERR_EXIST);
    EXPECT(create_exclusive(dir, "guarded", "verifier"), "exclusive, of somebody's file", NFS3ERR_EXIST);
    OK(setattr(&file, set_mode_to(0644), NULL), "after an exclusive CREATE");
    check(attr_of(&file).mode == 0644 && attr_of(&file).uid == 0, "the file is ready to be used");

    make_dir(dir, "is-a-directory", set_nothing());
    EXPECT(create(dir, "is-a-directory", UNCHECKED, set_nothing()), "unchecked, of a directory", NFS3ERR_EXIST, NFS3ERR_ISDIR);
    EXPECT(create(dir, "is-a-directory", GUARDED, set_nothing()), "guarded, of a directory", NFS3ERR_EXIST);
    OK(make_symlink(dir, "leads-away", "unchecked", set_nothing()), "for the next one");
    EXPECT(create(dir, "leads-away", GUARDED, set_nothing()), "guarded, of a symbolic link", NFS3ERR_EXIST);
}

static void test_lookup(H dir) {
    struct handle sub = new_dir(dir, "sub", 0755);
    struct handle file = new_file(&sub, "name", "text");
    R r = lookup(&sub, "name");
    OK(r, "of a name");
    check(same_attr_as(&r->attr, &file) && same_attr_as(&r->dir_attr, &sub), "the reply has the attributes of both");
    fattr3 own = attr_of(&sub), parent = attr_of(dir);
    r = lookup(&sub, ".");
    OK(r, "of .");
    if (r->has_handle) check(attr_of(&r->handle).fileid == own.fileid, ". is the directory");
    r = lookup(&sub, "..");
    OK(r, "of ..");
    if (r->has_handle) check(attr_of(&r->handle).fileid == parent.fileid, ".. is its parent");
    r = lookup(&export_root, "..");
    if (!r->lost && r->status == NFS3_OK)
        check(attr_of(&r->handle).fileid == attr_of(&export_root).fileid, "nothing is above the root of an export");
    r = lookup(&sub, "NAME");
    EXPECT(r, "of the name in capitals", NFS3ERR_NOENT);
    promise(r->dir_attr.attributes_follow, "a failed LOOKUP tells of the directory");
    // Names are bytes.
    const char *odd[] = {"with space", "with\nnewline", "\xc3\xa9\xe2\x82\xac", "\xff\xfe\x01", "...", "-rf", "a\\b", "*?"};
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        R made = create(&sub, odd[i], GUARDED, set_nothing()), found = lookup(&sub, odd[i]);
        check(!made->lost && made->status == NFS3_OK && !found->lost && found->status == NFS3_OK, "odd name %zu is kept", i);
    }
}

static void test_special(H dir) {
    fattr3 before = attr_of(dir);
    R r = make_dir(dir, "directory", set_mode_to(0751));
    struct handle made = r->handle;
    check_made("MKDIR", r, &before, dir, "directory");
    fattr3 a = attr_of(&made);
    check(a.type == NF3DIR && a.mode == 0751 && a.nlink == 2, "its type, mode and links");
    check(attr_of(dir).nlink == before.nlink + 1, "its parent has a link more");
    EXPECT(make_dir(dir, "directory", set_nothing()), "of what is there", NFS3ERR_EXIST);

    before = attr_of(dir);
    const char *target = "/some/where/that is not there";
    r = make_symlink(dir, "symlink", target, set_nothing());
    made = r->handle;
    check_made("SYMLINK", r, &before, dir, "symlink");
    a = attr_of(&made);
    check(a.type == NF3LNK && a.size == strlen(target), "its type and size");
    r = read_link(&made);
    OK(r, "of a symbolic link");
    check(r->data && strcmp(r->data, target) == 0, "it leads where it was told to");
    check(same_attr_as(&r->attr, &made), "READLINK tells the attributes");
    EXPECT(make_symlink(dir, "symlink", "other", set_nothing()), "of what is there", NFS3ERR_EXIST);
    char long_target[1025];
    memset(long_target, 't', 1024);
    long_target[1024] = 0;
    r = make_symlink(dir, "long-symlink", long_target, set_nothing());
    OK(r, "to a target of 1024 bytes");
    made = r->handle;
    r = read_link(&made);
    check(r->data_len == 1024 && memcmp(r->data, long_target, 1024) == 0, "it is kept whole");
    EXPECT(read_from(&made, 0, 10), "of a symbolic link", NFS3ERR_INVAL);
    EXPECT(write_to(&made, 0, "x", 1, FILE_SYNC), "of a symbolic link", NFS3ERR_INVAL);
    EXPECT(read_link(dir), "of a directory", NFS3ERR_INVAL);

    static const struct {
        const char *name;
        ftype3 type;
        uint32_t major, minor;
    } kinds[] = {{"character", NF3CHR, 1, 3}, {"block", NF3BLK, 8, 70000}, {"socket", NF3SOCK, 0, 0}, {"fifo", NF3FIFO, 0, 0}};
    for (int i = 0; i < 4; i++) {
        before = attr_of(dir);
        r = make_node(dir, kinds[i].name, kinds[i].type, kinds[i].major, kinds[i].minor, set_mode_to(0620));
        made = r->handle;
        check_made("MKNOD", r, &before, dir, kinds[i].name);
        a = attr_of(&made);
        check(a.type == kinds[i].type && a.mode == 0620 && a.nlink == 1, "MKNOD of a %s: its type and mode", kinds[i].name);
        if (i < 2) check(a.rdev.specdata1 == kinds[i].major && a.rdev.specdata2 == kinds[i].minor, "its device number");
        EXPECT(make_node(dir, kinds[i].name, kinds[i].type, 0, 0, set_nothing()), "of what is there", NFS3ERR_EXIST);
        EXPECT(read_from(&made, 0, 10), "of a special file", NFS3ERR_INVAL);
    }
    EXPECT(make_node(dir, "regular", NF3REG, 0, 0, set_nothing()), "of a regular file", NFS3ERR_BADTYPE);
    EXPECT(make_node(dir, "directory-2", NF3DIR, 0, 0, set_nothing()), "of a directory", NFS3ERR_BADTYPE);
    EXPECT(make_node(dir, "symlink-2", NF3LNK, 0, 0, set_nothing()), "of a symbolic link", NFS3ERR_BADTYPE);
    EXPECT(lookup(dir, "regular"), "of what MKNOD refused", NFS3ERR_NOENT);
    struct handle open_dir = new_dir(dir, "open", 0777);
    as(1000, 1000);
    EXPECT(make_node(&open_dir, "device", NF3CHR, 1, 3, set_nothing()), "of a device, by a user", NFS3ERR_PERM, NFS3ERR_ACCES);
    OK(make_node(&open_dir, "fifo", NF3FIFO, 0, 0, set_nothing()), "of a fifo, by a user");
    as(0, 0);
}

static void test_link_and_remove(H dir) {
    struct handle file = new_file(dir, "one", "text");
    struct handle other_dir = new_dir(dir, "other", 0755);
    fattr3 before = attr_of(&other_dir), a = attr_of(&file);
    R r = link_to(&file, &other_dir, "two");
    OK(r, "to another directory");
    check(same_attr_as(&r->attr, &file), "LINK tells the file's attributes");
    check_wcc("LINK", &r->wcc, &before, &other_dir);
    fattr3 b = attr_of(&file);
    check(b.nlink == 2 && b.fileid == a.fileid, "the file has two links");
    promise(later(b.ctime, a.ctime) && same_time(b.mtime, a.mtime), "its ctime moves, its mtime does not");
    r = lookup(&other_dir, "two");
    check(r->has_handle && attr_of(&r->handle).fileid == a.fileid, "the second name leads to it");
    EXPECT(link_to(&file, &other_dir, "two"), "to a name that is there", NFS3ERR_EXIST);
    EXPECT(link_to(&other_dir, dir, "directory-two"), "to a directory", NFS3ERR_INVAL, NFS3ERR_ISDIR, NFS3ERR_PERM);
    OK(make_symlink(dir, "symlink-one", "one", set_nothing()), "to be linked to");
    r = lookup(dir, "symlink-one");
    struct handle symlink = r->handle;
    OK(link_to(&symlink, dir, "symlink-two"), "to a symbolic link");
    check(attr_of(&symlink).nlink == 2 && attr_of(&file).nlink == 2, "it is the symbolic link that has two links");

    before = attr_of(dir);
    r = remove_file(dir, "one");
    OK(r, "of the first name");
    check_wcc("REMOVE", &r->wcc, &before, dir);
    check(attr_of(&file).nlink == 1, "the file has a link less");
    EXPECT(lookup(dir, "one"), "of a name that was removed", NFS3ERR_NOENT);
    check(strcmp(read_from(&file, 0, 10)->data, "text") == 0, "its handle is good and its content is there");
    OK(remove_file(&other_dir, "two"), "of the last name");
    EXPECT(getattr(&file), "of a file that was removed", NFS3ERR_STALE);
    EXPECT(remove_file(&other_dir, "two"), "of a name that is not there", NFS3ERR_NOENT);
    EXPECT(remove_file(dir, "other"), "of a directory", NFS3ERR_ISDIR, NFS3ERR_PERM);
    EXPECT(remove_file(dir, "."), "of .", NFS3ERR_INVAL, NFS3ERR_ISDIR, NFS3ERR_PERM);
    EXPECT(remove_file(dir, ".."), "of ..", NFS3ERR_INVAL, NFS3ERR_ISDIR, NFS3ERR_PERM, NFS3ERR_EXIST);

    before = attr_of(dir);
    r = remove_dir(dir, "other");
    OK(r, "of an empty directory");
    check_wcc("RMDIR", &r->wcc, &before, dir);
    check(attr_of(dir).nlink == before.nlink - 1, "its parent has a link less");
    EXPECT(getattr(&other_dir), "of a directory that was removed", NFS3ERR_STALE);
    struct handle full = new_dir(dir, "full", 0755);
    new_file(&full, "file", "");
    EXPECT(remove_dir(dir, "full"), "of a directory with a file in it", NFS3ERR_NOTEMPTY, NFS3ERR_EXIST);
    OK(lookup(&full, "file"), "of that file");
    EXPECT(remove_dir(dir, "other"), "of a name that is not there", NFS3ERR_NOENT);
    EXPECT(remove_dir(&full, "file"), "of a file", NFS3ERR_NOTDIR);
    EXPECT(remove_dir(&full, "."), "of .", NFS3ERR_INVAL);
    EXPECT(remove_dir(&full, ".."), "of ..", NFS3ERR_EXIST, NFS3ERR_INVAL, NFS3ERR_NOTEMPTY);
}

void test_names(void) {
    part("names");
    struct handle dir = new_dir(&top, "names", 0755);
    test_create(&dir);
    test_lookup(&dir);
    test_special(&dir);
    test_link_and_remove(&dir);
}

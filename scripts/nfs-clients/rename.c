// RENAME, over everything.
#include "client.h"

#include <stdio.h>

static uint64_t fileid_at(H dir, const char *name) {
    R r = lookup(dir, name);
    return !r->lost && r->status == NFS3_OK ? attr_of(&r->handle).fileid : 0;
}

void test_rename(void) {
    part("RENAME");
    struct handle one = new_dir(&top, "rename-one", 0755), two = new_dir(&top, "rename-two", 0755);
    struct handle file = new_file(&one, "a", "source");
    uint64_t id = attr_of(&file).fileid;

    fattr3 before = attr_of(&one), to_before = attr_of(&two);
    R r = rename_to(&one, "a", &one, "b");
    OK(r, "to a new name");
    check_wcc("RENAME, where from", &r->wcc, &before, &one);
    check(fileid_at(&one, "a") == 0 && fileid_at(&one, "b") == id, "the new name leads to it, the old one to nothing");
    check(attr_of(&file).nlink == 1, "its handle is good");
    before = attr_of(&one);
    r = rename_to(&one, "b", &two, "c");
    OK(r, "to another directory");
    check_wcc("RENAME, where from", &r->wcc, &before, &one);
    check_wcc("RENAME, where to", &r->to_wcc, &to_before, &two);
    check(fileid_at(&one, "b") == 0 && fileid_at(&two, "c") == id, "it is there");

    struct handle target = new_file(&one, "target", "target");
    OK(rename_to(&two, "c", &one, "target"), "over a file");
    check(fileid_at(&one, "target") == id && fileid_at(&two, "c") == 0, "the file has its place");
    EXPECT(getattr(&target), "of the file that was there", NFS3ERR_STALE);
    r = read_from(&file, 0, 100);
    check(!r->lost && strcmp(r->data, "source") == 0, "its content is its own");

    target = new_file(&one, "linked-1", "two names");
    OK(link_to(&target, &two, "linked-2"), "for the next one");
    OK(rename_to(&one, "target", &two, "linked-2"), "over one of two names");
    check(attr_of(&target).nlink == 1 && fileid_at(&two, "linked-2") == id, "the other name stays");

    // Two names of one file: nothing happens.
    OK(link_to(&file, &one, "same"), "for the next one");
    OK(rename_to(&one, "same", &two, "linked-2"), "over another name of the same file");
    check(fileid_at(&one, "same") == id && fileid_at(&two, "linked-2") == id && attr_of(&file).nlink == 2, "both names stay");
    OK(rename_to(&one, "same", &one, "same"), "to the same name");
    check(fileid_at(&one, "same") == id, "it stays");

    // Directories.
    struct handle dir = new_dir(&one, "dir", 0755), empty = new_dir(&two, "empty", 0755);
    new_file(&dir, "inside", "inside");
    id = attr_of(&dir).fileid;
    uint32_t links_one = attr_of(&one).nlink, links_two = attr_of(&two).nlink;
    OK(rename_to(&one, "dir", &two, "moved"), "of a directory to another one");
    check(attr_of(&one).nlink == links_one - 1 && attr_of(&two).nlink == links_two + 1, "the links of both directories follow");
    check(fileid_at(&dir, "..") == attr_of(&two).fileid, "its .. follows");
    OK(rename_to(&two, "moved", &two, "empty"), "of a directory over an empty one");
    EXPECT(getattr(&empty), "of the directory that was there", NFS3ERR_STALE);
    check(fileid_at(&two, "empty") == id && fileid_at(&dir, "inside") != 0, "it has its place and its content");

    // What does not fit: EXIST says the text of the RFC; its list of errors also has those that say more.
    new_dir(&one, "other", 0755);
    EXPECT(rename_to(&one, "other", &two, "empty"), "of a directory over a full one", NFS3ERR_EXIST, NFS3ERR_NOTEMPTY);
    EXPECT(rename_to(&one, "other", &one, "same"), "of a directory over a file", NFS3ERR_EXIST, NFS3ERR_NOTDIR);
    before = attr_of(&one), to_before = attr_of(&two);
    r = rename_to(&one, "same", &two, "empty");
    EXPECT(r, "of a file over a directory", NFS3ERR_EXIST, NFS3ERR_ISDIR);
    check_wcc("RENAME that fails, where from", &r->wcc, &before, &one);
    check_wcc("RENAME that fails, where to", &r->to_wcc, &to_before, &two);
    check(fileid_at(&one, "same") != 0 && fileid_at(&one, "other") != 0 && fileid_at(&two, "empty") == id, "all of them stay");

    // A tree stays a tree.
    struct handle sub = new_dir(&dir, "sub", 0755);
    EXPECT(rename_to(&two, "empty", &sub, "below-itself"), "of a directory below itself", NFS3ERR_INVAL);
    EXPECT(rename_to(&two, "empty", &dir, "in-itself"), "of a directory into itself", NFS3ERR_INVAL);
    EXPECT(rename_to(&dir, "sub", &two, "empty"), "of a directory over its parent", NFS3ERR_EXIST, NFS3ERR_NOTEMPTY, NFS3ERR_INVAL);
    const char *dots[] = {".", ".."};
    for (int i = 0; i < 2; i++) {
        EXPECT(rename_to(&dir, dots[i], &one, "dots"), "of . or ..", NFS3ERR_INVAL, NFS3ERR_EXIST);
        EXPECT(rename_to(&one, "same", &dir, dots[i]), "to . or ..", NFS3ERR_INVAL, NFS3ERR_EXIST);
    }
    EXPECT(rename_to(&one, "nothing", &two, "x"), "of a name that is not there", NFS3ERR_NOENT);
    EXPECT(rename_to(&one, "nothing", &one, "nothing"), "of a name that is not there to itself", NFS3ERR_NOENT);
}

// FSSTAT, FSINFO, PATHCONF: what they tell is plausible and kept to.
#include "client.h"

#include <stdio.h>
#include <stdlib.h>

static void test_fsstat(H dir) {
    R r = fsstat(&export_root);
    OK(r, "of the root");
    FSSTAT3resok s = r->fsstat;
    check(s.tbytes >= s.fbytes && s.fbytes >= s.abytes && s.abytes > 0, "of all bytes some are free, of those some are ours");
    check(s.tfiles >= s.ffiles && s.ffiles >= s.afiles && s.afiles > 0, "of all files, too");
    enum { LEN = 1 << 20 };
    char *bytes = malloc(LEN);
    need(bytes != NULL, "memory");
    memset(bytes, 'b', LEN);
    struct handle file = new_file(dir, "a-mebibyte", "");
    for (uint32_t done = 0; done < LEN;) {
        r = write_to(&file, done, bytes + done, LEN - done < 1 << 16 ? LEN - done : 1 << 16, FILE_SYNC);
        need(!r->lost && r->status == NFS3_OK && r->count > 0, "a WRITE that succeeds");
        done += r->count;
    }
    free(bytes);
    r = fsstat(dir);
    OK(r, "of any file");
    check(r->fsstat.fbytes + LEN <= s.fbytes, "a mebibyte more is used");
    check(attr_of(&file).used >= LEN, "by the file, it says");
    OK(remove_file(dir, "a-mebibyte"), "of it");
    r = fsstat(&export_root);
    check(r->fsstat.fbytes + LEN / 8 >= s.fbytes, "and is free again: %lld bytes are not",
          (long long)(s.fbytes - r->fsstat.fbytes));
}

static void test_fsinfo(H dir) {
    R r = fsinfo(&export_root);
    OK(r, "of the root");
    FSINFO3resok i = r->fsinfo;
    check(i.rtmax >= i.rtpref && i.rtpref >= 512 && i.wtmax >= i.wtpref && i.wtpref >= 512 && i.dtpref >= 512, "sizes are sizes");
    check(i.rtmult > 0 && i.wtmult > 0 && i.rtpref % i.rtmult == 0 && i.wtpref % i.wtmult == 0, "preferred sizes are multiples");
    check(i.properties == (FSF3_LINK | FSF3_SYMLINK | FSF3_HOMOGENEOUS | FSF3_CANSETTIME), "it can do all that can be said");
    check(i.time_delta.seconds == 0 && i.time_delta.nseconds < 1000000000, "times are finer than a second");

    struct handle file = new_file(dir, "largest", "");
    R w = write_to(&file, i.maxfilesize - 1, "x", 1, FILE_SYNC);
    OK(w, "of the last byte that a file can have");
    check(attr_of(&file).size == i.maxfilesize, "the file is as large as files can be: %llu", (unsigned long long)i.maxfilesize);
    EXPECT(write_to(&file, i.maxfilesize, "x", 1, FILE_SYNC), "of the byte after its end", NFS3ERR_FBIG);
    EXPECT(write_to(&file, UINT64_MAX - 1, "xxxx", 4, FILE_SYNC), "over the end of all numbers", NFS3ERR_FBIG, NFS3ERR_INVAL);
    EXPECT(write_to(&file, 1ULL << 63, "x", 1, UNSTABLE), "of a byte that is negative to some", NFS3ERR_FBIG, NFS3ERR_INVAL);
    r = read_from(&file, i.maxfilesize - 1, 100);
    check(!r->lost && r->status == NFS3_OK && r->count == 1 && r->eof && r->data[0] == 'x', "the last byte is there");
    r = read_from(&file, UINT64_MAX, 100);
    check(!r->lost && (r->status == NFS3ERR_INVAL || (r->status == NFS3_OK && r->count == 0 && r->eof)),
          "a READ at the end of all numbers is refused or finds nothing");
    EXPECT(setattr(&file, set_size_to(i.maxfilesize + 1), NULL), "of a size above that", NFS3ERR_FBIG, NFS3ERR_INVAL);
    EXPECT(setattr(&file, set_size_to(UINT64_MAX), NULL), "of the largest number as a size", NFS3ERR_FBIG, NFS3ERR_INVAL);
    OK(setattr(&file, set_size_to(i.maxfilesize), NULL), "of the largest size");
    OK(remove_file(dir, "largest"), "of it");
}

static void test_pathconf(H dir) {
    R r = pathconf_of(dir);
    OK(r, "of a directory");
    PATHCONF3resok p = r->pathconf;
    check(p.name_max >= 14 && p.name_max < 4096 && p.linkmax >= 1, "names and links have limits");
    check(p.no_trunc && p.chown_restricted && !p.case_insensitive && p.case_preserving, "it is as POSIX has it");
    char *name = malloc(p.name_max + 2);
    need(name != NULL, "memory");
    memset(name, 'n', p.name_max + 1);
    name[p.name_max + 1] = 0;
    EXPECT(create(dir, name, GUARDED, set_nothing()), "of a name that is longer than name_max", NFS3ERR_NAMETOOLONG);
    name[p.name_max] = 0;
    OK(create(dir, name, GUARDED, set_nothing()), "of a name as long as name_max");
    OK(lookup(dir, name), "of it");
    OK(remove_file(dir, name), "of it");
    free(name);
    struct handle file = new_file(dir, "given-away", "");
    OK(setattr(&file, set_owner_to(1000, 1000), NULL), "by root");
    as(1000, 1000);
    EXPECT(setattr(&file, set_owner_to(1001, 1000), NULL), "of the owner by the owner: chown is restricted", NFS3ERR_PERM);
    as(0, 0);
}

void test_limits(void) {
    part("limits");
    struct handle dir = new_dir(&top, "limits", 0755);
    test_fsstat(&dir);
    test_fsinfo(&dir);
    test_pathconf(&dir);
}

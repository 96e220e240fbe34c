// MOUNT, and what is below the procedures: versions, credentials, addresses, calls that come twice.
#include "client.h"

#include <stdio.h>
#include <string.h>

static bool expect_mount(const char *path, const char *what, mountstat3 wanted) {
    struct mounted m = mnt(path);
    if (m.lost) return check(false, "MNT of %s: %s", what, m.lost);
    saw_mount(m.status);
    return check(m.status == wanted, "MNT of %s: %d (%d is right)", what, (int)m.status, (int)wanted);
}

static bool same_handle(H a, H b) { return a->len == b->len && memcmp(a->bytes, b->bytes, a->len) == 0; }

void test_mount(void) {
    part("MOUNT");
    check(mount_null(), "NULL is answered");
    expect_mount(options.export, "the export", MNT3_OK);
    struct mounted m = mnt(options.export);
    need(!m.lost && m.status == MNT3_OK, "the export can be mounted");
    bool sys = false;
    for (int i = 0; i < m.flavors_len; i++) sys |= m.flavors[i] == AUTH_UNIX;
    check(sys, "MNT offers AUTH_SYS");
    struct mounted again = mnt(options.export);
    promise(same_handle(&m.handle, &again.handle), "MNT gives the same handle again");

    char path[2048], long_name[301];
    snprintf(path, sizeof path, "%s/%s", strcmp(options.export, "/") == 0 ? "" : options.export, top_name);
    m = mnt(path);
    if (promise(!m.lost && m.status == MNT3_OK, "MNT of a directory in the export"))
        check(attr_of(&m.handle).fileid == attr_of(&top).fileid, "it is that directory");
    umnt(path);
    new_file(&top, "not-a-directory", "");
    snprintf(path, sizeof path, "%s/%s/not-a-directory", options.export, top_name);
    expect_mount(path, "a file", MNT3ERR_NOTDIR);
    snprintf(path, sizeof path, "%s/%s/nothing", options.export, top_name);
    expect_mount(path, "a directory that is not there", MNT3ERR_NOENT);
    memset(long_name, 'n', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = 0;
    snprintf(path, sizeof path, "%s/%s", options.export, long_name);
    expect_mount(path, "a name of 300 bytes", MNT3ERR_NAMETOOLONG);
    expect_mount("/no-such-export", "an export that is not there", MNT3ERR_NOENT);
    snprintf(path, sizeof path, "%s/%s/..", options.export, top_name);
    expect_mount(path, "a path with .. in it", MNT3ERR_INVAL);
    expect_mount(options.refused, "an export for other hosts", MNT3ERR_ACCES);

    need(umntall(), "UMNTALL");
    check(dump_counts(options.export) == 0, "DUMP lists nothing after UMNTALL");
    mnt(options.export);
    mnt(options.read_only);
    mnt(options.read_only);
    check(dump_counts(options.export) == 1, "DUMP lists the export that was mounted");
    promise(dump_counts(options.read_only) == 1, "one that was mounted twice is listed once");
    check(dump_counts(options.refused) == 0, "what could not be mounted is not listed");
    check(umnt(options.read_only) && dump_counts(options.read_only) == 0, "UMNT takes it from the list");
    check(dump_counts(options.export) == 1, "and no other");
    mnt(options.squashed);
    check(umntall() && dump_counts(options.export) == 0 && dump_counts(options.squashed) == 0, "UMNTALL takes all");

    char groups[256];
    const char *all[] = {options.export, options.read_only, options.squashed, options.small};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        check(export_counts(all[i], groups, sizeof groups) == 1, "EXPORT lists %s once", all[i]);
    check(export_counts(options.refused, groups, sizeof groups) == 1, "EXPORT lists what is for others");
    promise(strcmp(groups, "192.0.2.0/24") == 0, "and tells for whom: %s", groups);
}

// ---------------------------------------------------------------- RPC

// Sends the call that follows under the number of the one before, as a client does that has heard nothing.
static uint32_t number = 0x5feed000;
static void first(void) { rpc_set_next_xid(nfs.rpc, ++number); }
static void once_more(void) { rpc_set_next_xid(nfs.rpc, number); }

static void twice(const char *what, R one, R other) {
    bool answered = !one->lost && !other->lost;
    promise(answered && one->status == NFS3_OK && other->status == NFS3_OK && same_handle(&one->handle, &other->handle),
            "%s that comes again is answered and not done again: %s", what,
            answered ? status_name(other->status) : "no answer");
}
#define TWICE(what, call)             \
    do {                              \
        first();                      \
        R one = call;                 \
        once_more();                  \
        twice(what, one, call);       \
    } while (0)

static void test_retransmission(void) {
    struct handle dir = new_dir(&top, "twice", 0755);
    struct handle file = new_file(&dir, "file", "text");
    TWICE("CREATE", create(&dir, "created", GUARDED, set_nothing()));
    TWICE("MKDIR", make_dir(&dir, "directory", set_nothing()));
    TWICE("SYMLINK", make_symlink(&dir, "symlink", "target", set_nothing()));
    TWICE("MKNOD", make_node(&dir, "fifo", NF3FIFO, 0, 0, set_nothing()));
    TWICE("LINK", link_to(&file, &dir, "link"));
    TWICE("RENAME", rename_to(&dir, "link", &dir, "renamed"));
    TWICE("REMOVE", remove_file(&dir, "renamed"));
    TWICE("RMDIR", remove_dir(&dir, "directory"));
    nfstime3 ctime = attr_of(&file).ctime;
    TWICE("SETATTR under a guard", setattr(&file, set_mode_to(0600), &ctime));
    first();
    write_to(&file, 0, "TEXT", 4, FILE_SYNC);
    uint32_t of_write = number;
    first();
    write_to(&file, 0, "else", 4, FILE_SYNC);
    rpc_set_next_xid(nfs.rpc, of_write);
    OK(write_to(&file, 0, "TEXT", 4, FILE_SYNC), "that comes again, late");
    promise(strcmp(read_from(&file, 0, 10)->data, "else") == 0, "a WRITE that comes again undoes nothing");
    first();
}

void test_rpc(void) {
    part("RPC");
    OK(null_call(), "is answered");
    const char *refusal = refusal_of_nfs2();
    promise(refusal != NULL, "NFS version 2 is refused: %s", refusal ? refusal : "it is not");
    refusal = refusal_of_mount1();
    promise(refusal != NULL, "MOUNT version 1 is refused: %s", refusal ? refusal : "it is not");
    OK(null_call(), "afterwards, over the same connection");
    test_retransmission();

    struct connection first_one = nfs;
    nfs.rpc = NULL;
    const char *host = options.ipv4 ? options.host : "::1";
    if (promise(connect_to(&nfs, host, options.port, NFS_PROGRAM, NFS_V3, 1), "%s is served, too", host)) {
        OK(getattr(&export_root), "over another connection");
        // Without a credential, every client is the user nobody.
        rpc_set_auth(nfs.rpc, libnfs_authnone_create());
        OK(getattr(&top), "with AUTH_NONE");
        EXPECT(make_dir(&top, "by-nobody", set_nothing()), "with AUTH_NONE", NFS3ERR_ACCES);
    }
    disconnect(&nfs);
    nfs = first_one;
}

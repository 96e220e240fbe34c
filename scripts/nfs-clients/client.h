// What the parts of the NFS client share: replies, calls, checks.
#ifndef CLIENT_H
#define CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/time.h>

#include <nfsc/libnfs.h>
#include <nfsc/libnfs-zdr.h>
#include <nfsc/libnfs-raw.h>
#include <nfsc/libnfs-raw-mount.h>
#include <nfsc/libnfs-raw-nfs.h>

#define PROCEDURES 22

// What is tested, as the command line says.
struct options {
    const char *host;
    int port, mount_port;
    const char *export;     // everything is allowed, root is root
    const char *read_only;  // the same volume, read only
    const char *squashed;   // the same volume, everybody is anonymous
    const char *small;      // a small volume
    const char *refused;    // not for this host
    bool sync;              // every call is durable: attributes before a change are left out, UNSTABLE is FILE_SYNC
    bool ipv4;              // this machine has no IPv6
    bool few_links;         // leave out the tens of thousands of links to one file
};
extern struct options options;

struct handle {
    uint32_t len;
    char bytes[NFS3_FHSIZE];
};

struct entry {
    fileid3 fileid;
    cookie3 cookie;
    char name[NFS3_FHSIZE * 8];
    post_op_attr attr;
    bool has_handle;
    struct handle handle;
};

// A reply to any procedure, copied out of the library. It is good until some thirty calls later.
struct reply {
    int procedure;
    const char *lost;  // why the procedure did not answer; NULL if it did
    nfsstat3 status;
    post_op_attr attr;      // of the object
    post_op_attr dir_attr;  // of the directory it was looked up in
    wcc_data wcc;           // of the object or directory that changes
    wcc_data to_wcc;        // of the directory that is renamed to
    bool has_handle;
    struct handle handle;
    uint32_t access;
    count3 count;
    stable_how committed;
    char verifier[NFS3_WRITEVERFSIZE];
    bool eof;
    char *data;  // ends with a zero that is not counted
    size_t data_len, data_room;
    struct entry *entries;
    size_t entries_len, entries_room;
    size_t listing_bytes;  // of the result, as the protocol packs it
    FSSTAT3resok fsstat;
    FSINFO3resok fsinfo;
    PATHCONF3resok pathconf;
};

// ---------------------------------------------------------------- connections (connection.c)

struct connection {
    struct rpc_context *rpc;
    const char *host;
    int port, program, version;
    uint32_t uid, gid;
};
extern struct connection nfs, mountd;

// Connects, NULL included; false if that fails within `seconds`.
bool connect_to(struct connection *c, const char *host, int port, int program, int version, int seconds);
void disconnect(struct connection *c);
// Lets the library work until `*waiting` is not positive. False if the connection ends or nothing happens for long.
bool work_while(struct connection *c, const int *waiting);
// Sets the user and group of later requests.
void as(uint32_t uid, uint32_t gid);

// ---------------------------------------------------------------- calls (calls.c)

// These stand in nearly every line.
typedef struct reply *R;
typedef const struct handle *H;

sattr3 set_nothing(void);
sattr3 set_mode_to(uint32_t mode);
sattr3 set_size_to(uint64_t size);
sattr3 set_owner_to(uint32_t uid, uint32_t gid);

nfs_fh3 fh(H handle);
struct handle copied(uint32_t len, const char *bytes);

R null_call(void);
R getattr(H object);
R setattr(H object, sattr3 set, const nfstime3 *guard);
R lookup(H dir, const char *name);
R access_to(H object, uint32_t wanted);
R read_link(H link);
R read_from(H file, uint64_t offset, uint32_t count);
R write_to(H file, uint64_t offset, const char *data, uint32_t len, stable_how how);
R write_lying(H file, uint32_t count, const char *data, uint32_t len);
R create(H dir, const char *name, createmode3 mode, sattr3 set);
R create_exclusive(H dir, const char *name, const char *verifier);
R make_dir(H dir, const char *name, sattr3 set);
R make_symlink(H dir, const char *name, const char *target, sattr3 set);
R make_node(H dir, const char *name, ftype3 type, uint32_t major, uint32_t minor, sattr3 set);
R remove_file(H dir, const char *name);
R remove_dir(H dir, const char *name);
R rename_to(H from, const char *name, H to, const char *new_name);
R link_to(H file, H dir, const char *name);
R read_dir(H dir, cookie3 cookie, const char *verifier, uint32_t count);
R read_dir_plus(H dir, cookie3 cookie, const char *verifier, uint32_t dircount, uint32_t maxcount);
R fsstat(H root);
R fsinfo(H root);
R pathconf_of(H object);
R commit(H file, uint64_t offset, uint32_t count);

// MOUNT.
struct mounted {
    const char *lost;
    mountstat3 status;
    struct handle handle;
    int flavors_len, flavors[16];
};
struct mounted mnt(const char *path);
bool mount_null(void);
bool umnt(const char *path);
bool umntall(void);
// How many mounts of this path are listed; -1 if there was no answer.
int dump_counts(const char *path);
// The same for exports; their groups are put into `groups`, with commas.
int export_counts(const char *path, char *groups, size_t groups_room);
// What the server answers to a version or program it does not have; NULL if it does.
const char *refusal_of_nfs2(void);
const char *refusal_of_mount1(void);

// ---------------------------------------------------------------- checks (checks.c)

// A new part of the test.
void part(const char *name);
// A statement that must be true by the RFC.
bool check(bool holds, const char *format, ...) __attribute__((format(printf, 2, 3)));
// A statement that the RFC leaves open and Steadfast promises.
bool promise(bool holds, const char *format, ...) __attribute__((format(printf, 2, 3)));
// The reply must have one of these: by the RFC, or as Steadfast promises.
bool expect_one(bool (*say)(bool, const char *, ...), R reply, const char *what, const nfsstat3 *wanted, int wanted_len);
#define ONE_OF(say, reply, what, ...)                              \
    expect_one(say, reply, what, (const nfsstat3[]){__VA_ARGS__}, \
               (int)(sizeof((const nfsstat3[]){__VA_ARGS__}) / sizeof(nfsstat3)))
#define EXPECT(reply, what, ...) ONE_OF(check, reply, what, __VA_ARGS__)
#define PROMISED(reply, what, ...) ONE_OF(promise, reply, what, __VA_ARGS__)
#define OK(reply, what) EXPECT(reply, what, NFS3_OK)
// Ends the test: what follows makes no sense without this.
void need(bool holds, const char *what);
void die(const char *what) __attribute__((noreturn));

const char *status_name(nfsstat3 status);
const char *procedure_name(int procedure);
// Notes that a procedure gave this status.
void saw(int procedure, nfsstat3 status);
void saw_mount(mountstat3 status);
// The table of procedures and errors. With `complete`, what is missing is a failure.
void print_table(bool complete);
int failures(void);
void print_summary(void);

bool same_time(nfstime3 a, nfstime3 b);
bool later(nfstime3 a, nfstime3 b);
// The same but for the time of the last access.
bool same_attr(const fattr3 *a, const fattr3 *b);
fattr3 attr_of(H object);
// The attributes before and after a change, of an object that had `before` and now answers for itself.
void check_wcc(const char *what, const wcc_data *wcc, const fattr3 *before, H object);
// A new directory or file of the test; must succeed.
struct handle new_dir(H parent, const char *name, uint32_t mode);
struct handle new_file(H parent, const char *name, const char *content);

// ---------------------------------------------------------------- parts

extern struct handle top;  // a directory of the main export for this run
extern struct handle export_root;
extern char top_name[];

void test_mount(void);
void test_rpc(void);
void test_attributes(void);
void test_names(void);
void test_rename(void);
void test_data(void);
void test_listing(void);
void test_limits(void);
void test_errors(void);
void test_full_volume(void);
void test_links(void);
void test_restart(void);

#endif

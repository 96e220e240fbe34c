// What is said about a check, the count of those that failed, and the table of the errors that each procedure has given.
//
// The table holds the errors that RFC 1813 lists for a procedure. One that was not provoked must be among those that need not be,
// with the reason.
#include "client.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int checks, departures, broken_promises;
static const char *part_name = "";

void part(const char *name) {
    part_name = name;
    printf("== %s\n", name);
}

static void say(bool holds, const char *kind, const char *format, va_list args) {
    checks++;
    printf("%s %s%s: ", holds ? "ok  " : "FAIL", part_name, kind);
    vprintf(format, args);
    putchar('\n');
    fflush(stdout);
}

bool check(bool holds, const char *format, ...) {
    va_list args;
    va_start(args, format);
    say(holds, "", format, args);
    va_end(args);
    departures += !holds;
    return holds;
}

bool promise(bool holds, const char *format, ...) {
    va_list args;
    va_start(args, format);
    say(holds, " (promise)", format, args);
    va_end(args);
    broken_promises += !holds;
    return holds;
}

int failures(void) { return departures + broken_promises; }

void print_summary(void) {
    printf("%d checks, %d against the RFC and %d against what is promised beyond it\n", checks, departures, broken_promises);
}

void die(const char *what) {
    printf("FAIL %s: cannot go on: %s\n", part_name, what);
    exit(1);
}

void need(bool holds, const char *what) {
    if (!holds) die(what);
}

// ---------------------------------------------------------------- statuses

static const struct {
    nfsstat3 status;
    const char *name;
} statuses[] = {
    {NFS3_OK, "OK"},
    {NFS3ERR_PERM, "PERM"},
    {NFS3ERR_NOENT, "NOENT"},
    {NFS3ERR_IO, "IO"},
    {NFS3ERR_NXIO, "NXIO"},
    {NFS3ERR_ACCES, "ACCES"},
    {NFS3ERR_EXIST, "EXIST"},
    {NFS3ERR_XDEV, "XDEV"},
    {NFS3ERR_NODEV, "NODEV"},
    {NFS3ERR_NOTDIR, "NOTDIR"},
    {NFS3ERR_ISDIR, "ISDIR"},
    {NFS3ERR_INVAL, "INVAL"},
    {NFS3ERR_FBIG, "FBIG"},
    {NFS3ERR_NOSPC, "NOSPC"},
    {NFS3ERR_ROFS, "ROFS"},
    {NFS3ERR_MLINK, "MLINK"},
    {NFS3ERR_NAMETOOLONG, "NAMETOOLONG"},
    {NFS3ERR_NOTEMPTY, "NOTEMPTY"},
    {NFS3ERR_DQUOT, "DQUOT"},
    {NFS3ERR_STALE, "STALE"},
    {NFS3ERR_REMOTE, "REMOTE"},
    {NFS3ERR_BADHANDLE, "BADHANDLE"},
    {NFS3ERR_NOT_SYNC, "NOT_SYNC"},
    {NFS3ERR_BAD_COOKIE, "BAD_COOKIE"},
    {NFS3ERR_NOTSUPP, "NOTSUPP"},
    {NFS3ERR_TOOSMALL, "TOOSMALL"},
    {NFS3ERR_SERVERFAULT, "SERVERFAULT"},
    {NFS3ERR_BADTYPE, "BADTYPE"},
    {NFS3ERR_JUKEBOX, "JUKEBOX"},
};
#define STATUSES ((int)(sizeof statuses / sizeof statuses[0]))

static int place_of(nfsstat3 status) {
    for (int i = 0; i < STATUSES; i++)
        if (statuses[i].status == status) return i;
    return -1;
}

const char *status_name(nfsstat3 status) {
    static char number[16];
    int place = place_of(status);
    if (place >= 0) return statuses[place].name;
    snprintf(number, sizeof number, "%d", (int)status);
    return number;
}

bool expect_one(bool (*say_it)(bool, const char *, ...), R reply, const char *what, const nfsstat3 *wanted, int wanted_len) {
    char list[128] = "";
    bool found = false;
    for (int i = 0; i < wanted_len; i++) {
        found |= !reply->lost && reply->status == wanted[i];
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? " or " : "", status_name(wanted[i]));
    }
    const char *procedure = procedure_name(reply->procedure);
    if (found) return say_it(true, "%s %s: %s", procedure, what, status_name(reply->status));
    return say_it(false, "%s %s: %s, not %s", procedure, what, reply->lost ? reply->lost : status_name(reply->status), list);
}

// ---------------------------------------------------------------- the table

#define ANY (-1)
#define LIST_MAX 24

// The lists of RFC 1813, section 3.3.
#define WRITES_NAMES NFS3ERR_IO, NFS3ERR_ACCES, NFS3ERR_EXIST, NFS3ERR_NOTDIR, NFS3ERR_NOSPC, NFS3ERR_ROFS, NFS3ERR_NAMETOOLONG, \
                     NFS3ERR_DQUOT, NFS3ERR_STALE, NFS3ERR_BADHANDLE, NFS3ERR_NOTSUPP, NFS3ERR_SERVERFAULT
static const struct {
    const char *name;
    nfsstat3 errors[LIST_MAX];
} rfc[PROCEDURES] = {
    [NFS3_NULL] = {"NULL", {0}},
    [NFS3_GETATTR] = {"GETATTR", {NFS3ERR_IO, NFS3ERR_STALE, NFS3ERR_BADHANDLE, NFS3ERR_SERVERFAULT}},
    [NFS3_SETATTR] = {"SETATTR", {NFS3ERR_PERM, NFS3ERR_IO, NFS3ERR_ACCES, NFS3ERR_INVAL, NFS3ERR_NOSPC, NFS3ERR_ROFS,
                                  NFS3ERR_DQUOT, NFS3ERR_NOT_SYNC, NFS3ERR_STALE, NFS3ERR_BADHANDLE, NFS3ERR_SERVERFAULT}},
    [NFS3_LOOKUP] = {"LOOKUP", {NFS3ERR_IO, NFS3ERR_NOENT, NFS3ERR_ACCES, NFS3ERR_NOTDIR, NFS3ERR_NAMETOOLONG, NFS3ERR_STALE,
                                NFS3ERR_BADHANDLE, NFS3ERR_SERVERFAULT}},
    [NFS3_ACCESS] = {"ACCESS", {NFS3ERR_IO, NFS3ERR_STALE, NFS3ERR_BADHANDLE, NFS3ERR_SERVERFAULT}},
    [NFS3_READLINK] = {"READLINK", {NFS3ERR_IO, NFS3ERR_INVAL, NFS3ERR_ACCES, NFS3ERR_STALE, NFS3ERR_BADHANDLE, NFS3ERR_NOTSUPP,
                                    NFS3ERR_SERVERFAULT}},
    [NFS3_READ] = {"READ", {NFS3ERR_IO, NFS3ERR_NXIO, NFS3ERR_ACCES, NFS3ERR_INVAL, NFS3ERR_STALE, NFS3ERR_BADHANDLE,
                            NFS3ERR_SERVERFAULT}},
    [NFS3_WRITE] = {"WRITE", {NFS3ERR_IO, NFS3ERR_ACCES, NFS3ERR_FBIG, NFS3ERR_DQUOT, NFS3ERR_NOSPC, NFS3ERR_ROFS, NFS3ERR_INVAL,
                              NFS3ERR_STALE, NFS3ERR_BADHANDLE, NFS3ERR_SERVERFAULT}},
    [NFS3_CREATE] = {"CREATE", {WRITES_NAMES}},
    [NFS3_MKDIR] = {"MKDIR", {WRITES_NAMES}},
    [NFS3_SYMLINK] = {"SYMLINK", {WRITES_NAMES}},
    [NFS3_MKNOD] = {"MKNOD", {WRITES_NAMES, NFS3ERR_BADTYPE}},
    [NFS3_REMOVE] = {"REMOVE", {NFS3ERR_NOENT, NFS3ERR_IO, NFS3ERR_ACCES, NFS3ERR_NOTDIR, NFS3ERR_NAMETOOLONG, NFS3ERR_ROFS,
                                NFS3ERR_STALE, NFS3ERR_BADHANDLE, NFS3ERR_SERVERFAULT}},
    [NFS3_RMDIR] = {"RMDIR", {NFS3ERR_NOENT, NFS3ERR_IO, NFS3ERR_ACCES, NFS3ERR_INVAL, NFS3ERR_EXIST, NFS3ERR_NOTDIR,
                              NFS3ERR_NAMETOOLONG, NFS3ERR_ROFS, NFS3ERR_NOTEMPTY, NFS3ERR_STALE, NFS3ERR_BADHANDLE, NFS3ERR_NOTSUPP,
                              NFS3ERR_SERVERFAULT}},
    [NFS3_RENAME] = {"RENAME", {NFS3ERR_NOENT, NFS3ERR_IO, NFS3ERR_ACCES, NFS3ERR_EXIST, NFS3ERR_XDEV, NFS3ERR_NOTDIR, NFS3ERR_ISDIR,
                                NFS3ERR_INVAL, NFS3ERR_NOSPC, NFS3ERR_ROFS, NFS3ERR_MLINK, NFS3ERR_NAMETOOLONG, NFS3ERR_NOTEMPTY,
                                NFS3ERR_DQUOT, NFS3ERR_STALE, NFS3ERR_BADHANDLE, NFS3ERR_NOTSUPP, NFS3ERR_SERVERFAULT}},
    [NFS3_LINK] = {"LINK", {NFS3ERR_IO, NFS3ERR_ACCES, NFS3ERR_EXIST, NFS3ERR_XDEV, NFS3ERR_NOTDIR, NFS3ERR_INVAL, NFS3ERR_NOSPC,
                            NFS3ERR_ROFS, NFS3ERR_MLINK, NFS3ERR_NAMETOOLONG, NFS3ERR_DQUOT, NFS3ERR_STALE, NFS3ERR_BADHANDLE,
                            NFS3ERR_NOTSUPP, NFS3ERR_SERVERFAULT}},
    [NFS3_READDIR] = {"READDIR", {NFS3ERR_IO, NFS3ERR_ACCES, NFS3ERR_NOTDIR, NFS3ERR_BAD_COOKIE, NFS3ERR_TOOSMALL, NFS3ERR_STALE,
                                  NFS3ERR_BADHANDLE, NFS3ERR_SERVERFAULT}},
    [NFS3_READDIRPLUS] = {"READDIRPLUS", {NFS3ERR_IO, NFS3ERR_ACCES, NFS3ERR_NOTDIR, NFS3ERR_BAD_COOKIE, NFS3ERR_TOOSMALL,
                                          NFS3ERR_STALE, NFS3ERR_BADHANDLE, NFS3ERR_NOTSUPP, NFS3ERR_SERVERFAULT}},
    [NFS3_FSSTAT] = {"FSSTAT", {NFS3ERR_IO, NFS3ERR_STALE, NFS3ERR_BADHANDLE, NFS3ERR_SERVERFAULT}},
    [NFS3_FSINFO] = {"FSINFO", {NFS3ERR_STALE, NFS3ERR_BADHANDLE, NFS3ERR_SERVERFAULT}},
    [NFS3_PATHCONF] = {"PATHCONF", {NFS3ERR_STALE, NFS3ERR_BADHANDLE, NFS3ERR_SERVERFAULT}},
    [NFS3_COMMIT] = {"COMMIT", {NFS3ERR_IO, NFS3ERR_STALE, NFS3ERR_BADHANDLE, NFS3ERR_SERVERFAULT}},
};

// What need not be had here, as no client can provoke it or the server says something better.
static const struct {
    int procedure;
    nfsstat3 status;
    const char *why;
} need_not_be[] = {
    {ANY, NFS3ERR_IO, "the medium is whole; the server's own tests take a failing one"},
    {ANY, NFS3ERR_SERVERFAULT, "it would be a bug of the server"},
    {ANY, NFS3ERR_DQUOT, "there are no quotas"},
    {ANY, NFS3ERR_NOTSUPP, "every procedure is supported"},
    {NFS3_READ, NFS3ERR_NXIO, "devices are the client's, no client reads them over NFS: INVAL"},
    {NFS3_READLINK, NFS3ERR_ACCES, "a client that has found a symbolic link may read it, whatever its mode"},
    {NFS3_SETATTR, NFS3ERR_NOSPC, "attributes have their place already, and a longer file gets a hole"},
    {NFS3_RENAME, NFS3ERR_EXIST, "ISDIR, NOTDIR and NOTEMPTY, which it has, too, say what rename(2) is to say"},
    {NFS3_RENAME, NFS3ERR_MLINK, "a rename makes no link meanwhile, and a directory may have any number of directories in it"},
};

// Those of MNT; with a reason if it need not be.
static struct {
    mountstat3 status;
    const char *name, *why;
    bool seen;
} mount_statuses[] = {
    {MNT3_OK, "OK", NULL, false},
    {MNT3ERR_PERM, "PERM", "the server answers ACCES instead", false},
    {MNT3ERR_NOENT, "NOENT", NULL, false},
    {MNT3ERR_IO, "IO", "the medium is whole", false},
    {MNT3ERR_ACCES, "ACCES", NULL, false},
    {MNT3ERR_NOTDIR, "NOTDIR", NULL, false},
    {MNT3ERR_INVAL, "INVAL", NULL, false},
    {MNT3ERR_NAMETOOLONG, "NAMETOOLONG", NULL, false},
    {MNT3ERR_NOTSUPP, "NOTSUPP", "every procedure is supported", false},
    {MNT3ERR_SERVERFAULT, "SERVERFAULT", "it would be a bug of the server", false},
};
#define MOUNT_STATUSES (sizeof mount_statuses / sizeof mount_statuses[0])

static uint32_t seen[PROCEDURES][STATUSES];

const char *procedure_name(int procedure) { return rfc[procedure].name; }

void saw(int procedure, nfsstat3 status) {
    int place = place_of(status);
    if (place < 0) check(false, "%s gives the status %d, which the RFC does not have", rfc[procedure].name, (int)status);
    else seen[procedure][place]++;
}

void saw_mount(mountstat3 status) {
    for (size_t i = 0; i < MOUNT_STATUSES; i++)
        if (mount_statuses[i].status == status) mount_statuses[i].seen = true;
}

static bool listed(int procedure, nfsstat3 status) {
    for (int i = 0; i < LIST_MAX && rfc[procedure].errors[i] != NFS3_OK; i++)
        if (rfc[procedure].errors[i] == status) return true;
    return status == NFS3_OK;
}

static const char *why_not(int procedure, nfsstat3 status) {
    for (size_t i = 0; i < sizeof need_not_be / sizeof need_not_be[0]; i++)
        if ((need_not_be[i].procedure == ANY || need_not_be[i].procedure == procedure) && need_not_be[i].status == status)
            return need_not_be[i].why;
    return NULL;
}

void print_table(bool complete) {
    part("errors of every procedure");
    printf("\n%-11s seen; [seen, though the RFC does not list it]; (listed and not seen, for the reasons below)\n", "");
    for (int p = 0; p < PROCEDURES; p++) {
        printf("%-11s", rfc[p].name);
        for (int s = 0; s < STATUSES; s++) {
            bool is_listed = listed(p, statuses[s].status);
            const char *name = statuses[s].name;
            if (seen[p][s]) printf(is_listed ? " %s" : " [%s]", name);
            else if (is_listed && p != NFS3_NULL && why_not(p, statuses[s].status)) printf(" (%s)", name);
        }
        putchar('\n');
    }
    printf("%-11s", "MNT");
    for (size_t i = 0; i < MOUNT_STATUSES; i++)
        if (mount_statuses[i].seen || mount_statuses[i].why)
            printf(mount_statuses[i].seen ? " %s" : " (%s)", mount_statuses[i].name);
    printf("\n\n");
    for (size_t i = 0; i < sizeof need_not_be / sizeof need_not_be[0]; i++) {
        int p = need_not_be[i].procedure;
        printf("%-11s (%s): %s\n", p == ANY ? "all" : rfc[p].name, status_name(need_not_be[i].status), need_not_be[i].why);
    }
    for (size_t i = 0; i < MOUNT_STATUSES; i++)
        if (mount_statuses[i].why) printf("%-11s (%s): %s\n", "MNT", mount_statuses[i].name, mount_statuses[i].why);
    putchar('\n');
    if (!complete) return;
    for (size_t i = 0; i < MOUNT_STATUSES; i++)
        if (!mount_statuses[i].why) promise(mount_statuses[i].seen, "MNT gave %s", mount_statuses[i].name);
    for (int p = 0; p < PROCEDURES; p++) {
        check(seen[p][0] > 0, "%s was called and succeeded", rfc[p].name);
        for (int i = 0; i < LIST_MAX && rfc[p].errors[i] != NFS3_OK; i++) {
            nfsstat3 status = rfc[p].errors[i];
            bool provoked = seen[p][place_of(status)] > 0;
            if (why_not(p, status) == NULL) promise(provoked, "%s gave %s", rfc[p].name, status_name(status));
        }
        uint32_t faults = seen[p][place_of(NFS3ERR_IO)] + seen[p][place_of(NFS3ERR_SERVERFAULT)];
        check(faults == 0, "%s gave no IO and no SERVERFAULT", rfc[p].name);
    }
}

// ---------------------------------------------------------------- attributes

bool same_time(nfstime3 a, nfstime3 b) { return a.seconds == b.seconds && a.nseconds == b.nseconds; }

bool later(nfstime3 a, nfstime3 b) { return a.seconds > b.seconds || (a.seconds == b.seconds && a.nseconds > b.nseconds); }

bool same_attr(const fattr3 *a, const fattr3 *b) {
    return a->type == b->type && a->mode == b->mode && a->nlink == b->nlink && a->uid == b->uid && a->gid == b->gid &&
           a->size == b->size && a->rdev.specdata1 == b->rdev.specdata1 && a->rdev.specdata2 == b->rdev.specdata2 &&
           a->fsid == b->fsid && a->fileid == b->fileid && same_time(a->mtime, b->mtime) && same_time(a->ctime, b->ctime);
}

fattr3 attr_of(H object) {
    R r = getattr(object);
    need(!r->lost && r->status == NFS3_OK, "the attributes of what is there");
    return r->attr.post_op_attr_u.attributes;
}

void check_wcc(const char *what, const wcc_data *wcc, const fattr3 *before, H object) {
    fattr3 now = attr_of(object);
    const wcc_attr *pre = &wcc->before.pre_op_attr_u.attributes;
    bool told = wcc->before.attributes_follow;
    promise(told || options.sync, "%s tells the attributes before", what);
    if (told)
        check(pre->size == before->size && same_time(pre->mtime, before->mtime) && same_time(pre->ctime, before->ctime),
              "%s: those before are those before", what);
    if (promise(wcc->after.attributes_follow, "%s tells the attributes after", what))
        check(same_attr(&wcc->after.post_op_attr_u.attributes, &now), "%s: those after are those now", what);
}

struct handle new_dir(H parent, const char *name, uint32_t mode) {
    R r = make_dir(parent, name, set_mode_to(mode));
    need(!r->lost && r->status == NFS3_OK && r->has_handle, "a new directory and its handle");
    return r->handle;
}

struct handle new_file(H parent, const char *name, const char *content) {
    R r = create(parent, name, GUARDED, set_mode_to(0644));
    need(!r->lost && r->status == NFS3_OK && r->has_handle, "a new file and its handle");
    struct handle file = r->handle;
    if (*content) {
        r = write_to(&file, 0, content, (uint32_t)strlen(content), FILE_SYNC);
        need(!r->lost && r->status == NFS3_OK && r->count == strlen(content), "a new file's content");
    }
    return file;
}

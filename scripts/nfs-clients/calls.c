// Every procedure of NFS version 3 and MOUNT version 3 as a plain function: arguments in, a copied reply out.
#include "client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RING 32

static struct reply ring[RING];
static int ring_at;
static int waiting;

nfs_fh3 fh(H handle) {
    return (nfs_fh3){.data = {.data_len = handle->len, .data_val = (char *)(uintptr_t)handle->bytes}};
}

struct handle copied(uint32_t len, const char *bytes) {
    struct handle handle = {.len = len};
    need(len <= NFS3_FHSIZE, "a handle of at most 64 bytes");
    memcpy(handle.bytes, bytes, len);
    return handle;
}

static diropargs3 in(H dir, const char *name) { return (diropargs3){.dir = fh(dir), .name = (char *)(uintptr_t)name}; }

// ---------------------------------------------------------------- attributes to set

sattr3 set_nothing(void) {
    sattr3 set;
    memset(&set, 0, sizeof set);
    return set;
}
sattr3 set_mode_to(uint32_t mode) {
    sattr3 set = set_nothing();
    set.mode.set_it = 1, set.mode.set_mode3_u.mode = mode;
    return set;
}
sattr3 set_size_to(uint64_t size) {
    sattr3 set = set_nothing();
    set.size.set_it = 1, set.size.set_size3_u.size = size;
    return set;
}
sattr3 set_owner_to(uint32_t uid, uint32_t gid) {
    sattr3 set = set_nothing();
    set.uid.set_it = 1, set.uid.set_uid3_u.uid = uid;
    set.gid.set_it = 1, set.gid.set_gid3_u.gid = gid;
    return set;
}

// ---------------------------------------------------------------- replies

static R begin(int procedure) {
    R r = &ring[ring_at++ % RING];
    char *data = r->data;
    size_t data_room = r->data_room;
    struct entry *entries = r->entries;
    size_t entries_room = r->entries_room;
    memset(r, 0, sizeof *r);
    r->data = data, r->data_room = data_room;
    r->entries = entries, r->entries_room = entries_room;
    r->procedure = procedure;
    r->lost = "no answer";
    waiting = 1;
    return r;
}

// `sent` is what the library said when the call was queued.
static R finish(R r, int sent) {
    if (sent != 0) r->lost = "the library did not send the call";
    else if (!work_while(&nfs, &waiting)) r->lost = "the connection ended or the server is silent";
    if (!r->lost) saw(r->procedure, r->status);
    return r;
}

// Begins to take a result, which begins with its status. NULL if there is none.
static void *take(R r, int status, void *data) {
    waiting = 0;
    if (status != RPC_STATUS_SUCCESS) {
        static char why[256];
        snprintf(why, sizeof why, "%s", status == RPC_STATUS_ERROR && data ? (char *)data : "cancelled");
        r->lost = why;
        return NULL;
    }
    r->lost = NULL;
    // The result of NULL has nothing in it.
    if (r->procedure != NFS3_NULL) memcpy(&r->status, data, sizeof r->status);
    return data;
}

static void take_data(R r, const char *data, size_t len) {
    if (r->data_room < len + 1) {
        r->data_room = len + 1;
        r->data = realloc(r->data, r->data_room);
        need(r->data != NULL, "memory");
    }
    memcpy(r->data, data, len);
    r->data[len] = 0;
    r->data_len = len;
}

static void take_handle(R r, const post_op_fh3 *from) {
    r->has_handle = from->handle_follows;
    if (r->has_handle) {
        nfs_fh3 got = from->post_op_fh3_u.handle;
        r->handle = copied(got.data.data_len, got.data.data_val);
    }
}

// CALLBACK(procedure, Result): the body has `r`, the reply, and `res`, the result.
#define CALLBACK(name, Result)                                                                    \
    static void copy_##name(R r, Result *res);                                                    \
    static void got_##name(struct rpc_context *rpc, int status, void *data, void *private_data) { \
        (void)rpc;                                                                                \
        R r = private_data;                                                                       \
        Result *res = take(r, status, data);                                                      \
        if (res) copy_##name(r, res);                                                             \
    }                                                                                             \
    static void copy_##name(R r, Result *res)

// The commonest shapes of results; `u` is the union in the result.
#define CALLBACK_WCC(name, Result, u, wcc_name)                                                \
    CALLBACK(name, Result) {                                                                  \
        r->wcc = r->status == NFS3_OK ? res->u.resok.wcc_name : res->u.resfail.wcc_name;      \
    }
#define CALLBACK_MADE(name, Result, u)                \
    CALLBACK(name, Result) {                          \
        if (r->status != NFS3_OK) {                   \
            r->wcc = res->u.resfail.dir_wcc;          \
            return;                                   \
        }                                             \
        take_handle(r, &res->u.resok.obj);            \
        r->attr = res->u.resok.obj_attributes;        \
        r->wcc = res->u.resok.dir_wcc;                \
    }

static void got_null(struct rpc_context *rpc, int status, void *data, void *private_data) {
    (void)rpc;
    take(private_data, status, data);
}
R null_call(void) {
    R r = begin(NFS3_NULL);
    return finish(r, rpc_nfs3_null_async(nfs.rpc, got_null, r));
}

CALLBACK(getattr, GETATTR3res) {
    if (r->status != NFS3_OK) return;
    r->attr.attributes_follow = 1;
    r->attr.post_op_attr_u.attributes = res->GETATTR3res_u.resok.obj_attributes;
}
R getattr(H object) {
    GETATTR3args args = {.object = fh(object)};
    R r = begin(NFS3_GETATTR);
    return finish(r, rpc_nfs3_getattr_async(nfs.rpc, got_getattr, &args, r));
}

CALLBACK_WCC(setattr, SETATTR3res, SETATTR3res_u, obj_wcc)
R setattr(H object, sattr3 set, const nfstime3 *guard) {
    SETATTR3args args = {.object = fh(object), .new_attributes = set, .guard = {.check = guard != NULL}};
    if (guard) args.guard.sattrguard3_u.obj_ctime = *guard;
    R r = begin(NFS3_SETATTR);
    return finish(r, rpc_nfs3_setattr_async(nfs.rpc, got_setattr, &args, r));
}

CALLBACK(lookup, LOOKUP3res) {
    if (r->status != NFS3_OK) {
        r->dir_attr = res->LOOKUP3res_u.resfail.dir_attributes;
        return;
    }
    LOOKUP3resok *ok = &res->LOOKUP3res_u.resok;
    r->has_handle = true;
    r->handle = copied(ok->object.data.data_len, ok->object.data.data_val);
    r->attr = ok->obj_attributes;
    r->dir_attr = ok->dir_attributes;
}
R lookup(H dir, const char *name) {
    LOOKUP3args args = {.what = in(dir, name)};
    R r = begin(NFS3_LOOKUP);
    return finish(r, rpc_nfs3_lookup_async(nfs.rpc, got_lookup, &args, r));
}

CALLBACK(access, ACCESS3res) {
    bool ok = r->status == NFS3_OK;
    r->attr = ok ? res->ACCESS3res_u.resok.obj_attributes : res->ACCESS3res_u.resfail.obj_attributes;
    if (ok) r->access = res->ACCESS3res_u.resok.access;
}
R access_to(H object, uint32_t wanted) {
    ACCESS3args args = {.object = fh(object), .access = wanted};
    R r = begin(NFS3_ACCESS);
    return finish(r, rpc_nfs3_access_async(nfs.rpc, got_access, &args, r));
}

CALLBACK(readlink, READLINK3res) {
    bool ok = r->status == NFS3_OK;
    r->attr = ok ? res->READLINK3res_u.resok.symlink_attributes : res->READLINK3res_u.resfail.symlink_attributes;
    if (ok) take_data(r, res->READLINK3res_u.resok.data, strlen(res->READLINK3res_u.resok.data));
}
R read_link(H link) {
    READLINK3args args = {.symlink = fh(link)};
    R r = begin(NFS3_READLINK);
    return finish(r, rpc_nfs3_readlink_async(nfs.rpc, got_readlink, &args, r));
}

CALLBACK(read, READ3res) {
    if (r->status != NFS3_OK) {
        r->attr = res->READ3res_u.resfail.file_attributes;
        return;
    }
    READ3resok *ok = &res->READ3res_u.resok;
    r->attr = ok->file_attributes;
    r->count = ok->count;
    r->eof = ok->eof;
    take_data(r, ok->data.data_val, ok->data.data_len);
}
R read_from(H file, uint64_t offset, uint32_t count) {
    READ3args args = {.file = fh(file), .offset = offset, .count = count};
    R r = begin(NFS3_READ);
    return finish(r, rpc_nfs3_read_async(nfs.rpc, got_read, &args, r));
}

CALLBACK(write, WRITE3res) {
    if (r->status != NFS3_OK) {
        r->wcc = res->WRITE3res_u.resfail.file_wcc;
        return;
    }
    WRITE3resok *ok = &res->WRITE3res_u.resok;
    r->wcc = ok->file_wcc;
    r->count = ok->count;
    r->committed = ok->committed;
    memcpy(r->verifier, ok->verf, sizeof r->verifier);
}
static R write_args(H file, uint64_t offset, uint32_t count, const char *data, uint32_t len, stable_how how) {
    WRITE3args args = {.file = fh(file), .offset = offset, .count = count, .stable = how};
    args.data.data_len = len;
    args.data.data_val = (char *)(uintptr_t)data;
    R r = begin(NFS3_WRITE);
    return finish(r, rpc_nfs3_write_async(nfs.rpc, got_write, &args, r));
}
R write_to(H file, uint64_t offset, const char *data, uint32_t len, stable_how how) {
    return write_args(file, offset, len, data, len, how);
}
R write_lying(H file, uint32_t count, const char *data, uint32_t len) {
    return write_args(file, 0, count, data, len, FILE_SYNC);
}

CALLBACK_MADE(create, CREATE3res, CREATE3res_u)
static R create_args(H dir, const char *name, createhow3 how) {
    CREATE3args args = {.where = in(dir, name), .how = how};
    R r = begin(NFS3_CREATE);
    return finish(r, rpc_nfs3_create_async(nfs.rpc, got_create, &args, r));
}
R create(H dir, const char *name, createmode3 mode, sattr3 set) {
    createhow3 how = {.mode = mode};
    if (mode == GUARDED) how.createhow3_u.g_obj_attributes = set;
    else how.createhow3_u.obj_attributes = set;
    return create_args(dir, name, how);
}
R create_exclusive(H dir, const char *name, const char *verifier) {
    createhow3 how = {.mode = EXCLUSIVE};
    memcpy(how.createhow3_u.verf, verifier, NFS3_CREATEVERFSIZE);
    return create_args(dir, name, how);
}

CALLBACK_MADE(mkdir, MKDIR3res, MKDIR3res_u)
R make_dir(H dir, const char *name, sattr3 set) {
    MKDIR3args args = {.where = in(dir, name), .attributes = set};
    R r = begin(NFS3_MKDIR);
    return finish(r, rpc_nfs3_mkdir_async(nfs.rpc, got_mkdir, &args, r));
}

CALLBACK_MADE(symlink, SYMLINK3res, SYMLINK3res_u)
R make_symlink(H dir, const char *name, const char *target, sattr3 set) {
    SYMLINK3args args = {.where = in(dir, name),
                         .symlink = {.symlink_attributes = set, .symlink_data = (char *)(uintptr_t)target}};
    R r = begin(NFS3_SYMLINK);
    return finish(r, rpc_nfs3_symlink_async(nfs.rpc, got_symlink, &args, r));
}

CALLBACK_MADE(mknod, MKNOD3res, MKNOD3res_u)
R make_node(H dir, const char *name, ftype3 type, uint32_t major, uint32_t minor, sattr3 set) {
    MKNOD3args args = {.where = in(dir, name), .what = {.type = type}};
    devicedata3 device = {.dev_attributes = set, .spec = {major, minor}};
    switch (type) {
        case NF3CHR: args.what.mknoddata3_u.chr_device = device; break;
        case NF3BLK: args.what.mknoddata3_u.blk_device = device; break;
        case NF3SOCK: args.what.mknoddata3_u.sock_attributes = set; break;
        case NF3FIFO: args.what.mknoddata3_u.pipe_attributes = set; break;
        default: break;
    }
    R r = begin(NFS3_MKNOD);
    return finish(r, rpc_nfs3_mknod_async(nfs.rpc, got_mknod, &args, r));
}

CALLBACK_WCC(remove, REMOVE3res, REMOVE3res_u, dir_wcc)
R remove_file(H dir, const char *name) {
    REMOVE3args args = {.object = in(dir, name)};
    R r = begin(NFS3_REMOVE);
    return finish(r, rpc_nfs3_remove_async(nfs.rpc, got_remove, &args, r));
}

CALLBACK_WCC(rmdir, RMDIR3res, RMDIR3res_u, dir_wcc)
R remove_dir(H dir, const char *name) {
    RMDIR3args args = {.object = in(dir, name)};
    R r = begin(NFS3_RMDIR);
    return finish(r, rpc_nfs3_rmdir_async(nfs.rpc, got_rmdir, &args, r));
}

CALLBACK(rename, RENAME3res) {
    bool ok = r->status == NFS3_OK;
    r->wcc = ok ? res->RENAME3res_u.resok.fromdir_wcc : res->RENAME3res_u.resfail.fromdir_wcc;
    r->to_wcc = ok ? res->RENAME3res_u.resok.todir_wcc : res->RENAME3res_u.resfail.todir_wcc;
}
R rename_to(H from, const char *name, H to, const char *new_name) {
    RENAME3args args = {.from = in(from, name), .to = in(to, new_name)};
    R r = begin(NFS3_RENAME);
    return finish(r, rpc_nfs3_rename_async(nfs.rpc, got_rename, &args, r));
}

CALLBACK(link, LINK3res) {
    bool ok = r->status == NFS3_OK;
    r->attr = ok ? res->LINK3res_u.resok.file_attributes : res->LINK3res_u.resfail.file_attributes;
    r->wcc = ok ? res->LINK3res_u.resok.linkdir_wcc : res->LINK3res_u.resfail.linkdir_wcc;
}
R link_to(H file, H dir, const char *name) {
    LINK3args args = {.file = fh(file), .link = in(dir, name)};
    R r = begin(NFS3_LINK);
    return finish(r, rpc_nfs3_link_async(nfs.rpc, got_link, &args, r));
}

// ---------------------------------------------------------------- listings

#define ATTR_BYTES (4 + 84)

static size_t padded(size_t len) { return (len + 3) / 4 * 4; }

static struct entry *next_entry(R r, fileid3 fileid, cookie3 cookie, const char *name) {
    if (r->entries_len == r->entries_room) {
        r->entries_room = r->entries_room ? 2 * r->entries_room : 64;
        r->entries = realloc(r->entries, r->entries_room * sizeof *r->entries);
        need(r->entries != NULL, "memory");
    }
    struct entry *entry = &r->entries[r->entries_len++];
    memset(entry, 0, sizeof *entry);
    entry->fileid = fileid, entry->cookie = cookie;
    snprintf(entry->name, sizeof entry->name, "%s", name);
    r->listing_bytes += 4 + 8 + 4 + padded(strlen(name)) + 8;
    return entry;
}

static void begin_listing(R r, post_op_attr attr, const char *verifier, bool eof) {
    r->attr = attr;
    memcpy(r->verifier, verifier, sizeof r->verifier);
    r->eof = eof;
    r->listing_bytes = (attr.attributes_follow ? ATTR_BYTES : 4) + NFS3_COOKIEVERFSIZE + 4 + 4;
}

CALLBACK(readdir, READDIR3res) {
    if (r->status != NFS3_OK) {
        r->attr = res->READDIR3res_u.resfail.dir_attributes;
        return;
    }
    READDIR3resok *ok = &res->READDIR3res_u.resok;
    begin_listing(r, ok->dir_attributes, ok->cookieverf, ok->reply.eof);
    for (entry3 *e = ok->reply.entries; e; e = e->nextentry) next_entry(r, e->fileid, e->cookie, e->name);
}
R read_dir(H dir, cookie3 cookie, const char *verifier, uint32_t count) {
    READDIR3args args = {.dir = fh(dir), .cookie = cookie, .count = count};
    memcpy(args.cookieverf, verifier, sizeof args.cookieverf);
    R r = begin(NFS3_READDIR);
    return finish(r, rpc_nfs3_readdir_async(nfs.rpc, got_readdir, &args, r));
}

CALLBACK(readdirplus, READDIRPLUS3res) {
    if (r->status != NFS3_OK) {
        r->attr = res->READDIRPLUS3res_u.resfail.dir_attributes;
        return;
    }
    READDIRPLUS3resok *ok = &res->READDIRPLUS3res_u.resok;
    begin_listing(r, ok->dir_attributes, ok->cookieverf, ok->reply.eof);
    for (entryplus3 *e = ok->reply.entries; e; e = e->nextentry) {
        struct entry *entry = next_entry(r, e->fileid, e->cookie, e->name);
        entry->attr = e->name_attributes;
        r->listing_bytes += e->name_attributes.attributes_follow ? ATTR_BYTES : 4;
        entry->has_handle = e->name_handle.handle_follows;
        r->listing_bytes += 4;
        if (entry->has_handle) {
            nfs_fh3 got = e->name_handle.post_op_fh3_u.handle;
            entry->handle = copied(got.data.data_len, got.data.data_val);
            r->listing_bytes += 4 + padded(got.data.data_len);
        }
    }
}
R read_dir_plus(H dir, cookie3 cookie, const char *verifier, uint32_t dircount, uint32_t maxcount) {
    READDIRPLUS3args args = {.dir = fh(dir), .cookie = cookie, .dircount = dircount, .maxcount = maxcount};
    memcpy(args.cookieverf, verifier, sizeof args.cookieverf);
    R r = begin(NFS3_READDIRPLUS);
    return finish(r, rpc_nfs3_readdirplus_async(nfs.rpc, got_readdirplus, &args, r));
}

// ---------------------------------------------------------------- the state of a volume

#define CALLBACK_STATE(name, Result, u)            \
    CALLBACK(name, Result) {                      \
        if (r->status == NFS3_OK) {               \
            r->name = res->u.resok;               \
            r->attr = r->name.obj_attributes;     \
        } else {                                  \
            r->attr = res->u.resfail.obj_attributes; \
        }                                         \
    }

CALLBACK_STATE(fsstat, FSSTAT3res, FSSTAT3res_u)
R fsstat(H root) {
    FSSTAT3args args = {.fsroot = fh(root)};
    R r = begin(NFS3_FSSTAT);
    return finish(r, rpc_nfs3_fsstat_async(nfs.rpc, got_fsstat, &args, r));
}

CALLBACK_STATE(fsinfo, FSINFO3res, FSINFO3res_u)
R fsinfo(H root) {
    FSINFO3args args = {.fsroot = fh(root)};
    R r = begin(NFS3_FSINFO);
    return finish(r, rpc_nfs3_fsinfo_async(nfs.rpc, got_fsinfo, &args, r));
}

CALLBACK_STATE(pathconf, PATHCONF3res, PATHCONF3res_u)
R pathconf_of(H object) {
    PATHCONF3args args = {.object = fh(object)};
    R r = begin(NFS3_PATHCONF);
    return finish(r, rpc_nfs3_pathconf_async(nfs.rpc, got_pathconf, &args, r));
}

CALLBACK(commit, COMMIT3res) {
    if (r->status != NFS3_OK) {
        r->wcc = res->COMMIT3res_u.resfail.file_wcc;
        return;
    }
    r->wcc = res->COMMIT3res_u.resok.file_wcc;
    memcpy(r->verifier, res->COMMIT3res_u.resok.verf, sizeof r->verifier);
}
R commit(H file, uint64_t offset, uint32_t count) {
    COMMIT3args args = {.file = fh(file), .offset = offset, .count = count};
    R r = begin(NFS3_COMMIT);
    return finish(r, rpc_nfs3_commit_async(nfs.rpc, got_commit, &args, r));
}

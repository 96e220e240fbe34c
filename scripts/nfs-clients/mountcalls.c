// The six procedures of MOUNT version 3 as plain functions, and calls to versions that no server offers.
#include "client.h"

#include <stdio.h>
#include <string.h>

static int waiting;
static const char *lost;
static char why[256];

// True if there is a result.
static bool arrived(int status, void *data) {
    waiting = 0;
    lost = NULL;
    if (status == RPC_STATUS_SUCCESS) return true;
    snprintf(why, sizeof why, "%s", status == RPC_STATUS_ERROR && data ? (char *)data : "cancelled");
    lost = why;
    return false;
}

static void begin(void) {
    waiting = 1;
    lost = "no answer";
}

static bool finish(struct connection *c, int sent) {
    if (sent != 0) lost = "the library did not send the call";
    else if (!work_while(c, &waiting)) lost = "the connection ended or the server is silent";
    return lost == NULL;
}

static void got_nothing(struct rpc_context *rpc, int status, void *data, void *private_data) {
    (void)rpc, (void)private_data;
    arrived(status, data);
}

bool mount_null(void) {
    begin();
    return finish(&mountd, rpc_mount3_null_async(mountd.rpc, got_nothing, NULL));
}

static void got_mnt(struct rpc_context *rpc, int status, void *data, void *private_data) {
    (void)rpc;
    struct mounted *m = private_data;
    if (!arrived(status, data)) return;
    mountres3 *res = data;
    m->status = res->fhs_status;
    if (m->status != MNT3_OK) return;
    mountres3_ok *ok = &res->mountres3_u.mountinfo;
    m->handle = copied(ok->fhandle.fhandle3_len, ok->fhandle.fhandle3_val);
    for (u_int i = 0; i < ok->auth_flavors.auth_flavors_len && i < 16; i++)
        m->flavors[m->flavors_len++] = ok->auth_flavors.auth_flavors_val[i];
}

struct mounted mnt(const char *path) {
    struct mounted m = {.lost = "no answer"};
    begin();
    finish(&mountd, rpc_mount3_mnt_async(mountd.rpc, got_mnt, (char *)(uintptr_t)path, &m));
    m.lost = lost;
    return m;
}

bool umnt(const char *path) {
    begin();
    return finish(&mountd, rpc_mount3_umnt_async(mountd.rpc, got_nothing, (char *)(uintptr_t)path, NULL));
}

bool umntall(void) {
    begin();
    return finish(&mountd, rpc_mount3_umntall_async(mountd.rpc, got_nothing, NULL));
}

struct counted {
    const char *path;
    int count;
    char *groups;
    size_t groups_room;
};

static void got_dump(struct rpc_context *rpc, int status, void *data, void *private_data) {
    (void)rpc;
    struct counted *counted = private_data;
    if (!arrived(status, data)) return;
    for (mountlist m = *(mountlist *)data; m; m = m->ml_next)
        if (strcmp(m->ml_directory, counted->path) == 0) counted->count++;
}

int dump_counts(const char *path) {
    struct counted counted = {.path = path};
    begin();
    return finish(&mountd, rpc_mount3_dump_async(mountd.rpc, got_dump, &counted)) ? counted.count : -1;
}

static void got_exports(struct rpc_context *rpc, int status, void *data, void *private_data) {
    (void)rpc;
    struct counted *counted = private_data;
    if (!arrived(status, data)) return;
    for (exports e = *(exports *)data; e; e = e->ex_next) {
        if (strcmp(e->ex_dir, counted->path) != 0) continue;
        counted->count++;
        size_t len = 0;
        for (groups g = e->ex_groups; g && len < counted->groups_room; g = g->gr_next)
            len += (size_t)snprintf(counted->groups + len, counted->groups_room - len, "%s%s", len ? "," : "", g->gr_name);
    }
}

int export_counts(const char *path, char *groups, size_t groups_room) {
    struct counted counted = {.path = path, .groups = groups, .groups_room = groups_room};
    groups[0] = 0;
    begin();
    return finish(&mountd, rpc_mount3_export_async(mountd.rpc, got_exports, &counted)) ? counted.count : -1;
}

const char *refusal_of_nfs2(void) {
    begin();
    finish(&nfs, rpc_nfs2_null_async(nfs.rpc, got_nothing, NULL));
    return lost;
}

const char *refusal_of_mount1(void) {
    begin();
    finish(&mountd, rpc_mount1_null_async(mountd.rpc, got_nothing, NULL));
    return lost;
}

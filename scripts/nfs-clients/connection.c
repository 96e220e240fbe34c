// Connections to the server: one for NFS, one for MOUNT. The library is driven from here, one call after the other or a
// crowd of them at a time.
#include "client.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

// How long the server may do nothing.
#define SILENCE_MS 10000

struct connection nfs, mountd;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

struct attempt {
    int waiting;
    bool connected;
};

static void connected(struct rpc_context *rpc, int status, void *data, void *private_data) {
    (void)rpc, (void)data;
    struct attempt *attempt = private_data;
    attempt->waiting = 0;
    attempt->connected = status == RPC_STATUS_SUCCESS;
}

static bool try_to_connect(struct connection *c) {
    struct attempt attempt = {1, false};
    c->rpc = rpc_init_context();
    need(c->rpc != NULL, "a context of the library");
    rpc_set_uid(c->rpc, (int)c->uid);
    rpc_set_gid(c->rpc, (int)c->gid);
    if (rpc_connect_port_async(c->rpc, c->host, c->port, c->program, c->version, connected, &attempt) == 0)
        work_while(c, &attempt.waiting);
    if (attempt.connected) return true;
    disconnect(c);
    return false;
}

bool connect_to(struct connection *c, const char *host, int port, int program, int version, int seconds) {
    double end = now() + seconds;
    *c = (struct connection){.host = host, .port = port, .program = program, .version = version, .uid = c->uid, .gid = c->gid};
    while (!try_to_connect(c)) {
        if (now() >= end) return false;
        poll(NULL, 0, 50);
    }
    return true;
}

void disconnect(struct connection *c) {
    if (c->rpc) rpc_destroy_context(c->rpc);
    c->rpc = NULL;
}

bool work_while(struct connection *c, const int *waiting) {
    while (*waiting > 0) {
        struct pollfd pfd = {.fd = rpc_get_fd(c->rpc), .events = (short)rpc_which_events(c->rpc)};
        if (pfd.fd < 0) return false;
        int ready = poll(&pfd, 1, SILENCE_MS);
        if (ready <= 0) return false;
        if (rpc_service(c->rpc, pfd.revents) < 0) return false;
    }
    return true;
}

void as(uint32_t uid, uint32_t gid) {
    nfs.uid = uid, nfs.gid = gid;
    rpc_set_uid(nfs.rpc, (int)uid);
    rpc_set_gid(nfs.rpc, (int)gid);
}

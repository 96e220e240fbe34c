// A client of NFS version 3 and MOUNT version 3 on libnfs, which calls every procedure, provokes every error that RFC 1813 lists
// for it and that can be had, and checks what comes back.
//
//   client --port N --mount-port N --export PATH --read-only PATH --squashed PATH --small PATH --refused PATH
//          [--sync] [--ipv4] [--few-links] [PART…]
//
// A line per check, "ok" or "FAIL"; the table of errors at the end, if all parts run. With "restart" among them, it says
// "restart, please" and goes on when it reads a line.
#include "client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct options options = {.host = "127.0.0.1"};
struct handle top, export_root;
char top_name[32];

static const struct {
    const char *name;
    void (*run)(void);
} parts[] = {
    {"mount", test_mount},     {"rpc", test_rpc},       {"attributes", test_attributes}, {"names", test_names},
    {"rename", test_rename},   {"data", test_data},     {"listing", test_listing},       {"limits", test_limits},
    {"errors", test_errors},   {"full", test_full_volume}, {"links", test_links},        {"restart", test_restart},
};
#define PARTS (sizeof parts / sizeof parts[0])

static void usage(void) {
    fprintf(stderr, "usage: client --port N --mount-port N --export PATH --read-only PATH --squashed PATH --small PATH"
                    " --refused PATH [--sync] [--ipv4] [--few-links] [PART…]\nparts:");
    for (size_t i = 0; i < PARTS; i++) fprintf(stderr, " %s", parts[i].name);
    fputc('\n', stderr);
    exit(2);
}

static bool wanted(const char *name, char **names) {
    if (!*names) return true;
    for (; *names; names++)
        if (strcmp(*names, name) == 0) return true;
    return false;
}

static char **read_options(char **argv) {
    const struct {
        const char *name;
        const char **text;
        int *number;
    } known[] = {
        {"--port", NULL, &options.port},          {"--mount-port", NULL, &options.mount_port},
        {"--export", &options.export, NULL},      {"--read-only", &options.read_only, NULL},
        {"--squashed", &options.squashed, NULL},  {"--small", &options.small, NULL},
        {"--refused", &options.refused, NULL},
    };
    size_t n = sizeof known / sizeof known[0];
    for (argv++; *argv && strncmp(*argv, "--", 2) == 0; argv++) {
        bool few_links = strcmp(*argv, "--few-links") == 0, sync = strcmp(*argv, "--sync") == 0;
        bool ipv4 = strcmp(*argv, "--ipv4") == 0;
        if (few_links || sync || ipv4) {
            options.few_links |= few_links, options.sync |= sync, options.ipv4 |= ipv4;
            continue;
        }
        size_t i = 0;
        while (i < n && strcmp(known[i].name, *argv) != 0) i++;
        if (i == n || !argv[1]) usage();
        argv++;
        if (known[i].text) *known[i].text = *argv;
        else *known[i].number = atoi(*argv);
    }
    for (size_t i = 0; i < n; i++)
        if (known[i].text ? !*known[i].text : !*known[i].number) usage();
    for (char **name = argv; *name; name++) {
        size_t i = 0;
        while (i < PARTS && strcmp(parts[i].name, *name) != 0) i++;
        if (i == PARTS) usage();
    }
    return argv;
}

int main(int argc, char **argv) {
    (void)argc;
    char **names = read_options(argv);
    setvbuf(stdout, NULL, _IOLBF, 0);
    part("connections");
    need(connect_to(&mountd, options.host, options.mount_port, MOUNT_PROGRAM, MOUNT_V3, 5), "a connection to MOUNT");
    need(connect_to(&nfs, options.host, options.port, NFS_PROGRAM, NFS_V3, 5), "a connection to NFS");
    struct mounted m = mnt(options.export);
    need(!m.lost && m.status == MNT3_OK, "the export can be mounted");
    export_root = m.handle;
    snprintf(top_name, sizeof top_name, "client-%d", (int)getpid());
    printf("in %s\n", top_name);
    top = new_dir(&export_root, top_name, 0755);
    for (size_t i = 0; i < PARTS; i++)
        if (wanted(parts[i].name, names)) parts[i].run();
    print_table(!*names);
    print_summary();
    disconnect(&nfs);
    disconnect(&mountd);
    return failures() ? 1 : 0;
}

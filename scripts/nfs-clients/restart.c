// The server is killed and starts again; this client goes on. Its handles are good, what was stable is there, the verifier is
// another, and what was not committed is sent again.
#include "client.h"

#include <stdio.h>
#include <stdlib.h>

enum { PIECES = 200, LEN = 8192 };

struct piece {
    struct load *load;
    int number;
    bool answered;  // since it was sent last
    bool stable;    // it need not be sent again
    char verifier[NFS3_WRITEVERFSIZE];
};
struct load {
    struct handle file;
    struct piece pieces[PIECES];
    int waiting;  // pieces without an answer
    int allowed;  // answers to wait for
    int wrong;
    bool over;  // the connection ended
};

static char *bytes_of(int number) {
    static char bytes[LEN];
    for (int i = 0; i < LEN; i++) bytes[i] = (char)(number * 17 + i + i / 256);
    return bytes;
}

static void got_piece(struct rpc_context *rpc, int status, void *data, void *private_data) {
    (void)rpc;
    struct piece *piece = private_data;
    piece->load->waiting--, piece->load->allowed--;
    WRITE3res *res = data;
    if (status != RPC_STATUS_SUCCESS) {
        piece->load->over = true;
        return;
    }
    WRITE3resok *ok = &res->WRITE3res_u.resok;
    piece->load->wrong += res->status != NFS3_OK || ok->count != LEN;
    piece->answered = true;
    piece->stable = ok->committed != UNSTABLE;
    memcpy(piece->verifier, ok->verf, sizeof piece->verifier);
}

static void send_piece(struct piece *piece) {
    WRITE3args args = {
        .file = fh(&piece->load->file),
        .offset = (uint64_t)piece->number * LEN,
        .count = LEN,
        .stable = piece->number % 10 ? UNSTABLE : FILE_SYNC,
    };
    args.data.data_len = LEN;
    args.data.data_val = bytes_of(piece->number);
    piece->answered = false;
    if (rpc_nfs3_write_async(nfs.rpc, got_piece, &args, piece) == 0) piece->load->waiting++;
    else piece->load->over = true;
}

// Has the server killed, and goes on without having mounted again.
static void have_it_killed(void) {
    printf("restart, please\n");
    fflush(stdout);
    char line[64];
    need(fgets(line, sizeof line, stdin) != NULL, "an answer to that the server is back");
}

static void connect_again(void) {
    disconnect(&nfs);
    need(connect_to(&nfs, options.host, options.port, NFS_PROGRAM, NFS_V3, 20), "a connection to the server that is back");
    disconnect(&mountd);
    need(connect_to(&mountd, options.host, options.mount_port, MOUNT_PROGRAM, MOUNT_V3, 20), "a connection to MOUNT");
}

void test_restart(void) {
    part("restart");
    struct handle dir = new_dir(&top, "restart", 0755), sub = new_dir(&dir, "sub", 0755);
    struct handle stable = new_file(&dir, "stable", "");
    OK(write_to(&stable, 0, "file-sync", 9, FILE_SYNC), "FILE_SYNC");
    struct handle committed = new_file(&dir, "committed", "");
    R r = write_to(&committed, 0, "committed", 9, UNSTABLE);
    OK(r, "UNSTABLE");
    OK(commit(&committed, 0, 0), "of it");
    char verifier[NFS3_WRITEVERFSIZE];
    memcpy(verifier, r->verifier, sizeof verifier);
    r = create_exclusive(&dir, "exclusive", "verifier");
    OK(r, "exclusive");
    struct handle exclusive = r->handle;
    OK(rename_to(&dir, "sub", &dir, "renamed"), "of a directory");
    OK(make_symlink(&dir, "symlink", "target", set_nothing()), "before the end");
    struct handle removed = new_file(&dir, "removed", "x");
    OK(remove_file(&dir, "removed"), "before the end");
    fattr3 before = attr_of(&stable);
    static const char zero[NFS3_COOKIEVERFSIZE];
    r = read_dir(&dir, 0, zero, 256);
    OK(r, "of a piece of a directory");
    char cookie_verifier[NFS3_COOKIEVERFSIZE];
    memcpy(cookie_verifier, r->verifier, sizeof cookie_verifier);
    size_t listed = r->entries_len;
    cookie3 cookie = listed ? r->entries[listed - 1].cookie : 0;

    // Unstable writes, some of them still under way when it is killed.
    static struct load load;
    load.file = new_file(&dir, "loaded", "");
    for (int i = 0; i < PIECES; i++) {
        load.pieces[i].load = &load, load.pieces[i].number = i;
        send_piece(&load.pieces[i]);
    }
    load.allowed = PIECES * 2 / 3;
    need(work_while(&nfs, &load.allowed), "answers to most of them");
    have_it_killed();
    // Answers that were on their way, and then the end.
    work_while(&nfs, &load.waiting);
    connect_again();
    check(load.wrong == 0, "no WRITE failed");

    OK(getattr(&export_root), "of the root's handle from before");
    OK(getattr(&sub), "of a directory's handle from before");
    fattr3 after = attr_of(&stable);
    check(same_attr(&before, &after), "the attributes are those from before");
    r = read_from(&stable, 0, 100);
    check(!r->lost && strcmp(r->data, "file-sync") == 0, "what was written FILE_SYNC is there");
    r = read_from(&committed, 0, 100);
    check(!r->lost && strcmp(r->data, "committed") == 0, "what was committed is there");
    EXPECT(lookup(&dir, "sub"), "of a name from before a RENAME", NFS3ERR_NOENT);
    OK(lookup(&dir, "renamed"), "of the name from after it");
    OK(lookup(&dir, "symlink"), "of a symbolic link");
    EXPECT(lookup(&dir, "removed"), "of a removed name", NFS3ERR_NOENT);
    EXPECT(getattr(&removed), "of a removed file's handle", NFS3ERR_STALE);
    r = create_exclusive(&dir, "exclusive", "verifier");
    OK(r, "exclusive, again after the restart");
    if (r->has_handle) check(attr_of(&r->handle).fileid == attr_of(&exclusive).fileid, "it is the same file");
    EXPECT(create_exclusive(&dir, "exclusive", "another-"), "exclusive, by somebody else", NFS3ERR_EXIST);
    // Two dots and five names; a name that came meanwhile may be before the cookie or after it.
    r = read_dir(&dir, cookie, cookie_verifier, 4096);
    if (OK(r, "from a cookie from before")) {
        for (size_t i = 0; i < r->entries_len; i++) listed += strcmp(r->entries[i].name, "loaded") != 0;
        check(r->eof && listed == 2 + 5, "goes on where it was: %zu names in all", listed);
    }

    // The verifier tells that what was not committed may be lost.
    r = commit(&load.file, 0, 0);
    OK(r, "after the restart");
    check(memcmp(verifier, r->verifier, sizeof verifier) != 0, "the verifier is another");
    char now[NFS3_WRITEVERFSIZE];
    memcpy(now, r->verifier, sizeof now);
    int kept = 0, again = 0, stays = 0;
    for (int i = 0; i < PIECES; i++) {
        struct piece *piece = &load.pieces[i];
        if (piece->answered && piece->stable) {
            r = read_from(&load.file, (uint64_t)i * LEN, LEN);
            kept++;
            stays += !r->lost && r->count == LEN && memcmp(r->data, bytes_of(i), LEN) == 0;
        }
    }
    check(kept == stays, "every FILE_SYNC that was acknowledged under load is there: %d of %d", stays, kept);
    load.over = false;
    for (int i = 0; i < PIECES; i++) {
        struct piece *piece = &load.pieces[i];
        bool good = piece->answered && (piece->stable || memcmp(piece->verifier, now, sizeof now) == 0);
        if (good) continue;
        again++;
        send_piece(piece);
    }
    check(work_while(&nfs, &load.waiting) && !load.over && load.wrong == 0, "%d of %d pieces are sent again", again, PIECES);
    promise(again > PIECES / 2 || options.sync, "because their verifier was another, or there was no answer");
    r = commit(&load.file, 0, 0);
    OK(r, "of them");
    int same = 0, whole = 0;
    for (int i = 0; i < PIECES; i++) same += load.pieces[i].stable || memcmp(load.pieces[i].verifier, r->verifier, sizeof now) == 0;
    check(same == PIECES, "the verifier stays from then on");
    for (int i = 0; i < PIECES; i++) {
        r = read_from(&load.file, (uint64_t)i * LEN, LEN);
        whole += !r->lost && r->count == LEN && memcmp(r->data, bytes_of(i), LEN) == 0;
    }
    check(whole == PIECES && attr_of(&load.file).size == (uint64_t)PIECES * LEN, "all of the file is there");
}

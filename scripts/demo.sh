#!/usr/bin/env bash
# The whole story in one command: build, format, mount, work, lose power, mount again, check everything.
#
#   scripts/demo.sh [--rounds N] [--seconds S] [--contract NAME] [--keep]
#
#   --rounds N   power cuts (default 2: one kill -9, one loss of every write that was not flushed)
#   --seconds S  how long the three programs work before each cut (default 6)
#   --contract NAME  the volume's contract: 'ordered' (default) or 'relaxed', which keep the order of files that are closed
#   --keep       keep the working directory for inspection
#
# Exits 0 if nothing acknowledged was lost and everything is sound, 1 if not, 3 if something needed is missing.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"

rounds=2
seconds=6
contract=ordered
while [ $# -gt 0 ]; do
  case $1 in
    --rounds)  rounds=${2:?"--rounds needs a number"}; shift 2 ;;
    --seconds) seconds=${2:?"--seconds needs a number"}; shift 2 ;;
    --contract) contract=${2:?"--contract needs a name"}; shift 2 ;;
    --keep)    export KEEP_WORK=1; shift ;;
    -h|--help) sed -n '2,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) warn "unknown option '$1' (see --help)"; exit 2 ;;
  esac
done

"$here/setup.sh" demo
reason=$(fuse_reason)
[ -z "$reason" ] || unable "cannot mount here: $reason"

step "Build (the command alone, profile 'quick')"
build_quick
started=$SECONDS

make_workdir "${TMPDIR:-/tmp}"
HOST=$WORK/host          # the file system that holds the image: the thing that loses power
IMAGE=$HOST/volume.img
MNT=$WORK/mnt
LOG=$WORK/server.log
mkdir -p "$HOST" "$MNT"

# Git must not depend on this user's settings, nor on the owner of the source tree.
export GIT_CONFIG_GLOBAL=$WORK/gitconfig GIT_CONFIG_NOSYSTEM=1
git config --file "$GIT_CONFIG_GLOBAL" user.name "Steadfast demo"
git config --file "$GIT_CONFIG_GLOBAL" user.email demo@localhost
git config --file "$GIT_CONFIG_GLOBAL" safe.directory '*'
git config --file "$GIT_CONFIG_GLOBAL" init.defaultBranch main
git config --file "$GIT_CONFIG_GLOBAL" advice.detachedHead false
git config --file "$GIT_CONFIG_GLOBAL" gc.auto 0

# ---------------------------------------------------------------- the disk that can lose power

# Writes go through the host's page cache: the volatile cache that the cut takes away.
serve() { sf_serve "$IMAGE" "$MNT" "$LOG" -o buffered; }

# The cut itself, in the middle of the work. $1: kill or power. Leaves $IMAGE as the cut left it, nothing mounted.
cut() {
  if [ "$1" = power ]; then
    drop_unflushed_writes "$HOST" || die "could not cut the power of $HOST"
    # The server lives on for a moment on a dead disk: nothing it says from now on may be an acknowledgement.
    sleep 0.3
  fi
  kill -KILL "$SERVER"
  wait "$SERVER" 2>/dev/null || true
  local pid
  for pid in "${WRITERS[@]}"; do await_process "$pid" 10; done
  detach "$MNT"
  if [ "$1" = power ]; then
    power_again "$HOST"
  fi
}

# ---------------------------------------------------------------- the work

# A project with history to clone: this one, or, where it is no repository, one made of its files.
prepare_source() {
  if git -C "$ROOT" rev-parse --quiet --verify HEAD >/dev/null 2>&1; then
    SOURCE=$ROOT
    return
  fi
  SOURCE=$WORK/source
  mkdir -p "$SOURCE"
  tar -C "$ROOT" --exclude=./target --exclude=./.git --exclude='*.img' -cf - . | tar -C "$SOURCE" -xf -
  git -C "$SOURCE" init -q
  git -C "$SOURCE" add -A
  git -C "$SOURCE" commit -qm "The project as unpacked"
}

# The level at which SQLite itself promises that a COMMIT that returned survives a power cut, in either journal mode.
sqlite_writer() {
  local last
  last=$(tail -n 1 "$WORK/ack.$1")
  transactions "${last:-0}" |
    stdbuf -oL sqlite3 -bail -cmd "PRAGMA synchronous = EXTRA" "$MNT/$1.db" >>"$WORK/ack.$1" 2>/dev/null
}

# Edits and commits; a commit counts as acknowledged when `steadfast sync` has returned after it.
git_writer() {
  local i hash
  cd "$MNT/project" || return
  for ((i = $(wc -l <"$WORK/ack.git") + 1; ; i++)); do
    mkdir -p "work/$((i % 10))" && echo "round $i" >"work/$((i % 10))/file-$i" && echo "round $i" >>work/log &&
      git add -A && git commit -qm "Change $i" && hash=$(git rev-parse HEAD) &&
      "$STEADFAST" sync "$MNT" >/dev/null && echo "$hash" >>"$WORK/ack.git" || return
  done 2>/dev/null
}

# Writes numbered files and never asks for durability: afterwards there may be fewer of them, but none may be missing
# in the middle. Each line of ack.order is a file whose writer had gone on.
order_writer() {
  local i
  for ((i = $(wc -l <"$WORK/ack.order") + 1; ; i++)); do
    printf '%s\n' "file $i of the ordered writer" >"$MNT/order/$i" || return
    echo "$i" >>"$WORK/ack.order"
    ((i % 20)) || sleep 0.02
  done 2>/dev/null
}

start_work() {
  WRITERS=()
  start_group git_writer;             WRITERS+=("$GROUP")
  start_group sqlite_writer wal;      WRITERS+=("$GROUP")
  start_group sqlite_writer rollback; WRITERS+=("$GROUP")
  start_group order_writer;           WRITERS+=("$GROUP")
}

# ---------------------------------------------------------------- the checks

FAILED=0
ok()  { say "    ok    $*"; }
bad() { say "    WRONG $*"; FAILED=1; }

check_database() {
  local db=$MNT/$1.db result acked last count
  acked=$(tail -n 1 "$WORK/ack.$1"); acked=${acked:-0}
  result=$(sqlite3 "$db" "PRAGMA integrity_check" 2>&1) || true
  if [ "$result" = ok ]; then ok "$1.db: integrity_check"; else bad "$1.db: integrity_check: $result"; return; fi
  IFS='|' read -r last count < <(sqlite3 "$db" "SELECT coalesce(max(n), 0), count(*) FROM entry") || true
  if ((last >= acked && last == count)); then
    ok "$1.db: $acked transactions were acknowledged, $count are there"
  else
    bad "$1.db: $acked transactions were acknowledged, $count are there, the last is number $last"
  fi
  result=$(sqlite3 "$db" "SELECT sum(v) FROM account")
  if [ "$result" = 50000 ]; then ok "$1.db: the accounts add up"; else bad "$1.db: the accounts hold $result, not 50000"; fi
  # The next round goes on after everything that came back, beyond the acknowledged part.
  echo "$last" >>"$WORK/ack.$1"
}

check_repository() {
  local acked hash lost=0
  cd "$MNT/project" || { bad "git: the repository is not there"; return; }
  # Files that a killed git leaves, and its user removes.
  find .git -name '*.lock' -delete
  if git fsck --full --strict --no-progress --no-dangling >"$WORK/git-fsck" 2>&1; then
    ok "git fsck --full --strict: $(git rev-list --count --all) commits"
  else
    bad "git fsck --full --strict:"
    head -n 10 "$WORK/git-fsck"
  fi
  acked=$(wc -l <"$WORK/ack.git")
  while read -r hash; do
    git merge-base --is-ancestor "$hash" HEAD 2>/dev/null || lost=$((lost + 1))
  done < <(tail -n 50 "$WORK/ack.git")
  if ((lost == 0)); then ok "git: all $acked acknowledged commits are there"; else bad "git: $lost acknowledged commits are lost"; fi
  # A file that no git add had seen may be there or not; everything git knows must be as git knows it.
  if git reset -q --hard 2>"$WORK/git-status" && git status --porcelain --untracked-files=no >>"$WORK/git-status" 2>&1 &&
    [ ! -s "$WORK/git-status" ]; then
    ok "git: the work tree can be used"
  else
    bad "git: the work tree is unusable:"
    head -n 10 "$WORK/git-status"
  fi
  cd /
}

check_order() {
  local issued
  issued=$(wc -l <"$WORK/ack.order")
  # Names are numbers: the highest of them says how many there must be; all but the last must be complete.
  if result=$(find "$MNT/order" -type f -printf '%f %s\n' | sort -n | awk -v dir="$MNT/order" -v issued="$issued" '
      { wanted = "file " NR " of the ordered writer"
        if ($1 != NR) { print "number " NR " is missing, number " $1 " is there"; wrong = 1; exit }
        if (partial) { print "number " partial " is incomplete, number " NR " is there"; wrong = 1; exit }
        got = ""; file = dir "/" $1; getline got < file; close(file)
        if ($2 == 0) partial = NR
        else if (got != wanted || $2 != length(wanted) + 1) { print "number " NR " holds other bytes"; wrong = 1; exit } }
      END { if (!wrong) print issued " files were written without any fsync, the first " NR " are there, none is missing between"
            exit wrong }')
  then ok "order: $result"; else bad "order: $result"; fi
  find "$MNT/order" -type f -size 0 -delete
  find "$MNT/order" -type f -printf '%f\n' | sort -n >"$WORK/ack.order"
}

# ---------------------------------------------------------------- the story

power_disk "$HOST" 900M
prepare_source

step "Format a volume of 512 MiB"
write_image "$IMAGE" 512
"$STEADFAST" mkfs --size 512M --contract "$contract" "$IMAGE"

step "Mount it"
serve
say "    server: process $SERVER, mounted at $MNT"

step "Clone a git repository into it and commit; create two SQLite databases"
git clone -q --no-local "$SOURCE" "$MNT/project"
git -C "$MNT/project" checkout -q -B demo
say "    $(git -C "$MNT/project" rev-list --count HEAD) commits, $(git -C "$MNT/project" ls-files | wc -l) files"
create_database "$MNT/wal.db" WAL
create_database "$MNT/rollback.db" DELETE
mkdir "$MNT/order"
"$STEADFAST" sync "$MNT" >/dev/null
touch "$WORK"/ack.{git,wal,rollback,order}

for ((round = 1; round <= rounds; round++)); do
  kind="kill"
  if [ -n "$POWER" ] && ((round % 2 == 0 || rounds == 1)); then kind="power"; fi

  step "Round $round: git commits, SQLite (WAL and rollback journal) and a writer that never syncs, for $seconds s"
  start_work
  sleep "$seconds"
  for name in git wal rollback order; do
    await test -s "$WORK/ack.$name" || die "$name: no progress (server log: $(tail -n 3 "$LOG"))"
  done

  case $kind in
    power) step "Cut the power in the middle of it: every write that was not flushed is lost" ;;
    kill)  step "Kill the server in the middle of it (kill -9)" ;;
  esac
  cut "$kind"
  say "    acknowledged by then: $(wc -l <"$WORK/ack.git") git commits, transactions: $(tail -n 1 "$WORK/ack.wal") (WAL)," \
    "$(tail -n 1 "$WORK/ack.rollback") (rollback journal)"

  step "Mount again (recovery is automatic) and check"
  serve
  check_repository
  check_database wal
  check_database rollback
  check_order
done
if [ -z "$POWER" ]; then
  say ""
  say "The loss of unflushed writes was not shown: that needs root and a loop device. Only kill -9 was."
fi

step "Unmount, fsck"
sf_umount "$MNT"
await_process "$SERVER" 10
if "$STEADFAST" fsck "$IMAGE"; then ok "steadfast fsck: clean"; else bad "steadfast fsck exits with $?"; fi

if ((FAILED)); then
  step "FAILED after $((SECONDS - started)) s"
  exit 1
fi
step "All well, $((SECONDS - started)) s after the build"

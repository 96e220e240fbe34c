#!/usr/bin/env bash
# What a power cut does to real programs: 'steadfast crash test' on each, its verdict held against the one that is expected.
# docs/crash-programs.md has the results with cause and repair.
#
#   scripts/crash-programs.sh [--quick] [--only NAME] [--keep]
#
#   --quick      git and SQLite alone, few states: seconds
#   --only NAME  one program: git, git-fsync, sqlite-MODE-SYNC, leveldb, redis, shelve, mercurial, lmdb or put
#   --keep       keep the working directory, with a trace and a report for each program
#
# A program that is not installed is left out, and named. Exits 0, 1 (a verdict is another one than expected) or 3.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"

only=
quick=
while [ $# -gt 0 ]; do
  case $1 in
    --quick) quick=1; shift ;;
    --only) only=${2:?"--only needs a name"}; shift 2 ;;
    --keep) export KEEP_WORK=1; shift ;;
    -h|--help) sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) warn "unknown option '$1' (see --help)"; exit 2 ;;
  esac
done

reason=$(fuse_reason)
[ -z "$reason" ] || unable "cannot mount here: $reason"
build_release
make_workdir "${TMPDIR:-/tmp}"
export STEADFAST WORK
export GIT_CONFIG_GLOBAL=$WORK/gitconfig GIT_CONFIG_NOSYSTEM=1 HGRCPATH=$WORK/hgrc
git config --global user.name Steadfast
git config --global user.email crash@localhost
git config --global gc.auto 0
git config --global init.templateDir ''
printf '[ui]\nusername = crash\n' >"$WORK/hgrc"
failed=0
met=

# verdict REPORT: MODEL=clean|lost|broken for each model.
verdict() {
  python3 - "$1" <<'PYTHON'
import json, sys
report = json.load(open(sys.argv[1]))
verdicts = {model["name"]: "clean" for model in report["models"]}
for finding in report["findings"]:
    for under in finding["under"]:
        word = "broken" if finding["kind"] == "broken" else "lost"
        if verdicts[under["model"]] != "broken":
            verdicts[under["model"]] = word
print(" ".join(f"{name}={verdict}" for name, verdict in verdicts.items()))
PYTHON
}

# program NAME NEEDS EXPECTED OPTION…: EXPECTED is what 'verdict' prints; the options are those of 'crash test'.
program() {
  local name=$1 needs=$2 expected=$3 status=0 models found limits=(--states 400 --samples 100 --budget 300s)
  shift 3
  if [ -n "$only" ] && [ "$only" != "$name" ]; then return; fi
  met=1
  if ! sh -c "$needs" >/dev/null 2>&1; then
    say "$name: left out, because it is not installed ($needs)"
    return
  fi
  models=$(printf '%s\n' "$expected" | tr ' ' '\n' | sed 's/=.*//' | paste -sd ,)
  # A check that starts a server takes long.
  if [ -n "${slow:-}" ]; then limits=(--states 60 --samples 20 --budget 300s --no-repair); fi
  if [ -n "$quick" ]; then limits=(--states 30 --samples 20 --budget 20s --no-repair); fi
  "$STEADFAST" crash test --fs "$models" "${limits[@]}" -o "$WORK/$name.trace" --json --html "$WORK/$name.html" "$@" \
    >"$WORK/$name.json" 2>"$WORK/$name.log" || status=$?
  if [ "$status" = 2 ] || [ "$status" = 3 ]; then
    warn "$name: $(tail -n 1 "$WORK/$name.log")"
    failed=1
    return
  fi
  found=$(verdict "$WORK/$name.json")
  if [ "$found" = "$expected" ]; then
    say "$name: $found"
  else
    warn "$name: $found; expected: $expected"
    failed=1
  fi
}

# ---------------------------------------------------------------- git

cat >"$WORK/git.check" <<'SH'
out=$(git fsck --full 2>&1) || { printf '%s\n' "$out" | grep -m 1 -E 'error|fatal'; exit 1; }
git log -1 >/dev/null 2>&1 || { echo 'git log fails'; exit 1; }
git status >/dev/null 2>&1 || { echo 'git status fails'; exit 1; }
SH
git_setup='git init -q . && echo 1 >a && git add a && git commit -qm 1'
git_work='echo 2 >b && git add b && git commit -qm 2'
program git 'git --version' 'ext4=broken xfs=broken btrfs=broken ordered=clean' \
  --setup "$git_setup" --check "sh $WORK/git.check" -- sh -c "$git_work"
program git-fsync 'git --version' 'ext4=clean xfs=clean btrfs=clean posix=broken ordered=clean' \
  --setup "git init -q . && git config core.fsync all && echo 1 >a && git add a && git commit -qm 1" \
  --check "sh $WORK/git.check" -- sh -c "$git_work"

# ---------------------------------------------------------------- SQLite

cat >"$WORK/sqlite.check" <<'SH'
out=$(sqlite3 db 'pragma integrity_check' 2>&1) || { echo "integrity check: $out" | head -n 1; exit 1; }
[ "$out" = ok ] || { echo "integrity check: $out" | head -n 1; exit 1; }
rows=$(sqlite3 db 'select a from t order by a' 2>&1)
while read -r n; do printf '%s\n' "$rows" | grep -qx "$n" || { echo "row $n is lost"; exit 1; }; done <"$CRASH_ACKED"
SH
sqlite() {
  local mode=$1 sync=$2 expected=$3 i
  {
    # What it prints is acknowledged: rows alone.
    echo ".output /dev/null"
    echo "pragma journal_mode=$mode; pragma synchronous=$sync;"
    echo ".output stdout"
    for i in 1 2 3; do echo "insert into t values($i, hex(randomblob(400))); select $i;"; done
  } >"$WORK/sqlite-$mode-$sync.sql"
  program "sqlite-$mode-$sync" 'sqlite3 --version' "$expected" \
    --setup "sqlite3 db 'pragma journal_mode=$mode; create table t(a,b)'" \
    --check "sh $WORK/sqlite.check" -- sh -c "sqlite3 db <$WORK/sqlite-$mode-$sync.sql"
}
sqlite DELETE FULL 'ext4=lost xfs=lost btrfs=lost posix=lost ordered=lost sync=clean'
sqlite DELETE EXTRA 'ext4=clean xfs=clean btrfs=clean posix=clean ordered=clean sync=clean'
if [ -z "$quick" ]; then
  sqlite DELETE OFF 'ext4=broken xfs=broken btrfs=lost posix=broken ordered=lost sync=clean'
  sqlite DELETE NORMAL 'ext4=lost xfs=lost btrfs=lost posix=broken ordered=lost sync=clean'
  sqlite TRUNCATE FULL 'ext4=clean xfs=clean btrfs=clean posix=clean ordered=clean sync=clean'
  sqlite PERSIST FULL 'ext4=clean xfs=clean btrfs=clean posix=clean ordered=clean sync=clean'
  sqlite WAL NORMAL 'ext4=lost xfs=lost btrfs=lost posix=lost ordered=lost sync=clean'
  sqlite WAL FULL 'ext4=clean xfs=clean btrfs=clean posix=clean ordered=clean sync=clean'
fi

# ---------------------------------------------------------------- Python

cat >"$WORK/use-shelve.py" <<'PYTHON'
import dbm.dumb, shelve, sys
def opened():
    return shelve.Shelf(dbm.dumb.open("shelf", "c"))
if sys.argv[1] == "write":
    for key in sys.argv[2:]:
        with opened() as shelf:
            shelf[key] = key * 50
else:
    with opened() as shelf:
        for key in shelf:
            if shelf[key] != key * 50:
                sys.exit(f"{key} has another value")
        if "first" not in shelf:
            print("what was there before is gone")
            sys.exit(1)
PYTHON
check="python3 $WORK/use-shelve.py check 2>&1 | tail -n 1 | { read -r line || exit 0; echo \"\$line\"; exit 1; }"
if [ -z "$quick" ]; then
  program shelve 'python3 -c "import dbm.dumb"' 'killed=broken ext4=broken ordered=broken' \
    --setup "python3 $WORK/use-shelve.py write first" --check "$check" -- python3 "$WORK/use-shelve.py" write second third
fi

# ---------------------------------------------------------------- LevelDB, LMDB

cat >"$WORK/use-leveldb.py" <<'PYTHON'
import sys, plyvel
try:
    db = plyvel.DB("db", create_if_missing=sys.argv[1] == "write")
except Exception as error:
    print("does not open:", str(error).split(":")[0])
    sys.exit(1)
if sys.argv[1] == "write":
    for key in sys.argv[2:]:
        db.put(key.encode(), key.encode() * 400, sync=True)
        print(key, flush=True)
else:
    for line in open(sys.argv[2]):
        key = line.strip().encode()
        if db.get(key) != key * 400:
            print("a key is lost")
            sys.exit(1)
PYTHON
cat >"$WORK/use-lmdb.py" <<'PYTHON'
import sys, lmdb
env = lmdb.open("db", map_size=1 << 20)
if sys.argv[1] == "write":
    for key in sys.argv[2:]:
        with env.begin(write=True) as txn:
            txn.put(key.encode(), key.encode() * 400)
        print(key, flush=True)
else:
    with env.begin() as txn:
        for line in open(sys.argv[2]):
            key = line.strip().encode()
            if txn.get(key) != key * 400:
                print("a key is lost")
                sys.exit(1)
PYTHON
# Debian's modules are for Debian's Python.
python=/usr/bin/python3
if [ -z "$quick" ]; then
  program leveldb "$python -c 'import plyvel'" 'ext4=clean xfs=clean btrfs=clean posix=broken ordered=clean' \
    --setup "$python $WORK/use-leveldb.py write first" \
    --check "$python $WORK/use-leveldb.py check \$CRASH_ACKED 2>&1" -- "$python" "$WORK/use-leveldb.py" write second third
  program lmdb "$python -c 'import lmdb'" 'ext4=clean xfs=clean btrfs=clean ordered=clean' \
    --setup "$python $WORK/use-lmdb.py write first" \
    --check "$python $WORK/use-lmdb.py check \$CRASH_ACKED 2>&1" -- "$python" "$WORK/use-lmdb.py" write second third
fi

# ---------------------------------------------------------------- Redis

cat >"$WORK/redis.sh" <<'SH'
# redis.sh write KEY… | check FILE
socket=$(mktemp -u "${TMPDIR:-/tmp}/redis.XXXXXX")
redis-server --port 0 --unixsocket "$socket" --dir "$PWD" --appendonly yes --appendfsync always --save '' --daemonize no \
  >"$socket.log" 2>&1 &
server=$!
ask() { redis-cli -s "$socket" "$@" 2>/dev/null; }
tries=0
until [ "$(ask ping)" = PONG ]; do
  tries=$((tries + 1))
  if [ $tries -gt 1000 ] || ! kill -0 $server 2>/dev/null; then
    echo "the server does not start: $(grep -v '^$' "$socket.log" | tail -n 1 | sed 's/^[^#*]*[#*] //')"
    rm -f "$socket" "$socket.log"
    exit 1
  fi
  sleep 0.01
done
status=0
what=$1
shift
if [ "$what" = write ]; then
  for key; do if [ "$(ask set "$key" "$key")" = OK ]; then echo "$key"; fi; done
else
  while read -r key; do if [ "$(ask get "$key")" != "$key" ]; then echo 'a key is lost'; status=1; break; fi; done <"$1"
fi
kill $server
wait $server
rm -f "$socket" "$socket.log"
exit $status
SH
if [ -z "$quick" ]; then
  slow=1 program redis 'redis-server --version' 'ext4=clean xfs=clean btrfs=clean posix=broken ordered=clean' \
    --check "sh $WORK/redis.sh check \$CRASH_ACKED" -- sh "$WORK/redis.sh" write one two
fi

# ---------------------------------------------------------------- Mercurial

cat >"$WORK/hg.check" <<'SH'
out=$(hg verify -q 2>&1) || { printf '%s\n' "$out" | grep -m 1 -v '^$'; exit 1; }
out=$(hg status 2>&1) || { printf '%s\n' "$out" | grep -m 1 -v '^$'; exit 1; }
SH
# A lock of a process that is gone is broken by Mercurial, but not in another process namespace: the recovery does it.
if [ -z "$quick" ]; then
  slow=1 program mercurial 'hg --version' 'ext4=broken xfs=broken ordered=clean' \
    --setup 'hg init . && echo 1 >a && hg add -q a && hg commit -q -m 1' \
    --recover 'rm -f .hg/store/lock .hg/wlock; hg recover -q >/dev/null 2>&1; exit 0' --check "sh $WORK/hg.check" \
    -- sh -c 'echo 2 >b && hg add -q b && hg commit -q -m 2'
fi

# ---------------------------------------------------------------- our own

program put true 'ext4=clean xfs=clean btrfs=clean posix=clean ordered=clean' \
  --setup 'echo old content >file' \
  --check 'test "$(cat file)" = "old content" || test "$(cat file)" = "new content" || { echo "neither old nor new"; exit 1; }; \
    ! grep -qx replaced "$CRASH_ACKED" || test "$(cat file)" = "new content" || { echo "the new content is lost"; exit 1; }' \
  -- sh -c "echo new content | $STEADFAST put file && echo replaced"

if [ -z "$met" ]; then warn "there is no program '$only'"; exit 2; fi
exit "$failed"

#!/usr/bin/env bash
# Effects of a power cut on real programs: 'steadfast crash test' on each, its verdict compared with the expected one.
# docs/crash-programs.md has the results with cause and repair.
#
#   scripts/crash-programs.sh [--quick] [--only NAME] [--keep] [--install]
#
#   --quick      git and SQLite alone, few states: seconds
#   --only NAME  one program: git, git-fsync, sqlite-MODE-SYNC, leveldb, rocksdb, rocksdict, duckdb, redis, postgres, postgres-pid, shelve, mercurial, lmdb,
#                lmdb-writemap, sled, bbolt, write-file-atomic, atomic-write-file, atomicwrites, pip, pip-target, npm,
#                cargo, vim, vim-in-place, nano, nano-backup, hsqldb, zookeeper, zookeeper-log, etcd, etcd-first, prometheus or put
#   --keep       keep the working directory, with a trace and a report for each program
#   --install    first get the libraries of Python, Rust, Go and Node from their registries, beside the other tools of the tests
#
# A program that is not installed is left out, and named. Exits 0, 1 (a verdict is another one than expected) or 3.
# shellcheck disable=SC2016 # commands for other shells
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"

only=
quick=
install=
while [ $# -gt 0 ]; do
  case $1 in
    --quick) quick=1; shift ;;
    --only) only=${2:?"--only needs a name"}; shift 2 ;;
    --keep) export KEEP_WORK=1; shift ;;
    --install) install=1; shift ;;
    -h|--help) sed -n '2,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
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

# Programs of their own that use a library: built of scripts/crash-programs/, where their sources are.
built=$TOOLS/crash-programs
if [ -n "$install" ]; then
  mkdir -p "$built"
  python3 -m venv "$built/venv"
  "$built/venv/bin/pip" install --quiet duckdb==2.0.1 rocksdict==0.3.29 atomicwrites==1.4.1
  "$built/venv/bin/pip" download --quiet --no-deps --dest "$built/wheels" six==1.17.0
  cargo install --quiet --locked --path "$here/crash-programs/cargo" --root "$built" --target-dir "$built/target"
  (cd "$here/crash-programs/go" && go build -o "$built/bin/use-bbolt" .)
  cp -r "$here/crash-programs/npm" "$built/"
  (cd "$built/npm" && npm install --silent --no-audit --no-fund && npm pack --silent signal-exit@4.1.0 >/dev/null)
  # A local cache with one crate that is not unpacked.
  mkdir -p "$built/crate/src"
  printf '[package]\nname = "user"\nversion = "0.0.0"\nedition = "2021"\n[dependencies]\nitoa = "=1.0.11"\n' >"$built/crate/Cargo.toml"
  touch "$built/crate/src/lib.rs"
  CARGO_HOME=$built/crate/home cargo fetch --quiet --manifest-path "$built/crate/Cargo.toml"
  rm -rf "$built/crate/home/registry/src"
fi

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
  local name=$1 needs=$2 expected=$3 status=0 models found limits=(--states 400 --samples 100)
  shift 3
  if [ -n "$only" ] && [ "$only" != "$name" ]; then return; fi
  met=1
  if ! sh -c "$needs" >/dev/null 2>&1; then
    say "$name: left out, because it is not installed ($needs)"
    return
  fi
  models=$(printf '%s\n' "$expected" | tr ' ' '\n' | sed 's/=.*//' | paste -sd ,)
  # A check that starts a server takes long.
  if [ -n "${slow:-}" ]; then limits=(--states 60 --samples 20 --no-repair); fi
  if [ -n "$quick" ]; then limits=(--states 30 --samples 20 --no-repair); fi
  # The states are bounded: only a hang takes this long.
  "$STEADFAST" crash test --fs "$models" "${limits[@]}" --budget 3600s --check-time 600s -o "$WORK/$name.trace" --json --html "$WORK/$name.html" "$@" \
    >"$WORK/$name.json" 2>"$WORK/$name.log" || status=$?
  if ((status > 1)); then
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
    # Its output is acknowledgements: rows alone.
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
  sqlite DELETE NORMAL 'ext4=broken xfs=broken btrfs=lost posix=broken ordered=lost sync=clean'
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


cat >"$WORK/use-rocksdb.py" <<'PYTHON'
import shutil, sys
from rocksdict import Rdict, WriteOptions
# The file of the Python package beside the database, which it writes anew at each start: RocksDB is judged without it.
if sys.argv[1] == "check":
    shutil.copy(sys.argv[3], "db/rocksdict-config.json")
try:
    db = Rdict("db")
except Exception as error:
    print("does not open:", str(error).split(":")[0])
    sys.exit(1)
if sys.argv[1] == "write":
    options = WriteOptions()
    options.sync = True
    db.set_write_options(options)
    for key in sys.argv[2:]:
        db[key] = key * 400
        print(key, flush=True)
elif sys.argv[1] == "check":
    for line in open(sys.argv[2]):
        key = line.strip()
        if db.get(key) != key * 400:
            print("a key is lost")
            sys.exit(1)
db.close()
PYTHON
cat >"$WORK/use-duckdb.py" <<'PYTHON'
import sys, duckdb
try:
    db = duckdb.connect("db")
    if sys.argv[1] == "make":
        db.execute("create table t(a varchar)")
    elif sys.argv[1] == "write":
        for key in sys.argv[2:]:
            db.execute("insert into t values (?)", [key])
            print(key, flush=True)
    else:
        rows = {row[0] for row in db.execute("select a from t").fetchall()}
        for line in open(sys.argv[2]):
            if line.strip() not in rows:
                print("a row is lost")
                sys.exit(1)
except duckdb.Error as error:
    print("does not open:", str(error).splitlines()[0])
    sys.exit(1)
PYTHON
cat >"$WORK/use-lmdb-writemap.py" <<'PYTHON'
import sys, lmdb
env = lmdb.open("db", map_size=1 << 20, writemap=True)
with env.begin(write=True) as txn:
    txn.put(b"second", b"second" * 400)
print("second", flush=True)
PYTHON
venv=$built/venv/bin/python
if [ -z "$quick" ]; then
  slow=1 program rocksdb "$venv -c 'import rocksdict'" 'ext4=clean xfs=clean btrfs=clean posix=broken ordered=clean' \
    --setup "$venv $WORK/use-rocksdb.py write first && cp db/rocksdict-config.json $WORK/" \
    --check "$venv $WORK/use-rocksdb.py check \$CRASH_ACKED $WORK/rocksdict-config.json 2>&1" \
    -- "$venv" "$WORK/use-rocksdb.py" write second third
  slow=1 program rocksdict "$venv -c 'import rocksdict'" 'killed=broken ext4=broken ordered=broken' \
    --setup "$venv $WORK/use-rocksdb.py write first" --check "$venv $WORK/use-rocksdb.py open 2>&1" -- "$venv" "$WORK/use-rocksdb.py" write second
  slow=1 program duckdb "$venv -c 'import duckdb'" 'killed=broken ext4=broken xfs=broken btrfs=broken posix=broken ordered=broken' \
    --setup "$venv $WORK/use-duckdb.py make" \
    --check "$venv $WORK/use-duckdb.py check \$CRASH_ACKED 2>&1" -- "$venv" "$WORK/use-duckdb.py" write second third
  program lmdb-writemap "$python -c 'import lmdb'" 'ext4=clean xfs=clean btrfs=clean ordered=clean' \
    --setup "$python $WORK/use-lmdb.py write first" \
    --check "$python $WORK/use-lmdb.py check \$CRASH_ACKED 2>&1" -- "$python" "$WORK/use-lmdb-writemap.py"
  program sled "test -x $built/bin/use-sled" 'ext4=broken xfs=broken btrfs=broken ordered=broken' \
    --check "$built/bin/use-sled check \$CRASH_ACKED" -- "$built/bin/use-sled" write second third
  program bbolt "test -x $built/bin/use-bbolt" 'ext4=broken xfs=broken btrfs=broken ordered=broken' \
    --check "$built/bin/use-bbolt check \$CRASH_ACKED" -- "$built/bin/use-bbolt" write first second
fi

# ---------------------------------------------------------------- a file replaced

replaced='test "$(cat file)" = "old content" || test "$(cat file)" = "new content" || { echo "neither old nor new"; exit 1; }; \
  ! grep -qx replaced "$CRASH_ACKED" || test "$(cat file)" = "new content" || { echo "the new content is lost"; exit 1; }'
cat >"$WORK/use-atomicwrites.py" <<'PYTHON'
from atomicwrites import atomic_write
with atomic_write("file", overwrite=True) as file:
    file.write("new content\n")
print("replaced", flush=True)
PYTHON
if [ -z "$quick" ]; then
  program write-file-atomic "test -d $built/npm/node_modules/write-file-atomic" 'ext4=lost xfs=lost btrfs=lost posix=lost ordered=lost sync=clean' \
    --setup 'echo old content >file' --check "$replaced" -- node "$built/npm/replace.js"
  program atomic-write-file "test -x $built/bin/use-atomic-write-file" 'ext4=clean xfs=clean btrfs=clean posix=clean ordered=clean sync=clean' \
    --setup 'echo old content >file' --check "$replaced" -- "$built/bin/use-atomic-write-file"
  program atomicwrites "$venv -c 'import atomicwrites'" 'ext4=clean xfs=clean btrfs=clean posix=clean ordered=clean sync=clean' \
    --setup 'echo old content >file' --check "$replaced" -- "$venv" "$WORK/use-atomicwrites.py"
fi

# ---------------------------------------------------------------- packages installed, offline

cat >"$WORK/pip.check" <<'SH'
# Installed means: there is the directory that 'pip check' and 'pip list' look for, with the list of files that pip writes last.
packages=$(ls -d site/lib/python3*/site-packages 2>/dev/null || echo site)
ls "$packages"/six-*.dist-info/RECORD >/dev/null 2>&1 || exit 0
PYTHONPATH=$packages PYTHONDONTWRITEBYTECODE=1 python3 -S -c 'import six; six.text_type' >/dev/null 2>&1 || { echo 'six is listed, and does not import'; exit 1; }
SH
cat >"$WORK/npm.check" <<'SH'
grep -q signal-exit node_modules/.package-lock.json 2>/dev/null || exit 0
node -e "require('signal-exit').onExit" >/dev/null 2>&1 || { echo 'signal-exit is listed, and does not load'; exit 1; }
SH
cat >"$WORK/cargo.sh" <<'SH'
# cargo.sh: unpacks the crates of the lock file, as the first build does.
CARGO_HOME=$PWD/home CARGO_NET_OFFLINE=true cargo metadata --offline --format-version 1 --manifest-path "$1/Cargo.toml" >/dev/null
SH
cat >"$WORK/cargo.check" <<'SH'
for crate in home/registry/src/*/*/; do
  [ -s "$crate/.cargo-ok" ] || continue
  [ -s "$crate/Cargo.toml" ] && [ -s "$crate/src/lib.rs" ] || { echo 'a crate counts as unpacked, and its sources are empty'; exit 1; }
done
SH
if [ -z "$quick" ]; then
  slow=1 program pip "ls $built/wheels/six-*.whl" 'ext4=broken xfs=broken btrfs=broken ordered=clean' \
    --check "sh $WORK/pip.check" -- sh -c "$built/venv/bin/pip install --quiet --no-index --no-compile --find-links $built/wheels --prefix \$PWD/site six"
  # Files are moved from a directory for temporary use, the list of files first.
  slow=1 program pip-target "ls $built/wheels/six-*.whl" 'killed=broken ext4=broken xfs=broken btrfs=broken ordered=broken' \
    --check "sh $WORK/pip.check" -- "$built/venv/bin/pip" install --quiet --no-index --no-compile --find-links "$built/wheels" --target site six
  slow=1 program npm "ls $built/npm/signal-exit-*.tgz" 'ext4=broken xfs=broken btrfs=broken ordered=clean' \
    --setup 'echo "{}" >package.json' --check "sh $WORK/npm.check" \
    -- sh -c "npm install --offline --silent --no-audit --no-fund --cache $WORK/npm-cache $built/npm/signal-exit-*.tgz"
  slow=1 program cargo "ls $built/crate/home/registry/cache" 'ext4=broken xfs=broken btrfs=broken ordered=clean' \
    --setup "cp -r $built/crate/home home" --check "sh $WORK/cargo.check" -- sh "$WORK/cargo.sh" "$built/crate"
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
  slow=1 program redis 'redis-server --version' 'ext4=broken xfs=broken btrfs=clean posix=broken ordered=clean' \
    --check "sh $WORK/redis.sh check \$CRASH_ACKED" -- sh "$WORK/redis.sh" write one two
fi

# ---------------------------------------------------------------- PostgreSQL

cat >"$WORK/postgres.sh" <<'SH'
# postgres.sh make | write KEY… | check FILE. The server does not run as root.
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
socket=$(mktemp -d "${TMPDIR:-/tmp}/postgres.XXXXXX")
chown postgres "$socket"
chmod 755 "$socket"
as() { setpriv --reuid postgres --regid postgres --clear-groups "$@"; }
ask() { as psql -h "$socket" -d postgres -q -A -t -v ON_ERROR_STOP=1 -c "$1" 2>&1; }
if [ "$1" = make ]; then
  mkdir pg
  chown postgres pg
  as "$bin/initdb" -D "$PWD/pg" -A trust --no-sync >/dev/null || exit 1
fi
if ! as "$bin/pg_ctl" -D "$PWD/pg" -s -w -t 100 -l "$socket/log" -o "-k $socket -h ''" start >/dev/null 2>&1; then
  if [ -e "$socket/log" ]; then
    echo "the server does not start: $(grep -m 1 -E 'PANIC|FATAL' "$socket/log" | sed 's/^.*\(PANIC\|FATAL\)/\1/')"
  else
    echo 'the server is not started: postmaster.pid is empty or no number'
  fi
  rm -rf "$socket"
  exit 1
fi
status=0
what=$1
shift
case $what in
  make) ask 'create table t(a text)' || status=1 ;;
  write) for key; do ask "insert into t values ('$key')" && echo "$key"; done ;;
  check)
    rows=$(ask 'select a from t') || { echo "it does not read: $rows" | head -n 1; status=1; }
    while read -r key; do printf '%s\n' "$rows" | grep -qx "$key" || { echo 'a row is lost'; status=1; break; }; done <"$1" ;;
esac
as "$bin/pg_ctl" -D "$PWD/pg" -s -m fast stop >/dev/null 2>&1
rm -rf "$socket"
exit $status
SH
if [ -z "$quick" ]; then
  # 'pg_ctl' refuses a postmaster.pid that is empty or no number. 'pg_ctlcluster' of Debian removes one that names no server, as the
  # recovery does here; without it the verdict is the second.
  slow=1 program postgres 'ls /usr/lib/postgresql/*/bin/initdb && [ "$(id -u)" = 0 ]' 'ext4=clean xfs=clean btrfs=clean' \
    --setup "bash $WORK/postgres.sh make" --recover 'rm -f pg/postmaster.pid' \
    --check "bash $WORK/postgres.sh check \$CRASH_ACKED" -- bash "$WORK/postgres.sh" write one two
  slow=1 program postgres-pid 'ls /usr/lib/postgresql/*/bin/initdb && [ "$(id -u)" = 0 ]' 'killed=broken ext4=broken xfs=broken btrfs=broken' \
    --setup "bash $WORK/postgres.sh make" --check "bash $WORK/postgres.sh check \$CRASH_ACKED" -- bash "$WORK/postgres.sh" write one
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

# ---------------------------------------------------------------- editors

cat >"$WORK/editor.check" <<'SH'
# The old content may also be in the backup beside the file.
case $(cat file 2>/dev/null) in 'old content' | 'new content') whole=1 ;; *) whole= ;; esac
[ -n "$whole" ] || [ "$(cat file~ 2>/dev/null)" = 'old content' ] || { echo 'neither the file nor its backup has the content'; exit 1; }
! grep -qx saved "$CRASH_ACKED" || [ "$(cat file)" = 'new content' ] || { echo 'the new content is lost'; exit 1; }
SH
cat >"$WORK/use-nano.py" <<'PYTHON'
# use-nano.py OPTION… FILE: nano, in a terminal of its own, replaces the first line, saves and exits.
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0:
    os.environ["TERM"] = "linux"
    os.execvp("nano", ["nano", "--ignorercfiles", *sys.argv[1:]])
# Keys that come before the first screen would be discarded.
shown = b""
while b"old content" not in shown:
    shown += os.read(terminal, 4096)
os.write(terminal, b"\x0bnew content\n\x13\x18")
try:
    while os.read(terminal, 4096):
        pass
except OSError:
    pass
if os.waitpid(pid, 0)[1] != 0:
    sys.exit("nano failed")
print("saved")
PYTHON
vim="vim -N -u NONE -i NONE -es -c '%s/old/new/'"
if [ -z "$quick" ]; then
  # Vim makes no backup of a file in /tmp, where the recording may be.
  program vim 'vim --version' 'killed=clean ext4=clean xfs=clean btrfs=clean posix=broken ordered=clean' \
    --setup 'echo old content >file' --check "sh $WORK/editor.check" -- sh -c "$vim -c 'set backupskip=' -c wq file && echo saved"
  program vim-in-place 'vim --version' 'killed=broken ext4=broken xfs=broken btrfs=broken posix=broken ordered=broken' \
    --setup 'echo old content >file' --check "sh $WORK/editor.check" -- sh -c "$vim -c 'set backupskip=*' -c wq file && echo saved"
  program nano 'nano --version' 'killed=broken ext4=broken xfs=broken btrfs=broken posix=broken ordered=broken' \
    --setup 'echo old content >file' --check "sh $WORK/editor.check" -- python3 "$WORK/use-nano.py" file
  program nano-backup 'nano --version' 'killed=clean ext4=clean xfs=clean btrfs=clean posix=broken ordered=clean' \
    --setup 'echo old content >file' --check "sh $WORK/editor.check" -- python3 "$WORK/use-nano.py" --backup file
fi

# ---------------------------------------------------------------- Java: HSQLDB, ZooKeeper

cat >"$WORK/UseHsqldb.java" <<'JAVA'
import java.nio.file.*;
import java.sql.*;

/** UseHsqldb make | write KEY… | check FILE: a database in the directory; each commit is synced. */
class UseHsqldb {
    public static void main(String[] args) throws Exception {
        int status = 0;
        try (Connection db = DriverManager.getConnection("jdbc:hsqldb:file:db/db", "SA", ""); Statement sql = db.createStatement()) {
            switch (args[0]) {
                case "make" -> {
                    sql.execute("SET FILES WRITE DELAY FALSE");
                    sql.execute("CREATE CACHED TABLE t (a VARCHAR(40))");
                    sql.execute("SHUTDOWN");
                }
                case "write" -> {
                    for (int i = 1; i < args.length; i++) {
                        sql.execute("INSERT INTO t VALUES ('" + args[i] + "')");
                        System.out.println(args[i]);
                    }
                    sql.execute("SHUTDOWN");
                }
                default -> {
                    for (String key : Files.readAllLines(Path.of(args[1]))) {
                        if (!sql.executeQuery("SELECT a FROM t WHERE a = '" + key + "'").next()) {
                            System.out.println("a row is lost");
                            status = 1;
                            break;
                        }
                    }
                }
            }
        } catch (SQLException error) {
            System.out.println("it does not open or read: " + error.getMessage());
            status = 1;
        }
        System.exit(status);
    }
}
JAVA
cat >"$WORK/UseZooKeeper.java" <<'JAVA'
import java.io.File;
import java.net.InetSocketAddress;
import java.nio.file.*;
import java.util.concurrent.*;
import org.apache.zookeeper.*;
import org.apache.zookeeper.server.*;
import org.apache.zookeeper.server.persistence.FileTxnSnapLog;

/** UseZooKeeper make | write KEY… | check FILE: a standalone server in this process, on a free port, and a client. */
class UseZooKeeper {
    public static void main(String[] args) throws Exception {
        ServerCnxnFactory connections = ServerCnxnFactory.createFactory(new InetSocketAddress("127.0.0.1", 0), 10);
        try {
            connections.startup(new ZooKeeperServer(new FileTxnSnapLog(new File("log"), new File("data")), 2000, ""));
        } catch (Exception error) {
            System.out.println("the server does not start: " + error);
            Runtime.getRuntime().halt(1);
        }
        CountDownLatch connected = new CountDownLatch(1);
        ZooKeeper client = new ZooKeeper("127.0.0.1:" + connections.getLocalPort(), 60000, event -> {
            if (event.getState() == Watcher.Event.KeeperState.SyncConnected) connected.countDown();
        });
        if (!connected.await(60, TimeUnit.SECONDS)) throw new Exception("no connection");
        int status = 0;
        switch (args[0]) {
            case "make" -> { }
            case "write" -> {
                for (int i = 1; i < args.length; i++) {
                    client.create("/" + args[i], new byte[0], ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
                    System.out.println(args[i]);
                }
            }
            default -> {
                for (String key : Files.readAllLines(Path.of(args[1]))) {
                    if (client.exists("/" + key, false) == null) {
                        System.out.println("a node is lost");
                        status = 1;
                        break;
                    }
                }
            }
        }
        Runtime.getRuntime().halt(status);
    }
}
JAVA
java="java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"
hsqldb_jar=/usr/share/java/hsqldb.jar
zookeeper_jars=/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-nop.jar
hsqldb="$java -cp $hsqldb_jar:$WORK/java UseHsqldb"
zookeeper="$java -cp $zookeeper_jars:$WORK/java UseZooKeeper"
if [ -z "$quick" ]; then
  # The lock holds a time: HSQLDB passes over one that is ten seconds old, the recovery does not wait.
  slow=1 program hsqldb "javac -cp $hsqldb_jar -d $WORK/java $WORK/UseHsqldb.java" 'killed=clean ext4=lost xfs=lost btrfs=lost posix=broken ordered=lost' \
    --setup "$hsqldb make" --recover 'rm -f db/db.lck' --check "$hsqldb check \$CRASH_ACKED 2>&1" -- sh -c "$hsqldb write one two"
  # ZooKeeper refuses a last log without a header. The recovery removes such a log, in which nothing was acknowledged; without it the
  # verdict is the second.
  compiled="javac -cp $zookeeper_jars -d $WORK/java $WORK/UseZooKeeper.java"
  slow=1 program zookeeper "$compiled" 'killed=clean ext4=clean xfs=clean btrfs=clean ordered=clean' --setup "$zookeeper make" \
    --recover 'for log in log/version-2/log.*; do [ "$(head -c 4 "$log")" = ZKLG ] || rm "$log"; done' \
    --check "$zookeeper check \$CRASH_ACKED 2>&1" -- sh -c "$zookeeper write one two"
  slow=1 program zookeeper-log "$compiled" 'killed=broken ext4=broken xfs=broken btrfs=broken ordered=broken' \
    --setup "$zookeeper make" --check "$zookeeper check \$CRASH_ACKED 2>&1" -- sh -c "$zookeeper write one two"
fi

# ---------------------------------------------------------------- etcd

cat >"$WORK/etcd.sh" <<'SH'
# etcd.sh make | write KEY… | check FILE. The sockets are in the working directory of the server.
data=$PWD/etcd
place=$(mktemp -d "${TMPDIR:-/tmp}/etcd.XXXXXX")
what=$1
shift
if [ "$what" = check ]; then cp "$1" "$place/acked"; fi
cd "$place" || exit 1
etcd --data-dir "$data" --listen-client-urls unix://client:1 --advertise-client-urls unix://client:1 \
  --listen-peer-urls unix://peer:1 --initial-advertise-peer-urls http://127.0.0.1:2380 --initial-cluster default=http://127.0.0.1:2380 \
  --heartbeat-interval 10 --election-timeout 100 >log 2>&1 &
server=$!
ask() { ETCDCTL_API=3 etcdctl --endpoints unix://client:1 "$@" 2>/dev/null; }
status=0
tries=0
# A start takes a tenth of a second.
until ask --command-timeout 2s endpoint health >/dev/null 2>&1; do
  tries=$((tries + 1))
  if ! kill -0 $server 2>/dev/null; then
    echo "the server does not start: $(grep -v -E '^(goroutine|$|	)' log | grep -m 1 -E 'panic|C \| |fatal' | sed 's/^[-0-9]* [0-9:.]* \(C | \)\?//')"
    status=1
  elif [ $tries -gt 1000 ] || grep -q 'publish error' log; then
    echo 'the server starts, and never has a leader'
    status=1
  fi
  if [ $status != 0 ]; then break; fi
  sleep 0.02
done
if [ $status = 0 ]; then
  case $what in
    write) for key; do if [ "$(ask put "$key" "$key")" = OK ]; then echo "$key"; fi; done ;;
    check) while read -r key; do if [ "$(ask get --print-value-only "$key")" != "$key" ]; then echo 'a key is lost'; status=1; break; fi; done <acked ;;
  esac
fi
kill $server 2>/dev/null
wait $server
rm -rf "$place"
exit $status
SH
if [ -z "$quick" ]; then
  slow=1 program etcd 'etcd --version && etcdctl version' 'killed=clean ext4=clean xfs=clean btrfs=clean ordered=clean' \
    --setup "sh $WORK/etcd.sh make" --check "sh $WORK/etcd.sh check \$CRASH_ACKED" -- sh "$WORK/etcd.sh" write one two
  slow=1 program etcd-first 'etcd --version && etcdctl version' 'killed=broken ext4=broken ordered=broken' \
    --check "sh $WORK/etcd.sh check \$CRASH_ACKED" -- sh "$WORK/etcd.sh" write one
fi

# ---------------------------------------------------------------- Prometheus

printf '# TYPE up gauge\nup 1 1700000000\nup 2 1700000060\n# EOF\n' >"$WORK/prometheus.samples"
cat >"$WORK/prometheus.check" <<'SH'
samples=$(promtool tsdb dump data 2>&1) || { printf 'it does not read: %s\n' "$samples" | head -n 1; exit 1; }
! grep -qx made "$CRASH_ACKED" || [ "$(printf '%s\n' "$samples" | grep -c up)" = 2 ] || { echo 'a sample is lost'; exit 1; }
SH
if [ -z "$quick" ]; then
  program prometheus 'promtool --version' 'killed=clean ext4=clean xfs=clean btrfs=clean posix=clean ordered=clean' --setup 'mkdir data data/wal' --check "sh $WORK/prometheus.check" \
    -- sh -c "promtool tsdb create-blocks-from openmetrics $WORK/prometheus.samples data >/dev/null && echo made"
fi

# ---------------------------------------------------------------- our own

program put true 'ext4=clean xfs=clean btrfs=clean posix=clean ordered=clean' \
  --setup 'echo old content >file' \
  --check 'test "$(cat file)" = "old content" || test "$(cat file)" = "new content" || { echo "neither old nor new"; exit 1; }; \
    ! grep -qx replaced "$CRASH_ACKED" || test "$(cat file)" = "new content" || { echo "the new content is lost"; exit 1; }' \
  -- sh -c "echo new content | $STEADFAST put file && echo replaced"

if [ -z "$met" ]; then warn "there is no program '$only'"; exit 2; fi
exit "$failed"

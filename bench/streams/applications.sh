# Git, SQLite and LevelDB: alone (ccfs §4.4, table 4), and Git beside SQLite (figure 6). Sourced by bench/streams.sh.
# shellcheck shell=bash disable=SC2034,SC2154
#
#   steadfast          each in a stream of its own, as it is by default
#   steadfast-ignored  the same, fsync ignored: order makes it consistent
#   ext4               as it is by default: may be inconsistent after a crash
#   ext4-safe          made safe: Git with core.fsync=all, SQLite with synchronous=EXTRA, LevelDB with the syncs that it lacks

export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1

# The sources of a kernel, from the distribution: some directories of them. Sets SOURCES.
kernel_sources() {
  SOURCES=$DISK_WORK/sources.tar
  local archive=(/usr/src/linux-source-*.tar.xz) tree parts
  [ -e "${archive[0]}" ] || unable "no sources of a kernel in /usr/src: install linux-source"
  tree=$(basename "${archive[0]}" .tar.xz)
  parts=("$tree/kernel" "$tree/fs" "$tree/mm")
  if [ -n "$quick" ]; then parts=("$tree/mm"); fi
  mkdir "$DISK_WORK/unpacked"
  tar -xJf "${archive[0]}" -C "$DISK_WORK/unpacked" "${parts[@]}"
  tar -cf "$SOURCES" -C "$DISK_WORK/unpacked" .
  about+=("git_files=$(find "$DISK_WORK/unpacked" -type f | wc -l)" "git_bytes=$(stat -c %s "$SOURCES")" "git_parts=${parts[*]#*/}")
  rm -rf "$DISK_WORK/unpacked"
}

is_safe() { [ "$1" = ext4-safe ]; }
application_stream() { case $1 in steadfast-ignored) echo "+$2" ;; steadfast|steadfast-beside) echo "$2" ;; esac; }

git_prepare() {
  mkdir -p "$1/git"
  tar -xf "$SOURCES" -C "$1/git"
}
git_script() {
  local fsync=()
  if is_safe "$1"; then fsync=(-c core.fsync=all); fi
  echo "cd '$2/git' && git init -q . && git config user.name Bench && git config user.email bench@localhost &&
    git ${fsync[*]} add -A && git ${fsync[*]} commit -qm sources"
}
git_check() { git -C "$1/git" fsck --strict >/dev/null 2>&1 && git -C "$1/git" diff --quiet HEAD; }

sqlite_prepare() {
  mkdir -p "$1/sqlite"
  sqlite3 "$1/sqlite/db" "CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT)"
}
sqlite_script() {
  local synchronous=FULL
  if is_safe "$1"; then synchronous=EXTRA; fi
  echo "sqlite3 -bail '$2/sqlite/db' <'$DISK_WORK/rows-$synchronous.sql' >/dev/null"
}
sqlite_check() { [ "$(sqlite3 "$1/sqlite/db" "PRAGMA integrity_check; SELECT count(*) FROM t" | tr '\n' ' ')" = "ok $rows " ]; }
sqlite_rows() {
  local synchronous
  for synchronous in FULL EXTRA; do
    awk -v n="$rows" -v s="$synchronous" 'BEGIN {
      printf "PRAGMA synchronous = %s;\n", s
      for (i = 0; i < n; i++) printf "INSERT INTO t (text) VALUES (\x27%0120d\x27);\n", i * 7919
    }' >"$DISK_WORK/rows-$synchronous.sql"
  done
}

leveldb_prepare() { mkdir -p "$1/leveldb"; }
leveldb_script() { echo "'$DISK_WORK/leveldb' fill '$2/leveldb/db' $keys $(is_safe "$1" && echo safe) >/dev/null"; }
leveldb_check() { [ -s "$1/leveldb/db/CURRENT" ]; }

# What the peers did stands beside both ways of ours.
note() {
  case $4 in
    steadfast) record "$@" ;;
    steadfast-ignored) record "$1+ignored" "$2" "$3" steadfast "$5" ;;
    *) record "$@"; record "$1+ignored" "$2" "$3" "$4" "$5" ;;
  esac
}

application() {
  local which=$1 system=$2 dir=${AT[$2]} before after begin end
  "${which}_prepare" "$dir"
  settle "$system"
  before=$(counts "$system")
  begin=$(date +%s%N)
  in_stream "$system" "$(application_stream "$system" "$which")" sh -c "$("${which}_script" "$system" "$dir")" ||
    die "$which on $system failed"
  end=$(date +%s%N)
  settle "$system"
  after=$(counts "$system")
  "${which}_check" "$dir" || die "$which on $system: what it wrote is not right"
  note "$which-$backing" s lower "$system" "$(rate $((end - begin)) 1000000000)"
  note "$which-flushes-$backing" flushes lower "$system" "$(since "$before" "$after" | awk '{ print $3 }')"
  note "$which-written-$backing" MiB lower "$system" "$(since "$before" "$after" | awk '{ printf "%.3f", $2 / 1048576 }')"
  rm -rf "${dir:?}/$which"
  settle "$system"
}

prepare_applications() {
  rows=2000 keys=250000
  if [ -n "$quick" ]; then rows=200 keys=20000; fi
  [ -e "${SOURCES:-}" ] || kernel_sources
  sqlite_rows
  c++ -O2 -std=c++17 -o "$DISK_WORK/leveldb" "$root/bench/streams/leveldb.cc" -lleveldb || die "leveldb.cc does not build"
}

streams_applications() {
  local results=$RESULTS run system systems backing which rows keys
  prepare_applications
  for backing in ${STEADFAST_BENCH_BACKINGS:-disk slow}; do
    volume steadfast ordered "$backing"
    volume steadfast-ignored ordered "$backing"
    volume ext4 ext4 "$backing"
    volume ext4-safe ext4 "$backing"
    for ((run = 0; run <= runs; run++)); do
      begins "$run" steadfast steadfast-ignored ext4 ext4-safe
      for which in git sqlite leveldb; do
        wanted "$which" || continue
        for system in "${systems[@]}"; do application "$which" "$system"; done
      done
    done
    for system in "${systems[@]}"; do unvolume "$system"; done
  done
  RESULTS=$results
  about+=("sqlite_rows=$rows" "leveldb_keys=$keys")
}

# git_again SYSTEM STREAM KIND DIR: adds and commits for ever.
git_again() {
  while :; do
    tar -xf "$SOURCES" -C "$4/git"
    in_stream "$1" "$2" sh -c "$(git_script "$3" "$4")" || return
    rm -rf "$4/git"
    mkdir -p "$4/git"
  done
}

# SQLite while Git adds and commits again and again: its transactions in a second. `apart` has Git
# on another volume of the same disk.
together() {
  local system=$1 dir=${AT[$1]} git_at=${AT[$1]} kind=$1 git_stream sqlite_stream begin end
  case $system in
    one-stream) git_stream=both sqlite_stream=both ;;
    apart) git_at=${AT[steadfast]} git_stream=git sqlite_stream=sqlite ;;
    *) git_stream=$(application_stream "$system" git) sqlite_stream=$(application_stream "$system" sqlite) ;;
  esac
  sqlite_prepare "$dir"
  settle "$system"
  local git_system=$system
  if [ "$system" = apart ]; then git_system=steadfast; fi
  mkdir -p "$git_at/git"
  start_group git_again "$git_system" "$git_stream" "$kind" "$git_at" 2>"$DISK_WORK/git.log"
  begin=$(date +%s%N)
  in_stream "$system" "$sqlite_stream" sh -c "$(sqlite_script "$kind" "$dir")" || die "SQLite on $system failed"
  end=$(date +%s%N)
  stop_group "$GROUP"
  sqlite_check "$dir" || die "SQLite on $system: what it wrote is not right"
  record "together-sqlite-$backing" tx/s higher "$system" "$(rate "$rows" "$(rate $((end - begin)) 1000000000)")"
  rm -rf "${dir:?}/sqlite" "${git_at:?}/git"
  settle "$system"
}

streams_together() {
  local results=$RESULTS run system systems backing rows keys merges
  prepare_applications
  rows=$((rows * 5))
  sqlite_rows
  for backing in ${STEADFAST_BENCH_BACKINGS:-disk}; do
    volume steadfast ordered "$backing"
    volume one-stream ordered "$backing"
    volume apart ordered "$backing"
    volume ext4 ext4 "$backing"
    volume ext4-safe ext4 "$backing"
    for ((run = 0; run <= runs; run++)); do
      begins "$run" steadfast one-stream apart ext4 ext4-safe
      for system in "${systems[@]}"; do together "$system"; done
    done
    # Both may meet the default stream, in which this script prepares what they work on.
    merges=$("$STEADFAST" stream stats --merges "${AT[steadfast]}" |
      awk '$1 $2 == "gitsqlite" || $1 $2 == "sqlitegit" { n++ } END { print n + 0 }')
    about+=("merges_$backing=$merges")
    for system in "${systems[@]}"; do unvolume "$system"; done
  done
  RESULTS=$results
}

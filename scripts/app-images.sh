#!/usr/bin/env bash
# Applications and power cuts at every moment (ccfs §4.1, table 2): each runs once on a disk that records its writes and
# flushes; then the disk is cut at many places of the record, the volume mounted, and the application's files are checked.
#
#   scripts/app-images.sh [--images N] [--on ordered|ext4] [--only APPS] [--together] [--keep]
#
#   --images N  cuts for each application (400; ZooKeeper an eighth of it)
#   --together  all of them at once on one volume, and each cut is checked for all (200 cuts)
#   --on WHERE  a volume of the contract 'ordered', each application in a stream of its own (default), or the kernel's ext4
#   --only APPS some of git, mercurial, sqlite, leveldb and zookeeper, with commas between them
#   --keep      keep the working directory for inspection
#
# After a cut, the disk has everything that was flushed before it; of later writes all, some, or parts. Consistent means:
#
#   git        'git fsck --strict' finds nothing, the branch is a commit of the run, the index can be read
#   mercurial  'hg verify' finds nothing, and the newest revision is one of the run; the dirstate is counted apart
#   sqlite     integrity, the first N transactions and no others, all that were acknowledged (synchronous=EXTRA)
#   leveldb    the first N keys in the order of insertion and no others, each with its value
#   zookeeper  the server starts, the first N nodes are there and no others, all that were acknowledged
#
# Exits 0, 1 (an application found something inconsistent) or 3 (something needed is missing). On ext4, which promises less,
# it exits 1 if nothing was inconsistent: then the cuts show nothing.
# shellcheck disable=SC2317,SC2329 # functions of an application are called by its name
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"

images=
together=
on=ordered
only=
while [ $# -gt 0 ]; do
  case $1 in
    --images) images=${2:?"--images needs a number"}; shift 2 ;;
    --on) on=${2:?"--on needs 'ordered' or 'ext4'"}; shift 2 ;;
    --only) only=${2:?"--only needs an application"}; shift 2 ;;
    --together) together=1; shift ;;
    --keep) export KEEP_WORK=1; shift ;;
    -h|--help) sed -n '2,25s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) warn "unknown option '$1' (see --help)"; exit 2 ;;
  esac
done
case $on in ordered|ext4) ;; *) warn "--on takes 'ordered' or 'ext4', not '$on'"; exit 2 ;; esac
applications=(git mercurial sqlite leveldb zookeeper)
if [ -n "$only" ]; then
  IFS=, read -r -a chosen <<<"$only"
  for app in "${chosen[@]}"; do
    case " ${applications[*]} " in
      *" $app "*) ;;
      *) warn "--only takes some of ${applications[*]}, not '$app'"; exit 2 ;;
    esac
  done
  applications=("${chosen[@]}")
fi
images=${images:-$([ -n "$together" ] && echo 200 || echo 400)}
[[ $images =~ ^[1-9][0-9]*$ ]] || { warn "--images needs a number above zero"; exit 2; }

"$here/setup.sh" apps
case " ${applications[*]} " in *" zookeeper "*) "$here/setup.sh" zookeeper ;; esac
[ "$(id -u)" = 0 ] || unable "needs root, for mounts and loop devices"
reason=$(fuse_reason)
[ -z "$reason" ] || unable "cannot mount here: $reason"
build_release
build_driver disk
DISK_TOOL=$DRIVER
make_workdir "$(fast_base 4000)"
case " ${applications[*]} " in
  *" leveldb "*)
    c++ -O2 -std=c++17 -o "$WORK/leveldb-tool" "$ROOT/bench/streams/leveldb.cc" -lleveldb || die "leveldb.cc does not build"
    ;;
esac

export GIT_CONFIG_GLOBAL=$WORK/gitconfig GIT_CONFIG_NOSYSTEM=1 HGRCPATH=$WORK/hgrc
printf '[user]\nname=Steadfast\nemail=apps@localhost\n[gc]\nauto=0\n[safe]\ndirectory=*\n' >"$GIT_CONFIG_GLOBAL"
printf '[ui]\nusername=Steadfast\n' >"$HGRCPATH"

BASE=$WORK/base.img IMAGE=$WORK/image.img RECORD=$WORK/record DISK=$WORK/disk AT=$WORK/volume
IMAGE_MIB=$([ -n "$together" ] && echo 512 || echo 192)
mkdir -p "$DISK" "$AT"

# ---------------------------------------------------------------- the disk and the volume on it

DISK_SERVER='' VOLUME_SERVER='' VOLUME_LOOP=''
disk_start() {
  "$DISK_TOOL" "$@" "$DISK" "${DISK_OPTIONS[@]}" &
  DISK_SERVER=$!
  await --alive "$DISK_SERVER" mount_answers "$DISK" || die "the disk does not answer"
}
disk_stop() {
  kill -TERM "$DISK_SERVER" 2>/dev/null || true
  wait "$DISK_SERVER" || die "the disk failed"
}
# Content of the last image, however the script ended.
give_back() {
  detach "$AT"
  if [ -n "$VOLUME_SERVER" ]; then stop_process "$VOLUME_SERVER"; fi
  if [ -n "$VOLUME_LOOP" ]; then loop_detach "$VOLUME_LOOP" "$DISK/disk"; fi
  if [ -n "$DISK_SERVER" ]; then stop_process "$DISK_SERVER"; fi
  detach "$DISK"
}
on_exit give_back

format() {
  case $on in
    ordered) "$STEADFAST" mkfs --force "$1" >/dev/null || die "steadfast mkfs failed" ;;
    ext4) mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 "$1" || die "mkfs.ext4 failed" ;;
  esac
}

# False if it cannot be mounted.
volume_mount() {
  case $on in
    ordered)
      "$STEADFAST" mount --foreground -o direct,commit=1 "$DISK/disk" "$AT" >"$WORK/server.log" 2>&1 &
      VOLUME_SERVER=$!
      await --alive "$VOLUME_SERVER" mount_answers "$AT"
      ;;
    ext4)
      VOLUME_LOOP=$(losetup --find --show "$DISK/disk") || die "no loop device"
      # Each commits once a second: a run is short.
      mount -t ext4 -o data=ordered,commit=1 "$VOLUME_LOOP" "$AT" 2>>"$WORK/server.log"
      ;;
  esac
}
volume_unmount() {
  case $on in
    ordered)
      if [ -n "$(mount_kind "$AT")" ]; then "$STEADFAST" umount "$AT" >/dev/null || die "steadfast umount failed"; fi
      wait "$VOLUME_SERVER" || true
      ;;
    ext4)
      detach "$AT"
      losetup -d "$VOLUME_LOOP"
      VOLUME_LOOP=
      ;;
  esac
}

mark() { printf '%s' "$1" >"$DISK/mark"; }
in_stream() {
  local name=$1
  shift
  case $on in
    ordered) "$STEADFAST" stream run "$name" --mount "$AT" -- "$@" ;;
    ext4) "$@" ;;
  esac
}

# ---------------------------------------------------------------- the applications
#
# NAME_begin makes what is there before the record. NAME_run does the work, and marks what was acknowledged. NAME_judge N says
# what is inconsistent, or nothing; N was acknowledged.

# Files of the change number $2 in the work tree $1.
change() {
  local k
  mkdir -p "$1/dir-$(($2 % 4))"
  for k in 1 2 3; do seq "$2" $(($2 + 400 * k)) >"$1/dir-$(($2 % 4))/file-$k-$(($2 % 7))"; done
  echo "change $2" >>"$1/log"
}
export -f change

git_begin() { mkdir "$AT/git" && cd "$AT/git" && git init -q -b main && change . 0 && git add -A && git commit -qm "0" && cd /; }
git_run() {
  # shellcheck disable=SC2016 # for the shell below
  in_stream git bash -c 'cd "$1/git" && for i in $(seq 1 40); do sleep 0.1; change . "$i" && git add -A && git commit -qm "$i" || exit 1
    if ((i % 15 == 0)); then git repack -adq || exit 1; fi; done' run "$AT"
}
git_judge() {
  cd "$AT/git" || { echo "no repository"; return; }
  git fsck --strict --no-dangling >"$WORK/judge" 2>&1 || { echo "fsck: $(head -n 1 "$WORK/judge")"; return; }
  git log --format=%s main 2>&1 | awk 'NR == 1 { n = $1 } $1 != n - NR + 1 { bad = 1 } END { if (bad || n - NR + 1 != 0) print "its log has a gap" }'
  git status --porcelain >"$WORK/judge" 2>&1 || echo "status: $(head -n 1 "$WORK/judge")"
}

mercurial_begin() { mkdir "$AT/mercurial" && cd "$AT/mercurial" && hg init && change . 0 && hg commit -qAm 0 && cd /; }
mercurial_run() {
  # shellcheck disable=SC2016
  in_stream mercurial bash -c 'cd "$1/mercurial" && for i in $(seq 1 30); do sleep 0.1; change . "$i" && hg commit -qAm "$i" || exit 1; done' run "$AT"
}
mercurial_judge() {
  cd "$AT/mercurial" || { echo "no repository"; return; }
  # As its manual says after an interrupted command.
  hg recover >/dev/null 2>&1 || true
  hg verify >"$WORK/judge" 2>&1 || { echo "verify: $(tail -n 1 "$WORK/judge")"; return; }
  [ "$(hg log -r tip -T '{desc}' 2>&1)" = "$(hg log -r tip -T '{rev}' 2>&1)" ] || echo "its log has a gap"
  hg status >"$WORK/judge" 2>&1 || echo "dirstate: $(tail -n 1 "$WORK/judge")" >>"$WORK/apart"
}

sqlite_begin() { mkdir "$AT/sqlite" && create_database "$AT/sqlite/db" DELETE; }
sqlite_run() {
  { transactions 0 || true; } | head -n 300 >"$WORK/transactions"
  # shellcheck disable=SC2016
  in_stream sqlite bash -c 'stdbuf -oL sqlite3 -bail -cmd "PRAGMA synchronous = EXTRA" "$1/sqlite/db" <"$2" | while read -r n; do printf %s "$n" >"$3"; done' \
    run "$AT" "$WORK/transactions" "$DISK/mark"
}
sqlite_judge() {
  local found n most
  found=$(sqlite3 "$AT/sqlite/db" "PRAGMA integrity_check; SELECT sum(v) FROM account;
    SELECT count(*) || ' ' || coalesce(max(n), 0) FROM entry" 2>&1 | tr '\n' ' ')
  read -r n most < <(awk '{ print $3, $4 }' <<<"$found")
  if [ "$found" != "ok 50000 $n $n " ]; then echo "found: $found"; return; fi
  [ "$n" = "$most" ] && ((n >= ${1:-0})) || echo "$n transactions, $1 were acknowledged"
}

leveldb_begin() { mkdir "$AT/leveldb"; "$WORK/leveldb-tool" append "$AT/leveldb/db" 0 10 0 >/dev/null; }
leveldb_run() { in_stream leveldb "$WORK/leveldb-tool" append "$AT/leveldb/db" 10 12000 500 >/dev/null; }
leveldb_judge() { "$WORK/leveldb-tool" check "$AT/leveldb/db" >"$WORK/judge" 2>&1 || tail -n 1 "$WORK/judge"; }

ZK_PORT=
zookeeper_server() {
  if [ -z "$ZK_PORT" ]; then
    ZK_PORT=$(/usr/bin/python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    printf '%s\n' tickTime=500 "dataDir=$AT/zookeeper" "clientPort=$ZK_PORT" clientPortAddress=127.0.0.1 admin.enableServer=false >"$WORK/zoo.cfg"
  fi
  java -Xmx128m -XX:TieredStopAtLevel=1 -cp /usr/share/java/zookeeper.jar org.apache.zookeeper.server.quorum.QuorumPeerMain "$WORK/zoo.cfg" \
    >"$WORK/zookeeper.log" 2>&1 &
  ZK_SERVER=$!
  on_exit stop_process "$ZK_SERVER"
}
zookeeper_client() { /usr/bin/python3 "$here/zookeeper.py" "$1" "$ZK_PORT" "${@:2}"; }
zookeeper_end() {
  kill -TERM "$ZK_SERVER" 2>/dev/null || true
  wait "$ZK_SERVER" 2>/dev/null || true
}
zookeeper_begin() { mkdir "$AT/zookeeper" && zookeeper_server && zookeeper_client create 1 5 /dev/null && zookeeper_end; }
zookeeper_run() {
  zookeeper_server
  if [ "$on" = ordered ]; then "$STEADFAST" stream set zookeeper "$ZK_SERVER" --mount "$AT" >/dev/null || return; fi
  zookeeper_client create 6 400 "$([ -n "$together" ] && echo /dev/null || echo "$DISK/mark")" || return
  zookeeper_end
}
zookeeper_judge() {
  local n
  # In this shell of its own, so that the server is its child.
  zookeeper_server
  if ! n=$(zookeeper_client check 2>&1); then echo "$n"; elif ((n < $1)); then echo "$n nodes, $1 were acknowledged"; fi
  zookeeper_end
}

# ---------------------------------------------------------------- runs and judgements

# Several run side by side, each in a process group that ends with the script. The disk keeps one mark: it is SQLite's then.
run_all() {
  local app jobs=() job
  if [ $# = 1 ]; then "${1}_run" || die "$1 does not run"; return; fi
  for app in "$@"; do
    start_group "${app}_run"
    jobs+=("$app:$GROUP")
  done
  for job in "${jobs[@]}"; do wait "${job#*:}" || die "${job%:*} does not run"; done
}

# Inconsistencies that the applications find after a cut.
judge_all() {
  local marked=$1 acked app why
  shift
  for app in "$@"; do
    acked=$marked
    if [ -n "$together" ] && [ "$app" != sqlite ]; then acked=0; fi
    why=$(cd / && "${app}_judge" "$acked")
    if [ -n "$why" ]; then echo "$app: $why"; fi
  done
}

failed=0 found_any=0
# try NAME N APPLICATION…: they run once, together, and N cuts are judged.
try() {
  local name=$1 n=$2 k bad=0 acked why app
  shift 2
  step "$name on $on"
  rm -f "$BASE" "$IMAGE" "$RECORD" "$WORK/apart" "$WORK/inconsistent"
  truncate -s "${IMAGE_MIB}M" "$IMAGE"
  DISK_OPTIONS=()
  format "$IMAGE"
  disk_start serve "$IMAGE"
  volume_mount || die "the new volume cannot be mounted: $(cat "$WORK/server.log")"
  for app in "$@"; do "${app}_begin" || die "$app does not begin"; done
  volume_unmount
  disk_stop
  cp --sparse=always "$IMAGE" "$BASE"
  DISK_OPTIONS=(--record "$RECORD")
  disk_start serve "$IMAGE"
  volume_mount || die "the volume cannot be mounted: $(cat "$WORK/server.log")"
  mark begin
  run_all "$@"
  volume_unmount
  disk_stop
  DISK_OPTIONS=()
  disk_start cuts "$RECORD" "$BASE"
  for ((k = 1; k <= n; k++)); do
    echo "$k $n $((k * 7919 + k / 3))" >"$DISK/control" || die "the cut $k of $n cannot be made"
    acked=$(cat "$DISK/control")
    if [ "$acked" = begin ]; then acked=0; fi
    if volume_mount; then
      why=$(judge_all "$acked" "$@")
    else
      why="cannot be mounted: $(tail -n 1 "$WORK/server.log")"
    fi
    volume_unmount
    if ((k % 100 == 0 && k < n)); then say "$k of $n"; fi
    if [ -n "$why" ]; then
      bad=$((bad + 1))
      say "cut $k of $n: $why" >>"$WORK/inconsistent"
    fi
  done
  disk_stop
  say "$name on $on: $bad of $n images inconsistent$([ ! -e "$WORK/apart" ] || echo ", $(wc -l <"$WORK/apart") with a bad dirstate besides")"
  if ((bad > 0)); then
    head -n 3 "$WORK/inconsistent"
    found_any=1
    if [ "$on" = ordered ]; then failed=1; fi
  fi
}

if [ -n "$together" ]; then
  try together "$images" "${applications[@]}"
else
  for app in "${applications[@]}"; do
    case $app in
      zookeeper) try "$app" $(((images + 7) / 8)) "$app" ;;
      *) try "$app" "$images" "$app" ;;
    esac
  done
fi
if [ "$on" = ext4 ] && [ -z "$only" ] && ((found_any == 0)); then
  warn "nothing was inconsistent on ext4: these cuts show nothing"
  failed=1
fi
exit "$failed"

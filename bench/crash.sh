# The measurement `crash`: what the steps of 'steadfast crash test' cost. `steadfast` is the recording without stacks, `stacks` with them;
# `plain` is the same server that records nothing. Checks: `steadfast` is a check in a state that is served, `plain` the same command in a
# directory in memory that stays. Mounts: `steadfast` is `crash mount`, `pass-through` the example of libfuse. Sourced by bench/run.
# shellcheck shell=bash disable=SC2034,SC2154

# shellcheck source-path=SCRIPTDIR source=peers/pass-through.sh
. "$root/bench/peers/pass-through.sh"

RUNS=5
QUICK_RUNS=2

prepare_crash() {
  build_driver crash
  CRASH=$DRIVER
  [ -e /dev/fuse ] || unable "there is no /dev/fuse"
  build_release
  local reason
  reason=$(pass_through_reason)
  [ -z "$reason" ] || unable "no pass-through to compare with: $reason"
  # The pass-through's directory: the live mount, too, keeps its files in memory.
  make_workdir /dev/shm
  MEMORY_WORK=$WORK
}

# live_mount DIR: 'crash mount' of an empty directory, served by a child of this script, as the pass-through is: the scheduler groups
# processes by session. Sets LIVE_SERVER.
live_mount() {
  mkdir -p "$1" "$1.seed"
  on_exit detach "$1"
  "$STEADFAST" crash mount --foreground --fs ext4 "$1.seed" "$1" >"$1.log" 2>&1 &
  LIVE_SERVER=$!
  on_exit stop_process "$LIVE_SERVER"
  await --alive "$LIVE_SERVER" mount_answers "$1" && return
  die "crash mount did not mount: $(tail -n 1 "$1.log")"
}

# synced ROW HOW COUNT: processor time of a loop of small writes, each made durable, in µs for one: of the loop and the server.
synced() {
  local row=$1 how=$2 count=$3 system
  for system in "${systems[@]}"; do
    "$CRASH" syncs "$how" "${at[$system]}/$how" "$count" "${server[$system]}" >"$DISK_WORK/said" || die "$row on $system failed"
    record "$row" µs lower "$system" "$(awk '$1 == "cpu_us" { print $2 }' "$DISK_WORK/said")"
  done
}

# cut_power POLICY MIB: the time of a 'crash cut' while MIB are not durable.
cut_power() {
  local policy=$1 mib=$2 mount=$MEMORY_WORK/cut begun ended
  live_mount "$mount"
  dd if=/dev/zero of="$mount/file" bs=1M count="$mib" status=none || die "writing to the live mount failed"
  begun=$(date +%s%N)
  "$STEADFAST" crash cut "$mount" --policy "$policy" --json >"$DISK_WORK/said" || die "crash cut failed"
  ended=$(date +%s%N)
  record "cut-$policy" ms lower steadfast "$(awk -v ns=$((ended - begun)) 'BEGIN { print ns / 1e6 }')"
  "$STEADFAST" crash stop "$mount" || die "crash stop failed"
  wait "$LIVE_SERVER" || die "the live mount failed: $(tail -n 1 "$mount.log")"
}

# git_verdict: the time of a whole 'crash test' of git add and commit, with its default limits, repairs included.
git_verdict() {
  local begun ended status=0
  cat >"$DISK_WORK/git.check" <<'SH'
out=$(git fsck --full 2>&1) || { printf '%s\n' "$out" | grep -m 1 -E 'error|fatal'; exit 1; }
git log -1 >/dev/null 2>&1 || { echo 'git log fails'; exit 1; }
git status >/dev/null 2>&1 || { echo 'git status fails'; exit 1; }
SH
  printf '[user]\nname = bench\nemail = bench@localhost\n[gc]\nauto = 0\n[init]\ntemplateDir =\n' >"$DISK_WORK/gitconfig"
  begun=$(date +%s%N)
  GIT_CONFIG_GLOBAL=$DISK_WORK/gitconfig GIT_CONFIG_NOSYSTEM=1 "$STEADFAST" crash test --fs ext4,xfs,btrfs "$@" -o "$DISK_WORK/git.trace" --json \
    --setup 'git init -q . && echo 1 >a && git add a && git commit -qm 1' --check "sh $DISK_WORK/git.check" \
    -- sh -c 'echo 2 >b && git add b && git commit -qm 2' >"$DISK_WORK/git.json" 2>"$DISK_WORK/git.log" || status=$?
  ended=$(date +%s%N)
  # Findings: git as it is by default does not sync its index.
  [ "$status" = 1 ] || die "crash test of git exits with $status: $(tail -n 1 "$DISK_WORK/git.log")"
  record verdict-git s lower steadfast "$(awk -v ns=$((ended - begun)) 'BEGIN { print ns / 1e9 }')"
}

# recorded ROW UNIT BETTER COUNT COMMAND…: a command on each server, which prints its seconds: COUNT a second, or milliseconds.
recorded() {
  local row=$1 unit=$2 better=$3 count=$4 system how
  shift 4
  for system in "${systems[@]}"; do
    case $system in steadfast) how=record ;; *) how=$system ;; esac
    "$CRASH" run "$how" "$DISK_WORK/trace" "$@" >"$DISK_WORK/said" || die "$row on $system failed"
    record "$row" "$unit" "$better" "$system" "$(awk -v count="$count" 'NR == 1 { print (count > 0 ? count / $1 : $1 * 1000) }' "$DISK_WORK/said")"
  done
}

bench_crash() {
  local rounds=2000 commits=10000 calls=100000 mib=1024 seconds=5 syncs=10000 policy run system systems results=$RESULTS few=()
  if [ -n "$quick" ]; then rounds=200 commits=500 calls=5000 mib=64 seconds=2 syncs=500 few=(--states 30 --samples 20 --no-repair); fi
  local -A at=([steadfast]=$MEMORY_WORK/live [pass-through]=$MEMORY_WORK/through) server=()
  live_mount "${at[steadfast]}"
  server[steadfast]=$LIVE_SERVER
  pass_through_mount "${at[pass-through]}"
  server[pass-through]=$PASS_THROUGH_SERVER
  git init --quiet "$DISK_WORK/repository"
  cp -r "$root"/crates "$DISK_WORK/repository/"
  git -C "$DISK_WORK/repository" -c user.name=bench -c user.email=bench@localhost add . >/dev/null
  git -C "$DISK_WORK/repository" -c user.name=bench -c user.email=bench@localhost commit --quiet -m files
  # One insert, and its states.
  "$CRASH" run record "$DISK_WORK/insert.trace" sh -c 'sqlite3 db "create table t(a, b); insert into t values (1, hex(randomblob(400)))"' >/dev/null
  for ((run = 0; run <= runs; run++)); do
    say "run $run of $runs"
    in_turns "$run" steadfast stacks plain
    RESULTS=$results
    if ((run == 0)); then RESULTS=/dev/null; fi
    recorded varmail rounds/s higher "$rounds" "$LOAD" varmail . "$rounds" 4
    recorded clone ms lower 0 "$LOAD" clone "$DISK_WORK/repository" clone
    recorded sqlite tx/s higher "$commits" "$LOAD" sqlite . delete "$commits"
    record states states/s higher steadfast "$("$CRASH" states "$DISK_WORK/insert.trace" ext4 "$seconds")"
    "$CRASH" checks "$DISK_WORK/insert.trace" ext4 "$seconds" "sqlite3 db 'pragma integrity_check' >/dev/null" >"$DISK_WORK/said"
    record checks checks/s higher steadfast "$(awk '$1 == "served" { print $2 }' "$DISK_WORK/said")"
    record checks checks/s higher plain "$(awk '$1 == "fixed" { print $2 }' "$DISK_WORK/said")"
    in_turns "$run" steadfast pass-through
    synced sync-append append "$syncs"
    synced sync-overwrite overwrite "$syncs"
    for policy in durable random worst; do cut_power "$policy" "$mib"; done
    git_verdict "${few[@]}"
  done
  RESULTS=$results
  # The size of the spool and the memory of the recorder, once: as new data, and as overwrites of a tenth of it.
  local files=("$mib" "$((mib / 10))") names=(new overwritten) i
  for i in 0 1; do
    "$CRASH" run record "$DISK_WORK/trace" "$CRASH" load . "$calls" "$mib" "${files[i]}" >"$DISK_WORK/said" || die "the load failed"
    record "spool-${names[i]}" MiB lower steadfast "$(awk '$1 == "trace_bytes" { print $2 / 1048576 }' "$DISK_WORK/said")"
    record "memory-${names[i]}" MiB lower steadfast "$(awk '$1 == "memory_kib" { print $2 / 1024 }' "$DISK_WORK/said")"
    rm -f "$DISK_WORK/trace"
  done
  report "rounds=$rounds" "commits=$commits" "calls=$calls" "written_mib=$mib" "syncs=$syncs"
}

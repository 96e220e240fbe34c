# The measurement `crash`: what the steps of 'steadfast crash test' cost. `steadfast` is the recording without stacks, `stacks` with them;
# `plain` is the same server that records nothing. Checks: `steadfast` is a check in a state that is served, `plain` the same command in a
# directory in memory that stays. Sourced by bench/run.
# shellcheck shell=bash disable=SC2034,SC2154

RUNS=5
QUICK_RUNS=2

prepare_crash() {
  build_driver crash
  CRASH=$DRIVER
  [ -e /dev/fuse ] || unable "there is no /dev/fuse"
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
  local rounds=2000 commits=10000 calls=100000 mib=1024 seconds=5 run system systems results=$RESULTS
  if [ -n "$quick" ]; then rounds=200 commits=500 calls=5000 mib=64 seconds=2; fi
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
  report "rounds=$rounds" "commits=$commits" "calls=$calls" "written_mib=$mib"
}

# How long mounts take, and what memory they leave in use. Sourced by bench/pm.sh.
# shellcheck shell=bash disable=SC2034,SC2154
#
# The subject is a mount with as many threads as there are processors, after an unmount. Beside it stand the same with one
# thread, and the same after a crash: the process that changes the volume is killed in the middle of it.

# Empty memory that must be left beside a full volume.
PM_SPARE_MIB=6144

pm_mounts() {
  local sizes=(1 4 16) gib what
  if [ -n "$quick" ]; then sizes=(1); fi
  for gib in "${sizes[@]}"; do
    pm_contents "$gib"
    for what in "${contents[@]}"; do
      say "$(date +%T) mounts: $gib GiB, $what"
      pm_mount_rows "$gib" "$what"
    done
  done
  about+=("mount_gib=${sizes[*]}")
}

# What volumes of a size are filled with; sets `contents`. One that does not fit into memory is filled with files that have
# pages, but no bytes in them: a mount reads no data.
pm_contents() {
  contents=(empty small large)
  if [ "$1" = 1 ]; then contents+=(names); fi
  if (($(free_memory_mib) < $1 * 1024 + PM_SPARE_MIB)); then
    warn "note: $(free_memory_mib) MiB of memory are free: volumes of $1 GiB are filled with preallocated files only"
    contents=(empty preallocated)
  fi
}

pm_mount_rows() {
  local size=$1GiB what=$2 image=$MEMORY_WORK/mounts.img filled run figures
  filled=$("$PM" fill "$image" $(($1 << 30)) "$what") || die "pm fill $what failed"
  for ((run = 0; run <= runs; run++)); do
    pm_mount_once "$run" "mount-$size-$what" steadfast 0
    pm_mount_once "$run" "mount-$size-$what" one-thread 1
    pm_crash "$image"
    pm_mount_once "$run" "mount-$size-$what" after-crash 0
  done
  rm -f "$image"
  pm_memory_row "$size" "$what"
}

# pm_mount_once RUN ROW SYSTEM THREADS: mounts and unmounts. Sets `figures`; run 0 does not count.
pm_mount_once() {
  figures=$("$PM" mount "$image" "$4") || die "pm mount failed"
  if (($1 > 0)); then record "$2" ms lower "$3" "$(awk '$1 == "seconds" { printf "%.6f", $2 * 1000 }' <<<"$figures")"; fi
}

# Changes a volume, and is killed.
pm_crash() {
  local log=$MEMORY_WORK/churn.log i
  : >"$log"
  "$PM" churn "$1" >"$log" 2>&1 &
  local churn=$!
  on_exit stop_process "$churn"
  for ((i = 0; i < 600; i++)); do
    if grep -qx ready "$log"; then break; fi
    kill -0 "$churn" 2>/dev/null || die "pm churn ended: $(tail -n 1 "$log")"
    sleep 0.05
  done
  kill -KILL "$churn"
  wait "$churn" 2>/dev/null || true
}

# The memory of the last mount for each thing in the volume. What an empty volume needs is in it.
pm_memory_row() {
  local size=$1 what=$2 bytes thing
  bytes=$(awk '$1 == "anonymous-bytes" { print $2 }' <<<"$figures")
  case $what in
    empty)
      record "memory-$size-empty" bytes lower steadfast "$bytes"
      return
      ;;
    small|preallocated) thing=files ;;
    large) thing=pages ;;
    names) thing=names ;;
  esac
  record "memory-$size-$what-per-${thing%s}" bytes lower steadfast \
    "$(awk -v thing="$thing" -v bytes="$bytes" '$1 == thing { printf "%.6f", bytes / $2 }' <<<"$filled")"
}

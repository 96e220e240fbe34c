# The measurement `scale`: how time and memory per operation grow with what a volume holds. Sourced by bench/run.
# shellcheck shell=bash disable=SC2034,SC2154
#
# No peers: each curve is compared with its own beginning. Every measure is a process of its own, of bench/scale, so
# that its memory is that of the measure; most use the file system as a library, `mounted-` goes through FUSE.

RUNS=1
QUICK_RUNS=1

prepare_scale() {
  build_driver scale
  SCALE=$DRIVER
  build_release
  make_workdir /dev/shm
  MEMORY_WORK=$WORK
}

# take MEASURE ARGUMENT…: runs it once and keeps its figures.
take() {
  say "$(date +%T) ${*/#"$DISK_WORK"\//}"
  "$SCALE" "$@" >>"$RESULTS" || die "scale $* failed"
}

bench_scale() {
  local files=1000000 inodes=10000000 file_bytes=$((100 << 30)) writes=200000 crashed=100000
  if [ -n "$quick" ]; then files=20000 inodes=100000 file_bytes=$((10 << 30)) writes=5000 crashed=5000; fi
  local volume_bytes=$((1 << 40)) image=$DISK_WORK/scale.img reason
  local sizes=(10000 100000 1000000) size
  if [ -n "$quick" ]; then sizes=(1000 10000 100000); fi

  # In memory: a disk that is busy with the last row would be measured with the next one.
  for size in "${sizes[@]}"; do take growth "$MEMORY_WORK/growth.img" "$size"; done
  rm "$MEMORY_WORK/growth.img"
  if [ "${STEADFAST_BENCH_ROWS:-}" = growth ]; then
    "$SCALE" report ${json:+--json} "bench=$name" "cpus=$(nproc)" "load=$LOAD_AVERAGE" <"$RESULTS" >&3
    return
  fi

  take mkfs "$image" "$volume_bytes"
  take directory "$image" "$files"
  take file "$image" "$file_bytes" "$writes"
  take tree "$image" "$inodes"
  take mount "$image"
  take crash "$image" "$crashed"
  take mount "$image"
  take fsck "$image"
  rm "$image"

  reason=$(fuse_reason)
  if [ -n "$reason" ]; then
    warn "the rows 'mounted-' are left out: $reason"
  else
    sf_mkfs "$image" 16G
    sf_serve "$image" "$DISK_WORK/mnt" "$DISK_WORK/server.log"
    take mounted "$DISK_WORK/mnt" "$files" "$SERVER"
    sf_umount "$DISK_WORK/mnt"
    sf_fsck "$image"
  fi

  local about=("bench=$name" "cpus=$(nproc)" "load=$LOAD_AVERAGE" "kernel=$(uname -r)"
    "commit=$(git -c safe.directory='*' -C "$root" describe --always --dirty 2>/dev/null || echo none)"
    "volume_bytes=$volume_bytes" "files=$files" "inodes=$inodes" "file_bytes=$file_bytes" "writes=$writes")
  "$SCALE" report ${json:+--json} "${about[@]}" <"$RESULTS" >&3
}

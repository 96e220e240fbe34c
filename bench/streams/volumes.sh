# Volumes of `bench/run streams`, on disks that count what reaches them. Sourced by bench/streams.sh.
# shellcheck shell=bash disable=SC2034,SC2154
#
#   disk     a loop device over a prewritten file on the disk, for all systems
#   memory   the same over a file in memory
#   slow     a file of bench/disk, which takes 5 ms longer for each flush, over a file in memory; for ext4 a loop device over it

STREAMS_MIB=${STEADFAST_BENCH_STREAMS_MIB:-2048}
declare -A AT DEVICE_OF COUNTS_OF IMAGE_OF SERVER_OF

# volume NAME KIND BACKING: formats and mounts a volume. KIND is ext4, ext4-journal, or a contract.
volume() {
  local name=$1 kind=$2 backing=$3 dir image device options
  case $backing in disk) dir=$DISK_WORK ;; *) dir=$MEMORY_WORK ;; esac
  image=$dir/$name.img
  prewrite "$image" "$STREAMS_MIB"
  AT[$name]=$dir/$name
  IMAGE_OF[$name]=$image
  mkdir -p "${AT[$name]}"
  device=$image
  if [ "$backing" = slow ]; then
    mkdir -p "$dir/$name.disk"
    on_exit detach "$dir/$name.disk"
    "$DISK_TOOL" serve "$image" "$dir/$name.disk" --flush-ms 5 &
    on_exit stop_process "$!"
    await_mount "$dir/$name.disk"
    device=$dir/$name.disk/disk
    COUNTS_OF[$name]=$dir/$name.disk/counters
  fi
  if [ "$backing" != slow ] || [[ $kind = ext4* ]]; then
    loop_attach "$device" --direct-io=on 2>/dev/null || loop_attach "$device" || die "no loop device for $device"
    device=$LOOP
    [ "$backing" = slow ] || COUNTS_OF[$name]=/sys/block/${LOOP#/dev/}/stat
  fi
  DEVICE_OF[$name]=$device
  case $kind in
    ext4*)
      options=nodiscard,data=ordered
      if [ "$kind" = ext4-journal ]; then options=nodiscard,data=journal; fi
      mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0,nodiscard "$device"
      on_exit detach "${AT[$name]}"
      mount -t ext4 -o "$options" "$device" "${AT[$name]}"
      ;;
    *)
      "$STEADFAST" mkfs --force --contract "$kind" "$device" >/dev/null || die "steadfast mkfs failed"
      sf_serve "$device" "${AT[$name]}" "$dir/$name.log" -o direct
      SERVER_OF[$name]=$SERVER
      ;;
  esac
}

await_mount() {
  local i
  for ((i = 0; i < 100; i++)); do
    if [ -n "$(mount_kind "$1")" ]; then return; fi
    sleep 0.1
  done
  die "nothing is mounted at $1"
}

# What was measured must have survived it.
unvolume() {
  local name=$1 device=${DEVICE_OF[$1]}
  if [ -n "${SERVER_OF[$name]:-}" ]; then
    sf_umount "${AT[$name]}"
    wait "${SERVER_OF[$name]}" || die "the server of $name failed"
    sf_fsck "$device" >/dev/null
    unset "SERVER_OF[$name]"
  else
    detach "${AT[$name]}"
  fi
  case $device in /dev/loop*) losetup -d "$device" ;; esac
  if [ -n "$(mount_kind "${AT[$name]}.disk")" ]; then umount "${AT[$name]}.disk"; fi
  rm -f "${IMAGE_OF[$name]}"
}

# counts NAME: writes, bytes and flushes that reached its disk.
counts() {
  case ${COUNTS_OF[$1]} in
    /sys/*) awk '{ print $5, $7 * 512, $16 }' "${COUNTS_OF[$1]}" ;;
    *) awk '{ n[$1] = $2 } END { print n["writes"], n["bytes"], n["flushes"] }' "${COUNTS_OF[$1]}" ;;
  esac
}

# since "BEFORE" "AFTER": what was counted between.
since() { awk -v a="$1" -v b="$2" 'BEGIN { split(a, x, " "); split(b, y, " "); for (i = 1; i <= 3; i++) printf "%d ", y[i] - x[i] }'; }

# Everything is durable, and nothing of it is left to be written in the next measurement.
settle() {
  if [ -n "${SERVER_OF[$1]:-}" ]; then "$STEADFAST" sync "${AT[$1]}" >/dev/null; else sync -f "${AT[$1]}"; fi
}

# in_stream NAME STREAM COMMAND…: in a stream, if it has a name, which `+` before it tells to ignore fsync.
in_stream() {
  local name=$1 stream=$2 options=()
  shift 2
  if [ -z "$stream" ]; then "$@"; return; fi
  if [ "${stream#+}" != "$stream" ]; then options=(--ignore-fsync); fi
  "$STEADFAST" stream run "${stream#+}" "${options[@]}" --mount "${AT[$name]}" -- "$@"
}

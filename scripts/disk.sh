#!/usr/bin/env bash
# Disks served from flash images, checked against their contract: after a power cut a disk has the state of its last flush.
#
#   scripts/disk.sh [--rounds N] [--seconds N] [--only clients|nbd|ext4|faults] [--keep]
#
#   --rounds N   power cuts under NBD clients, and as many under ext4 [default: 6]
#   --seconds N  load before each cut, at most [default: 2]
#   --only W     one part alone
#   --keep       keep the working directory for inspection
#
# clients  nbdinfo, nbdcopy both ways, qemu-img convert, compare and check, fio with verification, over NBD.
# nbd      fio writes, trims and flushes over NBD; the power of the flash memory is cut in the middle of it (pages that were not
#          synced are left old, new, torn or as garbage). The disk is compared, block by block, with a record of the answers.
# ext4     the same under an ext4 on a loop device over the disk as a file; then e2fsck must find nothing after it has
#          replayed the journal, and every file that was synced must be whole.
# faults   a server that ignores flushes or trims, flushes unasked, or carries a write out after a flush: each is found.
#
# Odd rounds let full epochs flush (a later moment than the last flush may be found then), even ones do not.
# Exits 0, 1 (something was lost or is broken) or 3 (something needed is missing).
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"
# shellcheck source-path=SCRIPTDIR source=disk-lib.sh
. "$here/disk-lib.sh"

arguments=("$@")
rounds=6
seconds=2
only=
while [ $# -gt 0 ]; do
  case $1 in
    --rounds) rounds=${2:?"--rounds needs a number"}; shift 2 ;;
    --seconds) seconds=${2:?"--seconds needs a number"}; shift 2 ;;
    --only) only=${2:?"--only needs a part"}; shift 2 ;;
    --keep) export KEEP_WORK=1; shift ;;
    -h|--help) sed -n '2,21s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) warn "unknown option '$1' (see --help)"; exit 2 ;;
  esac
done
case $only in
  ''|clients|nbd|ext4|faults) ;;
  *) warn "--only takes 'clients', 'nbd', 'ext4' or 'faults', not '$only'"; exit 2 ;;
esac

"$here/setup.sh" disk
reason=$(fuse_reason)
[ -z "$reason" ] || unable "cannot mount here: $reason"
if [ "$(id -u)" != 0 ] || [ ! -e /dev/loop-control ]; then unable "loop devices need root and /dev/loop-control"; fi
# A mount namespace of its own: its mounts end with the last process in it, and no other process keeps them busy.
if [ -z "${STEADFAST_DISK_INSIDE:-}" ]; then
  STEADFAST_DISK_INSIDE=1 exec unshare --mount --propagation private "$here/disk.sh" "${arguments[@]}"
fi

trial_programs

make_workdir "$(fast_base 1500)"
cd "$WORK"
disk_paths
MNT=$WORK/mnt
EXT4=$WORK/ext4
mkdir "$MNT" "$EXT4"
started=$SECONDS

# ---------------------------------------------------------------- clients

clients() {
  step "Real clients"
  format 64M 8M
  serve --socket "$SOCKET"
  if nbdinfo "$URI" >/dev/null; then ok "nbdinfo: $(nbdinfo --size "$URI") bytes"; else bad "nbdinfo"; fi
  head -c 40M /dev/urandom >source
  truncate -s 64M source
  if nbdcopy --flush source "$URI" && nbdcopy "$URI" copy && cmp source copy; then ok "nbdcopy there and back"; else bad "nbdcopy"; fi
  if qemu-img convert -f raw -O qcow2 "$URI" copy.qcow2 && qemu-img check -q copy.qcow2 &&
    qemu-img compare -q -F raw copy.qcow2 "$URI"
  then ok "qemu-img convert, check and compare"; else bad "qemu-img from the disk"; fi
  if qemu-img convert -n -f raw -O raw copy "$URI" && qemu-img compare -q -f raw -F raw copy "$URI"
  then ok "qemu-img convert to the disk"; else bad "qemu-img to the disk"; fi
  rm -f source copy copy.qcow2
  local bs
  for bs in 4k 512 64k; do
    if fio --name=verified --ioengine=nbd --uri="$URI" --rw=randrw --bs=$bs --iodepth=16 --size=16M --verify=crc32c \
      --verify_fatal=1 --fsync=64 >told 2>&1 && ! grep -q 'verify:' told
    then ok "fio finds what it wrote, $bs at a time"
    else bad "fio, $bs: $(grep -m 1 -E 'verify:|error' told)"; fi
  done
  unserve
}

# ---------------------------------------------------------------- power cuts under NBD

# A load for ever: writes, trims and flushes, fewer than epochs where those may flush.
nbd_load() {
  local every=24
  [ "$FULL" = wait ] || every=300
  exec fio --output=/dev/null --ioengine=nbd --uri="$URI" --size=48M --time_based --runtime=600 --randseed="$1" \
    --name=writes --rw=randwrite --bsrange=512-64k --iodepth=4 --fsync=$every \
    --name=trims --rw=randtrim --bs=8k --iodepth=1 --thinktime=2000 --fsync=0 >/dev/null 2>&1
}

# Waits until a load has come into its own: the record has grown to 20,000 bytes beyond $1.
under_load() { await grown_beyond $(($1 + 20000)) || die "the load does nothing"; }
grown_beyond() { (($(stat -c %s "$WORK/record") >= $1)); }

# nbd_cut SEED [OPTIONS…]: load, cut, and the verdict.
nbd_cut() {
  local seed=$1 load begun
  shift
  serve --socket "$SOCKET" --full "$FULL" --record "$WORK/record" --cut "$seed" "$@"
  begun=$(stat -c %s "$WORK/record")
  start_group nbd_load "$seed"
  load=$GROUP
  under_load "$begun"
  sleep "$((RANDOM % seconds)).$((RANDOM % 10))5"
  cut_power
  stop_group "$load"
  judge
}

nbd() {
  local round
  step "$rounds power cuts under NBD clients"
  COUNT=()
  format 48M 4M
  for ((round = 1; round <= rounds; round++)); do
    policy "$round"
    nbd_cut "$RANDOM" || bad "round $round (full epochs: $FULL): $FOUND blocks differ from the last flush"
  done
  tally
  # A server that is asked to end answers nothing after its last flush.
  FULL='flush'
  serve --socket "$SOCKET" --full "$FULL" --record "$WORK/record"
  start_group nbd_load 1
  under_load "$(stat -c %s "$WORK/record")"
  unserve
  stop_group "$GROUP"
  if judge && [ "$FOUND" = 'flushed 0' ] && [ "$(tail -c 24 record | od -An -tu8 | tr -s ' ')" = ' 4 0'$'\n'' 0' ]
  then ok "ended under load: all that was answered is there"
  else bad "ended under load: $FOUND, the record ends with $(tail -c 24 record | od -An -tu8)"; fi
}

# ---------------------------------------------------------------- power cuts under ext4

# The bytes of file $1.
file_bytes() (
  set +o pipefail
  yes "file $1 of the writer that syncs" | head -c $((($1 * 7919) % 60000 + 1))
)

# Writes numbered files, syncs each, and acknowledges it; then removes an older one now and then.
sync_writer() {
  local i
  for ((i = $(tail -n 1 "$WORK/ack" 2>/dev/null || echo 0) + 1; ; i++)); do
    file_bytes "$i" | dd of="$EXT4/synced/$i" bs=64K iflag=fullblock conv=fsync status=none || return
    echo "$i" >>"$WORK/ack"
  done 2>/dev/null
}
# Copies and removes trees, and never syncs: with 'discard' its removals are trims.
busy_writer() {
  local i
  for ((i = 0; ; i++)); do
    cp -r "$here" "$EXT4/busy/$i" || return
    ((i < 6)) || rm -rf "$EXT4/busy/$((i - 6))" || return
    sleep 0.01
  done 2>/dev/null
}

ext4_up() {
  serve --fuse "$MNT" --full "$FULL" --record "$WORK/record" --cut "$1" "${@:2}"
  on_exit detach "$MNT"
  loop_attach "$MNT/disk" || die "no loop device for $MNT/disk"
}
ext4_mount() {
  mount -t ext4 -o discard,errors=remount-ro "$LOOP" "$EXT4" || die "cannot mount ext4"
  on_exit detach "$EXT4"
}
# After a cut: everything on the dead disk goes.
ext4_down() {
  detach "$EXT4"
  loop_detach "$LOOP" "$MNT/disk"
  detach "$MNT"
}

# ext4_cut SEED [OPTIONS…]: load, cut, and the verdict.
ext4_cut() {
  local seed=$1 first second begun
  shift
  ext4_up "$seed" "$@"
  begun=$(stat -c %s "$WORK/record")
  ext4_mount
  start_group sync_writer; first=$GROUP
  start_group busy_writer; second=$GROUP
  under_load "$begun"
  await test -s "$WORK/ack" || die "nothing is synced"
  sleep "$((RANDOM % seconds)).$((RANDOM % 10))5"
  cut_power
  stop_group "$first"
  stop_group "$second"
  ext4_down
  judge
}

# The journal is replayed; then nothing is wrong, and what was synced is there.
ext4_check() {
  local i status=0 lost=0
  ext4_up 0
  e2fsck -p "$LOOP" >told 2>&1 || status=$?
  if ((status > 1)); then bad "round $1: e2fsck -p exits with $status: $(tail -n 2 told)"; fi
  status=0
  e2fsck -f -n "$LOOP" >told 2>&1 || status=$?
  if ((status > 0)); then bad "round $1: e2fsck -f exits with $status: $(tail -n 2 told)"; fi
  ext4_mount
  while read -r i; do
    file_bytes "$i" | cmp -s - "$EXT4/synced/$i" || lost=$((lost + 1))
  done <"$WORK/ack"
  if ((lost > 0)); then bad "round $1: $lost of $(wc -l <"$WORK/ack") files that were synced are lost or not whole"; fi
  # Old files make room, and the list of synced files begins anew.
  rm -rf "$EXT4"/busy/* "$EXT4"/synced/*
  : >"$WORK/ack"
  umount "$EXT4"
  loop_detach "$LOOP" "$MNT/disk"
  "$STEADFAST" umount "$MNT"
  wait "$SERVER" || die "the server could not close the disk"
}

ext4_format() {
  format 128M 32M
  FULL=flush ext4_up 0
  mkfs.ext4 -q -F "$LOOP"
  ext4_mount
  mkdir "$EXT4/synced" "$EXT4/busy"
  umount "$EXT4"
  loop_detach "$LOOP" "$MNT/disk"
  unserve
  : >"$WORK/ack"
}

ext4() {
  local round synced=0
  step "$rounds power cuts under ext4 on a loop device"
  COUNT=()
  ext4_format
  for ((round = 1; round <= rounds; round++)); do
    policy "$round"
    ext4_cut "$RANDOM" || bad "round $round (full epochs: $FULL): $FOUND blocks differ from the last flush"
    synced=$((synced + $(wc -l <"$WORK/ack")))
    ext4_check "$round"
  done
  tally
  say "    $synced files were synced, checked by e2fsck and compared $rounds times"
}

# ---------------------------------------------------------------- planted faults

faults() {
  local fault tries
  step "Planted faults are found"
  FULL='wait'
  for fault in flush-ignored write-overtaken flush-unasked trim-ignored; do
    COUNT=()
    for ((tries = 1; tries <= 8; tries++)); do
      format 48M 4M
      nbd_cut "$RANDOM" --fault "$fault" || break
    done
    if ((tries <= 8)); then
      ok "$fault: cut $tries shows it, $FOUND blocks"
      note_caught "disk.${fault//-/_}"
    else bad "$fault is not found in 8 cuts"; fi
  done
  ext4_format
  FULL='wait'
  if ext4_cut 1 --fault flush-ignored; then bad "flush-ignored is not found under ext4"
  else ok "flush-ignored under ext4: $FOUND blocks, $(wc -l <"$WORK/ack") files were synced, but are not durable"; fi
}

for part in clients nbd ext4 faults; do
  if [ -z "$only" ] || [ "$only" = "$part" ]; then "$part"; fi
done
if ((FAILED)); then
  step "FAILED after $((SECONDS - started)) s"
  exit 1
fi
step "All well, $((SECONDS - started)) s after the build"

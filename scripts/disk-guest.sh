#!/usr/bin/env bash
# A virtual machine whose disk is a served flash image: installs a system on it, boots from it, and loses power, machine and
# flash memory at once, while it writes.
#
#   scripts/disk-guest.sh [--rounds N] [--seconds N] [--fault NAME] [--show]
#
#   --rounds N   power cuts [default: 3]
#   --seconds N  load before each cut, at most [default: 10]
#   --fault NAME a server that is broken in this way, to test the checks (see disk.sh)
#   --show       print the machine's output
#
# After each cut the image is compared with a record of the server's answers; then the machine boots again, e2fsck must find
# nothing after it has replayed ext4's journal, and every file that was synced must be whole. Odd rounds let full epochs flush.
#
# The machine is emulated, with a Debian kernel that is unpacked into target/tools and not installed. It runs
# scripts/disk-guest-init.sh. Exits 0, 1 (something was lost or is broken) or 3 (something needed is missing).
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"
# shellcheck source-path=SCRIPTDIR source=disk-lib.sh
. "$here/disk-lib.sh"
# shellcheck source-path=SCRIPTDIR source=guest-lib.sh
. "$here/guest-lib.sh"

rounds=3 seconds=10 fault=() show=
while [ $# -gt 0 ]; do
  case $1 in
    --rounds)  rounds=${2:?"--rounds needs a number"}; shift 2 ;;
    --seconds) seconds=${2:?"--seconds needs a number"}; shift 2 ;;
    --fault)   fault=(--fault "${2:?"--fault needs a name"}"); shift 2 ;;
    --show)    show=1; shift ;;
    -h|--help) sed -n '2,16s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) warn "unknown option '$1' (see --help)"; exit 2 ;;
  esac
done
"$here/setup.sh" disk-guest
trial_programs

BOOT_SECONDS_MAX=300
make_workdir "$(fast_base 1500)"
cd "$WORK"
disk_paths
guest_kernel
guest_tree "$here/disk-guest-init.sh" virtio_pci virtio_blk ext4
mkdir -p "$TREE/sbin"
with_libraries "$(PATH=$PATH:/usr/sbin:/sbin command -v mkfs.ext4)"
with_libraries "$(PATH=$PATH:/usr/sbin:/sbin command -v e2fsck)"
if [ -e /etc/mke2fs.conf ]; then cp /etc/mke2fs.conf "$TREE/etc"; fi
guest_pack

# boot TODO SYNCED: the machine, with the disk that is served. It caches nothing that was flushed. Sets MACHINE.
boot() {
  : >"$WORK/console"
  timeout 900 "${EMULATOR[@]}" -nic none -serial "file:$WORK/console" \
    -drive "file=$URI,format=raw,if=none,id=disk,cache=writeback,discard=unmap" -device virtio-blk-pci,drive=disk \
    -append "console=ttyS0 panic=1 quiet -- $1 $2" >"$WORK/qemu.log" 2>&1 &
  MACHINE=$!
  on_exit stop_process "$MACHINE"
}
# Output of the machine, without the ends of lines of a terminal.
said() { tr -d '\r' <"$WORK/console" | grep -E "^$1"; }
last_synced() { said SYNCED | tail -n 1 | cut -d' ' -f2; }

# await_line WORD [COUNT]: waits until the machine has printed COUNT lines that begin with WORD.
await_line() {
  local i
  for ((i = 0; i < BOOT_SECONDS_MAX * 10; i++)); do
    if (($(said "$1" | wc -l) >= ${2:-1})); then return; fi
    if said FAIL >/dev/null; then bad "the machine: $(said FAIL | head -n 1)"; finish; fi
    kill -0 "$MACHINE" 2>/dev/null || break
    sleep 0.1
  done
  tail -n 15 "$WORK/console" "$WORK/qemu.log" >&2
  die "the machine never said '$1'"
}
finish() {
  [ -z "$show" ] || cat "$WORK/console"
  if ((FAILED)); then say "FAILED"; exit 1; fi
}
# It has ended by itself, and so has the server, asked to.
ended() {
  await_process "$MACHINE" 60
  unserve
}

step "A system is installed on the disk"
started=$SECONDS
format 128M 32M
FULL=flush
serve --socket "$SOCKET" --full "$FULL"
boot install 0
await_line INSTALLED
ended
ok "$(basename "$KERNEL"), ext4, $((SECONDS - started)) s"

step "$rounds power cuts under a machine that runs from it"
synced=0
for ((round = 1; round <= rounds; round++)); do
  policy "$round"
  serve --socket "$SOCKET" --full "$FULL" --record "$WORK/record" --cut "$RANDOM" "${fault[@]}"
  boot load "$synced"
  await_line SOUND
  await_line SYNCED 3
  sleep "$((RANDOM % seconds)).$((RANDOM % 10))5"
  cut_power
  stop_process "$MACHINE"
  [ -z "$show" ] || cat "$WORK/console"
  before=$synced
  synced=$(last_synced)
  say "    round $round: booted, sound, $((synced - before)) more files synced, then the power was cut"
  judge || bad "round $round (full epochs: $FULL): $FOUND blocks differ from the last flush"
done
tally
serve --socket "$SOCKET" --full "$FULL"
boot check "$synced"
await_line ENDED
ended
ok "$synced files that were synced are there, e2fsck finds nothing"
finish
say "served disks of virtual machines: all is well, $((SECONDS - started)) s"

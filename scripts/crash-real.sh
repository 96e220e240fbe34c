#!/usr/bin/env bash
# The models of 'steadfast crash test' held against the file systems of this kernel, and findings confirmed on them.
#
#   scripts/crash-real.sh [--cuts N] [--only FS]
#
#   --cuts N   power cuts for each file system and its options [default: 200]
#   --only FS  ext4, xfs or btrfs alone
#
# Exits 0, or 1 if a file system leaves a tree that its model forbids. Without root or loop devices it says so in one line and exits 0.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"

cuts=200
only=
while [ $# -gt 0 ]; do
  case $1 in
    --cuts) cuts=${2:?"--cuts needs a number"}; shift 2 ;;
    --only) only=${2:?"--only needs a file system"}; shift 2 ;;
    -h|--help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) warn "unknown option '$1' (see --help)"; exit 2 ;;
  esac
done
if [ "$(id -u)" != 0 ] || [ ! -e /dev/loop-control ] || [ ! -e /dev/fuse ]; then
  say "left out, because it needs root, loop devices and FUSE: models against real file systems"
  exit 0
fi

cd "$ROOT"
if [ -z "$GIVEN_STEADFAST" ]; then
  cargo build --quiet --locked -p steadfast-cli --bin steadfast
  STEADFAST=$TARGET/debug/steadfast
fi
failed=
for fs in ext4 ext4:data=writeback ext4:data=journal ext4:nodelalloc ext4:noauto_da_alloc xfs btrfs; do
  [ -z "$only" ] || [ "${fs%%:*}" = "$only" ] || continue
  options=${fs#"${fs%%:*}"}
  status=0
  "$STEADFAST" crash calibrate "${fs%%:*}" -o "${options#:}" --cuts "$cuts" || status=$?
  case $status in
    0) ;;
    3) say "left out: $fs" ;;
    *) failed="$failed $fs" ;;
  esac
done
[ -z "$failed" ] || { say "FAILED:$failed"; exit 1; }

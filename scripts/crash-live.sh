#!/usr/bin/env bash
# Time of a power cut on a live mount while much is not durable, and of the writes before it.
#
#   scripts/crash-live.sh [--size MIB] [--fs MODEL]
#
#   --size MIB  written and not synced [default: 1024]
#   --fs MODEL  the model [default: ext4]
#
# Exits 0, or 1 if a cut takes more than 100 ms.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"

size=1024
model=ext4
while [ $# -gt 0 ]; do
  case $1 in
    --size) size=${2:?"--size needs a number"}; shift 2 ;;
    --fs) model=${2:?"--fs needs a model"}; shift 2 ;;
    -h|--help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) warn "unknown option '$1' (see --help)"; exit 2 ;;
  esac
done
reason=$(fuse_reason)
[ -z "$reason" ] || unable "cannot mount here: $reason"
build_release
make_workdir "${TMPDIR:-/tmp}"
mkdir "$WORK/seed" "$WORK/mnt"
"$STEADFAST" crash mount --fs "$model" "$WORK/seed" "$WORK/mnt"
on_exit "$STEADFAST" crash stop "$WORK/mnt"
milliseconds() { date +%s%3N; }

failed=0
for policy in durable random worst; do
  begun=$(milliseconds)
  dd if=/dev/zero of="$WORK/mnt/file" bs=1M count="$size" conv=notrunc status=none
  written=$(($(milliseconds) - begun))
  begun=$(milliseconds)
  "$STEADFAST" crash cut "$WORK/mnt" --policy "$policy" --json >"$WORK/answer"
  cut=$(($(milliseconds) - begun))
  lost=$(grep -o '"lost_bytes": *[0-9]*' "$WORK/answer" | grep -o '[0-9]*$')
  begun=$(milliseconds)
  "$STEADFAST" crash power-on "$WORK/mnt"
  on=$(($(milliseconds) - begun))
  say "$model, $policy: $size MiB written in $written ms; cut in $cut ms, $((lost >> 20)) MiB lost; power on in $on ms"
  [ "$cut" -le 100 ] || failed=1
done
exit "$failed"

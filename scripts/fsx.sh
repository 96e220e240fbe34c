#!/usr/bin/env bash
# The file system exerciser: random reads, writes, truncates, mappings, holes and copies on one file, every byte
# compared. Three seeds at the same time, each on its own file.
#
#   scripts/fsx.sh [--on DIR | --contract NAME] [--ops N] [SEED…]
#
#   --on DIR         run on DIR instead of a fresh volume
#   --contract NAME  contract of the fresh volume (default ordered), 'pm' for one in persistent memory, 'store' for one on an object
#                    store, or 'all', one after the other
#   --ops N          operations per seed (default 100000)
#   SEED             default 1 2 3
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"
KINDS+=(store)

VERSION=0.3.2
on=
ops=100000
contract=ordered
while [ $# -gt 0 ]; do
  case $1 in
    --on)  on=$(cd "${2:?"--on needs a directory"}" && pwd -P); shift 2 ;;
    --ops) ops=${2:?"--ops needs a number"}; shift 2 ;;
    --contract) contract=${2:?"--contract needs a name"}; shift 2 ;;
    -h|--help) sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    -*) warn "unknown option '$1' (see --help)"; exit 2 ;;
    *) break ;;
  esac
done
seeds=("$@")
[ ${#seeds[@]} -gt 0 ] || seeds=(1 2 3)
# again SEED… CONTRACT
# shellcheck disable=SC2317,SC2329 # called by its name
again() { "${BASH_SOURCE[0]}" --ops "$ops" --contract "${@: -1}" "${@:1:$#-1}"; }
if [ -n "$on" ]; then contract=$on; else for_contracts "$contract" again "${seeds[@]}"; fi

"$here/setup.sh" test
install_tool fsx "$VERSION"
if [ -n "$on" ]; then make_workdir "${TMPDIR:-/tmp}"; else volume_workdir "$contract"; fi

if [ -n "$on" ]; then
  MNT=$on
else
  reason=$(fuse_reason)
  [ -z "$reason" ] || unable "cannot mount here: $reason"
  build_release
  MNT=$WORK/mnt
  volume_image "$contract"
  sf_mkfs "$IMAGE" 512M "$contract"
  sf_mount "$IMAGE" "$MNT"
fi
dir=$(mktemp -d "$MNT/fsx.XXXXXX")
on_exit rm -rf --one-file-system "$dir"

# Operations that a file system may leave out are left out of the mix, and reported.
weight_fallocate=5 weight_punch=5
: >"$dir/probe"
if ! fallocate -x -l 8192 "$dir/probe" 2>/dev/null || ! fallocate -l 8192 "$dir/probe" 2>/dev/null; then
  weight_fallocate=0
  say "fsx: no fallocate here, left out"
fi
if ! fallocate -p -o 0 -l 4096 "$dir/probe" 2>/dev/null; then
  weight_punch=0
  say "fsx: no hole punching here, left out"
fi
rm -f "$dir/probe"

# The exerciser keeps every mapping that it reads through: each truncation walks them all, and 65,530 are the end of it. A long
# run reads through about as many as one of 25,000 operations.
weight_mapread=$(awk -v ops="$ops" 'BEGIN { printf "%.3f", (ops > 25000) ? 250000 / ops : 10 }')
cat >"$WORK/fsx.toml" <<EOF
flen = 1048576
[opsize]
# POSIX refuses to allocate nothing, and the exerciser takes that for a missing feature.
min = 1
max = 65536
[weights]
close_open = 1
invalidate = 1
mapread = $weight_mapread
mapwrite = 10
read = 10
write = 10
truncate = 10
fsync = 1
fdatasync = 1
posix_fallocate = $weight_fallocate
punch_hole = $weight_punch
sendfile = 2
posix_fadvise = 2
copy_file_range = 5
EOF

children=()
started=$(now_ms)
# Half an hour for 100,000 operations: a hang ends, a busy machine does not.
limit=$((1800 + ops * 1800 / 100000))
for seed in "${seeds[@]}"; do
  timeout "$limit" "$TOOLS/bin/fsx" -q -f "$WORK/fsx.toml" -N "$ops" -S "$seed" -P "$WORK" "$dir/seed-$seed" \
    >"$WORK/seed-$seed.log" 2>&1 &
  children+=($!)
  on_exit stop_process $!
done

# Saves what explains a failure: the operations, the file as it reads now, and as it should read.
keep() {
  local kept=$TARGET/fsx-failed
  mkdir -p "$kept"
  cp "$WORK/fsx.toml" "$WORK/seed-$1.log" "$kept/"
  if [ -s "$WORK/server.log" ]; then
    say "the server says:"
    tail -n 5 "$WORK/server.log"
  fi
  cp "$dir/seed-$1" "$kept/seed-$1.is" || true
  # Only a wrong byte leaves one of these, a refused operation does not.
  if [ -e "$WORK/seed-$1.fsxgood" ]; then cp "$WORK/seed-$1.fsxgood" "$kept/seed-$1.should-be"; fi
  say "kept in $kept; repeat with: fsx -f fsx.toml -N $ops -S $1 FILE"
}

failed=0
for i in "${!seeds[@]}"; do
  seed=${seeds[i]}
  if wait "${children[i]}" && grep -q 'A-OK' "$WORK/seed-$seed.log"; then
    say "fsx: seed $seed: $ops operations, every byte as expected, $(human_seconds $(($(now_ms) - started))) ($contract)"
  else
    say "fsx: seed $seed: FAILED"
    # Differences come first in the log, the last operations come last.
    head -n 6 "$WORK/seed-$seed.log"
    say "..."
    tail -n 15 "$WORK/seed-$seed.log"
    keep "$seed"
    failed=1
  fi
done

if [ -z "$on" ]; then
  rm -rf --one-file-system "$dir"
  sf_umount "$MNT"
  sf_fsck "$IMAGE"
fi
exit "$failed"

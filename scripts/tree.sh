#!/usr/bin/env bash
# A tree of 5,000 files through tar into a volume: compared byte by byte and attribute by attribute, before and after a
# new mount, then removed, and the space must be back.
#
#   scripts/tree.sh [--on DIR | --contract NAME]
#
#   --on DIR         run on DIR instead of a fresh volume (then without the new mount and the fsck)
#   --contract NAME  contract of the fresh volume (default ordered), 'pm' for one in persistent memory, 'store' for one on an object
#                    store, or 'all', one after the other
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"
KINDS+=(store)

FILES=5000
# Blocks that a removed tree may leave: inode blocks and index nodes that stay for the next file.
SLACK_KIB=4096

on=
contract=ordered
while [ $# -gt 0 ]; do
  case $1 in
    --on) on=$(cd "${2:?"--on needs a directory"}" && pwd -P); shift 2 ;;
    --contract) contract=${2:?"--contract needs a name"}; shift 2 ;;
    -h|--help) sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) warn "unknown option '$1' (see --help)"; exit 2 ;;
  esac
done

if [ -z "$on" ]; then for_contracts "$contract" "$0" --contract; fi

"$here/setup.sh" test
if [ -n "$on" ]; then make_workdir "${TMPDIR:-/tmp}"; else volume_workdir "$contract"; fi

# The same tree on every machine: sizes from nothing to some MiB, odd names, links of both kinds, modes and old times.
make_tree() {
  mkdir -p "$1"
  (cd "$1" && awk -v files="$FILES" '
    function random(n) { state = (state * 16807) % 2147483647; return state % n }
    BEGIN {
      state = 20260101
      for (i = 0; i < 8192; i++) pool = pool sprintf("%c%c%c%c%c%c%c%c", 33 + random(90), 33 + random(90), 33 + random(90),
        33 + random(90), 33 + random(90), 33 + random(90), 33 + random(90), 10)
      for (d = 0; d < 60; d++) {
        dir[d] = d < 6 ? "dir " d : dir[random(d)] "/sub-" d
        system("mkdir -p \"" dir[d] "\"")
      }
      for (i = 0; i < files; i++) {
        kind = random(100)
        size = kind < 5 ? 0 : kind < 45 ? random(1000) : kind < 85 ? random(16000) : kind < 99 ? random(60000) : 1000000 + random(1000000)
        name = dir[random(60)] "/file-" i "-" substr("abcdefghijklmnopqrstuvwxyz", 1, 1 + random(26)) ".dat"
        printf "" > name
        while (size > 0) {
          part = size < 60000 ? size : 60000
          printf "%s", substr(pool, 1 + random(5000), part) > name
          size -= part
        }
        close(name)
      }
    }')
  (
    cd "$1"
    long=$(printf 'n%.0s' {1..255})
    mkdir empty
    : >"$long"
    ln -s "dir 0" link-to-directory
    ln -s "$(printf 'x%.0s' {1..3000})" long-link
    ln "$long" hard-link
    truncate -s 3M sparse
    printf 'end' >>sparse
    mkfifo fifo
    find . -type f -name '*7-*' -exec chmod 600 {} +
    find . -type f -name '*3-*' -exec chmod 755 {} +
    chmod 1777 empty
    find . -depth -exec touch -h -d '2001-02-03 04:05:06.123456789' {} +
  )
}

# Everything about a tree that tar carries over, one line per object, in a fixed order.
listing() { (cd "$1" && find . -printf '%P\t%y\t%m\t%n\t%l\t%U:%G\t%Ts\t' \( -type f -printf '%s\n' -o -printf '-\n' \) | sort); }
compare() {
  diff -r --no-dereference "$WORK/tree" "$DEST" >"$WORK/diff" 2>&1 || { head -n 10 "$WORK/diff"; die "the contents differ $1"; }
  diff <(listing "$WORK/tree") <(listing "$DEST") >"$WORK/diff" || { head -n 10 "$WORK/diff"; die "names or attributes differ $1"; }
}
free_kib() { echo $(($(stat -f -c '%f * %S / 1024' "$1"))); }

make_tree "$WORK/tree"
count=$(find "$WORK/tree" -type f -name 'file-*' | wc -l)
[ "$count" = "$FILES" ] || die "made $count files instead of $FILES"
# diff(1) would wait for a writer at the fifo; it is compared by the listing.
tar -C "$WORK/tree" --format=posix -cf "$WORK/tree.tar" .
rm "$WORK/tree/fifo"
touch -d '2001-02-03 04:05:06.123456789' "$WORK/tree"

if [ -n "$on" ]; then
  MNT=$on
else
  reason=$(fuse_reason)
  [ -z "$reason" ] || unable "cannot mount here: $reason"
  build_release
  MNT=$WORK/mnt
  volume_image "$contract"
  sf_mkfs "$IMAGE" 1G "$contract"
  sf_mount "$IMAGE" "$MNT"
fi
settle() { if [ -n "$on" ]; then sync -f "$MNT"; else "$STEADFAST" sync "$MNT" >/dev/null; fi; }

DEST=$MNT/tree
settle
before=$(free_kib "$MNT")
on_exit rm -rf --one-file-system "$DEST"
mkdir "$DEST"

start=$(now_ms)
tar -C "$DEST" -xpf "$WORK/tree.tar"
settle
say "tree: $FILES files untarred in $(human_seconds $(($(now_ms) - start)))"
[ -p "$DEST/fifo" ] || die "the fifo is missing"
rm "$DEST/fifo"
touch -d '2001-02-03 04:05:06.123456789' "$DEST"
compare "after tar"
say "tree: contents, modes, owners, times, links equal ($(du -sk "$WORK/tree" | cut -f1) KiB)"

if [ -z "$on" ]; then
  sf_umount "$MNT"
  sf_fsck "$IMAGE"
  sf_mount "$IMAGE" "$MNT"
  compare "after a new mount"
  say "tree: equal after a new mount, fsck clean"
fi

start=$(now_ms)
rm -rf "$DEST"
say "tree: removed in $(human_seconds $(($(now_ms) - start)))"
[ ! -e "$DEST" ] || die "the tree is still there"
for ((try = 0; try < 20; try++)); do
  settle
  after=$(free_kib "$MNT")
  ((before - after <= SLACK_KIB)) && break
  sleep 0.5
done
((before - after <= SLACK_KIB)) || die "$((before - after)) KiB did not come back (accepted: $SLACK_KIB)"
say "tree: the space is back ($((before - after)) KiB stay as metadata)"

if [ -z "$on" ]; then
  sf_umount "$MNT"
  sf_fsck "$IMAGE"
fi

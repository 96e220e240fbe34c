#!/usr/bin/env bash
# POSIX conformance: the pjdfstest suite (all 398 cases, the read-only ones included) on a mounted volume.
#
#   scripts/pjdfstest.sh [--on DIR | --contract NAME] [PATTERN…]
#
#   --on DIR         run on what is mounted at DIR (say, ext4, to compare) instead of a fresh volume
#   --contract NAME  contract of the fresh volume (default ordered), 'pm' for one in persistent memory, 'store' for one on an object
#                    store, or 'all', one after the other
#   PATTERN          only the cases whose names contain one of these
#
# A failure or a skipped case is accepted only if scripts/pjdfstest.skip names it with its reason; so are the cases that the
# suite does not build on Linux. Needs root: the cases switch users.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"
KINDS+=(store)

VERSION=0.2.2
# again [PATTERN…] CONTRACT
again() { "${BASH_SOURCE[0]}" --contract "${@: -1}" "${@:1:$#-1}"; }
on=
contract=ordered
while [ $# -gt 0 ]; do
  case $1 in
    --on) on=$(cd "${2:?"--on needs a directory"}" && pwd -P); shift 2 ;;
    --contract) contract=${2:?"--contract needs a name"}; shift 2 ;;
    -h|--help) sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    -*) warn "unknown option '$1' (see --help)"; exit 2 ;;
    *) break ;;
  esac
done
if [ -z "$on" ]; then for_contracts "$contract" again "$@"; fi
[ "$(id -u)" = 0 ] || unable "needs root: the cases switch users"

"$here/setup.sh" test
install_tool pjdfstest "$VERSION"
if [ -n "$on" ]; then make_workdir "${TMPDIR:-/tmp}"; else volume_workdir "$contract"; fi
chmod 755 "$WORK" # the test users pass through it

if [ -n "$on" ]; then
  MNT=$on
else
  reason=$(fuse_reason)
  [ -z "$reason" ] || unable "cannot mount here: $reason"
  build_release
  MNT=$WORK/mnt
  volume_image "$contract"
  sf_mkfs "$IMAGE" 512M "$contract"
  sf_mount "$IMAGE" "$MNT" -o allow_other
fi

# The suite makes names that fill a path to the last byte, and miscounts where the rest of the path leaves one
# component with no bytes at all: pick a directory whose length it can deal with.
base=$MNT/p
while (((4095 - ${#base} - 22) % 127 < 2)); do base=${base}p; done
mkdir -p "$base"
on_exit rm -rf --one-file-system "$base"

config() {
  cat <<EOF
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.01
allow_remount = $1
[dummy_auth]
entries = [["nobody", "$(id -gn nobody)"], ["daemon", "$(id -gn daemon)"]]
EOF
}
config false >"$WORK/main.toml"
config true >"$WORK/erofs.toml"

# The suite remounts with a plain `mount -o remount,ro DIR`. For a FUSE mount that must neither start libfuse's helper
# nor repeat options that only the first mount may have.
mkdir "$WORK/bin"
cat >"$WORK/bin/mount" <<EOF
#!/bin/sh
exec $(command -v mount) --internal-only --options-mode ignore "\$@"
EOF
chmod 755 "$WORK/bin" "$WORK/bin/mount"

run() {
  (cd "$WORK" && PATH=$WORK/bin:$PATH NO_COLOR=1 RUST_BACKTRACE=0 timeout 1800 "$TOOLS/bin/pjdfstest" \
    -c "$1.toml" -p "$base" -s "$WORK" -- "${@:2}") >"$WORK/$1.log" 2>&1 || true
  grep -q '^Summary' "$WORK/$1.log" || { tail -n 20 "$WORK/$1.log"; die "pjdfstest did not reach its end"; }
}
# Read-only cases remount the file system, which must not happen while earlier cases hold files open: a run of its own.
run main "$@"
if [ $# -eq 0 ]; then run erofs erofs; else : >"$WORK/erofs.log"; fi

# One line per case: name and result; of the cases of the second run, its results count.
awk '$NF ~ /^(ok|FAILED|skipped)$/ && NF == 2 && $1 ~ /::/ { result[$1] = $2 }
     END { for (name in result) print name, result[name] }' "$WORK/main.log" "$WORK/erofs.log" | sort >"$WORK/results"
count() { awk -v want="$1" '$2 == want { n++ } END { print n + 0 }' "$WORK/results"; }
awk '$2 == "FAILED" { print $1 }' "$WORK/results" >"$WORK/failed"
awk '!/^#/ && NF && $1 != "skipped" && $1 != "absent" { print $1 }' "$here/pjdfstest.skip" | sort >"$WORK/expected"
comm -23 "$WORK/failed" "$WORK/expected" >"$WORK/unexpected"
known=$(comm -12 "$WORK/failed" "$WORK/expected" | wc -l)
say "pjdfstest: $(count ok) passed, $(wc -l <"$WORK/unexpected") failed, $known failed as listed, $(count skipped) skipped" \
  "(${on:-$contract})"
awk '!/^#/ && NF && ($1 == "skipped" || $1 == "absent") {
  how = $1 == "absent" ? "not built on Linux" : "skipped"
  name = $2; $1 = $2 = ""; sub(/^ +/, ""); printf "  %s: %s (%s)\n", how, name, $0 }' "$here/pjdfstest.skip"
awk '$1 == "skipped" { print $2 }' "$here/pjdfstest.skip" | sort >"$WORK/skippable"
awk '$2 == "skipped" { print $1 }' "$WORK/results" | sort | comm -23 - "$WORK/skippable" >"$WORK/skipped"
if [ -z "$on" ] && [ $# -eq 0 ]; then
  comm -13 "$WORK/failed" "$WORK/expected" | sed 's/^/note: listed in pjdfstest.skip, but passes: /'
fi

if [ -z "$on" ]; then
  cd /
  rm -rf --one-file-system "$base"
  sf_umount "$MNT"
  sf_fsck "$IMAGE"
fi

if [ -s "$WORK/unexpected" ]; then
  while read -r name; do
    say "FAILED $name"
    awk -v name="$name" 'show && $1 ~ /::/ && $2 ~ /^(ok|FAILED|skipped)$/ { exit }
                         show { print }
                         $1 == name && $2 == "FAILED" { show = 1 }' "$WORK/main.log" "$WORK/erofs.log" | head -n 6
  done <"$WORK/unexpected"
  exit 1
fi
if [ -z "$on" ] && [ -s "$WORK/skipped" ]; then
  die "skipped without a reason in pjdfstest.skip: $(tr '\n' ' ' <"$WORK/skipped")"
fi
[ "$(count ok)" -gt 0 ] || die "no case ran"

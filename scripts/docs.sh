#!/usr/bin/env bash
# Runs the commands of the documents as they stand: each block marked `sh` of README.md, docs/start.md and docs/crash-test.md, the blocks of one
# document one after the other, in a directory of its own, with the release build of `steadfast` on the path.
#
#   scripts/docs.sh [DOCUMENT…]
#
# Exits 0, 1 (a command failed), 2 (usage) or 3 (mounting does not work here).
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"

case ${1:-} in
  -h|--help) sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
  -*) warn "unknown option '$1' (see --help)"; exit 2 ;;
esac
documents=("$@")
if [ $# = 0 ]; then documents=("$ROOT/README.md" "$ROOT/docs/start.md" "$ROOT/docs/crash-test.md"); fi

reason=$(fuse_reason)
if [ -n "$reason" ]; then unable "nothing can be mounted, because $reason"; fi
"$here/setup.sh" test
build_release
make_workdir "${TMPDIR:-/tmp}"

# Mounts and processes left by a document that failed half-way.
clean_up() {
  local server
  for server in $(jobs -p); do kill "$server" 2>/dev/null || true; done
  if mountpoint -q "$1/mnt"; then "$STEADFAST" umount "$1/mnt" >/dev/null 2>&1 || umount -l "$1/mnt" || true; fi
}

for document in "${documents[@]}"; do
  name=$(basename "$document" .md)
  dir=$WORK/$name
  mkdir "$dir"
  awk '/^```sh$/ { on = 1; next } /^```/ { on = 0 } on' "$document" >"$WORK/$name.sh"
  commands=$(grep -c . "$WORK/$name.sh" || true)
  ((commands > 0)) || die "$document has no block marked 'sh'"
  on_exit clean_up "$dir"
  if (cd "$dir" && PATH=$(dirname "$STEADFAST"):$PATH bash -eu -o pipefail "$WORK/$name.sh") >"$WORK/$name.out" 2>&1; then
    say "  $name: $commands lines of commands ran as written"
  else
    cat "$WORK/$name.out" >&2
    die "a command of $document failed"
  fi
done

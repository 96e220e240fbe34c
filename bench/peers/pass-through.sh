# A peer of `fs`: the pass-through example of libfuse over a directory in memory, the least that a FUSE server can do.
# Sourced after scripts/lib.sh; measures nothing by itself.
# shellcheck shell=bash
#
#   pass_through_mount DIR   builds it if need be, mounts it at DIR over a new directory beside it, which must be in
#                            memory; undone when the script ends. Sets PASS_THROUGH_SERVER
#   pass_through_reason      why it cannot be had, nothing if it can; builds it
#
# The example comes from Debian's package libfuse3-dev, which holds its source, and is linked with libfuse3-3 as packaged;
# both are unpacked into target/tools and not installed. Its caches are on (`cache=always`) and the write-back cache, which
# gives up the order of writes, is off.

PASS_THROUGH=$TOOLS/pass-through/passthrough_ll

pass_through_reason() {
  [ ! -x "$PASS_THROUGH" ] || return 0
  local dir=$TOOLS/pass-through source library
  if ! command -v dpkg-deb >/dev/null || ! command -v apt-get >/dev/null; then echo "it comes as a Debian package"; return; fi
  rm -rf "$dir"
  mkdir -p "$dir"
  # Without lists of packages, there is nothing to choose from.
  (cd "$dir" && { apt-get -qq download libfuse3-dev libfuse3-3 ||
    { apt-get -qq update && apt-get -qq download libfuse3-dev libfuse3-3; }; }) >"$dir/log" 2>&1 ||
    { echo "libfuse3-dev cannot be had from the package archive: $(tail -n 1 "$dir/log")"; return; }
  local package
  for package in "$dir"/*.deb; do dpkg-deb -x "$package" "$dir"; done
  source=$(find "$dir" -name 'passthrough_ll.c*' | head -n 1)
  library=$(find "$dir" -name 'libfuse3.so.3' | head -n 1)
  if [ -z "$source" ] || [ -z "$library" ]; then echo "libfuse3-dev holds no passthrough_ll.c"; return; fi
  zcat -f "$source" >"$dir/passthrough_ll.c"
  cp "$(dirname "$source")/passthrough_helpers.h" "$dir/" 2>/dev/null || true
  cc -O2 -w -D_FILE_OFFSET_BITS=64 -I"$dir/usr/include/fuse3" -I"$dir" -o "$PASS_THROUGH" "$dir/passthrough_ll.c" \
    "$library" -Wl,-rpath,"$(dirname "$library")" -lpthread >"$dir/log" 2>&1 ||
    echo "it does not compile: $(head -n 1 "$dir/log")"
}

pass_through_mount() {
  local dir=$1 reason
  reason=$(pass_through_reason)
  [ -z "$reason" ] || die "no pass-through peer: $reason"
  mkdir -p "$dir" "$dir.source"
  case $(stat -f -c %T "$dir.source") in
    tmpfs|ramfs) ;;
    *) die "$dir.source is not in memory" ;;
  esac
  on_exit detach "$dir"
  "$PASS_THROUGH" -f -o "source=$dir.source,cache=always" "$dir" >"$dir.log" 2>&1 &
  PASS_THROUGH_SERVER=$!
  on_exit stop_process "$PASS_THROUGH_SERVER"
  await --alive "$PASS_THROUGH_SERVER" mount_answers "$dir" && return
  die "the pass-through peer did not mount: $(tail -n 1 "$dir.log")"
}

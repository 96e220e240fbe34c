#!/usr/bin/env bash
# Makes what a release consists of, the same bytes from any clone of the same commit: static programs with what belongs to them,
# packages for Debian and for RPM, the sources, a bill of materials, and checksums.
#
#   scripts/release.sh [--check] [--compare DIR] [--only WHAT,…] [--targets LIST] [--out DIR]
#
#   --check        makes all twice, from two clones in two directories, and compares
#   --compare DIR  compares with a release in DIR, such as one that was published
#   --only WHAT,…  some parts: source, bom, program (everything in it), block (block volumes alone), rpm, deb (default: all)
#   --targets LIST x86_64, aarch64 (default: both; without a cross compiler, this machine's)
#   --out DIR      leaves them there (default: target/release-VERSION)
#
# A program above its limit (20 MB with everything, 6 MB for block volumes alone) is an error, found at the end. The line tables
# of a program are an archive of their own: unpacked beside the program, they serve debuggers and backtraces.
#
# Exits 0, 1 (something is wrong), 2 (usage) or 3 (something needed is missing).
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"
# shellcheck source-path=SCRIPTDIR source=packaging.sh
. "$here/packaging.sh"

parts=source,bom,program,block,rpm,deb
targets='' check='' compare='' out=$TARGET/release-$VERSION
given=()
while [ $# -gt 0 ]; do
  case $1 in
    --check) check=1; shift ;;
    --compare) compare=$(cd "${2:?"--compare needs a directory"}" && pwd -P) || exit 2; shift 2 ;;
    --only) parts=${2:?"--only needs parts"}; given+=(--only "$2"); shift 2 ;;
    --targets) targets=${2:?"--targets needs a list"}; given+=(--targets "$2"); shift 2 ;;
    --out) mkdir -p "${2:?"--out needs a directory"}"; out=$(cd "$2" && pwd -P); shift 2 ;;
    -h|--help) sed -n '2,17s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) warn "unknown option '$1' (see --help)"; exit 2 ;;
  esac
done
for part in ${parts//,/ }; do
  case $part in
    source|bom|program|block|rpm|deb) ;;
    *) warn "unknown part '$part': source, bom, program, block, rpm or deb"; exit 2 ;;
  esac
done
for target in ${targets//,/ }; do
  case $target in
    x86_64|aarch64) ;;
    *) warn "unknown target '$target': x86_64 or aarch64"; exit 2 ;;
  esac
done
wants() { [[ ,$parts, == *,$1,* ]]; }
PROGRAM_BYTES_MAX=20000000
BLOCK_BYTES_MAX=6000000

[ -z "$(git -C "$ROOT" status --porcelain --untracked-files=no)" ] ||
  die "there are changes that are not committed: a release is made of a commit"
"$here/setup.sh" release
commit_time
make_workdir "$TARGET/release-work"
umask 022

# same DIR DIR: whether both hold the same files; names those that differ.
same() {
  local file status=0
  for file in "$1"/*; do
    if ! cmp "$file" "$2/${file##*/}" >&2; then status=1; fi
  done
  for file in "$2"/*; do
    if [ ! -e "$1/${file##*/}" ]; then warn "${file##*/} is in $2 alone"; status=1; fi
  done
  return "$status"
}

if [ -n "$check" ]; then
  status=0
  for name in first the-second-one; do
    step "From clone '$name'"
    git clone --quiet "$ROOT" "$WORK/$name/steadfast" || die "the repository cannot be cloned"
    git -C "$WORK/$name/steadfast" checkout --quiet --detach "$(git -C "$ROOT" rev-parse HEAD)"
    made=0
    env -u CARGO_TARGET_DIR "$WORK/$name/steadfast/scripts/release.sh" "${given[@]}" --out "$WORK/$name/out" || made=$?
    if ((made > 0)) && [ ! -e "$WORK/$name/out/SHA256SUMS" ]; then exit "$made"; fi
    # Whole, but beyond a limit: compared all the same.
    if ((made > 0)); then status=$made; fi
    rm -rf "$WORK/$name/steadfast"
  done
  step "Comparison"
  same "$WORK/first/out" "$WORK/the-second-one/out" || die "two clones of the same commit give different files"
  count=$(find "$WORK/first/out" -type f | wc -l)
  ((count > 1)) || die "there is nothing to compare"
  say "  $count files are the same from both clones"
  mkdir -p "$out"
  cp "$WORK/first/out"/* "$out/"
  if [ -n "$compare" ]; then same "$out" "$compare" || die "differs from $compare"; fi
  exit "$status"
fi

mkdir -p "$out"
failed=()

# made FILE: says how large it is.
made() { say "  ${1##*/}: $(stat -c %s "$1" | awk '{ printf "%.1f MB", $1 / 1e6 }')"; }

# The targets, as far as they can be built: one that was asked for must be.
triples=()
if wants program || wants block || wants rpm; then
  for target in ${targets:+${targets//,/ }} ${targets:-x86_64 aarch64}; do
    triple=$target-unknown-linux-musl
    [[ " ${triples[*]} " == *" $triple "* ]] && continue
    reason=$(target_reason "$triple")
    if [ -z "$reason" ]; then
      triples+=("$triple")
    elif [ -n "$targets" ] || [ "$target" = "${HOST%%-*}" ]; then
      unable "$target: $reason"
    else
      say "left out: $target, because $reason"
    fi
  done
fi

# runner TRIPLE PROGRAM: sets RUNNER to a file that runs the program here, or to nothing.
runner() {
  RUNNER=$2
  [ "${1%%-*}" != "${HOST%%-*}" ] || return 0
  RUNNER=
  command -v "qemu-${1%%-*}-static" >/dev/null || return 0
  RUNNER=$WORK/run-${1%%-*}
  printf '#!/bin/sh\nexec qemu-%s-static "%s" "$@"\n' "${1%%-*}" "$2" >"$RUNNER"
  chmod +x "$RUNNER"
}

# tried RUNNER: the program makes, checks and shows a volume.
tried() {
  local image=$WORK/tried.img
  timeout 60 "$1" --version >/dev/null && timeout 120 "$1" mkfs --force --size 64M "$image" >/dev/null &&
    timeout 120 "$1" fsck -n "$image" >/dev/null && timeout 60 "$1" info "$image" >/dev/null
}

# static_program TRIPLE NAME LIMIT [cargo options…]: the archives of a program. Leaves its tree, for packages, in $WORK/NAME-TRIPLE.
static_program() {
  local triple=$1 name=$2 limit=$3 short=${1/-unknown/} tree bytes dynamic
  shift 3
  step "$name for $short"
  dist_build "$triple" -p steadfast-cli "$@" || die "$name does not build for $triple"
  tree=$name-$VERSION-$short
  split_lines "$triple" "$TARGET/$triple/dist/steadfast" "$WORK/$tree-programs" || die "the line tables cannot be split off"
  local program=$WORK/$tree-programs/steadfast
  dynamic=$(LC_ALL=C readelf -lW "$program")
  [[ $dynamic != *"program interpreter"* ]] || die "$program is not static"
  bytes=$(stat -c %s "$program")
  say "  the program: $(awk "BEGIN { printf \"%.1f\", $bytes / 1e6 }") MB, limit $(awk "BEGIN { printf \"%.0f\", $limit / 1e6 }") MB"
  if ((bytes > limit)); then failed+=("$name for $short has $bytes bytes, $limit are the limit"); fi
  # shellcheck disable=SC2310
  runner "$triple" "$program"
  [ -n "$RUNNER" ] || unable "programs for ${triple%%-*} do not run here: qemu-user-static is missing"
  tried "$RUNNER" || die "$program does not make and check a volume"
  "$here/sbom.py" licences --target "$triple" "$@" >"$WORK/licences"
  local options=(--program "$program" --runner "$RUNNER" --licences "$WORK/licences")
  "$here/install-tree.sh" "${options[@]}" --root "$WORK/$tree-local" --prefix "/usr/local" || die "$name cannot be installed"
  mkdir "$WORK/$tree-archive"
  mv "$WORK/$tree-local/usr/local" "$WORK/$tree-archive/$tree"
  archive "$WORK/$tree-archive" "$tree" "$out/$tree.tar.gz"
  made "$out/$tree.tar.gz"
  mkdir -p "$WORK/$tree-lines/$tree/bin"
  cp "$WORK/$tree-programs/steadfast.debug" "$WORK/$tree-lines/$tree/bin/"
  archive "$WORK/$tree-lines" "$tree" "$out/$tree-debug.tar.gz"
  made "$out/$tree-debug.tar.gz"
  if [ "$name" = steadfast ] && wants rpm; then
    "$here/install-tree.sh" "${options[@]}" --root "$WORK/rpm-$short" --prefix /usr >/dev/null || die "$name cannot be installed"
    rpm_package "${triple%%-*}" "$WORK/rpm-$short"
  fi
}

# rpm_package PROCESSOR TREE
rpm_package() {
  local top=$WORK/rpmbuild-$1 file system=$WORK/rpm-system-$1
  rpmbuild -bb --quiet --target "$1-linux" --define "_topdir $top" --define "tree $2" --define "version $VERSION" \
    --define "_buildhost localhost" --define "use_source_date_epoch_as_buildtime 1" \
    --define "clamp_mtime_to_source_date_epoch 1" --define "_binary_payload w19.zstdio" \
    "$ROOT/packages/rpm/steadfast.spec" >"$WORK/rpm.log" 2>&1 || { cat "$WORK/rpm.log" >&2; die "the RPM cannot be built"; }
  file=$top/RPMS/$1/steadfast-$VERSION-1.$1.rpm
  # As a system unpacks it, without its scripts and its database.
  mkdir "$system"
  (cd "$system" && rpm2cpio "$file" | cpio --extract --make-directories --quiet) || die "the RPM cannot be unpacked"
  cmp "$system/usr/bin/steadfast" "$2/usr/bin/steadfast" || die "the RPM's program is not the one that was built"
  [ "$(readlink "$system/usr/sbin/mount.steadfast")" = ../bin/steadfast ] || die "the RPM lacks the helper of mount(8)"
  "$here/doc-tree.py" check "$system/usr/share/doc/steadfast" || die "links of the RPM's documents lead nowhere"
  cp "$file" "$out/"
  made "$out/${file##*/}"
}

if wants source; then
  step "The sources"
  git -C "$ROOT" archive --format=tar "--prefix=steadfast-$VERSION/" HEAD | gzip -n -9 >"$out/steadfast-$VERSION-source.tar.gz"
  made "$out/steadfast-$VERSION-source.tar.gz"
fi
if wants bom; then
  step "The bill of materials"
  "$here/sbom.py" bom --target "${HOST%%-*}-unknown-linux-musl" >"$out/steadfast-$VERSION.cdx.json"
  made "$out/steadfast-$VERSION.cdx.json"
fi
for triple in "${triples[@]}"; do
  if wants block; then static_program "$triple" steadfast-block "$BLOCK_BYTES_MAX" --no-default-features; fi
  if wants program || wants rpm; then static_program "$triple" steadfast "$PROGRAM_BYTES_MAX"; fi
done
if wants deb; then
  step "The Debian package"
  build_deb "$out"
  for package in "$out"/steadfast*.deb; do made "$package"; done
fi

step "Checksums"
(cd "$out" && sha256sum -- steadfast*) >"$WORK/sums"
mv "$WORK/sums" "$out/SHA256SUMS"
say "  $(wc -l <"$out/SHA256SUMS") files in $out"
if [ -n "$compare" ]; then
  same "$out" "$compare" || failed+=("differs from $compare")
fi
for failure in "${failed[@]}"; do warn "$failure"; done
((${#failed[@]} == 0)) || exit 1

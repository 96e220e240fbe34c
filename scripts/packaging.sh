# What the scripts share that make packages: a reproducible build, archives, and the Debian package. Sourced after lib.sh, also by
# debian/rules.
# shellcheck shell=bash disable=SC2034

VERSION=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$ROOT/Cargo.toml")
HOST=$(cd "$ROOT" && rustc -vV | sed -n 's/^host: //p')

# Sets the time of everything that is made to the commit's. One that is given stays: dpkg-buildpackage gives the changelog's.
commit_time() {
  if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
    SOURCE_DATE_EPOCH=$(git -C "$ROOT" log -1 --format=%ct) || die "$ROOT is no clone of the repository, and SOURCE_DATE_EPOCH is not set"
  fi
  export SOURCE_DATE_EPOCH
}

# cross_tool TRIPLE NAME: a tool of GNU's compiler or binutils for this target.
cross_tool() {
  if [ "${1%%-*}" = "${HOST%%-*}" ]; then echo "$2"; else echo "${1%%-*}-linux-gnu-$2"; fi
}

# Says what is missing to build for this target; nothing if all is there. Fetches Rust's standard library for it.
target_reason() {
  local compiler
  case $1 in
    "${HOST%%-*}"-*-musl) compiler=musl-gcc ;;
    *) compiler=$(cross_tool "$1" gcc) ;;
  esac
  if ! command -v "$compiler" >/dev/null; then
    echo "$compiler is missing (scripts/setup.sh release)"
  elif [ ! -d "$(cd "$ROOT" && rustc --print sysroot)/lib/rustlib/$1/lib" ] &&
    ! (cd "$ROOT" && timeout 600 rustup --quiet target add "$1") >/dev/null 2>&1; then
    echo "Rust's standard library for $1 is missing (rustup target add $1)"
  fi
}

# dist_build TRIPLE [cargo options…]: builds with the profile `dist`, the same bytes from any directory. The products are in
# $TARGET/TRIPLE/dist.
dist_build() {
  local triple=$1 sysroot commit under upper flags='' map prefix
  shift
  sysroot=$(cd "$ROOT" && rustc --print sysroot)
  commit=$(cd "$ROOT" && rustc -vV | sed -n 's/^commit-hash: //p')
  under=${triple//-/_}
  upper=${under^^}
  # A later prefix goes before an earlier one.
  local prefixes=("$ROOT=/steadfast" "$TARGET=/target" "${CARGO_HOME:-$HOME/.cargo}=/cargo" "$sysroot/lib/rustlib/src/rust=/rustc/$commit")
  for map in "${prefixes[@]}"; do flags+="${flags:+$'\x1f'}--remap-path-prefix=$map"; done
  local environment=("CARGO_ENCODED_RUSTFLAGS=$flags" CARGO_INCREMENTAL=0 "CARGO_TARGET_DIR=$TARGET")
  # Sources in C.
  map=
  for prefix in "${prefixes[@]}"; do map+=" -ffile-prefix-map=$prefix"; done
  environment+=("CFLAGS_$under=-O2$map")
  if [ "${triple%%-*}" != "${HOST%%-*}" ]; then
    environment+=("CARGO_TARGET_${upper}_LINKER=$(cross_tool "$triple" gcc)" "CC_$under=$(cross_tool "$triple" gcc)"
      "AR_$under=$(cross_tool "$triple" ar)")
  fi
  (cd "$ROOT" && env -u RUSTFLAGS "${environment[@]}" cargo build --quiet --profile dist --locked --target "$triple" "$@")
}

# split_lines TRIPLE PROGRAM DIR: the program without names and line numbers, and NAME.debug with them, to which it refers.
split_lines() {
  local objcopy name=${2##*/}
  objcopy=$(cross_tool "$1" objcopy)
  install -d "$3"
  "$objcopy" --only-keep-debug "$2" "$3/$name.debug" || return
  (cd "$3" && "$objcopy" --strip-all "--add-gnu-debuglink=$name.debug" "$2" "$name") || return
  chmod 644 "$3/$name.debug"
}

# archive DIR NAME FILE: directory DIR/NAME as FILE (tar, gzip), the same bytes for the same content.
archive() {
  tar -C "$1" --format=gnu --sort=name --owner=0 --group=0 --numeric-owner "--mtime=@$SOURCE_DATE_EPOCH" --mode=go=rX,u+rw,a-s \
    -cf - "$2" | gzip -n -9 >"$3"
}

# build_deb DIR: makes the Debian package from the files under version control. Its files go to DIR.
build_deb() {
  local source=$TARGET/package-build/source log=$TARGET/package-build/build.log
  # A copy, since a build leaves its files in debian/ and the packages beside the directory. Always the same one, so that
  # what was compiled before serves again.
  rm -rf "$TARGET/package-build/source" "$TARGET"/package-build/*.{deb,buildinfo,changes}
  mkdir -p "$source" "$1"
  (cd "$ROOT" && git ls-files -z | tar --null -cf - -T -) | tar -xf - -C "$source" || return
  (cd "$source" && CARGO_TARGET_DIR=$TARGET/package-build/target timeout 7200 dpkg-buildpackage -b -us -uc -d >"$log" 2>&1) ||
    { tail -n 30 "$log" >&2; die "the package cannot be built"; }
  cp "$TARGET"/package-build/*.deb "$1/"
}

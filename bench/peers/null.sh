# A peer of measurements through FUSE: tables in memory with the front end of the product (bench/null). It keeps nothing: what
# a call costs here, the front end costs. Sourced after scripts/lib.sh, by bench/run; measures nothing by itself.
# shellcheck shell=bash
#
#   null_build                 builds it
#   null_mount DIR [OPTION…]   mounts it at DIR; undone when the script ends

null_build() {
  build_driver null
  NULL=$DRIVER
}

null_mount() {
  local dir=$1 server
  shift
  mkdir -p "$dir"
  on_exit detach "$dir"
  "$NULL" "$dir" "$@" >"$dir.log" 2>&1 &
  server=$!
  on_exit stop_process "$server"
  await --alive "$server" mount_answers "$dir" && return
  die "the null server did not mount: $(tail -n 1 "$dir.log")"
}

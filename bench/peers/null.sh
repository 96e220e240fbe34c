# A peer of measurements through FUSE: tables in memory behind the front end of the product (bench/null). It keeps nothing, so
# no file system behind this front end can be faster. Sourced after scripts/lib.sh, by bench/run; measures nothing by itself.
# shellcheck shell=bash
#
#   null_build                 builds it, for io_uring if STEADFAST_BENCH_TRANSPORT says so
#   null_mount DIR [OPTION…]   mounts it at DIR; undone when the script ends

null_build() {
  local features=()
  if [ "${STEADFAST_BENCH_TRANSPORT:-}" = io_uring ]; then features=(--features io-uring); fi
  build_driver null "${features[@]}"
  NULL=$DRIVER
}

null_mount() {
  local dir=$1 i server
  shift
  mkdir -p "$dir"
  on_exit detach "$dir"
  "$NULL" "$dir" "$@" >"$dir.log" 2>&1 &
  server=$!
  on_exit stop_process "$server"
  for ((i = 0; i < 100; i++)); do
    [ -z "$(mount_kind "$dir")" ] || return 0
    kill -0 "$server" 2>/dev/null || break
    sleep 0.05
  done
  die "the null server did not mount: $(tail -n 1 "$dir.log")"
}

# The measurement `ftl`: the snapshot-consistent translation layer against layers that promise less, and the file system on
# both. Virtual time is the same in every run; only the `cpu` rows are the host's. Sourced by bench/run.
# shellcheck shell=bash disable=SC2034,SC2154

RUNS=5
QUICK_RUNS=1

prepare_ftl() {
  build_driver ftl
  FTL=$DRIVER
}

# measure NAME: its rows, as they come.
measure() {
  say "$1"
  "$FTL" "$1" ${quick:+--quick} >>"$RESULTS" || die "ftl $1 failed"
}

bench_ftl() {
  local run part
  for part in figure5 amplification boot volume deletes; do measure "$part"; done
  for ((run = 1; run <= runs; run++)); do measure cpu; done
  report "epoch_blocks=2048" "latencies=mlc"
}

# The measurement `figures`: draws the papers' figures from results that the other measurements have kept, the paper's values beside
# ours. It measures nothing.
# shellcheck shell=bash disable=SC2154

# shellcheck disable=SC2034
MEASURES=no
# shellcheck disable=SC2034
RUNS=1
# shellcheck disable=SC2034
QUICK_RUNS=1

prepare_figures() { :; }

# Results of one's own come first; then the medians that bench/README.md quotes.
bench_figures() {
  local kept=$DISK/results out=${STEADFAST_BENCH_FIGURES:-$DISK/figures}
  "$LOAD" figures --describe "$root/bench/figures.toml" --out "$out" "$kept" "$root/bench/results" >&3
}

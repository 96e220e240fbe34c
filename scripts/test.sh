#!/usr/bin/env bash
# What must hold before a change goes in, in three tiers.
#
#   scripts/test.sh [--merge | --rest | --long]
#
#   (none)   ten minutes on two processors: every unit, property and planted-fault test, explorations by a seed that is the
#            commit's hash (STEADFAST_SEED), front ends on a real mount, NFS over loopback, stores in a directory. Proofs,
#            obligations, foreign clients and packages run if their sources changed since the last commit that passed --merge
#   --merge  half an hour: the default tier, then all that runs before a merge (lints, documentation, proofs, long explorations,
#            pjdfstest, fsx, applications that lose power, clients of others, features)
#   --rest   what --merge has beyond the default tier
#   --long   all of it at length (adds some hours)
#
# Runs all steps even if one fails, then names those that failed, what was skipped and what was left out. Exits 0, 1 (something
# failed) or 3 (something needed is missing).
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"
# shellcheck source-path=SCRIPTDIR source=disk-lib.sh
. "$here/disk-lib.sh"

tier=default
while [ $# -gt 0 ]; do
  case $1 in
    --merge|--rest|--long)
      if [ "$tier" != default ]; then warn "one tier at a time (see --help)"; exit 2; fi
      tier=${1#--}; shift ;;
    -h|--help) sed -n '2,17s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) warn "unknown option '$1' (see --help)"; exit 2 ;;
  esac
done
long=
if [ "$tier" = long ]; then
  long=1
  # Read by the tests that have a long form.
  export STEADFAST_LONG=1
fi

"$here/setup.sh" test
cd "$ROOT"
make_workdir "${TMPDIR:-/tmp}"
# shellcheck source-path=SCRIPTDIR source=test-lib.sh
. "$here/test-lib.sh"
# shellcheck source-path=SCRIPTDIR source=test-merge.sh
. "$here/test-merge.sh"
started=$SECONDS
export FAILED_STEPS=$WORK/failed
: >"$FAILED_STEPS"
say "seed of the explorations: $STEADFAST_SEED"

# Workspaces of their own have lock files of their own: a change of a crate's dependencies concerns them, too.
lock_files() {
  local manifest
  for manifest in Cargo.toml fuzz/Cargo.toml proofs/*/Cargo.toml; do
    cargo metadata --quiet --locked --format-version 1 --manifest-path "$manifest" >/dev/null ||
      { warn "cargo metadata --manifest-path $manifest brings its lock file up to date"; return 1; }
  done
}
scripts_parse() {
  local file sources=(scripts/*.sh bench/run bench/*.sh bench/load/*.sh bench/peers/*.sh bench/pm/*.sh bench/streams/*.sh .ci/run)
  for file in "${sources[@]}" proofs/check proofs/*/{build,code,mutants,run,test}; do
    [ -e "$file" ] || continue; bash -n "$file" || return; done
  # Where the checker is installed, it must have nothing to say.
  if command -v shellcheck >/dev/null; then shellcheck -x "${sources[@]}"
  else left_out "shellcheck" "it is not installed"; fi
}
tests_compiled() { without_warnings cargo test --quiet --locked --no-run "${DEFAULT_SELECTION[@]}"; }
# The command that the tests were built with; later builds replace that.
keep_program() { mkdir -p "$TARGET/tested" && cp --remove-destination "$TARGET/debug/steadfast" "$TARGET/tested/"; }
# The crashes of this very stack, each contract, on a block device and on flash.
own_crashes() {
  local contract status=0
  for contract in "${CONTRACTS[@]}"; do
    "$TARGET/tested/steadfast" crash self --contract "$contract" --seed "$STEADFAST_SEED" --images 10000 || status=1
    "$TARGET/tested/steadfast" crash self --on flash --contract "$contract" --seed "$STEADFAST_SEED" --images 60 || status=1
  done
  return "$status"
}
default_tests() {
  local status=0
  BESIDE_ONLY='crates/*|lab/*' tests_beside "${DEFAULT_SELECTION[@]}" || status=1
  BESIDE_ONLY=bench/nfs tests_beside "${DEFAULT_SELECTION[@]}" -- workload:: || status=1
  return "$status"
}
offer_io_uring() { echo "$1" >/sys/module/fuse/parameters/enable_uring; }
# The front end's tests once more over io_uring, which most kernels offer only if they are set to.
front_over_io_uring() {
  local offered=/sys/module/fuse/parameters/enable_uring before status=0
  local -x BESIDE_LIMIT=600
  if [ ! -w "$offered" ]; then
    left_out "front end over io_uring" "this kernel does not offer FUSE over io_uring to this user"
    return 0
  fi
  before=$(cat "$offered")
  on_exit offer_io_uring "$before"
  offer_io_uring Y
  STEADFAST_IO_URING=1 BESIDE_ONLY='crates/fuse|crates/fuse-wire' tests_beside "${DEFAULT_SELECTION[@]}" || status=1
  BESIDE_ONLY=crates/cli tests_beside "${DEFAULT_SELECTION[@]}" -- transport:: || status=1
  offer_io_uring "$before"
  return "$status"
}

default_tier() {
  run "format" cargo fmt --all --check
  run "scripts" scripts_parse
  run "lock files" lock_files
  run "tests, compiled" tests_compiled
  run "command, kept" keep_program
  start_beside "$WORK/own-crashes" run "crash exploration of this stack, 10,000 images a contract" own_crashes
  own_crashes=$GROUP
  run "tests" default_tests
  shown "$own_crashes" "$WORK/own-crashes" || say "the crash exploration was cut short" | tee -a "$FAILED_STEPS"
  run "front end over io_uring" front_over_io_uring
  if [ -x "$here/faults.sh" ]; then run "planted faults, all found again" "$here/faults.sh" --check "$STEADFAST_NOTES"; fi
  changed_since_merge
}

case $tier in
  default) default_tier ;;
  rest) rest_of_merge ;;
  *) default_tier; rest_of_merge ;;
esac

step "$((SECONDS - started)) s in all"
summary
if [ ! -e "$FAILED_STEPS" ]; then
  say "FAILED: $WORK was removed during the run, with what the steps printed"
  exit 1
fi
if [ -s "$FAILED_STEPS" ]; then
  say "FAILED: $(paste -sd ';' "$FAILED_STEPS" | sed 's/;/; /g')"
  exit 1
fi
if [ "$tier" != default ]; then note_merged; fi
say "all steps passed"

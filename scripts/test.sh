#!/usr/bin/env bash
# Everything that must hold before a change goes in: format, lints, documentation, all tests, crash exploration, and the
# public suites on a mounted volume.
#
#   scripts/test.sh [--long]
#
#   --long   the long tier: more crash images, a million schedules, all mutants, longer runs (adds some hours)
#
# Runs all steps even if one fails, then names those that failed. Exits 0, 1 (something failed) or 3 (something needed
# is missing). Without root or /dev/fuse, says which steps it leaves out.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"
# shellcheck source-path=SCRIPTDIR source=disk-lib.sh
. "$here/disk-lib.sh"

long=
while [ $# -gt 0 ]; do
  case $1 in
    --long) long=1; shift ;;
    -h|--help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) warn "unknown option '$1' (see --help)"; exit 2 ;;
  esac
done

if [ -n "$long" ]; then
  # Read by the tests that have a long form.
  export STEADFAST_LONG=1
fi

"$here/setup.sh" test
cd "$ROOT"
make_workdir "${TMPDIR:-/tmp}"
started=$SECONDS
export FAILED_STEPS=$WORK/failed
: >"$FAILED_STEPS"

lints() {
  cargo clippy --quiet --workspace --all-targets --locked -- -D warnings &&
    cargo clippy --quiet -p steadfast-journal --features shuttle,trace --lib --test shuttle --locked -- -D warnings &&
    cargo clippy --quiet -p steadfast-ftl --no-default-features --locked -- -D warnings || return
  # The embedded stores beside the journal take minutes to compile.
  if [ -n "$long" ]; then cargo clippy --quiet -p steadfast-bench-journal --features peers --locked -- -D warnings; fi
}
# Their tests measure for a while, and wait for servers: what they find depends on how busy the machine is.
measuring=(--exclude steadfast-bench-journal --exclude steadfast-bench-nfs)
if [ -n "$long" ]; then measuring=(); fi
tests_compiled() {
  cargo test --quiet --workspace "${measuring[@]}" --locked --no-run
}
# As many programs of tests at a time as there are processors: many of them wait. In the long tier, where some measure, one.
tests_beside() {
  local status=0 count runner i
  if [ -n "$long" ]; then count=1; else count=$(nproc); fi
  runner=CARGO_TARGET_$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')_RUNNER
  export BESIDE=$WORK/beside
  mkdir -p "$BESIDE" && mkfifo "$BESIDE/slots" || return
  local slots
  exec {slots}<>"$BESIDE/slots"
  for ((i = 0; i < count; i++)); do printf . >&"$slots"; done
  env "$runner=$here/beside.sh" cargo test --quiet --workspace "${measuring[@]}" --locked --no-fail-fast {slots}>&- || status=$?
  # All have ended when all slots are there.
  for ((i = 0; i < count; i++)); do read -r -n 1 -u "$slots"; done
  exec {slots}>&-
  if [ -e "$BESIDE/failed" ]; then
    warn "tests failed in $(paste -sd ' ' "$BESIDE/failed")"
    status=1
  fi
  return "$status"
}
# Workspaces of their own have lock files of their own: a change of a crate's dependencies concerns them, too.
lock_files() {
  local manifest
  for manifest in Cargo.toml fuzz/Cargo.toml proofs/*/Cargo.toml; do
    cargo metadata --quiet --locked --format-version 1 --manifest-path "$manifest" >/dev/null ||
      { warn "cargo metadata --manifest-path $manifest brings its lock file up to date"; return 1; }
  done
}
documentation() { RUSTDOCFLAGS="-D warnings" cargo doc --quiet --workspace --no-deps --locked; }
# The engine that tries the obligations about the codecs and the translation layer is a workspace of its own, too.
engine() {
  local manifest=proofs/smt/Cargo.toml target=$TARGET/smt
  cargo fmt --manifest-path "$manifest" -- --check &&
    CARGO_TARGET_DIR=$target cargo clippy --quiet --manifest-path "$manifest" --all-targets --locked -- -D warnings &&
    CARGO_TARGET_DIR=$target cargo test --quiet --manifest-path "$manifest" --locked
}
# So is the checker of the order of stores.
store_orders() {
  local manifest=proofs/pmcheck/Cargo.toml target=$TARGET/pmcheck
  cargo fmt --manifest-path "$manifest" -- --check &&
    CARGO_TARGET_DIR=$target cargo clippy --quiet --manifest-path "$manifest" --all-targets --locked -- -D warnings
}
# The crates to publish, as far as they can be tried before their dependencies are published.
packages() {
  local manifest names=()
  for manifest in crates/*/Cargo.toml; do
    grep -q '^publish = false' "$manifest" || names+=(-p "$(sed -n '0,/^name = /s/^name = "\(.*\)"/\1/p' "$manifest")")
  done
  cargo package --quiet --no-verify --locked --offline --allow-dirty "${names[@]}"
}
# The tests have checked that the book's summary and its links are right.
book() {
  if command -v mdbook >/dev/null; then mdbook build --dest-dir "$WORK/book"
  else say "left out, because mdbook is not installed: the book"; fi
}
# go-journal comes from the module proxy: without it, only the form is checked.
go_driver() {
  local unformatted
  unformatted=$(gofmt -l bench/gojournal) || return
  if [ -n "$unformatted" ]; then warn "gofmt would change: $unformatted"; return 1; fi
  if ! (cd bench/gojournal && go mod download) 2>/dev/null; then
    say "left out, because go-journal cannot be had from the module proxy: go vet"
    return 0
  fi
  (cd bench/gojournal && go mod verify && go vet .)
}
# The checkers of traces come from the proofs.
schedules() {
  cargo test --quiet -p steadfast-journal --features shuttle,trace --test shuttle --locked -- --nocapture
}
# The front end's tests once more over io_uring, which most kernels offer only when told to.
front_over_io_uring() {
  local offered=/sys/module/fuse/parameters/enable_uring before status=0
  if [ ! -w "$offered" ]; then
    say "left out, because this kernel does not offer FUSE over io_uring to this user: front end over io_uring"
    return 0
  fi
  before=$(cat "$offered")
  echo Y >"$offered"
  STEADFAST_IO_URING=1 cargo test --quiet -p steadfast-fuse --locked || status=$?
  cargo test --quiet -p steadfast-cli --test transport --locked || status=$?
  echo "$before" >"$offered"
  return "$status"
}
scripts_parse() {
  local file
  for file in scripts/*.sh bench/run bench/*.sh bench/load/*.sh bench/peers/*.sh bench/pm/*.sh bench/streams/*.sh .ci/run proofs/check proofs/*/{build,code,mutants,run,test}; do
    [ -e "$file" ] || continue; bash -n "$file" || return; done
  # Where the checker is installed, it must have nothing to say.
  if command -v shellcheck >/dev/null; then shellcheck -x scripts/*.sh bench/run bench/*.sh bench/load/*.sh bench/peers/*.sh bench/pm/*.sh bench/streams/*.sh .ci/run; fi
}

# Schedules of the journal, and what the long tier adds.
explored() {
  if [ -n "$proofs" ]; then
    export STEADFAST_ORACLE=$TARGET/oracle/oracle
    if [ -x "$STEADFAST_ORACLE" ]; then
      run "journal under explored schedules, their traces checked" schedules
    else
      say ""
      say "left out, because the proofs failed before they built the checkers of traces: journal under explored schedules"
    fi
  else
    say ""
    say "left out, because Coq is missing and only root can install it: proofs, journal under explored schedules"
  fi
  if command -v go >/dev/null; then run "go-journal driver of the benchmarks" go_driver; fi
  if [ -n "$long" ]; then
    run "front end over io_uring" front_over_io_uring
    # Millions of flushes: optimised.
    run "translation layer, long" cargo test --quiet --release --locked -p steadfast-ftl
  fi
}

# Minutes of one processor. Before them what clients of servers need is installed, which some tests use, too: one installation
# at a time.
proofs() {
  local purpose
  if [ "$(id -u)" = 0 ]; then
    for purpose in disk nfs nfs-clients; do "$here/setup.sh" "$purpose" || return; done
  fi
  proofs/check ${long:+--all} --oracle "$TARGET/oracle" --without-smt
}
proofs=
# A checker of an earlier run must not stand in for one that was not built.
rm -f "$TARGET/oracle/oracle"
if [ "$(id -u)" = 0 ] || command -v coqc >/dev/null; then
  start_beside "$WORK/proofs" proofs
  proofs=$GROUP
fi
# Mounts of its own: some tests make mount namespaces, which would keep the volumes' mounts when they are cut off.
mounts_apart
# The long tier takes releases, which take a quarter of an hour to compile; else what it runs is built as the tests are.
if [ -n "$long" ]; then
  start_beside "$WORK/volumes" "${APART[@]}" "$here/test-volumes.sh" --long
  volumes=$GROUP
fi

run "format" cargo fmt --all --check
run "scripts" scripts_parse
run "lock files" lock_files
run "lints (clippy)" lints
run "documentation" documentation
run "engine of the obligations" engine
run "checker of store orders" store_orders
obligations=
if [ "$(id -u)" = 0 ] || python3 -c 'import venv' 2>/dev/null; then
  start_beside "$WORK/obligations" env CARGO_TARGET_DIR="$TARGET/smt" proofs/smt/run ${long:+--all}
  obligations=$GROUP
else
  say ""
  say "left out, because Python has no venv here and only root can install it: obligations on the source"
fi
run "tests, compiled" tests_compiled
run "packages" packages
run "book" book
if [ -n "$proofs" ]; then run "proofs" shown "$proofs" "$WORK/proofs"; fi
if [ -z "$long" ]; then
  run "product, as the tests are built" programs_of_tests
  start_beside "$WORK/volumes" "${APART[@]}" env STEADFAST="$TARGET/product/steadfast" "$here/test-volumes.sh"
  volumes=$GROUP
fi
start_beside "$WORK/explored" explored
explored=$GROUP
run "tests" tests_beside
# With the program that the tests made.
run "packages for Rust, Python and Go" env STEADFAST="$TARGET/debug/steadfast" "$here/crash-packages.sh"
if [ -n "$long" ]; then run "models against real file systems" "$here/crash-real.sh" --cuts 6000; fi
if [ -n "$long" ] && [ "$(id -u)" = 0 ]; then
  run "crash reports in a browser" env STEADFAST="$TARGET/debug/steadfast" "$here/crash-page.sh" --install
  run "programs whose syncs fail" env STEADFAST="$TARGET/debug/steadfast" "$here/crash-fsync.sh"
fi
if [ -n "$obligations" ]; then run "obligations on the source" shown "$obligations" "$WORK/obligations"; fi
shown "$explored" "$WORK/explored" || say "the steps beside the tests were cut short" | tee -a "$FAILED_STEPS"
shown "$volumes" "$WORK/volumes" || say "the steps about volumes were cut short" | tee -a "$FAILED_STEPS"

step "$((SECONDS - started)) s in all"
if [ ! -e "$FAILED_STEPS" ]; then
  say "FAILED: $WORK was removed during the run, with what the steps printed"
  exit 1
fi
if [ -s "$FAILED_STEPS" ]; then
  say "FAILED: $(paste -sd ';' "$FAILED_STEPS" | sed 's/;/; /g')"
  exit 1
fi
say "all steps passed"

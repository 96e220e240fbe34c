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

long=
while [ $# -gt 0 ]; do
  case $1 in
    --long) long=1; shift ;;
    -h|--help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) warn "unknown option '$1' (see --help)"; exit 2 ;;
  esac
done

# From 94,090 images on, every pair of operations is run.
crash_images=95000
flash_images=500
fsx_ops=6000
fsx_seeds=(1 2 3)
demo_rounds=2
nfs_rounds=2
disk_rounds=3
if [ -n "$long" ]; then
  crash_images=1000000
  flash_images=100000
  fsx_ops=1000000
  fsx_seeds=(1 2 3 4 5 6 7 8 9 10)
  demo_rounds=10
  nfs_rounds=100
  disk_rounds=60
  # Read by the tests that have a long form.
  export STEADFAST_LONG=1
fi

"$here/setup.sh" test
cd "$ROOT"
make_workdir "${TMPDIR:-/tmp}"
started=$SECONDS
: >"$WORK/failed"

# run NAME COMMAND…: one step, timed.
run() {
  local name=$1 begin=$SECONDS status=0
  shift
  step "$name"
  "$@" || status=$?
  if ((status == 0)); then
    say "--- $name: passed, $((SECONDS - begin)) s"
  else
    say "--- $name: FAILED (exit $status), $((SECONDS - begin)) s"
    say "$name" >>"$WORK/failed"
  fi
}
# What runs beside the steps shown here, in a group of its own, is shown when it is waited for.
shown() {
  local status=0
  wait "$1" || status=$?
  cat "$2"
  return "$status"
}

lints() {
  cargo clippy --quiet --workspace --all-targets --locked -- -D warnings &&
    cargo clippy --quiet -p steadfast-journal --features shuttle,trace --lib --test shuttle --locked -- -D warnings &&
    cargo clippy --quiet -p steadfast-ftl --no-default-features --locked -- -D warnings
}
tests() { cargo test --quiet --workspace --locked --no-fail-fast "$@"; }
documentation() { RUSTDOCFLAGS="-D warnings" cargo doc --quiet --workspace --no-deps --locked; }
# bench_driver NAME [cargo options…]: a program of bench/, which is a workspace of its own.
bench_driver() {
  local driver=$1 manifest=bench/$1/Cargo.toml target=$TARGET/bench-$1
  shift
  cargo fmt --manifest-path "$manifest" -- --check &&
    CARGO_TARGET_DIR=$target cargo clippy --quiet --manifest-path "$manifest" --all-targets --locked "$@" -- -D warnings || return
  # The drivers hold the whole stack, which takes long to compile once more.
  if [ "$driver" = load ] || [ -n "$long" ]; then
    CARGO_TARGET_DIR=$target cargo test --quiet --manifest-path "$manifest" --locked "$@"
  fi
}
# The engine that tries the obligations about the codecs and the translation layer is a workspace of its own, too.
obligations() {
  local manifest=proofs/smt/Cargo.toml target=$TARGET/smt
  cargo fmt --manifest-path "$manifest" -- --check &&
    CARGO_TARGET_DIR=$target cargo clippy --quiet --manifest-path "$manifest" --all-targets --locked -- -D warnings &&
    CARGO_TARGET_DIR=$target cargo test --quiet --manifest-path "$manifest" --locked
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
# The front end over io_uring is a feature: many more dependencies, for the long tier.
ring() {
  cargo clippy --quiet -p steadfast-cli -p steadfast-fuse --features io-uring --all-targets --locked -- -D warnings &&
    cargo test --quiet -p steadfast-fuse --features io-uring --locked
}
release() { cargo build --quiet --release --locked -p steadfast-cli -p steadfast-nbdkit; }
scripts_parse() {
  local file
  for file in scripts/*.sh bench/run bench/*.sh bench/peers/*.sh .ci/run proofs/check proofs/*/{build,code,mutants,run,test}; do
    [ -e "$file" ] || continue; bash -n "$file" || return; done
  # Where the checker is installed, it must have nothing to say.
  if command -v shellcheck >/dev/null; then shellcheck -x scripts/*.sh bench/run bench/*.sh bench/peers/*.sh .ci/run; fi
}

# Everything about a mounted volume, and crash exploration: little of it keeps two processors busy.
volumes() {
  run "release build" release
  [ -x "$STEADFAST" ] || return 0
  for contract in ordered metadata-prefix sync; do
    run "crash exploration of '$contract', $crash_images images" \
      "$STEADFAST" crash self --contract "$contract" --images "$crash_images"
    run "the same without a log on flash, $flash_images images" \
      "$STEADFAST" crash self --on flash --contract "$contract" --images "$flash_images"
  done

  local reason
  reason=$(fuse_reason)
  if [ -n "$reason" ]; then
    say ""
    say "left out, because $reason: power cut of a mounted volume, applications, pjdfstest, fsx, tree of 5,000 files"
    return 0
  fi
  run "power cut of a mounted volume" "$here/demo.sh" --rounds "$demo_rounds"
  if [ "$(id -u)" = 0 ]; then
    # PostgreSQL is installed for the long tier alone.
    if [ -n "$long" ]; then run "applications on volumes that lose power" "$here/apps.sh" --long
    else run "applications on volumes that lose power" "$here/apps.sh" --only cuts --cuts 8; fi
    run "pjdfstest" "$here/pjdfstest.sh" ${long:+--contract all}
  else
    say ""
    say "left out, because it needs root: applications on volumes that lose power, pjdfstest"
  fi
  run "fsx on every contract, ${#fsx_seeds[@]} seeds, $fsx_ops operations each" \
    "$here/fsx.sh" --contract all --ops "$fsx_ops" "${fsx_seeds[@]}"
  run "tree of 5,000 files" "$here/tree.sh"
}
# Schedules of the journal, the drivers of the benchmarks, and what the long tier adds.
explored() {
  if [ -n "$proofs" ]; then
    export STEADFAST_ORACLE=$TARGET/oracle/oracle
    run "journal under explored schedules, their traces checked" schedules
  else
    say ""
    say "left out, because Coq is missing and only root can install it: proofs, journal under explored schedules"
  fi
  run "load generator of the benchmarks" bench_driver load
  # The embedded stores beside it take minutes to compile.
  run "journal driver of the benchmarks" bench_driver journal ${long:+--features peers}
  run "scale driver of the benchmarks" bench_driver scale
  run "load client of the NFS benchmarks" bench_driver nfs
  run "flash driver of the benchmarks" bench_driver ftl
  if command -v go >/dev/null; then run "go-journal driver of the benchmarks" go_driver; fi
  if [ -n "$long" ]; then
    run "front end over io_uring" ring
    # Millions of flushes: optimised.
    run "translation layer, long" cargo test --quiet --release --locked -p steadfast-ftl
  fi
}
# Servers that die under their clients, each with a network of its own.
served() {
  local reason
  reason=$(fuse_reason)
  if [ -n "$reason" ] || [ "$(id -u)" != 0 ]; then
    say ""
    say "left out, because ${reason:-it needs root}: NFS clients of others, NFS server killed under load, served disks"
    return 0
  fi
  run "NFS clients of others" "$here/nfs-clients.sh" ${long:+--contract all}
  run "NFS server killed under load" "$here/nfs-crash.sh" --rounds "$nfs_rounds" --seconds 1
  # It installs clients that the tests use, too.
  run "served disks that lose power" "$here/disk.sh" --rounds "$disk_rounds" --seconds 1
  if [ -n "$long" ]; then
    run "a virtual machine's served disk" "$here/disk-guest.sh" --rounds 20
    run "a Linux kernel's NFS client" "$here/nfs-guest.sh"
  fi
}

# The proofs take minutes of one processor.
proofs=
if [ "$(id -u)" = 0 ] || command -v coqc >/dev/null; then
  start_group proofs/check ${long:+--all} --oracle "$TARGET/oracle" >"$WORK/proofs" 2>&1
  proofs=$GROUP
fi
start_group volumes >"$WORK/volumes" 2>&1
volumes=$GROUP

run "format" cargo fmt --all --check
run "scripts" scripts_parse
run "lints (clippy)" lints
run "documentation" documentation
run "tests, compiled" tests --no-run
if [ -n "$proofs" ]; then
  run "engine of the obligations" obligations
  run "proofs" shown "$proofs" "$WORK/proofs"
fi
start_group explored >"$WORK/explored" 2>&1
explored=$GROUP
# Some tests make mount namespaces, which would keep the volumes' mounts when they are cut off.
shown "$volumes" "$WORK/volumes" || say "the steps about volumes were cut short" | tee -a "$WORK/failed"
served
run "tests" tests
shown "$explored" "$WORK/explored" || say "the steps beside the tests were cut short" | tee -a "$WORK/failed"

step "$((SECONDS - started)) s in all"
if [ -s "$WORK/failed" ]; then
  say "FAILED: $(paste -sd ';' "$WORK/failed" | sed 's/;/; /g')"
  exit 1
fi
say "all steps passed"

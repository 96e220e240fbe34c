# What runs before a merge beyond the default tier, and what of it the default tier runs because its sources changed. Sourced by
# test.sh after test-lib.sh, never run.
# shellcheck shell=bash disable=SC2153,SC2154

# ---------------------------------------------------------------- what changed since the last --merge

# Groups of sources with a long check of their own. The committed file `proofs/merged` has a hash of each as it was when --merge
# passed last.
GROUPS_OF_SOURCES=(proofs obligations clients packages)
declare -A SOURCES=(
  [proofs]="proofs/coq proofs/order proofs/oracle proofs/check proofs/alloy proofs/pmcheck proofs/mutants"
  [obligations]="proofs/smt crates/journal/src crates/ftl/src"
  [clients]="crates/nfs/src scripts/nfs-clients scripts/nfs-clients.sh scripts/nfs-lib.sh"
  [packages]="packages crates/crash-test scripts/crash-packages.sh"
)
# source_hash GROUP: of the tracked files' names and contents.
source_hash() {
  # shellcheck disable=SC2086 # one path per word
  git ls-files -z -- ${SOURCES[$1]} | LC_ALL=C sort -z | xargs -0 -r sha256sum | sha256sum | cut -d ' ' -f 1
}
hash_at_merge() { awk -v group="$1" '$1 == group { print $2 }' proofs/merged 2>/dev/null; }

# A group of the default tier that passed in this tree need not run again in the rest.
passed_already() { [ "$(cat "$TARGET/tested/$1.passed" 2>/dev/null)" = "$(source_hash "$1")" ]; }
note_passed() { mkdir -p "$TARGET/tested" && source_hash "$1" >"$TARGET/tested/$1.passed"; }

# The groups whose sources changed, or of which nobody knows: each by itself, since few changes concern one.
changed_since_merge() {
  local group
  if [ "$tier" != default ]; then return 0; fi
  for group in "${GROUPS_OF_SOURCES[@]}"; do
    if [ "$(source_hash "$group")" = "$(hash_at_merge "$group")" ]; then
      left_out "$group" "their sources are those of the last --merge that passed"
    elif passed_already "$group"; then
      left_out "$group" "they passed in this tree with these sources"
    else
      run "$group, changed since the last --merge" "check_$group"
    fi
  done
}
note_merged() {
  local group
  {
    echo "# Hashes of the sources that --merge passed with last (scripts/test-merge.sh). Commit this file after such a run."
    for group in "${GROUPS_OF_SOURCES[@]}"; do printf '%s %s\n' "$group" "$(source_hash "$group")"; done
  } >"$WORK/merged"
  if ! cmp -s "$WORK/merged" proofs/merged; then
    cp "$WORK/merged" proofs/merged
    say "proofs/merged is new: commit it, so that the default tier knows what passed"
  fi
}

check_proofs() {
  rm -f "$TARGET/oracle/oracle"
  if [ "$(id -u)" != 0 ] && ! command -v coqc >/dev/null; then
    left_out "proofs" "Coq is missing and only root can install it"
    return 0
  fi
  limited 3600 proofs/check ${long:+--all} --oracle "$TARGET/oracle" --without-smt && note_passed proofs
}
check_obligations() {
  if [ "$(id -u)" != 0 ] && ! python3 -c 'import venv' 2>/dev/null; then
    left_out "obligations on the source" "Python has no venv here and only root can install it"
    return 0
  fi
  limited "$((long ? 36000 : 3600))" env CARGO_TARGET_DIR="$TARGET/smt" proofs/smt/run ${long:+--all} && note_passed obligations
}
check_clients() {
  local reason
  reason=$(fuse_reason)
  if [ -n "$reason" ] || [ "$(id -u)" != 0 ]; then
    left_out "NFS clients of others" "${reason:-it needs root}"
    return 0
  fi
  limited 1800 env STEADFAST="$TARGET/tested/steadfast" "$here/nfs-clients.sh" ${long:+--contract all} && note_passed clients
}
check_packages() {
  local reason
  reason=$(fuse_reason)
  if [ -n "$reason" ]; then left_out "packages for Rust, Python and Go" "$reason"; return 0; fi
  limited 1800 env STEADFAST="$TARGET/tested/steadfast" "$here/crash-packages.sh" && note_passed packages
}

# ---------------------------------------------------------------- the rest of --merge

EVERYTHING=(--workspace)
if [ -z "$long" ]; then for name in "${MEASURING[@]}"; do EVERYTHING+=(--exclude "$name"); done; fi

lints() {
  cargo clippy --quiet --workspace --all-targets --locked -- -D warnings &&
    cargo clippy --quiet -p steadfast-journal --features shuttle,trace --lib --test shuttle --locked -- -D warnings &&
    cargo clippy --quiet -p steadfast-ftl --no-default-features --locked -- -D warnings || return
  # The embedded stores beside the journal take minutes to compile.
  if [ -n "$long" ]; then cargo clippy --quiet -p steadfast-bench-journal --features peers --locked -- -D warnings; fi
}
documentation() { RUSTDOCFLAGS="-D warnings" cargo doc --quiet --workspace --no-deps --locked; }
# The engine that tries the obligations about the codecs and the translation layer is a workspace of its own, too.
engine() {
  local manifest=proofs/smt/Cargo.toml target=$TARGET/smt
  cargo fmt --manifest-path "$manifest" -- --check &&
    CARGO_TARGET_DIR=$target cargo clippy --quiet --manifest-path "$manifest" --all-targets --locked -- -D warnings &&
    CARGO_TARGET_DIR=$target limited 1800 cargo test --quiet --manifest-path "$manifest" --locked
}
# So is the checker of the order of stores.
store_orders() {
  local manifest=proofs/pmcheck/Cargo.toml target=$TARGET/pmcheck
  cargo fmt --manifest-path "$manifest" -- --check &&
    CARGO_TARGET_DIR=$target cargo clippy --quiet --manifest-path "$manifest" --all-targets --locked -- -D warnings
}
# The crates to publish, as far as they can be tried before their dependencies are published.
packages_to_publish() {
  local manifest names=()
  for manifest in crates/*/Cargo.toml; do
    grep -q '^publish = false' "$manifest" || names+=(-p "$(sed -n '0,/^name = /s/^name = "\(.*\)"/\1/p' "$manifest")")
  done
  cargo package --quiet --no-verify --locked --offline --allow-dirty "${names[@]}"
}
# The tests have checked that the book's summary and its links are right.
book() {
  if command -v mdbook >/dev/null; then mdbook build --dest-dir "$WORK/book"
  else left_out "the book" "mdbook is not installed"; fi
}
# go-journal comes from the module proxy: without it, only the form is checked.
go_driver() {
  local unformatted
  unformatted=$(gofmt -l bench/gojournal) || return
  if [ -n "$unformatted" ]; then warn "gofmt would change: $unformatted"; return 1; fi
  if ! (cd bench/gojournal && limited 300 go mod download) 2>/dev/null; then
    left_out "go vet of the go-journal driver" "go-journal cannot be had from the module proxy"
    return 0
  fi
  (cd bench/gojournal && go mod verify && go vet .)
}
# The command with each feature alone and with each pair: it compiles, and the compiler has nothing to say.
features() {
  local all=() i j
  mapfile -t all < <(default_features | sed -n 's/^steadfast-cli\///p')
  feature_set check --tests || return
  for ((i = 0; i < ${#all[@]}; i++)); do
    feature_set check --tests --features "${all[i]}" || return
    for ((j = i + 1; j < ${#all[@]}; j++)); do feature_set check --features "${all[i]},${all[j]}" || return; done
  done
}
feature_set() {
  without_warnings cargo "$1" --quiet --locked -p steadfast-cli --no-default-features "${@:2}" ||
    { warn "with '${*:2}'"; return 1; }
}
# Members of bench/, documentation, and stores over HTTP: what the default tier leaves out.
rest_compiled() { without_warnings cargo test --quiet --locked --no-run "${EVERYTHING[@]}"; }
rest_of_tests() {
  local status=0
  BESIDE_ONLY='bench/*|crates/store' tests_beside "${EVERYTHING[@]}" --lib --bins --tests --examples || status=1
  BESIDE_ONLY=crates/cli tests_beside "${EVERYTHING[@]}" --lib --bins --tests --examples -- cloud || status=1
  tests_beside "${EVERYTHING[@]}" --doc || status=1
  return "$status"
}
# The checkers of traces come from the proofs.
schedules() {
  limited "$((long ? 36000 : 1800))" cargo test --quiet -p steadfast-journal --features shuttle,trace --test shuttle --locked -- --nocapture
}

# Schedules of the journal, and what the long tier adds.
explored() {
  export STEADFAST_ORACLE=$TARGET/oracle/oracle
  if [ -x "$STEADFAST_ORACLE" ]; then run "journal under explored schedules, their traces checked" schedules
  else left_out "journal under explored schedules" "the checkers of traces are not built"; fi
  if command -v go >/dev/null; then run "go-journal driver of the benchmarks" go_driver; fi
  # Millions of flushes: optimised.
  if [ -n "$long" ]; then run "translation layer, long" cargo test --quiet --release --locked -p steadfast-ftl; fi
}

# Minutes of one processor. Before them what clients of servers need is installed, which some tests use, too: one installation
# at a time.
installed_and_proved() {
  local purpose
  if [ "$(id -u)" = 0 ]; then
    for purpose in disk nfs nfs-clients; do "$here/setup.sh" "$purpose" || return; done
  fi
  if [ -x "$TARGET/oracle/oracle" ] && passed_already proofs; then
    say "the proofs passed already in this tree"
    return 0
  fi
  check_proofs
}

rest_of_merge() {
  local proofs volumes explored obligations
  start_beside "$WORK/proofs" installed_and_proved
  proofs=$GROUP
  # Mounts of its own: some tests make mount namespaces, which would keep the volumes' mounts when they are cut off.
  mounts_apart
  # The long tier takes releases, which take a quarter of an hour to compile; else what it runs is built as the tests are.
  if [ -n "$long" ]; then
    start_beside "$WORK/volumes" "${APART[@]}" "$here/test-volumes.sh" --long
    volumes=$GROUP
  fi
  run "lints (clippy)" lints
  run "engine of the obligations" engine
  run "checker of store orders" store_orders
  start_beside "$WORK/obligations" check_obligations
  obligations=$GROUP
  run "documentation" documentation
  run "rest of the tests, compiled" rest_compiled
  run "command, kept" keep_program
  run "packages to publish" packages_to_publish
  run "book" book
  run "proofs" shown "$proofs" "$WORK/proofs"
  if [ -z "$long" ]; then
    run "product, as the tests are built" programs_of_tests
    start_beside "$WORK/volumes" "${APART[@]}" env STEADFAST="$TARGET/product/steadfast" "$here/test-volumes.sh"
    volumes=$GROUP
  fi
  start_beside "$WORK/explored" explored
  explored=$GROUP
  run "rest of the tests" rest_of_tests
  run "packages for Rust, Python and Go" check_packages
  if [ -n "$long" ]; then run "models against real file systems" "$here/crash-real.sh" --cuts 6000; fi
  if [ -n "$long" ] && [ "$(id -u)" = 0 ]; then
    run "crash reports in a browser" env STEADFAST="$TARGET/tested/steadfast" "$here/crash-page.sh" --install
    run "programs whose syncs fail" env STEADFAST="$TARGET/tested/steadfast" "$here/crash-fsync.sh"
  fi
  run "features of the command, alone and in pairs" features
  run "obligations on the source" shown "$obligations" "$WORK/obligations"
  shown "$explored" "$WORK/explored" || say "the steps beside the tests were cut short" | tee -a "$FAILED_STEPS"
  shown "$volumes" "$WORK/volumes" || say "the steps about volumes were cut short" | tee -a "$FAILED_STEPS"
}

# How the tiers of tests build, run and count, for test.sh and test-merge.sh. Sourced after lib.sh, never run.
# shellcheck shell=bash disable=SC2034,SC2154

# A run of tests compiles everything once and is looked at in no debugger. Two units for each crate take a quarter less
# processor time than sixteen.
export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0} CARGO_PROFILE_DEV_DEBUG=${CARGO_PROFILE_DEV_DEBUG:-0}
export CARGO_PROFILE_DEV_CODEGEN_UNITS=${CARGO_PROFILE_DEV_CODEGEN_UNITS:-2}

# Members whose tests measure, and wait for servers: what they find depends on how busy the machine is.
MEASURING=(steadfast-bench-journal steadfast-bench-nfs)
# All members of bench/.
BENCHES=()
for manifest in "$ROOT"/bench/*/Cargo.toml; do
  BENCHES+=("$(sed -n '0,/^name = /s/^name = "\(.*\)"/\1/p' "$manifest")")
done

# default_features: those of all crates, for `--features`: cargo switches default features off for all members or for none.
default_features() {
  local manifest name feature
  for manifest in "$ROOT"/crates/*/Cargo.toml; do
    name=$(sed -n '0,/^name = /s/^name = "\(.*\)"/\1/p' "$manifest")
    while read -r feature; do
      # A dependency's switch cannot be named from outside.
      case $feature in ''|*/*|dep:*) ;; *) printf '%s\n' "$name/$feature" ;; esac
    done < <(awk '/^default = \[/ { on = 1 } on { print } on && /\]/ { exit }' "$manifest" | grep -o '"[^"]*"' | tr -d '"')
  done
}

# What the default tier selects: all but bench/, documentation and HTTP.
DEFAULT_SELECTION=(--workspace --lib --bins --tests --examples --no-default-features)
# Of bench/, only the checks of the client that judges NFS servers.
for name in "${BENCHES[@]}"; do
  if [ "$name" != steadfast-bench-nfs ]; then DEFAULT_SELECTION+=(--exclude "$name"); fi
done
DEFAULT_SELECTION+=(--features "$(default_features | grep -vx 'steadfast-cli/cloud' | paste -sd ,)")

# The seed of explorations: each commit tries others. A change that is not committed has that of its parent.
if [ -z "${STEADFAST_SEED:-}" ]; then
  STEADFAST_SEED=$((16#$(git -C "$ROOT" rev-parse --short=7 HEAD 2>/dev/null || echo 1)))
fi
export STEADFAST_SEED

# Notes of tests: what was skipped, and which planted faults were found (lab/testkit/src/notes.rs).
export STEADFAST_NOTES=${STEADFAST_NOTES:-$WORK/notes}

# left_out WHAT WHY: said at once, and again at the end.
left_out() {
  say ""
  say "left out, because $2: $1"
  printf '%s (%s)\n' "$1" "$2" >>"$WORK/left-out"
}

# limited SECONDS COMMAND…: ends a command that hangs. No step needs a tenth of its limit.
limited() { timeout --kill-after=30 "$@"; }

# without_warnings COMMAND…: fails if the compiler warns.
without_warnings() {
  local status=0 log
  log=$(mktemp "$WORK/warnings.XXXXXX")
  "$@" 2>"$log" || status=$?
  cat "$log" >&2
  if ((status == 0)) && grep -q '^warning' "$log"; then
    warn "the compiler warns"
    status=1
  fi
  rm -f "$log"
  return "$status"
}

# tests_beside ARGUMENTS…: cargo test, with as many programs at a time as there are processors: many of them wait. In the long tier,
# where some measure, one.
tests_beside() {
  local status=0 count runner i slots
  if [ -n "$long" ]; then count=1; else count=$(nproc); fi
  runner=CARGO_TARGET_$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')_RUNNER
  export BESIDE
  BESIDE=$(mktemp -d "$WORK/beside.XXXXXX") && mkfifo "$BESIDE/slots" || return
  exec {slots}<>"$BESIDE/slots"
  for ((i = 0; i < count; i++)); do printf . >&"$slots"; done
  env "$runner=$here/beside.sh" STEADFAST="$TARGET/tested/steadfast" cargo test --quiet --locked --no-fail-fast "$@" {slots}>&- || status=$?
  # All have ended when all slots are there.
  for ((i = 0; i < count; i++)); do read -r -n 1 -u "$slots"; done
  exec {slots}>&-
  cat "$BESIDE"/counted >>"$WORK/counted" 2>/dev/null
  if [ -e "$BESIDE/failed" ]; then
    warn "tests failed in $(paste -sd ' ' "$BESIDE/failed")"
    status=1
  fi
  return "$status"
}

# Numbers of tests, and what was skipped and left out.
summary() {
  local passed failed ignored skipped
  read -r passed failed ignored < <(
    sed -n 's/^test result: .* \([0-9]*\) passed; \([0-9]*\) failed; \([0-9]*\) ignored;.*/\1 \2 \3/p' "$WORK/counted" 2>/dev/null |
      awk '{ p += $1; f += $2; i += $3 } END { print p + 0, f + 0, i + 0 }'
  )
  touch "$STEADFAST_NOTES"
  # One test may note several parts that it skips.
  skipped=$(awk -F '\t' '$1 == "skipped" { print $2 }' "$STEADFAST_NOTES" | sort -u | wc -l)
  say ""
  say "tests: $((passed - skipped)) passed, $skipped skipped in whole or in part, $failed failed, $ignored ignored (they measure)"
  if [ "$skipped" != 0 ]; then
    awk -F '\t' '$1 == "skipped" { n[$3]++ } END { for (why in n) printf "  %4d skipped: %s\n", n[why], why }' "$STEADFAST_NOTES" | sort -rn
  fi
  say "planted faults found: $(awk -F '\t' '$1 == "caught" { print $3 }' "$STEADFAST_NOTES" | sort -u | wc -l)"
  if [ -s "$WORK/left-out" ]; then
    say "left out: $(wc -l <"$WORK/left-out")"
    sed 's/^/  /' "$WORK/left-out"
  fi
}

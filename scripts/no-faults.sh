#!/usr/bin/env bash
# Shows that programs cannot plant faults: they are built without the features for it, and the faults' names are not in them.
#
#   scripts/no-faults.sh [--expect] PROGRAM…
#
#   --expect   the programs are built for tests: the check must find names in each, or it is worth nothing
#
# Exits 0, 1 (a fault can be planted; or with --expect, the check finds none) or 2 (usage).
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"

expect=
case ${1:-} in
  -h|--help) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
  --expect) expect=1; shift ;;
  -*) warn "unknown option '$1' (see --help)"; exit 2 ;;
esac
if [ $# = 0 ]; then warn "no program is named (see --help)"; exit 2; fi
cd "$ROOT"

# Switches of the journal, the file system and the translation layer; faults of the crash exploration, of volumes on object stores
# and of copies; those of served disks, by the names that its options take.
names=$(
  {
    awk '/^ *(steadfast_faults::)?planted_faults! *\{/ { on = 1 } on && /^ *pub [a-z_]+: bool,/ { sub(":", "", $2); print $2 } /^}/ { on = 0 }' \
      crates/journal/src/lib.rs crates/fs/src/*.rs crates/ftl/src/*.rs
    awk '/^pub(\(super\))? enum (Mutation|DeviceFault|Fault) \{$/ { on = 1 } on && /^    [A-Z][A-Za-z]+,$/ { sub(",", "", $1); print $1 } /^}/ { on = 0 }' \
      crates/crash/src/record.rs crates/store/src/fault.rs crates/store/src/protocol/fault.rs crates/cli/src/volume/copy/tests.rs
    awk -F'"' '/ Fault::[A-Za-z]+ => "/ { print $2 }' crates/disk/src/trial.rs
  } | sort -u
)
count=$(grep -c . <<<"$names")
# Fewer were there when this was written: the sources are no longer read as they should be.
((count >= 150)) || die "only $count names of faults are found in the sources"

make_workdir "${TMPDIR:-/tmp}"
status=0
for program in "$@"; do
  [ -r "$program" ] || die "there is no $program"
  # Without symbols: functions have names that end as faults do.
  strip -o "$WORK/stripped" "$program" || die "$program cannot be stripped of its symbols"
  found=$(grep -aoF -f <(printf '%s\n' "$names") "$WORK/stripped" | sort -u | paste -sd ' ') || true
  if [ -n "$expect" ] && [ -z "$found" ]; then
    warn "$program is built for tests, and no fault's name is found in it"
    status=1
  elif [ -z "$expect" ] && [ -n "$found" ]; then
    warn "$program has names of planted faults: $found"
    status=1
  fi
done
if [ -n "$expect" ]; then exit "$status"; fi

# Features that a release never has.
for package in steadfast-cli steadfast-nbdkit; do
  enabled=$(cargo tree --quiet --locked -p "$package" -e no-dev --prefix none -f '{p}: {f}' | sort -u |
    grep -E '^steadfast.*: .*\b(faults|trial|fuzz|trace|shuttle)\b' || true)
  if [ -n "$enabled" ]; then
    warn "$package is built with $(paste -sd ',' <<<"$enabled")"
    status=1
  fi
done
((status == 0)) && say "    none of $count faults is in $*"
exit "$status"

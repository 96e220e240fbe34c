#!/usr/bin/env bash
# The quickstarts of the packages for Rust, Python and Go: each finds a planted bug, passes its repaired twin, and cuts the power of a
# live mount.
#
#   scripts/crash-packages.sh
#
# Exits 0, 1 (one failed) or 3 (something needed is missing). Says in one line which languages it leaves out.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"

case ${1:-} in
  '') ;;
  -h|--help) sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
  *) warn "unknown option '$1' (see --help)"; exit 2 ;;
esac
reason=$(fuse_reason)
[ -z "$reason" ] || unable "cannot mount here: $reason"

cd "$ROOT"
if [ -z "$GIVEN_STEADFAST" ]; then
  cargo build --quiet --locked -p steadfast-cli --bin steadfast
  STEADFAST=$TARGET/debug/steadfast
fi
export STEADFAST
make_workdir "${TMPDIR:-/tmp}"
failed=

say "Rust"
# With the features of the whole workspace, as the tests have it: nothing is compiled again.
if cargo test --quiet --locked --workspace --test quickstart; then note_caught quickstart.rust; else failed="$failed Rust"; fi

if python3 -c 'import pytest' 2>/dev/null; then
  say "Python"
  # Not installed: found by its path, the plugin by its name.
  if PYTHONPATH=$ROOT/packages/python PYTHONDONTWRITEBYTECODE=1 python3 -m pytest -q -p no:cacheprovider -p steadfast_crash.plugin \
    "$ROOT/packages/python/tests"; then note_caught quickstart.python; else failed="$failed Python"; fi
else
  say "left out, because Python has no pytest here: the Python package"
fi

if command -v go >/dev/null; then
  say "Go"
  if (cd packages/go && GOFLAGS=-mod=mod GOCACHE=$WORK/go go test -count=1 ./...); then note_caught quickstart.go
  else failed="$failed Go"; fi
else
  say "left out, because there is no Go here: the Go package"
fi

[ -z "$failed" ] || { say "FAILED:$failed"; exit 1; }

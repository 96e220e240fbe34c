#!/usr/bin/env bash
# SQLite, LevelDB, Redis and PostgreSQL on a mount where one fdatasync fails: what they tell, and what is left after a power cut.
# docs/crash-live.md has the table.
#
#   scripts/crash-fsync.sh [PROGRAM…]
#
#   PROGRAM  sqlite, sqlite-wal, leveldb, redis or postgres [default: all that are installed]
#
# The first, the second and the third fdatasync after the fault is planted fails with EIO, in a run of its own. Prints a row for each
# program and for what happens to the data then: dropped, as Linux does, or kept for the next sync. Needs root (PostgreSQL) and FUSE.
# Exits 0, or 1 if something acknowledged is lost or a program does not open its files.
# shellcheck disable=SC2016 # commands for other shells
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"

case ${1:-} in
  -h|--help) sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
  -*) warn "unknown option '$1' (see --help)"; exit 2 ;;
esac
reason=$(fuse_reason)
[ -z "$reason" ] || unable "cannot mount here: $reason"
python=/usr/bin/python3
declare -A needs=(
  [sqlite]="$python -c 'import sqlite3'" [sqlite-wal]="$python -c 'import sqlite3'" [leveldb]="$python -c 'import plyvel'"
  [redis]='redis-server --version' [postgres]='ls /usr/lib/postgresql/*/bin/initdb && [ "$(id -u)" = 0 ]'
)
wanted=("$@")
[ $# -gt 0 ] || wanted=(sqlite sqlite-wal leveldb redis postgres)
build_release
make_workdir "${TMPDIR:-/tmp}"
# PostgreSQL runs as another user.
chmod 755 "$WORK"
failed=0
say '| program | data after the failure | what the program tells | after the cut | acknowledged and lost |'
say '|---|---|---|---|---|'
for name in "${wanted[@]}"; do
  [ -n "${needs[$name]:-}" ] || { warn "there is no program '$name'"; exit 2; }
  if ! sh -c "${needs[$name]}" >/dev/null 2>&1; then
    say "$name: left out, because it is not installed"
    continue
  fi
  "$python" "$here/crash-programs/fsync.py" "$STEADFAST" "$WORK" "$name" || failed=1
done
exit "$failed"

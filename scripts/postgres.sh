#!/usr/bin/env bash
# PostgreSQL on a mounted volume that loses power in the middle of pgbench: recovered, checked, and checked again by amcheck.
#
#   scripts/postgres.sh [--long] [--seconds S] [--contract NAME|all | --no-fsync] [--keep]
#
#   --long           a minute of pgbench before each cut, each contract (as --seconds 60 --contract all)
#   --seconds S      so long (default 4)
#   --contract NAME  default ordered
#   --no-fsync       PostgreSQL with fsync=off under 'ordered': what came last may be lost, all else holds
#   --keep           keep the working directory for inspection
#
# Two cuts for each contract: kill -9 of the server, and the power of the disk below with all that was not flushed; PostgreSQL
# dies at the same moment. Then: every acknowledged transaction is there, the balances agree, amcheck and the page checksums
# have nothing to say, fsck is clean. Under 'sync', PostgreSQL itself runs with fsync=off: every call is durable there.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"

seconds=4
contract=ordered
fsync=on
while [ $# -gt 0 ]; do
  case $1 in
    --long) seconds=60; contract=all; shift ;;
    --seconds) seconds=${2:?"--seconds needs a number"}; shift 2 ;;
    --no-fsync) fsync=off; shift ;;
    --contract) contract=${2:?"--contract needs a name"}; shift 2 ;;
    --keep) export KEEP_WORK=1; shift ;;
    -h|--help) sed -n '2,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) warn "unknown option '$1' (see --help)"; exit 2 ;;
  esac
done
if [ "$fsync" = off ] && [ "$contract" != ordered ]; then
  warn "--no-fsync: only 'ordered' keeps a database whole without fsync"
  exit 2
fi
for_contracts "$contract" "${BASH_SOURCE[0]}" --seconds "$seconds" ${KEEP_WORK:+--keep} --contract
[ "$(id -u)" = 0 ] || unable "needs root: PostgreSQL runs as another user, and the power cut needs a loop device"

"$here/setup.sh" postgres
BIN=$(find /usr/lib/postgresql/*/bin -name initdb -printf '%h\n' 2>/dev/null | sort -V | tail -n 1)
[ -n "$BIN" ] || unable "PostgreSQL's initdb is not in /usr/lib/postgresql"
reason=$(fuse_reason)
[ -z "$reason" ] || unable "cannot mount here: $reason"
build_release

make_workdir "$(fast_base 2000)"
chmod 755 "$WORK"
HOST=$WORK/host
IMAGE=$HOST/volume.img
MNT=$WORK/mnt
DATA=$MNT/data
RUN=$WORK/run # socket, logs
ACKED=$RUN/acked

# PostgreSQL does not run as root.
USER_IDS=$(id -u nobody):$(id -g nobody)
as_user() { setpriv --reuid "${USER_IDS%:*}" --regid "${USER_IDS#*:}" --clear-groups env HOME="$RUN" "$@"; }
sql() { as_user "$BIN/psql" -h "$RUN" -d postgres -X -A -t -q -v ON_ERROR_STOP=1 "$@"; }

serve() { sf_serve "$IMAGE" "$MNT" "$WORK/server.log" -o allow_other,buffered; }

start_postgres() {
  as_user timeout 900 "$BIN/pg_ctl" -D "$DATA" -l "$RUN/postgres.log" -w -t 800 start >/dev/null || {
    tail -n 20 "$RUN/postgres.log"
    die "PostgreSQL does not start"
  }
  POSTMASTER=$(head -n 1 "$DATA/postmaster.pid")
  SEGMENT=$(awk 'NR == 7 { print $2 }' "$DATA/postmaster.pid")
  on_exit kill_postgres "$POSTMASTER" "$SEGMENT"
}
stop_postgres() { as_user timeout 900 "$BIN/pg_ctl" -D "$DATA" -m fast -w stop >/dev/null || die "PostgreSQL does not stop"; }

# The postmaster, which $1 was, and its children, at once and without a word; and the segment of shared memory that is left.
kill_postgres() {
  [ "$(readlink "/proc/$1/exe" 2>/dev/null)" = "$(readlink -f "$BIN/postgres")" ] || return 0
  kill -STOP "$1" 2>/dev/null || true
  # shellcheck disable=SC2046 # one number per word
  kill -KILL $(ps -o pid= --ppid "$1") "$1" 2>/dev/null || true
  # Dead, if perhaps not buried yet.
  local i
  for ((i = 0; i < 100; i++)); do
    case $(ps -o stat= -p "$1") in
      ''|Z*)
        ipcrm -m "$2" 2>/dev/null || true
        return 0
        ;;
    esac
    sleep 0.1
  done
  warn "PostgreSQL (process $1) does not die"
}

# Numbered transactions; a number counts as acknowledged when psql has said so after COMMIT.
acker() {
  local last
  last=$(tail -n 1 "$ACKED")
  awk -v n="$last" 'BEGIN { for (n++; ; n++) printf "INSERT INTO acked VALUES (%d);\n\\echo %d\n", n, n }' |
    stdbuf -oL setpriv --reuid "${USER_IDS%:*}" --regid "${USER_IDS#*:}" --clear-groups \
      "$BIN/psql" -h "$RUN" -d postgres -X -q -v ON_ERROR_STOP=1 2>/dev/null >>"$ACKED"
}
load() { as_user "$BIN/pgbench" -h "$RUN" -n -c 4 -T $((seconds + 30)) postgres >"$RUN/pgbench.log" 2>&1; }

FAILED=0
bad() { say "WRONG $*"; FAILED=1; }

check() {
  local acked last count sums
  acked=$(tail -n 1 "$ACKED")
  IFS='|' read -r last count < <(sql -c "SELECT coalesce(max(n), 0), count(*) FROM acked")
  if ((last != count)) || { [ "$durable" ] && ((last < ${acked:-0})); }; then
    bad "${acked:-0} transactions were acknowledged, $count are there, the last is number $last"
  fi
  sums=$(sql -c "SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers),
    (SELECT sum(bbalance) FROM pgbench_branches), (SELECT coalesce(sum(delta), 0) FROM pgbench_history)")
  if [ "$(tr '|' '\n' <<<"$sums" | sort -u | wc -l)" != 1 ]; then bad "the sums of pgbench differ: $sums"; fi
  if ! as_user "$BIN/pg_amcheck" -h "$RUN" -d postgres --heapallindexed >"$RUN/amcheck.log" 2>&1; then
    bad "pg_amcheck:"
    head -n 10 "$RUN/amcheck.log"
  fi
  history=$(sql -c "SELECT count(*) FROM pgbench_history")
  say "postgres: $contract, after $1: ${acked:-0} transactions acknowledged, $last there; $history of pgbench; sums agree"
  echo "$last" >>"$ACKED"
}

power_disk "$HOST" 1000M
write_image "$IMAGE" 768
sf_mkfs "$IMAGE" 768M "$contract"
serve
mkdir "$RUN" "$DATA"
chown "$USER_IDS" "$RUN" "$DATA"
chmod 700 "$DATA"
: >"$ACKED"
begin=$(now_ms)
as_user "$BIN/initdb" -D "$DATA" -k -A trust -U nobody >"$RUN/initdb.log" 2>&1 || {
  tail -n 5 "$RUN/initdb.log"
  die "initdb failed"
}
# Durable is what was acknowledged, unless PostgreSQL was kept from asking for it where it must.
durable=$fsync
if [ "$fsync" = off ]; then durable=; fi
if [ "$contract" = sync ]; then fsync=off; fi
# Small limits: checkpoints and recycled log segments happen all the time. Shared memory in files of the volume, so that a
# A killed PostgreSQL leaves none.
as_user tee -a "$DATA/postgresql.conf" >/dev/null <<END
listen_addresses = ''
unix_socket_directories = '$RUN'
fsync = $fsync
shared_buffers = 32MB
dynamic_shared_memory_type = mmap
max_wal_size = 48MB
min_wal_size = 32MB
checkpoint_timeout = 30s
autovacuum_naptime = 5s
END
start_postgres
as_user "$BIN/pgbench" -h "$RUN" -q -i -s 3 postgres >"$RUN/init.log" 2>&1 || { tail -n 5 "$RUN/init.log"; die "pgbench -i failed"; }
sql -c "CREATE EXTENSION amcheck" -c "CREATE TABLE acked (n integer PRIMARY KEY)"
say "postgres: $contract: initdb and pgbench -i took $(human_seconds $(($(now_ms) - begin)))"

kinds=(kill)
if [ -n "$POWER" ]; then kinds+=(power); fi
for kind in "${kinds[@]}"; do
  start_group acker
  acking=$GROUP
  start_group load
  loading=$GROUP
  sleep "$seconds"
  await test -s "$ACKED" || die "no transaction was acknowledged: $(tail -n 3 "$RUN/postgres.log")"
  if [ "$kind" = power ]; then
    drop_unflushed_writes "$HOST" || die "could not cut the power of $HOST"
    sleep 0.1
  fi
  kill -KILL "$SERVER"
  wait "$SERVER" 2>/dev/null || true
  stop_group "$acking"
  stop_group "$loading"
  kill_postgres "$POSTMASTER" "$SEGMENT"
  detach "$MNT"
  if [ "$kind" = power ]; then power_again "$HOST"; fi
  serve
  # Their process is gone, and its number may be another's.
  rm -f "$DATA/postmaster.pid" "$RUN"/.s.PGSQL.*
  start_postgres
  case $kind in
    kill) check "kill -9" ;;
    power) check "a power cut" ;;
  esac
done
[ -n "$POWER" ] || say "postgres: the loss of unflushed writes was not shown: that needs root and a loop device"

stop_postgres
as_user "$BIN/pg_checksums" --check -D "$DATA" >"$RUN/checksums.log" 2>&1 || bad "pg_checksums: $(tail -n 3 "$RUN/checksums.log")"
sf_umount "$MNT"
await_process "$SERVER" 10
sf_fsck "$IMAGE" >/dev/null
if ((FAILED)); then exit 1; fi
say "postgres: $contract: amcheck, checksums and fsck clean"

#!/usr/bin/env bash
# Applications on mounted volumes that lose power again and again: SQLite (rollback journal and WAL) and git at the same
# time on a volume of each contract, then PostgreSQL.
#
#   scripts/apps.sh [--long] [--cuts N] [--only cuts|postgres] [--keep]
#
#   --long    200 cuts instead of 20; PostgreSQL for a minute before each cut, under each contract
#   --cuts N  number of cuts
#   --only W  only SQLite and git ('cuts'), or only PostgreSQL ('postgres')
#   --keep    keep the working directory for inspection
#
# Checked for each contract, after every cut:
#
#   ordered          SQLite with synchronous=EXTRA: integrity, every acknowledged transaction. With synchronous=OFF: integrity,
#                    and a prefix of the transactions. git with core.fsync=none: 'git fsck --strict', every commit that
#                    'steadfast sync' returned after.
#   metadata-prefix  SQLite with synchronous=EXTRA, git with core.fsync=all: the same.
#   relaxed          SQLite with synchronous=EXTRA, git with core.fsync=none: the same.
#   sync             SQLite with synchronous=OFF, git with core.fsync=none: integrity, and everything that was acknowledged.
#
# Every other cut kills the server (kill -9), every other one takes the power of the disk below, with all that was not flushed.
# Exits 0, 1 (something was lost or is broken) or 3 (something needed is missing).
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"

cuts=20
only=
long=
while [ $# -gt 0 ]; do
  case $1 in
    --long) long=1; cuts=200; shift ;;
    --cuts) cuts=${2:?"--cuts needs a number"}; shift 2 ;;
    --only) only=${2:?"--only needs 'cuts' or 'postgres'"}; shift 2 ;;
    --keep) export KEEP_WORK=1; shift ;;
    -h|--help) sed -n '2,23s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) warn "unknown option '$1' (see --help)"; exit 2 ;;
  esac
done
case $only in
  ''|cuts|postgres) ;;
  *) warn "--only takes 'cuts' or 'postgres', not '$only'"; exit 2 ;;
esac

"$here/setup.sh" demo
reason=$(fuse_reason)
[ -z "$reason" ] || unable "cannot mount here: $reason"
build_release
export STEADFAST

postgres() {
  "$here/postgres.sh" ${long:+--long} ${KEEP_WORK:+--keep} || return
  if [ -n "$long" ]; then "$here/postgres.sh" --seconds 60 --no-fsync ${KEEP_WORK:+--keep}; fi
}
if [ "$only" = postgres ]; then postgres; exit; fi

make_workdir "$(fast_base 2500)"
HOST=$WORK/host
export GIT_CONFIG_GLOBAL=$WORK/gitconfig GIT_CONFIG_NOSYSTEM=1
for setting in user.name=Steadfast user.email=apps@localhost safe.directory='*' init.defaultBranch=main gc.auto=0 \
  advice.detachedHead=false; do
  git config --file "$GIT_CONFIG_GLOBAL" "${setting%%=*}" "${setting#*=}"
done

mnt() { echo "$WORK/mnt/$1"; }
acks() { echo "$WORK/acks/$1.$2"; }

declare -A SERVERS
serve_all() {
  local contract
  for contract in "${CONTRACTS[@]}"; do
    if [ -s "$WORK/$contract.log" ]; then cat "$WORK/$contract.log" >>"$WORK/$contract.before"; fi
    sf_serve "$HOST/$contract.img" "$(mnt "$contract")" "$WORK/$contract.log" -o buffered
    SERVERS[$contract]=$SERVER
  done
}

# ---------------------------------------------------------------- the work

# The databases of a volume: name, journal mode, synchronous, and whether acknowledged means durable.
databases() {
  case $1 in
    ordered) printf '%s\n' "wal WAL EXTRA durable" "rollback DELETE EXTRA durable" "loose-wal WAL OFF prefix" \
      "loose-rollback DELETE OFF prefix" ;;
    metadata-prefix|relaxed) printf '%s\n' "wal WAL EXTRA durable" "rollback DELETE EXTRA durable" ;;
    sync) printf '%s\n' "wal WAL OFF durable" "rollback DELETE OFF durable" ;;
  esac
}

# sqlite_writer CONTRACT NAME SYNCHRONOUS: goes on after the last transaction that is there. Checkpoints of the WAL are
# frequent, so that cuts hit them.
sqlite_writer() {
  local ack last
  # A server that dies takes the memory away that the WAL's index is mapped to: SQLite dies with it.
  exec 2>/dev/null
  ack=$(acks "$1" "$2")
  last=$(tail -n 1 "$ack")
  transactions "${last:-0}" |
    stdbuf -oL sqlite3 -bail -cmd "PRAGMA synchronous = $3" -cmd "PRAGMA wal_autocheckpoint = 20" \
      "$(mnt "$1")/$2.db" | sed -u 1d >>"$ack" # the first line is the pragma's
}

git_fsync() { if [ "$1" = metadata-prefix ]; then echo all; else echo none; fi; }
# Durable when it returns: under 'sync', everything is.
settle() { [ "$1" = sync ] || "$STEADFAST" sync "$(mnt "$1")" >/dev/null; }

# Commits, packs and clones.
git_writer() {
  local contract=$1 ack i hash git
  ack=$(acks "$contract" git)
  git=(git -c "core.fsync=$(git_fsync "$contract")")
  cd "$(mnt "$contract")/project" 2>/dev/null || return
  for ((i = $(wc -l <"$ack") + 1; ; i++)); do
    mkdir -p "src/$((i % 5))" && echo "change $i" >"src/$((i % 5))/file-$((i % 40))" && echo "change $i" >>log &&
      "${git[@]}" add -A && "${git[@]}" commit -qm "Change $i" && hash=$("${git[@]}" rev-parse HEAD) &&
      settle "$contract" && echo "$hash" >>"$ack" || return
    if ((i % 8 == 3)); then "${git[@]}" repack -adq || return; fi
    if ((i % 8 == 6)); then
      # Where the server dies while it reads the branch, git warns that there is none to check out, and succeeds.
      "${git[@]}" clone -q --no-local . "../clone-$i" && settle "$contract" && [ -s "../clone-$i/log" ] &&
        echo "clone-$i" >>"$(acks "$contract" clones)" || return
    fi
  done 2>/dev/null
}

prepare() {
  local contract=$1 dir name mode rest
  dir=$(mnt "$contract")
  while read -r name mode rest; do
    create_database "$dir/$name.db" "$mode"
    : >"$(acks "$contract" "$name")"
  done < <(databases "$contract")
  git init -q "$dir/project"
  seq 2000 >"$dir/project/log"
  git -C "$dir/project" add -A
  git -C "$dir/project" commit -qm "The beginning"
  : >"$(acks "$contract" git)"
  : >"$(acks "$contract" clones)"
  "$STEADFAST" sync "$dir" >/dev/null
}

start_work() {
  local contract name mode level promise
  WRITERS=()
  for contract in "${CONTRACTS[@]}"; do
    while read -r name mode level promise; do
      start_group sqlite_writer "$contract" "$name" "$level"
      WRITERS+=("$GROUP")
    done < <(databases "$contract")
    start_group git_writer "$contract"
    WRITERS+=("$GROUP")
  done
}

# Acknowledgements of each writer: the number of a database's last transaction and how many more are wanted of it in a busy
# round; the number of commits, and one more.
acknowledged() {
  local contract name rest last
  for contract in "${CONTRACTS[@]}"; do
    while read -r name rest; do
      last=$(tail -n 1 "$(acks "$contract" "$name")")
      echo "${last:-0} $BUSY_EVERY"
    done < <(databases "$contract")
    echo "$(wc -l <"$(acks "$contract" git)") 1"
  done
}

# all_went_on BEFORE: whether every writer has acknowledged as much more as is wanted of it.
all_went_on() { paste <(echo "$1") <(acknowledged) | awk '$3 < $1 + $2 { exit 1 }'; }

# cut KIND: all volumes at once, in the middle of the work.
cut() {
  local contract writer
  if [ "$1" = power ]; then
    drop_unflushed_writes "$HOST" || die "could not cut the power of $HOST"
    # The servers live on for a moment on a dead disk: nothing they say from now on may be an acknowledgement.
    sleep 0.1
  fi
  for contract in "${CONTRACTS[@]}"; do kill -KILL "${SERVERS[$contract]}"; done
  for contract in "${CONTRACTS[@]}"; do wait "${SERVERS[$contract]}" 2>/dev/null || true; done
  for writer in "${WRITERS[@]}"; do stop_group "$writer"; done
  for contract in "${CONTRACTS[@]}"; do detach "$(mnt "$contract")"; done
  if [ "$1" = power ]; then power_again "$HOST"; fi
}

# ---------------------------------------------------------------- the checks: each prints what is wrong

check_database() {
  local contract=$1 name=$2 promise=$3 db ack acked last count result
  db=$(mnt "$contract")/$name.db
  ack=$(acks "$contract" "$name")
  acked=$(tail -n 1 "$ack")
  acked=${acked:-0}
  result=$(sqlite3 "$db" "PRAGMA integrity_check" 2>&1) || true
  if [ "$result" != ok ]; then say "$name.db: integrity_check: $result"; return; fi
  IFS='|' read -r last count result < <(
    sqlite3 "$db" "SELECT coalesce(max(n), 0), count(*), (SELECT sum(v) FROM account) FROM entry" 2>&1) || true
  if [ "$count" != "$last" ]; then say "$name.db: $count transactions are there, but the last is number $last"; fi
  if [ "$result" != 50000 ]; then say "$name.db: the accounts hold $result, not 50000"; fi
  if [ "$promise" = durable ] && ((last < acked)); then
    say "$name.db: $acked transactions were acknowledged, $last are there"
  fi
  # The next round goes on from the recovered state.
  echo "$last" >>"$ack"
}

check_repository() {
  local contract=$1 ack acked clone dir
  dir=$(mnt "$contract")
  ack=$(acks "$contract" git)
  # Files that a killed git leaves, and its user removes.
  find "$dir/project/.git" -name '*.lock' -delete
  git -C "$dir/project" fsck --full --strict --no-progress --no-dangling 2>&1 || say "git fsck exits with $?"
  acked=$(tail -n 1 "$ack")
  if [ -n "$acked" ] && ! git -C "$dir/project" merge-base --is-ancestor "$acked" HEAD 2>&1; then
    say "git: commit $acked was acknowledged and is lost"
  fi
  git -C "$dir/project" reset -q --hard 2>&1 || say "git: the work tree cannot be reset"
  git -C "$dir/project" status --porcelain --untracked-files=no 2>&1
  clone=$(tail -n 1 "$(acks "$contract" clones)")
  if [ -n "$clone" ]; then
    git -C "$dir/$clone" fsck --full --strict --no-progress --no-dangling 2>&1 || say "git: the acknowledged $clone is broken"
    git -C "$dir/$clone" status --porcelain 2>&1
  fi
  find "$dir" -maxdepth 1 -name 'clone-*' ! -name "${clone:-none}" -exec rm -rf {} +
}

check_volume() {
  local contract=$1 name mode level promise
  while read -r name mode level promise; do
    check_database "$contract" "$name" "$promise"
  done < <(databases "$contract")
  check_repository "$contract"
}

# Checks all volumes side by side.
check_all() {
  local contract checks=()
  for contract in "${CONTRACTS[@]}"; do
    check_volume "$contract" >"$WORK/found.$contract" 2>&1 &
    checks+=($!)
  done
  for contract in "${checks[@]}"; do wait "$contract" || say "a check ended with $?" >>"$WORK/found.ordered"; done
  for contract in "${CONTRACTS[@]}"; do
    if [ -s "$WORK/found.$contract" ]; then
      FAILED=1
      say "WRONG after cut $1 ($2), contract $contract:"
      head -n 20 "$WORK/found.$contract" | sed 's/^/    /'
      tail -n 3 "$WORK/$contract.log" | sed 's/^/    server: /'
    fi
  done
}

# ---------------------------------------------------------------- the story

power_disk "$HOST" 1000M
mkdir "$WORK/acks"
for contract in "${CONTRACTS[@]}"; do
  write_image "$HOST/$contract.img" 192
  sf_mkfs "$HOST/$contract.img" 192M "$contract"
done
serve_all
for contract in "${CONTRACTS[@]}"; do prepare "$contract"; done

FAILED=0
started=$SECONDS
# One round in this number is busy: every database commits this number of transactions in it, so one for each round in all.
BUSY_EVERY=5
declare -A done_cuts=([kill]=0 [power]=0)
for ((round = 1; round <= cuts; round++)); do
  kind="kill"
  if [ -n "$POWER" ] && ((round % 2 == 0)); then kind=power; fi
  before=$(acknowledged)
  start_work
  # From at once to well into it. In a busy round until every writer has done its share, and as long as a clone takes; what is
  # not durable when it is acknowledged is made so then, and more follows before the cut.
  if ((round % BUSY_EVERY == 1)); then
    sleep 3
    await all_went_on "$before" || die "a writer does nothing: $(acknowledged | paste -sd " ")"
    settle ordered
  fi
  sleep "$(awk -v r="$RANDOM" 'BEGIN { printf "%.3f", (r / 32768) ^ 2 * 1.6 }')"
  cut "$kind"
  for contract in "${CONTRACTS[@]}"; do sf_fsck "$HOST/$contract.img" >/dev/null; done
  done_cuts[$kind]=$((done_cuts[$kind] + 1))
  serve_all
  check_all "$round" "$kind"
  ((FAILED)) && break
done

for contract in "${CONTRACTS[@]}"; do
  line="$(wc -l <"$(acks "$contract" git)") commits, $(wc -l <"$(acks "$contract" clones)") clones"
  while read -r name mode level promise; do
    last=$(tail -n 1 "$(acks "$contract" "$name")")
    line="$line, $last in $name.db"
    # A check that saw nothing proves nothing.
    if ((last < round - 1)); then FAILED=1; say "WRONG: only $last transactions in $name.db ($contract)"; fi
  done < <(databases "$contract")
  say "apps: $contract: $line"
  [ -s "$(acks "$contract" git)" ] || { FAILED=1; say "WRONG: no commit ($contract)"; }
  sf_umount "$(mnt "$contract")"
  await_process "${SERVERS[$contract]}" 10
  sf_fsck "$HOST/$contract.img" >/dev/null
done
verdict="nothing acknowledged was lost, all sound"
((FAILED)) && verdict="FAILED"
say "apps: ${done_cuts[kill]} times kill -9, ${done_cuts[power]} times the power: $verdict, $((SECONDS - started)) s"
[ -n "$POWER" ] || say "apps: the loss of unflushed writes was not shown: that needs root and a loop device"
((FAILED)) && exit 1
if [ -z "$only" ]; then postgres; fi

#!/usr/bin/env bash
# Chaos on an object store: three programs work on a mounted volume and note what was acknowledged, while gateways, the network and
# the mount's server fail. After each kill and each take-over the volume is compared with the notes.
#
#   scripts/store-chaos.sh [--minutes N] [--seed S] [--flush store|cache|both] [--on s3|file] [--longest-stop SECONDS]
#                          [--mutate file|transaction|commit|lag] [--keep]
#
#   --minutes N             how long the faults go on, such as 0.5 [default: 2]
#   --seed S                the choice of faults [default: another one each time; it is printed]
#   --flush WHERE           contract of the volume; both: one after the other, half of the time each [default: both]
#   --on s3|file            s3: versitygw; file: a directory, without faults of gateways and network [default: s3 where versitygw is
#                           installed]
#   --longest-stop SECONDS  how long the mount's server stands still at most [default: 10]
#   --mutate WHAT           self-check: something that was acknowledged is removed before the first comparison; or ('lag', with
#                           versitygw and --flush cache) the comparison allows no lag. The script must fail
#   --keep                  keep the working directory for inspection; one with a finding is always kept
#
# With s3, two versitygw processes serve one directory. Before each is a proxy that delays requests, cuts connections before, inside
# and after a request's effect, sends requests twice, and delivers some many seconds late. Mounts alternate between the two.
#
# programs   numbered files with fsync; SQLite transactions (WAL and rollback journal in turn); git commits. Each writes a note outside
#            of the volume after the acknowledgement.
# faults     one every 2 to 6 seconds: a gateway is killed and started again, or stands still; the mount's server stands still
#            (SIGSTOP), or is killed (SIGKILL) and mounted again through the other endpoint; another mount takes the volume over while
#            the server stands still. When it goes on, its programs must get EIO, or EROFS after that.
# compared   numbered files, each whole; SQLite's integrity_check and the transactions; git fsck and the commits. Everything noted must be
#            there. Only after a take-over with --flush cache may the last operations be missing, those of 5 seconds ('lag') at most:
#            what is there must be a prefix, in time and over all programs, and a clone by store salvage has the rest.
# in the end fsck, store check, and store gc --sweep --delete find nothing wrong; a second sweep finds no object that nothing names; the
#            listing has no more objects than the volume counts. Then everything noted is compared once more.
#
# Exits 0, 1 (something was lost or is broken) or 3 (something needed is missing). versitygw is looked for as store.sh does.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"
# shellcheck source-path=SCRIPTDIR source=store-lib.sh
. "$here/store-lib.sh"

arguments=("$@")
minutes=2 seed='' flush=both on='' longest=10 mutate=''
while [ $# -gt 0 ]; do
  case $1 in
    --minutes) minutes=${2:?"--minutes needs a number"}; shift 2 ;;
    --seed) seed=${2:?"--seed needs a number"}; shift 2 ;;
    --flush) flush=${2:?"--flush needs 'store', 'cache' or 'both'"}; shift 2 ;;
    --on) on=${2:?"--on needs 's3' or 'file'"}; shift 2 ;;
    --longest-stop) longest=${2:?"--longest-stop needs a number of seconds"}; shift 2 ;;
    --mutate) mutate=${2:?"--mutate needs 'file', 'transaction' or 'commit'"}; shift 2 ;;
    --keep) export KEEP_WORK=1; shift ;;
    -h|--help) sed -n '2,32s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) warn "unknown option '$1' (see --help)"; exit 2 ;;
  esac
done
[[ $minutes =~ ^[0-9]+(\.[0-9]+)?$ ]] || { warn "--minutes takes a number, not '$minutes'"; exit 2; }
[[ $longest =~ ^[1-9][0-9]*$ ]] || { warn "--longest-stop takes whole seconds, not '$longest'"; exit 2; }
case $flush in
  store|cache) contracts=("$flush") ;;
  both) contracts=(store cache) ;;
  *) warn "--flush takes 'store', 'cache' or 'both', not '$flush'"; exit 2 ;;
esac
case $mutate in
  ''|file|transaction|commit) ;;
  lag) if [ "$flush" != cache ] || [ "$on" = file ]; then warn "--mutate lag needs --flush cache on s3"; exit 2; fi ;;
  *) warn "--mutate takes 'file', 'transaction', 'commit' or 'lag', not '$mutate'"; exit 2 ;;
esac
case $on in
  s3) find_gateway ;;
  file) ;;
  '') on='file'; if has_gateway; then on='s3'; fi ;;
  *) warn "--on takes 's3' or 'file', not '$on'"; exit 2 ;;
esac

reason=$(fuse_reason)
[ -z "$reason" ] || unable "cannot mount here: $reason"
for program in git python3; do command -v "$program" >/dev/null || unable "$program is missing"; done
python3 -c 'import sqlite3' 2>/dev/null || unable "Python's module sqlite3 is missing"
# Mounts of its own: nobody else's mount namespace keeps them busy.
if [ -z "${STEADFAST_CHAOS_INSIDE:-}" ] && [ "$(id -u)" = 0 ]; then
  STEADFAST_CHAOS_INSIDE=1 exec unshare --mount --propagation private "$here/store-chaos.sh" "${arguments[@]}"
fi
[ -n "$GIVEN_STEADFAST" ] || build_release
[ -n "$seed" ] || seed=$((RANDOM * 32768 + RANDOM))
make_workdir "${TMPDIR:-/tmp}"

# How far the store may be behind with 'flush=cache', in seconds, and the size of a cache.
LAG=5
CACHE_SIZE=256M
# A program ends within this many seconds after the last answer of its server.
END_SECONDS=120
# A mount fails if the store gives no clear answer in five trials, or if a stopped server holds the lock of a directory.
MOUNT_TRIES=20
# Two things stay in the store that the sweep does not know: objects of a mount's trial of the store whose connection was cut, and in a
# directory a file that a killed server was writing. They are counted and said; with 0 here they are a finding.
LEFTOVERS_MAY_STAY=1
# Caches of deposed machines that are saved, of each volume: each costs a copy of it.
SALVAGES=3
programs=(files sqlite git)
chaos() { python3 "$here/store-chaos.py" "$@"; }

declare -A FAULTS=()
lag_allowed=$LAG
if [ "$mutate" = lag ]; then lag_allowed=0; fi
generation=0 which=0 remounts=0
GATEWAY_PIDS=() GATEWAY_PORTS=() ENDPOINTS=()

# Something was lost or is broken: what explains it stays.
violation() {
  if [ -z "$mutate" ]; then KEEP_WORK=1; fi
  warn "$*"
  warn "repeat with --seed $seed --minutes $minutes --flush $flush --on $on --longest-stop $longest"
  exit 1
}

# ---------------------------------------------------------------- what happens later

LATER_AT=() LATER_DO=()
# later MILLISECONDS COMMAND…: 'pause' and 'until_true' run it when its time has come.
later() {
  LATER_AT+=($(($(now_ms) + $1)))
  LATER_DO+=("$(printf '%q ' "${@:2}")")
}
run_due() {
  local i now command
  now=$(now_ms)
  for i in "${!LATER_AT[@]}"; do
    if ((LATER_AT[i] <= now)); then
      command=${LATER_DO[i]}
      unset "LATER_AT[i]" "LATER_DO[i]"
      eval "$command"
    fi
  done
}
pause() {
  local end=$(($(now_ms) + $1))
  while (($(now_ms) < end)); do
    run_due
    sleep 0.05
  done
}
# until_true SECONDS COMMAND…: waits for it, not longer than that.
until_true() {
  local end=$(($(now_ms) + $1 * 1000))
  until "${@:2}"; do
    run_due
    if (($(now_ms) > end)); then return 1; fi
    sleep 0.05
  done
}
nothing_is_due() { [ ${#LATER_AT[@]} = 0 ]; }
# Both gateways are there again: the store answers.
settle() { until_true 60 nothing_is_due || die "a gateway does not come back"; }

# ---------------------------------------------------------------- gateways

# A port that no outgoing connection takes while its gateway is down.
gateway_port() {
  python3 -c '
import random, socket
while True:
    port = random.randrange(20000, 32000)
    try:
        socket.socket().bind(("127.0.0.1", port))
    except OSError:
        continue
    break
print(port)'
}

start_gateways() {
  local i pid
  mkdir -p "$WORK/store/bucket"
  for i in 0 1; do
    GATEWAY_PORTS[i]=$(gateway_port)
    start_gateway "$WORK/store" "${GATEWAY_PORTS[i]}"
    GATEWAY_PIDS[i]=$GATEWAY_PID
    python3 "$here/store-chaos.py" proxy "$seed-$i" "${GATEWAY_PORTS[i]}" "$WORK/proxy-$i.port" 2>"$WORK/proxy-$i.log" &
    pid=$!
    on_exit stop_process "$pid"
    await --alive "$pid" test -e "$WORK/proxy-$i.port" || { cat "$WORK/proxy-$i.log" >&2; die "the proxy does not start"; }
    ENDPOINTS[i]=http://127.0.0.1:$(<"$WORK/proxy-$i.port")
  done
  export AWS_ENDPOINT_URL=http://127.0.0.1:${GATEWAY_PORTS[0]}
}

# shellcheck disable=SC2317 # called by its name
restart_gateway() {
  start_gateway "$WORK/store" "${GATEWAY_PORTS[$1]}"
  GATEWAY_PIDS[$1]=$GATEWAY_PID
}
# shellcheck disable=SC2317 # called by its name
resume_gateway() { if [ "${GATEWAY_PIDS[$1]}" = "$2" ]; then kill -CONT "$2" 2>/dev/null || true; fi; }

# Both: of the gateway that is chosen, or of the other one if that is down. They come back after so many milliseconds.
choose_gateway() {
  chosen=$1
  [ -n "${GATEWAY_PIDS[chosen]}" ] || chosen=$((1 - chosen))
  [ -n "${GATEWAY_PIDS[chosen]}" ]
}
fault_gateway_kill() {
  local chosen
  choose_gateway "$1" || return 0
  kill -KILL "${GATEWAY_PIDS[chosen]}"
  wait "${GATEWAY_PIDS[chosen]}" 2>/dev/null || true
  GATEWAY_PIDS[chosen]=
  later "$2" restart_gateway "$chosen"
}
fault_gateway_stop() {
  local chosen
  choose_gateway "$1" || return 0
  kill -STOP "${GATEWAY_PIDS[chosen]}"
  later "$2" resume_gateway "$chosen" "${GATEWAY_PIDS[chosen]}"
}

# ---------------------------------------------------------------- the volume and its programs

# A stat that hangs, because the store is away, is given up and tried again.
answers_now() { [ -n "$(mount_kind "$1")" ] && timeout -s KILL 2 stat "$1/." >/dev/null 2>&1; }
serves_or_ended() { answers_now "$MNT" || ! kill -0 "$SERVER" 2>/dev/null; }

# mount_volume [OPTION…]: mounts the volume at a new directory, through the endpoint that the last mount had not. Sets MNT and SERVER.
mount_volume() {
  local options=("$@") try given why
  generation=$((generation + 1)) which=$((1 - which))
  MNT=$WORK/mnt-$generation
  LOG=$WORK/server-$generation.log
  mkdir "$MNT"
  on_exit detach "$MNT"
  if [ "$on" = s3 ]; then options+=("endpoint=${ENDPOINTS[which]}"); fi
  if [ "$contract" = cache ]; then options+=("cache=$CACHE" "cache_size=$CACHE_SIZE" flush=cache "lag=${LAG}s"); fi
  given=$(IFS=,; echo "${options[*]}")
  for ((try = 1; try <= MOUNT_TRIES; try++)); do
    "$STEADFAST" mount --foreground ${given:+-o "$given"} "$URL" "$MNT" >>"$LOG" 2>&1 &
    SERVER=$!
    on_exit stop_process "$SERVER"
    until_true 300 serves_or_ended || { cat "$LOG" >&2; violation "mount $generation does not answer"; }
    if answers_now "$MNT"; then return; fi
    wait "$SERVER" 2>/dev/null || true
    why=$(tail -n 1 "$LOG")
    say "  the mount is tried again: ${why:0:160}"
    remounts=$((remounts + 1))
    pause 500
  done
  violation "the volume cannot be mounted: $(tail -n 1 "$LOG")"
}

start_programs() {
  local program
  RUNNING=()
  for program in "${programs[@]}"; do
    start_group python3 "$here/store-chaos.py" "$program" "$MNT" "$NOTES" "$generation" 2>>"$WORK/programs.log"
    RUNNING+=("$GROUP")
  done
}
# As long as no server was killed or deposed, they go on.
programs_run() {
  local i
  for i in "${!programs[@]}"; do
    kill -0 "${RUNNING[i]}" 2>/dev/null || violation "${programs[i]} ended by itself: $(tail -n 1 "$NOTES/${programs[i]}")"
  done
}
programs_ended() {
  local pid
  for pid in "${RUNNING[@]}"; do
    if kill -0 "$pid" 2>/dev/null; then return 1; fi
  done
}
# await_programs WHY: they end by themselves.
await_programs() {
  until_true "$END_SECONDS" programs_ended || violation "a program still runs $END_SECONDS s after $1"
}

# judge WHEN DIR NOTES [OPTION…]: what is at DIR is what was acknowledged.
judge() {
  local status=0
  timeout -s KILL 900 python3 "$here/store-chaos.py" judge "${@:2}" >"$WORK/judged" 2>&1 || status=$?
  say "  $1: $(<"$WORK/judged")"
  ((status == 0)) && return
  # What was removed is found, or with 'lag' that there is some.
  if [ "$mutate" = lag ] || [ -n "${mutated:-}" ]; then note_caught "chaos.$mutate"; fi
  violation "flush=$contract: $1 the volume is not what was acknowledged (exit $status)"
}
# compare WHEN [OPTION…]: the same of the mounted volume.
compare() {
  settle
  if [ -n "$mutate" ] && [ "$mutate" != lag ] && [ -z "${mutated:-}" ]; then
    chaos mutate "$MNT" "$NOTES" "$mutate" || die "nothing to remove"
    mutated=1
  fi
  judge "$1" "$MNT" "$NOTES" "${@:2}"
}

# leave DIR: takes a mount away whose server has ended.
leave() {
  timeout 120 "$STEADFAST" umount "$1" >/dev/null 2>&1 || true
  detach "$1"
  rmdir "$1"
}

# ---------------------------------------------------------------- faults of the server

timestamp() { date +%s.%N; }

fault_server_stop() {
  local stopped
  stopped=$(timestamp)
  kill -STOP "$SERVER"
  pause "$1"
  kill -CONT "$SERVER"
  say "$stopped $(timestamp)" >>"$NOTES/stops"
}

fault_server_kill() {
  kill -KILL "$SERVER"
  wait "$SERVER" 2>/dev/null || true
  await_programs "the kill of their server"
  leave "$MNT"
  mount_volume
  compare "after a kill"
  start_programs
}

# shellcheck disable=SC2317 # called by its name
resume() { kill -CONT "$1" 2>/dev/null || true; }

# fault_take_over BEFORE AFTER OUTAGE: the old server stands still for BEFORE ms, another mount takes the volume over, and AFTER ms
# later the old one goes on. Before that the old server's gateway stands still for OUTAGE ms, so that with a cache the store is
# behind; what it was sent takes effect while the other mount has the volume.
fault_take_over() {
  local old=$SERVER old_mount=$MNT old_cache=$CACHE stopped status=0 allowed=()
  if [ "$on" = s3 ] && (($3 > 0)); then
    fault_gateway_stop "$which" $(($1 + $3 + 3000))
    pause "$3"
    programs_run
  fi
  stopped=$(timestamp)
  kill -STOP "$old"
  pause "$1"
  # The other machine has a cache of its own.
  CACHE=$WORK/cache-$generation
  # A server that stands still may hold the lock of a directory, and then nobody takes the volume over before it goes on.
  if [ "$on" = file ]; then later 8000 resume "$old"; fi
  mount_volume take_over
  pause "$2"
  kill -CONT "$old"
  say "$stopped $(timestamp)" >>"$NOTES/stops"
  await_programs "the take-over"
  # EIO where the failure came, then EROFS: another program may have met it first.
  case $(tail -n 1 "$NOTES/files") in
    "error 5"|"error 30") ;;
    *) violation "the deposed writer got neither EIO nor EROFS: $(tail -n 1 "$NOTES/files")" ;;
  esac
  if (: >"$old_mount/late") 2>/dev/null && "$STEADFAST" sync "$old_mount" 2>/dev/null; then
    violation "the deposed server acknowledged a write"
  fi
  if [ "$contract" = cache ]; then
    allowed=(--may-lose "$lag_allowed")
    cp -r "$NOTES" "$WORK/notes-of-old"
  fi
  compare "after a take-over" "${allowed[@]}"
  [ ! -e "$MNT/late" ] || violation "a write of the deposed server shows"
  timeout 300 "$STEADFAST" umount "$old_mount" >/dev/null 2>&1 || status=$?
  ((status != 0)) || violation "umount of the deposed volume reports success"
  stop_process "$old"
  detach "$old_mount"
  rmdir "$old_mount"
  if [ "$contract" = cache ]; then
    if ((salvaged < SALVAGES)); then salvage "$old_cache"; fi
    rm -rf "$old_cache" "$WORK/notes-of-old"
  fi
  start_programs
}

# salvage CACHE: what the take-over has lost is in the old machine's cache. A clone with it has everything noted. It is made
# independent of the volume and removed.
salvage() {
  local clone=$URL-saved-$generation dir=$WORK/saved said
  salvaged=$((salvaged + 1))
  if ! said=$("$STEADFAST" store salvage --cache "$1" "$URL" "$clone" 2>&1); then
    [[ $said == *'holds no flushes'* ]] || violation "store salvage: $said"
    return 0
  fi
  mkdir "$dir"
  on_exit detach "$dir"
  timeout 300 "$STEADFAST" mount "$clone" "$dir" || violation "the clone of store salvage cannot be mounted"
  judge "the clone of store salvage" "$dir" "$WORK/notes-of-old"
  timeout 300 "$STEADFAST" umount "$dir" || violation "the clone of store salvage cannot be unmounted"
  rmdir "$dir"
  sf_fsck "$clone" >/dev/null
  "$STEADFAST" store promote "$clone" >/dev/null || violation "the clone of store salvage cannot be promoted"
  rm -rf "$DIRECTORY-saved-$generation"
}

# ---------------------------------------------------------------- one volume

# The objects of the volume, and what it says of them.
no_orphans() {
  local name
  "$STEADFAST" store snapshot list "$URL" --json >"$WORK/snapshots" || violation "snapshot list fails"
  for name in $(python3 -c 'import json, sys
for pin in json.load(sys.stdin)["snapshots"]: print(pin["name"])' <"$WORK/snapshots"); do
    "$STEADFAST" store snapshot delete "$URL" "$name" || violation "the snapshot $name cannot be deleted"
  done
  "$STEADFAST" store gc --sweep --delete --json "$URL" >"$WORK/swept" || violation "store gc fails"
  "$STEADFAST" store gc --sweep --json "$URL" >"$WORK/swept-again" || violation "store gc fails"
  "$STEADFAST" store info --json "$URL" >"$WORK/info" || violation "store info fails"
  "$STEADFAST" store check --json "$URL" >"$WORK/checked" || violation "store check: $(<"$WORK/checked")"
  python3 - "$WORK" "$DIRECTORY" "$LEFTOVERS_MAY_STAY" <<'PYTHON' || violation "flush=$contract: the store holds what it should not"
import json, os, sys
work, directory, leftovers_may_stay = sys.argv[1:]
swept, again, info = (json.load(open(f"{work}/{name}")) for name in ("swept", "swept-again", "info"))
paths = [os.path.relpath(f"{where}/{name}", directory) for where, _, files in os.walk(directory) for name in files]
trials = [path for path in paths if path.startswith("probe-")]
# What a server was writing into a directory when it was killed.
cut_off = [path for path in paths if os.path.basename(path).startswith(".new-")]
# A directory has a lock, and a killed gateway may leave a file of its own.
others = [path for path in paths if path == ".lock" or ".sgwtmp." in path]
names = set(paths) - set(trials) - set(cut_off) - set(others)
first, sweep = swept["sweep"], again["sweep"]
print(f"  {len(names)} objects; {first['garbage']} that nothing named were deleted ({first['garbage_bytes']} bytes)")
wrong = []
if trials: print(f"  {len(trials)} objects of trials of the store stay, because their connections were cut")
if cut_off: print(f"  {len(cut_off)} files that were being written when their writer was killed stay")
if (trials or cut_off) and leftovers_may_stay != "1": wrong.append(f"left behind: {(trials + cut_off)[:3]}")
if sweep["garbage"]: wrong.append(f"a second sweep finds {sweep['garbage']} objects")
# Beside what it counts, a volume has 'head', 'volume', and of each term one seal. The root of the map and the list of snapshots
# are one object each.
extra = len(names) - sum(info[kind] for kind in ("data_objects", "map_objects", "retired_objects"))
if extra > info["term"] + 4: wrong.append(f"{len(names)} objects are {extra} more than the volume counts in term {info['term']}")
if sweep["listed"] - sweep["foreign"] != len(names): wrong.append(f"{len(names)} files, but the listing has {sweep}")
for what in wrong: print(f"WRONG: {what}")
sys.exit(1 if wrong else 0)
PYTHON
}

# chaos_on CONTRACT MILLISECONDS
chaos_on() {
  contract=$1
  local end delay kind numbers begun before=$generation plan
  step "flush=$contract on $on, seed $seed"
  NOTES=$WORK/notes-$contract
  mkdir "$NOTES"
  for program in "${programs[@]}" stops; do : >"$NOTES/$program"; done
  case $on in
    s3) URL=s3://bucket/$contract DIRECTORY=$WORK/store/bucket/$contract ;;
    file) URL=file://$WORK/store/$contract DIRECTORY=$WORK/store/$contract ;;
  esac
  CACHE=$WORK/cache-first-$contract
  salvaged=0
  "$STEADFAST" mkfs --size 8G --flush "$contract" --on "$URL" >/dev/null || die "mkfs failed"
  mount_volume
  chaos prepare "$MNT" || die "the programs cannot begin"
  "$STEADFAST" sync "$MNT" || die "sync failed"
  if [ "$contract" = cache ]; then "$STEADFAST" sync --store "$MNT" || die "sync --store failed"; fi
  start_programs
  plan=$WORK/plan-$contract
  case $mutate in
    '') ;;
    lag) echo "5000 take-over 0 0 9000" >"$plan" ;;
    *) echo "5000 server-kill" >"$plan" ;;
  esac
  kinds=(server-stop server-kill server-kill take-over take-over)
  if [ "$on" = s3 ]; then kinds+=(gateway-kill gateway-stop); fi
  chaos plan "$seed-$contract" "$longest" "${kinds[@]}" >>"$plan"
  end=$(($(now_ms) + $2))
  while read -r delay kind numbers; do
    if (($(now_ms) + delay > end)); then break; fi
    pause "$delay"
    programs_run
    begun=$(now_ms)
    # shellcheck disable=SC2086 # one word for each number
    "fault_${kind//-/_}" $numbers
    FAULTS[$kind]=$((${FAULTS[$kind]:-0} + 1))
    say "  $kind $numbers ($(human_seconds $(($(now_ms) - begun))))"
  done <"$plan"
  settle
  programs_run
  for pid in "${RUNNING[@]}"; do kill -TERM "$pid"; done
  await_programs "SIGTERM"
  compare "at the end"
  timeout 900 "$STEADFAST" umount "$MNT" || violation "umount fails"
  await_process "$SERVER" 60
  sf_fsck "$URL"
  no_orphans
  mount_volume
  compare "after the sweep"
  timeout 900 "$STEADFAST" umount "$MNT" || violation "umount fails"
  await_process "$SERVER" 60
  "$STEADFAST" store check "$URL" || violation "store check finds damage"
  say "flush=$contract: $(chaos count "$NOTES"), $((generation - before)) mounts"
}

milliseconds=$(awk -v minutes="$minutes" -v parts="${#contracts[@]}" 'BEGIN { printf "%d", minutes * 60000 / parts }')
say "seed $seed"
if [ "$on" = s3 ]; then start_gateways
else say "versitygw is not used: the store is a directory, without faults of gateways and network"; fi
for contract in "${contracts[@]}"; do chaos_on "$contract" "$milliseconds"; done

step "faults"
for kind in "${!FAULTS[@]}"; do say "$kind: ${FAULTS[$kind]}"; done | sort
say "mounts that were tried again: $remounts"
for contract in "${contracts[@]}"; do say "flush=$contract: $(chaos count "$WORK/notes-$contract")"; done
say "store chaos: nothing was lost that may not be (seed $seed)"

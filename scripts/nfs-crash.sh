#!/usr/bin/env bash
# The NFS server dies under load and restarts: clients go on, and everything that was acknowledged as stable is there.
#
#   scripts/nfs-crash.sh [--rounds N] [--clients N] [--seconds N] [--seed N] [--contract NAME] [--server steadfast|ganesha]
#
#   --rounds N       each on a fresh volume, with one to three deaths under load and one after it (default 5)
#   --clients N      at the same time, a connection and a directory each (default 10)
#   --seconds N      of load in each round (default 2)
#   --seed N         of the first round (default 1); the moments of death are not repeatable
#   --contract NAME  of the volume (default ordered)
#   --server NAME    ganesha: the same with nfs-ganesha on ext4 (dirsync), to see that the test is fair
#
# A death is a kill -9; every other one of Steadfast's also cuts the power of the disk under it, which then loses all writes
# that were not flushed. Each time the server is back, the clients (bench/nfs, `crash`) compare their directories with the
# acknowledged state, before they repeat unanswered requests; a COMMIT with another verifier makes them write again. Needs root.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"
# shellcheck source-path=SCRIPTDIR source=nfs-lib.sh
. "$here/nfs-lib.sh"

rounds=5 clients=10 seconds=2 seed=1 contract=ordered server=steadfast
while [ $# -gt 0 ]; do
  case $1 in
    --rounds)   rounds=${2:?"--rounds needs a number"}; shift 2 ;;
    --clients)  clients=${2:?"--clients needs a number"}; shift 2 ;;
    --seconds)  seconds=${2:?"--seconds needs a number"}; shift 2 ;;
    --seed)     seed=${2:?"--seed needs a number"}; shift 2 ;;
    --contract) contract=${2:?"--contract needs a name"}; shift 2 ;;
    --server)   server=${2:?"--server needs a name"}; shift 2 ;;
    -h|--help)  sed -n '2,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) warn "unknown option '$1' (see --help)"; exit 2 ;;
  esac
done
case $server in steadfast|ganesha) ;; *) warn "unknown server '$server': steadfast or ganesha"; exit 2 ;; esac
[ "$(id -u)" = 0 ] || unable "needs root, for a network of its own"
"$here/setup.sh" nfs

if [ "$server" = steadfast ]; then build_release; fi
build_nfs_client
make_workdir "$(fast_base 1500)"
PORT=22049
IMAGE_MIB=512
POWER=
load_options=()
# It makes the file first and gives it the verifier then: a death between the two makes a retry fail.
if [ "$server" = ganesha ]; then load_options+=(--no-exclusive); fi

case $server in
  steadfast)
    nfs_network
    power_disk "$WORK/disk" $((IMAGE_MIB + 160))M
    IMAGE=$WORK/disk/volume.img
    EXPORT=/
    write_image "$IMAGE" "$IMAGE_MIB"
    ;;
  ganesha)
    nfs_world
    IMAGE=$WORK/volume.img
    EXPORT=$WORK/export
    write_image "$IMAGE" "$IMAGE_MIB"
    ;;
esac

fresh_volume() {
  case $server in
    steadfast)
      timeout 900 "$STEADFAST" mkfs --force --contract "$contract" "$IMAGE" >/dev/null || die "steadfast mkfs failed"
      ;;
    ganesha)
      mkfs.ext4 -q -F -E nodiscard "$IMAGE"
      ext4_inside "$IMAGE" "$EXPORT" dirsync
      ;;
  esac
}

serve() {
  case $server in
    steadfast) nfs_steadfast "$IMAGE" "$PORT" $((PORT + 1)) "$WORK/server.log" ;;
    ganesha)   nfs_ganesha "$EXPORT" "$PORT" $((PORT + 1)) "$WORK/server.log" ;;
  esac
}

deaths=0 cuts=0
die_and_serve() {
  kill_server "$SERVER"
  deaths=$((deaths + 1))
  if [ -n "$POWER" ] && ((RANDOM % 2)); then
    cuts=$((cuts + 1))
    drop_unflushed_writes "$WORK/disk"
    power_again "$WORK/disk"
  fi
  serve
}

finish_volume() {
  stop_server "$SERVER"
  case $server in
    steadfast) sf_fsck "$IMAGE" ;;
    ganesha)
      local loop
      loop=$(losetup -n -O NAME -j "$IMAGE")
      inside umount "$EXPORT"
      loop_detach "$loop" "$IMAGE"
      e2fsck -f -n "$IMAGE" >/dev/null 2>&1 || die "e2fsck finds errors"
      ;;
  esac
}

client() { inside timeout 900 "$NFS" --port "$PORT" --mount-port $((PORT + 1)) --export "$EXPORT" "$@"; }

# Saves what explains a failure.
keep() {
  local kept=$TARGET/nfs-crash-failed
  mkdir -p "$kept"
  cp -r "$WORK/record" "$WORK/load" "$WORK/server.log" "$kept/" 2>/dev/null || true
  cp --sparse=always "$IMAGE" "$kept/volume.img" || true
  warn "the clients' records, the server's messages and the volume are kept in $kept"
}

declare -A total=()
add_up() {
  local name value
  while read -r name value; do total[$name]=$((${total[$name]:-0} + value)); done
}

for ((round = 1; round <= rounds; round++)); do
  fresh_volume
  serve
  rm -rf "$WORK/record"
  client --clients "$clients" --seed $((seed + round - 1)) "${load_options[@]}" crash "$seconds" "$WORK/record" >"$WORK/load" 2>&1 &
  load=$!
  on_exit stop_process "$load"
  for ((i = 0; i <= round % 3; i++)); do
    sleep "$(awk -v r="$RANDOM" -v s="$seconds" -v n=$((round % 3 + 1)) 'BEGIN { printf "%.3f", (0.1 + 0.8 * r / 32768) * s / n }')"
    kill -0 "$load" 2>/dev/null || break
    die_and_serve
  done
  if ! wait "$load"; then
    keep
    die "round $round, seed $((seed + round - 1)): $(cat "$WORK/load")"
  fi
  add_up <"$WORK/load"
  # The clients that got acknowledgements are gone; so is the server.
  die_and_serve
  if ! client verify "$WORK/record" >"$WORK/verified" 2>&1; then
    keep
    die "round $round, seed $((seed + round - 1)), after the last death: $(cat "$WORK/verified")"
  fi
  finish_volume
done

summary="$rounds rounds, $deaths deaths ($cuts with a power cut): ${total[operations]} operations, \
${total[reconnections]} reconnections, ${total[resent-calls]} calls sent again, ${total[rewritten-pieces]} writes repeated because \
of another verifier, ${total[compared-directories]} directories compared under load ($server)"
say "$summary"
# A run in which no death met what it is there for says nothing.
((total[reconnections] > 0)) || die "no client ever lost its connection"
if ((rounds >= 10 && total[rewritten-pieces] == 0)); then die "no death ever met an uncommitted write"; fi

# The measurement `streams`: what order costs, within a stream and between streams, after ccfs §4.2 to §4.4. Sourced by
# bench/run.
# shellcheck shell=bash disable=SC2034,SC2154

# shellcheck source-path=SCRIPTDIR source=streams/volumes.sh
. "$root/bench/streams/volumes.sh"
# shellcheck source-path=SCRIPTDIR source=streams/beside.sh
. "$root/bench/streams/beside.sh"
# shellcheck source-path=SCRIPTDIR source=streams/single.sh
. "$root/bench/streams/single.sh"
# shellcheck source-path=SCRIPTDIR source=streams/applications.sh
. "$root/bench/streams/applications.sh"
# shellcheck source-path=SCRIPTDIR source=streams/contracts.sh
. "$root/bench/streams/contracts.sh"

RUNS=5
QUICK_RUNS=1
PARTS=(beside paced single applications together contracts)

prepare_streams() {
  local reason
  [ "$(id -u)" = 0 ] || unable "needs root, for loop devices and mounts"
  [ -e /dev/loop-control ] || unable "there are no loop devices here"
  reason=$(fuse_reason)
  [ -z "$reason" ] || unable "cannot mount here: $reason"
  "$root/scripts/setup.sh" streams
  build_release
  build_driver disk
  DISK_TOOL=$DRIVER
  make_workdir /dev/shm
  MEMORY_WORK=$WORK
}

bench_streams() {
  local part about=()
  for part in ${STEADFAST_BENCH_PARTS:-"${PARTS[@]}"}; do
    case " ${PARTS[*]} " in
      *" $part "*) say "$(date +%T) $part"; "streams_$part" ;;
      *) die "STEADFAST_BENCH_PARTS: no part is called '$part'; there are ${PARTS[*]}" ;;
    esac
  done
  report "${about[@]}"
}

# begins RUN SYSTEM…: the order of this run. Results of run 0 do not count.
begins() {
  in_turns "$@"
  RESULTS=$results
  if (($1 == 0)); then RESULTS=/dev/null; fi
}
wanted() { case " ${STEADFAST_BENCH_ROWS:-$1} " in *" $1 "*) ;; *) return 1 ;; esac; }
rate() { awk -v a="$1" -v s="$2" 'BEGIN { printf "%.6f", a / s }'; }

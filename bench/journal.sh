# The measurement `journal`: Steadfast's journal against go-journal, and SQLite and redb as embedded stores.
# Sourced by bench/run.
# shellcheck shell=bash disable=SC2034,SC2154
#
# Every measure is a process of its own, of bench/journal or bench/gojournal, which prints lines `NAME VALUE`. On
# disk, both journals use the same prewritten file.

RUNS=5
QUICK_RUNS=2

# Room for a log of 256 MiB and 64 MiB of home blocks.
FILE_MIB=321

prepare_journal() {
  local features=(--features peers)
  if [ -n "${STEADFAST_BENCH_BEFORE:-}" ]; then features=(); fi
  build_driver journal "${features[@]}"
  JOURNAL=$DRIVER
  GO_JOURNAL=$TARGET/bench-journal/gojournal
  # Its code comes from the module proxy, checked against go.sum.
  PEERS=(go-journal)
  if [ -n "${STEADFAST_BENCH_BEFORE:-}" ]; then
    PEERS=(before)
  elif ! (cd "$root/bench/gojournal" && go build -buildvcs=false -o "$GO_JOURNAL" .); then
    PEERS=()
    warn "go-journal is left out: bench/gojournal needs Go, and go-journal from the module proxy"
  fi
  FILE=$DISK_WORK/journal.img
  FULL=$DISK_WORK/full.img
  prewrite "$FILE" "$FILE_MIB"
  prewrite "$FULL" "$FILE_MIB"
  "$JOURNAL" fill "$FULL" >/dev/null || die "could not fill a log"
}

# in_turn RUN SYSTEM…: the systems in the order of this run, the first of which is 1. Sets SYSTEMS.
in_turn() {
  local first=$((($1 - 1) % ($# - 1)))
  shift
  SYSTEMS=("${@:first + 1}" "${@:1:first}")
}

# take SYSTEM MEASURE ARGUMENT…: runs it once. Sets FIGURES.
take() {
  local system=$1 store=$DISK_WORK/store
  shift
  case $system in
    steadfast)  FIGURES=$("$JOURNAL" "$@") || die "$* on $system failed" ;;
    before)     FIGURES=$("$STEADFAST_BENCH_BEFORE" "$@") || die "$* on $system failed" ;;
    go-journal) FIGURES=$("$GO_JOURNAL" "$@") || die "$* on $system failed" ;;
    *)
      # A store makes its own files, in a directory that goes afterwards.
      mkdir "$store"
      FIGURES=$("$JOURNAL" store "$system" "$store" "${@:3}") || die "$* on $system failed"
      rm -r "$store"
      ;;
  esac
}

figure() { awk -v name="$1" '$1 == name { print $2 }' <<<"$FIGURES"; }

# keep ROW UNIT BETTER SYSTEM FIGURE: one of the FIGURES as a result.
keep() { record "$1" "$2" "$3" "$4" "$(figure "$5")"; }

synchronous() {
  local run=$1 seconds=$2 threads system backing device peers
  for threads in 1 4 16 64; do
    for backing in memory disk; do
      device=memory peers=()
      if [ "$backing" = disk ]; then
        device=$FILE
        if ((threads != 4)) && [ "${PEERS[*]}" != before ]; then peers=(sqlite redb); fi
      fi
      in_turn "$run" steadfast ${PEERS[@]+"${PEERS[@]}"} ${peers[@]+"${peers[@]}"}
      for system in "${SYSTEMS[@]}"; do
        take "$system" sync "$device" "$threads" "$seconds"
        case $system in steadfast|before|go-journal)
          keep "flushes-$backing-$threads" flushes/commit lower "$system" flushes_per_commit ;;
        esac
        if [ "$backing" = disk ]; then
          keep "commits-disk-$threads" commits/s higher "$system" commits_per_second
        fi
      done
    done
  done
}

deferred() {
  local run=$1 seconds=$2 system one
  in_turn "$run" steadfast ${PEERS[@]+"${PEERS[@]}"}
  for system in "${SYSTEMS[@]}"; do
    # go-journal has one order for all; Steadfast keeps one for each stream.
    if [ "$system" != go-journal ]; then take "$system" deferred 1 one "$seconds"; else take "$system" deferred 1 "$seconds"; fi
    keep deferred-cpu us/commit lower "$system" cpu_us_per_commit
    keep deferred-1 commits/s higher "$system" commits_per_second
    one=$(figure commits_per_second)
    if [ "$system" != go-journal ]; then take "$system" deferred 2 one "$seconds"; else take "$system" deferred 2 "$seconds"; fi
    scaling "$system" deferred-2 deferred-scaling "$one"
    if [ "$system" != go-journal ]; then take "$system" deferred 2 own "$seconds"; fi
    scaling "$system" deferred-2-streams deferred-scaling-streams "$one"
  done
}

# scaling SYSTEM ROW RATIO_ROW ONE: two threads, and how much faster they are than one.
scaling() {
  keep "$2" commits/s higher "$1" commits_per_second
  record "$3" x higher "$1" "$(awk -v two="$(figure commits_per_second)" -v one="$4" 'BEGIN { printf "%.6f", two / one }')"
}

written() {
  local run=$1 mib=$2 commits=$3 system when
  in_turn "$run" steadfast ${PEERS[@]+"${PEERS[@]}"}
  for system in "${SYSTEMS[@]}"; do
    for when in each end; do
      take "$system" sequential "$mib" "$when"
      keep "sequential-sync-$when" blocks/block lower "$system" blocks_per_block
    done
    take "$system" create "$commits"
    keep create-log-blocks blocks/commit lower "$system" journal_blocks_per_commit
  done
}

recovery() {
  local run=$1 system systems=(steadfast)
  if [ "${PEERS[*]}" = before ]; then systems+=(before); fi
  in_turn "$run" "${systems[@]}"
  for system in "${SYSTEMS[@]}"; do
    dd if="$FULL" of="$FILE" bs=1M conv=notrunc,fdatasync status=none
    take "$system" recover "$FILE"
    keep recovery-cpu s lower "$system" cpu_seconds_per_256_mib
    keep recovery-wall s lower "$system" wall_seconds_per_256_mib
    keep recovery-memory MiB lower "$system" memory_mib
  done
}

bench_journal() {
  local seconds=1 deferred_seconds=2 mib=256 commits=5000 run
  if [ -n "$quick" ]; then seconds=0.2 deferred_seconds=0.3 mib=32 commits=500; fi
  for ((run = 1; run <= runs; run++)); do
    say "run $run of $runs"
    synchronous "$run" "$seconds"
    deferred "$run" "$deferred_seconds"
    written "$run" "$mib" "$commits"
    recovery "$run"
  done
  report "seconds=$seconds" "deferred_seconds=$deferred_seconds" "sequential_mib=$mib"
}

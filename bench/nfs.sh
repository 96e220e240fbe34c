# The measurement `nfs`: `steadfast serve nfs` against nfs-ganesha, which exports ext4 mounted with `dirsync` (then it keeps
# NFS's promise that metadata is stable) and plain (then it does not). Sourced by bench/run.
# shellcheck shell=bash disable=SC2034,SC2154

# shellcheck source-path=SCRIPTDIR source=../scripts/nfs-lib.sh
. "$root/scripts/nfs-lib.sh"

RUNS=5
QUICK_RUNS=2

IMAGE_MIB=512
# Room for a million entries.
LARGE_IMAGE_MIB=3072

prepare_nfs() {
  [ "$(id -u)" = 0 ] || unable "needs root, for loop devices, mounts and networks of its own"
  [ -e /dev/loop-control ] || unable "there are no loop devices here"
  local default='steadfast ganesha-dirsync ganesha'
  if [ -n "${STEADFAST_BENCH_BEFORE:-}" ]; then default='steadfast before'; fi
  read -r -a SYSTEMS <<<"${STEADFAST_BENCH_SYSTEMS:-$default}"
  build_driver nfs
  NFS=$DRIVER
  case " ${SYSTEMS[*]} " in *" steadfast "*) build_release ;; esac
  make_workdir /dev/shm
  MEMORY_WORK=$WORK
  nfs_world
}

declare -A PORT=([steadfast]=22049 [ganesha-dirsync]=22149 [ganesha]=22249 [before]=22349) PID=() EXPORT=() IMAGE=() RATE=()

# volume SYSTEM DIR MIB: formats an image in DIR, and serves it.
volume() {
  local system=$1 image=$2/$1.img
  IMAGE[$system]=$image
  prewrite "$image" "$3"
  case $system in
    steadfast|before)
      EXPORT[$system]=/
      "$STEADFAST" mkfs --force "$image" >/dev/null || die "steadfast mkfs failed"
      ;;
    ganesha*)
      EXPORT[$system]=$2/$system
      # Nothing is left for later that would run into the measurement; a large one has inodes for a million files.
      mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0,nodiscard \
        -i $(($3 > IMAGE_MIB ? 2048 : 16384)) "$image"
      ;;
    *) die "unknown system '$system'" ;;
  esac
  serve "$system"
}

serve() {
  local system=$1 port=${PORT[$1]} image=${IMAGE[$1]} options=nodiscard
  case $system in
    steadfast) nfs_steadfast "$image" "$port" $((port + 1)) "$image.log" ;;
    before) STEADFAST=$STEADFAST_BENCH_BEFORE nfs_steadfast "$image" "$port" $((port + 1)) "$image.log" ;;
    ganesha*)
      if [ "$system" = ganesha-dirsync ]; then options+=,dirsync; fi
      ext4_inside "$image" "${EXPORT[$system]}" "$options"
      nfs_ganesha "${EXPORT[$system]}" "$port" $((port + 1)) "$image.log"
      ;;
  esac
  PID[$system]=$SERVER
}

unserve() {
  stop_server "${PID[$1]}"
  case $1 in
    ganesha*)
      local loop
      loop=$(losetup -n -O NAME -j "${IMAGE[$1]}")
      inside umount "${EXPORT[$1]}"
      loop_detach "$loop" "${IMAGE[$1]}"
      ;;
  esac
}

# A system whose caches are empty.
cool() {
  unserve "$1"
  serve "$1"
}

# The measured files must have survived it.
check_volume() {
  unserve "$1"
  case $1 in
    steadfast|before) sf_fsck "${IMAGE[$1]}" ;;
    ganesha*) e2fsck -f -n "${IMAGE[$1]}" >/dev/null 2>&1 || die "e2fsck finds errors in ${IMAGE[$1]}" ;;
  esac
  rm -f "${IMAGE[$1]}" "${IMAGE[$1]}".log*
}

# take SYSTEM CLIENTS WORKLOAD ARGUMENT…: runs it once. Sets FIGURES.
take() {
  local system=$1 clients=$2
  shift 2
  # Nothing of the last one is left to be written in this one.
  case $system in ganesha*) inside sync -f "${EXPORT[$system]}" ;; esac
  FIGURES=$(inside "$NFS" --port "${PORT[$system]}" --mount-port $((PORT[$system] + 1)) --export "${EXPORT[$system]}" \
    --server-pid "${PID[$system]}" --clients "$clients" --timeout 300 "$@") || die "$* on $system failed"
}

figure() { awk -v name="$1" '$1 == name { print $2 }' <<<"$FIGURES"; }

# keep ROW UNIT BETTER SYSTEM FIGURE: one of the FIGURES as a result. Processor time comes in steps of 10 ms: none is no
# result.
keep() {
  local value
  value=$(figure "$5")
  if awk -v v="${value:-0}" 'BEGIN { exit !(v > 0) }'; then record "$1" "$2" "$3" "$4" "$value"; fi
}

# each ROW CLIENTS UNIT FIGURE WORKLOAD COUNT…: measures on each system, in this run's order. The COUNT that follows the
# workload's name is a quarter for dirsync where it is a number of changes, or it would take minutes.
each() {
  local row=$1 clients=$2 unit=$3 figure=$4 workload=$5 count=$6 system n
  shift 6
  case " ${only:-$row} " in *" $row "*) ;; *) return 0 ;; esac
  for system in "${systems[@]}"; do
    n=$count
    case $system:$workload in ganesha-dirsync:smallfile*|ganesha-dirsync:metadata) n=$((count / 4)) ;; esac
    case $row in *-cold) cool "$system" ;; esac
    take "$system" "$clients" "$workload" "$n" "$@"
    keep "$row-$backing" "$unit" higher "$system" "$figure"
    RATE[$row:$system]=$(figure "$figure")
    case $workload in
      smallfile*|metadata|lookup)
        keep "$row-cpu-$backing" µs lower "$system" server-cpu-us
        keep "$row-p99-$backing" µs lower "$system" latency-p99-us
        ;;
    esac
  done
}

# scaling ROW MANY: how much faster each system was with MANY clients than with one, in this run.
scaling() {
  local row=$1 many=$2 system
  case " ${only:-$row-$many} " in *" $row-$many "*) ;; *) return 0 ;; esac
  for system in "${systems[@]}"; do
    [ -n "${RATE[$row-1:$system]:-}" ] || continue
    record "$row-scaling-$backing" "×" higher "$system" \
      "$(awk -v one="${RATE[$row-1:$system]}" -v many="${RATE[$row-$many:$system]}" 'BEGIN { printf "%.6f", many / one }')"
  done
}

# idle: a lone small call on an idle server, and an echo over the loopback device in the same run.
idle() {
  local system
  case " ${only:-idle} " in *" idle "*) ;; *) return 0 ;; esac
  for system in "${systems[@]}"; do
    take "$system" 1 idle 2000
    keep "idle-call-$backing" µs lower "$system" call-latency-p50-us
    keep "idle-echo-$backing" µs lower "$system" echo-latency-p50-us
    keep "idle-above-echo-$backing" µs lower "$system" above-echo-us
  done
}

# curves ENTRIES: the first and the last tenth of a directory that grows and shrinks.
curves() {
  local entries=$1 system what part row
  for system in "${systems[@]}"; do
    take "$system" 1 directory "$entries"
    for what in create lookup remove; do
      for part in 1 10; do
        row=directory-$entries-$what-$part-$backing
        keep "$row" entries/s higher "$system" "$what-$part-per-second"
        keep "$row-cpu" µs lower "$system" "$what-$part-server-cpu-us"
      done
    done
  done
}

bench_nfs() {
  local files=2000 calls=14000 mib=100 reads=10000 entries=10000 clients
  if [ -n "$quick" ]; then files=400 calls=1400 mib=20 reads=2000 entries=1000; fi
  local only=${STEADFAST_BENCH_ROWS:-} run backing dir system results=$RESULTS i
  local systems=()

  for backing in ${STEADFAST_BENCH_BACKINGS:-disk memory}; do
    case $backing in disk) dir=$DISK_WORK ;; memory) dir=$MEMORY_WORK ;; esac
    say "$backing: preparing"
    for system in "${SYSTEMS[@]}"; do volume "$system" "$dir" "$IMAGE_MIB"; done
    # Run 0 warms up and does not count.
    for ((run = 0; run <= runs; run++)); do
      say "$backing: run $run of $runs"
      # Everybody is first in turn.
      systems=()
      for ((i = 0; i < ${#SYSTEMS[@]}; i++)); do systems+=("${SYSTEMS[(run + i) % ${#SYSTEMS[@]}]}"); done
      RESULTS=$results
      if ((run == 0)); then RESULTS=/dev/null; fi
      for clients in 1 4 10 20; do
        each "smallfile-$clients" "$clients" files/s per-second smallfile "$files"
        each "smallfile-commit-$clients" "$clients" files/s per-second smallfile-commit "$files"
        each "metadata-$clients" "$clients" calls/s per-second metadata "$calls"
      done
      idle
      scaling smallfile 10
      scaling metadata 10
      for clients in 1 10; do
        each "largefile-$clients" "$clients" MiB/s mib-per-second largefile "$mib"
        each "overwrite-$clients" "$clients" MiB/s mib-per-second overwrite "$mib"
        each "read-sequential-$clients" "$clients" MiB/s mib-per-second read-sequential "$mib"
        each "read-random-$clients" "$clients" reads/s per-second read-random "$mib" "$reads"
      done
      if [ "$backing" = disk ]; then
        each read-sequential-1-cold 1 MiB/s mib-per-second read-sequential "$mib"
        each read-random-1-cold 1 reads/s per-second read-random "$mib" "$reads"
      fi
      each lookup-100 1 lookups/s per-second lookup 100 "$reads"
      each "lookup-$entries" 1 lookups/s per-second lookup "$entries" "$reads"
    done
    for system in "${SYSTEMS[@]}"; do check_volume "$system"; done
  done

  # Directories that grow and shrink, on volumes of their own; dirsync would take an hour for a million.
  RESULTS=$results
  backing=disk
  case " ${only:-directory} " in *" directory "*) ;; *) STEADFAST_BENCH_DIRECTORIES=' ' ;; esac
  for entries in ${STEADFAST_BENCH_DIRECTORIES:-$entries}; do
    say "directory of $entries entries"
    systems=()
    for system in "${SYSTEMS[@]}"; do
      if [ "$system" = ganesha-dirsync ] && ((entries > 10000)); then continue; fi
      systems+=("$system")
      volume "$system" "$DISK_WORK" $((entries > 10000 ? LARGE_IMAGE_MIB : IMAGE_MIB))
    done
    for ((run = 1; run <= (entries > 10000 ? 1 : runs); run++)); do curves "$entries"; done
    for system in "${systems[@]}"; do check_volume "$system"; done
  done
  report "files=$files" "calls=$calls" "mib=$mib" "reads=$reads" "entries=$entries"
}

# The measurement `fs`: file system loads, Steadfast through FUSE against the kernel's ext4, and in
# memory against FUSE servers that keep nothing. Sourced by bench/run.
# shellcheck shell=bash disable=SC2034,SC2154

# shellcheck source-path=SCRIPTDIR source=peers/pass-through.sh
. "$root/bench/peers/pass-through.sh"
# shellcheck source-path=SCRIPTDIR source=peers/null.sh
. "$root/bench/peers/null.sh"
# shellcheck source-path=SCRIPTDIR source=load/repository.sh
. "$root/bench/load/repository.sh"

RUNS=7
QUICK_RUNS=3

prepare_fs() {
  local reason
  [ "$(id -u)" = 0 ] || unable "needs root, for loop devices and mounts"
  [ -e /dev/loop-control ] || unable "there are no loop devices here"
  reason=$(fuse_reason)
  [ -z "$reason" ] || unable "cannot mount here: $reason"
  case ${STEADFAST_BENCH_TRANSPORT:=dev-fuse} in
    dev-fuse) ;;
    io_uring) offer_io_uring ;;
    *) die "STEADFAST_BENCH_TRANSPORT=$STEADFAST_BENCH_TRANSPORT: it is dev-fuse or io_uring" ;;
  esac
  build_release
  null_build
  make_workdir /dev/shm
  MEMORY_WORK=$WORK
}

# The kernel must be told to offer it.
offer_io_uring() {
  local switch=/sys/module/fuse/parameters/enable_uring
  [ -w "$switch" ] || unable "this kernel has no FUSE over io_uring ($switch)"
  if [ "$(cat "$switch")" != Y ]; then
    echo 1 >"$switch"
    on_exit eval "echo 0 >$switch"
  fi
}

# ---------------------------------------------------------------- volumes

IMAGE_MIB=1024

# volume SYSTEM BACKING: formats and mounts it; sets MOUNTED. "steadfast" is the contract `ordered`.
volume() {
  local system=$1 backing=$2 dir
  case $backing in disk) dir=$DISK_WORK ;; memory) dir=$MEMORY_WORK ;; esac
  local image=$dir/$system.img
  MOUNTED=$dir/$system
  mkdir -p "$MOUNTED"
  case $system in
    steadfast*|before)
      # Another one serves the system "before", also for `sf_serve`.
      local STEADFAST=$STEADFAST
      if [ "$system" = before ]; then STEADFAST=$STEADFAST_BENCH_BEFORE; fi
      prewrite "$image" "$IMAGE_MIB"
      local contract=${system#steadfast}
      contract=${contract#-}
      if [ "$system" = before ]; then contract=ordered; fi
      "$STEADFAST" mkfs --force --contract "${contract:-ordered}" "$image" >/dev/null || die "steadfast mkfs failed"
      # On a disk, past the host's page cache, as the loop device does it; memory has nothing to go past. Served by a
      # child of this script, as the pass-through is: the scheduler groups processes by session.
      local how=buffered
      if [ "$backing" = disk ]; then how=direct; fi
      # An earlier one may not know the option, and has its default.
      case $system:$STEADFAST_BENCH_TRANSPORT in
        before:*) ;;
        *:io_uring) how+=,io_uring ;;
        *) how+=,noio_uring ;;
      esac
      sf_serve "$image" "$MOUNTED" "$dir/$system.log" -o "$how"
      ;;
    ext4)
      prewrite "$image" "$IMAGE_MIB"
      # Nothing is left for later that would run into the measurement, and the file stays written.
      mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0,nodiscard "$image"
      loop_attach "$image" --direct-io=on 2>/dev/null || loop_attach "$image" || die "no loop device for $image"
      on_exit detach "$MOUNTED"
      mount -t ext4 -o data=ordered,nodiscard "$LOOP" "$MOUNTED"
      ;;
    pass-through) pass_through_mount "$MOUNTED" ;;
    null)
      if [ "$STEADFAST_BENCH_TRANSPORT" = io_uring ]; then null_mount "$MOUNTED" --io-uring; else null_mount "$MOUNTED"; fi
      ;;
  esac
}

# Nothing of one run is left to be written in the next.
settle() {
  case $1 in
    steadfast*|before) "$STEADFAST" sync "$2" >/dev/null ;;
    *) sync -f "$2" ;;
  esac
}

# ---------------------------------------------------------------- fs

# An archive of 5,000 small files in 50 directories, the same everywhere.
make_archive() {
  local tree=$MEMORY_WORK/tree
  awk -v tree="$tree" 'BEGIN {
    for (d = 0; d < 50; d++) {
      system("mkdir -p " tree "/dir-" d)
      for (f = 0; f < 100; f++) {
        name = tree "/dir-" d "/file-" f
        for (l = 0; l < 10 + (d * 100 + f) % 150; l++) printf "line %d of file %d in directory %d\n", l, f, d >name
        close(name)
      }
    }
  }'
  tar -cf "$1" -C "$MEMORY_WORK" tree
  rm -rf "$tree"
}

# note ROW UNIT BETTER SYSTEM VALUE: one result. The peers' results are printed beside all contracts.
note() {
  case $4 in
    steadfast) record "$@" ;;
    steadfast-*) record "$1+${4#steadfast-}" "$2" "$3" steadfast "$5" ;;
    *)
      record "$@"
      record "$1+metadata-prefix" "$2" "$3" "$4" "$5"
      record "$1+relaxed" "$2" "$3" "$4" "$5"
      ;;
  esac
}

# measure ROW UNIT BETTER SYSTEM DIR AMOUNT COMMAND…: runs it in DIR/run, records AMOUNT / seconds, or seconds in
# milliseconds where less is better.
measure() {
  local row=$1 unit=$2 better=$3 system=$4 dir=$5 amount=$6 seconds
  shift 6
  mkdir -p "$dir/run"
  settle "$system" "$dir"
  seconds=$("$LOAD" "${@//DIR/$dir/run}") || die "$row on $system failed"
  note "$row" "$unit" "$better" "$system" "$(awk -v better="$better" -v amount="$amount" -v s="$seconds" \
    'BEGIN { printf "%.6f", better == "higher" ? amount / s : s * 1000 }')"
}

# each ROW UNIT BETTER AMOUNT COMMAND…: measures on each system, in this run's order.
each() {
  local row=$1 unit=$2 better=$3 amount=$4 system
  shift 4
  case " ${only:-$row} " in *" $row "*) ;; *) return 0 ;; esac
  for system in "${systems[@]}"; do
    measure "$row-$backing" "$unit" "$better" "$system" "${at[$system]}" "$amount" "$@"
    # Initial state of the next row; a tree is removed by a row of its own.
    [ "$row" = untar ] || rm -rf "${at[$system]}/run"
    settle "$system" "${at[$system]}"
  done
}

bench_fs() {
  local files=2000 mib=100 overwritten=50 rounds=500 rows=1000 reads=5000
  if [ -n "$quick" ]; then files=200 mib=20 overwritten=20 rounds=50 rows=100 reads=500; fi
  local only=${STEADFAST_BENCH_ROWS:-} run backing system results=$RESULTS
  local all systems
  local repository=$MEMORY_WORK/repository.git archive=$MEMORY_WORK/tree.tar
  make_repository "$repository"
  make_archive "$archive"

  for backing in ${STEADFAST_BENCH_BACKINGS:-disk memory}; do
    say "$backing: preparing"
    all=(steadfast steadfast-metadata-prefix steadfast-relaxed ext4)
    # They keep nothing: beside a disk they would say nothing.
    if [ "$backing" = memory ]; then all+=(pass-through null); fi
    if [ -n "${STEADFAST_BENCH_BEFORE:-}" ]; then all=(steadfast before); fi
    declare -A at=()
    for system in "${all[@]}"; do
      volume "$system" "$backing"
      at[$system]=$MOUNTED
    done
    # Run 0 warms up and does not count.
    for ((run = 0; run <= runs; run++)); do
      say "$backing: run $run of $runs"
      in_turns "$run" "${all[@]}"
      RESULTS=$results
      if ((run == 0)); then RESULTS=/dev/null; fi
      each smallfile-1 files/s higher "$files" smallfile DIR "$files" 1
      each smallfile-4 files/s higher "$files" smallfile DIR "$files" 4
      each varmail rounds/s higher "$rounds" varmail DIR "$rounds" 4
      each sqlite-delete tx/s higher "$rows" sqlite DIR delete "$rows"
      each sqlite-wal tx/s higher "$rows" sqlite DIR wal "$rows"
      each append MiB/s higher "$mib" append DIR "$mib"
      each append-4k MiB/s higher "$mib" append-4k DIR "$mib"
      each largefile MiB/s higher "$overwritten" largefile DIR "$overwritten"
      each read-sequential MiB/s higher "$mib" read-sequential DIR "$mib"
      each read-random reads/s higher "$reads" read-random DIR "$mib" "$reads"
      each untar files/s higher 5000 untar "$archive" DIR
      each remove files/s higher 5000 remove DIR/tree
      each clone ms lower 1 clone "$repository" DIR/clone
    done
    # The volumes must have survived it.
    for system in "${all[@]}"; do
      case $system in
        steadfast*|before)
          sf_umount "${at[$system]}"
          sf_fsck "$(dirname "${at[$system]}")/$system.img"
          ;;
        *) detach "${at[$system]}" ;;
      esac
      rm -f "$(dirname "${at[$system]}")/$system.img"
    done
  done
  RESULTS=$results
  report "files=$files" "append_mib=$mib" "overwritten_mib=$overwritten" "rounds=$rounds" "rows=$rows" "reads=$reads" \
    "transport=$STEADFAST_BENCH_TRANSPORT"
}

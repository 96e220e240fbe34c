# The measurement `fs`: file system loads, Steadfast through FUSE against the kernel's ext4. Sourced by bench/run.
# shellcheck shell=bash

RUNS=7
QUICK_RUNS=3

prepare_fs() {
  local reason
  [ "$(id -u)" = 0 ] || unable "needs root, for loop devices and mounts"
  [ -e /dev/loop-control ] || unable "there are no loop devices here"
  reason=$(fuse_reason)
  [ -z "$reason" ] || unable "cannot mount here: $reason"
  build_release
  make_workdir /dev/shm
  MEMORY_WORK=$WORK
}

# ---------------------------------------------------------------- volumes

IMAGE_MIB=1024

# volume SYSTEM BACKING: formats and mounts it; sets MOUNTED.
volume() {
  local system=$1 backing=$2 dir
  case $backing in disk) dir=$DISK_WORK ;; memory) dir=$MEMORY_WORK ;; esac
  local image=$dir/$system.img
  MOUNTED=$dir/$system
  mkdir -p "$MOUNTED"
  prewrite "$image" "$IMAGE_MIB"
  case $system in
    steadfast)
      "$STEADFAST" mkfs --force "$image" >/dev/null || die "steadfast mkfs failed"
      # On a disk, past the host's page cache, as the loop device does it; memory has nothing to go past.
      if [ "$backing" = disk ]; then sf_mount "$image" "$MOUNTED" -o direct; else sf_mount "$image" "$MOUNTED"; fi
      ;;
    ext4)
      # Nothing is left for later that would run into the measurement, and the file stays written.
      mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0,nodiscard "$image"
      loop_attach "$image" --direct-io=on 2>/dev/null || loop_attach "$image" || die "no loop device for $image"
      on_exit detach "$MOUNTED"
      mount -t ext4 -o data=ordered,nodiscard "$LOOP" "$MOUNTED"
      ;;
  esac
}

# Nothing of one run is left to be written in the next.
settle() {
  case $1 in
    steadfast) "$STEADFAST" sync "$2" >/dev/null ;;
    *) sync -f "$2" ;;
  esac
}

# ---------------------------------------------------------------- fs

# A repository to clone: 500 files, 20 commits, the same everywhere, packed.
make_repository() {
  export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
  git init -q --bare --initial-branch=main "$1"
  awk 'function random(n) { state = (state * 16807) % 2147483647; return state % n }
    BEGIN {
      state = 7
      for (c = 0; c < 20; c++) {
        printf "commit refs/heads/main\ncommitter Bench <bench@localhost> %d +0000\ndata 6\nchange\n", 1700000000 + c * 3600
        for (f = 0; f < 500; f++) {
          if (c > 0 && random(25) > 0) continue
          text = ""
          lines = 10 + random(120)
          for (l = 0; l < lines; l++) text = text sprintf("line %d of file %d: %d %d\n", l, f, random(1000000), random(1000000))
          printf "M 100644 inline dir-%d/sub-%d/file-%d.txt\ndata %d\n%s\n", f % 5, f % 25, f, length(text), text
        }
        print ""
      }
    }' | git -C "$1" fast-import --quiet
  git -C "$1" gc -q
}

# measure ROW UNIT BETTER SYSTEM DIR AMOUNT COMMAND…: runs it in a fresh directory, records AMOUNT / seconds, or
# seconds in milliseconds where less is better.
measure() {
  local row=$1 unit=$2 better=$3 system=$4 dir=$5 amount=$6 seconds
  shift 6
  mkdir "$dir/run"
  settle "$system" "$dir"
  seconds=$("$LOAD" "${@//DIR/$dir/run}") || die "$row on $system failed"
  record "$row" "$unit" "$better" "$system" "$(awk -v better="$better" -v amount="$amount" -v s="$seconds" \
    'BEGIN { printf "%.6f", better == "higher" ? amount / s : s * 1000 }')"
  rm -rf "$dir/run"
  settle "$system" "$dir"
}

bench_fs() {
  local files=2000 mib=100 run backing system systems results=$RESULTS
  if [ -n "$quick" ]; then files=200 mib=20; fi
  local repository=$MEMORY_WORK/repository.git
  make_repository "$repository"

  for backing in disk memory; do
    say "$backing: preparing"
    declare -A at=()
    for system in steadfast ext4; do
      volume "$system" "$backing"
      at[$system]=$MOUNTED
    done
    # Run 0 warms up and does not count.
    for ((run = 0; run <= runs; run++)); do
      say "$backing: run $run of $runs"
      systems=(steadfast ext4)
      if ((run % 2)); then systems=(ext4 steadfast); fi
      RESULTS=$results
      if ((run == 0)); then RESULTS=/dev/null; fi
      for system in "${systems[@]}"; do
        measure "smallfile-$backing" files/s higher "$system" "${at[$system]}" "$files" smallfile DIR "$files"
      done
      for system in "${systems[@]}"; do
        measure "append-$backing" MiB/s higher "$system" "${at[$system]}" "$mib" append DIR "$mib"
      done
      for system in "${systems[@]}"; do
        measure "clone-$backing" ms lower "$system" "${at[$system]}" 1 clone "$repository" DIR/clone
      done
    done
    # The volumes must have survived it.
    sf_umount "${at[steadfast]}"
    sf_fsck "$(dirname "${at[steadfast]}")/steadfast.img"
    detach "${at[ext4]}"
  done
  RESULTS=$results
  report "files=$files" "append_mib=$mib"
}

# The measurement `transport`: the same server over io_uring and over /dev/fuse, under the loads of `fs`. The subject,
# `steadfast`, is the mount with `-o io_uring`; the peers are the one with `-o noio_uring`, and the server that keeps nothing over both:
# `null` is the limit of the subject, `null-dev-fuse` that of the peer. Sourced by bench/run.
# shellcheck shell=bash disable=SC2034,SC2154

# shellcheck source-path=SCRIPTDIR source=fs.sh
. "$root/bench/fs.sh"

RUNS=5
QUICK_RUNS=2

prepare_transport() {
  STEADFAST_BENCH_TRANSPORT=io_uring
  prepare_fs
}

# Functions that `each` and `measure` of fs.sh call.
note() { record "$@"; }
settle() {
  case $1 in
    null*) ;;
    *) "$STEADFAST" sync "$2" >/dev/null ;;
  esac
}

bench_transport() {
  local files=2000 mib=100 rounds=500 reads=5000 calls=20000
  if [ -n "$quick" ]; then files=200 mib=20 rounds=50 reads=500 calls=2000; fi
  local only=${STEADFAST_BENCH_ROWS:-} backing=memory results=$RESULTS archive=$MEMORY_WORK/tree.tar
  local run system systems all=(steadfast dev-fuse null null-dev-fuse)
  local -A at=() option=([steadfast]=io_uring [dev-fuse]=noio_uring)
  make_archive "$archive"
  for system in "${all[@]}"; do
    at[$system]=$MEMORY_WORK/$system
    case $system in
      null) null_mount "${at[$system]}" --io-uring; continue ;;
      null-*) null_mount "${at[$system]}"; continue ;;
    esac
    prewrite "$MEMORY_WORK/$system.img" "$IMAGE_MIB"
    "$STEADFAST" mkfs --force "$MEMORY_WORK/$system.img" >/dev/null || die "steadfast mkfs failed"
    sf_serve "$MEMORY_WORK/$system.img" "${at[$system]}" "$MEMORY_WORK/$system.log" -o "${option[$system]}"
  done
  # Run 0 warms up and does not count.
  for ((run = 0; run <= runs; run++)); do
    say "run $run of $runs"
    in_turns "$run" "${all[@]}"
    RESULTS=$results
    if ((run == 0)); then RESULTS=/dev/null; fi
    each smallfile-1 files/s higher "$files" smallfile DIR "$files" 1
    each smallfile-4 files/s higher "$files" smallfile DIR "$files" 4
    each smallfile-16 files/s higher "$files" smallfile DIR "$files" 16
    each varmail rounds/s higher "$rounds" varmail DIR "$rounds" 4
    each lone-getattr calls/s higher "$calls" lone-getattr DIR "$calls"
    each lone-lookup calls/s higher "$calls" lone-lookup DIR "$calls"
    each lone-write calls/s higher "$calls" lone-write DIR "$calls"
    each append MiB/s higher "$mib" append DIR "$mib"
    each read-sequential MiB/s higher "$mib" read-sequential DIR "$mib"
    each read-random reads/s higher "$reads" read-random DIR "$mib" "$reads"
    each untar files/s higher 5000 untar "$archive" DIR
    each remove files/s higher 5000 remove DIR/tree
  done
  RESULTS=$results
  for system in "${all[@]}"; do
    case $system in null*) detach "${at[$system]}"; continue ;; esac
    sf_umount "${at[$system]}"
    sf_fsck "$MEMORY_WORK/$system.img"
  done
  report "files=$files" "append_mib=$mib" "rounds=$rounds" "reads=$reads" "calls=$calls"
}

# Loads through FUSE. Sourced by bench/pm.sh.
# shellcheck shell=bash disable=SC2034,SC2154

pm_mounted() {
  local small=4000 mib=200 overwritten=100 blocks=10000 records=20000 mails=2000 rounds=1000 files=1000
  if [ -n "$quick" ]; then small=400 mib=20 overwritten=20 blocks=1000 records=2000 mails=200 rounds=100 files=200; fi
  local only=${STEADFAST_BENCH_ROWS:-} backing=fuse archive=$MEMORY_WORK/tree.tar results=$RESULTS run system all systems
  local threads=4
  local -A at=()
  make_archive "$archive"
  chosen "${PM_SYSTEMS[@]}"
  for system in "${all[@]}"; do
    volume "$system"
    at[$system]=$MOUNTED
  done
  # Run 0 warms up and does not count.
  for ((run = 0; run <= runs; run++)); do
    say "$(date +%T) mounted: run $run of $runs"
    in_turns "$run" "${all[@]}"
    RESULTS=$results
    if ((run == 0)); then RESULTS=/dev/null; fi
    each smallfile-1 files/s higher "$small" smallfile DIR "$small" 1
    each smallfile-4 files/s higher "$small" smallfile DIR "$small" 4
    each log records/s higher "$records" log DIR "$records"
    each overwrites blocks/s higher "$blocks" overwrites DIR "$blocks"
    each append MiB/s higher "$mib" append DIR "$mib"
    each largefile MiB/s higher "$overwritten" largefile DIR "$overwritten"
    each untar files/s higher 5000 untar "$archive" DIR
    each remove files/s higher 5000 remove DIR/tree
    each varmail rounds/s higher "$mails" varmail DIR "$mails" "$threads"
    each fileserver rounds/s higher "$rounds" fileserver DIR "$files" "$rounds" "$threads"
    each webserver rounds/s higher "$rounds" webserver DIR "$files" "$rounds" "$threads"
    each webproxy rounds/s higher "$rounds" webproxy DIR "$files" "$rounds" "$threads"
  done
  RESULTS=$results
  for system in "${all[@]}"; do unvolume "$system"; done
  about+=("image_mib=$PM_IMAGE_MIB" "files=$small" "append_mib=$mib" "overwritten_mib=$overwritten" "records=$records"
    "blocks=$blocks" "mails=$mails" "mix_files=$files" "mix_rounds=$rounds" "mix_threads=$threads")
}

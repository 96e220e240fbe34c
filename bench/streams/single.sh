# What order costs within one stream (ccfs §4.3, figure 5). Sourced by bench/streams.sh.
# shellcheck shell=bash disable=SC2034,SC2154
#
# Filebench's personalities as bench/load has them, with the paper's parameters but less data: the paper's files are 10 to 60
# times the numbers here. `-written` is what reached the disk until all was durable, `-cpu` the time of all processors of the
# machine meanwhile, which says something only if nothing else runs. Both include the files that the mixes begin with.

cpu_seconds() { awk -v hz="$(getconf CLK_TCK)" '/^cpu / { printf "%.6f", ($2 + $3 + $4 + $7 + $8) / hz }' /proc/stat; }

# single ROW AMOUNT COMMAND…: each system in this run's order.
single() {
  local row=$1 amount=$2 system seconds before after cpu
  shift 2
  wanted "$row" || return 0
  for system in "${systems[@]}"; do
    mkdir -p "${AT[$system]}/run"
    # Random writes go to a file that is there.
    if [ "$row" = randwrite ]; then "$LOAD" fill "${AT[$system]}/run/file" 200 >/dev/null; fi
    settle "$system"
    before=$(counts "$system")
    cpu=$(cpu_seconds)
    seconds=$("$LOAD" "${@//DIR/${AT[$system]}/run}") || die "$row on $system failed"
    settle "$system"
    after=$(counts "$system")
    cpu=$(awk -v a="$cpu" -v b="$(cpu_seconds)" 'BEGIN { printf "%.6f", b - a }')
    record "$row-$backing" ops/s higher "$system" "$(rate "$amount" "$seconds")"
    record "$row-written-$backing" MiB lower "$system" "$(since "$before" "$after" | awk '{ printf "%.3f", $2 / 1048576 }')"
    record "$row-cpu-$backing" us lower "$system" "$(awk -v s="$cpu" -v n="$amount" 'BEGIN { printf "%.3f", s * 1e6 / n }')"
    rm -rf "${AT[$system]}/run"
    settle "$system"
  done
}

streams_single() {
  local results=$RESULTS run system systems backing scale=1
  if [ -n "$quick" ]; then scale=20; fi
  for backing in ${STEADFAST_BENCH_BACKINGS:-disk}; do
    volume steadfast ordered "$backing"
    volume metadata-prefix metadata-prefix "$backing"
    volume ext4 ext4 "$backing"
    volume ext4-journal ext4-journal "$backing"
    for ((run = 0; run <= runs; run++)); do
      begins "$run" steadfast metadata-prefix ext4 ext4-journal
      single varmail $((4000 / scale)) varmail DIR $((4000 / scale)) 16
      single randwrite $((20000 / scale)) randwrite DIR/file 200 $((20000 / scale))
      single createfiles $((20000 / scale)) createfiles DIR $((20000 / scale)) 64
      single seqwrite $((800 / scale)) append DIR $((800 / scale))
      single fileserver $((4000 / scale)) fileserver DIR 2000 $((4000 / scale)) 50
      single webserver $((4000 / scale)) webserver DIR 2000 $((4000 / scale)) 100
    done
    for system in "${systems[@]}"; do unvolume "$system"; done
  done
  RESULTS=$results
  about+=("scale=1/$scale")
}

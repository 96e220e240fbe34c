# One stream's large writes beside another's small fsync (ccfs §4.2, table 3 and figure 4). Sourced by bench/streams.sh.
# shellcheck shell=bash disable=SC2034,SC2154
#
# A writes a large file; B appends a byte to a small one and calls fsync; then A truncates its file, or overwrites it, or
# nothing. `steadfast` has A and B in two streams, `one-stream` in one.

# stream_of SYSTEM NAME: the stream of process NAME.
stream_of() { if [ "$1" = steadfast ]; then echo "$2"; fi; }

beside_once() {
  local row=$1 system=$2 mib=$3 dir=${AT[$2]} alone seconds before at end
  mkdir -p "$dir/a" "$dir/b"
  in_stream "$system" "$(stream_of "$system" b)" "$LOAD" byte "$dir/b/file" >/dev/null
  settle "$system"
  alone=$(in_stream "$system" "$(stream_of "$system" b)" "$LOAD" byte "$dir/b/file")
  settle "$system"
  before=$(counts "$system")
  in_stream "$system" "$(stream_of "$system" a)" "$LOAD" fill "$dir/a/file" "$mib" >/dev/null
  seconds=$(in_stream "$system" "$(stream_of "$system" b)" "$LOAD" byte "$dir/b/file")
  at=$(counts "$system")
  case $row in
    truncate) in_stream "$system" "$(stream_of "$system" a)" "$LOAD" truncate "$dir/a/file" >/dev/null ;;
    overwrite) in_stream "$system" "$(stream_of "$system" a)" "$LOAD" fill "$dir/a/file" "$mib" >/dev/null ;;
  esac
  settle "$system"
  end=$(counts "$system")
  record "$row-alone-$backing" ms lower "$system" "$(rate "$alone" 0.001)"
  record "$row-fsync-$backing" ms lower "$system" "$(rate "$seconds" 0.001)"
  record "$row-written-by-fsync-$backing" KiB lower "$system" "$(since "$before" "$at" | awk '{ printf "%.1f", $2 / 1024 }')"
  record "$row-written-$backing" MiB lower "$system" "$(since "$before" "$end" | awk '{ printf "%.3f", $2 / 1048576 }')"
  rm -rf "$dir/a" "$dir/b"
  settle "$system"
}

streams_beside() {
  local results=$RESULTS run system systems backing row mib=100
  if [ -n "$quick" ]; then mib=20; fi
  for backing in ${STEADFAST_BENCH_BACKINGS:-disk memory}; do
    volume steadfast ordered "$backing"
    volume one-stream ordered "$backing"
    volume ext4 ext4 "$backing"
    for ((run = 0; run <= runs; run++)); do
      begins "$run" steadfast one-stream ext4
      for row in append truncate overwrite; do
        wanted "$row" || continue
        for system in "${systems[@]}"; do beside_once "$row" "$system" "$mib"; done
      done
    done
    for system in "${systems[@]}"; do unvolume "$system"; done
  done
  RESULTS=$results
  about+=("beside_mib=$mib")
}

# A appends 20 MB each second; B appends a byte and calls fsync twice a second.
streams_paced() {
  local results=$RESULTS system systems backing=disk seconds=120 job file
  if [ -n "$quick" ]; then seconds=5; fi
  for system in steadfast one-stream ext4; do
    STREAMS_MIB=$((20 * seconds + 1024)) volume "$system" "$([ "$system" = ext4 ] && echo ext4 || echo ordered)" "$backing"
    in_stream "$system" "$(stream_of "$system" a)" "$LOAD" paced "${AT[$system]}/a" 20 "$seconds" >/dev/null &
    job=$!
    file=$DISK_WORK/paced-$system
    in_stream "$system" "$(stream_of "$system" b)" "$LOAD" bytes "${AT[$system]}/b" $((2 * seconds)) 500 >"$file"
    wait "$job" || die "the paced writer of $system failed"
    sort -g "$file" | awk '{ t[NR] = $1 } END { print t[int((NR + 1) / 2)] * 1000, t[int(NR * 0.99 + 0.5)] * 1000, t[NR] * 1000 }' |
      while read -r median high most; do
        record paced-median-disk ms lower "$system" "$median"
        record paced-p99-disk ms lower "$system" "$high"
        record paced-worst-disk ms lower "$system" "$most"
      done
    say "$system: fsyncs by time"
    awk '{ ms = $1 * 1000; for (b = 1; b < ms; b *= 2); n[b]++ } END { for (b = 1; b <= 65536; b *= 2) if (n[b]) printf "  up to %6d ms: %d\n", b, n[b] }' "$file"
    unvolume "$system"
  done
  RESULTS=$results
  about+=("paced_seconds=$seconds")
}

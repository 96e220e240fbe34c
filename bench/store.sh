# The measurement `store`: volumes on an object store beside raw requests of the same bytes to the same store, and beside mounts that
# others make of buckets. Sourced by bench/run.
# shellcheck shell=bash disable=SC2034,SC2154
#
# The store is versitygw on a directory, on loopback; rows with `-file` are of a directory as the store (file://). With
# STEADFAST_BENCH_DELAY=MS a proxy before the store adds so many milliseconds to each answer, for all systems alike.

# shellcheck source-path=SCRIPTDIR source=../scripts/store-lib.sh
. "$root/scripts/store-lib.sh"
# shellcheck source-path=SCRIPTDIR source=load/repository.sh
. "$root/bench/load/repository.sh"

RUNS=5
QUICK_RUNS=1

prepare_store() {
  local reason
  find_gateway
  reason=$(fuse_reason)
  [ -z "$reason" ] || unable "cannot mount here: $reason"
  build_release
  build_driver store
  STORE=$DRIVER
  BUCKETS=$DISK_WORK/buckets
  mkdir -p "$BUCKETS/bench" "$BUCKETS/s3backer" "$BUCKETS/s3fs" "$BUCKETS/rclone" "$DISK_WORK/files"
  start_gateway "$BUCKETS"
  if [ -n "${STEADFAST_BENCH_DELAY:-}" ]; then start_proxy "$STEADFAST_BENCH_DELAY"; fi
  export AWS_ENDPOINT_URL=$ENDPOINT
}

# start_proxy MS: puts a proxy before ENDPOINT, which adds MS milliseconds to each answer.
start_proxy() {
  local said=$DISK_WORK/proxy proxy
  "$STORE" proxy "${ENDPOINT##*:}" "$1" >"$said" &
  proxy=$!
  on_exit stop_process "$proxy"
  await --alive "$proxy" test -s "$said" || die "the proxy does not start"
  ENDPOINT=http://127.0.0.1:$(cat "$said")
}

take() {
  local suffix=$1
  shift
  "$STORE" "$@" >"$DISK_WORK/taken" || die "store $* failed"
  awk -v OFS='\t' -F '\t' -v suffix="$suffix" '{ $1 = $1 suffix; print }' "$DISK_WORK/taken" >>"$RESULTS"
}

bench_store() {
  local commits=300 mib=256 reads=600 all=1024 bulk=1024 rounds=500 run where peers=() peer
  if [ -n "$quick" ]; then commits=50 mib=64 reads=100 all=64 bulk=64 rounds=20; fi
  for peer in s3backer s3fs rclone; do
    if command -v "$peer" >/dev/null; then peers+=("$peer"); else warn "$peer is missing (apt-get install $peer): its rows are left out"; fi
  done
  for ((run = 0; run < runs; run++)); do
    say "$(date +%T) run $((run + 1)) of $runs"
    for where in "s3://bench/$run " "file://$DISK_WORK/files/$run -file"; do
      take "${where#* }" commit "${where%% *}" "$commits"
      take "${where#* }" sequential "${where%% *}" "$bulk"
      take "${where#* }" random "${where%% *}" "$((mib / 2))" "$reads"
      take "${where#* }" requests "${where%% *}" "$all"
      rm -rf "$BUCKETS/bench/$run" "$DISK_WORK/files/$run"
    done
    take "" warm "s3://bench/$run" "$((mib / 2))" "$DISK_WORK/cache-$run" "$DISK_WORK/plain-$run"
    take "" window "s3://bench/$run" "$((commits * 4))"
    take "" recovery "s3://bench/$run"
    take "" coded "s3://bench/$run" "$bulk"
    take "" overwrite "s3://bench/$run" "$((all * 7 / 10))"
    # A part of the map is too small to measure in a quick run.
    if [ "$run$quick" = 0 ]; then take "" map "file://$DISK_WORK/files/map" "$((all / 32))"; fi
    rm -rf "$BUCKETS/bench/$run" "$DISK_WORK/files/map" "$DISK_WORK/cache-$run" "$DISK_WORK/plain-$run"
    in_turns "$run" steadfast steadfast-disk "${peers[@]}"
    for peer in "${systems[@]}"; do synced "$peer" "$run"; done
    shared_flushes "$run"
    cached_flushes "$run"
    programs "$run" "$rounds"
  done
  # A table of ratios has no place for zeros: they are named beside it, with how often they came.
  awk -F '\t' '$5 == 0 { print $1 "/" $4 }' "$RESULTS" | sort | uniq -c | awk '{ print $2 ":" $1 }' >"$DISK_WORK/zeros"
  awk -F '\t' '$5 != 0' "$RESULTS" >"$RESULTS.rest"
  mv "$RESULTS.rest" "$RESULTS"
  report "store=versitygw-1.8.0" "delay_ms=${STEADFAST_BENCH_DELAY:-0}" "zero=$(paste -sd, "$DISK_WORK/zeros")"
}

# ---------------------------------------------------------------- peers

SYNCS=60

# serve_peer SYSTEM RUN [again]: mounts a bucket, which is made unless it is mounted again. Sets AT, a file to write to, BUCKET, where the
# store keeps it, and PEER, its process.
serve_peer() {
  local system=$1 run=$2 again=${3:-} dir=$DISK_WORK/mnt-$1
  mkdir -p "$dir"
  on_exit detach "$dir"
  BUCKET=$BUCKETS/$system
  case $system in
    steadfast)
      BUCKET=$BUCKETS/bench/peer-$run
      [ -n "$again" ] || "$STEADFAST" mkfs --size 1G --on "s3://bench/peer-$run" >/dev/null || die "mkfs failed"
      sf_serve "s3://bench/peer-$run" "$dir" "$DISK_WORK/$system.log"
      AT=$dir/file PEER=$SERVER
      ;;
    steadfast-disk)
      BUCKET=$BUCKETS/bench/disk-$run
      [ -n "$again" ] || "$STEADFAST" mkfs --size 1G --on "s3://bench/disk-$run" >/dev/null || die "mkfs failed"
      "$STEADFAST" serve disk --fuse "$dir" "s3://bench/disk-$run" >"$DISK_WORK/$system.log" 2>&1 &
      PEER=$! AT=$dir/disk
      on_exit stop_process "$PEER"
      ;;
    s3backer)
      printf '%s:%s\n' "$AWS_ACCESS_KEY_ID" "$AWS_SECRET_ACCESS_KEY" >"$DISK_WORK/s3backer.key"
      chmod 600 "$DISK_WORK/s3backer.key"
      s3backer -f --accessFile="$DISK_WORK/s3backer.key" --baseURL="$ENDPOINT/" --blockSize=128k --size=1g --force \
        --prefix="$run-" --quiet s3backer "$dir" >"$DISK_WORK/$system.log" 2>&1 &
      PEER=$! AT=$dir/file
      on_exit stop_process "$PEER"
      ;;
    s3fs)
      printf '%s:%s\n' "$AWS_ACCESS_KEY_ID" "$AWS_SECRET_ACCESS_KEY" >"$DISK_WORK/s3fs.key"
      chmod 600 "$DISK_WORK/s3fs.key"
      s3fs s3fs "$dir" -f -o "passwd_file=$DISK_WORK/s3fs.key,url=$ENDPOINT,use_path_request_style" >"$DISK_WORK/$system.log" 2>&1 &
      PEER=$! AT=$dir/file-$run
      on_exit stop_process "$PEER"
      ;;
    rclone)
      # Its client takes no bundle of certificates from there.
      env -u AWS_CA_BUNDLE rclone mount --vfs-cache-mode writes --cache-dir "$DISK_WORK/rclone-cache" --config /dev/null \
        ":s3,provider=Other,env_auth=true,endpoint='$ENDPOINT':rclone" "$dir" >"$DISK_WORK/$system.log" 2>&1 &
      PEER=$! AT=$dir/file-$run
      on_exit stop_process "$PEER"
      ;;
  esac
  await --alive "$PEER" mountpoint -q "$dir" || { tail -n 3 "$DISK_WORK/$system.log" >&2; return 1; }
}

# synced SYSTEM RUN: 4 KiB written and synced, many times; and whether the last of them was in the bucket when fsync had returned.
synced() {
  local system=$1 run=$2 row=fsync-4k
  # A file of a file system, or a disk's blocks: two kinds.
  case $system in steadfast-disk|s3backer) row=fsync-4k-disk ;; esac
  if ! serve_peer "$system" "$run"; then
    case $system in steadfast*) die "$system does not mount" ;; esac
    warn "$system does not mount here: its rows are left out"
    return
  fi
  python3 - "$AT" "$BUCKET" "$row" "${system%-disk}" "$SYNCS" >>"$RESULTS" <<'PYTHON' || die "$system: writes fail"
import os, sys, time
at, bucket, row, system, count = *sys.argv[1:5], int(sys.argv[5])

def kept(token):
    for folder, _, names in os.walk(bucket):
        for name in names:
            try:
                with open(os.path.join(folder, name), "rb") as file:
                    if token in file.read():
                        return True
            except FileNotFoundError:
                pass
    return False

fd = os.open(at, os.O_RDWR | os.O_CREAT, 0o644)
times, found, looks = [], 0, 0
for i in range(count):
    token = os.urandom(64)
    block = token * 64
    begun = time.monotonic()
    os.pwrite(fd, block, (i * 37 % 64) * 4096)
    os.fsync(fd)
    times.append((time.monotonic() - begun) * 1000)
    if i % 10 == 9:
        looks += 1
        found += kept(token)
os.close(fd)
times.sort()
print(row + "-p50", "ms", "lower", system, times[len(times) // 2], sep="\t")
print(row + "-p99", "ms", "lower", system, times[len(times) * 99 // 100], sep="\t")
print(row + "-kept", "share", "higher", system, found / looks, sep="\t")
PYTHON
  streamed "$system" write
  end_peer "$system"
  # What it kept in memory is gone; what it keeps in files of its own is not.
  if serve_peer "$system" "$run" again; then streamed "$system" read; else warn "$system does not mount again: a row is left out"; fi
  end_peer "$system"
  rm -rf "${BUCKETS:?}/bench/peer-$run" "${BUCKETS:?}/bench/disk-$run"
}

end_peer() {
  "$STEADFAST" umount "$DISK_WORK/mnt-$1" >/dev/null 2>&1 || umount "$DISK_WORK/mnt-$1" 2>/dev/null || true
  detach "$DISK_WORK/mnt-$1"
  await_process "$PEER" 60 || true
}

# failed SYSTEM ROW: the end of the measurement, unless it is a peer's row.
failed() {
  case $1 in steadfast*) die "$1: $2 fails" ;; esac
  warn "$1: $2 fails"
}

# streamed SYSTEM write|read: a file or a disk in order, in pieces of 1 MiB, with a sync after writing.
streamed() {
  local system=$1 row=mount-$2
  case $system in steadfast-disk|s3backer) row=$row-disk ;; esac
  python3 - "$AT" "$2" "$row" "${system%-disk}" "${quick:+16}" >>"$RESULTS" <<'PYTHON' || failed "$system" "$row"
import os, random, sys, time
at, way, row, system = sys.argv[1:5]
pieces = int(sys.argv[5] or 128)
if row.endswith("-disk"):
    fd = os.open(at, os.O_RDWR)
else:
    fd = os.open(at + "-large", os.O_RDWR | os.O_CREAT, 0o644)
data = [random.Random(i).randbytes(1 << 20) for i in range(8)]
begun = time.monotonic()
for i in range(pieces):
    if way == "write":
        os.pwrite(fd, data[i % 8], i << 20)
    else:
        assert os.pread(fd, 1 << 20, i << 20) == data[i % 8], f"{system}: other bytes in MiB {i}"
if way == "write":
    os.fsync(fd)
taken = time.monotonic() - begun
os.close(fd)
print(row, "MiB/s", "higher", system, pieces / taken, sep="\t")
PYTHON
}

# ---------------------------------------------------------------- flushes that share a request

# Small files with fsync by 1 and 64 threads through FUSE: files a second, and PUTs for each fsync; by 64 also with a gap of 5 ms
# between commits.
shared_flushes() {
  local run=$1
  shared "$run" "" 1 64
  shared "$run" -gap 64 -o commit_gap=5ms
}

# shared RUN SUFFIX THREADS [THREADS] [OPTION...]
shared() {
  local url=s3://bench/shared-$1 suffix=$2 counts=() threads files puts before dir=$DISK_WORK/mnt-shared seconds memory
  shift 2
  while [[ ${1:-} == [0-9]* ]]; do
    counts+=("$1")
    shift
  done
  mkdir -p "$dir"
  "$STEADFAST" mkfs --size 1G --on "$url" >/dev/null || die "mkfs failed"
  sf_serve "$url" "$dir" "$DISK_WORK/shared.log" "$@"
  for threads in "${counts[@]}"; do
    files=$((threads * 20))
    if [ "$threads" = 1 ]; then files=200; fi
    mkdir -p "$dir/$threads"
    before=$(store_puts "$dir")
    seconds=$("$LOAD" smallfile "$dir/$threads" "$files" "$threads") || die "smallfile failed"
    puts=$(($(store_puts "$dir") - before))
    record "smallfile-$threads$suffix" files/s higher steadfast "$(awk -v n="$files" -v s="$seconds" 'BEGIN { print n / s }')"
    record "puts-per-fsync-$threads$suffix" PUTs lower steadfast "$(awk -v n="$files" -v p="$puts" 'BEGIN { print p / n }')"
  done
  memory=$(awk '/^VmRSS/ { print $2 / 1024 }' "/proc/$SERVER/status")
  record "memory-after-${counts[-1]}$suffix" MiB lower steadfast "$memory"
  sf_umount "$dir"
  rm -rf "${BUCKETS:?}/bench/${url##*/}"
}

# Programs on a volume on the store, and on an image beside it.
programs() {
  local run=$1 rounds=$2 system dir=$DISK_WORK/mnt-programs repository=$DISK_WORK/repository seconds
  local url=s3://bench/programs-$run image=$DISK_WORK/image-$run
  [ -d "$repository" ] || make_repository "$repository"
  mkdir -p "$dir"
  in_turns "$run" steadfast image
  for system in "${systems[@]}"; do
    if [ "$system" = image ]; then
      "$STEADFAST" mkfs --size 1G "$image" >/dev/null || die "mkfs failed"
      sf_serve "$image" "$dir" "$DISK_WORK/programs.log"
    else
      "$STEADFAST" mkfs --size 1G --on "$url" >/dev/null || die "mkfs failed"
      sf_serve "$url" "$dir" "$DISK_WORK/programs.log"
    fi
    mkdir "$dir/mail"
    seconds=$("$LOAD" varmail "$dir/mail" "$rounds" 4) || die "varmail failed"
    record varmail rounds/s higher "$system" "$(awk -v n="$rounds" -v s="$seconds" 'BEGIN { print n / s }')"
    seconds=$("$LOAD" clone "$repository" "$dir/clone") || die "clone failed"
    record clone ms lower "$system" "$(awk -v s="$seconds" 'BEGIN { print s * 1000 }')"
    sf_umount "$dir"
  done
  rm -rf "${BUCKETS:?}/bench/programs-$run" "$image"
}

# The same through a volume with flush=cache, and through an image beside its cache: files a second.
cached_flushes() {
  local run=$1 system dir=$DISK_WORK/mnt-cached threads files
  local url=s3://bench/cached-$run cache=$DISK_WORK/cached-$run image=$DISK_WORK/image-$run
  in_turns "$run" steadfast image
  for system in "${systems[@]}"; do
    if [ "$system" = image ]; then
      "$STEADFAST" mkfs --size 1G "$image" >/dev/null || die "mkfs failed"
      sf_serve "$image" "$dir" "$DISK_WORK/cached.log"
    else
      truncate -s 1G "$cache"
      "$STEADFAST" mkfs --size 1G --flush cache --on "$url" >/dev/null || die "mkfs failed"
      sf_serve "$url" "$dir" "$DISK_WORK/cached.log" -o "cache=$cache,flush=cache"
    fi
    for threads in 1 64; do
      files=$((threads == 1 ? 400 : threads * 20))
      mkdir -p "$dir/$threads"
      record "smallfile-cached-$threads" files/s higher "$system" \
        "$("$LOAD" smallfile "$dir/$threads" "$files" "$threads" | awk -v n="$files" '{ print n / $1 }')"
    done
    sf_umount "$dir"
  done
  rm -rf "${BUCKETS:?}/bench/cached-$run" "$cache" "$image"
}

store_puts() {
  "$STEADFAST" stat --json "$1" | python3 -c '
import json, sys
def find(value):
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "store_puts": return inner
            found = find(inner)
            if found is not None: return found
    if isinstance(value, list):
        for inner in value:
            found = find(inner)
            if found is not None: return found
print(find(json.load(sys.stdin)) or 0)'
}

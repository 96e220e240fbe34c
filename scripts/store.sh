#!/usr/bin/env bash
# Volumes on a real object store: versitygw on a directory, over two of its processes.
#
#   scripts/store.sh [--rounds N] [--only probe|volume|cuts|takeover|snapshots|azure|bad] [--keep]
#
#   --rounds N   number of kills of the writer [default: 6]
#   --only W     one part alone
#   --keep       keep the working directory for inspection
#
# probe      the store keeps the rules, also when 32 writers race over both of its endpoints.
# volume     mkfs, mount, files, SQLite and git on top, umount, fsck, store check; it grows, and is read twice with a cache of reads.
# cuts       a loop of write, fsync and note; the writer is killed (SIGKILL) in the middle of it. After the next mount every noted
#            file is there and whole, fsck and store check find nothing.
# takeover   a second machine takes the volume over while the first stands still (SIGSTOP) in the middle of its writes: when it goes
#            on it is fenced, gets EIO, and what it was told is durable is there.
# snapshots  a snapshot and a clone stay what they were while the volume goes on and is collected; deleted, their space is freed.
# azure      probe, cuts and snapshots on Azurite, a server of Azure's protocol, where it is installed.
# bad        stores that only look right (moto, s3s-fs) are refused by the probe, where they are installed.
#
# versitygw is looked for on the path, in $VERSITYGW, and where 'go install' puts it:
#   go install github.com/versity/versitygw/cmd/versitygw@v1.8.0
# Azurite: npm install -g azurite@3.37.0, or $AZURITE, its command azurite-blob.
# Exits 0, 1 (something was lost or is broken) or 3 (something needed is missing).
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"
# shellcheck source-path=SCRIPTDIR source=store-lib.sh
. "$here/store-lib.sh"

arguments=("$@")
rounds=6
only=
while [ $# -gt 0 ]; do
  case $1 in
    --rounds) rounds=${2:?"--rounds needs a number"}; shift 2 ;;
    --only) only=${2:?"--only needs a part"}; shift 2 ;;
    --keep) export KEEP_WORK=1; shift ;;
    -h|--help) sed -n '2,25s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) warn "unknown option '$1' (see --help)"; exit 2 ;;
  esac
done
case $only in
  ''|probe|volume|cuts|takeover|snapshots|azure|bad) ;;
  *) warn "--only takes 'probe', 'volume', 'cuts', 'takeover', 'snapshots', 'azure' or 'bad', not '$only'"; exit 2 ;;
esac
wants() { [ -z "$only" ] || [ "$only" = "$1" ]; }

[ "$only" = azure ] || find_gateway
reason=$(fuse_reason)
[ -z "$reason" ] || unable "cannot mount here: $reason"
# Mounts of its own: nobody else's mount namespace keeps them busy.
if [ -z "${STEADFAST_STORE_INSIDE:-}" ] && [ "$(id -u)" = 0 ]; then
  STEADFAST_STORE_INSIDE=1 exec unshare --mount --propagation private "$here/store.sh" "${arguments[@]}"
fi
[ -n "$GIVEN_STEADFAST" ] || build_release

make_workdir "${TMPDIR:-/tmp}"
if [ "$only" != azure ]; then
  mkdir -p "$WORK/store/bucket"
  start_gateway "$WORK/store"
  other=$ENDPOINT
  start_gateway "$WORK/store"
  export AWS_ENDPOINT_URL=$ENDPOINT
fi
MNT=$WORK/mnt
failed=0
wrong() { warn "$*"; failed=1; }

store_check() {
  local found
  found=$("$STEADFAST" store check "$1" 2>&1) || wrong "store check $1: $found"
}

part_probe() {
  step "probe"
  "$STEADFAST" store probe s3://bucket/probe --endpoint "$AWS_ENDPOINT_URL" --endpoint "$other" || wrong "a good store was refused"
  [ -z "$(find "$WORK/store/bucket" -path '*probe*' -type f)" ] || wrong "the probe left objects"
}

part_volume() {
  step "volume"
  local url=s3://bucket/volume round
  "$STEADFAST" mkfs --size 2G --on "$url" -L store || die "mkfs failed"
  if "$STEADFAST" mkfs --size 2G --on "$url" 2>/dev/null; then wrong "a volume was overwritten"; fi
  if "$STEADFAST" mkfs --size 2G --on "$url/inside" 2>/dev/null; then wrong "a volume was made inside of another"; fi
  sf_mount "$url" "$MNT"
  if "$STEADFAST" mount "$url" "$WORK/second" 2>/dev/null; then wrong "a volume was mounted twice"; fi
  head -c 50000000 /dev/urandom >"$WORK/random"
  cp "$WORK/random" "$MNT/random"
  if command -v sqlite3 >/dev/null; then
    sqlite3 "$MNT/db" 'create table t (n integer); insert into t values (1), (2), (3)' || wrong "sqlite3 failed"
  else
    say "sqlite3 is missing, left out"
  fi
  if command -v git >/dev/null; then
    git init -q "$MNT/repository"
    git -C "$MNT/repository" -c user.name=n -c user.email=e commit -q --allow-empty -m message || wrong "git failed"
  else
    say "git is missing, left out"
  fi
  sf_umount "$MNT"
  "$STEADFAST" store info "$url"
  sf_fsck "$url"
  store_check "$url"
  sf_mount "$url" "$MNT" -o ro
  cmp "$WORK/random" "$MNT/random" || wrong "a file came back changed"
  if [ -e "$MNT/db" ]; then [ "$(sqlite3 -readonly "file:$MNT/db?immutable=1" 'select sum(n) from t')" = 6 ] || wrong "a database came back changed"; fi
  if [ -e "$MNT/repository" ]; then git -C "$MNT/repository" fsck --no-progress >/dev/null || wrong "a repository came back changed"; fi
  sf_umount "$MNT"
  # It grows; what was read stays on a cache, so the second time nothing of the file is fetched.
  "$STEADFAST" grow --size 3G "$url" || wrong "the volume does not grow"
  sf_fsck "$url"
  for round in 1 2; do
    sf_mount "$url" "$MNT" -o "cache=$WORK/reads"
    cmp "$WORK/random" "$MNT/random" || wrong "a file came back changed from the cache"
    "$STEADFAST" stat "$MNT" | grep -E 'store (gets|get bytes|cached reads)' || true
    sf_umount "$MNT"
  done
}

# Writes numbered files with fsync; each number is noted, outside, when fsync has returned. Ends with the first error.
write_loop() {
  python3 - "$1" "$2" <<'PYTHON'
import os, sys
directory, notes = sys.argv[1], open(sys.argv[2], "a", buffering=1)
number = 0
while True:
    number += 1
    path = f"{directory}/{os.getpid()}-{number}"
    data = (f"{number} " * 700).encode()
    try:
        fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
        os.write(fd, data)
        os.fsync(fd)
        os.close(fd)
    except OSError as error:
        notes.write(f"error {error.errno}\n")
        sys.exit(0)
    notes.write(f"{os.getpid()}-{number}\n")
PYTHON
}

# Every noted file is there and whole.
compare() {
  python3 - "$1" "$2" <<'PYTHON'
import sys
directory, notes = sys.argv[1], open(sys.argv[2])
lost, checked = [], 0
for line in notes:
    name = line.strip()
    if line.startswith("error") or not line.endswith("\n"):
        continue
    number = name.split("-")[1]
    checked += 1
    try:
        whole = open(f"{directory}/{name}").read() == f"{number} " * 700
    except OSError:
        whole = False
    if not whole:
        lost.append(name)
print(f"{checked} files that fsync acknowledged, {len(lost)} lost")
sys.exit(1 if lost or not checked else 0)
PYTHON
}
has_notes() { [ "$(wc -l <"$1")" -ge "$2" ]; }

part_cuts() {
  step "cuts: the writer is killed $rounds times"
  local url=${1:-s3://bucket}/cuts round writer
  "$STEADFAST" mkfs --size 1G --on "$url" >/dev/null || die "mkfs failed"
  : >"$WORK/notes"
  for ((round = 1; round <= rounds; round++)); do
    sf_serve "$url" "$MNT" "$WORK/cuts.log"
    compare "$MNT" "$WORK/notes" >"$WORK/compared" || ((round == 1)) || wrong "after kill $((round - 1)): $(cat "$WORK/compared")"
    ((round == 1)) || say "after kill $((round - 1)): $(cat "$WORK/compared")"
    write_loop "$MNT" "$WORK/notes" &
    writer=$!
    await --alive "$writer" has_notes "$WORK/notes" $((round * 40)) || wrong "the writer ended early"
    kill -KILL "$SERVER"
    wait "$SERVER" 2>/dev/null || true
    await_process "$writer" 60
    "$STEADFAST" umount "$MNT" 2>/dev/null || true
    detach "$MNT"
    store_check "$url"
  done
  sf_mount "$url" "$MNT"
  compare "$MNT" "$WORK/notes" || wrong "after the last kill files are lost"
  sf_umount "$MNT"
  sf_fsck "$url"
  store_check "$url"
}

# shellcheck disable=SC2317 # called by its name
resume() { kill -CONT "$1" 2>/dev/null || true; }

part_takeover() {
  step "takeover: the old writer is fenced"
  local url=s3://bucket/takeover writer status=0
  "$STEADFAST" mkfs --size 1G --on "$url" >/dev/null || die "mkfs failed"
  : >"$WORK/notes"
  sf_serve "$url" "$MNT" "$WORK/first.log"
  write_loop "$MNT" "$WORK/notes" &
  writer=$!
  await --alive "$writer" has_notes "$WORK/notes" 30 || wrong "the writer ended early"
  # The first machine stands still, as a suspended one does, and wakes up fenced.
  kill -STOP "$SERVER"
  on_exit resume "$SERVER"
  # The second machine: the other endpoint, another mount.
  mkdir -p "$WORK/second"
  on_exit detach "$WORK/second"
  "$STEADFAST" mount -o "take_over,endpoint=$other" "$url" "$WORK/second" || die "the take-over failed"
  echo second >"$WORK/second/second"
  kill -CONT "$SERVER"
  await_process "$writer" 60
  grep -q '^error 5$' "$WORK/notes" || wrong "the fenced writer got no EIO: $(tail -1 "$WORK/notes")"
  if (: >"$MNT/late") 2>/dev/null && sync -f "$MNT/late" 2>/dev/null; then wrong "the fenced writer acknowledged a file"; fi
  compare "$WORK/second" "$WORK/notes" || wrong "files are lost in the take-over"
  [ ! -e "$WORK/second/late" ] || wrong "a write of the fenced writer shows"
  "$STEADFAST" umount "$MNT" 2>/dev/null || status=$?
  ((status != 0)) || wrong "umount of the fenced volume reports success"
  detach "$MNT"
  sf_umount "$WORK/second"
  sf_fsck "$url"
  store_check "$url"
}

part_snapshots() {
  step "snapshots"
  local url=${1:-s3://bucket}/origin copy=${1:-s3://bucket}/copy
  "$STEADFAST" mkfs --size 1G --on "$url" >/dev/null || die "mkfs failed"
  sf_mount "$url" "$MNT"
  head -c 30000000 /dev/urandom >"$WORK/first"
  cp "$WORK/first" "$MNT/file"
  sf_umount "$MNT"
  "$STEADFAST" store snapshot create "$url" one || wrong "no snapshot"
  "$STEADFAST" store clone "$url@one" "$copy" || wrong "no clone"
  sf_mount "$url" "$MNT"
  head -c 30000000 /dev/urandom >"$MNT/file"
  sf_umount "$MNT"
  "$STEADFAST" store gc "$url" || wrong "gc failed"
  sf_mount "$url@one" "$MNT" -o ro
  cmp "$WORK/first" "$MNT/file" || wrong "the snapshot changed"
  sf_umount "$MNT"
  sf_mount "$copy" "$MNT"
  cmp "$WORK/first" "$MNT/file" || wrong "the clone is not the snapshot"
  echo clone >"$MNT/clone"
  sf_umount "$MNT"
  sf_fsck "$copy"
  store_check "$url"
  store_check "$copy"
  "$STEADFAST" store snapshot list "$url"
  "$STEADFAST" store snapshot delete "$url" one || wrong "no snapshot was deleted"
}

# Makes a container: the server wants each request signed.
make_container() {
  python3 - "$AZURE_STORAGE_ENDPOINT/$1" "$AZURE_STORAGE_ACCOUNT_NAME" "$AZURE_STORAGE_ACCOUNT_KEY" <<'PYTHON'
import base64, email.utils, hashlib, hmac, sys, urllib.parse, urllib.request
url, account, key = sys.argv[1:]
headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
resource = f"/{account}{urllib.parse.urlparse(url).path}\nrestype:container"
text = "PUT\n" + "\n" * 11 + "".join(f"{name}:{headers[name]}\n" for name in sorted(headers)) + resource
digest = hmac.new(base64.b64decode(key), text.encode(), hashlib.sha256).digest()
headers["Authorization"] = f"SharedKey {account}:{base64.b64encode(digest).decode()}"
headers["Content-Length"] = "0"
urllib.request.urlopen(urllib.request.Request(f"{url}?restype=container", method="PUT", headers=headers))
PYTHON
}

part_azure() {
  step "azure"
  local azurite=${AZURITE:-$(command -v azurite-blob || true)} port pid
  if [ -z "$azurite" ]; then
    say "azurite is missing (npm install -g azurite@3.37.0), left out"
    return
  fi
  port=$(free_port)
  # The account that every such server has, with a key that its documentation publishes.
  export AZURE_STORAGE_ACCOUNT_NAME=devstoreaccount1
  export AZURE_STORAGE_ACCOUNT_KEY=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==
  export AZURE_STORAGE_ENDPOINT=http://127.0.0.1:$port/$AZURE_STORAGE_ACCOUNT_NAME
  "$azurite" --silent --skipApiVersionCheck --disableTelemetry --blobHost 127.0.0.1 --blobPort "$port" --location "$WORK/azure" \
    >"$WORK/azurite.log" 2>&1 &
  pid=$!
  on_exit stop_process "$pid"
  await --alive "$pid" answers "$port" || die "azurite does not answer"
  make_container container || die "azurite makes no container"
  "$STEADFAST" store probe az://container/probe || wrong "a good store was refused"
  part_cuts az://container
  part_snapshots az://container
}

# refused NAME: the store at $AWS_ENDPOINT_URL is refused.
# A race is won by several only now and then: it is tried a few times.
refused() {
  local said i
  for ((i = 0; i < 5; i++)); do
    if ! said=$("$STEADFAST" store probe s3://bucket/probe --rounds 100 2>&1); then
      say "$1 is refused: ${said:0:300}"
      return
    fi
  done
  # Its window is narrow, and a busy machine hides it: no proof of anything.
  say "$1 was not refused in $i probes of 100 rounds"
}

part_bad() {
  step "bad stores"
  local port pid
  if command -v moto_server >/dev/null; then
    port=$(free_port)
    moto_server -H 127.0.0.1 -p "$port" >"$WORK/moto.log" 2>&1 &
    pid=$!
    on_exit stop_process "$pid"
    await --alive "$pid" answers "$port" || die "moto_server does not answer"
    python3 -c 'import sys, urllib.request as u; u.urlopen(u.Request(sys.argv[1], method="PUT"))' "http://127.0.0.1:$port/bucket"
    AWS_ENDPOINT_URL=http://127.0.0.1:$port refused moto
  else
    say "moto_server is missing (pip install 'moto[server]==5.2.5'), left out"
  fi
  if command -v s3s-fs >/dev/null; then
    port=$(free_port)
    mkdir -p "$WORK/s3s/bucket"
    s3s-fs --host 127.0.0.1 --port "$port" --access-key "$AWS_ACCESS_KEY_ID" --secret-key "$AWS_SECRET_ACCESS_KEY" "$WORK/s3s" \
      >"$WORK/s3s.log" 2>&1 &
    pid=$!
    on_exit stop_process "$pid"
    await --alive "$pid" answers "$port" || die "s3s-fs does not answer"
    AWS_ENDPOINT_URL=http://127.0.0.1:$port refused s3s-fs
  else
    say "s3s-fs is missing (cargo install s3s-fs --version 0.14.1 --features binary --locked), left out"
  fi
}

for part in probe volume cuts takeover snapshots azure bad; do
  if wants "$part"; then "part_$part"; fi
done
((failed == 0)) || die "something is wrong"
say "store: all parts passed"

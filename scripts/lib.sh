# Shared helpers of the scripts: messages, clean-up, building, mounting. Sourced, never run.
# shellcheck shell=bash disable=SC2034
#
# Every resource (mounts, loop devices, processes, files) is registered with `on_exit` at once and given back in
# reverse order when the script ends, whatever ended it.

set -euo pipefail
export LC_ALL=C.UTF-8

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
TARGET=${CARGO_TARGET_DIR:-$ROOT/target}
TOOLS=$TARGET/tools
# The binary under test; one given in the environment is taken as it is and not built.
GIVEN_STEADFAST=${STEADFAST:-}
STEADFAST=${STEADFAST:-$TARGET/release/steadfast}
# Commands for administrators are not on everyone's path.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

say()  { printf '%s\n' "$*"; }
step() { printf '\n==> %s\n' "$*"; }
warn() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
die()  { warn "$*"; exit 1; }
# Something outside the project is missing.
unable() { warn "$*"; exit 3; }

# ---------------------------------------------------------------- clean-up

EXIT_ACTIONS=()
on_exit() { EXIT_ACTIONS+=("$(printf '%q ' "$@")"); }

run_exit_actions() {
  local status=$? i
  trap '' INT TERM
  set +e
  cd /
  for ((i = ${#EXIT_ACTIONS[@]} - 1; i >= 0; i--)); do
    eval "${EXIT_ACTIONS[i]}"
  done
  exit "$status"
}
trap run_exit_actions EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# A private directory under $1, removed at the end. Sets WORK.
make_workdir() {
  local base=$1
  mkdir -p "$base"
  WORK=$(cd "$(mktemp -d "$base/steadfast.XXXXXX")" && pwd -P)
  on_exit remove_workdir "$WORK"
}
remove_workdir() {
  if [ -n "${KEEP_WORK:-}" ]; then warn "kept for inspection: $1"; return; fi
  # Never reach through a mount that is still there.
  rm -rf --one-file-system "$1"
}

# volume_workdir KIND [BASE]: such a directory for a volume of this kind; of one in persistent memory on tmpfs.
volume_workdir() {
  local base=${2:-${TMPDIR:-/tmp}}
  if [ "$1" = pm ]; then
    base=/dev/shm
    if [ ! -w "$base" ] || [ "$(stat -f -c %T "$base")" != tmpfs ]; then
      unable "a volume in persistent memory needs a tmpfs at $base here"
    fi
  fi
  make_workdir "$base"
}

# Where much is flushed: memory, if $1 MiB of it are free as files, else where temporary files go.
fast_base() {
  local free
  free=$(df --output=avail -m /dev/shm 2>/dev/null | tail -n 1)
  if [ -z "${TMPDIR:-}" ] && [ -w /dev/shm ] && ((${free:-0} >= $1)); then echo /dev/shm; else echo "${TMPDIR:-/tmp}"; fi
}

# Ends a child of this script, gently, then not. One that was waited for has no number of its own any more.
stop_process() {
  local pid=$1 i
  jobs -p | grep -qx "$pid" || return 0
  kill "$pid" 2>/dev/null || return 0
  for ((i = 0; i < 50; i++)); do
    kill -0 "$pid" 2>/dev/null || return 0
    sleep 0.1
  done
  kill -KILL "$pid" 2>/dev/null
  return 0
}

# Sets APART to a command that runs its arguments with mounts of their own, or to nothing where that needs more rights.
mounts_apart() {
  APART=()
  if [ "$(id -u)" = 0 ] && unshare --mount --propagation private true 2>/dev/null; then
    APART=(unshare --mount --propagation private)
  fi
}

# start_group COMMAND…: a background job in a process group of its own, so that its children end with it. Sets GROUP.
start_group() {
  set -m
  "$@" &
  GROUP=$!
  set +m
  on_exit stop_group "$GROUP"
}
# start_beside FILE COMMAND…: such a group of steps, for `shown`: its output goes to FILE, its exit status beside it. The shell would
# forget the status of an ended job when another child gets its process id.
start_beside() { start_group steps_beside "$@"; }
steps_beside() {
  # shellcheck disable=SC2064 # the file of now
  trap "echo \$? >'$1.status'" EXIT
  "${@:2}" >"$1" 2>&1
}
stop_group() {
  local i
  jobs -p | grep -qx "$1" || return 0
  # Scripts among them detach what they mounted.
  kill -TERM -- "-$1" 2>/dev/null || true
  for ((i = 0; i < 200; i++)); do
    kill -0 -- "-$1" 2>/dev/null || break
    sleep 0.1
  done
  kill -KILL -- "-$1" 2>/dev/null || true
  wait "$1" 2>/dev/null || true
}

# shown GROUP FILE: waits for steps that ran beside those shown here, and shows their output.
shown() {
  local status
  wait "$1" 2>/dev/null || true
  cat "$2"
  # One that was killed has left none.
  status=$(cat "$2.status" 2>/dev/null || true)
  return "${status:-1}"
}

# await [--alive PID] COMMAND…: waits until it succeeds, however slow the machine is. Fails when the process has ended, or
# after ten minutes, which only a hang takes.
await() {
  local alive='' deadline=$((SECONDS + 600))
  if [ "$1" = --alive ]; then alive=$2; shift 2; fi
  until "$@"; do
    if ((SECONDS >= deadline)) || { [ -n "$alive" ] && ! kill -0 "$alive" 2>/dev/null; }; then return 1; fi
    sleep 0.05
  done
}

# Waits until a child ends; after $2 seconds it is killed. Never fails.
await_process() {
  local pid=$1 deadline=$((SECONDS + $2))
  while kill -0 "$pid" 2>/dev/null; do
    if ((SECONDS >= deadline)); then
      kill -KILL -- "-$pid" 2>/dev/null || kill -KILL "$pid" 2>/dev/null || true
      break
    fi
    sleep 0.05
  done
  wait "$pid" 2>/dev/null || true
}

# Sets PROCESSOR: seconds of processor time that the ended children of this shell took.
processor_time() {
  local stat fields
  read -r stat <"/proc/$BASHPID/stat"
  # The name before the last parenthesis may hold blanks. After it, the fields from the third on.
  read -r -a fields <<<"${stat##*) }"
  PROCESSOR=$(((fields[13] + fields[14]) / $(getconf CLK_TCK)))
}

# run NAME COMMAND…: one step of the tests, timed; its name goes to $FAILED_STEPS if it fails.
run() {
  local name=$1 begin=$SECONDS status=0 processor took
  shift
  step "$name"
  processor_time
  processor=$PROCESSOR
  "$@" || status=$?
  processor_time
  took="$((SECONDS - begin)) s, $((PROCESSOR - processor)) s of processor time"
  if ((status == 0)); then
    say "--- $name: passed, $took"
  else
    say "--- $name: FAILED (exit $status), $took"
    say "$name" >>"$FAILED_STEPS"
  fi
}
# ---------------------------------------------------------------- mounts

# The kind of file system mounted exactly at directory $1; empty if none. Works for a mount whose server is dead.
mount_kind() {
  awk -v dir="${1// /\\\\040}" '$5 == dir { for (i = 7; i < NF; i++) if ($i == "-") kind = $(i + 1) } END { print kind }' \
    /proc/self/mountinfo
}

# Detaches whatever is mounted at $1, dead or alive, as often as it takes.
detach() {
  local i
  for ((i = 0; i < 20; i++)); do
    [ -n "$(mount_kind "$1")" ] || return 0
    if [ "$(id -u)" = 0 ]; then
      umount "$1" 2>/dev/null || { ((i >= 5)) && umount -l "$1" 2>/dev/null; } || sleep 0.2
    else
      fusermount3 -u "$1" 2>/dev/null || { ((i >= 5)) && fusermount3 -u -z "$1" 2>/dev/null; } || sleep 0.2
    fi
  done
  warn "could not detach $1"
  return 1
}

# sf_mount IMAGE DIR [mount options…]: mounts in the background form that users type. The server's messages go to
# $WORK/server.log.
sf_mount() {
  local image=$1 dir=$2
  shift 2
  mkdir -p "$dir"
  on_exit detach "$dir"
  timeout 900 "$STEADFAST" mount -o "log=$WORK/server.log" "$@" "$image" "$dir" || die "steadfast mount $* $image $dir failed"
  [ -n "$(mount_kind "$dir")" ] || die "steadfast mount returned, but nothing is mounted at $dir"
}

# sf_serve IMAGE DIR LOG [mount options…]: mounts with the server as our child, so that it can be killed by its id.
# Sets SERVER.
sf_serve() {
  local image=$1 dir=$2 log=$3
  shift 3
  mkdir -p "$dir"
  on_exit detach "$dir"
  "$STEADFAST" mount --foreground "$@" "$image" "$dir" >"$log" 2>&1 &
  SERVER=$!
  on_exit stop_process "$SERVER"
  await --alive "$SERVER" mount_answers "$dir" && return
  cat "$log" >&2
  die "steadfast mount --foreground $* $image $dir does not answer"
}
mount_answers() { [ -n "$(mount_kind "$1")" ] && stat "$1/." >/dev/null 2>&1; }

sf_umount() {
  timeout 900 "$STEADFAST" umount "$1" || die "steadfast umount $1 failed"
  [ -z "$(mount_kind "$1")" ] || die "steadfast umount $1 returned, but it is still mounted"
}

# Says that it is clean, or what is not.
sf_fsck() {
  local found status=0
  found=$(timeout 900 "$STEADFAST" fsck "$1" 2>&1) || status=$?
  if ((status > 0)); then
    warn "$found"
    die "steadfast fsck $1 exits with $status: the volume is not clean"
  fi
  say "$found"
}

CONTRACTS=(ordered metadata-prefix sync relaxed)
# Values of '--contract': the contracts, or 'pm' for a volume in persistent memory, the contract of which is 'sync'. Scripts that
# take volumes on an object store, too, add 'store': such a volume is 'ordered'.
KINDS=("${CONTRACTS[@]}" pm)

# volume_image KIND [NAME]: sets IMAGE to the place for a volume of this kind: a file below $WORK, or a URL, the objects of which
# are below $WORK/store/bucket/NAME. The object store is versitygw where that is installed, else a directory.
volume_image() {
  local name=${2:-volume}
  IMAGE=$WORK/$name.img
  [ "$1" = store ] || return 0
  # shellcheck source-path=SCRIPTDIR source=store-lib.sh
  . "$ROOT/scripts/store-lib.sh"
  if ! has_gateway; then
    IMAGE=file://$WORK/store/bucket/$name
    say "store: a directory, because versitygw is not installed"
    return
  fi
  IMAGE=s3://bucket/$name
  if [ ! -e "$WORK/store" ]; then
    mkdir -p "$WORK/store/bucket"
    start_gateway "$WORK/store"
    export AWS_ENDPOINT_URL=$ENDPOINT
    say "store: versitygw on a directory"
  fi
}

# mkfs_options KIND: sets MKFS to the options of 'steadfast mkfs' for such a volume.
mkfs_options() {
  case $1 in
    pm)    MKFS=(--force --on pm) ;;
    store) MKFS=() ;;
    *)     MKFS=(--force --contract "$1") ;;
  esac
}

# sf_mkfs IMAGE SIZE [KIND]: a formatted volume.
sf_mkfs() {
  local MKFS
  mkfs_options "${3:-ordered}"
  timeout 900 "$STEADFAST" mkfs --size "$2" "${MKFS[@]}" "$1" >/dev/null || die "steadfast mkfs $1 failed"
}

# for_contracts NAME COMMAND…: if NAME is 'all', runs the command once for each kind of volume (its name follows the command)
# and ends the script; else checks the name.
for_contracts() {
  local name=$1 kind failed=0
  shift
  if [ "$name" = all ]; then
    for kind in "${KINDS[@]}"; do
      say "contract $kind:"
      "$@" "$kind" || failed=$?
    done
    exit "$failed"
  fi
  for kind in "${KINDS[@]}"; do
    [ "$kind" = "$name" ] && return
  done
  warn "unknown contract '$name': one of ${KINDS[*]}, or all"
  exit 2
}

# Can this machine mount through FUSE at all? Prints the reason if not.
fuse_reason() {
  if [ ! -e /dev/fuse ]; then echo "there is no /dev/fuse"
  elif [ "$(id -u)" = 0 ]; then return 0
  elif [ ! -r /dev/fuse ] || [ ! -w /dev/fuse ]; then echo "/dev/fuse is not open to this user"
  elif ! command -v fusermount3 >/dev/null; then echo "fusermount3 (package fuse3) is missing"
  fi
}

# A free loop device on file $1 with further losetup options; sets LOOP.
loop_attach() {
  local file=$1
  shift
  LOOP=$(losetup --find --show "$@" "$file") || return 1
  on_exit loop_detach "$LOOP" "$file"
}
loop_detach() {
  local i
  for ((i = 0; i < 25; i++)); do
    # Still ours? The number may have gone to someone else in the meantime.
    losetup -n -O BACK-FILE "$1" 2>/dev/null | grep -qF -- "$2" || return 0
    losetup -d "$1" 2>/dev/null || true
    sleep 0.2
  done
  warn "could not detach $1"
}

# ---------------------------------------------------------------- a disk that can lose power

# power_disk DIR SIZE: with the rights to, an ext4 of its own at DIR, which can be made to drop every write that it was
# not told to flush: what a power cut does to a disk's volatile cache. POWER then says so. Else DIR stays a directory.
power_disk() {
  POWER=
  mkdir -p "$1"
  [ "$(id -u)" = 0 ] && [ -e /dev/loop-control ] || return 0
  truncate -s "$2" "$1.img"
  mkfs.ext4 -q -F "$1.img" || return 0
  loop_attach "$1.img" 2>/dev/null || return 0
  on_exit detach "$1"
  mount -t ext4 "$LOOP" "$1" 2>/dev/null || return 0
  POWER=$LOOP
}

# Cuts the power of the disk at $1: from now on nothing more reaches its medium, and what was written but not flushed is
# gone (the ext4 shutdown request, without flushing its log).
drop_unflushed_writes() {
  # shellcheck disable=SC2016 # Perl's variables
  perl -e 'open(my $dir, "<", $ARGV[0]) or die "open: $!\n";
           my $flags = pack("L", 2);
           ioctl($dir, 0x8004587d, $flags) or die "shutdown: $!\n";' "$1"
}

# write_image IMAGE MIB: a file of zeros that are really there, to make a volume in. On a disk whose power will be cut it must
# be: the shutdown request takes back an acknowledged fdatasync of bytes that ext4 was just allocating (one in four cuts, with
# nothing but pwrite and fdatasync on it), which no disk does.
write_image() { dd if=/dev/zero of="$1" bs=1M count="$2" conv=fsync status=none || die "cannot write $1"; }

# Brings the disk at $1 back after a cut. Nothing on it may be open. A new mount of a file system that is still mounted in
# another namespace (a container just made) would be the dead one again: then it waits.
power_again() {
  local i
  for ((i = 0; i < 150; i++)); do
    umount "$1" || die "could not unmount the dead disk"
    mount -t ext4 "$POWER" "$1" || die "the disk does not come back"
    if touch "$1/alive" 2>/dev/null; then return; fi
    sleep 0.2
  done
  die "the disk stays dead: is $1 mounted in another namespace?"
}

# ---------------------------------------------------------------- a database's work

# Transactions for a database, for ever: money moves between accounts, a journal counts. The program acknowledges
# each number after its COMMIT has returned.
transactions() {
  awk -v n="$1" 'BEGIN {
    for (n++; ; n++)
      printf "BEGIN; UPDATE account SET v = v - %d WHERE id = %d; UPDATE account SET v = v + %d WHERE id = %d;" \
             " INSERT INTO entry VALUES (%d, hex(randomblob(%d))); COMMIT; SELECT %d;\n",
             n % 7, n % 50, n % 7, (n * 3 + 1) % 50, n, 20 + n % 200, n
  }'
}

create_database() {
  sqlite3 "$1" "PRAGMA journal_mode = $2;
    CREATE TABLE account (id INTEGER PRIMARY KEY, v INTEGER NOT NULL);
    CREATE TABLE entry (n INTEGER PRIMARY KEY, text TEXT NOT NULL);
    WITH RECURSIVE c (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM c WHERE i < 49)
      INSERT INTO account SELECT i, 1000 FROM c;" >/dev/null
}

# ---------------------------------------------------------------- building

build_release() {
  if [ -n "$GIVEN_STEADFAST" ]; then
    [ -x "$STEADFAST" ] || die "STEADFAST=$STEADFAST is not a program"
    return
  fi
  (cd "$ROOT" && cargo build --release --locked -p steadfast-cli) || die "the release build failed"
  [ -x "$STEADFAST" ] || die "the build left no $STEADFAST"
}

# The command without its optional features, built soon: for the demonstration.
build_quick() {
  if [ -n "$GIVEN_STEADFAST" ]; then build_release; return; fi
  STEADFAST=$TARGET/quick/steadfast
  (cd "$ROOT" && cargo build --profile quick --no-default-features --locked -p steadfast-cli) || die "the build failed"
  [ -x "$STEADFAST" ] || die "the build left no $STEADFAST"
}

# write_between MARKER FILE PAGE: replaces what stands in PAGE between its two comments of this name.
write_between() {
  local begin="<!-- $1 -->" end="<!-- /$1 -->" made
  if ! grep -qxF "$begin" "$3" || ! grep -qxF "$end" "$3"; then die "$3 lacks the markers '$begin' and '$end'"; fi
  made=$(mktemp "$3.XXXXXX")
  awk -v begin="$begin" -v end="$end" -v file="$2" '
    $0 == end { inside = 0 }
    !inside { print }
    $0 == begin { inside = 1; print ""; while ((getline line < file) > 0) print line; print "" }' "$3" >"$made"
  chmod --reference="$3" "$made"
  mv "$made" "$3"
}

# build_driver NAME [cargo options…]: a program of bench/. Sets DRIVER.
build_driver() {
  local driver=$1 profile=release
  shift
  if [ "$driver" = pm ]; then profile=bench-pm; fi
  cargo build --quiet --profile "$profile" --locked --manifest-path "$ROOT/Cargo.toml" -p "steadfast-bench-$driver" "$@" ||
    die "bench/$driver does not build"
  DRIVER=$TARGET/$profile/$driver
}

# A pinned public test suite from the package registry, built once into target/tools.
install_tool() {
  local name=$1 version=$2 stamp=$TOOLS/$1-$2.installed
  [ -e "$stamp" ] && [ -x "$TOOLS/bin/$name" ] && return 0
  say "building $name $version (once, into $TOOLS)"
  mkdir -p "$TOOLS"
  # The suites need little optimisation; the compile time is what people wait for.
  (cd "$ROOT" && CARGO_TARGET_DIR=$TOOLS/build CARGO_PROFILE_RELEASE_OPT_LEVEL=1 \
    cargo install --quiet --locked --force --root "$TOOLS" "$name@$version") ||
    unable "could not build $name $version from the package registry"
  touch "$stamp"
}

human_seconds() { printf '%d.%01d s' $(($1 / 1000)) $(($1 % 1000 / 100)); }
now_ms() { echo $(($(date +%s%N) / 1000000)); }

# ---------------------------------------------------------------- notes of a run

# note_caught PART.FAULT: this script has found a planted fault (docs/faults.md). A note for scripts/faults.sh, in the file that
# STEADFAST_NOTES names, if it names one.
note_caught() {
  if [ -n "${STEADFAST_NOTES:-}" ]; then printf 'caught\t%s\t%s\n' "${0##*/}" "$1" >>"$STEADFAST_NOTES"; fi
}

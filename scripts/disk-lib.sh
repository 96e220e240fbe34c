# Disks served from flash images, with power cuts and verdicts, for the scripts. Sourced after lib.sh, never run.
# shellcheck shell=bash disable=SC2034

# disk_paths: names the image and the socket, in the working directory.
disk_paths() {
  IMAGE=$WORK/disk.flash
  SOCKET=$WORK/sock
  URI="nbd+unix:///?socket=$SOCKET"
}

has_trials() { "$1" serve disk --help | grep -q -- --judge; }

# build_with_trials: the command and the plugin with disks on trial (records, cuts, faults) in $TARGET/trial, then the release
# programs. They share all but three crates and are built in the same place; so the release programs are built last, also after a
# failure or a signal.
build_with_trials() {
  (
    cd "$ROOT" && mkdir -p "$TARGET/trial" || exit
    build=(cargo build --quiet --release --locked -p steadfast-cli -p steadfast-nbdkit)
    trap '"${build[@]}"' EXIT
    "${build[@]}" --features steadfast-cli/trial,steadfast-nbdkit/trial &&
      cp "$TARGET"/release/{steadfast,libsteadfast_nbdkit.so} "$TARGET/trial/"
  )
}

# programs_of_tests: the same two pairs as the tests are built, with assertions on: their dependencies are there already. They go
# to $TARGET/product and $TARGET/trial, since what lies in $TARGET/debug is the tests'.
programs_of_tests() {
  local kind features
  for kind in trial product; do
    features=()
    if [ "$kind" = trial ]; then features=(--features "steadfast-cli/trial,steadfast-nbdkit/trial"); fi
    (cd "$ROOT" && cargo build --quiet --locked -p steadfast-cli -p steadfast-nbdkit "${features[@]}") &&
      mkdir -p "$TARGET/$kind" &&
      cp --remove-destination "$TARGET"/debug/{steadfast,libsteadfast_nbdkit.so} "$TARGET/$kind/" || return
  done
}

# trial_programs: sets STEADFAST to the command with disks on trial, unless one was given.
trial_programs() {
  if [ -z "$GIVEN_STEADFAST" ]; then
    build_with_trials || die "the build with disks on trial failed"
    if has_trials "$TARGET/release/steadfast"; then die "$TARGET/release/steadfast has disks on trial: build it again"; fi
    STEADFAST=$TARGET/trial/steadfast
  fi
  [ -x "$STEADFAST" ] || die "there is no $STEADFAST"
  has_trials "$STEADFAST" ||
    die "$STEADFAST has no disks on trial: build it with the feature 'trial' of steadfast-cli and steadfast-nbdkit"
}

FAILED=0
ok()  { say "    ok    $*"; }
bad() { say "    WRONG $*"; FAILED=1; }

format() { "$STEADFAST" ftl format --size "$1" --epoch "$2" --page-size 4K --force "$IMAGE" >/dev/null || die "cannot format $IMAGE"; }

# serve OPTIONS…: as our child; waits until it says what it serves. Sets SERVER.
serve() {
  : >"$WORK/served"
  "$STEADFAST" serve disk "$@" "$IMAGE" >"$WORK/served" 2>>"$WORK/server.log" &
  SERVER=$!
  on_exit stop_process "$SERVER"
  await --alive "$SERVER" test -s "$WORK/served" && return
  tail -n 5 "$WORK/server.log" >&2
  die "steadfast serve disk $* does not answer"
}

# Asks it to end; it must be able to close the disk.
unserve() {
  local status=0
  kill "$SERVER"
  wait "$SERVER" || status=$?
  ((status == 0)) || die "the server exits with $status: $(tail -n 1 "$WORK/server.log")"
}

# Cuts the power: of nbdkit, if the server has started one, else of the server itself.
cut_power() {
  local child
  child=$(cat "/proc/$SERVER/task/$SERVER/children" 2>/dev/null || true)
  # shellcheck disable=SC2086 # one number, or none
  kill -USR1 ${child:-$SERVER}
  # The shell would say that it was killed.
  await_process "$SERVER" 20 2>/dev/null
}

# Policy of a round, and size of its epochs.
policy() { if (($1 % 2)); then FULL='flush'; else FULL='wait'; fi; }

# Counts what the record says of the image; false if it is broken. Sets FOUND.
declare -A COUNT=()
judge() {
  local status=0
  FOUND=$("$STEADFAST" serve disk --judge "$WORK/record" "$IMAGE") || status=$?
  ((status < 2)) || die "there is no verdict"
  COUNT[${FOUND%% *}]=$((${COUNT[${FOUND%% *}]:-0} + 1))
  ((status == 0))
}
tally() { say "    ${COUNT[flushed]:-0} times the last flush, ${COUNT[flushing]:-0} a flush that was under way, ${COUNT[later]:-0} a full epoch behind it, ${COUNT[wrong]:-0} wrong"; }

# The measurement `pm`: the file system on persistent memory, as a library beside the bare stores that it makes, and mounted
# beside the block file system, ext4 and a FUSE server that keeps nothing, all in the same memory. Sourced by bench/run.
# shellcheck shell=bash disable=SC2034,SC2154

# `each`, `measure`, `make_archive`, and the peers.
# shellcheck source-path=SCRIPTDIR source=fs.sh
. "$root/bench/fs.sh"
# shellcheck source-path=SCRIPTDIR source=../scripts/nfs-lib.sh
. "$root/scripts/nfs-lib.sh"
# shellcheck source-path=SCRIPTDIR source=pm/systems.sh
. "$root/bench/pm/systems.sh"
# shellcheck source-path=SCRIPTDIR source=pm/mounted.sh
. "$root/bench/pm/mounted.sh"
# shellcheck source-path=SCRIPTDIR source=pm/nfs.sh
. "$root/bench/pm/nfs.sh"
# shellcheck source-path=SCRIPTDIR source=pm/applications.sh
. "$root/bench/pm/applications.sh"
# shellcheck source-path=SCRIPTDIR source=pm/mounts.sh
. "$root/bench/pm/mounts.sh"

RUNS=5
QUICK_RUNS=2

PM_PARTS=(library mounted nfs applications mounts compile)
# Memory that the parts with mounts need, in MiB: an image for each system, and as much again.
PM_MEMORY_MIB=8192

prepare_pm() {
  local part reason
  read -r -a parts <<<"${STEADFAST_BENCH_PARTS:-${PM_PARTS[*]}}"
  for part in "${parts[@]}"; do
    case " ${PM_PARTS[*]} " in
      *" $part "*) ;;
      *) die "STEADFAST_BENCH_PARTS: '$part' is none of ${PM_PARTS[*]}" ;;
    esac
  done
  "$root/scripts/setup.sh" pm
  if wants mounted || wants nfs || wants applications; then
    [ "$(id -u)" = 0 ] || unable "needs root, for loop devices, mounts and networks of its own"
    [ -e /dev/loop-control ] || unable "there are no loop devices here"
    reason=$(fuse_reason)
    [ -z "$reason" ] || unable "cannot mount here: $reason"
    (($(free_memory_mib) >= PM_MEMORY_MIB)) ||
      unable "needs $PM_MEMORY_MIB MiB of free memory; there are $(free_memory_mib)"
    build_release
    null_build
  fi
  build_driver pm
  PM=$DRIVER
  make_workdir /dev/shm
  MEMORY_WORK=$WORK
}

wants() { case " ${parts[*]} " in *" $1 "*) ;; *) return 1 ;; esac; }

# Free space for files in memory.
free_memory_mib() {
  local files
  files=$(df --output=avail -m /dev/shm | tail -n 1)
  awk -v files="$files" '$1 == "MemAvailable:" { free = int($2 / 1024); print free < files ? free : files }' /proc/meminfo
}

bench_pm() {
  local about=() part
  for part in "${parts[@]}"; do
    say "$(date +%T) $part"
    "pm_$part"
  done
  report "${about[@]}"
}

# ---------------------------------------------------------------- library

pm_library() {
  "$PM" latency "$MEMORY_WORK" "$runs" ${quick:+--quick} >>"$RESULTS" || die "pm latency failed"
  "$PM" scaling "$MEMORY_WORK" "$runs" ${quick:+--quick} >>"$RESULTS" || die "pm scaling failed"
}

# ---------------------------------------------------------------- compile

# Build time of the crate alone, its dependencies being built; the block file system's crate beside it.
pm_compile() {
  local run crate system seconds target=$TARGET/bench-compile
  for ((run = 0; run <= runs; run++)); do
    for crate in pmfs fs; do
      system=steadfast
      if [ "$crate" = fs ]; then system=block; fi
      touch "$root/crates/$crate/src/lib.rs"
      seconds=$(compile_seconds "$crate" "$target") || die "steadfast-$crate does not build"
      # The first builds what it depends on.
      if ((run == 0)); then
        record lines lines lower "$system" "$(code_lines "$crate")"
      else
        record compile s lower "$system" "${seconds% *}"
        record compile-cpu s lower "$system" "${seconds#* }"
      fi
    done
  done
}

# Seconds by the clock, and of the processor.
compile_seconds() {
  local TIMEFORMAT='%R %U' timed
  # Output of the build goes past the time.
  timed=$({ time (cd "$root" && CARGO_TARGET_DIR=$2 CARGO_INCREMENTAL=0 cargo build --quiet --release --locked \
    -p "steadfast-$1" 2>&3); } 3>&2 2>&1) || return 1
  say "$timed"
}

# Lines that are neither blank nor comments; tests in files of their own are left out.
code_lines() {
  find "$root/crates/$1/src" -name '*.rs' ! -name 'tests.rs' ! -path '*/tests/*' -exec cat {} + |
    awk '!/^[[:space:]]*(\/\/|$)/ { lines++ } END { print lines }'
}

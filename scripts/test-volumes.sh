#!/usr/bin/env bash
# The part of test.sh about mounted volumes, crash exploration, and servers that die under their clients: little of it keeps two
# processors busy, so test.sh runs it beside the rest.
#
#   [STEADFAST=PROGRAM] scripts/test-volumes.sh [--long] [--unmounted]
#
#   --unmounted only the explorations and the servers, which leave no mount to others; what is here runs them beside its mounts
#   STEADFAST   a command that was built before, beside the plugin of nbdkit, and with both for trials in target/trial; without it
#               all are built here, as releases
#
# Runs all steps even if one fails; names those that failed in the file that FAILED_STEPS names, or at the end. Exits 0, 1
# (something failed) or 3 (something needed is missing).
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"
# shellcheck source-path=SCRIPTDIR source=disk-lib.sh
. "$here/disk-lib.sh"

long=
unmounted=
while [ $# -gt 0 ]; do
  case $1 in
    --long) long=1; shift ;;
    --unmounted) unmounted=1; shift ;;
    -h|--help) sed -n '2,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) warn "unknown option '$1' (see --help)"; exit 2 ;;
  esac
done

# From 94,090 images on, every pair of operations is run.
crash_images=95000
flash_images=500
fsx_ops=6000
fsx_seeds=(1 2 3)
demo_rounds=2
nfs_rounds=2
disk_rounds=3
chaos=(--minutes 2)
if [ -n "$long" ]; then
  crash_images=1000000
  flash_images=100000
  fsx_ops=1000000
  fsx_seeds=(1 2 3 4 5 6 7 8 9 10)
  demo_rounds=10
  nfs_rounds=100
  disk_rounds=60
  chaos=(--minutes 30 --longest-stop 60)
fi

"$here/setup.sh" test
cd "$ROOT"
make_workdir "${TMPDIR:-/tmp}"
alone=
if [ -z "${FAILED_STEPS:-}" ]; then
  alone=1
  FAILED_STEPS=$WORK/failed
  : >"$FAILED_STEPS"
fi

# No fault can be planted in what is released, whatever it is optimised for; the same check must find those of the programs built for tests.
no_faults() {
  "$here/no-faults.sh" "$STEADFAST" "$(dirname "$STEADFAST")/libsteadfast_nbdkit.so" &&
    "$here/no-faults.sh" --expect "$TARGET/trial/steadfast" "$TARGET/trial/libsteadfast_nbdkit.so"
}

explorations() {
  for contract in "${CONTRACTS[@]}"; do
    run "crash exploration of '$contract', $crash_images images" \
      "$STEADFAST" crash self --contract "$contract" --images "$crash_images"
    run "the same without a log on flash, $flash_images images" \
      "$STEADFAST" crash self --on flash --contract "$contract" --images "$flash_images"
  done
}

volumes() {
  local reason
  reason=$(fuse_reason)
  if [ -n "$reason" ]; then
    say ""
    say "left out, because $reason: power cut of a mounted volume, applications, pjdfstest, fsx, tree of 5,000 files, documents"
    return 0
  fi
  run "power cut of a mounted volume" "$here/demo.sh" --rounds "$demo_rounds"
  run "the same under 'relaxed'" "$here/demo.sh" --rounds "$demo_rounds" --contract relaxed
  if [ -n "$long" ]; then run "what a power cut does to known programs" "$here/crash-programs.sh"
  else run "what a power cut does to git and SQLite" "$here/crash-programs.sh" --quick; fi
  if [ "$(id -u)" = 0 ]; then
    # PostgreSQL is installed for the long tier alone.
    if [ -n "$long" ]; then run "applications on volumes that lose power" "$here/apps.sh" --long
    else run "applications on volumes that lose power" "$here/apps.sh" --only cuts --cuts 8; fi
    if [ -n "$long" ]; then
      run "applications and power cuts at every moment" "$here/app-images.sh"
      run "all of them at once" "$here/app-images.sh" --together
      run "the same cuts on ext4" "$here/app-images.sh" --on ext4
    else
      run "applications and power cuts at every moment" "$here/app-images.sh" --together --images 40 --only git,sqlite
    fi
    run "pjdfstest" "$here/pjdfstest.sh" ${long:+--contract all}
    if [ -n "$long" ]; then run "overlayfs on a volume" "$here/overlay.sh"; fi
  else
    say ""
    say "left out, because it needs root: applications on volumes that lose power, pjdfstest"
  fi
  run "fsx on every contract, ${#fsx_seeds[@]} seeds, $fsx_ops operations each" \
    "$here/fsx.sh" --contract all --ops "$fsx_ops" "${fsx_seeds[@]}"
  run "tree of 5,000 files" "$here/tree.sh"
  run "commands of the documents" "$here/docs.sh"
}

# Servers that die under their clients, each with a network of its own.
served() {
  local reason
  reason=$(fuse_reason)
  if [ -n "$reason" ] || [ "$(id -u)" != 0 ]; then
    say ""
    say "left out, because ${reason:-it needs root}: NFS clients of others, NFS server killed under load, served disks, object stores"
    return 0
  fi
  run "volumes on an object store under kills, stops and take-overs" "$here/store-chaos.sh" "${chaos[@]}"
  run "NFS clients of others" "$here/nfs-clients.sh" ${long:+--contract all}
  run "NFS server killed under load" "$here/nfs-crash.sh" --rounds "$nfs_rounds" --seconds 1
  run "served disks that lose power" env STEADFAST="$TARGET/trial/steadfast" "$here/disk.sh" --rounds "$disk_rounds" --seconds 1
  if [ -n "$long" ]; then
    run "a virtual machine's served disk" env STEADFAST="$TARGET/trial/steadfast" "$here/disk-guest.sh" --rounds 20
    run "a Linux kernel's NFS client" "$here/nfs-guest.sh"
    run "NFS server under attack" "$here/nfs-attack.sh"
  fi
}

if [ -n "$unmounted" ]; then
  explorations
  served
else
  if [ -z "$GIVEN_STEADFAST" ]; then run "release build" build_with_trials; fi
  if [ -x "$STEADFAST" ]; then
    run "no planted faults in the product" no_faults
    # Two steps at a time: each waits now and then, for a disk or for a client. With mounts of their own: the servers make mount
    # namespaces, which would keep the volumes of the other side mounted.
    export FAILED_STEPS STEADFAST
    mounts_apart
    start_beside "$WORK/unmounted" "${APART[@]}" "$here/test-volumes.sh" --unmounted ${long:+--long}
    beside=$GROUP
    volumes
    shown "$beside" "$WORK/unmounted" || say "explorations and servers were cut short" | tee -a "$FAILED_STEPS"
  fi
fi
if [ -n "$alone" ] && [ -s "$FAILED_STEPS" ]; then
  say "FAILED: $(paste -sd ';' "$FAILED_STEPS" | sed 's/;/; /g')"
  exit 1
fi

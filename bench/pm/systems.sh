# The systems of `bench/run pm`, all in memory: formatting, mounting and checking them. Sourced by bench/pm.sh.
# shellcheck shell=bash disable=SC2034,SC2154
#
#   steadfast       a volume on persistent memory: every call is durable when it returns
#   block-ordered   the block file system, contract `ordered`, on a file
#   block-sync      the same, contract `sync`
#   ext4            the kernel's, data=ordered, on a loop device over a file
#   pass-through    libfuse's example over tmpfs
#   null            tables in memory with our front end: the limit of calls (bench/peers/null.sh)

PM_SYSTEMS=(steadfast block-ordered block-sync ext4 pass-through null)
PM_IMAGE_MIB=1024

# pm_format SYSTEM IMAGE MIB
pm_format() {
  local system=$1 image=$2 mib=$3
  case $system in
    steadfast)
      "$STEADFAST" mkfs --on pm --size "${mib}M" --force "$image" >/dev/null || die "steadfast mkfs --on pm failed"
      ;;
    block-*)
      prewrite "$image" "$mib"
      "$STEADFAST" mkfs --force --contract "${system#block-}" "$image" >/dev/null || die "steadfast mkfs failed"
      ;;
    ext4*|ganesha*)
      prewrite "$image" "$mib"
      # Nothing is left for later that would run into the measurement, and the file stays written.
      mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0,nodiscard "$image"
      ;;
    *) die "unknown system '$system'" ;;
  esac
}

# volume SYSTEM: formats it and mounts it through FUSE. Sets MOUNTED.
volume() {
  local system=$1 image=$MEMORY_WORK/$1.img options=()
  MOUNTED=$MEMORY_WORK/$system
  mkdir -p "$MOUNTED"
  case $system in
    pass-through) pass_through_mount "$MOUNTED"; return ;;
    null) null_mount "$MOUNTED"; return ;;
  esac
  pm_format "$system" "$image" "$PM_IMAGE_MIB"
  case $system in
    ext4)
      loop_attach "$image" --direct-io=on 2>/dev/null || loop_attach "$image" || die "no loop device for $image"
      on_exit detach "$MOUNTED"
      mount -t ext4 -o data=ordered,nodiscard "$LOOP" "$MOUNTED"
      ;;
    *)
      # Memory has no cache to go past.
      if [ "$system" != steadfast ]; then options=(-o buffered); fi
      sf_serve "$image" "$MOUNTED" "$MEMORY_WORK/$system.log" "${options[@]}"
      ;;
  esac
}

# What was measured must have survived it.
unvolume() {
  local system=$1 image=$MEMORY_WORK/$1.img
  case $system in
    steadfast|block-*)
      sf_umount "${at[$system]}"
      sf_fsck "$image"
      ;;
    *) detach "${at[$system]}" ;;
  esac
  rm -f "$image"
  rm -rf --one-file-system "${at[$system]}" "${at[$system]}.source"
}

settle() {
  case $1 in
    steadfast|block-*) "$STEADFAST" sync "$2" >/dev/null ;;
    *) sync -f "$2" ;;
  esac
}

# `measure` of fs.sh calls it: one result.
note() { record "$@"; }

# chosen SYSTEM…: sets `all` to those of them that STEADFAST_BENCH_SYSTEMS names.
chosen() {
  local system
  all=()
  for system in "$@"; do
    case " ${STEADFAST_BENCH_SYSTEMS:-$system} " in *" $system "*) all+=("$system") ;; esac
  done
}

# Loads over NFS, with the client of bench/nfs. Sourced by bench/pm.sh.
# shellcheck shell=bash disable=SC2034,SC2154
#
# `ganesha-dirsync` is nfs-ganesha on ext4 mounted with `dirsync`, which keeps NFS's promise that metadata is stable; `ganesha`
# the same on plain ext4, which does not.

PM_NFS_SYSTEMS=(steadfast block-ordered block-sync ganesha-dirsync ganesha)
PM_NFS_IMAGE_MIB=512
declare -A PM_NFS_PORT=([steadfast]=23049 [block-ordered]=23149 [block-sync]=23249 [ganesha-dirsync]=23349 [ganesha]=23449)

pm_nfs() {
  local files=4000 calls=14000 mib=100 reads=10000
  if [ -n "$quick" ]; then files=400 calls=1400 mib=20 reads=1000; fi
  local only=${STEADFAST_BENCH_ROWS:-} results=$RESULTS run system clients all systems
  local -A pid=() export=()
  build_nfs_client
  nfs_world
  chosen "${PM_NFS_SYSTEMS[@]}"
  for system in "${all[@]}"; do pm_nfs_serve "$system"; done
  for ((run = 0; run <= runs; run++)); do
    say "$(date +%T) nfs: run $run of $runs"
    in_turns "$run" "${all[@]}"
    RESULTS=$results
    if ((run == 0)); then RESULTS=/dev/null; fi
    for clients in 1 4; do
      pm_nfs_each "smallfile-$clients" files/s "$clients" per-second smallfile "$files"
      pm_nfs_each "metadata-$clients" calls/s "$clients" per-second metadata "$calls"
    done
    pm_nfs_each largefile MiB/s 1 mib-per-second largefile "$mib"
    pm_nfs_each overwrite MiB/s 1 mib-per-second overwrite "$mib"
    pm_nfs_each read-sequential MiB/s 1 mib-per-second read-sequential "$mib"
    pm_nfs_each read-random reads/s 1 per-second read-random "$mib" "$reads"
  done
  RESULTS=$results
  for system in "${all[@]}"; do pm_nfs_unserve "$system"; done
  about+=("nfs_image_mib=$PM_NFS_IMAGE_MIB" "nfs_files=$files" "nfs_calls=$calls" "nfs_mib=$mib" "nfs_reads=$reads")
}

pm_nfs_serve() {
  local system=$1 port=${PM_NFS_PORT[$1]} image=$MEMORY_WORK/nfs-$1.img options=nodiscard
  pm_format "$system" "$image" "$PM_NFS_IMAGE_MIB"
  case $system in
    steadfast|block-*)
      export[$system]=/
      nfs_steadfast "$image" "$port" $((port + 1)) "$image.log"
      ;;
    ganesha*)
      if [ "$system" = ganesha-dirsync ]; then options+=,dirsync; fi
      export[$system]=$MEMORY_WORK/nfs-$system
      ext4_inside "$image" "${export[$system]}" "$options"
      nfs_ganesha "${export[$system]}" "$port" $((port + 1)) "$image.log"
      ;;
  esac
  pid[$system]=$SERVER
}

# What was measured must have survived it.
pm_nfs_unserve() {
  local system=$1 image=$MEMORY_WORK/nfs-$1.img loop
  stop_server "${pid[$system]}"
  case $system in
    steadfast|block-*) sf_fsck "$image" ;;
    ganesha*)
      loop=$(losetup -n -O NAME -j "$image")
      inside umount "${export[$system]}"
      loop_detach "$loop" "$image"
      e2fsck -f -n "$image" >/dev/null 2>&1 || die "e2fsck finds errors in $image"
      ;;
  esac
  rm -f "$image" "$image".log*
}

# pm_nfs_each ROW UNIT CLIENTS FIGURE WORKLOAD COUNT…: measures on each system, in this run's order.
pm_nfs_each() {
  local row=$1 unit=$2 clients=$3 figure=$4 system figures
  shift 4
  case " ${only:-$row} " in *" $row "*) ;; *) return 0 ;; esac
  for system in "${systems[@]}"; do
    figures=$(inside "$NFS" --port "${PM_NFS_PORT[$system]}" --mount-port $((PM_NFS_PORT[$system] + 1)) \
      --export "${export[$system]}" --server-pid "${pid[$system]}" --clients "$clients" --timeout 300 "$@") ||
      die "$* on $system over NFS failed"
    record "$row-nfs" "$unit" higher "$system" "$(awk -v name="$figure" '$1 == name { print $2 }' <<<"$figures")"
  done
}

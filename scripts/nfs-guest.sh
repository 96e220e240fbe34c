#!/usr/bin/env bash
# A Linux kernel's own NFS client against our server: boots a Debian kernel in an emulated machine, mounts the export there, and
# copies, unpacks, clones, builds and exercises files on it, while the server is killed and started again.
#
#   scripts/nfs-guest.sh [--server steadfast|ganesha] [--kills N] [--fsx-ops N] [--only STEP[,STEP…]] [--show]
#
#   --server NAME   whose export is mounted (default steadfast; ganesha exports ext4, to see what the tests are worth)
#   --kills N       rounds in which the server is killed under load (default 3)
#   --fsx-ops N     operations of the file system exerciser (default 3000)
#   --only STEPS    of: tree, tar, git, build, odds, many, fsx, kills
#   --show          what the guest says, as it says it
#
# Kernel and tools come from Debian packages, which are unpacked into target/tools and not installed. What runs in the guest is
# scripts/nfs-guest-init.sh. Needs root. Emulation is some twenty times slower than this machine: nothing here is a measurement.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"
# shellcheck source-path=SCRIPTDIR source=nfs-lib.sh
. "$here/nfs-lib.sh"
# shellcheck source-path=SCRIPTDIR source=guest-lib.sh
. "$here/guest-lib.sh"

FSX_VERSION=0.3.2
GUEST_SECONDS_MAX=2400
server=steadfast kills=3 fsx_ops=3000 only='' show=
while [ $# -gt 0 ]; do
  case $1 in
    --server)  server=${2:?"--server needs a name"}; shift 2 ;;
    --kills)   kills=${2:?"--kills needs a number"}; shift 2 ;;
    --fsx-ops) fsx_ops=${2:?"--fsx-ops needs a number"}; shift 2 ;;
    --only)    only=${2:?"--only needs names"}; shift 2 ;;
    --show)    show=1; shift ;;
    -h|--help) sed -n '2,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) warn "unknown option '$1' (see --help)"; exit 2 ;;
  esac
done
case $server in steadfast|ganesha) ;; *) warn "unknown server '$server': steadfast or ganesha"; exit 2 ;; esac
[ "$(id -u)" = 0 ] || unable "needs root, for a network of its own"
"$here/setup.sh" guest

# ---------------------------------------------------------------- the guest's files

# Files of all kinds, for cp and tar.
make_tree() {
  mkdir -p "$1/empty" "$1/deep/er/and/deeper"
  awk -v tree="$1" 'BEGIN {
    for (f = 0; f < 150; f++) {
      name = tree (f % 3 ? "/deep/er/file-" : "/file-") f
      for (l = 0; l < f * 3 % 200; l++) printf "line %d of file %d\n", l, f >name
      if (f * 3 % 200 == 0) printf "" >name
      close(name)
    }
  }'
  dd if=/dev/urandom of="$1/deep/er/and/deeper/blob" bs=1000 count=700 status=none
  ln -s ../file-3 "$1/deep/to-file-3"
  ln -s /nowhere "$1/dangling"
  ln "$1/file-6" "$1/deep/second-name-of-file-6"
  chmod 0640 "$1/file-9"
  chmod 4755 "$1/file-12"
  chmod 0700 "$1/deep/er"
  chown 1234:567 "$1/file-15"
  touch -d '2001-02-03 04:05:06' "$1/file-18" "$1/empty"
}

# A program of many files, in which each needs the same header.
make_sources() {
  mkdir -p "$1"
  awk -v dir="$1" 'BEGIN {
    count = 30
    printf "#define ANSWER 1\n" >(dir "/answer.h")
    for (i = 0; i < count; i++) {
      name = dir "/part" i ".c"
      printf "#include \"answer.h\"\nint part%d(int x) { return x * %d + ANSWER; }\n", i, i + 1 >name
      close(name)
      calls = calls sprintf(" + part%d(1)", i)
      protos = protos sprintf("int part%d(int);\n", i)
      objects = objects sprintf(" part%d.o", i)
    }
    printf "int printf(const char *, ...);\n%sint main(void) { printf(\"%%d\\n\", 0%s); return 0; }\n", protos, calls >(dir "/main.c")
    printf "program: main.o%s\n\ttcc -o $@ main.o%s\n%%.o: %%.c answer.h\n\ttcc -c -o $@ $<\n", objects, objects >(dir "/Makefile")
  }'
}

make_repository() {
  export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
  git init -q --bare --initial-branch=main "$1"
  awk 'BEGIN {
    for (c = 0; c < 5; c++) {
      printf "commit refs/heads/main\ncommitter Guest <guest@localhost> %d +0000\ndata 6\nchange\n", 1700000000 + c * 3600
      for (f = 0; f < 120; f++) {
        if (c > 0 && (f + c) % 7) continue
        text = ""
        for (l = 0; l < 10 + f; l++) text = text sprintf("line %d of file %d in change %d\n", l, f, c)
        printf "M 100644 inline dir-%d/file-%d.txt\ndata %d\n%s\n", f % 6, f, length(text), text
      }
      print ""
    }
  }' | git -C "$1" fast-import --quiet
  git -C "$1" gc -q
}

# The first file system of the guest, in $WORK/initrd.
make_guest() {
  local library triplet
  guest_kernel
  package tcc
  install_tool fsx "$FSX_VERSION"
  guest_tree "$here/nfs-guest-init.sh" virtio_pci virtio_net nfs nfsv3
  with_libraries "$(command -v git)"
  with_libraries "$(command -v make)"
  with_libraries "$GUEST/tcc/usr/bin/tcc"
  with_libraries "$TOOLS/bin/fsx"
  ln -s git "$TREE/bin/git-upload-pack"
  # Libraries for the compiler.
  triplet=usr/lib/$(cc -print-multiarch)
  mkdir -p "$TREE/$triplet"
  cp -r "$GUEST/tcc/$triplet/tcc" "$TREE/$triplet/"
  for library in crt1.o crti.o crtn.o; do cp -L "$(cc -print-file-name=$library)" "$TREE/$triplet/"; done
  ln -s "$(ldd "$(command -v git)" | awk '$1 == "libc.so.6" { print $3 }')" "$TREE/$triplet/libc.so"
  ln -s /lib64/ld-linux-x86-64.so.2 "$TREE/$triplet/"

  mkdir -p "$TREE/data"
  make_tree "$TREE/data/tree"
  make_sources "$TREE/data/sources"
  make_repository "$TREE/data/repository.git"
  cat >"$TREE/data/fsx.toml" <<END
flen = 262144
[opsize]
max = 32768
[weights]
close_open = 1
invalidate = 1
mapread = 10
mapwrite = 10
read = 10
write = 10
truncate = 10
fsync = 1
fdatasync = 1
posix_fallocate = 0
punch_hole = 0
sendfile = 2
posix_fadvise = 2
copy_file_range = 5
END
  guest_pack
}

# ---------------------------------------------------------------- the server

PORT=22049
IMAGE_MIB=512

serve() {
  case $server in
    steadfast) nfs_steadfast "$WORK/volume.img" "$PORT" $((PORT + 1)) "$WORK/server.log" ;;
    ganesha)   nfs_ganesha "$WORK/export" "$PORT" $((PORT + 1)) "$WORK/server.log" ;;
  esac
}

kill_and_serve() {
  kill_server "$SERVER"
  sleep 0.5
  serve
}

check_volume() {
  stop_server "$SERVER"
  case $server in
    steadfast) sf_fsck "$WORK/volume.img" ;;
    ganesha)
      inside umount "$WORK/export"
      e2fsck -f -n "$WORK/volume.img" >/dev/null 2>&1 || die "e2fsck finds errors"
      ;;
  esac
}

[ "$server" = ganesha ] || build_release
build_nfs_client
make_workdir "$(fast_base 1500)"
make_guest
nfs_world
case $server in
  steadfast)
    EXPORT=/
    sf_mkfs "$WORK/volume.img" "${IMAGE_MIB}M"
    ;;
  ganesha)
    EXPORT=$WORK/export
    dd if=/dev/zero of="$WORK/volume.img" bs=1M count="$IMAGE_MIB" status=none
    mkfs.ext4 -q -F "$WORK/volume.img"
    ext4_inside "$WORK/volume.img" "$EXPORT" dirsync
    ;;
esac
serve

# ---------------------------------------------------------------- the guest

say "booting $(basename "$KERNEL")"
touch "$WORK/console"
inside timeout "$GUEST_SECONDS_MAX" "${EMULATOR[@]}" \
  -serial "file:$WORK/console" -netdev user,id=n0 -device virtio-net-pci,netdev=n0,romfile= \
  -append "console=ttyS0 panic=1 quiet -- port=$PORT mount_port=$((PORT + 1)) export=$EXPORT kills=$kills fsx_ops=$fsx_ops only=$only" \
  >"$WORK/qemu.log" 2>&1 &
QEMU=$!
on_exit stop_process "$QEMU"

passed=0 failed=0 killed=0 finished=
# take LINE: one that the guest has said. It begins with what it means.
take() {
  case $1 in
    'PASS '*)   passed=$((passed + 1)); say "  ${1#PASS }: passed" ;;
    'FAIL '*)   failed=$((failed + 1)); say "  ${1#FAIL }: FAILED" ;;
    '| '*)      say "    ${1#| }" ;;
    'LOADED '*)
      # Anywhere in the load that has just begun.
      sleep "0.$((RANDOM % 10))"
      kill_and_serve
      killed=$((killed + 1))
      say "  round ${1#LOADED }: the server was killed and is back"
      ;;
    FINISHED) finished=1 ;;
    *) if [ -n "$show" ]; then say "  $1"; fi ;;
  esac
}
seen=0
while :; do
  alive=1
  kill -0 "$QEMU" 2>/dev/null || alive=
  while IFS= read -r line; do
    seen=$((seen + 1))
    take "${line%$'\r'}"
  done < <(tail -n +$((seen + 1)) "$WORK/console")
  [ -n "$alive" ] || break
  sleep 0.2
done
wait "$QEMU" || true

if [ -z "$finished" ]; then
  warn "the guest did not finish; it said last:"
  tail -n 15 "$WORK/console" >&2
  tail -n 5 "$WORK/qemu.log" >&2
  exit 1
fi
check_volume
say "$passed steps passed, $failed failed; the server was killed $killed times ($server, $(basename "$KERNEL"))"
((failed == 0 && passed > 0)) || exit 1

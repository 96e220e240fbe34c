#!/usr/bin/env bash
# Installs what the scripts need beyond Rust on a Debian machine, or, without the rights to, names all of it in one
# line and exits 3. Says nothing when nothing is missing.
#
#   scripts/setup.sh [PURPOSE]
#
#   test         scripts/test.sh and most others (the default)
#   demo         demo.sh, apps.sh
#   apps         app-images.sh: applications and their crash images
#   streams      bench/run streams: applications beside each other
#   postgres     postgres.sh
#   zookeeper    app-images.sh zookeeper
#   bench        bench/run, beside ext4
#   pm           bench/run pm
#   disk         disk.sh: served disks
#   disk-guest   disk-guest.sh: served disks in a virtual machine
#   nfs          nfs-crash.sh, and bench/run nfs beside other servers
#   nfs-clients  nfs-clients.sh: libnfs
#   guest        nfs-guest.sh: a Linux kernel's client in a virtual machine
#   package      package.sh: the Debian package
#   release      release.sh: static programs and packages
#   container    container.sh: the container image
#
# Exits 0, 2 (usage) or 3 (something is missing).
set -euo pipefail

purpose=${1:-test}
case $purpose in
  -h|--help) sed -n '2,24s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
esac

# command:package, for each thing that a minimal Debian may lack.
needs=(cc:gcc git:git mount:mount)
case $purpose in
  demo)  needs+=(fusermount3:fuse3 sqlite3:sqlite3 mkfs.ext4:e2fsprogs perl:perl-base) ;;
  test)  needs+=(fusermount3:fuse3 sqlite3:sqlite3 mkfs.ext4:e2fsprogs perl:perl-base fallocate:util-linux sudo:sudo) ;;
  postgres) needs+=(mkfs.ext4:e2fsprogs perl:perl-base ps:procps setpriv:util-linux) ;;
  bench) needs+=(fusermount3:fuse3 sqlite3:sqlite3 mkfs.ext4:e2fsprogs losetup:mount go:golang-go) ;;
  pm)    needs+=(fusermount3:fuse3 mkfs.ext4:e2fsprogs losetup:mount ip:iproute2 nsenter:util-linux mountpoint:util-linux
                 rpcbind:rpcbind ganesha.nfsd:nfs-ganesha) ;;
  disk)  needs+=(fusermount3:fuse3 mkfs.ext4:e2fsprogs losetup:mount unshare:util-linux nbdkit:nbdkit nbdinfo:libnbd-bin
                 qemu-img:qemu-utils fio:fio) ;;
  apps)  needs+=(fusermount3:fuse3 sqlite3:sqlite3 mkfs.ext4:e2fsprogs losetup:mount c++:g++ hg:mercurial) ;;
  package) needs+=(dh:debhelper fakeroot:fakeroot dpkg-buildpackage:dpkg-dev lintian:lintian mmdebstrap:mmdebstrap python3:python3) ;;
  release) needs+=(dh:debhelper fakeroot:fakeroot dpkg-buildpackage:dpkg-dev objcopy:binutils python3:python3 cpio:cpio
                   rpmbuild:rpm rpm2cpio:rpm2cpio)
           # For static programs; for the other processor, its compiler, and what runs its programs here.
           needs+=(musl-gcc:musl-tools)
           if [ "$(uname -m)" = x86_64 ]; then
             needs+=(aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu qemu-aarch64-static:qemu-user-static)
           fi ;;
  container) needs+=(podman:podman nfs-cat:libnfs-utils mountpoint:util-linux) ;;
  zookeeper) needs+=(java:default-jre-headless) ;;
  streams) needs+=(fusermount3:fuse3 sqlite3:sqlite3 mkfs.ext4:e2fsprogs losetup:mount c++:g++ xz:xz-utils make:make) ;;
  nfs)   needs+=(mkfs.ext4:e2fsprogs losetup:mount ip:iproute2 nsenter:util-linux mountpoint:util-linux rpcbind:rpcbind ganesha.nfsd:nfs-ganesha) ;;
  nfs-clients) needs+=(ip:iproute2 nsenter:util-linux rpcbind:rpcbind rpcinfo:rpcbind setpriv:util-linux pkill:procps nfs-ls:libnfs-utils) ;;
  guest) needs+=(ip:iproute2 nsenter:util-linux mountpoint:util-linux rpcbind:rpcbind ganesha.nfsd:nfs-ganesha
                 qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio depmod:kmod dpkg-deb:dpkg) ;;
  disk-guest) needs+=(mkfs.ext4:e2fsprogs nbdkit:nbdkit qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio
                      depmod:kmod dpkg-deb:dpkg) ;;
  *) echo "setup.sh: unknown purpose '$purpose' (see --help)" >&2; exit 2 ;;
esac

# Commands for administrators are not on everyone's path.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

packages=()
find_missing() {
  local need
  packages=()
  for need in "${needs[@]}"; do
    command -v "${need%%:*}" >/dev/null || packages+=("${need#*:}")
  done
  if [ "$purpose" = postgres ] && ! compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null; then packages+=(postgresql); fi
  case $purpose in
    nfs-clients) [ -e /usr/include/nfsc/libnfs-raw.h ] || packages+=(libnfs-dev) ;;
    nfs|guest|pm) compgen -G '/usr/lib/*/ganesha/libfsalvfs.so' >/dev/null || packages+=(nfs-ganesha-vfs) ;;
  esac
  # Containers are run by one of these; with control groups of both versions at a time, by the second alone.
  if [ "$purpose" = container ] && ! command -v runc >/dev/null; then
    if [ -d /sys/fs/cgroup/unified ]; then packages+=(runc)
    elif ! command -v crun >/dev/null; then packages+=(crun); fi
  fi
  if [ "$purpose" = release ] && [ "$(uname -m)" = x86_64 ] && [ ! -e /usr/aarch64-linux-gnu/include/stdio.h ]; then
    packages+=(libc6-dev-arm64-cross)
  fi
  case $purpose in
    streams|apps) [ -e /usr/include/leveldb/db.h ] || packages+=(libleveldb-dev) ;;
  esac
  if [ "$purpose" = zookeeper ]; then
    [ -e /usr/share/java/zookeeper.jar ] || packages+=(zookeeper)
    /usr/bin/python3 -c 'import kazoo' 2>/dev/null || packages+=(python3-kazoo)
  fi
  if [ "$purpose" = streams ]; then
    compgen -G '/usr/src/linux-source-*.tar.xz' >/dev/null || packages+=(linux-source)
  fi
  if [ "$purpose" = pm ]; then
    [ -e /usr/include/lmdb.h ] || packages+=(liblmdb-dev)
    [ -e /usr/include/rocksdb/c.h ] || packages+=(librocksdb-dev)
  fi
  # A compiler without the C library's headers and start files cannot link.
  if ! command -v cc >/dev/null || [ ! -e "$(cc -print-file-name=crt1.o)" ]; then packages+=(libc6-dev); fi
}

if ! command -v cargo >/dev/null; then
  if [ -x "$HOME/.cargo/bin/cargo" ]; then
    echo "setup.sh: Rust is installed but not on PATH: run '. \"$HOME/.cargo/env\"' first" >&2
  else
    echo "setup.sh: Rust is missing: install it with rustup, then run this again" >&2
  fi
  exit 3
fi

find_missing
[ ${#packages[@]} -eq 0 ] && exit 0

wanted=$(printf '%s\n' "${packages[@]}" | sort -u | tr '\n' ' ')
wanted=${wanted% }
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "setup.sh: missing: $wanted. As root: apt-get install $wanted" >&2
  exit 3
fi

echo "setup.sh: installing $wanted"
export DEBIAN_FRONTEND=noninteractive
install() {
  # shellcheck disable=SC2086 # one package per word
  apt-get -o DPkg::Lock::Timeout=600 install -y -qq --no-install-recommends -o Dpkg::Use-Pty=0 $wanted >/dev/null 2>"$log"
}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Servers are installed as programs to run, not to be started here.
policy=/usr/sbin/policy-rc.d
case $purpose in
  nfs|nfs-clients|guest|pm)
    if [ ! -e "$policy" ]; then
      trap 'rm -f "$log" "$policy"' EXIT
      printf '#!/bin/sh\nexit 101\n' >"$policy"
      chmod +x "$policy"
    fi
    ;;
esac
# The package lists of a fresh machine are empty or old: fetch them only if the first try fails.
if ! install && ! { apt-get -o DPkg::Lock::Timeout=600 update -qq >/dev/null 2>"$log" && install; }; then
  tail -n 3 "$log" >&2
  echo "setup.sh: could not install: $wanted. Install them by hand, then run this again" >&2
  exit 3
fi

find_missing
if [ ${#packages[@]} -ne 0 ]; then
  echo "setup.sh: still missing after the installation: ${packages[*]}" >&2
  exit 3
fi

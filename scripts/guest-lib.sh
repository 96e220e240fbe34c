# Emulated machines with a Debian kernel, for the scripts. Sourced after lib.sh, never run.
# shellcheck shell=bash disable=SC2034
#
# Kernel and tools come from Debian packages, which are unpacked into target/tools and not installed. Emulation is some twenty
# times slower than the machine itself: nothing in there is a measurement.

GUEST=$TOOLS/guest

# package NAME: unpacks a Debian package into $GUEST/NAME, once.
package() {
  [ ! -e "$GUEST/$1/.unpacked" ] || return 0
  say "fetching the Debian package $1"
  rm -rf "${GUEST:?}/$1"
  mkdir -p "$GUEST/$1"
  (cd "$GUEST/$1" && { apt-get -qq download "$1" || { apt-get -qq update && apt-get -qq download "$1"; }; }) \
    >"$GUEST/log" 2>&1 || unable "the package $1 cannot be had: $(tail -n 1 "$GUEST/log")"
  local file
  for file in "$GUEST/$1"/*.deb; do dpkg-deb -x "$file" "$GUEST/$1" && rm -f "$file"; done
  touch "$GUEST/$1/.unpacked"
}

# with_libraries PROGRAM [NAME]: a program and what it is linked with, into the guest's /bin.
with_libraries() {
  local library
  cp -L "$1" "$TREE/bin/${2:-$(basename "$1")}"
  for library in $(ldd "$1" | grep -oE '/[^ ]+'); do
    mkdir -p "$TREE$(dirname "$library")"
    cp -L "$library" "$TREE$library"
  done
}

# guest_kernel: the kernel that the system's package lists name. Sets RELEASE, and KERNEL, its file.
guest_kernel() {
  local named='s/.*Depends: linux-image-//p'
  mkdir -p "$GUEST"
  # The meta-package names the current kernel.
  RELEASE=$(apt-cache depends linux-image-cloud-amd64 | sed -n "$named" | head -n 1)
  [ -n "$RELEASE" ] || { apt-get -qq update; RELEASE=$(apt-cache depends linux-image-cloud-amd64 | sed -n "$named" | head -n 1); }
  [ -n "$RELEASE" ] || unable "this system's package lists have no linux-image-cloud-amd64"
  package "linux-image-$RELEASE"
  KERNEL=$GUEST/linux-image-$RELEASE/boot/vmlinuz-$RELEASE
}

# guest_tree INIT MODULE…: the guest's first file system, with busybox, what runs first, and these modules. Sets TREE.
guest_tree() {
  local module library kernel=$GUEST/linux-image-$RELEASE
  TREE=$WORK/guest
  mkdir -p "$TREE"/{bin,proc,sys,dev,mnt,tmp,etc,usr/lib,lib64}
  cp "$(command -v busybox)" "$TREE/bin/busybox"
  cp "$1" "$TREE/init"
  chmod +x "$TREE/init"
  depmod -b "$kernel" "$RELEASE"
  mkdir -p "$TREE/lib/modules/$RELEASE"
  for module in "${@:2}"; do
    modprobe -d "$kernel" -S "$RELEASE" --show-depends "$module" | awk '/^insmod/ { print $2 }'
  done | sort -u | while read -r module; do
    library=$TREE/lib/modules/${module#*/lib/modules/}
    mkdir -p "$(dirname "$library")"
    cp "$module" "$library"
  done
  cp "$kernel/lib/modules/$RELEASE"/modules.{order,builtin,builtin.modinfo} "$TREE/lib/modules/$RELEASE/"
  depmod -b "$TREE" "$RELEASE"
}

# guest_pack: makes $WORK/initrd of it. Sets EMULATOR, a command to which consoles, devices and the kernel's command line are added.
guest_pack() {
  (cd "$TREE" && find . | cpio --quiet -o -H newc | gzip -1) >"$WORK/initrd"
  # The processor without what this emulator gets wrong.
  EMULATOR=(qemu-system-x86_64 -nodefaults -no-user-config -no-reboot -accel 'tcg,thread=multi' -cpu 'max,-cx16,-la57' -smp 2 -m 1536
    -display none -monitor none -kernel "$KERNEL" -initrd "$WORK/initrd")
}

#!/usr/bin/env bash
# overlayfs with its upper layer on a mounted volume, used as container storage is: this machine's own system as the lower layer,
# a chroot in the merged tree, and packages, git and copies at work in it.
#
#   scripts/overlay.sh [--contract NAME] [--files N] [--keep]
#
#   --contract NAME  contract of the fresh volume (default ordered), 'pm' for one in persistent memory, or 'all', one after the other
#   --files N        files in the test package and the git repository (default 1500)
#   --keep           keep the working directory for inspection
#
# Conditions: every step succeeds; the merged tree is the same after overlay and volume were unmounted and mounted
# again; fsck finds the volume clean; a file that is not the lower layer's has not changed there. Needs root. Where podman is
# installed, a container's root is made on the volume, too. Exits 0, 1 (something failed) or 3 (something needed is missing).
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"

files=1500
contract=ordered
while [ $# -gt 0 ]; do
  case $1 in
    --files) files=${2:?"--files needs a number"}; shift 2 ;;
    --contract) contract=${2:?"--contract needs a name"}; shift 2 ;;
    --keep) export KEEP_WORK=1; shift ;;
    -h|--help) sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) warn "unknown option '$1' (see --help)"; exit 2 ;;
  esac
done
for_contracts "$contract" "$0" --files "$files" ${KEEP_WORK:+--keep} --contract
[ "$(id -u)" = 0 ] || unable "needs root: overlayfs and chroot"
for program in dpkg-deb dpkg git unshare chroot setpriv; do
  command -v "$program" >/dev/null || unable "$program is missing"
done
reason=$(fuse_reason)
[ -z "$reason" ] || unable "cannot mount here: $reason"
if [ -z "${OVERLAY_INSIDE:-}" ]; then
  build_release
  export STEADFAST OVERLAY_INSIDE=1
  exec unshare -m --propagation private "${BASH_SOURCE[0]}" --contract "$contract" --files "$files" ${KEEP_WORK:+--keep}
fi

volume_workdir "$contract"
chmod 755 "$WORK"
IMAGE=$WORK/volume.img VOLUME=$WORK/volume ROOTFS=$WORK/root
mkdir -p "$ROOTFS"

up() {
  sf_mount "$IMAGE" "$VOLUME" -o allow_other,suid,dev,upper
  mkdir -p "$VOLUME/upper" "$VOLUME/work"
  on_exit detach "$ROOTFS"
  mount -t overlay overlay -o "lowerdir=/,upperdir=$VOLUME/upper,workdir=$VOLUME/work" "$ROOTFS" ||
    die "overlayfs refuses the volume as upper layer"
  mount -t proc none "$ROOTFS/proc"
  on_exit detach "$ROOTFS/proc"
  mount --bind /dev "$ROOTFS/dev"
  on_exit detach "$ROOTFS/dev"
}
down() {
  umount "$ROOTFS/proc" "$ROOTFS/dev"
  umount "$ROOTFS" || die "the overlay is busy"
  sf_umount "$VOLUME"
}
inside() { chroot "$ROOTFS" /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C HOME=/root "$@"; }
# Names, kinds, modes, owners, sizes, targets and content of what the test made or changed.
fingerprint() {
  (cd "$ROOTFS" && find opt/overlay etc usr/share/overlay-test var/lib/dpkg -xdev \
    -printf '%p %y %m %U:%G %s %l\n' 2>/dev/null | sort) >"$1"
  (cd "$ROOTFS" && find opt/overlay etc usr/share/overlay-test var/lib/dpkg -xdev -type f -print0 2>/dev/null | sort -z |
    xargs -0 -r sha256sum) >>"$1"
}

sf_mkfs "$IMAGE" 4G "$contract"
up

# Without these two, overlayfs would take the volume for less than it is, and podman refuses it.
step "what overlayfs asks of an upper layer"
features=$(dmesg 2>/dev/null | grep -c 'overlayfs: upper fs does not support' || true)
say "notes of the kernel since its start that an upper layer lacks something: $features"
if xfs_io -T "$VOLUME/upper" -c 'pwrite 0 4k' >/dev/null 2>&1; then say "O_TMPFILE: yes"; else say "O_TMPFILE: no (overlayfs does without)"; fi

step "copy up, whiteouts, opaque directories, renames"
before=$(sha256sum /etc/passwd)
mkdir -p "$ROOTFS/opt/overlay"
echo "# changed in the upper layer" >>"$ROOTFS/etc/passwd"
[ "$(sha256sum /etc/passwd)" = "$before" ] || die "the lower layer has changed"
rm -rf "${ROOTFS:?}/usr/share/doc"
[ ! -e "$ROOTFS/usr/share/doc" ] || die "a removed directory is still there"
mkdir "$ROOTFS/usr/share/doc"
[ -z "$(ls -A "$ROOTFS/usr/share/doc")" ] || die "a directory made anew shows the old content"
[ -n "$(ls -A /usr/share/doc)" ] || die "the lower layer has changed"
rm "$ROOTFS/etc/hostname" 2>/dev/null || true
[ ! -e "$ROOTFS/etc/hostname" ] || die "a whiteout does not hide"
mv "$ROOTFS/etc/group" "$ROOTFS/opt/overlay/group"
ln "$ROOTFS/opt/overlay/group" "$ROOTFS/etc/group"
cp -a /etc/ssl "$ROOTFS/opt/overlay/ssl" 2>/dev/null || true
mkdir -p "$ROOTFS/opt/overlay/tree/a/b"
mv "$ROOTFS/opt/overlay/tree" "$ROOTFS/opt/overlay/moved"

step "a set-uid program that another user writes to, through the overlay"
for kind in new copied; do
  program=$ROOTFS/opt/overlay/id-$kind
  cp /usr/bin/id "$program"
  chmod 4777 "$program"
  if [ "$kind" = copied ]; then # written before, so that the overlay knows it
    echo >>"$program"
    chmod 4777 "$program"
  fi
  # shellcheck disable=SC2016 # the other user's shell
  setpriv --reuid 65534 --regid 65534 --clear-groups sh -c 'echo >>"$0"' "$program"
  [ "$(setpriv --reuid 65534 --regid 65534 --clear-groups "$program" -u)" = 65534 ] || die "$kind: it still runs as root"
  [ "$(stat -c %a "$program")" = 777 ] || die "$kind: the bit is still there"
done

step "a package of $files files: installed, upgraded, removed, installed again"
package() { # VERSION COUNT
  local dir=$WORK/package-$1 i
  mkdir -p "$dir/DEBIAN" "$dir/usr/share/overlay-test/common" "$dir/etc/overlay-test"
  printf 'Package: overlay-test\nVersion: %s\nArchitecture: all\nMaintainer: nobody <nobody@localhost>\nDescription: test\n' "$1" \
    >"$dir/DEBIAN/control"
  echo /etc/overlay-test/conf >"$dir/DEBIAN/conffiles"
  echo "version $1" >"$dir/etc/overlay-test/conf"
  for ((i = 0; i < $2; i++)); do
    mkdir -p "$dir/usr/share/overlay-test/$((i % 37))"
    echo "$1 $i" >"$dir/usr/share/overlay-test/$((i % 37))/file-$i"
    ((i % 10)) || ln -s "../$((i % 37))/file-$i" "$dir/usr/share/overlay-test/common/link-$1-$i"
  done
  dpkg-deb --root-owner-group -Znone -b "$dir" "$ROOTFS/opt/overlay/overlay-test-$1.deb" >/dev/null
}
package 1 "$files"
package 2 $((files * 2 / 3))
quietly() { inside "$@" >"$WORK/said" 2>&1 || { cat "$WORK/said"; die "failed in the chroot: $*"; }; }
quietly dpkg --force-confnew -i /opt/overlay/overlay-test-1.deb
quietly dpkg --force-confnew -i /opt/overlay/overlay-test-2.deb
[ "$(find "$ROOTFS/usr/share/overlay-test" -name 'file-*' | wc -l)" = $((files * 2 / 3)) ] || die "the upgrade left files or lost some"
quietly dpkg --verify overlay-test
quietly dpkg -P overlay-test
[ ! -e "$ROOTFS/usr/share/overlay-test" ] || die "the removal left files"
quietly dpkg --force-confnew -i /opt/overlay/overlay-test-2.deb
quietly dpkg --verify overlay-test

step "git in the chroot"
# shellcheck disable=SC2016 # for the shell in the chroot
quietly sh -ec '
  export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@localhost GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@localhost
  cd /opt/overlay && mkdir git && cd git && git init -q -b main .
  cp -r /usr/share/overlay-test tree && git add -A && git commit -qm one
  git checkout -qb side && git rm -rqf tree/common && echo new >tree/new && git add -A && git commit -qm two
  git checkout -q main && git merge -q --no-edit side && git gc -q && git fsck --strict && git clone -q . ../clone
  git diff --quiet HEAD && [ -z "$(git status --porcelain)" ]'

step "unmounted, checked, mounted again"
fingerprint "$WORK/before"
down
sf_fsck "$IMAGE"
up
fingerprint "$WORK/after"
cmp "$WORK/before" "$WORK/after" || die "the tree is not what it was"
say "$(wc -l <"$WORK/before") lines of names and content are the same"
quietly dpkg --verify overlay-test
quietly git -C /opt/overlay/git fsck --strict

if command -v podman >/dev/null; then
  step "podman with its storage on the volume"
  (cd / && tar --ignore-failed-read -cf "$WORK/image.tar" bin lib lib64 usr/lib64 usr/bin/dash usr/bin/cat usr/bin/rm usr/bin/true \
    usr/lib/*-linux-gnu/libc.so.6 usr/lib/*-linux-gnu/ld-linux-*.so.*) 2>/dev/null || true
  storage() { podman --root "$VOLUME/containers" --runroot "$WORK/run" --storage-driver overlay "$@"; }
  storage import -q "$WORK/image.tar" overlay-test >/dev/null || die "podman cannot import an image"
  storage create -q --name box overlay-test /usr/bin/dash >/dev/null || die "podman cannot make a container"
  box=$(storage mount box) || die "podman cannot mount a container"
  chroot "$box" /usr/bin/dash -c 'echo kept >/kept && rm /usr/bin/true' || die "nothing can be changed in the container"
  storage umount box >/dev/null
  storage diff box | grep -qx 'A /kept' || die "podman does not see what was made"
  storage diff box | grep -qx 'D /usr/bin/true' || die "podman does not see what was removed"
  storage commit -q box changed >/dev/null || die "podman cannot commit a container"
  if ! storage run --rm --network none --cgroups disabled changed /usr/bin/cat /kept >"$WORK/said" 2>&1; then
    say "left out, because containers do not run here: $(tail -n 1 "$WORK/said")"
  elif ! grep -qx kept "$WORK/said"; then
    die "a container does not see what was committed"
  fi
  if ! storage rm -af >/dev/null || ! storage rmi -af >/dev/null; then die "podman cannot remove its storage"; fi
else
  say "left out, because podman is not installed: a container with its storage on the volume"
fi
down
sf_fsck "$IMAGE"
say "overlay: everything held"

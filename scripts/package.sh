#!/usr/bin/env bash
# Builds the Debian package, asks lintian about it, and installs, tries and removes it in a fresh minimal system.
#
#   scripts/package.sh [--out DIR] [--no-chroot]
#
#   --out DIR     leaves the package there (default: target/package)
#   --no-chroot   only builds it and asks lintian
#
# Needs Debian and, but for --no-chroot, root. Exits 0, 1 (something is wrong) or 3 (something needed is missing).
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"

out=$TARGET/package
chroot=1
while [ $# -gt 0 ]; do
  case $1 in
    --out) out=${2:?}; shift 2 ;;
    --no-chroot) chroot=; shift ;;
    -h|--help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) warn "unknown option '$1' (see --help)"; exit 2 ;;
  esac
done

if [ -n "$chroot" ] && [ "$(id -u)" != 0 ]; then unable "a fresh system needs root; --no-chroot only builds the package"; fi
"$here/setup.sh" package
make_workdir "${TMPDIR:-/tmp}"
mkdir -p "$out"

step "Build"
# A copy, since a build leaves its files in debian/ and the package beside the directory.
mkdir "$WORK/steadfast"
(cd "$ROOT" && git ls-files -z | tar --null -cf - -T -) | tar -xf - -C "$WORK/steadfast"
(cd "$WORK/steadfast" && CARGO_TARGET_DIR=$TARGET/package-build dpkg-buildpackage -b -us -uc -d >"$WORK/build.log" 2>&1) ||
  { tail -n 30 "$WORK/build.log" >&2; die "the package cannot be built"; }
cp "$WORK"/steadfast_*.deb "$out/"
packages=("$WORK"/steadfast_*.deb)
package=${packages[0]}
dpkg-deb --info "$package" | sed -n 's/^ \(Package\|Version\|Installed-Size\|Depends\)/  \1/p'

step "lintian"
# It refuses to judge as root unless it may, and its overrides are in debian/.
lintian --allow-root --fail-on error,warning --no-tag-display-limit "$package" || die "lintian finds something"
say "  nothing found"
[ -n "$chroot" ] || exit 0

step "A fresh system"
system=$WORK/system
mmdebstrap --quiet --variant=minbase --include=adduser,fuse3,mount "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$system" ||
  unable "mmdebstrap could not make a system"
inside() { chroot "$system" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 "$@"; }
cp "$package" "$system/root/"
inside dpkg -i "/root/${package##*/}" >"$WORK/install.log" 2>&1 || { cat "$WORK/install.log" >&2; die "the package cannot be installed"; }
inside steadfast --version
inside id steadfast >/dev/null || die "the package makes no user for the NFS server"
# shellcheck disable=SC2016
inside sh -c 'for name in mount umount mkfs fsck; do command -v $name.steadfast >/dev/null || exit 1; done' || die "helpers for mount(8) are missing"
inside sh -c 'mkfs.steadfast --size 64M /root/disk.img && fsck.steadfast -n /root/disk.img && steadfast info /root/disk.img' >/dev/null ||
  die "the installed command does not make and check a volume"
inside sh -c 'test -s /usr/share/man/man1/steadfast.1.gz && test -s /usr/share/bash-completion/completions/steadfast' || die "manual or completions are missing"

step "Removal"
inside dpkg --purge steadfast >"$WORK/remove.log" 2>&1 || { cat "$WORK/remove.log" >&2; die "the package cannot be removed"; }
left=$(inside sh -c 'find /usr /etc /var/lib -path /var/lib/dpkg -prune -o -name "*steadfast*" -print')
[ -z "$left" ] || die "left behind: $left"
say "  nothing left behind; the package is $out/${package##*/}"

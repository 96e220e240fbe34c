#!/usr/bin/env bash
# Builds the Debian package, asks lintian about it, and installs, tries and removes it in a fresh minimal system: the command, the
# manual and its links, the units and the example of fstab.
#
#   scripts/package.sh [--package FILE] [--out DIR] [--no-chroot]
#
#   --package FILE   tries this package instead of building one
#   --out DIR        leaves the package there (default: target/package)
#   --no-chroot      only builds it and asks lintian
#
# Needs Debian and, but for --no-chroot, root. Exits 0, 1 (something is wrong), 2 (usage) or 3 (something needed is missing).
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"
# shellcheck source-path=SCRIPTDIR source=packaging.sh
. "$here/packaging.sh"

out=$TARGET/package
chroot=1
package=
while [ $# -gt 0 ]; do
  case $1 in
    --package) package=$(realpath -e "${2:?"--package needs a file"}") || exit 2; shift 2 ;;
    --out) out=${2:?}; shift 2 ;;
    --no-chroot) chroot=; shift ;;
    -h|--help) sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) warn "unknown option '$1' (see --help)"; exit 2 ;;
  esac
done

if [ -n "$chroot" ] && [ "$(id -u)" != 0 ]; then unable "a fresh system needs root; --no-chroot only builds the package"; fi
"$here/setup.sh" package
make_workdir "${TMPDIR:-/tmp}"

if [ -z "$package" ]; then
  step "Build"
  commit_time
  build_deb "$out"
  package=$out/steadfast_${VERSION}_$(dpkg --print-architecture).deb
  [ -s "$package" ] || die "the build left no $package"
fi
dpkg-deb --info "$package" | sed -n 's/^ \(Package\|Version\|Installed-Size\|Depends\)/  \1/p'

step "lintian"
# It refuses to judge as root unless it may, and its overrides are in debian/.
lintian --allow-root --fail-on error,warning --no-tag-display-limit "$package" || die "lintian finds something"
say "  nothing found"
[ -n "$chroot" ] || exit 0

step "A fresh system"
system=$WORK/system
release=$(. /etc/os-release && echo "$VERSION_CODENAME")
timeout 900 mmdebstrap --quiet --variant=minbase --include=adduser,fuse3,mount,procps,systemd "$release" "$system" ||
  unable "mmdebstrap could not make a system"
inside() { timeout 300 chroot "$system" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 "$@"; }
cp "$package" "$system/root/"
inside dpkg -i "/root/${package##*/}" >"$WORK/install.log" 2>&1 || { cat "$WORK/install.log" >&2; die "the package cannot be installed"; }
inside steadfast --version
inside id steadfast >/dev/null || die "the package makes no user for the NFS server"
# shellcheck disable=SC2016
inside sh -c 'for name in mount umount mkfs fsck; do command -v $name.steadfast >/dev/null || exit 1; done' || die "helpers for mount(8) are missing"
inside sh -c 'mkfs.steadfast --size 64M /root/disk.img && fsck.steadfast -n /root/disk.img && steadfast info /root/disk.img' >/dev/null ||
  die "the installed command does not make and check a volume"

step "The manual"
inside sh -c 'test -s /usr/share/man/man1/steadfast.1.gz && test -s /usr/share/bash-completion/completions/steadfast' || die "manual or completions are missing"
# Pages by other names lead to pages.
broken=$(inside find /usr/share/man /usr/sbin /usr/share/doc/steadfast -xtype l)
[ -z "$broken" ] || die "links lead nowhere: $broken"
for page in mount umount mkfs fsck; do
  [ -e "$system/usr/share/man/man8/$page.steadfast.8.gz" ] || die "$page.steadfast(8) is missing"
done
documents=$system/usr/share/doc/steadfast
cmp "$ROOT/README.md" "$documents/README.md" || die "README.md is not the project's"
cmp "$ROOT/docs/README.md" "$documents/docs/README.md" || die "docs/README.md is not the one of the manual"
for page in "$ROOT"/docs/operate/*.md "$ROOT"/docs/reference/*.md "$ROOT/docs/object-store.md"; do
  [ -s "$documents/${page#"$ROOT/"}" ] || die "${page#"$ROOT/"} is not installed"
done
"$here/doc-tree.py" check "$documents" || die "links of the documents lead nowhere"

step "Units"
for unit in steadfast@data.service steadfast-nfs@data.service; do
  template=${unit/data/}
  [ -s "$system/usr/lib/systemd/system/$template" ] || die "$template is missing"
  ! grep -q /usr/local "$system/usr/lib/systemd/system/$template" || die "$template runs a program in /usr/local"
  inside env SYSTEMD_OFFLINE=1 systemd-analyze --man=no verify "$unit" >"$WORK/units.log" 2>&1 || { cat "$WORK/units.log" >&2; die "systemd refuses $unit"; }
  # It also exits with 0 when it ignores a line.
  ! grep -F steadfast "$WORK/units.log" >&2 || die "systemd finds something in $unit"
done
# The example of fstab: each entry becomes a unit that the boot does not wait for.
cp "$documents/examples/fstab" "$system/etc/fstab"
inside mkdir -p /run/fstab-units
inside /usr/lib/systemd/system-generators/systemd-fstab-generator /run/fstab-units /run/fstab-units /run/fstab-units >"$WORK/units.log" 2>&1 ||
  { cat "$WORK/units.log" >&2; die "systemd does not understand the example of fstab"; }
entries=$(grep -c '^[^#]' "$documents/examples/fstab")
units=$(find "$system/run/fstab-units" -maxdepth 1 -name 'mnt-*.mount' | wc -l)
((units == entries)) || die "the example of fstab has $entries entries, and systemd makes $units units"
[ -L "$system/run/fstab-units/local-fs.target.wants/mnt-data.mount" ] || die "the boot does not mount the example's volume"
required=$(find "$system/run/fstab-units" -path '*.requires/mnt-*')
[ -z "$required" ] || die "the boot fails without $required, in spite of nofail"
say "  systemd takes both units, and $units of $entries entries of the example of fstab, none of which the boot waits for"

step "Removal"
inside dpkg --purge steadfast >"$WORK/remove.log" 2>&1 || { cat "$WORK/remove.log" >&2; die "the package cannot be removed"; }
left=$(inside sh -c 'find /usr /etc /var/lib -path /var/lib/dpkg -prune -o -name "*steadfast*" -print')
[ -z "$left" ] || die "left behind: $left"
say "  nothing left behind; the package is $package"

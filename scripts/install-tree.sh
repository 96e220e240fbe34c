#!/usr/bin/env bash
# Installs a built program with what belongs to it: manual pages, completions, systemd units, rules for udev and file(1), the
# administrator's manual, and licences. The Debian package, the RPM and the tarballs are made of such trees.
#
#   scripts/install-tree.sh --program FILE --root DIR [--prefix DIR] [--runner FILE] [--zsh DIR] [--licences FILE]
#
#   --program FILE   the program
#   --root DIR       the tree
#   --prefix DIR     where the tree's files will be (default /usr/local). For /usr, mount(8)'s helpers are installed, too.
#   --runner FILE    the same program for this machine, which writes manual and completions (default: the program)
#   --zsh DIR        zsh's directory for completions below share/ (default zsh/site-functions)
#   --licences FILE  the licences of the crates in the program (scripts/sbom.py licences)
#
# Fails if a link of the manual leads nowhere in the tree. Exits 0, 1 or 2 (usage).
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"

program='' root='' prefix=/usr/local runner='' zsh=zsh/site-functions licences=''
while [ $# -gt 0 ]; do
  case $1 in
    --program) program=${2:?"--program needs a file"}; shift 2 ;;
    --root) root=${2:?"--root needs a directory"}; shift 2 ;;
    --prefix) prefix=${2:?"--prefix needs a directory"}; shift 2 ;;
    --runner) runner=${2:?"--runner needs a file"}; shift 2 ;;
    --zsh) zsh=${2:?"--zsh needs a directory"}; shift 2 ;;
    --licences) licences=${2:?"--licences needs a file"}; shift 2 ;;
    -h|--help) sed -n '2,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) warn "unknown option '$1' (see --help)"; exit 2 ;;
  esac
done
if [ -z "$program" ] || [ -z "$root" ]; then warn "needs --program and --root (see --help)"; exit 2; fi
runner=${runner:-$program}
"$runner" --version >/dev/null || die "$runner does not run on this machine: name one that does with --runner"

umask 022
into=$root$prefix
share=$into/share
doc=$share/doc/steadfast
# With the program's place in it.
adapted() { sed "s,/usr/local/bin/,$prefix/bin/,g" "$ROOT/$1" >"$2"; }

install -D "$program" "$into/bin/steadfast"
"$runner" man "$share/man" >/dev/null
install -d "$share/bash-completion/completions" "$share/$zsh" "$share/fish/vendor_completions.d"
"$runner" completions bash >"$share/bash-completion/completions/steadfast"
"$runner" completions zsh >"$share/$zsh/_steadfast"
"$runner" completions fish >"$share/fish/vendor_completions.d/steadfast.fish"

# mount(8) looks for its helpers in /usr/sbin alone. From another place, `steadfast install-helper` makes them.
if [ "$prefix" = /usr ]; then
  install -d "$into/sbin"
  for name in mount umount mkfs fsck; do
    page=steadfast-$name.1
    if [ "$name" = mount ]; then page=; fi
    for helper in "$name.steadfast" "$name.fuse.steadfast"; do
      ln -sfn ../bin/steadfast "$into/sbin/$helper"
      if [ -n "$page" ]; then ln -sfn "../man1/$page" "$share/man/man8/$helper.8"; fi
    done
  done
  ln -sfn mount.steadfast.8 "$share/man/man8/mount.fuse.steadfast.8"
fi

units=$into/lib/systemd/system
install -d "$units" "$into/lib/udev/rules.d"
adapted docs/systemd/steadfast@.service "$units/steadfast@.service"
if "$runner" serve nfs --help >/dev/null 2>&1; then adapted docs/systemd/steadfast-nfs@.service "$units/steadfast-nfs@.service"; fi
adapted docs/udev/65-steadfast.rules "$into/lib/udev/rules.d/65-steadfast.rules"
install -D -m 644 "$ROOT/docs/magic" "$share/steadfast/magic"
install -D -m 644 "$ROOT/crates/stream/include/steadfast/stream.h" "$into/include/steadfast/stream.h"

"$here/doc-tree.py" install "$ROOT" "$doc" --bin "$prefix/bin"
install -m 644 "$ROOT/LICENSE-MIT" "$ROOT/LICENSE-APACHE" "$doc/"
if [ -n "$licences" ]; then install -m 644 "$licences" "$doc/third-party-licences.txt"; fi
install -D -m 644 "$ROOT/packages/examples/fstab" "$doc/examples/fstab"
"$here/doc-tree.py" check "$doc"

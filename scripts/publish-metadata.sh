#!/usr/bin/env bash
# Writes the address of the project into the manifests of a checkout, before its crates are published: `repository`,
# `homepage` and `documentation` of each published crate, and for `cargo binstall` the place of the release's archives, whose
# programs are static.
#
#   scripts/publish-metadata.sh URL [CHECKOUT]
#
# URL is the repository's address at its host, such as https://git.example.org/OWNER/NAME; CHECKOUT is by default the one
# of this script. A second run changes nothing; one with another address replaces the first.
#
# Exits 0, 1 (a manifest cannot be written, or is of another form) or 2 (usage, or no such address).
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"

case ${1:-} in
  -h|--help) sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
  -*) warn "unknown option '$1' (see --help)"; exit 2 ;;
esac
if [ $# -lt 1 ] || [ $# -gt 2 ]; then warn "usage: publish-metadata.sh URL [CHECKOUT]"; exit 2; fi
url=$1 checkout=${2:-$ROOT}

# A host with a dot, a port or none, and at least an owner and a name, each of characters that need no quotes.
label='[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?'
segment='[A-Za-z0-9_~-][A-Za-z0-9._~-]*'
if [[ $url == *$'\n'* ]] || ! [[ $url =~ ^https://$label(\.$label)+(:[0-9]{1,5})?(/$segment){2,}$ ]]; then
  warn "'$url' is no address of a repository, such as https://git.example.org/OWNER/NAME"
  exit 2
fi
if [[ $url == *.git ]]; then warn "'$url': leave out '.git', which archives and pages do not have"; exit 2; fi
if [ ! -f "$checkout/crates/cli/Cargo.toml" ]; then warn "$checkout is no checkout of this project"; exit 2; fi

# The manifest with the entries, on standard output. They follow `readme`, which every published crate has.
with_entries() {
  awk -v url="$url" '
    function end_of_section() { if (section == "[package]" && !written) exit 1 }
    /^\[/ { end_of_section(); section = $0 }
    section == "[package.metadata.binstall]" { next }
    section == "[package]" && /^(repository|homepage|documentation) *=/ { next }
    section == "[package]" && /^name *=/ { name = $3; gsub(/"/, "", name) }
    # Blank lines are written with the line that follows them, so that none is left where a section was.
    /^$/ { blank++; next }
    { while (blank > 0) { print ""; blank-- } print }
    section == "[package]" && /^readme *=/ {
      printf "repository = \"%s\"\nhomepage = \"%s\"\n", url, url
      if (name == "steadfast-cli") printf "documentation = \"%s\"\n", url
      else printf "documentation = \"https://docs.rs/%s\"\n", name
      written = 1
    }
    END {
      end_of_section()
      if (!written) exit 1
      if (name == "steadfast-cli") {
        print "\n[package.metadata.binstall]"
        print "pkg-url = \"{ repo }/releases/download/v{ version }/steadfast-{ version }-{ target-arch }-linux-musl.tar.gz\""
        print "bin-dir = \"steadfast-{ version }-{ target-arch }-linux-musl/bin/{ bin }{ binary-ext }\""
        print "pkg-fmt = \"tgz\""
      }
    }' "$1"
}

# All are made before the first is replaced.
make_workdir "${TMPDIR:-/tmp}"
manifests=()
for manifest in "$checkout"/crates/*/Cargo.toml; do
  if grep -q '^publish = false' "$manifest"; then continue; fi
  with_entries "$manifest" >"$WORK/${#manifests[@]}" || die "$manifest has no 'name' and 'readme' in its [package]"
  manifests+=("$manifest")
done
changed=0
for i in "${!manifests[@]}"; do
  if cmp -s "$WORK/$i" "${manifests[i]}"; then continue; fi
  cp "$WORK/$i" "${manifests[i]}.new"
  mv "${manifests[i]}.new" "${manifests[i]}"
  changed=$((changed + 1))
done
say "$url: ${#manifests[@]} manifests, $changed of them changed"

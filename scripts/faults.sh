#!/usr/bin/env bash
# The table of planted faults, docs/faults.md: which tests find which fault.
#
#   scripts/faults.sh --list
#   scripts/faults.sh --write DEFAULT-NOTES MERGE-NOTES [LONG-NOTES]
#   scripts/faults.sh --check [DEFAULT-NOTES]
#
#   --list    prints every fault that the sources declare, with its source; fails if one is declared in a way that it does not know
#   --write   writes docs/faults.md. The notes are the files that STEADFAST_NOTES named in runs of the tests: those of the default
#             tier, and those of what the merge tier and the long tier have besides. Without LONG-NOTES the document's finds of the
#             long tier stay
#   --check   compares docs/faults.md with the sources, and with the notes of a run of the default tier: each fault that this tier
#             finds by the document must be found
#
# Exits 0, 1 (a fault is lost, unknown or not listed) or 2 (usage).
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"

case ${1:-} in
  -h|--help) sed -n '2,16s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
  --list)  (($# == 1)) || { warn "--list takes no files (see --help)"; exit 2; } ;;
  --write) (($# == 3 || $# == 4)) || { warn "--write takes two or three files of notes (see --help)"; exit 2; } ;;
  --check) (($# <= 2)) || { warn "--check takes one file of notes (see --help)"; exit 2; } ;;
  '') warn "one of --list, --write and --check is needed (see --help)"; exit 2 ;;
  *) warn "unknown option '$1' (see --help)"; exit 2 ;;
esac
command -v python3 >/dev/null || unable "python3 is missing"
for file in "${@:2}"; do
  [ -r "$file" ] || { warn "$file cannot be read"; exit 2; }
done
files=()
for file in "${@:2}"; do files+=("$(realpath "$file")"); done
cd "$ROOT"
python3 "$here/faults.py" "$1" "${files[@]}"

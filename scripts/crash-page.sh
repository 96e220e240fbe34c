#!/usr/bin/env bash
# The HTML report of 'steadfast crash test' in headless Chromium: offline, under its own policy, without a message on the console; the
# crash point by mouse and keyboard, with the files that differ and the source; 400 and 1600 pixels; light and dark; a file with a hostile name; 100,000 calls. Then JUnit and SARIF against their schemas.
#
#   scripts/crash-page.sh [--install] [--pictures DIR] [--calls N] [--seconds S]
#
#   --install       get chromium and chromium-driver from Debian first, if they are missing (needs root)
#   --pictures DIR  keep the screenshots there
#   --calls N       of the large report [default: 100000]
#   --seconds S     that it may take to open [default: 3]
#
# The schemas are not in this repository: 'xmllint' and the npm packages that hold them are used if they are available, else that part is left out
# and named. Exits 0, 1 or 3.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"

install=
pictures=
calls=100000
seconds=3
while [ $# -gt 0 ]; do
  case $1 in
    --install) install=1; shift ;;
    --pictures) pictures=${2:?"--pictures needs a directory"}; shift 2 ;;
    --calls) calls=${2:?"--calls needs a number"}; shift 2 ;;
    --seconds) seconds=${2:?"--seconds needs a number"}; shift 2 ;;
    -h|--help) sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) warn "unknown option '$1' (see --help)"; exit 2 ;;
  esac
done
reason=$(fuse_reason)
[ -z "$reason" ] || unable "cannot mount here: $reason"
if ! command -v chromedriver >/dev/null && [ -n "$install" ]; then
  [ "$(id -u)" = 0 ] || unable "needs root to install chromium and chromium-driver"
  apt-get install --quiet --quiet --yes --no-install-recommends chromium chromium-driver >/dev/null
fi
command -v chromedriver >/dev/null || unable "chromedriver is missing: install chromium and chromium-driver, or run this with --install"
build_release
make_workdir "${TMPDIR:-/tmp}"
export HOME=$WORK
pictures=${pictures:-$WORK}
mkdir -p "$pictures"

hostile='<img src=x onerror=alert(1)>'
# With debug information, so that the report shows its source; a shell where there is no compiler.
cat >"$WORK/save.c" <<'C'
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
int main(int count, char **words) {
    int file = open("tmp", O_CREAT | O_WRONLY, 0644);
    if (count < 2 || write(file, "new <b>content</b>\n", 19) != 19) return 1;
    if (rename("tmp", words[1]) != 0) return 1; /* <i>before</i> the sync */
    return fsync(file);
}
C
workload=(sh -c "echo 'new <b>content</b>' >tmp; mv tmp '$hostile'; sync '$hostile'")
sourced=
if cc -g -o "$WORK/save" "$WORK/save.c" 2>/dev/null; then
  workload=("$WORK/save" "$hostile")
  sourced=save.c
else
  say "left out, because there is no compiler: source lines"
fi
status=0
"$STEADFAST" crash test --fs ext4,posix --samples 20 --superfluous -o "$WORK/small.trace" \
  --html "$WORK/small.html" --junit "$WORK/small.xml" --sarif "$WORK/small.sarif" --setup "echo old >'$hostile'" \
  --check "test -s '$hostile' || { echo 'the file is empty: $hostile'; exit 1; }" \
  -- "${workload[@]}" >"$WORK/small.log" 2>&1 || status=$?
[ "$status" = 1 ] || die "the test that should find something ends with $status: $(tail -n 1 "$WORK/small.log")"
python3 "$here/crash-programs/page.py" look "$WORK/small.html" "$pictures" "$sourced"

cat >"$WORK/many.py" <<'PYTHON'
import os, sys
file = os.open("log", os.O_CREAT | os.O_WRONLY)
for i in range(int(sys.argv[1])):
    if i % 100 == 0:
        os.pwrite(file, b"line\n", i % 1000 * 5)
    else:
        os.fsync(file)
PYTHON
"$STEADFAST" crash record --no-stacks -o "$WORK/many.trace" -- python3 "$WORK/many.py" "$calls" >/dev/null
status=0
"$STEADFAST" crash explore --fs killed --states 5 --samples 0 --no-repair --check true --html "$WORK/many.html" "$WORK/many.trace" >"$WORK/many.log" 2>&1 || status=$?
[ "$status" = 0 ] || [ "$status" = 4 ] || die "the large report: status $status: $(tail -n 1 "$WORK/many.log")"
python3 "$here/crash-programs/page.py" open "$WORK/many.html" "$seconds"

"$here/crash-schemas.sh" "$WORK/small.xml" "$WORK/small.sarif"

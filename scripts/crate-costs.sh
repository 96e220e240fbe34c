#!/usr/bin/env bash
# The crates that cost the most in a build of the command, and why they stay.
#
#   scripts/crate-costs.sh [--write]
#
#   --write  put the table into CONTRIBUTING.md, between its markers
#
# Builds the command (release, all features) in a directory that is removed at the end. The seconds are processor seconds of the Rust
# and C compilers for the crate, its build script included: another load of the machine changes them little. The reasons are
# below; a crate among the dearest without one makes the script fail.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"

write=
case ${1:-} in
  "") ;;
  --write) write=1 ;;
  -h|--help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
  *) warn "unknown option '$1' (see --help)"; exit 2 ;;
esac

reasons() {
  cat <<'TABLE'
addr2line|`crash record`: lines of source in a program's stacks
blake3|hashes of objects in a store, and of the log
chrono|times of object_store
clap_builder|the command line and its help
clap_derive|the command line, declared as types
clap_mangen|the manual, from the command line
cpp_demangle|`crash record`: names of C++ functions in stacks
framehop|`crash record`: unwinding a program's stack
futures-util|requests to a store at the same time
h2|HTTP/2, which reqwest and hyper share
hyper|HTTP of stores
libc|the C library
nfs3_types|the types of NFS version 3
nix|`crash record`: namespaces, and memory of programs
object|`crash record`: symbols of programs
object_store|S3, Azure and Google stores behind one interface
proc-macro2|of every derive
quick-xml|answers of S3 and Azure
regex-automata|of the dependencies of stores
reqwest|HTTP client of object_store
ring|cryptography: TLS, and encryption of volumes
rustix|system calls without unsafe code of ours
rustls|TLS, for `serve nfs` and stores
rustls-webpki|checks of certificates
serde_core|JSON and TOML
serde_derive|JSON and TOML, declared as types
serde_json|JSON for scripts
syn|of every derive
tokio|threads for requests to stores
url|URLs of stores
winnow|of toml
zerocopy|on-disk structures without unsafe code of ours
zerocopy-derive|the same, declared as types
zstd-sys|compression of volumes on stores
TABLE
}
# The reason of a crate; of one of ours, that it is the product.
reason() {
  case $1 in
    steadfast*) echo "ours" ;;
    *) reasons | sed -n "s/^$1|//p" ;;
  esac
}

make_workdir "${TMPDIR:-/tmp}"
cat >"$WORK/measure" <<'PYTHON'
#!/usr/bin/env python3
# Runs a compiler, and notes its processor seconds under the crate that Cargo builds.
import os, resource, subprocess, sys
# Open descriptors: the jobserver is among them.
status = subprocess.call(sys.argv[1:], close_fds=False)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
crate = os.environ.get("CARGO_PKG_NAME")
if crate:
    with open(os.environ["STEADFAST_COSTS"], "a") as notes:
        notes.write(f"{crate} {used.ru_utime + used.ru_stime:.3f}\n")
sys.exit(status if status >= 0 else 128 - status)
PYTHON
chmod +x "$WORK/measure"
export STEADFAST_COSTS=$WORK/costs CARGO_INCREMENTAL=0 CC_KNOWN_WRAPPER_CUSTOM=measure
(cd "$ROOT" && RUSTC_WRAPPER=$WORK/measure CC="$WORK/measure ${CC:-cc}" CARGO_TARGET_DIR=$WORK/target \
  cargo build --quiet --release --locked -p steadfast-cli) || die "the build failed"

total=$(awk '{ sum += $2 } END { printf "%.1f", sum }' "$WORK/costs")
awk '{ sum[$1] += $2 } END { for (crate in sum) printf "%s %.1f\n", crate, sum[crate] }' "$WORK/costs" |
  sort -k2,2 -gr | sed 20q >"$WORK/dearest"
{
  echo "| crate | seconds | why it stays |"
  echo "|---|---|---|"
  while read -r crate seconds; do
    echo "| \`$crate\` | $seconds | $(reason "$crate") |"
  done <"$WORK/dearest"
  echo "| all | $total | |"
} >"$WORK/table"
cat "$WORK/table"
while read -r crate _; do
  [ -n "$(reason "$crate")" ] || die "no reason for the crate '$crate': write one into this script, or do without the crate"
done <"$WORK/dearest"
[ -z "$write" ] || write_between "crate-costs" "$WORK/table" "$ROOT/CONTRIBUTING.md"

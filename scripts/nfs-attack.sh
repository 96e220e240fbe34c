#!/usr/bin/env bash
# The NFS server under attack, at length: the tests of crates/nfs/tests/attacks.rs with hundreds of connections and ten seconds
# each. Hostile clients come from an address that no export admits and from one that is admitted, beside a good client. For each
# attack one line: the good client's 99th percentile on an idle server, under attack and afterwards, and the memory that the server
# grew by.
#
#   scripts/nfs-attack.sh [--latency] [TEST...]
#
# Fails if anything of the good client was reset or refused, if the memory exceeds its limit by more than a fifth, or if anything
# is held after the attackers have gone. With --latency also if the 99th percentile under attack is more than three times that
# of the idle server, which means something on a quiet machine alone.
set -euo pipefail
cd "$(dirname "$0")/.."
export STEADFAST_LONG=1
case "${1:-}" in
  -h | --help)
    sed -n '2,12s/^# \{0,1\}//p' "$0"
    exit 0
    ;;
  --latency)
    export STEADFAST_LATENCY=1
    shift
    ;;
esac
exec cargo test --release --package steadfast-nfs --test attacks -- --test-threads 1 --nocapture "$@"

#!/usr/bin/env bash
# The NFS server under attack, at length: hostile clients from an address that no export admits and from one that is admitted,
# beside a good client. The tests of crates/nfs/tests/attacks.rs, with hundreds of connections and ten seconds each; for each
# attack one line with the good client's 99th percentile idle, under attack and afterwards, and the memory that the server grew by.
#
# Fails if anything of the good client was reset or refused, if the memory exceeds its limit by more than a fifth, if anything
# is held after the attackers have gone, or if the 99th percentile is more than three times that of the idle server. The
# last is meaningful on a quiet machine alone.
#
# usage: scripts/nfs-attack.sh [TEST...]
set -euo pipefail
cd "$(dirname "$0")/.."
export STEADFAST_LONG=1
if [ $# = 0 ]; then set -- ''; fi
for test in "$@"; do
  cargo test --release --package steadfast-nfs --test attacks -- --test-threads 1 --nocapture $test
done

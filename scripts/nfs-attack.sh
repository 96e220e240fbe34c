#!/usr/bin/env bash
# The NFS server under attack, at length: the tests of crates/nfs/tests/suite/attacks.rs with hundreds of connections and ten seconds
# each. Hostile clients come from an address that no export admits and from one that is admitted, beside a good client. For each
# attack one line: the good client's 99th percentile on an idle server, under attack and afterwards, and the memory that the server
# grew by.
#
#   scripts/nfs-attack.sh [--latency] [TEST...]
#
# Fails if a connection or request of the good client was reset or refused, if the memory exceeds its limit by more than a
# fifth, or if the server holds anything after the attackers have gone.
#
# With --latency also if the 99th percentile under attack is more than three times the larger of two figures: that of the idle
# server, and a control. In the control the same attackers attack a bystander in a process of its own, which keeps their
# connections and reads nothing, while the good client works on the server, which is not attacked. Attackers, client and server
# share the cores of this machine, and the control shows the cost of the attackers themselves. It also hides smaller costs of
# the server: on few cores the criterion is weak, and only the comparison of both figures is meaningful. The time until the
# 99th percentile of 200 ms is at most three times that of the idle server, after the attackers have left, must be a second
# at most. On a machine with other work the figures mean nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
export STEADFAST_LONG=1
case "${1:-}" in
  -h | --help)
    sed -n '2,18s/^# \{0,1\}//p' "$0"
    exit 0
    ;;
  --latency)
    export STEADFAST_LATENCY=1
    shift
    ;;
esac
exec cargo test --release --package steadfast-nfs --test suite attacks:: -- --test-threads 1 --nocapture "$@"

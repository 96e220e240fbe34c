#!/usr/bin/env bash
# Cargo's runner for test.sh: runs programs of tests beside each other. Cargo calls it with one program after the other, in the
# program's directory; it returns when the program may begin. A program's output comes in one piece when it ends.
#
#   BESIDE=DIR [BESIDE_ONLY='PATTERN|…'] scripts/beside.sh PROGRAM [ARGUMENT…]
#
# With BESIDE_ONLY, only programs of packages in such directories run.
# In DIR: `slots`, a FIFO with a byte for each program that may run; `failed`, the names of those that failed; `counted`, the
# lines with their results. A program that hangs is ended after half an hour.
case $1 in
  */deps/*|*/examples/*) ;;
  # A test of the documentation: its program is gone when its caller goes on.
  *) exec "$@" ;;
esac
# Of some packages alone.
if [ -n "${BESIDE_ONLY:-}" ]; then
  chosen=
  IFS='|' read -r -a patterns <<<"$BESIDE_ONLY"
  for pattern in "${patterns[@]}"; do
    # shellcheck disable=SC2053 # a pattern
    if [[ $PWD == */$pattern ]]; then chosen=1; fi
  done
  [ -n "$chosen" ] || exit 0
fi
exec 9<>"$BESIDE/slots"
read -r -n 1 -u 9 || exit
# Mounts of its own: some tests make mount namespaces, which keep the mounts of others busy.
apart=()
if [ "$(id -u)" = 0 ] && unshare --mount --propagation private true 2>/dev/null; then apart=(unshare --mount --propagation private); fi
# Waits for the cargo of the program.
slots=$BESIDE/slots failed=$BESIDE/failed counted=$BESIDE/counted
for name in $(compgen -e CARGO_TARGET_); do case $name in *_RUNNER) unset "$name" ;; esac; done
{
  out=$(mktemp "$BESIDE/out.XXXXXX")
  status=0
  env -u BESIDE "${apart[@]}" timeout --foreground --kill-after=30 "${BESIDE_LIMIT:-1800}" "$@" >"$out" 2>&1 9>&- </dev/null || status=$?
  if [ "$status" != 0 ]; then
    printf '%s\n' "${1##*/}" >>"$failed"
    printf '\nFAILED: %s in %s, status %s\n' "${1##*/}" "$PWD" "$status" >>"$out"
  fi
  grep -a "^test result: " "$out" >>"$counted"
  flock "$slots" cat "$out"
  rm -f "$out"
  printf . >&9
} &

# Object stores for the scripts: versitygw on a directory. Sourced after lib.sh, never run.
# shellcheck shell=bash disable=SC2034
#
# versitygw is looked for on the path, in $VERSITYGW, and where 'go install' puts it:
#   go install github.com/versity/versitygw/cmd/versitygw@v1.8.0

# Sets GATEWAY; fails if versitygw is not installed.
has_gateway() {
  GATEWAY=${VERSITYGW:-$(command -v versitygw || true)}
  [ -n "$GATEWAY" ] || GATEWAY=$HOME/go/bin/versitygw
  [ -x "$GATEWAY" ]
}
find_gateway() { has_gateway || unable "versitygw is missing: go install github.com/versity/versitygw/cmd/versitygw@v1.8.0"; }

export AWS_ACCESS_KEY_ID=steadfast AWS_SECRET_ACCESS_KEY=steadfast-secret AWS_REGION=us-east-1
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
answers() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# start_gateway DIR [PORT]: another process that serves it, at a free port unless one is given. Sets ENDPOINT and GATEWAY_PID.
start_gateway() {
  local port=${2:-}
  [ -n "$port" ] || port=$(free_port)
  ROOT_ACCESS_KEY=$AWS_ACCESS_KEY_ID ROOT_SECRET_KEY=$AWS_SECRET_ACCESS_KEY \
    "$GATEWAY" --quiet --port "127.0.0.1:$port" posix "$1" >>"$WORK/gateway-$port.log" 2>&1 &
  GATEWAY_PID=$!
  on_exit stop_process "$GATEWAY_PID"
  await --alive "$GATEWAY_PID" answers "$port" || { cat "$WORK/gateway-$port.log" >&2; die "versitygw does not answer"; }
  ENDPOINT=http://127.0.0.1:$port
}

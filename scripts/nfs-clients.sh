#!/usr/bin/env bash
# Independent NFS clients against our server: the tools of libnfs, and a client on its raw interface that calls every
# procedure and provokes every error that RFC 1813 lists and a client can provoke (scripts/nfs-clients/).
#
#   scripts/nfs-clients.sh [--server steadfast|ganesha] [--contract NAME] [--only PART[,PART…]] [--few-links] [--show]
#
#   --server NAME    ganesha: the client against nfs-ganesha on ext4, to test the checks (default steadfast)
#   --contract NAME  of the volumes (default ordered), 'pm' for volumes in persistent memory, or all
#   --only PARTS     of: tools, and those of the client: mount, rpc, attributes, names, rename, data, listing, limits, errors, full,
#                    links, restart
#   --few-links      leave out the tens of thousands of links to one file
#   --show           every check, not only those that fail
#
# Needs root, for a network of its own.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"
# shellcheck source-path=SCRIPTDIR source=nfs-lib.sh
. "$here/nfs-lib.sh"

server=steadfast contract=ordered only='' show='' few_links=()
while [ $# -gt 0 ]; do
  case $1 in
    --server)    server=${2:?"--server needs a name"}; shift 2 ;;
    --contract)  contract=${2:?"--contract needs a name"}; shift 2 ;;
    --only)      only=${2:?"--only needs names"}; shift 2 ;;
    --few-links) few_links=(--few-links); shift ;;
    --show)      show=1; shift ;;
    -h|--help)   sed -n '2,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) warn "unknown option '$1' (see --help)"; exit 2 ;;
  esac
done
case $server in steadfast|ganesha) ;; *) warn "unknown server '$server': steadfast or ganesha"; exit 2 ;; esac
for part in ${only//,/ }; do
  case $part in
    tools|mount|rpc|attributes|names|rename|data|listing|limits|errors|full|links|restart) ;;
    *) warn "unknown part '$part' (see --help)"; exit 2 ;;
  esac
done
[ "$(id -u)" = 0 ] || unable "needs root, for a network of its own"
again=(--server "$server" "${few_links[@]}" ${only:+--only "$only"} ${show:+--show})
for_contracts "$contract" "$0" "${again[@]}" --contract
"$here/setup.sh" nfs-clients

if [ "$server" = steadfast ]; then build_release; else "$here/setup.sh" nfs; fi
volume_workdir "$contract" "$(fast_base 1500)"
PORT=22049
MOUNT_PORT=22050
passed=0 failed=0

# ---------------------------------------------------------------- the client

# Its sources are the one place where libnfs's interface is spoken.
build_client() {
  local sources=("$here"/nfs-clients/*.[ch]) source newer=
  CLIENT=$TOOLS/nfs-client
  for source in "${sources[@]}"; do
    if [ "$source" -nt "$CLIENT" ]; then newer=1; fi
  done
  [ -n "$newer" ] || return 0
  mkdir -p "$TOOLS"
  cc -std=gnu11 -O1 -g -Wall -Wextra -Werror -o "$CLIENT" "$here"/nfs-clients/*.c -lnfs || die "the client does not compile"
}

# ---------------------------------------------------------------- the servers

# Exports are named as ganesha has to name them: by where they are.
names() {
  local base=$1
  MAIN=$base/main READ_ONLY=$base/read-only SQUASHED=$base/squashed SMALL=$base/small REFUSED=$base/refused
}

write_steadfast_config() {
  local path
  {
    echo "listen = [\"127.0.0.1:$PORT\"${ipv6:+, \"[::1]:$PORT\"}]"
    echo "mount-port = $MOUNT_PORT"
    echo "control = \"$WORK/control.sock\""
    echo "rpcbind = true"
    for path in "$MAIN" "$READ_ONLY" "$SQUASHED" "$SMALL" "$REFUSED"; do
      echo "[[export]]"
      echo "path = \"$path\""
      case $path in
        "$SMALL")   echo "image = \"$WORK/small.img\"" ;;
        *)          echo "image = \"$WORK/volume.img\"" ;;
      esac
      case $path in
        "$READ_ONLY") echo "read-only = true" ;;
        "$REFUSED")   echo 'clients = ["192.0.2.0/24"]' ;;
      esac
      case $path in
        "$SQUASHED") echo 'squash = "all"' ;;
        *)           echo 'squash = "none"' ;;
      esac
    done
  } >"$WORK/server.toml"
}

# One directory of ext4 cannot be exported with several rights under one name: bind mounts give it others.
write_ganesha_config() {
  local path id=0 access squash clients
  cat >"$WORK/server.conf" <<END_OF_CONFIG
NFS_CORE_PARAM {
  Protocols = 3; NFS_Port = $PORT; MNT_Port = $MOUNT_PORT; Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false;
  mount_path_pseudo = false;
}
NFSv4 { Graceless = true; }
LOG { Default_Log_Level = EVENT; }
END_OF_CONFIG
  for path in "$MAIN" "$READ_ONLY" "$SQUASHED" "$SMALL" "$REFUSED"; do
    id=$((id + 1)) access=RW squash=No_Root_Squash clients=
    case $path in
      "$READ_ONLY") access=RO ;;
      "$SQUASHED")  squash=All_Squash ;;
      "$REFUSED")   access=None clients="CLIENT { Clients = 192.0.2.0/24; Access_Type = RW; }" ;;
    esac
    cat >>"$WORK/server.conf" <<END_OF_CONFIG
EXPORT {
  Export_Id = $id; Filesystem_Id = 9.$id; Path = "$path"; Pseudo = "/export-$id"; Protocols = 3; Transports = TCP;
  Access_Type = $access; Squash = $squash; Anonymous_Uid = 65534; Anonymous_Gid = 65534; SecType = sys;
  FSAL { Name = VFS; } $clients
}
END_OF_CONFIG
  done
}

make_volumes() {
  case $server in
    steadfast)
      names ''
      sf_mkfs "$WORK/volume.img" 512M "$contract"
      sf_mkfs "$WORK/small.img" 16M "$contract"
      write_steadfast_config
      ;;
    ganesha)
      names "$WORK/exports"
      truncate -s 512M "$WORK/volume.img"
      truncate -s 16M "$WORK/small.img"
      mkfs.ext4 -q -F "$WORK/volume.img"
      mkfs.ext4 -q -F "$WORK/small.img"
      ext4_inside "$WORK/volume.img" "$MAIN" rw
      ext4_inside "$WORK/small.img" "$SMALL" rw
      local path
      for path in "$READ_ONLY" "$SQUASHED" "$REFUSED"; do
        mkdir -p "$path"
        inside mount --bind "$MAIN" "$path"
        on_exit umount_inside "$path"
      done
      inside sh -c 'mkdir -p /run/ganesha && mount -t tmpfs none /var/lib/nfs && mkdir -p /var/lib/nfs/ganesha'
      write_ganesha_config
      ;;
  esac
}

serve() {
  local i
  for ((i = 0; i < 50; i++)); do
    case $server in
      steadfast) start_inside "$WORK/server.log" "$STEADFAST" serve nfs --config "$WORK/server.toml" ;;
      ganesha)   start_inside "$WORK/server.log" ganesha.nfsd -F -f "$WORK/server.conf" -L "$WORK/server.log" -p "$WORK/server.pid" ;;
    esac
    sleep 0.05
    # The images of a server that was killed may be closed a moment after its end.
    if kill -0 "$SERVER" 2>/dev/null || ! tail -n 1 "$WORK/server.log" | grep -q 'is in use'; then break; fi
  done
  wait_for_ports "$PORT" "$MOUNT_PORT" "$WORK/server.log"
}
# wait_for_ports PORT MOUNT_PORT LOG: of the server that was started last.
wait_for_ports() {
  local i
  for ((i = 0; i < 600; i++)); do
    if inside bash -c "</dev/tcp/127.0.0.1/$1 && </dev/tcp/127.0.0.1/$2" 2>/dev/null; then return; fi
    kill -0 "$SERVER" 2>/dev/null || break
    sleep 0.05
  done
  tail -n 20 "$3" >&2
  die "no NFS server answers at port $1"
}

kill_and_serve() {
  kill_server "$SERVER"
  serve
}
end_and_serve() {
  stop_server "$SERVER"
  serve
}

# ---------------------------------------------------------------- the tools

# url PATH [ARGUMENT…]: of a file or directory, past rpcbind.
url() {
  local url="nfs://127.0.0.1$1?nfsport=$PORT&mountport=$MOUNT_PORT" argument
  shift
  for argument; do url+="&$argument"; done
  echo "$url"
}
tool() { inside timeout 900 "$@" >"$WORK/said" 2>&1; }

# works WHAT COMMAND…, fails WHAT COMMAND…: a check of its exit status.
works() {
  local what=$1 status=0
  shift
  "$@" || status=$?
  note "$status" "$what"
}
# A tool that fails says so: to hang, or to end by a signal, would not do.
fails() {
  local what=$1 status=0
  shift
  "$@" || status=$?
  note $((status == 0 || (status >= 124 && status <= 140))) "$what: fails (exit $status)"
}
note() {
  if (($1 == 0)); then
    passed=$((passed + 1))
    if [ -n "$show" ]; then say "ok   tools: $2"; fi
  else
    failed=$((failed + 1))
    say "FAIL tools: $2"
    head -n 5 "$WORK/said" | sed 's/^/     /'
  fi
}
said() { grep -aqE -- "$1" "$WORK/said"; }
silent_about() { ! said "$1"; }

same_back() {
  rm -f "$WORK/back"
  tool nfs-cp "$1" "$WORK/back" && cmp "$2" "$WORK/back" >>"$WORK/said" 2>&1
}
same_cat() { inside timeout 900 nfs-cat "$1" 2>"$WORK/said" | cmp - "$2" >>"$WORK/said" 2>&1; }

# hold PID COMMAND…: stops the child of a process once the command succeeds; fails if it has ended.
hold() {
  local pid=$1 i
  shift
  for ((i = 0; i < 500; i++)); do
    if "$@"; then break; fi
    sleep 0.01
  done
  pkill -STOP -P "$pid"
}
shows_some() { tool nfs-ls "$(url "$MAIN")" && said '[0-9]{7} under-way$'; }

tools() {
  local size file
  for size in 0 1 1048577 104857600; do
    file=$WORK/file-$size
    head -c "$size" /dev/urandom >"$file"
    works "nfs-cp of $size bytes to the server" tool nfs-cp "$file" "$(url "$MAIN/file-$size")"
    works "nfs-cp of $size bytes back" same_back "$(url "$MAIN/file-$size")" "$file"
    works "nfs-cat of $size bytes" same_cat "$(url "$MAIN/file-$size")" "$file"
    works "nfs-ls" tool nfs-ls "$(url "$MAIN")"
    works "nfs-ls shows $size bytes" said " $size file-$size\$"
  done
  works "nfs-cp of one file over there to another" tool nfs-cp "$(url "$MAIN/file-1048577")" "$(url "$MAIN/copy")"
  works "it is the same" same_back "$(url "$MAIN/copy")" "$WORK/file-1048577"
  # It makes new files, nothing else.
  fails "nfs-cp over a file that is there" tool nfs-cp "$WORK/file-1" "$(url "$MAIN/copy")"
  works "it says why" said 'EXIST'
  works "the file is left" same_back "$(url "$MAIN/copy")" "$WORK/file-1048577"

  # A tree, made by the other client below.
  local top
  works "a tree" client names
  top=$(directory)
  works "nfs-ls -R" tool nfs-ls -R "$(url "$MAIN")"
  works "it goes down" said '/names/sub/name$'
  works "it shows a symbolic link" said '^l.*/symlink-two$'
  works "it shows a device" said '^c.*/character$'
  works "nfs-ls -R -s" tool nfs-ls -R -s "$(url "$MAIN")"
  works "nfs-ls of a directory in the export" tool nfs-ls "$(url "$MAIN/$top/names")"
  works "it shows what is there" said ' exclusive$'

  fails "nfs-ls of a file" tool nfs-ls "$(url "$MAIN/file-1")"
  fails "nfs-ls of what is not there" tool nfs-ls "$(url "$MAIN/nothing")"
  fails "nfs-cat of what is not there" tool nfs-cat "$(url "$MAIN/nothing")"
  fails "nfs-cp from what is not there" tool nfs-cp "$(url "$MAIN/nothing")" "$WORK/nothing"
  fails "nfs-ls of an export that is not there" tool nfs-ls "$(url /no-such-export)"
  fails "nfs-ls of an export for others" tool nfs-ls "$(url "$REFUSED")"
  fails "nfs-cat from an export for others" tool nfs-cat "$(url "$REFUSED/file-1")"

  works "nfs-cat from a read-only export" same_cat "$(url "$READ_ONLY/file-1048577")" "$WORK/file-1048577"
  fails "nfs-cp to a read-only export" tool nfs-cp "$WORK/file-1" "$(url "$READ_ONLY/new")"
  works "it says why" said 'ROFS'
  fails "nfs-cp over a file on a read-only export" tool nfs-cp "$WORK/file-1" "$(url "$READ_ONLY/file-1048577")"
  tool nfs-ls "$(url "$MAIN")"
  works "nothing was made" silent_about ' new$'
  works "nothing was changed" same_cat "$(url "$MAIN/file-1048577")" "$WORK/file-1048577"

  fails "nfs-cp to root's directory by root that is nobody" tool nfs-cp "$WORK/file-1" "$(url "$SQUASHED/new")"
  works "it says why" said 'ACCES'
  fails "nfs-cat by nobody of a file for root" tool nfs-cat "$(url "$SQUASHED/file-1048577")"
  works "it says why" said 'ACCES'
  printf 'text' >"$WORK/text"
  works "nfs-cat by nobody of a file for all" same_cat "$(url "$SQUASHED/$top/names/sub/name")" "$WORK/text"
  works "an open directory" client attributes
  top=$(directory)
  works "nfs-cp to everybody's directory by root that is nobody" tool nfs-cp "$WORK/file-1048577" "$(url "$SQUASHED/$top/open/new")"
  works "nfs-ls of it" tool nfs-ls "$(url "$MAIN/$top/open")"
  works "the file is nobody's" said '65534 +65534 +1048577 new$'
  works "nfs-cp by a user" tool nfs-cp "$WORK/file-1" "$(url "$MAIN/$top/open/users" uid=1000 gid=1001)"
  tool nfs-ls "$(url "$MAIN/$top/open")"
  works "the file is the user's" said '1000 +1001 +1 users$'
  fails "nfs-cat by a user of a file for nobody" tool nfs-cat "$(url "$MAIN/$top/attributes/private" uid=1234 gid=1234)"

  # Without privileges on this machine, a client has no port below 1024.
  fails "nfs-ls from a port that everybody may use" tool setpriv --reuid 1000 --regid 1000 --clear-groups nfs-ls "$(url "$MAIN")"
  works "it says why" said 'ACCES'

  # With rpcbind, which the server has registered with.
  works "nfs-ls -D asks rpcbind and lists the exports" tool nfs-ls -D nfs://127.0.0.1
  works "all of them" test "$(grep -acE "^nfs://127.0.0.1($MAIN|$READ_ONLY|$SQUASHED|$SMALL|$REFUSED)\$" "$WORK/said")" = 5
  works "nfs-ls without ports" tool nfs-ls "nfs://127.0.0.1$MAIN"
  works "it is that export" said ' file-104857600$'
  works "nfs-cat without ports" same_cat "nfs://127.0.0.1$MAIN/file-1048577" "$WORK/file-1048577"

  # Calls in progress go on after a restart. These tools do not look at the verifier: only a server that ends in peace,
  # which commits all, may end below a copy to it; below one from it, it may be killed.
  local copy
  inside timeout 900 nfs-cp "$WORK/file-104857600" "$(url "$MAIN/under-way")" >"$WORK/copied" 2>&1 &
  copy=$!
  works "nfs-cp is under way" hold "$copy" shows_some
  end_and_serve
  pkill -CONT -P "$copy"
  works "nfs-cp to a server that is restarted" wait "$copy"
  works "all of it is there" same_back "$(url "$MAIN/under-way")" "$WORK/file-104857600"
  rm -f "$WORK/back"
  inside timeout 900 nfs-cp "$(url "$MAIN/file-104857600")" "$WORK/back" >"$WORK/copied" 2>&1 &
  copy=$!
  works "nfs-cp is under way" hold "$copy" test -s "$WORK/back"
  kill_and_serve
  pkill -CONT -P "$copy"
  works "nfs-cp from a server that is killed" wait "$copy"
  works "it is the same" cmp "$WORK/file-104857600" "$WORK/back"

  # The root of everything as an export. (For nfs://HOST/FILE libnfs asks for a directory without a name, and fails when it has it.)
  local main_server=$SERVER whole="?nfsport=$((PORT + 2))&mountport=$((PORT + 3))"
  sf_mkfs "$WORK/whole.img" 16M "$contract"
  start_inside "$WORK/whole.log" "$STEADFAST" serve nfs --listen "127.0.0.1:$((PORT + 2))" --mount-port $((PORT + 3)) \
    --control "$WORK/whole.sock" --squash none "$WORK/whole.img"
  wait_for_ports $((PORT + 2)) $((PORT + 3)) "$WORK/whole.log"
  works "nfs-cp to the root" tool nfs-cp "$WORK/file-1048577" "nfs://127.0.0.1//file$whole"
  works "nfs-ls of the root" tool nfs-ls "nfs://127.0.0.1/$whole"
  works "it shows the file" said ' 1048577 file$'
  works "nfs-cp from the root" same_back "nfs://127.0.0.1//file$whole" "$WORK/file-1048577"
  stop_server "$SERVER"
  SERVER=$main_server

  stop_server "$SERVER"
  tool rpcinfo -p 127.0.0.1
  works "the server has left rpcbind" silent_about '100003|100005'
  serve
}

# ---------------------------------------------------------------- all of it

# client [PART…]: quietly.
client() { inside timeout 900 "$CLIENT" "${client_options[@]}" --few-links "$@" >"$WORK/said" 2>&1; }

# The directory that it made.
directory() { sed -n 's/^in //p' "$WORK/said"; }

# The client, which asks for the server to be killed.
run_client() {
  local line status=0
  coproc CLIENT_RUN {
    inside timeout 900 "$CLIENT" "${client_options[@]}" "${few_links[@]}" "$@" 2>&1
  }
  local pid=$CLIENT_RUN_PID from=${CLIENT_RUN[0]} to=${CLIENT_RUN[1]}
  while IFS= read -r line; do
    case $line in
      'restart, please') kill_and_serve; echo back >&"$to" ;;
      'ok   '*) passed=$((passed + 1)); if [ -n "$show" ]; then say "$line"; fi ;;
      'FAIL '*) failed=$((failed + 1)); say "$line" ;;
      '== '*|'in '*) if [ -n "$show" ]; then say "$line"; fi ;;
      *) say "$line" ;;
    esac
  done <&"$from"
  wait "$pid" || status=$?
  # It says what failed, unless it ended otherwise.
  if ((status != 0 && failed == 0)); then die "the client ended with $status"; fi
}

build_client
nfs_world
ipv6=
if inside grep -q ' lo$' /proc/self/net/if_inet6 2>/dev/null; then ipv6=1; fi
make_volumes
client_options=(--port "$PORT" --mount-port "$MOUNT_PORT" --export "$MAIN" --read-only "$READ_ONLY" --squashed "$SQUASHED"
  --small "$SMALL" --refused "$REFUSED")
if [ "$contract" = sync ] || [ "$contract" = pm ]; then client_options+=(--sync); fi
if [ -z "$ipv6" ]; then client_options+=(--ipv4); fi
serve
parts=() run_tools=
for part in ${only//,/ }; do
  if [ "$part" = tools ]; then run_tools=1; else parts+=("$part"); fi
done
if [ "$server" = steadfast ] && { [ -z "$only" ] || [ -n "$run_tools" ]; }; then tools; fi
if [ -z "$only" ] || [ ${#parts[@]} -gt 0 ]; then run_client "${parts[@]}"; fi
stop_server "$SERVER"
if [ "$server" = steadfast ]; then
  sf_fsck "$WORK/volume.img"
  sf_fsck "$WORK/small.img"
fi
say "$passed checks passed, $failed failed ($server)"
((failed == 0 && passed > 0)) || exit 1

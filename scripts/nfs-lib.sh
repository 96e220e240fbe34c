# NFS servers for the scripts: Steadfast's, and nfs-ganesha as a peer. Sourced after lib.sh, never run.
# shellcheck shell=bash disable=SC2034
#
# Every server and every client runs in a network of its own, which has a loopback and nothing else, with mounts of its own:
# the ports are free, no outside process can reach them, and mounts end with the last process in there. rpcbind runs in
# there, too: ganesha does not start without it.

# Options of Steadfast's server, besides its ports: the clients here are root, as ganesha's are, and the guest's come from any
# port.
NFS_OPTIONS=${STEADFAST_NFS_OPTIONS:---squash none --insecure}

# nfs_network: makes a network, without mounts of its own and without rpcbind: all that Steadfast needs. Sets WORLD, the process
# that holds it.
nfs_network() {
  WORLD_SPACES=(--net)
  unshare --net sh -c 'ip link set lo up && exec sleep infinity' >/dev/null 2>&1 &
  WORLD=$!
  on_exit stop_process "$WORLD"
  world_is_up 'ip link show lo | grep -q LOOPBACK,UP'
}

# nfs_world: makes network and mounts. Sets WORLD.
nfs_world() {
  WORLD_SPACES=(--net --mount)
  unshare --net --mount --propagation private sh -c \
    'ip link set lo up && mount -t tmpfs none /run && exec rpcbind -f' >/dev/null 2>&1 &
  WORLD=$!
  on_exit stop_process "$WORLD"
  world_is_up 'test -S /run/rpcbind.sock'
}

world_is_up() {
  await --alive "$WORLD" world_has "$1" && return
  kill -0 "$WORLD" 2>/dev/null || unable "cannot make a network of its own (unshare, ip and rpcbind are needed, and root)"
  die "the servers' network does not come up"
}
# Until it has a network of its own, it is in ours.
world_has() {
  [ "$(readlink "/proc/$WORLD/ns/net")" != "$(readlink /proc/self/ns/net)" ] && inside sh -c "$1" 2>/dev/null
}

# inside COMMAND…: in the world. The process keeps its number.
inside() { nsenter --target "$WORLD" "${WORLD_SPACES[@]}" -- "$@"; }

# Starts a server in there as our child. Sets SERVER.
start_inside() {
  local log=$1
  shift
  nsenter --target "$WORLD" "${WORLD_SPACES[@]}" -- "$@" >>"$log" 2>&1 &
  SERVER=$!
  on_exit stop_process "$SERVER"
}

# nfs_answers EXPORT PORT MOUNT_PORT LOG: waits until the server that was started last can be mounted.
nfs_answers() {
  inside "$NFS" --port "$2" --mount-port "$3" --export "$1" wait 600 && return
  tail -n 20 "$4" >&2
  die "no NFS server answers at port $2"
}

# nfs_steadfast IMAGE PORT MOUNT_PORT LOG: exports it as /. Sets SERVER.
nfs_steadfast() {
  local i
  for ((i = 0; i < 50; i++)); do
    # shellcheck disable=SC2086 # one option per word
    start_inside "$4" "$STEADFAST" serve nfs --listen "127.0.0.1:$2" --mount-port "$3" \
      --control "$4.sock" $NFS_OPTIONS "$1"
    sleep 0.1
    # The kernel may close the image of a server that was killed a moment after its end: a service manager would start it
    # again, too.
    if kill -0 "$SERVER" 2>/dev/null || ! tail -n 1 "$4" | grep -q 'is in use'; then break; fi
  done
  nfs_answers / "$2" "$3" "$4"
}

# nfs_ganesha DIR PORT MOUNT_PORT LOG: exports a directory of the world under its own name. Its files stand beside the log.
# Sets SERVER.
nfs_ganesha() {
  local config=$4.conf
  cat >"$config" <<END
NFS_CORE_PARAM {
  Protocols = 3;
  NFS_Port = $2;
  MNT_Port = $3;
  Enable_NLM = false;
  Enable_RQUOTA = false;
  Enable_UDP = false;
}
NFSv4 { Graceless = true; }
EXPORT {
  Export_Id = 1;
  Path = "$1";
  Pseudo = "/export";
  Protocols = 3;
  Transports = TCP;
  Access_Type = RW;
  Squash = No_Root_Squash;
  SecType = sys;
  FSAL { Name = VFS; }
}
LOG { Default_Log_Level = EVENT; }
END
  # Its state, the one of version 4, goes under /var/lib: the world has an empty one.
  inside sh -c 'mkdir -p /run/ganesha && { mountpoint -q /var/lib/nfs || mount -t tmpfs none /var/lib/nfs; } &&
    mkdir -p /var/lib/nfs/ganesha'
  start_inside "$4" ganesha.nfsd -F -f "$config" -L "$4" -p "$4.pid"
  nfs_answers "$1" "$2" "$3" "$4"
}

# ext4_inside IMAGE DIR OPTIONS: mounts a file system image in the world, past the host's page cache. Sets LOOP.
ext4_inside() {
  loop_attach "$1" --direct-io=on 2>/dev/null || loop_attach "$1" || die "no loop device for $1"
  mkdir -p "$2"
  inside mount -t ext4 -o "$3" "$LOOP" "$2"
  on_exit umount_inside "$2"
}
umount_inside() { if inside mountpoint -q "$1" 2>/dev/null; then inside umount "$1" || inside umount -l "$1"; fi; }

# Asks a server to end, as its service manager would, and waits for it.
stop_server() {
  local status=0
  kill "$1" 2>/dev/null || true
  wait "$1" || status=$?
  ((status == 0 || status == 143)) || die "a server that was asked to end exits with $status"
}

# The client of bench/nfs. Sets NFS.
build_nfs_client() {
  build_driver nfs
  NFS=$DRIVER
}

# Kills it without a word.
kill_server() {
  kill -KILL "$1"
  wait "$1" 2>/dev/null || true
}

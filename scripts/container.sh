#!/usr/bin/env bash
# Builds the container image of the static program (packages/container/Dockerfile) with podman, and tries it: a container makes a
# volume, mounts it so that this machine sees it, and serves it over NFS.
#
#   scripts/container.sh [--program FILE] [--save FILE]
#
#   --program FILE   a static program (default: built as scripts/release.sh builds it)
#   --save FILE      leaves the image there, for `podman load` and `docker load`
#
# The image and its containers are in a storage of their own, and nothing of them stays. Needs root and podman. Exits 0, 1 (something
# is wrong), 2 (usage) or 3 (something needed is missing, or podman cannot run here).
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"
# shellcheck source-path=SCRIPTDIR source=packaging.sh
. "$here/packaging.sh"

program='' save=''
while [ $# -gt 0 ]; do
  case $1 in
    --program) program=$(realpath -e "${2:?"--program needs a file"}") || exit 2; shift 2 ;;
    --save) save=$(realpath -m "${2:?"--save needs a file"}"); shift 2 ;;
    -h|--help) sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) warn "unknown option '$1' (see --help)"; exit 2 ;;
  esac
done
[ "$(id -u)" = 0 ] || unable "a mount that the host sees needs root"
reason=$(fuse_reason)
[ -z "$reason" ] || unable "cannot mount here: $reason"
"$here/setup.sh" container
commit_time

make_workdir "${TMPDIR:-/tmp}"
if [ -z "$program" ]; then
  step "The static program"
  triple=${HOST%%-*}-unknown-linux-musl
  reason=$(target_reason "$triple")
  [ -z "$reason" ] || unable "$reason"
  dist_build "$triple" -p steadfast-cli || die "the program does not build for $triple"
  split_lines "$triple" "$TARGET/$triple/dist/steadfast" "$WORK/program" || die "the line tables cannot be split off"
  program=$WORK/program/steadfast
fi

# A storage of its own: no image and no container of this machine is touched. No network: the image has no base.
runtime=()
pod() {
  timeout --kill-after=10 180 podman --root "$WORK/storage" --runroot "$WORK/run" --tmpdir "$WORK/tmp" --storage-driver vfs \
    --cgroup-manager cgroupfs --events-backend none "${runtime[@]}" "$@"
}
# Limits that need no right to raise them.
limits=(--ulimit "nofile=$(ulimit -Sn):$(ulimit -Hn)" --ulimit nproc=4096:4096)
plain=("${limits[@]}")
remove_containers() { pod rm --force --all --time 5 >/dev/null 2>&1 || true; }
mkdir -p "$WORK/storage" "$WORK/run" "$WORK/tmp" "$WORK/data" "$WORK/mnt/volume"
on_exit remove_containers

step "The image"
umask 022
tree=$WORK/context/root
mkdir -p "$tree/usr/bin" "$tree/run" "$tree/tmp" "$tree/etc"
chmod 1777 "$tree/tmp"
install "$program" "$tree/usr/bin/steadfast"
install -D -m 644 "$ROOT/LICENSE-MIT" "$ROOT/LICENSE-APACHE" -t "$tree/usr/share/doc/steadfast"
"$here/sbom.py" licences --target "${HOST%%-*}-unknown-linux-musl" >"$tree/usr/share/doc/steadfast/third-party-licences.txt"
printf 'root:x:0:0:root:/:/sbin/nologin\nsteadfast:x:999:999::/nonexistent:/sbin/nologin\n' >"$tree/etc/passwd"
find "$WORK/context" -exec touch --no-dereference "--date=@$SOURCE_DATE_EPOCH" {} +
pod build --quiet --network none --timestamp "$SOURCE_DATE_EPOCH" --tag steadfast --file "$ROOT/packages/container/Dockerfile" \
  "$WORK/context" >"$WORK/build.log" 2>&1 || { cat "$WORK/build.log" >&2; unable "podman cannot build an image here"; }
say "  $(pod image inspect --format '{{.Size}}' steadfast | awk '{ printf "%.1f MB", $1 / 1e6 }')"

# inside [options of podman…] -- [arguments of steadfast…]
inside() {
  local options=()
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  pod run --rm "${plain[@]}" --network none --volume "$WORK/data:/data" "${options[@]}" steadfast "$@"
}
# The usual runtime, then what serves on machines with control groups of both versions.
for choice in "" "crun disabled" "runc enabled"; do
  read -r name groups <<<"$choice"
  runtime=(${name:+--runtime "$name"})
  plain=("${limits[@]}" ${groups:+--cgroups "$groups"})
  if inside -- --version >"$WORK/version" 2>"$WORK/said"; then break; fi
done
status=0
inside -- --version >"$WORK/version" 2>"$WORK/said" || status=$?
if ((status >= 125)); then cat "$WORK/said" >&2; unable "podman cannot run a container here"; fi
((status == 0)) || { cat "$WORK/said" >&2; die "the program does not run in a container"; }
say "  $(cat "$WORK/version")"

step "A mount that the host sees"
inside -- mkfs --size 64M /data/disk.img >/dev/null || die "no volume can be made in a container"
# Mounts below a directory that shares them come to the host.
mount --bind "$WORK/mnt" "$WORK/mnt"
on_exit detach "$WORK/mnt"
mount --make-shared "$WORK/mnt"
pod run --detach "${plain[@]}" --name mount --network none --device /dev/fuse --cap-add SYS_ADMIN --security-opt apparmor=unconfined \
  --volume "$WORK/data:/data" --volume "$WORK/mnt:/mnt:rshared" steadfast \
  mount --foreground -o allow_other /data/disk.img /mnt/volume >/dev/null || die "the container does not start"
is_fuse() { [[ $(findmnt --noheadings --output FSTYPE "$WORK/mnt/volume" | tail -n 1) == fuse* ]]; }
running() { [ "$(pod inspect --format '{{.State.Running}}' "$1")" = true ]; }
is_there() { is_fuse || ! running mount; }
await is_there
is_fuse || { pod logs mount >&2; die "the host does not see the mount"; }
on_exit detach "$WORK/mnt/volume"
seq 200000 >"$WORK/written"
cp "$WORK/written" "$WORK/mnt/volume/written"
mkdir "$WORK/mnt/volume/directory"
cmp "$WORK/written" "$WORK/mnt/volume/written" || die "the host reads something else"
pod stop --time 60 mount >/dev/null || die "the container does not stop"
! is_fuse || die "the container is stopped, and the volume is still mounted"
code=$(pod inspect --format '{{.State.ExitCode}}' mount)
[ "$code" = 0 ] || { pod logs mount >&2; die "the container ended with $code"; }
inside -- fsck -n /data/disk.img >/dev/null || die "the volume is not clean"
say "  written and read on the host; stopped, unmounted and clean"

step "An NFS server"
port=
for ((candidate = 20490 + RANDOM % 10000, i = 0; i < 50; candidate++, i++)); do
  if ! (exec 3<>"/dev/tcp/127.0.0.1/$candidate") 2>/dev/null; then port=$candidate; break; fi
done
[ -n "$port" ] || unable "no port is free"
# On this machine's loopback, without any right.
pod run --detach "${plain[@]}" --name nfs --network host --cap-drop all --cap-add DAC_OVERRIDE --volume "$WORK/data:/data" steadfast \
  serve nfs --listen "127.0.0.1:$port" --control /run/nfs.sock /data/disk.img >/dev/null || die "the container does not start"
answers() { pod exec nfs /usr/bin/steadfast stat /run/nfs.sock >/dev/null 2>&1 || ! running nfs; }
await answers
running nfs || { pod logs nfs >&2; die "the server ended"; }
timeout 60 nfs-cat "nfs://127.0.0.1//written?nfsport=$port&mountport=$port" >"$WORK/read" 2>"$WORK/said" ||
  { cat "$WORK/said" >&2; pod logs nfs >&2; die "the file cannot be read over NFS"; }
cmp "$WORK/read" "$WORK/written" || die "NFS reads something else"
pod stop --time 60 nfs >/dev/null || die "the container does not stop"
code=$(pod inspect --format '{{.State.ExitCode}}' nfs)
[ "$code" = 0 ] || { pod logs nfs >&2; die "the server ended with $code"; }
inside -- fsck -n /data/disk.img >/dev/null || die "the volume is not clean"
say "  $(stat -c %s "$WORK/read") bytes read with libnfs; stopped and clean"

if [ -n "$save" ]; then
  pod save --quiet --format docker-archive --output "$save" steadfast || die "the image cannot be saved"
  say "the image is $save"
fi

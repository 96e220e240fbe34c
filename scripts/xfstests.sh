#!/usr/bin/env bash
# The generic tests of xfstests, run on mounted volumes from a tree of that suite which has been built.
#
#   scripts/xfstests.sh [options] TREE [TEST…]
#
#   TREE           a built checkout of xfstests; nothing in it is changed
#   TEST           only these, such as generic/020 (default: the group)
#   -g GROUP       group of tests (default quick), or 'all'
#   --contract C   contract of the volumes (default ordered), 'pm' for volumes in persistent memory, or 'store' for volumes on
#                  an object store
#   --on ext4      run on ext4 in loop devices instead, to compare
#   --against OLD  results of such a run: a test that fails there, too, is no failure. Without it, the tests that fail are run
#                  again on ext4
#   --options O    mount options in addition to allow_other
#   --size SIZE    size of the two volumes (default 4G, sparse; in persistent memory 2G, which is all taken)
#   --results FILE write a line for each test: its name, passed, failed or skipped, the reason
#   --keep         keep the working directory for inspection
#
# The suite knows FUSE as a file system that can neither be made nor checked. Here its common/rc gets, inside a private mount
# namespace, functions that make volumes (of the size that a test asks for) and run fsck after each test; mount(8) finds the
# helpers; the suite's users exist. Nothing of it is left afterwards. A failure is accepted only if scripts/xfstests.skip names
# the test with the reason, or if ext4 fails here, too. Needs root.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"
KINDS+=(store)

group=quick on=steadfast against='' options='' size='' results='' tree='' contract=ordered
tests=()
while [ $# -gt 0 ]; do
  case $1 in
    -g) group=${2:?"-g needs a group"}; shift 2 ;;
    --on) on=${2:?"--on needs 'ext4' or 'steadfast'"}; shift 2 ;;
    --contract) contract=${2:?"--contract needs a name"}; shift 2 ;;
    --against) against=$(realpath "${2:?"--against needs a file"}"); shift 2 ;;
    --options) options=,${2:?"--options needs mount options"}; shift 2 ;;
    --size) size=${2:?"--size needs a size"}; shift 2 ;;
    --results) results=$(realpath "${2:?"--results needs a file"}"); shift 2 ;;
    --keep) export KEEP_WORK=1; shift ;;
    -h|--help) sed -n '2,25s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    -*) warn "unknown option '$1' (see --help)"; exit 2 ;;
    *) if [ -z "$tree" ]; then tree=$1; else tests+=("$1"); fi; shift ;;
  esac
done
[ -n "$tree" ] || { warn "give a built tree of xfstests (see --help)"; exit 2; }
case $on in steadfast|ext4) ;; *) warn "--on takes 'ext4' or 'steadfast', not '$on'"; exit 2 ;; esac
[ "$contract" != all ] || { warn "one contract at a time"; exit 2; }
for_contracts "$contract" false
if [ -z "$size" ]; then
  case $contract in pm) size=2G ;; *) size=4G ;; esac
fi
tree=$(cd "$tree" && pwd -P)
if ! [ -x "$tree/check" ] || ! [ -x "$tree/ltp/fsstress" ] || ! [ -x "$tree/src/lstat64" ]; then
  unable "$tree is not a built tree of xfstests: run 'make' in it"
fi
[ "$(id -u)" = 0 ] || unable "needs root"
for program in xfs_io mkfs.ext4 attr setfacl unshare; do
  command -v "$program" >/dev/null || unable "$program is missing (packages xfsprogs, e2fsprogs, attr, acl, util-linux)"
done
reason=$(fuse_reason)
[ -z "$reason" ] || unable "cannot mount here: $reason"

# Everything is mounted in a private mount namespace.
if [ -z "${XFSTESTS_INSIDE:-}" ]; then
  build_release
  export STEADFAST XFSTESTS_INSIDE=1
  again=(-g "$group" --on "$on" --contract "$contract" --size "$size" ${against:+--against "$against"} ${options:+--options "${options#,}"}
    ${results:+--results "$results"} "$tree" "${tests[@]}")
  exec unshare -m --propagation private "${BASH_SOURCE[0]}" "${again[@]}"
fi

volume_workdir "$contract"
chmod 755 "$WORK"
mkdir "$WORK"/{bin,sbin,test,scratch,results}
# Where there is systemd, the suite ends all processes of a test with it, and so the server of a mount that is to stay.
printf '#!/bin/sh\nexit 1\n' >"$WORK/bin/systemd-run"
chmod 755 "$WORK/bin/systemd-run"
PATH=$WORK/bin:$PATH

# ---------------------------------------------------------------- the namespace

for file in passwd group; do cp "/etc/$file" "$WORK/$file"; done
add_user() { # NAME NUMBER
  grep -q "^$1:" "$WORK/group" || echo "$1:*:$2:" >>"$WORK/group"
  grep -q "^$1:" "$WORK/passwd" || echo "$1:*:$2:$2::/tmp:/bin/bash" >>"$WORK/passwd"
}
add_user fsgqa 31001
add_user fsgqa2 31002
add_user 123456-fsgqa 31003
for file in passwd group; do mount --bind "$WORK/$file" "/etc/$file"; done

"$STEADFAST" install-helper "$WORK/sbin" >/dev/null || die "the helpers of mount(8) cannot be installed"
sbin=$(realpath /sbin)
mount -t overlay overlay -o "lowerdir=$WORK/sbin:$sbin" "$sbin" || unable "no overlay over $sbin"

# Replacements of the suite's functions. FSTYP is fuse, the subtype .steadfast.
cat "$tree/common/rc" >"$WORK/rc"
cat >>"$WORK/rc" <<'EOF'

_steadfast_mkfs() { # DEVICE SIZE
	# A volume on an object store is not overwritten: its objects are removed.
	case $1 in *://*) rm -rf "$XFSTESTS_OBJECTS/${1##*/}" ;; esac
	$STEADFAST mkfs $XFSTESTS_MKFS --size "$2" "$1"
}
_steadfast_check() { # DEVICE DIRECTORY
	local device=$1 mounted options status=0
	mounted=$(awk -v device="$device" '{ for (i = 7; $i != "-"; i++); } $(i + 2) == device { print $5; exit }' /proc/self/mountinfo)
	if [ -n "$mounted" ]; then
		options=$(awk -v dir="$mounted" '$5 == dir { print $6 }' /proc/self/mountinfo | tr , '\n' | grep -x ro)
		umount "$mounted" >>$seqres.full 2>&1 || { _log_err "_check_dev_fs: $device cannot be unmounted"; return 1; }
	fi
	if ! $STEADFAST fsck "$device" >$tmp.steadfast 2>&1; then
		_log_err "_check_dev_fs: the volume on $device is inconsistent"
		status=1
	fi
	cat $tmp.steadfast >>$seqres.full
	rm -f $tmp.steadfast
	if [ -n "$mounted" ]; then
		_mount -t $FSTYP$FUSE_SUBTYP $MOUNT_OPTIONS ${options:+-o $options} "$device" "$mounted" || status=1
	fi
	return $status
}
if [ "$FSTYP" = fuse ]; then
	eval "_generic$(declare -f _fs_type)"
	_fs_type() { _generic_fs_type "$@" | sed 's/^fuse\.steadfast$/fuse/'; }
	_test_mkfs() { _steadfast_mkfs "$TEST_DEV" "$XFSTESTS_SIZE"; }
	_try_mkfs_dev() { _steadfast_mkfs "${@: -1}" "$XFSTESTS_SIZE"; }
	_scratch_mkfs() { _steadfast_mkfs "$SCRATCH_DEV" "$XFSTESTS_SIZE" >/dev/null; }
	_try_scratch_mkfs() { _steadfast_mkfs "$SCRATCH_DEV" "$XFSTESTS_SIZE"; }
	_try_scratch_mkfs_sized() { _steadfast_mkfs "$SCRATCH_DEV" "$1"; }
	_check_test_fs() { _steadfast_check "$TEST_DEV"; }
	_check_dev_fs() { _steadfast_check "$1"; }
	_check_scratch_fs() { _steadfast_check "${1:-$SCRATCH_DEV}"; }
fi
/bin/true
EOF
mount --bind "$WORK/rc" "$tree/common/rc"

# ---------------------------------------------------------------- a run

# prepare KIND: devices and configuration for 'steadfast' or 'ext4'.
prepare() {
  local kind=$1 name
  export TEST_DIR=$WORK/test SCRATCH_MNT=$WORK/scratch RESULT_BASE=$WORK/results/$kind XFSTESTS_SIZE=$size STEADFAST
  export HOST_OPTIONS=$WORK/$kind.config
  mkdir -p "$RESULT_BASE"
  for name in TEST SCRATCH; do
    if [ "$kind" = steadfast ] && [ "$contract" = store ]; then
      volume_image store "$name"
      export "${name}_DEV=$IMAGE" XFSTESTS_OBJECTS=$WORK/store/bucket
      continue
    fi
    rm -f "$WORK/$kind.$name"
    truncate -s "$size" "$WORK/$kind.$name"
    if [ "$kind" = ext4 ]; then
      loop_attach "$WORK/$kind.$name" || unable "no loop device"
      export "${name}_DEV=$LOOP"
    else
      export "${name}_DEV=$WORK/$kind.$name"
    fi
  done
  if [ "$kind" = ext4 ]; then
    export FSTYP=ext4 FUSE_SUBTYP='' MOUNT_OPTIONS="-o acl,user_xattr" TEST_FS_MOUNT_OPTS="-o acl,user_xattr"
    # shellcheck disable=SC2153 # exported above
    mkfs.ext4 -q -F "$TEST_DEV"
  else
    export FSTYP=fuse FUSE_SUBTYP=.steadfast MOUNT_OPTIONS="-o allow_other$options"
    export TEST_FS_MOUNT_OPTS=$MOUNT_OPTIONS
    mkfs_options "$contract"
    export XFSTESTS_MKFS=${MKFS[*]}
    sf_mkfs "$TEST_DEV" "$size" "$contract"
  fi
  : >"$HOST_OPTIONS"
}

# finish KIND
finish() {
  detach "$TEST_DIR"
  detach "$SCRATCH_MNT"
}

# check KIND ARGUMENTS…: the suite itself; a line for each test goes to $WORK/KIND.lines.
check() {
  local kind=$1
  shift
  prepare "$kind"
  on_exit finish "$kind"
  (cd "$tree" && exec ./check "$@") </dev/null 2>&1 | tee "$WORK/$kind.log" || true
  finish "$kind"
  # The summary names what ran and what failed; why a test was skipped lies in a file.
  awk -v results="$RESULT_BASE" '
    $1 == "Ran:" { for (i = 2; i <= NF; i++) state[$i] = "passed" }
    $1 == "Failures:" { for (i = 2; i <= NF; i++) state[$i] = "failed" }
    $1 == "Not" && $2 == "run:" { for (i = 3; i <= NF; i++) state[$i] = "skipped" }
    END {
      for (name in state) {
        reason = ""
        if (state[name] == "skipped") getline reason <(results "/" name ".notrun")
        print name, state[name], reason
      }
    }' "$WORK/$kind.log" | sort >"$WORK/$kind.results"
}

if [ ${#tests[@]} -gt 0 ]; then
  what=("${tests[@]}")
elif [ "$group" = all ]; then
  what=(-g generic/all)
else
  what=(-g "generic/$group")
fi
check "$on" "${what[@]}"
[ -z "$results" ] || cp "$WORK/$on.results" "$results"
with() { awk -v want="$1" '$2 == want { print $1 }' "$2" | sort; }
with failed "$WORK/$on.results" >"$WORK/failed"
passed=$(with passed "$WORK/$on.results" | wc -l)
skipped=$(with skipped "$WORK/$on.results" | wc -l)

if [ "$on" = ext4 ]; then
  cp "$WORK/failed" "$WORK/unexpected"
elif [ -n "$against" ]; then
  with failed "$against" >"$WORK/there"
elif [ -s "$WORK/failed" ]; then
  step "the tests that failed, on ext4"
  mapfile -t what <"$WORK/failed"
  check ext4 "${what[@]}" >/dev/null
  with failed "$WORK/ext4.results" >"$WORK/there"
else
  : >"$WORK/there"
fi
if [ "$on" != ext4 ]; then
  awk '!/^#/ && NF { print $1 }' "$here/xfstests.skip" | sort >"$WORK/listed"
  comm -23 "$WORK/failed" "$WORK/there" | comm -23 - "$WORK/listed" >"$WORK/unexpected"
  comm -12 "$WORK/failed" "$WORK/there" | sed 's/^/failed on ext4, too: /'
  comm -12 "$WORK/failed" "$WORK/listed" | while read -r name; do
    awk -v name="$name" '$1 == name { $1 = ""; print "failed as listed: " name ":" $0 }' "$here/xfstests.skip"
  done
fi
step "skipped, by reason"
awk '$2 == "skipped" { name = $1; $1 = $2 = ""; sub(/^ +/, ""); names[$0] = names[$0] " " name; n[$0]++ }
     END { for (reason in n) printf "%4d  %s:%s\n", n[reason], reason, names[reason] }' "$WORK/$on.results" | sort -rn
step "xfstests ($on): $passed passed, $(wc -l <"$WORK/failed") failed ($(wc -l <"$WORK/unexpected") unexpected), $skipped skipped"
if [ -s "$WORK/unexpected" ]; then
  while read -r name; do
    say "FAILED $name"
    if [ -e "$RESULT_BASE/$name.out.bad" ]; then
      diff "$tree/tests/$name.out" "$RESULT_BASE/$name.out.bad" | head -n 12 | sed 's/^/    /' || true
    fi
  done <"$WORK/unexpected"
  exit 1
fi
[ "$passed" -gt 0 ] || die "no test passed"

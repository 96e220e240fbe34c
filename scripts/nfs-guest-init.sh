#!/bin/busybox sh
# The first process in the guest of nfs-guest.sh: mounts the export and tries the kernel's client on it.
# Each line that begins with PASS, FAIL, LOADED or FINISHED is for the script outside; `| ` goes before what explains a failure.
# shellcheck shell=dash disable=SC2154,SC2317 # the kernel's command line sets the variables; steps are called by name

/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp GIT_CONFIG_NOSYSTEM=1
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev 2>/dev/null
mount -t tmpfs tmp /tmp
for module in virtio_pci virtio_net nfs nfsv3; do modprobe "$module" || echo "| no module $module"; done
ifconfig lo 127.0.0.1 up
ifconfig eth0 10.0.2.15 netmask 255.255.255.0 up

# shellcheck disable=SC2013 # words are wanted
for word in $(sed 's/.* -- //' /proc/cmdline); do
  case $word in port=*|mount_port=*|export=*|kills=*|fsx_ops=*|only=*) eval "${word%%=*}='${word#*=}'" ;; esac
done

M=/mnt
D=/mnt/guest
attach() {
  mount -i -t nfs -o "vers=3,tcp,port=$port,mountport=$mount_port,mountproto=tcp,mountvers=3,nolock,hard,addr=10.0.2.2$1" \
    "10.0.2.2:$export" $M
}

# step NAME FUNCTION: runs it; its output is shown if it fails.
step() {
  case ",$only," in ,,|*,"$1",*) ;; *) return ;; esac
  begin=$(cut -d. -f1 /proc/uptime)
  # Not as a condition: there, `set -e` would mean nothing. The trace names what failed.
  (set -ex; "$2") >/tmp/said 2>&1
  status=$?
  if [ $status = 0 ]; then
    echo "PASS $1 ($(($(cut -d. -f1 /proc/uptime) - begin)) s in the guest)"
  else
    echo "FAIL $1"
    tail -n 15 /tmp/said | sed 's/^/| /'
  fi
}

# Only what the server says counts from here on.
forget() {
  sync
  echo 3 >/proc/sys/vm/drop_caches
}

# Content of a directory: kinds, modes, owners, times, sizes, links.
manifest() {
  (cd "$1" && {
    find . -type d -exec stat -c "%n %F %a %u %g $2" {} +
    find . ! -type l ! -type d -exec stat -c '%n %F %a %u %g %Y' {} +
    find . -type f -exec stat -c '%n %s %h' {} +
    find . -type l -exec sh -c 'for link; do echo "$link -> $(readlink "$link")"; done' sh {} +
  } | sort)
}

# same ONE OTHER [TIMES]: of directories, %Y by default.
same() {
  forget
  manifest "$1" "${3-%Y}" >/tmp/a
  manifest "$2" "${3-%Y}" >/tmp/b
  diff /tmp/a /tmp/b
  diff -r "$1" "$2" 2>&1 | grep -v 'dangling' >/tmp/differences || true
  cat /tmp/differences
  [ ! -s /tmp/differences ]
}

test_tree() {
  cp -a /data/tree $D/tree
  same /data/tree $D/tree
  cp -a $D/tree $D/tree-2
  same $D/tree $D/tree-2
  rm -r $D/tree-2
  [ ! -e $D/tree-2 ]
}

test_tar() {
  tar -cf $D/tree.tar -C /data tree
  mkdir $D/untar
  tar -xf $D/tree.tar -C $D/untar
  # This tar gives no times to directories.
  same /data/tree $D/untar/tree ''
}

test_git() {
  git clone -q /data/repository.git $D/clone
  forget
  cd $D/clone
  git fsck --full
  [ -z "$(git status --porcelain)" ]
  echo changed >>dir-1/file-1.txt
  git mv dir-2/file-2.txt dir-3/moved.txt
  git -c user.name=guest -c user.email=guest@localhost commit -qam changed
  forget
  git fsck --full
  [ -z "$(git status --porcelain)" ]
  [ "$(git rev-list --count HEAD)" = 6 ]
  git clone -q $D/clone $D/clone-2
  cmp $D/clone/dir-3/moved.txt $D/clone-2/dir-3/moved.txt
}

# Sums 1*1 + 1 … 30*1 + 1, and after the header has changed with 2: times decide what is built again.
test_build() {
  cp -r /data/sources $D/sources
  cd $D/sources
  make -j2 >/tmp/make 2>&1 || { cat /tmp/make; false; }
  [ "$(./program)" = 495 ]
  make | grep 'up to date'
  sleep 1
  echo '#define ANSWER 2' >answer.h
  [ "$(make | grep -c 'tcc -c')" = 31 ]
  [ "$(./program)" = 525 ]
  sleep 1
  touch part7.c
  [ "$(make | grep -c 'tcc -c')" = 1 ]
}

test_odds() {
  cd $D
  # Removed while open: the client keeps it under another name until it is closed.
  echo kept >open
  exec 7<open
  rm open
  [ "$(cat <&7)" = kept ]
  exec 7<&-
  # It does not go through close.
  i=0
  while [ $i -lt 50 ] && [ -n "$(find . -name '.nfs*')" ]; do sleep 0.1; i=$((i + 1)); done
  [ -z "$(find . -name '.nfs*')" ]
  long=$(printf '%0255d' 7)
  echo long >"$long"
  mv "$long" "x${long#0}"
  [ "$(cat "x${long#0}")" = long ]
  if touch "xx$long" 2>/dev/null; then false; fi
  for i in 1 2 3 4 5 6 7 8; do (for j in 1 2 3 4 5; do echo "$i $j" >>"appended-$i"; done) & done
  wait
  [ "$(cat appended-* | wc -l)" = 40 ]
  echo 0123456789 >shrunk
  truncate -s 4 shrunk
  truncate -s 20 shrunk
  forget
  [ "$(od -An -c shrunk | tr -d ' \n')" = '0123\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0' ]
  mkfifo pipe
  (echo through >pipe) &
  [ "$(cat pipe)" = through ]
  mkdir -p a/b
  if mv a a/b/c 2>/dev/null; then false; fi
  if rmdir a 2>/dev/null; then false; fi
  ln shrunk linked
  [ "$(stat -c %h shrunk)" = 2 ]
  chmod 0 shrunk
  chown 42:43 shrunk
  forget
  [ "$(stat -c '%a %u %g' linked)" = '0 42 43' ]
  df $M | grep -q 10.0.2.2
}

test_many() {
  mkdir $D/many
  cd $D/many
  for part in 1 2 3 4; do
    (i=0; while [ $i -lt 250 ]; do echo "$part $i" >file-$part-$i; i=$((i + 1)); done) &
  done
  wait
  forget
  [ "$(find . -type f | wc -l)" = 1000 ]
  [ "$(cat file-3-* | sort -n -k 2 | tail -n 1)" = '3 249' ]
  [ "$(cat file-* | wc -l)" = 1000 ]
  for part in 1 2 3 4; do rm file-$part-* & done
  wait
  [ -z "$(ls -A)" ]
  cd ..
  rmdir many
}

test_fsx() {
  fsx -q -f /data/fsx.toml -N "$fsx_ops" -S 1 -P /tmp $D/fsx >/tmp/fsx 2>&1 || true
  tail -n 12 /tmp/fsx
  grep -q A-OK /tmp/fsx
}

# Writers at work while the server dies and comes back. Everything that fsync has promised is compared afterwards, from the server.
test_kills() {
  mkdir $D/kills
  cd $D/kills
  round=1
  while [ $round -le "$kills" ]; do
    for writer in 1 2 3; do
      (
        i=0
        while [ $i -lt 25 ]; do
          dd if=/dev/urandom of=/tmp/w-$writer bs=1000 count=$((i * 7 % 60 + 1)) 2>/dev/null
          dd if=/tmp/w-$writer of=file-$round-$writer-$i bs=3000 conv=fsync 2>/dev/null
          md5sum </tmp/w-$writer | sed "s/-/file-$round-$writer-$i/" >>/tmp/sums-$writer
          if [ $((i % 5)) = 4 ]; then
            mv file-$round-$writer-$i moved-$round-$writer-$i
            sed -i "s/file-$round-$writer-$i\$/moved-$round-$writer-$i/" /tmp/sums-$writer
          fi
          # The script outside kills the server when it reads this.
          if [ $writer = 1 ] && [ $i = 5 ]; then echo "LOADED $round" >/dev/console; fi
          i=$((i + 1))
        done
        # The server may not be dead yet: work goes on for a while.
        i=0
        while [ $i -lt 8 ]; do sleep 0.5; echo "$i" >"last-$round-$writer"; sync; i=$((i + 1)); done
      ) &
    done
    wait
    round=$((round + 1))
  done
  cat /tmp/sums-1 /tmp/sums-2 /tmp/sums-3 >/tmp/sums
  [ "$(wc -l </tmp/sums)" = $((kills * 75)) ]
  forget
  md5sum -c /tmp/sums >/tmp/checked 2>&1 || { grep -v OK /tmp/checked; false; }
  [ "$(find . -type f | wc -l)" = $((kills * 78)) ]
}

echo "guest: $(uname -r)"
if attach ''; then echo "PASS mount"; else echo "FAIL mount"; poweroff -f; fi
mkdir $D || echo "FAIL mkdir"
step tree test_tree
step tar test_tar
step git test_git
step build test_build
step odds test_odds
step many test_many
step fsx test_fsx
step kills test_kills

# Everything goes, and the next mount sees that.
cd /
if rm -rf $D && umount $M && attach '' && [ ! -e $D ] && umount $M; then
  echo "PASS remove all, unmount"
else
  echo "FAIL remove all, unmount"
fi
echo FINISHED
poweroff -f

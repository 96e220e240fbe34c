#!/bin/busybox sh
# The first process in the machine of disk-guest.sh: makes a system on the disk, or checks the one that is
# there, goes over to it, and writes. Lines that begin with INSTALLED, SOUND, SYNCED, FAIL or ENDED are for the script outside.
# shellcheck shell=dash disable=SC2154 # the kernel's command line sets variables

export PATH=/bin

# The bytes of file $1.
content() { yes "file $1 of a machine that syncs" | head -c $(($1 * 7919 % 20000 + 1)); }

# Behind the last flush anything may be lost: numbered files are said when they are synced.
if [ "$1" = loaded ]; then
  mount -t proc proc /proc
  (i=0; while cp -r /lib "/busy/$i"; do
    [ $i -lt 3 ] || rm -rf "/busy/$((i - 3))"
    i=$((i + 1))
  done) 2>/dev/null &
  i=$2
  while content $((i + 1)) | dd of="/synced/$((i + 1))" conv=fsync 2>/dev/null; do
    i=$((i + 1))
    echo "SYNCED $i"
  done
  echo "FAIL cannot write file $((i + 1))"
  exec sleep 600
fi

/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev 2>/dev/null
for module in virtio_pci virtio_blk ext4; do modprobe "$module" || echo "| no module $module"; done
end() {
  echo "$*"
  poweroff -f
  exec sleep 600
}

# The task, and the number of the last file that was synced.
todo=$1 synced=$2
M=/mnt
DISK=/dev/vda
if [ "$todo" = install ]; then
  mkfs.ext4 -q $DISK || end FAIL mkfs.ext4
  mount -t ext4 $DISK $M || end FAIL mount
  cp -a /bin /lib* /usr /init $M && mkdir $M/proc $M/dev $M/busy $M/synced && umount $M && end INSTALLED
  end FAIL install
fi
e2fsck -p $DISK >/tmp/said 2>&1
[ $? -le 1 ] || end "FAIL e2fsck -p: $(tail -n 1 /tmp/said)"
e2fsck -f -n $DISK >/tmp/said 2>&1 || end "FAIL e2fsck -f: $(tail -n 1 /tmp/said)"
mount -t ext4 -o discard,errors=remount-ro $DISK $M || end FAIL mount
i=1
while [ $i -le "$synced" ]; do
  content $i | cmp -s - "$M/synced/$i" || end "FAIL file $i of $synced that were synced is lost or not whole"
  i=$((i + 1))
done
if [ "$todo" = check ]; then
  umount $M && end ENDED
  end FAIL umount
fi
echo "SOUND $synced"
rm -rf $M/busy/*
mount --move /dev $M/dev
umount /proc /sys
exec switch_root $M /init loaded "$synced"

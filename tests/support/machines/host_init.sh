#!/bin/bash
# The first process of a fake host: NAME DIRECTORY ADDRESS/PREFIX. Runs in fresh net, mount, UTS, IPC and PID namespaces.
# Its root is an overlay of this machine's, so that it has all programs at no cost, and a home, /tmp, /app of its own.
# SEEN and SHARED are directories of this machine that it sees at the same place, to read and to write.
# What it writes stays in DIRECTORY/up when its power goes.
set -e
name=$1 place=$2 address=$3 root=$2/root
hostname "$name"
ip link set lo up
until ip link show eth0 >/dev/null 2>&1; do sleep .01; done # the lab moves it in
ip addr add "$address" dev eth0
ip link set eth0 up
mkdir -p "$place/up" "$place/work" "$root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$place/up,workdir=$place/work" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs tmpfs "$root/run"
mkdir -p -m 700 "$place/home"
mount --bind "$place/home" "$root/root"
for seen in $SEEN $SHARED; do
    mkdir -p "$root$seen"
    mount --bind "$seen" "$root$seen"
done
for seen in $SEEN; do mount -o remount,bind,ro "$root$seen"; done
mkdir -p -m 755 "$root/run/sshd"
mkdir -p -m 700 "$root/root/.ssh"
mkdir -p "$root/opt/node/bin"
cp "$place/authorized_keys" "$root/root/.ssh/"
cp "$place/host_key" "$root/etc/ssh/node_key"
chmod 600 "$root/etc/ssh/node_key" "$root/root/.ssh/authorized_keys"
cp -a "$place/bin/." "$root/opt/node/bin/"
printf '127.0.0.1 localhost\n%s %s\n' "${address%/*}" "$name" >"$root/etc/hosts"
echo "$name" >"$root/etc/hostname"
: >"$root/etc/resolv.conf"
cat >"$root/etc/ssh/sshd_node" <<C
Port 22
HostKey /etc/ssh/node_key
PidFile none
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
SetEnv PATH=/opt/node/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
MaxStartups 100:30:200
C
cd "$root"
mkdir -p .old
pivot_root . .old
cd /
umount -l /.old
exec /usr/sbin/sshd -D -e -f /etc/ssh/sshd_node

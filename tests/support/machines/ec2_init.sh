#!/bin/bash
# First process of an EC2 instance: NAME DIRECTORY. Runs in new mount, UTS, IPC and PID namespaces, on this machine's network.
# Its root is an overlay of this machine's root, kept in DIRECTORY/up across reboots; /root, /tmp and /run are its own.
# Exit status: 10 after a power-off from inside.
set -e
name=$1 place=$2 root=$2/root
hostname "$name"
mkdir -p "$place/up" "$place/work" "$root"
mkdir -p -m 700 "$place/home"
mount -t overlay overlay -o "lowerdir=/,upperdir=$place/up,workdir=$place/work" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs tmpfs "$root/run"
mount --bind "$place/home" "$root/root"
mkdir -p -m 755 "$root/run/sshd" "$root/opt/ec2/bin"
cp -a "$place/boot/." "$root/opt/ec2/"
cd "$root"
mkdir -p .old
pivot_root . .old
cd /
umount -l /.old
rmdir /.old

export -n ADDRESS PORT
set +e
finished=/var/lib/cloud/instance/boot-finished
tools=/opt/ec2/bin
if [ ! -e "$finished" ]; then
    printf '127.0.0.1 localhost\n%s %s\n' "$ADDRESS" "$name" >/etc/hosts
    echo "$name" >/etc/hostname
    for program in systemctl shutdown sudo; do
        ln -sf ec2-tool "$tools/$program"
        for folder in /usr/bin /usr/sbin; do
            [ ! -e "$folder/$program" ] || ln -sf "$tools/ec2-tool" "$folder/$program"
        done
    done
    rm -rf /etc/ssh/ssh_host_* /etc/ssh/sshd_config.d /etc/motd /var/lib/cloud
    mkdir -p /var/lib/cloud/instance
    bash /opt/ec2/config.sh
fi
sh /opt/ec2/bootcmd.sh
{
    echo "Port $PORT"
    echo "ListenAddress $ADDRESS"
    echo "HostKey /etc/ssh/ssh_host_ed25519_key"
    printf '%s\n' 'PidFile none' 'UsePAM no' 'PasswordAuthentication no' 'KbdInteractiveAuthentication no' \
        'PermitRootLogin prohibit-password' 'StrictModes no' 'MaxStartups 100:30:200' 'Subsystem sftp internal-sftp' \
        "SetEnv PATH=$PATH AWS_EC2_METADATA_SERVICE_ENDPOINT=$AWS_EC2_METADATA_SERVICE_ENDPOINT"
} >/etc/ssh/sshd_config
trap 'exit 10' USR1
/usr/sbin/sshd -D -e -f /etc/ssh/sshd_config &
{
    for script in /var/lib/cloud/scripts/per-boot/*; do [ ! -x "$script" ] || "$script"; done
    touch "$finished"
} </dev/null >>/var/log/cloud-init-output.log 2>&1 &
while :; do
    sleep 1000 &
    wait $!
done

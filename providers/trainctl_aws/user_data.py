"""User data of instances: keys, node cache on local disks, a time limit for the first boot, a start at each boot."""

from __future__ import annotations

from typing import Any

import yaml

from trainctl_aws.keys import KeyPair

LOGIN_MARKER = "/var/lib/trainctl/login"
"""File that the first login creates."""
_BOOT_TIMER = """\
mkdir -p /var/lib/trainctl && chmod 1777 /var/lib/trainctl
[ -e {marker} ] || (setsid sh -c 'sleep {seconds}; [ -e {marker} ] || shutdown -h now' </dev/null >/dev/null 2>&1 &)
"""
_EACH_BOOT = """\
#!/bin/sh
# Mount the local NVMe disks, striped, as the node cache of trainctl. Watch for idle time again.
root=$(getent passwd {user} | cut -d: -f6)/.cache/trainctl
cache=$root/cache
set -- $(ls /dev/disk/by-id/nvme-Amazon_EC2_NVMe_Instance_Storage_* 2>/dev/null | grep -v -e -part -e '_1$' -e -ns-)
if [ $# -gt 0 ]; then
    mkdir -p "$cache"
    systemctl start dlami-nvme.service 2>/dev/null
    if mountpoint -q /opt/dlami/nvme; then
        mkdir -p /opt/dlami/nvme/trainctl
        mount --bind /opt/dlami/nvme/trainctl "$cache"
    else
        [ $# = 1 ] || mdadm --assemble --scan
        mount -o noatime LABEL=trainctl "$cache" 2>/dev/null || {{
            disk=$1
            [ $# = 1 ] || {{ disk=/dev/md/trainctl; mdadm --create $disk --run --level=0 --raid-devices=$# "$@"; }}
            mkfs.ext4 -q -L trainctl -E nodiscard -m 0 "$disk" && mount -o noatime "$disk" "$cache" && rmdir "$cache/lost+found"
        }}
    fi
    chown {user}: "${{root%/*}}" "$root" "$cache" && chmod 700 "$root" "$cache"
fi
[ ! -e "$root/at_boot" ] || su -s /bin/sh -c "sh '$root/at_boot'" {user}
"""
BOOT_WAIT = """\
if [ -d /var/lib/cloud ]; then until [ -e /var/lib/cloud/instance/boot-finished ]; do sleep 1; done; fi
touch "$1" 2>/dev/null
exit 0
"""
"""Script that waits until cloud-init has run, then creates the file in its argument."""


def each_boot(user: str) -> str:
    """Return the script that cloud-init runs as root at each boot."""
    return _EACH_BOOT.format(user=user)


def user_data(user: str, login: KeyPair, host: KeyPair, boot_timeout: float) -> str:
    """Return a cloud-config; equal arguments give equal text."""
    timer = _BOOT_TIMER.format(marker=LOGIN_MARKER, seconds=int(boot_timeout))
    config: dict[str, Any] = {
        "ssh_keys": {"ed25519_private": host.private, "ed25519_public": host.public},
        "ssh_authorized_keys": [f"{login.public} trainctl"],
        "disable_root": user != "root",
        "bootcmd": [["sh", "-c", timer]],
        "write_files": [
            {
                "path": "/var/lib/cloud/scripts/per-boot/trainctl",
                "permissions": "0755",
                "content": each_boot(user),
            }
        ],
    }
    return f"#cloud-config\n{yaml.safe_dump(config, sort_keys=False, width=200)}"

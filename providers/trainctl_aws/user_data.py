"""User data of instances: host key, login key, node cache on local disks, and a time limit for the boot."""

from __future__ import annotations

import shlex
from typing import Any

import yaml

from trainctl_aws.keys import KeyPair

LOGIN_MARKER = "/var/lib/trainctl/login"
"""File that the first login creates."""
_BOOT_TIMER = """\
mkdir -p /var/lib/trainctl && chmod 1777 /var/lib/trainctl
[ -e {marker} ] || (setsid sh -c 'sleep {seconds}; [ -e {marker} ] || shutdown -h now' </dev/null >/dev/null 2>&1 &)
"""
_LOCAL_DISKS = """\
#!/bin/sh
# Mount the local NVMe disks, striped, as the node cache of trainctl.
home=$(getent passwd {user} | cut -d: -f6)
cache=$home/.cache/trainctl
disks=$(ls /dev/disk/by-id/nvme-Amazon_EC2_NVMe_Instance_Storage_* 2>/dev/null | grep -v -e -part -e _1$ -e '-ns-')
[ -n "$disks" ] || exit 0
mkdir -p "$cache"
systemctl start dlami-nvme.service 2>/dev/null
if mountpoint -q /opt/dlami/nvme; then
    mkdir -p /opt/dlami/nvme/trainctl
    mount --bind /opt/dlami/nvme/trainctl "$cache"
else
    disk=$(readlink -f "$disks")
    if [ "$(echo "$disks" | wc -l)" -gt 1 ]; then
        disk=/dev/md/trainctl
        mdadm --create "$disk" --run --level=0 --raid-devices="$(echo "$disks" | wc -l)" $disks
    fi
    mkfs.ext4 -q -E nodiscard -m 0 "$disk" && mount -o noatime "$disk" "$cache" && rmdir "$cache/lost+found"
fi
chown {user}: "$home/.cache" "$cache" && chmod 700 "$cache"
"""
BOOT_WAIT = """\
if [ -d /var/lib/cloud ]; then until [ -e /var/lib/cloud/instance/boot-finished ]; do sleep 1; done; fi
touch "$1" 2>/dev/null
exit 0
"""
"""Script that waits until cloud-init has run, then creates the file in its argument."""


def user_data(user: str, login: KeyPair, host: KeyPair, boot_timeout: float) -> str:
    """Return a cloud-config; equal arguments give equal text."""
    timer = _BOOT_TIMER.format(marker=LOGIN_MARKER, seconds=int(boot_timeout))
    disks = "/usr/local/sbin/trainctl-disks"
    config: dict[str, Any] = {
        "ssh_keys": {"ed25519_private": host.private, "ed25519_public": host.public},
        "ssh_authorized_keys": [f"{login.public} trainctl"],
        "disable_root": user != "root",
        "bootcmd": [["sh", "-c", timer]],
        "write_files": [
            {
                "path": disks,
                "permissions": "0755",
                "content": _LOCAL_DISKS.format(user=shlex.quote(user)),
            }
        ],
        "runcmd": [["sh", disks]],
    }
    return f"#cloud-config\n{yaml.safe_dump(config, sort_keys=False, width=200)}"

"""User data of created machines: keys, a time limit for the first boot, a start of the idle watch at each boot."""

from __future__ import annotations

from typing import Any

import yaml

from trainctl.plugin_api.provider import duration_schema
from trainctl_ssh.keys import KeyPair

BOOT_TIMEOUT = duration_schema(
    "Time for a machine to boot; it turns itself off if trainctl has not logged in by then.", "15m"
)
IDLE_TIMEOUT = duration_schema("Time without runs after which a machine turns itself off.", "30m")
LOGIN_MARKER = "/var/lib/trainctl/login"
"""File that the first login creates."""
_BOOT_TIMER = """\
mkdir -p /var/lib/trainctl && chmod 1777 /var/lib/trainctl
[ -e {marker} ] || (setsid sh -c 'sleep {seconds}; [ -e {marker} ] || shutdown -h now' </dev/null >/dev/null 2>&1 &)
"""
_EACH_BOOT = """\
#!/bin/sh
user={user}; root=$(getent passwd $user | cut -d: -f6)/.cache/trainctl
{script}# Watch for idle time again.
[ ! -e "$root/at_boot" ] || su -s /bin/sh -c "sh '$root/at_boot'" $user
"""
BOOT_WAIT = """\
if [ -d /var/lib/cloud ]; then until [ -e /var/lib/cloud/instance/boot-finished ]; do sleep 1; done; fi
touch "$1" 2>/dev/null
exit 0
"""
"""Script that waits until cloud-init has run, then creates the file in its argument."""


def shutdown_command(user: str) -> tuple[str, ...]:
    """Return the command by which the login user turns the machine off."""
    return (*(() if user == "root" else ("sudo", "-n")), "shutdown", "-h", "now")


def each_boot(user: str, script: str = "") -> str:
    """Return the script that root runs after each boot; ``script`` runs first, with ``user`` and the node's ``root``."""
    return _EACH_BOOT.format(user=user, script=script)


def user_data(
    user: str, login: KeyPair, host: KeyPair, boot_timeout: float, script: str = ""
) -> str:
    """Return a cloud-config; equal arguments give equal text. ``script`` is that of ``each_boot``."""
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
                "content": each_boot(user, script),
            }
        ],
    }
    return f"#cloud-config\n{yaml.safe_dump(config, sort_keys=False, width=200)}"

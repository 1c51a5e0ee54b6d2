"""User data of created machines: keys, a time limit for the first boot, a start of the idle watch at each boot."""

from __future__ import annotations

from typing import Any

import yaml

from trainctl_ssh.keys import KeyPair

LOGIN_MARKER = "/var/lib/trainctl/login"
"""File that the first login creates."""
KEPT_MARKER = "/var/lib/trainctl/kept"
"""File that the first login creates on a machine whose end is not its own shutdown."""
LOGIN_USER = f"$(stat -c %U {LOGIN_MARKER} 2>/dev/null)"
"""A login user that is not known beforehand: the one that has logged in."""
_ROOT = "user={user}; root=$(getent passwd $user | cut -d: -f6)/.cache/trainctl"
_BOOT_TIMER = f"""\
mkdir -p /var/lib/trainctl && chmod 1777 /var/lib/trainctl
(setsid sh -c 'sleep {{seconds}}; {_ROOT}; [ -e {KEPT_MARKER} ] || [ -e "$root/at_boot" ] || shutdown -h now' </dev/null >/dev/null 2>&1 &)
"""
"""Ends a machine on which no client has started the idle watch, also one that logged in and was killed then."""
_EACH_BOOT = f"""\
#!/bin/sh
{_ROOT}
{{script}}# Watch for idle time again.
[ ! -e "$root/at_boot" ] || su -s /bin/sh -c "sh '$root/at_boot'" $user
"""
_HOOK = "/var/lib/cloud/scripts/per-boot/trainctl"
_UNIT = "/etc/systemd/system/trainctl.service"
NOT_WATCHED = 3
FIRST_LOGIN = f"""\
if [ -d /var/lib/cloud ] && [ ! -e /run/cloud-init/disabled ]; then
    until [ -e /var/lib/cloud/instance/boot-finished ]; do sleep 1; done
fi
touch "$@" 2>/dev/null
[ -e {_HOOK} ] || [ -e {_UNIT} ] || [ ! -d /run/systemd/system ] || exit {NOT_WATCHED}
exit 0
"""
"""Script that waits until cloud-init has run, then creates the files in its arguments; exits with ``NOT_WATCHED`` if user data didn't start the watch at boot."""
WATCH_AT_BOOT = f"""\
set -e; unit={_UNIT}
cat >$unit.new <<END
[Unit]
Description=Watch of trainctl, which turns an idle machine off

[Service]
Type=oneshot
RemainAfterExit=yes
User=${{SUDO_USER:-root}}
ExecStart=/bin/sh -c 'exec sh ~/.cache/trainctl/at_boot'
END
mkdir -p ${{unit%/*}}/multi-user.target.wants
ln -sf ../trainctl.service ${{unit%/*}}/multi-user.target.wants/trainctl.service
mv $unit.new $unit
"""
"""Script by which root starts the watch at each boot, on a machine without user data."""


def shutdown_command(user: str) -> tuple[str, ...]:
    """Return the command by which the login user turns the machine off."""
    return (*(() if user == "root" else ("sudo", "-n")), "shutdown", "-h", "now")


def user_data(
    user: str, login: KeyPair, host: KeyPair, boot_timeout: float, script: str = ""
) -> str:
    """Return a cloud-config; equal arguments give equal text. ``user`` may be ``LOGIN_USER``.

    At each boot, root runs ``script`` with the variables ``user`` and ``root``, that of the node.
    """
    timer = _BOOT_TIMER.format(user=user, seconds=int(boot_timeout))
    config: dict[str, Any] = {
        "ssh_keys": {"ed25519_private": host.private, "ed25519_public": host.public},
        "ssh_authorized_keys": [f"{login.public} trainctl"],
        "disable_root": user not in ("root", LOGIN_USER),
        "bootcmd": [["sh", "-c", timer]],
        "write_files": [
            {
                "path": "/var/lib/cloud/scripts/per-boot/trainctl",
                "permissions": "0755",
                "content": _EACH_BOOT.format(user=user, script=script),
            }
        ],
    }
    return f"#cloud-config\n{yaml.safe_dump(config, sort_keys=False, width=200)}"

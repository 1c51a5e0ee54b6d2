"""The part of cloud-init that EC2 instances of tests have: user data becomes scripts that the instance runs.

Supported: scripts that start with ``#!``; of ``#cloud-config`` ``ssh_keys``, ``users``, ``ssh_authorized_keys``,
``disable_root``, ``hostname``, ``write_files``, ``bootcmd`` and ``runcmd``. Both may be compressed with gzip.
All accounts have UID 0 and a home directory of their own, as tests can't install a setuid ``sudo``.
"""

from __future__ import annotations

import base64
import gzip
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

DEFAULT_USER = "ubuntu"
_SUPPORTED = {
    "ssh_keys", "users", "ssh_authorized_keys", "disable_root", "hostname", "write_files", "bootcmd", "runcmd",
}  # fmt: skip


@dataclass
class BootScripts:
    """Scripts by file name, and the keys of the cloud-config that have no effect."""

    files: dict[str, str] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)


def boot_scripts(user_data: bytes, public_key: str | None) -> BootScripts:
    """Return the scripts of an instance that is launched with this user data and the key pair's public key."""
    if user_data[:2] == b"\x1f\x8b":
        user_data = gzip.decompress(user_data)
    text = user_data.decode()
    if text.startswith("#!"):
        config: Mapping[str, Any] = {}
        final = _write("/var/lib/cloud/instance/user-data", user_data, "0700")
        final += "/var/lib/cloud/instance/user-data\n"
    elif not text or text.startswith("#cloud-config"):
        config = yaml.safe_load(text) or {}
        final = "".join(_deferred(config)) + "".join(
            _command(each) for each in _items(config, "runcmd")
        )
    else:
        raise ValueError(f"unsupported user data: {text[:30]!r}")
    parts = [*_host_keys(config), *_write_files(config), *_accounts(config, public_key)]
    if "hostname" in config:
        parts.append(f"hostname {config['hostname']}; hostname >/etc/hostname\n")
    made = BootScripts({"config.sh": "".join(parts), "final.sh": final})
    if "bootcmd" in config:
        made.files["bootcmd.sh"] = "".join(_command(each) for each in _items(config, "bootcmd"))
    made.ignored = sorted(set(config) - _SUPPORTED)
    return made


def _items(config: Mapping[str, Any], key: str) -> Sequence[Any]:
    return config.get(key) or []


def _command(words: str | Sequence[Any]) -> str:
    """Return a line of shell for an entry of ``runcmd``."""
    return (words if isinstance(words, str) else shlex.join(map(str, words))) + "\n"


def _write(path: str, content: bytes, mode: str, owner: str = "", *, append: bool = False) -> str:
    """Return shell that writes a file."""
    place = shlex.quote(path)
    text = base64.encodebytes(content).decode()
    made = f'mkdir -p "$(dirname {place})"\n'
    made += f"base64 -d {'>>' if append else '>'}{place} <<'END'\n{text}END\nchmod {mode} {place}\n"
    return made + (f"chown {shlex.quote(owner)} {place}\n" if owner else "")


def _host_keys(config: Mapping[str, Any]) -> list[str]:
    return [
        _write(
            f"/etc/ssh/ssh_host_{kind}_key{'.pub' if half == 'public' else ''}",
            text.strip().encode() + b"\n",
            "0600" if half == "private" else "0644",
        )
        for name, text in (config.get("ssh_keys") or {}).items()
        for kind, _, half in [name.rpartition("_")]
        if half in ("private", "public")
    ]


def _written(entry: Mapping[str, Any]) -> str:
    content, encoding = entry.get("content", ""), str(entry.get("encoding", "")).lower()
    data = content if isinstance(content, bytes) else str(content).encode()
    if "b64" in encoding or "base64" in encoding:
        data = base64.b64decode(data)
    if encoding.startswith("gz"):
        data = gzip.decompress(data)
    mode = entry.get("permissions", "0644")
    return _write(
        entry["path"],
        data,
        f"{mode:o}" if isinstance(mode, int) else str(mode),
        entry.get("owner", ""),
        append=bool(entry.get("append")),
    )


def _write_files(config: Mapping[str, Any]) -> list[str]:
    return [_written(each) for each in _items(config, "write_files") if not each.get("defer")]


def _deferred(config: Mapping[str, Any]) -> list[str]:
    return [_written(each) for each in _items(config, "write_files") if each.get("defer")]


def _accounts(config: Mapping[str, Any], public_key: str | None) -> list[str]:
    """Return shell that adds accounts. The default user gets the key pair, and root too if ``disable_root`` is false."""
    general = [*([public_key] if public_key else []), *_items(config, "ssh_authorized_keys")]
    keys: dict[str, list[str]] = {}
    for user in config.get("users", ["default"]):
        entry = {"name": user} if isinstance(user, str) else user
        name = DEFAULT_USER if entry["name"] == "default" else entry["name"]
        own = entry.get("ssh_authorized_keys", [])
        keys[name] = [*([own] if isinstance(own, str) else own)]
        if name == DEFAULT_USER:
            keys[name] += general
    if config.get("disable_root") is False:
        keys.setdefault("root", []).extend(general)
    return [_account(name, lines) for name, lines in keys.items()]


def _account(name: str, keys: Sequence[str]) -> str:
    home = "/root" if name == "root" else f"/home/{name}"
    add = (
        f"userdel -f {name} 2>/dev/null\nuseradd -o -u 0 -g 0 -M -d {home} -s /bin/bash -p '*' {name}\n"
        if name != "root"
        else ""
    )
    lines = "".join(f"{key.strip()}\n" for key in keys).encode()
    return f"{add}rm -rf {home}/.ssh\n{_write(f'{home}/.ssh/authorized_keys', lines, '0600')}"

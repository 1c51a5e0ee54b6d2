"""Settings of a cluster of hosts: JSON Schema, and checks beyond it."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import Any

from trainctl.base.json import JsonObject
from trainctl.plugin_api.provider import ClusterSettings, SettingsProblem
from trainctl_ssh.hosts import CONNECT_SECONDS, cluster_hosts

_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$(?!\n)"
_ADDRESS = r"^[A-Za-z0-9_:][A-Za-z0-9_.:-]*$(?!\n)"
_USER = r"^[A-Za-z0-9_][A-Za-z0-9_.@+-]*$(?!\n)"
_JUMP = r"^[A-Za-z0-9_\[][A-Za-z0-9_.@:,+\[\]-]*$(?!\n)"
_FILE = r"^[^-\x00-\x1f\x7f][^\x00-\x1f\x7f]*$(?!\n)"
DIRECTORY = r"^(/|~/)[^\x00-\x1f\x7f]*$(?!\n)"
_PORTS = r"^[0-9]{1,5}-[0-9]{1,5}$(?!\n)"
_KEY = r"^[a-z][A-Za-z0-9@.-]* +[A-Za-z0-9+/]+=*( +[^\x00-\x1f\x7f]*)?$(?!\n)"


def _text(pattern: str, description: str) -> JsonObject:
    return {"type": "string", "pattern": pattern, "description": description}


_LOGIN: JsonObject = {
    "user": _text(_USER, "Login name; default: that of the SSH configuration."),
    "port": {
        "type": "integer",
        "minimum": 1,
        "maximum": 65535,
        "description": "Port of sshd.",
    },
    "identity_file": _text(_FILE, "Private key for the login, a path on the client."),
    "jump": _text(_JUMP, "Jump hosts, as for ssh -J: user@host:port, separated by commas."),
}
_OPEN: JsonObject = {
    "ports": _text(
        _PORTS,
        "Ports that other hosts can connect to through a firewall, as FIRST-LAST; default: any.",
    ),
}
HOST: JsonObject = {
    "type": "object",
    "additionalProperties": False,
    "anyOf": [{"required": ["name"]}, {"required": ["address"]}],
    "description": "A host: a name or an address, or both, and its settings.",
    "properties": {
        "name": _text(_NAME, "Name of the node; default: its address."),
        "address": _text(_ADDRESS, "Host name, IP address or alias of the SSH configuration."),
        **_LOGIN,
        **_OPEN,
        "host_key": _text(_KEY, "Public key of the host, TYPE BASE64 as printed by ssh-keyscan; no other is accepted."),
        "python": _text(DIRECTORY, "Python 3.8 or newer: an absolute path, or one below ~/."),
        "dir": _text(DIRECTORY, "Directory of trainctl on the host, an absolute path or one below ~/; default: ~/.cache/trainctl."),
        "gpus": {
            "type": "integer",
            "minimum": 0,
            "description": "Number of GPUs that jobs may use; default: all that the host reports.",
        },
        "price_per_hour": {"type": "number", "minimum": 0, "description": "Cost of the host per hour."},
    },
}  # fmt: skip


def schema() -> JsonObject:
    """Return the JSON Schema of a cluster section, without the core's keys."""
    name = _text(_ADDRESS, "Name or address of a host, without user and port.")
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["hosts"],
        "properties": {
            **_LOGIN,
            **_OPEN,
            "connect_timeout": {
                "type": "integer",
                "minimum": 1,
                "maximum": 600,
                "default": CONNECT_SECONDS,
                "description": "Connection timeout in seconds.",
            },
            "hosts": {
                "type": "array",
                "minItems": 1,
                "items": {"if": {"type": "string"}, "then": name, "else": HOST},
                "description": "Hosts: names, or mappings with settings.",
            },
        },
    }


def find_problems(cluster: ClusterSettings) -> Iterator[SettingsProblem]:
    """Yield duplicate hosts, invalid keys and invalid port ranges."""
    hosts = cluster_hosts(cluster)
    ports = str(cluster.settings.get("ports") or "")
    if not _is_port_range(ports):
        yield _range_error(("ports",))
    names: dict[str, int] = {}
    seen_hosts: dict[Any, int] = {}
    for number, host in enumerate(hosts):
        # an address of IPv6 has more than one colon, and nothing else has any
        address, colon, port = host.login.address.partition(":")
        if colon and port.isdigit():
            yield SettingsProblem(
                ("hosts", number),
                f"{host.login.address!r} contains a port",
                f"Use {{address: {address}, port: {port}}}.",
            )
        first = names.setdefault(host.name, number)
        if first != number:
            yield SettingsProblem(
                ("hosts", number),
                f"duplicate host name {host.name!r}",
                f"hosts[{first}] has the same name. Set a different name for each host.",
            )
        identity = (host.login.address, host.login.port, host.login.user, host.dir)
        first = seen_hosts.setdefault(identity, number)
        if first != number and names[host.name] == number:
            yield SettingsProblem(
                ("hosts", number),
                f"hosts[{number}] is the same host as hosts[{first}]",
                f"Both have the address {host.login.address!r}. Remove one, or set a different dir for each.",
            )
        if host.ports != ports and not _is_port_range(host.ports):
            yield _range_error(("hosts", number, "ports"))
        if host.login.host_key and not _is_key(host.login.host_key):
            yield SettingsProblem(
                ("hosts", number, "host_key"),
                "host_key is not a public key",
                "Use TYPE and base64, as printed by ssh-keyscan: ssh-ed25519 AAAA…",
            )


def _is_port_range(ports: str) -> bool:
    """Return whether a range is empty or holds unprivileged ports only."""
    first, _, last = (ports or "1024-65535").partition("-")
    return 1024 <= int(first) <= int(last) <= 65535


def _range_error(path: tuple[str | int, ...]) -> SettingsProblem:
    return SettingsProblem(
        path,
        "ports is not a range of unprivileged ports",
        "Use FIRST-LAST between 1024 and 65535, for example 29000-29100.",
    )


def _is_key(text: str) -> bool:
    """Check the base64 by RFC 4253, 6.6: it begins with the type and its length."""
    kind, _, encoded = text.partition(" ")
    try:
        blob = base64.b64decode(encoded, validate=True)
    except (ValueError, binascii.Error):
        return False
    return blob[:4] == len(kind).to_bytes(4, "big") and blob[4 : 4 + len(kind)] == kind.encode()
